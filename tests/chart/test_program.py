"""What the program makes of what the chart renders: its policy, its settings, its metrics."""

import json
import os
import pathlib
import re
import shlex
import subprocess
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
        dashboard = chart.one(objects, "ConfigMap", "-dashboard")["data"]["tidegate.json"]
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
        asked |= set(chart.METRIC.findall(dashboard))
        # Those of TLS and of a control plane are in the recordings of their alerts.
        exist |= {"tidegate_certificate_expiry_timestamp_seconds", "tidegate_xds_connected"}
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

    def test_every_command_of_the_runbook_and_the_notes_exists(self):
        notes = "".join(chart.render(values)["NOTES.txt"] for values in ({}, {"debug": {"existingSecret": "s"}}))
        texts = [(chart.CHART / "RUNBOOK.md").read_text(), (chart.ROOT / "docs" / "DEPLOYING.md").read_text(), notes]
        command = re.compile(r"(?:^ +|`)(?:tg|each|kubectl .* -- tidegate) ([a-z][^\n`]*)", re.MULTILINE)
        commands = {found for text in texts for found in command.findall(text)}
        self.assertGreater(len(commands), 12)
        for command in sorted(commands):
            words = shlex.split(command)
            names = words[:2] if words[0] == "override" else words[:1]
            with self.subTest(command=command):
                ran = chart.program(*names, "--help")
                self.assertEqual(ran.returncode, 0, ran.stderr)
                for flag in (word for word in words if word.startswith("--")):
                    self.assertRegex(ran.stdout, rf"(?m)^ .*{flag}\b")

    def test_the_recipes_of_the_runbook_do_what_they_say(self):
        """Each command of the recipes in turn, for a customer who has used the limit. Those of kubectl are replaced."""
        start, rest = (chart.CHART / "RUNBOOK.md").read_text().split("## Recipes\n")
        recipes = re.findall(r"^ {7}(\S.*)$", rest.split("## Alerts\n")[0], re.MULTILINE)
        self.assertGreater(len(recipes), 9)
        policy = {"domain": "edge", "descriptors": [
            {"key": "api_token", "rate_limit": {"name": "daily", "unit": "day", "requests_per_unit": 1}}]}
        with tempfile.TemporaryDirectory() as directory:
            token = pathlib.Path(directory) / "token"
            token.write_text("t")
            given = {"TIDEGATE_DEBUG_TOKEN_FILE": str(token)}
            with chart.Running(chart.manifests({"policy": {"files": {"edge.yaml": policy}}}), given) as running:
                port = running.ports["DEBUG_PORT"]
                functions = re.findall(r"^    ((?:try|now)\(\) .*)$", start, re.MULTILINE)
                self.assertEqual(len(functions), 2)
                head = "\n".join(functions).replace("localhost:6070", f"127.0.0.1:{port}")
                head += f'\ntg() {{ "{chart.PROGRAM}" "$@" --debug 127.0.0.1:{port}; }}\nlogs() {{ :; }}\n'

                def run(command):
                    ran = subprocess.run(["bash", "-c", head + command], env={**os.environ, **given}, capture_output=True,
                                         text=True, timeout=chart.PATIENCE_SECONDS)
                    self.assertEqual(ran.returncode, 0, f"{command}: {ran.stderr}")
                    return ran.stdout

                body = {"domain": "edge", "descriptors": [{"entries": [{"key": "api_token", "value": "acme"}]}]}
                spend = lambda: chart.post(f"http://127.0.0.1:{running.http}/json", body)
                self.assertEqual([spend(), spend()], [200, 429])
                self.assertIn('"code":"OVER_LIMIT"', run(recipes[0]))
                for command in recipes[1:]:
                    said = run(command)
                    if command.startswith("tg reset"):
                        # So that what passes later does so by an override.
                        self.assertEqual([spend(), spend()], [200, 429])
                    if command.startswith("try "):
                        self.assertIn('"code":"OK"', said)
                    if command == "now":
                        self.assertIn("rejected_per_second", said)
