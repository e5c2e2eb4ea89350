package tidegate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// What the log says when there is no decision: real servers, and nothing where something should be.

// settings is what a server of HTTP/2 says first: an empty SETTINGS frame.
const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// logged keeps what a logger writes.
type logged struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (l *logged) Write(text []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(text)
}

func (l *logged) lines() []string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.text.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(l.text.String(), "\n"), "\n")
}

func (l *logged) logger() *slog.Logger {
	withoutTime := func(_ []string, attribute slog.Attr) slog.Attr {
		if attribute.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attribute
	}
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
}

func filled(t *testing.T, name string, values map[string]string) string {
	t.Helper()
	var known map[string]string
	read(t, "reasons.json", &known)
	text := known[name]
	for key, value := range values {
		text = strings.ReplaceAll(text, "{"+key+"}", value)
	}
	if text == "" || strings.Contains(text, "{") {
		t.Fatal(text)
	}
	return text
}

// failing is a failure, and what the log says about it.
type failing struct {
	reason string
	config Config
	values map[string]string
	// connects: Connect succeeds all the same.
	connects, batch bool
	call            Call
}

// check: three calls fail, the log has one line with the reason, and Connect returns it.
func (f failing) check(t *testing.T) {
	t.Helper()
	var log logged
	f.config.Logger = log.logger()
	client := newClient(t, f.config)
	host, _, _ := net.SplitHostPort(client.Address())
	values := map[string]string{"address": client.Address(), "host": host, "name": host}
	for key, value := range f.values {
		values[key] = value
	}
	if f.call.Descriptors == nil {
		f.call = ask("user", "ann")
	}
	if values["code"] != "" {
		silent := f.config
		silent.Logger = slog.New(slog.DiscardHandler)
		values["message"] = newClient(t, silent).Check(t.Context(), f.call).Failure.Message // the server's
	}
	expected := filled(t, f.reason, values)
	if !f.connects {
		ctx, cancel := context.WithTimeout(t.Context(), f.config.Timeout)
		defer cancel()
		err := client.Connect(ctx)
		var connect *ConnectError
		if !errors.As(err, &connect) || err.Error() != expected {
			t.Errorf("%v, expected %s: %+v", err, expected, connect)
		}
	}
	for range 3 {
		decision := Decision{}
		if f.batch {
			decision = client.CheckMany(t.Context(), []Call{f.call})[0]
		} else {
			decision = client.Check(t.Context(), f.call)
		}
		if decision.Outcome != Failed || !decision.Passes {
			t.Errorf("%+v", decision)
		}
	}
	until(t, func() bool { return len(log.lines()) > 0 })
	line := fmt.Sprintf("level=WARN msg=%q reason=%q address=%s domain=shop",
		"degraded: requests pass without a decision", expected, client.Address())
	if found := log.lines(); !reflect.DeepEqual(found, []string{line}) {
		t.Errorf("%q, expected %q", found, line)
	}
	if client.Counters() != (Counters{0, 0, 3}) {
		t.Error(client.Counters())
	}
}

func plainAt(port int) Config {
	return Config{Address: fmt.Sprintf("http://localhost:%d", port), Domain: "shop", Timeout: patience}
}

func secureAt(t *testing.T, port int) Config { return configAt(port, newCertificates(t)) }

func TestNothingListensOrANameDoesNotResolve(t *testing.T) {
	failing{reason: "refused", config: plainAt(freePort(t))}.check(t)
	failing{reason: "refused", config: secureAt(t, freePort(t))}.check(t)
	nowhere := Config{Address: "http://nowhere.invalid:8081", Domain: "shop", Timeout: patience}
	failing{reason: "unresolved", config: nowhere}.check(t)
}

func TestTheHTTPPort(t *testing.T) {
	port := freePort(t)
	serveWith(t, serverSettings{httpPort: port, plain: true})
	failing{reason: "http_port", config: plainAt(port)}.check(t)
	failing{reason: "http_port", config: secureAt(t, port)}.check(t)
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	failing{reason: "http_port", config: plainAt(other.Listener.Addr().(*net.TCPAddr).Port)}.check(t)
	// nginx and Go say so in plain text.
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	failing{reason: "needs_tls", config: plainAt(secure.Listener.Addr().(*net.TCPAddr).Port)}.check(t)
}

