"""Request headers: parsing, validation, Host and Origin checks, and trusted proxies."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from portico.auth.url_policy import is_loopback_name
from portico.caching import LruCache
from portico.protocol import header_params
from portico.protocol.errors import HeaderMismatch, UsageError
from portico.protocol.header_params import HeaderParam
from portico.rpc.call import Call

PROTOCOL_VERSION_HEADER = b"mcp-protocol-version"
METHOD_HEADER = b"mcp-method"
NAME_HEADER = b"mcp-name"
SESSION_ID_HEADER = b"mcp-session-id"
LAST_EVENT_ID_HEADER = b"last-event-id"

_AUTHORITY = r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::(?P<port>[0-9]{0,5}))?"

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

# Longer host names are not cached: valid ones are shorter (RFC 1035, 2.3.4), and a client could invent many.
MAX_CACHED_HOST_BYTES = 600

MAX_HOPS = 20
# Limit of cached parsed headers, and of cached proxies.
MAX_PARSED = 1000
# Address of a client that the proxy does not name, or names by an address that no client behind a proxy can have.
UNKNOWN_CLIENT = "0.0.0.0"

_X_FORWARDED_FOR, _FORWARDED = b"x-forwarded-for", b"forwarded"
# Elements of a Forwarded header: a comma or semicolon within a quoted string is not a separator (RFC 7239, 4).
_WHOLE = re.compile(r'(?:[^"]|"(?:[^"\\]|\\.)*")*')
_ELEMENTS = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_PAIRS = re.compile(r'(?:[^";]|"(?:[^"\\]|\\.)*")+')
# RFC 7239, 6: an address with an optional port; IPv6 may be in brackets.
_NODE = re.compile(
    r"(?P<v4>[0-9.]+)(?::[0-9]*)?|\[(?P<v6>[^\]]+)\](?::[0-9]*)?|(?P<plain>[0-9a-f:.]+(?:%\w+)?)", re.IGNORECASE
)

# Headers that two parties could interpret differently if they are duplicated.
_SINGLE_HEADERS = frozenset(
    {b"host", b"origin", b"authorization", b"content-type", SESSION_ID_HEADER, LAST_EVENT_ID_HEADER}
)


class Headers(dict[bytes, bytes]):
    """Headers with lower-case names. Duplicates are joined, and their names are recorded."""

    # Names that occurred more than once.
    duplicates: tuple[bytes, ...] = ()
    # The body values that these headers were successfully compared with.
    validated_body: tuple[str, str, str | None] | None = None
    # Cached result of the authentication.
    cached_token: Any = None

    @classmethod
    def from_lowercase_pairs(cls, pairs: Sequence[tuple[bytes, bytes]]) -> Headers:
        """Create headers from pairs with lower-case names, as in ASGI."""
        # The constructor of dict keeps the last duplicate; only then are the pairs added one by one.
        headers = cls(pairs)
        if len(headers) < len(pairs):
            headers = cls()
            for name, value in pairs:
                headers.add(name, value)
        return headers

    def add(self, name: bytes, value: bytes) -> None:
        if name in self:
            self.duplicates = (*self.duplicates, name)
            value = self[name] + b", " + value
        self[name] = value

    def has_conflicting_duplicates(self) -> bool:
        """Return whether a header is duplicated that must be unique."""
        return any(name in _SINGLE_HEADERS for name in self.duplicates)


def reject_duplicate_headers(headers: Headers) -> None:
    """Raise `HeaderMismatch` for duplicated MCP headers, which two parties could interpret differently."""
    for name in headers.duplicates:
        if name.startswith(b"mcp-"):
            raise HeaderMismatch(f"Header mismatch: duplicate header {name.decode('latin-1')}")


def validate_request_headers(call: Call, name: str | None) -> None:
    """Check that the headers match the body (2026-07-28). `name` is the tool, prompt or resource of the request."""
    headers, version = call.headers, call.protocol_version
    assert isinstance(headers, Headers) and version is not None
    if headers.duplicates:
        reject_duplicate_headers(headers)
    # Fast check first: the bytes are nearly always equal and plain.
    plain = name is None or (headers.get(NAME_HEADER) == name.encode() and name.isascii() and not name.startswith("=?"))
    if (
        not plain
        or headers.get(PROTOCOL_VERSION_HEADER) != version.encode()
        or headers.get(METHOD_HEADER) != call.method.encode()
    ):
        _require_equal(headers, PROTOCOL_VERSION_HEADER, version, "MCP-Protocol-Version")
        _require_equal(headers, METHOD_HEADER, call.method, "Mcp-Method")
        if name is not None:
            _require_equal(headers, NAME_HEADER, name, "Mcp-Name", encoded=True)
    headers.validated_body = (version, call.method, name)


def _require_equal(headers: Headers, header: bytes, expected: str, title: str, *, encoded: bool = False) -> None:
    value = headers.get(header)
    if value is None:
        raise HeaderMismatch(f"Header mismatch: {title} is missing")
    # Fast check first: the bytes are nearly always equal and plain.
    if value == expected.encode() and value.isascii() and not value.startswith(b"=?"):
        return
    if _decode_value(value, title, encoded=encoded) != expected:
        raise HeaderMismatch(f"Header mismatch: {title} does not match the body")


def _decode_value(value: bytes, title: str, *, encoded: bool) -> str:
    try:
        text = value.decode("ascii").strip(" \t")
        return header_params.decode_header_value(text) if encoded else text
    except ValueError:
        raise HeaderMismatch(f"Header mismatch: {title} cannot be decoded") from None


def validate_param_headers(call: Call, mirrored: Sequence[HeaderParam]) -> None:
    """Check that the headers of tool parameters match the arguments."""
    headers = call.headers or {}
    try:
        arguments: Any = msgspec.json.decode(call.decode_params().arguments or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return
    for mirror in mirrored:
        value = header_params.get_argument(arguments, mirror.path)
        header = headers.get(mirror.header.lower().encode())
        if value is None and header is None:
            continue
        if header is None:
            raise HeaderMismatch(f"Header mismatch: {mirror.header} is missing")
        header_value = _decode_value(header, mirror.header, encoded=True)
        if value is None or not header_params.matches_header(mirror, value, header_value):
            raise HeaderMismatch(f"Header mismatch: {mirror.header} does not match the body")


def accepts_event_stream(headers: Headers) -> bool:
    """Return whether the client accepts event streams. Others receive a single JSON document without notifications."""
    accept = headers.get(b"accept", b"")
    return b"text/event-stream" in accept or b"text/*" in accept


def prefers_event_stream(headers: Headers) -> bool:
    """Return whether the client prefers event streams: it lists them before JSON."""
    accept = headers.get(b"accept", b"")
    return 0 <= accept.find(b"text/event-stream") < accept.find(b"application/json")


class HostPolicy:
    """Allowed hosts and origins. Protects local servers against DNS rebinding by web pages.

    Hosts are parsed, never compared by prefix.
    """

    def __init__(
        self, allowed_hosts: Collection[str] = (), allowed_origins: Collection[str] = (), *, allow_loopback: bool = True
    ) -> None:
        self._hosts = {host.lower() for host in allowed_hosts}
        # `*.example.com` allows every name below example.com.
        self._domains = tuple(host[1:] for host in self._hosts if host.startswith("*."))
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}
        self._loopback = allow_loopback
        # Nearly all clients of a server send the same values. The size is limited, because a client can send
        # any.
        self._known: dict[tuple[bytes | None, bytes | None], str | None] = {}

    def check(self, headers: Headers) -> str | None:
        """Return why a request is rejected, with the setting that would allow it, or None."""
        key = (headers.get(b"host"), headers.get(b"origin"))
        try:
            return self._known[key]
        except KeyError:
            reason = self._host(key[0]) or self.check_origin(headers)
            if len(self._known) < 1000 and len(key[0] or b"") + len(key[1] or b"") <= MAX_CACHED_HOST_BYTES:
                self._known[key] = reason
            return reason

    def _host(self, value: bytes | None) -> str | None:
        host = (value or b"").decode("latin-1").strip(" \t").lower()
        name = _host_name(host)
        if "*" in self._hosts or (name and self._matches(name, host)):
            return None
        return f"Host {host[:100]!r} is not allowed; allow it with --allowed-host or PORTICO_ALLOWED_HOSTS"

    def _matches(self, name: str, host: str) -> bool:
        if host in self._hosts or name in self._hosts or (self._loopback and name in LOOPBACK_HOSTS):
            return True
        return name.endswith(self._domains)

    def check_origin(self, headers: Headers) -> str | None:
        """Return why the origin is rejected, or None. The server's own origin is allowed if its host is."""
        value = headers.get(b"origin")
        if value is None:
            return None
        origin = value.decode("latin-1").strip(" \t").lower()
        scheme, _, authority = origin.partition("://")
        host = headers.get(b"host", b"").decode("latin-1").strip(" \t").lower()
        # A page served by this server may call it. "null" and other schemes never match.
        own = (
            scheme in ("http", "https")
            and authority == host
            and _host_name(authority)
            and self._host(host.encode()) is None
        )
        if "*" in self._origins or origin in self._origins or own:
            return None
        return f"Origin {origin[:100]!r} is not allowed; allow it with --allowed-origin or PORTICO_ALLOWED_ORIGINS"


