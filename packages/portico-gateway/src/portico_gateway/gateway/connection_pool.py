"""The connections to one upstream: who shares one, when another is opened, and when one ends."""

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
from portico.protocol.errors import Error, ProtocolError, ToolError, TransportError
from portico.protocol.meta import ClientCapabilities, Implementation
from portico.rpc.call import Call, Conversation
from portico.rpc.error_ids import log_failure
from portico.rpc.fair_queue import caller_of
from portico.rpc.identity import identity_of
from portico.transports.targets import Url
from portico_gateway.gateway.circuit_breaker import UpstreamHealth
from portico_gateway.gateway.client_handlers import OwnAnswers
from portico_gateway.gateway.concurrency import LOCAL, FairQueue, QueueFull, reserve
from portico_gateway.gateway.connection import Lane, Told, carried
from portico_gateway.gateway.server_request_bridge import Bridge
from portico_gateway.gateway.settings import UpstreamSettings

if TYPE_CHECKING:
    from portico_gateway.credentials.upstream_auth import OutgoingAuth

log = logging.getLogger("portico.gateway")

T = TypeVar("T")

# A server without sessions has one connection, for all calls.
MODERN = "modern"
MODERN_KEY: tuple[Any, ...] = (MODERN,)


def share_of(settings: UpstreamSettings, auth: OutgoingAuth | None, call: Call) -> tuple[Any, ...]:
    """Return what an upstream sees of a caller: a credential of one principal is on no connection of another, nor is
    what its client sends on."""
    who = None if auth is None else auth.share(call)
    sent = settings.forwarded(call.headers)
    return MODERN_KEY if who is None and not sent else (MODERN, who, sent)


class _AllBusy(Exception):
    """All connections are busy."""


