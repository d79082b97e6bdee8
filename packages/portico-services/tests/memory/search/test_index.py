"""The search index is consistent with the memories on both engines, and rebuilt if it is not."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services import timestamps
from portico_services.memory.search import id_allocator, index_builder, index_maintenance
from portico_services.memory.search.index import INDEX_TABLES
from portico_services.memory.store import garbage_collection, memory_store as memories
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from support.memories import capture_memory, search_contents

TIMEOUT_SECONDS = 30


async def rows(memories: MemoryStore, table: str) -> int:
    return await memories.read(lambda tx: tx.fetch_one(int, f"select count(*) from memory_{table}"))


async def left(memories: MemoryStore) -> dict[str, int]:
    counted = {table: await rows(memories, table) for table in INDEX_TABLES}
    return {table: count for table, count in counted.items() if count}


async def whole(memories: MemoryStore) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await memories.wait_until_indexed()
    assert await memories.read(index_builder.is_complete)


async def fits(memories: MemoryStore) -> None:
    """Whatever was done, the index has what the table has."""
    assert await memories.read(index_builder.check_integrity) is None


async def test_doc_id_encodes_scope_thread_and_place() -> None:
    seat = id_allocator.make_doc_id(7, 123, 45)
    assert (id_allocator.scope_from_doc_id(seat), id_allocator.thread_number(seat), id_allocator.place_of(seat)) == (
        7,
        123,
        45,
    )
    assert id_allocator.first_doc_id(7) <= seat < id_allocator.first_doc_id(8)
    last_scope, last_thread = id_allocator.MAX_SCOPES_IN_STORE - 1, id_allocator.MAX_THREADS - 1
    assert id_allocator.make_doc_id(last_scope, last_thread, id_allocator.PLACES - 1) < 2**63


async def places(memories: MemoryStore) -> dict[str, tuple[int, int]]:
    """The thread and the place of each memory, by what it says."""
    sql = "select memory.content, memory_seat.seat from memory_seat join memory on memory.id = memory_seat.memory"
    rows = await memories.read(lambda tx: tx.fetch_all(tuple[str, int], sql))
    return {said: (id_allocator.thread_number(seat), id_allocator.place_of(seat)) for said, seat in rows}


async def test_thread_continues_where_it_ended_and_other_memories_have_no_thread(
    memories: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_allocator, "MAX_THREAD_LENGTH", 3)
    await capture_memory(memories, "one", thread="t")
    await capture_memory(memories, "alone")
    drafts = [MemoryDraft(content=message, namespace="decisions", thread="t") for message in ("two", "three", "four")]
    await memories.capture_batch([*drafts, MemoryDraft(content="other", namespace="decisions", thread="u")])
    await capture_memory(memories, "five", thread="t")
    result = await places(memories)
    assert [result[message][1] for message in ("one", "two", "three", "four", "five", "other")] == [0, 1, 2, 0, 1, 0]
    assert result["one"][0] == result["three"][0] != result["four"][0] == result["five"][0]
    assert result["alone"][1] == id_allocator.ALONE
    # What an older release has written may be beyond that.
    monkeypatch.setattr(id_allocator, "MAX_THREAD_LENGTH", 1)
    await capture_memory(memories, "six", thread="t")
    assert (await places(memories))["six"][1] == 0
    await fits(memories)


async def test_purge_leaves_no_index_entries(memories: MemoryStore) -> None:
    first = await capture_memory(memories, "Ann likes kumquats", author="Ann Lee", thread="t1")
    await capture_memory(memories, "So do I", author="Bob", thread="t1")
    await capture_memory(memories, "Kumquats are small", "learnings", domain="user")
    await memories.update(first.id, content="Ann likes oranges")
    await fits(memories)
    await memories.delete(first.id)
    await fits(memories)
    await memories.delete_all(memories.filter("project:*"), dry_run=False, hard=True)
    assert await left(memories) == {}


async def test_delete_removes_terms_that_were_tokenized_differently(memories: MemoryStore) -> None:
    """A text may have been read by another Python, which knows other characters as letters."""
    kept = await capture_memory(memories, "Ann likes kumquats")
    other = await capture_memory(memories, "Bob likes oranges")
    sql = "update memory_posting set term = 'kum' where term = (select term from memory_posting where term like 'kum%')"
    assert await memories.write(lambda tx: tx.execute(sql)) == 1
    await memories.delete(kept.id, hard=True)
    assert await memories.read(lambda tx: tx.fetch_all(str, "select term from memory_posting where term = 'kum'")) == []
    await fits(memories)
    assert await search_contents(memories, "oranges") == [other.content]


async def test_every_change_keeps_the_index_in_step(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [await capture_memory(memories, f"{word} grows in the garden", ttl=ttl) for word, ttl in
            (("basil", None), ("thyme", None), ("mint", "1h"), ("sage", None), ("dill", None))]  # fmt: skip
    await memories.update(kept[0].id, namespace="learnings")
    await memories.update(kept[1].id, status="archived")
    await memories.delete(kept[3].id)
    await memories.restore(kept[3].id)
    await memories.capture(
        MemoryDraft(content="dill grows in the garden", namespace="decisions", on_duplicate="supersede")
    )
    await fits(memories)
    assert sorted(await search_contents(memories, "garden")) == sorted(
        f"{word} grows in the garden" for word in ("basil", "mint", "sage", "dill")
    )
    later = timestamps.now_ms() + 2 * 3_600_000
    monkeypatch.setattr(timestamps, "now_ms", lambda: later)
    await garbage_collection.collect_garbage(memories, dry_run=False)
    await fits(memories)
    assert "mint grows in the garden" not in await search_contents(memories, "garden")


async def test_erased_memory_leaves_no_terms_in_the_index(memories: MemoryStore) -> None:
    await capture_memory(memories, "The xylophonist lives in Zanzibar", author="Quentin Yggdrasil", thread="quetzal")
    await capture_memory(memories, "Nothing to hide here")
    assert await garbage_collection.erase_memories(memories, author="Quentin Yggdrasil") == 1

    def said(tx: Transaction) -> str:
        columns = {"posting": "term", "author": "name", "author_word": "word", "thread": "name"}
        return " ".join(
            " ".join(tx.fetch_all(str, f"select {column} from memory_{table}")) for table, column in columns.items()
        )

    left_over = await memories.read(said)
    for word in ("xylophonist", "zanzibar", "quentin", "Yggdrasil", "quetzal"):
        assert word.lower()[:6] not in left_over.lower()
    await fits(memories)


async def test_reindexing_gives_the_same_lists(memories: MemoryStore) -> None:
    for number in range(30):
        await capture_memory(memories, f"Step {number} of the recipe uses flour", thread="cake", at="2026-01-01")
    before = [hit.record.id for hit in (await memories.recall("flour in step 7", memories.filter(""))).hits]
    assert await memories.reindex() == 30
    after = [hit.record.id for hit in (await memories.recall("flour in step 7", memories.filter(""))).hits]
    assert before == after
    await fits(memories)


async def test_store_that_has_no_index_gets_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Database(url) as database:
        first = MemoryStore(database, project="here/project")
        await first.open()
        await first.capture_batch(
            [
                MemoryDraft(content=f"pear number {number}", namespace="learnings", thread="pears")
                for number in range(600)
            ]
        )
        for table in INDEX_TABLES:
            await first.write(lambda tx, table=table: tx.execute(f"delete from memory_{table}"))  # type: ignore[misc]
        await first.write(lambda tx: tx.execute("update memory_indexed set format = 0"))
        await first.close()
        second = MemoryStore(database, project="here/project")
        await second.open()
        # It is said that there is more.
        monkeypatch.setattr(memories, "INDEX_WAIT_SECONDS", 0.0)
        early = await second.recall("pear 599", second.filter(""))
        assert early.note is not None and "being built" in early.note
        await whole(second)
        await fits(second)
        assert (await second.recall("pear 599", second.filter(""))).note is None
        assert "pear number 599" in await search_contents(second, "pear 599", limit=3)
        await second.close()


async def test_memory_captured_during_the_index_build_is_found_immediately(memories: MemoryStore) -> None:
    await memories.capture_batch([MemoryDraft(content=f"fig {number}", namespace="learnings") for number in range(40)])
    await memories.write(index_builder.reset)
    await memories.write(lambda tx: index_builder.build_batch(tx, 10))
    await capture_memory(memories, "a papaya among figs")
    assert await search_contents(memories, "papaya") == ["a papaya among figs"]
    while await memories.write(lambda tx: index_builder.build_batch(tx, 10)):
        pass
    await fits(memories)


@pytest.mark.parametrize("damage", ["drop table memory_posting", "drop table memory_scope"])
async def test_lost_table_is_made_again(memories: MemoryStore, damage: str) -> None:
    await capture_memory(memories, "the mango is ripe")
    await memories.database.write(lambda tx: tx.execute(damage))
    await capture_memory(memories, "the guava is not")
    await search_contents(memories, "anything")
    await whole(memories)
    assert await search_contents(memories, "mango") == ["the mango is ripe"]
    assert await search_contents(memories, "guava") == ["the guava is not"]
    await fits(memories)


@pytest.mark.parametrize(
    "damage",
    [
        "delete from memory_posting",
        "update memory_seat set kind = -1",
        "delete from memory_scope",
        "drop table memory_indexed",
    ],
)
async def test_incomplete_index_is_detected_on_open(url: str, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_maintenance, "INTEGRITY_CHECK_DELAY_SECONDS", 0)
    async with Database(url) as database:
        first = MemoryStore(database, project="here/project")
        await first.open()
        await capture_memory(first, "the quince is sour")
        await whole(first)
        await first.write(lambda tx: tx.execute(damage))
        await first.close()
        second = MemoryStore(database, project="here/project")
        await second.open(verify=True)
        await whole(second)
        await fits(second)
        assert await search_contents(second, "quince") == ["the quince is sour"]
        await second.close()


async def test_pages_of_the_index_that_were_overwritten_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with Database(path) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        await memories.capture_batch(
            [MemoryDraft(content=f"olive {number} {'pit ' * 5}stone", namespace="learnings") for number in range(500)]
        )
        await memories.close()
    _overwrite(path, "memory_posting")
    async with Database(path) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        await search_contents(memories, "olive")
        await capture_memory(memories, "a caper")
        await whole(memories)
        await fits(memories)
        assert "olive 123 pit pit pit pit pit stone" in await search_contents(memories, "olive 123", limit=3)
        await memories.close()


def _overwrite(path: Path, table: str) -> None:
    """All of its pages that have rows."""
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")
    size: int = connection.execute("pragma page_size").fetchone()[0]
    sql = "select pageno from dbstat where name = ? and pagetype = 'leaf'"
    numbers: list[Any] = connection.execute(sql, (table,)).fetchall()
    connection.close()
    with path.open("r+b") as file:
        for (number,) in numbers:
            file.seek((number - 1) * size)
            file.write(b"\xa5" * size)
