"""A transaction on PostgreSQL, and what PostgreSQL says when something is wrong, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from portico.store.dialect import for_postgres
from portico.store.errors import (
    BadStatement,
    CheckFailed,
    Conflict,
    ConnectionLost,
    Damaged,
    DiskFailed,
    DiskFull,
    Locked,
    NoParent,
    NotNull,
    NotUnique,
    ReadOnly,
    StoreError,
    UnfitValue,
    Violated,
)
from portico.store.rows import Row
from portico.store.transaction import Parameters, Transaction

if TYPE_CHECKING:
    from psycopg import Connection, Cursor


class PostgresTransaction(Transaction):
    engine = "postgresql"

    def __init__(self, connection: Connection, *, writes: bool) -> None:
        import psycopg

        super().__init__(writes)
        self.failures = (psycopg.Error, UnicodeError, StoreError)
        self._connection = connection

    @property
    def alive(self) -> bool:
        return not self._connection.closed

    def lock(self, name: str) -> None:
        self.one(str, "select cast(pg_advisory_xact_lock(hashtextextended(:name, 0)) as text)", {"name": name})

    def _run(self, sql: str, parameters: Parameters) -> int:
        return self._execute(sql, parameters).rowcount

    def _many(self, sql: str, rows: Iterable[Parameters]) -> None:
        rows = list(rows)
        if rows:
            with self._connection.cursor() as cursor:
                cursor.executemany(for_postgres(sql, isinstance(rows[0], Mapping)), rows)

    def _fetch(self, sql: str, parameters: Parameters) -> tuple[tuple[str, ...], list[Row]]:
        cursor = self._execute(sql, parameters)
        if cursor.description is None:
            raise BadStatement(f"This gives no rows: {sql}")
        return tuple(column.name for column in cursor.description), cursor.fetchall()

    def _execute(self, sql: str, parameters: Parameters) -> Cursor[Row]:
        if not parameters:
            return self._connection.execute(sql.encode())  # in which nothing is a parameter
        return self._connection.execute(for_postgres(sql, isinstance(parameters, Mapping)), parameters)

    def _script(self, sql: str, _: Any) -> None:
        self._connection.execute(sql.encode())

    def _explain(self, failure: Exception) -> StoreError:
        return explain(failure)


# By SQLSTATE, or its first two letters for a class of them (PostgreSQL 15, appendix A).
_SAID: dict[str, tuple[type[StoreError], str]] = {
    "08": (ConnectionLost, "The connection to PostgreSQL was lost: {said}"),
    "22": (UnfitValue, "The database cannot hold this value: {said}"),
    "25P03": (ConnectionLost, "The PostgreSQL server ended the connection: {said}"),
    "25006": (ReadOnly, "The PostgreSQL server, or this transaction, is for reading only: {said}"),
    "40": (Conflict, "Others changed the same rows, each time this was tried: {said}"),
    "53": (ConnectionLost, "The PostgreSQL server has no more to give: {said}"),
    "53100": (DiskFull, "There is no room on the disk of the PostgreSQL server. Make some, and write again."),
    "55P03": (Locked, "Another transaction has held the same rows for too long."),
    "57014": (Locked, "The PostgreSQL server gave up on a statement: {said}"),
    "57P": (ConnectionLost, "The PostgreSQL server ended the connection: {said}"),
    "58": (DiskFailed, "The disk of the PostgreSQL server failed: {said}"),
    "XX001": (Damaged, "The PostgreSQL server found its own data damaged: {said}"),
    "XX002": (Damaged, "The PostgreSQL server found an index damaged: {said}"),
}

_VIOLATED: dict[str, type[Violated]] = {
    "23505": NotUnique,
    "23503": NoParent,
    "23514": CheckFailed,
    "23502": NotNull,
}


def explain(failure: Exception) -> StoreError:
    import psycopg

    if isinstance(failure, StoreError):
        return failure
    if not isinstance(failure, psycopg.Error) or (isinstance(failure, psycopg.DataError) and not failure.sqlstate):
        return UnfitValue(f"The database cannot hold this value: {failure}")
    state = failure.sqlstate
    if state is None:  # it was said by the driver
        lost = isinstance(failure, psycopg.OperationalError)
        return (
            ConnectionLost(f"The connection to PostgreSQL was lost: {failure}") if lost else BadStatement(str(failure))
        )
    if state.startswith("23"):
        return _violated(_VIOLATED.get(state, Violated), failure.diag)
    kind, words = next((_SAID[state[:n]] for n in (5, 3, 2) if state[:n] in _SAID), (BadStatement, "{said}"))
    return kind(words.format(said=failure.diag.message_primary or failure))


def _violated(kind: type[Violated], told: Any) -> Violated:
    """The detail is `Key (owner, name)=(1, x) already exists.`, in the server's language; the values are not ours to
    show."""
    key = re.search(r"\(([^()]*)\)=\(", told.message_detail or "")
    columns = tuple(key[1].split(", ")) if key else tuple(filter(None, [told.column_name]))
    return kind(table=told.table_name or "", columns=columns, constraint=told.constraint_name or "")
