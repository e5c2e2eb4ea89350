"""Reservations: hits that are held before the work, and settled after it."""

from __future__ import annotations

import typing

from . import _messages
from ._call import DESCRIPTOR_HITS_MAX, Call, must_be_hits
from ._decision import Decision, Failure, Outcome

if typing.TYPE_CHECKING:
    from ._client import Client

# What happens to a hold that was not settled at the end of its block.
ON_UNSETTLED = ("charge_estimate", "release", "keep")


class Reservation:
    """Hits that are held while the work runs, as an asynchronous context. See `Client.reserve`.

    decision: whether the work may begin. Nothing is held if it was rejected, if there was no decision, or if no limit
        of the call has `reserve`; `settle`, `release`, and `renew` then do nothing.
    """

    decision: Decision

    def __init__(self, client: Client, call: Call, estimate: int, ttl_seconds: int, on_unsettled: str) -> None:
        must_be_hits(estimate, "estimate", DESCRIPTOR_HITS_MAX)
        call._must_be_reservable()
        self._client = client
        self._call = call
        self._estimate = estimate
        self._ttl_seconds = ttl_seconds
        self._on_unsettled = on_unsettled
        # Made by Tidegate; empty while nothing is held.
        self._id = b""

    async def __aenter__(self) -> Reservation:
        self._id = b""
        self.decision = await self._reserve(self._estimate)
        return self

    async def __aexit__(self, *_) -> None:
        if self._on_unsettled != "keep":
            await self.settle(self._estimate if self._on_unsettled == "charge_estimate" else 0)

    async def settle(self, used: int) -> Failure | None:
        """Charges what was used, even beyond the limit, and ends the hold. Only the first call of `settle` or
        `release` does something.

        Returns None, or why Tidegate may not have charged it within the timeout. It is then sent once more, in the
        background, because a settle that arrives twice charges once.
        """
        must_be_hits(used, "used", DESCRIPTOR_HITS_MAX)
        if not self._id:
            return None
        message, self._id = self._message(used, 0), b""
        answered = False
        try:
            await self._client._ask(message, _messages.SETTLE)
            answered = True
        except Failure as failure:
            return failure
        finally:
            # A caller that was cancelled must be charged, too.
            if not answered:
                self._client._send_later(message, _messages.SETTLE)
        return None

    async def release(self) -> Failure | None:
        """Ends the hold without a charge. Otherwise like `settle`."""
        return await self.settle(0)

    async def renew(self, estimate: int) -> Decision:
        """Replaces the estimate, and begins the hold's time anew. If the new estimate does not fit, the decision does
        not pass, and the hold stays as it was."""
        must_be_hits(estimate, "estimate", DESCRIPTOR_HITS_MAX)
        if not self._id:
            return self.decision
        decision = await self._reserve(estimate)
        if decision.passes:
            self._estimate = estimate
        return decision

    async def _reserve(self, estimate: int) -> Decision:
        """Not repeated: if there was no answer, Tidegate may hold the hits until their ttl."""
        if not self._call.descriptors:
            return Decision(Outcome.ALLOWED, True)
        try:
            found = await self._client._ask(self._message(estimate, self._ttl_seconds), _messages.RESERVE)
        except Failure as failure:
            return self._client._decide(None, failure, _messages.RESERVE)
        self._id = found.id or self._id  # a renewal that was rejected has none
        return self._client._decide(found.response, None, _messages.RESERVE)

    def _message(self, amount: int, ttl_seconds: int):
        return self._call._reserve_message(self._client.domain, self._id, amount, ttl_seconds)
