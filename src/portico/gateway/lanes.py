"""The connections to one upstream: who shares one, when another is opened, and when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from msgspec.structs import replace

from portico.gateway.answers import OwnAnswers
from portico.gateway.bridge import Bridge
from portico.gateway.config import UpstreamSettings
from portico.gateway.health import Breaker
from portico.gateway.lane import Lane, Told, carried
from portico.rpc.call import Call, Conversation
from portico.rpc.identity import identity_of
from portico.transport.targets import Url
from portico.wire import jsonrpc
from portico.wire.errors import Error, ProtocolError, ToolError, TransportError
from portico.wire.meta import ClientCapabilities, Implementation

if TYPE_CHECKING:
    from portico.access.outgoing import OutgoingAuth

log = logging.getLogger("portico.gateway")

T = TypeVar("T")

# A server without sessions has one connection, for all calls.
MODERN = "modern"
MODERN_KEY: tuple[Any, ...] = (MODERN,)


class Lanes:
    """`told` is given what belongs to no call, `opened` each connection that is made (again); `missed` is called when
    something may not have been heard, and `learnt` once, when the upstream is found to ask questions that do not say
    whose they are."""

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        bridge: Bridge,
        breaker: Breaker,
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
        self._breaker = breaker
        self._told = told
        self._opened = opened
        self._missed = missed
        self._learnt = learnt
        self._lanes: dict[Any, list[Lane]] = {}
        self._opening = asyncio.Lock()
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
            raise ToolError(f"{self.alias} is not configured: {self.settings.problem}.", kind="ToolExecutionError")
        able = carried(call.capabilities)
        lane = self._free(self._key(call, able))
        while lane is None:
            # A caller that goes away meanwhile ends nothing: others may wait for the same connection.
            await asyncio.shield(self._run(self._open_for(call, able), self._openings))
            # Another may have taken it, where each has one call at a time.
            lane = self._free(self._key(call, able))
        return lane

    async def _open_for(self, call: Call, able: ClientCapabilities) -> None:
        async with self._opening:
            key = self._key(call, able)
            if self._free(key) is None:
                # Many may have waited for one attempt, which failed.
                self._breaker.check(self.alias)
                self._check_open()
                await self._open(key, able, call)
                self._follow(call)

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
        modern = MODERN_KEY if self._auth is None and not self.settings.forward else self._modern_key(call)
        if modern in self._lanes:
            return modern
        return jsonrpc.encode(able), self._sharing(call), modern

    def _modern_key(self, call: Call) -> tuple[Any, ...]:
        """A credential of one principal is on no connection of another, nor is what its client sends on."""
        who = None if self._auth is None else self._auth.share(call)
        sent = self.settings.forwarded(call.headers)
        return MODERN_KEY if who is None and not sent else (MODERN, who, sent)

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

    async def _open(self, key: Any, able: ClientCapabilities, call: Call) -> None:
        if len(self) >= self.settings.lanes:
            await self._make_room()
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
        )
        try:
            await lane.open()
        except (TransportError, ProtocolError) as failure:
            # It could not even be greeted, so there is nothing to wait and see.
            self._breaker.failed(failure, at_once=True)
            log.warning("%s cannot be reached: %s", self.alias, self._breaker.failure)
            raise self._breaker.refusal(self.alias) from None
        self._lanes.setdefault(self._modern_key(call) if lane.modern else key, []).append(lane)
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
        idle = self._idle()
        if not idle and await self._bridge.end_oldest(self.alias):
            idle = self._idle()
        if not idle:
            raise self.busy(f"{self.settings.lanes} connections, all of them busy")
        # One that changes are heard on only if there is no other.
        lane = min(idle, key=lambda one: (one.listeners > 0, one.used))
        self._drop(lane)
        await lane.connection.close()

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
