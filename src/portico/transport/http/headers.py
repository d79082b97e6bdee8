"""What the headers of a request say, and whether it may be believed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from portico.rpc.call import Call
from portico.wire import mirrors
from portico.wire.errors import HeaderMismatch, UsageError
from portico.wire.mirrors import Mirror

VERSION = b"mcp-protocol-version"
METHOD = b"mcp-method"
NAME = b"mcp-name"
SESSION = b"mcp-session-id"
LAST_EVENT = b"last-event-id"

_AUTHORITY = r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::(?P<port>[0-9]{0,5}))?"

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# Longer names of hosts and pages are not kept: there are none (RFC 1035, 2.3.4), but a client can make some up.
LONGEST_KNOWN = 600

MOST_HOPS = 20
# RFC 7239, 6: an address, with a port or without; one of version 6 may be in brackets.
_FOR = re.compile(
    r'\bfor="?(?:\[?(?P<v6>[0-9a-f]{0,4}:[0-9a-f:.]{1,45})\]?|(?P<v4>[0-9]{1,3}(?:\.[0-9]{1,3}){3}))', re.IGNORECASE
).search

# A header of these that stands twice could be read differently by two parties.
_SINGLE = frozenset({b"host", b"origin", b"authorization", b"content-type", SESSION, LAST_EVENT})


class Headers(dict[bytes, bytes]):
    """Names in lower case. What came twice is joined where lists are allowed, and remembered."""

    # The names that stood more than once.
    repeated: tuple[bytes, ...] = ()
    # What a body said that these headers were found to agree with.
    agreed: tuple[str, str, str | None] | None = None
    # What was found out about who they come from.
    admitted: Any = None

    @classmethod
    def lowered(cls, pairs: Sequence[tuple[bytes, bytes]]) -> Headers:
        """Of pairs whose names are in lower case already, as ASGI has them."""
        headers = cls(pairs)
        if len(headers) < len(pairs):
            headers = cls()
            for name, value in pairs:
                headers.add(name, value)
        return headers

    def add(self, name: bytes, value: bytes) -> None:
        if name in self:
            self.repeated = (*self.repeated, name)
            value = self[name] + b", " + value
        self[name] = value

    def ambiguous(self) -> bool:
        """Whether a header stands twice that must not."""
        return any(name in _SINGLE for name in self.repeated)


def check_single(headers: Headers) -> None:
    """One of ours that stands twice could be read differently by two parties."""
    for name in headers.repeated:
        if name.startswith(b"mcp-"):
            raise HeaderMismatch(f"Header mismatch: {name.decode('latin-1')} stands twice")


def check(call: Call, name: str | None) -> None:
    """2026-07-28: the headers that repeat the body must say what it says; `name` is what the request is about."""
    headers, version = call.headers, call.revision
    assert isinstance(headers, Headers) and version is not None
    if headers.repeated:
        check_single(headers)
    # The quick look first: nearly always the bytes are the same, and plain.
    plain = name is None or (headers.get(NAME) == name.encode() and name.isascii() and not name.startswith("=?"))
    if not plain or headers.get(VERSION) != version.encode() or headers.get(METHOD) != call.method.encode():
        _same(headers, VERSION, version, "MCP-Protocol-Version")
        _same(headers, METHOD, call.method, "Mcp-Method")
        if name is not None:
            _same(headers, NAME, name, "Mcp-Name", encoded=True)
    headers.agreed = (version, call.method, name)


def _same(headers: Headers, header: bytes, expected: str, title: str, *, encoded: bool = False) -> None:
    given = headers.get(header)
    if given is None:
        raise HeaderMismatch(f"Header mismatch: {title} is missing")
    # The quick look first: nearly always the bytes are the same, and plain.
    if given == expected.encode() and given.isascii() and not given.startswith(b"=?"):
        return
    if _text(given, title, encoded=encoded) != expected:
        raise HeaderMismatch(f"Header mismatch: {title} does not agree with the body")


def _text(given: bytes, title: str, *, encoded: bool) -> str:
    try:
        text = given.decode("ascii").strip(" \t")
        return mirrors.decode(text) if encoded else text
    except ValueError:
        raise HeaderMismatch(f"Header mismatch: {title} cannot be read") from None


def check_mirrored(call: Call, mirrored: Sequence[Mirror]) -> None:
    """The same for the parameters that a tool has in headers."""
    headers = call.headers or {}
    try:
        arguments: Any = msgspec.json.decode(call.typed().arguments or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return
    for mirror in mirrored:
        value = mirrors.value_at(arguments, mirror.path)
        given = headers.get(mirror.header.lower().encode())
        if value is None and given is None:
            continue
        if given is None:
            raise HeaderMismatch(f"Header mismatch: {mirror.header} is missing")
        said = _text(given, mirror.header, encoded=True)
        if value is None or not mirrors.agrees(mirror, value, said):
            raise HeaderMismatch(f"Header mismatch: {mirror.header} does not agree with the body")


def takes_events(headers: Headers) -> bool:
    """Whether a client takes events. One that does not name them gets one JSON document, and no word before it."""
    accept = headers.get(b"accept", b"")
    return b"text/event-stream" in accept or b"text/*" in accept


def prefers_events(headers: Headers) -> bool:
    """A client takes both; the one it names first is the one it would rather have."""
    accept = headers.get(b"accept", b"")
    return 0 <= accept.find(b"text/event-stream") < accept.find(b"application/json")


class Gate:
    """Which hosts and origins are let in: a page in a browser must not reach a server on this machine by another name.

    A host is parsed, never compared by its beginning.
    """

    def __init__(self, hosts: Collection[str] = (), origins: Collection[str] = (), *, loopback: bool = True) -> None:
        self._hosts = {host.lower() for host in hosts}
        # `*.example.com` is any name below example.com.
        self._domains = tuple(host[1:] for host in self._hosts if host.startswith("*."))
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._loopback = loopback
        self._known: dict[tuple[bytes | None, bytes | None], str | None] = {}

    def refusal(self, headers: Headers) -> str | None:
        """Why a request is not let in, with the setting that would change it; None if it is."""
        key = (headers.get(b"host"), headers.get(b"origin"))
        try:
            return self._known[key]
        except KeyError:
            reason = self._host(key[0]) or self.refuse_origin(headers)
            if len(self._known) < 1000 and len(key[0] or b"") + len(key[1] or b"") <= LONGEST_KNOWN:
                self._known[key] = reason
            return reason

    def _host(self, given: bytes | None) -> str | None:
        host = (given or b"").decode("latin-1").strip(" \t").lower()
        name = _name(host)
        if "*" in self._hosts or (name and self._names(name, host)):
            return None
        return f"Host {host[:100]!r} is not allowed here; --allow-host (or PORTICO_ALLOW_HOST) would allow it"

    def _names(self, name: str, host: str) -> bool:
        if host in self._hosts or name in self._hosts or (self._loopback and name in LOOPBACK):
            return True
        return name.endswith(self._domains)

    def refuse_origin(self, headers: Headers) -> str | None:
        """The same for the origin alone. A page of our own, from the host that is asked, is let in as that is."""
        given = headers.get(b"origin")
        if given is None:
            return None
        origin = given.decode("latin-1").strip(" \t").lower()
        scheme, _, authority = origin.partition("://")
        host = headers.get(b"host", b"").decode("latin-1").strip(" \t").lower()
        own = (
            scheme in ("http", "https") and authority == host and _name(authority) and self._host(host.encode()) is None
        )
        if "*" in self._origins or origin in self._origins or own:
            return None
        return f"Origin {origin[:100]!r} is not allowed here; --allow-origin (or PORTICO_ALLOW_ORIGIN) would allow it"


class Proxies:
    """Those in front of us whose word on where a request comes from is taken: addresses, or networks of them."""

    def __init__(self, trusted: Collection[str] = ()) -> None:
        try:
            self._networks = [ipaddress.ip_network(one, strict=False) for one in trusted]
        except ValueError as failure:
            raise UsageError(f"a trusted proxy is an address or a network: {failure}") from None

    def trusts(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            known = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(known, "ipv4_mapped", None)
        return any((mapped or known) in network for network in self._networks)

    def client(self, headers: Headers, peer: str) -> str:
        """Where a request of a trusted peer comes from: the last address in its list that is not one of ours."""
        said = headers.get(b"x-forwarded-for")
        hops = [b"for=" + one.strip() for one in said.split(b",")] if said is not None else []
        hops = hops or headers.get(b"forwarded", b"").split(b",")
        for hop in reversed(hops[-MOST_HOPS:]):
            found = _FOR(hop.decode("latin-1"))
            address = (found["v6"] or found["v4"]) if found is not None else ""
            if not address:
                return peer
            if not self.trusts(address):
                return address
            peer = address
        return peer


def _name(authority: str) -> str:
    """The name in `name:port`, without brackets and the dot at its end; empty for what is neither more nor less."""
    found = re.fullmatch(_AUTHORITY, authority)
    if found is None or int(found["port"] or 1) > 65535:
        return ""
    return found["name"].removeprefix("[").removesuffix("]").removesuffix(".")
