"""What the headers of a request say, and whether it may be believed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from portico.auth.url_policy import names_loopback
from portico.protocol import header_params
from portico.protocol.errors import HeaderMismatch, UsageError
from portico.protocol.header_params import Mirror
from portico.rpc.call import Call

VERSION = b"mcp-protocol-version"
METHOD = b"mcp-method"
NAME = b"mcp-name"
SESSION = b"mcp-session-id"
LAST_EVENT = b"last-event-id"

_AUTHORITY = r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::(?P<port>[0-9]{0,5}))?"

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# Longer names of hosts and pages are not kept: there are none (RFC 1035, 2.3.4), but a client can make some up.
LONGEST_KNOWN = 600

MAX_HOPS = 20
# How many parsed headers, and how many proxies, are cached.
MAX_PARSED = 1000
# The address of a client that a proxy does not name, or names by an address that no client behind a proxy can have.
UNKNOWN_CLIENT = "0.0.0.0"

_X_FORWARDED_FOR, _FORWARDED = b"x-forwarded-for", b"forwarded"
# The parts of a Forwarded header: a comma or a semicolon within a quoted string separates nothing (RFC 7239, 4).
_WHOLE = re.compile(r'(?:[^"]|"(?:[^"\\]|\\.)*")*')
_ELEMENTS = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_PAIRS = re.compile(r'(?:[^";]|"(?:[^"\\]|\\.)*")+')
# RFC 7239, 6: an address with an optional port; IPv6 may be in brackets.
_NODE = re.compile(
    r"(?P<v4>[0-9.]+)(?::[0-9]*)?|\[(?P<v6>[^\]]+)\](?::[0-9]*)?|(?P<plain>[0-9a-f:.]+(?:%\w+)?)", re.IGNORECASE
)

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
        return header_params.decode(text) if encoded else text
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
        value = header_params.value_at(arguments, mirror.path)
        given = headers.get(mirror.header.lower().encode())
        if value is None and given is None:
            continue
        if given is None:
            raise HeaderMismatch(f"Header mismatch: {mirror.header} is missing")
        said = _text(given, mirror.header, encoded=True)
        if value is None or not header_params.agrees(mirror, value, said):
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
    """The trusted proxies, by address or network, and the client addresses that they report.

    A proxy writes one header, X-Forwarded-For or Forwarded, on every request, and passes on whatever a client sends in
    the other one. A header that was seen without the other is the one that the proxy writes. Until that is known, two
    headers that name different clients name none.
    """

    def __init__(self, trusted: Collection[str] = ()) -> None:
        try:
            self._networks = [ipaddress.ip_network(one, strict=False) for one in trusted]
        except ValueError as failure:
            raise UsageError(f"a trusted proxy is an address or a network: {failure}") from None
        # By the address of a proxy: the headers that it was seen to send alone.
        self._written: dict[str, set[bytes]] = {}
        self._parsed: dict[tuple[bytes, bytes, str], str] = {}

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
        """Return the address of the client behind a trusted proxy: the last hop that is not a trusted proxy itself.

        Hops before that one were sent by the client. The result is never a loopback address unless there is no
        forwarding header at all: a header does not make a client local.
        """
        plain, standard = headers.get(_X_FORWARDED_FOR), headers.get(_FORWARDED)
        if standard is None:
            return peer if plain is None else self._alone(_X_FORWARDED_FOR, plain, peer)
        if plain is None:
            return self._alone(_FORWARDED, standard, peer)
        written = self._written.get(peer, ())
        if len(written) == 1:
            header = _FORWARDED if _FORWARDED in written else _X_FORWARDED_FOR
            return self._parse(header, headers[header], peer)
        one, other = self._parse(_X_FORWARDED_FOR, plain, peer), self._parse(_FORWARDED, standard, peer)
        return one if one == other else UNKNOWN_CLIENT

    def _alone(self, header: bytes, value: bytes, peer: str) -> str:
        """Parse a header that came without the other, and remember that this proxy writes it."""
        written = self._written.get(peer)
        if written is None or header not in written:
            if len(self._written) >= MAX_PARSED:
                self._written.clear()
            self._written.setdefault(peer, set()).add(header)
        return self._parse(header, value, peer)

    def _parse(self, header: bytes, value: bytes, peer: str) -> str:
        key = (header, value, peer)
        found = self._parsed.get(key)
        if found is None:
            hops = _plain_hops(value) if header == _X_FORWARDED_FOR else _standard_hops(value)
            found = self._last_untrusted(hops, peer)
            if len(value) <= LONGEST_KNOWN:
                if len(self._parsed) >= MAX_PARSED:
                    self._parsed.clear()
                self._parsed[key] = found
        return found

    def _last_untrusted(self, hops: Sequence[str], peer: str) -> str:
        for hop in reversed(hops[-MAX_HOPS:]):
            address = _address(hop)
            if not address:
                break
            peer = address
            if not self.trusts(address):
                break
        return UNKNOWN_CLIENT if names_loopback(peer) else peer


def _plain_hops(value: bytes) -> list[str]:
    return value.decode("latin-1").split(",")


def _standard_hops(value: bytes) -> list[str]:
    """Return the `for` of each element of a Forwarded header; empty text where an element has none, or two."""
    text = value.decode("latin-1")
    if _WHOLE.fullmatch(text) is None:
        # A client left a quoted string open, so that it would swallow what the proxy has appended.
        return [""]
    return [_node_of(element) for element in _ELEMENTS.findall(text)]


def _node_of(element: str) -> str:
    pairs = (pair.partition("=") for pair in _PAIRS.findall(element))
    nodes = [value.strip() for name, _, value in pairs if name.strip().lower() == "for"]
    node = nodes[0] if len(nodes) == 1 else ""
    return node[1:-1] if len(node) > 1 and node[0] == node[-1] == '"' else node


def _address(hop: str) -> str:
    """Return the address of a hop in its one canonical form; empty for `unknown`, obfuscated and malformed ones."""
    found = _NODE.fullmatch(hop.strip())
    if found is None:
        return ""
    try:
        address = ipaddress.ip_address((found["v4"] or found["v6"] or found["plain"]).partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def _name(authority: str) -> str:
    """The name in `name:port`, without brackets and the dot at its end; empty for what is neither more nor less."""
    found = re.fullmatch(_AUTHORITY, authority)
    if found is None or int(found["port"] or 1) > 65535:
        return ""
    return found["name"].removeprefix("[").removesuffix("]").removesuffix(".")
