package tidegate

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	byUser = `{"descriptors": [
		{"entries": [{"key": "user", "header": "x-user"}]},
		{"entries": [{"key": "spoken", "header": "x-spoken"}]},
		{"entries": [{"key": "export", "path_prefix": "/export"}], "hold": true}
	]}`
	byAddress = `{"descriptors": [{"entries": [{"key": "remote_address", "client_address": true}]}]}`
)

func routes(t *testing.T, client *Client, mapping string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	mux.HandleFunc("/fails", func(w http.ResponseWriter, r *http.Request) {
		if err := FromContext(r.Context()).Refund(r.Context()); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	return client.Middleware(parse(t, mapping))(mux)
}

func get(handler http.Handler, path, name, value string) *http.Response {
	request := httptest.NewRequest("GET", path, nil)
	request.Header.Set(name, value)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Result()
}

func expect(t *testing.T, response *http.Response, code int) {
	t.Helper()
	if response.StatusCode != code {
		t.Fatalf("%d, expected %d", response.StatusCode, code)
	}
}

func isPositive(text string) bool {
	number, err := strconv.Atoi(text)
	return err == nil && number > 0
}

func TestTheSixthRequestIsAnsweredWith429AndRetryAfter(t *testing.T) {
	handler := routes(t, serve(t, "--headers", "x-ratelimit").client(t), byUser)
	for left := 4; left >= 0; left-- {
		response := get(handler, "/", "x-user", "ann")
		expect(t, response, http.StatusOK)
		if response.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(left) {
			t.Error(response.Header)
		}
	}
	response := get(handler, "/", "x-user", "ann")
	expect(t, response, http.StatusTooManyRequests)
	if !isPositive(response.Header.Get("Retry-After")) {
		t.Error(response.Header)
	}
	response = get(handler, "/", "x-spoken", "x")
	expect(t, response, http.StatusTooManyRequests)
	body, _ := io.ReadAll(response.Body)
	if string(body) != `{"error":"slow down"}` || response.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %v", body, response.Header)
	}
}

func TestWithoutADecisionRequestsPassOrAreAnsweredWith503(t *testing.T) {
	for choice, code := range map[OnFailure]int{Allow: http.StatusOK, Deny: http.StatusServiceUnavailable} {
		config := configAt(freePort(t), newCertificates(t))
		config.OnFailure = choice
		expect(t, get(routes(t, newClient(t, config), byUser), "/", "x-user", "ann"), code)
	}
}

func TestAFailedRequestCanBeRefundedByItsHandler(t *testing.T) {
	handler := routes(t, serve(t).client(t), byUser)
	for range 10 {
		expect(t, get(handler, "/fails", "x-user", "ann"), http.StatusInternalServerError)
	}
}

func TestASlotIsHeldUntilTheHandlerReturns(t *testing.T) {
	client := serve(t).client(t)
	middleware := client.Middleware(parse(t, byUser))
	var handler http.Handler
	handler = middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expect(t, get(handler, "/export", "x-user", "ben"), http.StatusTooManyRequests)
	}))
	expect(t, get(handler, "/export", "x-user", "ann"), http.StatusOK)
	untilPasses(t, client, Call{Descriptors: []Descriptor{{Entries: []Entry{{"export", "/export"}}, Hold: true}}})
}

func TestTheAddressIsThatOfTheConnection(t *testing.T) {
	handler := routes(t, serve(t).client(t), byAddress)
	for range 5 {
		expect(t, get(handler, "/", "x-forwarded-for", "1.1.1.1"), http.StatusOK)
	}
	expect(t, get(handler, "/", "x-forwarded-for", "1.1.1.2"), http.StatusTooManyRequests)
}

// grpcServer runs a gRPC server behind the interceptors, and returns a client of it.
func grpcServer(t *testing.T, client *Client, mapping string) grpc_health_v1.HealthClient {
	t.Helper()
	server := grpc.NewServer(grpc.UnaryInterceptor(client.UnaryInterceptor(parse(t, mapping))),
		grpc.StreamInterceptor(client.StreamInterceptor(parse(t, mapping))))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	connection, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { connection.Close() })
	return grpc_health_v1.NewHealthClient(connection)
}

func TestTheSixthCallIsAnsweredWithResourceExhaustedAndRetryAfter(t *testing.T) {
	client := serve(t).client(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", "ann")
	request := &grpc_health_v1.HealthCheckRequest{}
	for _, mapping := range []string{byUser, byAddress} {
		service := grpcServer(t, client, mapping)
		for range 5 {
			_, err := service.Check(ctx, request)
			must(t, err)
		}
		var trailer metadata.MD
		_, err := service.Check(ctx, request, grpc.Trailer(&trailer))
		if status.Code(err) != codes.ResourceExhausted || len(trailer["retry-after"]) != 1 || !isPositive(trailer["retry-after"][0]) {
			t.Errorf("%v %v", err, trailer)
		}
		stream, err := service.Watch(ctx, request)
		must(t, err)
		if _, err = stream.Recv(); status.Code(err) != codes.ResourceExhausted || !isPositive(stream.Trailer()["retry-after"][0]) {
			t.Errorf("%v %v", err, stream.Trailer())
		}
	}
	stream, err := grpcServer(t, client, byUser).Watch(metadata.AppendToOutgoingContext(t.Context(), "x-user", "ben"), request)
	must(t, err)
	_, err = stream.Recv()
	must(t, err)
}

func TestWithoutADecisionCallsPassOrAreAnsweredWithUnavailable(t *testing.T) {
	for choice, code := range map[OnFailure]codes.Code{Allow: codes.OK, Deny: codes.Unavailable} {
		config := configAt(freePort(t), newCertificates(t))
		config.OnFailure = choice
		service := grpcServer(t, newClient(t, config), byAddress)
		if _, err := service.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != code {
			t.Error(err)
		}
	}
}

// Inside synctest the clock only advances while all goroutines wait for each other. One that waits for the network, as
// that of a connection always does, keeps it still. So whoever sleeps, however briefly, never wakes up. 200 rejected
// requests are answered all the same, each with a Retry-After of up to a year.
func TestRejectionsAreAnsweredWhileTheClockStandsStill(t *testing.T) {
	tidegate := serve(t)
	config := tidegate.config()
	// No lookup of a name, whose goroutines are shared with the world outside.
	config.Address = "https://127.0.0.1:" + strconv.Itoa(tidegate.port)
	synctest.Test(t, func(t *testing.T) {
		client, err := New(config)
		must(t, err)
		defer client.Close()
		handler := routes(t, client, byUser)
		for range 5 {
			expect(t, get(handler, "/", "x-user", "ann"), http.StatusOK)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		for range 200 {
			response := get(handler, "/", "x-user", "ann")
			expect(t, response, http.StatusTooManyRequests)
			if !isPositive(response.Header.Get("Retry-After")) {
				t.Fatal(response.Header)
			}
		}
		if time.Since(start) != 0 || ctx.Err() != nil {
			t.Errorf("the clock moved by %s", time.Since(start))
		}
		if found := client.Counters(); found != (Counters{5, 200, 0}) {
			t.Error(found)
		}
	})
}
