package tidegate

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// headersMax is the maximum number of response headers that are taken from a response.
	headersMax = 32
	// headerBytesMax is the maximum length of such a header's value; a longer one is left out.
	headerBytesMax = 1024
	// retryAfterSecondsMax is the maximum wait, a hundred years. A longer one is cut.
	retryAfterSecondsMax = 100 * 365 * 86_400
)

// forbidden are headers of the connection or of the response's framing, which a rate limiter must not set.
var forbidden = []string{"connection", "content-length", "host", "proxy-authenticate", "proxy-authorization", "te",
	"trailer", "transfer-encoding", "upgrade"}

// Outcome says how a call ended.
type Outcome int

const (
	// Allowed: the limits let the request pass.
	Allowed Outcome = iota
	// Rejected: a limit rejected the request.
	Rejected
	// Failed: there was no decision. Config.OnFailure says whether the request passes.
	Failed
)

func (o Outcome) String() string {
	return [...]string{"allowed", "rejected", "failed"}[o]
}

// Failure says why there was no decision.
type Failure struct {
	// Code is ResourceExhausted for a busy client, DeadlineExceeded for a timeout, Canceled for a closed client,
	// otherwise the status of the call.
	Code codes.Code
	// Busy: as many calls as allowed were already waiting for a decision. None was sent.
	Busy bool
	// Closed: the client is closed.
	Closed bool
	// Message of the status.
	Message string
}

// ConnectError says why Connect did not connect.
type ConnectError struct {
	// Failure of the call.
	Failure *Failure
	// Reason says what happened, where, and what to do.
	Reason string
}

func (e *ConnectError) Error() string { return e.Reason }

func (e *ConnectError) Unwrap() error { return e.Failure }

func (f *Failure) Error() string {
	switch {
	case f.Busy:
		return "too many calls are waiting for a decision"
	case f.Closed:
		return "the client is closed"
	case f.Code == codes.DeadlineExceeded:
		return "no decision within the timeout"
	}
	return fmt.Sprintf("%s: %s", codeName(f.Code), f.Message)
}

// MayPassLater says whether the same call can succeed later.
func (f *Failure) MayPassLater() bool {
	switch f.Code {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return false
	}
	return !f.Closed
}

func failureOf(err error) *Failure {
	found := status.Convert(err)
	return &Failure{Code: found.Code(), Message: found.Message()}
}

// Decision is the result of a call.
type Decision struct {
	Outcome Outcome
	// Passes: it was allowed, or there was no decision and the client lets requests pass on failure.
	Passes bool
	// Failure says why there was no decision; nil if there was one.
	Failure *Failure
	// RetryAfter is the time until a retry may pass. On a rejection, HasRetryAfter is false if waiting does not help.
	RetryAfter    time.Duration
	HasRetryAfter bool
	// Header is for the response, such as Retry-After.
	Header http.Header
	// Marks are headers for the service behind this one, near a limit and over it (mark in the policy); nil if there are
	// none. Set them, rather than add them, on its request: clients can send headers of the same names.
	Marks http.Header
	// Body is for the response to a rejected request; empty if the policy has none.
	Body []byte
}

// decide turns a response into a decision, by overall_code only. now turns a date in Retry-After into a wait.
func decide(given *response, now time.Time) Decision {
	decision := Decision{Passes: true, Header: http.Header{}}
	rejected := given.code == overLimit
	if rejected {
		decision.Outcome, decision.Passes, decision.Body = Rejected, false, given.body
	}
	for _, header := range validHeaders(given.headers) {
		// Envoy takes the type of a body from here, which only a rejection has.
		if header.name == "content-type" && !rejected {
			continue
		}
		if rejected && header.name == "retry-after" && !decision.HasRetryAfter {
			decision.RetryAfter, decision.HasRetryAfter = retryAfter(header.value, now)
		}
		decision.Header.Add(header.name, header.value)
	}
	for _, mark := range validHeaders(given.marks) {
		if decision.Marks == nil {
			decision.Marks = http.Header{}
		}
		decision.Marks.Set(mark.name, mark.value)
	}
	return decision
}

// validHeaders returns the first headers of a response, with names in lower case, without those that are too long,
// invalid, or of the connection.
func validHeaders(given []header) []header {
	var valid []header
	for _, header := range given[:min(len(given), headersMax)] {
		header.name = strings.ToLower(header.name)
		if len(header.value) > headerBytesMax || !isHeaderName(header.name) || !isHeaderValue(header.value) ||
			slices.Contains(forbidden, header.name) || strings.HasPrefix(header.name, "grpc-") {
			continue
		}
		valid = append(valid, header)
	}
	return valid
}

// retryAfter reads Retry-After: seconds, or a date of HTTP. A date in the past is 0.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	if value != "" && strings.TrimFunc(value, isDigit) == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > retryAfterSecondsMax {
			seconds = retryAfterSecondsMax
		}
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(0, date.Sub(now)), retryAfterSecondsMax*time.Second), true
}

func isHeaderName(name string) bool {
	const special = "!#$%&'*+-.^_`|~"
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune(special, r))
	}) < 0
}

func isHeaderValue(value string) bool {
	for _, b := range []byte(value) {
		if b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}
