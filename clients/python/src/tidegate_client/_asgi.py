"""ASGI middleware: asks before each request, and answers rejections itself, immediately."""

from __future__ import annotations

from ._call import Call, kind
from ._client import Client, SettingsError
from ._decision import Decision, Outcome
from ._mapping import Mapping, decoded_path


class Admission:
    """How a request was admitted: `request.state.tidegate` in Starlette and FastAPI."""

    def __init__(self, client: Client, call: Call, decision: Decision) -> None:
        self._client = client
        self._call = call
        self.decision = decision

    async def refund(self) -> None:
        """Refunds what the request charged, for example because its work failed.

        Raises Failure if the service may not have refunded it.
        """
        if self.decision.outcome is Outcome.ALLOWED:
            await self._client.refund(self._call)


class RateLimitMiddleware:
    """Limits the requests of an ASGI application.

    A rejected request is answered with 429 and the headers and the body of the decision. Without a decision, the
    client's `on_failure` says whether the request passes or is answered with 503. The handshake of a WebSocket is a
    request, too.

        app.add_middleware(RateLimitMiddleware, client=client, mapping=mapping)
    """

    def __init__(self, app, client: Client, mapping: Mapping) -> None:
        if not isinstance(client, Client):
            raise SettingsError(f"client must be Client, not {kind(client)}")
        if not isinstance(mapping, Mapping):
            raise SettingsError(f"mapping must be Mapping, not {kind(mapping)}: use Mapping.from_json")
        self._app = app
        self._client = client
        self._mapping = mapping

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        call = self._mapping.call(
            scope.get("method", "GET"), _path(scope), scope["headers"], (scope.get("client") or [None])[0])
        async with self._client.hold(call) as decision:
            if not decision.passes:
                await _reject(scope, receive, send, decision)
                return
            state = {**scope.get("state", {}), "tidegate": Admission(self._client, call, decision)}
            starts = ("http.response.start", "websocket.accept")

            async def send_with_headers(message) -> None:
                if message["type"] in starts and decision.headers:
                    message = {**message, "headers": [*message.get("headers", []), *decision.headers]}
                await send(message)

            await self._app({**scope, "state": state}, receive, send_with_headers)


def _path(scope) -> bytes:
    raw = scope.get("raw_path")
    return scope["path"].encode() if raw is None else decoded_path(raw.partition(b"?")[0])


async def _reject(scope, receive, send, decision: Decision) -> None:
    status = 429 if decision.outcome is Outcome.REJECTED else 503
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            # The server answers the handshake with 403.
            await send({"type": "websocket.close"})
            return
        kind = "websocket.http.response"
    headers = [*decision.headers, (b"content-length", str(len(decision.body)).encode())]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": decision.body})
