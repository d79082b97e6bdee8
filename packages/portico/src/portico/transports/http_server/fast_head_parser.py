"""Parser for simple POST heads with a cache of lines: clients repeat the same lines.

It accepts a strict subset of what llhttp accepts, and leaves everything else to llhttp.
"""

from __future__ import annotations

import re

from portico.caching import LruCache
from portico.transports.http_server.headers import Headers

MAX_CACHED_LINES = 1024
# Bounds the work per head. Heads of MCP clients have about ten lines.
MAX_HEADER_LINES = 100

# Neither regex accepts anything that two HTTP implementations could read differently: no percent-encoding or
# query in the path, no obsolete line folding, no control characters, no space before the colon. Differences
# between this parser and a proxy's would permit request smuggling.
_REQUEST_LINE = re.compile(rb"POST (/[A-Za-z0-9/._~-]*) HTTP/1\.1").fullmatch
_HEADER_LINE = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+): ?([!-~](?:[ -~]*[!-~])?)").fullmatch
# Headers that influence the framing of messages or the handling of the connection.
_CONTROL_HEADERS = frozenset({b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect"})


class FastHeadParser:
    """Parses heads, and caches parsed lines."""

    def __init__(self) -> None:
        self._paths = _RequestLineCache(MAX_CACHED_LINES)
        self._lines = _HeaderLineCache(MAX_CACHED_LINES)

    def parse(self, head: bytes, length: int) -> tuple[str, Headers] | None:
        """Return the path and headers of a head with a body of this length, or None if llhttp has to parse it."""
        parts = head.split(b"\r\n")
        # The head ends with an empty line.
        lines = parts[1:-2]
        if len(lines) > MAX_HEADER_LINES:
            return None
        try:
            path = self._paths[parts[0]]
            headers = Headers(map(self._lines.__getitem__, lines))
        except KeyError:
            return None
        # Repeated headers go to llhttp, which reports them for the duplicate checks. The length must equal what
        # the connection used to find the end of the body, otherwise rest and next request would be confused.
        once = len(headers) == len(lines)
        if not once or b"host" not in headers or headers.get(b"content-length") != b"%d" % length:
            return None
        return path, headers


class _RequestLineCache(LruCache[bytes, str]):
    """Paths of request lines. Parses lines that are not cached. Raises KeyError if llhttp has to."""

    def __missing__(self, first: bytes) -> str:
        result = _REQUEST_LINE(first)
        if result is None:
            raise KeyError(first)
        self[first] = path = result[1].decode()
        return path


class _HeaderLineCache(LruCache[bytes, tuple[bytes, bytes]]):
    """Names and values of header lines. Parses lines that are not cached. Raises KeyError if llhttp has to."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes]:
        result = _HEADER_LINE(line)
        if result is None:
            raise KeyError(line)
        name, value = result[1].lower(), result[2]
        if name in _CONTROL_HEADERS and (name != b"connection" or value.lower() != b"keep-alive"):
            raise KeyError(line)
        self[line] = pair = (name, value)
        return pair
