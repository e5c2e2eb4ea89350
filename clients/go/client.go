package tidegate

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// timeoutDefault is Envoy's own.
	timeoutDefault = 20 * time.Millisecond
	// timeoutMax: beyond it, nobody waits any more.
	timeoutMax = time.Hour
	// pendingMaxDefault: at 20 ms each, 1,000 waiting calls are 50,000 decisions a second.
	pendingMaxDefault = 1000
	// responseBytesMax: a status and its limit for each descriptor, headers, a body of the policy.
	responseBytesMax = 256 * 1024
	// batchResponseBytesMax: a batch of 1,024 calls, which is the service's bound, with 4 KiB each.
	batchResponseBytesMax = 4 * 1024 * 1024
	// connectTimeout is the timeout of Connect without a deadline: a handshake takes longer than a decision.
	connectTimeout = time.Second
	// laterTimeout is the timeout of a call for which nobody waits.
	laterTimeout = time.Second
	// laterMax is the maximum number of such calls on their way. A further one is dropped: the lease, or the ttl, ends.
	laterMax = 1000
)

// OnFailure says what happens to a request for which there is no decision.
type OnFailure int

const (
	// Allow: the request passes. A limiter must not take down what it protects.
	Allow OnFailure = iota
	// Deny: the request is answered with 503 or UNAVAILABLE. One too many is worse than one too few.
	Deny
)

// Config has the settings of a client.
type Config struct {
	// Address is http://HOST:PORT or, with TLS, https://HOST:PORT.
	Address string
	// Domain of the policy.
	Domain string
	// Timeout of a decision (default 20 ms). Connecting counts, too.
	Timeout time.Duration
	// OnFailure says what happens without a decision (default: the request passes).
	OnFailure OnFailure
	// PendingMax is how many calls may wait for a decision at a time (default 1,000). One more fails immediately.
	PendingMax int
	// CAPEM has the CA certificates that verify the server (default: the system's).
	CAPEM []byte
	// CertificatePEM and KeyPEM are the client's certificate chain and private key.
	CertificatePEM, KeyPEM []byte
	// ServerName is the name that the server's certificate must have (default: the host of the address).
	ServerName string
	// Logger gets a warning for the first call without a decision, with its reason, and for the first decision after it
	// (default: slog.Default()).
	Logger *slog.Logger
}

// Counters are the numbers of calls by outcome, since the client was made. Failed calls had no decision.
type Counters struct{ Allowed, Rejected, Failed uint64 }

// Client of a rate limit service. Share one in the whole process.
type Client struct {
	connection                *grpc.ClientConn
	domain                    string
	timeout                   time.Duration
	onFailure                 OnFailure
	pendingMax                int64
	degraded                  *degraded
	closed                    atomic.Bool
	pending, later            atomic.Int64
	allowed, rejected, failed atomic.Uint64
}

// New makes a client. It connects with the first call or Connect, and again whenever the connection is lost.
func New(config Config) (*Client, error) {
	if config.Domain == "" {
		return nil, errors.New("the domain must not be empty")
	}
	if config.Timeout < 0 || config.PendingMax < 0 {
		return nil, errors.New("Timeout and PendingMax must not be negative")
	}
	if config.Timeout > timeoutMax {
		return nil, errors.New("the timeout must be at most an hour")
	}
	if config.OnFailure != Allow && config.OnFailure != Deny {
		return nil, errors.New("OnFailure must be Allow or Deny")
	}
	if config.Timeout == 0 {
		config.Timeout = timeoutDefault
	}
	if config.PendingMax == 0 {
		config.PendingMax = pendingMaxDefault
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	server, transport, err := config.transport()
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient(server.address(),
		grpc.WithTransportCredentials(transport),
		// Connects directly: the environment's proxies are for the internet, and a rate limiter is close.
		grpc.WithNoProxy(),
		// A call is never repeated in the path of a request.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		// gRPC's default waits for up to two minutes before it connects again.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second,
			},
			MinConnectTimeout: time.Second,
		}),
		// A server that disappears without closing the connection is noticed after these two together.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(responseBytesMax)),
	)
	if err != nil {
		return nil, err
	}
	return &Client{
		connection: connection, domain: config.Domain, timeout: config.Timeout, onFailure: config.OnFailure,
		pendingMax: int64(config.PendingMax),
		degraded: &degraded{
			endpoint: server, domain: config.Domain, failsOpen: config.OnFailure == Allow, logger: config.Logger,
		},
	}, nil
}

