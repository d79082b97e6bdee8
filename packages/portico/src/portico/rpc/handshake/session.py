"""Sessions of the handshake versions, 2024-11-05 to 2025-11-25.

```
CREATED ──initialize──▶ INITIALIZING ──notifications/initialized──▶ OPERATING ──end of stream──▶ SHUTDOWN
```

A session sits between the dispatcher and a Handler, and adds the negotiated values to each Call. Calls that carry their
own protocol version (2026-07-28) bypass it, so both kinds work on one stream. The handler only sees methods of the
newest version: the handshake uses `server/discover`, and subscriptions use `subscriptions/listen`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico.protocol import jsonrpc, notifications, translation
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.content import EmptyResult
from portico.protocol.errors import InternalError, InvalidRequest, MethodNotFound, ResourceNotFound
from portico.protocol.jsonrpc import JsonRpcMessage
from portico.protocol.lifecycle import DiscoverResult, InitializeParams, InitializeResult
from portico.protocol.meta import (
    NO_CAPABILITIES,
    SERVER_INFO_META_KEY,
    ClientCapabilities,
    DecodedMeta,
    Implementation,
    ProgressToken,
    ServerCapabilities,
)
from portico.protocol.methods import METHODS, as_input_required
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.tasks import EXTENSION, TASK_PROGRESS_EXTENSION, TERMINAL_STATUSES, CreateTaskResult
from portico.protocol.versions import (
    FIRST_MODERN_VERSION,
    LATEST_HANDSHAKE_VERSION,
    V2024_11_05,
    V2025_03_26,
    ProtocolVersion,
    negotiate_version,
)
from portico.rpc.call import Call, CallbackReply, Handler, Reply, get_capabilities
from portico.rpc.change_relay import ChangeRelay
from portico.rpc.dispatcher import PeerInfo, create_call
from portico.rpc.handshake.list_changes import ListChangeNotifier, ListVersions

if TYPE_CHECKING:
    from portico.rpc import client_requests
    from portico.rpc.handshake import input_requests
else:
    input_requests = LazyModule("portico.rpc.handshake.input_requests")
    client_requests = LazyModule("portico.rpc.client_requests")

State = Literal["CREATED", "INITIALIZING", "OPERATING", "SHUTDOWN"]
LifecycleMode = Literal["auto", "strict", "lenient"]

# Each subscription is a task and a Call, so a client must not create them without limit.
MAX_RESOURCE_SUBSCRIPTIONS = 1000
# Wait for `notifications/initialized` before a server-to-client request fails.
INITIALIZED_TIMEOUT_SECONDS = 30.0
_INPUT_REQUIRED_TYPES = (InputRequiredResult, Raw)
_TASK_CAPABILITIES = ClientCapabilities(extensions={EXTENSION: {}, TASK_PROGRESS_EXTENSION: {}})


class SessionState(Struct, kw_only=True, omit_defaults=True):
    """Negotiated values of a handshake, and the client's later settings. Serializable."""

    protocol_version: ProtocolVersion
    capabilities: ClientCapabilities = NO_CAPABILITIES
    client: Implementation | None = None
    log_level: str = "info"
    operating: bool = False
    subscribed: list[str] = []


class NotificationStream(Protocol):
    """Channel of a session, as the session uses it."""

    protocol_version: ProtocolVersion | None
    batching_enabled: bool
    roots_version: int

    def notify(self, method: str, params: Any) -> None: ...


