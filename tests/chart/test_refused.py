"""What the chart must not render, and what it says instead."""

import unittest

import chart

POLICY = {"files": {"a.yaml": "domain: a\n"}}
REDIS = {"mode": "redis", "redis": {"address": "redis:6379"}}

# Values, and the words by which the refusal names the way out.
TOGETHER = [
    ({"image": {"repository": ""}}, "image.repository: this chart names no published image"),
    ({"policy": {}}, "policy.existingConfigMap"),
    ({"policy": {**POLICY, "existingConfigMap": "limits"}}, "give one of them"),
    ({"policy": {"files": {"a.yaml": "x" * 1_000_001}}}, "1,000,000 bytes"),
    ({"replicaCount": 2}, "embedded.perReplicaLimits: true"),
    ({"autoscaling": {"enabled": True}}, "embedded.perReplicaLimits: true"),
    ({"mode": "redis"}, "redis.address"),
    ({"mode": "sentinel"}, "redis.sentinel.addresses"),
    ({"mode": "cluster"}, "redis.cluster.addresses"),
    ({"redis": {"address": "redis:6379"}}, "set mode redis"),
    ({**REDIS, "redis": {"address": "r:1", "tls": {"clientCertificate": True}}}, "redis.tls.existingSecret"),
    ({"tls": {"enabled": True}}, "tls.existingSecret"),
    ({"tls": {"requireClientCertificate": True}}, "tls.enabled"),
    ({"tls": {"enabled": True, "existingSecret": "t", "clientName": "n"}}, "tls.requireClientCertificate"),
    ({"tls": {"enabled": True, "existingSecret": "t"}, "probes": {"type": "grpc"}}, "use http"),
    ({"drain": {"delaySeconds": 25}}, "drain.hardLimitSeconds (25)"),
    ({"terminationGracePeriodSeconds": 25}, "terminationGracePeriodSeconds (25)"),
    ({**REDIS, "autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}, "autoscaling.minReplicas"),
    ({**REDIS, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}, "resources.requests.cpu"),
    ({"service": {"type": "NodePort"}}, "service.headless"),
    ({"service": {"grpcPort": 443}}, "service.headless"),
    ({"service": {"headless": False, "grpcPort": 80, "httpPort": 80}}, "two ports"),
]

ALONE = [
    {"replicas": 3},
    {"redis": {"adress": "redis:6379"}},
    {"redis": {"address": "redis://user:secret@redis:6379"}},
    {"mode": "memcached"},
    {"replicaCount": "three"},
    {"policy": {"files": {"a.json": "{}"}}},
    {"policy": {"files": {"sub/a.yaml": "domain: a"}}},
    {"policy": {"files": {"a.yaml": {"domain": "a"}}}},
    {"redis": {"keyPrefix": "{a}"}},
    {"image": {"digest": "latest"}},
    {"podDisruptionBudget": {"maxUnavailable": 0}},
    {"settings": {"Headers": "both"}},
]


class Refused(unittest.TestCase):
    def test_values_that_do_not_go_together_are_refused_with_a_way_out(self):
        for values, words in TOGETHER:
            with self.subTest(values=str(values)[:80]):
                told = chart.refusal({"policy": POLICY, **values})
                self.assertIsNotNone(told, "it rendered")
                self.assertIn("contradict each other", told)
                self.assertIn(words, told)

    def test_every_fault_is_told_at_once(self):
        told = chart.refusal({"replicaCount": 2, "tls": {"enabled": True}})
        for words in ("policy:", "more than one replica", "tls.existingSecret"):
            self.assertIn(words, told)

    def test_unknown_and_malformed_values_are_refused(self):
        for values in ALONE:
            with self.subTest(values=values):
                told = chart.refusal({"policy": POLICY, **values})
                self.assertIsNotNone(told, "it rendered")
                self.assertIn("schema", told)

    def test_limits_per_replica_are_rendered_once_they_are_asked_for(self):
        asked = {"policy": POLICY, "embedded": {"perReplicaLimits": True}, "replicaCount": 3}
        self.assertIsNone(chart.refusal(asked))
        self.assertIn("admits up to 3 × L", chart.render(asked)["NOTES.txt"])

    def test_what_the_chart_sets_itself_is_no_free_setting(self):
        given = set()
        for values in chart.cases().values():
            free = values.get("settings", {})
            names = {name.removeprefix("TIDEGATE_").lower().replace("_", "-")
                     for name in chart.environment(chart.manifests(values))}
            given |= names - free.keys()
        for name in sorted(given):
            with self.subTest(setting=name):
                self.assertIsNotNone(chart.refusal({"policy": POLICY, "settings": {name: "x"}}))

    def test_the_schema_is_closed_and_knows_every_value(self):
        def walk(schema, values, path):
            if "properties" not in schema:
                return
            self.assertIs(schema.get("additionalProperties"), False, f"{path} is open")
            known = set(schema["properties"]) - {"global", "initialDelaySeconds", "successThreshold", "claims"}
            self.assertEqual(known, set(values), path)
            for name in known:
                if isinstance(values[name], dict):
                    walk(schema["properties"][name], values[name], f"{path}.{name}")

        walk(chart.schema(), chart.defaults(), "values")
