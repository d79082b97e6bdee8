"""Rates, concurrent calls and monthly budgets, limited by principal, client, IP address, tool or provider."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import jsonrpc
from portico.protocol.errors import ToolError, TooManyRequests
from portico.protocol.methods import LONG_LIVED_METHODS
from portico.protocol.notifications import TASK_UPDATED
from portico.rpc.call import Call, RelayedReply, Reply
from portico.rpc.identity import client_network
from portico.rpc.rate_limit import RateLimit
from portico.server.policy.interfaces import PolicyContext
from portico_gateway.policy.budget_report import RemainingBudget, principal_key
from portico_gateway.policy.budgets import CALL_METHODS, RESULT_METHODS, Budget, BudgetAccount, BudgetLedger
from portico_gateway.policy.concurrency_leases import ConcurrencyLeases, InFlightCalls
from portico_gateway.policy.engine import MAX_CACHED_DECISIONS, ComponentSelector, cache_decision
from portico_gateway.policy.patterns import ComponentPattern, PrincipalMatcher
from portico_gateway.policy.shared_limit_store import PERMIT_LEASE_SECONDS, SharedLimitStore, budget_key, hash_key

# Maximum number of buckets over all limits; the least recently used are evicted.
# Bounds the memory, whatever number of addresses and
# principals call.
MAX_BUCKETS = 100_000
# After this many rejections in a row, the client gets a protocol error instead of a tool error.
# A tool error reaches the model, which can wait. A client that keeps calling is a loop that does not read its
# results.
FLOOD_REJECTIONS = 20
# It is unknown when a running call will end, so clients are told to retry after this time.
_CONCURRENCY_RETRY_SECONDS = 1.0
# Store queries for one call, in case concurrent calls spend the permits leased for it.
MAX_LEASE_ATTEMPTS = 10

LimitDimension = Literal["principal", "client", "ip", "tool", "provider"]
Key = tuple[Any, ...]


class Limit(Struct, frozen=True):
    """A `[[limit]]`."""

    name: str
    by: tuple[LimitDimension, ...]
    who: PrincipalMatcher
    about: ComponentSelector = ComponentSelector()
    rate: RateLimit | None = None
    # Cost of a call, by the first matching pattern.
    costs: tuple[tuple[ComponentPattern, float], ...] = ()
    cost: float = 1.0
    concurrency: int | None = None
    budgets: tuple[Budget, ...] = ()
    # Identifies the budgets in the store.
    budget_name: str = ""

    @property
    def is_global(self) -> bool:
        """Return whether the limit counts every request, whatever component it is for."""
        about = self.about.tool or self.about.prompt or self.about.resource
        # Limits of this kind are charged before the component is looked up, so requests for unknown names count too
        # and cannot be used to probe for free.
        return not about and not self.costs and "tool" not in self.by and "provider" not in self.by

    def matches(self, passage: PolicyContext) -> bool:
        """Return whether the limit applies to the component of a request."""
        if passage.kind is None or passage.component is None:
            return True
        # `overlaps` matches look-alikes as well: a limit restricts, like a deny rule.
        patterns = self.about.patterns_for(passage.kind)
        return patterns is None or any(pattern.overlaps(passage.kind, *passage.component) for pattern in patterns)

    def cost_of(self, passage: PolicyContext) -> float:
        """Return the cost of a request."""
        if passage.kind is not None and passage.component is not None:
            for pattern, cost in self.costs:
                if pattern.overlaps(passage.kind, *passage.component):
                    return cost
        return self.cost


class _Bucket(Struct):
    """Counters for one key: the local rate limiter state, the leases from the store, and the monthly budgets."""

    due: float = 0.0
    left: float = 0.0
    until: float = 0.0
    # Time before which the store has no permits.
    barred: float = 0.0
    refused: int = 0
    running: InFlightCalls | None = None
    budgets: tuple[BudgetAccount, ...] = ()


_Charge = tuple[Limit, Key, _Bucket, float]
"Charge of a request to one limit: the limit, its key and bucket, and the cost."
_BudgetCharge = tuple[_Bucket, BudgetAccount, float]
"Charge of a request to one budget: the bucket and the account, and the cost in calls."


class PolicyLimiter:
    """Rate limiter, concurrency limiter and monthly budgets of one server."""

    def __init__(
        self,
        limits: Iterable[Limit],
        store: Callable[[], str | None] = lambda: None,
        budget_store: Callable[[], str | None] = lambda: None,
        server: str = "",
    ) -> None:
        """Create the limiter.

        `store` returns the URL of a store shared with other processes, and `budget_store` that of a durable one. They
        are called on start. Several servers may have one durable store, so the name of the server is part of the keys.
        """
        limits = tuple(limits)
        self._general = [limit for limit in limits if limit.is_global]
        self._particular = [limit for limit in limits if not limit.is_global]
        self.limits = limits
        self._concurrent = any(limit.concurrency is not None for limit in limits)
        self._rated = any(limit.rate is not None for limit in limits)
        self._ledger = BudgetLedger() if any(limit.budgets for limit in limits) else None
        self._budget_store = budget_store
        self._server = server
        # Applicable limits and costs by component.
        # Keyed by the component only; the principal is checked for each request, since it would multiply the entries.
        self._about: LruCache[Any, tuple[tuple[Limit, float], ...]] = LruCache(MAX_CACHED_DECISIONS)
        # Called on start, not here: the server's store is known only when the server is.
        self._place = store
        self._store: SharedLimitStore | None = None
        self._slots: ConcurrencyLeases | None = None
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        url = None if self._ledger is None else self._budget_store()
        if self._ledger is None or url is None:
            async with self._shared_limits():
                yield
            return
        await self._ledger.open(url)
        await self._ledger.record_budgets(
            self._server,
            [
                (limit.budget_name, budget.unit, budget.amount)
                for limit in self.limits
                if limit.by == ("principal",)
                for budget in limit.budgets
            ],
        )
        try:
            async with self._shared_limits():
                yield
        finally:
            await self._ledger.close()

    @asynccontextmanager
    async def _shared_limits(self) -> AsyncIterator[None]:
        url = self._place()
        if url is None:
            yield
            return
        self._store = store = SharedLimitStore(url)
        await store.open()
        if self._concurrent:
            self._slots = ConcurrencyLeases(store)
        try:
            yield
        finally:
            self._store = None
            if self._slots is not None:
                self._slots.close()
                self._slots = None
            await store.close()

    async def remaining_budgets(self, principals: Iterable[str]) -> dict[str, list[RemainingBudget]]:
        """Return the monthly budgets that principals have used, by principal; none while the store is unavailable."""
        return {} if self._ledger is None else await self._ledger.remaining_budgets(principals)

    # Policy interface

    def on_request(self, context: PolicyContext) -> Awaitable[None] | None:
        return self._charge(self._general, context) if self._general else None

    def on_component(self, context: PolicyContext) -> Awaitable[None] | None:
        return self._charge(self._particular, context) if self._particular else None

    def on_response(self, context: PolicyContext) -> None:
        for lease in context.leases:
            if isinstance(lease, InFlightCalls):
                lease.count -= 1
                self._return_unused_slots(lease)
            elif self._ledger is not None:
                self._ledger.count_response(lease, context.call)
        context.leases = ()

    def _return_unused_slots(self, running: InFlightCalls) -> None:
        if self._slots is not None:
            self._slots.schedule_return(running)

    # Counting

    def _charge(self, limits: list[Limit], passage: PolicyContext) -> Awaitable[None] | None:
        """Charge a request to its limits. Return an awaitable if the store must be queried.

        Raises ToolError or TooManyRequests if a limit is exceeded.
        """
        charges = [self._make_charge(limit, cost, passage) for limit, cost in self._matching_limits(limits, passage)]
        if not charges:
            return None
        # The common case needs no query: slots, permits and budgets were leased in advance, so nothing is awaited.
        return None if self._try_charge(charges, passage) else self._lease(charges, passage)

    def _try_charge(self, charges: list[_Charge], passage: PolicyContext) -> bool:
        """Charge a request to the leases. Return False if the store must be queried. Raises if it exceeds a
        limit.
        """
        # Check concurrency and budgets before any rate is charged: a rejected call must not consume permits.
        if self._concurrent:
            self._check_concurrency(charges, passage)
        budgets = self._budget_charges(charges, passage)
        if budgets and not self._check_budgets(budgets, passage):
            return False
        store = self._store
        if store is not None and store.is_available:
            if not self._has_slots(charges, passage) or not self._spend_leased(charges, passage):
                return False
        elif self._rated:
            self._acquire_all(charges, passage)
        self._hold(charges, passage)
        if budgets:
            self._spend_budgets(budgets, passage)
        return True

    def _matching_limits(self, limits: list[Limit], passage: PolicyContext) -> list[tuple[Limit, float]]:
        """Return the limits that apply to a request and their costs. The result is cached by component."""
        call, owned = passage.call, passage.component
        if owned is None:
            result = tuple((limit, limit.cost) for limit in limits)
        else:
            key = (limits is self._general, passage.kind, owned)
            cached = self._about.peek(key)
            if cached is None:
                cached = tuple((limit, limit.cost_of(passage)) for limit in limits if limit.matches(passage))
                cache_decision(self._about, key, cached)
            result = cached
        local = call.principal is None and call.address is None
        return [limit for limit in result if limit[0].who(call.principal, local)]

    def _make_charge(self, limit: Limit, cost: float, passage: PolicyContext) -> _Charge:
        key = (limit.name, *[_VALUES[item](passage) for item in limit.by])
        return (limit, key, self._bucket(key, limit), cost)

    def _bucket(self, key: Key, limit: Limit) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket()
            if limit.concurrency is not None:
                bucket.running = InFlightCalls(hash_key(key), limit.concurrency)
            if self._ledger is not None and limit.budgets:
                bucket.budgets = tuple(
                    self._ledger.account(budget_key(self._server, limit.budget_name, key[1:], item.unit), item)
                    for item in limit.budgets
                )
            if len(self._buckets) > MAX_BUCKETS:
                self._evict()
        self._buckets.move_to_end(key)
        return bucket

    def _evict(self) -> None:
        """Evict the least recently used bucket without calls in flight."""
        # Check only the hundred oldest, so that eviction takes constant time. Buckets with running calls stay,
        # because losing one would lose its count.
        for key, bucket in list(islice(self._buckets.items(), 100)):
            if bucket.running is None or bucket.running.is_idle:
                del self._buckets[key]
                return

    def _check_concurrency(self, charges: list[_Charge], passage: PolicyContext) -> None:
        for bucket, running in self._concurrency_charges(charges, passage):
            if _needed_slots(running, passage) > running.most:
                self._raise_rate_limited(bucket, passage, _CONCURRENCY_RETRY_SECONDS)

    def _concurrency_charges(
        self, charges: list[_Charge], passage: PolicyContext
    ) -> list[tuple[_Bucket, InFlightCalls]]:
        """Return the concurrency counters of a request.

        Long-lived streams are not counted, since the client ends them.
        """
        if not self._concurrent or passage.call.method in LONG_LIVED_METHODS:
            return []
        return [(bucket, bucket.running) for _, _, bucket, _ in charges if bucket.running is not None]

    def _has_slots(self, charges: list[_Charge], passage: PolicyContext) -> bool:
        return all(
            running.has_slots(_needed_slots(running, passage))
            for _, running in self._concurrency_charges(charges, passage)
        )

    def _hold(self, charges: list[_Charge], passage: PolicyContext) -> None:
        for _, _, bucket, _ in charges:
            bucket.refused = 0
        if self._concurrent:
            for _, running in self._concurrency_charges(charges, passage):
                running.count += 1
                passage.leases += (running,)

    def _spend_budgets(self, budgets: list[_BudgetCharge], passage: PolicyContext) -> None:
        assert self._ledger is not None
        accounts: list[BudgetAccount] = []
        for _, account, cost in budgets:
            self._ledger.spend(account, cost)
            # The result of a nested call does not reach the client.
            if account.budget.unit == "tokens" and passage.parent is None:
                accounts.append(account)
        passage.leases += tuple(accounts)
        call = passage.call
        if accounts and call.method in LONG_LIVED_METHODS:
            notify = partial(_notify_counted, self._ledger, accounts, call.reply)
            passage.call = replace(call, reply=RelayedReply(call.reply, notify))

    def _budget_charges(self, charges: list[_Charge], passage: PolicyContext) -> list[_BudgetCharge]:
        """Return the budgets that a request is charged to, and its cost in calls."""
        method = passage.call.method
        if self._ledger is None or (method not in CALL_METHODS and method not in RESULT_METHODS):
            return []
        # The continuation of a call, and the result of a task, belong to a call that was counted.
        counts = method in CALL_METHODS and not passage.is_continuation
        return [
            (bucket, account, cost if counts else 0.0) for _, _, bucket, cost in charges for account in bucket.budgets
        ]

    def _check_budgets(self, budgets: list[_BudgetCharge], passage: PolicyContext) -> bool:
        """Return whether a request fits the reservations of its budgets. Raises if one is exhausted."""
        assert self._ledger is not None
        for bucket, account, cost in budgets:
            fits = not cost or self._ledger.can_spend(account, cost)
            if fits is None:
                return False
            if not fits:
                bucket.refused += 1
                account.raise_exhausted(passage.call, is_flood=bucket.refused > FLOOD_REJECTIONS)
        return True

    def _acquire_all(self, charges: list[_Charge], passage: PolicyContext) -> None:
        """Acquire permits from all local rate limiters, or from none. Raises if one is exhausted."""
        now = time.monotonic()
        # Compute all new states first and assign them afterwards: if the last limiter rejects the call, the others
        # have not been charged.
        acquired = []
        for limit, _, bucket, cost in _rate_charges(charges, passage):
            if limit.rate is not None:
                due, wait = limit.rate.acquire(bucket.due, now, cost)
                if wait:
                    self._raise_rate_limited(bucket, passage, wait)
                acquired.append((bucket, due))
        for bucket, due in acquired:
            bucket.due = due

    def _spend_leased(self, charges: list[_Charge], passage: PolicyContext) -> bool:
        """Spend leased permits and return whether they suffice. Raises if the store has none left."""
        now = time.monotonic()
        rate_charges = [(bucket, cost) for _, _, bucket, cost in _rate_charges(charges, passage)]
        for bucket, _ in rate_charges:
            # The store reported when permits will be available again. Asking it earlier would cost one query for each
            # rejected call of a flood.
            if bucket.barred > now:
                self._raise_rate_limited(bucket, passage, bucket.barred - now)
        if any(bucket.left < cost or bucket.until < now for bucket, cost in rate_charges):
            return False
        for bucket, cost in rate_charges:
            bucket.left -= cost
        return True

    async def _lease(self, charges: list[_Charge], passage: PolicyContext) -> None:
        """Lease budgets, slots and permits from the store and charge the request."""
        try:
            for _ in range(MAX_LEASE_ATTEMPTS):
                await self._reserve_budgets(charges, passage)
                store = self._store
                if store is not None and store.is_available:
                    await self._lease_slots(charges, passage)
                    await self._lease_permits(charges, passage, store)
                # Concurrent calls may have spent the leases; then try again.
                if self._try_charge(charges, passage):
                    # The buckets may have been evicted while the store was queried.
                    # Without this, two buckets could exist for one key, and their calls would be counted separately.
                    self._buckets.update((key, bucket) for _, key, bucket, _ in charges)
                    return
            self._raise_rate_limited(charges[0][2], passage, _CONCURRENCY_RETRY_SECONDS)
        finally:
            for _, running in self._concurrency_charges(charges, passage):
                self._return_unused_slots(running)

    async def _reserve_budgets(self, charges: list[_Charge], passage: PolicyContext) -> None:
        for _, account, cost in self._budget_charges(charges, passage):
            assert self._ledger is not None
            if cost and self._ledger.can_spend(account, cost) is None:
                await self._ledger.reserve(account, cost)

    async def _lease_slots(self, charges: list[_Charge], passage: PolicyContext) -> None:
        for bucket, running in self._concurrency_charges(charges, passage):
            needed = _needed_slots(running, passage)
            if self._slots is None or running.has_slots(needed):
                continue
            if running.full_until <= time.monotonic():
                await self._slots.acquire(running, needed)
            if running.full_until > time.monotonic() and not running.has_slots(_needed_slots(running, passage)):
                self._raise_rate_limited(bucket, passage, _CONCURRENCY_RETRY_SECONDS)

    async def _lease_permits(self, charges: list[_Charge], passage: PolicyContext, store: SharedLimitStore) -> None:
        for limit, key, bucket, cost in _rate_charges(charges, passage):
            if limit.rate is None or (bucket.until >= time.monotonic() and bucket.left >= cost):
                continue
            answer = await store.lease_permits(key, limit.rate, cost)
            if answer is None:
                return
            now = time.monotonic()
            granted, wait = answer
            if not granted:
                bucket.barred = now + wait
                self._raise_rate_limited(bucket, passage, wait)
            # Add to permits that a concurrent call leased.
            bucket.left = granted + (bucket.left if bucket.until >= now else 0.0)
            # The lease is counted from the response, so it ends slightly later than in the store. The error is
            # bounded by one query's duration.
            bucket.until = now + PERMIT_LEASE_SECONDS

    def _raise_rate_limited(self, bucket: _Bucket, passage: PolicyContext, wait: float) -> None:
        """Raise ToolError with the time to wait, or TooManyRequests for a client that ignores it."""
        bucket.refused += 1
        # Whole seconds, rounded up: Retry-After has no fractions (RFC 9110, section 10.2.3), and a client that
        # returns early is rejected again. The epsilon absorbs floating-point noise.
        seconds = max(1, math.ceil(wait - 1e-9))
        if passage.call.method == "tools/call" and bucket.refused <= FLOOD_REJECTIONS:
            raise ToolError(
                f"Too many calls. Wait {seconds} s before the next one.",
                error_type="ApiLimitExceeded",
                details={"retry_after": seconds},
                retryable=True,
            )
        raise TooManyRequests(seconds)


def _rate_charges(charges: list[_Charge], passage: PolicyContext) -> list[_Charge]:
    """Return the charges with a rate. Continuations of a call are not counted again."""
    return [] if passage.is_continuation else [item for item in charges if item[0].rate is not None]


def _needed_slots(running: InFlightCalls, passage: PolicyContext) -> int:
    """Return the number of slots needed for one more call. Nested calls do not wait for the call that made them."""
    count, outer = running.count + 1, passage.parent
    while outer is not None:
        # Otherwise a tool that calls another tool of the same limit would wait for itself, a deadlock with a limit of
        # 1.
        count -= running in outer.leases
        outer = outer.parent
    return count


def _notify_counted(
    ledger: BudgetLedger, accounts: Sequence[BudgetAccount], reply: Reply, method: str, params: Any
) -> None:
    """Send a notification, and count the result of a task in it."""
    result = getattr(params, "result", UNSET)
    if method == TASK_UPDATED and result is not UNSET:
        size = len(jsonrpc.encode(result))
        for account in accounts:
            ledger.count_notification(account, size)
    reply.notify(method, params)


def _principal(call: Call) -> str:
    if call.principal is None:
        return "" if call.address is None else "anonymous"
    id = str(getattr(call.principal, "id", None) or call.principal)
    return principal_key(getattr(call.principal, "issuer", None), id)


def _provider_value(passage: PolicyContext) -> str:
    return "" if passage.component is None else passage.component.owner


def _tool_value(passage: PolicyContext) -> str:
    """Return the tool or prompt; for resources only the owner, since a client could invent any number of URIs."""
    if passage.component is None:
        return ""
    named = passage.kind in ("tool", "prompt")
    return f"{passage.kind} {passage.component.owner} {passage.component.name if named else ''}"


_VALUES = {
    "principal": lambda passage: _principal(passage.call),
    "client": lambda passage: getattr(passage.call.principal, "client_id", None) or "",
    # One IPv6 customer has a whole /64, so limits count networks instead of addresses.
    "ip": lambda passage: client_network(passage.call.address or ""),
    "tool": _tool_value,
    "provider": _provider_value,
}
