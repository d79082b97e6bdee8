"""Client networks: a sender may choose any address within its network, so limits apply per network."""

from __future__ import annotations

from functools import lru_cache


def client_network(address: str) -> str:
    """Return the part of an address that its sender cannot choose: an IPv4 address, or an IPv6 /64 network."""
    return address if ":" not in address else _ipv6_network_of(address)


@lru_cache(maxsize=1024)
def _ipv6_network_of(address: str) -> str:
    # Imported here because many servers never have an IPv6 client.
    from ipaddress import IPv6Address

    try:
        i_pv6_address = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if i_pv6_address.ipv4_mapped is not None:
        return str(i_pv6_address.ipv4_mapped)
    return address if i_pv6_address.is_loopback else str(IPv6Address(int(i_pv6_address) >> 64 << 64))


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
