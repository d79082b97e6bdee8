"""Replay protection for request states: a response of the client counts once, however often its call arrives.

A signature proves that a state is ours, not that it is new. A payment that the user agreed to must not happen twice
because the client sends the call again, by mistake or on purpose.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from portico._lazy import LazyModule
from portico.protocol.errors import InvalidParams
from portico.server.context.request_state import RequestState
from portico.store.data_directory import named_store

if TYPE_CHECKING:
    from portico.store import database as database_module
    from portico.store.database import Database
    from portico.store.transaction import Transaction
else:
    database_module = LazyModule("portico.store.database")

# A client that fills it makes older states count as used, which rejects retries but never repeats a
# side effect.
MAX_USED_STATES = 100_000


# Shared store for servers without one whose clients are also served by other processes.
_of_process: list[str] = []


def set_process_store(url: str | None) -> None:
    """Set the store that servers of this process without one share with other processes; None removes it."""
    _of_process[:] = [url] if url is not None else []


def process_store() -> str | None:
    """Return the store that `set_process_store` set, or None."""
    return next(iter(_of_process), None)


class UsedStates:
    """Used request states, in the store if other processes share it, otherwise in memory."""

    def __init__(self, store: str | None = None, max_entries: int = MAX_USED_STATES) -> None:
        self._store = store
        self._max_entries = max_entries
        self._seen: dict[str, float] = {}
        # States that expire before this count as used: they may have been, but were evicted from memory.
        self._forgotten = 0.0
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    async def mark_used(self, state: RequestState) -> None:
        """Mark a state as used. Raises InvalidParams if it was used before."""
        if not await self.add(state.id, state.expires):
            raise InvalidParams(
                "Invalid requestState: it was used before, and its request may have been executed; check "
                "before sending the request again without it"
            )

    @property
    def is_shared(self) -> bool:
        """Return whether other processes see the states used here."""
        return self.url is not None

    @property
    def url(self) -> str | None:
        """Return the URL of the store that other processes share, or None."""
        return named_store(self._store) or process_store()

    async def add(self, id: str, expires: float) -> bool:
        """Record an id, and return whether it is new."""
        database = await self._open_database()
        if database is None:
            return self._add(id, expires)
        # The unique key decides between concurrent processes, so the default serializable isolation
        # would only cause retries.
        return await database.write(partial(_insert, id=id, expires=expires), isolation="read committed")

    def _add(self, id: str, expires: float) -> bool:
        if id in self._seen or expires <= self._forgotten:
            return False
        # All states have the same lifetime, so the oldest entries expire first, or nearly so.
        now = time.time()
        while self._seen:
            oldest = next(iter(self._seen))
            if self._seen[oldest] > now and len(self._seen) < self._max_entries:
                break
            self._forgotten = max(self._forgotten, self._seen.pop(oldest))
        self._seen[id] = expires
        return True

    async def _open_database(self) -> Database | None:
        """Return the database, opened with the first response: most servers never request input. None without a shared
        store.
        """
        url = self.url
        if self._database is None and url:
            async with self._opening:
                if self._database is None:
                    self._database = await _open_store(url)
        return self._database

    async def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()


async def _open_store(url: str) -> Database:
    database: Database = await database_module.Database(url).open()
    try:
        from pathlib import Path  # servers without a store start without it

        await database.migrate("asking", Path(__file__).with_name("migrations"))
    except BaseException:
        await database.close()
        raise
    return database


def _insert(tx: Transaction, id: str, expires: float) -> bool:
    # Clean up with each insert: expired states are rejected by their own timestamp, so their rows
    # are no longer needed.
    tx.execute("delete from portico_spent_state where expires_at < ?", (time.time(),))
    added = tx.execute(
        "insert into portico_spent_state (id, expires_at) values (?, ?) on conflict do nothing",
        (id, expires),
    )
    return added == 1
