"""Numbered migrations: `0001_first.sql`, `0002_second.sql`, …, and `0002_second.postgresql.sql` for one engine.

Each component has a folder and a history name; all histories share one table. A migration is one transaction. Several
processes may start concurrently: each applies what the others have not.

Processes of two releases may share a database for a while. A migration whose name begins with `adds` is additive: older
releases can ignore it, keep running and start. Any other unknown migration makes an older release refuse to start.

On SQLite, foreign keys are checked after a migration, so it may rebuild a referenced table: create, copy, drop, rename.
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
from portico.store.errors import ConstraintViolation, InvalidStatement, SchemaMismatch
from portico.store.transaction import Engine, Transaction

_FILE = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)(?:\.(?P<engine>sqlite|postgresql))?\.sql")

# The name decides, because an older release does not have the file.
_is_additive = re.compile(r"\d{4}_adds_.*").fullmatch

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


def load_migrations(directory: Path, engine: Engine) -> list[Migration]:
    """Load the migrations of a folder for one engine, in order. Raises UsageError."""
    result: dict[int, dict[str | None, Path]] = {}
    for path in sorted(directory.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise UsageError(f"invalid migration name {path}: expected 0001_name.sql or 0001_name.postgresql.sql.")
        files = result.setdefault(int(match["number"]), {})
        if match["engine"] in files:
            raise UsageError(f"{path} and {files[match['engine']]} have the same number.")
        files[match["engine"]] = path
    if list(result) != list(range(1, len(result) + 1)):
        raise UsageError(
            f"The migrations in {directory} must be numbered 1, 2, 3, …, got {', '.join(map(str, result))}."
        )
    return [_read(number, files, engine) for number, files in result.items()]


def _read(number: int, files: dict[str | None, Path], engine: Engine) -> Migration:
    path = files.get(engine) or files.get(None)
    if path is None:
        raise UsageError(f"{next(iter(files.values()))} has no variant for {engine}.")
    text = path.read_text(encoding="utf-8")  # universal newlines: the checksum does not depend on the checkout
    return Migration(number, path.name.partition(".")[0], text, hashlib.sha256(text.encode()).hexdigest())


async def migrate(
    history: str,
    migrations: list[Migration],
    read: Callable[[Callable[[Transaction], Any]], Awaitable[Any]],
    write: Callable[[Callable[[Transaction], Any]], Awaitable[Any]],
) -> list[str]:
    """Apply pending migrations and return their names."""
    try:
        if len(await read(partial(_applied_numbers, history, migrations))) >= len(migrations):
            return []  # the usual case at startup: no lock is taken
    except InvalidStatement:
        pass  # the table does not exist yet
    applied = [await write(partial(_apply, history, migrations, migration)) for migration in migrations]
    return [name for name in applied if name is not None]


def _applied_numbers(history: str, migrations: list[Migration], tx: Transaction) -> set[int]:
    """Return the numbers of applied migrations after comparing their checksums."""
    rows = tx.fetch_all(
        tuple[int, str, str],
        "select number, name, checksum from portico_migration where history = :history order by number",
        {"history": history},
    )
    by_number = {migration.number: migration for migration in migrations}
    for number, name, checksum in rows:
        # An older release would read tables that it does not understand.
        if number not in by_number and not _is_additive(name):
            raise SchemaMismatch(
                f"The schema “{history}” of the database has version {rows[-1][0]}, but this Portico supports "
                f"versions up to {len(migrations)}. A newer Portico has used the database. Run that version, or "
                "restore a backup from before the upgrade."
            )
        if number in by_number and by_number[number].checksum != checksum:
            raise SchemaMismatch(
                f"The migration {by_number[number].name} of “{history}” was edited after it was applied to this "
                "database. Restore it, and put the change into a new migration with the next number."
            )
    return {number for number, _, _ in rows}


def _apply(history: str, migrations: list[Migration], item: Migration, tx: Transaction) -> str | None:
    # One lock for all histories: two components that start together must not create the table at the same time.
    tx.advisory_lock("portico migrations")
    tx.execute(_TABLE)
    if item.number in _applied_numbers(history, migrations, tx):
        return None
    if tx.engine == "sqlite":
        # Overwrite dropped content: it may be a copy of data that is to be erased later.
        tx.fetch_all(int, "pragma secure_delete = on")
    tx.execute_script(item.text)
    tx.execute(
        "insert into portico_migration (history, number, name, checksum, applied_at) values (?, ?, ?, ?, ?)",
        [history, item.number, item.name, item.checksum, time.time()],
    )
    if tx.engine == "sqlite":
        # Foreign keys are off during a migration, so they are checked before its commit.
        broken = tx.fetch_all(tuple[str, int | None, str, int], "pragma foreign_key_check")
        if broken:
            raise ConstraintViolation("foreign key", table=broken[0][0])
    return item.name
