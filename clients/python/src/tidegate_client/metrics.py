"""Exports the counters of clients. Needs the package that it exports to, which nothing else here does:
`pip install tidegate-client[prometheus]` or `tidegate-client[opentelemetry]`."""

from __future__ import annotations

from collections.abc import Iterable

from ._client import Client

DESCRIPTION = "Calls by outcome: allowed, rejected, or failed, which means without a decision"
_OUTCOMES = ("allowed", "rejected", "failed")


class PrometheusCollector:
    """Collector of `tidegate_client_calls_total`, with the labels address, domain, and outcome.

        prometheus_client.REGISTRY.register(PrometheusCollector([client]))
    """

    def __init__(self, clients: Iterable[Client]) -> None:
        from prometheus_client.core import CounterMetricFamily

        self._family = CounterMetricFamily
        self._clients = list(clients)

    def describe(self):
        return [self._family("tidegate_client_calls", DESCRIPTION)]

    def collect(self):
        family = self._family("tidegate_client_calls", DESCRIPTION, labels=["address", "domain", "outcome"])
        for client in self._clients:
            for outcome in _OUTCOMES:
                family.add_metric([client.address, client.domain, outcome], getattr(client.counters, outcome))
        return [family]


def observe(meter, clients: Iterable[Client]) -> None:
    """Adds the observable counter `tidegate.client.calls` to a meter of OpenTelemetry, with the attributes address,
    domain, and outcome."""
    from opentelemetry.metrics import Observation

    clients = list(clients)

    def observations(_options):
        for client in clients:
            for outcome in _OUTCOMES:
                attributes = {"address": client.address, "domain": client.domain, "outcome": outcome}
                yield Observation(getattr(client.counters, outcome), attributes)

    meter.create_observable_counter("tidegate.client.calls", [observations], unit="{call}", description=DESCRIPTION)
