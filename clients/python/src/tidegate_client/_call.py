"""What a client asks: descriptors, and the hits that they cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from . import _messages

# A longer value is cut there: values with the same start then share a counter. Dropping it or failing the call
# would let its sender escape the limit.
VALUE_BYTES_MAX = 4_096
# Key of the entry that names the holder of a concurrency slot.
_SLOT_KEY = b"tidegate.slot"


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """Keys and values by which the policy finds a limit, in the order of the policy's levels.

    hits: of this descriptor; None means those of the call. 0 only checks the limit; more than 0 is a bill,
        which a policy with `charge: billed` counts even beyond the limit.
    hold: takes slots of a concurrency limit, which `Client.hold` and the middleware release.
    """

    entries: Iterable[tuple[str | bytes, str | bytes]]
    hits: int | None = None
    hold: bool = False

    def __post_init__(self) -> None:
        entries = tuple((_bytes(key), _bytes(value)[:VALUE_BYTES_MAX]) for key, value in self.entries)
        object.__setattr__(self, "entries", entries)


@dataclasses.dataclass(frozen=True)
class Call:
    """One decision: all descriptors are decided together.

    hits: of all descriptors that do not name their own.
    """

    descriptors: Iterable[Descriptor]
    hits: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptors", tuple(self.descriptors))

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
