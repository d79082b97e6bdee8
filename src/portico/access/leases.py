"""Limits that several processes share: each takes some of what is left in the store, and spends it by itself.

So a call mostly costs no question to the store, and what is counted is wrong by what one process has taken and not
spent, at most; it lapses after a second.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from portico._lazy import load_module
from portico.access.limits import Rate
from portico.wire.errors import Error

if TYPE_CHECKING:
    from portico.store.database import Database
    from portico.store.transaction import Transaction

MIGRATIONS = Path(__file__).with_name("migrations")
# After so long what was taken and not spent is given up.
LEASE_SECONDS = 1.0
# A process takes so much of what a second allows.
_SHARE = 0.25
# After a failure of the store each process counts for itself for so long.
ALONE_SECONDS = 5.0
# Rows that have not been used for so long say nothing.
KEPT_SECONDS = 86400.0

log = logging.getLogger("portico.access")


class QuotaStore:
    """The store of one server's limits."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._database: Database | None = None
        self._alone_until = 0.0

    @property
    def usable(self) -> bool:
        return self._database is not None and time.monotonic() >= self._alone_until

    async def open(self) -> None:
        try:
            database: Database = await load_module("portico.store.database").Database(self._url).open()
            try:
                await database.migrate("quota", MIGRATIONS)
                await database.write(partial(_forget, before=time.time() - KEPT_SECONDS))
            except BaseException:
                await database.close()
                raise
            self._database = database
        except Error as failure:
            log.warning("limits are counted by each process for itself: %s", failure)

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def lease(self, key: Any, rate: Rate, cost: float) -> tuple[float, float] | None:
        """How much was taken, and how long to wait where it is nothing. None: the store cannot be asked."""
        if self._database is None:
            return None
        wanted = min(max(cost, _SHARE * LEASE_SECONDS / rate.interval), max(cost, rate.burst / 2))
        digest = sha256(msgspec.json.encode(key)).hexdigest()[:40]
        take = partial(_take, key=digest, rate=rate, least=cost, wanted=wanted)
        try:
            return await self._database.write(take, isolation="read committed")
        except Error as failure:
            self._alone_until = time.monotonic() + ALONE_SECONDS
            log.warning("limits are counted by each process for itself: %s", failure)
            return None


def _take(tx: Transaction, key: str, rate: Rate, least: float, wanted: float) -> tuple[float, float]:
    tx.lock(f"portico quota {key}")
    now = time.time()
    due = tx.maybe(float, "select due_at from portico_quota where key = ?", [key]) or 0.0
    # Whole ones, where more than the least is taken: the rest would lapse.
    granted = max(least, min(wanted, float(int(rate.room(due, now)))))
    taken = rate.take(due, now, granted)
    if taken.wait:
        return 0.0, taken.wait
    tx.run(
        "insert into portico_quota (key, due_at) values (:key, :due) "
        "on conflict (key) do update set due_at = excluded.due_at",
        {"key": key, "due": taken.due},
    )
    return granted, 0.0


def _forget(tx: Transaction, before: float) -> None:
    tx.run("delete from portico_quota where due_at < ?", [before])
