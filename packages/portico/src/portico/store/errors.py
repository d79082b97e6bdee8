"""Errors of the store.

```
StoreError                   base class
├── DatabaseOpenError        there is no usable database at this address
├── SchemaMismatch           the tables belong to a newer version, or a migration was edited after it was applied
├── LockTimeout              another transaction held a lock for too long
├── SerializationConflict    others changed the same rows, on every attempt
├── ConnectionLost           the server is unreachable
│   └── CommitOutcomeUnknown       the connection was lost during the commit
├── DiskError                the disk failed
│   └── DiskFull
├── ReadOnlyDatabase         the file, server or transaction is read-only
├── DatabaseCorrupt          the file is not a database, or is damaged
├── ConstraintViolation      `rule`, and `table`, `columns` and `constraint` as far as the engine reports them
│   └── UniqueViolation
├── InvalidValue             a value that the database cannot store
├── RowMismatch              a row does not match the requested type, or not one row where one was expected
├── InvalidStatement         the SQL is wrong, or not allowed here
└── DatabaseClosed
```

Except for CommitOutcomeUnknown, all of them mean that nothing of the transaction was written. The driver's error, if
any, is the cause (`__cause__`).
"""

from __future__ import annotations

from typing import Literal

from portico.protocol.errors import PorticoError

__all__ = [
    "CommitOutcomeUnknown",
    "ConnectionLost",
    "ConstraintViolation",
    "DatabaseClosed",
    "DatabaseCorrupt",
    "DatabaseOpenError",
    "DiskError",
    "DiskFull",
    "InvalidStatement",
    "InvalidValue",
    "LockTimeout",
    "ReadOnlyDatabase",
    "RowMismatch",
    "SchemaMismatch",
    "SerializationConflict",
    "StoreError",
    "UniqueViolation",
]


class StoreError(PorticoError):
    """Base class of store errors."""

    # Shown to clients. The exception's message names paths and servers, which clients must not see.
    public_message = "the storage failed"
    # Whether a retry may succeed.
    retryable = False


class DatabaseOpenError(StoreError):
    """There is no usable database at this address."""


class SchemaMismatch(StoreError):
    """The tables belong to a newer version of Portico, or a migration was edited after it was applied."""


class LockTimeout(StoreError):
    """Another transaction held a lock for too long."""

    public_message = "another process has held the storage for too long"
    retryable = True


class SerializationConflict(StoreError):
    """Others changed the same rows, on every attempt."""

    public_message = "others were changing the same rows; try again"
    retryable = True


class ConnectionLost(StoreError):
    """The server is unreachable."""

    public_message = "the storage cannot be reached"
    retryable = True


class CommitOutcomeUnknown(ConnectionLost):
    """The connection was lost during the commit: the transaction was written completely or not at all."""

    public_message = (
        "the storage became unreachable while writing; check whether the change was written before retrying"
    )


class DiskError(StoreError):
    """The disk failed."""

    public_message = "the disk failed"
    retryable = True


class DiskFull(DiskError):
    """The disk is full. The same write succeeds once there is space."""

    public_message = "the disk is full"


class ReadOnlyDatabase(StoreError):
    """The file, server or transaction is read-only."""

    public_message = "the storage is read-only"


class DatabaseCorrupt(StoreError):
    """The file is not a database, or is damaged."""

    public_message = "the storage is damaged"


ConstraintRule = Literal["unique", "foreign key", "check", "not null", ""]
_RULES = {
    "unique": "duplicate value: uniqueness",
    "foreign key": "the referenced row is missing, or the row is still referenced: foreign key",
    "check": "the value is not allowed: check",
    "not null": "a value is missing: not null",
    "": "a constraint",
}


class ConstraintViolation(StoreError):
    """A constraint was violated. SQLite does not report the name of a foreign key."""

    def __init__(
        self, rule: ConstraintRule = "", *, table: str = "", columns: tuple[str, ...] = (), constraint: str = ""
    ) -> None:
        column_path = ".".join(filter(None, (table, ", ".join(columns))))
        details = " ".join(filter(None, (column_path and f"of {column_path}", constraint and f"({constraint})")))
        super().__init__(f"{_RULES[rule]} {details}".rstrip())
        self.rule = rule
        self.table = table
        self.columns = columns
        self.constraint = constraint


class UniqueViolation(ConstraintViolation):
    """A value exists already."""


NUL_MESSAGE = "Text with a NUL character cannot be stored. Remove it, or store bytes."


class InvalidValue(StoreError):
    """A value that the database cannot store."""


class RowMismatch(StoreError):
    """A row does not match the requested type, or there is no row, or several, where one was expected."""


class InvalidStatement(StoreError):
    """The SQL is wrong, or not allowed here."""


class DatabaseClosed(StoreError):
    public_message = "the storage is closed"

    def __init__(self) -> None:
        super().__init__("The database is closed.")
