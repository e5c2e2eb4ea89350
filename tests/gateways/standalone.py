"""Envoy Gateway in standalone mode, as its users start it: it reads resources from a file, starts an Envoy for each Gateway,
and gives Tidegate its policies. Tidegate runs with the environment of Envoy Gateway's rate limit Deployment, on a real
Redis. Each process has the ports and names that it has in a cluster, so `isolation.enter` comes first."""

import http.client
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import yaml

from isolation import CERTIFICATES

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import until  # noqa: E402

NAMES = ["envoy-gateway", "envoy-ratelimit.envoy-gateway-system.svc.cluster.local"]
BACKEND_PORT = 3000
HTTP_PORT = 8080
ENVOY_VERSION = "1.40.0"
FIRST_LISTENER_PORT = 10_001


class Resources:
    """A fixture of Envoy Gateway as a file of Kubernetes resources. Some things differ: each port of a Gateway has a number of
    its own, since all Gateways share a host; Services are Backends, which this mode requires; the GatewayClass exists; and
    rules have no `cost`, on which Envoy Gateway 1.9.1 panics in this mode (unsupported type: uint64)."""

    def __init__(self, fixture):
        document = yaml.safe_load(fixture.read_text())
        kinds = [key for key in document if key not in ("services", "endpointSlices")]
        self.objects = [one for kind in kinds for one in document[kind]]
        self.ports, self.backends = {}, set()
        for one in self.objects:
            if one["kind"] == "Gateway":
                self._number_ports(one)
            for rule in one["spec"].get("rateLimit", {}).get("global", {}).get("rules", []):
                rule.pop("cost", None)
            for rule in one["spec"].get("rules", []):
                for reference in rule.get("backendRefs", []):
                    self._refer_to_backend(one["metadata"]["namespace"], reference)
            if one["kind"] == "GRPCRoute":
                one["apiVersion"] = "gateway.networking.k8s.io/v1"

    def _number_ports(self, gateway):
        name, numbers = gateway["metadata"]["name"], {}
        for listener in gateway["spec"]["listeners"]:
            port = numbers.setdefault(listener["port"], FIRST_LISTENER_PORT + len(set(self.ports.values())))
            self.ports[name, listener["name"]] = port
            listener["port"] = port

    def _refer_to_backend(self, namespace, reference):
        self.backends.add((namespace, reference["name"]))
        del reference["port"]
        reference.update(group="gateway.envoyproxy.io", kind="Backend")

    def yaml(self):
        envoy = {
            "provider": {"type": "Host", "host": {"envoyVersion": ENVOY_VERSION}},
            "concurrency": 1, "extraArgs": ["--use-dynamic-base-id"],
        }
        reference = {"group": "gateway.envoyproxy.io", "kind": "EnvoyProxy", "name": "proxy", "namespace": "envoy-gateway"}
        controller = "gateway.envoyproxy.io/gatewayclass-controller"
        given = [
            ("gateway.networking.k8s.io/v1", "GatewayClass", {"name": "envoy-gateway-class"},
             {"controllerName": controller, "parametersRef": reference}),
            ("gateway.envoyproxy.io/v1alpha1", "EnvoyProxy", {"name": "proxy", "namespace": "envoy-gateway"}, envoy),
        ]
        for namespace, name in sorted(self.backends):
            spec = {"endpoints": [{"ip": {"address": "127.0.0.1", "port": BACKEND_PORT}}]}
            given.append(("gateway.envoyproxy.io/v1alpha1", "Backend", {"name": name, "namespace": namespace}, spec))
        named = [dict(apiVersion=version, kind=kind, metadata=meta, spec=spec) for version, kind, meta, spec in given]
        return yaml.safe_dump_all(named + self.objects)


class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Processes:
    """Tidegate and what it needs. `start` starts all, `stop` ends what was started."""

    def __init__(self, directory, programs):
        self.directory, self.programs, self.processes = directory, programs, []
        self.homes = {name: str(directory / name) for name in ("configHome", "dataHome", "stateHome", "runtimeDir")}

    def start(self):
        certgen = [self.programs.gateway, "certgen", "--local", "--config-home", self.homes["configHome"]]
        subprocess.run([str(word) for word in certgen], check=True, capture_output=True)
        redis = ["redis-server", "--bind", "127.0.0.1", "--port", "6379", "--save", ""]
        self._run("redis", redis, cwd=self.directory)

    def _run(self, name, command, **options):
        with open(self.directory / f"{name}.log", "w") as log:
            process = subprocess.Popen([str(word) for word in command], **{"stdout": log, "stderr": log, **options})
        self.processes.append(process)
        return process

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()

    def _start_tidegate(self):
        link = self.directory / "ratelimit"
        link.symlink_to(self.programs.tidegate)
        own = self.directory / "configHome/certs/envoy-rate-limit"
        environment = {
            "RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_IGNOREDOTFILES": "true",
            "RUNTIME_WATCH_ROOT": "false", "LOG_LEVEL": "info", "USE_STATSD": "false", "CONFIG_TYPE": "GRPC_XDS_SOTW",
            "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001", "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
            "GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": str(own / "tls.crt"),
            "GRPC_SERVER_TLS_KEY": str(own / "tls.key"), "GRPC_SERVER_TLS_CA_CERT": str(own / "ca.crt"),
            "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": str(own / "tls.crt"),
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": str(own / "tls.key"),
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": str(own / "ca.crt"), "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
            "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "localhost:6379", "USE_PROMETHEUS": "true",
            "PROMETHEUS_ADDR": ":19001", "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
            # Ours: a busy machine is not an outage.
            "TIDEGATE_REDIS_BUDGET": "10s", "TIDEGATE_THREADS": "1",
        }
        self._run("tidegate", [link], env=environment)
        until("Tidegate", lambda: self.rules() is not None)

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.communicate()

    def rules(self):
        """What Tidegate enforces: domain, path, and limit of each rule."""
        try:
            with urllib.request.urlopen("http://127.0.0.1:6070/policy", timeout=10) as reply:
                return json.load(reply)["rules"]
        except OSError:
            return None


