"""HTTP requests, responses, and the response writer interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, final

from msgspec import Struct

from portico.transports.http_server.headers import Headers

HeaderPairs = tuple[tuple[bytes, bytes], ...]

JSON_HEADERS: HeaderPairs = ((b"content-type", b"application/json"),)
TEXT_HEADERS: HeaderPairs = ((b"content-type", b"text/plain; charset=utf-8"),)


# A client with this many unread bytes loses log messages and progress; with twice as many, its connection.
MAX_UNREAD_BYTES = 1024 * 1024


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode the header lines of a response. Raises `ValueError` for a name or value with CR, LF or NUL (response
    splitting).
    """
    lines = [b"%b: %b\r\n" % pair for pair in headers]
    encoded = b"".join(lines)
    if encoded.count(b"\n") != len(lines) or encoded.count(b"\r") != len(lines) or b"\0" in encoded:
        raise ValueError("a response header must not contain line breaks or NUL")
    return encoded


class TrafficCounters:
    """Bytes of messages in both directions, and calls in flight by client."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.in_flight_by_client: dict[str, int] = {}


Internal = Literal["", "machine", "network"]
"Empty for a listener for clients; otherwise the workers it is for: of this machine only, or of other machines too."


@final
class HttpRequest(Struct):
    """One HTTP request with its complete body."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes = b""
    # Address of the client, for limits per client.
    peer: str = ""
    # Mount point, in front of `path`.
    root: str = ""
    # CORS headers of the response, for a page whose origin is allowed.
    cors: HeaderPairs = ()
    principal: Any = None
    # Expiry of the credentials in seconds since the epoch. Streams without an end are closed then.
    until: float | None = None
    # Whether it arrived over TLS, and through a trusted proxy.
    secure: bool = False
    proxied: bool = False
    # Number of processes that forwarded it.
    hops: int = 0
    # The kind of internal listener it arrived at.
    internal: Internal = ""
    # Whether the forwarding process asks this one to locate the session.
    seeks: bool = False


class HttpResponse(Struct):
    """One complete HTTP response."""

    status: int
    headers: HeaderPairs = ()
    body: bytes = b""


class ResponseWriter(Protocol):
    """Writer of one response: either a single `respond`, or `start`, any number of `write`s and `end`."""

    # Called once if the client disconnects before the end.
    on_close: Callable[[], None] | None

    def respond(self, response: HttpResponse) -> None: ...
    def start(self, status: int, headers: HeaderPairs) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None:
        """Disconnect a client that is too slow."""
        ...

    def buffered_bytes(self) -> int:
        """Return the number of bytes that the client has not read yet."""
        ...

    async def drain(self) -> None: ...
