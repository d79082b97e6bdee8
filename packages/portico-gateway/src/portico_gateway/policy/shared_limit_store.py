"""Limits that several processes share: each takes some of what is left in the store, and spends it by itself.

So a call mostly costs no question to the store, and what is counted is wrong by what one process has taken and not
spent, at most; it lapses after a second. The clock is that of the store: machines do not agree on the time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from portico._lazy import LazyModule
from portico.protocol.errors import Error
from portico.rpc.rate_limit import Rate

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

MIGRATIONS = Path(__file__).with_name("migrations")
# After so long what was taken and not spent is given up.
LEASE_SECONDS = 1.0
# A process takes so much of what a second allows.
_SHARE = 0.25
# After a failure of the store each process counts for itself for so long.
ALONE_SECONDS = 5.0
# How often rows are removed that say nothing any more: clients may come from any number of addresses.
FORGET_SECONDS = 600.0
# How long the slots of a process last that says nothing more.
SLOT_SECONDS = 10.0
# A call waits for the store so long; then it is counted without it.
PATIENCE_SECONDS = 1.0

T = TypeVar("T")

log = logging.getLogger("portico.access")


class QuotaStore:
    """The store of one server's limits."""

    def __init__(self, url: str) -> None:
        self._url = url
        # This process, and no other that ever was.
        self._holder = os.urandom(8).hex()
        self._database: Database | None = None
        self._alone_until = 0.0
        self._forget_after = 0.0

    @property
    def usable(self) -> bool:
        return self._database is not None and time.monotonic() >= self._alone_until

    async def open(self) -> None:
        kind = database_module.Database
        try:
            database: Database = await kind(self._url, patience=PATIENCE_SECONDS).open()
            try:
                await database.migrate("quota", MIGRATIONS)
                await database.write(_forget)
                self._forget_after = time.monotonic() + FORGET_SECONDS
            except BaseException:
                await database.close()
                raise
            self._database = database
        except Error as failure:
            log.warning("limits are counted by each process for itself: %s", failure)

    async def close(self) -> None:
        if self.usable:
            await self._write(partial(_leave, holder=self._holder))
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def _write(self, change: Callable[[Transaction], T]) -> T | None:
        """None: the store cannot be asked."""
        if self._database is None:
            return None
        try:
            if time.monotonic() >= self._forget_after:
                self._forget_after = time.monotonic() + FORGET_SECONDS
                await self._database.write(_forget, isolation="read committed")
            return await self._database.write(change, isolation="read committed")
        except Error as failure:
            self._alone_until = time.monotonic() + ALONE_SECONDS
            log.warning("limits are counted by each process for itself: %s", failure)
            return None

    # So many in a while

    async def lease(self, key: Any, rate: Rate, cost: float) -> tuple[float, float] | None:
        """How much was taken, and how long to wait where it is nothing. None: the store cannot be asked."""
        wanted = min(max(cost, _SHARE * LEASE_SECONDS / rate.interval), max(cost, rate.burst / 2))
        return await self._write(partial(_take, key=stored_key(key), rate=rate, least=cost, wanted=wanted))

    # So many at once

    async def take_slots(self, key: str, needed: int, more: int, most: int) -> int | None:
        """Have so many, and some more if there are: how many we have then, or 0 where there are not enough for all
        processes together. None: the store cannot be asked."""
        return await self._write(
            partial(_take_slots, key=key, holder=self._holder, needed=needed, more=more, most=most)
        )

    async def keep_slots(self, key: str, held: int) -> bool:
        """Give back all but so many. Whether the store knows."""
        return await self._write(partial(_keep_slots, key=key, holder=self._holder, held=held)) is not None

    async def renew_slots(self, keys: list[str]) -> list[str]:
        """Those of them that are still ours."""
        return await self._write(partial(_renew_slots, keys=keys, holder=self._holder)) or []


def stored_key(key: Any) -> str:
    """Of one length, and it tells nothing of whose it is."""
    return sha256(msgspec.json.encode(key)).hexdigest()[:40]


def _take(tx: Transaction, key: str, rate: Rate, least: float, wanted: float) -> tuple[float, float]:
    tx.lock(f"portico quota {key}")
    now = tx.now()
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


def _take_slots(tx: Transaction, key: str, holder: str, needed: int, more: int, most: int) -> int:
    tx.lock(f"portico quota {key}")
    now = tx.now()
    others = tx.one(
        int,
        "select coalesce(sum(held), 0) from portico_quota_slot where key = ? and holder <> ? and until_at > ?",
        (key, holder, now),
    )
    held = min(needed + more, most - others)
    if held < needed:
        return 0
    tx.run("delete from portico_quota_slot where key = ? and until_at <= ?", (key, now))
    tx.run(
        "insert into portico_quota_slot (key, holder, held, until_at) values (?, ?, ?, ?) "
        "on conflict (key, holder) do update set held = excluded.held, until_at = excluded.until_at",
        (key, holder, held, now + SLOT_SECONDS),
    )
    return held


def _keep_slots(tx: Transaction, key: str, holder: str, held: int) -> int:
    if held:
        return tx.run("update portico_quota_slot set held = ? where key = ? and holder = ?", (held, key, holder))
    return tx.run("delete from portico_quota_slot where key = ? and holder = ?", (key, holder))


def _renew_slots(tx: Transaction, keys: list[str], holder: str) -> list[str]:
    now = tx.now()
    return tx.all(
        str,
        "update portico_quota_slot set until_at = :until where holder = :holder and key in :keys and until_at > :now "
        "returning key",
        {"until": now + SLOT_SECONDS, "holder": holder, "keys": keys, "now": now},
    )


def _leave(tx: Transaction, holder: str) -> None:
    tx.run("delete from portico_quota_slot where holder = ?", (holder,))


def _forget(tx: Transaction) -> None:
    """A bucket that is full again is as one that was never used."""
    now = tx.now()
    tx.run("delete from portico_quota where due_at < ?", (now,))
    tx.run("delete from portico_quota_slot where until_at < ?", (now,))
