"""Filters: equal results with every index, and cost independent of memories that do not match."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from portico.store.database import Database
from portico.store.sqlite_transaction import SqliteTransaction
from portico.store.transaction import Transaction
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search import bm25, candidates, retrieval, synonyms
from portico_services.memory.store import as_of, capture, filters, listing, mutations, query_plan, records
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.namespaces import CURRENT_STATUSES, WRITABLE_NAMESPACES

# Rare, frequent and absent values of each key, alone and together.
FILTERS = (
    "", "tag:rare", "tag:common", "tag:none", "tag:rare,common", "-tag:common", "author:Zoe", "author:Ann,Zoe",
    "author:none", "-author:Ann", "path:rare/", "path:rare/place.py", "path:src/", "path:src/m*", "path:none/",
    "-path:src/", "path:*", "branch:rare", "branch:main", "source:ticket-3", "source:wiki", "thread:t1", "thread:none",
    "entity:postgresql", "entity:none", "ns:decisions", "ns:security", "ns:decisions,context tag:common", "domain:user",
    "domain:org", "project:other", "project:none", "project:*", "project:* tag:rare", "status:archived",
    "status:deleted", "-status:active", "status:active,archived", "since:90m", "until:2020-01-01", "since:3h until:1h",
    "tag:common author:Ann", "tag:common tag:rare", "tag:common author:Ann path:src/ ns:decisions", "tag:odd tag:even",
    "branch:main source:wiki tag:common since:4h", "-path:src/m1.py", "-project:*", "-project:* tag:rare",
)  # fmt: skip


def drafts(count: int) -> list[MemoryDraft]:
    """`rare` are the same few, however many others there are."""
    start = timestamps.now_ms() - 6 * 3_600_000
    made = []
    for number in range(count):
        rare = number < 60 and number % 20 == 7
        made.append(
            MemoryDraft(
                content=f"note {number} about the server{' and PostgreSQL' if rare else ''}, number {number % 7}",
                namespace=WRITABLE_NAMESPACES[number % 3],
                tags=[*(["rare"] if rare else []), *(["common"] if number % 2 else []), ("odd", "even")[number % 2]],
                domain="user" if number % 11 == 0 else "project",
                project="other" if number % 5 == 0 else "here/project",
                author="Zoe" if rare else ("Ann", "Ben", None)[number % 3],
                thread=f"t{number // 20}" if number % 4 else None,
                path="rare/place.py" if rare else (f"src/m{number % 9}.py" if number % 4 else None),
                branch="rare" if rare else ("main" if number % 2 else None),
                source="ticket-3" if rare else ("wiki" if number % 3 == 1 else None),
                at=timestamps.format_iso(start + number * 6 * 3_600_000 // count),
            )
        )
    return made


async def filled(memories: MemoryStore, count: int) -> None:
    result = await memories.capture_batch(drafts(count))
    for number, status in ((3, "archived"), (4, "archived"), (5, "superseded"), (6, "pending")):
        await memories.update(result[number].record.id, status=status)
    await memories.delete(result[9].record.id)


@pytest.mark.parametrize("few", [0, 20, 1000])
async def test_every_index_returns_the_same_memories_as_a_full_scan(
    memories: MemoryStore, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """However many are few: the conditions are then read by another index."""
    await filled(memories, 120)
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ROWS", min(few, query_plan.MAX_SELECTIVE_ROWS))
    monkeypatch.setattr(query_plan, "MAX_FULL_READ_ROWS", few)
    now = timestamps.now_ms()

    def plainly(tx: Transaction, wanted: filters.MemoryFilter) -> list[str]:
        condition, values = filters.to_sql(wanted, CURRENT_STATUSES)
        return tx.fetch_all(str, f"select id from memory where {condition} order by memory.at desc, id", values)

    def look(tx: Transaction) -> None:
        for text in FILTERS:
            wanted = filters.parse_filter(text, now).with_projects(("here/project",))
            everything = plainly(tx, wanted)
            listed = [id for _, id in listing.list_keys(tx, wanted, limit=1000, at=now)]
            assert listed == everything, text
            assert listing.count_memories(tx, wanted, at=now, limit=1000) == len(everything), text
            pages = []
            after = None
            while page := listing.list_keys(tx, wanted, limit=7, at=now, after=after):
                pages += [id for _, id in page]
                after = page[-1]
            assert pages == everything, text

    await memories.read(look)


async def test_label_conditions_match_without_reading_memories(memories: MemoryStore) -> None:
    await filled(memories, 120)
    now = timestamps.now_ms()

    def look(tx: Transaction) -> set[str]:
        keys = set()
        for text in FILTERS:
            wanted = filters.parse_filter(text, now)
            wanted = replace(wanted, owner=None)
            labels = filters.label_sql(wanted, "memory_seat.memory")
            if labels is None:
                continue
            keys |= {condition.key for condition in wanted.conditions}
            condition, values = filters.to_sql(wanted, CURRENT_STATUSES)
            expected = tx.fetch_all(str, f"select id from memory where {condition} order by id", values)
            sql = f"select memory from memory_seat where kind >= 0 and ({labels[0]}) order by memory"
            assert tx.fetch_all(str, sql, labels[1]) == expected, text
            # The candidates are then read without a join.
            assert "memory." not in labels[0], text
        return keys

    assert await memories.read(look) == {"tag", "entity", "author", "thread", "source", "branch"}


async def test_recall_finds_rare_filter_matches_among_frequent_terms(
    memories: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that very many have are read for the newest alone; what a filter leaves is looked at all the same."""
    monkeypatch.setattr("portico_services.memory.search.bm25.LARGE_STORE_MEMORIES", 10)
    monkeypatch.setattr("portico_services.memory.search.bm25.MAX_POSTINGS_PER_TERM", 20)
    await filled(memories, 200)
    for text in ("tag:rare", "author:Zoe", "path:rare/", "branch:rare", "source:ticket-3", "project:* tag:rare"):
        page = await memories.recall("note about the server", memories.filter(text))
        assert {hit.record.author for hit in page.hits} == {"Zoe"}, text
        assert len(page.hits) == 3, text


