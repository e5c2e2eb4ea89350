package tidegate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// patience is long enough for a busy machine. Tests that are about timeouts set their own.
const patience = 30 * time.Second

// policy lets `user` do five a year, so that a client that waits as told never returns.
const policy = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: spoken
    rate_limit: {unit: year, requests_per_unit: 0}
    body: {content_type: application/json, text: '{"error":"slow down"}'}
  - key: paced
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 20, burst: 1}
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: soft
    shadow_mode: true
    rate_limit:
      {unit: year, requests_per_unit: 2, mark: {near: {x-quota: near}, over: {x-quota: over}, near_at: 50%}}
  - key: export
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 86400}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100, reserve: {ttl: 86400}}
`

// certificates of one test, as PEM.
type certificates struct{ ca, server, serverKey, client, clientKey []byte }

func newCertificates(t *testing.T) certificates { return certificatesUntil(t, time.Unix(1<<35, 0)) }

// certificatesUntil are those of a test that end then, besides the authority.
func certificatesUntil(t *testing.T, end time.Time) certificates {
	t.Helper()
	sign := func(name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, []byte, []byte) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
		must(t, err)
		template := &x509.Certificate{
			SerialNumber: serial, Subject: pkix.Name{CommonName: name},
			// Before 2000, where the clock of testing/synctest starts.
			NotBefore: time.Unix(0, 0), NotAfter: end,
			IsCA: parent == nil, BasicConstraintsValid: true,
		}
		if parent == nil {
			parent, parentKey = template, key
		} else {
			template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
		must(t, err)
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		must(t, err)
		signed, err := x509.ParseCertificate(der)
		must(t, err)
		return signed, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	}
	authority, key, ca, _ := sign("authority of a test", nil, nil)
	_, _, server, serverKey := sign("server of a test", authority, key)
	_, _, client, clientKey := sign("client of a test", authority, key)
	return certificates{ca, server, serverKey, client, clientKey}
}

// serving is a Tidegate that requires client certificates.
type serving struct {
	process      *exec.Cmd
	port         int
	certificates certificates
}

func serve(t *testing.T, arguments ...string) *serving {
	t.Helper()
	return serveAt(t, freePort(t), newCertificates(t), arguments...)
}

func serveAt(t *testing.T, port int, certificates certificates, arguments ...string) *serving {
	t.Helper()
	return serveWith(t, serverSettings{port: port, certificates: certificates}, arguments...)
}

// serverSettings of a Tidegate; by default it serves over TLS, to clients with a certificate.
type serverSettings struct {
	port, httpPort        int
	policy                string
	certificates          certificates
	plain, anybodysClient bool
}

func serveWith(t *testing.T, settings serverSettings, arguments ...string) *serving {
	t.Helper()
	if settings.port == 0 {
		settings.port = freePort(t)
	}
	if settings.httpPort == 0 {
		settings.httpPort = freePort(t)
	}
	if settings.certificates.ca == nil {
		settings.certificates = newCertificates(t)
	}
	if settings.policy == "" {
		settings.policy = policy
	}
	port, ready, certificates := settings.port, settings.httpPort, settings.certificates
	program := os.Getenv("TIDEGATE")
	if program == "" {
		program = filepath.Join("..", "..", "target", "debug", "tidegate")
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%s is missing: cargo build --bin tidegate", program)
	}
	directory := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(directory, name)
		must(t, os.WriteFile(path, content, 0o600))
		return path
	}
	process := exec.Command(program, append([]string{"serve", "--policy", file("policy.yaml", []byte(settings.policy))}, arguments...)...)
	process.Env = []string{fmt.Sprint("GRPC_PORT=", port), fmt.Sprint("PORT=", ready), "DEBUG_PORT=0"}
	if !settings.plain {
		process.Env = append(process.Env, "GRPC_SERVER_USE_TLS=true",
			"GRPC_SERVER_TLS_CERT="+file("server.pem", certificates.server),
			"GRPC_SERVER_TLS_KEY="+file("server.key", certificates.serverKey))
		if !settings.anybodysClient {
			process.Env = append(process.Env, "GRPC_CLIENT_TLS_CACERT="+file("ca.pem", certificates.ca))
		}
	}
	log, err := os.Create(filepath.Join(directory, "log"))
	must(t, err)
	process.Stdout, process.Stderr = log, log
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		log.Close()
	})
	until(t, func() bool {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", ready))
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	http.DefaultClient.CloseIdleConnections()
	return &serving{process, port, certificates}
}

// config has every certificate that a client needs.
func (s *serving) config() Config { return configAt(s.port, s.certificates) }

func configAt(port int, certificates certificates) Config {
	return Config{
		Address: fmt.Sprintf("https://localhost:%d", port), Domain: "shop", Timeout: patience, CAPEM: certificates.ca,
		CertificatePEM: certificates.client, KeyPEM: certificates.clientKey,
	}
}

func (s *serving) client(t *testing.T) *Client { return newClient(t, s.config()) }

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	client, err := New(config)
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// silent is a server that the kernel accepts connections for, and that says nothing.
func silent(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

func ask(key, value string) Call { return NewCall(Entry{key, value}) }

func parse(t *testing.T, text string) *Mapping {
	t.Helper()
	mapping, err := ParseMapping(text)
	must(t, err)
	return mapping
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen answers each connection with this text, or closes it if it is empty.
func listen(t *testing.T, answer string) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			if answer == "" {
				connection.Close()
				continue
			}
			defer connection.Close()
			_, _ = connection.Write([]byte(answer))
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

// until tries until it succeeds.
func until(t *testing.T, attempt func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !attempt(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still waiting")
		}
	}
}

func untilPasses(t *testing.T, client *Client, call Call) {
	t.Helper()
	until(t, func() bool {
		decision, release := client.Hold(context.Background(), call)
		defer release()
		return decision.Outcome == Allowed
	})
}
