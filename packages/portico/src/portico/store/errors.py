"""Errors of the store.

```
StoreError                   base class
├── DatabaseOpenError        there is no usable database at this address
├── SchemaMismatch           the tables do not match this code
│   ├── SchemaTooNew               they belong to a newer version
│   └── MigrationChanged           a migration was edited after it was applied
├── LockTimeout              another transaction held a lock for too long
├── SerializationConflict    others changed the same rows, on every attempt
├── ConnectionLost           the server is unreachable
│   └── CommitOutcomeUnknown       the connection was lost during the commit
├── DiskError                the disk failed
│   └── DiskFull
├── ReadOnlyDatabase         the file, server or transaction is read-only
├── DatabaseCorrupt          the file is not a database, or is damaged
├── ConstraintViolation      `table`, `columns` and `constraint` as far as the engine reports them
│   ├── UniqueViolation
│   ├── ForeignKeyViolation        the referenced row is missing, or a row is still referenced
│   ├── CheckViolation
│   └── NotNullViolation
├── InvalidValue             a value that the database cannot store
├── RowMismatch              a row does not match the requested type
│   └── UnexpectedRowCount
├── InvalidStatement         the SQL is wrong, or not allowed here
└── DatabaseClosed
```

Except for CommitOutcomeUnknown, all of them mean that nothing of the transaction was written. The driver's error, if
any, is the cause (`__cause__`).
"""

from __future__ import annotations

from portico.protocol.errors import PorticoError

__all__ = [
    "CheckViolation",
    "CommitOutcomeUnknown",
    "ConnectionLost",
    "ConstraintViolation",
    "DatabaseClosed",
    "DatabaseCorrupt",
    "DatabaseOpenError",
    "DiskError",
    "DiskFull",
    "ForeignKeyViolation",
    "InvalidStatement",
    "InvalidValue",
    "LockTimeout",
    "MigrationChanged",
    "NotNullViolation",
    "ReadOnlyDatabase",
    "RowMismatch",
    "SchemaMismatch",
    "SchemaTooNew",
    "SerializationConflict",
    "StoreError",
    "UnexpectedRowCount",
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
    """The tables do not match this code."""


class SchemaTooNew(SchemaMismatch):
    """The tables belong to a newer version of Portico."""

    def __init__(self, history: str, applied_version: int, supported_version: int) -> None:
        super().__init__(
            f"The schema “{history}” of the database has version {applied_version}, but this Portico supports "
            f"versions up to {supported_version}. A newer Portico has used the database. Run that version, or "
            "restore a backup from before the upgrade."
        )
        self.applied_version = applied_version
        self.supported_version = supported_version


class MigrationChanged(SchemaMismatch):
    """A migration was edited after it was applied."""

    def __init__(self, history: str, name: str) -> None:
        super().__init__(
            f"The migration {name} of “{history}” was edited after it was applied to this database. Restore it, "
            "and put the change into a new migration with the next number."
        )


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


class ConstraintViolation(StoreError):
    """A constraint was violated. SQLite does not report the name of a foreign key."""

    rule = "a constraint"

    def __init__(self, *, table: str = "", columns: tuple[str, ...] = (), constraint: str = "") -> None:
        place = ".".join(filter(None, (table, ", ".join(columns))))
        details = " ".join(filter(None, (place and f"of {place}", constraint and f"({constraint})")))
        super().__init__(f"{self.rule} {details}".rstrip())
        self.table = table
        self.columns = columns
        self.constraint = constraint


class UniqueViolation(ConstraintViolation):
    rule = "duplicate value: uniqueness"


class ForeignKeyViolation(ConstraintViolation):
    rule = "the referenced row is missing, or the row is still referenced: foreign key"


class CheckViolation(ConstraintViolation):
    rule = "the value is not allowed: check"


class NotNullViolation(ConstraintViolation):
    rule = "a value is missing: not null"


class InvalidValue(StoreError):
    """A value that the database cannot store."""


class RowMismatch(StoreError):
    """A row does not match the requested type."""


class UnexpectedRowCount(RowMismatch):
    """No row, or several, where one was expected."""


class InvalidStatement(StoreError):
    """The SQL is wrong, or not allowed here."""


class DatabaseClosed(StoreError):
    public_message = "the storage is closed"

    def __init__(self) -> None:
        super().__init__("The database is closed.")
