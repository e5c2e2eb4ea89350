"""The chart under the program `helm`, version 3, while the other tests use the library of Helm 4: both must lint and render
the same. And what only a package or an umbrella chart shows."""

import json
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

import yaml
from yamllint import config, linter

import chart
import servers

HELM = shutil.which("helm", path=str(chart.ROOT / ".tools" / "bin")) or shutil.which("helm")
# `helm` that is built from source takes its client library's default version otherwise, which is too old.
KUBERNETES = "1.31.0"
IMAGE = ("--set", f"image.repository={chart.IMAGE['image']['repository']}")


def helm(*arguments, given=None):
    """What helm prints."""
    assert HELM, "helm is missing: .ci/tools helm"
    ran = subprocess.run([HELM, *arguments], input=given, capture_output=True, text=True, timeout=60,
                         env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def template(directory, *arguments, given=None):
    """The objects that helm renders."""
    text = helm("template", chart.RELEASE, str(directory), "--namespace", chart.NAMESPACE, "--kube-version", KUBERNETES,
                *arguments, given=given)
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(objects):
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


class Helm(unittest.TestCase):
    def test_helm_3_lints_every_case_and_renders_what_helm_4_renders(self):
        self.assertRegex(helm("version", "--short"), r"^v3\.")
        for name, values in chart.cases().items():
            with self.subTest(case=name):
                file = str(chart.CHART / "ci" / f"{name}.yaml")
                helm("lint", "--strict", str(chart.CHART), "--kube-version", KUBERNETES, "--values", file, *IMAGE)
                rendered = template(chart.CHART, "--values", file, *IMAGE)
                self.assertEqual(by_name(rendered), by_name(chart.manifests(values)))

    def test_no_values_at_all_render(self):
        self.assertEqual(by_name(template(chart.CHART, *IMAGE)), by_name(chart.manifests({})))

    def test_the_package_has_what_the_templates_read_and_no_more(self):
        with tempfile.TemporaryDirectory() as directory:
            helm("package", str(chart.CHART), "--destination", directory)
            package, = pathlib.Path(directory).iterdir()
            with tarfile.open(package) as archive:
                names = {name.removeprefix("tidegate/") for name in archive.getnames()}
            self.assertEqual({name for name in names if not name.startswith("templates/")},
                             {"Chart.yaml", ".helmignore", "README.md", "RUNBOOK.md", "values.yaml", "values.schema.json",
                              "dashboards/tidegate.json", "files/settings.txt", "files/example.yaml"})
            self.assertEqual(by_name(template(package, *IMAGE)), by_name(chart.manifests({})))

    def test_an_umbrella_chart_sets_values_and_globals(self):
        with tempfile.TemporaryDirectory() as directory:
            umbrella = pathlib.Path(directory) / "shop"
            shutil.copytree(chart.CHART, umbrella / "charts" / "tidegate")
            version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["version"]
            (umbrella / "Chart.yaml").write_text(yaml.safe_dump({
                "apiVersion": "v2", "name": "shop", "version": "1.0.0",
                "dependencies": [{"name": "tidegate", "version": version}]}))
            values = {"global": {"imageRegistry": "mirror.example.com", "imagePullSecrets": ["login"], "shop": {"any": 1}},
                      "tidegate": {**chart.IMAGE, "replicaCount": 2, "embedded": {"perReplicaLimits": True}}}
            objects = template(umbrella, "--values", "-", given=json.dumps(values))
            pod = chart.one(objects, "Deployment")["spec"]["template"]["spec"]
            self.assertRegex(pod["containers"][0]["image"], r"^mirror\.example\.com/tidegate:")
            self.assertEqual(pod["imagePullSecrets"], [{"name": "login"}])
            self.assertEqual(chart.one(objects, "Deployment")["spec"]["replicas"], 2)


class Lint(unittest.TestCase):
    """What chart-testing looks at beside `helm lint`."""

    def test_chart_yaml_says_what_a_repository_needs(self):
        about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
        self.assertRegex(about["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(about["apiVersion"], "v2")
        self.assertEqual(about["name"], chart.CHART.name)
        self.assertTrue(about["description"] and about["icon"] and about["keywords"])
        self.assertTrue(all(one["name"] for one in about["maintainers"]))
        program = re.search(r'^version = "(.*)"$', (chart.ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
        self.assertEqual(about["appVersion"], program)

    def test_yaml_is_clean(self):
        rules = {"extends": "relaxed", "rules": {
            "line-length": {"max": 130, "allow-non-breakable-inline-mappings": True}, "trailing-spaces": {}, "new-line-at-end-of-file": {}, "key-duplicates": {},
            "truthy": {"check-keys": False}, "comments": {"min-spaces-from-content": 1}, "commas": "disable"}}
        for path in [chart.CHART / "Chart.yaml", chart.CHART / "values.yaml", *(chart.CHART / "ci").glob("*.yaml"),
                     chart.CHART / "files" / "example.yaml"]:
            text = path.read_text()
            found = [str(problem) for problem in linter.run(text, config.YamlLintConfig(json.dumps(rules)))]
            self.assertEqual(found, [], path)


class Documented(unittest.TestCase):
    def test_every_block_of_values_in_the_deployment_page_renders(self):
        page = (chart.ROOT / "docs" / "DEPLOYING.md").read_text()
        section = page.split("## Bringing a Redis or Valkey\n")[1].split("\n## ")[0]
        blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
        self.assertGreaterEqual(len(blocks), 5)
        for block in blocks:
            with self.subTest(block=block):
                values = yaml.safe_load(block)
                self.assertIsNone(chart.refusal({**values, "policy": {"existingConfigMap": "limits"}}))


def certificates(directory, name):
    """A CA and a certificate for a name, as files of a Secret."""
    def openssl(*arguments, given=None):
        assert shutil.which("openssl"), servers.MISSING.format("openssl", "openssl")
        subprocess.run(["openssl", *arguments], cwd=directory, input=given, check=True, capture_output=True, text=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-subj", "/CN=ca", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt")
    openssl("req", *key, "-subj", f"/CN={name}", "-keyout", "tls.key", "-out", "tls.csr")
    (pathlib.Path(directory) / "names").write_text(f"subjectAltName=DNS:{name}\n")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "tls.crt")


class Pods(unittest.TestCase):
    def arguments(self, objects, running):
        """What the pod of `helm test` runs, with the program's own port in place of the Service's address, and that address."""
        service = chart.one(objects, "Service")
        address = f"{service['metadata']['name']}.{chart.NAMESPACE}.svc"
        target = f"{address}:{service['spec']['ports'][0]['port']}"
        arguments = chart.one(objects, "Pod", "-test")["spec"]["containers"][0]["args"]
        self.assertIn(target, arguments)
        return [f"127.0.0.1:{running.ports['GRPC_PORT']}" if one == target else one for one in arguments], address

    def test_the_pod_of_helm_test_asks_the_program_that_no_values_deploy(self):
        objects = chart.manifests({})
        with chart.Running(objects) as running:
            arguments, _ = self.arguments(objects, running)
            ran = chart.program(*arguments)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertIn("limit per-client", ran.stdout)
            self.assertEqual(chart.program(*arguments).stdout, ran.stdout, "it charges nothing")
        self.assertEqual(chart.program(*arguments).returncode, 69, "nobody answers")

    def test_the_pod_of_helm_test_asks_over_tls_with_a_client_certificate(self):
        objects = chart.manifests({"tls": {"enabled": True, "existingSecret": "s", "requireClientCertificate": True}})
        with tempfile.TemporaryDirectory() as directory:
            here = lambda text: text.replace("/etc/tidegate/tls", directory)
            certificates(directory, f"edge-tidegate.{chart.NAMESPACE}.svc")
            files = {name: here(value) for name, value in chart.environment(objects).items() if "/etc/tidegate/tls" in value}
            self.assertEqual(len(files), 3)
            with chart.Running(objects, files) as running:
                arguments, address = self.arguments(objects, running)
                arguments = [here(one) for one in arguments]
                ran = chart.program(*arguments, f"--server-name={address}")
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertIn("limit per-client", ran.stdout)
                stranger = [one for one in arguments if not one.startswith(("--cert", "--key"))]
                self.assertEqual(chart.program(*stranger, f"--server-name={address}").returncode, 69)
                self.assertEqual(chart.program(*arguments, "--server-name=other.test").returncode, 69)

    def test_the_bundled_valkey_starts_with_the_password_and_the_program_counts_in_it(self):
        objects = chart.manifests(chart.cases()["valkey"])
        server = chart.one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
        with tempfile.TemporaryDirectory() as directory:
            auth = pathlib.Path(directory) / "password"
            for secret, starts in (("correct horse", True), ("user:password", False)):
                auth.write_text(secret + "\n")
                port = chart.free_port()
                command = [argument.replace("/etc/valkey/auth", directory).replace("6379", str(port))
                           .replace("valkey-server", "redis-server") for argument in server["command"]]
                with servers.Process("redis-server", *command) as process:
                    if not starts:
                        self.assertEqual(process.child.wait(chart.PATIENCE_SECONDS), 64)
                        continue
                    cli = ["redis-cli", "-p", str(port)]
                    asked = lambda *words: subprocess.run([*cli, *words], capture_output=True, text=True).stdout.strip()
                    chart.until("it answers", lambda: "NOAUTH" in asked("PING"))
                    expected = {"maxmemory": str(64 << 20), "maxmemory-policy": "noeviction", "save": ""}
                    for name, value in expected.items():
                        told = asked("-a", secret, "--no-auth-warning", "CONFIG", "GET", name)
                        self.assertEqual(told, f"{name}\n{value}".strip())
                    more = {"TIDEGATE_REDIS_URL": f"127.0.0.1:{port}", "TIDEGATE_REDIS_AUTH_FILE": str(auth),
                            "TIDEGATE_REQUIRE_REDIS": "true"}
                    with chart.Running(objects, more) as running:
                        ran = chart.program("ask", f"127.0.0.1:{running.ports['GRPC_PORT']}", "edge", "remote_address=192.0.2.1")
                        self.assertIn("49 left", ran.stdout)
                        self.assertTrue(asked("-a", secret, "--no-auth-warning", "KEYS", "tg1*"))
