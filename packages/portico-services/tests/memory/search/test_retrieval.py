"""Retrieval: results and their order, equal on both engines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from portico.extend import Transaction
from portico.store.database import Database
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search import bm25, candidates, index_builder
from portico_services.memory.search.reranker import FEATURES, feature_rows
from portico_services.memory.store import query_plan
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from support.memories import call_failing_tool, call_tool, capture_memory, search_contents

WORDS = "server port cache index token build deploy branch review memory query vector store thread client".split()  # noqa: SIM905


def drafts(count: int) -> list[MemoryDraft]:
    """Conversations, notes and chats, always the same."""
    dice = random.Random(11)
    made = []
    for number in range(count):
        text = " ".join(dice.choices(WORDS, k=dice.randint(3, 12)))
        author = dice.choice(("Ann", "Ben Cole", "user", "assistant", None, None))
        made.append(
            MemoryDraft(
                content=f"{text.capitalize()} {number}{dice.choice('.?!')}",
                namespace=dice.choice(("decisions", "learnings", "context")),
                domain=dice.choice(("project", "user")),
                tags=[dice.choice(("red", "blue"))] if number % 3 else [],
                author=author,
                thread=f"t{number // 9}" if author or number % 2 else None,
                at=f"2026-0{1 + number % 9}-1{number % 10}T10:00:00Z",
            )
        )
    return made


QUESTIONS = (
    ("where is the cache of the client?", ""),
    ("What did Ann say about the token?", "ns:decisions,context"),
    ("deploy review", "tag:red since:2026-03-01"),
    ("When was the build in May?", "domain:user"),
    ("vector query 17", "-ns:learnings author:user,assistant"),
    ("Give me a summary of everything about the index", "project:*"),
)


async def lists(url: str) -> list[list[str]]:
    async with Database(url) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        await memories.capture_batch(drafts(250))
        answers = [await search_contents(memories, query, filter, limit=25) for query, filter in QUESTIONS]
        await memories.close()
    return answers


async def test_both_engines_give_the_same_lists(tmp_path: Path, postgres_url: str) -> None:
    on_sqlite, on_postgres = await lists(f"sqlite://{tmp_path}/memory.db"), await lists(postgres_url)
    assert all(on_sqlite)
    assert on_sqlite == on_postgres


async def test_best_is_first_and_has_the_score_of_one(memories: MemoryStore) -> None:
    await capture_memory(memories, "The staging database runs PostgreSQL 15")
    await capture_memory(memories, "The database of the shop is SQLite", "context")
    page = await memories.recall("which PostgreSQL does the staging database run?", memories.filter(""))
    assert page.hits[0].record.content == "The staging database runs PostgreSQL 15"
    scores = [hit.score for hit in page.hits]
    assert scores[0] == 1.0
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


async def test_neighbours_in_a_thread_help_to_find_an_answer(memories: MemoryStore) -> None:
    for number in range(12):
        await capture_memory(
            memories, f"Small talk about nothing, part {number}", "context", thread="other", author="Ben"
        )
    await capture_memory(memories, "Which city did you grow up in?", "context", thread="talk", author="Ben")
    await capture_memory(memories, "In Bergen, by the harbour", "context", thread="talk", author="Ann")
    assert "In Bergen, by the harbour" in (await search_contents(memories, "In which city did Ann grow up?"))[:2]


async def test_message_before_an_answer_has_a_feature_of_its_own(memories: MemoryStore) -> None:
    for thread, first in (("a", "Where did the sailing trip go?"), ("b", "The sailing trip went somewhere")):
        await capture_memory(memories, first, "context", thread=thread, author="Ann")
        await capture_memory(memories, "Norway, mostly", "context", thread=thread, author="Bob", on_duplicate="keep")
    request = candidates.RetrievalRequest("sailing trip")
    message = await memories.read(lambda tx: candidates.retrieve_candidates(tx, request))
    rows = [dict(zip(FEATURES, row, strict=True)) for row in feature_rows(message)]
    assert len(rows) == 4
    for row in rows:
        assert row["before_answer"] == (row["before"] if row["answers"] else 0)
        assert row["around_answer"] == (row["further_around"] if row["answers"] else 0)
    assert [row["before"] > 0 for row in rows if row["answers"]] == [True]
    page = await memories.recall("sailing trip", memories.filter(""))
    assert [hit.record.thread for hit in page.hits if hit.record.content == "Norway, mostly"] == ["a", "b"]


async def test_named_author_is_preferred(memories: MemoryStore) -> None:
    await capture_memory(memories, "Hello, nice to see you", "context", thread="talk", author="Ben")
    await capture_memory(memories, "I painted the fence green", "context", thread="talk", author="Ben")
    await capture_memory(memories, "I painted the door red", "context", thread="talk", author="Ann")
    assert (await search_contents(memories, "What has Ann painted?"))[0] == "I painted the door red"
    assert (await search_contents(memories, "What has Ben painted?"))[0] == "I painted the fence green"


@pytest.mark.parametrize("query", ["what did Zoë say", "What has zoë said?", "anything from Zoë?"])
async def test_query_of_only_a_name_finds_the_memories_of_that_author(memories: MemoryStore, query: str) -> None:
    for author, text in (
        ("Zoë", "The gate is green"),
        ("Ann", "Rivers are long"),
        ("Zoë", "Mind the dog"),
        ("Ben", "A"),
    ):
        await capture_memory(memories, text, "context", author=author, thread="t")
    page = await memories.recall(query, memories.filter(""))
    assert [(hit.record.content, hit.weak) for hit in page.hits] == [
        ("Mind the dog", False),
        ("The gate is green", False),
    ]
    page = await memories.recall(query, memories.filter("author:Ann"))
    assert [(hit.record.content, hit.weak) for hit in page.hits] == [("Rivers are long", True)]


async def test_term_that_is_also_an_author_name_is_still_matched(memories: MemoryStore) -> None:
    await capture_memory(memories, "A nightly job cleans the cache", "context", author="build bot")
    await capture_memory(memories, "The build takes ten minutes", "context")
    assert (await search_contents(memories, "how long does the build take"))[0] == "The build takes ten minutes"


async def test_memory_is_found_by_date(memories: MemoryStore) -> None:
    await capture_memory(memories, "We walked along the river", "context", at="2026-05-08T10:00:00Z")
    await capture_memory(memories, "We walked up the hill", "context", at="2026-07-21T10:00:00Z")
    assert (await search_contents(memories, "where did we walk on July 21st?"))[0] == "We walked up the hill"


async def test_selective_filter_returns_its_matches(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MAX_CANDIDATES", 20)
    await memories.capture_batch(
        [MemoryDraft(content=f"gooseberry {number}", namespace="learnings") for number in range(400)]
        + [
            MemoryDraft(content=f"gooseberry gooseberry jam and much more {n}", namespace="learnings", tags=["jam"])
            for n in (1, 2)
        ]
    )
    assert len(await search_contents(memories, "gooseberry 7", "tag:jam")) == 2
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ROWS", 0)
    monkeypatch.setattr(query_plan, "MAX_FULL_READ_ROWS", 1)
    assert len(await search_contents(memories, "gooseberry 7", "tag:jam")) == 2
    assert await search_contents(memories, "gooseberry 7", "tag:marmalade") == []


async def test_archived_memories_are_searched_by_terms(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "The old plan was to use Redis")
    await memories.update(kept.id, status="archived")
    assert await search_contents(memories, "redis") == []
    assert await search_contents(memories, "redis plan", "status:archived") == ["The old plan was to use Redis"]
    assert await search_contents(memories, "cassandra", "status:archived") == []


async def test_vector_mode_without_a_model_names_the_missing_extra(memories: MemoryStore) -> None:
    await capture_memory(memories, "Use PostgreSQL")
    page = await memories.recall("postgresql", memories.filter(""), mode="text")
    assert len(page.hits) == 1
    assert (memories.modes, memories.resolve_mode("hybrid"), memories.model) == (["text"], "text", None)
    with pytest.raises(InvalidInput, match=r"portico-services\[memory-vectors\]"):
        await memories.recall("postgresql", memories.filter(""), mode="vector")


async def test_recall_reports_the_search_mode(serving, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    client = await serving(embedding_model_dir=tmp_path)
    await call_tool(client, "memory_capture", content="Use PostgreSQL", namespace="decisions")
    recalled = await call_tool(client, "memory_recall", query="which database? PostgreSQL")
    assert (recalled["mode"], recalled["count"]) == ("text", 1)
    assert recalled["memories"][0]["score"] == 1.0
    text, _ = await call_failing_tool(client, "memory_recall", query="postgresql", mode="vector")
    assert "memory-vectors" in text
    status = await call_tool(client, "memory_status")
    assert (status["indexed"], status["embedded"]) == (1, 0)


async def test_import_puts_threads_in_the_order_of_time(memories: MemoryStore) -> None:
    from portico_services.memory import export_import

    for number in range(5):
        await capture_memory(memories, f"line {number} of the song", thread="song", at=f"2026-01-0{number + 1}")
    text, count, _ = await export_import.export_memories(memories, memories.filter(""), "jsonl")
    assert count == 5
    await memories.delete_all(memories.filter("domain:project"), dry_run=False, hard=True)
    await export_import.import_memories(memories, text, "jsonl")
    sql = "select memory.content from memory_seat join memory on memory.id = memory_seat.memory order by seat"
    assert await memories.read(lambda tx: tx.fetch_all(str, sql)) == [
        f"line {number} of the song" for number in range(5)
    ]
    assert await memories.read(index_builder.check_integrity) is None


async def test_second_pass_of_a_filter_does_not_read_rare_words_again(
    memories: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first candidates do not satisfy the filter, so the newest memories that do are ranked in a second pass."""
    monkeypatch.setattr(bm25, "LARGE_STORE_MEMORIES", 50)
    monkeypatch.setattr(bm25, "MAX_POSTINGS_PER_TERM", 40)
    monkeypatch.setattr(candidates, "MAX_CANDIDATES", 20)
    monkeypatch.setattr(candidates, "MAX_CANDIDATES_FILTERED", 40)
    monkeypatch.setattr(query_plan, "MAX_SELECTIVE_ROWS", 0)
    monkeypatch.setattr(query_plan, "MAX_FULL_READ_ROWS", 1)
    await memories.capture_batch(
        [MemoryDraft(content=f"common word of rhinoceros {n}", namespace="learnings") for n in range(30)]
        + [MemoryDraft(content=f"common word number {n}", namespace="learnings") for n in range(300)]
        + [MemoryDraft(content=f"common zebra {n}", namespace="learnings", tags=["jam"]) for n in range(5)]
        + [MemoryDraft(content="rhinoceros", namespace="learnings", tags=["jam"])]
    )
    read: list[str] = []

    def note_terms(tx: Transaction, terms: Sequence[str], doc_ids: Sequence[int], *known: Any) -> Any:
        if known:
            read.extend(term for term in terms if term not in known[0].terms)
        return read_postings(tx, terms, doc_ids, *known)

    read_postings = bm25._postings_at
    monkeypatch.setattr(bm25, "_postings_at", note_terms)
    assert (await search_contents(memories, "common rhinoceros", "tag:jam"))[0] == "rhinoceros"
    assert set(read) == {"common"}


