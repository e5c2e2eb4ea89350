"""The program for aarch64, under QEMU's user mode emulation: it answers a call."""

import contextlib
import struct
import subprocess
import tempfile
import unittest
import urllib.request

import release

AARCH64 = 183  # EM_AARCH64
POLICY = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
"""


class Emulated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if "aarch64" not in release.architectures():
            raise unittest.SkipTest("RELEASE_ARCHITECTURES is without aarch64")
        cls.qemu = release.program("qemu-aarch64-static", "qemu-aarch64")
        cls.program = release.root("aarch64") / "bin" / "tidegate"

    def test_it_is_a_program_for_aarch64(self):
        self.assertEqual(struct.unpack_from("<H", self.program.read_bytes(), 18)[0], AARCH64)
        said = release.run(self.qemu, self.program, "--version")
        self.assertEqual(said.strip(), f"tidegate {release.VERSION}")

    def test_it_serves_and_rejects(self):
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile(mode="w+") as log:
            policy = f"{directory}/edge.yaml"
            with open(policy, "w") as file:
                file.write(POLICY)
            ports = {name: release.free_port() for name in ("GRPC_PORT", "HTTP_PORT", "DEBUG_PORT")}
            environment = {f"TIDEGATE_{name}": str(port) for name, port in ports.items()}
            environment["TIDEGATE_DRAIN_DELAY"] = "0s"
            served = subprocess.Popen([self.qemu, self.program, "serve", "--policy", policy], env=environment,
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

            def ready():
                with contextlib.suppress(OSError):
                    url = f"http://127.0.0.1:{ports['HTTP_PORT']}/readyz"
                    return urllib.request.urlopen(url, timeout=5).status == 200
                if served.poll() is not None:
                    log.seek(0)
                    self.fail(f"it exited with {served.returncode}: {log.read()}")

            try:
                release.until("it is ready", ready)
                ask = (self.qemu, self.program, "ask", f"127.0.0.1:{ports['GRPC_PORT']}", "edge", "user=ann")
                self.assertIn("OK", release.run(*ask))
                self.assertIn("OVER_LIMIT", release.run(*ask))
                served.terminate()
                self.assertEqual(served.wait(release.PATIENCE_SECONDS), 0)
            finally:
                served.kill()
                served.wait()
        print("the program for aarch64 has served under qemu-user", end=" ")
