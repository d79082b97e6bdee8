"""Consolidation, moves and deletion of memories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ProtocolError
from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services import timestamps
from portico_services.memory import export_import
from portico_services.memory.errors import InvalidInput, MemoryNotFound
from portico_services.memory.extras import consolidation, graph, saved_prompts
from portico_services.memory.store import garbage_collection, statistics
from portico_services.memory.store.capture import MemoryDraft, build_record
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.sync import serialization
from support.memories import CAPTURE, HOSTILE, KEY, call_failing_tool, call_tool, capture_memory, search_contents

Serving = Callable[..., Any]
TIMEOUT_SECONDS = 30.0
TWINS = (
    "The nightly build takes forty minutes on the big machine",
    "The nightly build takes forty minutes on the big machine because of the database",
    "The nightly build takes nearly forty minutes on the big machine",
)

# Collecting


async def test_expired_memories_are_collected(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = await capture_memory(memories, "a day only", ttl="24h")
    await capture_memory(memories, "for ever")
    later = timestamps.now_ms() + 25 * 3_600_000
    monkeypatch.setattr(timestamps, "now_ms", lambda: later)
    assert (await garbage_collection.collect_garbage(memories, dry_run=True)).expired == 1
    assert (await memories.get(kept.id)).status == "active"
    assert (await garbage_collection.collect_garbage(memories, dry_run=False)).expired == 1
    assert (await memories.get(kept.id)).status == "deleted"
    assert (await garbage_collection.collect_garbage(memories, dry_run=False)).expired == 0


async def test_finished_branch_is_archived_and_old_deletions_are_purged(
    memories: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    branched = await capture_memory(memories, "on a branch", branch="feature")
    other = await capture_memory(memories, "on main", branch="main")
    await memories.delete(other.id)
    done = await garbage_collection.collect_garbage(memories, dry_run=False, branch="feature", purge=True)
    assert (done.archived, done.purged) == (1, 0)
    assert (await memories.get(branched.id)).status == "archived"
    later = timestamps.now_ms() + 31 * 86_400_000
    monkeypatch.setattr(timestamps, "now_ms", lambda: later)
    assert (await garbage_collection.collect_garbage(memories, dry_run=False, purge=True)).purged == 1
    with pytest.raises(MemoryNotFound):
        await memories.get(other.id)
    assert (await memories.restore(branched.id)).status == "active"


async def test_erased_memory_leaves_no_trace_in_the_store(memories: MemoryStore, url: str, tmp_path: Path) -> None:
    secret = "Zanzibarquux"
    kept = await capture_memory(memories, f"{secret} Smith said this first", author="Zanzibarquux Smith")
    await memories.update(kept.id, content=f"{secret} Smith said this second")
    await capture_memory(memories, "stays")
    with pytest.raises(InvalidInput):
        await garbage_collection.erase_memories(memories)
    assert await garbage_collection.erase_memories(memories, author="Zanzibarquux Smith") == 1
    tables = ("memory", "memory_event", "memory_tag", "memory_entity", "memory_mention", "memory_relation")
    for table in tables:
        rows = await memories.read(lambda tx, table=table: tx.fetch_all(tuple[Any, ...], f"select * from {table}"))  # type: ignore[misc]
        assert secret.casefold() not in str(rows).casefold(), table
    assert await search_contents(memories) == ["stays"]
    if url.startswith("sqlite"):
        await memories.database.close()
        data = everything_in(tmp_path)
        assert secret.encode() not in data and secret.lower().encode() not in data
        await memories.database.open()


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("memory.db*") if path.is_file())


# Moving


@pytest.mark.parametrize("format", ["jsonl", "markdown"])
async def test_export_is_imported_unchanged(
    memories: MemoryStore, tmp_path: Path, format: serialization.ExportFormat
) -> None:
    tricky = [
        *HOSTILE,
        "---\nid: 1\n---",
        "<!-- memory {} -->\n\\<!-- memory x",
        "ends with lines\n\n\n",
        "a\r\nb\u2028c",
    ]
    for text in tricky:
        await capture_memory(
            memories, text, "learnings", tags=["x"], author="ann", at="2026-01-31", on_duplicate="keep"
        )
    data, count, last = await export_import.export_memories(memories, memories.filter(""), format)
    assert (count, last) == (len(tricky), None)
    async with Database(tmp_path / "other.db") as database:
        other = MemoryStore(database, project="here/project")
        await other.open()
        brought = await export_import.import_memories(other, data, format)
        assert (brought.added, brought.refused) == (len(tricky), 0), brought.problems
        assert (await export_import.import_memories(other, data, format)).unchanged == len(tricky)
        here = await memories.recall("", memories.filter(""), limit=100)
        there = await other.recall("", other.filter(""), limit=100)
        assert [hit.record for hit in there.hits] == [hit.record for hit in here.hits]


async def test_import_screens_a_label_once(memories: MemoryStore) -> None:
    screened: list[str] = []

    def screen(text: str) -> tuple[str, list[str]]:
        screened.append(text)
        return text.replace("Ann", "[REDACTED:name]"), []

    lines = [
        json.dumps({"content": f"note {number}", "namespace": "context", "author": "Ann", "tags": ["Ann"]})
        for number in range(20)
    ]
    await export_import.import_memories(memories, "\n".join(lines), "jsonl", screen=screen)
    assert len(screened) == 21
    hits = (await memories.recall("", memories.filter(""), limit=30)).hits
    assert {(hit.record.author, *hit.record.tags) for hit in hits} == {("[REDACTED:name]", "[redacted:name]")}


async def test_import_applies_newer_versions_and_reports_rejections(memories: MemoryStore) -> None:
    kept = await capture_memory(memories, "first")
    result = serialization.to_portable(kept)
    lines = [
        json.dumps({**json.loads(serialization.dump([kept], "jsonl")), "content": "second", "version": 5}),
        json.dumps({"content": "no namespace"}),
        json.dumps({"content": "new", "namespace": "context"}),
        "not json",
    ]
    brought = await export_import.import_memories(memories, "\n".join(lines), "jsonl")
    assert (brought.added, brought.updated, brought.refused, len(brought.problems)) == (1, 1, 2, 2)
    assert (await memories.get(result.id)).content == "second"
    assert (await memories.get(result.id)).version == 5
    assert (await memories.history(result.id))[1][0].was == kept


async def test_import_of_invalid_data_reports_problems(memories: MemoryStore) -> None:
    for format in ("jsonl", "markdown"):
        empty = await export_import.import_memories(memories, "  \n", format)
        assert (empty.refused, empty.problems) == (0, [])
    brought = await export_import.import_memories(memories, "# A page\n\nOf somebody else.\n", "markdown")
    assert (brought.added, brought.refused) == (0, 1) and "No memory found in the data" in brought.problems[0]
    lines = '{"content": "fine", "namespace": "config"}\n{"content": "which one?", "namespace": "nowhere"}\n'
    brought = await export_import.import_memories(memories, lines, "jsonl")
    assert brought.added == 1 and brought.problems[0].startswith("memory 2: Invalid namespace: nowhere.")


@pytest.mark.parametrize("known", [False, True])
async def test_with_several_versions_in_one_import_the_newest_stays(memories: MemoryStore, known: bool) -> None:
    """As where several exports stand in one file."""
    id = "aaaaaaaaaaaaaaaa"
    lines = {
        version: f'{{"id":"{id}","namespace":"decisions","content":"text {version}","tags":["v{version}"],'
        f'"version":{version}}}'
        for version in (1, 2, 3)
    }
    if known:
        await export_import.import_memories(memories, lines[1], "jsonl")
    brought = await export_import.import_memories(memories, f"{lines[3]}\n{lines[3]}\n{lines[2]}", "jsonl")
    assert (brought.added, brought.updated, brought.unchanged) == (0 if known else 1, 1 if known else 0, 2)
    kept = await memories.get(id)
    assert (kept.content, kept.version) == ("text 3", 3)
    assert (await memories.read(statistics.collect_counts)).tags == {"v3": 1}


async def test_export_and_import_as_tools(serving: Serving) -> None:
    client = await serving()
    for number in range(3):
        await call_tool(client, "memory_capture", content=f"thing {number}", namespace="context", on_duplicate="keep")
    first = await call_tool(client, "memory_export", limit=2)
    rest = await call_tool(client, "memory_export", limit=2, cursor=first["nextCursor"])
    assert (first["count"], rest["count"], "nextCursor" in rest) == (2, 1, False)
    assert (await call_tool(client, "memory_import", data=first["data"] + rest["data"]))["unchanged"] == 3
    secret = json.dumps({"content": f"The key is {KEY}", "namespace": "config"})
    dry = await call_tool(client, "memory_import", data=secret, dry_run=True)
    assert dry["refused"] == 1 and KEY not in json.dumps(dry)


# Consolidating


async def test_consolidation_merges_near_duplicates_and_can_be_undone(memories: MemoryStore) -> None:
    kept = [
        await capture_memory(memories, text, "learnings", tags=[f"t{at}"], on_duplicate="keep")
        for at, text in enumerate(TWINS)
    ]
    other = await capture_memory(memories, "Something about penguins", "learnings")
    plan = await consolidation.plan_consolidation(memories, memories.filter(""), strategy="merge", similarity=0.6)
    assert [{member.id for member in each.members} for each in plan.clusters] == [{member.id for member in kept}]
    done = await consolidation.apply_consolidation(memories, plan)
    assert len(done.kept) == 1 and len(done.superseded) == 2
    merged = await memories.get(done.kept[0])
    assert sorted(merged.tags) == ["t0", "t1", "t2"] and "database" in merged.content
    assert len(await search_contents(memories, "nightly build")) == 1
    await consolidation.undo_consolidation(memories, done.run)
    for member in kept:
        back = await memories.get(member.id)
        assert (back.content, back.status, back.tags) == (member.content, "active", member.tags)
    assert len(await search_contents(memories, "nightly build")) == 3
    assert (await memories.get(other.id)) == other
    with pytest.raises(InvalidInput):
        await consolidation.undo_consolidation(memories, "nonsense")


async def test_summary_is_stored_as_a_separate_memory(memories: MemoryStore) -> None:
    for text in TWINS:
        await capture_memory(memories, text, "learnings", on_duplicate="keep")
    plan = await consolidation.plan_consolidation(memories, memories.filter(""), strategy="summarize", similarity=0.6)
    done = await consolidation.apply_consolidation(memories, plan)
    summary = await memories.get(done.kept[0])
    assert "summary" in summary.tags and len(done.superseded) == 3
    await consolidation.undo_consolidation(memories, done.run)
    assert (await memories.get(summary.id)).status == "deleted"
    assert len(await search_contents(memories, "nightly build")) == 3


@pytest.mark.parametrize("strategy", ["merge", "summarize", "dedupe"])
async def test_run_from_before_runs_had_a_table_is_known(url: str, strategy: consolidation.Strategy) -> None:
    def forget_table(tx: Transaction) -> None:
        tx.execute("drop table memory_consolidated")
        tx.execute("delete from portico_migration where name = '0005_consolidations'")

    async with Database(url) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open(read_only=True)
        for text in TWINS:
            await capture_memory(memories, text, "learnings", on_duplicate="keep")
        plan = await consolidation.plan_consolidation(memories, memories.filter(""), strategy=strategy, similarity=0.6)
        done = await consolidation.apply_consolidation(memories, plan)
        rows = "select run, memory, version, kept from memory_consolidated order by memory"
        before = await memories.read(lambda tx: tx.fetch_all(tuple[str, str, int, str], rows))
        await memories.write(forget_table)
        await memories.open(read_only=True)
        assert await memories.read(lambda tx: tx.fetch_all(tuple[str, str, int, str], rows)) == before
        kept = await memories.get(done.kept[0])
        sources = await memories.read(lambda tx: consolidation.summary_sources(tx, kept))
        assert {source.id for source in sources} == set(done.superseded)
        assert set(await consolidation.undo_consolidation(memories, done.run)) >= set(done.superseded)


async def test_plan_that_is_out_of_date_does_nothing(memories: MemoryStore) -> None:
    kept = [await capture_memory(memories, text, "learnings", on_duplicate="keep") for text in TWINS]
    plan = await consolidation.plan_consolidation(memories, memories.filter(""), strategy="dedupe", similarity=0.6)
    await memories.update(kept[0].id, tags=["changed"])
    assert (await consolidation.apply_consolidation(memories, plan)).kept == []


async def test_consolidate_is_dry_first(serving: Serving) -> None:
    client = await serving()
    for text in TWINS:
        await call_tool(client, "memory_capture", content=text, namespace="learnings", on_duplicate="keep")
    dry = await call_tool(client, "memory_consolidate", similarity=0.6)
    assert len(dry["groups"]) == 1 and dry["dry_run"] and "run" not in dry
    assert (await call_tool(client, "memory_status"))["total"] == 3
    done = await call_tool(client, "memory_consolidate", similarity=0.6, dry_run=False)
    assert (await call_tool(client, "memory_status"))["total"] == 1
    await call_tool(client, "memory_consolidate", undo=done["run"])
    assert (await call_tool(client, "memory_status"))["total"] == 3
    assert "Invalid namespace" in (await call_failing_tool(client, "memory_consolidate", namespaces=["nonsense"]))[0]


# Enriching


async def test_without_a_model_there_are_rules(serving: Serving) -> None:
    client = await serving()
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    dry = await call_tool(client, "memory_enrich", memory_id=id, enrich_structure=True, add_context=True, dry_run=True)
    assert dry["by"] == "local" and "postgresql" in dry["added_tags"] and dry["entities"] == ["PostgreSQL"]
    assert (await call_tool(client, "memory_get", memory_id=id))["tags"] == []
    await call_tool(client, "memory_enrich", memory_id=id)
    assert "postgresql" in (await call_tool(client, "memory_get", memory_id=id))["tags"]


async def test_without_a_model_a_clearer_text_is_rejected(serving: Serving) -> None:
    client = await serving()
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    only_text = {"memory_id": id, "enrich_tags": False, "enrich_structure": True}
    for dry_run in (True, False):
        text, error = await call_failing_tool(client, "memory_enrich", **only_text, dry_run=dry_run)
        assert (error["number"], error["retryable"]) == (-32606, False) and "No model is available" in text
    assert (await call_tool(client, "memory_get", memory_id=id))["version"] == 1
    tagged = await call_tool(client, "memory_enrich", memory_id=id, enrich_structure=True)
    assert tagged["added_tags"] and tagged["note"] == "No model wrote a clearer text."
    again = await call_tool(client, "memory_enrich", memory_id=id, enrich_tags=False)
    assert again["note"] == "Nothing was changed."


LIMITS = (
    "The rate limit of the public interface is 100 requests each minute for every client",
    "The rate limit of the public interface is 300 requests each minute for every client",
)


@pytest.mark.parametrize("strategy", ["merge", "summarize", "dedupe"])
async def test_consolidate_leaves_open_conflicts_alone(serving: Serving, strategy: str) -> None:
    client = await serving()
    ids = [(await call_tool(client, "memory_capture", content=text, namespace="config"))["id"] for text in LIMITS]
    open_conflicts = (await call_tool(client, "memory_conflicts"))["conflicts"]
    assert {open_conflicts[0]["memory_id"], open_conflicts[0]["other_id"]} == set(ids)
    dry = await call_tool(client, "memory_consolidate", strategy=strategy)
    assert dry["groups"] == [] and dry["left_out"] == sorted(ids) and "memory_conflicts" in dry["note"]
    done = await call_tool(client, "memory_consolidate", strategy=strategy, dry_run=False)
    assert not done.get("superseded") and done["left_out"] == sorted(ids)
    assert (await call_tool(client, "memory_conflicts"))["conflicts"] == open_conflicts
    result = await call_tool(client, "memory_consolidate", strategy=strategy, dry_run=False, include_conflicts=True)
    assert ids[0] in result["superseded"] and "left_out" not in result


async def test_consolidate_leaves_out_a_memory_that_contradicts_one_outside_its_group(memories: MemoryStore) -> None:
    """Superseding one of a pair would take the conflict out of the list of conflicts, too."""
    first, second = [await capture_memory(memories, text, "config") for text in LIMITS]
    twin = await capture_memory(memories, LIMITS[0] + " of ours", "config", on_duplicate="keep")
    plan = await consolidation.plan_consolidation(memories, memories.filter(""), strategy="dedupe")
    assert plan.clusters == [] and {first.id, second.id} <= set(plan.left_out) <= {first.id, second.id, twin.id}


async def test_consolidate_compares_memories_that_were_imported(serving: Serving) -> None:
    client = await serving()
    lines = [json.dumps({"content": text, "namespace": "config"}) for text in LIMITS]
    assert (await call_tool(client, "memory_import", data="\n".join(lines)))["added"] == 2
    assert len((await call_tool(client, "memory_consolidate"))["left_out"]) == 2


async def test_conflict_noted_after_the_plan_is_left_alone(memories: MemoryStore) -> None:
    for text in (LIMITS[0], LIMITS[0] + " of ours"):
        await capture_memory(memories, text, "config", on_duplicate="keep")
    plan = await consolidation.plan_consolidation(memories, memories.filter(""), strategy="dedupe")
    assert len(plan.clusters) == 1
    await capture_memory(memories, LIMITS[1], "config")
    assert (await consolidation.apply_consolidation(memories, plan)).superseded == []


# Prompts


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_saved_prompt_is_there_when_the_call_returns(serving: Serving, revision: str) -> None:
    client = await serving(revision=revision)
    for version in range(5):
        saved = await call_tool(
            client, "memory_prompts", action="save", name="greet", content=f"Hello {version} {{{{who}}}}"
        )
        assert saved["note"] == "Available as the prompt greet."
        assert (await client.get_prompt("greet", {"who": "Ann"})).messages[0].content.text == f"Hello {version} Ann"
        await client.complete({"type": "ref/prompt", "name": "greet"}, "who", "")
        await call_tool(client, "memory_prompts", action="delete", name="greet")
        with pytest.raises(ProtocolError):
            await client.get_prompt("greet", {"who": "Ann"})
        assert "greet" not in {prompt.name for prompt in await client.list_prompts()}


async def test_last_of_many_changes_to_a_prompt_counts(serving: Serving) -> None:
    """The changes are followed from the store as well, and an older state must not be applied last."""
    client = await serving()

    async def change(name: str) -> None:
        for _ in range(4):
            await call_tool(client, "memory_prompts", action="save", name=name, content="Hello")
            await call_tool(client, "memory_prompts", action="delete", name=name)
            assert name not in {prompt.name for prompt in await client.list_prompts()}

    await asyncio.gather(*(change(f"greet{number}") for number in range(4)))


@pytest.mark.parametrize("name", ["memory", "memory_status"])
async def test_deleting_a_prompt_removes_only_that_prompt(serving: Serving, name: str) -> None:
    client = await serving()
    tools = {tool.name for tool in await client.list_tools()}
    await call_tool(client, "memory_prompts", action="save", name=name, content="Hello")
    await call_tool(client, "memory_prompts", action="delete", name=name)
    assert {tool.name for tool in await client.list_tools()} == tools


async def test_saved_prompt_outside_the_listed_project_explains_how_to_run_it(serving: Serving, tmp_path: Path) -> None:
    """The list is that of the server's own project; this client works in another."""
    client = await serving(project=None, client={"roots": [tmp_path]})
    saved = await call_tool(client, "memory_prompts", action="save", name="greet", content="Hello")
    assert "action run" in saved["note"]
    assert (await call_tool(client, "memory_prompts", action="run", name="greet"))["text"] == "Hello"


