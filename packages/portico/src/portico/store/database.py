"""What is kept: one interface over SQLite and PostgreSQL, opened by URL.

    async with Database("sqlite:////var/lib/portico/portico.db") as db:     # or postgresql://…, or a path, or sqlite://
        await db.migrate("tasks", Path(__file__).parent / "migrations")
        task = await db.write(claim)                                        # a plain function of a Transaction
        async with db.subscribe("task") as events:
            async for event in events: ...

A write that returned is on the disk. One that was cancelled has happened wholly or not at all; while it still waited
for its turn or for a lock of others, not at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote

from portico._lazy import LazyModule
from portico.protocol.errors import UsageError
from portico.store.connection_pool import CompletionQueue, perform
from portico.store.errors import CannotOpen, DatabaseClosed, StoreError
from portico.store.event_bus import Bus, Subscription
from portico.store.keys import MEMORY, SigningKeys, load_keys
from portico.store.migrations import load, migrate
from portico.store.sqlite import Sqlite
from portico.store.transaction import Engine, Event, Isolation, Transaction

if TYPE_CHECKING:
    from portico.store import postgres
    from portico.store.postgres import Postgres
else:
    postgres = LazyModule("portico.store.postgres")

T = TypeVar("T")
log = logging.getLogger("portico")

# Threads that each have a connection: of SQLite those that read, of PostgreSQL all.
CONNECTIONS = {"sqlite": 4, "postgresql": 8}
PATIENCE_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0


class Database:
    """Belongs to the loop that opened it.

    `patience` is how many seconds a transaction waits for a lock, for others to stop changing the same rows, or for a
    lost server to come back, before it gives up. `keys` sign events for other processes, instead of those of the store
    (see `load_keys`).
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        patience: float = PATIENCE_SECONDS,
        connections: int | None = None,
        keys: Sequence[bytes] | None = None,
    ) -> None:
        self.engine, self._address = parse(os.fspath(url))
        self._keys = keys
        self._patience = patience
        self._connections = connections or CONNECTIONS[self.engine]
        self._opened: Sqlite | Postgres | None = None
        self._bus: Bus | None = None

    async def open(self) -> Self:
        if self._opened is not None:
            raise UsageError("The database is open already.")
        completions = CompletionQueue(asyncio.get_running_loop(), self._tell)
        limits: dict[str, Any] = {"patience": self._patience, "connections": self._connections}
        engine_class = Sqlite if self.engine == "sqlite" else _postgres()
        engine: Sqlite | Postgres = engine_class(self._address, completions, **limits)
        try:
            await engine.open()
        except BaseException:
            await engine.close()
            raise
        self._opened = engine
        # SQLite's route is for one user alone.
        self._bus = Bus(engine.route(), self.signing if self.engine == "postgresql" else None)
        return self

    def load_keys(self) -> list[bytes]:
        """Return the keys of this store, which are not in it; the one in use first."""
        return list(self._keys) if self._keys is not None else load_keys(self.engine, self._address)

    @cached_property
    def signing(self) -> SigningKeys:
        """Signs rows, for users of this database that must not believe everything that is in it."""
        return SigningKeys(self.load_keys())

    async def close(self) -> None:
        """Finish what has begun, and end the subscriptions."""
        engine, self._opened = self._opened, None
        if engine is not None and self._bus is not None:
            await engine.close()
            await self._bus.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """Run a function that only reads. It sees the database as it was at one moment."""
        return await self._perform(fn, writes=False)

    async def write(self, fn: Callable[[Transaction], T], *, isolation: Isolation = "serializable") -> T:
        """Run a function that writes: whatever it raises, nothing of it is written."""
        return await self._perform(fn, writes=True, isolation=isolation)

    def subscribe(self, *topics: str) -> Subscription:
        if self._opened is None or self._bus is None:
            raise DatabaseClosed
        return Subscription(self._bus, topics)

    async def migrate(self, history: str, folder: Path) -> list[str]:
        """Bring the tables of one user of the database up to date; the names of the migrations that were applied."""
        # Not serializable: what others did while we waited for the lock has to be seen.
        write = partial(self._perform, writes=True, isolation="read committed", rebuilds=True)
        return await migrate(history, load(folder, self.engine), self.read, write)

    async def _perform(self, fn: Callable[[Transaction], T], **how: Any) -> T:
        if self._opened is None:
            raise DatabaseClosed
        return await perform(self._opened.submit, fn, **how)

    def _tell(self, events: list[Event]) -> None:
        if self._bus is not None:
            self._bus.tell(events)


async def when_ready(begin: Callable[[], Awaitable[T]]) -> T:
    """What a server begins with. A store that is locked, full, busy or not up yet is waited for, and the log says so:
    it is no reason to end. What will not pass by itself is raised."""
    pause_seconds = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await begin()
        except StoreError as failure:
            if not failure.passing:
                raise
            log.warning("waiting for the store: %s", failure)
        # Not all at once, when it is back.
        await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))
        pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)


def _postgres() -> type[Postgres]:
    try:
        engine: type[Postgres] = postgres.Postgres
    except ImportError as failure:
        raise CannotOpen("PostgreSQL needs psycopg: pip install 'portico[postgres]'.") from failure
    return engine


def parse(url: str) -> tuple[Engine, str]:
    """Which engine, and its address."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "sqlite", url or MEMORY
    if scheme in ("postgresql", "postgres"):
        return "postgresql", url
    if scheme != "sqlite":
        raise CannotOpen(f"“{scheme}” is not a database we know: sqlite:///path/to/file.db, or postgresql://host/name.")
    path = unquote(rest)
    if path in ("", "/:memory:", MEMORY):
        return "sqlite", MEMORY
    if not path.startswith("/"):
        raise CannotOpen(f"sqlite://{rest} has no host to name: sqlite:///path/to/file.db has three slashes.")
    # Others write four for an absolute path, and a drive comes after the third.
    return "sqlite", re.sub(r"^/+(?=[A-Za-z]:[/\\])", "", re.sub(r"^/+", "/", path))
