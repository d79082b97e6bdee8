"""Connection to an upstream: the calls in flight, and the assignment of server-to-client requests to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from portico.protocol import notifications
from portico.protocol.apps import APPS_EXTENSION, supports_apps
from portico.protocol.client_features import ListRootsResult
from portico.protocol.content import EmptyResult
from portico.protocol.errors import (
    ClientRequestFailed,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    PorticoError,
    ProtocolError,
)
from portico.protocol.meta import LOG_LEVEL_RANKS, ClientCapabilities, Implementation
from portico.protocol.methods import INPUT_REQUIRED_METHODS, METHODS
from portico.protocol.tasks import RELATED_TASK_META_KEY
from portico.protocol.versions import ProtocolVersion
from portico.rpc.attribution import attribute
from portico.rpc.call import Call
from portico.rpc.client_requests import send_client_request, validate_client_request
from portico.transports.base import in_request_stream
from portico.transports.handshake import ClientIdentity
from portico.transports.http_client.base import AuthenticatedTransport
from portico.transports.upstream import Upstream
from portico_gateway.gateway.accounting import LOCAL
from portico_gateway.gateway.catalog_entries import LIST_METHODS
from portico_gateway.gateway.client_handlers import ClientHandlers
from portico_gateway.gateway.server_request_bridge import SuspendedCall
from portico_gateway.gateway.settings import UpstreamSettings

NotificationHandler = Callable[[str, Raw], None]
"Handles a notification that belongs to no call: its method and its params."


def forwardable_capabilities(able: ClientCapabilities) -> ClientCapabilities:
    """Return the client capabilities that a gateway can forward."""
    pages = {APPS_EXTENSION: (able.extensions or {})[APPS_EXTENSION]} if supports_apps(able) else None
    return ClientCapabilities(elicitation=able.elicitation, sampling=able.sampling, roots=able.roots, extensions=pages)


class SessionClient(Protocol):
    """The client that an upstream serves alone, or the one that it is shown instead of many (`ConnectionPool.client`).

    The upstream sees its capabilities and its name in the handshake, whatever call opens the connection.
    """

    @property
    def capabilities(self) -> ClientCapabilities: ...
    @property
    def info(self) -> Implementation | None: ...
    @property
    def can_request(self) -> bool:
        """Return whether the client accepts requests that belong to none of its calls."""
        ...

    async def request(self, method: str, params: Any) -> Any:
        """Send a request of the upstream to the client and return the result."""
        ...

    def notify(self, method: str, params: Any) -> None:
        """Send a notification of the upstream to the client."""
        ...


class _InFlightCall(Struct, eq=False):
    """Call in flight, and its suspended state if the client is asked by an input-required result instead of a
    request.
    """

    call: Call
    parked: SuspendedCall | None


# Call being sent in this context, for messages that arrive on its response stream.
_current_call: ContextVar[_InFlightCall | None] = ContextVar("_under_way", default=None)


class UpstreamConnection:
    """Connection to an upstream.

    `on_connected` is called after a reconnect, `on_gap` when messages may have been lost, and `on_server_request` when
    the upstream sent a request that does not name its call. `turned` is called with 1 when the connection gets busy,
    and with -1 when it is idle again.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        capabilities: ClientCapabilities,
        on_notification: NotificationHandler,
        on_connected: Callable[[UpstreamConnection], None],
        on_gap: Callable[[], None],
        on_server_request: Callable[[], None],
        auth: AuthenticatedTransport | None = None,
        client_handlers: ClientHandlers | None = None,
        turned: Callable[[UpstreamConnection, int], None] = lambda lane, busy: None,
        client: SessionClient | None = None,
    ) -> None:
        assert settings.target is not None
        self._client = client
        self._answers = client_handlers
        self._turned = turned
        self._alias = settings.alias
        # Caller to whose share of connections it counts.
        self.owner = LOCAL
        self._on_notification = on_notification
        self._opened = on_connected
        self._missed = on_gap
        self._on_server_request = on_server_request
        self._in_flight: list[_InFlightCall] = []
        # Number of calls in flight during which the upstream cannot send requests.
        self.untracked_in_flight = 0
        self.last_used_at = time.monotonic()
        # Closed by the peer and not reconnected yet.
        self.is_broken = False
        # Whether tasks were started on it; they may exist in this session only.
        self.has_tasks = False
        # Number of listeners for changes.
        self.subscribers = 0
        # Creates another connection with the same settings, for the pool.
        self.create_replacement: Callable[[], UpstreamConnection]
        # Whether the end of the connection was recorded as a failure of the upstream.
        self.loss_recorded = False
        self.connection = Upstream(
            settings.target,
            self._handle_message,
            ClientIdentity(info, capabilities),
            protocol_version=settings.protocol_version,
            timeout=settings.timeout,
            auth=auth,
            max_retry_after=0.0,
            on_reconnected=self._on_reconnected,
            on_missed_messages=self._on_gap,
            shown_as=settings.alias,
        )

    @property
    def stderr_tail(self) -> list[str]:
        """Return the last stderr lines of the upstream, if it is a child process."""
        return self.connection.transport.stderr_tail if self.connection.is_open else []

    @property
    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return len(self._in_flight) + self.untracked_in_flight

    @property
    def is_alive(self) -> bool:
        """Return whether the transport is open."""
        return self.connection.is_open and not self.connection.transport.closed

    @property
    def is_stateless(self) -> bool:
        """Return whether the protocol version has no sessions."""
        return self.connection.modern

    @property
    def protocol_version(self) -> ProtocolVersion:
        return self.connection.handshake.protocol_version

    async def open(self) -> None:
        await self.connection.open()
        try:
            await self._set_log_level()
        except BaseException:
            await self.connection.close()
            raise

    async def _set_log_level(self) -> None:
        """Request all log messages from a server with sessions. They are filtered per call, by the client's level."""
        if not self.is_stateless and self.connection.handshake.capabilities.logging is not None:
            with contextlib.suppress(ProtocolError):
                await self.connection(Call(method="logging/setLevel", params=Raw(b'{"level":"debug"}'), id=0))

    async def _on_reconnected(self) -> None:
        self.is_broken = False
        await self._set_log_level()
        self._opened(self)

    def _on_gap(self) -> None:
        if self.connection.is_open and self.connection.transport.closed:
            self.is_broken = True
        else:
            self._missed()

    async def send(self, call: Call, suspended_call: SuspendedCall | None = None) -> Any:
        """Send a call and return its result."""
        call_state = _InFlightCall(call, suspended_call)
        self._in_flight.append(call_state)
        if len(self._in_flight) == 1:
            self._turned(self, 1)
        _current_call.set(call_state)
        try:
            return await self.connection(call)
        finally:
            self._in_flight.remove(call_state)
            self.last_used_at = time.monotonic()
            if not self._in_flight:
                self._turned(self, -1)

    async def listen(self, call: Call) -> Any:
        """Listen for changes until the connection ends."""
        if self.is_broken or not self.connection.is_open:
            raise InvalidRequest("the connection is closed")
        self.subscribers += 1
        try:
            return await self.connection(call)
        finally:
            self.subscribers -= 1

    def _handle_message(self, message: Call) -> Any:
        """Handle a request or notification of the upstream."""
        if message.id is None:
            call_state = self._find_call(message) if message.method == notifications.LOG_MESSAGE else None
            if call_state is not None:
                _forward_log_message(message, call_state.call)
            elif self._client is not None and message.method == notifications.LOG_MESSAGE:
                self._client.notify(message.method, message.params)
            else:
                self._on_notification(message.method, message.params)
            return None
        if message.method == "ping":
            return EmptyResult()
        if message.method not in ("elicitation/create", "sampling/createMessage", "roots/list"):
            raise MethodNotFound(f"Method not found: {message.method}")
        return self._handle_server_request(message)

    def _find_call(self, message: Call) -> _InFlightCall | None:
        """Return the call to which a message belongs, or None.

        It is the call on whose stream the message arrived, the call that waits for the related task, or the only call
        in flight.
        """
        call_state = _current_call.get()
        if in_request_stream.get() and call_state in self._in_flight:
            return call_state
        task = _related_task_id(message)
        if task is not None:
            return next((item for item in self._in_flight if _waits_for_task(item.call, task)), None)
        return self._in_flight[0] if self.in_flight == 1 else None

    @property
    def _serves_no_client(self) -> bool:
        """Return whether only list calls are in flight, which the gateway sends itself."""
        return not self.untracked_in_flight and all(item.call.method in LIST_METHODS for item in self._in_flight)

    async def _handle_server_request(self, question: Call) -> Any:
        """Answer a server-to-client request, here or by the client. Raises InvalidRequest with the reason if that
        fails.
        """
        if self._answers is not None and self._answers.handles(question.method):
            try:
                with self.connection.pause_timeouts():
                    return await self._answers.handle(question.method, question.params or None)
            except ClientRequestFailed as refusal:
                raise InvalidRequest(f"{question.method} was not answered: {refusal}") from None
        client = self._client if self._client is not None and self._client.can_request else None
        if question.method == "roots/list" and self._serves_no_client and client is None:
            # Servers request roots when a session begins, before a client is served on it.
            return ListRootsResult(roots=[])
        call_state = self._find_call(question)
        if client is not None and (call_state is None or self._serves_no_client):
            # All calls are of one client, so the request need not be assigned to one of them.
            return await self._ask_client(client, question)
        if not in_request_stream.get() and any(item.call.method in INPUT_REQUIRED_METHODS for item in self._in_flight):
            # Only requests during a call with input matter; others say nothing about the server's tools.
            self._on_server_request()
        if call_state is None:
            raise InvalidRequest(
                f"{question.method}: the request cannot be assigned to one of {self.in_flight} calls in flight"
            )
        call, params = call_state.call, attribute(self._alias, question.method, question.params or None)
        try:
            validate_client_request(call, question.method, params)
            with self.connection.pause_timeouts():
                if call_state.parked is not None:
                    return await call_state.parked.request_input(question.method, params)
                return await send_client_request(call, question.method, params)
        except PorticoError as refusal:
            raise InvalidRequest(f"{question.method} was not answered: {refusal}") from None

    async def _ask_client(self, client: SessionClient, question: Call) -> Any:
        params = attribute(self._alias, question.method, question.params or None)
        try:
            with self.connection.pause_timeouts():
                return await client.request(question.method, params)
        except PorticoError as refusal:
            raise InvalidRequest(f"{question.method} was not answered: {refusal}") from None


