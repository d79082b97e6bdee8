"""Index builds from the table `memory`, for a store without an index and for damaged ones.

A build works in batches in chronological order, so that neighbours in a thread get adjacent document ids. Each batch
records its progress, and the next process resumes there. Memories captured during a build are indexed immediately, as
usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from portico.extend import Transaction
from portico.store.errors import DatabaseCorrupt, InvalidStatement
from portico_services.memory.search.id_allocator import NO_ID
from portico_services.memory.search.index import INDEX_TABLES, analyze_record, index_documents
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import SELECT_SQL, MemoryRecord, fetch

# Increase this when the index content changes, such as the terms of a text; the index is then rebuilt. Postings are
# removed by the terms that the current code computes, so a mismatch would leave stale ones.
INDEX_FORMAT = 3
# Each batch rewrites most pages of the index, so batches should not be small; on SQLite other writers wait for a batch.
BUILD_BATCH_SIZE = 2000
MIGRATIONS = Path(__file__).parent.parent / "store" / "migrations"
INTEGRITY_SAMPLE_SIZE = 50


class _BuildProgress(Struct, frozen=True):
    """Progress of an index build: everything up to this memory, or everything if `at` is None."""

    format: int = INDEX_FORMAT
    at: int | None = None
    place: int | None = None
    memory: str | None = None


# Earlier than any timestamp.
_START = _BuildProgress(at=-9_000_000_000_000_000_000, place=0, memory="")


def is_complete(tx: Transaction) -> bool:
    return _load_progress(tx) == _BuildProgress()


def is_empty(tx: Transaction) -> bool:
    return tx.fetch_optional(int, "select 1 from memory limit 1") is None


def reset(tx: Transaction) -> None:
    """Empty the index and record that it must be built from the beginning."""
    for table in INDEX_TABLES:
        tx.execute(f"delete from memory_{table}")
    tx.execute("delete from memory_tally where kind = 'vector'")
    _save_progress(tx, _START)


def build_batch(tx: Transaction, limit: int = BUILD_BATCH_SIZE) -> int:
    """Index the next batch and return its size; 0 means that the index is complete."""
    reached = _load_progress(tx)
    if reached.format != INDEX_FORMAT:
        reset(tx)
        reached = _START
    if reached.at is None:
        return 0
    rows = tx.fetch_all(
        MemoryRecord,
        f"{SELECT_SQL} where at >= :at and (at, coalesce(place, 0), id) > (:at, :place, :memory) and status in "
        ":current "
        "order by at, coalesce(place, 0), id limit cast(:most as bigint)",
        {**asdict(reached), "current": list(CURRENT_STATUSES), "most": limit},
    )
    # Memories captured during the build may be indexed already, hence `before`.
    index_documents(tx, rows, before=rows)
    last = rows[-1] if len(rows) == limit else None
    _save_progress(
        tx, _BuildProgress() if last is None else _BuildProgress(at=last.at, place=last.place or 0, memory=last.id)
    )
    return len(rows)


def check_integrity(tx: Transaction) -> str | None:
    """Return a description of the damage, or None if the index is intact or still being built.

    The check compares counts and the postings of the newest memories.
    """
    if not is_complete(tx):
        return None
    sql = "select count(*) from memory where status in :current"
    expected = tx.fetch_one(int, sql, {"current": list(CURRENT_STATUSES)})
    counted = tx.fetch_one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    listed = tx.fetch_one(int, f"select count(*) from memory_seat where kind <> {NO_ID}")
    # Cheap counts first. They find a table that lost rows; the sample below finds postings that do not match their
    # texts.
    if not expected == counted == listed:
        return f"{expected:,} memories, but {listed:,} indexed and {counted:,} counted"
    sql = f"select memory, seat from memory_seat where kind <> {NO_ID} order by seat desc limit {INTEGRITY_SAMPLE_SIZE}"
    newest = dict(tx.fetch_all(tuple[str, int], sql))
    for id, record in fetch(tx, list(newest)).items():
        doc_id, terms = newest[id], list(analyze_record(record).terms)
        sql = "select count(*) from memory_posting where seat = :seat and term in :said"
        if tx.fetch_one(int, sql, {"seat": doc_id, "said": terms}) != len(terms):
            return "postings of a memory are missing"
    return None


def find_unreadable_tables(tx: Transaction) -> list[str]:
    """Return the index tables that are missing or unreadable."""
    reading = "pragma quick_check(memory_{})" if tx.engine == "sqlite" else "select 'ok' from memory_{} limit 0"
    results = []
    for table in (*INDEX_TABLES, "indexed"):
        try:
            with tx.savepoint():
                if tx.fetch_all(str, reading.format(table)) not in ([], ["ok"]):
                    results.append(table)
        except (InvalidStatement, DatabaseCorrupt):
            results.append(table)
    return results


def recreate_tables(tx: Transaction, damaged: Sequence[str]) -> None:
    """Drop and recreate all tables of the index."""
    for table in (*INDEX_TABLES, "indexed"):
        if table in damaged and tx.engine == "sqlite":
            _rename_damaged(tx, table)
        else:
            tx.execute(f"drop table if exists memory_{table}")
    tx.execute("delete from memory_tally where kind = 'vector'")
    for name in (f"0003_ranking.{tx.engine}.sql", "0008_seats.sql", "0011_scopes.sql"):
        tx.execute_script((MIGRATIONS / name).read_text(encoding="utf-8"))


def _rename_damaged(tx: Transaction, table: str) -> None:
    """Rename a damaged table: SQLite reads a table to drop it, but not to rename it."""
    tables = set(tx.fetch_all(str, "select name from sqlite_master"))
    if f"memory_{table}" in tables:
        name = next(name for number in range(1000) if (name := f"damaged_{number}_{table}") not in tables)
        tx.execute(f"alter table memory_{table} rename to {name}")
        sql = "select name from sqlite_master where type = 'index' and tbl_name = ? and sql is not null"
        for item in tx.fetch_all(str, sql, (name,)):
            tx.execute(f"drop index {item}")


def _load_progress(tx: Transaction) -> _BuildProgress:
    rows = tx.fetch_all(_BuildProgress, "select format, at, place, memory from memory_indexed")
    return rows[0] if len(rows) == 1 else _BuildProgress(format=0)


def _save_progress(tx: Transaction, reached: _BuildProgress) -> None:
    tx.execute("delete from memory_indexed")
    sql = "insert into memory_indexed (format, at, place, memory) values (:format, :at, :place, :memory)"
    tx.execute(sql, asdict(reached))
