"""A network of its own for the tests of gateways: their control planes listen on fixed ports of every address, and find
each other by the names of a cluster. Nothing outside of it can be reached, and nothing in it from outside."""

import atexit
import os
import pathlib
import subprocess
import sys
import tempfile

INSIDE = "TIDEGATE_TEST_NETWORK"
# Where a pod of Envoy has its certificates. Outside, an empty directory while the tests run.
CERTIFICATES = pathlib.Path("/certs")


def enter(names, addresses):
    """Runs this program again in a network that has only loopback, with `addresses` on it, and `names` as its hosts."""
    if INSIDE not in os.environ:
        assert os.getuid() == 0, "a network of its own needs root: make gateways"
        command = ["unshare", "--net", "--mount", sys.executable, *sys.argv]
        os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in addresses:
        subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
    with tempfile.TemporaryDirectory() as directory:
        hosts = pathlib.Path(directory) / "hosts"
        hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ["localhost", *names]))
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
        # The file stays as long as it is mounted.
    if not CERTIFICATES.exists():
        CERTIFICATES.mkdir()
        atexit.register(CERTIFICATES.rmdir)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(CERTIFICATES)], check=True)
    atexit.register(subprocess.run, ["umount", str(CERTIFICATES)], check=True)