def _forward_log_message(message: Call, call: Call) -> None:
    """Forward a log message to the client of a call, if its level is requested."""
    try:
        level = METHODS[message.method].decode(message.params).level
    except InvalidParams:
        return
    if call.log_level is not None and LOG_LEVEL_RANKS[level] >= LOG_LEVEL_RANKS[call.log_level]:
        call.reply.notify(message.method, message.params)


class _RelatedTask(Struct, rename="camel"):
    task_id: str = ""


class _RelatedMeta(Struct):
    related: _RelatedTask | None = msgspec.field(default=None, name=RELATED_TASK_META_KEY)


class _RelatedTaskParams(Struct):
    meta: _RelatedMeta | None = msgspec.field(default=None, name="_meta")


_related_decoder = msgspec.json.Decoder(_RelatedTaskParams)


def _related_task_id(message: Call) -> str | None:
    """Return the ID of the task to which a message belongs (2025-11-25, basic/utilities/tasks), or None."""
    if RELATED_TASK_META_KEY.encode() not in bytes(message.params):
        return None
    try:
        meta = _related_decoder.decode(message.params).meta
    except (msgspec.DecodeError, RecursionError):
        return None
    return meta.related.task_id if meta is not None and meta.related is not None else None


def _waits_for_task(call: Call, task: str) -> bool:
    return call.method == "tasks/result" and bool(METHODS[call.method].decode(call.params).task_id == task)
