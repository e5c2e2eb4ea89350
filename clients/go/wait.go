package tidegate

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// backoffFirst bounds the first back-off after a call without a decision; each further bound is twice as long.
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 2 * time.Second
	// jitter lengthens Retry-After by up to this much, so that clients that were rejected together do not return
	// together.
	jitter = 0.1
)

// Wait repeats the call until it passes, at most for patience. It is for batch jobs: in the path of a request, use
// Check. It is the only function that sleeps.
//
// After a rejection it sleeps as long as Retry-After says, plus up to 10 % at random. If waiting does not help,
// or would exceed patience or the context's deadline, it immediately returns a decision that does not pass. If the
// client denies on failure, calls without a decision are repeated after a random time of up to 100 ms, then up to
// 200 ms, and so on up to 2 s.
func (c *Client) Wait(ctx context.Context, call Call, patience time.Duration) Decision {
	end := time.Now().Add(patience)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	bound := backoffFirst
	for {
		decision := c.Check(ctx, call)
		var sleep time.Duration
		switch {
		case decision.Passes:
			return decision
		case decision.Outcome == Rejected:
			if !decision.HasRetryAfter {
				return decision
			}
			sleep = time.Duration(float64(decision.RetryAfter) * (1 + jitter*rand.Float64()))
		default:
			if !decision.Failure.MayPassLater() {
				return decision
			}
			sleep = time.Duration(rand.Int64N(int64(bound)))
			bound = min(backoffMax, 2*bound)
		}
		if time.Now().Add(sleep).After(end) {
			return decision
		}
		timer := time.NewTimer(sleep)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return decision
		}
	}
}