async def test_index_can_serve_every_condition(memories: MemoryStore) -> None:
    await filled(memories, 20)

    def plan(tx: Transaction, sql: str, values: dict[str, object]) -> str:
        if tx.engine == "sqlite":
            return " / ".join(
                row[3] for row in tx.fetch_all(tuple[int, int, int, str], f"explain query plan {sql} limit 65", values)
            )
        # A table of few rows is read whole, whatever indexes it has.
        tx.execute("set local enable_seqscan = off")
        return " / ".join(tx.fetch_all(str, f"explain {sql} limit 65", values))

    def look(tx: Transaction) -> None:
        for text in FILTERS:
            for sql, values in query_plan._index_lookups(filters.parse_filter(text, timestamps.now_ms())):
                result = plan(tx, sql, values)
                assert "SCAN memory" not in result, (text, result)
                assert "Seq Scan" not in result, (text, result)
                assert "INDEX memory_" in result or "memory_" in result, (text, result)

    await memories.write(look)


# The same questions in a small store and in one that is five times as large

SMALL, LARGE = 500, 2500


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    import asyncio

    folder = tmp_path_factory.mktemp("growth")
    paths = folder / "small.db", folder / "large.db"

    async def fill() -> None:
        for path, count in zip(paths, (SMALL, LARGE), strict=True):
            async with Database(path) as database:
                memories = MemoryStore(database, project="here/project")
                await memories.open()
                await filled(memories, count)
                await memories.close()

    asyncio.run(fill())
    return paths


def steps(path: Path, fn: object) -> int:
    """How many hundreds of instructions SQLite needs for what a function reads."""
    connection = sqlite3.connect(path, isolation_level=None)
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    connection.set_progress_handler(count, 100)
    try:
        fn(SqliteTransaction(connection, str(path), is_write=False))  # type: ignore[operator]
    finally:
        connection.close()
    return counted


