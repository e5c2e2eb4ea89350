"""What the log says when there is no decision: real servers, and nothing where something should be."""

import asyncio
import datetime
import http.server
import json
import threading
import unittest

import grpc
from support import PATIENCE_SECONDS, REASONS, VECTORS, TidegateCase, call

from tidegate_client import Client, Counters, Descriptor, Call, Failure, Outcome
from tidegate_client import _degraded, _diagnosis
import certificates
import tidegate_process
from tidegate_process import free_port

START = "degraded: requests pass without a decision"
DENYING = "degraded: requests are denied without a decision"
END = "no longer degraded: the rate limit service decides again"
# What a server of HTTP/2 says first: an empty SETTINGS frame.
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def filled(reason, **values):
    text = REASONS[reason]
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


class Reasons(TidegateCase):
    async def assert_reason(self, address, expected, *, connects=False, asked=None, batch=False, settings=(), **values):
        """Three calls fail; the log has one line with the reason, and `connect` raises it."""
        secure, _, at = address.partition("://")
        values = {"address": at, "host": at.rpartition(":")[0], "name": at.rpartition(":")[0]} | values
        def new_client():
            if secure == "https":
                return self.client(address, **dict(settings))
            client = Client(address, "shop", **{"timeout": PATIENCE_SECONDS} | dict(settings))
            self.addAsyncCleanup(client.close)
            return client

        asked = asked or call("user", "ann")
        if "code" in values:
            values["message"] = (await new_client().check(asked)).failure.message  # the server's
            self.assertTrue(values["message"])
            await self.until(lambda: all(it.name != "tidegate-diagnosis" for it in threading.enumerate()))
        client = new_client()
        reason = filled(expected, **values)
        self.assertNotIn("{", reason)
        if not connects:
            with self.assertRaises(Failure) as raised:
                await client.connect(dict(settings).get("timeout", PATIENCE_SECONDS))
            self.assertEqual(str(raised.exception), reason)
        messages = self.log()
        for _ in range(3):
            decision = (await client.check_many([asked]))[0] if batch else await client.check(asked)
            self.assertEqual((decision.outcome, decision.passes), (Outcome.FAILED, True))
        await self.until(lambda: messages, reason)
        self.assertEqual(messages, [("WARNING", f'{START} reason="{reason}" address={at} domain=shop')])
        self.assertEqual(client.counters, Counters(failed=3))

    async def test_nothing_listens(self):
        await self.assert_reason(f"http://localhost:{free_port()}", "refused")
        await self.assert_reason(f"https://localhost:{free_port()}", "refused")

    async def test_a_name_does_not_resolve(self):
        await self.assert_reason("http://nowhere.invalid:8081", "unresolved")

    async def test_the_http_port(self):
        http_port = free_port()
        self.serve(http_port=http_port, tls=False)
        await self.assert_reason(f"http://localhost:{http_port}", "http_port")
        await self.assert_reason(f"https://localhost:{http_port}", "http_port")

    async def test_the_http_port_of_another_server(self):
        class Quiet(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        await self.assert_reason(f"http://localhost:{server.server_port}", "http_port")

    async def test_tls_on_a_plain_port_and_the_reverse(self):
        await self.assert_reason(self.serve(tls=False)[0].replace("http:", "https:"), "no_tls")
        for client_certificates in (False, True):
            address, _ = self.serve(client_certificates=client_certificates)
            await self.assert_reason(address.replace("https:", "http:"), "needs_tls")

    async def test_certificates_that_are_not_trusted(self):
        address, _ = self.serve()
        others = self.directory / "others"
        others.mkdir()
        certificates.write(others)
        other = {name: (others / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key")}
        for settings, name, values in [
            ({"ca_pem": other["ca.pem"]}, "unknown_authority", {}),
            ({"ca_pem": None}, "unknown_authority", {}),
            ({"server_name": "elsewhere.test"}, "wrong_name", {"name": "elsewhere.test"}),
            ({"identity_pem": None}, "client_certificate", {}),
            ({"identity_pem": (other["client.pem"], other["client.key"])}, "client_certificate", {}),
        ]:
            with self.subTest(name, settings=list(settings)):
                await self.assert_reason(address, name, settings=settings, **values)
                # gRPC may say no more than this.
                closed = Failure("status", grpc.StatusCode.UNAVAILABLE, "Socket closed")
                reason = await asyncio.to_thread(self.client(address, **settings)._endpoint.diagnose, closed)
                self.assertEqual(reason, filled(name, **values))

    async def test_a_certificate_that_has_expired(self):
        certificates.write(self.directory, datetime.datetime(2001, 1, 1))
        await self.assert_reason(self.serve(client_certificates=False)[0], "expired")

    async def test_servers_that_do_not_answer(self):
        for secure in ("http", "https"):
            await self.assert_reason(f"{secure}://{self.listen()}", "no_answer", settings={"timeout": 0.2})
        await self.assert_reason(f"http://{self.listen(b'')}", "closes")
        await self.assert_reason(f"https://{self.listen(b'')}", "closes")

    async def test_a_server_that_is_too_slow(self):
        await self.assert_reason(f"http://{self.listen(SETTINGS)}", "timeout", timeout="20", settings={"timeout": 0.02})

    async def test_the_port_of_another_service(self):
        server = grpc.aio.server()
        self.addAsyncCleanup(server.stop, None)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await self.assert_reason(f"http://localhost:{port}", "unimplemented")
        await self.assert_reason(f"http://localhost:{port}", "no_limits_api", connects=True, batch=True)

    async def test_batches_that_the_service_does_not_have(self):
        address, _ = self.serve("--batches", "false", tls=False)
        await self.assert_reason(address, "no_limits_api", connects=True, batch=True)

    async def test_a_caller_without_permission(self):
        address, _ = self.serve("--grpc-client-domains", "shop=elsewhere.test")
        await self.assert_reason(address, "denied", connects=True, code="PERMISSION_DENIED")

    async def test_a_caller_that_is_not_authenticated(self):
        class Rejects(grpc.GenericRpcHandler):
            def service(self, details):
                async def reject(request, context):
                    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is missing")

                return grpc.unary_unary_rpc_method_handler(reject)

        server = grpc.aio.server()
        self.addAsyncCleanup(server.stop, None)
        server.add_generic_rpc_handlers([Rejects()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await self.assert_reason(
            f"http://localhost:{port}", "denied", code="UNAUTHENTICATED")

    async def test_a_service_that_answers_unavailable(self):
        policy = "domain: shop\non_store_failure: error\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 5}\n"
        address, _ = tidegate_process.serve(
            self, self.directory, policy, "--redis-url", f"127.0.0.1:{free_port()}", tls=False)
        await self.assert_reason(address, "status", connects=True, code="UNAVAILABLE")

    async def test_a_call_that_the_service_rejects(self):
        address, _ = self.serve(tls=False)
        await self.assert_reason(address, "status", connects=True, asked=call("", "x"), code="INVALID_ARGUMENT")

    async def test_too_many_calls_are_waiting(self):
        client = self.client(f"https://{self.listen()}", pending_max=1)
        messages = self.log()
        waiting = asyncio.create_task(client.check(call("user", "ann")))
        await asyncio.sleep(0)
        await client.check(call("user", "ann"))
        await self.until(lambda: messages)
        self.assertIn(f'"{filled("busy", pending_max="1")}"', messages[0][1])
        waiting.cancel()

    async def test_reasons_are_those_of_the_shared_vectors(self):
        self.assertEqual(_diagnosis.REASONS, REASONS)


class Log(TidegateCase):
    async def test_the_start_and_the_end_are_logged_once(self):
        address, process = self.serve()
        client = self.client(address)
        messages = self.log()
        self.assertTrue((await client.check(call("user", "ann"))).passes)
        self.assertEqual(messages, [])
        process.kill()
        process.wait()
        for _ in range(10):
            self.assertIs((await client.check(call("user", "ann"))).outcome, Outcome.FAILED)
        self.serve(grpc_port=int(address.rpartition(":")[2]))
        await self.until_passes(client, call("user", "ann"))
        for _ in range(3):
            await client.check(call("user", "ann"))
        await self.until(lambda: len(messages) >= 2)
        where = f"address={address.removeprefix('https://')} domain=shop"
        (level, start), (end_level, end) = messages
        self.assertEqual((level, end_level), ("WARNING", "WARNING"))
        self.assertRegex(start, rf'^{START} reason="[^"]+" {where}$')
        self.assertRegex(end, rf"^{END} failed_calls={client.counters.failed} seconds=\d+\.\d {where}$")

    async def test_a_client_that_denies_says_so(self):
        client = self.client(f"https://localhost:{free_port()}", on_failure="deny")
        messages = self.log()
        self.assertFalse((await client.check(call("user", "ann"))).passes)
        await self.until(lambda: messages)
        self.assertTrue(messages[0][1].startswith(f'{DENYING} reason="nothing listens at '), messages)

    async def test_a_failure_that_ends_before_its_diagnosis_is_logged_before_its_end(self):
        degraded = _degraded.Degraded(
            _diagnosis.Endpoint(*self.listen().split(":"), False, None, 0.02, 1), "shop", True)
        messages = self.log()
        degraded.fail(Failure("timeout", grpc.StatusCode.DEADLINE_EXCEEDED), "")
        degraded.end()
        self.assertEqual([text.partition(" reason")[0].partition(" failed")[0] for _, text in messages], [START, END])
        self.assertIn(filled("timeout", timeout="20"), messages[0][1])

    def test_single_failures_among_decisions_are_logged_once_a_minute(self):
        outage, lines = _degraded.Outage(), []
        for second in range(120):
            if outage.fail("timeout", second):
                lines.append((second, 0))
            if ended := outage.end(second):
                lines.append((second, ended[0]))
        self.assertEqual(lines, [(0, 0), (0, 1), (60, 0), (60, 60)])

    def test_failures_that_go_on_are_logged_when_the_quiet_minute_is_over(self):
        outage = _degraded.Outage()
        self.assertTrue(outage.fail("timeout", 0))
        self.assertEqual(outage.end(1), (1, 1))
        self.assertEqual([outage.fail("timeout", second) for second in (2, 59, 60, 300)], [False, False, True, False])
        self.assertEqual(outage.end(302), (4, 300))
        self.assertIsNone(outage.end(303))

    def test_each_kind_of_failure_is_logged_once_in_an_outage(self):
        outage = _degraded.Outage()
        self.assertEqual([outage.fail(kind, 0) for kind in "abcabc"], [True] * 3 + [False] * 3)


class Connections(TidegateCase):
    async def test_a_client_connects_before_its_first_call_and_charges_nothing(self):
        for settings in ({"tls": False}, {}):
            address, _ = self.serve(**settings)
            client = Client(address, "shop", timeout=PATIENCE_SECONDS) if settings else self.client(address)
            self.addAsyncCleanup(client.close)
            messages = self.log()
            self.assertIsNone(await client.connect(PATIENCE_SECONDS))
            self.assertEqual(client.counters, Counters())
            self.assertIs((await client.check(call("user", "ann", 5))).outcome, Outcome.ALLOWED)
            self.assertEqual(messages, [])

    async def test_a_client_connects_after_it_could_not(self):
        port = free_port()
        client = self.client(f"https://localhost:{port}")
        with self.assertRaisesRegex(Failure, "nothing listens at"):
            await client.connect()
        self.serve(grpc_port=port)

        async def connected():
            try:
                await client.connect(PATIENCE_SECONDS)
                return True
            except Failure:
                return False

        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not await connected():
            self.assertLess(asyncio.get_running_loop().time(), deadline)
            await asyncio.sleep(0.02)

    async def test_a_client_that_is_closed_while_calls_run_fails_them_and_cancels_no_task(self):
        client = self.client(f"http://{self.listen(SETTINGS)}", ca_pem=None, identity_pem=None)
        messages = self.log()
        running = [asyncio.create_task(client.check(call("user", "ann"))) for _ in range(3)]
        cancelled = asyncio.create_task(client.check(call("user", "ann")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await client.close()
        for task in running:
            decision = await task
            self.assertEqual((decision.passes, str(decision.failure)), (True, "the client is closed"))
            self.assertFalse(decision.failure.may_pass_later())
        with self.assertRaises(asyncio.CancelledError):
            await cancelled
        decision = await client.check(call("user", "ann"))
        self.assertEqual(str(decision.failure), REASONS["closed"])
        await self.until(lambda: messages)
        self.assertEqual(len(messages), 1, messages)
        self.assertIn(f'reason="{REASONS["closed"]}"', messages[0][1])
        # Slots are left to their lease.
        async with client.hold(Call([Descriptor([("export", "ann")], hold=True)])) as decision:
            self.assertTrue(decision.passes)
        with self.assertRaisesRegex(Failure, "the client is closed"):
            await client.connect()

    def test_addresses_of_servers_are_those_of_the_shared_vectors(self):
        vectors = json.loads((VECTORS / "server_address.json").read_text())
        for address in vectors["valid"]:
            self.assertEqual(Client(address, "shop").address, address.partition("://")[2].rstrip("/"))
        self.assertGreaterEqual(len(vectors["invalid"]), 15)
        for address in vectors["invalid"]:
            with self.subTest(address), self.assertRaises(ValueError) as raised:
                Client(address, "shop")
            self.assertIn(vectors["says"], str(raised.exception))
            self.assertNotIn("secret", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
