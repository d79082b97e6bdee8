"""The text index finds the same tasks as a full scan, on both engines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services.workitems import maintenance, query_plan, text_index
from portico_services.workitems.edits import WorkItemChanges, WorkItemDraft
from portico_services.workitems.item_store import MIGRATIONS, WorkItemStore
from portico_services.workitems.listing import ListQuery
from portico_services.workitems.query_plan import TextFilter
from portico_services.workitems.text_index import MAX_SUFFIX_CHARS, MAX_TERM_CHARS, MAX_TERMS
from portico_services.workitems.validation import casefold_text
from support.work_items import HOSTILE, call_tool, create_item

TIMEOUT_SECONDS = 60.0
PIECES = [
    "pars",
    "er",
    "fix",
    "Straße",
    "ﬁ",
    "漢字",
    "かな",
    "_",
    "-",
    "%",
    "\\",
    "é",
    "e\u0301",
    "x" * 30,
    "1234567890" * 4,
    ":",
    "𝔘",
]


async def listed(items: WorkItemStore, **wanted: Any) -> list[str]:
    return [item.id for item in (await items.list_page(ListQuery(**wanted), limit=1000)).items]


def chance_text(chance: random.Random) -> str:
    return "".join(chance.choice([*PIECES, " ", " "]) for _ in range(chance.randrange(1, 25))).strip() or "x"


def chance_queries(chance: random.Random, texts: list[str]) -> list[str]:
    results = []
    for _ in range(60):
        text = chance.choice(texts)
        start = chance.randrange(len(text))
        results.append(text[start : start + chance.randrange(1, 40)])
    return [*results, *PIECES, *HOSTILE, "nowhere", "fix nowhere"]


@pytest.mark.parametrize("few", [query_plan.MAX_SELECTIVE_ITEMS, 3, -1])
async def test_text_search_matches_a_full_scan(items: WorkItemStore, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way is gone: by the index, by going through the list, or by whichever is shorter."""
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ITEMS", few)
    chance = random.Random(few)
    texts = [chance_text(chance) for _ in range(60)] + HOSTILE
    made = await items.create_batch([WorkItemDraft(description=text, context=text[::-1]) for text in texts])
    await items.index_pending()
    for query in chance_queries(chance, texts):
        words = casefold_text(query).split()
        if not words:
            continue
        expected = {
            item.id
            for item in made
            if all(word in casefold_text(f"{item.description}\n{item.context}") for word in words)
        }
        assert set(await listed(items, query=query)) == expected, query


def test_every_word_of_a_run_is_a_prefix() -> None:
    chance = random.Random(1)
    for length in (1, MAX_SUFFIX_CHARS, MAX_SUFFIX_CHARS + 1, MAX_TERM_CHARS, MAX_TERM_CHARS + 1, 100, 1000):
        run = "".join(chance.choice("abc") for _ in range(length))
        ends = {end for end, _ in text_index.term_suffixes(text_index.index_terms(run))}
        for start in range(length):
            for end in range(start + 1, min(start + MAX_SUFFIX_CHARS, length) + 1):
                assert any(one.startswith(run[start:end]) for one in ends)


async def test_last_word_of_a_long_text_is_found(items: WorkItemStore) -> None:
    long = " ".join(f"w{number}" for number in range(2 * MAX_TERMS))
    id = await create_item(items, "long", context=f"{long} thelastofall")
    await create_item(items, "other", context=long)
    await items.index_pending()
    assert await listed(items, query="lastofall") == [id]
    result = await items.next("ann", query="lastofall")
    assert result is not None and result.id == id


async def test_changed_text_is_found_by_new_terms_only(items: WorkItemStore) -> None:
    id = await create_item(items, "first words", context="some background")
    await items.index_pending()
    await items.update(id, WorkItemChanges(description="other words"))
    assert await listed(items, query="first") == []
    assert await listed(items, query="ther back") == [id]
    await items.delete(id)
    assert await listed(items, query="other") == []
    assert await items.read(lambda tx: tx.fetch_one(int, "select count(*) from work_item_posting")) == 0


async def test_pages_of_a_query_follow_one_another(items: WorkItemStore) -> None:
    made = [await create_item(items, f"needle {number}", priority=number % 5 + 1) for number in range(12)]
    await create_item(items, "hay")
    await items.index_pending()
    results: list[str] = []
    cursor = None
    while True:
        page = await items.list_page(ListQuery(query="need"), limit=5, cursor=cursor)
        results += [item.id for item in page.items]
        if (cursor := page.cursor) is None:
            break
    assert results == [item for priority in range(5) for item in reversed(made[priority::5])]


