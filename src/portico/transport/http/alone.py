"""2026-07-28 over HTTP: each request stands alone, and its answer is JSON unless something was said before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET

from portico.rpc.answer import enter, new_call, respond
from portico.rpc.call import Call, Handler, first_step
from portico.transport.http import headers as http
from portico.transport.http import sse
from portico.transport.http.headers import Headers
from portico.transport.http.outlet import JSON, MOST_UNREAD, Answer, Outlet, Pairs, Request, Traffic
from portico.wire import jsonrpc, notices
from portico.wire import meta as metas
from portico.wire.errors import InvalidParams, ProtocolError
from portico.wire.jsonrpc import Frame
from portico.wire.meta import PROTOCOL_VERSION, Meta
from portico.wire.methods import LASTING
from portico.wire.mirrors import Mirror
from portico.wire.revisions import MODERN

# The codes that demand a status of their own; whatever else a handler says is a 200 with an error in it.
STATUS = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}

_MISSABLE = frozenset({notices.MESSAGE, notices.PROGRESS})


class Alone:
    """Answers requests that bring everything with them, and knows those that are still being answered."""

    def __init__(self, handler: Handler, mirrored: Callable[[str], Sequence[Mirror]] | None, traffic: Traffic) -> None:
        self.handler = handler
        self.traffic = traffic
        self.replies: set[Reply] = set()
        self._mirrored = mirrored
        self._by_client: dict[str, int] = {}

    def in_flight(self, peer: str) -> int:
        return self._by_client.get(peer, 0) if self._by_client else 0

    def post(self, frame: Frame, meta: Meta, request: Request, outlet: Outlet, principal: Any, cors: Pairs) -> None:
        if frame.id is UNSET:
            # There is nothing a client could tell us this way; the specification has us accept it.
            outlet.answer(Answer(202, cors))
            return
        reply = Reply(self, outlet, request, cors)
        call = new_call(frame, reply.emit, None, principal)
        try:
            self._admit(call, meta, request.headers)
        except ProtocolError as failure:
            refusal = jsonrpc.error(call.id, failure, MODERN)
            outlet.answer(Answer(STATUS.get(failure.code, 400), (*JSON, *cors), refusal))
            return
        call.drain = outlet.drain
        self._run(call, reply)

    def _admit(self, call: Call, meta: Meta, headers: Headers) -> None:
        """The ladder (basic/transports): required members, headers, version, mirrored parameters."""
        version = meta.protocol_version
        if version is UNSET:
            raise InvalidParams(f"Missing required _meta key: {PROTOCOL_VERSION}")
        call.capabilities = metas.require(meta)
        http.check_single(headers)
        call.name = http.check(call, version, headers)
        enter(call, meta, version)
        if self._mirrored is not None and call.method == "tools/call":
            mirrored = self._mirrored(call.name)
            if mirrored:
                http.check_mirrored(call, mirrored, headers)

    def _run(self, call: Call, reply: Reply) -> None:
        """A plain answer needs no more than this step, and no stream either."""
        body, task = first_step(call, self._serve(call, reply))
        if task is None:
            reply.finish(call, body)
        else:
            reply.begin(call, task)

    async def _serve(self, call: Call, reply: Reply) -> bytes | None:
        try:
            body = await respond(call, self.handler)
        finally:
            if not call.instant:
                self.ended(reply)
        if call.instant:
            return body
        if not call.cancelled:
            reply.finish(call, body)
        return None

    def began(self, reply: Reply) -> None:
        self.replies.add(reply)
        if reply.counts:
            self._by_client[reply.peer] = self._by_client.get(reply.peer, 0) + 1

    def ended(self, reply: Reply) -> None:
        self.replies.discard(reply)
        if reply.counts:
            left = self._by_client.get(reply.peer, 1) - 1
            if left:
                self._by_client[reply.peer] = left
            else:
                self._by_client.pop(reply.peer, None)

    def keep_alive(self) -> None:
        for reply in list(self.replies):
            reply.keep_alive()

    def end_listening(self) -> list[asyncio.Task[Any]]:
        """What would never end by itself is asked to. Gives everything that is still running."""
        for reply in self.replies:
            if reply.task is not None and not reply.counts:
                reply.task.cancel()
        return [reply.task for reply in self.replies if reply.task is not None]

    def close(self) -> None:
        for reply in list(self.replies):
            reply.abandon()


class Reply:
    """The way back of one request: JSON, or events once something was said before the answer."""

    __slots__ = ("alone", "call", "cors", "headers", "outlet", "peer", "started", "task")

    def __init__(self, alone: Alone, outlet: Outlet, request: Request, cors: Pairs) -> None:
        self.alone = alone
        self.outlet = outlet
        self.peer = request.peer
        self.headers = request.headers
        self.cors = cors
        self.started = False
        self.call: Call | None = None
        self.task: asyncio.Task[Any] | None = None

    def begin(self, call: Call, task: asyncio.Task[Any]) -> None:
        """It takes longer: from now on it counts, and the client's going away ends it."""
        self.call, self.task = call, task
        self.outlet.on_close = self.abandon
        self.alone.began(self)

    @property
    def counts(self) -> bool:
        """Whether it is work. A subscription only waits."""
        return self.call is not None and self.call.method not in LASTING

    def abandon(self) -> None:
        """A closed connection cancels the request (basic/transports)."""
        if self.call is not None and self.task is not None:
            self.call.cancelled = True
            self.task.cancel()

    def emit(self, method: str, params: Any) -> None:
        if not self.started:
            if method in _MISSABLE and not http.takes_events(self.headers):
                return
            self.started = True
            self.outlet.start(200, (*sse.HEADERS, *self.cors))
        unread = self.outlet.buffered()
        if unread > MOST_UNREAD and method in _MISSABLE:
            return
        if unread > 2 * MOST_UNREAD:
            self.outlet.abort()
            return
        self.outlet.write(sse.event(jsonrpc.notification(method, params)))

    def finish(self, call: Call, body: bytes) -> None:
        self.alone.traffic.sent += len(body)
        self.outlet.on_close = None
        if self.started:
            self.outlet.write(sse.event(body))
            self.outlet.end()
        else:
            status = STATUS.get(call.error, 200) if call.error else 200
            self.outlet.answer(Answer(status, (*JSON, *self.cors) if self.cors else JSON, body))

    def keep_alive(self) -> None:
        if self.started:
            self.outlet.write(sse.KEEP_ALIVE)
