"""A transaction on SQLite, and what SQLite says when something is wrong, in our words."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import contains
from typing import Any

from portico.store import errors
from portico.store.dialect import for_sqlite
from portico.store.errors import StoreError
from portico.store.rows import json_column
from portico.store.transaction import Parameters, Transaction


class SqliteTransaction(Transaction):
    engine = "sqlite"
    failures = (sqlite3.Error, OverflowError, UnicodeError, StoreError)

    def __init__(self, connection: sqlite3.Connection, path: str, *, writes: bool) -> None:
        super().__init__(writes)
        self._connection = connection
        self._path = path

    @property
    def alive(self) -> bool:
        return self._connection.in_transaction

    def lock(self, name: str) -> None:
        """There is one writer at a time."""

    def now(self) -> float:
        return time.time()

    def _execute(self, sql: str, parameters: Parameters) -> sqlite3.Cursor:
        return self._connection.execute(for_sqlite(sql), _bound(parameters))

    def _many(self, sql: str, rows: Iterable[Parameters]) -> int:
        rows = rows if isinstance(rows, list) else list(rows)
        if len(rows) == 1:
            return self._run(sql, rows[0])
        bound = rows if _are_plain(rows) else map(_bound, rows)
        return self._connection.executemany(for_sqlite(sql), bound).rowcount if rows else 0

    def _fill(self, sql: str, columns: Sequence[Sequence[Any]]) -> int:
        if len(columns[0]) < 2 or not all(map(_is_plain, columns)):
            return super()._fill(sql, columns)
        # One tuple serves for all rows, so that there is nothing for the garbage collector.
        return self._connection.executemany(for_sqlite(sql), zip(*columns, strict=True)).rowcount

    def _script(self, sql: str, _: Any) -> None:
        # `executescript` would commit first.
        statement = ""
        for part in for_sqlite(sql).split(";"):
            statement += part + ";"
            if sqlite3.complete_statement(statement):
                self._connection.execute(statement)
                statement = ""
        if statement.strip("; \n\t"):
            self._connection.execute(statement)

    def _explain(self, failure: Exception) -> StoreError:
        return explain_sqlite(failure, self._path)


_TAKEN = (tuple, dict, list)


def _are_plain(rows: list[Parameters]) -> bool:
    """Whether the driver may have all of these rows as they are. Of very many, to look through one column after the
    other is much quicker than one row after the other."""
    if set(map(type, rows)) != {tuple} or len(set(map(len, rows))) != 1:
        return False
    return all(_is_plain([row[at] for row in rows]) for at in range(len(rows[0])))  # type: ignore[index]


def _is_plain(column: Sequence[Any]) -> bool:
    kinds = set(map(type, column))
    if list in kinds:
        return False
    if str not in kinds:
        return True
    texts = column if len(kinds) == 1 else [value for value in column if type(value) is str]
    return not any(map(contains, texts, repeat("\0")))


def _bound(parameters: Parameters) -> Any:
    """As the driver takes them. A list goes in as JSON, for `in :name`."""
    if not isinstance(parameters, _TAKEN):
        parameters = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
    for value in parameters.values() if isinstance(parameters, dict) else parameters:
        if type(value) is str:
            if "\0" in value:
                # SQLite would take it; PostgreSQL does not, and what works on one is to work on the other.
                raise errors.UnfitValue("Text with a NUL character cannot be stored. Take it out, or store bytes.")
        elif type(value) is list:
            if isinstance(parameters, dict):
                return {name: json_column(one) if type(one) is list else one for name, one in parameters.items()}
            return [json_column(one) if type(one) is list else one for one in parameters]
    return parameters


_SAID: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (
        errors.Locked,
        "Another process has kept {path} locked for too long. Is a backup or a shell on it?",
    ),
    sqlite3.SQLITE_FULL: (errors.DiskFull, "There is no room on the disk of {path}. Make some, and write again."),
    sqlite3.SQLITE_IOERR: (
        errors.DiskFailed,
        "The disk of {path} failed ({said}): a quota, a limit, or the device itself.",
    ),
    sqlite3.SQLITE_READONLY: (errors.ReadOnly, "{path} is not to be written to: {said}."),
    sqlite3.SQLITE_CORRUPT: (
        errors.Damaged,
        "{path} is damaged: {said}. Restore a backup, or try `sqlite3 {path} .recover`.",
    ),
    sqlite3.SQLITE_NOTADB: (errors.Damaged, "{path} is not an SQLite database, or its beginning is damaged."),
    sqlite3.SQLITE_CANTOPEN: (errors.CannotOpen, "{path} cannot be opened: {said}."),
    sqlite3.SQLITE_PERM: (errors.CannotOpen, "{path} cannot be opened: {said}."),
    sqlite3.SQLITE_TOOBIG: (errors.UnfitValue, "The value is too long for SQLite."),
    sqlite3.SQLITE_MISMATCH: (errors.UnfitValue, "The value is not of the column's type: {said}."),
}

# What the driver finds by itself in a damaged file, and has no code for.
_UNREADABLE = re.compile("Could not decode to UTF-8|unsupported file format|malformed")

_VIOLATED: dict[int, type[errors.Violated]] = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: errors.NotUnique,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: errors.NotUnique,
    sqlite3.SQLITE_CONSTRAINT_ROWID: errors.NotUnique,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: errors.NoParent,
    sqlite3.SQLITE_CONSTRAINT_CHECK: errors.CheckFailed,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: errors.NotNull,
}


def explain_sqlite(failure: Exception, path: str) -> StoreError:
    if isinstance(failure, StoreError):
        return failure
    if isinstance(failure, OSError):
        return errors.CannotOpen(f"{path} cannot be opened: {failure.strerror}.")
    if isinstance(failure, UnicodeDecodeError) or _UNREADABLE.search(str(failure)):
        return errors.Damaged(_SAID[sqlite3.SQLITE_CORRUPT][1].format(path=path, said="it holds what is no text"))
    if not isinstance(failure, sqlite3.Error):
        return errors.UnfitValue(f"The database cannot hold this value: {failure}")
    code = getattr(failure, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF == sqlite3.SQLITE_CONSTRAINT:
        return _violated(_VIOLATED.get(code, errors.Violated), str(failure))
    kind, words = _SAID.get(code & 0xFF, (errors.BadStatement, "{said}"))
    return kind(words.format(path=path, said=failure))


def _violated(kind: type[errors.Violated], said: str) -> errors.Violated:
    """`UNIQUE constraint failed: task.owner, task.name` has the columns; a check has its name there."""
    names = said.partition("constraint failed: ")[2]
    places = [name.split(".") for name in names.split(", ")]
    if kind is not errors.CheckFailed and all(len(place) == 2 for place in places):
        return kind(table=places[0][0], columns=tuple(column for _, column in places))
    return kind(constraint=re.sub(r"^index '(.*)'$", r"\1", names))
