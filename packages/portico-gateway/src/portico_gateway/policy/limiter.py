"""Limits on a server: a Meter that counts what is asked by who asks, from where, and for what."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Literal

from msgspec import Struct

from portico.protocol.errors import ToolError, TooManyRequests
from portico.protocol.methods import LASTING
from portico.rpc.call import Call
from portico.rpc.networks import network_of
from portico.rpc.rate_limit import Rate
from portico.server.policy.interfaces import Passage
from portico_gateway.policy.concurrency_leases import RunningCalls, SlotLeases
from portico_gateway.policy.engine import Selection, keep
from portico_gateway.policy.patterns import Pattern, Who
from portico_gateway.policy.shared_limit_store import LEASE_SECONDS, QuotaStore, stored_key

# Of all limits together; beyond it those that were not used for longest are forgotten.
MOST_KEYS = 100_000
# So many refusals in a row are no mistake of a model any more.
FLOOD = 20
# How long to wait for one of several calls at once to end is not known.
_SOON = 1.0
# How often the store is asked for one call, where others spend what was taken for it.
MOST_LEASES = 10

By = Literal["principal", "client", "address", "tool", "owner"]
Key = tuple[Any, ...]


class Limit(Struct, frozen=True):
    """One `[[limit]]`."""

    name: str
    by: tuple[By, ...]
    who: Who
    about: Selection = Selection()
    rate: Rate | None = None
    # How much a call counts, by the first pattern that means it.
    costs: tuple[tuple[Pattern, float], ...] = ()
    cost: float = 1.0
    concurrency: int | None = None

    @property
    def general(self) -> bool:
        """Whether it counts every request, whatever that is about."""
        about = self.about.tool or self.about.prompt or self.about.resource
        return not about and not self.costs and "tool" not in self.by and "owner" not in self.by

    def means(self, passage: Passage) -> bool:
        if passage.kind is None or passage.owned is None:
            return True
        patterns = self.about.of(passage.kind)
        return patterns is None or any(one.touches(passage.kind, *passage.owned) for one in patterns)

    def cost_of(self, passage: Passage) -> float:
        if passage.kind is not None and passage.owned is not None:
            for one, cost in self.costs:
                if one.touches(passage.kind, *passage.owned):
                    return cost
        return self.cost


class _Bucket(Struct):
    """What is known of one key: in this process when it is empty; of what was taken from the store what is left."""

    due: float = 0.0
    left: float = 0.0
    until: float = 0.0
    # The store has said that there is none before this.
    barred: float = 0.0
    refused: int = 0
    running: RunningCalls | None = None


_Wish = tuple[Limit, Key, _Bucket, float]
"""What a request takes of one limit: where it is counted, and how much it counts."""


class Quota:
    """The limits of one server."""

    def __init__(self, limits: Iterable[Limit], store: Callable[[], str | None] = lambda: None) -> None:
        """`store`: the URL of a store that other processes see, asked for when the server starts."""
        limits = tuple(limits)
        self._general = [one for one in limits if one.general]
        self._particular = [one for one in limits if not one.general]
        self.limits = limits
        self._concurrent = any(one.concurrency is not None for one in limits)
        # The limits that mean something, and what it costs.
        self._about: dict[Any, tuple[tuple[Limit, float], ...]] = {}
        self._place = store
        self._store: QuotaStore | None = None
        self._slots: SlotLeases | None = None
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        url = self._place()
        if url is None:
            yield
            return
        self._store = store = QuotaStore(url)
        await store.open()
        if self._concurrent:
            self._slots = SlotLeases(store)
        try:
            yield
        finally:
            self._store = None
            if self._slots is not None:
                self._slots.close()
                self._slots = None
            await store.close()

    # What a server asks

    def enter(self, passage: Passage) -> Awaitable[None] | None:
        return self._count(self._general, passage) if self._general else None

    def reach(self, passage: Passage) -> Awaitable[None] | None:
        return self._count(self._particular, passage) if self._particular else None

    def leave(self, passage: Passage) -> None:
        for running in passage.held:
            running.count -= 1
            self._spare(running)
        passage.held = ()

    def _spare(self, running: RunningCalls) -> None:
        if self._slots is not None:
            self._slots.spare(running)

    # Counting

    def _count(self, limits: list[Limit], passage: Passage) -> Awaitable[None] | None:
        wanted = [self._wish(one, cost, passage) for one, cost in self._meant(limits, passage)]
        if not wanted:
            return None
        self._check_running(wanted, passage)
        store = self._store
        if store is not None and store.usable:
            if not self._has_slots(wanted, passage) or not self._spend(wanted, passage):
                return self._lease(wanted, passage, store)
        else:
            self._take(wanted, passage)
        self._hold(wanted, passage)
        return None

    def _meant(self, limits: list[Limit], passage: Passage) -> list[tuple[Limit, float]]:
        """The limits that mean a request, and what it costs: what it is about is looked at once for each thing."""
        call, owned = passage.call, passage.owned
        if owned is None:
            found = tuple((one, one.cost) for one in limits)
        else:
            key = (limits is self._general, passage.kind, owned)
            known = self._about.get(key)
            if known is None:
                known = tuple((one, one.cost_of(passage)) for one in limits if one.means(passage))
                keep(self._about, key, known)
            found = known
        local = call.principal is None and call.address is None
        return [one for one in found if one[0].who(call.principal, local)]

    def _wish(self, limit: Limit, cost: float, passage: Passage) -> _Wish:
        key = (limit.name, *[_VALUES[one](passage) for one in limit.by])
        return (limit, key, self._bucket(key, limit), cost)

    def _bucket(self, key: Key, limit: Limit) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket()
            if limit.concurrency is not None:
                bucket.running = RunningCalls(stored_key(key), limit.concurrency)
            if len(self._buckets) > MOST_KEYS:
                self._evict()
        self._buckets.move_to_end(key)
        return bucket

    def _evict(self) -> None:
        """What was not used for longest; calls that go on are not forgotten."""
        for key, bucket in list(islice(self._buckets.items(), 100)):
            if bucket.running is None or bucket.running.idle:
                del self._buckets[key]
                return

    def _check_running(self, wanted: list[_Wish], passage: Passage) -> None:
        for bucket, running in self._counted(wanted, passage):
            if _needed(running, passage) > running.most:
                self._refuse(bucket, passage, _SOON)

    def _counted(self, wanted: list[_Wish], passage: Passage) -> list[tuple[_Bucket, RunningCalls]]:
        """Where it is counted how many go on at once: what lasts as long as its client likes is not."""
        if not self._concurrent or passage.call.method in LASTING:
            return []
        return [(bucket, bucket.running) for _, _, bucket, _ in wanted if bucket.running is not None]

    def _has_slots(self, wanted: list[_Wish], passage: Passage) -> bool:
        return all(running.has(_needed(running, passage)) for _, running in self._counted(wanted, passage))

    def _hold(self, wanted: list[_Wish], passage: Passage) -> None:
        for _, _, bucket, _ in wanted:
            bucket.refused = 0
        for _, running in self._counted(wanted, passage):
            running.count += 1
            passage.held += (running,)

    def _take(self, wanted: list[_Wish], passage: Passage) -> None:
        """All of them, or none."""
        now = time.monotonic()
        taken = []
        for limit, _, bucket, cost in _rated(wanted, passage):
            if limit.rate is not None:
                due, wait = limit.rate.take(bucket.due, now, cost)
                if wait:
                    self._refuse(bucket, passage, wait)
                taken.append((bucket, due))
        for bucket, due in taken:
            bucket.due = due

    def _spend(self, wanted: list[_Wish], passage: Passage) -> bool:
        """Whether what this process has taken from the store is enough. Raises where the store has none."""
        now = time.monotonic()
        found = [(bucket, cost) for _, _, bucket, cost in _rated(wanted, passage)]
        for bucket, _ in found:
            if bucket.barred > now:
                self._refuse(bucket, passage, bucket.barred - now)
        if any(bucket.left < cost or bucket.until < now for bucket, cost in found):
            return False
        for bucket, cost in found:
            bucket.left -= cost
        return True

    async def _lease(self, wanted: list[_Wish], passage: Passage, store: QuotaStore) -> None:
        try:
            for _ in range(MOST_LEASES):
                await self._lease_slots(wanted, passage)
                await self._lease_permits(wanted, passage, store)
                self._check_running(wanted, passage)
                if not store.usable:
                    self._take(wanted, passage)
                elif not self._has_slots(wanted, passage) or not self._spend(wanted, passage):
                    # Others have come between: it is tried again.
                    continue
                # They may have been forgotten while the store was asked.
                self._buckets.update((key, bucket) for _, key, bucket, _ in wanted)
                self._hold(wanted, passage)
                return
            self._refuse(wanted[0][2], passage, _SOON)
        finally:
            for _, running in self._counted(wanted, passage):
                self._spare(running)

    async def _lease_slots(self, wanted: list[_Wish], passage: Passage) -> None:
        for bucket, running in self._counted(wanted, passage):
            needed = _needed(running, passage)
            if self._slots is None or running.has(needed):
                continue
            if running.full_until <= time.monotonic():
                await self._slots.take(running, needed)
            if running.full_until > time.monotonic() and not running.has(_needed(running, passage)):
                self._refuse(bucket, passage, _SOON)

    async def _lease_permits(self, wanted: list[_Wish], passage: Passage, store: QuotaStore) -> None:
        for limit, key, bucket, cost in _rated(wanted, passage):
            if limit.rate is None or (bucket.until >= time.monotonic() and bucket.left >= cost):
                continue
            answer = await store.lease(key, limit.rate, cost)
            if answer is None:
                return
            now = time.monotonic()
            granted, wait = answer
            if not granted:
                bucket.barred = now + wait
                self._refuse(bucket, passage, wait)
            # What another call has taken meanwhile is added to.
            bucket.left = granted + (bucket.left if bucket.until >= now else 0.0)
            bucket.until = now + LEASE_SECONDS

    def _refuse(self, bucket: _Bucket, passage: Passage, wait: float) -> None:
        bucket.refused += 1
        seconds = max(1, math.ceil(wait - 1e-9))
        if passage.call.method == "tools/call" and bucket.refused <= FLOOD:
            raise ToolError(
                f"Too many calls. Wait {seconds} s before the next one.",
                kind="ApiLimitExceeded",
                details={"retry_after": seconds},
                retryable=True,
            )
        raise TooManyRequests(seconds)


def _rated(wanted: list[_Wish], passage: Passage) -> list[_Wish]:
    """Where it is counted how often; not again what goes on with a call."""
    return [] if passage.later else [one for one in wanted if one[0].rate is not None]


def _needed(running: RunningCalls, passage: Passage) -> int:
    """How many there would be with one more. What a call makes on the way does not wait for the call itself."""
    count, outer = running.count + 1, passage.parent
    while outer is not None:
        count -= running in outer.held
        outer = outer.parent
    return count


def _principal(call: Call) -> str:
    if call.principal is None:
        return "" if call.address is None else "anonymous"
    issuer, id = getattr(call.principal, "issuer", None), str(getattr(call.principal, "id", None) or call.principal)
    return f"id {id}" if issuer is None else f"{issuer} {id}"


def _owner(passage: Passage) -> str:
    return "" if passage.owned is None else passage.owned.owner


def _tool(passage: Passage) -> str:
    """Of resources only whose they are: a client could make up as many as it likes."""
    if passage.owned is None:
        return ""
    named = passage.kind in ("tool", "prompt")
    return f"{passage.kind} {passage.owned.owner} {passage.owned.name if named else ''}"


_VALUES = {
    "principal": lambda passage: _principal(passage.call),
    "client": lambda passage: getattr(passage.call.principal, "client_id", None) or "",
    "address": lambda passage: network_of(passage.call.address or ""),
    "tool": _tool,
    "owner": _owner,
}
