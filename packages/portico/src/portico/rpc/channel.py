"""A duplex stream of messages: ids, what is in flight in both directions, and cancellation.

Both ends of a stream are a Channel. It does no I/O: a transport gives it what was read, line by line, and a function
that writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import (
    Closed,
    InternalError,
    InvalidParams,
    InvalidRequest,
    ProtocolError,
    TimedOut,
    TransportError,
    from_wire,
)
from portico.protocol.jsonrpc import ErrorBody, Frame, Malformed, RequestId
from portico.protocol.meta import SUBSCRIPTION_ID, ProgressToken
from portico.protocol.methods import LASTING, METHODS
from portico.protocol.versions import MODERN, Revision
from portico.rpc.call import Call, Handler, Reply, stop
from portico.rpc.dispatcher import UNKNOWN_SENDER, VERSION_KEY, Door, Handshake, Sender, brings_revision

if TYPE_CHECKING:
    from portico.rpc.metrics import Metrics

log = logging.getLogger("portico")

MOST_IN_FLIGHT = 1024
# How long a question to the client may stay open: there is a person behind it, but perhaps no longer.
QUESTION_SECONDS = 3600.0
_MISSABLE = frozenset({notifications.MESSAGE, notifications.PROGRESS})


class Stream(Protocol):
    """Where the messages that belong to one request go: the Channel itself, where a conversation has one stream."""

    def emit(self, method: str, params: Any) -> None:
        """Send a notification on the way to the answer."""

    @property
    def send(self) -> Callable[[bytes], None]:
        """Sends a question on the way to the answer."""

    def lack(self, scopes: frozenset[str]) -> None:
        """Scopes without which the request is not answered."""

    def postpone(self, seconds: float) -> None:
        """The request may be tried again after so long."""

    def finish(self, message: bytes | None) -> None:
        """The answer; None when there will be none, because the request was cancelled."""

    async def drain(self) -> None:
        """Wait until the other side has read enough."""

    def release(self) -> None:
        """Let go of the connection while the work goes on."""


class ChannelReply(Reply):
    """The way back of a request on a Channel: over its own stream where it has one, over the shared one elsewhere."""

    id: RequestId | None
    method: str
    task: asyncio.Task[Any] | None = None
    _token: ProgressToken | None = None

    def __init__(self, channel: Channel, stream: Stream, finish: Callable[[bytes | None], None]) -> None:
        self._channel = self.conversation = channel
        self._stream = stream
        self._finish = finish

    def _emit(self, method: str, params: Any) -> None:
        self._stream.emit(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        return await self._channel.request(method, params, timeout=QUESTION_SECONDS, send=self._stream.send)

    def lack(self, scopes: frozenset[str]) -> None:
        self._stream.lack(scopes)

    def postpone(self, seconds: float) -> None:
        self._stream.postpone(seconds)

    async def drain(self) -> None:
        await self._stream.drain()

    def release(self) -> None:
        self._stream.release()

    def claim(self, token: ProgressToken) -> None:
        self._channel.claim(token)
        self._token = token

    def close(self) -> None:
        self.closed = True
        if self._token is not None:
            self._channel.progress_tokens.discard(self._token)
            self._token = None

    def begin(self, call: Call, task: asyncio.Task[Any]) -> None:
        # Not the Call: it and its Reply would be a circle, which only the collector of cycles could take apart.
        self.id, self.method, self.task = call.id, call.method, task
        self._channel.begin(self)

    def finish(self, message: bytes | None) -> None:
        self.close()
        self._channel.end_call(self)
        self._finish(message)


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
        session: Handshake | None = None,
        metrics: Metrics | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
        sender: Sender = UNKNOWN_SENDER,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        self.door = Door(handler, session=session, metrics=metrics)
        if session is not None:
            session.stream = self
        self.send = send
        self.sender = sender
        self.most_in_flight = most_in_flight
        # What the stream has settled on; a session sets both. `initialize` cannot be in a batch, so none comes before.
        self.revision: Revision | None = None
        self.batches = False
        # See Conversation.
        self.root_changes = 0
        # Tells, where the transport knows, that the other side has not read for long.
        self.congested: Callable[[], bool] | None = None
        self._drain = drain
        self._running: dict[RequestId, ChannelReply] = {}
        self._asked: dict[RequestId, asyncio.Future[Raw]] = {}
        self._last_id = 0
        self._errands: set[asyncio.Task[Any]] = set()
        self.progress_tokens: set[ProgressToken] = set()
        self.closed = False
        self._reason: Exception | None = None
        self._at_end: list[Callable[[], None]] = []

    def use(
        self,
        send: Callable[[bytes], None],
        drain: Callable[[], Awaitable[None]],
        congested: Callable[[], bool],
    ) -> None:
        """Write to another stream from now on."""
        self.send, self._drain, self.congested = send, drain, congested

    # Reading

    def receive(self, data: bytes, sender: Sender | None = None) -> bytes | None:
        """Take one message. What can be said at once is returned; the rest follows through `send`."""
        frame = jsonrpc.decode(data, jsonrpc.MOST_NODES)
        if type(frame) is Malformed and self._spoken is None and not frame.is_response and VERSION_KEY in data:
            # Nothing came before it that could say of which era the other side is, but it does so itself.
            return jsonrpc.error(frame.id, frame.error, MODERN)
        return self.accept(frame, sender=sender)

    def accept(
        self,
        frame: Frame | Malformed | list[Frame | Malformed],
        stream: Stream | None = None,
        sender: Sender | None = None,
    ) -> bytes | None:
        """Like `receive`, for a decoded frame; replies go to `stream` if one is given."""
        if isinstance(frame, Malformed):
            return self._complain(frame)
        stream, sender = stream or self, sender or self.sender
        if type(frame) is Frame:
            return self._take(frame, stream, stream.finish, sender)
        assert isinstance(frame, list)
        return self._take_batch(frame, stream, sender)

    def _take(
        self, frame: Frame, stream: Stream, finish: Callable[[bytes | None], None], sender: Sender
    ) -> bytes | None:
        if frame.method is UNSET:
            self._settle(frame)
            return None
        if frame.method == notifications.CANCELLED and frame.id is UNSET:
            self._cancel(frame.params)
            return None
        if frame.id in self._running or len(self._running) >= self.most_in_flight:
            return self._refuse(frame)
        return self.door.enter(frame, ChannelReply(self, stream, finish), sender)

    def claim(self, token: ProgressToken) -> None:
        """basic, Progress: a token must be unique across active requests, or the client could not tell them apart."""
        if token in self.progress_tokens:
            raise InvalidParams("Invalid _meta: this progressToken is in use by a request that is still active")
        self.progress_tokens.add(token)

    def begin(self, reply: ChannelReply) -> None:
        """A call goes on in a task."""
        assert reply.task is not None
        if reply.id is None:
            self._keep(reply.task)
        else:
            self._running[reply.id] = reply

    def end_call(self, reply: ChannelReply) -> None:
        id = reply.id
        if id is not None and self._running.get(id) is reply:
            del self._running[id]

    def _refuse(self, frame: Frame) -> bytes | None:
        if frame.id is UNSET:
            # Notifications are few, and have no answer that could refuse them.
            return self.door.enter(frame, ChannelReply(self, self, self.finish), self.sender)
        refusal: ProtocolError = InternalError("Refused: too many calls in flight")
        if frame.id in self._running:
            refusal = InvalidRequest("Invalid request: this id is already in flight")
        return jsonrpc.error(frame.id, refusal, self._spoken)

    @property
    def _spoken(self) -> Revision | None:
        """The revision in whose words a message is refused that cannot be read: the session's, or the last one's."""
        return self.revision or self.door.revision

    def _complain(self, found: Malformed) -> bytes | None:
        log.debug("malformed message: %s", found.error.message)
        if not found.is_response:
            return jsonrpc.error(found.id, found.error, self._spoken)
        future = self._asked.get(found.id) if found.id is not None else None
        if future is not None and not future.done():
            future.set_exception(ProtocolError("The answer could not be read"))
        return None

    # Batches

    def _take_batch(self, frames: list[Frame | Malformed], stream: Stream, sender: Sender) -> bytes | None:
        # 2026-07-28, basic/transports/stdio: each message is a single request, notification or response.
        modern = any(type(frame) is Frame and frame.id is not UNSET and brings_revision(frame) for frame in frames)
        refusal = refuse_batch(frames, self.batches and not modern and self._spoken != MODERN)
        if refusal is not None:
            return jsonrpc.error(None, refusal, MODERN if modern else self._spoken)
        replies: list[bytes] = []
        waiting: list[asyncio.Task[Any]] = []

        def collect(reply: bytes | None) -> None:
            if reply is not None:
                replies.append(reply)

        for frame in map(in_batch, frames):
            if isinstance(frame, Malformed):
                collect(self._complain(frame))
                continue
            reply = self._take(frame, stream, collect, sender)
            running = self._running.get(frame.id) if isinstance(frame.id, int | str) else None
            if reply is not None:
                replies.append(reply)
            elif frame.method is not UNSET and running is not None and running.task is not None:
                waiting.append(running.task)
        if not waiting:
            return join(replies)
        self._keep(asyncio.get_running_loop().create_task(self._reply_together(waiting, replies, stream)))
        return None

    async def _reply_together(self, waiting: list[asyncio.Task[Any]], replies: list[bytes], stream: Stream) -> None:
        """A batch is answered by one array when its last member is done; cancelled members are not in it."""
        await asyncio.wait(waiting)
        stream.finish(join(replies))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # Cancelling

    def _cancel(self, raw: Raw) -> None:
        try:
            params = METHODS[notifications.CANCELLED].decode(raw)
        except ProtocolError as failure:
            log.debug("%s", failure.message)
            return
        reply = self._running.get(params.request_id)
        if reply is None or reply.task is None or reply.method == "initialize":
            return
        log.debug("call %r is cancelled: %s", params.request_id, params.reason)
        reply.cancel()
        stop(reply, reply.task)

    # Its own stream, and asking the other side

    def emit(self, method: str, params: Any) -> None:
        """Send a notification; one that can be missed is dropped while the other side does not read."""
        if self.congested is not None and method in _MISSABLE and self.congested():
            return
        self.send(jsonrpc.notification(method, params))

    def lack(self, scopes: frozenset[str]) -> None:
        """There is nowhere to get them from: what is said is said in the answer."""

    def postpone(self, seconds: float) -> None:
        """The answer says it."""

    def finish(self, message: bytes | None) -> None:
        if message is not None:
            self.send(message)

    async def drain(self) -> None:
        if self._drain is not None:
            await self._drain()

    def release(self) -> None:
        """There is no other stream that the client could come back by."""

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
        except TransportError:
            # The connection has ended, so there is nothing to withdraw. Some of these are TimeoutErrors too.
            raise
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
            self.emit(notifications.CANCELLED, notifications.CancelledParams(request_id=id, reason="no longer waiting"))

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
        tasks = [*(reply.task for reply in self._running.values() if reply.task is not None), *self._errands]
        if tasks and grace > 0:
            await asyncio.wait(tasks, timeout=grace)
        self.close()
        stopped = [task for task in tasks if not task.done()]
        if stopped:
            await asyncio.wait(stopped, timeout=1.0)

    def _end_listening(self) -> None:
        """What would never end by itself is asked to: stopped, but not as cancelled by the client, it says goodbye."""
        for id, reply in self._running.items():
            if reply.method in LASTING and reply.task is not None:
                stop(reply, reply.task)
                reply.task.add_done_callback(partial(self._ended, id))

    def _ended(self, id: RequestId, task: asyncio.Task[Any]) -> None:
        # 2026-07-28, basic/patterns/cancellation: a server that ends a subscription on stdio also says so this way.
        self.emit(notifications.CANCELLED, ended_subscription(id))

    def when_closed(self, then: Callable[[], None]) -> None:
        """See Conversation."""
        if self.closed:
            then()
        else:
            self._at_end.append(then)

    def close(self, reason: Exception | None = None) -> None:
        """Stop everything; requests of ours that are not answered yet fail."""
        self.closed = True
        self._reason = self._reason or reason
        for reply in list(self._running.values()):
            reply.cancel()
            if reply.task is not None:
                stop(reply, reply.task)
        for task in list(self._errands):
            task.cancel()
        self.fail(reason or Closed("the connection is closed"))
        at_end, self._at_end = self._at_end, []
        for then in at_end:
            then()

    def fail(self, reason: Exception, id: RequestId | None = None) -> None:
        """What we have asked will not be answered: the request with this id, or all of them."""
        for asked, future in self._asked.items():
            if id in (None, asked) and not future.done():
                future.set_exception(reason)


def ended_subscription(id: RequestId) -> notifications.CancelledParams:
    """2026-07-28, basic/patterns/cancellation: what a server says of a subscription that it ends."""
    return notifications.CancelledParams(request_id=id, reason="the server is going away", meta={SUBSCRIPTION_ID: id})


# Batches: only 2025-03-26 has them


def refuse_batch(frames: list[Frame | Malformed], batches: bool) -> InvalidRequest | None:
    """Why a batch is refused; None if it is not. An empty one is no message anywhere."""
    if not batches:
        return InvalidRequest("Invalid request: this protocol revision has no batches")
    return None if frames else InvalidRequest("Invalid request: an empty batch")


def in_batch(frame: Frame | Malformed) -> Frame | Malformed:
    """2025-03-26, basic/lifecycle: initialize must not be part of a batch."""
    if isinstance(frame, Frame) and frame.method == "initialize" and isinstance(frame.id, int | str):
        return Malformed(InvalidRequest("Invalid request: initialize inside a batch"), frame.id)
    return frame


def join(replies: list[bytes]) -> bytes | None:
    return b"[" + b",".join(replies) + b"]" if replies else None
