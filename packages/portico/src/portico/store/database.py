"""Storage: one interface over SQLite and PostgreSQL, opened by URL.

    async with Database("sqlite:////var/lib/portico/portico.db") as db:     # or postgresql://…, or a path, or sqlite://
        await db.migrate("tasks", Path(__file__).parent / "migrations")
        task = await db.write(claim)                                        # a plain function of a Transaction
        async with db.subscribe("task") as events:
            async for event in events: ...

A completed write is durable. A cancelled write has happened completely or not at all; if it was still waiting for its
turn or for a lock, it has not happened.
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

from portico._lazy import load_module
from portico.protocol.errors import UsageError
from portico.store.connection_pool import CompletionQueue, run_transaction
from portico.store.errors import DatabaseClosed, DatabaseOpenError, StoreError
from portico.store.event_bus import EventBus, Subscription
from portico.store.keys import MEMORY, SigningKeys, load_keys
from portico.store.migrations import load_migrations, migrate
from portico.store.sqlite import SqliteEngine
from portico.store.transaction import Engine, Event, Isolation, Transaction

if TYPE_CHECKING:
    from portico.store.postgres import PostgresEngine

T = TypeVar("T")
log = logging.getLogger("portico")

# Threads with a connection each: for SQLite only the readers, for PostgreSQL all.
DEFAULT_MAX_CONNECTIONS = {"sqlite": 4, "postgresql": 8}
# Longer than any of our transactions takes; a client would give up soon after.
DEFAULT_TIMEOUT_SECONDS = 10.0
# A restarted server usually answers within seconds, so the delay stays short.
INITIAL_RETRY_DELAY_SECONDS, MAX_RETRY_DELAY_SECONDS = 0.1, 2.0


class Database:
    """Database, bound to the event loop that opened it.

    `timeout` is how many seconds a transaction waits for a lock, for conflicting transactions or for a lost server
    before it fails. `max_connections` limits the threads. `keys` sign events for other processes, instead of the keys
    of the store (see `load_keys`).
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_connections: int | None = None,
        keys: Sequence[bytes] | None = None,
    ) -> None:
        self.engine, self._address = parse_database_url(os.fspath(url))
        self._keys = keys
        self._timeout = timeout
        self._connections = max_connections or DEFAULT_MAX_CONNECTIONS[self.engine]
        self._opened: SqliteEngine | PostgresEngine | None = None
        self._bus: EventBus | None = None

    async def open(self) -> Self:
        """Open the database. Raises DatabaseOpenError."""
        if self._opened is not None:
            raise UsageError("The database is already open.")
        completions = CompletionQueue(asyncio.get_running_loop(), self._publish)
        limits: dict[str, Any] = {"timeout": self._timeout, "max_connections": self._connections}
        # psycopg is optional and slow to import, so only a PostgreSQL URL loads it.
        engine_class = SqliteEngine if self.engine == "sqlite" else _import_postgres()
        engine: SqliteEngine | PostgresEngine = engine_class(self._address, completions, **limits)
        try:
            await engine.open()
        except BaseException:
            await engine.close()
            raise
        self._opened = engine
        # The SQLite transport is accessible to one user only, so its packets need no signature.
        self._bus = EventBus(engine.event_transport(), self.signing if self.engine == "postgresql" else None)
        return self

    def load_keys(self) -> list[bytes]:
        """Return the keys of this store, which are stored outside it; the active one first."""
        return list(self._keys) if self._keys is not None else load_keys(self.engine, self._address)

    @cached_property
    def signing(self) -> SigningKeys:
        """Return keys that sign rows, for users that must not trust everything in the database."""
        return SigningKeys(self.load_keys())

    async def close(self) -> None:
        """Finish running transactions and end the subscriptions."""
        engine, self._opened = self._opened, None
        if engine is not None and self._bus is not None:
            await engine.close()
            await self._bus.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """Run a read-only function in a consistent snapshot and return its result."""
        return await self._run_transaction(fn, is_write=False)

    async def write(self, fn: Callable[[Transaction], T], *, isolation: Isolation = "serializable") -> T:
        """Run a function that writes and return its result. If it raises, nothing is written."""
        return await self._run_transaction(fn, is_write=True, isolation=isolation)

    def subscribe(self, *topics: str) -> Subscription:
        """Return a subscription to topics."""
        if self._opened is None or self._bus is None:
            raise DatabaseClosed
        return Subscription(self._bus, topics)

    async def migrate(self, history: str, directory: Path) -> list[str]:
        """Apply pending migrations of one history and return their names."""
        # Not serializable: the changes of others that committed while we waited for the lock must be visible.
        write = partial(self._run_transaction, is_write=True, isolation="read committed", rebuilds_tables=True)
        return await migrate(history, load_migrations(directory, self.engine), self.read, write)

    async def _run_transaction(self, fn: Callable[[Transaction], T], **options: Any) -> T:
        if self._opened is None:
            raise DatabaseClosed
        return await run_transaction(self._opened.submit, fn, **options)

    def _publish(self, events: list[Event]) -> None:
        if self._bus is not None:
            self._bus.publish(events)


async def retry_until_ready(start: Callable[[], Awaitable[T]]) -> T:
    """Call `start` until the store is ready. A store that is locked, full, busy or not up yet is retried and logged.

    Permanent errors are raised.
    """
    pause_seconds = INITIAL_RETRY_DELAY_SECONDS
    while True:
        try:
            return await start()
        except StoreError as failure:
            # Retrying a wrong schema or a damaged file would hide the error forever.
            if not failure.retryable:
                raise
            log.warning("waiting for the store: %s", failure)
        # Jitter, so that processes do not all return at the same moment.
        await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))
        pause_seconds = min(pause_seconds * 2, MAX_RETRY_DELAY_SECONDS)


def _import_postgres() -> type[PostgresEngine]:
    try:
        engine: type[PostgresEngine] = load_module("portico.store.postgres").PostgresEngine
    except ImportError as failure:
        raise DatabaseOpenError("PostgreSQL needs psycopg: pip install 'portico[postgres]'.") from failure
    return engine


def parse_database_url(url: str) -> tuple[Engine, str]:
    """Return the engine and the address of a database URL. Raises DatabaseOpenError."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "sqlite", url or MEMORY
    if scheme in ("postgresql", "postgres"):
        return "postgresql", url
    if scheme != "sqlite":
        raise DatabaseOpenError(
            f"unknown database scheme “{scheme}”: expected sqlite:///path/to/file.db or postgresql://host/name."
        )
    path = unquote(rest)
    if path in ("", "/:memory:", MEMORY):
        return "sqlite", MEMORY
    if not path.startswith("/"):
        raise DatabaseOpenError(
            f"invalid SQLite URL sqlite://{rest}: expected three slashes and no host, as in sqlite:///path/to/file.db."
        )
    # Some tools write four slashes for an absolute path, and a Windows drive follows the third.
    return "sqlite", re.sub(r"^/+(?=[A-Za-z]:[/\\])", "", re.sub(r"^/+", "/", path))
