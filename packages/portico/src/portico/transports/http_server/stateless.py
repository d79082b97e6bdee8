"""2026-07-28 over HTTP: each request stands alone, and its answer is JSON unless something was said before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from time import time
from typing import Any

from msgspec import UNSET

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import HeaderMismatch
from portico.protocol.header_params import Mirror
from portico.protocol.jsonrpc import Frame, RequestId
from portico.protocol.methods import LASTING, METHODS
from portico.protocol.versions import MODERN_REVISIONS
from portico.rpc.call import Call, Reply, members, stop
from portico.rpc.channel import ended_subscription
from portico.rpc.dispatcher import Door, Sender
from portico.transports.http_server import headers as http
from portico.transports.http_server import sse
from portico.transports.http_server.cluster_hooks import Elsewhere
from portico.transports.http_server.messages import JSON, MOST_UNREAD, Answer, Request, ResponseWriter, Traffic

# The codes that demand a status of their own; any other error of a handler is a 200 with an error in it.
STATUS = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}

_MISSABLE = frozenset({notifications.MESSAGE, notifications.PROGRESS})


Forbidden = Callable[[Request, frozenset[str], RequestId], Answer | None]


class StatelessRequests:
    """Answers requests that bring everything with them, and knows those that are still being answered."""

    def __init__(self, door: Door, mirrored: Mapping[str, Sequence[Mirror]], traffic: Traffic) -> None:
        self.door = door
        self.traffic = traffic
        self.replies: set[HttpReply] = set()
        self._mirrored = mirrored
        # Says what a client hears that lacks scopes, where it can get them.
        self.forbidden: Forbidden | None = None
        self._hides = members(door.handler).hides
        self.by_client = traffic.by_client
        # The other processes that serve the same clients.
        self.elsewhere: Elsewhere | None = None

    def post(self, frame: Frame, request: Request, writer: ResponseWriter, sought: bool = False) -> None:
        if (
            self.elsewhere is not None
            and not sought
            and (b'"requestState"' in request.body or b'"taskId"' in request.body)
        ):
            # What it goes on with may be kept by another process.
            again = partial(self.post, frame, request, writer, sought=True)
            if self.elsewhere.find_parked(bytes(frame.params), request, writer, again):
                return
        if frame.id is UNSET:
            # There is nothing a client could tell us this way; the specification has us accept it.
            writer.answer(Answer(202, request.cors))
            return
        reply = HttpReply(self, writer, request, frame.id)  # type: ignore[arg-type]
        sender = Sender(request.principal, request.headers, request.peer)
        message = self.door.enter(frame, reply, sender, True, self._gate)
        if message is not None:
            reply.send(message)

    def _gate(self, call: Call) -> None:
        """The headers must say what the body says."""
        # Type mistakes in params are for the method to complain about.
        name = None if call.read is None else METHODS[call.method].name_in(call.read[1])
        headers = call.headers
        # The same head comes again and again, and mostly with the same to repeat.
        if headers.agreed != (call.revision, call.method, name):  # type: ignore[union-attr]
            http.check(call, name)
        if self._mirrored and call.method == "tools/call" and call.revision in MODERN_REVISIONS:
            mirrored = self._mirrored.get(name or "")
            if mirrored is not None:
                self._check_mirrored(call, name or "", mirrored)

    def _check_mirrored(self, call: Call, name: str, mirrored: Sequence[Mirror]) -> None:
        try:
            http.check_mirrored(call, mirrored)
        except HeaderMismatch:
            # Of a tool that the caller is not to learn of, the handler says that it is not there.
            if not self._hides(call, "tool", name):
                raise

    def keep_alive(self) -> None:
        now = time()
        for reply in list(self.replies):
            if reply.is_over(now):
                # Its principal is none any more. A client with a new token listens again.
                reply.end_listening()
            else:
                reply.keep_alive()

    def end_listening(self, whose: Callable[[Any], bool] = lambda principal: True) -> list[asyncio.Task[Any]]:
        """What would never end by itself is asked to. Gives everything that is still running."""
        for reply in self.replies:
            if not reply.counts and whose(reply.principal):
                reply.end_listening()
        return [reply.task for reply in self.replies]

    def close(self) -> None:
        for reply in list(self.replies):
            reply.abandon()


class HttpReply(Reply):
    """The way back of one request: JSON, or events once something was said before the answer."""

    task: asyncio.Task[Any]

    def __init__(self, requests: StatelessRequests, writer: ResponseWriter, request: Request, id: RequestId) -> None:
        self.id = id
        self._requests = requests
        self._writer = writer
        self._request = request
        # Whether it is work. A subscription only waits.
        self.counts = True
        # What is asked of each is set on each: Python finds it sooner than on the class.
        self._started = self.closed = self.cancelled = False
        self.error = self.size = 0
        self.lacking = self.retry_after = None

    def begin(self, call: Call, task: asyncio.Task[Any]) -> None:
        """From now on it counts, and the client's going away ends it."""
        # Not the Call: it and its Reply would be a circle, which only the collector of cycles could take apart.
        self.task = task
        self._writer.on_close = self.abandon
        requests = self._requests
        requests.replies.add(self)
        if call.method in LASTING:
            self.counts = False
        else:
            peer, by_client = self._request.peer, requests.by_client
            by_client[peer] = by_client.get(peer, 0) + 1

    @property
    def principal(self) -> Any:
        return self._request.principal

    def is_over(self, now: float) -> bool:
        """Whether it only waits, for a principal whose token has ended."""
        until = self._request.until
        return not self.counts and until is not None and now >= until

    def end_listening(self) -> None:
        # The pages of the specification differ: one wants this, the other a result. Both are said; the result ends the
        # stream, so it comes last.
        self.emit(notifications.CANCELLED, ended_subscription(self.id))
        stop(self, self.task)

    def abandon(self) -> None:
        """A closed connection cancels the request (basic/transports)."""
        self.cancel()
        stop(self, self.task)

    def _emit(self, method: str, params: Any) -> None:
        writer = self._writer
        if not self._started:
            if method in _MISSABLE and not http.takes_events(self._request.headers):
                return
            self._started = True
            writer.start(200, (*sse.HEADERS, *self._request.cors))
        unread = writer.buffered()
        if unread > MOST_UNREAD and method in _MISSABLE:
            return
        if unread > 2 * MOST_UNREAD:
            writer.abort()
            return
        writer.write(sse.event(jsonrpc.notification(method, params)))

    async def drain(self) -> None:
        await self._writer.drain()

    def finish(self, message: bytes | None) -> None:
        self.closed = True
        # Its context may hold the Call, and so this Reply: a circle, which only the collector could take apart.
        del self.task
        requests = self._requests
        requests.replies.discard(self)
        if self.counts:
            peer, by_client = self._request.peer, requests.by_client
            left = by_client[peer] - 1
            if left:
                by_client[peer] = left
            else:
                del by_client[peer]
        if message is None:
            self._writer.on_close = None
        else:
            self.send(message)

    def send(self, message: bytes) -> None:
        """Write the response."""
        self._requests.traffic.sent += len(message)
        writer = self._writer
        writer.on_close = None
        if self._started:
            writer.write(sse.event(message))
            writer.end()
        elif self.lacking is not None and (answer := self._forbid(self.lacking)) is not None:
            writer.answer(answer)
        else:
            status = STATUS.get(self.error, 400 if self.refused else 200) if self.error else 200
            headers = (*JSON, *self._request.cors) if self._request.cors else JSON
            if self.retry_after is not None:
                status, headers = 429, (*headers, (b"retry-after", b"%d" % ceil(self.retry_after)))
            writer.answer(Answer(status, headers, message))

    def _forbid(self, lacking: frozenset[str]) -> Answer | None:
        forbidden = self._requests.forbidden
        return None if forbidden is None else forbidden(self._request, lacking, self.id)

    def keep_alive(self) -> None:
        if self._started:
            self._writer.write(sse.KEEP_ALIVE)
