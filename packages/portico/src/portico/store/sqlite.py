"""SQLite engine, the embedded default.

One thread writes and several read; in WAL mode neither side waits for the other. Transactions that are queued for the
writer are committed as a group. `:memory:` has one connection, so there the writer thread also reads.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from portico.store.connection_pool import CompletionQueue, ConnectionThreadPool, TransactionJob, run_transaction
from portico.store.errors import DatabaseOpenError, ReadOnlyDatabase
from portico.store.event_bus import EventTransport
from portico.store.keys import MEMORY
from portico.store.sqlite_events import SqliteEventTransport
from portico.store.sqlite_transaction import SqliteTransaction, translate_sqlite_error

log = logging.getLogger("portico")

_MIN_SQLITE_VERSION = (3, 35, 0)  # introduced `returning`

# synchronous: with NORMAL a commit survives the process but not a power failure (docs/decisions/store.md); macOS also
# needs fullfsync. case_sensitive_like: as on PostgreSQL.
_PRAGMAS = ("synchronous = full", "fullfsync = on", "foreign_keys = on", "case_sensitive_like = on")
# After a checkpoint the log is truncated to this size, so that one bulk import does not occupy the disk forever.
_MAX_WAL_BYTES = 64 * 1024 * 1024
# For new files only. With 4 KiB, bulk writes touch twice as many pages.
_PAGE_SIZE_BYTES = 8192
# In pages. A checkpoint takes several syncs, and a commit at that moment waits for them.
_CHECKPOINT_PAGES = 8000
# In KiB. Writes touch pages of many indexes in random order.
_WRITER_CACHE_KIB = 8000
# Transactions that change this many rows leave a long log.
_CHECKPOINT_AFTER_ROWS = 20_000
# One sync of the disk serves the whole group, but its first caller waits for the last one.
_MAX_TRANSACTIONS_PER_COMMIT = 256
_MAX_GROUP_COMMIT_SECONDS = 0.02


class SqliteEngine:
    """Engine of one SQLite file."""

    def __init__(self, path: str, completions: CompletionQueue, *, timeout: float, max_connections: int) -> None:
        self._path = path
        self._timeout = timeout
        self._writer = ConnectionThreadPool("portico-write", 1, self._new_writer, completions, idle_timeout=None)
        self._readers = self._writer
        if path != MEMORY:
            self._readers = ConnectionThreadPool("portico-read", max_connections, self._new_reader, completions)

    async def open(self) -> None:
        await run_transaction(self._writer.submit, lambda tx: None, is_write=False)

    def submit(self, job: TransactionJob) -> None:
        (self._writer if job.is_write else self._readers).submit(job)

    def event_transport(self) -> EventTransport | None:
        return None if self._path == MEMORY or not hasattr(socket, "AF_UNIX") else SqliteEventTransport(self._path)

    async def close(self) -> None:
        # The last connection to close truncates the log, and only a writer can.
        await self._readers.close()
        await self._writer.close()

    def _new_reader(self) -> SqliteReader:
        return SqliteReader(self._connect("query_only = on", timeout=self._timeout), self._path)

    def _new_writer(self) -> SqliteWriter:
        if _is_empty(self._path):
            log.warning(
                "%s is empty and becomes a new store. If it was a store before, stop now and restore a backup.",
                self._path,
            )
        # The writer waits in `execute_with_retry` instead.
        wal = (
            "journal_mode = wal",
            f"journal_size_limit = {_MAX_WAL_BYTES}",
            f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        )
        pages = (f"page_size = {_PAGE_SIZE_BYTES}", *wal, f"cache_size = -{_WRITER_CACHE_KIB}")
        connection = self._connect(*pages, timeout=0.0)
        if connection.execute("pragma journal_mode").fetchone() != ("wal",) and self._path != MEMORY:
            connection.close()
            raise DatabaseOpenError(f"{self._path} is on a file system that does not support SQLite's write-ahead log.")
        return SqliteWriter(connection, self._path, self._timeout)

    def _connect(self, *pragmas: str, timeout: float) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _MIN_SQLITE_VERSION:
            raise DatabaseOpenError(f"SQLite 3.35 or newer is required, but this Python has {sqlite3.sqlite_version}.")
        exists = self._path == MEMORY or os.path.exists(self._path)
        try:
            connection = sqlite3.connect(self._path, timeout=timeout, isolation_level=None, cached_statements=256)
        except sqlite3.Error as failure:
            raise translate_sqlite_error(failure, self._path) from failure
        try:
            if not exists:
                # Stored data is private; SQLite creates its other files with the same mode. Creating the file ourselves
                # would mean closing it, and closing a file drops all locks of the process on it.
                os.chmod(self._path, 0o600)
            for pragma in (*pragmas, *_PRAGMAS):
                execute_with_retry(connection, f"pragma {pragma}", self._timeout)
            # Opening does not read the file; this does.
            execute_with_retry(connection, "select count(*) from sqlite_master", self._timeout)
        except (sqlite3.Error, OSError, UnicodeError, OverflowError) as failure:
            connection.close()
            raise translate_sqlite_error(failure, self._path) from failure
        return connection


def _is_empty(path: str) -> bool:
    """Return whether a file has no bytes and no write-ahead log next to it."""
    try:
        return os.path.getsize(path) == 0 and not os.path.exists(f"{path}-wal") and os.path.isfile(path)
    except OSError:
        return False


class _SqliteConnection:
    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def on_idle(self) -> None: ...

    def close(self) -> None:
        self._connection.close()


class SqliteWriter(_SqliteConnection):
    """Writer with group commit.

    A transaction is reported as successful only after the commit. The first one of a group runs without a savepoint;
    the others have one each, for which SQLite copies every page that they change.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, timeout: float) -> None:
        super().__init__(connection, path)
        self._timeout = timeout
        self._rebuild: TransactionJob | None = None
        # Whether to run a checkpoint after the callers have their results.
        self._needs_checkpoint = False

    def on_idle(self) -> None:
        if self._needs_checkpoint:
            self._needs_checkpoint = False
            try:
                self._connection.execute(f"pragma wal_autocheckpoint = {_CHECKPOINT_PAGES}")
                self._connection.execute("pragma wal_checkpoint").fetchone()
            except sqlite3.Error:
                log.debug("the checkpoint of %s is postponed", self._path, exc_info=True)

    def run_jobs(self, jobs: list[TransactionJob], take_queued: Callable[[], TransactionJob | None]) -> None:
        if jobs[0].rebuilds_tables:
            self._rebuild = jobs[0]
        else:
            self._write(jobs, take_queued if jobs[0].is_write else None)
            if self._rebuild is not None:
                jobs.append(self._rebuild)
        if self._rebuild is not None:
            job, self._rebuild = self._rebuild, None
            # The pragma has no effect within a transaction.
            self._connection.execute("pragma foreign_keys = off")
            try:
                self._write([job], None)
            finally:
                self._connection.execute("pragma foreign_keys = on")

    def _write(self, jobs: list[TransactionJob], take_queued: Callable[[], TransactionJob | None] | None) -> None:
        """Write all jobs, or, if the group fails, each one separately."""
        try:
            execute_with_retry(self._connection, "begin immediate" if jobs[0].is_write else "begin", self._timeout)
        except sqlite3.Error as failure:
            # The queued jobs waited for the same lock.
            while take_queued is not None and (job := take_queued()) is not None:
                jobs.append(job)
            for job in jobs:
                job.complete(error=translate_sqlite_error(failure, self._path))
            return
        try:
            self._commit(jobs, take_queued)
        except BaseException as failure:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            if not isinstance(failure, sqlite3.Error):
                raise
            if len(jobs) == 1:
                jobs[0].complete(error=translate_sqlite_error(failure, self._path))
                return
            # A full disk, or a deferred constraint, rolled back the whole group. Write each job separately, so that
            # only the cause fails.
            for job in jobs:
                self._write([job], None)

    def _commit(self, jobs: list[TransactionJob], take_queued: Callable[[], TransactionJob | None] | None) -> None:
        deadline = time.monotonic() + _MAX_GROUP_COMMIT_SECONDS
        changes = self._connection.total_changes
        # The first needs no savepoint: if it fails, there is nothing else to preserve.
        self._attempt(jobs[0], "rollback")
        while take_queued is not None and self._connection.in_transaction:
            if (
                len(jobs) == _MAX_TRANSACTIONS_PER_COMMIT
                or time.monotonic() > deadline
                or (job := take_queued()) is None
            ):
                break
            # Runs alone after this group, because foreign keys are off during a migration.
            if job.rebuilds_tables:
                self._rebuild = job
                break
            jobs.append(job)
            self._connection.execute("savepoint job")
            self._attempt(job, "rollback to job")
            if self._connection.in_transaction:
                self._connection.execute("release job")
        if self._connection.in_transaction:
            if self._connection.total_changes - changes >= _CHECKPOINT_AFTER_ROWS:
                # Otherwise SQLite would run the checkpoint before the commit returns.
                self._needs_checkpoint = True
                self._connection.execute("pragma wal_autocheckpoint = 0")
            self._connection.execute("commit")
        elif len(jobs) > 1:
            raise sqlite3.OperationalError("SQLite rolled back the transaction")

    def _attempt(self, job: TransactionJob, undo: str) -> None:
        if job.is_cancelled:  # cancelled while the database was locked
            return
        connection = self._connection
        changes = connection.total_changes
        tx = SqliteTransaction(connection, self._path, is_write=job.is_write)
        try:
            job.complete(tx.run_function(job.fn), events=tx.events)
            if not job.is_write and connection.total_changes != changes:
                raise ReadOnlyDatabase("This transaction is read-only.")
        except BaseException as failure:
            job.complete(error=failure)
            if connection.in_transaction:
                connection.execute(undo)


class SqliteReader(_SqliteConnection):
    """Read-only connection."""

    def run_jobs(self, jobs: list[TransactionJob], take_queued: Callable[[], TransactionJob | None]) -> None:
        # A transaction, so that all statements see the same snapshot.
        self._connection.execute("begin")
        try:
            jobs[0].complete(SqliteTransaction(self._connection, self._path, is_write=False).run_function(jobs[0].fn))
        finally:
            if self._connection.in_transaction:
                self._connection.execute("rollback")


def execute_with_retry(connection: sqlite3.Connection, sql: str, timeout: float) -> Any:
    """Execute a statement that needs a lock, retrying while another process holds it.

    SQLite's own busy handler waits up to a tenth of a second between attempts. A busy process leaves much shorter gaps,
    so this retries more often.
    """
    deadline = time.monotonic() + timeout
    delay = 0.0005
    while True:
        try:
            return connection.execute(sql).fetchone()
        except sqlite3.OperationalError as failure:
            # The low byte is the primary code; SQLITE_BUSY has extended variants.
            if failure.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(delay * (0.5 + random.random()))
        delay = min(delay * 1.5, 0.005)
