"""Monthly budgets of calls and estimated tokens, over all processes that share a store.

Each process reserves a part of the remaining budget and spends it without queries. It returns unused reservations after
a few seconds; a killed process loses its reservation. The number of calls never exceeds the budget. Tokens are known
only after a call, so calls in flight may exceed theirs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NoReturn

from msgspec import Struct

from portico.protocol.errors import ToolError, TooManyRequests
from portico.rpc.call import Call, Reply
from portico.rpc.supervision import BackgroundTasks
from portico.tokens import tokens_from_bytes
from portico_gateway.audit.usage import CALL_METHODS as CALL_METHODS
from portico_gateway.policy.budget_report import RemainingBudget, read_remaining_budgets
from portico_gateway.policy.shared_limit_store import (
    STORE_RETRY_SECONDS,
    STORE_TIMEOUT_SECONDS,
    SharedLimitStore,
    current_month,
    month_end,
)

# Requests that count as calls. Lists are not counted: clients repeat them on their own.
# Results of tasks arrive in these. Without them, tasks would evade a budget of tokens.
RESULT_METHODS = frozenset({"tasks/get", "tasks/result", "subscriptions/listen"})
# Interval for returning unused reservations.
RETURN_INTERVAL_SECONDS = 2.0
# After the budget was found exhausted, the store is not queried for this long. Another process may return a part.
EXHAUSTED_RETRY_SECONDS = 2.0

# Ended calls of one account whose responses are not encoded yet. Beyond that, the oldest count without their responses.
MAX_UNSETTLED_CALLS = 100

BudgetUnit = Literal["calls", "tokens"]
# Maximum reservation; a killed process loses it.
MAX_RESERVED: dict[BudgetUnit, float] = {"calls": 1000.0, "tokens": 1_000_000.0}


class Budget(Struct, frozen=True):
    """Calls or estimated tokens per calendar month, in UTC."""

    unit: BudgetUnit
    amount: float


class BudgetAccount(Struct, eq=False):
    """One budget of one caller in this process."""

    # Key in the store.
    key: str
    budget: Budget
    # Month of the following numbers, and its end in seconds since 1970.
    month: int = 0
    ends_at: float = 0.0
    # Reserved and not spent yet. Negative: spent without a reservation.
    reserved: float = 0.0
    # Not reserved by any process, as far as known. It counts while the store is unavailable.
    left: float = 0.0
    exhausted_until: float = 0.0
    used_at: float = 0.0
    # Calls whose responses are not counted yet, with the sizes of their params.
    unsettled: list[tuple[Reply, int]] = []
    # Running query of the store, one at a time, and the amount that its callers need.
    asking: asyncio.Task[None] | None = None
    wanted: float = 0.0

    def needed(self, cost: float) -> float:
        """Return the amount that must be left for a call: its cost, or one token."""
        return cost if self.budget.unit == "calls" else 1.0

    def settle(self, *, everything: bool = False) -> None:
        """Count the tokens of calls that have ended."""
        if len(self.unsettled) == 1 and self.unsettled[0][0].closed:
            # The common case: the previous call of the same caller.
            reply, size = self.unsettled.pop()
            self.reserved -= tokens_from_bytes(size + reply.response_bytes)
            return
        waiting: list[tuple[Reply, int]] = []
        excess = len(self.unsettled) if everything else len(self.unsettled) - MAX_UNSETTLED_CALLS
        for at, (reply, size) in enumerate(self.unsettled):
            # The size of a response is known once it is encoded.
            if reply.closed or at < excess:
                self.reserved -= tokens_from_bytes(size + reply.response_bytes)
            else:
                waiting.append((reply, size))
        self.unsettled = waiting

    def begin_month(self, month: int) -> None:
        """Start a month with the whole budget."""
        self.month, self.ends_at = month, month_end(month)
        self.reserved, self.left, self.exhausted_until = 0.0, self.budget.amount, 0.0

    def raise_exhausted(self, call: Call, *, is_flood: bool) -> NoReturn:
        """Raise the error for a call that exceeds the budget."""
        resets_at = datetime.fromtimestamp(self.ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        seconds = max(1, math.ceil(self.ends_at - time.time()))
        if call.method != "tools/call" or is_flood:
            raise TooManyRequests(seconds)
        unit = "calls" if self.budget.unit == "calls" else "estimated tokens"
        raise ToolError(
            f"The monthly budget of {self.budget.amount:,.0f} {unit} is used up. It resets at {resets_at}; the "
            "operator of this server can increase it.",
            error_type="ApiLimitExceeded",
            details={
                "retry_after": seconds,
                "resets_at": resets_at,
                "budget": self.budget.unit,
                "limit": self.budget.amount,
            },
            retryable=True,
        )


class BudgetLedger:
    """Accounts of this process, and the store that it shares with others."""

    def __init__(self) -> None:
        self._store: SharedLimitStore | None = None
        # Set while the store is being opened; calls wait for it a short time.
        self._opening: asyncio.Event | None = None
        self._alone_until = 0.0
        # Accounts with reservations, or with calls that the store does not know yet.
        self._held: dict[str, BudgetAccount] = {}
        self._tasks = BackgroundTasks()

    async def open(self, url: str) -> None:
        """Open the store. Wait while it is unavailable; raise StoreError if it can never be used."""
        store, self._opening = SharedLimitStore(url), asyncio.Event()
        try:
            await store.open(wait=True)
            self._store = store
        finally:
            self._opening.set()
            self._opening = None
        self._tasks.repeat("budget returns", self.return_unused, RETURN_INTERVAL_SECONDS)

    async def record_budgets(self, server: str, budgets: Sequence[tuple[str, str, float]]) -> None:
        """Record the budgets of a server for reports."""
        if self._store is not None:
            await self._store.record_budgets(server, budgets)

    async def remaining_budgets(self, principals: Iterable[str]) -> dict[str, list[RemainingBudget]]:
        """Return the budgets that principals have used this month, by principal."""
        read = partial(read_remaining_budgets, principals=tuple(principals))
        return {} if self._store is None else await self._store.read(read) or {}

    async def close(self) -> None:
        """Return all reservations and close the store."""
        await self._tasks.close()
        await self.return_unused(idle_seconds=-1.0)
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    def account(self, key: str, budget: Budget) -> BudgetAccount:
        """Return the account of a key: the one in use, or a new one."""
        return self._held.get(key) or BudgetAccount(key, budget)

    def can_spend(self, account: BudgetAccount, cost: float) -> bool | None:
        """Return whether a call fits the budget, or None if the store must be queried to decide."""
        _touch(account)
        if account.unsettled:
            account.settle()
        needed = cost if account.budget.unit == "calls" else 1.0
        if account.reserved >= needed:
            return True
        if not self._may_query:
            return account.reserved + account.left >= needed
        return False if account.exhausted_until > time.monotonic() else None

    @property
    def _may_query(self) -> bool:
        if self._store is None:
            return time.monotonic() >= self._alone_until
        return self._store.is_available

    def spend(self, account: BudgetAccount, cost: float) -> None:
        """Charge a call. Its tokens are counted when it has ended."""
        if account.budget.unit == "calls":
            account.reserved -= cost
        if self._held.get(account.key) is not account:
            self._hold(account)

    def count_response(self, account: BudgetAccount, call: Call) -> None:
        """Count the tokens of a call that has ended. Its response is encoded later."""
        # The result of a task may be the first that this process serves of a principal, so the month may be unknown.
        _touch(account)
        account.unsettled.append((call.reply, len(call.params)))
        if self._held.get(account.key) is not account:
            self._hold(account)

    def count_notification(self, account: BudgetAccount, size: int) -> None:
        """Count the tokens of a notification of `size` bytes."""
        _touch(account)
        account.reserved -= tokens_from_bytes(size)
        if self._held.get(account.key) is not account:
            self._hold(account)

    def _hold(self, account: BudgetAccount) -> None:
        account_state = self._held.setdefault(account.key, account)
        if account_state is not account:
            # The account was dropped while a call was in flight, and another one was opened.
            _move(account, account_state)

    async def reserve(self, account: BudgetAccount, cost: float) -> None:
        """Reserve a part of the budget, or wait for a running query of the same account."""
        needed = account.needed(cost)
        account.wanted += needed
        try:
            if account.asking is None:
                # The answer is recorded even if the call no longer waits for it.
                account.asking = self._tasks.start(self._reserve(account, needed))
            await asyncio.wait([account.asking])
        finally:
            account.wanted -= needed

    async def _reserve(self, account: BudgetAccount, needed: float) -> None:
        try:
            if self._store is None and not await self._is_open_soon():
                return
            assert self._store is not None
            debt = max(0.0, -account.reserved)
            budget = account.budget
            answer = await self._store.reserve_budget(
                account.key, budget.amount, account.month, debt, (needed, account.wanted), MAX_RESERVED[budget.unit]
            )
            if answer is None:
                return
            month, reserved, left = answer
            if month == account.month:
                # The store has counted the debt.
                account.reserved += debt
            else:
                account.begin_month(month)
            account.reserved += reserved
            account.left = left
            if not reserved:
                account.exhausted_until = time.monotonic() + EXHAUSTED_RETRY_SECONDS
            self._hold(account)
        finally:
            account.asking = None

    async def _is_open_soon(self) -> bool:
        """Wait a short time for the store. A reload replaces the ledger, which begins while calls arrive."""
        # The task that opens the store may not have started.
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
                while self._opening is not None:
                    await self._opening.wait()
        if self._store is None:
            self._alone_until = time.monotonic() + STORE_RETRY_SECONDS
        return self._store is not None

    async def return_unused(self, idle_seconds: float = RETURN_INTERVAL_SECONDS) -> None:
        """Return the reservations of idle accounts to the store, with the amounts that they spent without one."""
        before = time.time() - idle_seconds
        idle = [account for account in self._held.values() if account.used_at < before and account.asking is None]
        returned = []
        for account in idle:
            account.settle(everything=True)
            del self._held[account.key]
            # A copy: a call in the meantime must not spend the returned amount.
            returned.append(BudgetAccount(account.key, account.budget, account.month, reserved=account.reserved))
            account.reserved = 0.0
        # Sorted, because two processes that lock rows in a different order would wait for each other.
        changes = sorted((item.key, item.month, item.reserved) for item in returned if item.reserved)
        if not changes or (self._store is not None and await self._store.return_budgets(changes)):
            return
        for account, amount in zip(idle, returned, strict=True):
            if account.month == amount.month:
                account.reserved += amount.reserved
                self._held.setdefault(account.key, account)


def _touch(account: BudgetAccount) -> None:
    """Record the use of an account, and begin a new month if the last one is over."""
    account.used_at = now = time.time()
    if now >= account.ends_at:
        account.begin_month(current_month(now))


def _move(account: BudgetAccount, other: BudgetAccount) -> None:
    """Move the reservation of an account to another one of the same key."""
    if account.month == other.month:
        other.reserved += account.reserved
    other.unsettled += account.unsettled
    account.reserved, account.unsettled = 0.0, []