async def test_saved_prompt_is_a_prompt_of_the_server(serving: Serving) -> None:
    client = await serving()
    definition = {"tone": {"description": "How to say it", "default": "kind", "choices": ["kind", "strict"]}}
    async with client.listen(prompts=True) as changes:
        await call_tool(
            client,
            "memory_prompts",
            action="save",
            name="review-file",
            content="Review {{file}} in a {{tone}} tone. Again: {{ file }}",
            description="Review a file",
            variables_def=definition,
        )
        await anext(aiter(changes))
    listed = {item.name: item for item in await client.list_prompts()}["review-file"]
    assert [(item.name, item.required) for item in listed.arguments] == [("file", True), ("tone", False)]
    got = await client.get_prompt("review-file", {"file": "{{tone}} a.py"})
    assert got.messages[0].content.text == "Review {{tone}} a.py in a kind tone. Again: {{tone}} a.py"
    reference = {"type": "ref/prompt", "name": "review-file"}
    assert (await client.complete(reference, "tone", "s")).values == ["strict"]
    run = await call_tool(client, "memory_prompts", action="run", name="review-file", variables={"file": "b.py"})
    assert run["text"].startswith("Review b.py in a kind tone")
    again = await call_tool(client, "memory_prompts", action="save", name="review-file", content="Look at {{file}}")
    assert again["prompts"][0]["version"] == 2
    async with client.listen(prompts=True) as changes:
        await call_tool(client, "memory_prompts", action="delete", name="review-file")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async for _ in changes:
                if "review-file" not in {item.name for item in await client.list_prompts()}:
                    break


