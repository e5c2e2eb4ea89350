"""A Tidegate for one test, and clients of it."""

import asyncio
import contextlib
import json
import logging
import pathlib
import socket
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests/clients"))
import certificates  # noqa: E402
import tidegate_process  # noqa: E402

from tidegate_client import Call, Client, Descriptor, Outcome  # noqa: E402

# Long enough for a busy machine. Tests that are about timeouts set their own.
PATIENCE_SECONDS = 30.0
VECTORS = pathlib.Path(__file__).resolve().parents[2] / "vectors"
# `user` may do five a year, so that a client that waits as told never returns.
POLICY = """
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: spoken
    rate_limit: {unit: year, requests_per_unit: 0}
    body: {content_type: application/json, text: '{"error":"slow down"}'}
  - key: paced
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 20, burst: 1}
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: soft
    shadow_mode: true
    rate_limit:
      {unit: year, requests_per_unit: 2, mark: {near: {x-quota: near}, over: {x-quota: over}, near_at: 50%}}
  - key: export
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 86400}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100, reserve: {ttl: 86400}}
"""


REASONS = json.loads((VECTORS / "reasons.json").read_text())


def call(key, value, hits=1):
    return Call([Descriptor([(key, value)])], hits)


class TidegateCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        certificates.write(self.directory)

    def serve(self, *arguments, **more):
        """Starts a Tidegate that requires client certificates; returns its address and process."""
        return tidegate_process.serve(self, self.directory, POLICY, *arguments, **{"client_certificates": True} | more)

    def pem(self, name):
        return (self.directory / name).read_bytes()

    def client(self, address, **settings):
        identity = (self.pem("client.pem"), self.pem("client.key"))
        given = {"timeout": PATIENCE_SECONDS, "ca_pem": self.pem("ca.pem"), "identity_pem": identity}
        client = Client(address, "shop", **(given | settings))
        self.addAsyncCleanup(client.close)
        return client

    def listen(self, answer=None):
        """A server that answers each connection with these bytes, or closes it if they are empty. With None, the kernel
        accepts connections, and nobody answers. Returns HOST:PORT."""
        listener = socket.create_server(("127.0.0.1", 0))
        kept = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.sendall(answer)
                    if answer:
                        kept.append(connection)
                    else:
                        connection.close()

        def close():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            for connection in kept:
                connection.close()

        self.addCleanup(close)
        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        return f"localhost:{listener.getsockname()[1]}"

    def log(self):
        """The messages of the client's logger from now on."""
        messages = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append((record.levelname, record.getMessage()))
        logger = logging.getLogger("tidegate_client")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        return messages

    async def until(self, condition, what=""):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while not condition():
            self.assertLess(loop.time(), deadline, what)
            await asyncio.sleep(0.02)

    async def until_passes(self, client, asked):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            async with client.hold(asked) as decision:
                if decision.outcome is Outcome.ALLOWED:
                    return
            self.assertLess(loop.time(), deadline, decision)
            await asyncio.sleep(0.02)
