"""From a request to its descriptors, by a declarative mapping.

clients/README.md describes its form, which is the same for all languages; clients/vectors/mapping.json holds them
equal.
"""

from __future__ import annotations

import ipaddress
import json
import re
import urllib.parse
from collections.abc import Sequence

from ._address import IPV6_PREFIX, network_text
from ._call import Call, Descriptor

# Bounds of a mapping. With VALUE_BYTES_MAX, the largest call has 512 KiB; the service takes 1 MiB.
_DESCRIPTORS_MAX = 16
_ENTRIES_MAX = 8
_TEXT_BYTES_MAX = 64 * 1024
_TRUSTED_PROXIES_MAX = 16
# Maximum of hits that a header can ask for.
_HITS_MAX = 1_000_000
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SOURCES = ("value", "header", "path_segment", "path_prefix", "method", "client_address")

Headers = Sequence[tuple[bytes, bytes]]


class MappingError(ValueError):
    """Error in a mapping, with its place."""


class Mapping:
    """Which descriptors a request has."""

    def __init__(self, trusted_proxies, ipv6_prefix, hits, hits_header, descriptors) -> None:
        self._trusted_proxies = trusted_proxies
        self._ipv6_prefix = ipv6_prefix
        self._hits = hits
        self._hits_header = hits_header
        self._descriptors = descriptors

    @classmethod
    def from_json(cls, text: str) -> Mapping:
        """Reads a mapping. Raises MappingError, which says what is wrong with it, and where."""
        if not isinstance(text, str):
            raise MappingError(f"mapping: must be JSON as str, not {type(text).__name__}")
        if len(text) > _TEXT_BYTES_MAX or len(text.encode(errors="replace")) > _TEXT_BYTES_MAX:
            raise MappingError(f"mapping: must have at most {_TEXT_BYTES_MAX} bytes")
        try:
            return _read(json.loads(text))
        except json.JSONDecodeError as error:
            raise MappingError(f"mapping: {error}") from None
        except RecursionError:
            raise MappingError("mapping: must not be nested so deeply") from None
        except UnicodeEncodeError:
            raise MappingError("mapping: must be text that UTF-8 can encode") from None

    def call(self, method: str, path: bytes, headers: Headers, peer: str | None) -> Call:
        """The call for a request. A descriptor whose value is missing is left out, as in Envoy; a call without
        descriptors passes.

        path: decoded, without the query.
        headers: with names in lower case.
        peer: address of the other end of the connection, if it is known.
        """
        request = _Request(method, path, headers, self._client_address(headers, peer))
        descriptors = []
        for hold, entries in self._descriptors:
            found = [(key, request.value(source, argument)) for key, source, argument in entries]
            if all(value is not None for _, value in found):
                descriptors.append(Descriptor(found, hold=hold))
        return Call(descriptors, self._hits_of(headers))

    def _hits_of(self, headers: Headers) -> int:
        """Without a number in the header, one hit: the request is counted all the same."""
        if self._hits_header is None:
            return self._hits
        text = (_first(headers, self._hits_header) or b"").strip(b" \t")
        if not text.isdigit():
            return 1
        digits = text.lstrip(b"0")
        return _HITS_MAX if len(digits) > 7 else min(max(1, int(digits or b"0")), _HITS_MAX)

    def _client_address(self, headers: Headers, peer: str | None) -> bytes | None:
        """The address from X-Forwarded-For that the outermost trusted proxy saw, otherwise that of the
        connection."""
        address = None
        if self._trusted_proxies:
            lists = [value for name, value in headers if name == b"x-forwarded-for"]
            addresses = b",".join(lists).rsplit(b",", self._trusted_proxies)
            if len(addresses) >= self._trusted_proxies:
                address = _address(addresses[-self._trusted_proxies].decode("latin-1").strip(" \t"))
        address = address or (_address(peer) if peer else None)
        return None if address is None else network_text(address, self._ipv6_prefix).encode()


class _Request:
    def __init__(self, method: str, path: bytes, headers: Headers, address: bytes | None) -> None:
        self.method, self.path, self.headers, self.address = method, path, headers, address

    def value(self, source: str, argument) -> bytes | None:
        if source == "value":
            return argument
        if source == "header":
            value = _first(self.headers, argument)
            return None if value is None else value.strip(b" \t")
        if source == "path_segment":
            segments = [segment for segment in self.path.split(b"/") if segment]
            return segments[argument] if argument < len(segments) else None
        if source == "path_prefix":
            rest = self.path.removeprefix(argument)
            if not self.path.startswith(argument):
                return None
            return argument if not rest or rest.startswith(b"/") or argument.endswith(b"/") else None
        return self.method.encode() if source == "method" else self.address


