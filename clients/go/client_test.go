package tidegate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

const year = 366 * 24 * time.Hour

var export = Call{Descriptors: []Descriptor{{Entries: []Entry{{"export", "ann"}}, Hold: true}}}

func outcome(t *testing.T, decision Decision, expected Outcome) {
	t.Helper()
	if decision.Outcome != expected {
		t.Fatalf("%+v, expected %s", decision, expected)
	}
}

func TestTheSixthOfFiveIsRejectedWithTheTimeToWait(t *testing.T) {
	client := serve(t, "--headers", "x-ratelimit").client(t)
	for range 5 {
		outcome(t, client.Check(t.Context(), ask("user", "ann")), Allowed)
	}
	decision := client.Check(t.Context(), ask("user", "ann"))
	outcome(t, decision, Rejected)
	if decision.Passes || !decision.HasRetryAfter || decision.RetryAfter < time.Second || decision.RetryAfter > year {
		t.Errorf("%+v", decision)
	}
	if decision.Header.Get("Retry-After") == "" || decision.Header.Get("X-RateLimit-Limit") == "" {
		t.Error(decision.Header)
	}
	if found := client.Counters(); found != (Counters{5, 1, 0}) {
		t.Error(found)
	}
	outcome(t, client.Check(t.Context(), ask("user", "ben")), Allowed)
}

func TestACallNearASoftLimitAndOverItPassesWithMarks(t *testing.T) {
	client := serve(t).client(t)
	for _, expected := range []string{"near", "over", "over"} {
		decision := client.Check(t.Context(), ask("soft", "ann"))
		outcome(t, decision, Allowed)
		if decision.Marks.Get("x-quota") != expected {
			t.Errorf("%v, expected %s", decision.Marks, expected)
		}
	}
	both := ask("soft", "ann")
	both.Descriptors = append(both.Descriptors, ask("banned", "ann").Descriptors...)
	decision := client.Check(t.Context(), both)
	outcome(t, decision, Rejected)
	if decision.Marks != nil {
		t.Error(decision.Marks)
	}
}

func TestADateIsReadLikeSeconds(t *testing.T) {
	client := serve(t, "--retry-after", "date").client(t)
	all := ask("user", "ann")
	all.Hits = 5
	outcome(t, client.Check(t.Context(), all), Allowed)
	if decision := client.Check(t.Context(), all); decision.RetryAfter < time.Second || decision.RetryAfter > year {
		t.Errorf("%+v", decision)
	}
}

func TestHitsAreChargedAndRefunded(t *testing.T) {
	client := serve(t).client(t)
	three := ask("user", "ann")
	three.Hits = 3
	outcome(t, client.Check(t.Context(), three), Allowed)
	outcome(t, client.Check(t.Context(), three), Rejected)
	must(t, client.Refund(t.Context(), three))
	outcome(t, client.Check(t.Context(), three), Allowed)
	nothing := uint64(0)
	peek := Call{Descriptors: []Descriptor{{Entries: []Entry{{"user", "ann"}}, Hits: &nothing}}}
	for range 10 {
		outcome(t, client.Check(t.Context(), peek), Allowed)
	}
}

func TestValuesThatAreNotTextAreCounted(t *testing.T) {
	client := serve(t).client(t)
	stray := ask("user", "a\xffb")
	stray.Hits = 5
	outcome(t, client.Check(t.Context(), stray), Allowed)
	outcome(t, client.Check(t.Context(), stray), Rejected)
}

func TestACallWithoutDescriptorsPassesWithoutAsking(t *testing.T) {
	client := serve(t).client(t)
	if decision := client.Check(t.Context(), Call{}); !decision.Passes || client.Counters() != (Counters{}) {
		t.Errorf("%+v", decision)
	}
}

