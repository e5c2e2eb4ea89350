package tidegate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
)

// Why there is no decision, in words that an operator can act on. The errors of gRPC do not suffice: for the HTTP port
// and for a port with TLS they are the same. So a second, raw connection finds out what listens there.
// clients/vectors/reasons.json holds the languages equal.

const (
	// diagnosisMax: the whole diagnosis takes at most this long.
	diagnosisMax = 3 * time.Second
	// frameBytes: a frame of HTTP/2 starts with its length and type in 9 bytes.
	frameBytes = 9
	// replyBytesMax has room for an HTTP/1.1 error.
	replyBytesMax = 1024
	// preface of HTTP/2, and an empty SETTINGS frame.
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	settingsFrame = 4
	getRequest    = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
)

// reasons by their names in the vectors.
var reasons = map[string]string{
	"unresolved":         "the name {host} does not resolve: check the address",
	"refused":            "nothing listens at {address}: check the address, and that Tidegate is running",
	"unreachable":        "no connection to {address} within 3 s: check the address and the firewall",
	"http_port":          "this is the HTTP port: {address} answers in HTTP/1.1; use the gRPC port, 8081 by default",
	"needs_tls":          "{address} requires TLS: write https:// instead of http://",
	"no_tls":             "{address} has no TLS: write http:// instead of https://",
	"unknown_authority":  "the server's certificate is not signed by a CA that this client trusts: give the client the CA of the server",
	"wrong_name":         "the server's certificate is not valid for {name}: use a host name that it has, or set the server name",
	"expired":            "the server's certificate has expired or is not yet valid: renew it",
	"client_certificate": "the server requires a client certificate that is signed by a CA that it trusts: give the client one",
	"no_answer":          "{address} accepts connections but does not answer: check that it is the gRPC port, and that Tidegate is not frozen",
	"closes":             "{address} closes connections without an answer: check that it is the gRPC port",
	"timeout":            "no decision within {timeout} ms: Tidegate is slow, or the timeout is too short",
	"busy":               "{pending_max} calls are already waiting for a decision: Tidegate is slow, or the maximum is too low",
	"unimplemented":      "{address} does not have the rate limit service: check that it is not the port of another service",
	"no_limits_api":      "{address} does not have tidegate.v1.Limits: batches and reservations need Tidegate",
	"denied":             "the server rejected this client with {code}: {message}",
	"status":             "the call failed with {code}: {message}",
	"closed":             "the client is closed",
}

// tlsTexts: what crypto/tls says, in lower case, and the reason.
var tlsTexts = [...][2]string{
	{"unknown authority", "unknown_authority"},
	{"certificate is valid for", "wrong_name"},
	{"not valid for any names", "wrong_name"},
	{"has expired or is not yet valid", "expired"},
	{"remote error: tls", "client_certificate"},
}

// endpoint is what a reason names: the server, and the settings of the client.
type endpoint struct {
	// host is without the brackets of an IPv6 address.
	host, port string
	secure     bool
	serverName string
	// tls is nil without TLS.
	tls        *tls.Config
	timeout    time.Duration
	pendingMax int64
}

func (e *endpoint) address() string { return net.JoinHostPort(e.host, e.port) }

func (e *endpoint) text(name string, failure *Failure, timeout time.Duration) string {
	server := e.serverName
	if server == "" {
		server = e.host
	}
	milliseconds := strconv.FormatFloat(float64(timeout)/float64(time.Millisecond), 'f', -1, 64)
	return strings.NewReplacer("{host}", e.host, "{address}", e.address(), "{name}", server, "{timeout}", milliseconds,
		"{pending_max}", strconv.FormatInt(e.pendingMax, 10), "{code}", codeName(failure.Code),
		"{message}", failure.Message).Replace(reasons[name])
}

// reason returns the reason of a failure as far as it is known without asking the server again.
func (e *endpoint) reason(failure *Failure, called string, timeout time.Duration) string {
	name := "status"
	switch {
	case failure.Busy:
		name = "busy"
	case failure.Closed:
		name = "closed"
	case failure.Code == codes.DeadlineExceeded:
		name = "timeout"
	case failure.Code == codes.Unimplemented && called == method:
		name = "unimplemented"
	case failure.Code == codes.Unimplemented:
		name = "no_limits_api"
	case failure.Code == codes.PermissionDenied || failure.Code == codes.Unauthenticated:
		name = "denied"
	}
	return e.text(name, failure, timeout)
}

