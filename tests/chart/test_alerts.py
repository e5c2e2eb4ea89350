"""Rules against series that no recording of a fault has: figures that texts tell exactly, and what must
stay silent. Written by hand, in alerts/. Not here: the faults themselves (test_recordings)."""

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

    def test_each_series_by_hand_makes_what_stands_beside_it(self):
        for path in sorted((chart.HERE / "alerts").glob("*.yaml")):
            shutil.copy(path, self.directory)
            with self.subTest(series=path.stem):
                code, said = promtool("test", "rules", str(self.directory / path.name))
                self.assertEqual(code, 0, said)

    def test_a_rule_near_its_limit_is_told_of_by_the_ratio_that_the_program_has(self):
        for ratio in (0, 0.5, "0.9"):
            values = chart.merged(chart.cases()["redis"], {"settings": {"near-limit-ratio": ratio}})
            groups = chart.one(chart.manifests(values), "PrometheusRule")["spec"]["groups"]
            found = [rule["expr"] for group in groups for rule in group["rules"] if rule.get("alert") == "TidegateRuleNearLimit"]
            self.assertIn(f"> 0.5 * (1 - {ratio})", found[0])
