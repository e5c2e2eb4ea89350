"""What the suites of real processes share: the program under test, free ports, and waiting for a state.

A suite adds this directory to its path. Not here: the Rust tests' own helpers (src)."""

import os
import pathlib
import socket
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = (ROOT / os.environ.get("CARGO_TARGET_DIR", "target")).resolve()
DEBUG = TARGET / "debug"
PROGRAM = pathlib.Path(os.environ.get("TIDEGATE", DEBUG / "tidegate")).resolve()
# Only a broken test ever waits this long.
PATIENCE_SECONDS = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, look):
    """Calls `look` until it returns something true, and returns that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"still waiting until {what}"
        time.sleep(0.02)
    return found
