// A control plane on go-control-plane, the library of Envoy Gateway's own: its snapshot cache and its
// server decide what is sent and when. Commands come on standard input, one JSON object per line; what
// the client says goes to standard output, likewise.
//
//	plane certificates DIRECTORY   writes an authority and certificates, RSA 2048
//	plane serve DIRECTORY PORT     serves with them; a client certificate is required
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const node = "envoy-ratelimit"

// snapshot is a command: the version, and for each domain the requests per day of each client. Below
// 0, the domain has two descriptors of one key.
type snapshot struct {
	Version string         `json:"version"`
	Domains map[string]int `json:"domains"`
}

// said is a request of the client.
type said struct {
	Version  string `json:"version"`
	Nonce    string `json:"nonce"`
	Error    string `json:"error"`
	UnixNano int64  `json:"unix_nano"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "certificates" {
		check(writeCertificates(os.Args[2]))
		return
	}
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		check(serve(os.Args[2], os.Args[3]))
		return
	}
	log.Fatal("plane certificates DIRECTORY | plane serve DIRECTORY PORT")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func serve(directory, port string) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(directory, "server.crt"), filepath.Join(directory, "server.key"))
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(directory, "ca.crt"))
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authority)
	creds := credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		MinVersion:   tls.VersionTLS13,
	})
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	var mutex sync.Mutex
	output := json.NewEncoder(os.Stdout)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			mutex.Lock()
			defer mutex.Unlock()
			return output.Encode(said{
				Version:  request.GetVersionInfo(),
				Nonce:    request.GetResponseNonce(),
				Error:    request.GetErrorDetail().GetMessage(),
				UnixNano: time.Now().UnixNano(),
			})
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	service := grpc.NewServer(grpc.Creds(creds))
	xds := server.NewServer(context.Background(), snapshots, callbacks)
	discovery.RegisterAggregatedDiscoveryServiceServer(service, xds)
	go func() { check(service.Serve(listener)) }()
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var command snapshot
		if err := json.Unmarshal(commands.Bytes(), &command); err != nil {
			return err
		}
		if err := set(snapshots, command); err != nil {
			return err
		}
	}
	return commands.Err()
}

func set(snapshots cache.SnapshotCache, command snapshot) error {
	var resources []types.Resource
	for domain, requests := range command.Domains {
		descriptors := []*ratelimit.RateLimitDescriptor{client(requests)}
		if requests < 0 {
			descriptors = []*ratelimit.RateLimitDescriptor{client(1), client(2)}
		}
		resources = append(resources, &ratelimit.RateLimitConfig{
			Name: domain, Domain: domain, Descriptors: descriptors,
		})
	}
	state, err := cache.NewSnapshot(command.Version, map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: resources,
	})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), cache.IDHash{}.ID(&core.Node{Id: node}), state)
}

func client(requests int) *ratelimit.RateLimitDescriptor {
	return &ratelimit.RateLimitDescriptor{
		Key: "client",
		RateLimit: &ratelimit.RateLimitPolicy{
			Unit: ratelimit.RateLimitUnit_DAY, RequestsPerUnit: uint32(requests),
		},
	}
}

// writeCertificates writes ca.crt, and server, tls (the client), and stranger (signed by another
// authority), each with its key.
func writeCertificates(directory string) error {
	authority, authorityKey, err := newAuthority()
	if err != nil {
		return err
	}
	other, otherKey, err := newAuthority()
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(directory, "ca.crt"), "CERTIFICATE", authority.Raw); err != nil {
		return err
	}
	for name, issuer := range map[string]struct {
		certificate *x509.Certificate
		key         *rsa.PrivateKey
	}{"server": {authority, authorityKey}, "tls": {authority, authorityKey}, "stranger": {other, otherKey}} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return err
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(2),
			Subject:      pkix.Name{CommonName: "envoy-gateway"},
			DNSNames:     []string{"localhost", "envoy-gateway"},
			NotBefore:    time.Now().Add(-time.Hour),
			NotAfter:     time.Now().Add(24 * time.Hour),
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
			KeyUsage:     x509.KeyUsageDigitalSignature,
		}
		signed, err := x509.CreateCertificate(rand.Reader, template, issuer.certificate, &key.PublicKey, issuer.key)
		if err != nil {
			return err
		}
		if err := writePEM(filepath.Join(directory, name+".crt"), "CERTIFICATE", signed); err != nil {
			return err
		}
		private := x509.MarshalPKCS1PrivateKey(key)
		if err := writePEM(filepath.Join(directory, name+".key"), "RSA PRIVATE KEY", private); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority() (*x509.Certificate, *rsa.PrivateKey, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "an authority of the tests"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := x509.ParseCertificate(signed)
	return certificate, key, err
}

func writePEM(path, kind string, bytes []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
