"""What the program makes of what the chart renders: its policy, its settings, its metrics."""

import json
import pathlib
import re
import tempfile
import unittest

import yaml

import chart
import servers
import test_prometheus


class Program(unittest.TestCase):
    def test_every_rendered_policy_passes_its_check(self):
        checked = 0
        for name, values in chart.cases().items():
            objects = chart.manifests(values)
            maps = [o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"].endswith("-policy")]
            for policy in maps:
                with self.subTest(case=name), tempfile.TemporaryDirectory() as directory:
                    for file, text in policy["data"].items():
                        (pathlib.Path(directory) / file).write_text(text)
                    merges = chart.environment(objects)["TIDEGATE_MERGE_DOMAIN_CONFIG"]
                    ran = chart.program("check", "--strict", directory, environment={"MERGE_DOMAIN_CONFIG": merges})
                    self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
                    checked += 1
        self.assertGreater(checked, 3)

    def test_every_setting_is_one_that_the_program_has_and_accepts(self):
        known = set(re.findall(r"TIDEGATE_[A-Z_]+", chart.program("serve", "--help").stdout))
        # Variables without a flag.
        known |= set(re.findall(r"^# ([A-Z_]+):", chart.program("serve", "--print-settings").stdout, re.M))
        for name, values in chart.cases().items():
            with self.subTest(case=name):
                given = {key: value or "secret" for key, value in chart.environment(chart.manifests(values)).items()}
                self.assertLessEqual(given.keys(), known)
                ran = chart.program("serve", "--print-settings", environment=given)
                self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_the_embedded_case_serves_warns_of_nothing_and_leaves_in_order(self):
        with chart.Running(chart.manifests(chart.cases()["embedded"])) as running:
            self.assertEqual(running.get("/healthz"), "alive\n")
            self.assertEqual(running.stop(), 0, running.said())
            levels = {json.loads(line)["level"].upper() for line in running.said().splitlines()}
            self.assertEqual(levels, {"INFO"}, running.said())

    def test_rules_and_dashboard_ask_only_for_metrics_that_exist(self):
        objects = chart.manifests(chart.cases()["redis"])
        rules = chart.one(objects, "PrometheusRule")["spec"]
        panels = json.loads(chart.one(objects, "ConfigMap", "-dashboard")["data"]["tidegate.json"])["panels"]
        # Counting in Redis it has every metric that it has in memory, and Redis' besides.
        server = servers.Redis()
        with server, chart.Running(objects, test_prometheus.counting_in(server)) as running:
            test_prometheus.ask(running)
            # A domain without a rule has a metric from its first call on.
            test_prometheus.ask(running, "egde")
            chart.until("Redis' own figures", lambda: "tidegate_redis_keys{" in running.get("/metrics"))
            exist = {line.split("{")[0].split(" ")[0] for line in running.get("/metrics").splitlines()
                     if not line.startswith("#")}
        asked = set(chart.METRIC.findall(yaml.safe_dump(rules)))
        asked |= {name for p in panels for t in p["targets"] for name in chart.METRIC.findall(t["expr"])}
        self.assertGreater(len(asked), 10)
        self.assertEqual(asked - exist, set())

    def test_every_alert_has_a_line_in_the_runbook(self):
        runbook = (chart.CHART / "RUNBOOK.md").read_text().lower()
        groups = chart.one(chart.manifests(chart.cases()["redis"]), "PrometheusRule")["spec"]["groups"]
        alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
        self.assertGreater(len(alerts), 5)
        for alert in alerts:
            with self.subTest(alert=alert):
                self.assertIn(f"### {alert.lower()}\n", runbook)
