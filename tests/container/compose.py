"""config/compose.yaml without an engine: its Envoy and its Tidegate with its own files, on free ports,
and the requests that its first lines promise. Redis is not started: the counting is tested elsewhere."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PROGRAM, ROOT, free_port, until  # noqa: E402

CONFIG = ROOT / "config"

def envoy():
    found = [os.environ["ENVOY"]] if "ENVOY" in os.environ else [
        str(path) for path in ROOT.glob(".venv/lib/python3*/site-packages/envoy/_bin/envoy")]
    assert found, "Envoy is missing: make tools"
    return found[0]

def status(port, path="/"):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, dict(reply.headers)
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers)
    except OSError:
        return None, {}

class Compose(unittest.TestCase):
    def setUp(self):
        self.compose = yaml.safe_load((CONFIG / "compose.yaml").read_text())
        self.services = self.compose["services"]

    def start(self, *command, **environment):
        log = tempfile.TemporaryFile()
        started = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for clean in (log.close, started.wait, started.kill):
            self.addCleanup(clean)

    def test_every_file_that_it_mounts_is_there(self):
        mounted = [volume.split(":")[0] for service in self.services.values() for volume in service.get("volumes", [])]
        self.assertEqual([path for path in mounted if not (CONFIG / path).exists()], [])
        self.assertTrue((CONFIG / self.services["tidegate"]["build"]["context"] / "Dockerfile").exists())

    def test_five_requests_pass_and_the_sixth_is_told_when_to_come_back(self):
        ports = {name: free_port() for name in ("edge", "hello", "grpc", "http", "debug")}
        text = (CONFIG / "compose/envoy.yaml").read_text()
        for there, here in (("port_value: 10000", ports["edge"]), ("port_value: 10001", ports["hello"]),
                            ("address: tidegate, port_value: 8081", ports["grpc"])):
            self.assertIn(there, text)
            text = text.replace(there, there.rsplit(" ", 1)[0].replace("tidegate", "127.0.0.1") + f" {here}")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as bootstrap:
            bootstrap.write(text)
            bootstrap.flush()
            given = {**self.services["tidegate"]["environment"], "TIDEGATE_POLICY": str(CONFIG / "compose/policy")}
            del given["TIDEGATE_REDIS_URL"]
            given.update({f"TIDEGATE_{name.upper()}_PORT": str(ports[name]) for name in ("grpc", "http", "debug")})
            self.start(PROGRAM, *self.services["tidegate"]["command"], **given)
            until("Tidegate is ready", lambda: status(ports["http"], "/readyz")[0] == 200)
            self.start(envoy(), "-c", bootstrap.name, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")
            # Envoy lets everything pass until its first health check of the limiter went well.
            until("Envoy asks Tidegate", lambda: "X-Ratelimit-Limit".lower() in map(str.lower, status(ports["edge"])[1]))
            answers = []
            until("one is refused", lambda: answers.append(status(ports["edge"])) or answers[-1][0] == 429)
            # Ten pass where a window ends in between.
            self.assertLessEqual(len(answers), 11)
            headers = {name.lower(): value for name, value in answers[-1][1].items()}
            self.assertLessEqual(1, int(headers["retry-after"]))
            self.assertEqual(headers["x-ratelimit-limit"].split(",")[0], "5")

result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Compose))
failed = len(result.failures) + len(result.errors)
print(f"compose: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
