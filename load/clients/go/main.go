// Asks a rate limiter before each request, as a service would that has no Envoy in front.
//
// A rejected request waits as long as Retry-After says (seconds or a date), else ever longer with
// jitter, and tries again, a few times at most. A limiter that is away costs a moment and then the
// request passes: choose what you would rather lose.
//
//	go run . localhost:8081 edge user=ann
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// A decision takes a millisecond or two; after this long the limiter counts as away.
	answerMax = 250 * time.Millisecond
	triesMax  = 5
	// The first back-off is up to this long, the next up to twice that, and so on up to the cap.
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 2 * time.Second
	// Who is told to wait longer than this gives up at once: its own caller will not wait either.
	waitMax = 30 * time.Second
)

var errRefused = errors.New("refused")

// Limiter asks for one domain.
type Limiter struct {
	service rls.RateLimitServiceClient
	domain  string
}

// Pass returns nil when a request with these entries may go on, errRefused when it may not.
func (l *Limiter) Pass(ctx context.Context, entries []*ratelimit.RateLimitDescriptor_Entry) error {
	for try := 1; ; try++ {
		answer, err := l.ask(ctx, entries)
		switch {
		case away(err):
			fmt.Printf("try %d: away (%s), let through\n", try, status.Code(err))
			return nil
		case err != nil:
			return err // a request that is wrong stays wrong
		case answer.GetOverallCode() != rls.RateLimitResponse_OVER_LIMIT:
			fmt.Printf("try %d: admitted\n", try)
			return nil
		}
		wait, why := backoff(try), "backoff"
		if told, ok := retryAfter(answer, time.Now()); ok {
			wait, why = told, "retry-after"
		}
		if try == triesMax || wait > waitMax {
			fmt.Printf("try %d: refused, giving up\n", try)
			return errRefused
		}
		fmt.Printf("try %d: refused, waiting (%s)\n", try, why)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *Limiter) ask(ctx context.Context, entries []*ratelimit.RateLimitDescriptor_Entry) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	return l.service.ShouldRateLimit(ctx, &rls.RateLimitRequest{
		Domain:      l.domain,
		Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: entries}},
	})
}

// away tells a limiter that gives no answer from one that finds fault with the question.
func away(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.ResourceExhausted
}

// retryAfter reads the header: seconds, or a date of HTTP.
func retryAfter(answer *rls.RateLimitResponse, now time.Time) (time.Duration, bool) {
	for _, header := range answer.GetResponseHeadersToAdd() {
		if !strings.EqualFold(header.GetKey(), "retry-after") {
			continue
		}
		if seconds, err := strconv.ParseUint(header.GetValue(), 10, 31); err == nil {
			return time.Duration(seconds) * time.Second, true
		}
		if date, err := http.ParseTime(header.GetValue()); err == nil {
			return max(0, date.Sub(now)), true
		}
	}
	return 0, false
}

// backoff is anything up to the bound: callers that were refused together must not return together.
func backoff(try int) time.Duration {
	bound := min(backoffMax, backoffFirst<<(try-1))
	return time.Duration(rand.Int64N(int64(bound)))
}

func run() error {
	requests := flag.Int("requests", 1, "requests, one after the other")
	flag.Parse()
	if flag.NArg() != 3 {
		return errors.New("usage: client [-requests N] HOST:PORT DOMAIN KEY=VALUE[,KEY=VALUE]")
	}
	connection, err := grpc.NewClient(flag.Arg(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	var entries []*ratelimit.RateLimitDescriptor_Entry
	for _, pair := range strings.Split(flag.Arg(2), ",") {
		key, value, _ := strings.Cut(pair, "=")
		entries = append(entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	limiter := &Limiter{service: rls.NewRateLimitServiceClient(connection), domain: flag.Arg(1)}
	for range *requests {
		if err := limiter.Pass(context.Background(), entries); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