func TestWaitingHonoursRetryAfterUntilTheCallPasses(t *testing.T) {
	client := serve(t).client(t)
	for range 2 {
		outcome(t, client.Wait(t.Context(), ask("paced", "job"), patience), Allowed)
	}
	if found := client.Counters(); found.Allowed != 2 || found.Rejected < 1 || found.Rejected > 2 {
		t.Errorf("told to wait once, and not polling: %+v", found)
	}
}

func TestWaitingGivesUpAtOnceWhereItCannotHelp(t *testing.T) {
	client := serve(t).client(t)
	// Never allowed: there is no Retry-After.
	decision := client.Wait(t.Context(), ask("banned", "job"), year)
	outcome(t, decision, Rejected)
	if decision.HasRetryAfter {
		t.Error(decision.RetryAfter)
	}
	// Allowed again next year, which is later than the patience ends.
	all := ask("user", "ann")
	all.Hits = 5
	outcome(t, client.Check(t.Context(), all), Allowed)
	outcome(t, client.Wait(t.Context(), ask("user", "ann"), 0), Rejected)
	if found := client.Counters(); found != (Counters{1, 2, 0}) {
		t.Error(found)
	}
}

func TestABatchHasADecisionForEachCall(t *testing.T) {
	client := serve(t).client(t)
	calls := make([]Call, 6, 9)
	for index := range calls {
		calls[index] = ask("user", "ann")
	}
	calls = append(calls, Call{}, ask("", "an entry without a key"), ask("user", "ben"))
	decisions := client.CheckMany(t.Context(), calls)
	rejected := 0
	for _, decision := range decisions[:6] {
		if decision.Outcome == Rejected {
			rejected++
		}
	}
	if len(decisions) != 9 || rejected != 1 || client.Counters() != (Counters{6, 1, 1}) {
		t.Errorf("%+v", decisions)
	}
	for index, expected := range []Outcome{Allowed, Failed, Allowed} {
		outcome(t, decisions[6+index], expected)
	}
	if len(client.CheckMany(t.Context(), nil)) != 0 {
		t.Error("no call, no decision")
	}
}

func TestABatchBeyondTheBoundFailsAsAWhole(t *testing.T) {
	client := serve(t).client(t)
	calls := make([]Call, 1025)
	for index := range calls {
		calls[index] = ask("user", "ann")
	}
	for _, decision := range client.CheckMany(t.Context(), calls) {
		outcome(t, decision, Failed)
	}
	// The largest batch, each with a rejection.
	client.CheckMany(t.Context(), calls[1:])
	if found := client.Counters(); found != (Counters{5, 1019, 1025}) {
		t.Error(found)
	}
}

func TestASlotIsReleased(t *testing.T) {
	client := serve(t).client(t)
	decision, release := client.Hold(t.Context(), export)
	outcome(t, decision, Allowed)
	second, nothing := client.Hold(t.Context(), export)
	outcome(t, second, Rejected)
	nothing()
	must(t, client.Refund(t.Context(), export)) // a refund leaves slots alone
	second, _ = client.Hold(t.Context(), export)
	outcome(t, second, Rejected)
	release()
	release()
	untilPasses(t, client, export)
}

func TestACallerThatGoesAwayWhileItAsksLeavesNoSlotBehind(t *testing.T) {
	client := serve(t).client(t)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, release := client.Hold(ctx, export)
		release()
	}
	untilPasses(t, client, export)
}

func TestAnAbsentServiceLetsRequestsPassOrNotByChoice(t *testing.T) {
	for choice, passes := range map[OnFailure]bool{Allow: true, Deny: false} {
		config := configAt(freePort(t), newCertificates(t))
		config.OnFailure = choice
		client := newClient(t, config)
		decision := client.Check(t.Context(), ask("user", "ann"))
		outcome(t, decision, Failed)
		if decision.Passes != passes || !decision.Failure.MayPassLater() || client.Counters() != (Counters{0, 0, 1}) {
			t.Errorf("%+v", decision)
		}
	}
}

