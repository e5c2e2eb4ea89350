"""Servers that the chart's tests start: a process with a directory of its own, Redis and a cluster of
it. Not here: what is tested on them, the program itself (chart)."""

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
