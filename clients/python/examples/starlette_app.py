"""A Starlette application with a limit for each user.

    python starlette_app.py https://localhost:8081 ca.pem

It passes requests while Tidegate is unavailable; with `deny` as the next argument, it answers 503. A further one is the
timeout in milliseconds.
"""

import pathlib
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tidegate_client import Client, Mapping, RateLimitMiddleware

MAPPING = """{"descriptors": [
    {"entries": [{"key": "user", "header": "x-user"}]},
    {"entries": [{"key": "export", "path_prefix": "/export"}], "hold": true}
]}"""


async def hello(request):
    return PlainTextResponse("hello")


async def export(request):
    return PlainTextResponse("everything")


def main():
    if not 3 <= len(sys.argv) <= 5:
        sys.exit("usage: starlette_app.py https://HOST:PORT CA_FILE [allow|deny [TIMEOUT_MS]]")
    address, ca = sys.argv[1:3]
    choice = sys.argv[3] if len(sys.argv) > 3 else "allow"
    timeout_ms = sys.argv[4] if len(sys.argv) > 4 else "20"
    client = Client(address, "shop", ca_pem=pathlib.Path(ca).read_bytes(), on_failure=choice,
                    timeout=int(timeout_ms) / 1000)
    app = Starlette(routes=[Route("/", hello), Route("/export", export)])
    app.add_middleware(RateLimitMiddleware, client=client, mapping=Mapping.from_json(MAPPING))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])


if __name__ == "__main__":
    main()
