"""What can go wrong with what is kept, drawn before it is written.

```
StoreError                   the database said no, or nothing
├── CannotOpen               there is no database at this address, or none that we can use
├── WrongSchema              the tables are not the ones this code was written for
│   ├── NewerSchema                they are a newer version's
│   └── ChangedMigration           a migration was edited after it had been applied
├── Locked                   another transaction has held what we need for too long
├── Conflict                 others changed the same rows, every time we tried
├── ConnectionLost           the server is gone
│   └── OutcomeUnknown             and went while it was committing
├── DiskFailed               the disk would not write
│   └── DiskFull                   because there is no room
├── ReadOnly                 this file or server is not to be written to
├── Damaged                  the file is not a database, or not any more
├── Violated                 a constraint; `table`, `columns` and `constraint` as far as the engine tells
│   ├── NotUnique
│   ├── NoParent                   a foreign key: what is referred to is not there, or is still referred to
│   ├── CheckFailed
│   └── NotNull
├── UnfitValue               a value that the database cannot hold
├── UnfitRow                 a row that is not what was asked for
│   └── NotOneRow                  none, or several
├── BadStatement             the SQL is wrong, or is where it must not be
└── DatabaseClosed
```

Except for OutcomeUnknown, all of them mean that nothing of the transaction was written. Where the driver said more, it
is the cause (`__cause__`).
"""

from __future__ import annotations

from portico.protocol.errors import Error


class StoreError(Error):
    """The database said no, or nothing."""

    # For those who only use what is kept. The text of the error names paths and servers, which are not their business.
    outward = "the storage failed"
    # Whether the same may work later.
    passing = False


class CannotOpen(StoreError):
    """There is no database at this address, or none that we can use."""


class WrongSchema(StoreError):
    """The tables are not the ones this code was written for."""


class NewerSchema(WrongSchema):
    def __init__(self, history: str, found: int, known: int) -> None:
        super().__init__(
            f"The database has “{history}” at version {found}, and this Portico knows versions up to {known}. A newer "
            "one has used it. Run that one, or restore the backup that was made before."
        )
        self.found = found
        self.known = known


class ChangedMigration(WrongSchema):
    def __init__(self, history: str, name: str) -> None:
        super().__init__(
            f"The migration {name} of “{history}” has been edited since it was applied to this database. Put it back "
            "as it was, and write what is to change into a migration with the next number."
        )


class Locked(StoreError):
    """Another transaction has held what we need for too long."""

    outward = "another process has held the storage for too long"
    passing = True


class Conflict(StoreError):
    """Others changed the same rows, every time we tried."""

    outward = "others were changing the same rows; try again"
    passing = True


class ConnectionLost(StoreError):
    """The server is gone."""

    outward = "the storage cannot be reached"
    passing = True


class OutcomeUnknown(ConnectionLost):
    """The server went away while it was committing: the transaction may have been written, whole, or not at all."""

    outward = "the storage went away while writing; look whether it is there before trying again"


class DiskFailed(StoreError):
    """The disk would not write."""

    outward = "the disk failed"
    passing = True


class DiskFull(DiskFailed):
    """There is no room. When there is, the same write will work."""

    outward = "there is no room on the disk"


class ReadOnly(StoreError):
    """This file or server is not to be written to."""

    outward = "the storage is read-only"


class Damaged(StoreError):
    """The file is not a database, or not any more."""

    outward = "the storage is damaged"


class Violated(StoreError):
    """A constraint said no. What the engine tells about it; SQLite has no name for a foreign key."""

    rule = "a constraint"

    def __init__(self, *, table: str = "", columns: tuple[str, ...] = (), constraint: str = "") -> None:
        place = ".".join(filter(None, (table, ", ".join(columns))))
        words = " ".join(filter(None, (place and f"of {place}", constraint and f"({constraint})")))
        super().__init__(f"{self.rule} {words}".rstrip())
        self.table = table
        self.columns = columns
        self.constraint = constraint


class NotUnique(Violated):
    rule = "there is one with the same value already: uniqueness"


class NoParent(Violated):
    rule = "what it refers to is not there, or is still referred to: foreign key"


class CheckFailed(Violated):
    rule = "the value is not allowed: check"


class NotNull(Violated):
    rule = "a value is missing: not null"


class UnfitValue(StoreError):
    """A value that the database cannot hold."""


class UnfitRow(StoreError):
    """A row that is not what was asked for."""


class NotOneRow(UnfitRow):
    """None, or several."""


class BadStatement(StoreError):
    """The SQL is wrong, or is where it must not be."""


class DatabaseClosed(StoreError):
    outward = "the storage is closed"

    def __init__(self) -> None:
        super().__init__("The database is closed.")
