"""The connection that writes to SQLite: transactions that wait at the same moment become one commit."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from portico.store.crew import Job
from portico.store.errors import ReadOnly
from portico.store.sqlite_transaction import SqliteTransaction, explain

MOST_IN_A_COMMIT = 256
LONGEST_COMMIT = 0.02


class Writer:
    """Each transaction of a commit hears of success only after the commit. The first has all of it to itself; others
    that join it have a savepoint each, for which SQLite keeps a copy of every page that they change."""

    def __init__(self, connection: sqlite3.Connection, path: str, patience: float) -> None:
        self._connection = connection
        self._path = path
        self._patience = patience
        self._rebuild: Job | None = None

    def perform(self, jobs: list[Job], more: Callable[[], Job | None]) -> None:
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

    def rest(self) -> None: ...

    def close(self) -> None:
        self._connection.close()

    def _write(self, jobs: list[Job], more: Callable[[], Job | None] | None) -> None:
        """Either all of them are written, or those are that do not fail by themselves."""
        try:
            patiently(self._connection, "begin immediate" if jobs[0].writes else "begin", self._patience)
        except sqlite3.Error as failure:
            # Whoever waits behind the first has waited for the same lock.
            while more is not None and (job := more()) is not None:
                jobs.append(job)
            for job in jobs:
                job.end(failure=explain(failure, self._path))
            return
        try:
            self._commit(jobs, more)
        except BaseException as failure:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            if not isinstance(failure, sqlite3.Error):
                raise
            if len(jobs) == 1:
                jobs[0].end(failure=explain(failure, self._path))
                return
            # A full disk, or a constraint that is looked at last, took everything with it. So each by itself, and
            # whoever was the cause will fail alone.
            for job in jobs:
                self._write([job], None)

    def _commit(self, jobs: list[Job], more: Callable[[], Job | None] | None) -> None:
        until = time.monotonic() + LONGEST_COMMIT
        self._attempt(jobs[0], "rollback")
        while more is not None and self._connection.in_transaction:
            if len(jobs) == MOST_IN_A_COMMIT or time.monotonic() > until or (job := more()) is None:
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
            self._connection.execute("commit")
        elif len(jobs) > 1:
            raise sqlite3.OperationalError("SQLite has rolled back all of it")

    def _attempt(self, job: Job, undo: str) -> None:
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


class Reader:
    """A connection that only reads."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def perform(self, jobs: list[Job], more: Callable[[], Job | None]) -> None:
        # All of it sees the database as it was at one moment.
        self._connection.execute("begin")
        try:
            jobs[0].end(SqliteTransaction(self._connection, self._path, writes=False).perform(jobs[0].fn))
        finally:
            if self._connection.in_transaction:
                self._connection.execute("rollback")

    def rest(self) -> None: ...

    def close(self) -> None:
        self._connection.close()


def patiently(connection: sqlite3.Connection, sql: str, patience: float) -> Any:
    """Run what needs a lock that another process may hold.

    SQLite's own waiting grows to a tenth of a second between looks. A busy neighbour leaves gaps much shorter than
    that, so we look more often.
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