@pytest.mark.parametrize("query", ["", "note about the server number 3"])
def test_query_cost_does_not_grow_with_memories_that_do_not_match(
    stores: tuple[Path, Path], query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is bounded at thousands is bounded at tens here, so that it shows in a small store."""
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ROWS", 5)
    monkeypatch.setattr(query_plan, "MAX_FULL_READ_ROWS", 20)
    monkeypatch.setattr(query_plan, "MAX_COUNTED_ROWS", 100)
    monkeypatch.setattr(candidates, "MAX_CANDIDATES", 20)
    monkeypatch.setattr(candidates, "MAX_CANDIDATES_FILTERED", 80)
    monkeypatch.setattr(retrieval, "MAX_NEWEST_FALLBACK", 20)
    monkeypatch.setattr(retrieval, "MAX_SCAN", 20)
    for name, value in (("LARGE_STORE_MEMORIES", 10), ("MAX_POSTINGS_PER_TERM", 100), ("MAX_FIRST_PASS_HITS", 20)):
        monkeypatch.setattr(f"portico_services.memory.search.bm25.{name}", value)
    now = timestamps.now_ms()
    for text in FILTERS:
        wanted = filters.parse_filter(text, now).with_projects(("here/project",))
        if "odd" in text:
            continue  # nothing has two tags that half of all have each; this is looked through

        def look(tx: Transaction, wanted: filters.MemoryFilter = wanted) -> None:
            if query:
                retrieval.retrieve(tx, query, wanted, 5, at=now)
            else:
                listing.list_memories(tx, wanted, limit=5, at=now)

        small, large = (steps(path, look) for path in stores)
        assert large < 2 * small + 100, (text, small, large)


def test_filter_that_selects_every_scope_is_one_scan(stores: tuple[Path, Path]) -> None:
    now = timestamps.now_ms()
    connection = sqlite3.connect(stores[0], isolation_level=None)
    try:
        tx = SqliteTransaction(connection, str(stores[0]), is_write=False)
        everywhere = filters.parse_filter("project:*", now).with_projects((), "")
        scans, rest = query_plan.plan_scans(tx, everywhere, query_plan.CURRENT_STATUSES)
        assert scans == [query_plan.OrderedScan()]
        assert rest == everywhere
        scans, _ = query_plan.plan_scans(tx, filters.parse_filter("project:unknown", now), query_plan.CURRENT_STATUSES)
        assert [scan.values for scan in scans] in ([], [{"narrow_ids": []}])
    finally:
        connection.close()


@pytest.mark.parametrize("query", ["", "note about the server number 3"])
@pytest.mark.parametrize("text", ["", "ns:decisions", "project:here/project", "domain:user", "-ns:decisions"])
async def test_work_does_not_grow_with_the_projects_of_others(tmp_path: Path, query: str, text: str) -> None:
    now = timestamps.now_ms()
    result = filters.parse_filter(text, now).with_projects(() if "project:" in text else ("here/project",))
    results = []
    for projects in (5, 1500):
        path = tmp_path / f"{projects}.db"
        async with Database(path) as database:
            memories = MemoryStore(database, project="here/project")
            await memories.open()
            await memories.capture_batch(drafts(60))
            others = [
                MemoryDraft(content=f"other {n}", namespace="decisions", project=f"p{n}") for n in range(projects)
            ]
            await memories.capture_batch(others)
            await memories.close()

        def look(tx: Transaction) -> list[str]:
            if query:
                return [memory.memory for memory in retrieval.retrieve(tx, query, result, 5, at=now)]
            return [memory.id for memory in listing.list_memories(tx, result, limit=5, at=now)]

        results.append(steps(path, look))
    few, many = results
    assert many < 2 * few + 10


@pytest.mark.parametrize("project", ["here/project", None])
def test_same_text_is_searched_by_its_digest(stores: tuple[Path, Path], project: str | None) -> None:
    def look(tx: Transaction) -> None:
        digest = records.content_digest("nobody has said this")
        assert (
            records.find_exact_duplicate(tx, "project", WRITABLE_NAMESPACES[0], digest, project, timestamps.now_ms())
            is None
        )

    small, large = (steps(path, look) for path in stores)
    assert large < 2 * small + 10


@pytest.mark.parametrize("scopes", [1, 3])
def test_newest_that_have_a_word_are_read_in_their_order(stores: tuple[Path, Path], scopes: int) -> None:
    plans: list[str] = []

    class Explained(SqliteTransaction):
        def _fetch(self, sql: str, parameters: Any) -> Any:
            plans.extend(row[3] for row in super()._fetch(f"explain query plan {sql}", parameters)[1])
            return super()._fetch(sql, parameters)

    connection = sqlite3.connect(stores[1], isolation_level=None)
    try:
        tx = Explained(connection, str(stores[1]), is_write=False)
        numbers = tx.fetch_all(int, f"select number from memory_scope order by number limit {scopes}")
        newest = bm25._postings_of(tx, "server", numbers, 10).doc_ids
        assert newest == sorted(bm25._postings_of(tx, "server", numbers, LARGE).doc_ids, reverse=True)[:10]
        assert len(newest) == 10
        response = synonyms._newest_postings(
            tx, ["unknown", "server"], numbers, bm25.LARGE_STORE_MEMORIES + 1, bm25.KnownPostings()
        )
        assert response["server"][:10] == newest
    finally:
        connection.close()
    assert plans
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]


def test_similar_memories_are_found_by_rare_terms_before_frequent_ones(
    stores: tuple[Path, Path],
) -> None:
    def look(tx: Transaction, *words: str) -> list[int]:
        sql = "select number, memories from memory_scope order by memories desc limit 1"
        return bm25.most_similar(tx, dict.fromkeys(words, 1.0), *tx.fetch_one(tuple[int, int], sql), 5)

    def ask(tx: Transaction) -> None:
        assert look(tx, "unknown", "server", "postgresql") == look(tx, "postgresql") != []
        assert len(look(tx, "unknown", "server")) == 5
        assert look(tx, "unknown") == []

    small, large = (steps(path, ask) for path in stores)
    assert large < 2 * small + 10


def test_past_is_checked_in_pieces(stores: tuple[Path, Path]) -> None:
    """What has not changed since is found by the index."""
    now = timestamps.now_ms()
    result = filters.parse_filter("tag:rare project:*", now)

    def look(tx: Transaction) -> None:
        assert as_of.search_as_of(tx, "", result, now - 3_600_000, 5) == []
        assert len(as_of.search_as_of(tx, "", result, now + 1000, 5)) == 3

    small, large = (steps(path, look) for path in stores)
    assert large < 2 * small + 100


@pytest.mark.parametrize("key", ["tag", "author", "entity", "project", "ns"])
async def test_condition_may_have_thousands_of_values(memories: MemoryStore, key: str) -> None:
    await memories.capture_batch(drafts(30))
    values = {"tag": "rare", "author": "Zoe", "entity": "postgresql", "project": "other"}
    many = ",".join([*(f"x{number}" for number in range(1000)), values[key]] if key in values else ["decisions"] * 900)
    for query in ("", "note"):
        page = await memories.recall(query, memories.filter(f"{'' if key == 'project' else 'project:* '}{key}:{many}"))
        assert page.hits, query
    with pytest.raises(InvalidInput, match="at most 100"):
        memories.filter(f"path:{','.join(f'src/{number}/' for number in range(1000))}")


async def test_recall_notes_when_the_scan_was_limited(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await memories.capture_batch(drafts(6))
    for item in result:
        await memories.update(item.record.id, status="archived")
    wanted = memories.filter("project:* status:archived")
    assert (await memories.recall("note", wanted)).note is None
    monkeypatch.setattr(retrieval, "MAX_SCAN", 5)
    assert "newest 5 " in ((await memories.recall("note", wanted)).note or "")


async def test_as_of_is_independent_of_later_changes(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, and only so many are kept as are wanted."""
    monkeypatch.setattr(as_of, "READ_BATCH_SIZE", 2)
    result = await memories.capture_batch(drafts(20))
    before = timestamps.now_ms()
    monkeypatch.setattr(timestamps, "now_ms", lambda: before + 10_000)
    for item in result[:15]:
        await memories.update(item.record.id, content=f"{item.record.content}, changed")
        await memories.update(item.record.id, status="archived")
    everywhere = memories.filter("project:*")
    page = await memories.recall("", everywhere, limit=100, as_of=before + 5000)
    assert [hit.record.content for hit in page.hits] == [item.record.content for item in reversed(result)]
    newest = await memories.recall("", everywhere, limit=3, as_of=before + 5000)
    assert newest.hits == page.hits[:3]
    assert newest.more
    home = await memories.recall("", memories.filter(""), limit=100, as_of=before + 5000)
    assert {hit.record.project for hit in home.hits} == {"here/project", None}
    response = await memories.recall("note 7 about the server", everywhere, limit=1, as_of=before + 5000)
    assert response.hits[0].record == result[7].record


async def test_recall_as_of_now_includes_memories_dated_in_the_future(memories: MemoryStore) -> None:
    now = timestamps.now_ms()
    ahead = MemoryDraft(
        content="The clock of the server is ahead", namespace="context", at=timestamps.format_iso(now + 3_600_000)
    )
    await memories.capture_batch([ahead, MemoryDraft(content="The clock of the server is right", namespace="context")])
    await memories.capture(MemoryDraft(content="The server is new", namespace="context", tags=["new"]))
    result = memories.filter("-tag:new")
    for query in ("", "clock server"):
        page = await memories.recall(query, result, as_of=timestamps.now_ms())
        assert {hit.record.content for hit in page.hits} == {
            "The clock of the server is ahead",
            "The clock of the server is right",
        }
    assert (await memories.recall("", result, as_of=timestamps.now_ms())).hits[0].record.content.endswith("ahead")
    assert not (await memories.recall("clock server", result, as_of=now - 1)).hits


async def test_as_of_search_cost_does_not_grow_with_later_memories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ROWS", 5)
    monkeypatch.setattr(query_plan, "MAX_FULL_READ_ROWS", 20)
    moment, counted = timestamps.now_ms() - 40_000_000, []
    for later in (50, 2000):
        path = tmp_path / f"{later}.db"
        async with Database(path) as database:
            memories = MemoryStore(database)
            await memories.open()
            made = [
                capture.build_record(
                    MemoryDraft(content=f"note {number}", namespace="context"), moment + (number - 20) * 10_000
                )
                for number in range(later)
            ]
            await database.write(partial(mutations.insert, memories=made))
            await memories.close()

        def look(tx: Transaction) -> None:
            assert len(as_of.search_as_of(tx, "", filters.parse_filter("", moment), moment, 5)) == 5

        counted.append(steps(path, look))
    few, many = counted
    assert many < 2 * few + 10


async def test_as_of_search_uses_stems_and_synonyms(memories: MemoryStore) -> None:
    """As the present is."""
    for text in ("Use PostgreSQL for storage", "The deployments are done on Fridays", "Do not store shoes in here"):
        await memories.capture(MemoryDraft(content=text, namespace="context"))
    everything, later = memories.filter(""), timestamps.now_ms() + 60_000
    by_stem = await memories.recall("deploying", everything, as_of=later)
    assert [(hit.record.content, hit.weak) for hit in by_stem.hits] == [("The deployments are done on Fridays", False)]
    otherwise = await memories.recall("which database do we store in", everything, as_of=later)
    assert "Use PostgreSQL for storage" in [hit.record.content for hit in otherwise.hits]


def test_single_condition_is_not_counted(stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting compares conditions; with one there is nothing to compare."""
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ROWS", 0)
    monkeypatch.setattr(query_plan, "MAX_FULL_READ_ROWS", 1)
    now = timestamps.now_ms()
    connection = sqlite3.connect(stores[0], isolation_level=None)
    counted: list[str] = []
    count = query_plan._estimate_rows

    def note(tx: Transaction, item: filters.FilterCondition) -> int:
        counted.append(item.key)
        return count(tx, item)

    monkeypatch.setattr(query_plan, "_estimate_rows", note)
    try:
        tx = SqliteTransaction(connection, str(stores[0]), is_write=False)
        for text, expected in (("tag:even", []), ("tag:even author:Ann", ["tag", "author"])):
            counted.clear()
            everywhere = filters.parse_filter(f"project:* {text}", now).with_projects((), "")
            query_plan.plan_scans(tx, everywhere, query_plan.CURRENT_STATUSES)
            assert counted == expected
    finally:
        connection.close()
