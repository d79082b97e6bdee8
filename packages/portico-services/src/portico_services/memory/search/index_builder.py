"""Builds the index from the table `memory`: for a store that has none, and where it is damaged.

It works in batches, in the order of time, so that neighbours in threads get neighbouring positions. Each batch also
writes how far the build has come, and the next process continues from there. What is captured meanwhile is indexed at
once, as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from portico.extend import BadStatement, Damaged, Transaction
from portico_services.memory.search.id_allocator import ABSENT
from portico_services.memory.search.index import TABLES, index, reading_of
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import SELECT, Record, fetch

# To be increased when what is written into the index changes, such as the words of a text: it is then rebuilt. What is
# taken out are the words that a text has now.
FORMAT = 3
# Each batch rewrites most of the pages of the index, so it is not too small; on SQLite other writers wait for it.
BATCH = 2000
MIGRATIONS = Path(__file__).parent.parent / "store" / "migrations"
SAMPLE = 50


class _BuildProgress(Struct, frozen=True):
    """How far the index has been built: everything up to this memory; everything if `at` is None."""

    format: int = FORMAT
    at: int | None = None
    place: int | None = None
    memory: str | None = None


# Before all moments.
_START = _BuildProgress(at=-9_000_000_000_000_000_000, place=0, memory="")


def is_whole(tx: Transaction) -> bool:
    return _reached(tx) == _BuildProgress()


def is_empty(tx: Transaction) -> bool:
    return tx.maybe(int, "select 1 from memory limit 1") is None


def begin(tx: Transaction) -> None:
    """Empty the index, and record that it has to be built from the beginning."""
    for table in TABLES:
        tx.run(f"delete from memory_{table}")
    tx.run("delete from memory_tally where kind = 'vector'")
    _note(tx, _START)


def build(tx: Transaction, most: int = BATCH) -> int:
    """Index the next batch and return its size. At 0 none are left, and the index is whole."""
    reached = _reached(tx)
    if reached.format != FORMAT:
        begin(tx)
        reached = _START
    if reached.at is None:
        return 0
    found = tx.all(
        Record,
        f"{SELECT} where at >= :at and (at, coalesce(place, 0), id) > (:at, :place, :memory) and status in :current "
        "order by at, coalesce(place, 0), id limit cast(:most as bigint)",
        {**asdict(reached), "current": list(CURRENT), "most": most},
    )
    index(tx, found, before=found)
    last = found[-1] if len(found) == most else None
    _note(tx, _BuildProgress() if last is None else _BuildProgress(at=last.at, place=last.place or 0, memory=last.id))
    return len(found)


def trouble(tx: Transaction) -> str | None:
    """What is wrong with the index, found by counting and by checking the newest memories; None if nothing is, or while
    it is being built."""
    if not is_whole(tx):
        return None
    sql = "select count(*) from memory where status in :current"
    wanted = tx.one(int, sql, {"current": list(CURRENT)})
    counted = tx.one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    listed = tx.one(int, f"select count(*) from memory_seat where kind <> {ABSENT}")
    if not wanted == counted == listed:
        return f"of {wanted:,} memories {listed:,} are indexed, and {counted:,} are counted"
    sql = f"select memory, seat from memory_seat where kind <> {ABSENT} order by seat desc limit {SAMPLE}"
    newest = dict(tx.all(tuple[str, int], sql))
    for id, record in fetch(tx, list(newest)).items():
        seat, said = newest[id], list(reading_of(record).terms)
        sql = "select count(*) from memory_posting where seat = :seat and term in :said"
        if tx.one(int, sql, {"seat": seat, "said": said}) != len(said):
            return "words of a memory are missing"
    return None


def unreadable(tx: Transaction) -> list[str]:
    """The tables of the index that are missing or cannot be read."""
    reading = "pragma quick_check(memory_{})" if tx.engine == "sqlite" else "select 'ok' from memory_{} limit 0"
    found = []
    for table in (*TABLES, "indexed"):
        try:
            with tx.savepoint():
                if tx.all(str, reading.format(table)) not in ([], ["ok"]):
                    found.append(table)
        except (BadStatement, Damaged):
            found.append(table)
    return found


def anew(tx: Transaction, damaged: Sequence[str]) -> None:
    """Create all tables of the index again."""
    for table in (*TABLES, "indexed"):
        if table in damaged and tx.engine == "sqlite":
            _put_aside(tx, table)
        else:
            tx.run(f"drop table if exists memory_{table}")
    tx.run("delete from memory_tally where kind = 'vector'")
    for name in (f"0003_ranking.{tx.engine}.sql", "0008_seats.sql", "0011_scopes.sql"):
        tx.script((MIGRATIONS / name).read_text(encoding="utf-8"))


def _put_aside(tx: Transaction, table: str) -> None:
    """Rename a damaged table: SQLite reads a table in order to drop it, but not to rename it."""
    there = set(tx.all(str, "select name from sqlite_master"))
    if f"memory_{table}" in there:
        name = next(name for number in range(1000) if (name := f"damaged_{number}_{table}") not in there)
        tx.run(f"alter table memory_{table} rename to {name}")
        sql = "select name from sqlite_master where type = 'index' and tbl_name = ? and sql is not null"
        for one in tx.all(str, sql, (name,)):
            tx.run(f"drop index {one}")


def _reached(tx: Transaction) -> _BuildProgress:
    found = tx.all(_BuildProgress, "select format, at, place, memory from memory_indexed")
    return found[0] if len(found) == 1 else _BuildProgress(format=0)


def _note(tx: Transaction, reached: _BuildProgress) -> None:
    tx.run("delete from memory_indexed")
    sql = "insert into memory_indexed (format, at, place, memory) values (:format, :at, :place, :memory)"
    tx.run(sql, asdict(reached))
