"""The client: one shared connection, a bounded number of pending calls, a timeout for each."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import math
import random
import secrets
import ssl
import time
import urllib.parse
from collections.abc import Sequence

import grpc

from . import _messages
from ._call import Call, CallError, kind, listed
from ._decision import Decision, Failure, Outcome, of_response
from ._degraded import Degraded
from ._diagnosis import Endpoint
from ._reservation import ON_UNSETTLED, Reservation

# Envoy's own default.
_TIMEOUT_SECONDS = 0.02
# Beyond it, nobody waits any more.
_TIMEOUT_SECONDS_MAX = 3_600
# Timeout of `connect`: a handshake takes longer than a decision.
_CONNECT_SECONDS = 1.0
# At 20 ms each, 1,000 waiting calls are 50,000 decisions a second.
_PENDING_MAX = 1_000
# Timeout of a call for which nobody waits, and how many may be on their way.
_LATER_SECONDS = 1.0
_LATER_MAX = 1_000
# The longest ttl of a hold that a policy can have.
_TTL_SECONDS_MAX = 86_400
# First back-off of `wait` after a call without a decision; each further one is up to twice as long.
_BACKOFF_SECONDS_FIRST = 0.1
_BACKOFF_SECONDS_MAX = 2.0
# `wait` lengthens Retry-After by up to this much, so that clients that were rejected together do not return
# together.
_JITTER = 0.1
_OPTIONS = [
    # The response to a batch of 1,024 calls, which is the service's bound: 4 KiB each.
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    # gRPC's default waits for up to two minutes before it connects again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A server that disappears without closing the connection is noticed after these two together.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Connects directly: the environment's proxies are for the internet, and a rate limiter is close.
    ("grpc.enable_http_proxy", 0),
    # A call is never repeated in the path of a request.
    ("grpc.enable_retries", 0),
]


@dataclasses.dataclass
class Counters:
    """Numbers of calls by outcome, since the client was built. `failed` calls had no decision."""

    allowed: int = 0
    rejected: int = 0
    failed: int = 0


class SettingsError(TypeError, ValueError):
    """Error in the arguments of `Client`, or in a time."""


class Client:
    """Client of a rate limit service. Share one in the whole process.

    The first call without a decision is logged with its reason, and the first decision after it, by the logger
    `tidegate_client` as warnings. Raises SettingsError for wrong types and values.

    address: http://HOST:PORT or, with TLS, https://HOST:PORT.
    domain: of the policy.
    timeout: of a decision, in seconds; connecting counts, too.
    on_failure: what happens to a request without a decision: "allow" or "deny" (503).
    pending_max: how many calls may wait for a decision at a time. One more fails immediately.
    ca_pem: CA certificates that verify the server; None means the system's.
    identity_pem: the client's certificate chain and private key.
    server_name: name that the server's certificate must have; None means the host of the address.
    """

    def __init__(
        self,
        address: str,
        domain: str,
        *,
        timeout: float = _TIMEOUT_SECONDS,
        on_failure: str = "allow",
        pending_max: int = _PENDING_MAX,
        ca_pem: bytes | None = None,
        identity_pem: tuple[bytes, bytes] | None = None,
        server_name: str | None = None,
    ) -> None:
        _must_be(address, str, "address")
        _must_be(domain, str, "domain")
        if not domain:
            raise SettingsError("the domain must not be empty")
        if not isinstance(on_failure, str) or on_failure not in ("allow", "deny"):
            raise SettingsError(f'on_failure must be "allow" or "deny", not {on_failure!r}')
        _must_be_seconds(timeout, "timeout")
        _must_be(pending_max, int, "pending_max")
        if timeout == 0 or pending_max <= 0:
            raise SettingsError("timeout and pending_max must be greater than 0")
        if timeout > _TIMEOUT_SECONDS_MAX:
            raise SettingsError("the timeout must be at most an hour")
        _must_be(ca_pem, (bytes, type(None)), "ca_pem")
        _must_be(server_name, (str, type(None)), "server_name")
        if identity_pem is not None:
            if not isinstance(identity_pem, (tuple, list)) or len(identity_pem) != 2:
                raise SettingsError("identity_pem must be (certificate chain, private key)")
            for part, name in zip(identity_pem, ("identity_pem: the certificate chain", "identity_pem: the private key")):
                _must_be(part, bytes, name)
        self._secure, host, port = _target(address)
        if not self._secure and (ca_pem or identity_pem or server_name):
            raise SettingsError("certificates are only allowed with an address that starts with https://")
        self._endpoint = Endpoint(host, port, self._secure, server_name, timeout, pending_max, ca_pem, identity_pem)
        self._degraded = Degraded(self._endpoint, domain, on_failure == "allow")
        self._closed = False
        self._domain = domain
        self._timeout = timeout
        self._fails_open = on_failure == "allow"
        self._pending_max = pending_max
        self._pending = 0
        self._ca_pem = ca_pem
        self._identity_pem = identity_pem
        self._server_name = server_name
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stubs = {}
        self._later: set[asyncio.Task] = set()
        self.counters = Counters()

    @property
    def address(self) -> str:
        """HOST:PORT of the server."""
        return self._endpoint.address

    @property
    def domain(self) -> str:
        return self._domain

    async def connect(self, timeout: float = _CONNECT_SECONDS) -> None:
        """Connects before the first call, so that it does not pay for the handshake, and asks whether the server has
        the rate limit service. Nothing is charged or counted.

        Raises Failure, whose message is the reason, if there is no answer within `timeout` seconds.
        """
        _must_be_seconds(timeout, "timeout")
        # Servers reject a request without descriptors before they look at limits.
        message = _messages.RateLimitRequest(domain=self._domain)
        try:
            await self._ask(message, timeout=min(timeout, _TIMEOUT_SECONDS_MAX))
        except Failure as failure:
            if failure.code is grpc.StatusCode.INVALID_ARGUMENT or _names_descriptors(failure):
                return
            reason = await asyncio.to_thread(self._endpoint.diagnose, failure, _messages.CHECK, timeout)
            raise Failure(failure.kind, failure.code, reason, diagnosed=True) from None

    async def check(self, call: Call) -> Decision:
        """Asks for a decision. Returns within the timeout, never sleeps, and never repeats a call.

        A call without descriptors passes without asking, as in Envoy, and is not counted. Slots that a call takes
        here are free when their lease ends; use `hold` to release them.
        """
        return await self._check(call, b"")

    async def check_many(self, calls: Sequence[Call]) -> list[Decision]:
        """Asks for many decisions in one call of Tidegate's own service; other servers do not have it. There is one
        decision for each call, in the same order. A call may pass while others do not.

        The timeout is that of one decision. The service takes up to 1,024 calls together; if there are more, all fail.
        """
        calls = listed(calls, "calls", "Call")
        message = _messages.CheckRequest()
        for call in calls:
            _must_be_call(call)
            if call.descriptors:
                message.requests.append(call._check_message(self._domain, b""))
        results = iter(())
        failure = None
        if message.requests:
            try:
                found = (await self._ask(message, _messages.CHECK_MANY)).results
                if len(found) != len(message.requests):
                    raise Failure("status", grpc.StatusCode.INTERNAL, "a batch with missing results")
                results = iter(found)
            except Failure as error:
                failure = error
        decisions = []
        for call in calls:
            if not call.descriptors:
                decisions.append(Decision(Outcome.ALLOWED, True))
            elif failure is not None:
                decisions.append(self._decide(None, failure, _messages.CHECK_MANY))
            else:
                result = next(results)
                error = None if result.HasField("response") else _failure(result.error)
                decisions.append(self._decide(result.response, error, _messages.CHECK_MANY))
        return decisions

    def hold(self, call: Call) -> Hold:
        """Asks for a decision, and takes the slots of descriptors with `hold`, which are released at the end:

            async with client.hold(call) as decision:
                ...
        """
        return Hold(self, call)

    def reserve(self, call: Call, estimate: int, *, ttl: float | None = None,
                on_unsettled: str = "charge_estimate") -> Reservation:
        """Holds hits before the work, if they fit, and settles afterwards what it used:

            async with client.reserve(call, 800) as budget:
                if budget.decision.passes:
                    ...
                    await budget.settle(used)

        The limits need `reserve` in the policy. Only Tidegate has it; other servers do not.

        call: its descriptors have neither `hits` nor `hold`, and its own hits do not matter.
        estimate: hits to hold, an upper estimate of what will be used.
        ttl: seconds after which the hold ends, rounded up; it can only shorten that of the limits, which is the default.
        on_unsettled: what happens at the end of the block if nothing was settled, for example after an exception:
            "charge_estimate", because what was used is unknown; "release", which charges nothing; or "keep", which
            leaves the hold to its ttl, and charges nothing.
        """
        _must_be_call(call)
        ttl_seconds = 0
        if ttl is not None:
            _must_be_seconds(ttl, "ttl")
            if ttl == 0:
                raise SettingsError("ttl must be greater than 0")
            ttl_seconds = math.ceil(min(ttl, _TTL_SECONDS_MAX))
        if not isinstance(on_unsettled, str) or on_unsettled not in ON_UNSETTLED:
            raise SettingsError(f'on_unsettled must be "charge_estimate", "release", or "keep", not {on_unsettled!r}')
        return Reservation(self, call, estimate, ttl_seconds, on_unsettled)

    async def refund(self, call: Call) -> None:
        """Refunds what the call charged, for example because the work failed. Slots are not refunded.

        Raises Failure if the service may not have refunded it.
        """
        _must_be_call(call)
        message = call._refund_message(self._domain)
        if message.descriptors:
            await self._ask(message)

    async def wait(self, call: Call, patience: float) -> Decision:
        """Repeats the call until it passes, at most for `patience` seconds. For batch jobs: in the path of a
        request, use `check`.

        After a rejection it sleeps as long as Retry-After says, plus up to 10 % at random. If waiting does not
        help, or would exceed `patience`, it immediately returns a decision that does not pass. If the client denies
         on failure, calls without a decision are repeated after a random time of up to 100 ms, then up to
        200 ms, and so on up to 2 s.
        """
        _must_be_call(call)
        _must_be_seconds(patience, "patience")
        deadline = time.monotonic() + patience
        bound = _BACKOFF_SECONDS_FIRST
        while True:
            decision = await self.check(call)
            if decision.passes:
                return decision
            if decision.failure is None:
                if decision.retry_after is None:
                    return decision
                sleep = decision.retry_after * random.uniform(1, 1 + _JITTER)
            else:
                if not decision.failure.may_pass_later():
                    return decision
                sleep = random.uniform(0, bound)
                bound = min(_BACKOFF_SECONDS_MAX, bound * 2)
            if time.monotonic() + sleep > deadline:
                return decision
            await asyncio.sleep(sleep)

    async def close(self) -> None:
        """Closes the connection, after what nobody waits for, such as releases. Calls that are waiting fail, as do
        later ones."""
        if self._later:
            await asyncio.wait(self._later)
        self._closed = True
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._loop = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def _check(self, call: Call, holder: bytes) -> Decision:
        _must_be_call(call)
        if not call.descriptors:
            return Decision(Outcome.ALLOWED, True)
        try:
            return self._decide(await self._ask(call._check_message(self._domain, holder)), None)
        except Failure as failure:
            return self._decide(None, failure)

    def _decide(self, response, failure: Failure | None, method: str = _messages.CHECK) -> Decision:
        """Turns an answer into a decision, and counts it."""
        if failure is not None:
            self.counters.failed += 1
            self._degraded.fail(failure, method)
            return Decision(Outcome.FAILED, self._fails_open, failure)
        if self._degraded.active:
            self._degraded.end()
        decision = of_response(response, datetime.datetime.now(datetime.timezone.utc))
        if decision.passes:
            self.counters.allowed += 1
        else:
            self.counters.rejected += 1
        return decision

    async def _ask(self, message, method: str = _messages.CHECK, timeout: float | None = None):
        if self._closed:
            raise Failure("closed")
        if self._pending >= self._pending_max:
            raise Failure("busy")
        self._pending += 1
        try:
            return await self._stub(method)(message, timeout=self._timeout if timeout is None else timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Failure("timeout", error.code()) from None
            raise Failure("status", error.code(), error.details() or "") from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            # A closed channel cancels its calls, which is not a cancellation of their tasks.
            if self._closed and not _is_cancelled():
                raise Failure("closed") from None
            raise
        finally:
            self._pending -= 1

    def _stub(self, method: str):
        """A method on the shared connection, which is made for the loop of the first call."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            options = list(_OPTIONS)
            if self._secure:
                if self._server_name:
                    options.append(("grpc.ssl_target_name_override", self._server_name))
                certificate, key = self._identity_pem or (None, None)
                authorities = self._ca_pem or _system_authorities()
                credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
                self._channel = grpc.aio.secure_channel(self._endpoint.address, credentials, options)
            else:
                self._channel = grpc.aio.insecure_channel(self._endpoint.address, options)
            self._stubs = {
                method: self._channel.unary_unary(
                    method, request_serializer=request.SerializeToString, response_deserializer=response.FromString)
                for method, request, response in (
                    (_messages.CHECK, _messages.RateLimitRequest, _messages.RateLimitResponse),
                    (_messages.CHECK_MANY, _messages.CheckRequest, _messages.CheckResponse),
                    (_messages.RESERVE, _messages.ReserveRequest, _messages.ReserveResponse),
                    (_messages.SETTLE, _messages.ReserveRequest, _messages.RateLimitResponse),
                )
            }
            self._loop = loop
        return self._stubs[method]

    def _send_later(self, message, method: str = _messages.CHECK) -> None:
        """Releases slots, or settles, without anybody waiting. One that fails leaves the slot to its lease, and the hold
        to its ttl."""
        if self._closed or len(self._later) >= _LATER_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._send(message, method))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _send(self, message, method: str) -> None:
        try:
            await self._stub(method)(message, timeout=_LATER_SECONDS)
        except grpc.aio.AioRpcError:
            pass


