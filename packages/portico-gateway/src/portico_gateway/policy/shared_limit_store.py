"""Store for limits that several processes share: each process leases permits and spends them locally.

Most calls therefore need no query. The count is inaccurate by at most the unspent permits of each process, which expire
after a second. The store's clock is used, since the clocks of machines differ.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from portico._lazy import LazyModule
from portico.protocol.errors import PorticoError
from portico.rpc.rate_limit import RateLimit

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

MIGRATIONS = Path(__file__).with_name("migrations")
# Lifetime of leased permits.
PERMIT_LEASE_SECONDS = 1.0
# Fraction of the permits of one second that a process leases.
# A quarter lets about four processes share a limit without starving each other, and still answers most calls without
# a query.
_LEASE_SHARE = 0.25
# After a store failure, each process counts locally for this long.
STORE_RETRY_SECONDS = 5.0
# Interval for deleting expired rows; clients may come from any number of addresses.
CLEANUP_INTERVAL_SECONDS = 600.0
# Lifetime of the slots of a process that no longer renews them.
SLOT_LEASE_SECONDS = 10.0
# Part of the rest of a monthly budget that a process reserves.
_RESERVED_PART = 100
# For this long after its end, a month stays in the store.
MONTH_RETENTION_SECONDS = 40 * 86400.0
# Maximum wait of a call for the store; afterwards it is counted locally.
# A limit protects the server, so a slow store must not become the outage: after this time the call is counted in this
# process only.
STORE_TIMEOUT_SECONDS = 1.0

T = TypeVar("T")

log = logging.getLogger("portico.access")


class SharedLimitStore:
    """Shared limits of one server."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Unique ID of this process.
        # Random instead of the process id, which is not unique across machines and is reused after a restart.
        self._holder = os.urandom(8).hex()
        self._database: Database | None = None
        self._local_only_until = 0.0
        self._forget_after = 0.0

    @property
    def is_available(self) -> bool:
        return self._database is not None and time.monotonic() >= self._local_only_until

    async def open(self, *, wait: bool = False) -> None:
        """Open the store. If that fails, limits are counted per process.

        With `wait`, wait until it is available instead. Raises StoreError if it can never be used.
        """
        if wait:
            self._database = await database_module.retry_until_ready(self._open)
            return
        try:
            self._database = await self._open()
        except PorticoError as failure:
            log.warning("limits are counted per process: %s", failure)

    async def _open(self) -> Database:
        kind = database_module.Database
        database: Database = await kind(self._url, timeout=STORE_TIMEOUT_SECONDS).open()
        try:
            await database.migrate("quota", MIGRATIONS)
            await database.write(_delete_expired)
            self._forget_after = time.monotonic() + CLEANUP_INTERVAL_SECONDS
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        if self.is_available:
            await self._write(partial(_release_all, holder=self._holder))
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def _write(self, change: Callable[[Transaction], T]) -> T | None:
        """Run a transaction. Return None if the store is unavailable."""
        if self._database is None:
            return None
        try:
            # Set the time before the query: with concurrent writes only the first one cleans up.
            if time.monotonic() >= self._forget_after:
                self._forget_after = time.monotonic() + CLEANUP_INTERVAL_SECONDS
                await self._database.write(_delete_expired, isolation="read committed")
            return await self._database.write(change, isolation="read committed")
        except PorticoError as failure:
            self._local_only_until = time.monotonic() + STORE_RETRY_SECONDS
            log.warning("limits are counted per process: %s", failure)
            return None

    async def read(self, query: Callable[[Transaction], T]) -> T | None:
        """Run a query. Return None if the store is unavailable."""
        if self._database is None:
            return None
        try:
            return await self._database.read(query)
        except PorticoError as failure:
            log.warning("the store of the limits cannot be read: %s", failure)
            return None

    # Rate limits

    async def lease_permits(self, key: Any, rate: RateLimit, cost: float) -> tuple[float, float] | None:
        """Lease permits. Return the number, and the time to wait if it is 0; None if the store is unavailable."""
        # At most half of the burst, so that one process cannot lease everything that others need within the second.
        requested = min(max(cost, _LEASE_SHARE * PERMIT_LEASE_SECONDS / rate.interval), max(cost, rate.burst / 2))
        return await self._write(partial(_lease_permits, key=hash_key(key), rate=rate, least=cost, wanted=requested))

    # Concurrency limits

    async def acquire_slots(self, key: str, needed: int, extra: int, limit: int) -> int | None:
        """Acquire `needed` slots, and up to `extra` more. Return the number held, or 0 if the limit is exhausted.

        Return None if the store is unavailable.
        """
        return await self._write(
            partial(_take_slots, key=key, holder=self._holder, needed=needed, more=extra, limit=limit)
        )

    async def release_slots(self, key: str, keep: int) -> bool:
        """Release all but `keep` slots. Return whether the store recorded it."""
        return await self._write(partial(_release_slots, key=key, holder=self._holder, count=keep)) is not None

    async def renew_slots(self, keys: list[str]) -> list[str]:
        """Renew the leases of these keys and return those that this process still holds."""
        return await self._write(partial(_renew_slots, keys=keys, holder=self._holder)) or []

    # Monthly budgets

    async def reserve_budget(
        self, key: str, amount: float, month: int, debt: float, needed: tuple[float, float], max_reserved: float
    ) -> tuple[int, float, float] | None:
        """Reserve a part of a budget, and count the `debt` that was spent in `month` without reservation.

        `needed` is the minimum for one call, and what all waiting calls need.

        Return the current month, the reserved amount (0 if not enough is left), and the remaining amount. Return None
        if the store is unavailable.
        """
        return await self._write(
            partial(
                _reserve_budget,
                key=key,
                amount=amount,
                month=month,
                debt=debt,
                needed=needed,
                max_reserved=max_reserved,
            )
        )

    async def return_budgets(self, changes: Sequence[tuple[str, int, float]]) -> bool:
        """Return parts of budgets by key and month. Return whether the store recorded it."""
        return await self._write(partial(_return_budgets, changes=changes)) is not None

    async def record_budgets(self, server: str, budgets: Sequence[tuple[str, str, float]]) -> None:
        """Record the budgets that each principal of a server has, by name, unit and amount, for reports."""
        await self._write(partial(_record_budgets, server=server, budgets=budgets))


