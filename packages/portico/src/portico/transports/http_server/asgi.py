"""ASGI 3 application, to mount in a framework or to run on granian, uvicorn or hypercorn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from portico.caching import LruCache
from portico.rpc.supervision import BackgroundTasks
from portico.transports.event_loop import Lifespan, LifespanTask, chain_signal_handlers
from portico.transports.http_server.application import KEEP_ALIVE_INTERVAL_SECONDS, HttpApplication
from portico.transports.http_server.connection import TICK_INTERVAL_SECONDS
from portico.transports.http_server.error_responses import overloaded_response
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import TEXT_HEADERS, HeaderPairs, HttpRequest, HttpResponse, encode_headers

log = logging.getLogger("portico")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# Unread bytes of a stream before handlers that await their notifications are blocked.
WRITE_HIGH_WATER_BYTES = 64 * 1024
MAX_CACHED_HEADS = 1024
MAX_CACHED_HEAD_BYTES = 2048


class AsgiApplication:
    """Server as an ASGI application.

    Mounted in another application, it does not receive lifespan events unless that application uses `lifespan`.
    Otherwise the first request starts the background tasks, and nothing ends them properly.
    """

    def __init__(self, application: HttpApplication, lifespan: Lifespan) -> None:
        self.application = application
        self._lifespan = lifespan
        self._lifespan_task: LifespanTask | None = None
        # Total size of the bodies that are being read or answered.
        self._buffered_body_bytes = 0
        # Request heads that passed the checks: see `_cache_head`.
        self._head_cache: LruCache[tuple[Any, ...], HttpRequest] = LruCache(MAX_CACHED_HEADS)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise TypeError(f"this ASGI application does not support the scope type {scope['type']}")
        if self._lifespan_task is None or not self._lifespan_task.entered.done():
            await self._start_lazily()
        request, refusal = self._read_head(scope)
        try:
            if refusal is None:
                refusal = await self._read_body(request, receive)
            writer = AsgiResponseWriter(send)
            if refusal is not None:
                writer.respond(refusal)
            else:
                self.application.handle(request, writer)
            await writer.run(receive)
        finally:
            # The body counts until the response is sent: handlers may keep references to it until then.
            self._buffered_body_bytes -= len(request.body)

    # Lifespan

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except Exception:
            await send({"type": "lifespan.startup.failed", "message": "the server could not start"})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def lifespan(self, outer: Any = None) -> AsyncIterator[None]:
        """Run the server's lifespan inside the outer application: `FastAPI(lifespan=tools.lifespan)`."""
        await self._start()
        try:
            yield
        finally:
            await self.stop()

    async def _start(self) -> None:
        if self._lifespan_task is None or self._lifespan_task.task.done():
            self._lifespan_task = LifespanTask(self._managed_lifespan)
        # Several requests may wait for the same start. One cancelled request must not cancel it for the others.
        await asyncio.shield(self._lifespan_task.entered)

    @asynccontextmanager
    async def _managed_lifespan(self) -> AsyncIterator[None]:
        """Enter the server's lifespan, and start the timers of its streams and sessions."""
        async with self._lifespan():
            supervisor = BackgroundTasks()
            # The built-in listener has its own timers; under another ASGI server this is the only place to run them.
            supervisor.repeat("http session expiry", self.application.expire_sessions, TICK_INTERVAL_SECONDS)
            supervisor.repeat("http keep-alive", self.application.send_keep_alives, KEEP_ALIVE_INTERVAL_SECONDS)
            try:
                with chain_signal_handlers(self._end_streams):
                    yield
            finally:
                supervisor.cancel()

    def _end_streams(self) -> None:
        """End streams when the process stops: the ASGI server waits for responses, and streams have no end."""
        self.application.end_streams()

    async def stop(self) -> None:
        await self.application.drain(5.0)
        if self._lifespan_task is not None:
            await self._lifespan_task.exit()

    # Requests

    async def _start_lazily(self) -> None:
        if self._lifespan_task is None:
            log.warning(
                "the outer application's lifespan does not start this server; use "
                "FastAPI(lifespan=tools.lifespan) with tools = server.http_app()"
            )
        await self._start()

    def _read_head(self, scope: Message) -> tuple[HttpRequest, HttpResponse | None]:
        """Return the request without its body, and the error response if it is rejected."""
        # All headers are part of the key: any of them may decide whether the request is accepted.
        head = (scope["method"], scope["path"], scope.get("query_string", b""), *scope["headers"])
        cached = self._head_cache.peek(head)
        if cached is None:
            request = _request(scope, self.application)
            self._set_client_address(scope, request)
            refusal = self.application.precheck(request)
            if refusal is None and request.method == "POST" and self.application.is_precheck_cacheable(request):
                self._cache_head(head, request)
        else:
            # A copy, because address and body differ between requests with equal heads.
            request = replace(cached)
            self._set_client_address(scope, request)
            # Limits depend on the current load and the address, so they are never cached.
            refusal = self.application.check_capacity(request)
            if refusal is not None:
                self.application.report_rejection(request, refusal)
        return request, refusal

    def _set_client_address(self, scope: Message, request: HttpRequest) -> None:
        """Set the client address of a request."""
        client = scope.get("client")
        peer = request.peer = str(client[0]) if client else ""
        if self.application.settings.trusted_proxies:
            proxies = self.application.trusted_proxies
            request.proxied = proxies.trusts(peer)
            if request.proxied:
                request.peer = proxies.client_address(request.headers, peer)

    async def _read_body(self, request: HttpRequest, receive: Receive) -> HttpResponse | None:
        """Read the body of a request. Return the error response if it is rejected."""
        settings = self.application.settings
        message = await receive()
        body = message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= settings.max_body_size:
            # The most frequent case: the body arrives in one message.
            if self._buffered_body_bytes + len(body) > settings.max_total_body_size:
                return overloaded_response(request)
            request.body = body
            self._buffered_body_bytes += len(body)
            return None
        return await self._read_parts(message, request, receive)

    async def _read_parts(self, message: Message, request: HttpRequest, receive: Receive) -> HttpResponse | None:
        settings = self.application.settings
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                if size > settings.max_body_size:
                    return HttpResponse(413, TEXT_HEADERS, b"Content too large\n")
                if self._buffered_body_bytes + len(part) > settings.max_total_body_size:
                    return overloaded_response(request)
                if part:
                    parts.append(part)
                    self._buffered_body_bytes += len(part)
                if not message.get("more_body", False):
                    request.body = b"".join(parts)
                    return None
                message = await receive()
        finally:
            # The body of the request counts until the request is answered.
            self._buffered_body_bytes += len(request.body) - sum(map(len, parts))

    def _cache_head(self, head: tuple[Any, ...], request: HttpRequest) -> None:
        """Cache an accepted head. Clients repeat the same head, which is then not checked again."""
        if sum(len(name) + len(value) for name, value in head[3:]) <= MAX_CACHED_HEAD_BYTES:
            self._head_cache[head] = replace(request, peer="")


