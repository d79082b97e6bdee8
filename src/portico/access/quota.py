"""Limits on a server: a Meter that counts what is asked by who asks, from where, and for what."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal

from msgspec import Struct

from portico.access.leases import LEASE_SECONDS, QuotaStore
from portico.access.limits import Rate
from portico.access.patterns import Pattern, Who
from portico.access.rules import Selection
from portico.rpc.call import Call
from portico.server.guard import Passage
from portico.wire.errors import ToolError, TooManyRequests
from portico.wire.methods import LASTING

# Of all limits together; beyond it those that were not used for longest are forgotten.
MOST_KEYS = 100_000
# So many refusals in a row are no mistake of a model any more.
FLOOD = 20
# How long to wait for one of several calls at once to end is not known.
_SOON = 1.0

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

    def key(self, passage: Passage) -> Key:
        return (self.name, *(_VALUES[one](passage) for one in self.by))


class _Bucket(Struct):
    """What is known of one key: in this process when it is empty; of what was taken from the store what is left."""

    due: float = 0.0
    left: float = 0.0
    until: float = 0.0
    # The store has said that there is none before this.
    barred: float = 0.0
    refused: int = 0
    running: int = 0


class Quota:
    """The limits of one server."""

    def __init__(self, limits: Iterable[Limit], store: Callable[[], str | None] = lambda: None) -> None:
        """`store`: the URL of a store that other processes see, asked for when the server starts."""
        limits = tuple(limits)
        self._general = [one for one in limits if one.general]
        self._particular = [one for one in limits if not one.general]
        self.limits = limits
        self._place = store
        self._store: QuotaStore | None = None
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        url = self._place()
        if url is None:
            yield
            return
        self._store = store = QuotaStore(url)
        await store.open()
        try:
            yield
        finally:
            self._store = None
            await store.close()

    # What a server asks

    def enter(self, passage: Passage) -> Awaitable[None] | None:
        return self._count(self._general, passage) if self._general else None

    def reach(self, passage: Passage) -> Awaitable[None] | None:
        return self._count(self._particular, passage) if self._particular else None

    def leave(self, passage: Passage) -> None:
        for _, key in passage.held:
            bucket = self._buckets.get(key)
            if bucket is not None and bucket.running > 0:
                bucket.running -= 1
        passage.held = []

    # Counting

    def _count(self, limits: list[Limit], passage: Passage) -> Awaitable[None] | None:
        call = passage.call
        local = call.principal is None and call.address is None
        found = [one for one in limits if one.who(call.principal, local) and one.means(passage)]
        if not found:
            return None
        wanted = [(one, one.key(passage)) for one in found]
        self._check_running(wanted, passage)
        rates = [] if passage.later else [(one, key, one.rate) for one, key in wanted if one.rate is not None]
        if rates and self._store is not None and self._store.usable:
            if not self._spend(rates, passage):
                return self._lease(wanted, rates, passage, self._store)
        elif rates:
            self._take(rates, passage)
        self._hold(wanted, passage)
        return None

    def _bucket(self, key: Key) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket()
            if len(self._buckets) > MOST_KEYS:
                self._evict()
        self._buckets.move_to_end(key)
        return bucket

    def _evict(self) -> None:
        """What was not used for longest; calls that go on are not forgotten."""
        for key, bucket in list(self._buckets.items())[:100]:
            if not bucket.running:
                del self._buckets[key]
                return

    def _check_running(self, wanted: list[tuple[Limit, Key]], passage: Passage) -> None:
        if passage.call.method in LASTING:
            return
        for limit, key in wanted:
            if limit.concurrency is not None:
                bucket = self._bucket(key)
                # What a call makes on the way does not wait for the call itself.
                if bucket.running - _above(passage, (self, key)) >= limit.concurrency:
                    self._refuse(bucket, passage, _SOON)

    def _hold(self, wanted: list[tuple[Limit, Key]], passage: Passage) -> None:
        for limit, key in wanted:
            bucket = self._bucket(key)
            bucket.refused = 0
            if limit.concurrency is not None and passage.call.method not in LASTING:
                bucket.running += 1
                passage.held.append((self, key))

    def _take(self, rates: list[tuple[Limit, Key, Rate]], passage: Passage) -> None:
        """All of them, or none."""
        now = time.monotonic()
        taken = [
            (self._bucket(key), rate.take(self._bucket(key).due, now, one.cost_of(passage))) for one, key, rate in rates
        ]
        bucket, worst = max(taken, key=lambda one: one[1].wait)
        if worst.wait:
            self._refuse(bucket, passage, worst.wait)
        for bucket, one in taken:
            bucket.due = one.due

    def _spend(self, rates: list[tuple[Limit, Key, Rate]], passage: Passage) -> bool:
        """Whether what this process has taken from the store is enough. Raises where the store has none."""
        now = time.monotonic()
        found = [(self._bucket(key), one.cost_of(passage)) for one, key, _ in rates]
        for bucket, _ in found:
            if bucket.barred > now:
                self._refuse(bucket, passage, bucket.barred - now)
        if any(bucket.left < cost or bucket.until < now for bucket, cost in found):
            return False
        for bucket, cost in found:
            bucket.left -= cost
        return True

    async def _lease(
        self, wanted: list[tuple[Limit, Key]], rates: list[tuple[Limit, Key, Rate]], passage: Passage, store: QuotaStore
    ) -> None:
        for limit, key, rate in rates:
            bucket, cost = self._bucket(key), limit.cost_of(passage)
            now = time.monotonic()
            if bucket.until >= now and bucket.left >= cost:
                continue
            answer = await store.lease(key, rate, cost)
            if answer is None:
                self._take(rates, passage)
                self._hold(wanted, passage)
                return
            now = time.monotonic()
            granted, wait = answer
            if not granted:
                bucket.barred = now + wait
                self._refuse(bucket, passage, wait)
            # What another call has taken meanwhile is added to.
            bucket.left = granted + (bucket.left if bucket.until >= now else 0.0)
            bucket.until = now + LEASE_SECONDS
        # Others may have come between: then it is tried again.
        if not self._spend(rates, passage):
            await self._lease(wanted, rates, passage, store)
            return
        self._check_running(wanted, passage)
        self._hold(wanted, passage)

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


def _above(passage: Passage, held: tuple[Quota, Key]) -> int:
    """How many of the calls that this one is part of hold the same."""
    count, outer = 0, passage.parent
    while outer is not None:
        count += held in outer.held
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
    "address": lambda passage: passage.call.address or "",
    "tool": _tool,
    "owner": _owner,
}
