"""An upstream of a gateway: its connections, catalog, health and calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import jsonrpc, notifications
from portico.protocol.capabilities import TASK_TOOL_CALLS, has_capability
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.errors import (
    URL_ELICITATION_REQUIRED,
    MethodNotFound,
    PorticoError,
    ProtocolError,
    ToolError,
    TransportError,
)
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation, ServerCapabilities
from portico.protocol.methods import INPUT_REQUIRED_METHODS, as_input_required
from portico.protocol.skills import SKILLS_EXTENSION as SKILLS
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion
from portico.rpc.attribution import attribute_all, attribute_data
from portico.rpc.call import Call, get_capabilities
from portico.rpc.handshake.input_requests import resolve_input_requests
from portico.rpc.observers import OBSERVERS
from portico.rpc.supervision import BackgroundTasks
from portico.secret_references import SecretResolver
from portico.server.results.settings import declare_bounding, find_result_limits
from portico.transports.event_loop import LifespanTask
from portico.transports.http_client.streamable_http import PendingHttpCall
from portico.transports.process import STDERR_MARKER
from portico.transports.targets import CommandTarget, InProcessTarget
from portico_gateway.gateway.accounting import (
    AccountedCall,
    CallStats,
    ConcurrencyLimit,
    UpstreamHealth,
)
from portico_gateway.gateway.catalog import DEFAULT_CATALOG_TTL_SECONDS, UpstreamCatalog
from portico_gateway.gateway.catalog_cache import CatalogCache, UpstreamFeatures
from portico_gateway.gateway.catalog_entries import LIST_METHODS
from portico_gateway.gateway.change_listener import UpstreamChangeListener
from portico_gateway.gateway.client_handlers import ClientHandlers
from portico_gateway.gateway.connection import UpstreamConnection, forwardable_capabilities
from portico_gateway.gateway.connection_pool import STATELESS_KEY, ConnectionPool, share_of
from portico_gateway.gateway.server_request_bridge import ServerRequestBridge, SuspendedCall
from portico_gateway.gateway.settings import UpstreamSettings
from portico_gateway.gateway.status import UpstreamState

if TYPE_CHECKING:
    from portico_gateway.credentials.upstream_auth import UpstreamAuth

log = logging.getLogger("portico.gateway")

# Time for calls in flight after an upstream was removed, and the interval of the check.
DRAIN_TIMEOUT_SECONDS, DRAIN_POLL_SECONDS = 30.0, 0.1
# Tasks for which the connection is remembered.
MAX_TRACKED_TASKS = 10_000
# Number of stderr lines in the status.
MAX_STDERR_LINES = 20


class UpstreamResponse(Struct, frozen=True):
    """Result of an upstream, with the protocol version it is encoded in."""

    result: Any
    revision: ProtocolVersion
    lane: UpstreamConnection | None = None


DetachHandler = Callable[[SuspendedCall], Any]
"Takes over a suspended call and returns the response for its client."


class UpstreamProvider:
    """An upstream of a gateway.

    `on_lists_changed` receives the list methods that changed, and `on_resource_updated` the URI of a changed resource.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        bridge: ServerRequestBridge,
        secrets: SecretResolver,
        catalog_cache: CatalogCache,
        on_lists_changed: Callable[[Sequence[str]], None],
        on_resource_updated: Callable[[UpstreamProvider, str], None],
        auth: UpstreamAuth | None = None,
    ) -> None:
        self.settings = settings
        self.alias = settings.alias
        share = partial(share_of, settings, auth)
        varies = bool(settings.forward_headers) or (auth is not None and auth.is_per_user)
        self.health = UpstreamHealth(settings.alias, share, secrets.mask, varies=varies)
        self.features = UpstreamFeatures()
        # In-process servers see the principal, and per-user credentials represent it; both may list differently for
        # each.
        personal = auth is not None and auth.is_per_user
        by_principal = personal or isinstance(settings.target, InProcessTarget)
        self.catalog = UpstreamCatalog(settings, self._send_with_timeout, by_principal=by_principal)
        self.stats = CallStats()
        # Earliest time to list again an upstream that returned no list.
        self._relist_at = 0.0
        self._bridge = bridge
        self._secrets = secrets
        self._catalog_cache = catalog_cache
        self._changed = on_lists_changed
        local_handler = settings.target.handler if isinstance(settings.target, InProcessTarget) else None
        # Whether it runs in this process and is trusted like the gateway itself.
        self.is_here = local_handler is not None
        self.auth = auth
        self.client_handlers = (
            ClientHandlers(settings.client_handlers) if settings.client_handlers is not None else None
        )
        # Whether all calls are alike: no per-call credentials or headers, and no requests answered here.
        self.calls_are_uniform = auth is None and self.client_handlers is None and not settings.forward_headers
        callbacks = (self._on_notification, self._on_connected, self._on_gap, self._on_features_known)
        # The capabilities of the last call to a server in this process, and those that it was sent with.
        self._bounding = (NO_CAPABILITIES, declare_bounding(NO_CAPABILITIES))
        self.connections = ConnectionPool(settings, info, bridge, self.health, *callbacks, auth, self.client_handlers)
        self.change_listener = UpstreamChangeListener(
            local_handler, self.connections.acquire, self._refresh_all, partial(on_resource_updated, self)
        )
        # Connections on which tasks were started, and events that are set when a task changes.
        self._task_connections: LruCache[str, UpstreamConnection] = LruCache(MAX_TRACKED_TASKS)
        self.task_events: dict[str, set[asyncio.Event]] = {}
        # Set to stop waiting for calls in flight.
        self.force_close = asyncio.Event()
        self.concurrency = ConcurrencyLimit(settings.max_concurrency, settings.max_queued, settings.timeout)
        self._background_tasks = BackgroundTasks()
        self._host: LifespanTask | None = None
        # Reason why the last listing failed; empty if it succeeded.
        self._listing_failure = ""

    # Lifecycle

    async def load_cached_catalog(self) -> None:
        """Load the cached catalog until the upstream has been queried. Per-user catalogs are never cached."""
        traits, lists = (
            await self._catalog_cache.get_features(self.settings),
            await self._catalog_cache.get_catalog(self.settings),
        )
        if self.features == UpstreamFeatures():
            self.features = traits
        self.connections.one_call_per_connection = self.connections.one_call_per_connection or traits.asks
        if lists is not None and not self.is_per_caller and not self.catalog.shared.is_known:
            self.catalog.load_cached(lists)
            self._changed(tuple(lists))

    def start_refresh(self, by: Call | None = None) -> None:
        """List the upstream in the background, unless its lists are fresh or being fetched.

        A per-user upstream is listed only on behalf of the caller who requests the list.
        """
        if self.is_per_caller and (by is None or by.principal is None):
            return
        listing = self.catalog.get_or_create(by)
        if self.settings.is_lazy and listing.is_from_cache and listing.is_ready and not len(self.connections):
            return
        reads = listing.refresh_task is not None and not listing.refresh_task.done()
        if not listing.is_fresh and not reads and not self.health.breaker_of(by).is_open:
            if listing.first_requested_at is None or self.is_per_caller:
                # A user who has just connected an account is worth waiting for again.
                listing.first_requested_at = time.monotonic()
            listing.refresh_task = asyncio.create_task(self._try_refresh(tuple(LIST_METHODS), by))
            listing.refresh_task.add_done_callback(self._guard_refresh)

    def retry_refresh(self) -> None:
        """List the upstream again for subscribed clients.

        An unavailable upstream follows its back-off; one that returned no list is queried as rarely as one that did,
        and an upstream that is not configured is not queried.
        """
        now, shared = time.monotonic(), self.catalog.shared
        if (
            (shared.is_known and not shared.is_from_cache)
            or self.settings.problem
            or (self.health.shared.since is None and now < self._relist_at)
        ):
            return
        self._relist_at = now + DEFAULT_CATALOG_TTL_SECONDS
        self.start_refresh()

    def remaining_list_timeout(self, seconds: float, by: Call | None = None) -> float:
        """Return the rest of the time to wait for the first lists, so that a hanging upstream is waited for only
        once.
        """
        requested_at = self.catalog.get(by).first_requested_at
        return seconds if requested_at is None else max(0.0, requested_at + seconds - time.monotonic())

    async def wait_until_listed(self, by: Call | None = None) -> None:
        """Wait until the running refresh has ended, successfully or not."""
        reading = self.catalog.get(by).refresh_task
        if reading is not None:
            await asyncio.wait([reading])

    @property
    def is_per_caller(self) -> bool:
        """Return whether calls are made with the caller's credential."""
        return self.auth is not None and self.auth.is_per_user

    @property
    def is_tried(self) -> bool:
        """Return whether this process knows if the upstream responds: it was connected, or that has failed."""
        listing = self.catalog.merged
        listed = listing.is_known and not listing.is_from_cache
        return bool(listed or self.settings.problem or self._listing_failure or self.health.was_used)

    @property
    def is_being_awaited(self) -> bool:
        """Return whether a first attempt is due or running.

        Not awaited are attempts longer than the call timeout, upstreams that were unreachable in an earlier process,
        and in-process or per-user upstreams.
        """
        if self.is_here or self.is_tried or self.is_per_caller or self.features.is_unreachable:
            return False
        return self.remaining_list_timeout(self.settings.timeout) > 0

    @property
    def _is_connecting(self) -> bool:
        reading = self.catalog.shared.refresh_task
        return reading is not None and not reading.done() and not self.is_tried

    def listing_problem(self, seconds: float | None = None) -> str:
        """Return why the lists are unknown, for the operator; an empty string if they are known or per-user."""
        if self.catalog.is_known or self.is_per_caller:
            return ""
        reason = self.settings.problem or self.health.shared.failure or self._listing_failure
        if reason:
            return reason
        return "no response yet" if seconds is None else f"no answer within {seconds:g} s"

    async def _refresh_all(self, methods: tuple[str, ...]) -> None:
        """Refresh lists after the upstream announced changes."""
        if self.catalog.is_per_caller:
            self.catalog.mark_stale()
            self._changed(methods)
        if not self.is_per_caller and (not self.catalog.is_per_caller or self.catalog.shared.is_known):
            await self._try_refresh(methods)

    async def _try_refresh(self, methods: tuple[str, ...], by: Call | None = None) -> None:
        try:
            await self.refresh(methods, by)
        except (PorticoError, ToolError) as failure:
            if self.connections.is_closed:
                return  # the upstream was removed while it was being listed: no problem to report
            self._listing_failure = self._secrets.mask(str(failure))
            log.warning("cannot list %s: %s", self.alias, self._listing_failure)
            refused = f"{self.alias} cannot be listed: {failure}"
            self.catalog.get(by).last_error = failure if isinstance(failure, ToolError) else ToolError(refused)
            if not self.catalog.is_known and not self.is_per_caller:
                self._store_features(replace(self.features, is_unreachable=True))
        else:
            self._listing_failure = ""

    def _guard_refresh(self, reading: asyncio.Task[None]) -> None:
        """Log an unexpected exception of a refresh: an in-process server may raise anything."""
        failure = None if reading.cancelled() else reading.exception()
        if failure is not None:
            self._listing_failure = f"{type(failure).__name__}: {failure}"
            log.error("cannot list %s", self.alias, exc_info=failure)

    async def drain(self) -> None:
        """Accept no more calls, wait a limited time for those in flight, and close."""
        await self.change_listener.close()
        end = time.monotonic() + DRAIN_TIMEOUT_SECONDS
        while self._is_busy and time.monotonic() < end and not self.force_close.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_POLL_SECONDS):
                    await self.force_close.wait()
        await self.close()

    @property
    def _is_busy(self) -> bool:
        return self.concurrency.busy or any(lane.in_flight for lane in self.connections)

    @property
    def last_used_at(self) -> float:
        """Return when the last call on an open connection ended."""
        return max((lane.last_used_at for lane in self.connections), default=0.0)

    async def close_if_idle(self, seconds: float) -> bool:
        """Close the connections if there was no call for `seconds`. The next call opens them again.

        Subscribed resources and tasks need the connection. Return whether it was closed.
        """
        lanes = list(self.connections)
        if (
            not lanes
            or self._is_busy
            or self.change_listener.has_resources
            or any(lane.has_tasks for lane in lanes)
            or time.monotonic() - self.last_used_at < seconds
        ):
            return False
        await self.change_listener.close()
        # Changes are no longer received, so the lists are as good as cached ones.
        self.catalog.shared.is_from_cache = self.catalog.shared.is_known
        for lane in lanes:
            await self.connections.discard(lane)
        return True

    async def close(self) -> None:
        if self._is_connecting and not self.features.is_unreachable:
            # It was given up before it responded, so the next start does not wait for it either.
            await self._catalog_cache.put_features(self.settings, replace(self.features, is_unreachable=True))
        tasks = [*self.catalog.close(), *self._background_tasks]
        for task in tasks:
            task.cancel()
        # A connection being opened is closed by the task that opens it.
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.change_listener.close()
        # Changes are no longer received.
        self.catalog.shared.fresh_until = 0.0
        await self.connections.close()
        if self._host is not None:
            await self._host.exit()
            self._host = None

    # Catalog

    async def refresh(self, methods: tuple[str, ...] = tuple(LIST_METHODS), by: Call | None = None) -> None:
        """Fetch the lists, on behalf of a call if that matters, and report those that changed."""
        if isinstance(self.settings.target, InProcessTarget):
            await self._discover_in_process()
        lists, listing = self.catalog, self.catalog.get_or_create(by)
        first, before = not listing.is_known, lists.merged.digest
        others = await lists.refresh(listing, methods, by, self._on_list_refused)
        # A caller's first lists are news only if a page was served without them.
        news = listing.was_missing if first else bool(others)
        shared = listing is lists.shared
        lists.generation += news and not shared
        if news or (first and shared) or before != lists.merged.digest:
            self._changed(others)
        if not self.is_per_caller:
            # The cache of a lazy upstream is renewed each time, so that it does not expire while it is used.
            if shared and (news or first or before != lists.merged.digest or self.settings.is_lazy):
                await self._catalog_cache.put_catalog(self.settings, listing.entries)
            self.change_listener.start()

    def _on_list_refused(self, method: str, refusal: ProtocolError) -> None:
        log.warning("%s rejected %s: %s", self.alias, method, self._secrets.mask(str(refusal)))

    async def _send_with_timeout(self, call: Call) -> UpstreamResponse:
        try:
            async with asyncio.timeout(
                self.settings.timeout if isinstance(self.settings.target, InProcessTarget) else None
            ):
                return await self._send_and_resolve_inputs(call, None)
        except TransportError:
            raise
        except TimeoutError:
            raise ToolError(f"{self.alias} returned no list within {self.settings.timeout:g} s") from None

    async def _discover_in_process(self) -> None:
        """Query the capabilities of an in-process server; others declare them in the handshake."""
        # Not every Handler implements it.
        with contextlib.suppress(MethodNotFound, msgspec.DecodeError):
            response = await self._send_with_timeout(
                Call(method="server/discover", id=0, protocol_version=FIRST_MODERN_VERSION)
            )
            about = msgspec.json.decode(response.result, type=DiscoverResult)
            self._store_features(_features_from(about.capabilities, FIRST_MODERN_VERSION, False))

    def _on_connected(self, lane: UpstreamConnection) -> None:
        if self.catalog.is_known and not self.change_listener.is_started:
            # The lists were loaded from the cache and may be old.
            self.change_listener.mark_all_stale()
        self.change_listener.on_connected(lane)
        self._store_features(
            _features_from(
                lane.connection.handshake.capabilities, lane.protocol_version, self.connections.one_call_per_connection
            ),
            lane,
        )

    def _on_notification(self, method: str, params: Any) -> None:
        if method == notifications.TASK_STATUS:
            for news in self.task_events.get(_task(params), ()):
                news.set()
            return
        self.change_listener.handle_notification(method, params)

    def _on_gap(self) -> None:
        self.change_listener.mark_all_stale()

    def _on_features_known(self) -> None:
        self._store_features(replace(self.features, asks=True))

    def _store_features(self, traits: UpstreamFeatures, lane: UpstreamConnection | None = None) -> None:
        if lane is not None:
            about = lane.connection.handshake
            traits = replace(traits, server=about.server, instructions=about.instructions)
        if traits == self.features:
            return
        self.features = traits
        self._background_tasks.start(self._catalog_cache.put_features(self.settings, traits))

    # Calls

    def call(
        self,
        call: Call,
        params: Raw,
        binding: Callable[[], bytes],
        on_detach: DetachHandler | None = None,
        *,
        tool: str = "",
    ) -> Coroutine[Any, Any, UpstreamResponse]:
        """Return a coroutine for the response to a call, whose params use the upstream's own names.

        `binding` returns the binding of the request state, and `on_detach` takes over a call that needs input from a
        client with tasks. `tool` is the upstream's name of the tool, if the params consist of name and arguments only.

        Raises ToolError if the upstream is unavailable.
        """
        if tool and (pending_call := self.begin(call, tool, params)) is not None:
            return self._complete(call, params, *pending_call)
        call = replace(call, params=params, read=None, facet=None)
        if tool and (lane := self._find_session(call)) is not None:
            return self._call_in_session(lane, call)
        return self._call(call, binding, on_detach)

    def _find_session(self, call: Call) -> UpstreamConnection | None:
        """Return the connection to an upstream with sessions that can take a call of a client with a handshake now.

        Such a call needs no other step: requests of the upstream reach the client while it is in flight. None if that
        does not apply.
        """
        if call.protocol_version is None or call.protocol_version >= FIRST_MODERN_VERSION:
            return None
        if not self.calls_are_uniform or not self.health.is_well or isinstance(self.settings.target, InProcessTarget):
            return None
        lane = self.connections.find_available(call)
        return None if lane is None or lane.is_stateless else lane

    async def _call_in_session(self, lane: UpstreamConnection, call: Call) -> UpstreamResponse:
        owner = self.concurrency.take(call)
        if owner is None:
            owner = await self._wait_for_place(call)
        with AccountedCall(self.stats, self.concurrency, owner):
            return UpstreamResponse(await self._send(lane, call), lane.protocol_version, lane)

    async def _call(self, call: Call, bound: Callable[[], bytes], detach: DetachHandler | None) -> UpstreamResponse:
        self.health.check(call)
        if self.auth is not None:
            prepared = await self.auth.prepare_call(call)
            if isinstance(prepared, InputRequiredResult):
                return UpstreamResponse(prepared, FIRST_MODERN_VERSION)
            call = prepared
        if self.client_handlers is not None:
            call = replace(call, capabilities=self.client_handlers.merge_capabilities(call.capabilities))
        owner = self.concurrency.take(call)
        if owner is None:
            owner = await self._wait_for_place(call)
        with AccountedCall(self.stats, self.concurrency, owner):
            # Calls with a per-user credential need a separate connection.
            lane = self.connections.stateless_connection if self.calls_are_uniform else None
            if lane is not None and not call.reply.can_request:
                return UpstreamResponse(await self._send(lane, call), lane.protocol_version)
            return await self._call_with_server_requests(call, bound, detach)

    def begin(self, call: Call, tool: str, params: Raw) -> tuple[UpstreamConnection, PendingHttpCall, str] | None:
        """Send a call over the idle connection to an upstream without sessions: the fast path.

        Return None if it does not apply: the upstream has failures or is busy, no connection is idle, or the client
        supports server-to-client requests.
        """
        group = self.connections.by_key.get(STATELESS_KEY) if self.calls_are_uniform else None
        if not group or group[0].is_broken or call.reply.can_request or not self.health.is_well:
            return None
        if OBSERVERS or (call.headers is not None and b"traceparent" in call.headers):
            return None
        owner = self.concurrency.take(call)
        if owner is None:
            return None
        lane = group[0]
        pending_call = lane.connection.begin_tool_call(call, tool, bytes(params))
        if pending_call is None:
            self.concurrency.release(owner)
            return None
        return lane, pending_call, owner

    async def _complete(
        self, call: Call, params: Raw, lane: UpstreamConnection, pending_call: PendingHttpCall, owner: str
    ) -> UpstreamResponse:
        lane.untracked_in_flight += 1
        with AccountedCall(self.stats, self.concurrency, owner):
            try:
                result = await lane.connection.finish_tool_call(pending_call, params)
            except (TransportError, ProtocolError) as failure:
                raise await self.record_failure(lane, call, failure) from None
            finally:
                lane.untracked_in_flight -= 1
                lane.last_used_at = time.monotonic()
            self.health.record_success(call)
        return UpstreamResponse(result, lane.connection.handshake.protocol_version)

    async def _wait_for_place(self, call: Call) -> str:
        try:
            return await self.concurrency.acquire(call)
        except (asyncio.QueueFull, TimeoutError):
            busy = f"{self.settings.max_concurrency} calls are in flight and the queue is full"
            raise self.connections.busy_error(busy) from None

    async def _call_with_server_requests(
        self, call: Call, bound: Callable[[], bytes], detach: DetachHandler | None
    ) -> UpstreamResponse:
        """Send a call, and forward server-to-client requests in the way of the client's protocol version."""
        rounds = (
            (call.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION
            and call.method in INPUT_REQUIRED_METHODS
            and _may_need_input(call)
        )
        if (
            isinstance(self.settings.target, InProcessTarget)
            or not rounds
            or (await self.connections.acquire(call)).is_stateless
        ):
            return await self._send_and_resolve_inputs(call, None)
        params = call.decode_params()
        if params.request_state is UNSET:
            result = await self._bridge.start(call, self.alias, bound(), self._send_and_resolve_inputs, detach)
        else:
            result = await self._bridge.resume(call, bound(), params.request_state, params.input_responses)
        return result if isinstance(result, UpstreamResponse) else UpstreamResponse(result, FIRST_MODERN_VERSION)

    async def _send_and_resolve_inputs(self, call: Call, parked: SuspendedCall | None) -> UpstreamResponse:
        """Send a call, and send it again with the client's responses to input requests."""
        if isinstance(self.settings.target, InProcessTarget):
            return await self._call_in_process(call)
        lane = await self.connections.acquire(call)
        result = await self._send(lane, call, parked)
        result = await self._resolve_inputs(call, result, partial(self._send, lane))
        input_required = as_input_required(call.method, result)
        if input_required is not None and call.reply.can_request:
            result = await resolve_input_requests(
                call, attribute_all(self.alias, input_required), partial(self._send_again, lane)
            )
        return UpstreamResponse(result, lane.protocol_version, lane)

    async def _send_again(self, lane: UpstreamConnection, call: Call) -> Any:
        """Send a call with the client's responses. Further input requests are attributed to the alias."""
        result = await self._send(lane, call)
        input_required = as_input_required(call.method, result)
        return result if input_required is None else attribute_all(self.alias, input_required)

    async def is_stateless(self, call: Call) -> bool:
        """Return whether the upstream has no sessions; true for in-process servers."""
        if isinstance(self.settings.target, InProcessTarget):
            return True
        connection = next(iter(self.connections), None)
        return (connection or await self.connections.acquire(call)).is_stateless

    async def call_about_task(self, call: Call, id: str, parked: SuspendedCall | None = None) -> UpstreamResponse:
        """Send a request about a task, on the connection where the task was started if it still exists."""
        self.health.check(call)
        if self.auth is not None:
            prepared = await self.auth.prepare_call(call)
            if isinstance(prepared, InputRequiredResult):
                raise ToolError(f"Connect your account at {self.alias} to access its tasks.")
            call = prepared
        if isinstance(self.settings.target, InProcessTarget):
            return await self._call_in_process(call)
        lane = self._task_connections.get(id)
        if lane is None or lane not in self.connections:
            lane = await self.connections.acquire(call)
        return UpstreamResponse(await self._send(lane, call, parked), lane.protocol_version)

    def bind_task(self, id: str, lane: UpstreamConnection | None) -> None:
        """Remember the connection of a task: a server with sessions may know it in that session only."""
        if lane is not None and not lane.is_stateless:
            lane.has_tasks = True
            self._task_connections[id] = lane

    async def _resolve_inputs(self, call: Call, result: Any, send: Any) -> Any:
        """Return the result after resolving input requests, if the gateway can answer all of them."""
        input_required = None if self.client_handlers is None else as_input_required(call.method, result)
        if (
            self.client_handlers is None
            or input_required is None
            or not self.client_handlers.handles_all(input_required)
        ):
            return result
        return await resolve_input_requests(
            self.client_handlers.wrap_call(call, None if self.is_here else self.alias), input_required, send
        )

    async def _send(self, lane: UpstreamConnection, call: Call, parked: SuspendedCall | None = None) -> Any:
        try:
            result = await lane.send(call, parked)
        except (TransportError, ProtocolError) as failure:
            raise await self.record_failure(lane, call, failure) from None
        self.health.record_success(call)
        return result

    async def record_failure(
        self, lane: UpstreamConnection, call: Call, failure: TransportError | ProtocolError
    ) -> Exception:
        """Record a failure. Return the error for the client."""
        if isinstance(failure, ProtocolError):
            if failure.retry_after is None:
                self.health.record_success(call)
                if failure.code == URL_ELICITATION_REQUIRED:
                    failure.data = attribute_data(self.alias, failure.data)
                return failure
            # The HTTP status says that it is overloaded, whatever the body contains.
            return self.health.record_failure(call, failure)
        if not lane.is_alive:
            was_lost, lane.loss_recorded = lane.loss_recorded, True
            await self.connections.discard(lane)
            if was_lost and isinstance(self.settings.target, CommandTarget):
                # The end of one process is one failure, however many calls it took along. The next call starts
                # another process, and opens the breaker if that fails.
                return self.health.describe_failure(failure)
        return self.health.record_failure(call, failure)

    async def _call_in_process(self, call: Call) -> UpstreamResponse:
        target = self.settings.target
        assert isinstance(target, InProcessTarget)
        if self._host is None:
            self._host = LifespanTask(get_capabilities(target.handler).lifespan)
            await self._host.entered
        if self.connections.bounds_results() and find_result_limits(target.handler) is not None:
            if self._bounding[0] is not call.capabilities:
                self._bounding = call.capabilities, declare_bounding(call.capabilities)
            call = replace(call, capabilities=self._bounding[1])
        result = await target.handler(replace(call, protocol_version=FIRST_MODERN_VERSION))
        result = await self._resolve_inputs(
            replace(call, protocol_version=FIRST_MODERN_VERSION), result, target.handler
        )
        input_required = as_input_required(call.method, result)
        if input_required is not None and call.reply.can_request:
            result = await resolve_input_requests(call, input_required, target.handler)
        return UpstreamResponse(
            result if isinstance(result, Raw) else Raw(jsonrpc.encode(result)), FIRST_MODERN_VERSION
        )

    def _state(self) -> UpstreamState:
        if self.settings.problem:
            return "not configured"
        if self.health.shared.since is not None:
            return "away"
        return "ok" if self.is_tried else "not tried"

    def status(self) -> dict[str, Any]:
        """Return the status of the upstream for the operator, as known to this process."""
        lanes, catalog = list(self.connections), self.catalog.merged
        breaker = self.health.shared
        last = breaker.failure.partition(STDERR_MARKER)[2]
        lines = last.splitlines() or [line for lane in lanes for line in lane.stderr_tail]
        state = self._state()
        return {
            "alias": self.alias,
            "state": state,
            "up": state == "ok",
            "error": self.settings.problem or breaker.failure or self._listing_failure,
            "since": breaker.since,
            "retry_after": round(breaker.retry_after, 1),
            "refused_callers": self.health.refused_callers,
            "revision": lanes[0].protocol_version if lanes else None,
            "connections": len(lanes),
            "in_flight": sum(lane.in_flight for lane in lanes),
            "calls": self.stats.calls,
            "errors": self.stats.errors,
            **{kind: len(catalog.entries.get(f"{kind}/list", ())) for kind in ("tools", "prompts", "resources")},
            "listed": catalog.is_known,
            "lists_from": "store" if catalog.is_from_cache else "upstream" if catalog.is_known else None,
            "pinning": self.settings.pinning,
            "stderr": [self._secrets.mask(line) for line in lines[-MAX_STDERR_LINES:]],
        }


def _features_from(able: ServerCapabilities, revision: ProtocolVersion, asks: bool) -> UpstreamFeatures:
    modern = revision >= FIRST_MODERN_VERSION
    return UpstreamFeatures(
        asks=asks,
        sessions=not modern,
        tasks=has_capability(able, ("extensions", EXTENSION) if modern else TASK_TOOL_CALLS),
        skills=modern and has_capability(able, ("extensions", SKILLS)),
    )


def _task(params: Any) -> str:
    try:
        return str(msgspec.json.decode(params)["taskId"])
    except (TypeError, KeyError, msgspec.DecodeError):
        return ""


def _may_need_input(call: Call) -> bool:
    """Return whether the client supports input requests, or is answering one."""
    able = call.capabilities
    accepts_input = able is not NO_CAPABILITIES and forwardable_capabilities(able) != ClientCapabilities()
    return accepts_input or b'"requestState"' in bytes(call.params)
