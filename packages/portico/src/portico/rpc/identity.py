"""Identity of callers: of a principal, independent of its current permissions, and of a client's network.

A sender may choose any address within its network, so limits apply per network.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def principal_id(principal: Any) -> str | None:
    """Return the identity of a principal, or None without a principal.

    A middleware may set a principal of any type. Its `identity` is used, or else its `id`, or else its `repr`.
    """
    if principal is None:
        return None
    return str(getattr(principal, "identity", None) or getattr(principal, "id", None) or repr(principal))


def client_network(address: str) -> str:
    """Return the part of an address that its sender cannot choose: an IPv4 address, or an IPv6 /64 network."""
    return address if ":" not in address else _ipv6_network_of(address)


@lru_cache(maxsize=1024)
def _ipv6_network_of(address: str) -> str:
    # Imported here because many servers never have an IPv6 client.
    from ipaddress import IPv6Address

    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return address if parsed.is_loopback else str(IPv6Address(int(parsed) >> 64 << 64))


def wider_network_of(address: str) -> str:
    """Return the network that one sender may control entirely: an IPv4 /24 or an IPv6 /48 network."""
    from ipaddress import ip_address, ip_network

    try:
        result = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    plain = getattr(result, "ipv4_mapped", None) or result
    bits = 24 if plain.version == 4 else 48
    return str(ip_network((plain, bits), strict=False))
