package tidegate

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// tokens may be 100 a year.
var tokens = ask("tokens", "ann")

func fits(t *testing.T, client *Client, hits uint64) bool {
	t.Helper()
	budget := client.Reserve(context.Background(), tokens, Estimate{Hits: hits, OnUnsettled: ReleaseHold})
	defer budget.Close()
	return budget.Decision.Outcome == Allowed
}

// left: exactly so many tokens are available.
func left(t *testing.T, client *Client, expected uint64) {
	t.Helper()
	if !fits(t, client, expected) || fits(t, client, expected+1) {
		t.Errorf("not %d are left", expected)
	}
}

func reserve(t *testing.T, client *Client, hits uint64) *Reservation {
	t.Helper()
	budget := client.Reserve(t.Context(), tokens, Estimate{Hits: hits})
	outcome(t, budget.Decision, Allowed)
	return budget
}

func TestEstimatesThatDoNotFitTogetherAreRejectedBeforeTheyAreUsed(t *testing.T) {
	client := serve(t).client(t)
	for index, estimate := range []uint64{58, 80, 175, 175, 175} {
		budget := client.Reserve(t.Context(), tokens, Estimate{Hits: estimate})
		defer func() { left(t, client, 42) }()
		defer budget.Close()
		outcome(t, budget.Decision, map[bool]Outcome{true: Allowed, false: Rejected}[index == 0])
	}
	if found := client.Counters(); found != (Counters{1, 4, 0}) {
		t.Error(found)
	}
}

func TestWhatWasNotUsedIsFreeAgainAndASecondSettleChargesNothing(t *testing.T) {
	client := serve(t).client(t)
	budget := reserve(t, client, 60)
	left(t, client, 40)
	must(t, budget.Settle(t.Context(), 25))
	left(t, client, 75)
	must(t, budget.Settle(t.Context(), 70))
	must(t, budget.Release(t.Context()))
	budget.Close()
	left(t, client, 75)
}

func TestMoreThanTheEstimateIsChargedEvenBeyondTheLimit(t *testing.T) {
	client := serve(t).client(t)
	must(t, reserve(t, client, 60).Settle(t.Context(), 130))
	if fits(t, client, 1) {
		t.Error("130 of 100 are used")
	}
}

func TestAPanicChargesTheEstimateOrNotByChoice(t *testing.T) {
	client := serve(t).client(t)
	for _, it := range []struct {
		choice OnUnsettled
		left   uint64
	}{{ChargeEstimate, 90}, {ReleaseHold, 90}, {KeepHold, 80}} {
		func() {
			defer func() { _ = recover() }()
			budget := client.Reserve(t.Context(), tokens, Estimate{Hits: 10, OnUnsettled: it.choice})
			defer budget.Close()
			outcome(t, budget.Decision, Allowed)
			panic("the work failed")
		}()
		left(t, client, it.left)
	}
}

func TestAHoldThatIsKeptEndsWithItsTTLAndAChargedEstimateDoesNot(t *testing.T) {
	client := serve(t).client(t)
	for _, estimate := range []Estimate{{Hits: 10}, {Hits: 90, OnUnsettled: KeepHold}} {
		estimate.TTL = 500 * time.Millisecond
		budget := client.Reserve(t.Context(), tokens, estimate)
		outcome(t, budget.Decision, Allowed)
		budget.Close()
	}
	// When the hold of 90 has ended, that of 10 would have, too.
	until(t, func() bool { return fits(t, client, 90) })
	left(t, client, 90)
}

func TestAReleaseChargesNothing(t *testing.T) {
	client := serve(t).client(t)
	must(t, reserve(t, client, 60).Release(t.Context()))
	left(t, client, 100)
}

func TestARenewalReplacesTheEstimateIfItFits(t *testing.T) {
	client := serve(t).client(t)
	budget := reserve(t, client, 60)
	outcome(t, budget.Renew(t.Context(), 90), Allowed)
	outcome(t, budget.Renew(t.Context(), 101), Rejected)
	left(t, client, 10)
	budget.Close()
	left(t, client, 10)
	before := client.Counters()
	outcome(t, budget.Renew(t.Context(), 1), Allowed)
	if client.Counters() != before {
		t.Error("nothing is held, so nothing is asked")
	}
}

