// An application on net/http with a limit for each user.
//
//	go run . https://localhost:8081 ca.pem
//
// It passes requests while Tidegate is unavailable; with deny as the next argument, it answers 503. A further one is the
// timeout in milliseconds.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	tidegate "tidegate/clients/go"
)

const mapping = `{"descriptors": [
	{"entries": [{"key": "user", "header": "x-user"}]},
	{"entries": [{"key": "export", "path_prefix": "/export"}], "hold": true}
]}`

func run(arguments []string) error {
	if len(arguments) < 2 {
		return fmt.Errorf("usage: nethttp https://HOST:PORT CA_FILE [allow|deny [TIMEOUT_MS]]")
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
	routes := http.NewServeMux()
	routes.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	routes.HandleFunc("/export", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "everything") })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	return http.Serve(listener, client.Middleware(limits)(routes))
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
