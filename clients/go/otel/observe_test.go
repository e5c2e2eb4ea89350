package otel

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	tidegate "tidegate/clients/go"
)

func TestCountersAreExportedToOpenTelemetry(t *testing.T) {
	client, err := tidegate.New(tidegate.Config{Address: "http://localhost:1", Domain: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 3 {
		client.Check(t.Context(), tidegate.NewCall(tidegate.Entry{Key: "user", Value: "ann"}))
	}
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	defer provider.Shutdown(t.Context())
	if err := Observe(provider.Meter("test"), client); err != nil {
		t.Fatal(err)
	}
	var found metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &found); err != nil {
		t.Fatal(err)
	}
	var points []metricdata.DataPoint[int64]
	for outcome, count := range map[string]int64{"allowed": 0, "rejected": 0, "failed": 3} {
		points = append(points, metricdata.DataPoint[int64]{Value: count, Attributes: attribute.NewSet(
			attribute.String("address", "localhost:1"), attribute.String("domain", "shop"), attribute.String("outcome", outcome))})
	}
	metricdatatest.AssertEqual(t, metricdata.Metrics{
		Name: "tidegate.client.calls", Unit: "{call}",
		Description: "Calls by outcome: allowed, rejected, or failed, which means without a decision",
		Data:        metricdata.Sum[int64]{DataPoints: points, Temporality: metricdata.CumulativeTemporality, IsMonotonic: true},
	}, found.ScopeMetrics[0].Metrics[0], metricdatatest.IgnoreTimestamp())
}
