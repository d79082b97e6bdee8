"""The other door: a plain ASGI 3 application, to mount in a framework or to run on granian, uvicorn or hypercorn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from portico.rpc.supervision import BackgroundTasks
from portico.transports.event_loop import HeldLifespan, Lifespan, before_signals
from portico.transports.http_server.application import KEEP_ALIVE_SECONDS, Exchange
from portico.transports.http_server.connection import TICK_SECONDS
from portico.transports.http_server.error_responses import busy
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import TEXT, Answer, Pairs, Request, encode_headers

log = logging.getLogger("portico")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# How much a stream may hold for a client that does not read before a body that asks is made to wait.
MOST_WAITING = 64 * 1024
MOST_KNOWN = 1024
LONGEST_KNOWN = 2048


class Application:
    """A server as an ASGI application.

    Mounted in another application it never hears of that one's lifespan, unless that has `lifespan` as its own, or
    enters it. Otherwise the first request starts what must be running, and nothing ends it properly.
    """

    def __init__(self, exchange: Exchange, lifespan: Lifespan) -> None:
        self.exchange = exchange
        self._lifespan = lifespan
        self._living: HeldLifespan | None = None
        # The bytes of bodies that are being read or answered.
        self._held = 0
        # Heads that were let in: see `_remember`.
        self._known: dict[tuple[Any, ...], Request] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise TypeError(f"this application does not speak {scope['type']}")
        if self._living is None or not self._living.entered.done():
            await self._start_late()
        request, refusal = self._take(scope)
        try:
            if refusal is None:
                refusal = await self._read(request, receive)
            writer = AsgiWriter(send)
            if refusal is not None:
                writer.answer(refusal)
            else:
                self.exchange.handle(request, writer)
            await writer.run(receive)
        finally:
            self._held -= len(request.body)

    # Lifespan

    async def _live(self, receive: Receive, send: Send) -> None:
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
        """For the application that this one is mounted in: `FastAPI(lifespan=tools.lifespan)`, or inside of its own."""
        await self._start()
        try:
            yield
        finally:
            await self.stop()

    async def _start(self) -> None:
        if self._living is None or self._living.task.done():
            self._living = HeldLifespan(self._tended)
        await asyncio.shield(self._living.entered)

    @asynccontextmanager
    async def _tended(self) -> AsyncIterator[None]:
        """The server's lifespan, in which its streams and sessions are looked after."""
        async with self._lifespan():
            supervisor = BackgroundTasks()
            supervisor.repeat("http session expiry", self.exchange.expire, TICK_SECONDS)
            supervisor.repeat("http keep-alive", self.exchange.keep_alive, KEEP_ALIVE_SECONDS)
            try:
                with before_signals(self._end_streams):
                    yield
            finally:
                supervisor.cancel()

    def _end_streams(self) -> None:
        """The process is to end. The server that runs us waits for what it answers, and streams have no end."""
        self.exchange.end_streams()

    async def stop(self) -> None:
        await self.exchange.drain(5.0)
        if self._living is not None:
            await self._living.leave()

    # Requests

    async def _start_late(self) -> None:
        if self._living is None:
            log.warning(
                "the lifespan of the application that this one is mounted in does not start it: "
                "FastAPI(lifespan=tools.lifespan), with tools = server.asgi()"
            )
        await self._start()

    def _take(self, scope: Message) -> tuple[Request, Answer | None]:
        """The request, its body not yet read, and the refusal of it."""
        head = (scope["method"], scope["path"], scope.get("query_string", b""), *scope["headers"])
        known = self._known.get(head)
        if known is None:
            request = _request(scope, self.exchange)
            self._locate(scope, request)
            refusal = self.exchange.refuse(request)
            if refusal is None and request.method == "POST" and self.exchange.may_be_known(request):
                self._remember(head, request)
        else:
            request = replace(known)
            self._locate(scope, request)
            refusal = self.exchange.refuse_now(request)
            if refusal is not None:
                self.exchange.turned_away(request, refusal)
        return request, refusal

    def _locate(self, scope: Message, request: Request) -> None:
        """Say where a request comes from."""
        client = scope.get("client")
        peer = request.peer = str(client[0]) if client else ""
        if self.exchange.settings.trusted_proxies:
            proxies = self.exchange.proxies
            request.proxied = proxies.trusts(peer)
            if request.proxied:
                request.peer = proxies.client(request.headers, peer)

    async def _read(self, request: Request, receive: Receive) -> Answer | None:
        """Read the body of a request, or why it is not read."""
        settings = self.exchange.settings
        message = await receive()
        body = message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= settings.longest_body:
            # Nearly always it comes as one.
            if self._held + len(body) > settings.most_body_bytes:
                return busy(request)
            request.body = body
            self._held += len(body)
            return None
        return await self._read_parts(message, request, receive)

    async def _read_parts(self, message: Message, request: Request, receive: Receive) -> Answer | None:
        settings = self.exchange.settings
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                size += len(part)
                if size > settings.longest_body:
                    return Answer(413, TEXT, b"Content too large\n")
                if self._held + len(part) > settings.most_body_bytes:
                    return busy(request)
                if part:
                    parts.append(part)
                    self._held += len(part)
                if not message.get("more_body", False):
                    request.body = b"".join(parts)
                    return None
                message = await receive()
        finally:
            # What becomes the body of the request counts until that is answered.
            self._held += len(request.body) - sum(map(len, parts))

    def _remember(self, head: tuple[Any, ...], request: Request) -> None:
        """A client sends the same head again and again; one that was let in before is not judged again."""
        if sum(len(name) + len(value) for name, value in head[3:]) <= LONGEST_KNOWN:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[head] = replace(request, peer="")