class Hold:
    """Slots that a request holds, as an asynchronous context. See `Client.hold`."""

    def __init__(self, client: Client, call: Call) -> None:
        _must_be_call(call)
        self._client = client
        self._call = call
        self._holder = secrets.token_hex(16).encode()
        self._takes = any(descriptor.hold for descriptor in call.descriptors)

    async def __aenter__(self) -> Decision:
        decision = None
        try:
            decision = await self._client._check(self._call, self._holder)
            return decision
        finally:
            # Without an answer, the server may have taken a slot. A caller that was cancelled must not keep one.
            if decision is None or decision.outcome is Outcome.FAILED:
                self._release()
            elif decision.outcome is Outcome.REJECTED:
                self._takes = False

    async def __aexit__(self, *_) -> None:
        self._release()

    def _release(self) -> None:
        if self._takes:
            self._takes = False
            self._client._send_later(self._call._release_message(self._client.domain, self._holder))


def _failure(status) -> Failure:
    """Of one call in a batch; `status` is a google.rpc.Status, empty if there is neither response nor error."""
    found = (code for code in grpc.StatusCode if code.value[0] == status.code != 0)
    code = next(found, grpc.StatusCode.INTERNAL)
    return Failure("timeout" if code is grpc.StatusCode.DEADLINE_EXCEEDED else "status", code, status.message)