async def test_saved_prompts_are_there_after_a_start(serving: Serving) -> None:
    first = await serving(tool_prefix="first")
    await call_tool(first, "first_prompts", action="save", name="hello", content="Say hello to {{who}}")
    second: Client = await serving()
    assert "hello" in {prompt.name for prompt in await second.list_prompts()}


async def test_prompt_that_cannot_be_is_rejected(serving: Serving) -> None:
    client = await serving()
    _, error = await call_failing_tool(client, "memory_prompts", action="get", name="nowhere")
    assert error["number"] == -32607
    for arguments in (
        {"name": "memory_capture", "content": "taken"},
        {"name": "bad name", "content": "x"},
        {"name": "x", "content": " "},
        {"name": "x", "content": "{{class}}"},
        {"name": "x", "content": "{{a}}", "variables_def": {"b": {}}},
        {"name": "x", "content": f"The key is {KEY}"},
    ):
        await call_failing_tool(client, "memory_prompts", action="save", **arguments)
    with pytest.raises(InvalidInput, match="requires values for a"):
        template = saved_prompts.build_prompt(
            domain="user", project=None, name="x", content="{{a}}", description="", variables={}, now=0
        )
        saved_prompts.render(template, {})


async def test_large_import_updates_planner_statistics(memories: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's planner goes by that, and would look minutes later."""
    text = serialization.dump(
        [build_record(MemoryDraft(content=f"note {n}", namespace="context"), n) for n in range(40)], "jsonl"
    )

    def known(tx: Transaction) -> bool:
        if tx.engine == "sqlite":
            return True
        return (
            tx.fetch_one(float, "select reltuples::double precision from pg_class where relname = 'memory_posting'") > 0
        )

    monkeypatch.setattr(statistics, "BULK_LOAD_ROWS", 20)
    before = await memories.read(known)
    brought = await export_import.import_memories(memories, text, "jsonl")
    assert brought.added == 40
    assert await memories.read(known)
    assert memories.database.engine == "sqlite" or not before


# The graph


async def test_graph_contains_entities_and_their_relations(memories: MemoryStore) -> None:
    await capture_memory(memories, "The billing service in src/billing.py uses PostgreSQL", author="Ann Lee")
    await capture_memory(memories, "PostgreSQL replaces MongoDB, says Bob Jones", "decisions")
    await capture_memory(memories, "Grafana shows `LatencyBudget`", "config")
    nodes = await memories.read(lambda tx: graph.list_entities(tx, None, 50))
    kinds = {item.name: item.kind for item in nodes}
    assert kinds["PostgreSQL"] == "Technology" and kinds["src/billing.py"] == "File"
    assert kinds["Ann Lee"] == kinds["Bob Jones"] == "Person" and kinds["LatencyBudget"] == "Concept"
    assert nodes[0].name == "PostgreSQL" and nodes[0].mentions == 2
    near = await memories.read(lambda tx: graph.neighbours(tx, "postgresql", 1, 50))
    edges = {(item.source, item.kind, item.target) for item in near.edges}
    assert {("src/billing.py", "Uses", "PostgreSQL"), ("PostgreSQL", "Supersedes", "MongoDB")} <= edges
    way = await memories.read(lambda tx: graph.shortest_path(tx, "Ann Lee", "MongoDB"))
    assert len(way.edges) == 2
    assert (await memories.read(lambda tx: graph.shortest_path(tx, "Ann Lee", "Grafana"))).edges == []
    assert await search_contents(memories, "", "entity:mongodb") == ["PostgreSQL replaces MongoDB, says Bob Jones"]
    for picture in ("mermaid", "dot", "text"):
        assert "PostgreSQL" in graph.render_graph(near, picture)  # type: ignore[arg-type]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entities that were asked for what is around them."""
    results: list[str] = []
    beside = graph.adjacent_edges

    def noting(tx: Transaction, name: str, *bounds: int, owner: str) -> list[graph.EntityEdge]:
        results.append(name)
        return beside(tx, name, *bounds, owner=owner)

    monkeypatch.setattr(graph, "adjacent_edges", noting)
    return results


async def way(memories: MemoryStore, start: str, end: str) -> list[tuple[str, str]]:
    message = await memories.read(lambda tx: graph.shortest_path(tx, start, end))
    return [(edge.source, edge.target) for edge in message.edges]


async def test_way_is_searched_from_both_ends(memories: MemoryStore, asked: list[str]) -> None:
    for number in range(30):
        await capture_memory(memories, f"`LeftEnd` is beside `LeftSide{number}`")
        await capture_memory(memories, f"`RightEnd` is beside `RightSide{number}`")
    await capture_memory(memories, "`LeftEnd` is beside `GoBetween`")
    await capture_memory(memories, "`GoBetween` is beside `RightEnd`")
    result = await way(memories, "LeftEnd", "RightEnd")
    assert [set(edge) for edge in result] == [{"LeftEnd", "GoBetween"}, {"GoBetween", "RightEnd"}]
    assert asked == ["leftend", "rightend"]


async def test_shortest_path_is_found(memories: MemoryStore) -> None:
    for one, other in (("One", "Two"), ("Two", "Three"), ("Three", "Four"), ("Four", "Five"), ("Two", "Five")):
        await capture_memory(memories, f"`Step{one}` is beside `Step{other}`")
    result = await way(memories, "StepOne", "StepFive")
    assert [set(edge) for edge in result] == [{"StepOne", "StepTwo"}, {"StepTwo", "StepFive"}]
    assert await way(memories, "StepOne", "StepOne") == []
    assert len(await way(memories, "StepFour", "StepOne")) == 3


async def test_path_search_stops_at_an_exhausted_component(
    memories: MemoryStore, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        await capture_memory(memories, f"`LeftEnd` is beside `LeftSide{number}`")
    await capture_memory(memories, "`LonelyOne` is beside `LonelyTwo`")
    assert await way(memories, "LeftEnd", "LonelyOne") == []
    assert asked == ["leftend", "lonelyone", "lonelytwo"]
    asked.clear()
    # Of what many memories mention, only some were looked at.
    monkeypatch.setattr(graph, "MAX_MENTIONS_PER_HOP", 0)
    assert await way(memories, "LeftEnd", "LonelyOne") == []
    assert "leftend" in asked
    with pytest.raises(InvalidInput, match="entities"):
        await memories.read(lambda tx: graph.neighbours(tx, "nobody", 1, 50))


async def test_graph_as_a_tool(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", content="Django uses PostgreSQL", namespace="apis")
    listed = await call_tool(client, "memory_graph")
    assert {node["name"] for node in listed["nodes"]} == {"Django", "PostgreSQL"}
    drawn = await call_tool(client, "memory_graph", operation="visualize", entity="django")
    assert "-->|Uses|" in drawn["picture"]
    await call_failing_tool(client, "memory_graph", operation="path", entity="django")


async def test_rest_is_listed_when_all_is_offered(serving: Serving) -> None:
    client = await serving(tools="all")
    await call_tool(client, "memory_capture", **CAPTURE)
    assert (await call_tool(client, "memory_reindex"))["count"] == 1
    assert (await call_tool(client, "memory_gc"))["expired"] == 0
    await call_failing_tool(client, "memory_erase", filter="ns:decisions")
    assert (await call_tool(client, "memory_erase", filter="ns:decisions", confirm=True))["count"] == 1
    assert (await call_tool(client, "memory_status"))["total"] == 0


def test_empty_filter_is_known_as_such() -> None:
    assert MemoryFilter().is_empty and not MemoryFilter().with_condition("ns", "config").is_empty
