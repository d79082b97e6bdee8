"""One HTTP/1.1 connection to a server: one exchange at a time, with bounded responses."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

import httptools

from portico.caching import LruCache
from portico.protocol.errors import ConnectError, ConnectionClosed, ProtocolError

MAX_HEAD_BYTES = 64 * 1024
# Unread bytes of a body before reading from the socket is paused.
READ_AHEAD_BYTES = 256 * 1024
# Limits of the cache of response heads.
MAX_CACHED_HEADS, MAX_CACHED_HEAD_BYTES = 256, 2048
# Probe after a minute of silence, and give up after another.
_TCP_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _TCP_KEEP_ALIVE.items()
        if hasattr(socket, name)
    ),
]


class HttpClientResponse:
    """Response whose head is available immediately and whose body follows. Read it to the end, or close it."""

    __slots__ = ("_body", "connection", "done", "headers", "status")

    def __init__(self, connection: HttpClientConnection, status: int, headers: dict[str, str]) -> None:
        self.status = status
        # Lower-case names; repeated headers are joined (RFC 9110, section 5.3).
        self.headers = headers
        self.connection = connection
        # The caller is done with the response, and the connection may already serve another exchange.
        self.done = False
        self._body: bytes | None = None

    @property
    def media_type(self) -> str:
        """Return the media type without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def body_if_complete(self, max_bytes: int) -> bytes | None:
        """Return the whole body if it has arrived in one piece and fits `max_bytes`, else None."""
        body = None if self.done or self._body is not None else self.connection.body_if_complete()
        if body is not None and len(body) <= max_bytes:
            self._body = body
            return body
        return None if body is None else self._too_long(max_bytes)

    def _too_long(self, longest: int) -> NoReturn:
        self._body = None
        self.connection.abort()
        raise ProtocolError(f"the response is longer than {longest} bytes")

    async def read_chunk(self) -> bytes:
        """Return the next part of the body, or an empty value at its end."""
        return b"" if self.done else await self.connection.read_chunk()

    async def read(self, max_bytes: int) -> bytes:
        """Return the whole body, also on repeated calls. Raises `ProtocolError` if it exceeds `max_bytes`."""
        if self._body is not None:
            return self._body
        if self.body_if_complete(max_bytes) is None:
            # Not a list of parts: many small objects use several times the memory of their contents.
            body = bytearray()
            while len(body) <= max_bytes and (part := await self.read_chunk()):
                body += part
            self._body = bytes(body)
            if len(body) > max_bytes:
                self._too_long(max_bytes)
        assert self._body is not None
        return self._body

    def discard_body(self) -> None:
        """Treat the body as empty."""
        self._body = b""


