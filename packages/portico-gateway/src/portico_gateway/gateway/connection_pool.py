"""Connection pool of one upstream: which calls share a connection, and when connections are opened and closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary, ref

from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.errors import PorticoError, ProtocolError, ToolError, TransportError
from portico.protocol.meta import ClientCapabilities, Implementation
from portico.rpc.call import Call, ClientConnection
from portico.rpc.error_ids import log_failure
from portico.rpc.fair_queue import get_caller_key
from portico.rpc.identity import principal_id
from portico.server.results.settings import declare_bounding
from portico.transports.targets import UrlTarget
from portico_gateway.gateway.accounting import LOCAL, FairQueue, UpstreamHealth, reserve
from portico_gateway.gateway.client_handlers import ClientHandlers
from portico_gateway.gateway.connection import (
    NotificationHandler,
    SessionClient,
    UpstreamConnection,
    forwardable_capabilities,
)
from portico_gateway.gateway.server_request_bridge import ServerRequestBridge
from portico_gateway.gateway.settings import UpstreamSettings

if TYPE_CHECKING:
    from portico_gateway.credentials.upstream_auth import UpstreamAuth

log = logging.getLogger("portico.gateway")

T = TypeVar("T")

# A server without sessions has one connection for all calls.
STATELESS = "modern"
STATELESS_KEY: tuple[Any, ...] = (STATELESS,)


def share_of(settings: UpstreamSettings, auth: UpstreamAuth | None, call: Call) -> tuple[Any, ...]:
    """Return the identity of a caller as the upstream sees it.

    A principal's credential and a client's forwarded headers are never used on another caller's connection.
    """
    # Everything that the upstream can see of the caller is part of the key. If two callers shared a connection with
    # one caller's token, the other would act in that caller's name.
    sharing_key = None if auth is None else auth.sharing_key(call)
    sent = settings.forwarded_headers(call.headers)
    return STATELESS_KEY if sharing_key is None and not sent else (STATELESS, sharing_key, sent)


class _AllBusy(Exception):
    """All connections are busy."""


class ConnectionPool:
    """Connection pool of one upstream.

    `on_notification` receives notifications that belong to no call, `on_connected` each connection that was opened or
    reopened. `on_gap` is called when messages may have been lost, and `on_features_known` once, when the upstream sends
    a request that does not name its call.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        bridge: ServerRequestBridge,
        health: UpstreamHealth,
        on_notification: NotificationHandler,
        on_connected: Callable[[UpstreamConnection], None],
        on_gap: Callable[[], None],
        on_features_known: Callable[[], None],
        auth: UpstreamAuth | None = None,
        client_handlers: ClientHandlers | None = None,
    ) -> None:
        self.settings = settings
        self._answers = client_handlers
        self.alias = settings.alias
        # Whether each connection carries one call at a time, so that server-to-client requests can be assigned to a
        # call.
        self.one_call_per_connection = False
        self._auth = auth
        self._info = info
        self._bridge = bridge
        self._health = health
        self._on_notification = on_notification
        self._opened = on_connected
        self._missed = on_gap
        self._learnt = on_features_known
        self.by_key: dict[Any, list[UpstreamConnection]] = {}
        # Replaced connections that still have calls or tasks.
        self._retired: list[UpstreamConnection] = []
        # Set if all callers are one client, or are shown to the upstream as one.
        self.client: SessionClient | None = None
        # Whether results are bounded here, so that the upstream need not.
        self.bounds_results: Callable[[], bool] = lambda: False
        # Callers who may share a connection wait while one of them opens it; others do not wait.
        self._opening: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()
        self._being_opened = 0
        # Whether the upstream has sessions, which callers do not share.
        self._has_sessions = False
        # Busy connections of each caller, and the calls that wait for a connection.
        self._busy: dict[str, int] = {}
        self._queue = FairQueue(settings.max_connections, settings.max_queued, settings.timeout)
        # The share of a caller while no one waits; computed once, since `acquire` compares with it for each call.
        self._share = settings.max_connections - reserve(settings.max_connections)
        # Client sessions whose end closes their connections; and connections being opened or closed.
        self._followed: set[ref[ClientConnection]] = set()
        self._openings: set[asyncio.Task[Any]] = set()
        self._closings: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    def __iter__(self) -> Any:
        return iter([lane for group in self.by_key.values() for lane in group])

    def __contains__(self, connection: UpstreamConnection) -> bool:
        return connection in self._retired or any(connection in group for group in self.by_key.values())

    def __len__(self) -> int:
        return sum(map(len, self.by_key.values()))

    @property
    def stateless_connection(self) -> UpstreamConnection | None:
        """Return the connection to a server without sessions, or None."""
        for lane in self.by_key.get(STATELESS_KEY, ()):
            return None if lane.is_broken else lane
        return None

    async def acquire(self, call: Call) -> UpstreamConnection:
        """Return a connection for a call: the shared one, or one for callers who may share it. Raises ToolError."""
        if self.settings.problem:
            error_id = log_failure(log, f"{self.alias} is not configured", self.settings.problem)
            raise ToolError(f"{self.alias} is not configured (error id {error_id}).", error_type="ToolExecutionError")
        lane = self.find_available(call)
        return lane if lane is not None else await self._find_in_turn(call, self._able(call))

    def find_available(self, call: Call) -> UpstreamConnection | None:
        """Return the connection that a call can use without waiting, or None."""
        if self.settings.problem:
            return None
        key = self._key(call, self._able(call))
        lane = self._find_idle(key)
        # Without a queue, unless the connection is idle and its caller may have used up its share.
        if lane is not None and (key is STATELESS_KEY or lane.in_flight or self._has_share(lane)):
            return lane
        return None

    def _able(self, call: Call) -> ClientCapabilities:
        """Return the capabilities that the upstream sees."""
        return forwardable_capabilities(call.capabilities if self.client is None else self.client.capabilities)

    async def _find_in_turn(self, call: Call, able: ClientCapabilities) -> UpstreamConnection:
        """Use an idle connection or open one, if the caller's share allows it; otherwise wait for a turn."""
        # A call that was woken has a turn and may pass callers that still wait; without a turn it must queue behind
        # them.
        caller, has_turn = get_caller_key(call), False
        owner = caller[0]
        while True:
            key = self._key(call, able)
            shared = None if self.one_call_per_connection else self._find_idle(key)
            if shared is not None and shared.in_flight:
                # Another call of the same callers uses it already, so it takes nothing from a share.
                if has_turn:
                    self._wake_next()
                return shared
            if key is STATELESS_KEY or (
                self._has_slot(owner) and (has_turn or not self._queue.has_turn(self._has_slot))
            ):
                lane = self._find_idle(key)
                if lane is not None:
                    # An exclusive connection is counted for the caller that uses it now, not for the one that opened
                    # it.
                    if self.one_call_per_connection and key[0] != STATELESS:
                        lane.owner = owner
                    if has_turn:
                        self._wake_next()
                    return lane
                try:
                    # Cancellation of this caller must not cancel the opening: others may wait for the same connection.
                    await asyncio.shield(self._start_background_task(self._open_for(call, able, owner), self._openings))
                    # Another call may have taken it if connections are exclusive, so search again.
                    continue
                except _AllBusy:
                    pass
            # A suspended call waits for its user and holds a connection. The caller's own oldest one ends before its
            # new call is rejected; other callers are not affected.
            elif not self._has_slot(owner) and await self._bridge.evict_oldest(self.alias, owner):
                # The caller's own suspended call gives way.
                continue
            try:
                await self._queue.wait(caller, self._wake_next)
            except (asyncio.QueueFull, TimeoutError):
                # The shares grow when fewer callers wait.
                self._wake_next()
                raise self.busy_error(
                    f"no free connection for this caller (limit: {self.settings.max_connections})"
                ) from None
            has_turn = True

    def _has_share(self, lane: UpstreamConnection) -> bool:
        """Return whether no call waits and the caller of an idle connection certainly has a share left."""
        return not self.one_call_per_connection and not len(self._queue) and self._busy.get(lane.owner, 0) < self._share

    def _has_slot(self, owner: str) -> bool:
        """Return whether a caller may have one more busy connection."""
        return self._busy.get(owner, 0) < self._queue.limit(owner, self._busy)

    def _on_busy_changed(self, lane: UpstreamConnection, busy: int) -> None:
        """Count a connection that got busy (1) or idle (-1)."""
        count = self._busy.get(lane.owner, 0) + busy
        if count:
            self._busy[lane.owner] = count
        else:
            self._busy.pop(lane.owner, None)
        if busy < 0:
            if lane in self._retired and not lane.has_tasks:
                self._close_in_background(lane)
            # An upstream with little load has no queue.
            if self._queue.turns.size:
                self._wake_next()

    def _wake_next(self) -> None:
        """Give a turn to the next caller, if there is an idle connection or room for one."""
        if len(self._queue) and (len(self) + self._being_opened < self.settings.max_connections or self._idle()):
            self._queue.wake(self._has_slot)

    async def _open_for(self, call: Call, able: ClientCapabilities, owner: str) -> None:
        """Open a connection for a call, unless another call has opened a suitable one in the meantime."""
        async with self._lock_for(self._key(call, able)):
            key = self._key(call, able)
            if self._find_idle(key) is not None:
                return
            # Many calls may have waited for one attempt that failed; do not let each of them retry.
            self._health.check(call)
            self._check_open()
            self._being_opened += 1
            try:
                await self._evict_idle()
                await self._open_connection(key, able, call, owner)
            finally:
                self._being_opened -= 1
                self._wake_next()
            self._close_with_session(call)

    def _lock_for(self, key: Any) -> asyncio.Lock:
        """Return the lock for opening a connection.

        Until the server is known to have sessions, its first connection may turn out to be shared by all.
        """
        # Two callers with different keys may both be about to discover that the server is stateless. One lock for
        # both prevents a second handshake.
        result = self._opening.setdefault(key if self._has_sessions or key[0] == STATELESS else key[2], asyncio.Lock())
        return result

    def _start_background_task(self, errand: Coroutine[Any, Any, T], among: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(errand)
        # The event loop holds only weak references to tasks; without this set a running task could be collected.
        among.add(task)
        task.add_done_callback(partial(self._on_task_done, among))
        return task

    def _on_task_done(self, among: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
        among.discard(task)
        if not task.cancelled():
            # Retrieve the exception: there may be no caller left to await the task.
            task.exception()

    def _key(self, call: Call, able: ClientCapabilities) -> Any:
        modern = (
            STATELESS_KEY
            if self._auth is None and not self.settings.forward_headers
            else share_of(self.settings, self._auth, call)
        )
        # Once the server is known to be stateless, sessions and capabilities do not matter: they are sent with each
        # request (2026-07-28, Lifecycle).
        if modern in self.by_key:
            return modern
        return jsonrpc.encode(able), self._isolation_key(call), modern

    def _isolation_key(self, call: Call) -> Any:
        """Return the key that callers sharing a connection have in common: the client's session or the principal."""
        isolation, conversation = self.settings.isolation, call.reply.connection
        # A weak reference: the key must not keep the session of a client alive that has disconnected.
        if isolation == "session" and conversation is not None:
            return ref(conversation)
        if isolation == "shared" or call.principal is None:
            return None
        return principal_id(call.principal)

    def _find_idle(self, key: Any) -> UpstreamConnection | None:
        for lane in self.by_key.get(key, ()):
            if lane.is_broken and not lane.in_flight:
                # It was closed while idle. Replace it, so that an unavailable upstream is noticed immediately.
                self._close_in_background(lane)
                return self._find_idle(key)
            if not self.one_call_per_connection or key[0] == STATELESS or not lane.in_flight:
                return lane
        return None

    # Opening

    async def _open_connection(self, key: Any, able: ClientCapabilities, call: Call, owner: str) -> None:
        sender = None if self._auth is None else self._auth.make_sender(call)
        info = self._info if self.client is None else self.client.info or self._info
        create = partial(
            UpstreamConnection,
            self._with_headers(call),
            info,
            declare_bounding(able) if self.bounds_results() else able,
            self._on_notification,
            self._opened,
            self._missed,
            self.require_exclusive,
            sender,
            self._answers,
            self._on_busy_changed,
            self.client,
        )
        lane = create()
        lane.create_replacement = create
        try:
            await lane.open()
        except (TransportError, ProtocolError) as failure:
            # The handshake failed, so open the breaker immediately.
            raise self._health.record_failure(call, failure, opening=True) from None
        # Never reset: an upstream that had a session once may have one again after a restart.
        self._has_sessions = self._has_sessions or not lane.is_stateless
        if lane.is_stateless:
            key = share_of(self.settings, self._auth, call)
        lane.owner = LOCAL if key is STATELESS_KEY else owner
        self.by_key.setdefault(key, []).append(lane)
        self._opened(lane)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ToolError(
                f"{self.alias} was removed.", error_type="ToolExecutionError", details={"upstream": self.alias}
            )

    def _with_headers(self, call: Call) -> UpstreamSettings:
        """Return the settings with the client's forwarded headers added to each request of the connection."""
        sent, target = self.settings.forwarded_headers(call.headers), self.settings.target
        if not sent or not isinstance(target, UrlTarget):
            return self.settings
        # A forwarded header replaces a configured one of the same name, whatever its case; two values would be read
        # differently by different servers.
        named = {name.lower() for name, _ in sent}
        remaining = {name: value for name, value in target.headers.items() if name.lower() not in named}
        return replace(self.settings, target=replace(target, headers={**remaining, **dict(sent)}))

    async def _evict_idle(self) -> None:
        """Close an idle connection if there are too many. Raises _AllBusy if none is idle.

        Connections without listeners come first, then those of the caller who has most.
        """
        if len(self) + self._being_opened <= self.settings.max_connections:
            return
        if not self._idle():
            await self._end_parked()
        # Take from the caller that has most, so that a caller who opens many connections evicts its own.
        owned = Counter(lane.owner for lane in self)
        idle = sorted(
            self._idle(),
            key=lambda connection: (connection.subscribers > 0, -owned[connection.owner], connection.last_used_at),
        )
        if not idle:
            raise _AllBusy
        self._drop(idle[0])
        await _close(idle[0])

    async def _end_parked(self) -> None:
        """End a suspended call of the caller with the most connections."""
        for owner, _ in Counter(lane.owner for lane in self).most_common():
            if await self._bridge.evict_oldest(self.alias, owner):
                return

    def _idle(self) -> list[UpstreamConnection]:
        return [lane for lane in self if not lane.in_flight]

    def busy_error(self, reason: str) -> ToolError:
        """Return the error for an upstream that has no capacity left."""
        details = {"upstream": self.alias, "retry_after": 1}
        return ToolError(
            (f"{self.alias} is busy: {reason}."), error_type="ApiLimitExceeded", details=details, retryable=True
        )

    def require_exclusive(self) -> None:
        """Allow one call at a time on each connection from now on."""
        if not self.one_call_per_connection:
            log.info("%s sends requests to clients: each of its connections now carries one call at a time", self.alias)
            self.one_call_per_connection = True
            self._learnt()

    # Replacing

    async def replace_connections(self) -> None:
        """Replace every connection by a new one. Calls in flight and tasks end on the old connections.

        Raises TransportError or ProtocolError if a new connection cannot be opened; the old one is used further then.
        """
        for key, group in list(self.by_key.items()):
            old = list(group)
            # Opened before the old ones are retired, so that a broken upgrade changes nothing.
            lane = old[0].create_replacement()
            lane.create_replacement = old[0].create_replacement
            await lane.open()
            lane.owner = old[0].owner
            current = self.by_key.setdefault(key, [])
            current[:] = [lane, *(item for item in current if item not in old)]
            self._opened(lane)
            for item in old:
                self._retired.append(item)
                if not item.in_flight and not item.has_tasks:
                    self._close_in_background(item)
        self._wake_next()

    # Closing

    def _close_with_session(self, call: Call) -> None:
        """Close the connections of a client's session when the session ends."""
        conversation = call.reply.connection
        if self.settings.isolation != "session" or conversation is None or ref(conversation) in self._followed:
            return
        session = ref(conversation)
        self._followed.add(session)
        conversation.add_close_callback(partial(self._close_session_connections, session))

    def _close_session_connections(self, client: ref[ClientConnection]) -> None:
        self._followed.discard(client)
        for key, group in list(self.by_key.items()):
            if key[0] != STATELESS and key[1] == client:
                for lane in [item for item in group if not item.has_tasks]:
                    # Its calls were cancelled in the same loop iteration.
                    self._close_in_background(lane)

    def _drop(self, lane: UpstreamConnection) -> None:
        if lane in self._retired:
            self._retired.remove(lane)
        for key, group in list(self.by_key.items()):
            if lane in group:
                group.remove(lane)
                if not group:
                    del self.by_key[key]
        self._wake_next()

    def _close_in_background(self, lane: UpstreamConnection) -> None:
        """Close a connection without waiting for it."""
        self._drop(lane)
        self._start_background_task(_close(lane), self._closings)

    async def discard(self, connection: UpstreamConnection) -> None:
        """Remove a broken connection. The next call opens another and fails immediately if that is not possible."""
        self._drop(connection)
        await _close(connection)

    async def close_idle(self, now: float) -> None:
        """Close connections that were idle for too long and have no listeners."""
        for lane in [*self, *self._retired]:
            is_listening = lane.subscribers > 0 and lane not in self._retired
            if not lane.in_flight and not is_listening and now - lane.last_used_at > self.settings.idle_timeout:
                self._drop(lane)
                await _close(lane)

    async def close(self) -> None:
        self.is_closed = True
        openings = list(self._openings)
        for task in openings:
            task.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        lanes = [*self, *self._retired]
        self.by_key.clear()
        self._retired.clear()
        await asyncio.gather(*map(_close, lanes), *self._closings, return_exceptions=True)


async def _close(lane: UpstreamConnection) -> None:
    with contextlib.suppress(PorticoError):
        await lane.connection.close()
