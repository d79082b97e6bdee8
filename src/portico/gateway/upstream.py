"""One server behind a gateway: its connections, its lists, and whether it is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from portico.gateway.bridge import Bridge, Parked
from portico.gateway.config import Secrets, UpstreamSettings
from portico.gateway.entries import LISTS, ListedEntry, read_page
from portico.gateway.health import Breaker, brief
from portico.gateway.kept import KeptLists
from portico.gateway.lane import Lane, carried
from portico.legacy.push import push
from portico.rpc.call import Call, members
from portico.rpc.identity import identity_of
from portico.rpc.questions import asked_by
from portico.rpc.relay import ChangeRelay
from portico.transport.loops import HeldLifespan
from portico.transport.targets import Here
from portico.wire import jsonrpc, notices
from portico.wire.errors import BadStatus, Closed, Error, MethodNotFound, ProtocolError, ToolError, TransportError
from portico.wire.meta import NO_CAPABILITIES, ClientCapabilities, Implementation
from portico.wire.methods import ASKABLE
from portico.wire.revisions import MODERN, Revision
from portico.wire.subscriptions import Filter

log = logging.getLogger("portico.gateway")

MOST_PAGES = 1000
MOST_ENTRIES = 100_000
# Changes that come together are looked at together.
GATHER_SECONDS = 0.05

# Some servers list what asks a client only to those who can be asked.
_ALL = ClientCapabilities(elicitation={"form": {}, "url": {}}, sampling={"tools": {}, "context": {}}, roots={})

_CHANGED = {
    notices.TOOLS_CHANGED: ("tools/list",),
    notices.PROMPTS_CHANGED: ("prompts/list",),
    notices.RESOURCES_CHANGED: ("resources/list", "resources/templates/list"),
}


class Answered(Struct, frozen=True):
    """What an upstream gave, and the revision whose words it is in."""

    result: Any
    revision: Revision


class GatewayUpstream:
    """`changed` is told which lists are others now, and `updated` which resource."""

    def __init__(
        self,
        settings: UpstreamSettings,
        info: Implementation,
        bridge: Bridge,
        secrets: Secrets,
        kept: KeptLists,
        changed: Callable[[Sequence[str]], None],
        updated: Callable[[GatewayUpstream, str], None],
    ) -> None:
        self.settings = settings
        self.alias = settings.alias
        self.breaker = Breaker()
        # Of each list what is known: kept while the upstream is away.
        self.entries: dict[str, tuple[ListedEntry, ...]] = {}
        self.listed = asyncio.Event()
        # They are from the store, and may be of long ago.
        self._is_recalled = False
        self._info = info
        self._bridge = bridge
        self._secrets = secrets
        self._kept = kept
        self._changed = changed
        self._updated = updated
        self._lanes: dict[Any, list[Lane]] = {}
        self._opening = asyncio.Lock()
        self._asks = False
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._waiting = 0
        # Tells of changes, and the connection that it listens on.
        self._relay: ChangeRelay | None = None
        self._heard: Lane | None = None
        self._host: HeldLifespan | None = None
        self._stale: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._first: asyncio.Task[None] | None = None
        # When it was asked for its lists for the first time.
        self._began: float | None = None

    # Beginning and end

    async def recall(self) -> None:
        """Show what it had when it was last seen, until it is asked."""
        lists = await self._kept.find(self.settings)
        if lists is not None and not self.listed.is_set():
            self.entries = lists
            self.listed.set()
            self._is_recalled = True
            self._changed(tuple(lists))

    def begin_listing(self) -> None:
        """Ask for its lists in the background, unless they are known for sure, or asked for already."""
        known = self.listed.is_set() and not self._is_recalled
        if not known and (self._first is None or self._first.done()) and not self.breaker.is_open:
            self._began = self._began or time.monotonic()
            self._first = asyncio.create_task(self._try_refresh(tuple(LISTS)))

    def left_of(self, seconds: float) -> float:
        """What is left of the time that is waited for its first lists: one that hangs is waited for once."""
        return seconds if self._began is None else max(0.0, self._began + seconds - time.monotonic())

    async def listed_or_failed(self) -> None:
        """Wait until its lists are known, or it is known that they are not to be had now."""
        if self._first is not None:
            await asyncio.wait([self._first])

    async def _try_refresh(self, methods: tuple[str, ...]) -> None:
        try:
            await self.refresh(methods)
        except (Error, ToolError) as failure:
            log.warning("%s cannot be listed: %s", self.alias, self._secrets.mask(str(failure)))

    async def close(self) -> None:
        tasks = [task for task in (self._first, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        # A connection that is just being made is closed by the task that makes it.
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._relay is not None:
            self._relay.end()
        lanes = self._all_lanes
        self._lanes.clear()
        await asyncio.gather(*(lane.connection.close() for lane in lanes), return_exceptions=True)
        if self._host is not None:
            await self._host.leave()
            self._host = None

    # Lists

    async def refresh(self, methods: tuple[str, ...] = tuple(LISTS)) -> None:
        """Ask for its lists anew. Tells of those that are others now."""
        found = dict(self.entries)
        refused: list[ProtocolError] = []
        for method in methods:
            try:
                found[method] = tuple(await self._list(method))
            except ProtocolError as refusal:
                # One list that it does not give hides no other.
                log.warning("%s does not answer %s: %s", self.alias, method, self._secrets.mask(str(refusal)))
                refused.append(refusal)
        if len(refused) == len(methods):
            raise refused[0]
        before, self.entries = self.entries, found
        self._is_recalled = False
        first = not self.listed.is_set()
        self.listed.set()
        others = [method for method in methods if _digests(before.get(method, ())) != _digests(found.get(method, ()))]
        if first or others:
            self._changed(others)
            await self._kept.keep(self.settings, found)
        self._listen()

    async def _list(self, method: str) -> list[ListedEntry]:
        found: list[ListedEntry] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            params = Raw(jsonrpc.encode({} if cursor is None else {"cursor": cursor}))
            try:
                call = Call(method=method, params=params, id=0, revision=MODERN, capabilities=_ALL)
                answered = await self._ask(call, None)
                page, cursor = read_page(method, answered.result, answered.revision)
            except MethodNotFound:
                break
            except (msgspec.DecodeError, RecursionError) as failure:
                raise ToolError(f"{self.alias} gave no list: {failure}") from None
            found += page
            if cursor is None or len(found) >= MOST_ENTRIES:
                break
        return found[:MOST_ENTRIES]

    def _listen(self) -> None:
        """Hear of changes, from the first list on."""
        if self._relay is not None and not self._relay.ended:
            return
        target = self.settings.target
        lane = next(iter(self._all_lanes), None)
        handler = target.handler if isinstance(target, Here) else lane.connection if lane is not None else None
        if handler is not None:
            self._heard = lane
            wanted = Filter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
            self._relay = ChangeRelay(handler, wanted, self._tell, missed=self._missed)

    def _tell(self, method: str, params: Any) -> None:
        if method == notices.RESOURCE_UPDATED:
            uri = getattr(params, "uri", None) or _uri(params)
            if uri is not None:
                self._updated(self, uri)
            return
        self._stale |= set(_CHANGED.get(method, ()))
        if self._stale and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh_stale())

    def _missed(self) -> None:
        for method in _CHANGED:
            self._tell(method, None)

    async def _refresh_stale(self) -> None:
        while self._stale:
            await asyncio.sleep(GATHER_SECONDS)
            methods, self._stale = tuple(sorted(self._stale)), set()
            await self._try_refresh(methods)

    def relay(self, uris: list[str], publish: Callable[[str], None]) -> ChangeRelay:
        """Hear of changes of these resources."""
        target = self.settings.target

        def tell(method: str, params: Any) -> None:
            if method == notices.RESOURCE_UPDATED:
                publish(getattr(params, "uri", None) or _uri(params) or "")

        handler = target.handler if isinstance(target, Here) else self._hear
        return ChangeRelay(handler, Filter(resource_subscriptions=uris), tell)

    async def _hear(self, call: Call) -> Any:
        """Listen on the connection that there is now, or on a new one."""
        try:
            lane = await self._lane(call)
        except ToolError as refusal:
            raise Closed(str(refusal)) from None
        return await lane.connection(call)

    # Calls

    async def call(self, call: Call, bound: Callable[[], bytes]) -> Answered:
        """The answer to a call in the upstream's own names; `bound` gives what its rounds have in common.

        Raises ToolError where it is not to be had now.
        """
        self.breaker.check(self.alias)
        if self._slots.locked() and self._waiting >= self.settings.queue:
            raise self._busy(f"{self.settings.concurrency} calls under way, and too many wait")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._with_questions(call, bound)
        finally:
            self._slots.release()

    def _busy(self, what: str) -> ToolError:
        details = {"upstream": self.alias, "retry_after": 1}
        return ToolError(f"{self.alias} has {what}.", kind="ApiLimitExceeded", details=details, retryable=True)

    async def _with_questions(self, call: Call, bound: Callable[[], bytes]) -> Answered:
        """Questions go to the client in the way its revision has."""
        rounds = (call.revision or MODERN) >= MODERN and call.method in ASKABLE and _may_have_rounds(call)
        if isinstance(self.settings.target, Here) or not rounds or (await self._lane(call)).modern:
            return await self._ask(call, None)
        params = call.typed()
        if params.request_state is UNSET:
            said = await self._bridge.begin(call, self.alias, bound(), self._ask)
        else:
            said = await self._bridge.resume(call, bound(), params.request_state, params.input_responses)
        return said if isinstance(said, Answered) else Answered(said, MODERN)

    async def _ask(self, call: Call, parked: Parked | None) -> Answered:
        """Send a call, and what its client answers to the questions that come back."""
        if isinstance(self.settings.target, Here):
            return await self._ask_here(call)
        lane = await self._lane(call)
        result = await self._send(lane, call, parked)
        asked = asked_by(call.method, result)
        if asked is not None and call.reply.asks:
            result = await push(call, asked, partial(self._send, lane))
        return Answered(result, lane.revision)

    async def _send(self, lane: Lane, call: Call, parked: Parked | None = None) -> Any:
        try:
            result = await lane.send(call, parked)
        except TransportError as failure:
            if not lane.alive:
                await self._lose(lane)
            self._note_failure(failure)
            if isinstance(failure, BadStatus):
                raise self.breaker.refusal(self.alias) from None
            raise ToolError(
                f"{self.alias}: {brief(self._secrets.mask(str(failure)))}",
                kind="ServiceUnavailable",
                details={"upstream": self.alias},
            ) from None
        except ProtocolError:
            self.breaker.succeeded()
            raise
        self.breaker.succeeded()
        return result

    def _note_failure(self, failure: Error, *, at_once: bool = False) -> None:
        self.breaker.failed(self._secrets.mask(str(failure)), at_once=at_once)

    async def _ask_here(self, call: Call) -> Answered:
        target = self.settings.target
        assert isinstance(target, Here)
        if self._host is None:
            self._host = HeldLifespan(members(target.handler).lifespan)
            await self._host.entered
        said = await target.handler(replace(call, revision=MODERN))
        asked = asked_by(call.method, said)
        if asked is not None and call.reply.asks:
            said = await push(call, asked, target.handler)
        return Answered(said if isinstance(said, Raw) else Raw(jsonrpc.encode(said)), MODERN)

    # Lanes

    async def _lane(self, call: Call) -> Lane:
        """A connection for a call: one for all at a server without sessions, else one for those who may share it."""
        if self.settings.problem:
            raise ToolError(f"{self.alias} is not configured: {self.settings.problem}.", kind="ServiceUnavailable")
        able = carried(call.capabilities)
        key = self._key(call, able)
        lane = self._free(key)
        if lane is None:
            async with self._opening:
                lane = self._free(self._key(call, able))
                if lane is None:
                    # Many may have waited for one attempt, which failed.
                    self.breaker.check(self.alias)
                    lane = await self._open(key, able)
        return lane

    def _key(self, call: Call, able: ClientCapabilities) -> Any:
        if any(lane.modern for lane in self._lanes.get("modern", ())):
            return "modern"
        return jsonrpc.encode(able), self._sharing(call)

    def _sharing(self, call: Call) -> Any:
        """Those who share a connection have this in common: the client's own session, where there is one and it is to
        be alone, or the principal."""
        isolation, conversation = self.settings.isolation, call.reply.conversation
        if isolation == "session" and conversation is not None:
            return ref(conversation)
        if isolation == "shared" or call.principal is None:
            return None
        return identity_of(call.principal) or ""

    def _free(self, key: Any) -> Lane | None:
        group = self._lanes.get(key, [])
        if not self._asks or key == "modern":
            return group[0] if group else None
        return next((lane for lane in group if not lane.in_flight), None)

    @property
    def _all_lanes(self) -> list[Lane]:
        return [lane for group in self._lanes.values() for lane in group]

    async def _open(self, key: Any, able: ClientCapabilities) -> Lane:
        if len(self._all_lanes) >= self.settings.lanes:
            await self._make_room()
        lane = Lane(self.settings, self._info, able, self._tell, self._note_question)
        try:
            await lane.open()
        except (TransportError, ProtocolError) as failure:
            # It could not even be greeted, so there is nothing to wait and see.
            self._note_failure(failure, at_once=True)
            log.warning("%s cannot be reached: %s", self.alias, self.breaker.failure)
            raise self.breaker.refusal(self.alias) from None
        if self.listed.is_set() and self._relay is None:
            # It may have become another while it was away.
            self._missed()
        self._lanes.setdefault("modern" if lane.modern else key, []).append(lane)
        return lane

    async def _make_room(self) -> None:
        idle = self._idle()
        if not idle and await self._bridge.end_oldest(self.alias):
            idle = self._idle()
        if not idle:
            raise self._busy(f"{self.settings.lanes} connections, all of them busy")
        _, key, lane = min(idle, key=lambda one: one[0])
        self._drop(key, lane)
        await lane.connection.close()

    def _idle(self) -> list[tuple[float, Any, Lane]]:
        return [(lane.used, key, lane) for key, group in self._lanes.items() for lane in group if not lane.in_flight]

    def _drop(self, key: Any, lane: Lane) -> None:
        self._lanes[key].remove(lane)
        if not self._lanes[key]:
            del self._lanes[key]
        if lane is self._heard:
            # The next list, or the next connection, is listened to again.
            self._heard = None
            if self._relay is not None:
                self._relay.end()
                self._relay = None

    async def _lose(self, lane: Lane) -> None:
        """A connection broke: the next call makes another, and fails at once if it cannot."""
        for key, group in list(self._lanes.items()):
            if lane in group:
                self._drop(key, lane)
                await lane.connection.close()

    def _note_question(self) -> None:
        """From now on each connection has one call at a time, so that it can be told whose a question is."""
        if not self._asks:
            log.info("%s asks questions: from now on each of its connections has one call at a time", self.alias)
        self._asks = True

    async def end_idle(self, now: float) -> None:
        """Close what nothing has used for long, and nothing listens on."""
        for key, group in list(self._lanes.items()):
            for lane in list(group):
                is_over = isinstance(key, tuple) and isinstance(key[1], ref) and key[1]() is None
                if not lane.in_flight and lane is not self._heard and (is_over or now - lane.used > self.settings.idle):
                    self._drop(key, lane)
                    with contextlib.suppress(Error):
                        await lane.connection.close()

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of it."""
        lanes = self._all_lanes
        return {
            "alias": self.alias,
            "up": self.breaker.since is None and not self.settings.problem,
            "error": self.settings.problem or self.breaker.failure,
            "retry_after": round(self.breaker.retry_after, 1),
            "revision": lanes[0].revision if lanes else None,
            "connections": len(lanes),
            "in_flight": sum(lane.in_flight for lane in lanes),
            **{kind: len(self.entries.get(f"{kind}/list", ())) for kind in ("tools", "prompts", "resources")},
            "listed": self.listed.is_set(),
        }


def _digests(entries: tuple[ListedEntry, ...]) -> list[bytes]:
    return [entry.digest() for entry in entries]


def _uri(params: Any) -> str | None:
    try:
        return str(msgspec.json.decode(params)["uri"])
    except (TypeError, KeyError, msgspec.DecodeError):
        return None


def _may_have_rounds(call: Call) -> bool:
    """Whether its client can be asked something, or has been."""
    able = call.capabilities
    asked = able is not NO_CAPABILITIES and carried(able) != ClientCapabilities()
    return asked or b'"requestState"' in bytes(call.params)
