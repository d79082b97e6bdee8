"""PostgreSQL: for several processes and machines. Needs psycopg, so it is loaded when such a database is opened.

A few threads have a connection each. A transaction that the server refuses because of others is run again, and so is
one whose connection was lost before the commit.
"""

from __future__ import annotations

import random
import re
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg
from psycopg import Connection, Cursor, IsolationLevel
from psycopg.adapt import Loader
from psycopg.types.string import TextLoader

from portico.store import errors
from portico.store.connection_pool import CompletionQueue, ThreadPool, TransactionJob, perform
from portico.store.dialect import for_postgres
from portico.store.errors import StoreError
from portico.store.event_bus import Route
from portico.store.postgres_events import PostgresBus
from portico.store.rows import Row
from portico.store.transaction import Parameters, Transaction

# Without these a connection to a machine that has vanished is waited on for hours. A URL may say otherwise.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "portico",
}
# What we ask is brief: to compile a statement, or to start processes for it, takes longer than the statement does.
_SETTINGS = (
    "select set_config('lock_timeout', %s, false), set_config('jit', 'off', false), "
    "set_config('max_parallel_workers_per_gather', '0', false), set_config('random_page_cost', '1.1', false), "
    "set_config('idle_in_transaction_session_timeout', "
    "coalesce(nullif(current_setting('idle_in_transaction_session_timeout'), '0'), %s), false)"
)
# A transaction says its statements one after the other. A process that is silent for so long inside of one was stopped,
# and others wait for what it has locked. When it goes on, its transaction is run again.
IDLE_SECONDS = 60.0
_SILENT = "25P03"
_LEVELS = {"serializable": IsolationLevel.SERIALIZABLE, "read committed": IsolationLevel.READ_COMMITTED}


class NumberLoader(Loader):
    """`sum` of a bigint is numeric."""

    def load(self, data: Any) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


# What a server says that is there and cannot serve us now. libpq has no code for it.
_BUSY = re.compile(
    "too many (clients|connections)|connection slots|starting up|shutting down|in recovery|not currently accepting"
    "|not yet accepting|timeout|closed the connection|reset by peer",
    re.IGNORECASE,
)


class Postgres:
    """The engine of one database on a server."""

    def __init__(self, url: str, completions: CompletionQueue, *, patience: float, connections: int) -> None:
        self.patience = 0.0  # until the server has answered once
        self._url = url
        self._most_patience = patience
        self._options: dict[str, Any] = {}
        self._threads = ThreadPool("portico-postgres", connections, lambda: PostgresConnection(self), completions)
        self._bus = PostgresBus(self._options, self.submit)

    async def open(self) -> None:
        try:
            self._options.update(_DEFAULTS | psycopg.conninfo.conninfo_to_dict(self._url))
        except psycopg.Error:
            raise errors.CannotOpen(
                "This is not the address of a PostgreSQL database: postgresql://user@host/name."
            ) from None
        try:
            await perform(self.submit, lambda tx: tx.one(int, "select 1"), writes=False)
        except errors.ConnectionLost as failure:
            refused = errors.CannotOpen(str(failure))
            refused.passing = _BUSY.search(str(failure)) is not None
            raise refused from failure
        self.patience = self._most_patience

    def submit(self, job: TransactionJob) -> None:
        self._threads.submit(job)

    def route(self) -> Route:
        return self._bus

    async def close(self) -> None:
        await self._bus.flush()
        await self._threads.close()

    def connect(self) -> Connection:
        try:
            connection = psycopg.connect(**self._options)
            connection.adapters.register_loader("numeric", NumberLoader)
            for kind in ("json", "jsonb"):
                connection.adapters.register_loader(kind, TextLoader)  # `rows.py` reads it
            connection.execute(_SETTINGS, [f"{seconds * 1000:.0f}" for seconds in (self._most_patience, IDLE_SECONDS)])
            connection.commit()
        except psycopg.Error as failure:
            # What libpq says names the host and the user, never the password.
            raise errors.ConnectionLost(f"The PostgreSQL server cannot be reached: {str(failure).strip()}") from failure
        return connection


class PostgresConnection:
    """One thread's connection, made anew when it is lost."""

    def __init__(self, engine: Postgres) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    def perform(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None]) -> None:
        until = time.monotonic() + self._engine.patience
        pause = 0.001
        while not jobs[0].dropped:
            try:
                return self._attempt(jobs[0])
            except errors.OutcomeUnknown:
                raise
            except (errors.Conflict, errors.ConnectionLost):
                if time.monotonic() >= until:
                    raise
            time.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 0.25)

    def rest(self) -> None:
        """End a transaction that only read: its caller need not wait for that."""
        self._roll_back()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, job: TransactionJob) -> None:
        connection = self._connection = self._connection or self._engine.connect()
        tx = PostgresTransaction(connection, job)
        try:
            connection.isolation_level = _LEVELS[job.isolation] if job.writes else IsolationLevel.REPEATABLE_READ
            connection.read_only = not job.writes
            value = tx.perform(job.fn)
        except BaseException as failure:
            self._roll_back()
            if isinstance(tx.failure, errors.Conflict | errors.ConnectionLost) and failure is not tx.failure:
                raise tx.failure from failure  # whatever the function has made of it
            raise
        if job.writes:
            self._commit(connection)
        job.end(value, events=tx.events)

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except psycopg.Error as failure:
            self._roll_back()
            explained = explain(failure)
            # One that was silent for too long was ended before it had said that it commits.
            if isinstance(explained, errors.ConnectionLost) and failure.sqlstate != _SILENT:
                raise errors.OutcomeUnknown(
                    "The PostgreSQL server went away while it was committing. Look whether it has before you try again."
                ) from failure
            raise explained from failure

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.rollback()
            except psycopg.Error:
                self.close()


