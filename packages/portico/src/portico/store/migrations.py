"""Numbered migrations: `0001_first.sql`, `0002_second.sql`, …, and `0002_second.postgresql.sql` where one engine needs
another text.

Each user of the database has a folder and a name, its history; all histories are rows of one table. A migration is one
transaction. Several processes may start at once: each applies what the others have not.

Processes of two releases may share a database for a while. A migration whose name begins with `adds` adds what an older
release need not know of, and leaves the rest as it was: so an older one goes on beside it, and begins, too. Any other
that it does not know is a reason not to touch anything.

On SQLite foreign keys are looked at when a migration is done, not before, so it may rebuild a table that others refer
to: create, copy, drop, rename.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.store.errors import BadStatement, ChangedMigration, NewerSchema, NoParent
from portico.store.transaction import Engine, Transaction

_FILE = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)(?:\.(?P<engine>sqlite|postgresql))?\.sql")

_ADDS = re.compile(r"\d{4}_adds_.*").fullmatch

_TABLE = """
create table if not exists portico_migration (
    history text not null,
    number bigint not null,
    name text not null,
    checksum text not null,
    applied_at double precision not null,
    primary key (history, number)
)
"""


class Migration(Struct, frozen=True):
    number: int
    name: str
    text: str
    checksum: str


def load(folder: Path, engine: Engine) -> list[Migration]:
    """What a folder has for one engine, in order."""
    found: dict[int, dict[str | None, Path]] = {}
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise UsageError(f"{path} is not named like a migration: 0001_name.sql or 0001_name.postgresql.sql.")
        files = found.setdefault(int(match["number"]), {})
        if match["engine"] in files:
            raise UsageError(f"{path} and {files[match['engine']]} have the same number.")
        files[match["engine"]] = path
    if list(found) != list(range(1, len(found) + 1)):
        raise UsageError(f"The migrations in {folder} are not numbered 1, 2, 3, …: {', '.join(map(str, found))}.")
    return [_read(number, files, engine) for number, files in found.items()]


def _read(number: int, files: dict[str | None, Path], engine: Engine) -> Migration:
    path = files.get(engine) or files.get(None)
    if path is None:
        raise UsageError(f"{next(iter(files.values()))} has no counterpart for {engine}.")
    text = path.read_text(encoding="utf-8")  # with \n at the end of lines, wherever it was checked out
    return Migration(number, path.name.partition(".")[0], text, hashlib.sha256(text.encode()).hexdigest())


async def migrate(
    history: str,
    migrations: list[Migration],
    read: Callable[[Callable[[Transaction], Any]], Awaitable[Any]],
    write: Callable[[Callable[[Transaction], Any]], Awaitable[Any]],
) -> list[str]:
    """Apply what has not been applied; the names of those."""
    try:
        if len(await read(partial(_applied, history, migrations))) >= len(migrations):
            return []  # as at nearly every start: nothing is locked
    except BadStatement:
        pass  # there is no such table yet
    applied = [await write(partial(_apply, history, migrations, one)) for one in migrations]
    return [name for name in applied if name is not None]


def _applied(history: str, migrations: list[Migration], tx: Transaction) -> set[int]:
    """The numbers of those that have been; that they were the same is checked."""
    rows = tx.all(
        tuple[int, str, str],
        "select number, name, checksum from portico_migration where history = :history order by number",
        {"history": history},
    )
    known = {one.number: one for one in migrations}
    for number, name, checksum in rows:
        if number not in known and not _ADDS(name):
            raise NewerSchema(history, rows[-1][0], len(migrations))
        if number in known and known[number].checksum != checksum:
            raise ChangedMigration(history, known[number].name)
    return {number for number, _, _ in rows}


def _apply(history: str, migrations: list[Migration], one: Migration, tx: Transaction) -> str | None:
    tx.lock("portico migrations")
    tx.run(_TABLE)
    if one.number in _applied(history, migrations, tx):
        return None
    if tx.engine == "sqlite":
        # What a migration drops is overwritten: it may be a copy of what is to be erased later.
        tx.all(int, "pragma secure_delete = on")
    tx.script(one.text)
    tx.run(
        "insert into portico_migration (history, number, name, checksum, applied_at) values (?, ?, ?, ?, ?)",
        [history, one.number, one.name, one.checksum, time.time()],
    )
    if tx.engine == "sqlite":
        broken = tx.all(tuple[str, int | None, str, int], "pragma foreign_key_check")
        if broken:
            raise NoParent(table=broken[0][0])
    return one.name
