"""The memory store without the protocol, on both engines."""

from __future__ import annotations

import pytest

from portico_services import timestamps
from portico_services.memory.errors import InvalidInput, MemoryNotFound, UnknownNamespace
from portico_services.memory.store import validation
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore
from support.memories import HOSTILE, capture_memory, search_contents


async def test_captured_memory_is_recalled(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "We use PostgreSQL for storage", tags=["Database", "sql"])
    await capture_memory(memories, "The office plants need water on Mondays", "context")
    assert kept.tags == ["database", "sql"]
    assert (await search_contents(memories, "which storage do we use?"))[0] == "We use PostgreSQL for storage"
    assert (await memories.get(kept.id)) == kept


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_is_stored_and_found_as_data(memories: MemoryStore, text: str) -> None:
    kept = await capture_memory(memories, f"{text} marmalade", tags=[text[:50]], source=text, author=text, path=text)
    await capture_memory(memories, "something else entirely", "learnings")
    assert (await memories.get(kept.id)).content == f"{text} marmalade"
    assert await search_contents(memories, f"{text} marmalade") == [f"{text} marmalade"]
    assert await search_contents(memories, "marmalade") == [f"{text} marmalade"]


async def test_any_text_is_a_query_and_a_filter(memories: MemoryStore) -> None:
    await capture_memory(memories, "plain words")
    for text in [*HOSTILE, "", " ", "*", '"', ":", "ns:", "tag:,", "-", "a" * 9_000, "\0", "\ud800"]:
        await search_contents(memories, text)
        try:
            await search_contents(memories, "", text)
        except InvalidInput:
            pass


async def test_nul_becomes_a_replacement_character(memories: MemoryStore) -> None:
    assert (await capture_memory(memories, "before\0after")).content == "before\ufffdafter"


async def test_too_long_content_is_rejected_with_the_limit(memories: MemoryStore) -> None:
    with pytest.raises(InvalidInput, match="200,000"):
        await capture_memory(memories, "x" * 10_000_000)


async def test_unknown_namespace_is_rejected_with_the_known_ones(memories: MemoryStore) -> None:
    with pytest.raises(UnknownNamespace, match="decisions, patterns"):
        await capture_memory(memories, "hello", "unknown")
    with pytest.raises(UnknownNamespace):
        await capture_memory(memories, "hello", "help")


async def test_update_preserves_the_previous_version_in_the_history(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "The port is 8080", "config", tags=["port"])
    changed = await memories.update(
        kept.id, content="The port is 9090", tags=["port", "http"], who="ann", reason="moved"
    )
    assert changed.version == 2
    assert await search_contents(memories, "9090") == ["The port is 9090"]
    assert await search_contents(memories, "8080") == []
    record, events = await memories.history(kept.id)
    assert record == changed
    assert [(event.version, event.change, event.who, event.reason) for event in events] == [
        (2, "updated", "ann", "moved")
    ]
    assert events[0].was == kept


async def test_update_of_another_version_is_rejected(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "The port is 8080", "config")
    await memories.update(kept.id, content="The port is 9090", expected_version=1)
    with pytest.raises(InvalidInput, match="expected version 1, got 2"):
        await memories.update(kept.id, content="The port is 7070", expected_version=1)
    with pytest.raises(InvalidInput):
        await memories.delete(kept.id, expected_version=1)


async def test_deleted_memory_is_not_found_and_can_be_restored(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "Temporary thought about bananas")
    await memories.delete(kept.id)
    assert await search_contents(memories, "bananas") == []
    assert await search_contents(memories) == []
    assert await search_contents(memories, "", "status:deleted") == ["Temporary thought about bananas"]
    restored = await memories.restore(kept.id)
    assert (restored.status, restored.version) == ("active", 3)
    assert await search_contents(memories, "bananas") == ["Temporary thought about bananas"]


async def test_hard_deletion_leaves_nothing(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "Gone soon")
    await memories.update(kept.id, content="Gone very soon")
    await memories.delete(kept.id, hard=True)
    with pytest.raises(MemoryNotFound):
        await memories.get(kept.id)
    with pytest.raises(MemoryNotFound):
        await memories.history(kept.id)


async def test_id_may_be_cut_short_or_be_an_address(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "Short")
    assert (await memories.get(kept.id[:8])).id == kept.id
    assert (await memories.get(f"memory://project/decisions/{kept.id}")).id == kept.id
    with pytest.raises(MemoryNotFound):
        await memories.get("ffff")
    with pytest.raises(MemoryNotFound):
        await memories.get("' or 1=1")


