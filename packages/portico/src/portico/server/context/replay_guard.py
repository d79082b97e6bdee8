"""States that were used: an answer of the client counts once, however often its call arrives.

A signature shows that a state is ours and not that it is new. A call that pays for what the user has agreed to must not
pay again because a client sends it a second time, whether it has lost the answer or means to.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from portico._lazy import LazyModule
from portico.protocol.errors import InvalidParams
from portico.server.context.request_state import State

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

MOST_REMEMBERED = 100_000


# Where those of servers without a store are kept that share their clients with other processes.
_of_process: list[str] = []


def use_store(url: str | None) -> None:
    """From now on servers of this process that have no store share this one with other processes; None: no more."""
    _of_process[:] = [url] if url is not None else []


def store_of_process() -> str | None:
    """What `use_store` was told."""
    return next(iter(_of_process), None)


class SpentStates:
    """In the store, where the server has one that others see as well; otherwise in memory."""

    def __init__(self, store: str | None = None, most: int = MOST_REMEMBERED) -> None:
        self._store = store
        self._most = most
        self._seen: dict[str, float] = {}
        # What expires before this counts as used: it may have been, and is no longer remembered.
        self._forgotten = 0.0
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    async def spend(self, state: State) -> None:
        """Raises InvalidParams for a state that was used before."""
        if not await self.add(state.id, state.expires):
            raise InvalidParams(
                "Invalid requestState: it was used before, and what it was for may have been done; "
                "look before you send the request again without it"
            )

    @property
    def is_shared(self) -> bool:
        """Whether other processes may see what is spent here."""
        return self.url is not None

    @property
    def url(self) -> str | None:
        """The store that other processes see as well."""
        return self._store or os.environ.get("PORTICO_STORE") or store_of_process()

    async def add(self, id: str, expires: float) -> bool:
        """Whether this is the first time."""
        database = await self._opened()
        if database is None:
            return self._add(id, expires)
        return await database.write(partial(_insert, id=id, expires=expires), isolation="read committed")

    def _add(self, id: str, expires: float) -> bool:
        if id in self._seen or expires <= self._forgotten:
            return False
        # States are issued with the same lifetime, so those that came first also end first, or nearly so.
        now = time.time()
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest] > now and len(self._seen) < self._most:
                break
            self._forgotten = max(self._forgotten, self._seen.pop(oldest))
        self._seen[id] = expires
        return True

    async def _opened(self) -> Database | None:
        """The store is opened with the first answer: most servers ask nothing."""
        url = self.url
        if self._database is None and url:
            async with self._opening:
                if self._database is None:
                    self._database = await _open(url)
        return self._database

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()


async def _open(url: str) -> Database:
    database: Database = await database_module.Database(url).open()
    try:
        from pathlib import Path  # servers without a store start without it

        await database.migrate("asking", Path(__file__).with_name("migrations"))
    except BaseException:
        await database.close()
        raise
    return database


def _insert(tx: Transaction, id: str, expires: float) -> bool:
    tx.run("delete from portico_spent_state where expires_at < ?", (time.time(),))
    added = tx.run(
        "insert into portico_spent_state (id, expires_at) values (?, ?) on conflict do nothing",
        (id, expires),
    )
    return added == 1
