"""The interface between components: a Handler answers a Call, and notifications and responses go to its Reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import CoroutineType
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Raw, Struct

from portico.protocol.errors import ConnectionClosed, InternalError
from portico.protocol.header_params import HeaderParam
from portico.protocol.jsonrpc import EMPTY_RAW, RequestId
from portico.protocol.meta import (
    NO_CAPABILITIES,
    ClientCapabilities,
    Implementation,
    ProgressToken,
    ServerCapabilities,
)
from portico.protocol.methods import METHODS
from portico.protocol.notifications import LOG_MESSAGE, PROGRESS, normalize_progress
from portico.protocol.tools import ToolAnnotations
from portico.protocol.versions import ProtocolVersion

NotificationCallback = Callable[[str, Any], None]
"""Takes a notification: its method and its params."""

ClientRequestCallback = Callable[[str, Any], Awaitable[Raw]]
"""Takes a question to the client, method and params, and returns the client's result."""


class ClientConnection(Protocol):
    """State shared by all requests of one client while it is connected. Usable as a key of a weak dictionary."""

    # Number of `notifications/roots/list_changed` received from the client.
    roots_version: int
    # Id of the session, the same in every process that serves it; empty if the connection is the session.
    session_id: str

    def add_close_callback(self, callback: Callable[[], None], /) -> None:
        """Call `callback` when the connection closes, or immediately if it is already closed."""


class Reply:
    """Return channel of one request: notifications and server-to-client requests before the response.

    A Reply lives as long as its request. It is closed when the request is answered or cancelled; after that, a handler
    that continues in a thread or in a background task can no longer send anything. Transports override the methods that
    begin with `_`, and `finish`.
    """

    # The request was answered or cancelled.
    closed = False
    # The client cancelled the request. A handler in a thread cannot be stopped, but it can check this flag.
    cancelled = False
    # The task of the request has started.
    running = False
    # Whether the protocol version and the transport support server-to-client requests.
    can_request = False
    # Whether the request comes from a handler of this process, which follows the tasks it starts, including tasks of
    # mounted handlers.
    tracks_tasks = False
    # Code of the error response, for transports that map it to a status (HTTP).
    error_code = 0
    # Scopes that the handler requires and the caller lacks.
    missing_scopes: frozenset[str] | None = None
    # Per-request state of an observer.
    observer_state: Any = None
    # Identifier under which the traceback of an unexpected exception is logged.
    error_id = ""
    # Size of the response.
    response_bytes = 0
    # Seconds after which the client may retry a rate-limited request.
    retry_after: float | None = None
    # The request was rejected before it reached the handler: the envelope was invalid.
    rejected = False
    # Whether log messages may be sent: the server declares logging, and the client requested it.
    logging_enabled = True
    # Translates notification params to an older protocol version.
    translate_notification: Callable[[Any], Any] | None = None
    # Validates a server-to-client request (method, params) and translates its params to the protocol version.
    prepare_request: Callable[[str, Any], Any] | None = None
    # Waits until the client accepts requests.
    wait_until_ready: Callable[[], Awaitable[None]] | None = None
    # None where requests are stateless.
    connection: ClientConnection | None = None
    _progress = float("-inf")

    def notify(self, method: str, params: Any) -> None:
        """Send a notification that belongs to this request.

        Drops progress that does not increase or is not a number, and log messages that the client did not request.
        """
        if self.closed or (method == LOG_MESSAGE and not self.logging_enabled):
            return
        if method == PROGRESS:
            progress, params = normalize_progress(params)
            if progress is None or progress <= self._progress:
                return
            self._progress = progress
        self._notify(method, params if self.translate_notification is None else self.translate_notification(params))

    async def request(self, method: str, params: Any) -> Raw:
        """Send a request to the client and return its result. Only handshake versions support this."""
        if self.closed:
            raise ConnectionClosed("the request has ended")
        # A handshake client accepts requests only after `notifications/initialized`.
        if self.wait_until_ready is not None:
            await self.wait_until_ready()
        return await self._ask(method, params if self.prepare_request is None else self.prepare_request(method, params))

    async def drain(self) -> None:
        """Wait until the client has read enough of the pending notifications."""

    def detach(self) -> None:
        """Release the connection while the request continues. A client of 2025-11-25 resumes over HTTP."""

    def require_scopes(self, scopes: frozenset[str]) -> None:
        """Record the scopes that the request lacks. A transport may report where to obtain them."""
        self.missing_scopes = scopes

    def set_retry_after(self, seconds: float) -> None:
        """Record the seconds after which a rate-limited request may be retried. A transport may send them to the
        client.
        """
        self.retry_after = seconds

    def close(self) -> None:
        """Close the reply. Nothing can be sent on it afterwards."""
        self.closed = True

    def cancel(self) -> None:
        self.cancelled = True
        self.close()

    # Implemented by transports

    def _notify(self, method: str, params: Any) -> None:
        """Write a notification."""

    async def _ask(self, method: str, params: Any) -> Raw:
        raise InternalError(f"No connected client can answer {method}")

    def register_progress_token(self, token: ProgressToken) -> None:
        """Register the token under which the client expects progress. Raises `InvalidParams` if an active request uses
        it.
        """

    def attach_task(self, call: Call, task: asyncio.Task[Any]) -> None:
        """Record that `task` continues the request after the first step."""

    def finish(self, message: bytes | None) -> None:
        """Write the response, or nothing if `message` is None because the request was cancelled."""
        self.close()