async def test_filter_language(memories: MemoryStore) -> None:
    await capture_memory(
        memories, "alpha", "decisions", tags=["db", "old"], author="ann", branch="main", path="src/a/one.py"
    )
    await capture_memory(memories, "beta", "learnings", tags=["db"], author="bob", source="ticket 7", path="src/b.py")
    await capture_memory(memories, "gamma", "config", tags=["ui"], domain="user", at="2020-01-31", thread="t1")
    assert await search_contents(memories, "", "ns:decisions") == ["alpha"]
    assert sorted(await search_contents(memories, "", "ns:decisions,config")) == ["alpha", "gamma"]
    assert await search_contents(memories, "", "tag:db -tag:old") == ["beta"]
    assert await search_contents(memories, "", "tag:db tag:old") == ["alpha"]
    assert sorted(await search_contents(memories, "", "tag:DB,ui")) == ["alpha", "beta", "gamma"]
    assert await search_contents(memories, "", "until:2021-01-01") == ["gamma"]
    assert sorted(await search_contents(memories, "", "since:7d")) == ["alpha", "beta"]
    assert await search_contents(memories, "", 'source:"ticket 7"') == ["beta"]
    assert await search_contents(memories, "", "branch:main author:ann") == ["alpha"]
    assert await search_contents(memories, "", "path:src/a/") == ["alpha"]
    assert sorted(await search_contents(memories, "", "path:src/*")) == ["alpha", "beta"]
    assert await search_contents(memories, "", "path:SRC/b.py") == []
    assert sorted(await search_contents(memories, "", "-path:src/b.py")) == ["alpha", "gamma"]
    assert await search_contents(memories, "", "domain:user") == ["gamma"]
    assert await search_contents(memories, "", "thread:t1") == ["gamma"]
    assert await search_contents(memories, "", "ns:learnings beta") == ["beta"]
    assert await search_contents(memories, "beta", "-project:*") == []
    with pytest.raises(InvalidInput, match="active, archived"):
        await search_contents(memories, "", "status:asleep")


async def test_other_projects_are_checked_when_requested(memories: MemoryStore) -> None:
    await capture_memory(memories, "ours")
    await capture_memory(memories, "theirs", project="there/project")
    await capture_memory(memories, "mine", domain="user")
    assert sorted(await search_contents(memories)) == ["mine", "ours"]
    assert await search_contents(memories, "", "project:there/project") == ["theirs"]
    assert sorted(await search_contents(memories, "", "project:*")) == ["mine", "ours", "theirs"]
    assert await search_contents(memories, "", "-project:*") == []


async def test_pages_follow_each_other(memories: MemoryStore) -> None:
    for number in range(7):
        await capture_memory(
            memories, f"number {number} kiwi {'x' * number}", at=f"2026-01-0{number + 1}", on_duplicate="keep"
        )
    listed = [await search_contents(memories, limit=3, offset=offset) for offset in (0, 3, 6)]
    assert [len(item) for item in listed] == [3, 3, 1]
    assert len({text for page in listed for text in page}) == 7
    sought = [await search_contents(memories, "kiwi", limit=3, offset=offset) for offset in (0, 3, 6)]
    assert len({text for page in sought for text in page}) == 7


async def test_same_is_not_stored_twice(memories: MemoryStore) -> None:
    first = await capture_memory(memories, "We use PostgreSQL for storage")
    again = await memories.capture(
        MemoryDraft(content="  we use postgresql\nFOR storage ", namespace="decisions", tags=["db"])
    )
    assert (again.is_new, again.duplicate_of, again.record.id) == (False, first.id, first.id)
    elsewhere = await memories.capture(MemoryDraft(content="We use PostgreSQL for storage", namespace="context"))
    assert elsewhere.is_new


async def test_duplicate_is_merged_superseded_rejected_or_stored(memories: MemoryStore) -> None:
    first = await capture_memory(memories, "Deploys happen on Fridays", tags=["ops"])
    text = "Deploys happen on fridays"
    merged = await memories.capture(
        MemoryDraft(content=text, namespace="decisions", tags=["friday"], on_duplicate="merge")
    )
    assert (merged.record.id, merged.record.tags, merged.record.version) == (first.id, ["ops", "friday"], 2)
    with pytest.raises(InvalidInput, match=first.id):
        await memories.capture(MemoryDraft(content=text, namespace="decisions", on_duplicate="error"))
    kept = await memories.capture(MemoryDraft(content=text, namespace="decisions", on_duplicate="keep"))
    assert (kept.is_new, kept.duplicate_of) == (True, first.id)
    await memories.delete(kept.record.id)
    new = await memories.capture(MemoryDraft(content=text, namespace="decisions", on_duplicate="supersede"))
    assert (new.is_new, new.superseded) == (True, first.id)
    assert (await memories.get(first.id)).status == "superseded"
    assert await search_contents(memories, "deploys") == [text]


