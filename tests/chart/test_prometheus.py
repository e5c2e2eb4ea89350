"""A real Prometheus with the rendered rules scrapes the program, which counts in a real Redis: what
it takes for counters, histograms and nodes, and what it sees when Redis is killed."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request
from contextlib import ExitStack

import yaml

import chart
import servers


def counting_in(server):
    """What makes the redis case count in a Redis without a password."""
    return {"TIDEGATE_REDIS_URL": server.node, "TIDEGATE_REDIS_AUTH_FILE": "",
            "TIDEGATE_KEY_SECRET_FILE": "", "TIDEGATE_TEST_INFO_POLL": "100ms"}


def ask(running, domain="edge"):
    body = {"domain": domain, "descriptors": [{"entries": [{"key": "api_token", "value": "a"}]}]}
    return chart.post(f"http://127.0.0.1:{running.http}/json", body)


class Prometheus(unittest.TestCase):
    def started(self, stack, running):
        """A Prometheus that scrapes the program, under the chart's namespace and job; its port."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        here = pathlib.Path(directory.name)
        objects = chart.manifests(chart.cases()["redis"])
        rules = chart.one(objects, "PrometheusRule")["spec"]
        (here / "rules.yaml").write_text(yaml.safe_dump(rules))
        labels = {"namespace": chart.NAMESPACE, "pod": "a"}
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{
                "job_name": chart.RELEASE,
                "static_configs": [{"targets": [f"127.0.0.1:{running.http}"], "labels": labels}]}],
        }
        (here / "prometheus.yaml").write_text(yaml.safe_dump(config))
        port = chart.free_port()
        command = ["prometheus", f"--config.file={here}/prometheus.yaml", f"--storage.tsdb.path={here}/data",
                   f"--web.listen-address=127.0.0.1:{port}"]
        stack.enter_context(servers.Process("prometheus", *command))
        return port

    def query(self, port, expression):
        """The value of an expression; None while it has none."""
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                found = json.load(reply)["data"]["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def test_a_real_prometheus_takes_the_metrics_and_the_rules(self):
        server = servers.Redis()
        objects = chart.manifests(chart.cases()["redis"])
        with ExitStack() as stack:
            server = stack.enter_context(server)
            running = stack.enter_context(chart.Running(objects, counting_in(server)))
            for _ in range(30):
                self.assertIn(ask(running), (200, 429))
            prometheus = self.started(stack, running)
            node = f'node="{server.node}"'
            for expression, value in {
                'sum(tidegate_calls_total{status="ok"})': 30,
                'sum(tidegate_rule_decisions_total{rule="edge.api_token"})': 30,
                'tidegate_decision_seconds_count': 30,
                'tidegate_decision_seconds_bucket{le="+Inf"}': 30,
                f'tidegate_redis_keys_without_expiry{{{node}}}': 0,
                f'tidegate_redis_breakers_open{{{node}}}': 0,
                f'count(tidegate_redis_wait_seconds_bucket{{{node},le="0.006"}})': 1,
                'count(pod:rate_limited_requests:sum)': 2,
                'count(ALERTS{alertname="TidegateNoReplica"}) or vector(0)': 0,
            }.items():
                with self.subTest(expression=expression):
                    chart.until(f"{expression} is {value}", lambda: self.query(prometheus, expression) == value)
            metadata = f"http://127.0.0.1:{prometheus}/api/v1/targets/metadata?metric=tidegate_decision_seconds"
            with urllib.request.urlopen(metadata, timeout=5) as reply:
                self.assertEqual(json.load(reply)["data"][0]["type"], "histogram")
            server.kill()
            chart.until("Redis' death is seen", lambda: ask(running) and self.query(prometheus, "tidegate_degraded") == 1)
            # What the alert of a degraded service looks at, recorded from this very fault.
            share = "job:tidegate_degraded_decisions:ratio_rate5m > 0"
            chart.until("the share of degraded answers", lambda: ask(running) and self.query(prometheus, share))

    def test_promtool_finds_nothing_wrong_with_the_metrics(self):
        assert shutil.which("promtool"), servers.MISSING.format("promtool", "prometheus")
        server = servers.Redis()
        objects = chart.manifests(chart.cases()["redis"])
        given = {**counting_in(server), "TIDEGATE_RATELIMIT_METRIC_NAMES": "true"}
        with server, chart.Running(objects, given) as running:
            ask(running)
            chart.until("Redis' own figures", lambda: "tidegate_redis_keys{" in running.get("/metrics"))
            text = running.get("/metrics")
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        # Names of envoyproxy/ratelimit do not end as promtool would have it; nothing else is wrong.
        unsuffixed = re.compile(r'ratelimit_service_\w+ counter metrics should have "_total" suffix')
        said = (checked.stdout + checked.stderr).splitlines()
        self.assertEqual([line for line in said if not unsuffixed.fullmatch(line)], [])
        self.assertIn("\nratelimit_service_rate_limit_total_hits{", text)
