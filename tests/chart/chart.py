"""The chart as the tests see it: rendered and linted by Helm's own library, and the program that it
deploys. Not here: what must hold (test_*.py)."""

import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import yaml
from helm_python import Chart
from helm_python.chart import lint

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PATIENCE_SECONDS, PROGRAM, ROOT, until  # noqa: E402

CHART = ROOT / "charts" / "tidegate"
HERE = ROOT / "tests" / "chart"

RELEASE, NAMESPACE = "edge", "limits"
IMAGE = {"image": {"repository": "registry.example.com/tidegate"}}
METRIC = re.compile(r"(?<![:\w])tidegate_[a-z_]+")

_chart = Chart.load(CHART)


def cases():
    """Every ci/*.yaml: its name and values."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "ci").glob("*.yaml"))}


def with_image(values):
    """The values with an image: the chart has none until one is published."""
    return merged(IMAGE, values)


def render(values):
    """Template path (without the chart's name) to text."""
    rendered = _chart.render(with_image(values), name=RELEASE, namespace=NAMESPACE)
    return {path.split("/templates/")[1]: text for path, text in rendered.items()}


def manifests(values):
    """Every Kubernetes object of a render."""
    found = []
    for path, text in render(values).items():
        if path.endswith(".yaml"):
            found += [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    return found


def one(objects, kind, name_end=""):
    """The object of a kind whose name ends so."""
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(name_end)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def container(objects):
    return one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def refusal(values):
    """What the render says against these values; None if it renders."""
    try:
        render(values)
    except Exception as error:  # the library has a class for each stage; any of them refuses
        return str(error)
    return None


def findings(values):
    """What `helm lint --strict` finds."""
    report = lint(CHART, with_image(values), strict=True, namespace=NAMESPACE)
    return [message["error"] for message in report["messages"] if message["severity"] > 1] + report["errors"]


def schema():
    return json.loads((CHART / "values.schema.json").read_text())


def defaults():
    return yaml.safe_load((CHART / "values.yaml").read_text())


def merged(base, more):
    """Values over values, as Helm lays them."""
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return {**base, **{name: merged(base.get(name), value) for name, value in more.items()}}


def program(*arguments, environment=None):
    """Runs the program to its end, with no environment but this."""
    assert PROGRAM.exists(), f"{PROGRAM} is missing: cargo build --locked --bin tidegate"
    return subprocess.run([PROGRAM, *arguments], env=environment or {}, capture_output=True, text=True, timeout=60)


def environment(objects):
    """The container's environment as it stands in the manifest."""
    return {item["name"]: item.get("value") for item in container(objects)["env"]}


# Below those that systems give to connections, so that none of ours takes a port that a server was promised.
_ports = itertools.count(20_000 + os.getpid() * 97 % 10_000)


def free_port():
    """A port that nobody listens at, and that no other caller is given."""
    for port in _ports:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Running:
    """The program as the rendered container starts it, with its ConfigMap in a directory, under the same
    path as in every other, and free ports; ends with the with-block."""

    def __init__(self, objects, more=None):
        self.objects, self.more = objects, more or {}

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        for name, text in one(self.objects, "ConfigMap", "-policy")["data"].items():
            (pathlib.Path(self.directory.name) / name).write_text(text)
        self.http = free_port()
        self.ports = {"GRPC_PORT": free_port(), "HTTP_PORT": self.http, "DEBUG_PORT": free_port()}
        given = {**environment(self.objects), "TIDEGATE_POLICY": ".", "TIDEGATE_DRAIN_DELAY": "0s"}
        given.update({f"TIDEGATE_{name}": str(port) for name, port in self.ports.items()})
        given.update(self.more)
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [PROGRAM, *container(self.objects)["args"]], env=given, cwd=self.directory.name,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        try:
            until("the program is ready", lambda: self.get("/readyz") is not None)
        except BaseException:
            self.__exit__()
            raise
        return self

    def get(self, path):
        """The body of a page; None while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=5) as reply:
                return reply.read().decode()
        except OSError:
            assert self.process.poll() is None, f"it ended: {self.said()}"
            return None

    def put(self, name, text):
        """A file of the policy: the old or the new one is there, never half of one."""
        fresh = pathlib.Path(self.directory.name) / f".{name}"
        fresh.write_text(text)
        fresh.replace(fresh.with_name(name))

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.directory.cleanup()


def post(url, body):
    """The status of a POST with JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as refused:
        return refused.code