async def test_nearly_the_same_is_the_same(memories: MemoryStore) -> None:
    long = "The nightly build takes forty minutes because the integration suite starts a fresh database for each module"
    first = await capture_memory(memories, long, "learnings")
    again = await memories.capture(MemoryDraft(content=long + ".", namespace="learnings"))
    assert again.duplicate_of == first.id


async def test_contradiction_is_pointed_out_and_stored(memories: MemoryStore) -> None:
    first = await capture_memory(memories, "The API server listens on port 8080", "config")
    result = await memories.capture(MemoryDraft(content="The API server listens on port 9090", namespace="config"))
    assert result.is_new
    assert [(conflict.id, conflict.why) for conflict in result.conflicts] == [(first.id, "the numbers differ")]
    await capture_memory(memories, "We should cache results of the search service", "patterns")
    denied = await memories.capture(
        MemoryDraft(content="We should never cache results of the search service", namespace="patterns")
    )
    assert len(denied.conflicts) == 1


async def test_recall_as_of_a_time_returns_the_state_at_that_time(
    memories: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = validation.parse_timestamp("2026-03-01")
    monkeypatch.setattr(timestamps, "now_ms", lambda: clock)
    kept = await capture_memory(memories, "The leader is Ann", "context")
    clock = validation.parse_timestamp("2026-03-10")
    await memories.update(kept.id, content="The leader is Bob")
    gone = await capture_memory(memories, "A short visit of the leader", "context")
    clock = validation.parse_timestamp("2026-03-20")
    await memories.delete(gone.id)

    async def at(day: str, query: str = "") -> list[str]:
        page = await memories.recall(query, memories.filter(""), as_of=validation.parse_timestamp(day))
        return sorted(hit.record.content for hit in page.hits)

    assert await at("2026-02-01") == []
    assert await at("2026-03-05", "leader") == ["The leader is Ann"]
    assert await at("2026-03-15") == ["A short visit of the leader", "The leader is Bob"]
    assert await at("2026-03-25") == ["The leader is Bob"]


async def test_expired_memories_are_not_found(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await capture_memory(memories, "For a day only: mango", ttl="24h")
    await capture_memory(memories, "For ever: mango", ttl="0")
    assert len(await search_contents(memories, "mango")) == 2
    later = timestamps.now_ms() + 25 * 3_600_000
    monkeypatch.setattr(timestamps, "now_ms", lambda: later)
    assert await search_contents(memories, "mango") == ["For ever: mango"]
    assert await search_contents(memories) == ["For ever: mango"]


async def test_delete_all_is_dry_first(memories: MemoryStore) -> None:
    for word in ("one", "two", "three"):
        await capture_memory(memories, f"step {word}", "progress")
    await capture_memory(memories, "stays")
    dry = await memories.delete_all(memories.filter("ns:progress"))
    assert dry.count == len(dry.ids) == 3
    assert len(await search_contents(memories)) == 4
    assert (await memories.delete_all(memories.filter("ns:progress"), dry_run=False)).count == 3
    assert await search_contents(memories) == ["stays"]
    assert (await memories.delete_all(memories.filter("status:deleted"), dry_run=False)).count == 0
    assert (await memories.delete_all(memories.filter("status:deleted"), dry_run=False, hard=True)).count == 3
    for nothing in ("", "just words", "ns:progress and words"):
        with pytest.raises(InvalidInput):
            await memories.delete_all(memories.filter(nothing), dry_run=False)


async def test_large_batch_is_captured(memories: MemoryStore) -> None:
    drafts = [MemoryDraft(content=f"fact {number} about pears", namespace="learnings") for number in range(1200)]
    result = await memories.capture_batch([*drafts, drafts[0]])
    assert [item.is_new for item in result] == [True] * 1200 + [False]
    assert await search_contents(memories, "fact 777 about pears", limit=1) == ["fact 777 about pears"]