func TestTLSOnAPlainPortAndTheReverse(t *testing.T) {
	failing{reason: "no_tls", config: secureAt(t, serveWith(t, serverSettings{plain: true}).port)}.check(t)
	failing{reason: "needs_tls", config: plainAt(serve(t).port)}.check(t)
	failing{reason: "needs_tls", config: plainAt(serveWith(t, serverSettings{anybodysClient: true}).port)}.check(t)
}

func TestCertificatesThatAreNotTrusted(t *testing.T) {
	tidegate := serve(t)
	others := newCertificates(t)
	for _, it := range []struct {
		reason string
		change func(*Config)
		values map[string]string
	}{
		{"unknown_authority", func(c *Config) { c.CAPEM = others.ca }, nil},
		{"unknown_authority", func(c *Config) { c.CAPEM = nil }, nil},
		{"wrong_name", func(c *Config) { c.ServerName = "elsewhere.test" }, map[string]string{"name": "elsewhere.test"}},
		{"client_certificate", func(c *Config) { c.CertificatePEM, c.KeyPEM = nil, nil }, nil},
		{"client_certificate", func(c *Config) { c.CertificatePEM, c.KeyPEM = others.client, others.clientKey }, nil},
	} {
		config := tidegate.config()
		it.change(&config)
		failing{reason: it.reason, config: config, values: it.values}.check(t)
		// gRPC may say no more than this.
		closed := &Failure{Code: codes.Unavailable, Message: "broken pipe"}
		server := newClient(t, config).degraded.endpoint
		if found := server.diagnose(t.Context(), closed, method, patience); found != filled(t, it.reason, it.values) {
			t.Error(found)
		}
	}
}

func TestACertificateThatHasExpired(t *testing.T) {
	expired := certificatesUntil(t, time.Unix(1_000_000_000, 0))
	tidegate := serveWith(t, serverSettings{certificates: expired, anybodysClient: true})
	failing{reason: "expired", config: tidegate.config()}.check(t)
}

func TestServersThatDoNotAnswer(t *testing.T) {
	for _, config := range []Config{plainAt(silent(t)), secureAt(t, silent(t))} {
		config.Timeout = 200 * time.Millisecond
		failing{reason: "no_answer", config: config}.check(t)
	}
	failing{reason: "closes", config: plainAt(listen(t, ""))}.check(t)
	failing{reason: "closes", config: secureAt(t, listen(t, ""))}.check(t)
}

func TestAServerThatIsTooSlow(t *testing.T) {
	config := plainAt(listen(t, settings))
	config.Timeout = 20 * time.Millisecond
	failing{reason: "timeout", config: config, connects: true, values: map[string]string{"timeout": "20"}}.check(t)
}

func TestThePortOfAnotherService(t *testing.T) {
	for code, reason := range map[codes.Code]string{codes.Unimplemented: "unimplemented", codes.Unauthenticated: "denied"} {
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return status.Error(code, "a token is missing")
		}))
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		go server.Serve(listener)
		t.Cleanup(server.Stop)
		config := plainAt(listener.Addr().(*net.TCPAddr).Port)
		values := map[string]string{"code": "UNAUTHENTICATED"}
		if reason == "unimplemented" {
			values = nil
		}
		failing{reason: reason, config: config, values: values}.check(t)
		if code == codes.Unimplemented {
			failing{reason: "no_limits_api", config: config, batch: true, connects: true}.check(t)
		}
	}
}

