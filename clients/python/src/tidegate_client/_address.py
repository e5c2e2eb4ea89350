"""The entry for a caller's address."""

from __future__ import annotations

import ipaddress

from ._call import CallError, encoded, kind

# Addresses of IPv6 are grouped by this many bits: a customer usually has a network of 64 bits or more.
IPV6_PREFIX = 64


def address_entry(key: str | bytes, address: str | ipaddress.IPv4Address | ipaddress.IPv6Address,
                  ipv6_prefix: int = IPV6_PREFIX) -> tuple[str | bytes, str]:
    """Returns the entry for a caller's address, such as `("remote_address", "2001:db8::/64")`.

    An IPv6 address is cut to `ipv6_prefix` bits, because a caller can usually choose among those of its network.
    An IPv4 address is kept whole, even when it is written as IPv6. Raises CallError.
    """
    if not isinstance(ipv6_prefix, int) or isinstance(ipv6_prefix, bool) or not 1 <= ipv6_prefix <= 128:
        raise CallError("ipv6_prefix: must be 1 to 128")
    encoded(key, "key")
    if isinstance(address, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        return key, network_text(address, ipv6_prefix)
    if not isinstance(address, str):
        raise CallError(f"address: must be str or an address of ipaddress, not {kind(address)}")
    try:
        return key, network_text(ipaddress.ip_address(address), ipv6_prefix)
    except ValueError:
        raise CallError(f"address: {address!r} is not an IP address") from None


def network_text(address: ipaddress.IPv4Address | ipaddress.IPv6Address, ipv6_prefix: int) -> str:
    if address.version == 6 and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.version == 4:
        return str(address)
    if ipv6_prefix == 128:
        return str(ipaddress.IPv6Address(int(address)))  # without the zone
    return str(ipaddress.IPv6Network((int(address), ipv6_prefix), strict=False))
