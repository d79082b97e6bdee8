"""Counters are correct after every change, after failed ones, and for older stores."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services import timestamps
from portico_services.memory import export_import
from portico_services.memory.extras import graph
from portico_services.memory.search import id_allocator, index_builder
from portico_services.memory.store import garbage_collection, statistics
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MIGRATION_HISTORY, MIGRATIONS, MemoryStore
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from support.memories import call_tool, capture_memory


def counted(tx: Transaction) -> dict[str, Any]:
    """By looking at everything."""
    current = {"current": list(CURRENT_STATUSES)}

    def by(column: str, table: str = "memory") -> dict[str, int]:
        source = "memory" if table == "memory" else f"{table} join memory on memory.id = {table}.memory"
        sql = (
            f"select {table}.{column}, count(*) from {source} where memory.status in :current "
            f"and {table}.{column} is not null group by {table}.{column}"
        )
        return dict(tx.fetch_all(tuple[str, int], sql, current))

    return {
        "by_namespace": by("namespace"),
        "by_domain": by("domain"),
        "by_project": by("project"),
        "by_branch": by("branch"),
        "tags": by("tag", "memory_tag"),
        "by_status": dict(tx.fetch_all(tuple[str, int], "select status, count(*) from memory group by status")),
        "total": tx.fetch_one(int, "select count(*) from memory where status in :current", current),
        "entities": by("entity", "memory_mention"),
        "oldest": tx.fetch_optional(int, "select min(at) from memory where status in :current", current),
        "newest": tx.fetch_optional(int, "select max(at) from memory where status in :current", current),
    }


def kept(tx: Transaction) -> dict[str, Any]:
    counts = statistics.collect_counts(tx)
    results: dict[str, Any] = {name: getattr(counts, name) for name in counted(tx) if name != "entities"}
    results["entities"] = {entity.name.casefold(): entity.mentions for entity in graph.list_entities(tx, None, 1000)}
    return results


async def agree(memories: MemoryStore) -> None:
    assert await memories.read(kept) == await memories.read(counted)


async def test_counts_are_right_after_every_change(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await agree(memories)
    ann = await capture_memory(
        memories, "Ann uses PostgreSQL and Redis", author="Ann", tags=["db", "cache"], branch="main"
    )
    await capture_memory(memories, "Ben uses Redis", "learnings", author="Ben", tags=["cache"], domain="user", ttl="1h")
    await agree(memories)
    await memories.update(ann.id, tags=["db", "storage"])
    await memories.update(ann.id, content="Ann uses MySQL", namespace="context")
    await agree(memories)
    for status in ("pending", "archived", "superseded", "active"):
        await memories.update(ann.id, status=status)
        await agree(memories)
    await memories.delete(ann.id)
    await agree(memories)
    await memories.restore(ann.id)
    again = MemoryDraft(content="Ann uses MySQL", namespace="context", tags=["new"], on_duplicate="merge", author="Ann")
    await memories.capture(again)
    await memories.capture_batch([again, again, MemoryDraft(content="Docker runs", namespace="apis", tags=["ops"])])
    await agree(memories)
    text, count, _ = await export_import.export_memories(memories, memories.filter(""), "jsonl")
    assert count == 3
    await memories.delete_all(memories.filter("domain:project"), dry_run=False, hard=True)
    await agree(memories)
    await export_import.import_memories(memories, text, "jsonl")
    await agree(memories)
    assert await memories.reindex() == 3
    await agree(memories)
    await memories.write(index_builder.reset)
    await agree(memories)
    while await memories.write(index_builder.build_batch):
        pass
    later = timestamps.now_ms() + 2 * 3_600_000
    monkeypatch.setattr(timestamps, "now_ms", lambda: later)
    await garbage_collection.collect_garbage(memories, dry_run=False, branch="main", purge=True, older_than="1s")
    await agree(memories)
    assert await garbage_collection.erase_memories(memories, author="Ann") == 1
    await agree(memories)
    await memories.delete_all(memories.filter("project:*"), dry_run=False, hard=True)
    await agree(memories)


async def test_write_that_fails_counts_nothing(memories: MemoryStore) -> None:
    await capture_memory(memories, "Redis is fast", tags=["cache"])

    def fail(tx: Transaction) -> None:
        tx.execute("update memory_tally set memories = memories + 1")
        raise RuntimeError("too late")

    with pytest.raises(RuntimeError):
        await memories.write(fail)
    await agree(memories)


async def test_older_store_is_counted_once(bare_url: str, tmp_path: Path) -> None:
    """With what it has, before anything else is done with it."""
    async with Database(bare_url) as database:
        await database.migrate(MIGRATION_HISTORY, migrations_before("0007", tmp_path))
        await database.write(_as_it_was)
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        async with asyncio.timeout(30):
            await memories.wait_until_indexed()
        assert (await memories.read(kept))["tags"] == {"db": 2, "old": 1}
        await agree(memories)
        page = await memories.recall("", memories.filter("tag:db"))
        assert [hit.record.id for hit in page.hits] == ["aa02", "aa01"]
        await memories.close()


async def test_older_store_preserves_its_index(bare_url: str, tmp_path: Path) -> None:
    """Its postings, its vectors and what memories mention are as they were, and go with their memory."""
    async with Database(bare_url) as database:
        await database.migrate(MIGRATION_HISTORY, migrations_before("0008", tmp_path))
        await database.write(_as_it_was)
        await database.write(_indexed_as_it_was)
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        seated = await memories.read(
            lambda tx: tx.fetch_all(tuple[str, str | None], "select memory, model from memory_seat")
        )
        assert seated == [("aa01", "minilm")]
        for query, filter, ids in (("redis", "", ["aa01"]), ("", "tag:db", ["aa02", "aa01"])):
            page = await memories.recall(query, memories.filter(filter))
            assert [hit.record.id for hit in page.hits] == ids
        assert [item.mentions for item in await memories.read(lambda tx: graph.list_entities(tx, None, 5))] == [2]
        await memories.delete("aa01", hard=True)
        for table in ("posting", "seat", "vector"):
            sql = f"select count(*) from memory_{table}"
            assert await memories.read(lambda tx, sql=sql: tx.fetch_one(int, sql)) == 0  # type: ignore[misc]
        await memories.close()


def migrations_before(number: str, folder: Path) -> Path:
    """Those of an earlier release."""
    before = folder / "before"
    before.mkdir()
    for path in sorted(MIGRATIONS.glob("*.sql")):
        if path.name < number:
            shutil.copy(path, before)
    return before


def _indexed_as_it_was(tx: Transaction) -> None:
    tx.execute(
        f"update memory_indexed set format = {index_builder.INDEX_FORMAT}, at = null, place = null, memory = null"
    )
    scope = tx.fetch_one(
        int,
        "insert into memory_scope (domain, namespace, project, memories, threads) "
        "values ('project', 'decisions', 'here/project', 1, 1) returning number",
    )
    seat = id_allocator.make_doc_id(scope, 0, id_allocator.ALONE)
    tx.execute("insert into memory_seat (seat, memory) values (?, 'aa01')", (seat,))
    terms = ["redi", "aa01", "@1/1", "januari", "1970"]
    tx.execute("insert into memory_terms (seat, terms, model) values (?, ?, 'minilm')", (seat, " ".join(terms)))
    tx.execute_many(
        "insert into memory_posting (term, seat, weight) values (?, ?, 129)", [(term, seat) for term in terms]
    )
    tx.execute("insert into memory_vector (seat, model, scale, vector) values (?, 'minilm', 1.0, ?)", (seat, b"1"))
    tx.execute("insert into memory_tally (kind, name, memories) values ('vector', '', 1)")
    tx.execute("update memory_entity set mentions = 2")


def _as_it_was(tx: Transaction) -> None:
    states = (("aa01", "active", ["db"]), ("aa02", "pending", ["db", "old"]), ("aa03", "deleted", ["old"]))
    for number, (id, status, tags) in enumerate(states):
        tx.execute(
            "insert into memory (id, domain, namespace, content, tags, project, branch, status, version, at, "
            "created_at, updated_at, digest) values (:id, 'project', 'decisions', :content, '[]', 'here/project', "
            "'main', :status, 1, :at, :at, :at, :id)",
            {"id": id, "content": f"Redis {id}", "status": status, "at": 1_000_000 + number},
        )
        tx.execute_many("insert into memory_tag (memory, tag) values (?, ?)", [(id, tag) for tag in tags])
        if number == 0:
            tx.execute(
                "insert into memory_entity (name, label, kind, created_at) values ('redis', 'Redis', 'Concept', 1)"
            )
        tx.execute("insert into memory_mention (memory, entity) values (:id, 'redis')", {"id": id})


async def test_bulk_delete_runs_in_batches(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives up in between has deleted those of the pieces before."""
    monkeypatch.setattr("portico_services.memory.store.memory_store.WRITE_BATCH_SIZE", 10)
    await memories.capture_batch([MemoryDraft(content=f"step {number}", namespace="progress") for number in range(35)])
    notifications: list[int] = []

    def tell(count: int) -> None:
        notifications.append(count)
        if count == 20:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await memories.delete_all(memories.filter("ns:progress"), dry_run=False, done=tell)
    await agree(memories)
    assert (await memories.read(statistics.count_by_namespace)) == {"progress": 15}
    swept = await memories.delete_all(memories.filter("ns:progress"), dry_run=False, done=notifications.append)
    assert (swept.count, notifications) == (15, [10, 20, 10, 15])
    assert (await memories.delete_all(memories.filter("ns:progress status:deleted"), hard=True)).count == 35


