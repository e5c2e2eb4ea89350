// A gRPC server with a limit for each user. It serves the health service, for unary calls and for streams.
//
//	go run . https://localhost:8081 ca.pem
//
// It passes calls while Tidegate is unavailable; with deny as the next argument, it answers UNAVAILABLE. A further one is the
// timeout in milliseconds.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	tidegate "tidegate/clients/go"
)

const mapping = `{"descriptors": [
	{"entries": [{"key": "user", "header": "x-user"}]}
]}`

func run(arguments []string) error {
	if len(arguments) < 2 {
		return fmt.Errorf("usage: grpc https://HOST:PORT CA_FILE [allow|deny [TIMEOUT_MS]]")
	}
	ca, err := os.ReadFile(arguments[1])
	if err != nil {
		return err
	}
	config := tidegate.Config{Address: arguments[0], Domain: "shop", CAPEM: ca}
	if len(arguments) > 2 && arguments[2] == "deny" {
		config.OnFailure = tidegate.Deny
	}
	if len(arguments) > 3 {
		milliseconds, err := strconv.Atoi(arguments[3])
		if err != nil {
			return err
		}
		config.Timeout = time.Duration(milliseconds) * time.Millisecond
	}
	client, err := tidegate.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	limits, err := tidegate.ParseMapping(mapping)
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(client.UnaryInterceptor(limits)),
		grpc.ChainStreamInterceptor(client.StreamInterceptor(limits)),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	return server.Serve(listener)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
