"""Transaction on SQLite, and translation of SQLite's errors."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import contains
from typing import Any

from portico.store import errors
from portico.store.dialect import to_sqlite_sql
from portico.store.errors import StoreError
from portico.store.rows import encode_json_column
from portico.store.transaction import Parameters, Transaction


class SqliteTransaction(Transaction):
    engine = "sqlite"
    driver_errors = (sqlite3.Error, OverflowError, UnicodeError, StoreError)

    def __init__(self, connection: sqlite3.Connection, path: str, *, is_write: bool) -> None:
        super().__init__(is_write)
        self._connection = connection
        self._path = path

    @property
    def is_active(self) -> bool:
        return self._connection.in_transaction

    def advisory_lock(self, name: str) -> None:
        """Do nothing: SQLite has one writer at a time."""

    def now(self) -> float:
        return time.time()

    def _execute(self, sql: str, parameters: Parameters) -> sqlite3.Cursor:
        return self._connection.execute(to_sqlite_sql(sql), _bind_parameters(parameters))

    def _execute_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        rows = rows if isinstance(rows, list) else list(rows)
        if len(rows) == 1:
            return self._execute_count(sql, rows[0])
        bound = rows if _are_plain(rows) else map(_bind_parameters, rows)
        return self._connection.executemany(to_sqlite_sql(sql), bound).rowcount if rows else 0

    def _execute_columns(self, sql: str, columns: Sequence[Sequence[Any]]) -> int:
        if len(columns[0]) < 2 or not all(map(_is_plain, columns)):
            return super()._execute_columns(sql, columns)
        # `zip` reuses one tuple for all rows, so there is no garbage to collect.
        return self._connection.executemany(to_sqlite_sql(sql), zip(*columns, strict=True)).rowcount

    def _execute_script(self, sql: str, _: Any) -> None:
        # `executescript` would commit first.
        statement = ""
        for part in to_sqlite_sql(sql).split(";"):
            statement += part + ";"
            if sqlite3.complete_statement(statement):
                self._connection.execute(statement)
                statement = ""
        if statement.strip("; \n\t"):
            self._connection.execute(statement)

    def _translate_error(self, failure: Exception) -> StoreError:
        return translate_sqlite_error(failure, self._path)


_ROW_TYPES = (tuple, dict, list)


def _are_plain(rows: list[Parameters]) -> bool:
    """Return whether the driver accepts these rows unchanged. Checking by column is much faster than by row."""
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


def _bind_parameters(parameters: Parameters) -> Any:
    """Convert parameters for the driver. A list becomes JSON, for `in :name`."""
    if not isinstance(parameters, _ROW_TYPES):
        parameters = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
    has_list = False
    for value in parameters.values() if isinstance(parameters, dict) else parameters:
        if type(value) is str:
            if "\0" in value:
                # SQLite accepts NUL but PostgreSQL does not; both must behave alike.
                raise errors.InvalidValue(errors.NUL_MESSAGE)
        elif type(value) is list:
            has_list = True
    if not has_list:
        return parameters
    if isinstance(parameters, dict):
        return {name: _encode_list(value) if type(value) is list else value for name, value in parameters.items()}
    return [_encode_list(value) if type(value) is list else value for value in parameters]


def _encode_list(values: list[Any]) -> str:
    text = encode_json_column(values)
    # The escape of NUL, unless the text has a backslash before such digits.
    if "\\u0000" in text and any("\0" in value for value in values if type(value) is str):
        raise errors.InvalidValue(errors.NUL_MESSAGE)
    return text


_ERRORS_BY_CODE: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (
        errors.LockTimeout,
        "Another process has locked {path} for too long. Is a backup or a shell using it?",
    ),
    sqlite3.SQLITE_FULL: (errors.DiskFull, "The disk of {path} is full. Free some space and retry."),
    sqlite3.SQLITE_IOERR: (
        errors.DiskError,
        "The disk of {path} failed ({detail}): a quota, a limit, or the device itself.",
    ),
    sqlite3.SQLITE_READONLY: (errors.ReadOnlyDatabase, "{path} is read-only: {detail}."),
    sqlite3.SQLITE_CORRUPT: (
        errors.DatabaseCorrupt,
        "{path} is damaged: {detail}. Restore a backup, or try `sqlite3 {path} .recover`.",
    ),
    sqlite3.SQLITE_NOTADB: (errors.DatabaseCorrupt, "{path} is not an SQLite database, or its beginning is damaged."),
    sqlite3.SQLITE_CANTOPEN: (errors.DatabaseOpenError, "{path} cannot be opened: {detail}."),
    sqlite3.SQLITE_PERM: (errors.DatabaseOpenError, "{path} cannot be opened: {detail}."),
    sqlite3.SQLITE_TOOBIG: (errors.InvalidValue, "The value is too long for SQLite."),
    sqlite3.SQLITE_MISMATCH: (errors.InvalidValue, "The value is not of the column's type: {detail}."),
}

# Damage that the driver detects itself and has no code for.
_INVALID_TEXT = re.compile("Could not decode to UTF-8|unsupported file format|malformed")

_RULES_BY_CODE: dict[int, errors.ConstraintRule] = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: "unique",
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: "unique",
    sqlite3.SQLITE_CONSTRAINT_ROWID: "unique",
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "foreign key",
    sqlite3.SQLITE_CONSTRAINT_CHECK: "check",
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: "not null",
}


def translate_sqlite_error(failure: Exception, path: str) -> StoreError:
    """Convert an error of the driver into a StoreError."""
    if isinstance(failure, StoreError):
        return failure
    if isinstance(failure, OSError):
        return errors.DatabaseOpenError(f"{path} cannot be opened: {failure.strerror}.")
    if isinstance(failure, UnicodeDecodeError) or _INVALID_TEXT.search(str(failure)):
        return errors.DatabaseCorrupt(
            _ERRORS_BY_CODE[sqlite3.SQLITE_CORRUPT][1].format(path=path, detail="it contains invalid text")
        )
    if not isinstance(failure, sqlite3.Error):
        return errors.InvalidValue(f"The database cannot hold this value: {failure}")
    code = getattr(failure, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code & 0xFF == sqlite3.SQLITE_CONSTRAINT:
        return _constraint_violation(_RULES_BY_CODE.get(code, ""), str(failure))
    kind, template = _ERRORS_BY_CODE.get(code & 0xFF, (errors.InvalidStatement, "{detail}"))
    return kind(template.format(path=path, detail=failure))


def _constraint_violation(rule: errors.ConstraintRule, message: str) -> errors.ConstraintViolation:
    """Build the error from a message such as `UNIQUE constraint failed: task.owner, task.name`.

    The message of a check constraint has its name there.
    """
    names = message.partition("constraint failed: ")[2]
    columns = [name.split(".") for name in names.split(", ")]
    kind = errors.UniqueViolation if rule == "unique" else errors.ConstraintViolation
    if rule != "check" and all(len(place) == 2 for place in columns):
        return kind(rule, table=columns[0][0], columns=tuple(column for _, column in columns))
    return kind(rule, constraint=re.sub(r"^index '(.*)'$", r"\1", names))
