"""The middleware around a Starlette application."""

import asyncio
import time
import unittest
from unittest import mock

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from support import TidegateCase

from tidegate_client import Call, Descriptor, Mapping, RateLimitMiddleware
import tidegate_process

BY_USER = """{"descriptors": [
    {"entries": [{"key": "user", "header": "x-user"}]},
    {"entries": [{"key": "spoken", "header": "x-spoken"}]},
    {"entries": [{"key": "export", "path_prefix": "/export"}], "hold": true}
]}"""
BY_ADDRESS = '{"descriptors": [{"entries": [{"key": "remote_address", "client_address": true}]}]}'


async def hello(request):
    return PlainTextResponse("hello")


async def fails(request):
    await request.state.tidegate.refund()
    return PlainTextResponse("failed", 500)


async def talk(websocket):
    await websocket.accept()
    await websocket.close()


class Application(TidegateCase):
    def application(self, client, mapping=BY_USER, more=()):
        routes = [Route("/", hello), Route("/fails", fails), WebSocketRoute("/talk", talk), *more]
        app = Starlette(routes=routes)
        app.add_middleware(RateLimitMiddleware, client=client, mapping=Mapping.from_json(mapping))
        return app

    async def ask(self, app, path="/", user="ann", *, kind="http", headers=(), extensions=()):
        """Sends a request as a server does; returns status, headers, and body."""
        path = path.encode()
        scope = {
            "type": kind, "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path.decode(), "raw_path": path, "query_string": b"", "root_path": "",
            "headers": [(b"x-user", user.encode()), *headers], "client": ("198.51.100.7", 4711),
            "server": ("localhost", 80), "subprotocols": [], "extensions": dict.fromkeys(extensions, {}),
        }
        sent = []
        requests = [{"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}]

        async def receive():
            # After the request, the client keeps the connection open.
            return requests.pop() if requests else await asyncio.Future()

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)
        first = sent[0]
        body = b"".join(message.get("body", b"") for message in sent)
        return first.get("status", first["type"]), dict(first.get("headers", [])), body


class Middleware(Application):
    async def test_the_sixth_request_is_answered_with_429_and_retry_after(self):
        app = self.application(self.client(self.serve("--headers", "x-ratelimit")[0]))
        for left in range(4, -1, -1):
            status, headers, body = await self.ask(app)
            self.assertEqual((status, body), (200, b"hello"))
            self.assertEqual(headers[b"x-ratelimit-remaining"], str(left).encode())
        status, headers, _ = await self.ask(app)
        self.assertEqual(status, 429)
        self.assertGreater(int(headers[b"retry-after"]), 0)
        status, headers, body = await self.ask(app, user="ben", headers=[(b"x-spoken", b"x")])
        self.assertEqual((status, body), (429, b'{"error":"slow down"}'))
        self.assertEqual(headers[b"content-type"], b"application/json")
        self.assertEqual(headers[b"content-length"], str(len(body)).encode())

    async def test_without_a_decision_requests_pass_or_are_answered_with_503(self):
        for choice, expected in (("allow", 200), ("deny", 503)):
            client = self.client(f"https://localhost:{tidegate_process.free_port()}", on_failure=choice)
            self.assertEqual((await self.ask(self.application(client)))[0], expected)

    async def test_a_failed_request_can_be_refunded_by_its_handler(self):
        app = self.application(self.client(self.serve()[0]))
        for _ in range(10):
            self.assertEqual((await self.ask(app, "/fails"))[0], 500)

    async def test_a_slot_is_held_until_the_response_ends(self):
        client = self.client(self.serve()[0])
        statuses = []

        async def export(request):
            async def body():
                statuses.append((await self.ask(app, "/export", "ben"))[0])
                yield b"everything"

            return StreamingResponse(body())

        app = self.application(client, more=[Route("/export", export)])
        status, _, body = await self.ask(app, "/export")
        self.assertEqual((status, body, statuses), (200, b"everything", [429]))
        await self.until_passes(client, Call([Descriptor([("export", "/export")], hold=True)]))

    async def test_the_address_is_that_of_the_connection(self):
        app = self.application(self.client(self.serve()[0]), BY_ADDRESS)
        forged = [(b"x-forwarded-for", b"1.1.1.1")]
        statuses = [(await self.ask(app, headers=forged))[0] for _ in range(6)]
        self.assertEqual(statuses, [200] * 5 + [429])

    async def test_the_handshake_of_a_websocket_is_limited(self):
        app = self.application(self.client(self.serve()[0]))
        for _ in range(5):
            self.assertEqual((await self.ask(app, "/talk", kind="websocket"))[0], "websocket.accept")
        self.assertEqual((await self.ask(app, "/talk", kind="websocket"))[0], "websocket.close")
        status, headers, _ = await self.ask(app, "/talk", kind="websocket", extensions=["websocket.http.response"])
        self.assertEqual(status, 429)
        self.assertIn(b"retry-after", headers)


class NothingSleeps(Application):
    async def test_rejections_are_answered_without_a_timer(self):
        """Everything that waits for time to pass on an event loop calls `call_at`: asyncio.sleep, timeout, wait_for.
        The deadline of a call is gRPC's. So 200 rejections set no timer, and no thread sleeps."""
        app = self.application(self.client(self.serve()[0]))
        for _ in range(5):
            self.assertEqual((await self.ask(app))[0], 200)
        loop = asyncio.get_running_loop()
        with mock.patch.object(loop, "call_at", wraps=loop.call_at) as timers, \
                mock.patch.object(time, "sleep", wraps=time.sleep) as sleeps:
            await asyncio.sleep(0.001)
            self.assertEqual(timers.call_count, 1, "the hook works")
            for _ in range(200):
                status, headers, _ = await self.ask(app)
                self.assertEqual(status, 429)
                self.assertGreater(int(headers[b"retry-after"]), 0)
            self.assertEqual((timers.call_count, sleeps.call_count), (1, 0))


if __name__ == "__main__":
    unittest.main()
