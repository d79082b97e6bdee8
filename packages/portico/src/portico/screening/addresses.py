"""Detection of e-mail addresses and public IP addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from portico.screening.findings import Finding
from portico.screening.lazy_patterns import lazy_pattern

# E-mail

_LOCAL = lazy_pattern(r"[\w.%+\-]{1,64}+")
_DOMAIN = lazy_pattern(
    r"(?P<labels>(?:[^\W_][\w\-]{0,62}+\.){1,8})(?P<last>[^\W\d_]{2,24}+|xn--[0-9a-z\-]{2,20}+)(?!@)"
)
# Not e-mail domains: reserved by RFC 2606 and 6762, systemd units, retina images (`x@2x.png`).
_NON_EMAIL_SUFFIXES = """
    example test invalid localhost local internal lan corp home service socket timer target mount slice scope path
    journal png jpg jpeg gif svg webp js css ts tsx jsx json yaml yml html
"""
_NON_EMAIL_TLDS = frozenset(_NON_EMAIL_SUFFIXES.split())
# The last two occur in names of ciphers.
_EXAMPLE_HOSTS = lazy_pattern(
    r"(?:[\w\-]{1,63}+\.){0,7}(?:example|domain|test|email|yourdomain|mydomain|company|acme|foo|bar|openssh|libssh)"
    r"\.(?:com|org|net|edu|io)"
)
_ROLES = "git hg svn noreply no-reply donotreply do-not-reply user username email your.email you name"
_ROLE_NAMES = frozenset(_ROLES.split())


def find_emails(text: str) -> Iterator[Finding]:
    at = -1
    while (at := text.find("@", at + 1)) >= 0:
        domain = _DOMAIN.match(text, at + 1)
        local = _LOCAL.match(text[max(0, at - 65) : at][::-1]) if domain is not None else None
        if domain is None or local is None:
            continue
        name = local[0][::-1].lstrip(".-%")
        # In a JSON or source string `\nann@…` is a line break and a name, not the name `nann`.
        if text[max(0, at - len(name) - 1)] == "\\" and name[:1] in "nrt":
            name = name[1:]  # after an escaped newline
        start = at - len(name)
        if name and _is_personal(name.lower(), domain) and not _in_url(text, start):
            yield Finding("personal", "email", start, domain.end(), 0.95)


def _is_personal(name: str, domain: re.Match[str]) -> bool:
    if name in _ROLE_NAMES or domain["last"].lower() in _NON_EMAIL_TLDS:
        return False
    return _EXAMPLE_HOSTS.fullmatch(domain[0].lower()) is None


def _in_url(text: str, start: int) -> bool:
    """Return whether the match is the user part of a URL: `//user@host`, `//user:password@host`."""
    before = text[max(0, start - 80) : start]
    return before.endswith("//") or (before.endswith(":") and "//" in before)


# IP addresses. Only public ones: a private address does not identify anyone.

_IPV4 = lazy_pattern(
    r"[1-9](?<![0-9A-Za-z_.].)[0-9]{0,2}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![0-9A-Za-z_/]|\.[0-9A-Za-z])"
)
_IPV6 = lazy_pattern(r"[23](?<![0-9A-Za-z:._].)[0-9A-Fa-f]{1,3}(?::[0-9A-Fa-f]{0,4}+){2,7}(?![0-9A-Za-z:])")
_VERSION = lazy_pattern(
    r"(?:v|ver(?:sion)?|release|rel|section|sect?\.|§|chapter|rev(?:ision)?|build|firmware|driver|upgraded? (?:to|from)"
    r"|assembly\w{0,12}|oid)[\"' :=,v]{0,4}$|(?:[~^><=!]=|[~^><])\s?$",
    re.IGNORECASE,
)
_ADDRESS_OF = lazy_pattern(r"\b(?:ip|addr(?:ess)?|host|from|client|server|peer|remote)\W{0,4}$", re.IGNORECASE)
_PUBLIC_SERVICES = "1.1.1.1 1.0.0.1 8.8.8.8 8.8.4.4 9.9.9.9 208.67.222.222 208.67.220.220 1.2.3.4 123.45.67.89"
_PUBLIC_RESOLVERS = frozenset(_PUBLIC_SERVICES.split())


def find_ip_addresses(text: str) -> Iterator[Finding]:
    if text.count(".") >= 3:
        for match in _IPV4.finditer(text):
            if _is_public(match[0]) and not _is_version(text, match):
                yield Finding("personal", "ip_address", match.start(), match.end(), 0.8)
    if text.count(":") >= 2:
        for match in _IPV6.finditer(text):
            if _is_public_ipv6(match[0].lower()):
                yield Finding("personal", "ip_address", match.start(), match.end(), 0.9)


def _is_public(address: str) -> bool:
    a, b, c, d = map(int, address.split("."))
    if max(a, b, c, d) > 255 or a in (0, 10, 127) or a >= 224 or address in _PUBLIC_RESOLVERS:
        return False
    # RFC 1918 private networks, RFC 3927 link-local addresses and the shared space of RFC 6598.
    if (
        (a == 172 and 16 <= b < 32)
        or (a == 192 and b == 168)
        or (a == 169 and b == 254)
        or (a == 100 and 64 <= b < 128)
    ):
        return False
    # Documentation networks of RFC 5737, protocol assignments (RFC 6890) and the benchmark network of RFC 2544.
    return (a, b, c) not in ((192, 0, 0), (192, 0, 2), (198, 51, 100), (203, 0, 113)) and (a, b) not in (
        (198, 18),
        (198, 19),
    )


def _is_public_ipv6(address: str) -> bool:
    groups = address.split(":")
    if address.startswith(("2001:db8", "2001:0db8")) or address.count("::") > 1:
        return False
    return len(groups) <= 8 and not address.endswith("::") if "::" in address else len(groups) == 8 and all(groups)


def _is_version(text: str, match: re.Match[str]) -> bool:
    """Return whether the match is a version, section or object identifier: small numbers, or a preceding keyword."""
    before = text[max(0, match.start() - 24) : match.start()]
    if _VERSION.search(before) or match[0].startswith(("1.2.", "1.3.", "2.5.", "2.16.")):
        return True
    if before.endswith(("-", "/", "^", "~")) and not before.endswith("//") and "ip" not in before.lower():
        return True
    return max(map(int, match[0].split(".")[:3])) <= 20 and _ADDRESS_OF.search(before) is None
