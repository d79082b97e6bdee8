"""PostgreSQL: for several processes and machines. psycopg is imported when a database is opened.

A few threads have a connection each. A transaction that the server refuses because of others is run again, and so is
one whose connection was lost before the commit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from portico.store.bus import Route
from portico.store.crew import Crew, Job, Outbox, perform
from portico.store.errors import CannotOpen, Conflict, ConnectionLost, OutcomeUnknown
from portico.store.notifications import Notifications
from portico.store.postgres_transaction import PostgresTransaction, explain

if TYPE_CHECKING:
    from psycopg import Connection

# Without these a connection to a machine that has vanished is waited on for hours. A URL may say otherwise.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "portico",
}


class Postgres:
    """The engine of one database on a server."""

    def __init__(self, url: str, outbox: Outbox, *, patience: float, connections: int) -> None:
        self.patience = 0.0  # until it has been there once
        self._url = url
        self._most_patience = patience
        self._options: dict[str, Any] = {}
        self._crew = Crew("portico-postgres", connections, lambda: Session(self), outbox)
        self._notifications = Notifications(self._options, self.submit)

    async def open(self) -> None:
        try:
            import psycopg
        except ImportError as failure:
            raise CannotOpen("PostgreSQL needs psycopg: pip install 'portico[postgres]'.") from failure
        try:
            self._options.update(_DEFAULTS | psycopg.conninfo.conninfo_to_dict(self._url))
        except psycopg.Error:
            raise CannotOpen("This is not the address of a PostgreSQL database: postgresql://user@host/name.") from None
        try:
            await perform(self.submit, lambda tx: tx.one(int, "select 1"), writes=False)
        except ConnectionLost as failure:
            raise CannotOpen(str(failure)) from failure
        self.patience = self._most_patience

    def submit(self, job: Job) -> None:
        self._crew.submit(job)

    def route(self) -> Route:
        return self._notifications

    async def close(self) -> None:
        await self._notifications.flush()
        await self._crew.close()

    def connect(self) -> Connection:
        import psycopg
        from psycopg.adapt import Loader
        from psycopg.types.string import TextLoader

        class NumberLoader(Loader):
            """`sum` of a bigint is numeric."""

            def load(self, data: Any) -> int | float:
                text = bytes(data)
                return int(text) if text.lstrip(b"-").isdigit() else float(text)

        try:
            connection = psycopg.connect(**self._options)
            connection.adapters.register_loader("numeric", NumberLoader)
            for kind in ("json", "jsonb"):
                connection.adapters.register_loader(kind, TextLoader)  # `rows.py` reads it
            longest = str(int(self._most_patience * 1000))
            connection.execute("select set_config('lock_timeout', %s, false)", [longest])
            connection.commit()
        except psycopg.Error as failure:
            # What libpq says names the host and the user, never the password.
            raise ConnectionLost(f"The PostgreSQL server cannot be reached: {str(failure).strip()}") from failure
        return connection


class Session:
    """One thread's connection, made anew when it is lost."""

    def __init__(self, engine: Postgres) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    def perform(self, jobs: list[Job], more: Callable[[], Job | None]) -> None:
        until = time.monotonic() + self._engine.patience
        pause = 0.001
        while True:
            try:
                return self._attempt(jobs[0])
            except OutcomeUnknown:
                raise
            except (Conflict, ConnectionLost):
                if time.monotonic() >= until:
                    raise
            time.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 0.25)

    def rest(self) -> None:
        """The end of a transaction that only read: nobody has to wait for it."""
        self._roll_back()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, job: Job) -> None:
        from psycopg import IsolationLevel

        connection = self._connection = self._connection or self._engine.connect()
        if not job.writes:
            level = IsolationLevel.REPEATABLE_READ
        else:
            serial = job.isolation == "serializable"
            level = IsolationLevel.SERIALIZABLE if serial else IsolationLevel.READ_COMMITTED
        tx = PostgresTransaction(connection, writes=job.writes)
        try:
            connection.isolation_level = level
            connection.read_only = not job.writes
            value = tx.perform(job.fn)
        except BaseException as failure:
            self._roll_back()
            if isinstance(tx.failure, Conflict | ConnectionLost) and failure is not tx.failure:
                raise tx.failure from failure  # whatever the function has made of it
            raise
        if job.writes:
            self._commit(connection)
        job.end(value, events=tx.events)

    def _commit(self, connection: Connection) -> None:
        from psycopg import Error

        try:
            connection.commit()
        except Error as failure:
            self._roll_back()
            explained = explain(failure)
            if isinstance(explained, ConnectionLost):
                raise OutcomeUnknown(
                    "The PostgreSQL server went away while it was committing. Look whether it has before you try again."
                ) from failure
            raise explained from failure

    def _roll_back(self) -> None:
        from psycopg import Error

        if self._connection is not None:
            try:
                self._connection.rollback()
            except Error:
                self.close()
