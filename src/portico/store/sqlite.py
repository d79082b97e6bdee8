"""SQLite: the embedded default.

One thread writes, a few read; in WAL mode neither side waits for the other. `:memory:` has one connection, so there the
thread that writes also reads.
"""

from __future__ import annotations

import os
import socket
import sqlite3

from portico.store.bus import Route
from portico.store.crew import Crew, Job, Outbox, perform
from portico.store.errors import CannotOpen
from portico.store.neighbours import Neighbours
from portico.store.sqlite_transaction import explain
from portico.store.sqlite_workers import Reader, Writer, patiently

MEMORY = ":memory:"
_OLDEST = (3, 35, 0)  # has `returning`

# synchronous: with NORMAL a commit would survive the process but not the power (docs/decisions/store.md); fullfsync is
# what it takes on macOS. case_sensitive_like: as on PostgreSQL.
_PRAGMAS = ("synchronous = full", "fullfsync = on", "foreign_keys = on", "case_sensitive_like = on")
_LONGEST_LOG = 64 * 1024 * 1024
# In pages, of 4 KiB. To write the log back takes several syncs, and whoever commits at that moment waits for them.
_CHECKPOINT = 8000
# In KiB. What writes touches pages of many indexes, in no order.
_WRITERS_CACHE = 8000


class Sqlite:
    """The engine of one file."""

    def __init__(self, path: str, outbox: Outbox, *, patience: float, connections: int) -> None:
        self._path = path
        self._patience = patience
        self._writer = Crew("portico-write", 1, self._hire_writer, outbox, idle=None)
        self._readers = self._writer
        if path != MEMORY:
            self._readers = Crew("portico-read", connections, self._hire_reader, outbox)

    async def open(self) -> None:
        await perform(self._writer.submit, lambda tx: None, writes=False)

    def submit(self, job: Job) -> None:
        (self._writer if job.writes else self._readers).submit(job)

    def route(self) -> Route | None:
        return None if self._path == MEMORY or not hasattr(socket, "AF_UNIX") else Neighbours(self._path)

    async def close(self) -> None:
        # Whoever closes last tidies up the log, and only a writer can.
        await self._readers.close()
        await self._writer.close()

    def _hire_reader(self) -> Reader:
        return Reader(self._connect("query_only = on", patience=self._patience), self._path)

    def _hire_writer(self) -> Writer:
        # This one does its waiting in `patiently`.
        log = ("journal_mode = wal", f"journal_size_limit = {_LONGEST_LOG}", f"wal_autocheckpoint = {_CHECKPOINT}")
        connection = self._connect(*log, f"cache_size = -{_WRITERS_CACHE}", patience=0.0)
        if connection.execute("pragma journal_mode").fetchone() != ("wal",) and self._path != MEMORY:
            connection.close()
            raise CannotOpen(f"{self._path} is on a file system where SQLite cannot have a write-ahead log.")
        return Writer(connection, self._path, self._patience)

    def _connect(self, *pragmas: str, patience: float) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise CannotOpen(f"This Python has SQLite {sqlite3.sqlite_version}; 3.35 or newer is needed.")
        found = self._path == MEMORY or os.path.exists(self._path)
        try:
            connection = sqlite3.connect(self._path, timeout=patience, isolation_level=None, cached_statements=256)
        except sqlite3.Error as failure:
            raise explain(failure, self._path) from failure
        try:
            if not found:
                # What is kept is private; SQLite gives its other files the mode of this one. To create it by ourselves
                # would mean to close it, and whoever closes a file loses the locks of the whole process on it.
                os.chmod(self._path, 0o600)
            for pragma in (*pragmas, *_PRAGMAS):
                patiently(connection, f"pragma {pragma}", self._patience)
            # Opening a file does not look into it; this does.
            patiently(connection, "select count(*) from sqlite_master", self._patience)
        except (sqlite3.Error, OSError) as failure:
            connection.close()
            raise explain(failure, self._path) from failure
        return connection