class TrustedProxies:
    """Trusted proxies, by address or network, and the client addresses they report.

    A proxy writes one header, X-Forwarded-For or Forwarded, on every request, and passes on whatever a client sends in
    the other one. A header that was seen alone is the one that the proxy writes. Until that is known, two headers with
    different clients identify none.
    """

    def __init__(self, trusted: Collection[str] = ()) -> None:
        try:
            self._networks = [ipaddress.ip_network(item, strict=False) for item in trusted]
        except ValueError as failure:
            raise UsageError(f"a trusted proxy must be an address or a network: {failure}") from None
        # For each proxy address: the headers that it was seen to send alone.
        self._written: LruCache[str, set[bytes]] = LruCache(MAX_PARSED)
        self._parsed: LruCache[tuple[bytes, bytes, str], str] = LruCache(MAX_PARSED)

    def trusts(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        # A dual-stack socket reports IPv4 clients as ::ffff:192.0.2.1, which no IPv4 network contains.
        mapped = getattr(ip, "ipv4_mapped", None)
        return any((mapped or ip) in network for network in self._networks)

    def client_address(self, headers: Headers, peer: str) -> str:
        """Return the address of the client behind a trusted proxy: the last hop that is not a trusted proxy itself.

        Earlier hops were sent by the client. The result is never a loopback address unless there is no forwarding
        header at all: a header must not make a client local.
        """
        plain, standard = headers.get(_X_FORWARDED_FOR), headers.get(_FORWARDED)
        if standard is None:
            return peer if plain is None else self._parse_single_header(_X_FORWARDED_FOR, plain, peer)
        if plain is None:
            return self._parse_single_header(_FORWARDED, standard, peer)
        written = self._written.peek(peer) or ()
        if len(written) == 1:
            header = _FORWARDED if _FORWARDED in written else _X_FORWARDED_FOR
            return self._parse(header, headers[header], peer)
        first, other = self._parse(_X_FORWARDED_FOR, plain, peer), self._parse(_FORWARDED, standard, peer)
        return first if first == other else UNKNOWN_CLIENT

    def _parse_single_header(self, header: bytes, value: bytes, peer: str) -> str:
        """Parse a header that came without the other, and record that this proxy writes it."""
        written = self._written.peek(peer)
        if written is None or header not in written:
            self._written.setdefault(peer, set()).add(header)
        return self._parse(header, value, peer)

    def _parse(self, header: bytes, value: bytes, peer: str) -> str:
        key = (header, value, peer)
        result = self._parsed.peek(key)
        if result is None:
            hops = _plain_hops(value) if header == _X_FORWARDED_FOR else _standard_hops(value)
            result = self._last_untrusted(hops, peer)
            if len(value) <= MAX_CACHED_HOST_BYTES:
                self._parsed[key] = result
        return result

    def _last_untrusted(self, hops: Sequence[str], peer: str) -> str:
        # From the right: each proxy appends the address it saw, so only the right end is trustworthy.
        for hop in reversed(hops[-MAX_HOPS:]):
            address = _address(hop)
            if not address:
                break
            peer = address
            if not self.trusts(address):
                break
        return UNKNOWN_CLIENT if is_loopback_name(peer) else peer


def _plain_hops(value: bytes) -> list[str]:
    return value.decode("latin-1").split(",")


def _standard_hops(value: bytes) -> list[str]:
    """Return the `for` value of each element of a Forwarded header. Empty if an element has none, or two."""
    text = value.decode("latin-1")
    if _WHOLE.fullmatch(text) is None:
        # A client left a quoted string open to absorb what the proxy appends.
        return [""]
    return [_node_of(element) for element in _ELEMENTS.findall(text)]


def _node_of(element: str) -> str:
    pairs = (pair.partition("=") for pair in _PAIRS.findall(element))
    nodes = [value.strip() for name, _, value in pairs if name.strip().lower() == "for"]
    node = nodes[0] if len(nodes) == 1 else ""
    return node[1:-1] if len(node) > 1 and node[0] == node[-1] == '"' else node


def _address(hop: str) -> str:
    """Return the address of a hop in canonical form. Empty for `unknown`, obfuscated and malformed values."""
    match = _NODE.fullmatch(hop.strip())
    if match is None:
        return ""
    try:
        address = ipaddress.ip_address((match["v4"] or match["v6"] or match["plain"]).partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


def _host_name(authority: str) -> str:
    """Return the name in `name:port`, without brackets and trailing dot. Empty if the text is malformed."""
    match = re.fullmatch(_AUTHORITY, authority)
    if match is None or int(match["port"] or 1) > 65535:
        return ""
    return match["name"].removeprefix("[").removesuffix("]").removesuffix(".")
