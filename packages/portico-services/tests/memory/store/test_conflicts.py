"""Contradictions between memories and their resolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.memories import call_failing_tool, call_tool

Serving = Callable[..., Any]


async def contradicted(client: Any) -> tuple[str, str]:
    first = await call_tool(client, "memory_capture", content="The API listens on port 8080", namespace="config")
    second = await call_tool(client, "memory_capture", content="The API listens on port 9090", namespace="config")
    assert [conflict["id"] for conflict in second["conflicts"]] == [first["id"]]
    return first["id"], second["id"]


async def test_conflict_is_listed_until_it_is_decided(serving: Serving) -> None:
    client = await serving()
    first, second = await contradicted(client)
    listed = await call_tool(client, "memory_conflicts")
    (item,) = listed["conflicts"]
    assert (item["memory_id"], item["other_id"], item["why"]) == (second, first, "the numbers differ")
    assert "9090" in item["content"] and "8080" in item["other_content"]
    assert (await call_tool(client, "memory_status"))["conflicts"] == 1
    done = await call_tool(client, "memory_conflicts", action="resolve", memory_id=second, other_id=first, keep="this")
    assert (done["count"], done["superseded"]) == (0, [first])
    assert (await call_tool(client, "memory_get", memory_id=first))["status"] == "superseded"
    assert (await call_tool(client, "memory_recall", query="port"))["count"] == 1
    assert (await call_tool(client, "memory_restore", memory_id=first))["status"] == "active"
    await call_failing_tool(client, "memory_conflicts", action="resolve", memory_id=second, other_id=first)


async def test_both_may_hold(serving: Serving) -> None:
    client = await serving()
    first, second = await contradicted(client)
    done = await call_tool(client, "memory_conflicts", action="resolve", memory_id=first, other_id=second)
    assert done["count"] == 0 and "superseded" not in done
    for id in (first, second):
        assert (await call_tool(client, "memory_get", memory_id=id))["status"] == "active"


async def test_conflict_is_resolved_by_change_or_removal(serving: Serving) -> None:
    client = await serving()
    first, second = await contradicted(client)
    await call_tool(client, "memory_update", memory_id=second, content="The API listens on port 8080, too")
    assert (await call_tool(client, "memory_conflicts"))["count"] == 0
    await call_tool(client, "memory_update", memory_id=second, content="The API listens on port 7070")
    assert (await call_tool(client, "memory_conflicts"))["count"] == 1
    await call_tool(client, "memory_delete", memory_id=first)
    assert (await call_tool(client, "memory_conflicts"))["count"] == 0
    await call_tool(client, "memory_delete", memory_id=first, hard=True)
    assert (await call_tool(client, "memory_status"))["conflicts"] == 0


async def test_resolving_a_conflict_requires_both_memories(serving: Serving) -> None:
    client = await serving()
    text, error = await call_failing_tool(client, "memory_conflicts", action="resolve")
    assert "memory_id" in text and error["number"] == -32608
    _, error = await call_failing_tool(
        client, "memory_conflicts", action="resolve", memory_id="ffffffff", other_id="eeeeeeee"
    )
    assert error["number"] == -32604


async def test_session_begins_with_one_call(serving: Serving) -> None:
    client = await serving(tools="all")
    await contradicted(client)
    begun = await call_tool(client, "subcog_init", recall_query="port", recall_limit=1)
    assert begun["total"] == 2 and len(begun["memories"]) == 1 and "memory_recall" in begun["guide"]
    assert (await call_tool(client, "subcog_init", include_recall=False))["memories"] == []
    assert "## namespaces" in (await call_tool(client, "prompt_understanding"))["text"]
