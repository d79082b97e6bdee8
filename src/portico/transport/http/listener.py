"""Our own door: an asyncio Protocol on llhttp's parser. Keep-alive, pipelining in order, strict framing, deadlines."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from msgspec import Struct

from portico.transport.http.exchange import KEEP_ALIVE_SECONDS, Exchange
from portico.transport.http.headers import Headers
from portico.transport.http.outlet import TEXT, Answer, Pairs, Request
from portico.transport.stdio import new_loop
from portico.wire.errors import UsageError

log = logging.getLogger("portico")

LARGEST_HEAD = 64 * 1024
LONGEST_LINE = 8 * 1024
MOST_HEADERS = 100
MOST_PIPELINED = 64
MOST_KNOWN = 1024
LONGEST_KNOWN = 2048

_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_BODILESS = frozenset({204, 304})


class Deadlines(Struct, frozen=True):
    """Seconds. A client that takes longer loses its connection."""

    head: float = 10.0
    body: float = 30.0
    idle: float = 75.0


class _Known(Struct, frozen=True):
    """A head that was read before."""

    method: str
    path: str
    query: str
    headers: Headers
    length: int


class Connection(asyncio.Protocol):
    """One client's connection, and the outlet of the request that is being answered on it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.exchange = listener.exchange
        self.on_close: Callable[[], None] | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._peer = ""
        self._queue: deque[tuple[Request | Answer, bool]] = deque()
        self._busy = False
        self._chunked = False
        self._bodiless = False
        self._closing = False
        self._at_end = False
        self._keep = True
        self._writable: asyncio.Event | None = None
        self._chunk = b""
        self._messages = 0
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers = Headers()
        self._body: list[bytes] = []
        self._size = 0
        self._head_size = 0
        self._refused: Answer | None = None
        self._request: Request | None = None
        self._reading = False

    # The connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        self.listener.add(self)
        self.deadline = time.monotonic() + self.listener.deadlines.idle

    def connection_lost(self, failure: Exception | None) -> None:
        self._closing = True
        self.listener.remove(self)
        self._queue.clear()
        if self._writable is not None:
            self._writable.set()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()

    def eof_received(self) -> bool:
        """Half closed: whoever has asked still gets the answer."""
        self._at_end = True
        if self._reading:
            self._fail(400, b"Bad request: the request ends in the middle\n")
        return self._busy

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._reading and self._serve_known(data):
            return
        if self._request is None:
            self._head_size += len(data)
        self._chunk, self._messages = b"" if self._reading else data, 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(400, b"Bad request: there is nothing to upgrade to\n")
            return
        except httptools.HttpParserError:
            self._fail(400, b"Bad request: malformed HTTP\n")
            return
        if self._request is None and self._reading and self._head_size > LARGEST_HEAD:
            self._fail(431, b"Request header fields too large\n")

    # A client sends the same head again and again. One that was read and let in before, to the byte, with a whole
    # body behind it and nothing else, is not read again: that is a third of the time a small call takes.

    def _serve_known(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n") + 4
        known = self.listener.known.get(data[:end])
        if known is None or len(data) != end + known.length:
            return False
        request = Request(known.method, known.path, known.query, known.headers, data[end:], self._peer)
        self._enqueue(self.exchange.refuse_now(request) or request, True)
        return True

    def _remember(self, request: Request) -> None:
        """Only what stood in one piece: then its head is the head of the piece."""
        end = self._chunk.find(b"\r\n\r\n") + 4
        length = len(request.body)
        whole = self._messages == 1 and len(self._chunk) == end + length
        if whole and end <= LONGEST_KNOWN and request.headers.get(b"content-length") == b"%d" % length:
            known = self.listener.known
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[self._chunk[:end]] = _Known(request.method, request.path, request.query, request.headers, length)

    def on_message_begin(self) -> None:
        self._begin()
        self._reading = True
        self.deadline = time.monotonic() + self.listener.deadlines.head

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        if len(headers) >= MOST_HEADERS:
            self._refused = Answer(431, TEXT, b"Too many header fields\n")
        elif b"\x00" in value:
            self._refused = Answer(400, TEXT, b"Bad request: NUL in a header\n")
        else:
            headers.add(name, value)

    def on_headers_complete(self) -> None:
        self._request = request = self._read_head()
        if self._refused is None:
            self._refused = self._judge(request)
        if self._refused is None and request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.deadline = time.monotonic() + self.listener.deadlines.body

    def _read_head(self) -> Request:
        method = self._parser.get_method().decode("ascii")
        path, _, query = self._url.decode("latin-1").partition("?")
        if "%" in path:
            path = unquote(path)
        return Request(method, path, query, self._headers, b"", self._peer)

    def _judge(self, request: Request) -> Answer | None:
        headers = self._headers
        if len(self._url) > LONGEST_LINE:
            return Answer(414, TEXT, b"URI too long\n")
        if b"host" not in headers and self._parser.get_http_version() == "1.1":
            return Answer(400, TEXT, b"Bad request: Host is missing\n")
        if b"content-length" in headers.repeated or b"transfer-encoding" in headers.repeated:
            return Answer(400, TEXT, b"Bad request: ambiguous length\n")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:12]) > self.exchange.settings.longest_body:
            return _too_large()
        return self.exchange.refuse(request)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._refused is None and self._size > self.exchange.settings.longest_body:
            self._refused = _too_large()
        if self._refused is None:
            self._body.append(body)
        else:
            self._body.clear()

    def on_message_complete(self) -> None:
        request, keep = self._request, self._parser.should_keep_alive()
        assert request is not None
        if self._refused is None:
            request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        waiting: Request | Answer = self._refused or request
        if self._refused is not None and self._refused.status in (413, 431, 414, 400):
            keep = False
        self._reading = False
        self._request = None
        self._head_size = 0
        self._messages += 1
        if waiting is request and keep and request.method == "POST":
            self._remember(request)
        self._enqueue(waiting, keep)

    def _enqueue(self, waiting: Request | Answer, keep: bool) -> None:
        self.deadline = time.monotonic() + self.listener.deadlines.idle
        if self._busy:
            self._queue.append((waiting, keep))
            if len(self._queue) >= MOST_PIPELINED:
                self._transport.pause_reading()
        else:
            self._serve(waiting, keep)

    def _serve(self, waiting: Request | Answer, keep: bool) -> None:
        self._busy, self._keep = True, keep
        if isinstance(waiting, Answer):
            self.answer(waiting)
            return
        try:
            self.exchange.handle(waiting, self)
        except Exception:
            log.exception("error while answering %s %s", waiting.method, waiting.path)
            if self._busy and not self._chunked:
                self.answer(Answer(500, TEXT, b"Internal error\n"))

    # Answering

    def answer(self, answer: Answer) -> None:
        if self._closing:
            return
        body = b"" if answer.status in _BODILESS else answer.body
        head = self._head(answer.status, answer.headers)
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._done()

    def _head(self, status: int, headers: Pairs) -> bytes:
        lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        close = b"" if self._keep else b"connection: close\r\n"
        return _STATUS[status] + self.listener.date + lines + close

    def start(self, status: int, headers: Pairs) -> None:
        if self._closing:
            return
        self._chunked = True
        self.deadline = float("inf")
        self._transport.write(self._head(status, headers) + b"transfer-encoding: chunked\r\n\r\n")

    def write(self, data: bytes) -> None:
        if not self._closing and self._chunked:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        if not self._closing and self._chunked:
            self._chunked = False
            self._transport.write(b"0\r\n\r\n")
            self._done()

    def _done(self) -> None:
        """One request is answered; the next one in line, if there is one, is served now."""
        self._busy = False
        self.on_close = None
        if not self._keep or (self._at_end and not self._queue) or self.exchange.draining:
            self.close()
            return
        self.deadline = time.monotonic() + self.listener.deadlines.idle
        if self._queue:
            # Not from within the write of the last one: a long line of requests must not become a deep stack.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._queue and not self._busy and not self._closing:
            waiting, keep = self._queue.popleft()
            if len(self._queue) < MOST_PIPELINED // 2 and not self._transport.is_reading():
                self._transport.resume_reading()
            self._serve(waiting, keep)

    def buffered(self) -> int:
        return 0 if self._closing else int(self._transport.get_write_buffer_size())

    async def drain(self) -> None:
        if self._writable is not None and not self._writable.is_set():
            await self._writable.wait()

    # The end

    def _fail(self, status: int, reason: bytes) -> None:
        """The bytes make no sense any more, so nothing after them can."""
        if not self._busy:
            self._keep = False
            self.answer(Answer(status, TEXT, reason))
        self.close()

    def check(self, now: float) -> None:
        if now < self.deadline or self._busy:
            return
        if self._reading:
            self._fail(408, b"Request timeout\n")
        else:
            self.close()

    def close_if_idle(self) -> None:
        if not self._busy and not self._reading:
            self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._transport.close()