class HandshakeSession:
    """Session of one client, from its handshake to the end of its stream."""

    def __init__(
        self,
        handler: Handler,
        *,
        lifecycle: LifecycleMode = "auto",
        ordered: bool = True,
        list_changes: ListChangeNotifier | None = None,
    ) -> None:
        self.handler = handler
        # Whether messages arrive in the order in which they were sent. Otherwise a call may overtake `initialized`.
        self.in_order = ordered
        self.lifecycle = lifecycle
        self.state: State = "CREATED"
        self.protocol_version: ProtocolVersion | None = None
        self.capabilities: ClientCapabilities = NO_CAPABILITIES
        self.client: Implementation | None = None
        self.log_level = "info"
        self.stream: NotificationStream | None = None
        self._start = get_capabilities(handler).start
        self._offered = ServerCapabilities()
        # Clients that never send `initialize` get the handler's default.
        self._logs = get_capabilities(handler).supports_logging
        # Resources that the client subscribed to, and tasks whose progress it receives.
        self._subscribed: dict[str, ChangeRelay] = {}
        self._following: dict[str, ChangeRelay] = {}
        # List changes. A session closes the notifier if it does not share it.
        self._changes = list_changes or ListChangeNotifier(handler)
        self._shares_changes = list_changes is not None
        # Whether the client has a stream for notifications. Transports where streams come and go update it.
        self._reachable = list_changes is None
        self._listed_versions: ListVersions | None = None
        # Set when the client has sent `initialized`. No request is sent to it before.
        self._ready: asyncio.Event | None = None
        # Set while `initialize` waits for an asynchronous `server/discover`.
        self._settling: asyncio.Event | None = None
        # `initialized` arrived while the handshake was still in progress.
        self._hurried = False
        # Whether all requests of the session reach this object. If not, features that outlive a request are not
        # offered.
        self.lasting = True
        # Called when the exported state changes.
        self.on_change: Callable[[], None] | None = None

    def create_call(
        self, message: JsonRpcMessage, reply: Reply, peer: PeerInfo, meta: DecodedMeta, decoded_params: Any
    ) -> Call:
        """Create the Call of a message that belongs to this session."""
        return create_call(message, reply, peer, meta, decoded_params, **self._call_fields(reply))

    def _call_fields(self, reply: Reply) -> dict[str, Any]:
        """Return the negotiated values for a Call, and configure its Reply for the protocol version."""
        reply.can_request, reply.prepare_request = True, self._prepare_client_request
        reply.logging_enabled = self._logs
        if self.state == "INITIALIZING":
            # 2025-11-25, basic/lifecycle: before `initialized`, a server should send nothing but pings and log
            # messages.
            reply.wait_until_ready = self._wait_until_initialized
        if self.protocol_version is not None and self.protocol_version < LATEST_HANDSHAKE_VERSION:
            reply.translate_notification = partial(
                translation.translate_notification, protocol_version=self.protocol_version
            )
        return {
            "protocol_version": self.protocol_version,
            "capabilities": self.capabilities,
            "client": self.client,
            "log_level": self.log_level,
        }

    async def prepare_request(self, method: str, params: Any) -> Any:
        """Wait until the client accepts requests, and return the params of one that belongs to no call.

        Raises `MissingClientCapability` and `UsageError` like a request of a call.
        """
        await self._wait_until_initialized()
        return self._prepare_client_request(method, params)

    def _prepare_client_request(self, method: str, params: Any) -> Any:
        """Validate a server-to-client request and return its params in the format of the protocol version."""
        request = client_requests.prepare_client_request(self, method, params)
        return translation.translate_client_request(request, self.protocol_version or LATEST_HANDSHAKE_VERSION)

    def start(self, call: Call) -> Any:
        """Return the result of a Call, or a coroutine."""
        # Wait until the subscription to list changes is active. Otherwise a change made by this call could be missed.
        if self._settling is not None or (self._listed_versions is not None and not self._changes.ready):
            return self._start_deferred(call)
        return self._dispatch(call)

    async def _start_deferred(self, call: Call) -> Any:
        """Handle a message that arrived in the same read as `initialize`.

        It is dispatched after `initialize` has started, or after it was answered if the client already sent
        `initialized`.
        """
        if self._settling is not None and self._hurried and call.method not in _OWN:
            await self._settling.wait()
        result = self._dispatch(replace(call, **self._call_fields(call.reply)))
        return await result if type(result) is CoroutineType else result

    def _dispatch(self, call: Call) -> Any:
        own = _OWN.get(call.method)
        if own is not None:
            return own(self, call)
        self._check_allowed(call)
        result = self._start(call)
        if type(result) is CoroutineType:
            return self._complete(call, result)
        input_required = as_input_required(call.method, result) if type(result) in _INPUT_REQUIRED_TYPES else None
        return (
            self._translate_result(call, result)
            if input_required is None
            else self._complete(call, self._resolve_input(call, input_required))
        )

    async def _complete(self, call: Call, coroutine: Coroutine[Any, Any, Any]) -> Any:
        result = await coroutine
        input_required = as_input_required(call.method, result) if type(result) in _INPUT_REQUIRED_TYPES else None
        if input_required is not None:
            result = await self._resolve_input(call, input_required)
        return self._translate_result(call, result)

    def _resolve_input(self, call: Call, required: InputRequiredResult) -> Coroutine[Any, Any, Any]:
        # Loaded lazily: most servers never request input.
        return input_requests.resolve_input_requests(call, required, self.handler)

    def _translate_result(self, call: Call, result: Any) -> Any:
        assert self.protocol_version is not None
        if isinstance(result, CreateTaskResult):
            # Handshake clients receive status notifications without subscribing, so the session subscribes for
            # them.
            self._watch_task(result.task.task_id, call)
        return translation.translate_result(result, self.protocol_version)

    # Transfer to another process

    @property
    def export_state(self) -> SessionState | None:
        """Return the state for another process, or None before the handshake and after the end."""
        if self.protocol_version is None or self.state in ("CREATED", "SHUTDOWN"):
            return None
        return SessionState(
            protocol_version=self.protocol_version,
            capabilities=self.capabilities,
            client=self.client,
            log_level=self.log_level,
            operating=self.state == "OPERATING",
            subscribed=list(self._subscribed),
        )

    async def restore(self, state: SessionState, principal: Any, address: str | None) -> None:
        """Continue a session of another process. Changes in between are unknown, so all lists and resources are
        reported as changed.
        """
        about = self._start(
            Call(
                method="server/discover",
                id=0,
                protocol_version=FIRST_MODERN_VERSION,
                principal=principal,
                address=address,
            )
        )
        discovered = await about if type(about) is CoroutineType else about
        # Encoded and decoded, because a gateway returns Raw and a server returns a struct.
        offered = msgspec.json.decode(jsonrpc.encode(discovered), type=DiscoverResult).capabilities
        self._offered, self._logs = offered, offered.logging is not None
        self.capabilities, self.client, self.log_level = state.capabilities, state.client, state.log_level
        self.assume_protocol_version(state.protocol_version)
        self.state = "INITIALIZING"
        if state.operating:
            self._enter_operating()
            pending = [
                (getattr(offered, item) or {}).get("listChanged", False) for item in ("tools", "prompts", "resources")
            ]
            # One version behind the current one, so that the next check reports each list as changed.
            self._listed_versions = tuple(
                count - bool(item) for count, item in zip(self._changes.versions, pending, strict=True)
            )
        for uri in state.subscribed:
            self._subscribed[uri] = self._relay(uri)
            self._notify_resource_updated(notifications.RESOURCE_UPDATED, notifications.ResourceUpdatedParams(uri=uri))

    def _notify_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # State machine

    def assume_protocol_version(self, protocol_version: ProtocolVersion) -> None:
        """Skip the handshake, for clients that send single requests without `initialize`."""
        self.protocol_version, self.state = protocol_version, "OPERATING"
        if self.stream is not None:
            self.stream.protocol_version, self.stream.batching_enabled = (
                protocol_version,
                protocol_version <= V2025_03_26,
            )

    def _check_allowed(self, call: Call) -> None:
        """Raise an error if the request is not allowed in the current state or protocol version."""
        if self.state == "SHUTDOWN":
            raise InvalidRequest("The session is closed")
        if self.state == "CREATED":
            raise InvalidRequest("Not initialized: the first request must be initialize, or carry a modern _meta")
        if self.state == "INITIALIZING":
            if self._may_skip_initialized():
                self._enter_operating()
            elif self.in_order:
                raise InvalidRequest(f"Not initialized: {call.method} came before notifications/initialized")
        assert self.protocol_version is not None
        row = METHODS.get(call.method)
        if row is not None and not row.supports(self.protocol_version):
            raise MethodNotFound(f"Method not found: {call.method} (not in {self.protocol_version})")

    def _may_skip_initialized(self) -> bool:
        """Return whether requests are accepted before `notifications/initialized`. Early clients never sent it."""
        if self.lifecycle == "auto":
            return self.protocol_version == V2024_11_05
        return self.lifecycle == "lenient"

    def _initialize(self, call: Call) -> Any:
        if call.id is None:
            raise InvalidRequest("initialize must be a request, not a notification")
        # A second handshake could change capabilities and protocol version under calls that are still running.
        if self.state != "CREATED":
            raise InvalidRequest("Already initialized")
        params: InitializeParams = call.decode_params()
        self.state = "INITIALIZING"
        about = Call(
            method="server/discover",
            id=0,
            protocol_version=FIRST_MODERN_VERSION,
            principal=call.principal,
            address=call.address,
            headers=call.headers,
        )
        try:
            discovered = self._start(about)
            if type(discovered) is CoroutineType:
                self._settling = asyncio.Event()
                return self._finish_initialize(call, params, discovered)
            return self._initialize_result(call, params, discovered)
        # A failed handshake may be repeated.
        except BaseException:
            self.state = "CREATED"
            raise

    async def _finish_initialize(self, call: Call, params: InitializeParams, discovered: Any) -> InitializeResult:
        try:
            return self._initialize_result(call, params, await discovered)
        except BaseException:
            self.state = "CREATED"
            raise
        finally:
            self._end_settling()

    def _end_settling(self) -> None:
        if self._settling is not None:
            self._settling.set()
            self._settling = None
        hurried, self._hurried = self._hurried, False
        if hurried and self.state == "INITIALIZING":
            self._enter_operating()

    def _initialize_result(self, call: Call, params: InitializeParams, discovered: Any) -> InitializeResult:
        """Complete the handshake with the handler's discovery result."""
        about = discovered
        if type(about) is not DiscoverResult:
            about = msgspec.json.decode(jsonrpc.encode(discovered), type=DiscoverResult)
        self.protocol_version = revision = negotiate_version(params.protocol_version)
        self._offered = about.capabilities
        self._logs = about.capabilities.logging is not None
        self.capabilities = params.capabilities
        self.client = params.client_info
        if self.stream is not None:
            self.stream.protocol_version = revision
            # Only 2025-03-26 specifies batches; 2024-11-05 does not mention them.
            self.stream.batching_enabled = revision <= V2025_03_26
        offered = about.capabilities if self.lasting else _without_streams(about.capabilities)
        result = InitializeResult(
            protocol_version=revision,
            capabilities=_with_tasks(offered, revision, call.is_anonymous),
            server_info=self._server_info(about),
            instructions=about.instructions,
        )
        return translation.translate_result(result, revision)  # type: ignore[no-any-return]

    def _server_info(self, about: DiscoverResult) -> Implementation:
        info = get_capabilities(self.handler).info
        if info is not None:
            return info
        meta = about.meta if isinstance(about.meta, dict) else {}
        return msgspec.convert(meta.get(SERVER_INFO_META_KEY, {"name": "server", "version": "0"}), Implementation)

    def _handle_initialized(self, call: Call) -> None:
        if call.id is not None:
            raise MethodNotFound(f"Method not found: {call.method} is a notification")
        if self.state == "INITIALIZING" and self._settling is not None:
            self._hurried = True
        elif self.state == "INITIALIZING" and self.protocol_version is not None:
            self._enter_operating()

    def _roots_changed(self, call: Call) -> None:
        if call.id is not None:
            raise MethodNotFound(f"Method not found: {call.method} is a notification")
        if self.stream is not None:
            self.stream.roots_version += 1

    def _ping(self, call: Call) -> EmptyResult:
        return EmptyResult()

    def _check_feature(self, call: Call, offered: Any) -> None:
        """Raise an error if the request is not allowed, or if the server did not declare the capability it needs."""
        self._check_allowed(call)
        if not offered:
            raise MethodNotFound(f"Method not found: {call.method} (the server does not declare this capability)")

    def _set_level(self, call: Call) -> EmptyResult:
        self._check_feature(call, self._offered.logging is not None)
        self.log_level = call.decode_params().level
        self._notify_change()
        return EmptyResult()

    def _enter_operating(self) -> None:
        self.state = "OPERATING"
        if self._ready is not None:
            self._ready.set()
        if self.stream is not None:
            self._changes.start()
            self._listed_versions = self._changes.versions
            if self._reachable:
                self._changes.subscribe(self._notify_list_changed, self._listed_versions)
        self._notify_change()

    async def _wait_until_initialized(self) -> None:
        """Wait for `notifications/initialized`, which calls may overtake.

        2025-03-26, basic/lifecycle: a server should not send requests before it.
        """
        if self.state == "INITIALIZING":
            self._ready = self._ready or asyncio.Event()
            try:
                async with asyncio.timeout(INITIALIZED_TIMEOUT_SECONDS):
                    await self._ready.wait()
            except TimeoutError:
                raise InternalError(
                    "Cannot send a request to the client: it has not sent notifications/initialized"
                ) from None

    def set_reachable(self, reachable: bool) -> None:
        """Record whether the client has an open stream for notifications."""
        self._reachable = reachable
        if self._listed_versions is not None and self.state == "OPERATING":
            if reachable:
                self._changes.subscribe(self._notify_list_changed, self._listed_versions)
            else:
                self._listed_versions = self._changes.unsubscribe(self._notify_list_changed)

    def close(self) -> None:
        self.state = "SHUTDOWN"
        if self._ready is not None:
            self._ready.set()
        self._changes.unsubscribe(self._notify_list_changed)
        if not self._shares_changes:
            self._changes.close()
        for relay in (*self._subscribed.values(), *self._following.values()):
            relay.close()
        self._subscribed.clear()
        self._following.clear()

    # Change notifications: sent to the whole session, where 2026-07-28 sends them to a listener

    def _notify_list_changed(self, method: str) -> None:
        if self.stream is not None:
            self.stream.notify(method, None)

    def _notify_resource_updated(self, method: str, params: Any) -> None:
        if self.stream is not None and method == notifications.RESOURCE_UPDATED:
            self.stream.notify(method, notifications.ResourceUpdatedParams(uri=params.uri))

    def _notify_task(self, progress: Reply, token: ProgressToken | None, method: str, params: Any) -> None:
        if self.stream is not None and method == notifications.TASK_UPDATED:
            self.stream.notify(notifications.TASK_STATUS, translation.to_task_status(params))
            if token is not None and (progress_params := translation.to_task_progress(params, token)) is not None:
                progress.notify(notifications.PROGRESS, progress_params)
            if params.status in TERMINAL_STATUSES and params.task_id in self._following:
                # Closed in the next iteration: the relay that delivers this notification must not be closed from
                # within.
                asyncio.get_running_loop().call_soon(self._unwatch_task, params.task_id)

    def _watch_task(self, task: str, call: Call) -> None:
        """Notify the client of the progress of its task. This is optional, so it stops at the subscription limit."""
        if len(self._subscribed) + len(self._following) < MAX_RESOURCE_SUBSCRIPTIONS and self.stream is not None:
            # basic/utilities/progress: the token of the request stays valid for the lifetime of its task.
            progress = CallbackReply(self.stream.notify)
            self._following[task] = ChangeRelay(
                self.handler,
                SubscriptionFilter(task_ids=[task]),
                partial(self._notify_task, progress, call.progress_token),
                principal=call.principal,
                capabilities=_TASK_CAPABILITIES,
            )

    def _unwatch_task(self, task: str) -> None:
        following = self._following.pop(task, None)
        if following is not None:
            following.close()

    async def _subscribe(self, call: Call) -> EmptyResult:
        self._check_feature(call, (self._offered.resources or {}).get("subscribe"))
        uri = call.decode_params().uri
        if uri in self._subscribed:
            return EmptyResult()
        if len(self._subscribed) + len(self._following) >= MAX_RESOURCE_SUBSCRIPTIONS:
            raise InternalError(f"Too many subscriptions: a session may have at most {MAX_RESOURCE_SUBSCRIPTIONS}")
        relay = ChangeRelay(
            self.handler,
            SubscriptionFilter(resource_subscriptions=[uri]),
            self._notify_resource_updated,
            principal=call.principal,
            address=call.address,
        )
        self._subscribed[uri] = relay
        await relay.ready.wait()
        if relay.acknowledged is not None and relay.acknowledged.resource_subscriptions:
            return EmptyResult()
        self._unsubscribe_from(uri)
        if relay.acknowledged is None:
            raise relay.error or InternalError("Subscribing failed temporarily; try again later")
        raise ResourceNotFound(uri)

    def _relay(self, uri: str) -> ChangeRelay:
        return ChangeRelay(
            self.handler, SubscriptionFilter(resource_subscriptions=[uri]), self._notify_resource_updated
        )

    def _unsubscribe(self, call: Call) -> EmptyResult:
        self._check_feature(call, (self._offered.resources or {}).get("subscribe"))
        self._unsubscribe_from(call.decode_params().uri)
        self._notify_change()
        return EmptyResult()

    def _unsubscribe_from(self, uri: str) -> None:
        relay = self._subscribed.pop(uri, None)
        if relay is not None:
            relay.close()