@pytest.mark.parametrize("step", [1, 2, 5, 40])
async def test_postings_of_documents_are_exact_for_neighbours_and_for_others(memories: MemoryStore, step: int) -> None:
    """PostgreSQL reads neighbours by ranges, which contain other documents too."""
    await memories.capture_batch(
        [
            MemoryDraft(content="common " * (1 + number % 3) + f"{'even' if number % 2 else 'odd'}", **place)
            for number in range(120)
            for place in ({"namespace": "learnings", "thread": f"t{number // 60}"}, {"namespace": "decisions"})
        ]
    )
    rows = await memories.read(
        lambda tx: tx.fetch_all(tuple[str, int, int], "select term, seat, weight from memory_posting order by seat")
    )
    seats = sorted({seat for _, seat, _ in rows})
    doc_ids = [seat + offset for seat in seats[:: 3 * step] for offset in range(0, 2 * step, step)]
    expected = {
        term: sorted((seat, weight) for other, seat, weight in rows if other == term and seat in set(doc_ids))
        for term in ("common", "odd", "unknown")
    }
    assert expected["common"] and not expected["unknown"]
    known = bm25.KnownPostings()
    for _ in range(2):
        read = await memories.read(lambda tx: bm25._postings_at(tx, list(expected), doc_ids, known))
        assert {
            term: sorted(zip(postings.doc_ids, postings.weights, strict=True)) for term, postings in read.items()
        } == expected
        # Again with the postings of a term that an earlier pass has read completely.
        of_odd = [(seat, weight) for term, seat, weight in rows if term == "odd"]
        known.terms["odd"] = bm25.Postings([seat for seat, _ in of_odd], [weight for _, weight in of_odd])


async def test_large_store_reads_rare_words_first(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25, "LARGE_STORE_MEMORIES", 50)
    monkeypatch.setattr(bm25, "MAX_POSTINGS_PER_TERM", 40)
    await memories.capture_batch(
        [MemoryDraft(content=f"common word number {number}", namespace="learnings") for number in range(300)]
        + [MemoryDraft(content="common word beside a rhinoceros", namespace="learnings")]
    )
    assert (await search_contents(memories, "common word rhinoceros", limit=3))[0] == "common word beside a rhinoceros"
    assert len(await search_contents(memories, "common", limit=10)) == 10
    assert (await search_contents(memories, "common rhinoceros", "ns:learnings", limit=3))[
        0
    ] == "common word beside a rhinoceros"