def current_month(now: float) -> int:
    """Return the month of a time as a number such as 202611, in UTC."""
    moment = datetime.fromtimestamp(now, UTC)
    return moment.year * 100 + moment.month


def previous_month(month: int) -> int:
    """Return the month before a month."""
    return month - 1 if month % 100 > 1 else month - 89


def month_end(month: int) -> float:
    """Return the end of a month in seconds since 1970."""
    year, number = divmod(month, 100)
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()


def hash_key(key: Any) -> str:
    """Return a hash of a key: of fixed length, and without personal data."""
    return sha256(msgspec.json.encode(key)).hexdigest()[:40]


def budget_key(server: str, budget: str, values: Sequence[str], unit: str) -> str:
    """Return the key of a monthly budget: `values` are those of the dimensions that have a budget each."""
    return hash_key((server, budget, *values, unit))


def _lease_permits(tx: Transaction, key: str, rate: RateLimit, least: float, wanted: float) -> tuple[float, float]:
    # Serializes the processes on this key. Under READ COMMITTED two transactions could otherwise read the same state
    # and both grant the last permit.
    tx.advisory_lock(f"portico quota {key}")
    now = tx.now()
    due = tx.fetch_optional(float, "select due_at from portico_quota where key = ?", [key]) or 0.0
    # Lease whole permits only, if more than the minimum: fractions would expire unused.
    granted = max(least, min(wanted, float(int(rate.available(due, now)))))
    acquired = rate.acquire(due, now, granted)
    if acquired.retry_after:
        return 0.0, acquired.retry_after
    tx.execute(
        "insert into portico_quota (key, due_at) values (:key, :due) "
        "on conflict (key) do update set due_at = excluded.due_at",
        {"key": key, "due": acquired.theoretical_arrival},
    )
    return granted, 0.0


