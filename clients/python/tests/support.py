"""A Tidegate for one test, and clients of it."""

import asyncio
import pathlib
import sys
import tempfile
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
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1, burst: 1}
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: export
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 86400}
"""


def call(key, value, hits=1):
    return Call([Descriptor([(key, value)])], hits)


class TidegateCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        certificates.write(self.directory)

    def serve(self, *arguments, port=None):
        """Starts a Tidegate that requires client certificates; returns its address and process."""
        return tidegate_process.serve(self, self.directory, POLICY, *arguments, grpc_port=port,
                                      client_certificates=True)

    def pem(self, name):
        return (self.directory / name).read_bytes()

    def client(self, address, **settings):
        identity = (self.pem("client.pem"), self.pem("client.key"))
        given = {"timeout": PATIENCE_SECONDS, "ca_pem": self.pem("ca.pem"), "identity_pem": identity}
        client = Client(address, "shop", **(given | settings))
        self.addAsyncCleanup(client.close)
        return client

    async def until_passes(self, client, asked):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            async with client.hold(asked) as decision:
                if decision.outcome is Outcome.ALLOWED:
                    return
            self.assertLess(loop.time(), deadline, decision)
            await asyncio.sleep(0.02)