def _names_descriptors(failure: Failure) -> bool:
    """Whether the failure is envoyproxy/ratelimit's answer to a request without descriptors."""
    return failure.code is grpc.StatusCode.UNKNOWN and "descriptor" in failure.message


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task. Python 3.10 does not know."""
    task = asyncio.current_task()
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


def _must_be_call(call) -> None:
    if not isinstance(call, Call):
        raise CallError(f"call: must be Call, not {kind(call)}")


def _must_be(given, types, name: str) -> None:
    if not isinstance(given, types) or isinstance(given, bool):
        wanted = (types if isinstance(types, tuple) else (types,))[0].__name__
        raise SettingsError(f"{name} must be {wanted}, not {kind(given)}")


def _must_be_seconds(given, name: str) -> None:
    if not isinstance(given, (int, float)) or isinstance(given, bool):
        raise SettingsError(f"{name} must be a number of seconds, not {kind(given)}")
    if not (math.isfinite(given) and given >= 0):
        raise SettingsError(f"{name} must be finite and at least 0")


def _target(address: str) -> tuple[bool, str, int]:
    # An address with a password is not repeated.
    given = "" if "@" in address else f", not {address!r}"
    wrong = SettingsError(f"the address must be http://HOST:PORT or https://HOST:PORT{given}")
    # urlsplit removes blanks and line breaks.
    if any(letter.isspace() or letter in "@?#" for letter in address):
        raise wrong
    try:
        parts = urllib.parse.urlsplit(address)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path not in ("", "/"):
        raise wrong
    return parts.scheme == "https", parts.hostname, port


def _system_authorities() -> bytes | None:
    """The system's CA certificates; None, which means those in gRPC's package, if there are none."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in found).encode() or None
