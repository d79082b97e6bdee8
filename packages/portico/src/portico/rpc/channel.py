"""Duplex stream of JSON-RPC messages: request ids, in-flight requests of both directions, and cancellation.

Both ends of a stream are a Channel. It performs no I/O: a transport passes in each line it reads, and a function that
writes.
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
    ConnectionClosed,
    InternalError,
    InvalidParams,
    InvalidRequest,
    ProtocolError,
    RequestTimeout,
    TransportError,
    error_from_response,
)
from portico.protocol.jsonrpc import ErrorObject, JsonRpcMessage, MalformedMessage, RequestId
from portico.protocol.meta import SUBSCRIPTION_ID_META_KEY, ProgressToken
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion
from portico.rpc.call import Call, Handler, Reply, cancel_request_task
from portico.rpc.dispatcher import (
    UNKNOWN_PEER,
    VERSION_META_KEY_BYTES,
    Dispatcher,
    PeerInfo,
    SessionInterface,
    has_protocol_version,
)
from portico.rpc.supervision import BackgroundTasks

if TYPE_CHECKING:
    from portico.rpc.metrics import Metrics

log = logging.getLogger("portico")

MAX_IN_FLIGHT_REQUESTS = 1024
# A user may have to answer a server-to-client request, so the limit is generous; the user may also have left.
CLIENT_REQUEST_TIMEOUT_SECONDS = 3600.0


class RequestStream(Protocol):
    """Destination of the messages that belong to one request. The Channel itself where a connection has a single
    stream.
    """

    def notify(self, method: str, params: Any) -> None:
        """Send a notification that precedes the response."""

    @property
    def send(self) -> Callable[[bytes], None]:
        """Return the function that sends a server-to-client request on this stream."""

    def require_scopes(self, scopes: frozenset[str]) -> None:
        """Record the scopes that the request lacks."""

    def set_retry_after(self, seconds: float) -> None:
        """Record the seconds after which the client may retry the request."""

    def finish(self, message: bytes | None) -> None:
        """Send the response, or nothing if `message` is None because the request was cancelled."""

    async def drain(self) -> None:
        """Wait until the client has read enough."""

    def detach(self) -> None:
        """Release the connection while the request continues."""


class ChannelReply(Reply):
    """Reply of a request on a Channel: sends over the request's own stream if it has one, or over the shared stream."""

    id: RequestId | None
    method: str
    task: asyncio.Task[Any] | None = None
    _token: ProgressToken | None = None

    def __init__(self, channel: Channel, stream: RequestStream, finish: Callable[[bytes | None], None]) -> None:
        self._channel = self.connection = channel
        self._stream = stream
        self._finish = finish

    def _notify(self, method: str, params: Any) -> None:
        self._stream.notify(method, params)

    async def _ask(self, method: str, params: Any) -> Raw:
        return await self._channel.request(
            method, params, timeout=CLIENT_REQUEST_TIMEOUT_SECONDS, send=self._stream.send
        )

    def require_scopes(self, scopes: frozenset[str]) -> None:
        self._stream.require_scopes(scopes)

    def set_retry_after(self, seconds: float) -> None:
        self._stream.set_retry_after(seconds)

    async def drain(self) -> None:
        await self._stream.drain()

    def detach(self) -> None:
        self._stream.detach()

    def register_progress_token(self, token: ProgressToken) -> None:
        self._channel.register_progress_token(token)
        self._token = token

    def close(self) -> None:
        self.closed = True
        if self._token is not None:
            self._channel.progress_tokens.discard(self._token)
            self._token = None

    def attach_task(self, call: Call, task: asyncio.Task[Any]) -> None:
        # The Call is not stored: it references its Reply, and the cycle would have to wait for the garbage collector.
        self.id, self.method, self.task = call.id, call.method, task
        self._channel.add_running(self)

    def finish(self, message: bytes | None) -> None:
        self.close()
        self._channel.remove_running(self)
        self._finish(message)


