"""The container's content without an engine: the build stages fill a directory, and the program in it
must serve as somebody without rights who sees nothing but that directory.

Needs root, for chroot and for a name server on port 53 of a loopback address. Not here: what the
program answers (tests/)."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BYTES_MAX = 25_000_000
# The user of the Dockerfile.
NOBODY = 65532
# A loopback address of our own, since a name server may listen on port 53 of the usual ones.
NAME_SERVER = "127.0.0.153"
REDIS_NAME = "redis.limits.svc"
PATIENCE_SECONDS = 30

POLICY = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
"""


def until(what, look):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"still waiting until {what}"
        time.sleep(0.02)
    return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class NameServer:
    """Answers A questions for REDIS_NAME with 127.0.0.1 and knows no other name. One for all tests: a thread
    that waits for a question holds the port."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((NAME_SERVER, 53))
        self.asked = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                question, caller = self.socket.recvfrom(512)
                self.socket.sendto(self.answer(question), caller)

    def answer(self, question):
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1:at + 1 + length].decode())
            at += 1 + length
        kind = struct.unpack(">H", question[at + 1:at + 3])[0]
        asked, name = question[12:at + 5], ".".join(labels)
        self.asked.append(name)
        known, address = name == REDIS_NAME, kind == 1
        flags = 0x8180 if known else 0x8183
        head = question[:2] + struct.pack(">HHHHH", flags, 1, int(known and address), 0, 0)
        found = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton("127.0.0.1")
        return head + asked + (found if known and address else b"")


class Container(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        assert os.geteuid() == 0, "chroot needs root: sudo make container-stages"
        built = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, built)
        cls.root = pathlib.Path(built)
        subprocess.run([ROOT / ".ci/container/build", built], check=True, cwd=ROOT)
        cls.content = sorted(str(path.relative_to(built)) for path in cls.root.rglob("*"))
        cls.bytes = sum(path.lstat().st_size for path in cls.root.rglob("*") if not path.is_symlink())
        # What an engine would mount: the policy, and the resolver's file.
        (cls.root / "policy").mkdir()
        (cls.root / "policy" / "edge.yaml").write_text(POLICY)
        (cls.root / "etc" / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\nsearch cluster.local\noptions ndots:5\n")
        cls.root.chmod(0o755)
        cls.names = NameServer()

    def inside(self, *command, **environment):
        """Starts a command that sees only the directory, as nobody."""

        def leave():
            os.chroot(self.root)
            os.chdir("/")
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        log = tempfile.TemporaryFile(mode="w+")
        started = subprocess.Popen(command, env=environment, preexec_fn=leave, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(log.close)
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        return started, log

    def ran(self, *command, **environment):
        started, log = self.inside(*command, **environment)
        code = started.wait(PATIENCE_SECONDS)
        log.seek(0)
        return code, log.read()

    def serving(self, *command, **environment):
        """Starts it and waits until it is ready; its ports, the process and its log."""
        ports = {name: free_port() for name in ("GRPC_PORT", "HTTP_PORT", "DEBUG_PORT")}
        given = {f"TIDEGATE_{name}": str(port) for name, port in ports.items()}
        started, log = self.inside(*command, TIDEGATE_DRAIN_DELAY="0s", **given, **environment)

        def ready():
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://127.0.0.1:{ports['HTTP_PORT']}/readyz", timeout=5).status == 200
            if started.poll() is not None:
                log.seek(0)
                self.fail(f"it ended with {started.returncode}: {log.read()}")

        until("it is ready", ready)
        return ports, started

    def test_the_program_is_static_and_everything_is_below_25_mb(self):
        self.assertLess(self.bytes, BYTES_MAX, self.content)
        program = (self.root / "bin" / "tidegate").read_bytes()
        self.assertEqual(program[:4], b"\x7fELF")
        # A program header of kind 3 names an interpreter: the dynamic linker, which is not there.
        offset, size, count = struct.unpack_from("<Q", program, 32)[0], *struct.unpack_from("<HH", program, 54)
        kinds = [struct.unpack_from("<I", program, offset + at * size)[0] for at in range(count)]
        self.assertNotIn(3, kinds)
        print(f"container: {self.bytes / 1e6:.1f} MB, {len(self.content)} entries")

    def test_it_serves_as_nobody_in_an_empty_directory_and_leaves_in_order(self):
        ports, started = self.serving("/bin/tidegate", "serve", TIDEGATE_POLICY="/policy")
        target = f"127.0.0.1:{ports['GRPC_PORT']}"
        self.assertIn("OK", self.ran("/bin/tidegate", "ask", target, "edge", "user=ann")[1])
        self.assertIn("OVER_LIMIT", self.ran("/bin/tidegate", "ask", target, "edge", "user=ann")[1])
        status = pathlib.Path(f"/proc/{started.pid}/status").read_text()
        self.assertIn(f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}", status)
        started.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(PATIENCE_SECONDS), 0)

    def test_called_as_ratelimit_it_serves_what_runtime_root_holds(self):
        (self.root / "data/limits/config").mkdir(parents=True, exist_ok=True)
        (self.root / "data/limits/config/edge.yaml").write_text(POLICY)
        ports, _ = self.serving("/bin/ratelimit", RUNTIME_ROOT="/data", RUNTIME_SUBDIRECTORY="limits")
        self.assertIn("OK", self.ran("/bin/ratelimit", "ask", f"127.0.0.1:{ports['GRPC_PORT']}", "edge", "user=bob")[1])

    def test_names_are_looked_up_with_the_resolver_of_the_container(self):
        ports, _ = self.serving("/bin/tidegate", "serve", TIDEGATE_POLICY="/policy")
        self.names.asked.clear()
        code, said = self.ran("/bin/tidegate", "ask", f"{REDIS_NAME}:{ports['GRPC_PORT']}", "edge", "user=carl")
        self.assertEqual(code, 0, said)
        self.assertIn(REDIS_NAME, self.names.asked)

    def counted_in(self, url, port):
        """Serves with this Redis, asks once; how many keys the Redis at that port holds then."""
        ports, _ = self.serving("/bin/tidegate", "serve", TIDEGATE_POLICY="/policy", TIDEGATE_REDIS_URL=url,
                                TIDEGATE_REQUIRE_STORE="true", TIDEGATE_STORE_BUDGET="5s")
        code, said = self.ran("/bin/tidegate", "ask", f"127.0.0.1:{ports['GRPC_PORT']}", "edge", "user=dora")
        self.assertEqual(code, 0, said)
        keys = subprocess.run(["redis-cli", "-p", str(port), "dbsize"], capture_output=True, text=True, check=True)
        return int(keys.stdout)

    def redis(self):
        """The port of a Redis of our own."""
        port = free_port()
        redis = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--daemonize", "no"],
                                 stdout=subprocess.DEVNULL)
        self.addCleanup(redis.wait)
        self.addCleanup(redis.kill)
        return port

    def test_redis_is_found_by_its_name(self):
        port = self.redis()
        self.names.asked.clear()
        self.assertGreater(self.counted_in(f"{REDIS_NAME}:{port}", port), 0)
        self.assertIn(REDIS_NAME, self.names.asked)

    def test_redis_is_found_by_a_name_of_etc_hosts(self):
        port = self.redis()
        hosts = self.root / "etc" / "hosts"
        hosts.write_text("127.0.0.1 counters\n")
        self.addCleanup(hosts.unlink)
        self.assertGreater(self.counted_in(f"counters:{port}", port), 0)

    def test_the_list_of_what_is_inside_parses_and_is_complete(self):
        bom = json.loads((self.root / "usr/share/tidegate/sbom.cdx.json").read_text())
        self.assertEqual((bom["bomFormat"], bom["specVersion"]), ("CycloneDX", "1.5"))
        refs = {component["bom-ref"] for component in bom["components"]}
        names = {component["name"] for component in bom["components"]}
        self.assertLessEqual({"tokio", "h2", "redis", "rustls", "mimalloc"}, names)
        self.assertFalse({"proptest", "rcgen", "tonic-prost-build", "protox"} & names, "tests and builds are not inside")
        refs.add(bom["metadata"]["component"]["bom-ref"])
        self.assertEqual({entry["ref"] for entry in bom["dependencies"]}, refs)
        self.assertTrue(all(set(entry["dependsOn"]) <= refs for entry in bom["dependencies"]))
        self.assertTrue(all(c.get("licenses") and c.get("hashes") for c in bom["components"]), "each has a licence")


result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Container))
failed = len(result.failures) + len(result.errors)
print(f"container: {result.testsRun - failed} passed, {failed} failed")
sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