func TestWhatTheServiceItselfAnswers(t *testing.T) {
	tidegate := serve(t, "--batches", "false")
	failing{reason: "no_limits_api", config: tidegate.config(), batch: true, connects: true}.check(t)
	empty := Call{Descriptors: []Descriptor{{Entries: []Entry{{"user", "ann"}}}, {}}}
	if failure := tidegate.client(t).Check(t.Context(), empty).Failure; failure.Message != "descriptors[1].entries: must not be empty" {
		t.Error(failure)
	}
	for _, call := range []Call{ask("", "x"), empty} {
		values := map[string]string{"code": "INVALID_ARGUMENT"}
		failing{reason: "status", config: tidegate.config(), connects: true, values: values, call: call}.check(t)
	}
	tidegate = serve(t, "--grpc-client-domains", "shop=elsewhere.test")
	values := map[string]string{"code": "PERMISSION_DENIED"}
	failing{reason: "denied", config: tidegate.config(), connects: true, values: values}.check(t)
	policy := "domain: shop\non_store_failure: error\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 5}\n"
	tidegate = serveWith(t, serverSettings{policy: policy}, "--redis-url", fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	values = map[string]string{"code": "UNAVAILABLE"}
	failing{reason: "status", config: tidegate.config(), connects: true, values: values}.check(t)
}

func TestTooManyCallsAreWaiting(t *testing.T) {
	var log logged
	config := plainAt(silent(t))
	config.PendingMax, config.Logger = 1, log.logger()
	client := newClient(t, config)
	go client.Check(t.Context(), ask("user", "ann"))
	until(t, func() bool { return client.pending.Load() == 1 })
	client.Check(t.Context(), ask("user", "ann"))
	until(t, func() bool { return len(log.lines()) > 0 })
	if expected := filled(t, "busy", map[string]string{"pending_max": "1"}); !strings.Contains(log.lines()[0], expected) {
		t.Error(log.lines())
	}
}

func TestReasonsAreThoseOfTheSharedVectors(t *testing.T) {
	var known map[string]string
	read(t, "reasons.json", &known)
	if !reflect.DeepEqual(known, reasons) {
		t.Errorf("%q, expected %q", reasons, known)
	}
}

func TestTheStartAndTheEndAreLoggedOnce(t *testing.T) {
	var log logged
	first := serve(t)
	config := first.config()
	config.Logger = log.logger()
	client := newClient(t, config)
	outcome(t, client.Check(t.Context(), ask("user", "ann")), Allowed)
	if lines := log.lines(); lines != nil {
		t.Error(lines)
	}
	must(t, first.process.Process.Kill())
	_ = first.process.Wait()
	for range 10 {
		outcome(t, client.Check(t.Context(), ask("user", "ann")), Failed)
	}
	serveAt(t, first.port, first.certificates)
	untilPasses(t, client, ask("user", "ann"))
	client.Check(t.Context(), ask("user", "ann"))
	lines := log.lines()
	start := `^level=WARN msg="degraded: requests pass without a decision" reason="[^"]+" address=\S+ domain=shop$`
	end := fmt.Sprintf(`^level=WARN msg="no longer degraded: the rate limit service decides again" failed_calls=%d seconds=[0-9.]+ address=\S+ domain=shop$`,
		client.Counters().Failed)
	if len(lines) != 2 || !regexp.MustCompile(start).MatchString(lines[0]) || !regexp.MustCompile(end).MatchString(lines[1]) {
		t.Errorf("%q", lines)
	}
}

func TestAClientThatDeniesSaysSo(t *testing.T) {
	var log logged
	config := plainAt(freePort(t))
	config.OnFailure, config.Logger = Deny, log.logger()
	client := newClient(t, config)
	if client.Check(t.Context(), ask("user", "ann")).Passes {
		t.Error("it passes")
	}
	must(t, client.Close()) // waits for the diagnosis
	expected := `level=WARN msg="degraded: requests are denied without a decision" reason="nothing listens at `
	if lines := log.lines(); len(lines) != 1 || !strings.HasPrefix(lines[0], expected) {
		t.Errorf("%q", lines)
	}
}

func TestAFailureThatEndsBeforeItsDiagnosisIsLoggedBeforeItsEnd(t *testing.T) {
	var log logged
	server := endpoint{host: "localhost", port: strconv.Itoa(silent(t)), timeout: 20 * time.Millisecond}
	state := degraded{endpoint: server, domain: "shop", failsOpen: true, logger: log.logger()}
	state.fail(&Failure{Code: codes.DeadlineExceeded}, method)
	state.end()
	lines := log.lines()
	if len(lines) != 2 || !strings.Contains(lines[0], filled(t, "timeout", map[string]string{"timeout": "20"})) ||
		!strings.Contains(lines[1], ended) {
		t.Errorf("%q", lines)
	}
	state.running.Wait()
	if len(log.lines()) != 2 {
		t.Errorf("%q", log.lines())
	}
}

func TestSingleFailuresAmongDecisionsAreLoggedOnceAMinute(t *testing.T) {
	var state outage
	var lines [][2]uint64
	for second := range uint64(120) {
		now := time.Unix(int64(second), 0)
		if state.fail(kind{code: codes.DeadlineExceeded}, now) {
			lines = append(lines, [2]uint64{second, 0})
		}
		if failedCalls, _, logged := state.end(now); logged {
			lines = append(lines, [2]uint64{second, failedCalls})
		}
	}
	if !reflect.DeepEqual(lines, [][2]uint64{{0, 0}, {0, 1}, {60, 0}, {60, 60}}) {
		t.Error(lines)
	}
}

func TestFailuresThatGoOnAreLoggedWhenTheQuietMinuteIsOver(t *testing.T) {
	var state outage
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	found := []bool{state.fail(kind{}, at(1))}
	state.end(at(2))
	for _, second := range []int64{3, 60, 61, 300} {
		found = append(found, state.fail(kind{}, at(second)))
	}
	if !reflect.DeepEqual(found, []bool{true, false, false, true, false}) {
		t.Error(found)
	}
	if failedCalls, duration, logged := state.end(at(303)); failedCalls != 4 || duration != 300*time.Second || !logged {
		t.Error(failedCalls, duration, logged)
	}
	if _, _, logged := state.end(at(304)); logged {
		t.Error("nothing failed")
	}
}

func TestAClientConnectsBeforeItsFirstCallAndChargesNothing(t *testing.T) {
	for _, config := range []Config{plainAt(serveWith(t, serverSettings{plain: true}).port), serve(t).config()} {
		var log logged
		config.Logger = log.logger()
		client := newClient(t, config)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		must(t, client.Connect(ctx))
		if client.Counters() != (Counters{}) {
			t.Error(client.Counters())
		}
		all := ask("user", "ann")
		all.Hits = 5
		outcome(t, client.Check(t.Context(), all), Allowed)
		if lines := log.lines(); lines != nil {
			t.Error(lines)
		}
	}
}

func TestAClientConnectsAfterItCouldNot(t *testing.T) {
	port, certificates := freePort(t), newCertificates(t)
	client := newClient(t, configAt(port, certificates))
	if err := client.Connect(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "nothing listens at ") {
		t.Error(err)
	}
	serveAt(t, port, certificates)
	until(t, func() bool { return client.Connect(t.Context()) == nil })
}

func TestAClientThatIsClosedWhileCallsRunFailsThem(t *testing.T) {
	var log logged
	config := plainAt(listen(t, settings))
	config.Logger = log.logger()
	client := newClient(t, config)
	done := make(chan Decision, 3)
	for range 3 {
		go func() { done <- client.Check(context.Background(), ask("user", "ann")) }()
	}
	until(t, func() bool { return client.pending.Load() == 3 })
	must(t, client.Close())
	decisions := []Decision{<-done, <-done, <-done, client.Check(t.Context(), ask("user", "ann"))}
	for _, decision := range decisions {
		if decision.Outcome != Failed || !decision.Passes || decision.Failure.Error() != "the client is closed" || decision.Failure.MayPassLater() {
			t.Errorf("%+v", decision)
		}
	}
	until(t, func() bool { return len(log.lines()) > 0 })
	if lines := log.lines(); len(lines) != 1 || !strings.Contains(lines[0], `reason="the client is closed"`) {
		t.Errorf("%q", lines)
	}
	if err := client.Connect(t.Context()); err == nil || err.Error() != "the client is closed" {
		t.Error(err)
	}
}

func TestAddressesOfServersAreThoseOfTheSharedVectors(t *testing.T) {
	var known struct {
		Valid, Invalid []string
		Says           string
	}
	read(t, "server_address.json", &known)
	for _, address := range known.Valid {
		_, at, _ := strings.Cut(address, "://")
		client := newClient(t, Config{Address: address, Domain: "shop"})
		if client.Address() != strings.TrimSuffix(at, "/") {
			t.Error(client.Address(), address)
		}
	}
	if len(known.Invalid) < 15 {
		t.Fatal("vectors are missing")
	}
	for _, address := range known.Invalid {
		_, err := New(Config{Address: address, Domain: "shop"})
		if err == nil || !strings.Contains(err.Error(), known.Says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
