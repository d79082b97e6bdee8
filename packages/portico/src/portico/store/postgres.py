"""PostgreSQL engine, for several processes and machines. Imported only when such a database is opened (psycopg).

Each thread owns a connection. Transactions are retried after serialization failures, and after a connection loss before
the commit.
"""

from __future__ import annotations

import logging
import random
import re
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psycopg
from psycopg import Connection, Cursor, IsolationLevel
from psycopg.abc import Buffer, DumperKey
from psycopg.adapt import Loader, PyFormat
from psycopg.types.array import ListDumper as PsycopgListDumper
from psycopg.types.string import TextLoader

from portico.store import errors
from portico.store.connection_pool import CompletionQueue, ConnectionThreadPool, TransactionJob, run_transaction
from portico.store.dialect import to_postgres_sql
from portico.store.errors import StoreError
from portico.store.event_bus import EventTransport
from portico.store.postgres_events import PostgresEventTransport
from portico.store.rows import Row
from portico.store.transaction import Parameters, Transaction

log = logging.getLogger("portico")

# Without these a connection to a vanished machine blocks for hours. A URL may override them.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "portico",
    "client_encoding": "UTF8",
}
# Our statements are short: compiling or parallelizing them takes longer than running them. Most pages that an index
# lookup visits are cached. With the default costs, the planner reads 200,000 entries of an index instead of looking up
# 2,400, which takes ten times as long.
_SETTINGS = (
    "select set_config('lock_timeout', %s, false), set_config('jit', 'off', false), "
    "set_config('max_parallel_workers_per_gather', '0', false), set_config('random_page_cost', '0.2', false), "
    "set_config('cpu_index_tuple_cost', '0.02', false), "
    "set_config('idle_in_transaction_session_timeout', "
    "coalesce(nullif(current_setting('idle_in_transaction_session_timeout'), '0'), %s), false)"
)
# Whether every role may create objects in a schema of the search path, as in PostgreSQL 14 and older.
_CHECK_SCHEMA = (
    "select coalesce(bool_or(has_schema_privilege('public', oid, 'create')), false) from pg_namespace "
    "where nspname = any(current_schemas(false))"
)
# A process that is idle inside a transaction for this long was suspended, and others wait for its locks. When it
# resumes, its transaction is retried.
IDLE_IN_TRANSACTION_TIMEOUT_SECONDS = 60.0
_SQLSTATE_IDLE_IN_TRANSACTION_TIMEOUT = "25P03"
_LEVELS = {"serializable": IsolationLevel.SERIALIZABLE, "read committed": IsolationLevel.READ_COMMITTED}


class NumericLoader(Loader):
    """Loads numeric as int or float: the `sum` of a bigint is numeric."""

    def load(self, data: Any) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class ListDumper(PsycopgListDumper):
    """Dumps a list for `= any(...)`, in C.

    The type is left to the server, so that lists of large and small integers share a prepared statement.
    """

    def get_key(self, obj: list[Any], format: PyFormat) -> DumperKey:
        return self.cls

    def upgrade(self, obj: list[Any], format: PyFormat) -> PsycopgListDumper:
        return self

    def dump(self, obj: list[Any]) -> Buffer | None:
        kinds = set(map(type, obj))
        if kinds == {int}:
            return f"{{{str(obj)[1:-1]}}}".encode()
        if kinds == {str}:
            text = "\0".join(obj)
            if text.count("\0") >= len(obj):
                raise errors.InvalidValue(errors.NUL_MESSAGE)
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
            return f'{{"{escaped}"}}'.encode()
        return super().dump(obj)


# Messages of a server that is reachable but cannot serve us now. libpq has no code for them.
_TOO_MANY_CONNECTIONS = re.compile(
    "too many (clients|connections)|connection slots|starting up|shutting down|in recovery|not currently accepting"
    "|not yet accepting|timeout|closed the connection|reset by peer",
    re.IGNORECASE,
)