def cancel_request_task(reply: Reply, task: asyncio.Task[Any]) -> None:
    """Cancel the task of a request.

    A task that has not started is cancelled in the next iteration of the event loop. Cancelled before its first step,
    it would never run its `finally` block, and the coroutine that it should await would leak.
    """
    if reply.running:
        task.cancel()
    elif not task.get_loop().is_closed():
        task.get_loop().call_soon(task.cancel)


class CallbackReply(Reply):
    """Reply of a Call that this process makes itself. Notifications go to a callback."""

    def __init__(self, notify: NotificationCallback) -> None:
        self._notify = notify  # type: ignore[method-assign, assignment]


class RelayedReply(Reply):
    """Reply of a listener whose notifications pass through a callback, which may count or replace them."""

    def __init__(self, outer: Reply, notify: NotificationCallback) -> None:
        self._outer = outer
        self.notify = notify  # type: ignore[method-assign, assignment]
        self.request, self.drain = outer.request, outer.drain  # type: ignore[method-assign]
        self.can_request, self.connection = outer.can_request, outer.connection

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._outer.closed

    @property
    def cancelled(self) -> bool:  # type: ignore[override]
        return self._outer.cancelled

    @property
    def response_bytes(self) -> int:  # type: ignore[override]
        return self._outer.response_bytes


class _NullReply(Reply):
    """Reply of a Call without a client. It is shared between calls, so it never closes."""

    def close(self) -> None: ...
    def cancel(self) -> None: ...


class ServerView(Protocol):
    """Part of a server that clients can address separately."""

    def includes(self, owner: str, name: str) -> bool:
        """Return whether a component is part of the view, given its owner and the owner's name for it."""
        ...


class Call(Struct, frozen=True, kw_only=True):
    """Request (or notification, if it has no id) with everything known about its sender.

    A Call is self-contained: 2026-07-28 sends all of this with each request, and the session of a handshake version
    fills it in.
    """

    method: str
    params: Raw = EMPTY_RAW
    id: RequestId | None = None
    # None until known, from the sender's `_meta` or from its session.
    protocol_version: ProtocolVersion | None = None
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client: Implementation | None = None
    principal: Any = None
    progress_token: ProgressToken | None = None
    log_level: str | None = None
    # Set by transports that have them: the request headers with lower-case names, and the address of the client.
    headers: Mapping[bytes, bytes] | None = None
    address: str | None = None
    reply: Reply = _NullReply()
    # The view that the request was sent to; None for the whole server.
    facet: ServerView | None = None
    # Handles the call instead of the server, for example for tool search: see `Server.answer_with`.
    answer: Callable[[Call], Any] | None = None
    # The raw params with their decoded form, if the dispatcher already decoded them: see `decode_params`.
    read: tuple[Raw, Any] | None = None

    def decode_params(self) -> Any:
        """Return the params as the Struct of this method. Raises `InvalidParams` if they do not match it."""
        # The identity check detects calls whose params were replaced after decoding.
        if self.read is not None and self.read[0] is self.params:
            return self.read[1]
        return METHODS[self.method].decode(self.params)

    @property
    def is_anonymous(self) -> bool:
        """Return whether the endpoint is reachable by others and the sender is not authenticated."""
        return self.address is not None and self.principal is None


Kind = Literal["tool", "prompt", "resource", "template"]


class QualifiedName(NamedTuple):
    """The owner of a component, and the owner's name for it, which may differ from the name that clients see.

    The owner is an upstream's alias, a mount's prefix or name, a service's name, or else the server's name. An empty
    owner means that the component does not exist.
    """

    owner: str
    name: str


class Handler(Protocol):
    """Anything that answers a Call: a server, a gateway, a connection to a remote server, a function.

    A handler may have optional members: `get_capabilities` reads them, and `HandlerCapabilities` documents them.
    """

    async def __call__(self, call: Call, /) -> Any: ...


HandlerMiddleware = Callable[[Handler], Handler]


