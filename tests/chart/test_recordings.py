"""Each alert against what Prometheus would know of its fault: recorded anew from the real program, each
time, then judged by promtool. Not here: the faults (faults), series that no fault gives (test_alerts)."""

import pathlib
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import yaml

import chart
import faults
import test_alerts

# Recorded side by side. They wait for each other's CPU, and for polls and timers besides.
AT_ONCE = 5
# Alerts about durations: on a busy machine, they fire without a fault. Only before their own they are silent.
OF_DURATIONS = {"TidegateDecisionsSlow", "TidegateRedisSlow"}


def record(fault):
    """What the fault left behind, after all that was started for it is gone."""
    with ExitStack() as stack:
        return fault.record(stack)


def rule_of(seen, alert):
    found = [rule for group in seen.recording.rules["groups"] for rule in group["rules"] if rule.get("alert") == alert]
    assert len(found) == 1, f"{len(found)} rules of {alert}"
    return found[0]


def sample(labels):
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


def test_of(fault, seen):
    """promtool's test: silence while all is well, the alert in time, and still in the fault's last minute."""
    recording, rule = seen.recording, rule_of(seen, fault.alert)
    labels = {"namespace": chart.NAMESPACE, "job": chart.RELEASE, **rule["labels"], **seen.labels}
    fires = {"alertname": fault.alert, "alertstate": "firing"}
    last = (recording.mended or recording.minutes) - 1
    asked = []
    for began, ended in recording.well:
        # From the first minute on, both ends included.
        others = "|".join(sorted(OF_DURATIONS - {fault.alert}))
        every = f'count_over_time(ALERTS{{alertstate="firing",alertname!~"{others}"}}[{ended - began + 1}m])'
        asked.append({"expr": every, "eval_time": f"{ended}m", "exp_samples": []})
    for minute in (recording.broken - 1 + fault.within, last):
        value = {"labels": "ALERTS" + sample({**labels, **fires}), "value": 1}
        asked.append({"expr": "ALERTS" + sample(fires), "eval_time": f"{minute}m", "exp_samples": [value]})
    test = {"interval": "1m", "input_series": recording.input_series(), "promql_expr_test": asked}
    if seen.summary:
        told = {**rule["annotations"], "summary": seen.summary}
        test["alert_rule_test"] = [{
            "eval_time": f"{last}m", "alertname": fault.alert,
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": told}]}]
    return {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}


class Recordings(unittest.TestCase):
    def test_each_alert_fires_on_its_recorded_fault_and_none_before_it(self):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [(fault, pool.submit(record, fault)) for fault in faults.FAULTS]
        for fault, recorded in running:
            with self.subTest(alert=fault.alert), tempfile.TemporaryDirectory() as directory:
                seen, here = recorded.result(), pathlib.Path(directory)
                (here / "rules.yaml").write_text(yaml.safe_dump(seen.recording.rules))
                (here / "test.yaml").write_text(yaml.safe_dump(test_of(fault, seen), width=200))
                code, said = test_alerts.promtool("test", "rules", str(here / "test.yaml"))
                self.assertEqual(code, 0, said)

    def test_every_alert_of_the_chart_has_its_fault(self):
        every = [rule["alert"] for group in test_alerts.rules()["groups"] for rule in group["rules"] if "alert" in rule]
        self.assertEqual(sorted(fault.alert for fault in faults.FAULTS), sorted(every))