def _too_large() -> Answer:
    return Answer(413, TEXT, b"Content too large\n")


class Listener:
    """Sockets, and the connections that came through them."""

    def __init__(
        self, exchange: Exchange, *, deadlines: Deadlines = Deadlines(), most_connections: int = 20_000
    ) -> None:
        self.exchange = exchange
        self.deadlines = deadlines
        self.most_connections = most_connections
        self.date = b""
        self.known: dict[bytes, _Known] = {}
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._ticking: asyncio.Task[None] | None = None

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self.most_connections:
            connection.close()

    def remove(self, connection: Connection) -> None:
        self._connections.discard(connection)

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, reuse_port: bool = False
    ) -> list[tuple[str, int]]:
        """Listen. Gives the addresses, for a port that was left to the system."""
        loop = asyncio.get_running_loop()
        self._tick()
        try:
            server = await loop.create_server(
                lambda: Connection(self), host, port, ssl=tls, reuse_port=reuse_port or None, backlog=1024
            )
        except OSError as failure:
            raise UsageError(f"cannot listen on {host}:{port}: {failure.strerror or failure}") from None
        self._servers.append(server)
        self._ticking = loop.create_task(self._tick_on())
        return [one.getsockname()[:2] for one in server.sockets]

    def _tick(self) -> None:
        self.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"

    async def _tick_on(self) -> None:
        """Once a second for all connections, in place of a timer for each."""
        last_words = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            self._tick()
            now = time.monotonic()
            for connection in list(self._connections):
                connection.check(now)
            self.exchange.expire()
            if now - last_words >= KEEP_ALIVE_SECONDS:
                last_words = now
                self.exchange.keep_alive()

    async def stop(self, grace: float) -> None:
        """No new connections, no new calls; what is running may finish; streams end properly."""
        for server in self._servers:
            server.close()
        self.exchange.draining = True
        for connection in list(self._connections):
            connection.close_if_idle()
        await self.exchange.drain(grace)
        if self._ticking is not None:
            self._ticking.cancel()
        for connection in list(self._connections):
            connection.close()
        # Let the last bytes out before the loop is gone.
        await asyncio.sleep(0)


