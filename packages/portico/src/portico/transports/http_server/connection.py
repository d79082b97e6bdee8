"""HTTP/1.1 server connection: llhttp's parser in front of the application. Responses are sent in request order.

Invalid bytes are answered once, in order, and then nothing more is read: what follows them cannot be parsed reliably.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
from msgspec import Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.transports.http_server import sse
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.error_responses import overloaded_response
from portico.transports.http_server.fast_head_parser import FastHeadParser
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import TEXT_HEADERS, HeaderPairs, HttpRequest, HttpResponse, Internal

log = logging.getLogger("portico")

MAX_HEAD_BYTES = 64 * 1024
MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 100
MAX_PIPELINED_REQUESTS = 64
MAX_CACHED_HEAD_BYTES = 2048
# Time to keep reading from a client after the last response, so that the client can read it (lingering close).
LINGERING_CLOSE_SECONDS = 2.0
# How often the listener checks its connections.
TICK_INTERVAL_SECONDS = 1.0

_NO_CONTENT_STATUSES = frozenset({204, 304})
# After these statuses the connection is closed, because its framing can no longer be trusted.
_CLOSING_STATUSES = frozenset({400, 408, 413, 414, 431})
_SINGLE_HEADERS = frozenset({b"host", b"content-length", b"transfer-encoding"})
_PLACEHOLDER_RESPONSE = HttpResponse(400)
_HEAD_METHOD_PATHS = frozenset({"/health", "/healthz", "/readyz", "/metrics"})


class ConnectionTimeouts(Struct, frozen=True):
    """Timeouts in seconds. A client that takes longer loses its connection."""

    head: float = 10.0
    body: float = 30.0
    idle: float = 75.0


class CachedRequestHead(Struct, frozen=True):
    """Last head of a connection: its bytes, its request without the body, and the length of the body."""

    head: bytes
    request: HttpRequest
    size: int


class ConnectionOwner(Protocol):
    """Listener of a connection, as the connection uses it."""

    application: HttpApplication
    timeouts: ConnectionTimeouts
    # Requests that passed the checks, keyed by path and decisive headers.
    request_cache: LruCache[tuple[str | bytes | None, ...], HttpRequest]
    head_parser: FastHeadParser
    # Time of the last clock tick.
    now: float
    # Response heads encoded since the last tick.
    response_head_cache: dict[tuple[int, HeaderPairs, bool], bytes]

    # Total size of the bodies that are being read or answered.
    buffered_body_bytes: int
    # Whether other processes accept new connections from now on.
    draining: bool
    # Whether the listener is for other workers only.
    internal: Internal

    def add(self, connection: HttpServerConnection) -> None: ...
    def remove(self, connection: HttpServerConnection) -> None: ...
    def encode_response_head(self, status: int, headers: HeaderPairs, keep_alive: bool) -> bytes:
        """Return the head of a response, up to its length."""
        ...


class RequestCycle(Struct, eq=False):
    """One request on a connection, or its error response, and the writer for the response.

    It is detached from the connection once it is answered: late writes have no effect.
    """

    connection: HttpServerConnection | None
    waiting: HttpRequest | HttpResponse
    # Size of the body, which counts until the request is answered.
    size: int = 0
    # Whether the connection may be used for the next request.
    keep: bool = True
    # HEAD returns the response of GET without its body.
    bodiless: bool = False
    # HTTP/1.0 has no chunked encoding: a stream ends with the connection.
    chunks: bool = True
    streaming: bool = False
    on_close: Callable[[], None] | None = None

    def respond(self, response: HttpResponse) -> None:
        connection = self.connection
        if connection is None:
            return
        listener = connection.listener
        status, headers, body = response.status, response.headers, response.body
        head = listener.response_head_cache.get((status, headers, self.keep)) or listener.encode_response_head(
            status, headers, self.keep
        )
        if status in _NO_CONTENT_STATUSES:
            # RFC 9110, 8.6: a 204 response has no content-length.
            connection.send(head + b"\r\n")
        else:
            connection.send(b"".join((head, _length(len(body)), b"" if self.bodiless else body)))
        self.connection = self.on_close = None
        connection.on_cycle_done(self)

    def start(self, status: int, headers: HeaderPairs) -> None:
        connection = self.connection
        if connection is None:
            return
        self.streaming = True
        if not self.chunks:
            self.keep = False
        how = b"transfer-encoding: chunked\r\n\r\n" if self.chunks else b"\r\n"
        connection.send(connection.listener.encode_response_head(status, headers, self.keep) + how)

    def write(self, data: bytes) -> None:
        if self.streaming and self.connection is not None:
            self.connection.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunks else data)

    def end(self) -> None:
        connection = self.connection
        if self.streaming and connection is not None:
            if self.chunks:
                connection.send(b"0\r\n\r\n")
            self.connection = self.on_close = None
            connection.on_cycle_done(self)

    def buffered_bytes(self) -> int:
        return 0 if self.connection is None else self.connection.buffered_bytes()

    async def drain(self) -> None:
        if self.connection is not None:
            await self.connection.drain()

    def abort(self) -> None:
        if self.connection is not None:
            self.connection.abort()


class HttpServerConnection(asyncio.Protocol):
    """Reads requests and has them answered one after the other."""

    def __init__(self, listener: ConnectionOwner) -> None:
        self.listener = listener
        self.application = listener.application
        self.deadline = 0.0
        self._idle_seconds = TICK_INTERVAL_SECONDS + listener.timeouts.idle
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self.peer = ""
        # Whether the peer is a trusted proxy, which states the client of each request.
        self.via_trusted_proxy = False
        self.secure = False
        self._queue: deque[RequestCycle] = deque()
        self._current_cycle: RequestCycle | None = None
        self._closing = False
        self._ignore_input = False
        self._at_end = False
        self._stalled = 0.0
        self._writable: asyncio.Event | None = None
        self._chunk = b""
        self._upgrade_offered = b""
        self._messages = 0
        self._head_size = 0
        self._reading = False
        # The last head on this connection, including the client address.
        self._last_head: CachedRequestHead | None = None
        self._reset_message()

    def _reset_message(self) -> None:
        self._url = b""
        self._headers = Headers()
        self._body: list[bytes] = []
        self._size = 0
        self._buffered_body_bytes = 0
        self._early_response: HttpResponse | None = None
        self._request: HttpRequest | None = None

    # The connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        self.via_trusted_proxy = self.application.trusted_proxies.trusts(self.peer)
        self.secure = transport.get_extra_info("sslcontext") is not None
        self._set_deadline(self.listener.timeouts.idle)
        self.listener.add(self)

    def _client_address(self, headers: Headers) -> str:
        """Return the client address of a request."""
        return (
            self.application.trusted_proxies.client_address(headers, self.peer) if self.via_trusted_proxy else self.peer
        )

    def connection_lost(self, failure: Exception | None) -> None:
        self._closing = True
        self.listener.remove(self)
        turn, self._current_cycle = self._current_cycle, None
        self.listener.buffered_body_bytes -= (
            self._buffered_body_bytes
            + sum(cycle.size for cycle in self._queue)
            + (turn.size if turn is not None else 0)
        )
        # Release the buffers now. The parser and the connection reference each other, so only the garbage collector
        # would free them.
        self._queue.clear()
        self._reset_message()
        self._parser, self._last_head, self._chunk, self._upgrade_offered = None, None, b"", b""
        if self._writable is not None:
            self._writable.set()
        if turn is not None:
            # The handler may hold this object for longer than the connection; do not keep the body in memory
            # for it.
            turn.waiting = _PLACEHOLDER_RESPONSE
            turn.connection = None
            if turn.on_close is not None:
                turn.on_close()

    def eof_received(self) -> bool:
        """Handle a half-closed connection: a client with a pending request still gets its response."""
        self._at_end = True
        if self._reading and not self._ignore_input:
            self._fail(400, b"Bad request: the request ends in the middle\n")
        if self._current_cycle is not None:
            self._probe()
            # The first write after the peer is gone succeeds and only provokes a reset; the second one fails.
            asyncio.get_running_loop().call_later(0.05, self._probe)
        # TLS has no half-closed state: the client is gone.
        waiting = self._current_cycle is not None or bool(self._queue)
        return waiting and self._transport.get_extra_info("sslcontext") is None

    def _probe(self) -> None:
        """Detect whether a client that closed its sending side is gone: only a write can tell.

        A client that is gone answers with a reset, and the next write fails. A client that still reads receives a
        comment in its stream, or an interim response (RFC 9110, 15.2).
        """
        if self._current_cycle is None or self._closing or not self._at_end:
            return
        if self._current_cycle.streaming:
            self._current_cycle.write(sse.KEEP_ALIVE_COMMENT)
        elif self._current_cycle.chunks:
            self._transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")

    def _set_deadline(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._ignore_input or self._closing:
            return
        if not self._reading and self._serve_fast_path(data):
            return
        self._chunk, self._messages = b"" if self._reading else data, 0
        if self._request is None:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._ignore_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._fail(400, b"Bad request: malformed HTTP\n")
        self._chunk = b""
        if self._reading and not self._ignore_input:
            self._reject_early()

    def _reject_early(self) -> None:
        """Send the error response if the incomplete request is already invalid. The rest is not read."""
        if self._early_response is not None:
            self._respond_and_close(self._early_response)
        elif self._request is None and len(self._url) > MAX_URL_BYTES:
            self._fail(414, b"URI too long\n")
        elif self._request is None and self._head_size > MAX_HEAD_BYTES:
            self._fail(431, b"Request header fields too large\n")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Ignore an offer to upgrade the protocol. The parser took the following bytes for the new protocol; parse them
        as HTTP.
        """
        offered, self._upgrade_offered = self._upgrade_offered, b""
        self._parser = httptools.HttpRequestParser(self)
        if (offered or rest) and not self._ignore_input:
            self.data_received(offered + rest)

    def _strip_upgrade_headers(self) -> bytes:
        """Return the request head without the upgrade offer. A request with a body is parsed again."""
        remaining = [pair for pair in self._headers.items() if pair[0] not in (b"upgrade", b"connection")]
        line = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._url)
        return line + b"".join([b"%b: %b\r\n" % pair for pair in remaining]) + b"\r\n"

    # Fast path: clients repeat the same head. If it equals the last head of the connection, and a whole body and
    # nothing else follows, it is neither parsed nor checked again. Other simple heads are parsed without llhttp, and
    # checked once for all heads with equal decisive headers.

    def _serve_fast_path(self, data: bytes) -> bool:
        """Serve the data if it is exactly one simple request. Return whether it was."""
        cached, listener, exchange = self._last_head, self.listener, self.application
        if cached is None or not data.startswith(cached.head):
            plain = self._parse_fast_path(data)
            if plain is None:
                return False
            if isinstance(plain, HttpResponse):
                self._enqueue(RequestCycle(self, plain, keep=plain.status not in _CLOSING_STATUSES))
                return True
            cached = plain
        body, size = data[len(cached.head) :], cached.size
        # Pipelined or incomplete requests take the slow path, which also produces the error for exhausted
        # memory.
        if len(body) != size or listener.buffered_body_bytes + size > exchange.settings.max_total_body_size:
            return False
        request = replace(cached.request, body=body)
        if self.via_trusted_proxy:
            request.peer = self._client_address(request.headers)
        listener.buffered_body_bytes += size
        turn = RequestCycle(self, request, size)
        # Depends on the current load, so it is not part of the cached check.
        refused = exchange.check_capacity(request)
        if refused is not None:
            turn.waiting = exchange.report_rejection(request, refused)
        self._enqueue(turn)
        return True

    def _parse_fast_path(self, data: bytes) -> CachedRequestHead | HttpResponse | None:
        """Parse the head of a simple request. Return its error response, or None if llhttp has to parse it."""
        end = data.find(b"\r\n\r\n") + 4
        size = len(data) - end
        if end > MAX_CACHED_HEAD_BYTES or size > self.application.settings.max_body_size:
            return None
        head = data[:end]
        read = self.listener.head_parser.parse(head, size)
        if read is None:
            return None
        path, headers = read
        request = HttpRequest(
            "POST", path, "", headers, b"", self.peer,
            secure=self.secure, proxied=self.via_trusted_proxy, internal=self.listener.internal,
        )  # fmt: skip
        key = (path, *map(headers.get, self.application.decisive_headers))
        result = self.listener.request_cache.peek(key)
        if result is not None:
            before = result.headers
            # Equal decisive headers include the credentials, so the verified token of the earlier request
            # applies as well.
            request.cors, headers.validated_body, headers.cached_token = (
                result.cors,
                before.validated_body,
                before.cached_token,
            )
        else:
            refused = self._precheck_fast_path(key, request)
            if refused is not None:
                return refused
        admitted = CachedRequestHead(head, request, size)
        # Only heads whose check is cacheable may be repeated without a check; see `is_precheck_cacheable`.
        if result is not None or key in self.listener.request_cache:
            self._last_head = admitted
        return admitted

    def _precheck_fast_path(self, key: tuple[str | bytes | None, ...], request: HttpRequest) -> HttpResponse | None:
        """Return the error response for a request, or None. Accepted requests are cached by their decisive headers."""
        cache, exchange = self.listener.request_cache, self.application
        request.peer = self._client_address(request.headers)
        refused = exchange.precheck(request)
        if refused is None and exchange.is_precheck_cacheable(request):
            cache[key] = request
        return refused

    def _cache_head(self, request: HttpRequest) -> None:
        """Cache the head of a request that arrived in one piece."""
        end = self._chunk.find(b"\r\n\r\n") + 4
        length = len(request.body)
        is_single_chunk = self._messages == 1 and len(self._chunk) == end + length and not request.headers.duplicates
        exact = request.headers.get(b"content-length") == b"%d" % length
        if (
            is_single_chunk
            and exact
            and end <= MAX_CACHED_HEAD_BYTES
            and self.application.is_precheck_cacheable(request)
        ):
            self._last_head = CachedRequestHead(self._chunk[:end], replace(request, body=b""), length)

    # Parser callbacks

    def on_message_begin(self) -> None:
        self._account_body_bytes(-self._buffered_body_bytes)
        self._reset_message()
        self._reading = True
        self._set_deadline(self.listener.timeouts.head)

    def on_url(self, url: bytes) -> None:
        if len(self._url) <= MAX_URL_BYTES:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers, key = self._headers, name.lower()
        if self._request is not None:
            # RFC 9110, 6.5.1: trailers are not merged into the headers, which have already been checked.
            self._size += len(name) + len(value)
            self.on_body(b"")
        elif key not in headers:
            headers[key] = value
        elif len(headers.duplicates) < MAX_HEADERS:
            headers.add(key, value)
        else:
            self._early_response = HttpResponse(431, TEXT_HEADERS, b"Request header fields too large\n")

    def on_headers_complete(self) -> None:
        self._request = request = self._read_head()
        if self._early_response is None:
            self._early_response = self._refuse_head() or self._precheck(request)
        waits = request.headers.get(b"expect", b"").lower() == b"100-continue"
        # Not within another response; a client does not wait for this indefinitely.
        if waits and self._early_response is None and self._current_cycle is None and not self._queue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._set_deadline(self.listener.timeouts.body)

    def _refuse_head(self) -> HttpResponse | None:
        headers = self._headers
        if len(headers) + len(headers.duplicates) > MAX_HEADERS:
            return HttpResponse(431, TEXT_HEADERS, b"Request header fields too large\n")
        # Check the size of all received bytes first, which is cheaper: most heads are small, arrive in one piece and
        # contain no NUL.
        large = self._head_size > MAX_HEAD_BYTES
        if large and sum(len(name) + len(headers[name]) + 4 for name in headers) > MAX_HEAD_BYTES:
            return HttpResponse(431, TEXT_HEADERS, b"Request header fields too large\n")
        # Code that treats a value as a C string would see only the part before the NUL.
        if (not self._chunk or b"\x00" in self._chunk) and any(b"\x00" in value for value in headers.values()):
            return HttpResponse(400, TEXT_HEADERS, b"Bad request: NUL in a header\n")
        return None

    def _read_head(self) -> HttpRequest:
        method = self._parser.get_method().decode("ascii")
        url = self._url.decode("latin-1")
        if url.startswith(("http://", "https://")):
            # RFC 9112, 3.2.2: the authority in the request line takes precedence over Host.
            authority, _, rest = url.partition("://")[2].partition("/")
            self._headers[b"host"], url = authority.encode("latin-1"), f"/{rest}"
        path, _, query = url.partition("?")
        # Decoded once: paths are compared with routes, and a second decoding would allow `%252e` to become a
        # dot.
        if "%" in path:
            path = unquote(path)
        if method == "HEAD" and (
            path in _HEAD_METHOD_PATHS or "GET" in self.application.custom_routes.allowed_methods(path)
        ):
            method = "GET"
        request = HttpRequest(method, path, query, self._headers, b"", self._client_address(self._headers))
        request.secure, request.proxied, request.internal = self.secure, self.via_trusted_proxy, self.listener.internal
        return request

    def _precheck(self, request: HttpRequest) -> HttpResponse | None:
        headers, version = self._headers, self._parser.get_http_version()
        if len(self._url) > MAX_URL_BYTES:
            return HttpResponse(414, TEXT_HEADERS, b"URI too long\n")
        if version not in ("1.0", "1.1"):
            return HttpResponse(400, TEXT_HEADERS, b"Bad request: this is HTTP/1.1\n")
        if b"host" not in headers and version == "1.1":
            return HttpResponse(400, TEXT_HEADERS, b"Bad request: Host is missing\n")
        # Proxies pick the first or the last of duplicate headers, so checks there and here could see different
        # values.
        if headers.duplicates and not _SINGLE_HEADERS.isdisjoint(headers.duplicates):
            return HttpResponse(400, TEXT_HEADERS, b"Bad request: an ambiguous header\n")
        length = headers.get(b"content-length", b"0")
        # Twelve digits exceed every limit; longer numbers would only cost time to parse.
        size = int(length[:12]) if length.isdigit() else 0
        if size > self.application.settings.max_body_size:
            return _too_large()
        refusal = self.application.precheck(request)
        if refusal is None and self.listener.buffered_body_bytes + size > self.application.settings.max_total_body_size:
            return overloaded_response(request)
        return refusal

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._early_response is None and self._size > self.application.settings.max_body_size:
            self._early_response = _too_large()
        if (
            self._early_response is None
            and self.listener.buffered_body_bytes + len(body) > self.application.settings.max_total_body_size
        ):
            assert self._request is not None
            self._early_response = overloaded_response(self._request)
        if self._early_response is None:
            self._body.append(body)
            self._account_body_bytes(len(body))
        else:
            # Do not buffer a body that is going to be rejected.
            self._body.clear()
            self._account_body_bytes(-self._buffered_body_bytes)

    def _account_body_bytes(self, size: int) -> None:
        """Add to the size of the body that is being read."""
        self._buffered_body_bytes += size
        self.listener.buffered_body_bytes += size

    def on_message_complete(self) -> None:
        request, parser = self._request, self._parser
        assert request is not None
        has_body = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if parser.should_upgrade() and has_body and self._early_response is None:
            self._reading, self._request = False, None
            self._upgrade_offered = self._strip_upgrade_headers()
            return
        turn = RequestCycle(self, self._early_response or request)
        turn.keep = bool(parser.should_keep_alive()) and not (
            self._early_response and self._early_response.status in _CLOSING_STATUSES
        )
        turn.bodiless = parser.get_method() == b"HEAD"
        turn.chunks = parser.get_http_version() == "1.1"
        self._reading, self._request = False, None
        self._head_size = 0
        self._messages += 1
        if self._early_response is None:
            request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body = []
            turn.size, self._buffered_body_bytes = self._buffered_body_bytes, 0
            if turn.keep and turn.chunks and request.method == "POST":
                self._cache_head(request)
        # The bytes after CONNECT belong to a tunnel that this server does not open; they must not be parsed as
        # requests.
        if parser.get_method() == b"CONNECT":
            turn.keep, self._ignore_input = False, True
        self._enqueue(turn)

    # Pipelining

    def _enqueue(self, turn: RequestCycle) -> None:
        if self.listener.draining:
            turn.keep = False
        if self._current_cycle is None and not self._queue and not self._stalled:
            self._serve(turn)
            return
        self._set_deadline(self.listener.timeouts.idle)
        self._queue.append(turn)
        # Backpressure: a client that sends without reading fills its own socket buffer, not our memory.
        if len(self._queue) >= MAX_PIPELINED_REQUESTS or self._stalled:
            self._transport.pause_reading()

    def _serve(self, turn: RequestCycle) -> None:
        self._current_cycle = turn
        waiting = turn.waiting
        if type(waiting) is not HttpRequest:
            turn.respond(waiting)
            return
        try:
            self.application.handle(waiting, turn)
        except Exception:
            self._respond_internal_error(turn, waiting)

    def _respond_internal_error(self, turn: RequestCycle, request: HttpRequest) -> None:
        log.exception("error while answering %s %s", request.method, request.path)
        if not turn.streaming:
            turn.respond(HttpResponse(500, TEXT_HEADERS, b"Internal error\n"))

    def _serve_next(self) -> None:
        """Serve the next queued request, unless the client does not read the previous responses."""
        if self._current_cycle is None and self._queue and not self._stalled and not self._closing:
            turn = self._queue.popleft()
            if len(self._queue) < MAX_PIPELINED_REQUESTS // 2 and not self._transport.is_reading():
                self._transport.resume_reading()
            self._serve(turn)

    def on_cycle_done(self, cycle: RequestCycle) -> None:
        """Finish a request, and schedule the next queued one."""
        self._current_cycle = None
        self.listener.buffered_body_bytes -= cycle.size
        # A stream may have started before its worker retires: the client should reconnect to another one.
        leaves = self._at_end or self.application.draining or (cycle.streaming and self.listener.draining)
        if not cycle.keep or (leaves and not self._queue):
            self._lingering_close()
            return
        # On the listener's clock, which is free of cost and up to a tick late.
        self.deadline = self.listener.now + self._idle_seconds
        if self._queue:
            # Not recursively: a long queue must not become a deep stack.
            asyncio.get_running_loop().call_soon(self._serve_next)

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
        self._serve_next()
        if not self._queue and not self._closing and not self._transport.is_reading():
            self._transport.resume_reading()

    def buffered_bytes(self) -> int:
        return 0 if self._closing else int(self._transport.get_write_buffer_size())

    async def drain(self) -> None:
        if self._writable is not None and not self._writable.is_set():
            await self._writable.wait()

    # Closing

    def _fail(self, status: int, reason: bytes) -> None:
        self._respond_and_close(HttpResponse(status, TEXT_HEADERS, reason))

    def _respond_and_close(self, answer: HttpResponse) -> None:
        """Stop reading, and send this response after those of earlier requests."""
        self._ignore_input, self._reading = True, False
        self._body = []
        self._account_body_bytes(-self._buffered_body_bytes)
        turn = RequestCycle(self, answer)
        turn.keep = False
        self._enqueue(turn)

    def _lingering_close(self) -> None:
        """Close the sending side first: closing while the client still sends would discard data it has not read yet."""
        if self._ignore_input and not self._at_end and not self._closing and self._transport.can_write_eof():
            self._transport.write_eof()
            self.listener.buffered_body_bytes -= sum(item.size for item in self._queue)
            self._queue.clear()
            self._set_deadline(LINGERING_CLOSE_SECONDS)
        else:
            self.close()

    def check_timeouts(self, now: float) -> None:
        """Close or abort the connection if the client is too slow or gone. Called once per second."""
        if self._at_end:
            self._probe()
        if self._stalled and now - self._stalled > self.listener.timeouts.body:
            self.abort()
        elif self._current_cycle is None and now >= self.deadline:
            if self._reading and not self._ignore_input:
                self._fail(408, b"Request timeout\n")
            else:
                self.close()

    def is_idle(self) -> bool:
        """Return whether no request is active or being received."""
        return self._current_cycle is None and not self._queue and not self._reading

    def close_if_idle(self) -> None:
        if self.is_idle():
            self.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._transport.close()

    def abort(self) -> None:
        """Close immediately, without flushing data to a client that does not read."""
        self._closing = True
        self._transport.abort()


@lru_cache(1024)
def _length(size: int) -> bytes:
    """Return the end of a response head. Cached, because response sizes repeat."""
    return b"content-length: %d\r\n\r\n" % size


def _too_large() -> HttpResponse:
    return HttpResponse(413, TEXT_HEADERS, b"Content too large\n")