def _take_slots(tx: Transaction, key: str, holder: str, needed: int, more: int, limit: int) -> int:
    tx.advisory_lock(f"portico quota {key}")
    now = tx.now()
    others = tx.fetch_one(
        int,
        "select coalesce(sum(held), 0) from portico_quota_slot where key = ? and holder <> ? and until_at > ?",
        (key, holder, now),
    )
    # Slots of this process are not subtracted: the new row replaces its old one.
    granted = min(needed + more, limit - others)
    if granted < needed:
        return 0
    tx.execute("delete from portico_quota_slot where key = ? and until_at <= ?", (key, now))
    tx.execute(
        "insert into portico_quota_slot (key, holder, held, until_at) values (?, ?, ?, ?) "
        "on conflict (key, holder) do update set held = excluded.held, until_at = excluded.until_at",
        (key, holder, granted, now + SLOT_LEASE_SECONDS),
    )
    return granted


def _release_slots(tx: Transaction, key: str, holder: str, count: int) -> int:
    if count:
        return tx.execute("update portico_quota_slot set held = ? where key = ? and holder = ?", (count, key, holder))
    return tx.execute("delete from portico_quota_slot where key = ? and holder = ?", (key, holder))


def _renew_slots(tx: Transaction, keys: list[str], holder: str) -> list[str]:
    now = tx.now()
    # A lease that has expired is not renewed, since another process may have taken its slots already.
    return tx.fetch_all(
        str,
        "update portico_quota_slot set until_at = :until where holder = :holder and key in :keys and until_at > :now "
        "returning key",
        {"until": now + SLOT_LEASE_SECONDS, "holder": holder, "keys": keys, "now": now},
    )


def _release_all(tx: Transaction, holder: str) -> None:
    tx.execute("delete from portico_quota_slot where holder = ?", (holder,))


def _reserve_budget(
    tx: Transaction, key: str, amount: float, month: int, debt: float, needed: tuple[float, float], max_reserved: float
) -> tuple[int, float, float]:
    tx.advisory_lock(f"portico quota {key}")
    # The clock of the store decides, so that all processes begin the month together.
    now = current_month(tx.now())
    spent = (
        tx.fetch_optional(float, "select spent from portico_quota_month where key = ? and month = ?", [key, now]) or 0.0
    )
    spent += debt if month == now else 0.0
    left = amount - spent
    minimum, requested = needed
    reserved = min(left, max(minimum, requested, min(left // _RESERVED_PART, max_reserved))) if left >= minimum else 0.0
    tx.execute(
        "insert into portico_quota_month (key, month, spent) values (:key, :month, :spent) "
        "on conflict (key, month) do update set spent = excluded.spent",
        {"key": key, "month": now, "spent": spent + reserved},
    )
    return now, reserved, left - reserved


def _return_budgets(tx: Transaction, changes: Sequence[tuple[str, int, float]]) -> int:
    # A row is missing if the whole amount was spent while the store was unavailable.
    return tx.execute_many(
        "insert into portico_quota_month (key, month, spent) values (?, ?, ?) "
        "on conflict (key, month) do update set spent = portico_quota_month.spent + excluded.spent",
        [(key, month, -amount) for key, month, amount in changes],
    )


def _record_budgets(tx: Transaction, server: str, budgets: Sequence[tuple[str, str, float]]) -> None:
    # Workers of one server start together and write the same rows.
    tx.advisory_lock(f"portico budgets {server}")
    tx.execute("delete from portico_quota_budget where server = ?", (server,))
    tx.execute_many(
        "insert into portico_quota_budget (server, name, unit, amount) values (?, ?, ?, ?) on conflict do nothing",
        [(server, *budget) for budget in budgets],
    )


def _delete_expired(tx: Transaction) -> None:
    """Delete expired rows. A bucket that is full again is equivalent to an unused one."""
    now = tx.now()
    tx.execute("delete from portico_quota where due_at < ?", (now,))
    tx.execute("delete from portico_quota_slot where until_at < ?", (now,))
    tx.execute("delete from portico_quota_month where month < ?", (current_month(now - MONTH_RETENTION_SECONDS),))
