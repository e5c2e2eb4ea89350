"""Alerts against series of the faults that they are for, by promtool. The series are in alerts/."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

import yaml

import chart


def rules():
    """The rendered rules, as Prometheus reads them."""
    return chart.one(chart.manifests(chart.cases()["redis"]), "PrometheusRule")["spec"]


def promtool(*arguments):
    assert shutil.which("promtool"), "promtool is missing (Debian: apt-get install prometheus)"
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=300)
    return ran.returncode, ran.stdout + ran.stderr


class Alerts(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "rules.yaml").write_text(yaml.safe_dump(rules()))

    def test_prometheus_accepts_the_rules(self):
        code, said = promtool("check", "rules", str(self.directory / "rules.yaml"))
        self.assertEqual(code, 0, said)

    def test_each_alert_fires_on_its_fault_and_not_without_it(self):
        tested = set()
        for path in sorted((chart.HERE / "alerts").glob("*.yaml")):
            shutil.copy(path, self.directory)
            with self.subTest(fault=path.stem):
                code, said = promtool("test", "rules", str(self.directory / path.name))
                self.assertEqual(code, 0, said)
            for test in yaml.safe_load(path.read_text())["tests"]:
                tested |= {asked["alertname"] for asked in test.get("alert_rule_test", []) if asked.get("exp_alerts")}
        every = {rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}
        self.assertEqual(tested, every)
