"""Client of Tidegate and of other servers of Envoy's Rate Limit Service, and ASGI middleware."""

from ._address import IPV6_PREFIX, address_entry
from ._asgi import Admission, RateLimitMiddleware
from ._call import VALUE_BYTES_MAX, Call, CallError, Descriptor
from ._client import Client, Counters, SettingsError
from ._decision import Decision, Failure, Outcome
from ._mapping import Mapping, MappingError
from ._reservation import Reservation

__all__ = [
    "IPV6_PREFIX",
    "VALUE_BYTES_MAX",
    "Admission",
    "Call",
    "CallError",
    "Client",
    "Counters",
    "Decision",
    "Descriptor",
    "Failure",
    "Mapping",
    "MappingError",
    "Outcome",
    "RateLimitMiddleware",
    "Reservation",
    "SettingsError",
    "address_entry",
]