func TestARejectedReservationSettlesNothing(t *testing.T) {
	client := serve(t).client(t)
	for _, settles := range []bool{true, false} {
		budget := client.Reserve(t.Context(), tokens, Estimate{Hits: 101})
		outcome(t, budget.Decision, Rejected)
		if settles {
			must(t, budget.Settle(t.Context(), 50))
		}
		budget.Close()
	}
	left(t, client, 100)
}

func TestACallerThatGoesAwayBeforeItSettlesIsCharged(t *testing.T) {
	client := serve(t).client(t)
	budget := reserve(t, client, 60)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var failure *Failure
	if err := budget.Settle(ctx, 25); !errors.As(err, &failure) || failure.Code != codes.Canceled {
		t.Error(err)
	}
	budget.Close()
	until(t, func() bool { return fits(t, client, 75) })
	left(t, client, 75)
}

func TestALimitWithoutReserveIsChargedTheEstimate(t *testing.T) {
	client := serve(t).client(t)
	budget := client.Reserve(t.Context(), ask("user", "ann"), Estimate{Hits: 4})
	outcome(t, budget.Decision, Allowed)
	must(t, budget.Settle(t.Context(), 1))
	outcome(t, client.Check(t.Context(), ask("user", "ann")), Allowed)
	outcome(t, client.Check(t.Context(), ask("user", "ann")), Rejected)
}

func TestAReservationThatCannotBeIsNamed(t *testing.T) {
	client := serve(t).client(t)
	zero := uint64(0)
	for _, it := range []struct {
		call     Call
		estimate Estimate
	}{
		{Call{Descriptors: []Descriptor{{Entries: []Entry{{"tokens", "ann"}}, Hits: &zero}}}, Estimate{}},
		{export, Estimate{}},
		{Call{Descriptors: []Descriptor{{}}}, Estimate{}},
		{tokens, Estimate{TTL: -1}},
		{tokens, Estimate{OnUnsettled: 7}},
		{tokens, Estimate{OnUnsettled: math.MinInt}},
	} {
		budget := client.Reserve(t.Context(), it.call, it.estimate)
		outcome(t, budget.Decision, Failed)
		if budget.Decision.Failure.Code != codes.InvalidArgument || budget.Decision.Failure.Message == "" {
			t.Errorf("%+v", budget.Decision.Failure)
		}
		budget.Close()
	}
	if budget := client.Reserve(t.Context(), Call{}, Estimate{Hits: 60}); !budget.Decision.Passes {
		t.Errorf("%+v", budget.Decision)
	}
	if found := client.Counters(); found != (Counters{0, 0, 6}) {
		t.Error(found)
	}
}

func TestWithoutTidegateTheClientDecidesAndNothingIsSettled(t *testing.T) {
	for choice, passes := range map[OnFailure]bool{Allow: true, Deny: false} {
		config := configAt(freePort(t), newCertificates(t))
		config.OnFailure = choice
		client := newClient(t, config)
		budget := client.Reserve(t.Context(), tokens, Estimate{Hits: 60})
		outcome(t, budget.Decision, Failed)
		must(t, budget.Settle(t.Context(), 25))
		budget.Close()
		if budget.Decision.Passes != passes || client.later.Load() != 0 || client.Counters() != (Counters{0, 0, 1}) {
			t.Errorf("%+v", budget.Decision)
		}
	}
}

func TestASettleThatFailsSaysWhy(t *testing.T) {
	tidegate := serve(t)
	client := tidegate.client(t)
	budget := reserve(t, client, 60)
	must(t, tidegate.process.Process.Kill())
	_ = tidegate.process.Wait()
	var failure *Failure
	if err := budget.Settle(t.Context(), 25); !errors.As(err, &failure) || !failure.MayPassLater() {
		t.Error(err)
	}
	must(t, budget.Settle(t.Context(), 25))
}
