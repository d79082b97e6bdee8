"""Calibrated matches, `nothing_known`, explanations, and the ranking of transcripts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from portico_services.memory.extras.consolidation import apply_consolidation, plan_consolidation
from portico_services.memory.search.candidates import MIN_TRANSCRIPT_MESSAGES
from portico_services.memory.store.memory_store import MemoryStore
from support.memories import call_tool, capture_memory


async def test_unrelated_query_reports_that_nothing_is_known(memories: MemoryStore) -> None:
    await capture_memory(memories, "The retention of audit logs is seven years")
    await capture_memory(memories, "The office is closed on Monday")
    everywhere = memories.filter("")
    assert not (await memories.recall("retention of audit logs", everywhere)).nothing_known
    for query in ("quantum chromodynamics", "why was the yearly balance sheet for the tax office of Hamburg late"):
        page = await memories.recall(query, everywhere)
        assert page.nothing_known
        assert all(hit.weak for hit in page.hits)
    # A later page agrees with the first one, and a list of the newest is no answer to a query.
    assert not (await memories.recall("retention of audit logs", everywhere, limit=1, offset=1)).nothing_known
    assert not (await memories.recall("", everywhere)).nothing_known


async def test_empty_store_returns_no_matches(memories: MemoryStore) -> None:
    assert (await memories.recall("anything at all", memories.filter(""))).nothing_known


@pytest.mark.parametrize("filter", ["", "tag:ops", "entity:ann", "author:Ann"])
@pytest.mark.parametrize("status", ["superseded", "archived"])
async def test_memory_that_is_not_current_is_never_a_match(memories: MemoryStore, status: str, filter: str) -> None:
    old = await capture_memory(memories, "Ann said that deploys run on Fridays", tags=["ops"], author="Ann")
    await memories.update(old.id, status=status)
    await capture_memory(memories, "Lunch with @ann is at noon", tags=["ops"], author="Ann")
    page = await memories.recall("when do deploys run", memories.filter(filter))
    assert all("deploys" not in hit.record.content for hit in page.hits)
    assert page.nothing_known


@pytest.mark.parametrize("filter", ["", "tag:ops", "author:Ann", "path:src/"])
async def test_memory_outside_the_scope_is_never_returned(memories: MemoryStore, filter: str) -> None:
    labels = {"tags": ["ops"], "author": "Ann", "path": "src/deploy.py"}
    await capture_memory(memories, "Elsewhere deploys run on Fridays", project="other/project", **labels)
    await capture_memory(memories.owned_by("bob"), "A private note: deploys run on Sundays", domain="user", **labels)
    expired = await capture_memory(memories, "Until yesterday deploys ran on Mondays", ttl="1h", **labels)
    sql = "update memory set expires_at = 1 where id = ?"
    await memories.write(lambda tx: tx.execute(sql, (expired.id,)))
    # With nothing in the scope, with an unrelated memory (the newest are returned then), and with a match.
    assert (await memories.recall("when do deploys run", memories.filter(filter))).hits == []
    await capture_memory(memories, "Lunch is at noon", **labels)
    page = await memories.recall("when do deploys run", memories.filter(filter))
    assert [hit.record.content for hit in page.hits] == ["Lunch is at noon"]
    assert page.nothing_known
    await capture_memory(memories, "Here deploys run on Tuesdays", **labels)
    page = await memories.recall("when do deploys run", memories.filter(filter))
    assert {hit.record.content for hit in page.hits} <= {"Lunch is at noon", "Here deploys run on Tuesdays"}
    assert page.hits[0].record.content == "Here deploys run on Tuesdays"
    assert not page.nothing_known


@pytest.mark.parametrize("filter", ["", "tag:ops", "author:Ann", "thread:release", "branch:main"])
async def test_merged_memory_is_never_a_match(memories: MemoryStore, filter: str) -> None:
    labels: dict[str, Any] = {"tags": ["ops"], "author": "Ann", "thread": "release", "branch": "main"}
    for text in ("Deploys run on Fridays at noon", "Deploys run on Fridays at noon sharp"):
        await capture_memory(memories, text, on_duplicate="keep", **labels)
    plan = await plan_consolidation(memories, memories.filter(""), strategy="merge", similarity=0.5)
    outcome = await apply_consolidation(memories, plan)
    assert len(outcome.superseded) == 1
    page = await memories.recall("when do deploys run", memories.filter(filter))
    assert [hit.record.id for hit in page.hits] == outcome.kept
    assert not page.nothing_known


async def test_memory_of_another_branch_is_no_match_for_a_branch(memories: MemoryStore) -> None:
    await capture_memory(memories, "Deploys run on Fridays", branch="release", author="Ann", thread="t")
    await capture_memory(memories, "Lunch is at noon", branch="main", author="Ann", thread="t")
    for filter in ("branch:main", "-branch:release", "branch:main author:Ann", "branch:main thread:t tag:none"):
        page = await memories.recall("when do deploys run", memories.filter(filter))
        assert {hit.record.content for hit in page.hits} <= {"Lunch is at noon"}, filter
        assert page.nothing_known, filter
    assert not (await memories.recall("when do deploys run", memories.filter("branch:release"))).nothing_known


@pytest.mark.parametrize("hard", [False, True])
async def test_memories_of_a_deleted_author_are_no_match(memories: MemoryStore, hard: bool) -> None:
    await capture_memory(memories, "Deploys run on Fridays", author="Zoe Rare", thread="t")
    await capture_memory(memories, "Lunch is at noon", author="Ann", thread="t")
    await memories.delete_all(memories.filter('author:"Zoe Rare"'), dry_run=False, hard=hard)
    for query in ("when do deploys run", "What did Zoe say?", "What did Zoe say about deploys on Fridays?"):
        for filter in ("", "thread:t", 'author:"Zoe Rare"'):
            page = await memories.recall(query, memories.filter(filter), explain=True)
            assert all(hit.record.author == "Ann" for hit in page.hits), (query, filter)
            assert page.nothing_known, (query, filter)


async def test_past_recall_returns_what_was_current_then(memories: MemoryStore) -> None:
    old = await capture_memory(memories, "Deploys run on Fridays", branch="main", thread="t")
    captured = (await memories.get(old.id)).created_at
    await asyncio.sleep(0.02)
    await memories.update(old.id, status="superseded")
    updated = (await memories.get(old.id)).updated_at
    for filter in ("", "branch:main", "thread:t"):
        wanted = memories.filter(filter)
        then = await memories.recall("when do deploys run", wanted, as_of=captured + 1)
        assert [hit.record.id for hit in then.hits] == [old.id]
        assert not then.nothing_known
        for page in (
            await memories.recall("when do deploys run", wanted, as_of=captured - 1),
            await memories.recall("when do deploys run", wanted, as_of=updated + 1),
            await memories.recall("when do deploys run", wanted),
        ):
            assert page.hits == []
            assert page.nothing_known


async def test_explanation_names_terms_synonyms_time_and_author(memories: MemoryStore) -> None:
    await capture_memory(memories, "Use PostgreSQL for storage", author="Ann Lee", at="2026-05-08")
    query = "Which database did Ann pick for storage on 8 May?"
    page = await memories.recall(query, memories.filter(""), explain=True)
    explanation = page.hits[0].explanation
    assert explanation is not None
    assert "storage" in explanation.terms
    assert explanation.synonyms == ["database"]
    assert explanation.time == ["8/5"]
    assert explanation.author == "Ann Lee"
    assert explanation.embedding is None
    assert not explanation.context
    assert (await memories.recall(query, memories.filter(""))).hits[0].explanation is None
    past = await memories.recall(query, memories.filter(""), as_of=page.hits[0].record.created_at + 1, explain=True)
    assert past.hits[0].explanation == explanation


async def test_tool_reports_nothing_known_and_explains(serving) -> None:  # type: ignore[no-untyped-def]
    client = await serving()
    await call_tool(client, "memory_capture", content="Use PostgreSQL for storage", namespace="decisions")
    recalled = await call_tool(client, "memory_recall", query="which database", explain=True)
    assert "nothing_known" not in recalled
    assert recalled["memories"][0]["explain"] == {"synonyms": ["database"]}
    recalled = await call_tool(client, "memory_recall", query="quantum chromodynamics")
    assert recalled["nothing_known"] is True
    assert "explain" not in recalled["memories"][0]


async def test_transcript_ranks_the_section_that_discusses_the_query(memories: MemoryStore) -> None:
    """One turn elsewhere has the words in passing; the section has them in several turns."""
    fillers = ["Right, and then we moved on to the next point", "Mm-hmm, fine with me", "Let us see the slides again"]
    turns = [fillers[number % 3] + f" {number}" for number in range(2 * MIN_TRANSCRIPT_MESSAGES)]
    turns[20] = "The budget of the remote control, by the way, is a headline"
    for number in range(150, 162, 3):
        turns[number] = f"The budget for the remote control leaves {number} euros for rubber buttons"
    for number, turn in enumerate(turns):
        await capture_memory(
            memories, turn, thread="meeting", author=("Ann", "Bob", "Eve")[number % 3], at="2026-05-08"
        )
    page = await memories.recall("What was said about the budget of the remote control?", memories.filter(""), limit=5)
    assert [hit.record.content for hit in page.hits[:4]] == sorted(
        (hit.record.content for hit in page.hits[:4]), key=lambda text: "rubber" not in text
    )
    assert "rubber" in page.hits[0].record.content