async def test_bulk_work_reports_progress(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.memory.store.memory_store.WRITE_BATCH_SIZE", 10)
    monkeypatch.setattr("portico_services.memory.store.garbage_collection.WRITE_BATCH_SIZE", 10)
    monkeypatch.setattr("portico_services.memory.export_import.INSERT_BATCH_SIZE", 10)
    client = await serving(tools="all")
    lines = [
        json.dumps({"id": f"{number:016x}", "namespace": "progress", "content": f"step {number}", "author": "Ann"})
        for number in range(25)
    ]
    notifications: list[float] = []

    async def call(tool: str, **arguments: Any) -> list[float]:
        notifications.clear()

        def tell(progress: float, *_: Any) -> None:
            notifications.append(progress)

        result = await client.call_tool(tool, arguments, progress_handler=tell)
        assert not result.is_error, result.content
        return list(notifications)

    assert await call("memory_import", data="\n".join(lines)) == [10, 20, 25]
    assert await call("memory_delete_all", filter="ns:progress", dry_run=False) == [10, 20, 25]
    assert await call("memory_gc", dry_run=False, purge=True, older_than="1s") in ([], [10, 20, 25])
    await call("memory_import", data="\n".join(lines))
    assert await call("memory_erase", author="Ann", confirm=True) == [20, 25]


async def test_export_cursor_is_stable_under_concurrent_changes(serving: Any) -> None:
    """Whatever is stored or deleted meanwhile, nothing is left out and nothing comes twice."""
    client = await serving()
    for number in range(12):
        await call_tool(client, "memory_capture", content=f"fact {number}", namespace="context", on_duplicate="keep")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await call_tool(client, "memory_export", limit=5, **cursor)
        seen += [line.split('"id":"')[1][:16] for line in page["data"].splitlines() if '"id":"' in line]
        await call_tool(
            client, "memory_capture", content=f"later {len(seen)}", namespace="context", on_duplicate="keep"
        )
        await call_tool(client, "memory_delete", memory_id=seen[0])
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert len(seen) == len(set(seen)) == 12