def decoded_path(path: bytes) -> bytes:
    """The path of a request, without `%20` and the like."""
    return urllib.parse.unquote_to_bytes(path)


def _first(headers: Headers, name: bytes) -> bytes | None:
    """Of several headers the first, as in Envoy."""
    return next((value for given, value in headers if given == name), None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as in X-Forwarded-For, with or without a port."""
    if text.startswith("["):
        text, _, port = text[1:].partition("]")
        if port and not (port.startswith(":") and port[1:].isdigit()):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not port.isdigit():
            return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _read(file) -> Mapping:
    _check(isinstance(file, dict), "", "must be an object")
    _only(file, "", ("trusted_proxies", "ipv6_prefix", "hits", "hits_header", "descriptors"))
    trusted = file.get("trusted_proxies", 0)
    _check(_integer(trusted, 0, _TRUSTED_PROXIES_MAX), "trusted_proxies", f"must be at most {_TRUSTED_PROXIES_MAX}")
    prefix = file.get("ipv6_prefix", IPV6_PREFIX)
    _check(_integer(prefix, 1, 128), "ipv6_prefix", "must be 1 to 128")
    if "hits" in file and "hits_header" in file:
        raise MappingError("mapping: hits and hits_header cannot be combined: remove one")
    hits = file.get("hits", 1)
    _check(_integer(hits, 1, _HITS_MAX), "hits", f"must be 1 to {_HITS_MAX}")
    hits_header = _header(file["hits_header"], "hits_header") if "hits_header" in file else None
    descriptors = file.get("descriptors")
    good = isinstance(descriptors, list) and 1 <= len(descriptors) <= _DESCRIPTORS_MAX
    _check(good, "descriptors", f"must be a list of 1 to {_DESCRIPTORS_MAX}")
    read = [_descriptor(it, f"descriptors[{index}]") for index, it in enumerate(descriptors)]
    return Mapping(trusted, prefix, hits, hits_header, read)


def _descriptor(given, place: str):
    _check(isinstance(given, dict), place, "must be an object")
    _only(given, place, ("hold", "entries"))
    hold = given.get("hold", False)
    _check(isinstance(hold, bool), f"{place}.hold", "must be true or false")
    entries = given.get("entries")
    good = isinstance(entries, list) and 1 <= len(entries) <= _ENTRIES_MAX
    _check(good, f"{place}.entries", f"must be a list of 1 to {_ENTRIES_MAX}")
    return hold, [_entry(it, f"{place}.entries[{index}]") for index, it in enumerate(entries)]


def _entry(given, place: str):
    _check(isinstance(given, dict), place, "must be an object")
    _only(given, place, ("key", *_SOURCES))
    key = given.get("key")
    _check(isinstance(key, str) and key, f"{place}.key", "must not be empty")
    for flag in ("method", "client_address"):
        _check(isinstance(given.get(flag, False), bool), f"{place}.{flag}", "must be true or false")
    named = [source for source in _SOURCES if source in given and given[source] is not False]
    _check(len(named) == 1, place, f"must have exactly one of {', '.join(_SOURCES)}")
    source, argument = named[0], given[named[0]]
    where = f"{place}.{source}"
    if source == "path_segment":
        _check(_integer(argument, 0, 1 << 31), where, "must be a number from 0")
    elif source == "header":
        argument = _header(argument, where)
    elif source in ("value", "path_prefix"):
        _check(isinstance(argument, str), where, "must be a text")
        _check(source == "value" or argument.startswith("/"), where, "must start with /")
        argument = argument.encode()
    return key.encode(), source, argument


def _header(name, place: str) -> bytes:
    good = isinstance(name, str) and _HEADER_NAME.fullmatch(name)
    _check(good, place, f"{name!r} is not the name of a header")
    return name.lower().encode()


def _integer(value, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _only(given: dict, place: str, known: tuple[str, ...]) -> None:
    for key in given:
        _check(key in known, f"{place}.{key}" if place else key, f"is not a key of a mapping here: use {', '.join(known)}")


def _check(good, place: str, says: str) -> None:
    if not good:
        raise MappingError(f"mapping: {place}: {says}" if place else f"mapping: {says}")
