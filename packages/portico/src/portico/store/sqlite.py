"""SQLite: the embedded default.

One thread writes, a few read; in WAL mode neither side waits for the other. Transactions that wait for the writer at
the same moment become one commit. `:memory:` has one connection, so there the thread that writes also reads.
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

from portico.store.connection_pool import CompletionQueue, ThreadPool, TransactionJob, perform
from portico.store.errors import CannotOpen, ReadOnly
from portico.store.event_bus import Route
from portico.store.keys import MEMORY
from portico.store.sqlite_events import SqliteBus
from portico.store.sqlite_transaction import SqliteTransaction, explain_sqlite

log = logging.getLogger("portico")

_OLDEST = (3, 35, 0)  # has `returning`

# synchronous: with NORMAL a commit would survive the process but not the power (docs/decisions/store.md); fullfsync is
# what it takes on macOS. case_sensitive_like: as on PostgreSQL.
_PRAGMAS = ("synchronous = full", "fullfsync = on", "foreign_keys = on", "case_sensitive_like = on")
_LONGEST_LOG = 64 * 1024 * 1024
# Of a new file; others keep theirs. With 4 KiB what writes very many rows handles twice as many pages.
_PAGE = 8192
# In pages. To write the log back takes several syncs, and a commit at that moment waits for them.
_CHECKPOINT = 8000
# In KiB. What writes touches pages of many indexes, in no order.
_WRITERS_CACHE = 8000
# A transaction that changes so many rows leaves a long log.
_MANY_ROWS = 20_000
_MOST_IN_A_COMMIT = 256
_LONGEST_COMMIT_SECONDS = 0.02


class Sqlite:
    """The engine of one file."""

    def __init__(self, path: str, completions: CompletionQueue, *, patience: float, connections: int) -> None:
        self._path = path
        self._patience = patience
        self._writer = ThreadPool("portico-write", 1, self._new_writer, completions, idle=None)
        self._readers = self._writer
        if path != MEMORY:
            self._readers = ThreadPool("portico-read", connections, self._new_reader, completions)

    async def open(self) -> None:
        await perform(self._writer.submit, lambda tx: None, writes=False)

    def submit(self, job: TransactionJob) -> None:
        (self._writer if job.writes else self._readers).submit(job)

    def route(self) -> Route | None:
        return None if self._path == MEMORY or not hasattr(socket, "AF_UNIX") else SqliteBus(self._path)

    async def close(self) -> None:
        # The last connection to close tidies up the log, and only a writer can.
        await self._readers.close()
        await self._writer.close()

    def _new_reader(self) -> SqliteReader:
        return SqliteReader(self._connect("query_only = on", patience=self._patience), self._path)

    def _new_writer(self) -> SqliteWriter:
        if _is_empty(self._path):
            log.warning(
                "%s is empty, and becomes a new store. If it was one before, stop now and restore a backup.", self._path
            )
        # This one does its waiting in `patiently`.
        wal = ("journal_mode = wal", f"journal_size_limit = {_LONGEST_LOG}", f"wal_autocheckpoint = {_CHECKPOINT}")
        pages = (f"page_size = {_PAGE}", *wal, f"cache_size = -{_WRITERS_CACHE}")
        connection = self._connect(*pages, patience=0.0)
        if connection.execute("pragma journal_mode").fetchone() != ("wal",) and self._path != MEMORY:
            connection.close()
            raise CannotOpen(f"{self._path} is on a file system where SQLite cannot have a write-ahead log.")
        return SqliteWriter(connection, self._path, self._patience)

    def _connect(self, *pragmas: str, patience: float) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise CannotOpen(f"This Python has SQLite {sqlite3.sqlite_version}; 3.35 or newer is needed.")
        found = self._path == MEMORY or os.path.exists(self._path)
        try:
            connection = sqlite3.connect(self._path, timeout=patience, isolation_level=None, cached_statements=256)
        except sqlite3.Error as failure:
            raise explain_sqlite(failure, self._path) from failure
        try:
            if not found:
                # What is kept is private; SQLite gives its other files the mode of this one. To create it by ourselves
                # would mean to close it, and closing a file drops the locks of the whole process on it.
                os.chmod(self._path, 0o600)
            for pragma in (*pragmas, *_PRAGMAS):
                patiently(connection, f"pragma {pragma}", self._patience)
            # Opening a file does not look into it; this does.
            patiently(connection, "select count(*) from sqlite_master", self._patience)
        except (sqlite3.Error, OSError, UnicodeError, OverflowError) as failure:
            connection.close()
            raise explain_sqlite(failure, self._path) from failure
        return connection


def _is_empty(path: str) -> bool:
    """A file of no bytes, and no log beside it that has what is to come into it."""
    try:
        return os.path.getsize(path) == 0 and not os.path.exists(f"{path}-wal") and os.path.isfile(path)
    except OSError:
        return False


class _SqliteConnection:
    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def rest(self) -> None: ...

    def close(self) -> None:
        self._connection.close()


class SqliteWriter(_SqliteConnection):
    """Each transaction of a commit hears of success only after the commit. The first has all of it to itself; others
    that join it have a savepoint each, for which SQLite keeps a copy of every page that they change."""

    def __init__(self, connection: sqlite3.Connection, path: str, patience: float) -> None:
        super().__init__(connection, path)
        self._patience = patience
        self._rebuild: TransactionJob | None = None
        # Whether the log is to be written back once the callers have their answers.
        self._writes_back = False

    def rest(self) -> None:
        if self._writes_back:
            self._writes_back = False
            try:
                self._connection.execute(f"pragma wal_autocheckpoint = {_CHECKPOINT}")
                self._connection.execute("pragma wal_checkpoint").fetchone()
            except sqlite3.Error:
                log.debug("the log of %s is not written back yet", self._path, exc_info=True)

    def perform(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None]) -> None:
        if jobs[0].rebuilds:
            self._rebuild = jobs[0]
        else:
            self._write(jobs, more if jobs[0].writes else None)
            if self._rebuild is not None:
                jobs.append(self._rebuild)
        if self._rebuild is not None:
            job, self._rebuild = self._rebuild, None
            # Within a transaction this would have no effect.
            self._connection.execute("pragma foreign_keys = off")
            try:
                self._write([job], None)
            finally:
                self._connection.execute("pragma foreign_keys = on")

    def _write(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None] | None) -> None:
        """Either all of them are written, or those are that do not fail by themselves."""
        try:
            patiently(self._connection, "begin immediate" if jobs[0].writes else "begin", self._patience)
        except sqlite3.Error as failure:
            # The jobs behind the first have waited for the same lock.
            while more is not None and (job := more()) is not None:
                jobs.append(job)
            for job in jobs:
                job.end(failure=explain_sqlite(failure, self._path))
            return
        try:
            self._commit(jobs, more)
        except BaseException as failure:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            if not isinstance(failure, sqlite3.Error):
                raise
            if len(jobs) == 1:
                jobs[0].end(failure=explain_sqlite(failure, self._path))
                return
            # A full disk, or a constraint that is checked at the commit, took everything with it. So each is written by
            # itself, and the one that was the cause fails alone.
            for job in jobs:
                self._write([job], None)

    def _commit(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None] | None) -> None:
        until = time.monotonic() + _LONGEST_COMMIT_SECONDS
        changes = self._connection.total_changes
        self._attempt(jobs[0], "rollback")
        while more is not None and self._connection.in_transaction:
            if len(jobs) == _MOST_IN_A_COMMIT or time.monotonic() > until or (job := more()) is None:
                break
            if job.rebuilds:
                self._rebuild = job
                break
            jobs.append(job)
            self._connection.execute("savepoint job")
            self._attempt(job, "rollback to job")
            if self._connection.in_transaction:
                self._connection.execute("release job")
        if self._connection.in_transaction:
            if self._connection.total_changes - changes >= _MANY_ROWS:
                # Otherwise SQLite would write the log back before the commit returns.
                self._writes_back = True
                self._connection.execute("pragma wal_autocheckpoint = 0")
            self._connection.execute("commit")
        elif len(jobs) > 1:
            raise sqlite3.OperationalError("SQLite has rolled back all of it")

    def _attempt(self, job: TransactionJob, undo: str) -> None:
        if job.dropped:  # while the database was locked
            return
        connection = self._connection
        changes = connection.total_changes
        tx = SqliteTransaction(connection, self._path, writes=job.writes)
        try:
            job.end(tx.perform(job.fn), events=tx.events)
            if not job.writes and connection.total_changes != changes:
                raise ReadOnly("This transaction is for reading only.")
        except BaseException as failure:
            job.end(failure=failure)
            if connection.in_transaction:
                connection.execute(undo)


class SqliteReader(_SqliteConnection):
    """A connection that only reads."""

    def perform(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None]) -> None:
        # All of it sees the database as it was at one moment.
        self._connection.execute("begin")
        try:
            jobs[0].end(SqliteTransaction(self._connection, self._path, writes=False).perform(jobs[0].fn))
        finally:
            if self._connection.in_transaction:
                self._connection.execute("rollback")


def patiently(connection: sqlite3.Connection, sql: str, patience: float) -> Any:
    """Run what needs a lock that another process may hold.

    SQLite's own waiting grows to a tenth of a second between attempts. A busy process leaves gaps much shorter than
    that, so this one tries more often.
    """
    until = time.monotonic() + patience
    pause = 0.0005
    while True:
        try:
            return connection.execute(sql).fetchone()
        except sqlite3.OperationalError as failure:
            if failure.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 1.5, 0.005)
