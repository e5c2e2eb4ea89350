"""The chart as the rate limit service of Envoy Gateway and of Envoy AI Gateway: what their control planes expect of
it. Not here: what the program makes of their policies."""

import copy
import os
import pathlib
import subprocess
import tempfile
import unittest

import kubernetes_validate
import yaml

import chart
from test_render import KUBERNETES

REDIS = {"mode": "redis", "replicaCount": 2, "redis": {"address": "redis.data.svc:6379"}}
ENVOY_GATEWAY = {**REDIS, "envoyGateway": {"enabled": True}, "networkPolicy": {"enabled": True}}
AI_GATEWAY = {**REDIS, "aiGateway": {"enabled": True}, "networkPolicy": {"enabled": True}}
# Settings of the process by their names in envoyproxy/ratelimit, and as Envoy Gateway gives them.
EXPECTED = {
    "CONFIG_TYPE": "GRPC_XDS_SOTW",
    "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001",
    "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/certs/ca.crt",
    "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
    "TIDEGATE_GRPC_SERVER_USE_TLS": "true",
    "TIDEGATE_GRPC_SERVER_TLS_CERT": "/certs/tls.crt",
    "TIDEGATE_GRPC_SERVER_TLS_KEY": "/certs/tls.key",
    "TIDEGATE_USE_PROMETHEUS": "true",
    "TIDEGATE_PROMETHEUS_ADDR": ":19001",
    "TIDEGATE_REDIS_URL": "redis.data.svc:6379",
}
EXPECTED_BY_AI_GATEWAY = {
    "CONFIG_TYPE": "GRPC_XDS_SOTW",
    "CONFIG_GRPC_XDS_SERVER_URL": "ai-gateway-controller.envoy-ai-gateway-system:18002",
    "CONFIG_GRPC_XDS_NODE_ID": "envoy-ai-gateway-ratelimit",
}


def given(values):
    objects = chart.manifests(values)
    return objects, chart.environment(objects), chart.container(objects), chart.one(objects, "Service")


