"""Export of the counters."""

import unittest

from support import TidegateCase, call

from tidegate_client import Client


class Metrics(TidegateCase):
    async def clients(self):
        client = self.client(self.serve()[0])
        other = Client("http://localhost:1", "shop")
        self.addAsyncCleanup(other.close)
        for _ in range(7):
            await client.check(call("user", "ann"))
        await other.check(call("user", "ann"))
        self.expected = {(client.address, "allowed"): 5, (client.address, "rejected"): 2, (client.address, "failed"): 0,
                         (other.address, "allowed"): 0, (other.address, "rejected"): 0, (other.address, "failed"): 1}
        return [client, other]

    async def test_counters_are_exported_to_prometheus(self):
        import prometheus_client
        from tidegate_client.metrics import PrometheusCollector

        registry = prometheus_client.CollectorRegistry()
        registry.register(PrometheusCollector(await self.clients()))
        text = prometheus_client.generate_latest(registry).decode()
        for (address, outcome), count in self.expected.items():
            row = f'tidegate_client_calls_total{{address="{address}",domain="shop",outcome="{outcome}"}} {count}.0\n'
            self.assertIn(row, text)

    async def test_counters_are_exported_to_opentelemetry(self):
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from tidegate_client.metrics import observe

        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        observe(provider.get_meter("test"), await self.clients())
        metric, = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        self.assertEqual(metric.name, "tidegate.client.calls")
        found = {(it.attributes["address"], it.attributes["outcome"]): it.value for it in metric.data.data_points}
        self.assertEqual(found, self.expected)
        self.assertEqual({it.attributes["domain"] for it in metric.data.data_points}, {"shop"})
        provider.shutdown()


if __name__ == "__main__":
    unittest.main()
