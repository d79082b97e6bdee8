"""The head of a usual POST, read line by line, and each line once: the same ones come again and again.

This takes less than the parser does, and never anything else: what is not plain is left to that.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from portico.transport.http.headers import Headers

MOST_KNOWN = 1024
MOST_LINES = 100

_START = re.compile(rb"POST (/[A-Za-z0-9/._~-]*) HTTP/1\.1").fullmatch
_LINE = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]+): ?([!-~](?:[ -~]*[!-~])?)").fullmatch
# What these say changes how a message is read, or what is done with the connection.
_STEERING = frozenset({b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect"})

# Lines that differ from one request to the next, and by which nothing is judged: the length, which is held against the
# body, and what follows a request through a system.
_VARYING = re.compile(
    rb"\r\n([Cc]ontent-[Ll]ength|[Xx]-[Rr]equest-[Ii][Dd]|[Xx]-[Cc]orrelation-[Ii][Dd]|[Tt]race(?:parent|state))"
    rb": ?([!-~]+)(?=\r\n[^ \t])"
).split

T = TypeVar("T")


def split_head(head: bytes) -> tuple[tuple[bytes, ...], list[tuple[bytes, bytes]]]:
    """What is the same in the heads of a client: all but the values of the lines that vary. And those lines."""
    parts = _VARYING(head)
    names = [name.lower() for name in parts[1::3]]
    return (b"".join(parts[::3]), *names), list(zip(names, parts[2::3], strict=True))


class PlainHeads:
    """Reads heads, and remembers the lines of those it has read."""

    def __init__(self) -> None:
        self._paths: dict[bytes, str] = {}
        self._lines: dict[bytes, tuple[bytes, bytes]] = {}

    def read(self, head: bytes, length: int) -> tuple[str, Headers] | None:
        """The path and the headers of a head with a body of this length behind it; None for what is not plain."""
        first, *lines = head.split(b"\r\n")
        # Behind the last line there are two ends of one.
        del lines[-2:]
        if len(lines) > MOST_LINES:
            return None
        pairs: list[Any] = [*map(self._lines.get, lines)]
        try:
            path = self._paths.get(first) or self._path(first)
            while None in pairs:
                new = pairs.index(None)
                pairs[new] = self._pair(lines[new])
        except _NotPlain:
            return None
        headers = Headers(pairs)
        once = len(headers) == len(lines)
        if not once or b"host" not in headers or headers.get(b"content-length") != b"%d" % length:
            return None
        return path, headers

    def _path(self, first: bytes) -> str:
        found = _START(first)
        if found is None:
            raise _NotPlain
        return _keep(self._paths, first, found[1].decode())

    def _pair(self, line: bytes) -> tuple[bytes, bytes]:
        found = _LINE(line)
        if found is None:
            raise _NotPlain
        name, value = found[1].lower(), found[2]
        if name in _STEERING and (name != b"connection" or value.lower() != b"keep-alive"):
            raise _NotPlain
        return _keep(self._lines, line, (name, value))


class _NotPlain(Exception):
    """The parser is to read it."""


def _keep(known: dict[bytes, T], line: bytes, read: T) -> T:
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[line] = read
    return read