class Lanes:
    """`told` is given what belongs to no call, `opened` each connection that is made (again); `missed` is called when
    something may not have been heard, and `learnt` once, when the upstream is found to ask questions that do not say
    whose they are."""

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        bridge: Bridge,
        health: UpstreamHealth,
        told: Told,
        opened: Callable[[Lane], None],
        missed: Callable[[], None],
        learnt: Callable[[], None],
        auth: OutgoingAuth | None = None,
        answers: OwnAnswers | None = None,
    ) -> None:
        self.settings = settings
        self._answers = answers
        self.alias = settings.alias
        # Whether each connection has one call at a time, so that it can be told whose a question is.
        self.asks = False
        self._auth = auth
        self._info = info
        self._bridge = bridge
        self._health = health
        self._told = told
        self._opened = opened
        self._missed = missed
        self._learnt = learnt
        self._lanes: dict[Any, list[Lane]] = {}
        # One connection is opened at a time for callers who may share it; others do not wait for it.
        self._opening: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()
        self._being_opened = 0
        # Whether a connection with sessions was opened, which callers do not share.
        self._has_sessions = False
        # Of each caller the connections that are busy, and the calls that wait for one.
        self._busy: dict[str, int] = {}
        self._queue = FairQueue(settings.lanes, settings.queue, settings.timeout)
        self._share = settings.lanes - reserve(settings.lanes)
        # Sessions of clients of which it is known when they end; and what is just being opened or closed.
        self._followed: set[ref[Conversation]] = set()
        self._openings: set[asyncio.Task[Any]] = set()
        self._closings: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __iter__(self) -> Any:
        return iter([lane for group in self._lanes.values() for lane in group])

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    @property
    def modern(self) -> Lane | None:
        """The one connection to a server without sessions, if it is there."""
        for lane in self._lanes.get(MODERN_KEY, ()):
            return None if lane.broken else lane
        return None

    async def find(self, call: Call) -> Lane:
        """A connection for a call: one for all at a server without sessions, else one for those who may share it."""
        if self.settings.problem:
            error_id = log_failure(log, f"{self.alias} is not configured", self.settings.problem)
            raise ToolError(f"{self.alias} is not configured (error id {error_id}).", kind="ToolExecutionError")
        able = carried(call.capabilities)
        key = self._key(call, able)
        lane = self._free(key)
        if lane is not None and (key is MODERN_KEY or lane.in_flight or self._has_share(lane)):
            return lane
        return await self._find_in_turn(call, able)

    async def _find_in_turn(self, call: Call, able: ClientCapabilities) -> Lane:
        """Use an idle connection or open one, if the caller's share allows it; else wait for a turn."""
        caller, has_turn = caller_of(call), False
        owner = caller[0]
        while True:
            key = self._key(call, able)
            if key is MODERN_KEY or (self._may(owner) and (has_turn or not self._queue.has_turn(self._may))):
                lane = self._free(key)
                if lane is not None:
                    if self.asks and key[0] != MODERN:
                        lane.owner = owner
                    if has_turn:
                        self._wake()
                    return lane
                try:
                    # A caller that goes away meanwhile ends nothing: others may wait for the same connection.
                    await asyncio.shield(self._run(self._open_for(call, able, owner), self._openings))
                    # Another may have taken it, where each has one call at a time.
                    continue
                except _AllBusy:
                    pass
            elif not self._may(owner) and await self._bridge.end_oldest(self.alias, owner):
                # The caller's own call that waits for its client gives way.
                continue
            try:
                await self._queue.wait(caller, self._wake)
            except (QueueFull, TimeoutError):
                # Shares are larger where fewer callers wait.
                self._wake()
                raise self.busy(f"{self.settings.lanes} connections, and none is free for this caller") from None
            has_turn = True

    def _has_share(self, lane: Lane) -> bool:
        """Whether no call waits, and the caller of an idle connection is sure to have a share left."""
        return not self.asks and not len(self._queue) and self._busy.get(lane.owner, 0) < self._share

    def _may(self, owner: str) -> bool:
        """Whether one more connection of a caller may be busy."""
        return self._busy.get(owner, 0) < self._queue.limit(owner, self._busy)

    def _turned(self, lane: Lane, busy: int) -> None:
        """A connection got busy, or idle."""
        count = self._busy.get(lane.owner, 0) + busy
        if count:
            self._busy[lane.owner] = count
        else:
            self._busy.pop(lane.owner, None)
        if busy < 0:
            self._wake()

    def _wake(self) -> None:
        """Give a turn to the next caller, if there is an idle connection or room for one."""
        if len(self._queue) and (len(self) + self._being_opened < self.settings.lanes or self._idle()):
            self._queue.wake(self._may)

    async def _open_for(self, call: Call, able: ClientCapabilities, owner: str) -> None:
        async with self._lock_for(self._key(call, able)):
            key = self._key(call, able)
            if self._free(key) is not None:
                return
            # Many may have waited for one attempt, which failed.
            self._health.check(call)
            self._check_open()
            self._being_opened += 1
            try:
                await self._make_room()
                await self._open(key, able, call, owner)
            finally:
                self._being_opened -= 1
                self._wake()
            self._follow(call)

    def _lock_for(self, key: Any) -> asyncio.Lock:
        """Until it is known that a server has sessions, its first connection may turn out to be one for all."""
        found = self._opening.setdefault(key if self._has_sessions or key[0] == MODERN else key[2], asyncio.Lock())
        return found

    def _run(self, errand: Coroutine[Any, Any, T], among: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(errand)
        among.add(task)
        task.add_done_callback(partial(self._done, among))
        return task

    def _done(self, among: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
        among.discard(task)
        if not task.cancelled():
            # There may be no caller any more that would look at it.
            task.exception()

    def _key(self, call: Call, able: ClientCapabilities) -> Any:
        modern = (
            MODERN_KEY
            if self._auth is None and not self.settings.forward
            else share_of(self.settings, self._auth, call)
        )
        if modern in self._lanes:
            return modern
        return jsonrpc.encode(able), self._sharing(call), modern

    def _sharing(self, call: Call) -> Any:
        """Those who share a connection have this in common: the client's own session, where there is one and it is to
        be alone, or the principal."""
        isolation, conversation = self.settings.isolation, call.reply.conversation
        if isolation == "session" and conversation is not None:
            return ref(conversation)
        if isolation == "shared" or call.principal is None:
            return None
        return identity_of(call.principal)

    def _free(self, key: Any) -> Lane | None:
        for lane in self._lanes.get(key, ()):
            if lane.broken and not lane.in_flight:
                # One that ended while nothing used it: another is made, or it is known at once that none can be.
                self._forget(lane)
                return self._free(key)
            if not self.asks or key[0] == MODERN or not lane.in_flight:
                return lane
        return None

    # Opening

    async def _open(self, key: Any, able: ClientCapabilities, call: Call, owner: str) -> None:
        sender = None if self._auth is None else self._auth.sender(call)
        lane = Lane(
            self._with_headers(call),
            self._info,
            able,
            self._told,
            self._opened,
            self._missed,
            self.note_question,
            sender,
            self._answers,
            self._turned,
        )
        try:
            await lane.open()
        except (TransportError, ProtocolError) as failure:
            # It could not even be greeted, so there is nothing to wait and see.
            raise self._health.failed(call, failure, opening=True) from None
        self._has_sessions = self._has_sessions or not lane.modern
        if lane.modern:
            key = share_of(self.settings, self._auth, call)
        lane.owner = LOCAL if key is MODERN_KEY else owner
        self._lanes.setdefault(key, []).append(lane)
        self._opened(lane)

    def _check_open(self) -> None:
        if self._closed:
            raise ToolError(f"{self.alias} was removed.", kind="ToolExecutionError", details={"upstream": self.alias})

    def _with_headers(self, call: Call) -> UpstreamSettings:
        """The settings, with what the client sends on in each request of the connection."""
        sent, target = self.settings.forwarded(call.headers), self.settings.target
        if not sent or not isinstance(target, Url):
            return self.settings
        named = {name.lower() for name, _ in sent}
        kept = {name: value for name, value in target.headers.items() if name.lower() not in named}
        return replace(self.settings, target=replace(target, headers={**kept, **dict(sent)}))

    async def _make_room(self) -> None:
        """Close an idle connection if there are too many: of the caller that has most of them, and of these one that
        changes are heard on last. Raises _AllBusy."""
        if len(self) + self._being_opened <= self.settings.lanes:
            return
        if not self._idle():
            await self._end_parked()
        owned = Counter(lane.owner for lane in self)
        idle = sorted(self._idle(), key=lambda one: (one.listeners > 0, -owned[one.owner], one.used))
        if not idle:
            raise _AllBusy
        self._drop(idle[0])
        await _close(idle[0])

    async def _end_parked(self) -> None:
        """End a call that waits for its client, of the caller with most connections."""
        for owner, _ in Counter(lane.owner for lane in self).most_common():
            if await self._bridge.end_oldest(self.alias, owner):
                return

    def _idle(self) -> list[Lane]:
        return [lane for lane in self if not lane.in_flight]

    def busy(self, what: str) -> ToolError:
        details = {"upstream": self.alias, "retry_after": 1}
        return ToolError(f"{self.alias} has {what}.", kind="ApiLimitExceeded", details=details, retryable=True)

    def note_question(self) -> None:
        """From now on each connection has one call at a time."""
        if not self.asks:
            log.info("%s asks questions: from now on each of its connections has one call at a time", self.alias)
            self.asks = True
            self._learnt()

    # Ending

    def _follow(self, call: Call) -> None:
        """The connections of a client's session end with it."""
        conversation = call.reply.conversation
        if self.settings.isolation != "session" or conversation is None or ref(conversation) in self._followed:
            return
        known = ref(conversation)
        self._followed.add(known)
        conversation.when_closed(partial(self._leave, known))

    def _leave(self, known: ref[Conversation]) -> None:
        self._followed.discard(known)
        for key, group in list(self._lanes.items()):
            if key[0] != MODERN and key[1] == known:
                for lane in [one for one in group if not one.has_tasks]:
                    # Its calls were cancelled in this very turn of the loop.
                    self._forget(lane)

    def _drop(self, lane: Lane) -> None:
        for key, group in list(self._lanes.items()):
            if lane in group:
                group.remove(lane)
                if not group:
                    del self._lanes[key]
        self._wake()

    def _forget(self, lane: Lane) -> None:
        """Close a connection without waiting for it."""
        self._drop(lane)
        self._run(_close(lane), self._closings)

    async def lose(self, lane: Lane) -> None:
        """A connection broke: the next call makes another, and fails at once if it cannot."""
        self._drop(lane)
        await _close(lane)

    async def end_idle(self, now: float) -> None:
        """Close what nothing has used for long, and nothing listens on."""
        for lane in self:
            if not lane.in_flight and not lane.listeners and now - lane.used > self.settings.idle:
                self._drop(lane)
                await _close(lane)

    async def close(self) -> None:
        self._closed = True
        openings = list(self._openings)
        for task in openings:
            task.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        lanes = list(self)
        self._lanes.clear()
        await asyncio.gather(*map(_close, lanes), *self._closings, return_exceptions=True)


async def _close(lane: Lane) -> None:
    with contextlib.suppress(Error):
        await lane.connection.close()
