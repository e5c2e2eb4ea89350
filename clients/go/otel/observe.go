// Package otel exports the counters of clients to OpenTelemetry. It is a module of its own, so that the client does not
// depend on OpenTelemetry.
package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	tidegate "tidegate/clients/go"
)

// Observe adds the observable counter tidegate.client.calls to a meter, with the attributes address, domain, and outcome.
func Observe(meter metric.Meter, clients ...*tidegate.Client) error {
	_, err := meter.Int64ObservableCounter("tidegate.client.calls",
		metric.WithUnit("{call}"),
		metric.WithDescription("Calls by outcome: allowed, rejected, or failed, which means without a decision"),
		metric.WithInt64Callback(func(_ context.Context, observer metric.Int64Observer) error {
			for _, client := range clients {
				counters := client.Counters()
				for outcome, count := range map[tidegate.Outcome]uint64{
					tidegate.Allowed: counters.Allowed, tidegate.Rejected: counters.Rejected, tidegate.Failed: counters.Failed,
				} {
					observer.Observe(int64(count), metric.WithAttributes(attribute.String("address", client.Address()),
						attribute.String("domain", client.Domain()), attribute.String("outcome", outcome.String())))
				}
			}
			return nil
		}))
	return err
}
