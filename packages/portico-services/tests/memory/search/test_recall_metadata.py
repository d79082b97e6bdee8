"""Tags, source, path and namespace take part in recall; weak results are marked."""

from __future__ import annotations

from typing import Any

import pytest

from portico_services.memory.search import index_builder
from portico_services.memory.store.memory_store import MemoryStore
from support.engines import sqlite_engine  # noqa: F401
from support.memories import call_tool, capture_memory, search_contents


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ("database", {"tags": ["database"]}),
        ("which database?", {"tags": ["Database"]}),
        ("authentication of users", {"tags": ["user-auth", "authentication"]}),
        ("databases", {"tags": ["database"]}),
        ("what does the storage record say", {"source": "docs/adr/0007-storage.md"}),
        ("JIRA 4711", {"source": "https://jira.example.com/browse/JIRA-4711"}),
        ("user store", {"path": "src/UserStore.java"}),
    ],
)
async def test_memory_is_found_by_namespace_and_tags(memories: MemoryStore, query: str, labels: dict[str, Any]) -> None:
    await capture_memory(memories, "It is nine o'clock")
    await capture_memory(memories, "We took the second offer", **labels)
    await capture_memory(memories, "Lunch is at noon")
    page = await memories.recall(query, memories.filter(""))
    assert page.hits[0].record.content == "We took the second offer"
    assert not page.hits[0].weak


async def test_new_tags_are_found_and_old_ones_are_not(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "We took the second offer", tags=["database"])
    await memories.update(kept.id, tags=["cache"])
    assert await search_contents(memories, "cache") == ["We took the second offer"]
    assert await search_contents(memories, "database") == []


async def test_term_and_tag_match_ranks_above_term_match(memories: MemoryStore) -> None:
    for number in range(5):
        await capture_memory(memories, f"The limit of the upload is {number} files")
    await capture_memory(memories, "The limit of the upload is a gigabyte", tags=["images"])
    assert (await search_contents(memories, "upload limit for images"))[0] == "The limit of the upload is a gigabyte"


async def test_queried_namespace_ranks_first(memories: MemoryStore) -> None:
    await capture_memory(memories, "Storage of invoices: one bucket", "learnings")
    await capture_memory(memories, "Storage of invoices: two buckets", "decisions")
    await capture_memory(memories, "Storage of invoices: three buckets", "context")
    assert (await search_contents(memories, "what did we decide about the storage of invoices"))[0].endswith(
        "two buckets"
    )
    assert (await search_contents(memories, "what have we learned about the storage of invoices"))[0].endswith(
        "one bucket"
    )


async def test_query_of_only_a_namespace_lists_its_memories(memories: MemoryStore) -> None:
    await capture_memory(memories, "Lunch is at noon", "context")
    await capture_memory(memories, "We took the second offer", "decisions")
    page = await memories.recall("decisions", memories.filter(""))
    assert [(hit.record.content, hit.weak) for hit in page.hits] == [("We took the second offer", False)]


@pytest.mark.parametrize("status", ["", "status:archived"])
async def test_label_boost_applies_to_all_states(memories: MemoryStore, status: str) -> None:
    kept = await capture_memory(memories, "We took the second offer", tags=["database"])
    if status:
        await memories.update(kept.id, status="archived")
    assert await search_contents(memories, "database", status) == ["We took the second offer"]


async def test_labels_count_in_the_past(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "We took the second offer", tags=["database"])
    page = await memories.recall("database", memories.filter(""), as_of=kept.created_at + 1)
    assert [(hit.record.content, hit.weak) for hit in page.hits] == [("We took the second offer", False)]


async def test_index_of_an_older_format_is_made_again_with_the_labels(memories: MemoryStore) -> None:
    await capture_memory(memories, "We took the second offer", tags=["database"])

    def age(tx: Any) -> None:
        tx.execute("delete from memory_posting where term = 'databas'")
        tx.execute(f"update memory_indexed set format = {index_builder.INDEX_FORMAT - 1}")

    await memories.write(age)
    assert await search_contents(memories, "database") == []
    while await memories.write(index_builder.build_batch):
        pass
    assert await search_contents(memories, "database") == ["We took the second offer"]
    assert await memories.read(index_builder.check_integrity) is None


# What is weak


async def test_recall_never_comes_back_empty(memories: MemoryStore) -> None:
    await capture_memory(memories, "Lunch is at noon", "context", at="2026-01-01")
    await capture_memory(memories, "We took the second offer", at="2026-01-02")
    page = await memories.recall("quantum chromodynamics", memories.filter(""), limit=1)
    assert [(hit.record.content, hit.score, hit.weak) for hit in page.hits] == [("We took the second offer", 0.0, True)]
    assert page.more
    page = await memories.recall("quantum chromodynamics", memories.filter(""), limit=1, offset=1)
    assert [hit.record.content for hit in page.hits] == ["Lunch is at noon"]
    assert not page.more


async def test_filters_still_filter(memories: MemoryStore) -> None:
    await capture_memory(memories, "Lunch is at noon", "context", tags=["food"])
    await capture_memory(memories, "We took the second offer")

    async def contents(filter: str) -> list[str]:
        page = await memories.recall("quantum chromodynamics", memories.filter(filter))
        assert all(hit.weak for hit in page.hits)
        return [hit.record.content for hit in page.hits]

    assert await contents("ns:context") == ["Lunch is at noon"]
    assert await contents("tag:food") == ["Lunch is at noon"]
    assert await contents("tag:drinks") == []
    assert await contents("status:archived") == []


async def test_word_in_passing_is_weak_and_the_subject_is_strong(memories: MemoryStore) -> None:
    await capture_memory(memories, "The retention of audit logs is seven years")
    await capture_memory(memories, "Monday: the office is closed")
    await capture_memory(memories, "Closed questions are answered by Ann")
    page = await memories.recall("how long is the retention of audit logs", memories.filter(""))
    assert [(hit.record.content, hit.weak) for hit in page.hits][:1] == [
        ("The retention of audit logs is seven years", False)
    ]
    request = "why was the export of the yearly balance sheet to the tax office of Hamburg so slow last Monday evening"
    page = await memories.recall(request, memories.filter(""))
    assert page.hits
    assert all(hit.weak for hit in page.hits)


async def test_recall_marks_weak_matches(serving) -> None:  # type: ignore[no-untyped-def]
    client = await serving()
    await call_tool(client, "memory_capture", content="Use PostgreSQL", namespace="decisions")
    for query, match in (("PostgreSQL", "strong"), ("quantum chromodynamics", "weak")):
        recalled = await call_tool(client, "memory_recall", query=query)
        assert [memory["match"] for memory in recalled["memories"]] == [match]
    listed = await call_tool(client, "memory_recall")
    assert "match" not in listed["memories"][0]
