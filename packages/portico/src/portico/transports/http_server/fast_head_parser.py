"""The head of a usual POST, read line by line, and each line once: the same ones come again and again.

This takes less than the parser does, and never anything else: what is not plain is left to that.
"""

from __future__ import annotations

import re

from portico.transports.http_server.headers import Headers

MOST_KNOWN = 1024
MOST_LINES = 100

_START = re.compile(rb"POST (/[A-Za-z0-9/._~-]*) HTTP/1\.1").fullmatch
_LINE = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+): ?([!-~](?:[ -~]*[!-~])?)").fullmatch
# What these say changes how a message is read, or what is done with the connection.
_STEERING = frozenset({b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect"})


class PlainHeads:
    """Reads heads, and remembers the lines of those it has read."""

    def __init__(self) -> None:
        self._paths = _Paths()
        self._lines = _Pairs()

    def read(self, head: bytes, length: int) -> tuple[str, Headers] | None:
        """The path and the headers of a head with a body of this length behind it; None for what is not plain."""
        parts = head.split(b"\r\n")
        # Behind the last line there are two ends of one.
        lines = parts[1:-2]
        if len(lines) > MOST_LINES:
            return None
        try:
            path = self._paths[parts[0]]
            headers = Headers(map(self._lines.__getitem__, lines))
        except _NotPlain:
            return None
        once = len(headers) == len(lines)
        if not once or b"host" not in headers or headers.get(b"content-length") != b"%d" % length:
            return None
        return path, headers


class _NotPlain(Exception):
    """The parser is to read it."""


class _Paths(dict[bytes, str]):
    """The paths of first lines. Those that are not there yet are read. Raises _NotPlain."""

    def __missing__(self, first: bytes) -> str:
        found = _START(first)
        if found is None:
            raise _NotPlain
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[first] = path = found[1].decode()
        return path


class _Pairs(dict[bytes, tuple[bytes, bytes]]):
    """The same for names and values of the other lines."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes]:
        found = _LINE(line)
        if found is None:
            raise _NotPlain
        name, value = found[1].lower(), found[2]
        if name in _STEERING and (name != b"connection" or value.lower() != b"keep-alive"):
            raise _NotPlain
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[line] = pair = (name, value)
        return pair