def _is_readable(sock: Any) -> Callable[[], Any]:
    """Return a function that checks, without blocking, whether a socket has data to read."""
    if not hasattr(select, "poll"):
        return lambda: select.select([sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return partial(poll.poll, 0)


class CachedResponseHead(NamedTuple):
    """Parsed head of a response, and the length of the body that follows it."""

    status: int
    headers: dict[str, str]
    content_length: int


class HttpClientConnection(asyncio.Protocol):
    """Parses responses with llhttp.

    `head_cache` holds parsed heads. Servers repeat the same head for most responses; an identical head with the whole
    body behind it, and nothing else, is not parsed again.
    """

    def __init__(self, head_cache: LruCache[bytes, CachedResponseHead] | None = None) -> None:
        self._head_cache: LruCache[bytes, CachedResponseHead] = (
            LruCache(MAX_CACHED_HEADS) if head_cache is None else head_cache
        )
        # Nothing of the response has arrived yet.
        self._fresh = False
        self.ended = False
        # Whether another request may be sent on the connection.
        self.reusable = False
        self.idle_since = 0.0
        # Whether the socket has data to read. On an idle connection that can only be its end.
        self.is_readable: Callable[[], Any] = lambda: False
        self.transport: Any = None
        # The address of the server, unless a proxy is in between.
        self.peer: str | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head: asyncio.Future[HttpClientResponse] | None = None
        self._headers: dict[str, str] = {}
        self._size = 0
        # Bytes since the last parsed unit: the parser buffers a line until it ends.
        self._unparsed_bytes = 0
        self._parts: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._paused = False
        self._waiting: asyncio.Future[None] | None = None
        self._busy = False
        self._complete = False
        self._until_end = False
        self._keep = False
        self._failure: Exception | None = None

    # One exchange

    def send_request(self, request: bytes) -> asyncio.Future[HttpClientResponse]:
        """Send a request. Return a future of its response head; discard the connection if it is not awaited."""
        if self.ended:
            raise ConnectError("the server sent data before a request, or closed the connection")
        self._headers, self._size, self._unparsed_bytes = {}, 0, 0
        self._complete = self._until_end = self._keep = self.reusable = False
        self._busy = self._fresh = True
        self._head = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._head

    def body_if_complete(self) -> bytes | None:
        """Return the body if it has arrived in one piece, as most do, else None."""
        if not self._complete or len(self._parts) != 1 or self._paused or self._failure is not None:
            return None
        self._busy = False
        part = self._parts.popleft()
        self._buffered_bytes -= len(part)
        return part

    async def read_chunk(self) -> bytes:
        while not self._parts:
            if self._failure is not None:
                raise self._failure
            if self._complete:
                self._busy = False
                return b""
            if self.ended:
                raise ConnectionClosed("the server closed the connection in the middle of its response")
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        part = self._parts.popleft()
        self._buffered_bytes -= len(part)
        if self._paused and self._buffered_bytes < READ_AHEAD_BYTES:
            self._paused = False
            self.transport.resume_reading()
        return part

    def release(self) -> None:
        """Finish the response. The connection becomes reusable only if the whole response was read."""
        if self._complete and not self._parts and not self.ended:
            self._busy = False
            self.reusable = self._keep
        else:
            self.abort()

    def abort(self) -> None:
        self.ended = True
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # A stream may be idle for hours while its server disappears without closing the connection.
            for level, option, value in _KEEP_ALIVE:
                sock.setsockopt(level, option, value)
            self.is_readable = _is_readable(sock)

    def eof_received(self) -> None:
        # Pending data is still parsed; asyncio then closes the transport.
        self._keep = self.reusable = False

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            # Unsolicited data would be taken for the response to the next request (response splitting).
            self.abort()
            return
        fresh, self._fresh = self._fresh, False
        if fresh and self._match_cached_head(data):
            return
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if fresh and self._complete and self._keep:
                self._cache_head(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as failure:
            self._fail(self._failure or ProtocolError(f"the response is not valid HTTP: {failure}"))
        else:
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._fail(self._too_long())
        if self._waiting is not None:
            self._wake()

    def _match_cached_head(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n") + 4
        cached = self._head_cache.peek(data[:end])
        if cached is None or len(data) != end + cached.content_length or self._head is None or self._head.done():
            return False
        self._complete = self._keep = True
        self._parts.append(data[end:])
        self._buffered_bytes += cached.content_length
        self._head.set_result(HttpClientResponse(self, cached.status, cached.headers))
        return True

    def _cache_head(self, data: bytes) -> None:
        end, headers = data.find(b"\r\n\r\n") + 4, self._headers
        length = len(data) - end
        framed = headers.get("content-length") == str(length) and "transfer-encoding" not in headers
        if framed and length and end <= MAX_CACHED_HEAD_BYTES and self._parser.get_status_code() == 200:
            self._head_cache[data[:end]] = CachedResponseHead(200, headers, length)

    def connection_lost(self, failure: Exception | None) -> None:
        self.ended = True
        self.reusable = False
        if self._until_end and failure is None:
            self._complete = True
        if self._head is not None and not self._head.done():
            self._head.set_exception(ConnectionClosed("the server closed the connection without a response"))
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"the head of the response is longer than {MAX_HEAD_BYTES} bytes")

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        if self._head is not None and not self._head.done():
            self._head.set_exception(failure)
        self.abort()

    # llhttp callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._failure = ProtocolError("the server sent two responses to one request")
            raise self._failure

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value) + 32
        if self._size > MAX_HEAD_BYTES:
            self._failure = self._too_long()
            raise self._failure
        if self._head is None or self._head.done():
            return  # a trailer, which must not be merged into the headers (RFC 9110, section 6.5.1)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        previous = self._headers.get(key)
        self._headers[key] = text if previous is None else f"{previous}, {text}"

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            # Informational responses such as 102 precede the final one.
            self._headers = {}
            return
        self._unparsed_bytes = 0
        self._keep = self._parser.should_keep_alive()
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._until_end = not framed and status not in (204, 304)
        if self._head is not None and not self._head.done():
            self._head.set_result(HttpClientResponse(self, status, self._headers))

    def on_body(self, data: bytes) -> None:
        self._unparsed_bytes = 0
        self._parts.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > READ_AHEAD_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete = True
