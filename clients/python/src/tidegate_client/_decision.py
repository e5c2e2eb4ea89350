"""Decisions: whether the request passes, why, and what to tell the caller."""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import enum
import re

import grpc

from . import _messages

# Maximum number of response headers that are taken from a response, and the longest value of one.
_HEADERS_MAX = 32
_HEADER_BYTES_MAX = 1_024
# Maximum wait, a hundred years. A longer one is cut.
_RETRY_AFTER_SECONDS_MAX = 100 * 365 * 86_400
# Headers of the connection or of the response's framing, which a rate limiter must not set.
_FORBIDDEN = frozenset(
    [b"connection", b"content-length", b"host", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
     b"transfer-encoding", b"upgrade"])
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# With these, the same call fails again.
_WRONG = frozenset([grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED,
                    grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED])


class Outcome(enum.Enum):
    """How a call ended."""

    ALLOWED = "allowed"
    REJECTED = "rejected"
    # There was no decision. The client's `on_failure` says whether the request passes.
    FAILED = "failed"


class Failure(Exception):
    """Why there was no decision.

    kind: `busy` (as many calls as allowed were waiting, and none was sent), `timeout`, `closed` (the client is), or
        `status`, a gRPC status other than OK.
    message: of the status; from `Client.connect`, the reason.
    """

    def __init__(self, kind: str, code: grpc.StatusCode | None = None, message: str = "", *,
                 diagnosed: bool = False) -> None:
        super().__init__(kind, code, message)
        self.kind, self.code, self.message = kind, code, message
        self._diagnosed = diagnosed

    def may_pass_later(self) -> bool:
        """Whether the same call can succeed later."""
        return self.kind != "closed" and self.code not in _WRONG

    def __str__(self) -> str:
        if self._diagnosed:
            return self.message
        if self.kind == "closed":
            return "the client is closed"
        if self.kind == "busy":
            return "too many calls are waiting for a decision"
        if self.kind == "timeout":
            return "no decision within the timeout"
        return f"{self.code.name if self.code else self.kind}: {self.message}"


@dataclasses.dataclass(frozen=True)
class Decision:
    """Result of a call.

    passes: it was allowed, or there was no decision and the client lets requests pass on failure.
    retry_after: seconds until a retry may pass; None on a rejection means that waiting does not help.
    headers: for the response, such as Retry-After; names are in lower case.
    body: for the response to a rejected request; empty if the policy has none.
    marks: headers for the service behind this one, near a limit and over it (`mark` in the policy); names are in lower
        case. Before adding them to a request, remove those of the same names that a client has sent.
    """

    outcome: Outcome
    passes: bool
    failure: Failure | None = None
    retry_after: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    marks: tuple[tuple[bytes, bytes], ...] = ()


def of_response(response, now: datetime.datetime) -> Decision:
    """Decides by `overall_code` only. `now` turns a date in Retry-After into a wait."""
    rejected = response.overall_code == _messages.OVER_LIMIT
    headers, wait = [], None
    for name, value in _valid_headers(response.response_headers_to_add):
        # Envoy takes the type of a body from here, which only a rejection has.
        if name == b"content-type" and not rejected:
            continue
        if rejected and name == b"retry-after" and wait is None:
            wait = retry_after(value.decode("latin-1"), now)
        headers.append((name, value))
    if not rejected:
        marks = tuple(_valid_headers(response.request_headers_to_add))
        return Decision(Outcome.ALLOWED, True, headers=tuple(headers), marks=marks)
    return Decision(Outcome.REJECTED, False, None, wait, tuple(headers), response.raw_body)


def _valid_headers(given):
    """The first headers of a response, without those that are too long, invalid, or of the connection."""
    for header in given[:_HEADERS_MAX]:
        name, value = header.key.lower(), header.value
        if len(value) > _HEADER_BYTES_MAX or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            continue
        if name not in _FORBIDDEN and not name.startswith(b"grpc-"):
            yield name, value


def retry_after(value: str, now: datetime.datetime) -> int | None:
    """Reads Retry-After in seconds, from a number or from a date of HTTP. A date in the past is 0."""
    if value.isascii() and value.isdigit():
        return _RETRY_AFTER_SECONDS_MAX if len(value) > 10 else min(int(value), _RETRY_AFTER_SECONDS_MAX)
    try:
        date = email.utils.parsedate_to_datetime(value)
        wait = (date.replace(tzinfo=date.tzinfo or datetime.timezone.utc) - now).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0, int(wait)), _RETRY_AFTER_SECONDS_MAX)
