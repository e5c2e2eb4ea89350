package prometheus

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	tidegate "tidegate/clients/go"
)

func TestCountersAreExportedToPrometheus(t *testing.T) {
	var clients []*tidegate.Client
	var expected strings.Builder
	expected.WriteString("# HELP tidegate_client_calls_total Calls by outcome: allowed, rejected, or failed, which means without a decision\n" +
		"# TYPE tidegate_client_calls_total counter\n")
	for port := range 2 {
		client, err := tidegate.New(tidegate.Config{Address: fmt.Sprintf("http://localhost:%d", port+1), Domain: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for range port + 3 {
			client.Check(t.Context(), tidegate.NewCall(tidegate.Entry{Key: "user", Value: "ann"}))
		}
		for outcome, count := range map[string]uint64{"allowed": 0, "rejected": 0, "failed": uint64(port) + 3} {
			fmt.Fprintf(&expected, "tidegate_client_calls_total{address=%q,domain=\"shop\",outcome=%q} %d\n", client.Address(), outcome, count)
		}
		clients = append(clients, client)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Collector(clients...))
	if err := testutil.GatherAndCompare(registry, strings.NewReader(expected.String())); err != nil {
		t.Error(err)
	}
}
