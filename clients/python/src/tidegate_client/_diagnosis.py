"""Why there is no decision, in words that an operator can act on.

The texts of gRPC do not suffice: on the HTTP port and on a port with TLS they say "Socket closed". So a second, raw
connection finds out what listens there. clients/vectors/reasons.json holds the languages equal.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import time

import grpc

from . import _messages
from ._decision import Failure

# A diagnosis takes at most this long, and as long again for a handshake of TLS, besides the lookup of the name.
_SECONDS_MAX = 3.0
# A frame of HTTP/2 starts with its length and type in 9 bytes; an HTTP/1.1 error fits into the other bound.
_FRAME_BYTES = 9
_REPLY_BYTES_MAX = 1_024
# The preface of HTTP/2, and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4
_GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
# First byte of a TLS record: an alert or a handshake.
_TLS = (0x15, 0x16)
# The server answered with these itself.
_ANSWERED = frozenset([grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED,
                       grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT,
                       grpc.StatusCode.RESOURCE_EXHAUSTED])
# What gRPC says when TLS fails, and the reason.
_TLS_TEXTS = (
    ("hostname verification", "wrong_name"),
    ("hostname mismatch", "wrong_name"),
    ("ip address mismatch", "wrong_name"),
    ("certificate has expired", "expired"),
    ("certificate is not yet valid", "expired"),
    ("certificate_verify_failed", "unknown_authority"),
    ("certificate signature failure", "unknown_authority"),
    ("alert_", "client_certificate"),
    ("tsi_data_corrupted", "client_certificate"),
)
REASONS = {
    "unresolved": "the name {host} does not resolve: check the address",
    "refused": "nothing listens at {address}: check the address, and that Tidegate is running",
    "unreachable": "no connection to {address} within 3 s: check the address and the firewall",
    "http_port": "this is the HTTP port: {address} answers in HTTP/1.1; use the gRPC port, 8081 by default",
    "needs_tls": "{address} requires TLS: write https:// instead of http://",
    "no_tls": "{address} has no TLS: write http:// instead of https://",
    "unknown_authority": "the server's certificate is not signed by a CA that this client trusts: give the client the "
                         "CA of the server",
    "wrong_name": "the server's certificate is not valid for {name}: use a host name that it has, or set the server "
                  "name",
    "expired": "the server's certificate has expired or is not yet valid: renew it",
    "client_certificate": "the server requires a client certificate that is signed by a CA that it trusts: give the "
                          "client one",
    "no_answer": "{address} accepts connections but does not answer: check that it is the gRPC port, and that Tidegate "
                 "is not frozen",
    "closes": "{address} closes connections without an answer: check that it is the gRPC port",
    "timeout": "no decision within {timeout} ms: Tidegate is slow, or the timeout is too short",
    "busy": "{pending_max} calls are already waiting for a decision: Tidegate is slow, or the maximum is too low",
    "unimplemented": "{address} does not have the rate limit service: check that it is not the port of another service",
    "no_limits_api": "{address} does not have tidegate.v1.Limits: batches and reservations need Tidegate",
    "denied": "the server rejected this client with {code}: {message}",
    "status": "the call failed with {code}: {message}",
    "closed": "the client is closed",
}


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """What a reason names: the server, and the settings of the client."""

    host: str
    port: int
    secure: bool
    server_name: str | None
    timeout: float
    pending_max: int
    ca_pem: bytes | None = None
    identity_pem: tuple[bytes, bytes] | None = dataclasses.field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def text(self, name: str, failure: Failure, timeout: float | None = None) -> str:
        return REASONS[name].format(
            host=self.host, address=self.address, name=self.server_name or self.host,
            timeout=f"{(self.timeout if timeout is None else timeout) * 1_000:g}", pending_max=self.pending_max,
            code=failure.code.name if failure.code else "", message=failure.message)

    def reason(self, failure: Failure, method: str = _messages.CHECK, timeout: float | None = None) -> str:
        """The reason of a failure as far as it is known without asking the server again."""
        if failure.code is grpc.StatusCode.UNIMPLEMENTED:
            name = "unimplemented" if method == _messages.CHECK else "no_limits_api"
        elif failure.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            name = "denied"
        else:
            name = failure.kind
        return self.text(name, failure, timeout)

    def diagnose(self, failure: Failure, method: str = _messages.CHECK, timeout: float | None = None) -> str:
        """The reason of a failure. Blocks for up to six seconds, and longer only for the lookup of the name."""
        if failure.kind in ("busy", "closed") or failure.code in _ANSWERED:
            return self.reason(failure, method, timeout)
        try:
            found = self._what_listens()
        except _CannotConnect as error:
            return f"cannot connect to {self.address}: {error}"
        if found == "tls" and self.secure:
            found = _tls_reason(failure.message) or self._tls_failure()
        elif found == "tls":
            found = "needs_tls"
        elif found == "http2":
            found = "no_tls" if self.secure else None
        return self.text(found, failure) if found else self.reason(failure, method, timeout)

    def _tls_failure(self) -> str | None:
        """Why TLS fails, if it does. gRPC may only say that the connection is closed: a server rejects the client's
        certificate after the client's part of the handshake."""
        context = ssl.create_default_context(cadata=self.ca_pem.decode("latin-1") if self.ca_pem else None)
        # gRPC is not strict.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        try:
            if self.identity_pem:
                _load_identity(context, *self.identity_pem)
            with socket.create_connection((self.host, self.port), timeout=_SECONDS_MAX) as connection:
                with context.wrap_socket(connection, server_hostname=self.server_name or self.host) as secured:
                    # Only reads: after a write, the alert can be lost.
                    secured.recv(1)
        except (OSError, ValueError) as error:
            return _tls_reason(str(error))
        return None

    def _what_listens(self) -> str:
        """`http2` without TLS, `tls`, or the name of a reason."""
        deadline = time.monotonic() + _SECONDS_MAX
        reply = self._exchange(_PREFACE, _FRAME_BYTES, deadline)
        if isinstance(reply, bytes) and len(reply) == _FRAME_BYTES and reply[3] == _SETTINGS:
            return "http2"
        if isinstance(reply, bytes) and not reply.startswith(tuple(map(bytes, zip(_TLS)))):
            # HTTP/1.1 servers close on the preface of HTTP/2, some without a word.
            reply = self._exchange(_GET, _REPLY_BYTES_MAX, deadline)
        if not isinstance(reply, bytes):
            return reply
        if reply.startswith(tuple(map(bytes, zip(_TLS)))) or b"to HTTPS" in reply or b"to an HTTPS" in reply:
            return "tls"
        return "http_port" if reply.startswith(b"HTTP/") else "closes"

    def _exchange(self, message: bytes, bytes_max: int, deadline: float) -> bytes | str:
        """Sends a message; returns the first bytes of the reply, or the name of a reason."""
        left = max(0.001, deadline - time.monotonic())
        try:
            connection = socket.create_connection((self.host, self.port), timeout=left)
        except socket.gaierror:
            return "unresolved"
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "unreachable"
        except (OSError, UnicodeError) as error:
            raise _CannotConnect(getattr(error, "strerror", None) or str(error)) from None
        reply = b""
        with connection:
            try:
                connection.sendall(message)
                while len(reply) < bytes_max:
                    connection.settimeout(max(0.001, deadline - time.monotonic()))
                    received = connection.recv(bytes_max - len(reply))
                    if not received:
                        break
                    reply += received
            except TimeoutError:
                return reply or "no_answer"
            except OSError:
                pass  # closed by the server
        return reply


def _tls_reason(text: str) -> str | None:
    said = text.lower()
    return next((name for text, name in _TLS_TEXTS if text in said), None)


def _load_identity(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python reads certificates from files only. This one is in memory, because a key does not belong on a disk."""
    if not hasattr(os, "memfd_create"):
        raise OSError("no file in memory")
    with os.fdopen(os.memfd_create("identity"), "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


class _CannotConnect(Exception):
    pass