def _without_streams(offered: ServerCapabilities) -> ServerCapabilities:
    """Return the capabilities for a session whose requests are handled independently."""
    lists: dict[str, Any] = {
        name: {} for name in ("tools", "prompts", "resources") if getattr(offered, name) is not None
    }
    return replace(offered, logging=None, **lists)


def _with_tasks(offered: ServerCapabilities, revision: ProtocolVersion, public: bool) -> ServerCapabilities:
    """Add the task capabilities of 2025-11-25. `tasks/list` is only offered to authenticated or local clients, which
    see only their own tasks.
    """
    if revision != LATEST_HANDSHAKE_VERSION or EXTENSION not in (offered.extensions or {}):
        return offered
    able: dict[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
    return replace(offered, tasks=able if public else {"list": {}, **able})


# Methods that the session answers itself. Early clients sent `initialized` without the prefix.
_OWN = {
    "initialize": HandshakeSession._initialize,
    "ping": HandshakeSession._ping,
    "logging/setLevel": HandshakeSession._set_level,
    "resources/subscribe": HandshakeSession._subscribe,
    "resources/unsubscribe": HandshakeSession._unsubscribe,
    notifications.INITIALIZED: HandshakeSession._handle_initialized,
    "initialized": HandshakeSession._handle_initialized,
    notifications.ROOTS_LIST_CHANGED: HandshakeSession._roots_changed,
}