def _request(scope: Message, exchange: Exchange) -> Request:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    # Where it is mounted is the framework's business: whatever is left of the path is the endpoint itself.
    inner = path.removeprefix(root) if root and path.startswith(root) else path
    if root and inner in ("", "/"):
        inner = exchange.settings.path
    elif root and exchange.has(path):
        # Mounted at the path of the main endpoint, others lie below it.
        inner = path
    query = scope.get("query_string", b"").decode("latin-1")
    headers = Headers.lowered(scope["headers"])
    secure = scope.get("scheme") == "https"
    return Request(scope["method"], inner or "/", query, headers, root=root, secure=secure)


class AsgiWriter:
    """An writer whose messages are sent, in order, by the task that the server gave us."""

    on_close: Callable[[], None] | None = None
    # A plain answer that can be sent as it is.
    _answer: Answer | None = None
    _size = 0
    _ended = False
    _gone = False
    _more: asyncio.Future[None] | None = None
    # Set while the client has read what there was; made when a body first waits for that.
    _sent: asyncio.Event | None = None

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[Message] = []

    def answer(self, answer: Answer) -> None:
        if not self._ended:
            self._answer = answer
            self._finish()

    def start(self, status: int, headers: Pairs) -> None:
        encode_headers(headers)  # not every ASGI server checks header values
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
        self._waiting.clear()
        self._gone = True
        self._notice()

    def buffered(self) -> int:
        return self._size

    async def drain(self) -> None:
        if self._size > MOST_WAITING:
            if self._sent is None:
                self._sent = asyncio.Event()
            await self._sent.wait()

    def _put(self, message: Message) -> None:
        if not self._ended:
            self._waiting.append(message)
            self._notice()

    def _finish(self) -> None:
        self._ended = True
        self._notice()

    async def run(self, receive: Receive) -> None:
        """Send what there is. A plain answer is there already; anything else is waited for, and so is the client."""
        if not self._ended:
            # A body that waits for nothing is done by the next turn.
            await asyncio.sleep(0)
        if self._waiting:
            await self._flush()
        if not self._ended or self._waiting:
            await self._stream(receive)
        answer = self._answer
        if answer is None:
            return
        headers, body = [*answer.headers], answer.body
        encode_headers(headers)
        if answer.status == 204:
            body = b""
        else:
            headers.append((b"content-length", b"%d" % len(body)))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _stream(self, receive: Receive) -> None:
        """Send what comes until that ends, there is an answer, or the client goes away."""
        gone = asyncio.ensure_future(_gone(receive))
        gone.add_done_callback(self._notice)
        try:
            while self._waiting or not self._ended:
                if gone.done() or self._gone:
                    self._answer = None
                    break
                if self._waiting:
                    await self._flush()
                else:
                    self._more = asyncio.get_running_loop().create_future()
                    await self._more
        finally:
            self._ended = True
            if self._sent is not None:
                self._sent.set()
            gone.cancel()
            on_close, self.on_close = self.on_close, None
            if on_close is not None:
                on_close()

    def _notice(self, _: object = None) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._size = max(0, self._size - len(message.get("body", b"")))
            await self._send(message)
        if self._sent is not None:
            self._sent.set()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
