"""The networks that requests come from: a sender can choose any address of its network, so shares are per network."""

from __future__ import annotations

from functools import lru_cache


def network_of(address: str) -> str:
    """Return where a request comes from, as far as its sender cannot choose it: an IPv4 address, or a /64 of IPv6."""
    return address if ":" not in address else _ipv6_network_of(address)


@lru_cache(maxsize=1024)
def _ipv6_network_of(address: str) -> str:
    # Many servers never have a client of IPv6.
    from ipaddress import IPv6Address

    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return address if found.is_loopback else str(IPv6Address(int(found) >> 64 << 64))


def wider_network_of(address: str) -> str:
    """Return the network that one sender may have all addresses of: a /24 of IPv4, a /48 of IPv6."""
    from ipaddress import ip_address, ip_network

    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    plain = getattr(found, "ipv4_mapped", None) or found
    bits = 24 if plain.version == 4 else 48
    return str(ip_network((plain, bits), strict=False))