class Place(Struct, kw_only=True):
    """Where to listen, and how."""

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: str | None = None
    key: str | None = None
    reuse_port: bool = False
    grace: float = 10.0

    def tls(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as failure:
            raise UsageError(f"cannot use the certificate: {failure}") from None
        return context


async def serve(
    exchange: Exchange, place: Place, *, ready: Callable[[str], None] | None = None, stop: asyncio.Event | None = None
) -> None:
    """Serve until told to stop, by a signal or by `stop`."""
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    listener = Listener(exchange)
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
            handled.append(number)
        except (NotImplementedError, ValueError, RuntimeError):
            log.debug("signals are left alone: not the main thread, or not a system that has them")
    addresses = await listener.start(place.host, place.port, tls=place.tls(), reuse_port=place.reuse_port)
    if ready is not None:
        scheme = "https" if place.certificate else "http"
        ready(f"{scheme}://{_shown(addresses[0])}{exchange.settings.path}")
    try:
        await stop.wait()
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
        await listener.stop(place.grace)


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def run(
    exchange: Exchange,
    place: Place,
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve in a loop of our own."""
    gc.freeze()

    async def main() -> None:
        async with lifespan():
            await serve(exchange, place, ready=ready)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def is_loopback(host: str) -> bool:
    """Whether an address cannot be reached from other machines."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(str(address[4][0]).startswith("127.") or address[4][0] == "::1" for address in found)
