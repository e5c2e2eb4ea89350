"""Calls: descriptors, and the hits that they cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from . import _messages

# A longer value is cut there: values with the same start then share a counter. Dropping it or failing the call
# would let its sender escape the limit.
VALUE_BYTES_MAX = 4_096
# Key of the entry that names the holder of a concurrency slot.
_SLOT_KEY = b"tidegate.slot"
# Maximum of hits of a call, and of a descriptor: what the protocol can carry.
_CALL_HITS_MAX = (1 << 32) - 1
DESCRIPTOR_HITS_MAX = (1 << 64) - 1


class CallError(TypeError, ValueError):
    """Error in a call or a descriptor, with its place."""


def encoded(text: str | bytes, place: str) -> bytes:
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise CallError(f"{place}: must be str or bytes, not {kind(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CallError(f"{place}: must be text that UTF-8 can encode, or bytes") from None


def kind(value) -> str:
    return "None" if value is None else type(value).__name__


def listed(given, place: str, of: str) -> list:
    """The items of a list or another iterable, but not the letters of a text or the keys of a dictionary."""
    try:
        if isinstance(given, (str, bytes, bytearray, dict)):
            raise TypeError
        return list(given)
    except TypeError:
        raise CallError(f"{place}: must be a list of {of}, not {kind(given)}") from None


def must_be_hits(given, place: str, hits_max: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool):
        raise CallError(f"{place}: must be int, not {kind(given)}")
    if not 0 <= given <= hits_max:
        raise CallError(f"{place}: must be 0 to {hits_max}")


def _flag(given, place: str) -> None:
    if not isinstance(given, bool):
        raise CallError(f"{place}: must be bool, not {kind(given)}")


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """Keys and values by which the policy finds a limit, in the order of the policy's levels. Raises CallError for
    wrong types and values.

    hits: of this descriptor; None means those of the call. 0 only checks the limit; more than 0 is a bill,
        which a policy with `charge: billed` counts even beyond the limit.
    hold: takes slots of a concurrency limit, which `Client.hold` and the middleware release.
    """

    entries: Iterable[tuple[str | bytes, str | bytes]]
    hits: int | None = None
    hold: bool = False

    def __post_init__(self) -> None:
        entries = []
        for index, pair in enumerate(listed(self.entries, "entries", "(key, value)")):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                size = f" of {len(pair)}" if isinstance(pair, (tuple, list)) else ""
                raise CallError(f"entries[{index}]: must be (key, value), not {kind(pair)}{size}")
            key = encoded(pair[0], f"entries[{index}]: the key")
            entries.append((key, encoded(pair[1], f"entries[{index}]: the value")[:VALUE_BYTES_MAX]))
        if not entries:
            raise CallError("entries: must not be empty")
        if self.hits is not None:
            must_be_hits(self.hits, "hits", DESCRIPTOR_HITS_MAX)
        _flag(self.hold, "hold")
        object.__setattr__(self, "entries", tuple(entries))


@dataclasses.dataclass(frozen=True)
class Call:
    """One decision: all descriptors are decided together. Raises CallError for wrong types and values.

    hits: of all descriptors that do not name their own; 0 means 1.
    """

    descriptors: Iterable[Descriptor]
    hits: int = 1

    def __post_init__(self) -> None:
        descriptors = listed(self.descriptors, "descriptors", "Descriptor")
        for index, descriptor in enumerate(descriptors):
            if not isinstance(descriptor, Descriptor):
                advice = ": write Descriptor([(key, value)])" if isinstance(descriptor, tuple) else ""
                raise CallError(f"descriptors[{index}]: must be Descriptor, not {kind(descriptor)}{advice}")
        must_be_hits(self.hits, "hits", _CALL_HITS_MAX)
        object.__setattr__(self, "descriptors", tuple(descriptors))

    def _check_message(self, domain: str, holder: bytes):
        message = _messages.RateLimitRequest(domain=domain, hits_addend=self.hits)
        for descriptor in self.descriptors:
            _add(message, descriptor, descriptor.hits, holder)
        return message

    def _release_message(self, domain: str, holder: bytes):
        """Releases the slots of the holder."""
        message = _messages.RateLimitRequest(domain=domain)
        for descriptor in self.descriptors:
            if descriptor.hold:
                _add(message, descriptor, 1, holder).is_negative_hits = True
        return message

    def _refund_message(self, domain: str):
        """Refunds what the call charged. Slots are released, not refunded."""
        message = _messages.RateLimitRequest(domain=domain)
        for descriptor in self.descriptors:
            if not descriptor.hold and descriptor.hits != 0:
                hits = max(self.hits, 1) if descriptor.hits is None else descriptor.hits
                _add(message, descriptor, hits, b"").is_negative_hits = True
        return message

    def _reserve_message(self, domain: str, hold_id: bytes, amount: int, ttl_seconds: int):
        """Holds the amount, or settles it: both messages have the same fields. A ttl of 0 is that of the limits."""
        message = _messages.ReserveRequest(domain=domain, amount=amount, id=hold_id)
        if ttl_seconds:
            message.ttl.seconds = ttl_seconds
        for descriptor in self.descriptors:
            _add(message, descriptor, None, b"")
        return message

    def _must_be_reservable(self) -> None:
        for index, descriptor in enumerate(self.descriptors):
            if descriptor.hits is not None or descriptor.hold:
                raise CallError(f"descriptors[{index}]: must not have hits or hold in a reservation")


def _add(message, descriptor: Descriptor, hits: int | None, holder: bytes):
    added = message.descriptors.add()
    for key, value in descriptor.entries:
        added.entries.add(key=key, value=value)
    if descriptor.hold:
        added.entries.add(key=_SLOT_KEY, value=holder)
    if hits is not None:
        added.hits_addend.value = hits
        added.hits_addend.SetInParent()
    return added
