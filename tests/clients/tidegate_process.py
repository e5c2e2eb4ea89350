"""A Tidegate that serves a policy over TLS, and waiting for processes."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PATIENCE_SECONDS, PROGRAM, ROOT, TARGET, free_port  # noqa: E402


def until(process, log, attempt):
    """Tries until there is a result, while the process runs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(OSError):
            if result := attempt():
                return result
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def start(test, directory, command, **more):
    """Starts a process that ends with the test, and returns it with its log."""
    log = tempfile.NamedTemporaryFile(dir=directory, delete=False)
    started = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               **more)
    for clean in (log.close, started.wait, started.kill):
        test.addCleanup(clean)
    return started, pathlib.Path(log.name)


def serve(test, directory, policy, *arguments, grpc_port=None, http_port=None, tls=True, client_certificates=False):
    """Serves a policy with the certificates in the directory; returns the address and the process."""
    assert PROGRAM.exists(), f"{PROGRAM} is missing: cargo build --bin tidegate"
    ports = {name: free_port() for name in ("GRPC_PORT", "HTTP_PORT", "DEBUG_PORT")}
    ports["GRPC_PORT"] = grpc_port or ports["GRPC_PORT"]
    ports["HTTP_PORT"] = http_port or ports["HTTP_PORT"]
    environment = {f"TIDEGATE_{name}": str(port) for name, port in ports.items()}
    if tls:
        environment |= {"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": str(directory / "server.pem"),
                        "GRPC_SERVER_TLS_KEY": str(directory / "server.key")}
    if tls and client_certificates:
        environment["GRPC_CLIENT_TLS_CACERT"] = str(directory / "ca.pem")
    file = directory / "policy.yaml"
    file.write_text(policy)
    process, log = start(test, directory, [PROGRAM, "serve", "--policy", file, *arguments], env=environment)
    ready = f"http://127.0.0.1:{ports['HTTP_PORT']}/readyz"
    until(process, log, lambda: urllib.request.urlopen(ready, timeout=5).close() or True)
    return f"{'https' if tls else 'http'}://localhost:{ports['GRPC_PORT']}", process