def older(tx: Transaction, count: int) -> None:
    """Tasks as an older version wrote them."""
    rows = [{"id": f"task_{n:017d}", "text": f"task number {n} of w{n}x"} for n in range(count)]
    tx.execute_many(
        "insert into work_item (id, description, status, priority, created_at, updated_at, words) "
        "values (:id, :text, 'pending', 3, 1, 1, :text)",
        rows,
    )


async def unindexed(items: WorkItemStore) -> int:
    return await items.read(lambda tx: tx.fetch_one(int, "select count(*) from work_item_unindexed"))


async def test_older_store_is_indexed_and_searchable_in_between(bare_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    folder.mkdir()
    for path in sorted(MIGRATIONS.glob("000[12]*")):
        (folder / path.name).write_text(path.read_text())
    count = 2 * text_index.INDEX_BATCH_SIZE + 7
    async with Database(bare_url) as database:
        await database.migrate("work_items", folder)
        await database.write(lambda tx: older(tx, count))
        items = WorkItemStore(database)
        await items.open()
        assert await unindexed(items) == count
        assert await listed(items, query="w300x") == [f"task_{300:017d}"]
        await items.index_pending()
        assert await unindexed(items) == 0
        fresh = await create_item(items, "fresh")
        await items.update(f"task_{400:017d}", WorkItemChanges(description="changed meanwhile"))
        assert await unindexed(items) == 2
        for _ in range(2):
            for query, number in (("w300x", 300), ("meanwhile", 400), (f"w{count - 1}x", count - 1)):
                assert await listed(items, query=query) == [f"task_{number:017d}"]
            assert await listed(items, query="w400x") == []
            assert await listed(items, query="fresh") == [fresh]
            await items.index_pending()


async def test_concurrent_indexing_leaves_nothing_out(url: str) -> None:
    async with Database(url) as item, Database(url) as two:
        items, others = WorkItemStore(item), WorkItemStore(two)
        await items.open()
        await asyncio.gather(
            *(create_item(items if n % 2 else others, f"w{n}x of {n % 3}") for n in range(120)),
            *(each.index_pending() for each in (items, others) * 5),
        )
        await asyncio.gather(items.index_pending(), others.index_pending())
        assert await unindexed(items) == 0
        for n in range(0, 120, 7):
            assert len(await listed(items, query=f"w{n}x")) == 1


async def test_server_indexes_new_tasks_in_the_background(
    url: str, serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "INDEX_INTERVAL_SECONDS", 0.01)
    client = await serving()
    await call_tool(client, "create_task", description="Fix the parser")
    async with Database(url) as database, asyncio.timeout(TIMEOUT_SECONDS):
        items = WorkItemStore(database)
        while await unindexed(items):
            pass
        assert await items.read(lambda tx: tx.fetch_one(int, "select count(*) from work_item_posting")) == 3


async def plans(items: WorkItemStore, wanted: TextFilter, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the engine goes about each statement that looks for these."""
    requests: list[tuple[str, Any]] = []
    really = Transaction.fetch_all

    def recorded(tx: Transaction, kind: Any, sql: str, parameters: Any = ()) -> Any:
        requests.append((sql, parameters))
        return really(tx, kind, sql, parameters)

    def look(tx: Transaction) -> list[str]:
        assert query_plan.selective_ids(tx, wanted, "true", {}, "priority, id desc", 50) is not None
        explain = "explain query plan" if tx.engine == "sqlite" else "explain"
        return [str(really(tx, tuple, f"{explain} {sql}", parameters)) for sql, parameters in requests]

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "fetch_all", recorded)
        return await items.read(look)


@pytest.mark.parametrize(
    "wanted",
    [TextFilter(query="w77x"), TextFilter(query="w77x task"), TextFilter(labels=["rare"]), TextFilter(query="no%")],
)
async def test_selective_queries_do_not_scan_the_table(
    items: WorkItemStore, wanted: TextFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await items.database.write(lambda tx: older(tx, 2000))
    await items.database.write(lambda tx: tx.execute("insert into work_item_unindexed (item) select id from work_item"))
    await create_item(items, "labelled", labels=["rare"])
    await items.index_pending()
    if items.database.engine == "postgresql":
        await items.database.write(lambda tx: tx.execute_script("analyze"))
    (result,) = await plans(items, wanted, monkeypatch)
    assert (
        "SCAN work_item " not in result and "SCAN work_item'" not in result and "Seq Scan on work_item " not in result
    )


async def test_frequent_terms_are_not_looked_up_in_the_index(
    items: WorkItemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the list is gone through, which soon has met enough of them."""
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ITEMS", 10)
    await items.create_batch([WorkItemDraft(description=f"common {number}") for number in range(20)])
    await items.index_pending()
    assert await items.read(lambda tx: TextFilter(query="comm").cheapest_lookup(tx)) is None
    assert await items.read(lambda tx: TextFilter(query="comm 17").cheapest_lookup(tx)) is not None
    assert len(await listed(items, query="comm")) == 20
