"""One client's connection: llhttp's parser in front of the exchange. Requests are answered in the order they came.

Whatever is wrong with the bytes is answered once, in its turn, and then nothing more is read: what comes after bytes
that make no sense cannot make any.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
from msgspec import Struct
from msgspec.structs import replace

from portico.transports.http_server import sse
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.error_responses import busy
from portico.transports.http_server.fast_head_parser import PlainHeads
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import TEXT, Answer, Internal, Pairs, Request

log = logging.getLogger("portico")

LARGEST_HEAD = 64 * 1024
LONGEST_LINE = 8 * 1024
MOST_HEADERS = 100
MOST_PIPELINED = 64
MOST_KNOWN = 1024
LONGEST_KNOWN = 2048
# How long we listen to a client that we have nothing more to say to, so that it can read our last words.
LINGER_SECONDS = 2.0
# How often the listener looks at its connections.
TICK_SECONDS = 1.0

_BODILESS = frozenset({204, 304})
# After these nothing more is believed.
_FINAL = frozenset({400, 408, 413, 414, 431})
_ONCE = frozenset({b"host", b"content-length", b"transfer-encoding"})
_GONE = Answer(400)
_READABLE = frozenset({"/health", "/healthz", "/readyz", "/metrics"})


class Deadlines(Struct, frozen=True):
    """Seconds. A client that takes longer loses its connection."""

    head: float = 10.0
    body: float = 30.0
    idle: float = 75.0


class AdmittedHead(Struct, frozen=True):
    """The head that came last on a connection: its bytes, its request without the body, and how long that is."""

    head: bytes
    request: Request
    size: int


class Accepting(Protocol):
    """What a connection needs of the listener it came through."""

    exchange: Exchange
    deadlines: Deadlines
    # Requests that were let in, by their paths and what their heads say in those lines by which a request is judged.
    known: dict[tuple[str | bytes | None, ...], Request]
    plain: PlainHeads
    # The time of the last tick of its clock.
    now: float
    # The beginnings of responses that were made since then.
    heads: dict[tuple[int, Pairs, bool], bytes]

    # The bytes of bodies that are being read or answered.
    held: int
    # Whether others take what comes from now on.
    retiring: bool
    # Whether it is for other workers alone.
    internal: Internal

    def add(self, connection: Connection) -> None: ...
    def remove(self, connection: Connection) -> None: ...
    def head(self, status: int, headers: Pairs, keep: bool) -> bytes:
        """The beginning of a response, up to its length."""
        ...


class Turn(Struct, eq=False):
    """One request on a connection, or the refusal of one, and the way back to it.

    Once it has been answered it has no connection any more: what is written to it late goes nowhere.
    """

    connection: Connection | None
    waiting: Request | Answer
    # The bytes of its body, which count until it is answered.
    size: int = 0
    # The connection may be kept for the next request.
    keep: bool = True
    # HEAD wants to know what GET would say, without its body.
    bodiless: bool = False
    # HTTP/1.0 has no chunks: a stream ends with the connection.
    chunks: bool = True
    streaming: bool = False
    on_close: Callable[[], None] | None = None

    def answer(self, answer: Answer) -> None:
        connection = self.connection
        if connection is None:
            return
        listener = connection.listener
        status, headers, body = answer.status, answer.headers, answer.body
        head = listener.heads.get((status, headers, self.keep)) or listener.head(status, headers, self.keep)
        if status in _BODILESS:
            # RFC 9110, 8.6: a 204 has no content-length.
            connection.send(head + b"\r\n")
        else:
            connection.send(b"".join((head, _length(len(body)), b"" if self.bodiless else body)))
        self.connection = self.on_close = None
        connection.done(self)

    def start(self, status: int, headers: Pairs) -> None:
        connection = self.connection
        if connection is None:
            return
        self.streaming = True
        if not self.chunks:
            self.keep = False
        how = b"transfer-encoding: chunked\r\n\r\n" if self.chunks else b"\r\n"
        connection.send(connection.listener.head(status, headers, self.keep) + how)

    def write(self, data: bytes) -> None:
        if self.streaming and self.connection is not None:
            self.connection.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunks else data)

    def end(self) -> None:
        connection = self.connection
        if self.streaming and connection is not None:
            if self.chunks:
                connection.send(b"0\r\n\r\n")
            self.connection = self.on_close = None
            connection.done(self)

    def buffered(self) -> int:
        return 0 if self.connection is None else self.connection.buffered()

    async def drain(self) -> None:
        if self.connection is not None:
            await self.connection.drain()

    def abort(self) -> None:
        if self.connection is not None:
            self.connection.abort()

    # To another process

    def lend(self) -> socket.socket | None:
        """A copy of its socket, for another process to answer by; None where that cannot be. Nothing is read until it
        is said whether it was taken."""
        connection = self.connection
        return connection.lend(self) if connection is not None and not self.streaming else None

    def lent(self, taken: bool) -> None:
        connection = self.connection
        if connection is None:
            return
        if taken:
            self.connection = self.on_close = None
            connection.give_away()
        else:
            connection.resume()


class Connection(asyncio.Protocol):
    """Reads requests, and lets them be answered one after the other."""

    def __init__(self, listener: Accepting) -> None:
        self.listener = listener
        self.exchange = listener.exchange
        self.deadline = 0.0
        self._idle_seconds = TICK_SECONDS + listener.deadlines.idle
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self.peer = ""
        # Whether it is a proxy's, who says where each request comes from.
        self.proxied = False
        self.secure = False
        self._queue: deque[Turn] = deque()
        self._turn: Turn | None = None
        # A request that another process has read, and whose sender it has verified.
        self.first: Turn | None = None
        self._closing = False
        self._deaf = False
        self._at_end = False
        self._stalled = 0.0
        self._writable: asyncio.Event | None = None
        self._chunk = b""
        self._offered = b""
        self._messages = 0
        self._head_size = 0
        self._reading = False
        # The one that came here last, with where it comes from.
        self._known: AdmittedHead | None = None
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers = Headers()
        self._body: list[bytes] = []
        self._size = 0
        self._held = 0
        self._refused: Answer | None = None
        self._request: Request | None = None

    # The connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        self.proxied = self.exchange.proxies.trusts(self.peer)
        self.secure = transport.get_extra_info("sslcontext") is not None
        self._wait(self.listener.deadlines.idle)
        self.listener.add(self)
        if self.first is not None:
            first, self.first = self.first, None
            self._go_on(first)

    def _client(self, headers: Headers) -> str:
        """Where a request comes from."""
        return self.exchange.proxies.client(headers, self.peer) if self.proxied else self.peer

    def connection_lost(self, failure: Exception | None) -> None:
        self._closing = True
        self.listener.remove(self)
        turn, self._turn = self._turn, None
        self.listener.held -= self._held + sum(one.size for one in self._queue) + (turn.size if turn is not None else 0)
        # What was read is let go now. The parser knows us and we know it: only the collector would find the two.
        self._queue.clear()
        self._begin()
        self._parser, self._known, self._chunk, self._offered = None, None, b"", b""
        if self._writable is not None:
            self._writable.set()
        if turn is not None:
            turn.waiting = _GONE
            turn.connection = None
            if turn.on_close is not None:
                turn.on_close()

    def eof_received(self) -> bool:
        """Half closed: a client that has asked still gets the answer."""
        self._at_end = True
        if self._reading and not self._deaf:
            self._fail(400, b"Bad request: the request ends in the middle\n")
        if self._turn is not None:
            self._probe()
            asyncio.get_running_loop().call_later(0.05, self._probe)
        # With TLS there is no half: a client that has said everything is gone.
        waiting = self._turn is not None or bool(self._queue)
        return waiting and self._transport.get_extra_info("sslcontext") is None

    def _probe(self) -> None:
        """Whether the client has only said everything, or is gone: the two look alike until something is written.

        One that is gone answers with a reset, and the write after that fails. One that still reads is told that we are
        still here, by a comment in its stream or by an interim response (RFC 9110, 15.2).
        """
        if self._turn is None or self._closing or not self._at_end:
            return
        if self._turn.streaming:
            self._turn.write(sse.KEEP_ALIVE)
        elif self._turn.chunks:
            self._transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")

    def _wait(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._closing:
            return
        if not self._reading and self._serve_whole(data):
            return
        self._chunk, self._messages = b"" if self._reading else data, 0
        if self._request is None:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._fail(400, b"Bad request: malformed HTTP\n")
        self._chunk = b""
        if self._reading and not self._deaf:
            self._judge_early()

    def _judge_early(self) -> None:
        """What is wrong already is said now, and the rest is not waited for."""
        if self._refused is not None:
            self._say_last(self._refused)
        elif self._request is None and len(self._url) > LONGEST_LINE:
            self._fail(414, b"URI too long\n")
        elif self._request is None and self._head_size > LARGEST_HEAD:
            self._fail(431, b"Request header fields too large\n")

    def _decline(self, rest: bytes) -> None:
        """An offer to speak something else. The parser took what follows for that; it is HTTP as before."""
        offered, self._offered = self._offered, b""
        self._parser = httptools.HttpRequestParser(self)
        if (offered or rest) and not self._deaf:
            self.data_received(offered + rest)

    def _without_offer(self) -> bytes:
        """The same head, without the offer, for a request that has a body: it is read again."""
        kept = [pair for pair in self._headers.items() if pair[0] not in (b"upgrade", b"connection")]
        line = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._url)
        return line + b"".join([b"%b: %b\r\n" % pair for pair in kept]) + b"\r\n"

    # A client sends the same head again and again. The one that came last on a connection, with a whole body behind it
    # and nothing else, is neither read nor judged again. What else is plain is read without the parser, and judged once
    # for all heads that say the same where it matters.

    def _serve_whole(self, data: bytes) -> bool:
        """Whether the data was a whole request, and has been seen to."""
        known, listener, exchange = self._known, self.listener, self.exchange
        if known is None or not data.startswith(known.head):
            plain = self._read_plain(data)
            if plain is None:
                return False
            if isinstance(plain, Answer):
                self._enqueue(Turn(self, plain, keep=plain.status not in _FINAL))
                return True
            known = plain
        body, size = data[len(known.head) :], known.size
        if len(body) != size or listener.held + size > exchange.settings.most_body_bytes:
            return False
        request = replace(known.request, body=body)
        if self.proxied:
            request.peer = self._client(request.headers)
        listener.held += size
        turn = Turn(self, request, size)
        refused = exchange.refuse_now(request)
        if refused is not None:
            turn.waiting = exchange.turned_away(request, refused)
        self._enqueue(turn)
        return True

    def _read_plain(self, data: bytes) -> AdmittedHead | Answer | None:
        """The head of a whole request, or why it is refused; None if the parser is to read it."""
        end = data.find(b"\r\n\r\n") + 4
        size = len(data) - end
        if end > LONGEST_KNOWN or size > self.exchange.settings.longest_body:
            return None
        head = data[:end]
        read = self.listener.plain.read(head, size)
        if read is None:
            return None
        path, headers = read
        request = Request(
            "POST", path, "", headers, b"", self.peer,
            secure=self.secure, proxied=self.proxied, internal=self.listener.internal,
        )  # fmt: skip
        key = (path, *map(headers.get, self.exchange.judged))
        found = self.listener.known.get(key)
        if found is not None:
            before = found.headers
            request.cors, headers.agreed, headers.admitted = found.cors, before.agreed, before.admitted
        else:
            refused = self._judge_plain(key, request)
            if refused is not None:
                return refused
        admitted = AdmittedHead(head, request, size)
        if found is not None or key in self.listener.known:
            self._known = admitted
        return admitted

    def _judge_plain(self, key: tuple[str | bytes | None, ...], request: Request) -> Answer | None:
        """Why a request is refused. One that is not stands for all that are the same where it matters."""
        known, exchange = self.listener.known, self.exchange
        request.peer = self._client(request.headers)
        refused = exchange.refuse(request)
        if refused is None and exchange.may_be_known(request):
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[key] = request
        return refused

    def _know_parsed(self, request: Request) -> None:
        """Only what stood in one piece: then its head is the head of the piece."""
        end = self._chunk.find(b"\r\n\r\n") + 4
        length = len(request.body)
        whole = self._messages == 1 and len(self._chunk) == end + length and not request.headers.repeated
        exact = request.headers.get(b"content-length") == b"%d" % length
        if whole and exact and end <= LONGEST_KNOWN and self.exchange.may_be_known(request):
            self._known = AdmittedHead(self._chunk[:end], replace(request, body=b""), length)

    # What the parser finds

    def on_message_begin(self) -> None:
        self._hold(-self._held)
        self._begin()
        self._reading = True
        self._wait(self.listener.deadlines.head)

    def on_url(self, url: bytes) -> None:
        if len(self._url) <= LONGEST_LINE:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers, key = self._headers, name.lower()
        if self._request is not None:
            # RFC 9110, 6.5.1: what stands behind the body is not merged into the head, which has been judged.
            self._size += len(name) + len(value)
            self.on_body(b"")
        elif key not in headers:
            headers[key] = value
        elif len(headers.repeated) < MOST_HEADERS:
            headers.add(key, value)
        else:
            self._refused = Answer(431, TEXT, b"Request header fields too large\n")

    def on_headers_complete(self) -> None:
        self._request = request = self._read_head()
        if self._refused is None:
            self._refused = self._refuse_head() or self._judge(request)
        waits = request.headers.get(b"expect", b"").lower() == b"100-continue"
        # Not into the middle of another answer; a client does not wait for this without end.
        if waits and self._refused is None and self._turn is None and not self._queue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._wait(self.listener.deadlines.body)

    def _refuse_head(self) -> Answer | None:
        headers = self._headers
        if len(headers) + len(headers.repeated) > MOST_HEADERS:
            return Answer(431, TEXT, b"Request header fields too large\n")
        # Looked at in all that was read first, which costs less: mostly it is small, and in one piece without a NUL.
        large = self._head_size > LARGEST_HEAD
        if large and sum(len(name) + len(headers[name]) + 4 for name in headers) > LARGEST_HEAD:
            return Answer(431, TEXT, b"Request header fields too large\n")
        if (not self._chunk or b"\x00" in self._chunk) and any(b"\x00" in value for value in headers.values()):
            return Answer(400, TEXT, b"Bad request: NUL in a header\n")
        return None

    def _read_head(self) -> Request:
        method = self._parser.get_method().decode("ascii")
        url = self._url.decode("latin-1")
        if url.startswith(("http://", "https://")):
            # RFC 9112, 3.2.2: then the address in the request line is the one that counts.
            authority, _, rest = url.partition("://")[2].partition("/")
            self._headers[b"host"], url = authority.encode("latin-1"), f"/{rest}"
        path, _, query = url.partition("?")
        if "%" in path:
            path = unquote(path)
        if method == "HEAD" and (path in _READABLE or "GET" in self.exchange.pages.methods(path)):
            method = "GET"
        request = Request(method, path, query, self._headers, b"", self._client(self._headers))
        request.secure, request.proxied, request.internal = self.secure, self.proxied, self.listener.internal
        return request

    def _judge(self, request: Request) -> Answer | None:
        headers, version = self._headers, self._parser.get_http_version()
        if len(self._url) > LONGEST_LINE:
            return Answer(414, TEXT, b"URI too long\n")
        if version not in ("1.0", "1.1"):
            return Answer(400, TEXT, b"Bad request: this is HTTP/1.1\n")
        if b"host" not in headers and version == "1.1":
            return Answer(400, TEXT, b"Bad request: Host is missing\n")
        if headers.repeated and not _ONCE.isdisjoint(headers.repeated):
            return Answer(400, TEXT, b"Bad request: an ambiguous header\n")
        length = headers.get(b"content-length", b"0")
        size = int(length[:12]) if length.isdigit() else 0
        if size > self.exchange.settings.longest_body:
            return _too_large()
        refusal = self.exchange.refuse(request)
        if refusal is None and self.listener.held + size > self.exchange.settings.most_body_bytes:
            return busy(request)
        return refusal

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._refused is None and self._size > self.exchange.settings.longest_body:
            self._refused = _too_large()
        if self._refused is None and self.listener.held + len(body) > self.exchange.settings.most_body_bytes:
            assert self._request is not None
            self._refused = busy(self._request)
        if self._refused is None:
            self._body.append(body)
            self._hold(len(body))
        else:
            self._body.clear()
            self._hold(-self._held)

    def _hold(self, size: int) -> None:
        """So many bytes more, or less, of a body that is being read."""
        self._held += size
        self.listener.held += size

    def on_message_complete(self) -> None:
        request, parser = self._request, self._parser
        assert request is not None
        has_body = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if parser.should_upgrade() and has_body and self._refused is None:
            self._reading, self._request = False, None
            self._offered = self._without_offer()
            return
        turn = Turn(self, self._refused or request)
        turn.keep = bool(parser.should_keep_alive()) and not (self._refused and self._refused.status in _FINAL)
        turn.bodiless = parser.get_method() == b"HEAD"
        turn.chunks = parser.get_http_version() == "1.1"
        self._reading, self._request = False, None
        self._head_size = 0
        self._messages += 1
        if self._refused is None:
            request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body = []
            turn.size, self._held = self._held, 0
            if turn.keep and turn.chunks and request.method == "POST":
                self._know_parsed(request)
        if parser.get_method() == b"CONNECT":
            turn.keep, self._deaf = False, True
        self._enqueue(turn)

    # In turn

    def _enqueue(self, turn: Turn) -> None:
        if self.listener.retiring:
            turn.keep = False
        if self._turn is None and not self._queue and not self._stalled:
            self._serve(turn)
            return
        self._wait(self.listener.deadlines.idle)
        self._queue.append(turn)
        if len(self._queue) >= MOST_PIPELINED or self._stalled:
            self._transport.pause_reading()

    def _serve(self, turn: Turn) -> None:
        self._turn = turn
        waiting = turn.waiting
        if type(waiting) is not Request:
            turn.answer(waiting)
            return
        try:
            self.exchange.handle(waiting, turn)
        except Exception:
            self._fail_inside(turn, waiting)

    def _fail_inside(self, turn: Turn, request: Request) -> None:
        log.exception("error while answering %s %s", request.method, request.path)
        if not turn.streaming:
            turn.answer(Answer(500, TEXT, b"Internal error\n"))

    def _next(self) -> None:
        """The next in line, unless the client does not even read what it was told before."""
        if self._turn is None and self._queue and not self._stalled and not self._closing:
            turn = self._queue.popleft()
            if len(self._queue) < MOST_PIPELINED // 2 and not self._transport.is_reading():
                self._transport.resume_reading()
            self._serve(turn)

    def done(self, turn: Turn) -> None:
        """One request is answered; the next one in line, if there is one, is served now."""
        self._turn = None
        self.listener.held -= turn.size
        # A stream may have begun before its worker retires: the client is to come to another one.
        leaves = self._at_end or self.exchange.draining or (turn.streaming and self.listener.retiring)
        if not turn.keep or (leaves and not self._queue):
            self._hang_up()
            return
        # By the listener's clock, which costs nothing and is up to a tick behind.
        self.deadline = self.listener.now + self._idle_seconds
        if self._queue:
            # Not from within the write of the last one: a long line of requests must not become a deep stack.
            asyncio.get_running_loop().call_soon(self._next)

    # Writing

    def send(self, data: bytes) -> None:
        if not self._closing:
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._stalled = time.monotonic()
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def resume_writing(self) -> None:
        self._stalled = 0.0
        if self._writable is not None:
            self._writable.set()
        self._next()
        if not self._queue and not self._closing and not self._transport.is_reading():
            self._transport.resume_reading()

    def buffered(self) -> int:
        return 0 if self._closing else int(self._transport.get_write_buffer_size())

    async def drain(self) -> None:
        if self._writable is not None and not self._writable.is_set():
            await self._writable.wait()

    # To another process, and from one

    def lend(self, turn: Turn | None) -> socket.socket | None:
        """A copy of the socket, if there is nothing on the connection but this: no other request, nothing half read or
        half written, and no TLS, whose state cannot be handed on."""
        transport = self._transport
        other = self._turn is not turn or self._queue or self._reading or self._at_end or self._deaf or self._closing
        if other or self._stalled or transport.get_write_buffer_size() or transport.get_extra_info("sslcontext"):
            return None
        transport.pause_reading()
        return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def resume(self) -> None:
        if not self._closing and not self._transport.is_reading():
            self._transport.resume_reading()

    def give_away(self) -> None:
        """Another process has it: it is closed here, and open there."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self.listener.held -= turn.size
        self.abort()

    def _go_on(self, turn: Turn) -> None:
        request = turn.waiting
        assert type(request) is Request
        turn.size = len(request.body)
        self.listener.held += turn.size
        self._turn = turn
        try:
            self.exchange.answer_at(request, turn)
        except Exception:
            self._fail_inside(turn, request)

    # The end

    def _fail(self, status: int, reason: bytes) -> None:
        self._say_last(Answer(status, TEXT, reason))

    def _say_last(self, answer: Answer) -> None:
        """Nothing more is read. This is said when those who came before have been answered."""
        self._deaf, self._reading = True, False
        self._body = []
        self._hold(-self._held)
        turn = Turn(self, answer)
        turn.keep = False
        self._enqueue(turn)

    def _hang_up(self) -> None:
        """Closing on a client that is still sending would destroy what it has not read yet, so it may finish first."""
        if self._deaf and not self._at_end and not self._closing and self._transport.can_write_eof():
            self._transport.write_eof()
            self.listener.held -= sum(one.size for one in self._queue)
            self._queue.clear()
            self._wait(LINGER_SECONDS)
        else:
            self.close()

    def check(self, now: float) -> None:
        """Once a second: whether the client has taken too long, or is gone."""
        if self._at_end:
            self._probe()
        if self._stalled and now - self._stalled > self.listener.deadlines.body:
            self.abort()
        elif self._turn is None and now >= self.deadline:
            if self._reading and not self._deaf:
                self._fail(408, b"Request timeout\n")
            else:
                self.close()

    def is_idle(self) -> bool:
        """Whether the client waits for nothing, and has not begun to ask."""
        return self._turn is None and not self._queue and not self._reading

    def close_if_idle(self) -> None:
        if self.is_idle():
            self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._transport.close()

    def abort(self) -> None:
        """Without waiting for a client that does not read."""
        self._closing = True
        self._transport.abort()


@lru_cache(1024)
def _length(size: int) -> bytes:
    """The end of a head. Answers are mostly as long as others before them."""
    return b"content-length: %d\r\n\r\n" % size


def _too_large() -> Answer:
    return Answer(413, TEXT, b"Content too large\n")