func TestAServiceThatHangsCostsTheTimeout(t *testing.T) {
	config := configAt(silent(t), newCertificates(t))
	config.Timeout = 20 * time.Millisecond
	decision := newClient(t, config).Check(t.Context(), ask("user", "ann"))
	outcome(t, decision, Failed)
	if decision.Failure.Code != codes.DeadlineExceeded || !decision.Passes {
		t.Errorf("%+v", decision.Failure)
	}
}

func TestNoMoreCallsWaitThanAllowed(t *testing.T) {
	config := configAt(silent(t), newCertificates(t))
	config.PendingMax = 3
	client := newClient(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan Decision, 3)
	for range 3 {
		go func() { done <- client.Check(ctx, ask("user", "ann")) }()
	}
	until(t, func() bool { return client.pending.Load() == 3 })
	decision := client.Check(t.Context(), ask("user", "ann"))
	outcome(t, decision, Failed)
	if !decision.Failure.Busy {
		t.Errorf("%+v", decision.Failure)
	}
	cancel()
	for range 3 {
		<-done
	}
	if client.pending.Load() != 0 || client.Counters() != (Counters{0, 0, 1}) {
		t.Error("those who went away left their places, and are not counted")
	}
}

func TestAServiceThatReturnsIsFoundAgain(t *testing.T) {
	first := serve(t)
	client := first.client(t)
	outcome(t, client.Check(t.Context(), ask("user", "ann")), Allowed)
	must(t, first.process.Process.Kill())
	_ = first.process.Wait()
	outcome(t, client.Check(t.Context(), ask("user", "ann")), Failed)
	serveAt(t, first.port, first.certificates)
	untilPasses(t, client, ask("user", "ann"))
}

func TestTLSVerifiesBothSides(t *testing.T) {
	tidegate := serve(t)
	others := newCertificates(t)
	for what, change := range map[string]func(*Config){
		"an unknown authority":     func(c *Config) { c.CAPEM = others.ca },
		"the system's authorities": func(c *Config) { c.CAPEM = nil },
		"no client certificate":    func(c *Config) { c.CertificatePEM, c.KeyPEM = nil, nil },
		"another name":             func(c *Config) { c.ServerName = "elsewhere.test" },
		"plain text": func(c *Config) {
			*c = Config{Address: fmt.Sprintf("http://localhost:%d", tidegate.port), Domain: "shop", Timeout: patience}
		},
	} {
		config := tidegate.config()
		change(&config)
		decision := newClient(t, config).Check(t.Context(), ask("user", "ann"))
		if decision.Outcome != Failed || decision.Failure.Code != codes.Unavailable {
			t.Errorf("%s: %+v", what, decision)
		}
	}
	all := ask("user", "ann")
	all.Hits = 5
	outcome(t, tidegate.client(t).Check(t.Context(), all), Allowed)
}

func TestWrongSettingsAreNamed(t *testing.T) {
	for says, config := range map[string]Config{
		"https://": {Address: "http://localhost:1", Domain: "shop", CAPEM: []byte("x")},
		"domain":   {Address: "http://localhost:1"},
		"an hour":  {Address: "http://localhost:1", Domain: "shop", Timeout: 2 * time.Hour},
		"Deny":     {Address: "http://localhost:1", Domain: "shop", OnFailure: 7},
		"negative": {Address: "http://localhost:1", Domain: "shop", PendingMax: -1},
		"CAPEM":    {Address: "https://localhost:1", Domain: "shop", CAPEM: []byte("x")},
	} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func TestANilMappingIsNamedWhereTheMiddlewareIsMade(t *testing.T) {
	client := newClient(t, Config{Address: "http://localhost:1", Domain: "shop"})
	for what, make := range map[string]func(){
		"middleware": func() { client.Middleware(nil) },
		"unary":      func() { client.UnaryInterceptor(nil) },
		"stream":     func() { client.StreamInterceptor(nil) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "the mapping must not be nil") {
					t.Errorf("%s: %q", what, text)
				}
			}()
			make()
		}()
	}
}