// Connect connects before the first call, so that it does not pay for the handshake, and asks whether the server has the
// rate limit service. Nothing is charged or counted. Without an answer until the context ends, or a second if it has no
// deadline, the error is a *ConnectError.
func (c *Client) Connect(ctx context.Context) error {
	timeout := connectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline).Round(time.Millisecond)
	}
	// Servers reject a request without descriptors before they look at limits.
	failure := c.sendWithin(ctx, timeout, method, encode(c.domain, nil, 0), new(response))
	switch {
	case failure == nil, failure.Code == codes.InvalidArgument:
		return nil
	case failure.Code == codes.Unknown && strings.Contains(failure.Message, "descriptor"): // envoyproxy/ratelimit
		return nil
	}
	// Not the caller's context, which may have ended.
	return &ConnectError{failure, c.degraded.endpoint.diagnose(context.WithoutCancel(ctx), failure, method, timeout)}
}

// Check asks for a decision. It returns within the timeout, never sleeps, and never repeats a call.
//
// A call without descriptors passes without asking, as in Envoy, and is not counted. Slots that a call takes here are
// free when their lease ends; use Hold to release them.
func (c *Client) Check(ctx context.Context, call Call) Decision {
	return c.check(ctx, call, "")
}

// CheckMany asks for many decisions in one call of Tidegate's own service; other servers do not have it. There is one
// decision for each call, in the same order. A call may pass while others do not.
//
// The timeout is that of one decision. The service takes up to 1,024 calls together; if there are more, all fail.
func (c *Client) CheckMany(ctx context.Context, calls []Call) []Decision {
	var requests [][]byte
	for _, call := range calls {
		if len(call.Descriptors) > 0 && call.mistake() == nil {
			requests = append(requests, call.checkMessage(c.domain, ""))
		}
	}
	var answer batchResponse
	var failure *Failure
	if requests != nil {
		message, bound := encodeBatch(requests), grpc.MaxCallRecvMsgSize(batchResponseBytesMax)
		failure = c.send(ctx, methodMany, message, &answer, bound)
		if failure == nil && len(answer.results) != len(requests) {
			failure = &Failure{Code: codes.Internal, Message: "a batch with missing results"}
		}
	}
	decisions := make([]Decision, 0, len(calls))
	for _, call := range calls {
		switch {
		case len(call.Descriptors) == 0:
			decisions = append(decisions, Decision{Passes: true})
		case call.mistake() != nil:
			decisions = append(decisions, c.decide(ctx, nil, call.mistake(), methodMany))
		case failure != nil:
			decisions = append(decisions, c.decide(ctx, nil, failure, methodMany))
		default:
			next := answer.results[0]
			answer.results = answer.results[1:]
			decisions = append(decisions, c.decide(ctx, next.response, next.failure(), methodMany))
		}
	}
	return decisions
}

func (r result) failure() *Failure {
	switch {
	case r.response != nil:
		return nil
	case r.code == 0:
		return &Failure{Code: codes.Internal, Message: "a batch with missing results"}
	}
	return &Failure{Code: codes.Code(r.code), Message: r.message}
}

// Hold asks for a decision, and takes the slots of the descriptors with Hold. The function releases them, in the
// background; it is never nil and may be called more than once. Slots that are never released, for example because the
// process was killed, become free when the policy's lease ends.
func (c *Client) Hold(ctx context.Context, call Call) (Decision, func()) {
	if !call.holds() {
		return c.check(ctx, call, ""), func() {}
	}
	var name [16]byte
	_, _ = rand.Read(name[:]) // never fails
	holder := hex.EncodeToString(name[:])
	decision := c.check(ctx, call, holder)
	release := sync.OnceFunc(func() { c.sendLater(method, call.releaseMessage(c.domain, holder)) })
	switch {
	case decision.Outcome == Rejected:
		return decision, func() {}
	case decision.Outcome == Failed:
		// The server may have taken a slot, and the request may run without one.
		release()
	}
	return decision, release
}

// Refund refunds what the call charged, for example because the work failed. Slots are not refunded. The error is a
// *Failure: the service may not have refunded it.
func (c *Client) Refund(ctx context.Context, call Call) error {
	message := call.refundMessage(c.domain)
	if message == nil {
		return nil
	}
	if failure := c.send(ctx, method, message, new(response)); failure != nil {
		return failure
	}
	return nil
}

// Counters returns the numbers of calls by outcome.
func (c *Client) Counters() Counters {
	return Counters{c.allowed.Load(), c.rejected.Load(), c.failed.Load()}
}

