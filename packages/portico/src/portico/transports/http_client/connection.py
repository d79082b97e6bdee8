"""One HTTP/1.1 connection to a server: one exchange at a time, and the response is bounded."""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, NoReturn

import httptools

from portico.protocol.errors import Closed, ConnectFailed, ProtocolError

LONGEST_HEAD = 64 * 1024
# How much of a body may lie here unread before the server is asked to wait.
AHEAD = 256 * 1024
# Of the heads that were read, those that are kept.
MOST_KNOWN, LONGEST_KNOWN = 256, 2048
# Asked after a minute of silence, and given up after another.
_WHEN = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _WHEN.items() if hasattr(socket, name)),
]


class Response:
    """A response: its head at once, its body as it comes. Read it to the end, or close it."""

    __slots__ = ("_body", "connection", "done", "headers", "status")

    def __init__(self, connection: HttpConnection, status: int, headers: dict[str, str]) -> None:
        self.status = status
        # Names in lower case; what came more than once is joined, as RFC 9110, section 5.3 has it.
        self.headers = headers
        self.connection = connection
        # The caller is done with it, and the connection may be in use for another exchange by now.
        self.done = False
        self._body: bytes | None = None

    @property
    def kind(self) -> str:
        """The media type, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def whole(self, longest: int) -> bytes | None:
        """All of the body, if it is here already, in one piece, and no longer than that."""
        body = None if self.done or self._body is not None else self.connection.whole_body()
        if body is not None and len(body) <= longest:
            self._body = body
            return body
        return None if body is None else self._too_long(longest)

    def _too_long(self, longest: int) -> NoReturn:
        self._body = None
        self.connection.drop()
        raise ProtocolError(f"the answer is longer than {longest} bytes")

    async def more(self) -> bytes:
        """The next piece of the body; empty at its end."""
        return b"" if self.done else await self.connection.more()

    async def read(self, longest: int) -> bytes:
        """All of the body, also when it is asked for again. What is longer than `longest` is not read."""
        if self._body is not None:
            return self._body
        if self.whole(longest) is None:
            # Not a list of pieces: many small ones take many times the room of what is in them.
            body = bytearray()
            while len(body) <= longest and (part := await self.more()):
                body += part
            self._body = bytes(body)
            if len(body) > longest:
                self._too_long(longest)
        assert self._body is not None
        return self._body

    def forgo(self) -> None:
        """Treat the body as empty."""
        self._body = b""


def _is_readable(sock: Any) -> Callable[[], Any]:
    """A question that can be asked again and again without waiting: whether the socket has something to read."""
    if not hasattr(select, "poll"):
        return lambda: select.select([sock], [], [], 0)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return partial(poll.poll, 0)


class KnownHead(NamedTuple):
    """What the head of a response said, and how long the body is behind it."""

    status: int
    headers: dict[str, str]
    length: int


class HttpConnection(asyncio.Protocol):
    """Bytes to Responses, by llhttp.

    `known`: heads that were read before. A server says much the same before each answer; a head that was read once, to
    the byte, with the whole body behind it and nothing else, is not read again.
    """

    def __init__(self, known: dict[bytes, KnownHead] | None = None) -> None:
        self._known = {} if known is None else known
        # Nothing of the response has come yet.
        self._fresh = False
        self.ended = False
        # Whether another request may be sent on it.
        self.reusable = False
        self.idle_since = 0.0
        # Whether the socket has something to read. While it is idle that can only be its end.
        self.is_readable: Callable[[], Any] = lambda: False
        self.transport: Any = None
        # The address that was connected to, unless a proxy is between us.
        self.peer: str | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head: asyncio.Future[Response] | None = None
        self._headers: dict[str, str] = {}
        self._size = 0
        # Bytes since the last that were of any use: the parser holds on to a line until it ends.
        self._useless = 0
        self._parts: deque[bytes] = deque()
        self._ahead = 0
        self._paused = False
        self._waiting: asyncio.Future[None] | None = None
        self._busy = False
        self._complete = False
        self._until_end = False
        self._keep = False
        self._failure: Exception | None = None

    # One exchange

    def exchange(self, request: bytes) -> asyncio.Future[Response]:
        """Send a request. The future is the head of its response; drop the connection if that is not waited for."""
        if self.ended:
            raise ConnectFailed("the server spoke before it was asked, or closed the connection")
        self._headers, self._size, self._useless = {}, 0, 0
        self._complete = self._until_end = self._keep = self.reusable = False
        self._busy = self._fresh = True
        self._head = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._head

    def whole_body(self) -> bytes | None:
        """The body, if it came in one piece and is here already, as most do."""
        if not self._complete or len(self._parts) != 1 or self._paused or self._failure is not None:
            return None
        self._busy = False
        part = self._parts.popleft()
        self._ahead -= len(part)
        return part

    async def more(self) -> bytes:
        while not self._parts:
            if self._failure is not None:
                raise self._failure
            if self._complete:
                self._busy = False
                return b""
            if self.ended:
                raise Closed("the server closed the connection in the middle of its answer")
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        part = self._parts.popleft()
        self._ahead -= len(part)
        if self._paused and self._ahead < AHEAD:
            self._paused = False
            self.transport.resume_reading()
        return part

    def leave(self) -> None:
        """Done with this response. If there is more of it to come, the connection cannot be used any more."""
        if self._complete and not self._parts and not self.ended:
            self._busy = False
            self.reusable = self._keep
        else:
            self.drop()

    def drop(self) -> None:
        self.ended = True
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()

    # What asyncio says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # A stream may be silent for hours, and its server gone without a word.
            for level, option, value in _KEEP_ALIVE:
                sock.setsockopt(level, option, value)
            self.is_readable = _is_readable(sock)

    def eof_received(self) -> None:
        # What can still be read is read; asyncio then closes the transport.
        self._keep = self.reusable = False

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            # A server that says something unasked would be answering the next request.
            self.drop()
            return
        fresh, self._fresh = self._fresh, False
        if fresh and self._take_known(data):
            return
        self._useless += len(data)
        try:
            self._parser.feed_data(data)
            if fresh and self._complete and self._keep:
                self._remember(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as failure:
            self._fail(self._failure or ProtocolError(f"the answer is not HTTP: {failure}"))
        else:
            if self._useless > LONGEST_HEAD:
                self._fail(self._too_long())
        if self._waiting is not None:
            self._wake()

    def _take_known(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n") + 4
        known = self._known.get(data[:end])
        if known is None or len(data) != end + known.length or self._head is None or self._head.done():
            return False
        self._complete = self._keep = True
        self._parts.append(data[end:])
        self._ahead += known.length
        self._head.set_result(Response(self, known.status, known.headers))
        return True

    def _remember(self, data: bytes) -> None:
        end, headers = data.find(b"\r\n\r\n") + 4, self._headers
        length = len(data) - end
        framed = headers.get("content-length") == str(length) and "transfer-encoding" not in headers
        if framed and length and end <= LONGEST_KNOWN and self._parser.get_status_code() == 200:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[data[:end]] = KnownHead(200, headers, length)

    def connection_lost(self, failure: Exception | None) -> None:
        self.ended = True
        self.reusable = False
        if self._until_end and failure is None:
            self._complete = True
        if self._head is not None and not self._head.done():
            self._head.set_exception(Closed("the server closed the connection without an answer"))
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"the head of the answer is longer than {LONGEST_HEAD} bytes")

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        if self._head is not None and not self._head.done():
            self._head.set_exception(failure)
        self.drop()

    # What llhttp says

    def on_message_begin(self) -> None:
        if self._complete:
            self._failure = ProtocolError("the server gave two answers to one request")
            raise self._failure

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value) + 32
        if self._size > LONGEST_HEAD:
            self._failure = self._too_long()
            raise self._failure
        if self._head is None or self._head.done():
            return  # a trailer, which is not to be taken for a header (RFC 9110, section 6.5.1)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            # 102 and its like only say that it takes a while.
            self._headers = {}
            return
        self._useless = 0
        self._keep = self._parser.should_keep_alive()
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._until_end = not framed and status not in (204, 304)
        if self._head is not None and not self._head.done():
            self._head.set_result(Response(self, status, self._headers))

    def on_body(self, data: bytes) -> None:
        self._useless = 0
        self._parts.append(data)
        self._ahead += len(data)
        if self._ahead > AHEAD and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete = True
