"""What the chart must not render, and what it says instead."""

import re
import unittest

import jsonschema
import yaml

import chart

POLICY = {"files": {"a.yaml": "domain: a\n"}}
REDIS = {"mode": "redis", "redis": {"address": "redis:6379"}}

# Values, and the words by which the refusal names the way out.
TOGETHER = [
    ({"image": {"repository": ""}}, "image.repository: this chart names no published image"),
    ({**REDIS, "policy": {}}, "policy.existingConfigMap"),
    ({"valkey": {"enabled": True}}, "needs mode redis"),
    ({**REDIS, "valkey": {"enabled": True}}, "set only one of them"),
    ({"mode": "redis", "redis": {"tls": {"enabled": True}}, "valkey": {"enabled": True}}, "has no TLS"),
    ({"debug": {"existingSecret": "s", "tokenFile": "/t"}}, "debug.existingSecret, debug.tokenFile"),
    ({"debug": {"service": {"enabled": True}}}, "give debug.existingSecret or debug.tokenFile"),
    ({"networkPolicy": {"operatorNamespaces": ["ops"]}}, "set debug.service.enabled"),
    ({"settings": {"debug-host": "0.0.0.0"}}, "use debug.service.enabled"),
    ({"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}, "enable one of them"),
    ({"policy": {"files": {"a.yaml": {"domain": "a", "descriptors": [{"key": "v", "value": 1.10}]}}}}, "quote every `value`"),
    ({"policy": {"files": {"a.yaml": {"domain": "a", "descriptors": [{"key": "v", "value": True}]}}}}, "quote every `value`"),
    ({"policy": {"files": {"a.yaml": {"descriptors": [{"rate_limit": {"tiers": {"classes": {"b": 1, "a": 2}}}}]}}}}, "as text"),
    ({"policy": {"files": {"a.yaml": {"x": ["y" * 1_000_001]}}}}, "1,000,000 bytes"),
    ({**REDIS, "autoscaling": {"enabled": True, "targetCPUPercent": 0}}, "autoscaling.metrics"),
    ({"service": {"trafficDistribution": "PreferClose"}}, "service.headless: false"),
    ({"service": {"clusterIP": "10.0.0.1"}}, "service.headless: false"),
    ({"service": {"headless": False, "loadBalancerSourceRanges": ["192.0.2.0/24"]}}, "service.type LoadBalancer"),
    ({"service": {"headless": False, "nodePorts": {"grpc": 30081}}}, "service.type NodePort"),
    ({"settings": {"redis-url": "r:1"}}, "use redis.address"),
    ({"settings": {"heders": "both"}}, "did you mean headers?"),
    ({"settings": {"retry-aftr": "date"}}, "did you mean retry-after?"),
    ({"settings": {"near-limit": 0.5}}, "did you mean near-limit-ratio?"),
    ({"settings": {"xyzzy": 1}}, "`tidegate serve --help` lists them"),
    ({"envoyGateway": {"enabled": True}, "policy": {}, "settings": {"xds-server": "a:1"}}, "use envoyGateway.serverUrl"),
    ({"policy": {**POLICY, "existingConfigMap": "limits"}}, "set only one of them"),
    ({"policy": {"files": {"a.yaml": "x" * 1_000_001}}}, "1,000,000 bytes"),
    ({"replicaCount": 2}, "embedded.perReplicaLimits: true"),
    ({"autoscaling": {"enabled": True}}, "embedded.perReplicaLimits: true"),
    ({"replicaCount": None}, "embedded.perReplicaLimits: true"),
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
    ({"drain": {"delaySeconds": 24}}, "drain.hardLimitSeconds (25)"),
    ({"terminationGracePeriodSeconds": 25}, "terminationGracePeriodSeconds (25)"),
    ({**REDIS, "autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}, "autoscaling.minReplicas"),
    ({**REDIS, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}, "resources.requests.cpu"),
    ({"service": {"type": "NodePort"}}, "service.headless"),
    ({"service": {"grpcPort": 443}}, "service.headless"),
    ({"service": {"headless": False, "grpcPort": 80, "httpPort": 80}}, "two ports"),
]

ALONE = [
    {"replica": 3},
    {"redis": {"adress": "redis:6379"}},
    {"redis": {"address": "redis://user:secret@redis:6379"}},
    {"mode": "memcached"},
    {"replicaCount": "three"},
    {"policy": {"files": {"a.json": "{}"}}},
    {"policy": {"files": {"sub/a.yaml": "domain: a"}}},
    {"policy": {"files": {"a.yaml": ["domain: a"]}}},
    {"policy": {"files": {"a.yaml": {}}}},
    {"redis": {"keyPrefix": "{a}"}},
    {"image": {"digest": "latest"}},
    {"podDisruptionBudget": {"maxUnavailable": 0}},
    {"settings": {"Headers": "both"}},
    {"extraEnv": {"A": "b"}},
    {"extraEnv": [{"value": "b"}]},
    {"extraArgs": "--headers=both"},
    {"extraVolumeMounts": [{"name": "v"}]},
    {"extraContainers": [{"image": "i"}]},
    {"updateStrategy": {"type": "OnDelete"}},
    {"dnsPolicy": "none"},
    {"service": {"ipFamilies": ["ipv4"]}},
    {"service": {"loadBalancerSourceRanges": ["192.0.2.0"]}},
    {"networkPolicy": {"callerNamespaces": ["Edge"]}},
    {"debug": {"tokenFile": "token"}},
    {"commonLabels": {"a": 1}},
    {"topologySpreadConstraints": [{"maxSkew": 1}]},
]


class Refused(unittest.TestCase):
    def test_values_that_do_not_go_together_are_refused_with_a_way_out(self):
        for values, words in TOGETHER:
            with self.subTest(values=str(values)[:80]):
                told = chart.refusal({"policy": POLICY, **values})
                self.assertIsNotNone(told, "it rendered")
                self.assertIn("contradict each other", told)
                self.assertIn(words, told)

    def test_names_of_other_charts_lead_to_ours(self):
        text = (chart.CHART / "templates" / "_refuse.tpl").read_text()
        table = yaml.safe_load(text.split('define "tidegate.otherNames" -}}')[1].split("{{- end")[0])
        self.assertGreater(len(table), 30)
        for path, own in table.items():
            with self.subTest(value=path):
                value = chart.defaults()
                for part in own.split("."):
                    self.assertIn(part, value)
                    value = value[part]
                values = "given"
                for part in reversed(path.split(".")):
                    values = {part: values}
                told = chart.refusal({"policy": POLICY, **values})
                self.assertIsNotNone(told, "it rendered")
                self.assertIn(f"{path}: this chart has no such value; use {own}", told)

    def test_every_fault_is_told_at_once(self):
        told = chart.refusal({"replicaCount": 2, "tls": {"enabled": True}, "settings": {"heders": "both"}})
        for words in ("more than one replica", "tls.existingSecret", "settings.heders"):
            self.assertIn(words, told)
        told = chart.refusal({**REDIS, "tls": {"enabled": True}})
        for words in ("policy:", "tls.existingSecret"):
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
            extra = {item["name"] for item in values.get("extraEnv", [])}
            names = {name.removeprefix("TIDEGATE_").lower().replace("_", "-")
                     for name in chart.environment(chart.manifests(values)) if name not in extra}
            given |= names - free.keys()
        for name in sorted(given):
            with self.subTest(setting=name):
                self.assertIsNotNone(chart.refusal({"policy": POLICY, "settings": {name: "x"}}))

    def test_a_message_names_values_that_exist(self):
        text = (chart.CHART / "templates" / "_refuse.tpl").read_text()
        owned = yaml.safe_load(re.sub(r"\{\{-.*?\}\}", "", text.split('define "tidegate.ownedSettings" -}}')[1].split("\n{{/*")[0])
                               .replace("{{ . }}", "envoyGateway"))
        self.assertGreater(len(owned), 40)
        known = (chart.CHART / "files" / "settings.txt").read_text().split()
        for name, instead in owned.items():
            with self.subTest(setting=name):
                self.assertIn(name, known)
                for path in re.findall(r"[A-Za-z.]+", instead.replace(" or ", " ")):
                    value = chart.defaults()
                    for part in path.split("."):
                        self.assertIn(part, value)
                        value = value[part]

    def test_the_schema_is_closed_and_knows_every_value(self):
        definitions = chart.schema()["definitions"]
        jsonschema.Draft7Validator.check_schema(chart.schema())

        def walk(schema, values, path):
            if "$ref" in schema:
                schema = definitions[schema["$ref"].removeprefix("#/definitions/")]
            if "properties" not in schema:
                return
            # Other charts of an umbrella chart read `global`, too.
            if path != "values.global":
                self.assertIs(schema.get("additionalProperties"), False, f"{path} is open")
            if values == {}:
                return  # a map that is empty by default
            known = set(schema["properties"]) - {"initialDelaySeconds", "successThreshold", "claims"}
            self.assertLessEqual(set(values), known, path)
            if path != "values.valkey.resources":
                self.assertEqual(known, set(values), path)
            for name in known & set(values):
                if isinstance(values[name], dict):
                    walk(schema["properties"][name], values[name], f"{path}.{name}")

        walk(chart.schema(), chart.defaults(), "values")
