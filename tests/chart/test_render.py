"""What every rendered case must be. Not here: what is refused, what the program makes of it."""

import functools
import json
import re
import unittest

import jsonschema
import kubernetes_validate
import yaml

import chart

# The oldest that the chart admits, one between, and the newest that the schemas know.
KUBERNETES = ["1.27", "1.31", "1.37"]
OURS = {"ServiceMonitor": "servicemonitor.json", "PodMonitor": "podmonitor.json", "PrometheusRule": "prometheusrule.json"}


def ends_with(manifest, end):
    return manifest["metadata"]["name"].endswith(end)


def each_case(claim):
    """A claim about every case, which a failure names."""

    @functools.wraps(claim)
    def test(self):
        for name, values in chart.cases().items():
            with self.subTest(case=name):
                claim(self, values, chart.manifests(values))

    return test


class Render(unittest.TestCase):
    @each_case
    def test_every_case_passes_a_strict_lint(self, values, objects):
        self.assertEqual(chart.findings(values), [])

    @each_case
    def test_every_manifest_matches_the_schema_of_its_kind(self, values, objects):
        for manifest in objects:
            if manifest["kind"] in OURS:
                schema = json.loads((chart.HERE / "schemas" / OURS[manifest["kind"]]).read_text())
                jsonschema.validate(manifest, schema)
                continue
            for version in KUBERNETES:
                kubernetes_validate.validate(manifest, version, strict=True)

    def test_the_cases_cover_every_template(self):
        rendered, templates = set(), {path.name for path in (chart.CHART / "templates").glob("[!_]*")}
        for values in chart.cases().values():
            rendered |= {name for name, text in chart.render(values).items() if text.strip()}
        self.assertEqual(rendered, templates)

    def test_the_schemas_would_find_a_fault(self):
        pod = chart.one(chart.manifests(chart.cases()["redis"]), "Deployment")
        pod["spec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, KUBERNETES[-1], strict=True)

    @each_case
    def test_names_labels_ports_and_mounts_belong_together(self, values, objects):
        deployment, service = chart.one(objects, "Deployment"), chart.one(objects, "Service", "-tidegate")
        pod = deployment["spec"]["template"]
        labels = pod["metadata"]["labels"].items()
        selectors = [deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"]]
        for manifest in objects:
            if manifest["kind"] in ("PodDisruptionBudget", "NetworkPolicy") and not ends_with(manifest, "-valkey"):
                spec = manifest["spec"]
                selectors.append(spec.get("selector", spec.get("podSelector"))["matchLabels"])
            if manifest["kind"] == "HorizontalPodAutoscaler":
                self.assertEqual(manifest["spec"]["scaleTargetRef"]["name"], deployment["metadata"]["name"])
                self.assertNotIn("replicas", deployment["spec"], "the autoscaler says how many")
            if manifest["kind"] == "ServiceMonitor":
                chosen = manifest["spec"]["selector"]["matchLabels"].items()
                self.assertLessEqual(chosen, service["metadata"]["labels"].items())
                self.assertIn(manifest["spec"]["endpoints"][0]["port"], [p["name"] for p in service["spec"]["ports"]])
            if manifest["kind"] == "PodMonitor":
                selectors.append(manifest["spec"]["selector"]["matchLabels"])
                ports = [p["name"] for p in chart.container(objects)["ports"]]
                self.assertIn(manifest["spec"]["podMetricsEndpoints"][0]["port"], ports)
        for selector in selectors:
            self.assertLessEqual(selector.items(), labels)
        container = chart.container(objects)
        services = [o for o in objects if o["kind"] == "Service" and not ends_with(o, "-valkey")]
        self.assertEqual({p["name"] for p in container["ports"]}, {p["targetPort"] for s in services for p in s["spec"]["ports"]})
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        self.assertEqual(mounted, {volume["name"] for volume in pod["spec"]["volumes"]})
        places = [mount["mountPath"] for mount in container["volumeMounts"]]
        for value in chart.environment(objects).values():
            if value and value.startswith("/"):
                self.assertTrue(any(value == p or value.startswith(p + "/") for p in places), value)

    @each_case
    def test_a_selector_of_one_part_never_selects_the_pods_of_another(self, values, objects):
        pods = {"tidegate": chart.one(objects, "Deployment")["spec"]["template"], "test": chart.one(objects, "Pod", "-test")}
        selectors = {"tidegate": [chart.one(objects, "Service", "-tidegate")["spec"]["selector"]]}
        if values.get("valkey"):
            server, policy = chart.one(objects, "StatefulSet"), chart.one(objects, "NetworkPolicy", "-valkey")
            pods["valkey"] = server["spec"]["template"]
            selectors["valkey"] = [server["spec"]["selector"]["matchLabels"], policy["spec"]["podSelector"]["matchLabels"],
                                   chart.one(objects, "Service", "-valkey")["spec"]["selector"]]
            self.assertEqual(policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"], selectors["tidegate"][0])
            egress = chart.one(objects, "NetworkPolicy", "-tidegate")["spec"]["egress"]
            self.assertIn([{"podSelector": {"matchLabels": selectors["valkey"][0]}}], [rule.get("to") for rule in egress])
        for part, some in selectors.items():
            for selector in some:
                for other, pod in pods.items():
                    self.assertEqual(selector.items() <= pod["metadata"]["labels"].items(), part == other, (part, other))

    @each_case
    def test_every_object_has_the_namespace_and_the_common_labels(self, values, objects):
        for manifest in objects:
            if ends_with(manifest, "-proxy"):
                continue  # an extra object, which is rendered as it is given
            self.assertEqual(manifest["metadata"]["namespace"], chart.NAMESPACE)
            labels = manifest["metadata"]["labels"]
            self.assertEqual(labels["app.kubernetes.io/instance"], chart.RELEASE)
            self.assertLessEqual(values.get("commonLabels", {}).items(), labels.items())
            self.assertLessEqual(values.get("commonAnnotations", {}).items(), manifest["metadata"].get("annotations", {}).items())

    def test_labels_of_the_user_never_break_a_selector(self):
        mine = {"app.kubernetes.io/name": "x", "app.kubernetes.io/instance": "x"}
        objects = chart.manifests({"commonLabels": mine, "podLabels": mine, "service": {"labels": mine}})
        selector = chart.one(objects, "Service")["spec"]["selector"]
        self.assertEqual(selector, {"app.kubernetes.io/name": "tidegate", "app.kubernetes.io/instance": "edge"})
        self.assertLessEqual(selector.items(), chart.one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items())

    def test_a_variable_that_the_chart_also_sets_occurs_once(self):
        more = [{"name": "TIDEGATE_THREADS", "value": "7"}, {"name": "CONFIG_TYPE", "value": "FILE"}]
        for values in ({"extraEnv": more}, {"extraEnv": more, "envoyGateway": {"enabled": True}}):
            names = [item["name"] for item in chart.container(chart.manifests(values))["env"]]
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual(chart.environment(chart.manifests(values))["TIDEGATE_THREADS"], "7")

    @each_case
    def test_the_pod_is_nobody_and_can_write_nothing(self, values, objects):
        pod, container = chart.one(objects, "Deployment")["spec"]["template"]["spec"], chart.container(objects)
        self.assertIs(pod["automountServiceAccountToken"], False)
        self.assertIs(pod["enableServiceLinks"], False, "TIDEGATE_PORT would come from a Service's name")
        self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
        self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
        rights = container["securityContext"]
        self.assertIs(rights["readOnlyRootFilesystem"], True)
        self.assertIs(rights["allowPrivilegeEscalation"], False)
        self.assertEqual(rights["capabilities"], {"drop": ["ALL"]})
        self.assertTrue(all(mount["readOnly"] for mount in container["volumeMounts"]))
        self.assertFalse({"hostNetwork", "hostPID", "hostIPC"} & pod.keys())

    @each_case
    def test_the_process_drains_itself_in_the_time_that_it_is_given(self, values, objects):
        pod, container = chart.one(objects, "Deployment")["spec"]["template"]["spec"], chart.container(objects)
        self.assertNotIn("lifecycle", container)
        seconds = {name: int(value.removesuffix("s")) for name, value in chart.environment(objects).items()
                   if name in ("TIDEGATE_DRAIN_DELAY", "TIDEGATE_HARD_LIMIT")}
        self.assertLess(seconds["TIDEGATE_DRAIN_DELAY"], seconds["TIDEGATE_HARD_LIMIT"])
        self.assertLess(seconds["TIDEGATE_HARD_LIMIT"], pod["terminationGracePeriodSeconds"])

    @each_case
    def test_probes_ask_the_process_and_never_redis(self, values, objects):
        container = chart.container(objects)
        if values.get("probes", {}).get("type") == "grpc":
            self.assertEqual(container["readinessProbe"]["grpc"]["port"], 8081)
            return
        self.assertEqual(container["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "http"})
        self.assertEqual(container["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "http"})

    @each_case
    def test_secrets_are_files(self, values, objects):
        extra = [item["name"] for item in values.get("extraEnv", [])]
        by_environment = [item["name"] for item in chart.container(objects)["env"]
                          if "valueFrom" in item and item["name"] not in extra]
        sentinel = values.get("redis", {}).get("sentinel", {}).get("existingSecret")
        self.assertEqual(by_environment, ["TIDEGATE_REDIS_SENTINEL_AUTH"] if sentinel else [])
        self.assertFalse([o for o in objects if o["kind"] == "Secret"], "secrets are made elsewhere")

    def test_the_memory_limit_follows_the_bounds_unless_it_is_given(self):
        def limits(**values):
            return chart.container(chart.manifests({**chart.cases()["embedded"], **values}))["resources"]["limits"]
        self.assertEqual(limits(), {"memory": "1549Mi"})
        self.assertEqual(limits(connections=1000), {"memory": "627Mi"})
        self.assertEqual(limits(embedded={"maxKeys": 10_000_000}), {"memory": "2373Mi"})
        self.assertEqual(limits(resources={"limits": {"cpu": 2}}), {"cpu": 2, "memory": "1549Mi"})
        self.assertEqual(limits(resources={"limits": {"memory": "256Mi"}}), {"memory": "256Mi"})

    def test_local_limits_are_divided_by_the_most_replicas_there_can_be(self):
        replicas = lambda case: chart.environment(chart.manifests(chart.cases()[case])).get("TIDEGATE_REPLICAS")
        self.assertEqual(replicas("redis"), "3")
        self.assertEqual(replicas("cluster"), "12")
        self.assertIsNone(replicas("embedded"))

    def test_the_network_policy_lets_out_what_the_mode_needs_and_no_more(self):
        out = lambda case: chart.one(chart.manifests(chart.cases()[case]), "NetworkPolicy", "-tidegate")["spec"]["egress"]
        ports = lambda case: [p["port"] for rule in out(case) for p in rule["ports"]]
        self.assertEqual(out("embedded"), [])
        self.assertEqual(ports("redis"), [53, 53, 6379])
        self.assertEqual(ports("sentinel"), [53, 53, 26379, 6379, 6380])
        self.assertEqual(ports("cluster"), [53, 53, "debug", 7000, 4317], "and the collector's, and the other replicas")

    def test_a_policy_is_readable_in_its_config_map_and_the_same(self):
        text = "domain: a\n\n# A comment.\ndescriptors:\n  - {key: b, value: \"1.10\"}\n"
        tree = {"domain": "c", "descriptors": [{"key": "d", "value": "1.10", "rate_limit": {"unit": "day", "requests_per_unit": 20_260_101}}]}
        odd = {f"{number}.yaml": odd for number, odd in enumerate(["  x: 1\n", "a: 1\n\n\n", "a: 1\r\nb: 2\n", "a: '\t'\n", "é", "{{ x }}"])}
        files = {"text.yaml": text, "tree.yaml": tree, **odd}
        rendered = chart.render({"policy": {"files": files}})["policy.yaml"]
        data = yaml.safe_load(rendered)["data"]
        self.assertEqual({name: data[name] for name in odd | {"text.yaml": 0}}, odd | {"text.yaml": text})
        self.assertEqual(yaml.safe_load(data["tree.yaml"]), tree)
        self.assertIn("requests_per_unit: 20260101\n", data["tree.yaml"])
        for name in ("text.yaml", "tree.yaml"):
            self.assertIn(f"\n  {name}: |\n", rendered)
        self.assertIn("\n    # A comment.\n    descriptors:\n", rendered)

    def test_the_debug_port_listens_on_loopback_unless_it_has_a_service(self):
        values = {"debug": {"existingSecret": "s"}, "networkPolicy": {"enabled": True}}
        for objects in (chart.manifests({}), chart.manifests(values)):
            self.assertFalse({"TIDEGATE_DEBUG_HOST", "TIDEGATE_PEERS"} & chart.environment(objects).keys())
            self.assertEqual(len([o for o in objects if o["kind"] == "Service"]), 1)
        values["debug"]["service"] = {"enabled": True}
        objects = chart.manifests(values)
        service, policy = chart.one(objects, "Service", "-debug")["spec"], chart.one(objects, "NetworkPolicy")["spec"]
        self.assertEqual((service["clusterIP"], service["ports"][0]["port"]), ("None", 6070))
        self.assertEqual(chart.environment(objects)["TIDEGATE_DEBUG_HOST"], "0.0.0.0")
        self.assertEqual(chart.environment(objects)["TIDEGATE_PEERS"], "edge-tidegate-debug.limits.svc:6070")
        replicas = [{"podSelector": {"matchLabels": service["selector"]}}]
        self.assertIn({"from": replicas, "ports": [{"port": "debug", "protocol": "TCP"}]}, policy["ingress"])
        self.assertIn({"to": replicas, "ports": [{"port": "debug", "protocol": "TCP"}]}, policy["egress"])

    def test_notes_say_how_to_change_something_by_hand(self):
        self.assertIn("--set debug.existingSecret=edge-tidegate-debug", chart.render({})["NOTES.txt"])
        notes = chart.render({"debug": {"existingSecret": "s"}})["NOTES.txt"]
        self.assertIn("kubectl -n limits exec deployment/edge-tidegate -- tidegate override list", notes)
        self.assertIn("get secret s -o jsonpath='{.data.token}'", notes)

    @each_case
    def test_a_policy_is_mounted_as_a_directory_so_that_a_change_arrives(self, values, objects):
        self.assertTrue(all("subPath" not in mount for mount in chart.container(objects)["volumeMounts"]))

    def test_the_dashboard_has_rows_variables_annotations_and_links_to_the_runbook(self):
        def dashboard(**rule):
            objects = chart.manifests({"dashboard": {"enabled": True}, "prometheusRule": rule})
            return json.loads(chart.one(objects, "ConfigMap", "-dashboard")["data"]["tidegate.json"])
        found = dashboard(runbookUrl="https://docs.example.com/t")
        variables = {variable["name"]: variable for variable in found["templating"]["list"]}
        self.assertLessEqual({"domain", "rule", "pod"}, variables.keys())
        self.assertEqual(variables["runbook"]["query"], "https://docs.example.com/t")
        text = json.dumps([found["panels"], found["annotations"], found["links"]])
        self.assertEqual(set(re.findall(r"\$\{?([a-z]+)", text)), set(variables))
        self.assertEqual(found["panels"][0]["type"], "row")
        self.assertEqual([note["name"] for note in found["annotations"]["list"]],
                         ["Policy reloaded", "Policy rejected", "Overrides changed"])
        headings = (chart.CHART / "RUNBOOK.md").read_text().lower()
        links = [link["url"] for panel in found["panels"] for link in panel.get("links", [])]
        self.assertGreater(len(links), 15)
        for link in links:
            self.assertIn(f"\n### {link.removeprefix('${runbook}#')}\n", headings)
        self.assertNotIn('"links"', json.dumps(dashboard()))
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in found["panels"]]
        self.assertEqual(len(places), len(set(places)))

    @each_case
    def test_notes_are_complete(self, values, objects):
        notes = chart.render(values)["NOTES.txt"]
        self.assertEqual("EXAMPLE policy" in notes.splitlines()[0], "policy" not in values)
        self.assertIn("edge-tidegate.limits.svc.cluster.local", notes)
        self.assertNotIn("<no value>", notes)
        self.assertNotIn("<nil>", notes)
