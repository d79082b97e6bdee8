"""A registry for systems that have none: keys and values with the same names and types, in SQLite."""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from typing import Any

from portico.services.system.errors import InvalidArgument
from portico.services.system.registry.hive.values import decoded, encoded, type_name
from portico.services.system.registry.tree import MOST_LISTED, Content, Datum, Path

MOST_BYTES = 2**20
LONGEST_NAME = 255

_SCHEMA = """
create table if not exists keys (
    id integer primary key,
    parent integer not null references keys (id),
    name text not null,
    folded text not null,
    written integer not null,
    unique (parent, folded)
);
create table if not exists data (
    key integer not null references keys (id),
    name text not null,
    folded text not null,
    type integer not null,
    bytes blob not null,
    primary key (key, folded)
) without rowid;
insert or ignore into keys values (0, 0, '', '', 0);
"""


class PortableRegistry:
    """All branches of it are in one file, or without one in memory, as long as the process lives."""

    def __init__(self, file: str = ":memory:") -> None:
        self._file = file
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    def branch(self, name: str) -> PortableBranch:
        return PortableBranch(self, name)

    def run(self, sql: str, *values: Any) -> list[Any]:
        with self._lock:
            if self._database is None:
                self._database = sqlite3.connect(self._file, check_same_thread=False, isolation_level=None, timeout=10)
                self._database.executescript(_SCHEMA)
                # A thread that ends without closing it has it closed all the same.
                weakref.finalize(self, self._database.close)
            return self._database.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


class PortableBranch:
    description = "a registry of this server's own"
    writable = True

    def __init__(self, portable: PortableRegistry, name: str) -> None:
        self._portable = portable
        self._name = name

    def content(self, path: Path) -> Content | None:
        key = self._find(path)
        if key is None:
            # A branch is there, even before anything has been written to it.
            return None if path else Content([], [])
        run = self._portable.run
        names = run("select name from keys where parent = ? and id order by folded limit ?", key, MOST_LISTED + 1)
        rows = run("select name, type, bytes from data where key = ? order by folded limit ?", key, MOST_LISTED + 1)
        [[written]] = run("select written from keys where id = ?", key)
        return Content(
            [name for [name] in names[:MOST_LISTED]],
            [_datum(*row) for row in rows[:MOST_LISTED]],
            written,
            max(len(names), len(rows)) > MOST_LISTED,
        )

    def value(self, path: Path, name: str) -> Datum | None:
        key = self._find(path)
        sql = "select name, type, bytes from data where key = ? and folded = ?"
        rows = self._portable.run(sql, key, name.casefold())
        return _datum(*rows[0]) if rows else None

    def write(self, path: Path, name: str, number: int, value: Any) -> None:
        data = encoded(number, value)
        if len(data) > MOST_BYTES or any(len(one) > LONGEST_NAME for one in (*path, name)):
            raise InvalidArgument(f"A name has at most {LONGEST_NAME} characters, and a value {MOST_BYTES:,} bytes.")
        key = self._make(path)
        self._portable.run(
            "insert or replace into data values (?, ?, ?, ?, ?)", key, name, name.casefold(), number, data
        )
        self._portable.run("update keys set written = ? where id = ?", _now(), key)

    def _find(self, path: Path) -> int | None:
        key = 0
        for name in (self._name, *path):
            sql = "select id from keys where parent = ? and folded = ? and id"
            rows = self._portable.run(sql, key, name.casefold())
            if not rows:
                return None
            key = rows[0][0]
        return key

    def _make(self, path: Path) -> int:
        key = 0
        for name in (self._name, *path):
            row = (key, name, name.casefold(), _now())
            self._portable.run("insert or ignore into keys (parent, name, folded, written) values (?, ?, ?, ?)", *row)
            [[key]] = self._portable.run("select id from keys where parent = ? and folded = ? and id", *row[::2])
        return key


def _datum(name: str, number: int, data: bytes) -> Datum:
    return Datum(name, type_name(number), decoded(number, data))


def _now() -> int:
    return time.time_ns() // 1000
