"""The image for this machine without an engine: pulled from a registry and unpacked, its program must serve as
somebody without rights who sees nothing but the image's files.

Needs root, for chroot and for a name server on port 53 of a loopback address. Not here: what the program answers
(tests/it)."""

import contextlib
import os
import pathlib
import platform
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import release
from release import PATIENCE_SECONDS, free_port, until

BYTES_MAX = 25_000_000
# The user of the Dockerfile.
NOBODY = 65532
# A loopback address of our own, since a name server may listen on port 53 of the usual ones.
NAME_SERVER = "127.0.0.153"
REDIS_NAME = "redis.limits.svc"

POLICY = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
"""


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


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        built = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, built)
        cls.root = pathlib.Path(built) / "root"
        shutil.copytree(release.root(platform.machine()), cls.root, symlinks=True)
        cls.root.parent.chmod(0o755)
        cls.content = sorted(str(path.relative_to(cls.root)) for path in cls.root.rglob("*"))
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

    def test_the_image_is_small(self):
        if (profile := os.environ.get("RELEASE_PROFILE", "dist")) != "dist":
            self.skipTest(f"RELEASE_PROFILE={profile} is not what a release holds")
        self.assertLess(self.bytes, BYTES_MAX, self.content)

    def test_the_program_is_static(self):
        program = (self.root / "bin" / "tidegate").read_bytes()
        self.assertEqual(program[:4], b"\x7fELF")
        # A program header of kind 3 names an interpreter: the dynamic linker, which is not there.
        offset, size, count = struct.unpack_from("<Q", program, 32)[0], *struct.unpack_from("<HH", program, 54)
        kinds = [struct.unpack_from("<I", program, offset + at * size)[0] for at in range(count)]
        self.assertNotIn(3, kinds)

    def test_the_image_starts_the_program_as_nobody(self):
        process = release.image_config(platform.machine())
        self.assertEqual(process["args"], ["/bin/tidegate"])
        self.assertEqual((process["user"]["uid"], process["user"]["gid"]), (NOBODY, NOBODY))

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
                                TIDEGATE_REQUIRE_REDIS="true", TIDEGATE_REDIS_BUDGET="5s")
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
