package tidegate

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// What the log says when requests pass (or are denied) without a decision, and when that ends.
const (
	passing = "degraded: requests pass without a decision"
	denying = "degraded: requests are denied without a decision"
	ended   = "no longer degraded: the rate limit service decides again"
)

// quiet: failures that begin within this time after those that were logged are not logged. Where single calls fail among
// others, the log has two lines a minute.
const quiet = time.Minute

// outage knows which failures are logged: of each kind the first.
type outage struct {
	failedCalls uint64
	since       time.Time
	kinds       map[kind]bool
	loggedAt    time.Time
}

// kind of a failure. There are 19 of them, which bounds the lines of an outage.
type kind struct {
	code         codes.Code
	busy, closed bool
}

// fail counts a failed call, and returns whether to log it.
func (o *outage) fail(of kind, now time.Time) bool {
	o.failedCalls++
	if o.since.IsZero() {
		o.since = now
	}
	if o.kinds[of] {
		return false
	}
	if len(o.kinds) == 0 {
		if !o.loggedAt.IsZero() && now.Sub(o.loggedAt) < quiet {
			return false
		}
		o.loggedAt, o.kinds = now, map[kind]bool{}
	}
	o.kinds[of] = true
	return true
}

// end returns the failed calls and the time since the first, if they were logged. Others are counted with the next.
func (o *outage) end(now time.Time) (failedCalls uint64, duration time.Duration, logged bool) {
	since := o.since
	o.since = time.Time{}
	if since.IsZero() || len(o.kinds) == 0 {
		return 0, 0, false
	}
	failedCalls, o.failedCalls, o.kinds = o.failedCalls, 0, nil
	return failedCalls, now.Sub(since), true
}

// degraded logs failures and their end. A diagnosis takes up to three seconds, so it runs in the background.
type degraded struct {
	endpoint  endpoint
	domain    string
	failsOpen bool
	logger    *slog.Logger
	// active is read for each decision, so that only failures, and the first decision after them, take the lock.
	active  atomic.Bool
	running sync.WaitGroup

	mutex  sync.Mutex
	outage outage
	// pending are the failures that are being diagnosed.
	pending map[*Failure]string
	// logged are the reasons in the log since the outage began: two kinds of failures can have the same.
	logged map[string]bool
}

func (d *degraded) fail(failure *Failure, called string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.active.Store(true)
	if !d.outage.fail(kind{failure.Code, failure.Busy, failure.Closed}, time.Now()) {
		return
	}
	if d.pending == nil {
		d.pending = map[*Failure]string{}
	}
	d.pending[failure] = called
	d.running.Add(1)
	go func() {
		defer d.running.Done()
		// Not the caller's context: it ends with the call.
		reason := d.endpoint.diagnose(context.Background(), failure, called, d.endpoint.timeout)
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.log(failure, reason)
	}()
}

// end notes a decision.
func (d *degraded) end() {
	if !d.active.Load() {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.active.Store(false)
	for failure, called := range d.pending {
		d.log(failure, d.endpoint.reason(failure, called, d.endpoint.timeout))
	}
	d.logged = nil
	if failedCalls, duration, logged := d.outage.end(time.Now()); logged {
		// A warning like the start, so that no filter keeps only one of them.
		d.logger.Warn(ended, "failed_calls", failedCalls, "seconds", duration.Seconds(),
			"address", d.endpoint.address(), "domain", d.domain)
	}
}

// log logs a failure that is pending. It is called with the lock, so that an end follows its start.
func (d *degraded) log(failure *Failure, reason string) {
	if _, found := d.pending[failure]; !found {
		return
	}
	delete(d.pending, failure)
	if d.logged[reason] {
		return
	}
	if d.logged == nil {
		d.logged = map[string]bool{}
	}
	d.logged[reason] = true
	phrase := denying
	if d.failsOpen {
		phrase = passing
	}
	d.logger.Warn(phrase, "reason", reason, "address", d.endpoint.address(), "domain", d.domain)
}