def _request(scope: Message, exchange: HttpApplication) -> HttpRequest:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    # The mount point belongs to the framework: an empty remaining path means the endpoint itself.
    inner = path.removeprefix(root) if root and path.startswith(root) else path
    if root and inner in ("", "/"):
        inner = exchange.settings.path
    elif root and exchange.is_endpoint_path(path):
        # Mounted at the path of the main endpoint, other endpoints are below it.
        inner = path
    query = scope.get("query_string", b"").decode("latin-1")
    headers = Headers.from_lowercase_pairs(scope["headers"])
    secure = scope.get("scheme") == "https"
    return HttpRequest(scope["method"], inner or "/", query, headers, root=root, secure=secure)


class AsgiResponseWriter:
    """Response writer whose messages are sent, in order, by the task of the ASGI request."""

    on_close: Callable[[], None] | None = None
    # A complete response, if there is one.
    _answer: HttpResponse | None = None
    _size = 0
    _ended = False
    _is_disconnected = False
    _more: asyncio.Future[None] | None = None
    # Set while the client has read everything. Created when a handler first waits for it.
    _sent: asyncio.Event | None = None

    def __init__(self, send: Send) -> None:
        self._send = send
        self._pending_messages: list[Message] = []

    def respond(self, response: HttpResponse) -> None:
        if not self._ended:
            self._answer = response
            self._finish()

    def start(self, status: int, headers: HeaderPairs) -> None:
        encode_headers(headers)  # not every ASGI server validates header values
        self._put({"type": "http.response.start", "status": status, "headers": list(headers)})

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._sent is not None:
            self._sent.clear()
        self._put({"type": "http.response.body", "body": data, "more_body": True})

    def end(self) -> None:
        self._put({"type": "http.response.body", "body": b""})
        self._finish()

    def abort(self) -> None:
        self._pending_messages.clear()
        self._is_disconnected = True
        self._wake()

    def buffered_bytes(self) -> int:
        return self._size

    async def drain(self) -> None:
        if self._size > WRITE_HIGH_WATER_BYTES:
            if self._sent is None:
                self._sent = asyncio.Event()
            await self._sent.wait()

    def _put(self, message: Message) -> None:
        if not self._ended:
            self._pending_messages.append(message)
            self._wake()

    def _finish(self) -> None:
        self._ended = True
        self._wake()

    async def run(self, receive: Receive) -> None:
        """Send the response. A complete response is sent directly; a stream is sent until it ends or the client
        disconnects.
        """
        if not self._ended:
            # A handler that does not wait is done in the next iteration of the event loop.
            await asyncio.sleep(0)
        if self._pending_messages:
            await self._flush()
        if not self._ended or self._pending_messages:
            await self._stream(receive)
        answer = self._answer
        if answer is None:
            return
        headers, body = [*answer.headers], answer.body
        encode_headers(headers)
        # RFC 9110, section 8.6: a 204 response has no Content-Length.
        if answer.status == 204:
            body = b""
        else:
            headers.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _stream(self, receive: Receive) -> None:
        """Send messages until the stream ends, a response is set, or the client disconnects."""
        # ASGI reports a disconnect only to `receive`, so a task has to wait for it while the stream is sent.
        disconnected = asyncio.ensure_future(_wait_disconnect(receive))
        disconnected.add_done_callback(self._wake)
        try:
            while self._pending_messages or not self._ended:
                if disconnected.done() or self._is_disconnected:
                    self._answer = None
                    break
                if self._pending_messages:
                    await self._flush()
                else:
                    self._more = asyncio.get_running_loop().create_future()
                    await self._more
        finally:
            self._ended = True
            if self._sent is not None:
                self._sent.set()
            disconnected.cancel()
            # Reset before the call, so that it runs once even if it closes this writer again.
            on_close, self.on_close = self.on_close, None
            if on_close is not None:
                on_close()

    def _wake(self, _: object = None) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _flush(self) -> None:
        # Handlers may append while `send` waits for the client; the next flush sends these messages, in order.
        waiting, self._pending_messages = self._pending_messages, []
        for message in waiting:
            self._size = max(0, self._size - len(message.get("body", b"")))
            await self._send(message)
        if self._sent is not None:
            self._sent.set()


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