class Channel:
    """Message exchange over one stream.

    `send` takes a whole message and must not block. `drain`, if given, waits until the peer has read enough; it applies
    backpressure to handlers that await their notifications.
    """

    def __init__(
        self,
        handler: Handler,
        send: Callable[[bytes], None],
        *,
        session: SessionInterface | None = None,
        metrics: Metrics | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
        peer: PeerInfo = UNKNOWN_PEER,
        max_in_flight: int = MAX_IN_FLIGHT_REQUESTS,
    ) -> None:
        self.dispatcher = Dispatcher(handler, session=session, metrics=metrics)
        if session is not None:
            session.stream = self
        self.send = send
        self.peer = peer
        self.max_in_flight = max_in_flight
        # Negotiated by the session, which sets both. `initialize` cannot be part of a batch, so no batch arrives
        # earlier.
        self.protocol_version: ProtocolVersion | None = None
        self.batching_enabled = False
        # See `ClientConnection`.
        self.roots_version = 0
        self.session_id = ""
        # Reports, where the transport can tell, that the peer has not read for a while.
        self.is_congested: Callable[[], bool] | None = None
        self._drain = drain
        self._running: dict[RequestId, ChannelReply] = {}
        self._pending_requests: dict[RequestId, asyncio.Future[Raw]] = {}
        self._last_id = 0
        self._background_tasks = BackgroundTasks()
        self.progress_tokens: set[ProgressToken] = set()
        self.closed = False
        self._reason: Exception | None = None
        self._close_callbacks: list[Callable[[], None]] = []

    def replace_stream(
        self,
        send: Callable[[bytes], None],
        drain: Callable[[], Awaitable[None]],
        is_congested: Callable[[], bool],
    ) -> None:
        """Write to another stream from now on."""
        self.send, self._drain, self.is_congested = send, drain, is_congested

    # Reading

    def receive(self, data: bytes, peer: PeerInfo | None = None) -> bytes | None:
        """Handle one message. Return the response if it is available immediately; otherwise it goes to `send`."""
        return self.receive_decoded(jsonrpc.decode_message(data, jsonrpc.MAX_JSON_NODES), data, peer=peer)

    def receive_decoded(
        self,
        frame: JsonRpcMessage | MalformedMessage | list[JsonRpcMessage | MalformedMessage],
        data: bytes,
        stream: RequestStream | None = None,
        peer: PeerInfo | None = None,
    ) -> bytes | None:
        """Handle a message like `receive`, decoded from `data` by the caller. Replies go to `stream` if given."""
        if (
            type(frame) is MalformedMessage
            and self._error_version is None
            and not (frame.is_response or frame.is_notification)
            and VERSION_META_KEY_BYTES in data
        ):
            # No earlier message determined the peer's protocol version, but this one carries it in its `_meta`.
            return jsonrpc.encode_error(frame.id, frame.error, FIRST_MODERN_VERSION)
        return self.receive_message(frame, stream, peer)

    def receive_message(
        self,
        message: JsonRpcMessage | MalformedMessage | list[JsonRpcMessage | MalformedMessage],
        stream: RequestStream | None = None,
        peer: PeerInfo | None = None,
    ) -> bytes | None:
        """Handle a decoded message like `receive`. Replies go to `stream` if given."""
        if isinstance(message, MalformedMessage):
            return self._reject_malformed(message)
        stream, peer = stream or self, peer or self.peer
        if type(message) is JsonRpcMessage:
            return self._handle_message(message, stream, stream.finish, peer)
        assert isinstance(message, list)
        return self._handle_batch(message, stream, peer)

    def _handle_message(
        self, frame: JsonRpcMessage, stream: RequestStream, finish: Callable[[bytes | None], None], sender: PeerInfo
    ) -> bytes | None:
        if frame.method is UNSET:
            self._handle_response(frame)
            return None
        # Handled before the limit of requests in flight: a client at its limit must still be able to cancel.
        if frame.method == notifications.CANCELLED and frame.id is UNSET:
            self._handle_cancelled(frame.params)
            return None
        # The limit protects memory: every request in flight holds a task and its params.
        if frame.id in self._running or len(self._running) >= self.max_in_flight:
            return self._reject(frame)
        return self.dispatcher.dispatch(frame, ChannelReply(self, stream, finish), sender)

    def register_progress_token(self, token: ProgressToken) -> None:
        """Reserve a progress token.

        The specification (basic, Progress) requires tokens to be unique across active requests. Raises `InvalidParams`
        if the token is in use.
        """
        if token in self.progress_tokens:
            raise InvalidParams("Invalid _meta: this progressToken is in use by a request that is still active")
        self.progress_tokens.add(token)

    def add_running(self, reply: ChannelReply) -> None:
        """Register a request whose task is running, so that it can be cancelled."""
        assert reply.task is not None
        if reply.id is None:
            self._background_tasks.add(reply.task)
        else:
            self._running[reply.id] = reply

    def remove_running(self, reply: ChannelReply) -> None:
        id = reply.id
        # The id may already belong to a newer request: ids can be reused after a response was sent.
        if id is not None and self._running.get(id) is reply:
            del self._running[id]

    def _reject(self, frame: JsonRpcMessage) -> bytes | None:
        if frame.id is UNSET:
            # Notifications are few and have no response that could reject them.
            return self.dispatcher.dispatch(frame, ChannelReply(self, self, self.finish), self.peer)
        refusal: ProtocolError = InternalError(
            "Too many requests in flight; retry after earlier requests have completed"
        )
        if frame.id in self._running:
            refusal = InvalidRequest("Invalid request: this id is already in flight")
        return jsonrpc.encode_error(frame.id, refusal, self._error_version)

    @property
    def _error_version(self) -> ProtocolVersion | None:
        """Return the protocol version for errors about unreadable messages: the session's, or the last request's."""
        return self.protocol_version or self.dispatcher.protocol_version

    def _reject_malformed(self, malformed: MalformedMessage) -> bytes | None:
        log.debug("malformed message: %s", malformed.error.message)
        if malformed.is_notification:
            return None
        if not malformed.is_response:
            return jsonrpc.encode_error(malformed.id, malformed.error, self._error_version)
        future = self._pending_requests.get(malformed.id) if malformed.id is not None else None
        if future is not None and not future.done():
            # Fails the request now instead of letting it wait for its timeout: no other response will follow.
            future.set_exception(ProtocolError("The response could not be decoded"))
        return None

    # Batches

    def _handle_batch(
        self, frames: list[JsonRpcMessage | MalformedMessage], stream: RequestStream, sender: PeerInfo
    ) -> bytes | None:
        # 2026-07-28, basic/transports/stdio: each message is a single request, notification or response.
        modern = any(
            type(frame) is JsonRpcMessage and frame.id is not UNSET and has_protocol_version(frame) for frame in frames
        )
        refusal = check_batch(
            frames, self.batching_enabled and not modern and self._error_version != FIRST_MODERN_VERSION
        )
        if refusal is not None:
            return jsonrpc.encode_error(None, refusal, FIRST_MODERN_VERSION if modern else self._error_version)
        replies: list[bytes] = []
        waiting: list[asyncio.Task[Any]] = []

        def collect(reply: bytes | None) -> None:
            if reply is not None:
                replies.append(reply)

        for frame in map(check_batch_member, frames):
            if isinstance(frame, MalformedMessage):
                collect(self._reject_malformed(frame))
                continue
            reply = self._handle_message(frame, stream, collect, sender)
            running = self._running.get(frame.id) if isinstance(frame.id, int | str) else None
            if reply is not None:
                replies.append(reply)
            elif frame.method is not UNSET and running is not None and running.task is not None:
                waiting.append(running.task)
        if not waiting:
            return join_batch(replies)
        self._background_tasks.add(
            asyncio.get_running_loop().create_task(self._send_batch_response(waiting, replies, stream))
        )
        return None

    async def _send_batch_response(
        self, waiting: list[asyncio.Task[Any]], replies: list[bytes], stream: RequestStream
    ) -> None:
        """Wait for all requests of a batch and send their responses as one array. Cancelled requests are not in it."""
        await asyncio.wait(waiting)
        stream.finish(join_batch(replies))

    # Cancelling

    def _handle_cancelled(self, raw: Raw) -> None:
        try:
            params = METHODS[notifications.CANCELLED].decode(raw)
        except ProtocolError as failure:
            log.debug("%s", failure.message)
            return
        reply = self._running.get(params.request_id)
        # 2025-11-25, Cancellation: `initialize` must not be cancelled.
        if reply is None or reply.task is None or reply.method == "initialize":
            return
        log.debug("request %r was cancelled: %s", params.request_id, params.reason)
        reply.cancel()
        cancel_request_task(reply, reply.task)

    # The shared stream, and requests to the peer

    def notify(self, method: str, params: Any) -> None:
        """Send a notification. Drops log messages and progress while the peer does not read."""
        # A client that stopped reading must not make the server buffer log messages without limit. Other
        # notifications change state, so they are never dropped.
        if self.is_congested is not None and method in notifications.DROPPABLE and self.is_congested():
            return
        self.send(jsonrpc.encode_notification(method, params))

    def require_scopes(self, scopes: frozenset[str]) -> None:
        """Ignore the scopes: the shared stream has no HTTP challenge, and the error response already contains them."""

    def set_retry_after(self, seconds: float) -> None:
        """Ignore the delay: the error response already contains it."""

    def finish(self, message: bytes | None) -> None:
        if message is not None:
            self.send(message)

    async def drain(self) -> None:
        if self._drain is not None:
            await self._drain()

    def detach(self) -> None:
        """Do nothing: there is no other stream on which the client could resume."""

    async def request(
        self,
        method: str,
        params: Any,
        *,
        timeout: float | None = None,
        send: Callable[[bytes], None] | None = None,
        id: RequestId | None = None,
    ) -> Raw:
        """Send a request to the peer and return its result. Sends a cancellation if the wait ends early.

        Raises `RequestTimeout` after `timeout` seconds, and `ConnectionClosed` if the connection ends first.
        """
        if self.closed:
            raise ConnectionClosed(str(self._reason or "the connection is closed"))
        id = self.next_request_id() if id is None else id
        future: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._pending_requests[id] = future
        try:
            (send or self.send)(jsonrpc.encode_request(id, method, params))
            # Most callers have their own deadline, and `asyncio.timeout(None)` is not free.
            if timeout is None:
                return await future
            async with asyncio.timeout(timeout):
                return await future
        except TransportError:
            # The connection has ended, so there is nothing to cancel. Some transport errors are also TimeoutErrors.
            raise
        except (TimeoutError, asyncio.CancelledError) as reason:
            # "The initialize request MUST NOT be cancelled by clients" (2025-11-25,
            # basic/utilities/cancellation).
            if method != "initialize":
                self._cancel_request(id)
            if isinstance(reason, TimeoutError):
                raise RequestTimeout(f"{method} was not answered within {timeout} s") from None
            raise
        finally:
            self._pending_requests.pop(id, None)

    def next_request_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _cancel_request(self, id: RequestId) -> None:
        if not self.closed:
            self.notify(
                notifications.CANCELLED, notifications.CancelledParams(request_id=id, reason="no longer waiting")
            )

    def _handle_response(self, frame: JsonRpcMessage) -> None:
        # A response without an id, or with null, matches nothing.
        future = self._pending_requests.get(frame.id)  # type: ignore[arg-type]
        if future is None or future.done():
            # Late responses are normal: the request may have been cancelled while its response was on the way.
            log.debug("ignoring a response without a matching request (id %r)", frame.id)
        elif isinstance(frame.error, ErrorObject):
            future.set_exception(error_from_response(frame.error.code, frame.error.message, frame.error.data))
        else:
            future.set_result(frame.result)

    # Shutdown

    def is_running(self, id: RequestId) -> bool:
        """Return whether a request of the peer is in flight."""
        return id in self._running

    def use_unique_ids(self, first: int) -> None:
        """Set the first id of requests to the peer, which may still answer requests of an earlier channel."""
        self._last_id = first

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def shutdown(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for running requests, then cancel them."""
        # Subscriptions never end by themselves; waiting for them would always use up the whole timeout.
        self._end_subscriptions()
        tasks = [*(reply.task for reply in self._running.values() if reply.task is not None), *self._background_tasks]
        if tasks and timeout > 0:
            await asyncio.wait(tasks, timeout=timeout)
        self.close()
        # Cancelled tasks get one second for their cleanup; a handler that ignores cancellation must not block the
        # shutdown.
        stopped = [task for task in tasks if not task.done()]
        if stopped:
            await asyncio.wait(stopped, timeout=1.0)

    def _end_subscriptions(self) -> None:
        """Stop subscriptions, which never end by themselves. They are not marked as cancelled, so they still send a
        response.
        """
        for id, reply in self._running.items():
            if reply.method in LONG_LIVED_METHODS and reply.task is not None:
                cancel_request_task(reply, reply.task)
                reply.task.add_done_callback(partial(self._send_subscription_ended, id))

    def _send_subscription_ended(self, id: RequestId, task: asyncio.Task[Any]) -> None:
        # 2026-07-28, basic/patterns/cancellation: a server that ends a subscription on stdio also sends a cancellation.
        self.notify(notifications.CANCELLED, subscription_ended_params(id))

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the connection closes. See `ClientConnection`."""
        if self.closed:
            callback()
        else:
            self._close_callbacks.append(callback)

    def close(self, reason: Exception | None = None) -> None:
        """Cancel all running requests and fail all pending ones."""
        self.closed = True
        self._reason = self._reason or reason
        for reply in list(self._running.values()):
            reply.cancel()
            if reply.task is not None:
                cancel_request_task(reply, reply.task)
        self._background_tasks.cancel()
        self.fail_pending(reason or ConnectionClosed("the connection is closed"))
        # Swapped first: a callback may close the channel again.
        at_end, self._close_callbacks = self._close_callbacks, []
        for callback in at_end:
            callback()

    def fail_pending(self, reason: Exception, id: RequestId | None = None) -> None:
        """Fail the pending request with this id, or all pending requests."""
        for request_id, future in self._pending_requests.items():
            if id in (None, request_id) and not future.done():
                future.set_exception(reason)


def subscription_ended_params(id: RequestId) -> notifications.CancelledParams:
    """Return the params with which a server ends a subscription (2026-07-28, basic/patterns/cancellation)."""
    return notifications.CancelledParams(
        request_id=id, reason="the server is going away", meta={SUBSCRIPTION_ID_META_KEY: id}
    )


# Batches exist only in 2025-03-26


def check_batch(frames: list[JsonRpcMessage | MalformedMessage], batching_enabled: bool) -> InvalidRequest | None:
    """Return the error for a batch that is rejected, or None if it is accepted. An empty batch is always invalid."""
    if not batching_enabled:
        return InvalidRequest("Invalid request: this protocol version does not support batches")
    return None if frames else InvalidRequest("Invalid request: a batch must contain at least one message")


def check_batch_member(frame: JsonRpcMessage | MalformedMessage) -> JsonRpcMessage | MalformedMessage:
    """Reject `initialize` inside a batch (2025-03-26, basic/lifecycle)."""
    if isinstance(frame, JsonRpcMessage) and frame.method == "initialize" and isinstance(frame.id, int | str):
        return MalformedMessage(InvalidRequest("Invalid request: initialize must not be part of a batch"), frame.id)
    return frame


def join_batch(replies: list[bytes]) -> bytes | None:
    """Return the responses as one JSON array, or None if there are none."""
    return b"[" + b",".join(replies) + b"]" if replies else None