class Gateways(unittest.TestCase):
    def test_istio_reads_http_2_and_a_cluster_ip_for_sidecars(self):
        for headless in (True, False):
            service = chart.one(chart.manifests({"service": {"headless": headless}}), "Service")
            # What makes Istio generate a cluster of type ORIGINAL_DST for sidecars.
            self.assertEqual(service["spec"].get("clusterIP"), "None" if headless else None)
            grpc = service["spec"]["ports"][0]
            # Istio reads the appProtocol, which is HTTP/2 here, and the name only if there is none.
            self.assertEqual((grpc["name"], grpc["appProtocol"], grpc["port"]), ("grpc", "kubernetes.io/h2c", 8081))

    def test_both_pass_a_strict_lint_and_the_schemas_of_kubernetes(self):
        for values in (ENVOY_GATEWAY, AI_GATEWAY):
            self.assertEqual(chart.findings(values), [])
            for manifest in chart.manifests(values):
                for version in KUBERNETES:
                    kubernetes_validate.validate(manifest, version, strict=True)

    def test_envoy_gateway_finds_name_environment_ports_and_certificates(self):
        objects, environment, container, service = given(ENVOY_GATEWAY)
        self.assertLessEqual(EXPECTED.items(), environment.items())
        self.assertNotIn("TIDEGATE_POLICY", environment)
        self.assertEqual(service["metadata"]["name"], "envoy-ratelimit")
        self.assertEqual({port["name"]: port["port"] for port in service["spec"]["ports"]},
                         {"grpc": 8081, "http": 8080, "metrics": 19001})
        self.assertEqual(service["spec"]["ports"][0]["appProtocol"], "https")
        self.assertEqual(container["command"], ["/bin/ratelimit"])
        self.assertNotIn("args", container)
        pod = chart.one(objects, "Deployment")["spec"]["template"]["spec"]
        self.assertEqual(container["volumeMounts"], [{"name": "certs", "mountPath": "/certs", "readOnly": True}])
        self.assertEqual(pod["volumes"], [{"name": "certs", "secret": {"secretName": "envoy-rate-limit", "defaultMode": 0o440}}])
        self.assertFalse([o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"].endswith("-policy")])

    def test_ai_gateway_finds_its_service_in_plain_text(self):
        objects, environment, container, service = given(AI_GATEWAY)
        self.assertLessEqual(EXPECTED_BY_AI_GATEWAY.items(), environment.items())
        self.assertFalse({"FORCE_START_WITHOUT_INITIAL_CONFIG", "TIDEGATE_GRPC_SERVER_USE_TLS",
                          "CONFIG_GRPC_XDS_SERVER_USE_TLS"} & environment.keys())
        self.assertEqual(service["metadata"]["name"], "envoy-ai-gateway-ratelimit")
        self.assertEqual(service["spec"]["ports"][0]["port"], 8081)
        self.assertEqual(service["spec"]["ports"][0]["appProtocol"], "kubernetes.io/h2c")
        self.assertEqual(container["command"], ["/bin/ratelimit"])

    def test_a_start_may_wait_five_minutes_for_the_first_policy(self):
        for values in (ENVOY_GATEWAY, AI_GATEWAY):
            container = given(values)[2]
            startup = container["startupProbe"]
            self.assertEqual(startup["httpGet"], {"path": "/healthcheck", "port": "http"})
            self.assertEqual(startup["periodSeconds"] * startup["failureThreshold"], 300)
            self.assertEqual(container["readinessProbe"]["httpGet"]["path"], "/healthcheck")
            hour = given({**values, "probes": {"startup": {"failureThreshold": 360}}})[2]["startupProbe"]
            self.assertEqual(hour["periodSeconds"] * hour["failureThreshold"], 3600)
        grpc = given({**AI_GATEWAY, "probes": {"type": "grpc"}})[2]["startupProbe"]
        self.assertEqual(grpc["periodSeconds"] * grpc["failureThreshold"], 300)

    def test_the_network_policy_lets_it_reach_the_control_plane(self):
        for values, control_plane in ((ENVOY_GATEWAY, 18001), (AI_GATEWAY, 18002)):
            spec = chart.one(chart.manifests(values), "NetworkPolicy")["spec"]
            ports = [port["port"] for rule in spec["egress"] for port in rule["ports"]]
            self.assertEqual(ports, [53, 53, control_plane, 6379])
        self.assertIn({"port": "metrics", "protocol": "TCP"},
                      chart.one(chart.manifests(ENVOY_GATEWAY), "NetworkPolicy")["spec"]["ingress"][1]["ports"])

    def test_the_program_accepts_the_environment_that_is_rendered(self):
        for values, server in ((ENVOY_GATEWAY, "envoy-gateway:18001"),
                               (AI_GATEWAY, "ai-gateway-controller.envoy-ai-gateway-system:18002")):
            environment = given(values)[1]
            with tempfile.TemporaryDirectory() as directory:
                program = pathlib.Path(directory) / "ratelimit"
                os.symlink(chart.PROGRAM, program)
                ran = subprocess.run([program, "--print-settings"], env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            settings = yaml.safe_load(ran.stdout)
            self.assertEqual(settings["xds-server"], server)
            self.assertEqual(settings["config-type"].lower(), "grpc_xds_sotw")
            origins = dict(line.split(":", 1) for line in ran.stdout.splitlines())
            self.assertTrue(origins["xds-server"].endswith("# environment CONFIG_GRPC_XDS_SERVER_URL"), origins)
            self.assertTrue(origins["charge"].endswith("# default as ratelimit"), origins)

    def test_values_that_a_control_plane_makes_useless_are_refused(self):
        for more, words in [
            ({"aiGateway": {"enabled": True}}, "install the chart twice"),
            ({"policy": {"files": {"a.yaml": "domain: a\n"}}}, "come from the control plane"),
            ({"tls": {"enabled": True, "existingSecret": "t"}}, "envoyGateway.existingSecret"),
            ({"probes": {"type": "grpc"}}, "use http"),
        ]:
            with self.subTest(values=str(more)):
                told = chart.refusal(chart.merged(copy.deepcopy(ENVOY_GATEWAY), more))
                self.assertIsNotNone(told, "it rendered")
                self.assertIn(words, told)
