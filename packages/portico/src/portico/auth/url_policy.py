"""Policy for URLs that other parties name (protection against SSRF).

Every URL of an OAuth flow comes from another party: the server names its metadata, the metadata names the authorization
server, and that names its endpoints. Each one could point into a network that only this machine can reach. The rules
here work on URLs and addresses alone; the HTTP client applies them and connects to the checked address without
resolving the name again.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from portico.auth.errors import UnsafeUrl, quote_untrusted

# Far larger than any metadata document, registration or token response.
MAX_RESPONSE_BYTES = 1024 * 1024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NOT_URL_CHARS = re.compile(r"[^\x21-\x7e]")

PUBLIC, PRIVATE, LINK_LOCAL, LOOPBACK, UNROUTABLE = "public", "private", "link-local", "loopback", "nowhere"

# Allowed targets per network of the server. Clouds serve credentials on link-local addresses, so only a link-local
# server may name one.
_ALLOWED_TARGETS = {
    PUBLIC: {PUBLIC},
    PRIVATE: {PUBLIC, PRIVATE},
    LINK_LOCAL: {PUBLIC, LINK_LOCAL},
    LOOPBACK: {PUBLIC, PRIVATE, LOOPBACK},
    UNROUTABLE: {PUBLIC},
}

# carrier-grade NAT and overlay networks; `is_private` does not include it
_SHARED = ipaddress.ip_network("100.64.0.0/10")
# Metadata services of clouds outside of the link-local range: Oracle Cloud, Azure.
_CLOUD_METADATA = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))
# Python 3.11 does not know all special-purpose ranges: documentation (RFC 9637), 6to4 relays (RFC 7526).
_SPECIAL = (ipaddress.ip_network("3fff::/20"), ipaddress.ip_network("192.88.99.0/24"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def split_url(url: str) -> SplitResult:
    """Split an http(s) URL. Raises UnsafeUrl for other URLs and for those that parsers could read differently."""
    if _NOT_URL_CHARS.search(url) or "\\" in url:
        raise UnsafeUrl(f"unsafe URL {quote_untrusted(url)}: it contains characters that are not allowed in a URL.")
    try:
        parts = urlsplit(url)
        is_absolute = parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_absolute = False
    if not is_absolute:
        raise UnsafeUrl(f"{quote_untrusted(url)} is not an absolute http or https URL.")
    # `https://example.com@evil.test/` shows a trusted name and connects to another host.
    if parts.username is not None or parts.password is not None:
        raise UnsafeUrl(f"unsafe URL {quote_untrusted(url)}: it contains a user name.")
    return parts


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port, with the default port filled in."""
    parts = split_url(url)
    return parts.scheme, (parts.hostname or "").rstrip("."), parts.port or _DEFAULT_PORTS[parts.scheme]


def same_origin(first: str, second: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    return origin_of(first) == origin_of(second)


def is_loopback_name(host: str) -> bool:
    """Return whether a host is a loopback name (RFC 6761, section 6.3), without resolving it.

    A `localhost` name can still resolve elsewhere: the connection pool checks the address of each connection to such a
    host.
    """
    host = host.rstrip(".").lower()
    return host == "localhost" or host.endswith(".localhost") or is_loopback_address(host)


def is_loopback_address(text: str) -> bool:
    """Return whether the text is a loopback IP address, in the notation of RFC 4291 or as four decimal numbers.

    Unlike `classify_address`, this does not unwrap 6to4, Teredo and NAT64 addresses: packets to those leave the
    machine. An IPv4-mapped address does not, because the kernel connects to the IPv4 address inside.
    """
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def check_url(url: str) -> None:
    """Raise UnsafeUrl unless the URL is https, or http on this machine.

    2026-07-28, authorization, Communication Security.
    """
    parts = split_url(url)
    if parts.scheme != "https" and not is_loopback_name(parts.hostname or ""):
        raise UnsafeUrl(
            f"{quote_untrusted(url)} would send credentials unencrypted. Use https; http is allowed on this "
            "machine only."
        )


def classify_address(address: str | Address) -> str:
    """Return the network class of an address. Embedded IPv4 addresses (mapped, 6to4, Teredo, NAT64) are unwrapped."""
    ip = ipaddress.ip_address(address.split("%")[0] if isinstance(address, str) else address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return classify_address(inner)
    if ip.is_loopback:
        return LOOPBACK
    if ip.is_unspecified or ip.is_multicast:
        return UNROUTABLE
    if any(ip in network for network in _SPECIAL):
        return UNROUTABLE
    if ip.is_link_local or any(ip in network for network in _CLOUD_METADATA):
        return LINK_LOCAL
    if isinstance(ip, ipaddress.IPv4Address) and ip in _SHARED:
        return PRIVATE
    if ip.is_private or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local):
        return PRIVATE
    return UNROUTABLE if ip.is_reserved or not ip.is_global else PUBLIC


def check_addresses(url: str, resolved: Iterable[str | Address], server: Iterable[str | Address]) -> None:
    """Raise UnsafeUrl if a URL with these addresses must not be fetched on behalf of a server.

    Every address must be allowed, because the resolver decides which one a connection uses. Each must also be reachable
    from every address of the server, since a server may publish one only to gain access.
    """
    check_url(url)
    addresses = list(resolved)
    if not addresses:
        raise UnsafeUrl(f"{quote_untrusted(url)} has no address.")
    targets_by_address = [_ALLOWED_TARGETS[classify_address(item)] for item in server]
    allowed = set.intersection(*targets_by_address) if targets_by_address else _ALLOWED_TARGETS[PUBLIC]
    # Unencrypted requests must not leave the machine, even if the name of the host resolves to loopback elsewhere.
    if urlsplit(url).scheme == "http":
        allowed = {LOOPBACK} & allowed
    for address in addresses:
        kind = classify_address(address)
        if kind not in allowed:
            raise UnsafeUrl(
                f"{quote_untrusted(url)} resolves to {address}, a {kind} address, but the server that named it "
                "is not on such a network. Nothing was fetched."
            )


def check_redirect(method: str, url: str, location: str) -> str:
    """Return the target of a redirect. Only a GET to the same origin is followed; its addresses are checked later."""
    if method != "GET":
        raise UnsafeUrl(f"{quote_untrusted(url)} redirects a {method} that carries credentials; it is not followed.")
    target = urljoin(url, location)
    if not same_origin(url, target):
        raise UnsafeUrl(
            f"{quote_untrusted(url)} redirects to another origin, {quote_untrusted(target)}; it is not followed."
        )
    return target


def resource_covers(resource: str, server: str) -> bool:
    """Return whether a resource identifier covers a server URL: same origin, and the same path or a parent.

    Scheme and host are compared case-insensitively. Nothing is rewritten, so the `resource` parameter is sent exactly
    as published.
    """
    try:
        theirs, ours = split_url(resource), split_url(server)
        if "#" in resource or origin_of(resource) != origin_of(server):
            return False
    except UnsafeUrl:
        return False
    if theirs.query and theirs.query != ours.query:
        return False
    # Dot segments would let the path of one resource match another.
    if any(unquote(step) in (".", "..") for step in (*theirs.path.split("/"), *ours.path.split("/"))):
        return False
    above = theirs.path.rstrip("/") + "/"
    return (ours.path.rstrip("/") + "/").startswith(above)