// Address returns HOST:PORT of the server.
func (c *Client) Address() string { return c.degraded.endpoint.address() }

// Domain returns the domain of the policy.
func (c *Client) Domain() string { return c.domain }

// Close closes the connection. Calls that are waiting fail, as do later ones. It waits for the reason of a failure that
// is not yet in the log, which takes at most three seconds.
func (c *Client) Close() error {
	c.closed.Store(true)
	err := c.connection.Close()
	c.degraded.running.Wait()
	return err
}

func (c *Client) check(ctx context.Context, call Call, holder string) Decision {
	if len(call.Descriptors) == 0 {
		return Decision{Passes: true}
	}
	answer := new(response)
	failure := call.mistake()
	if failure == nil {
		failure = c.send(ctx, method, call.checkMessage(c.domain, holder), answer)
	}
	return c.decide(ctx, answer, failure, method)
}

// decide turns an answer into a decision, and counts it.
func (c *Client) decide(ctx context.Context, answer *response, failure *Failure, called string) Decision {
	if failure != nil {
		// A caller that went away is not a failure of the service.
		if ctx.Err() == nil {
			c.failed.Add(1)
			c.degraded.fail(failure, called)
		}
		return Decision{Outcome: Failed, Passes: c.onFailure == Allow, Failure: failure}
	}
	c.degraded.end()
	decision := decide(answer, time.Now())
	if decision.Passes {
		c.allowed.Add(1)
	} else {
		c.rejected.Add(1)
	}
	return decision
}

func (c *Client) send(ctx context.Context, method string, message []byte, into any, options ...grpc.CallOption) *Failure {
	return c.sendWithin(ctx, c.timeout, method, message, into, options...)
}

func (c *Client) sendWithin(ctx context.Context, timeout time.Duration, method string, message []byte, into any, options ...grpc.CallOption) *Failure {
	defer c.pending.Add(-1)
	if c.pending.Add(1) > c.pendingMax {
		return &Failure{Code: codes.ResourceExhausted, Busy: true}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.connection.Invoke(ctx, method, message, into, options...); err != nil {
		if c.closed.Load() {
			return &Failure{Code: codes.Canceled, Closed: true, Message: "the client is closed"}
		}
		return failureOf(err)
	}
	return nil
}

// sendLater releases slots, or settles, without anybody waiting. One that fails leaves the slot to its lease, and the hold
// to its ttl.
func (c *Client) sendLater(method string, message []byte) {
	if c.later.Add(1) > laterMax {
		c.later.Add(-1)
		return
	}
	go func() {
		defer c.later.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), laterTimeout)
		defer cancel()
		_ = c.connection.Invoke(ctx, method, message, new(response))
	}()
}

func (config *Config) transport() (endpoint, credentials.TransportCredentials, error) {
	address, err := url.Parse(config.Address)
	if err != nil {
		address = &url.URL{}
	}
	port, err := strconv.ParseUint(address.Port(), 10, 16)
	if address.Scheme != "http" && address.Scheme != "https" || address.Hostname() == "" || err != nil || port == 0 ||
		address.Path != "" && address.Path != "/" || strings.ContainsAny(config.Address, "@?# \t\r\n") {
		given := ""
		if !strings.Contains(config.Address, "@") { // an address with a password is not repeated
			given = fmt.Sprintf(", not %q", config.Address)
		}
		return endpoint{}, nil, errors.New("the address must be http://HOST:PORT or https://HOST:PORT" + given)
	}
	server := endpoint{
		host: address.Hostname(), port: address.Port(), secure: address.Scheme == "https", serverName: config.ServerName,
		timeout: config.Timeout, pendingMax: int64(config.PendingMax),
	}
	if !server.secure {
		if config.CAPEM != nil || config.CertificatePEM != nil || config.ServerName != "" {
			return endpoint{}, nil, errors.New("certificates are only allowed with an address that starts with https://")
		}
		return server, insecure.NewCredentials(), nil
	}
	settings := &tls.Config{ServerName: config.ServerName}
	if config.CAPEM != nil {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(config.CAPEM) {
			return endpoint{}, nil, errors.New("CAPEM must have a certificate in PEM")
		}
	}
	if config.CertificatePEM != nil {
		pair, err := tls.X509KeyPair(config.CertificatePEM, config.KeyPEM)
		if err != nil {
			return endpoint{}, nil, err
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	server.tls = settings
	return server, credentials.NewTLS(settings), nil
}