class Standalone(Processes):
    """Envoy Gateway and its Envoys too, for one fixture of resources."""

    def __init__(self, directory, programs, fixture):
        super().__init__(directory, programs)
        self.resources = Resources(fixture)
        self.backend = http.server.ThreadingHTTPServer(("127.0.0.1", BACKEND_PORT), Backend)
        threading.Thread(target=self.backend.serve_forever, daemon=True).start()

    def start(self):
        super().start()
        shutil.copytree(self.directory / "configHome/certs/envoy", CERTIFICATES, dirs_exist_ok=True)
        # First: Envoy Gateway has a port for probes that Tidegate has, too, and does without it.
        self._start_tidegate()
        self._start_gateway()

    def stop(self):
        super().stop()
        self.backend.shutdown()
        self.backend.server_close()

    def _start_gateway(self):
        # Where it would install a downloaded Envoy.
        installed = self.directory / "dataHome/envoy-versions" / ENVOY_VERSION / "bin"
        installed.mkdir(parents=True)
        (installed / "envoy").symlink_to(self.programs.envoy)
        resources = self.directory / "resources.yaml"
        resources.write_text(self.resources.yaml())
        config = {
            "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
            "gateway": {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
            "provider": {"type": "Custom", "custom": {
                "resource": {"type": "File", "file": {"paths": [str(resources)]}},
                "infrastructure": {"type": "Host", "host": self.homes},
            }},
            "extensionApis": {"enableBackend": True},
            # A call without an answer is then a 500, not an admitted request.
            "rateLimit": {"backend": {"type": "Redis", "redis": {"url": "localhost:6379"}},
                          "failClosed": True, "timeout": "10s"},
        }
        path = self.directory / "envoy-gateway.yaml"
        path.write_text(yaml.safe_dump(config))
        self._run("envoy-gateway", [self.programs.gateway, "server", "--config-path", path])

    def request(self, gateway, listener, headers={}, path="/", source="127.0.0.1", method="GET",
                host="gateway.envoyproxy.io"):
        """Sends a request through the Envoy of a Gateway, and returns the status and the headers of the answer."""
        port = self.resources.ports[gateway, listener]

        def send():
            connection = http.client.HTTPConnection("127.0.0.1", port, 30, (source, 0))
            try:
                connection.request(method, path, headers={"host": host, **headers})
                reply = connection.getresponse()
                reply.read()
                return reply.status, dict(reply.getheaders())
            except OSError:
                return None
            finally:
                connection.close()
        return until(f"an answer of {gateway}/{listener}", send)


class RateLimitServer(Processes):
    """Envoy Gateway's rate limit xDS server alone, which serves one fixture of its translator after the other."""

    def start(self):
        super().start()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = self._run("policies", [self.programs.policies, self.homes["configHome"]], **pipes)
        self._start_tidegate()

    def serve(self, fixture):
        """Serves a fixture, and returns the policies in it."""
        print(fixture, file=self.server.stdin, flush=True)
        return [yaml.safe_load(text) for text in json.loads(self.server.stdout.readline())]

    def flush(self):
        """Forgets all counters, since fixtures have rules in common."""
        subprocess.run(["redis-cli", "flushall"], check=True, capture_output=True)

    def ask(self, domain, entries, hits):
        """Asks Tidegate for one descriptor, and returns whether it is within its limit."""
        descriptor = {"entries": [{"key": key, "value": value} for key, value in entries]}
        # Hits of a descriptor would be a bill, which counts even beyond the limit.
        body = json.dumps({"domain": domain, "descriptors": [descriptor], "hitsAddend": hits}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{HTTP_PORT}/json", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status == 200
        except urllib.error.HTTPError as error:
            assert error.code == 429, (error.code, error.read())
            return False
