"""A duplex stream of messages: ids, what is in flight in both directions, and cancellation.

Both ends of a stream are a Channel. It does no I/O: a transport gives it what was read, line by line, and a function
that writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from msgspec import UNSET, Raw, Struct

from portico.rpc.answer import heed, in_batch, join, open_call, refuse_batch, respond
from portico.rpc.call import Call, Handler, first_step
from portico.wire import jsonrpc, notices
from portico.wire.errors import Closed, InternalError, ProtocolError, TimedOut, from_wire
from portico.wire.jsonrpc import ErrorBody, Frame, Malformed, RequestId
from portico.wire.methods import LASTING, METHODS
from portico.wire.revisions import MODERN, Revision

log = logging.getLogger("portico")

Finish = Callable[[bytes | None], None]

MOST_IN_FLIGHT = 1024
_MISSABLE = frozenset({notices.MESSAGE, notices.PROGRESS})


class Stream(Protocol):
    """Where the messages that belong to one request go, when a conversation has more than one stream."""

    def send(self, message: bytes) -> None:
        """A notification or a question on the way to the answer."""

    def finish(self, message: bytes | None) -> None:
        """The answer; None when there will be none, because the request was cancelled."""


class _Running(Struct, weakref=True):
    task: asyncio.Task[Any]
    call: Call


class Channel:
    """One conversation over one stream.

    `send` takes a whole message and must not block. `drain`, when there is one, waits until the other side has read
    enough; what a body emits and awaits is slowed down by it.
    """

    def __init__(
        self,
        handler: Handler,
        send: Callable[[bytes], None],
        *,
        drain: Callable[[], Awaitable[None]] | None = None,
        principal: Any = None,
        public: bool = False,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        self.handler = handler
        self.send = send
        self.principal = principal
        self.public = public
        self.most_in_flight = most_in_flight
        # What the stream has settled on; a session sets both. Until then batches are let in, because a client of
        # the one revision that has them may begin with one.
        self.revision: Revision | None = None
        self.batches = True
        # Tells, where the transport knows, that the other side has not read for long.
        self.congested: Callable[[], bool] | None = None
        self._drain = drain
        self._running: dict[RequestId, _Running] = {}
        self._asked: dict[RequestId, asyncio.Future[Raw]] = {}
        self._last_id = 0
        self._errands: set[asyncio.Task[Any]] = set()
        self.closed = False
        self._reason: Exception | None = None

    # Reading

    def receive(self, data: bytes) -> bytes | None:
        """Take one message. What can be said at once is returned; the rest follows through `send`."""
        return self.accept(jsonrpc.decode(data))

    def accept(self, frame: Frame | Malformed | list[Frame | Malformed], stream: Stream | None = None) -> bytes | None:
        """The same for a message that is decoded already, and that may have a stream of its own."""
        if type(frame) is Frame:
            return self._take(frame, self.finish if stream is None else stream.finish, stream)
        if isinstance(frame, Malformed):
            return self._complain(frame)
        assert isinstance(frame, list)
        return self._take_batch(frame, stream)

    def finish(self, message: bytes | None) -> None:
        if message is not None:
            self.send(message)

    def _take(self, frame: Frame, finish: Finish, stream: Stream | None) -> bytes | None:
        if frame.method is UNSET:
            self._settle(frame)
            return None
        try:
            if stream is None:
                call = open_call(frame, self.emit, self.ask, self.principal)
            else:
                emit, ask = partial(self._emit, stream.send), partial(self._ask, stream.send)
                call = open_call(frame, emit, ask, self.principal)
                call.release = getattr(stream, "release", None)
                call.drain = getattr(stream, "drain", None)
        except ProtocolError as failure:
            # The envelope of 2026-07-28 was at fault, so it is answered in that revision's words.
            return None if frame.id is UNSET else jsonrpc.error(frame.id, failure, MODERN)
        if stream is None:
            call.drain = self._drain
        call.public = self.public
        if call.id is None:
            self._take_notice(call)
            return None
        if len(self._running) >= self.most_in_flight or call.id in self._running:
            return self._refuse(call)
        return self._step(call, self._serve(call, finish))

    def _step(self, call: Call, coro: Coroutine[Any, Any, Any]) -> bytes | None:
        reply, task = first_step(call, coro)
        if task is None:
            return reply  # type: ignore[no-any-return]
        if call.id is None:
            self._keep(task)
        else:
            self._running[call.id] = _Running(task, call)
        return None

    async def _serve(self, call: Call, finish: Finish) -> bytes | None:
        reply: bytes | None = None
        try:
            reply = await respond(call, self.handler)
        finally:
            if not call.instant:
                self._forget(call)
                # A body may swallow its cancellation; the answer is dropped all the same.
                finish(None if call.cancelled else reply)
        return reply if call.instant else None

    def _forget(self, call: Call) -> None:
        running = self._running.get(call.id) if call.id is not None else None
        if running is not None and running.call is call:
            del self._running[call.id]  # type: ignore[arg-type]

    def _refuse(self, call: Call) -> bytes:
        reason = "this id is already in flight" if call.id in self._running else "too many calls in flight"
        return jsonrpc.error(call.id, InternalError(f"Refused: {reason}"), call.revision or self.revision)

    def _complain(self, found: Malformed) -> bytes | None:
        log.debug("malformed message: %s", found.error.message)
        if not found.is_response:
            return jsonrpc.error(found.id, found.error, self.revision)
        future = self._asked.get(found.id) if found.id is not None else None
        if future is not None and not future.done():
            future.set_exception(ProtocolError("The answer could not be read"))
        return None

    # Batches

    def _take_batch(self, frames: list[Frame | Malformed], stream: Stream | None) -> bytes | None:
        refusal = refuse_batch(frames, self.batches)
        if refusal is not None:
            return jsonrpc.error(None, refusal, self.revision)
        replies: list[bytes] = []
        waiting: list[asyncio.Task[Any]] = []

        def collect(reply: bytes | None) -> None:
            if reply is not None:
                replies.append(reply)

        for frame in map(in_batch, frames):
            reply = self._complain(frame) if isinstance(frame, Malformed) else self._take(frame, collect, stream)
            if reply is not None:
                replies.append(reply)
            elif isinstance(frame, Frame) and frame.method is not UNSET and frame.id in self._running:
                waiting.append(self._running[frame.id].task)
        if not waiting:
            return join(replies)
        finish = self.finish if stream is None else stream.finish
        self._keep(asyncio.get_running_loop().create_task(self._reply_together(waiting, replies, finish)))
        return None

    async def _reply_together(self, waiting: list[asyncio.Task[Any]], replies: list[bytes], finish: Finish) -> None:
        """A batch is answered by one array when its last member is done; cancelled members are not in it."""
        await asyncio.wait(waiting)
        finish(join(replies))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # Notices

    def _take_notice(self, call: Call) -> None:
        if call.method == notices.CANCELLED:
            self._cancel(call)
        else:
            self._step(call, heed(call, self.handler))

    def _cancel(self, notice: Call) -> None:
        try:
            params = METHODS[notices.CANCELLED].decode(notice.params)
        except ProtocolError as failure:
            log.debug("%s", failure.message)
            return
        running = self._running.get(params.request_id)
        if running is None or running.call.method == "initialize":
            return
        log.debug("call %r is cancelled: %s", params.request_id, params.reason)
        running.call.cancelled = True
        running.task.cancel()

    # Asking the other side

    def emit(self, method: str, params: Any) -> None:
        """Send a notification; one that can be missed is dropped while the other side does not read."""
        if self.congested is not None and method in _MISSABLE and self.congested():
            return
        self.send(jsonrpc.notification(method, params))

    def _emit(self, send: Callable[[bytes], None], method: str, params: Any) -> None:
        send(jsonrpc.notification(method, params))

    async def ask(self, method: str, params: Any) -> Raw:
        return await self.request(method, params)

    async def _ask(self, send: Callable[[bytes], None], method: str, params: Any) -> Raw:
        return await self.request(method, params, send=send)

    async def request(
        self,
        method: str,
        params: Any,
        *,
        timeout: float | None = None,
        send: Callable[[bytes], None] | None = None,
        id: RequestId | None = None,
    ) -> Raw:
        """Ask the other side, wait for its answer, and give up properly: it is told when we stop waiting."""
        if self.closed:
            raise Closed(str(self._reason or "the connection is closed"))
        id = self.new_id() if id is None else id
        future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._asked[id] = future
        try:
            (send or self.send)(jsonrpc.request(id, method, params))
            async with asyncio.timeout(timeout):
                return await future
        except (TimeoutError, asyncio.CancelledError) as reason:
            if method != "initialize":
                self._withdraw(id)
            if isinstance(reason, TimeoutError):
                raise TimedOut(f"{method} was not answered within {timeout} s") from None
            raise
        finally:
            self._asked.pop(id, None)

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _withdraw(self, id: RequestId) -> None:
        if not self.closed:
            self.emit(notices.CANCELLED, notices.CancelledParams(request_id=id, reason="no longer waiting"))

    def _settle(self, frame: Frame) -> None:
        future = self._asked.get(frame.id) if isinstance(frame.id, int | str) else None
        if future is None or future.done():
            log.debug("a response to nothing we asked (id %r)", frame.id)
        elif isinstance(frame.error, ErrorBody):
            future.set_exception(from_wire(frame.error.code, frame.error.message, frame.error.data))
        else:
            future.set_result(frame.result)

    # The end

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def end(self, grace: float) -> None:
        """Let what is running come to its end for a moment, then stop it."""
        self._end_listening()
        tasks = [*(running.task for running in self._running.values()), *self._errands]
        if tasks and grace > 0:
            await asyncio.wait(tasks, timeout=grace)
        self.close()
        stopped = [task for task in tasks if not task.done()]
        if stopped:
            await asyncio.wait(stopped, timeout=1.0)

    def _end_listening(self) -> None:
        """What would never end by itself is asked to: stopped, but not as cancelled by the client, it says goodbye."""
        for running in self._running.values():
            if running.call.method in LASTING:
                running.task.cancel()
                running.task.add_done_callback(partial(self._ended, running.call))

    def _ended(self, call: Call, task: asyncio.Task[Any]) -> None:
        # 2026-07-28, basic/patterns/cancellation: a server that ends a subscription on stdio also says so this way.
        self.emit(notices.CANCELLED, notices.CancelledParams(request_id=call.id, reason="the server is going away"))

    def close(self, reason: Exception | None = None) -> None:
        """Stop everything; whoever waits for an answer learns that there will be none."""
        self.closed = True
        self._reason = self._reason or reason
        for running in list(self._running.values()):
            running.call.cancelled = True
            running.task.cancel()
        for task in list(self._errands):
            task.cancel()
        self.fail(reason or Closed("the connection is closed"))

    def fail(self, reason: Exception) -> None:
        """Whatever we have asked will not be answered."""
        for future in self._asked.values():
            if not future.done():
                future.set_exception(reason)
