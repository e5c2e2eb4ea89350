"""A Tidegate of a test's own, on free ports."""

import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PROGRAM, until  # noqa: E402

TOKEN = "between-friends"

POLICY = """\
domain: edge
descriptors:
  - key: api_token
    rate_limit: {name: per-token, unit: year, requests_per_unit: 5}
  - key: remote_address
    rate_limit: {name: per-client, algorithm: token_bucket, unit: second, requests_per_unit: 50, burst: 100}
  - key: endpoint
    value: login
    descriptors:
      - key: remote_address
        rate_limit: {name: login, unit: hour, requests_per_unit: 3}
  - key: endpoint
    value: search
    shadow_mode: true
    rate_limit: {name: search, algorithm: sliding_window, unit: minute, requests_per_unit: 30}
  - key: tenant
    rate_limits:
      - {name: a-second, unit: second, requests_per_unit: 20}
      - {name: a-day, unit: day, requests_per_unit: 5000}
"""


class Service:
    def __init__(self, *arguments, policy=POLICY):
        self.directory = tempfile.TemporaryDirectory()
        path = pathlib.Path(self.directory.name)
        (path / "edge.yaml").write_text(policy)
        (path / "token").write_text(TOKEN)
        self.log = path / "log"
        environment = {"GRPC_HOST": "127.0.0.1", "GRPC_PORT": "0", "HOST": "127.0.0.1", "PORT": "0",
                       "DEBUG_PORT": "0", "LOG_FORMAT": "json", "TIDEGATE_THREADS": "1",
                       "TIDEGATE_TOP_VALUES": "shortened"}
        with self.log.open("wb") as log:
            # In its directory, so that the policy's file has a name without one.
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--policy", "edge.yaml", "--debug-token-file", "token", *arguments], env=environment, cwd=path,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        degraded = "ready, degraded: Redis is not connected"
        until("it is ready", lambda: self.logged("ready") or self.logged(degraded))
        self.ports = self.logged("listening")
        self.calls = http.client.HTTPConnection(self.ports["http"], timeout=10)

    def logged(self, message):
        assert self.process.poll() is None, self.log.read_text()
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return next((line for line in lines if line.get("message") == message), None)

    def page(self, **view):
        """The page's address, with a view as the page itself writes it after #."""
        return f"http://{self.ports['debug']}/" + ("#" + urllib.parse.urlencode(view) if view else "")

    def call(self, *descriptors, domain="edge", hits=1):
        """A real call; its overall code."""
        entries = [{"entries": [{"key": key, "value": value} for key, value in pairs]} for pairs in descriptors]
        body = json.dumps({"domain": domain, "descriptors": entries, "hitsAddend": hits})
        self.calls.request("POST", "/json", body, {"Content-Type": "application/json"})
        reply = self.calls.getresponse()
        return json.loads(reply.read())["overallCode"]

    def order(self, path):
        """An operator's change."""
        request = urllib.request.Request(self.page() + path, b"", {"Authorization": f"Bearer {TOKEN}"})
        urllib.request.urlopen(request, timeout=10).close()

    def close(self):
        self.calls.close()
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()