class ComponentDirectory:
    """Lookup of a handler's components without a request. The defaults suit a handler without a directory."""

    @property
    def header_params(self) -> Mapping[str, Sequence[HeaderParam]]:
        """Return the arguments of each tool that clients also send as HTTP headers. The mapping is updated in place."""
        return {}

    def cached_list(self, method: str) -> Sequence[Any] | None:
        """Return the entries of a list such as `tools/list`. The object stays the same until the list changes.

        Returns None if the list depends on the caller or has to be requested.
        """
        return None

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName:
        """Return the owner of a component, and the owner's name for it."""
        return QualifiedName("", name)

    def required_scopes(self, method: str, name: str, call: Call | None = None) -> Collection[str]:
        """Return the scopes that a request for this name requires. Empty for an unknown or hidden name."""
        return ()

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        """Return the canonical name of a component, given any of its names. None if it does not exist."""
        return name

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        """Return whether a component exists but must be hidden from the sender of this call."""
        return False

    def requires_task(self, tool: str) -> bool:
        """Return whether a tool can only run as a task."""
        return False

    def tool_annotations(self, call: Call, tool: str) -> ToolAnnotations | None:
        """Return a tool's current annotations for the sender of this call, or None if they require a list request."""
        return None


class Operations:
    """Operational interface of a handler for an HTTP server. The defaults suit a handler without dependencies."""

    def endpoints(self) -> Mapping[str, Handler]:
        """Return the handlers of additional paths. The mapping is a new object after each change."""
        return {}

    def on_rejected_request(self, status: int, reason: str, address: str | None) -> None:
        """Record a request that the transport rejected."""

    def readiness(self) -> Mapping[str, str]:
        """Return each dependency by name with its problem, or with an empty string if it is healthy."""
        return {}

    def is_settled(self) -> bool:
        """Return whether every dependency has been tried once. Starts dependencies that have not."""
        return True

    def conditions(self) -> Mapping[str, str]:
        """Return conditions that concern the operator but do not affect readiness."""
        return {}

    def render_metrics(self) -> Sequence[str]:
        """Return additional metrics in the Prometheus text format."""
        return ()


_NO_DIRECTORY = ComponentDirectory()
_NO_OPERATIONS = Operations()


class HandlerCapabilities(Struct, frozen=True):
    """Optional members of a handler, with defaults."""

    # Returns a result or a coroutine. Never blocks.
    start: Callable[[Call], Any]
    # Entered while the handler serves requests.
    lifespan: Callable[[], AbstractAsyncContextManager[Any]]
    # Added to results. None for an anonymous handler.
    info: Implementation | None
    capabilities: ServerCapabilities | None
    directory: ComponentDirectory
    operations: Operations

    @property
    def supports_logging(self) -> bool:
        """Return whether the handler may send log messages. True unless its capabilities exclude logging."""
        return self.capabilities is None or self.capabilities.logging is not None


def get_capabilities(handler: Handler) -> HandlerCapabilities:
    """Return the optional members of a handler. This is the only place that checks whether they exist."""
    capabilities = getattr(handler, "capabilities", None)
    return HandlerCapabilities(
        start=getattr(handler, "start", handler),
        lifespan=getattr(handler, "lifespan", nullcontext),
        info=getattr(handler, "info", None),
        capabilities=capabilities if isinstance(capabilities, ServerCapabilities) else None,
        directory=getattr(handler, "directory", _NO_DIRECTORY),
        operations=getattr(handler, "operations", _NO_OPERATIONS),
    )


class HandlerWrapper(ComponentDirectory):
    """Handler that wraps another one. Delegates every optional member that a subclass does not override."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        # Comparing the type is faster than `inspect.isawaitable`, and handlers only return coroutines.
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        return get_capabilities(self.handler).start(call)

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        return get_capabilities(self.handler).lifespan()

    @property
    def info(self) -> Implementation | None:
        return get_capabilities(self.handler).info

    @property
    def capabilities(self) -> ServerCapabilities | None:
        return get_capabilities(self.handler).capabilities

    @property
    def operations(self) -> Operations:
        return get_capabilities(self.handler).operations

    @property
    def directory(self) -> ComponentDirectory:
        return self

    @property
    def _directory(self) -> ComponentDirectory:
        return get_capabilities(self.handler).directory

    @property
    def header_params(self) -> Mapping[str, Sequence[HeaderParam]]:
        return self._directory.header_params

    def cached_list(self, method: str) -> Sequence[Any] | None:
        return self._directory.cached_list(method)

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName:
        return self._directory.qualified_name(kind, name)

    def required_scopes(self, method: str, name: str, call: Call | None = None) -> Collection[str]:
        return self._directory.required_scopes(method, name, call)

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        return self._directory.canonical_name(kind, name)

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        return self._directory.is_hidden(call, kind, name)

    def requires_task(self, tool: str) -> bool:
        return self._directory.requires_task(tool)

    def tool_annotations(self, call: Call, tool: str) -> ToolAnnotations | None:
        return self._directory.tool_annotations(call, tool)