class PostgresTransaction(Transaction):
    engine = "postgresql"

    failures = (psycopg.Error, UnicodeError, StoreError)

    def __init__(self, connection: Connection, job: TransactionJob) -> None:
        super().__init__(job.writes)
        self._connection = connection
        self._job = job
        self._has_begun = False

    @property
    def alive(self) -> bool:
        return not self._connection.closed

    def lock(self, name: str) -> None:
        self.one(str, "select cast(pg_advisory_xact_lock(hashtextextended(:name, 0)) as text)", {"name": name})

    def now(self) -> float:
        return self.one(float, "select extract(epoch from clock_timestamp())::double precision")

    def analyze(self, *tables: str) -> None:
        self.run(f"analyze {', '.join(tables)}")

    def _many(self, sql: str, rows: Iterable[Parameters]) -> int:
        rows = list(rows)
        if not rows:
            return 0
        with self._connection.cursor() as cursor:
            cursor.executemany(for_postgres(sql, isinstance(rows[0], Mapping)), rows)
            self._answered(cursor)
            return cursor.rowcount

    def _execute(self, sql: str, parameters: Parameters) -> Cursor[Row]:
        if parameters:
            cursor = self._connection.execute(for_postgres(sql, isinstance(parameters, Mapping)), parameters)
        else:
            cursor = self._connection.execute(sql.encode())  # in which nothing is a parameter
        self._answered(cursor)
        return cursor

    def _answered(self, cursor: Cursor[Any]) -> None:
        """Any statement may have to wait for what others have locked, so the transaction has begun when the first one
        that changes something was answered. Raises CancelledError if its caller does not wait for it any more."""
        if not self._has_begun and self._job.dropped:
            raise CancelledError
        self._has_begun = self._has_begun or not (cursor.statusmessage or "").startswith("SELECT")

    def _script(self, sql: str, _: Any) -> None:
        self._connection.execute(sql.encode())

    def _explain(self, failure: Exception) -> StoreError:
        return explain(failure)


# By SQLSTATE, or its first two letters for a class of them (PostgreSQL 15, appendix A).
_SAID: dict[str, tuple[type[StoreError], str]] = {
    "08": (errors.ConnectionLost, "The connection to PostgreSQL was lost: {said}"),
    "22": (errors.UnfitValue, "The database cannot hold this value: {said}"),
    _SILENT: (errors.ConnectionLost, "The PostgreSQL server ended the connection: {said}"),
    "25006": (errors.ReadOnly, "The PostgreSQL server, or this transaction, is for reading only: {said}"),
    "40": (errors.Conflict, "Others changed the same rows, each time this was tried: {said}"),
    "53": (errors.ConnectionLost, "The PostgreSQL server has no more to give: {said}"),
    "53100": (errors.DiskFull, "There is no room on the disk of the PostgreSQL server. Make some, and write again."),
    "55P03": (errors.Locked, "Another transaction has held the same rows for too long."),
    "57014": (errors.Locked, "The PostgreSQL server gave up on a statement: {said}"),
    "57P": (errors.ConnectionLost, "The PostgreSQL server ended the connection: {said}"),
    "58": (errors.DiskFailed, "The disk of the PostgreSQL server failed: {said}"),
    "XX001": (errors.Damaged, "The PostgreSQL server found its own data damaged: {said}"),
    "XX002": (errors.Damaged, "The PostgreSQL server found an index damaged: {said}"),
}

_VIOLATED: dict[str, type[errors.Violated]] = {
    "23505": errors.NotUnique,
    "23503": errors.NoParent,
    "23514": errors.CheckFailed,
    "23502": errors.NotNull,
}


def explain(failure: Exception) -> StoreError:
    if isinstance(failure, StoreError):
        return failure
    if not isinstance(failure, psycopg.Error) or (isinstance(failure, psycopg.DataError) and not failure.sqlstate):
        return errors.UnfitValue(f"The database cannot hold this value: {failure}")
    state = failure.sqlstate
    if state is None:  # it was said by the driver
        if isinstance(failure, psycopg.OperationalError):
            return errors.ConnectionLost(f"The connection to PostgreSQL was lost: {failure}")
        return errors.BadStatement(str(failure))
    if state.startswith("23"):
        return _violated(_VIOLATED.get(state, errors.Violated), failure.diag)
    kind, words = next((_SAID[state[:n]] for n in (5, 3, 2) if state[:n] in _SAID), (errors.BadStatement, "{said}"))
    return kind(words.format(said=failure.diag.message_primary or failure))


def _violated(kind: type[errors.Violated], told: Any) -> errors.Violated:
    """The detail is `Key (owner, name)=(1, x) already exists.`, in the server's language; the values are not ours to
    show."""
    key = re.search(r"\(([^()]*)\)=\(", told.message_detail or "")
    columns = tuple(key[1].split(", ")) if key else tuple(filter(None, [told.column_name]))
    return kind(table=told.table_name or "", columns=columns, constraint=told.constraint_name or "")
