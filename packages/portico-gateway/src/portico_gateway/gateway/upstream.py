"""One server behind a gateway: its connections, its lists, and whether it is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct, field
from msgspec.structs import replace

from portico.protocol import jsonrpc, notifications
from portico.protocol.capabilities import TASK_CALLS, declares
from portico.protocol.client_features import InputRequiredResult
from portico.protocol.errors import (
    URL_ELICITATION_REQUIRED,
    Error,
    MethodNotFound,
    ProtocolError,
    ToolError,
    TransportError,
)
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation, ServerCapabilities
from portico.protocol.methods import ASKABLE, asked_by
from portico.protocol.skills import EXTENSION as SKILLS
from portico.protocol.tasks import EXTENSION
from portico.protocol.versions import MODERN, Revision
from portico.rpc.attribution import attribute_all, attribute_data
from portico.rpc.call import Call, members
from portico.rpc.handshake.input_requests import push
from portico.rpc.metrics import BUCKETS
from portico.secret_references import Secrets
from portico.transports.event_loop import HeldLifespan
from portico.transports.targets import Here
from portico_gateway.gateway.catalog import CATALOG_SECONDS, UpstreamLists
from portico_gateway.gateway.catalog_cache import KeptLists, Traits
from portico_gateway.gateway.catalog_entries import LISTS
from portico_gateway.gateway.change_listener import UpstreamChanges
from portico_gateway.gateway.circuit_breaker import SAID_LAST, UpstreamHealth
from portico_gateway.gateway.client_handlers import OwnAnswers
from portico_gateway.gateway.concurrency import CallPlaces, QueueFull
from portico_gateway.gateway.connection import Lane, carried
from portico_gateway.gateway.connection_pool import Lanes, share_of
from portico_gateway.gateway.server_request_bridge import Bridge, Parked
from portico_gateway.gateway.settings import UpstreamSettings
from portico_gateway.gateway.status import UpstreamState

if TYPE_CHECKING:
    from portico_gateway.credentials.upstream_auth import OutgoingAuth

log = logging.getLogger("portico.gateway")

# How long the calls of one that was removed may go on, and how often it is looked whether they still do.
RETIRE_SECONDS, RETIRE_LOOK_SECONDS = 30.0, 0.1
# Of tasks it is known on which connection they began.
MOST_TASKS = 10_000
# Of what it wrote to its stderr, in a status.
MOST_LAST_LINES = 20


class CallTally(Struct):
    """The calls to an upstream: how many failed, and how many took how long, by the buckets of the metrics."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0
    errors: int = 0

    @property
    def calls(self) -> int:
        return sum(self.counts)


class Answered(Struct, frozen=True):
    """What an upstream gave, and the revision whose words it is in."""

    result: Any
    revision: Revision
    lane: Lane | None = None


