"""The program in place of envoyproxy/ratelimit, with the environment of Envoy Gateway: a real Prometheus
scrapes its Prometheus port, and promtool runs the expressions of Envoy Gateway's dashboard on it."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import urllib.request
from contextlib import ExitStack

import yaml

import chart
import servers

DOMAIN = "default/eg/http"
ROUTE = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example"
# What Envoy Gateway writes for a route with a limit for every client, and one for each address.
POLICY = {"domain": DOMAIN, "descriptors": [{"key": ROUTE, "value": ROUTE, "descriptors": [
    {"key": "rule-0-match-0", "value": "rule-0-match-0", "rate_limit": {"unit": "year", "requests_per_unit": 5}},
    {"key": "masked_remote_address", "value": "0.0.0.0/0", "rate_limit": {"unit": "year", "requests_per_unit": 3}},
]}]}
# The expressions of the dashboard "Global Ratelimit", and that of its end-to-end test.
LABELS = f'domain="{DOMAIN}", key1="{ROUTE}_{ROUTE}", key2="rule-0-match-0_rule-0-match-0"'
EXPRESSIONS = {
    f"ratelimit_service_rate_limit_total_hits{{{LABELS}}}": 7,
    f"ratelimit_service_rate_limit_near_limit{{{LABELS}}}": 1,
    f"ratelimit_service_rate_limit_over_limit{{{LABELS}}}": 2,
    'ratelimit_service_rate_limit_over_limit{key2="masked_remote_address_0_0_0_0/0"}': 1,
    "(go_memstats_gc_cpu_fraction)*1000000": 0,
}
MEMORY = ["(process_resident_memory_bytes)/1000000", "(process_virtual_memory_bytes)/1000000"]


class Ratelimit:
    """The program, called as `ratelimit`, with Envoy Gateway's environment but for its control plane."""

    def __init__(self, redis):
        self.http, self.metrics, self.redis = chart.free_port(), chart.free_port(), redis

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        here = pathlib.Path(self.directory.name)
        (here / "data/ratelimit/config").mkdir(parents=True)
        (here / "data/ratelimit/config/policy.yaml").write_text(yaml.safe_dump(POLICY))
        os.symlink(chart.PROGRAM, here / "ratelimit")
        environment = {
            "RUNTIME_ROOT": f"{here}/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_IGNOREDOTFILES": "true",
            "RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "info", "USE_STATSD": "false",
            "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": self.redis.node, "USE_PROMETHEUS": "true",
            "PROMETHEUS_ADDR": f":{self.metrics}", "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
            "HOST": "127.0.0.1", "PORT": str(self.http), "GRPC_HOST": "127.0.0.1", "GRPC_PORT": "0",
            "DEBUG_PORT": "0"}
        self.child = subprocess.Popen([here / "ratelimit"], env=environment, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        chart.until("it is healthy", self.healthy)
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.directory.cleanup()

    def healthy(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/healthcheck", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def ask(self, key, value):
        entries = [{"key": ROUTE, "value": ROUTE}, {"key": key, "value": value}]
        body = json.dumps({"domain": DOMAIN, "descriptors": [{"entries": entries}]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/json", body, headers)
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError as refused:
            assert refused.code == 429, refused


def scraping(stack, ratelimit):
    """A Prometheus that scrapes the port as Envoy Gateway's annotations have it; its address."""
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": [{
        "job_name": "envoy-ratelimit", "static_configs": [{"targets": [f"127.0.0.1:{ratelimit.metrics}"]}]}]}
    (pathlib.Path(directory) / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{chart.free_port()}"
    stack.enter_context(servers.Process(
        "prometheus", "prometheus", f"--config.file={directory}/prometheus.yaml",
        f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}"))
    return f"http://{address}"


def query(server, expression):
    """What promtool says about an expression: the value of its only series; None while it has none."""
    command = ["promtool", "query", "instant", "--format=json", server, expression]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = json.loads(ran.stdout) if ran.returncode == 0 else []
    assert len(found) <= 1, found
    return float(found[0]["value"][1]) if found else None


class RatelimitMetrics(unittest.TestCase):
    def test_the_dashboard_of_envoy_gateway_shows_what_happened(self):
        with ExitStack() as stack:
            redis = stack.enter_context(servers.Redis())
            ratelimit = stack.enter_context(Ratelimit(redis))
            for _ in range(7):
                ratelimit.ask("rule-0-match-0", "rule-0-match-0")
            for _ in range(4):
                ratelimit.ask("masked_remote_address", "0.0.0.0/0")
            server = scraping(stack, ratelimit)
            for expression, value in EXPRESSIONS.items():
                with self.subTest(expression=expression):
                    chart.until(f"{expression} is {value}", lambda: query(server, expression) == value)
            for expression in MEMORY:
                with self.subTest(expression=expression):
                    chart.until(expression, lambda: (query(server, expression) or 0) > 1)
            name = "ratelimit_service_rate_limit_over_limit"
            with urllib.request.urlopen(f"{server}/api/v1/targets/metadata?metric={name}", timeout=5) as reply:
                self.assertEqual(json.load(reply)["data"][0]["type"], "counter")