class PostgresEngine:
    """Engine of one PostgreSQL database."""

    def __init__(self, url: str, completions: CompletionQueue, *, timeout: float, max_connections: int) -> None:
        self.timeout = 0.0  # until the first connection succeeds, so that opening fails fast
        self._url = url
        self._timeout = timeout
        self._options: dict[str, Any] = {}
        self._threads = ConnectionThreadPool(
            "portico-postgres", max_connections, lambda: PostgresConnection(self), completions
        )
        self._bus = PostgresEventTransport(self._options, self.submit)

    async def open(self) -> None:
        try:
            self._options.update(_DEFAULTS | psycopg.conninfo.conninfo_to_dict(self._url))
        except psycopg.Error:
            raise errors.DatabaseOpenError("invalid PostgreSQL URL: expected postgresql://user@host/name.") from None
        try:
            is_open = await run_transaction(self.submit, lambda tx: tx.fetch_one(bool, _CHECK_SCHEMA), is_write=False)
        except errors.ConnectionLost as failure:
            error = errors.DatabaseOpenError(str(failure))
            error.retryable = _TOO_MANY_CONNECTIONS.search(str(failure)) is not None
            raise error from failure
        if is_open:
            log.warning(
                "Every role may create objects in the schema of the PostgreSQL store, and thereby change what its "
                "statements do. Run `revoke create on schema public from public`."
            )
        self.timeout = self._timeout

    def submit(self, job: TransactionJob) -> None:
        self._threads.submit(job)

    def event_transport(self) -> EventTransport:
        return self._bus

    async def close(self) -> None:
        await self._bus.flush()
        await self._threads.close()

    def connect(self) -> Connection:
        try:
            # Autocommit until the settings are made: a transaction would take two more round trips.
            connection = psycopg.connect(**self._options, autocommit=True)
            connection.adapters.register_dumper(list, ListDumper)
            connection.adapters.register_loader("numeric", NumericLoader)
            for kind in ("json", "jsonb"):
                connection.adapters.register_loader(kind, TextLoader)  # `rows.py` decodes it
            connection.execute(
                _SETTINGS,
                [f"{seconds * 1000:.0f}" for seconds in (self._timeout, IDLE_IN_TRANSACTION_TIMEOUT_SECONDS)],
            )
            connection.autocommit = False
        except psycopg.Error as failure:
            # libpq's message contains the host and the user, never the password.
            raise errors.ConnectionLost(f"cannot reach the PostgreSQL server: {str(failure).strip()}") from failure
        return connection


