"""What a door gives the exchange to answer into."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, final

from msgspec import Struct

from portico.transports.http_server.headers import Headers

Pairs = tuple[tuple[bytes, bytes], ...]

JSON: Pairs = ((b"content-type", b"application/json"),)
TEXT: Pairs = ((b"content-type", b"text/plain; charset=utf-8"),)


# A reader of events that is this far behind loses log messages and progress; twice that, its connection.
MOST_UNREAD = 1024 * 1024


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode the header lines of a response. Raises ValueError for a name or value that contains CR, LF or NUL."""
    lines = [b"%b: %b\r\n" % pair for pair in headers]
    encoded = b"".join(lines)
    if encoded.count(b"\n") != len(lines) or encoded.count(b"\r") != len(lines) or b"\0" in encoded:
        raise ValueError("a response header must not contain line breaks or NUL")
    return encoded


class Traffic:
    """Bytes of messages, both ways; and the calls in flight by where they came from."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.by_client: dict[str, int] = {}


Internal = Literal["", "machine", "network"]
"""Empty for a listener that clients use; else whose workers it is for: those of this machine, or of others too."""


@final
class Request(Struct):
    """One HTTP request, its body complete."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes = b""
    # Where it came from, for limits by client.
    peer: str = ""
    # Where we are mounted, in front of `path`.
    root: str = ""
    # For a page whose origin was let in: what the response says to its browser.
    cors: Pairs = ()
    principal: Any = None
    # When that ends, in seconds since 1970: a stream that nothing else would end does then.
    until: float | None = None
    # Whether it came by TLS, and whether by a trusted proxy.
    secure: bool = False
    proxied: bool = False
    # How many other processes have sent it on to us.
    hops: int = 0
    # Which listener for other processes it came by: that of this machine, or that of other machines.
    internal: Internal = ""
    # Whether the last of them wants us to find its session.
    seeks: bool = False


class Answer(Struct):
    """One whole HTTP response."""

    status: int
    headers: Pairs = ()
    body: bytes = b""


class ResponseWriter(Protocol):
    """The way back to one request's client: either one `answer`, or `start`, some `write`s and `end`."""

    # Called once if the client goes away before the end.
    on_close: Callable[[], None] | None

    def answer(self, answer: Answer) -> None: ...
    def start(self, status: int, headers: Pairs) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None:
        """Drop a client that is too far behind."""
        ...

    def buffered(self) -> int:
        """How much the client has not read yet."""
        ...

    async def drain(self) -> None: ...
