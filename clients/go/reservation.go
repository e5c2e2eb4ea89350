package tidegate

import (
	"context"
	"sync"
	"time"
)

// OnUnsettled says what Reservation.Close does with a hold that was not settled.
type OnUnsettled int

const (
	// ChargeEstimate charges the estimate, because what was used is unknown.
	ChargeEstimate OnUnsettled = iota
	// ReleaseHold ends the hold and charges nothing.
	ReleaseHold
	// KeepHold leaves the hold to its ttl, and charges nothing.
	KeepHold
)

// Estimate of what the work of a reservation will use.
type Estimate struct {
	// Hits to hold, an upper estimate.
	Hits uint64
	// TTL is the time after which the hold ends, rounded up to seconds. It can only shorten that of the limits, which is the
	// default.
	TTL time.Duration
	// OnUnsettled says what Close does with a hold that was not settled (default: it charges the estimate).
	OnUnsettled OnUnsettled
}

// Reservation has hits that are held while the work runs. Defer its Close.
type Reservation struct {
	// Decision says whether the work may begin. Nothing is held if it was rejected, if there was no decision, or if no
	// limit of the call has `reserve`; Settle, Release, Renew, and Close then do nothing.
	Decision Decision

	client *Client
	call   Call

	mutex    sync.Mutex
	estimate Estimate
	// id is made by Tidegate; empty while nothing is held.
	id string
}

// Reserve holds hits before the work, if they fit. Settle charges afterwards what the work used. The limits need `reserve`
// in the policy; other servers than Tidegate do not have it. The call's descriptors have neither Hits nor Hold, and its own
// hits do not matter.
//
// Reserve does not repeat a call: if there was no answer, Tidegate may hold the hits until their ttl.
func (c *Client) Reserve(ctx context.Context, call Call, estimate Estimate) *Reservation {
	reservation := &Reservation{client: c, call: call, estimate: estimate}
	reservation.Decision = reservation.reserve(ctx, estimate)
	return reservation
}

// Settle charges what was used, even beyond the limit, and ends the hold. Only the first call of Settle, Release, or Close
// does something.
//
// The error is a *Failure: Tidegate may not have charged it within the timeout. It is then sent once more, in the
// background, because a settle that arrives twice charges once. Client.Close does not wait for it.
func (r *Reservation) Settle(ctx context.Context, used uint64) error {
	r.mutex.Lock()
	id := r.id
	r.id = ""
	r.mutex.Unlock()
	if id == "" {
		return nil
	}
	message := r.call.reserveMessage(r.client.domain, id, used, 0)
	if failure := r.client.send(ctx, methodSettle, message, new(response)); failure != nil {
		r.client.sendLater(methodSettle, message)
		return failure
	}
	return nil
}

// Release ends the hold without a charge. Otherwise it is like Settle.
func (r *Reservation) Release(ctx context.Context) error { return r.Settle(ctx, 0) }

// Renew replaces the hits of the estimate, and begins the hold's time anew. If they do not fit, the decision does not pass,
// and the hold stays as it was.
func (r *Reservation) Renew(ctx context.Context, hits uint64) Decision {
	r.mutex.Lock()
	estimate, held := r.estimate, r.id != ""
	r.mutex.Unlock()
	if !held {
		return r.Decision
	}
	estimate.Hits = hits
	return r.reserve(ctx, estimate)
}

// Close does with a hold that was not settled what the estimate's OnUnsettled says. It returns within the timeout.
func (r *Reservation) Close() {
	r.mutex.Lock()
	estimate := r.estimate
	r.mutex.Unlock()
	// Not the caller's context, which may have ended.
	switch estimate.OnUnsettled {
	case ChargeEstimate:
		_ = r.Settle(context.Background(), estimate.Hits)
	case ReleaseHold:
		_ = r.Release(context.Background())
	}
}

func (r *Reservation) reserve(ctx context.Context, estimate Estimate) Decision {
	if len(r.call.Descriptors) == 0 {
		return Decision{Passes: true}
	}
	r.mutex.Lock()
	id := r.id
	r.mutex.Unlock()
	answer := new(reserveResponse)
	failure := r.call.reserveMistake(estimate)
	if failure == nil {
		message := r.call.reserveMessage(r.client.domain, id, estimate.Hits, estimate.TTL)
		failure = r.client.send(ctx, methodReserve, message, answer)
	}
	decision := r.client.decide(ctx, &answer.response, failure, methodReserve)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if answer.id != "" { // a renewal that was rejected has none
		r.id = answer.id
	}
	if decision.Passes {
		r.estimate = estimate
	}
	return decision
}