Detach = Callable[[Parked], Any]
"""Takes a call that goes on by itself, and gives the answer to its client."""


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
        auth: OutgoingAuth | None = None,
    ) -> None:
        self.settings = settings
        self.alias = settings.alias
        share = partial(share_of, settings, auth)
        varies = bool(settings.forward) or (auth is not None and auth.personal)
        self.health = UpstreamHealth(settings.alias, share, secrets.mask, varies=varies)
        self.traits = Traits()
        # What runs in this process is told who asks, and so is one that is asked in their name.
        personal = auth is not None and auth.personal
        by_principal = personal or isinstance(settings.target, Here)
        self.lists = UpstreamLists(settings, self._ask_in_time, by_principal=by_principal)
        self.tally = CallTally()
        # When it is asked anew that gave no list.
        self._again = 0.0
        self._bridge = bridge
        self._secrets = secrets
        self._kept = kept
        self._changed = changed
        here = settings.target.handler if isinstance(settings.target, Here) else None
        # Whether it runs in this process, and is trusted as the gateway itself is.
        self.is_here = here is not None
        self.auth = auth
        self.answers = OwnAnswers(settings.answers) if settings.answers is not None else None
        # Whether all calls are alike: none brings something of its own, and no question is answered here.
        self.is_plain = auth is None and self.answers is None and not settings.forward
        told = (self._tell, self._opened, self._missed, self._learnt)
        self.lanes = Lanes(settings, info, bridge, self.health, *told, auth, self.answers)
        self.changes = UpstreamChanges(here, self.lanes.find, self._refresh_all, partial(updated, self))
        # Where tasks began; and what is set when one is told of.
        self._task_lanes: OrderedDict[str, Lane] = OrderedDict()
        self.task_news: dict[str, set[asyncio.Event]] = {}
        # Set when one that retires is not to wait any more.
        self.hurry = asyncio.Event()
        self.places = CallPlaces(settings.concurrency, settings.queue, settings.timeout)
        self._errands: set[asyncio.Task[None]] = set()
        self._host: HeldLifespan | None = None
        # Why its lists could not be read the last time; empty if they could.
        self._listing_failure = ""

    # Beginning and end

    async def recall(self) -> None:
        """Show what it had when it was last seen, until it is asked. What it gives to one person is not kept."""
        traits, lists = await self._kept.find_traits(self.settings), await self._kept.find(self.settings)
        if self.traits == Traits():
            self.traits = traits
        self.lanes.asks = self.lanes.asks or traits.asks
        if lists is not None and not self.personal and not self.lists.shared.is_known:
            self.lists.recall(lists)
            self._changed(tuple(lists))

    def begin_listing(self, by: Call | None = None) -> None:
        """Ask for its lists in the background, unless they are known for sure, or asked for already.

        One that wants to know who asks is asked on behalf of the one who wants to see its lists, and of no other.
        """
        if self.personal and (by is None or by.principal is None):
            return
        listing = self.lists.begin(by)
        reads = listing.reading is not None and not listing.reading.done()
        if not listing.is_good and not reads and not self.health.breaker_of(by).is_open:
            if listing.began is None or self.personal:
                # Who has just connected their account is worth waiting for again.
                listing.began = time.monotonic()
            listing.reading = asyncio.create_task(self._try_refresh(tuple(LISTS), by))
            listing.reading.add_done_callback(self._look_at)

    def begin_listing_again(self) -> None:
        """The same for those who wait to be told. One that is away has its pauses; one that answers, but gives no list,
        is asked as rarely as one that gave some, and what is not configured is not asked at all."""
        now, shared = time.monotonic(), self.lists.shared
        if (
            (shared.is_known and not shared.is_recalled)
            or self.settings.problem
            or (self.health.shared.since is None and now < self._again)
        ):
            return
        self._again = now + CATALOG_SECONDS
        self.begin_listing()

    def left_of(self, seconds: float, by: Call | None = None) -> float:
        """What is left of the time that is waited for its first lists: one that hangs is waited for once."""
        began = self.lists.find(by).began
        return seconds if began is None else max(0.0, began + seconds - time.monotonic())

    async def listed_or_failed(self, by: Call | None = None) -> None:
        """Wait until its lists are known, or it is known that they are not to be had now."""
        reading = self.lists.find(by).reading
        if reading is not None:
            await asyncio.wait([reading])

    @property
    def personal(self) -> bool:
        """Whether it is asked in the name of the one who asks."""
        return self.auth is not None and self.auth.personal

    @property
    def is_tried(self) -> bool:
        """Whether this process knows if the upstream answers: it was connected to, or that has failed."""
        listing = self.lists.all
        listed = listing.is_known and not listing.is_recalled
        return bool(listed or self.settings.problem or self._listing_failure or self.health.was_used)

    @property
    def is_being_awaited(self) -> bool:
        """Whether a first attempt is due or under way. One that takes longer than a call may is not waited for, nor is
        an upstream that did not answer in an earlier process, nor one in this process or for a single user."""
        if self.is_here or self.is_tried or self.personal or self.traits.is_unreachable:
            return False
        return self.left_of(self.settings.timeout) > 0

    @property
    def _is_connecting(self) -> bool:
        reading = self.lists.shared.reading
        return reading is not None and not reading.done() and not self.is_tried

    def listing_problem(self, seconds: float | None = None) -> str:
        """Return why its lists are not known, for the operator; empty if they are, or only known for a user."""
        if self.lists.is_known or self.personal:
            return ""
        reason = self.settings.problem or self.health.shared.failure or self._listing_failure
        if reason:
            return reason
        return "no answer yet" if seconds is None else f"no answer within {seconds:g} s"

    async def _refresh_all(self, methods: tuple[str, ...]) -> None:
        """It has told that these lists are others now."""
        if self.lists.vary:
            self.lists.changed()
            self._changed(methods)
        if not self.personal and (not self.lists.vary or self.lists.shared.is_known):
            await self._try_refresh(methods)

    async def _try_refresh(self, methods: tuple[str, ...], by: Call | None = None) -> None:
        try:
            await self.refresh(methods, by)
        except (Error, ToolError) as failure:
            self._listing_failure = self._secrets.mask(str(failure))
            log.warning("%s cannot be listed: %s", self.alias, self._listing_failure)
            refused = f"{self.alias} cannot be listed: {failure}"
            self.lists.find(by).refusal = failure if isinstance(failure, ToolError) else ToolError(refused)
            if not self.lists.is_known and not self.personal:
                self._note(replace(self.traits, is_unreachable=True))
        else:
            self._listing_failure = ""

    def _look_at(self, reading: asyncio.Task[None]) -> None:
        """What runs in this process may fail in any way."""
        failure = None if reading.cancelled() else reading.exception()
        if failure is not None:
            self._listing_failure = f"{type(failure).__name__}: {failure}"
            log.error("%s cannot be listed", self.alias, exc_info=failure)

    async def retire(self) -> None:
        """Take no more calls, let those that are under way come to their ends, but not for ever, and close."""
        await self.changes.close()
        end = time.monotonic() + RETIRE_SECONDS
        while self._is_busy and time.monotonic() < end and not self.hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETIRE_LOOK_SECONDS):
                    await self.hurry.wait()
        await self.close()

    @property
    def _is_busy(self) -> bool:
        return self.places.busy or any(lane.in_flight for lane in self.lanes)

    async def close(self) -> None:
        if self._is_connecting and not self.traits.is_unreachable:
            # It was given up before it answered, so the next start does not wait for it either.
            await self._kept.keep_traits(self.settings, replace(self.traits, is_unreachable=True))
        tasks = [*self.lists.close(), *self._errands]
        for task in tasks:
            task.cancel()
        # A connection that is just being made is closed by the task that makes it.
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.changes.close()
        # What changes from now on is not heard.
        self.lists.shared.fresh_until = 0.0
        await self.lanes.close()
        if self._host is not None:
            await self._host.leave()
            self._host = None

    # Lists

    async def refresh(self, methods: tuple[str, ...] = tuple(LISTS), by: Call | None = None) -> None:
        """Ask for its lists anew, on behalf of a call if that matters. Tells of those that are others now."""
        if isinstance(self.settings.target, Here):
            await self._look_here()
        lists, listing = self.lists, self.lists.begin(by)
        first, before = not listing.is_known, lists.all.digest
        others = await lists.read(listing, methods, by, self._refused)
        # What is new to a caller who was told so already is news to no other.
        news = listing.was_missing if first else bool(others)
        shared = listing is lists.shared
        lists.generation += news and not shared
        if news or (first and shared) or before != lists.all.digest:
            self._changed(others)
            if shared and not self.personal:
                await self._kept.keep(self.settings, listing.entries)
        if not self.personal:
            self.changes.begin()

    def _refused(self, method: str, refusal: ProtocolError) -> None:
        log.warning("%s does not answer %s: %s", self.alias, method, self._secrets.mask(str(refusal)))

    async def _ask_in_time(self, call: Call) -> Answered:
        try:
            async with asyncio.timeout(self.settings.timeout if isinstance(self.settings.target, Here) else None):
                return await self._ask(call, None)
        except TransportError:
            raise
        except TimeoutError:
            raise ToolError(f"{self.alias} gave no list within {self.settings.timeout:g} s") from None

    async def _look_here(self) -> None:
        """What runs in this process is asked what it can do; others have said so when they were greeted."""
        # Not every Handler says so.
        with contextlib.suppress(MethodNotFound, msgspec.DecodeError):
            said = await self._ask_in_time(Call(method="server/discover", id=0, revision=MODERN))
            about = msgspec.json.decode(said.result, type=DiscoverResult)
            self._note(_traits(about.capabilities, MODERN, False))

    def _opened(self, lane: Lane) -> None:
        if self.lists.is_known and not self.changes.begun:
            # Its lists are those of long ago.
            self.changes.missed()
        self.changes.opened(lane)
        self._note(_traits(lane.connection.greeting.capabilities, lane.revision, self.lanes.asks))

    def _tell(self, method: str, params: Any) -> None:
        if method == notifications.TASK_STATUS:
            for news in self.task_news.get(_task(params), ()):
                news.set()
            return
        self.changes.tell(method, params)

    def _missed(self) -> None:
        self.changes.missed()

    def _learnt(self) -> None:
        self._note(replace(self.traits, asks=True))

    def _note(self, traits: Traits) -> None:
        if traits == self.traits:
            return
        self.traits = traits
        task = asyncio.get_running_loop().create_task(self._kept.keep_traits(self.settings, traits))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # Calls

    async def call(self, call: Call, bound: Callable[[], bytes], detach: Detach | None = None) -> Answered:
        """The answer to a call in the upstream's own names; `bound` gives what its rounds have in common, and `detach`
        what a call becomes that asks something of a client with tasks.

        Raises ToolError where it is not to be had now.
        """
        self.health.check(call)
        if self.auth is not None:
            prepared = await self.auth.prepare(call)
            if isinstance(prepared, InputRequiredResult):
                return Answered(prepared, MODERN)
            call = prepared
        if self.answers is not None:
            call = replace(call, capabilities=self.answers.able(call.capabilities))
        places = self.places
        owner = places.take(call)
        if owner is None:
            owner = await self._wait_for_place(call)
        tally, began = self.tally, time.perf_counter()
        try:
            # With a credential of its own a call has a connection of its own.
            lane = self.lanes.modern if self.is_plain else None
            if lane is not None and not call.reply.asks:
                return Answered(await self._send(lane, call), lane.revision)
            return await self._with_questions(call, bound, detach)
        except (Error, ToolError):
            tally.errors += 1
            raise
        finally:
            seconds = time.perf_counter() - began
            tally.counts[bisect_left(BUCKETS, seconds)] += 1
            tally.seconds += seconds
            places.give(owner)

    async def _wait_for_place(self, call: Call) -> str:
        try:
            return await self.places.wait(call)
        except (QueueFull, TimeoutError):
            busy = f"{self.settings.concurrency} calls under way, and too many wait"
            raise self.lanes.busy(busy) from None

    async def _with_questions(self, call: Call, bound: Callable[[], bytes], detach: Detach | None) -> Answered:
        """Questions go to the client in the way its revision has."""
        rounds = (call.revision or MODERN) >= MODERN and call.method in ASKABLE and _may_have_rounds(call)
        if isinstance(self.settings.target, Here) or not rounds or (await self.lanes.find(call)).modern:
            return await self._ask(call, None)
        params = call.typed()
        if params.request_state is UNSET:
            said = await self._bridge.begin(call, self.alias, bound(), self._ask, detach)
        else:
            said = await self._bridge.resume(call, bound(), params.request_state, params.input_responses)
        return said if isinstance(said, Answered) else Answered(said, MODERN)

    async def _ask(self, call: Call, parked: Parked | None) -> Answered:
        """Send a call, and what its client answers to the questions that come back."""
        if isinstance(self.settings.target, Here):
            return await self._ask_here(call)
        lane = await self.lanes.find(call)
        result = await self._send(lane, call, parked)
        result = await self._answered(call, result, partial(self._send, lane))
        asked = asked_by(call.method, result)
        if asked is not None and call.reply.asks:
            result = await push(call, attribute_all(self.alias, asked), partial(self._send_again, lane))
        return Answered(result, lane.revision, lane)

    async def _send_again(self, lane: Lane, call: Call) -> Any:
        """Send a call with answers of its client. What is asked next has the alias too."""
        result = await self._send(lane, call)
        asked = asked_by(call.method, result)
        return result if asked is None else attribute_all(self.alias, asked)

    async def is_modern(self, call: Call) -> bool:
        """Whether it is of a revision without sessions, as is what runs in this process."""
        if isinstance(self.settings.target, Here):
            return True
        known = next(iter(self.lanes), None)
        return (known or await self.lanes.find(call)).modern

    async def about_task(self, call: Call, id: str, parked: Parked | None = None) -> Answered:
        """The answer to a request about a task: on the connection where the task began, if it is still there."""
        self.health.check(call)
        if self.auth is not None:
            prepared = await self.auth.prepare(call)
            if isinstance(prepared, InputRequiredResult):
                raise ToolError(f"{self.alias} has to be connected to before its tasks can be asked for.")
            call = prepared
        if isinstance(self.settings.target, Here):
            return await self._ask_here(call)
        lane = self._task_lanes.get(id)
        if lane is None or lane not in self.lanes:
            lane = await self.lanes.find(call)
        return Answered(await self._send(lane, call, parked), lane.revision)

    def note_task(self, id: str, lane: Lane | None) -> None:
        """A server with sessions may know a task in one of them alone."""
        if lane is not None and not lane.modern:
            lane.has_tasks = True
            self._task_lanes[id] = lane
            while len(self._task_lanes) > MOST_TASKS:
                self._task_lanes.popitem(last=False)

    async def _answered(self, call: Call, result: Any, send: Any) -> Any:
        """The result after the questions in it that are all answered here."""
        asked = None if self.answers is None else asked_by(call.method, result)
        if self.answers is None or asked is None or not self.answers.takes_all(asked):
            return result
        return await push(self.answers.instead(call, None if self.is_here else self.alias), asked, send)

    async def _send(self, lane: Lane, call: Call, parked: Parked | None = None) -> Any:
        try:
            result = await lane.send(call, parked)
        except (TransportError, ProtocolError) as failure:
            raise await self.failed(lane, call, failure) from None
        self.health.succeeded(call)
        return result

    async def failed(self, lane: Lane, call: Call, failure: TransportError | ProtocolError) -> Exception:
        """Count a failure. Returns the error for the client."""
        if isinstance(failure, ProtocolError):
            if failure.retry_after is None:
                self.health.succeeded(call)
                if failure.code == URL_ELICITATION_REQUIRED:
                    failure.data = attribute_data(self.alias, failure.data)
                return failure
            # Its HTTP status says that it is overwhelmed, whatever else is in the answer.
            return self.health.failed(call, failure)
        if not lane.alive:
            await self.lanes.lose(lane)
        return self.health.failed(call, failure)

    async def _ask_here(self, call: Call) -> Answered:
        target = self.settings.target
        assert isinstance(target, Here)
        if self._host is None:
            self._host = HeldLifespan(members(target.handler).lifespan)
            await self._host.entered
        said = await target.handler(replace(call, revision=MODERN))
        said = await self._answered(replace(call, revision=MODERN), said, target.handler)
        asked = asked_by(call.method, said)
        if asked is not None and call.reply.asks:
            said = await push(call, asked, target.handler)
        return Answered(said if isinstance(said, Raw) else Raw(jsonrpc.encode(said)), MODERN)

    def _state(self) -> UpstreamState:
        if self.settings.problem:
            return "not configured"
        if self.health.shared.since is not None:
            return "away"
        return "ok" if self.is_tried else "not tried"

    def status(self) -> dict[str, Any]:
        """Return the state of the upstream for the operator, as this process knows it."""
        lanes, known = list(self.lanes), self.lists.all
        breaker = self.health.shared
        last = breaker.failure.partition(SAID_LAST)[2]
        lines = last.splitlines() or [line for lane in lanes for line in lane.last_lines]
        state = self._state()
        return {
            "alias": self.alias,
            "state": state,
            "up": state == "ok",
            "error": self.settings.problem or breaker.failure or self._listing_failure,
            "since": breaker.since,
            "retry_after": round(breaker.retry_after, 1),
            "refused_callers": self.health.refused_callers,
            "revision": lanes[0].revision if lanes else None,
            "connections": len(lanes),
            "in_flight": sum(lane.in_flight for lane in lanes),
            "calls": self.tally.calls,
            "errors": self.tally.errors,
            **{kind: len(known.entries.get(f"{kind}/list", ())) for kind in ("tools", "prompts", "resources")},
            "listed": known.is_known,
            "lists_from": "store" if known.is_recalled else "upstream" if known.is_known else None,
            "pins": self.settings.pins,
            "stderr": [self._secrets.mask(line) for line in lines[-MOST_LAST_LINES:]],
        }


def _traits(able: ServerCapabilities, revision: Revision, asks: bool) -> Traits:
    modern = revision >= MODERN
    return Traits(
        asks=asks,
        sessions=not modern,
        tasks=declares(able, ("extensions", EXTENSION) if modern else TASK_CALLS),
        skills=modern and declares(able, ("extensions", SKILLS)),
    )


def _task(params: Any) -> str:
    try:
        return str(msgspec.json.decode(params)["taskId"])
    except (TypeError, KeyError, msgspec.DecodeError):
        return ""


def _may_have_rounds(call: Call) -> bool:
    """Whether its client can be asked something, or has been."""
    able = call.capabilities
    asked = able is not NO_CAPABILITIES and carried(able) != ClientCapabilities()
    return asked or b'"requestState"' in bytes(call.params)