// diagnose returns the reason of a failure. It takes at most three seconds.
func (e *endpoint) diagnose(ctx context.Context, failure *Failure, called string, timeout time.Duration) string {
	switch failure.Code {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted:
		return e.reason(failure, called, timeout)
	}
	if failure.Busy || failure.Closed {
		return e.reason(failure, called, timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, diagnosisMax)
	defer cancel()
	found, err := e.whatListens(ctx)
	if err != nil {
		return fmt.Sprintf("cannot connect to %s: %s", e.address(), err)
	}
	switch {
	case found == "http2" && e.secure:
		found = "no_tls"
	case found == "tls" && !e.secure:
		found = "needs_tls"
	case found == "tls":
		if found = tlsReason(failure.Message); found == "" {
			found = e.tlsFailure(ctx)
		}
	case found == "http2":
		found = ""
	}
	if found == "" {
		return e.reason(failure, called, timeout)
	}
	return e.text(found, failure, timeout)
}

// tlsFailure says why TLS fails, if it does. gRPC may only say that the connection is closed: a server rejects the client's
// certificate after the client's part of the handshake.
func (e *endpoint) tlsFailure(ctx context.Context) string {
	config := e.tls.Clone()
	config.NextProtos = []string{"h2"}
	connection, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", e.address())
	if err != nil {
		return tlsReason(err.Error())
	}
	defer connection.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = connection.SetDeadline(deadline)
	}
	// Only reads: after a write, the alert can be lost.
	if _, err = connection.Read(make([]byte, 1)); err != nil {
		return tlsReason(err.Error())
	}
	return ""
}

// tlsReason is empty if the text is not known.
func tlsReason(text string) string {
	said := strings.ToLower(text)
	for _, known := range tlsTexts {
		if strings.Contains(said, known[0]) {
			return known[1]
		}
	}
	return ""
}

// whatListens returns http2, which is without TLS, tls, or the name of a reason.
func (e *endpoint) whatListens(ctx context.Context) (string, error) {
	reply, name, err := e.exchange(ctx, preface, frameBytes)
	if name != "" || err != nil {
		return name, err
	}
	if len(reply) == frameBytes && reply[3] == settingsFrame {
		return "http2", nil
	}
	if !isTLS(reply) {
		// HTTP/1.1 servers close on the preface of HTTP/2, some without a word.
		if reply, name, err = e.exchange(ctx, getRequest, replyBytesMax); name != "" || err != nil {
			return name, err
		}
	}
	switch {
	case isTLS(reply) || bytes.Contains(reply, []byte("to HTTPS")) || bytes.Contains(reply, []byte("to an HTTPS")):
		return "tls", nil
	case bytes.HasPrefix(reply, []byte("HTTP/")):
		return "http_port", nil
	}
	return "closes", nil
}

// isTLS recognises the first record of TLS: an alert or a handshake.
func isTLS(reply []byte) bool { return len(reply) > 0 && (reply[0] == 0x15 || reply[0] == 0x16) }

// exchange sends a message and returns the first bytes of the reply, or the name of a reason.
func (e *endpoint) exchange(ctx context.Context, message string, bytesMax int64) ([]byte, string, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", e.address())
	var lookup *net.DNSError
	var system *os.SyscallError
	switch {
	case err == nil:
	case errors.As(err, &lookup):
		return nil, "unresolved", nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, "refused", nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return nil, "unreachable", nil
	case errors.As(err, &system):
		return nil, "", system.Err
	default:
		return nil, "", err
	}
	defer connection.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = connection.SetDeadline(deadline)
	}
	_, _ = io.WriteString(connection, message) // an error shows when reading
	reply, err := io.ReadAll(io.LimitReader(connection, bytesMax))
	if len(reply) == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, "no_answer", nil
	}
	return reply, "", nil // another error means that the server closed the connection
}

// codeName returns the name of a code as in gRPC's documentation.
func codeName(code codes.Code) string {
	name := []rune(nil)
	for index, letter := range code.String() {
		if index > 0 && 'A' <= letter && letter <= 'Z' && code != codes.OK {
			name = append(name, '_')
		}
		name = append(name, letter)
	}
	if code == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(string(name))
}
