"""Which addresses may be visited on the way to a token.

Everything on the way to a token is named by another party: the server names its metadata, the metadata names the
authorization server, that one names its endpoints. Each name is a chance to point us into a network that only we can
reach. These are the rules, on URLs and addresses alone; the code that opens a connection applies them, and connects to
the very address that was checked, not to the name again.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from portico.auth.errors import UnsafeAddress, quoted

# No metadata, no registration and no token is anywhere near this long.
MAX_BODY = 1024 * 1024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORTS = {"http": 80, "https": 443}
_UNFIT = re.compile(r"[^\x21-\x7e]")

PUBLIC, PRIVATE, LINK_LOCAL, LOOPBACK, NOWHERE = "public", "private", "link-local", "loopback", "nowhere"

# From where to where. Link-local is where clouds keep their credentials: nothing but a neighbour may point there.
_MAY_REACH = {
    PUBLIC: {PUBLIC},
    PRIVATE: {PUBLIC, PRIVATE},
    LINK_LOCAL: {PUBLIC, LINK_LOCAL},
    LOOPBACK: {PUBLIC, PRIVATE, LOOPBACK},
    NOWHERE: {PUBLIC},
}

_SHARED = ipaddress.ip_network("100.64.0.0/10")  # carriers and overlay networks; `is_private` does not count it
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def split(url: str) -> SplitResult:
    """The parts of an http(s) URL; what is not one is refused, and so is what two readers could read differently."""
    if _UNFIT.search(url) or "\\" in url:
        raise UnsafeAddress(f"{quoted(url)} is not a URL that we visit: it has characters that a URL does not have.")
    try:
        parts = urlsplit(url)
        fit = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fit = False
    if not fit:
        raise UnsafeAddress(f"{quoted(url)} is not an absolute http or https URL.")
    if parts.username is not None or parts.password is not None:
        raise UnsafeAddress(f"{quoted(url)} is not a URL that we visit: it carries a user name.")
    return parts


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port, with the port that goes without saying."""
    parts = split(url)
    return parts.scheme, (parts.hostname or "").rstrip("."), parts.port or _PORTS[parts.scheme]


def same_origin(one: str, other: str) -> bool:
    return origin_of(one) == origin_of(other)


def names_loopback(host: str) -> bool:
    """Return whether a host names this machine by itself (RFC 6761, section 6.3), without resolving it.

    A `localhost` name can still resolve elsewhere: `Pool` checks the address of each connection to such a host.
    """
    host = host.rstrip(".").lower()
    return host == "localhost" or host.endswith(".localhost") or is_loopback_address(host)


def is_loopback_address(text: str) -> bool:
    """Return whether the text is a loopback IP address, in the notation of RFC 4291 or as four decimal numbers.

    Unlike `kind_of`, this does not unwrap 6to4, Teredo and NAT64 addresses: packets to those leave the machine. An
    IPv4-mapped address does not, because the kernel connects to the IPv4 address inside.
    """
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def check_url(url: str) -> None:
    """https everywhere, http on this machine only (2026-07-28, authorization, Communication Security)."""
    parts = split(url)
    if parts.scheme != "https" and not names_loopback(parts.hostname or ""):
        raise UnsafeAddress(
            f"{quoted(url)} would carry credentials in the clear. Use https; http is for this machine alone."
        )


def kind_of(address: str | Address) -> str:
    """What kind of place an address is. What hides an IPv4 address inside is judged by that one."""
    ip = ipaddress.ip_address(address.split("%")[0] if isinstance(address, str) else address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return kind_of(inner)
    if ip.is_loopback:
        return LOOPBACK
    if ip.is_unspecified or ip.is_multicast:
        return NOWHERE
    if ip.is_link_local:
        return LINK_LOCAL
    if isinstance(ip, ipaddress.IPv4Address) and ip in _SHARED:
        return PRIVATE
    if ip.is_private or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local):
        return PRIVATE
    return NOWHERE if ip.is_reserved or not ip.is_global else PUBLIC


def check_addresses(url: str, resolved: Iterable[str | Address], server: Iterable[str | Address]) -> None:
    """Whether a URL that resolves to these addresses may be fetched for a server that has those.

    Every one of them has to be fit: which one a connection ends up with is the name server's choice. And each has to be
    reachable from every address of the server: one of those may have been named only to get us there.
    """
    check_url(url)
    addresses = list(resolved)
    if not addresses:
        raise UnsafeAddress(f"{quoted(url)} has no address.")
    from_there = [_MAY_REACH[kind_of(one)] for one in server]
    reachable = set.intersection(*from_there) if from_there else _MAY_REACH[PUBLIC]
    if urlsplit(url).scheme == "http":
        reachable = {LOOPBACK} & reachable
    for address in addresses:
        kind = kind_of(address)
        if kind not in reachable:
            raise UnsafeAddress(
                f"{quoted(url)} leads to {address}, a {kind} address, and the server that sent us there is not on such "
                "a network itself. Nothing was fetched."
            )


def check_redirect(method: str, url: str, location: str) -> str:
    """Where a redirect leads, if it may be followed: a GET, to the same origin. Its addresses are checked as well."""
    if method != "GET":
        raise UnsafeAddress(f"{quoted(url)} redirects a {method} that carries credentials. They stay here.")
    target = urljoin(url, location)
    if not same_origin(url, target):
        raise UnsafeAddress(f"{quoted(url)} redirects to another origin, {quoted(target)}. We do not go there.")
    return target


def covers(resource: str, server: str) -> bool:
    """Whether a resource identifier speaks for the server at a URL: its origin, and its path or one above it.

    Scheme and host are compared without regard to case, which is how they are defined; nothing is rewritten, so what
    is sent as `resource` later is what was published, byte for byte.
    """
    try:
        theirs, ours = split(resource), split(server)
        if "#" in resource or origin_of(resource) != origin_of(server):
            return False
    except UnsafeAddress:
        return False
    if theirs.query and theirs.query != ours.query:
        return False
    if any(unquote(step) in (".", "..") for step in (*theirs.path.split("/"), *ours.path.split("/"))):
        return False
    above = theirs.path.rstrip("/") + "/"
    return (ours.path.rstrip("/") + "/").startswith(above)
