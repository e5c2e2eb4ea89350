// Package prometheus exports the counters of clients to Prometheus. It is a module of its own, so that the client does
// not depend on client_golang.
package prometheus

import (
	"github.com/prometheus/client_golang/prometheus"

	tidegate "tidegate/clients/go"
)

var calls = prometheus.NewDesc("tidegate_client_calls_total",
	"Calls by outcome: allowed, rejected, or failed, which means without a decision",
	[]string{"address", "domain", "outcome"}, nil)

// Collector returns a collector of tidegate_client_calls_total, with the labels address, domain, and outcome.
func Collector(clients ...*tidegate.Client) prometheus.Collector { return collector(clients) }

type collector []*tidegate.Client

func (collector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- calls }

func (c collector) Collect(metrics chan<- prometheus.Metric) {
	for _, client := range c {
		counters := client.Counters()
		for outcome, count := range map[tidegate.Outcome]uint64{
			tidegate.Allowed: counters.Allowed, tidegate.Rejected: counters.Rejected, tidegate.Failed: counters.Failed,
		} {
			metrics <- prometheus.MustNewConstMetric(calls, prometheus.CounterValue, float64(count),
				client.Address(), client.Domain(), outcome.String())
		}
	}
}