class PostgresConnection:
    """Connection of one thread, reopened after a loss."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    def run_jobs(self, jobs: list[TransactionJob], take_queued: Callable[[], TransactionJob | None]) -> None:
        deadline = time.monotonic() + self._engine.timeout
        delay = 0.001
        while not jobs[0].is_cancelled:
            try:
                return self._attempt(jobs[0])
            # Never retried: the transaction may have been committed, and would then run twice.
            except errors.CommitOutcomeUnknown:
                raise
            except (errors.SerializationConflict, errors.ConnectionLost):
                if time.monotonic() >= deadline:
                    raise
            # Jitter: two transactions that conflict must not meet again at the next attempt.
            time.sleep(delay * (0.5 + random.random()))
            delay = min(delay * 2, 0.25)

    def on_idle(self) -> None:
        """End a read-only transaction after the caller has its result."""
        self._roll_back()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempt(self, job: TransactionJob) -> None:
        connection = self._connection = self._connection or self._engine.connect()
        tx = PostgresTransaction(connection, job)
        try:
            connection.isolation_level = _LEVELS[job.isolation] if job.is_write else IsolationLevel.REPEATABLE_READ
            # A snapshot for the whole function, as SQLite gives it, and an error for a write by mistake.
            connection.read_only = not job.is_write
            value = tx.run_function(job.fn)
        except BaseException as failure:
            self._roll_back()
            if (
                isinstance(tx.failure, errors.SerializationConflict | errors.ConnectionLost)
                and failure is not tx.failure
            ):
                raise tx.failure from failure  # regardless of how the function handled it
            raise
        if job.is_write:
            self._commit(connection)
        job.complete(value, events=tx.events)

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except psycopg.Error as failure:
            self._roll_back()
            error = translate_postgres_error(failure)
            # A transaction ended for being idle was not committed.
            if isinstance(error, errors.ConnectionLost) and failure.sqlstate != _SQLSTATE_IDLE_IN_TRANSACTION_TIMEOUT:
                raise errors.CommitOutcomeUnknown(
                    "The connection to PostgreSQL was lost during the commit. Check whether it was written "
                    "before retrying."
                ) from failure
            raise error from failure

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.rollback()
            except psycopg.Error:
                self.close()


class PostgresTransaction(Transaction):
    engine = "postgresql"

    driver_errors = (psycopg.Error, UnicodeError, StoreError)

    def __init__(self, connection: Connection, job: TransactionJob) -> None:
        super().__init__(job.is_write)
        self._connection = connection
        self._job = job
        self._has_begun = False

    @property
    def is_active(self) -> bool:
        return not self._connection.closed

    def advisory_lock(self, name: str) -> None:
        # Qualified: a role that may create functions in the schema could otherwise define one for other types of
        # arguments, which PostgreSQL would prefer and run with our rights.
        lock = "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(:name, 0))"
        self.fetch_one(str, f"select cast({lock} as text)", {"name": name})

    def now(self) -> float:
        return self.fetch_one(float, "select extract(epoch from clock_timestamp())::double precision")

    def analyze(self, *tables: str) -> None:
        self.execute(f"analyze {', '.join(tables)}")

    def _execute_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        rows = list(rows)
        if not rows:
            return 0
        with self._connection.cursor() as cursor:
            cursor.executemany(to_postgres_sql(sql, isinstance(rows[0], Mapping)), rows)
            self._note_progress(cursor)
            return cursor.rowcount

    def _execute(self, sql: str, parameters: Parameters) -> Cursor[Row]:
        if parameters:
            cursor = self._connection.execute(to_postgres_sql(sql, isinstance(parameters, Mapping)), parameters)
        else:
            cursor = self._connection.execute(sql.encode())  # no parameters, so nothing is escaped
        self._note_progress(cursor)
        return cursor

    def _note_progress(self, cursor: Cursor[Any]) -> None:
        """Record that the transaction has begun, with the first statement that changes something.

        Any statement may wait for locks. Raises `CancelledError` if the caller was cancelled before the transaction had
        begun.
        """
        if not self._has_begun and self._job.is_cancelled:
            raise CancelledError
        self._has_begun = self._has_begun or not (cursor.statusmessage or "").startswith("SELECT")

    def _execute_script(self, sql: str, _: Any) -> None:
        self._connection.execute(sql.encode())

    def _translate_error(self, failure: Exception) -> StoreError:
        return translate_postgres_error(failure)


# By SQLSTATE, or its prefix for a class (PostgreSQL 15, appendix A).
_ERRORS_BY_SQLSTATE: dict[str, tuple[type[StoreError], str]] = {
    "08": (errors.ConnectionLost, "The connection to PostgreSQL was lost: {detail}"),
    "22": (errors.InvalidValue, "The database cannot hold this value: {detail}"),
    _SQLSTATE_IDLE_IN_TRANSACTION_TIMEOUT: (
        errors.ConnectionLost,
        "The PostgreSQL server ended the connection: {detail}",
    ),
    "25006": (errors.ReadOnlyDatabase, "The PostgreSQL server or this transaction is read-only: {detail}"),
    "40": (errors.SerializationConflict, "Others changed the same rows, on every attempt: {detail}"),
    "53": (errors.ConnectionLost, "The PostgreSQL server is out of resources: {detail}"),
    "53100": (errors.DiskFull, "The disk of the PostgreSQL server is full. Free some space and retry."),
    "55P03": (errors.LockTimeout, "Another transaction held the same rows for too long."),
    "57014": (errors.LockTimeout, "The PostgreSQL server cancelled a statement: {detail}"),
    "57P": (errors.ConnectionLost, "The PostgreSQL server ended the connection: {detail}"),
    "58": (errors.DiskError, "The disk of the PostgreSQL server failed: {detail}"),
    "XX001": (errors.DatabaseCorrupt, "The PostgreSQL server reports damaged data: {detail}"),
    "XX002": (errors.DatabaseCorrupt, "The PostgreSQL server reports a damaged index: {detail}"),
}

_RULES_BY_SQLSTATE: dict[str, errors.ConstraintRule] = {
    "23505": "unique",
    "23503": "foreign key",
    "23514": "check",
    "23502": "not null",
}


def translate_postgres_error(failure: Exception) -> StoreError:
    """Convert an error of the driver into a StoreError."""
    if isinstance(failure, StoreError):
        return failure
    if isinstance(failure, psycopg.DataError) and "NUL" in str(failure) and not failure.sqlstate:
        return errors.InvalidValue(errors.NUL_MESSAGE)
    if not isinstance(failure, psycopg.Error) or (isinstance(failure, psycopg.DataError) and not failure.sqlstate):
        return errors.InvalidValue(f"The database cannot hold this value: {failure}")
    state = failure.sqlstate
    if state is None:  # raised by the driver
        if isinstance(failure, psycopg.OperationalError):
            return errors.ConnectionLost(f"The connection to PostgreSQL was lost: {failure}")
        return errors.InvalidStatement(str(failure))
    if state.startswith("23"):
        return _constraint_violation(_RULES_BY_SQLSTATE.get(state, ""), failure.diag)
    kind, words = next(
        (_ERRORS_BY_SQLSTATE[state[:n]] for n in (5, 3, 2) if state[:n] in _ERRORS_BY_SQLSTATE),
        (errors.InvalidStatement, "{detail}"),
    )
    return kind(words.format(detail=failure.diag.message_primary or failure))


def _constraint_violation(rule: errors.ConstraintRule, diagnostics: Any) -> errors.ConstraintViolation:
    """Build the error from the server's diagnostics.

    The detail is `Key (owner, name)=(1, x) already exists.`, possibly localized; only the columns are used, because the
    values may be confidential.
    """
    key = re.search(r"\(([^()]*)\)=\(", diagnostics.message_detail or "")
    columns = tuple(key[1].split(", ")) if key else tuple(filter(None, [diagnostics.column_name]))
    kind = errors.UniqueViolation if rule == "unique" else errors.ConstraintViolation
    return kind(rule, table=diagnostics.table_name or "", columns=columns, constraint=diagnostics.constraint_name or "")
