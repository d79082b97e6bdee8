r"""The readings of a URI that authorization must consider, without I/O.

The target of a request parses the URI again, and parsers disagree. WHATWG URL (Node's `new URL`) resolves `..` and
`%2e`, treats `\\` as `/`, drops tabs and line breaks and canonicalizes hosts. Python servers often use
`posixpath.normpath(unquote(urlsplit(uri).path))`, which also merges `//` and ignores the host. Others strip the scheme
and use the rest unchanged. URIs that no parser should see are rejected (`uri_check.py`); all others are checked in
every reading: an allow rule must cover each one, a deny rule needs to match only one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

from msgspec import Struct

from portico.protocol.uri_check import SLASHES

# How often a reader may percent-decode a URI.
# A proxy, a framework and an application may each decode once. More rounds would only multiply the forms.
MAX_DECODES = 3
MAX_CACHED_CHARS = 256

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_TAIL = re.compile(r"[?#].*", re.DOTALL)
# Schemes around another URI: `jar:file:///a.zip!/b`, `view-source:http://…`, `git+file:///repository`.
_OUTER_SCHEMES = re.compile(r"(?:[A-Za-z][A-Za-z0-9.-]*[:+])+(?=[A-Za-z][A-Za-z0-9.-]*:)")
_DROPPED = str.maketrans("", "", "\t\r\n")
_DOT = re.compile(r"%2e", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z][:|]")
# Windows ignores dots and spaces at the end of a name, and `name::$DATA` is the file `name`.
_WINDOWS_SUFFIX = re.compile(r"(?<=[^/. ])(?::[^/]*|[. ]+)(?=/|$)")
_PARAMETERS = re.compile(r";[^/]*")
# URIs that all parsers read alike, so that long lists of resources are filtered quickly.
_PLAIN = re.compile(
    r"(?:file:///|(?!(?:file|https?|wss?|ftp):)[a-z][a-z0-9.-]*://[a-z][a-z0-9_-]*(?:/|$))"
    r"(?:[A-Za-z0-9_~-][A-Za-z0-9_.~-]*(?<!\.)(?:/(?!$)|$))*"
)
# The "special" schemes of WHATWG URL except `file`, with their default ports.
_DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}


class UriForms(Struct, frozen=True):
    """The readings of a URI."""

    # With and without query and fragment: an allow rule must cover both.
    whole: tuple[str, ...]
    paths: tuple[str, ...]
    # Additional readings of lenient targets, such as those that ignore the host of a file: URI: for deny rules only.
    lenient: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        yield from self.whole
        yield from self.paths
        yield from self.lenient


def uri_variants(uri: str) -> UriForms:
    """Return every reading of a URI."""
    if _PLAIN.fullmatch(uri):
        return UriForms((uri,), (), ())
    return _cached_forms(uri) if len(uri) <= MAX_CACHED_CHARS else _find_forms(uri)


def _find_forms(uri: str) -> UriForms:
    forms = _possible_forms(uri)
    paths = _possible_forms(*(without for item in forms if (without := _TAIL.sub("", item)) != item))
    # An attacker needs one reader that resolves a URI to a denied resource, so deny rules are checked against
    # all readings.
    lenient = dict.fromkeys(form for item in (*forms, *paths) for form in _lenient_readings(item))
    for item in forms:
        compatible = item if item.isascii() else unicodedata.normalize("NFKC", item).translate(SLASHES)
        if compatible != item:
            # A target that normalizes first reads full-width letters and slashes as letters and slashes.
            lenient |= dict.fromkeys(_possible_forms(compatible))
    for inner in dict.fromkeys(inner for item in (*forms, *paths) for inner in _inner_uris(item)):
        lenient |= dict.fromkeys(_possible_forms(inner))
    return UriForms(
        tuple(forms),
        tuple(form for form in paths if form not in forms),
        tuple(form for form in lenient if form not in forms and form not in paths),
    )


_cached_forms = lru_cache(maxsize=4096)(_find_forms)


def _inner_uris(uri: str) -> Iterator[str]:
    """Return the URI that another one contains, and the archive in a `jar:` URI."""
    match = _OUTER_SCHEMES.match(uri)
    if match is not None:
        inner = uri[match.end() :]
        yield inner
        if "!" in inner:
            yield inner.partition("!")[0]


def _possible_forms(*uris: str) -> dict[str, None]:
    """Return the URIs unchanged and decoded up to MAX_DECODES times, each with its dot segments resolved.

    Resolution is done in every usual way: with the host separate or as part of the path, with `//` preserved or merged,
    before or after decoding.
    """
    result = dict.fromkeys(uris)
    queue = [(uri, 0) for uri in result]
    # The list grows while it is read; `result` stops it at forms that are known already.
    for text, decodes in queue:
        others = [(form, decodes) for form in _resolve_forms(text)]
        if "%" in text and decodes < MAX_DECODES:
            others.append((unquote(text), decodes + 1))
        for form, depth in others:
            if form not in result:
                result[form] = None
                queue.append((form, depth))
    return result


def _resolve_forms(uri: str) -> Iterator[str]:
    # WHATWG URL drops tabs and newlines anywhere, and treats a backslash as a slash in special schemes.
    plain = uri.translate(_DROPPED).replace("\\", "/").strip("\x00 ")
    match = _SCHEME.fullmatch(plain)
    scheme, rest = (match[1].lower() + ":", match[2]) if match else ("", plain)
    # For targets that treat everything after `://` as a path.
    mark = "//" if rest.startswith("//") else ""
    yield f"{scheme}{mark}{_resolve_path(rest[len(mark) :], merge=True)}"
    authority, path = _split_authority(scheme, rest)
    tail = _TAIL.search(path)
    end = "" if tail is None else tail[0]
    path = path if tail is None else path[: tail.start()]
    for merge in (False, True):
        resolved = _resolve_path(path, merge=merge)
        yield _join(scheme, authority, resolved + end)


def _split_authority(scheme: str, rest: str) -> tuple[str | None, str]:
    """Return the authority, or None, and the path with query and fragment, as WHATWG URL splits them."""
    if scheme == "file:" and not rest.startswith("//"):
        return "", f"/{rest.lstrip('/')}"
    # WHATWG URL ignores the number of slashes here: `https:example.com` and `https:////example.com` are the
    # same URL.
    if scheme.removesuffix(":") in _DEFAULT_PORTS:
        rest = "//" + rest.lstrip("/")
    if not rest.startswith("//"):
        return None, rest
    end = re.search(r"[/?#]", rest[2:])
    at = len(rest) if end is None else end.start() + 2
    authority, path = rest[2:at], rest[at:]
    if scheme == "file:" and authority.lower() == "localhost":
        return "", path
    # `file://C:/x` is common on Windows although the authority should be empty.
    if scheme == "file:" and _DRIVE.fullmatch(authority):
        return "", f"/{authority[0]}:{path}"
    return authority, path


def _resolve_path(path: str, *, merge: bool) -> str:
    """Remove dot segments from a path (RFC 3986, section 5.2.4).

    `merge`: remove empty segments first, as `normpath` does; WHATWG URL preserves them, and `..` removes them.
    """
    parts: list[str] = []
    start = "/" * path.startswith("/")
    names = path[len(start) :].split("/")
    for at, part in enumerate(names):
        dots, last = _DOT.sub(".", part), at == len(names) - 1
        if dots == "..":
            # A slice, because `..` at the root has nothing to remove and is ignored (RFC 3986, section 5.2.4).
            del parts[-1:]
        elif dots != "." and not (merge and not part and not last):
            parts.append(part)
            continue
        if last and parts:
            parts.append("")
    if parts and start and re.fullmatch(r"[A-Za-z]\|", parts[0]):
        parts[0] = f"{parts[0][0]}:"
    return start + "/".join(parts)


def canonical_spellings(uri: str) -> tuple[str, ...]:
    """Return a URI, or a glob of URIs, as written and in canonical spelling, if that differs.

    Unlike `uri_variants`, this adds no reading that could be another resource.
    """
    result = _possible_forms(uri)
    for item in (*result,):
        scheme, authority, path = _split(item)
        host = None if authority is None else _canonical_host(scheme, authority)
        result.setdefault(_join(scheme, host, path))
        result.setdefault(_join(scheme, host, _without_slash(path)))
    return tuple(result)


def _lenient_readings(uri: str) -> Iterator[str]:
    scheme, authority, path = _split(uri)
    paths = dict.fromkeys((path, _PARAMETERS.sub("", path)))
    for item in (*paths,):
        # `normpath` and `pathlib` drop a trailing slash.
        paths.setdefault(_without_slash(item))
    hosts = dict.fromkeys((authority,) if authority is None else (authority, _canonical_host(scheme, authority)))
    if scheme == "file:":
        # `urlsplit(uri).path` is the same for every host.
        hosts.setdefault("")
        for item in (*paths,):
            paths.setdefault(_WINDOWS_SUFFIX.sub("", item))
    for host in hosts:
        for item in paths:
            yield _join(scheme, host, item)
            yield _join(scheme, host, _resolve_path(item, merge=True))


def _split(uri: str) -> tuple[str, str | None, str]:
    """Return the scheme with its colon, the authority or None, and the rest."""
    match = _SCHEME.fullmatch(uri)
    scheme, rest = (match[1].lower() + ":", match[2]) if match else ("", uri)
    return scheme, *_split_authority(scheme, rest)


def _join(scheme: str, authority: str | None, path: str) -> str:
    return f"{scheme}{path}" if authority is None else f"{scheme}//{authority}{path}"


def _without_slash(path: str) -> str:
    return path.rstrip("/") or path[:1]


def _canonical_host(scheme: str, authority: str) -> str:
    """Return the host as WHATWG URL serializes it, but in Unicode, with any port other than the default."""
    # The part before the last `@` is user info, even if it looks like a host:
    # `https://good.example@evil.example`.
    host = authority.rpartition("@")[2]
    if host.startswith("["):
        host, _, port = host.partition("]")
        host, port = _canonical_ipv6(host[1:]), port.removeprefix(":")
    else:
        host, _, port = host.partition(":")
        # As UTS 46 maps host names: full-width letters and the ideographic full stop are equal to ASCII ones
        # for resolvers.
        decoded = unicodedata.normalize("NFKC", unquote(host)).casefold().replace("\u3002", ".")
        decoded = "".join(char for char in decoded if unicodedata.category(char) != "Cf")
        host = ".".join(map(_decode_label, (decoded.removesuffix(".") or decoded).split(".")))
        host = _decode_ipv4(host) or host
    port = port.lstrip("0") if port.isascii() and port.isdigit() else port
    return host if not port or port == _DEFAULT_PORTS.get(scheme.removesuffix(":")) else f"{host}:{port}"


def _canonical_ipv6(address: str) -> str:
    # Imported lazily: few URIs need it, and the module loads slowly.
    from ipaddress import AddressValueError, IPv6Address

    try:
        return f"[{IPv6Address(address).compressed}]"
    except AddressValueError:
        return f"[{address}]"


def _decode_label(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        return label[4:].encode("ascii").decode("punycode")
    except UnicodeError:
        return label


def _decode_ipv4(host: str) -> str | None:
    """Return the dotted form of an IPv4 address in hexadecimal, octal or fewer numbers; None for other hosts."""
    numbers = []
    parts = host.split(".")
    for part in parts:
        match = re.fullmatch(r"(0x)([0-9a-f]*)|(0)([0-7]+)|([0-9]+)", part)
        if match is None or len(part) > 32:
            return None
        digits, base = (match[2], 16) if match[1] else (match[4], 8) if match[3] else (match[5], 10)
        numbers.append(int(digits or "0", base))
    # As `inet_aton`: 127.1, 0x7f000001 and 2130706433 all are 127.0.0.1, which rules for internal addresses
    # must see.
    if len(parts) > 4 or any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(parts)):
        return None
    value = numbers[-1] + sum(number << 8 * (3 - at) for at, number in enumerate(numbers[:-1]))
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))
