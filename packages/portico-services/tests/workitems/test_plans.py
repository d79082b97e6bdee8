"""Plans created in one call, and claims by scope with waiting workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from portico import ToolError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services.workitems import cycles, results
from portico_services.workitems.edits import WorkItemDraft
from portico_services.workitems.errors import DependencyCycle, InvalidWorkItem, WorkItemNotFound
from portico_services.workitems.item_store import WorkItemStore
from portico_services.workitems.listing import ListQuery
from support.engines import sqlite_engine  # noqa: F401
from support.work_items import check_counts, create_item

Serving = Callable[..., Awaitable[Any]]
TIMEOUT_SECONDS = 60.0

PLAN: list[dict[str, Any]] = [
    {"ref": "roof", "description": "Put up the roof", "parent_id": "hut", "blocked_by": ["walls"], "priority": 1},
    {"ref": "hut", "description": "Build a hut"},
    {"ref": "walls", "description": "Put up the walls", "parent_id": "hut", "blocked_by": ["trees"]},
    {"ref": "trees", "description": "Cut some trees"},
]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_plan_is_made_in_one_call(serving: Serving, revision: str) -> None:
    client = await serving(revision=revision)
    made = (await client.call_tool("create_tasks", {"tasks": PLAN}, result_type=dict)).data
    by_ref = {task["ref"]: task for task in made["tasks"]}
    assert [task["ref"] for task in made["tasks"]] == ["roof", "hut", "walls", "trees"]
    assert by_ref["roof"]["parent_id"] == by_ref["walls"]["parent_id"] == by_ref["hut"]["id"]
    roof = (await client.call_tool("get_task", {"id": by_ref["roof"]["id"]}, result_type=dict)).data
    assert (roof["blocked_by"], roof["priority"]) == ([by_ref["walls"]["id"]], 1)
    assert [task["blocked"] for task in made["tasks"]] == [True, False, True, False]
    result = (await client.call_tool("next_task", {"worker": "ann"}, result_type=dict)).data
    assert result["task"]["id"] == by_ref["trees"]["id"]


async def test_batch_may_refer_to_existing_tasks(items: WorkItemStore) -> None:
    there = await create_item(items, "there")
    first, second = await items.create_batch(
        [
            WorkItemDraft(description="second", blocked_by=["a", there]),
            WorkItemDraft(description="first", ref="a", parent_id=there),
        ]
    )
    assert (first.description, second.parent_id) == ("second", there)
    assert sorted((await items.get_context(first.id)).blocked_by) == sorted([second.id, there])
    await check_counts(items)


async def test_thousand_tasks_are_one_plan_all_or_none(serving: Serving) -> None:
    client = await serving()
    plan = [{"ref": f"r{at}", "description": f"Task {at}"} for at in range(999)]
    with pytest.raises(ToolError, match="Task 'r999' does not exist"):
        await client.call_tool("create_tasks", {"tasks": [*plan, {"description": "Last", "blocked_by": ["r999"]}]})
    assert (await client.call_tool("list_tasks", {}, result_type=dict)).data["count"] == 0
    done = await client.call_tool("create_tasks", {"tasks": [*plan, {"description": "Last"}]}, result_type=dict)
    assert done.data["count"] == 1000


async def test_cycle_check_visits_each_task_once(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Mock(wraps=cycles.find_path)
    monkeypatch.setattr(cycles, "find_path", path)
    first = [draft(f"Task {at}", ref=f"r{at}") for at in range(50)]
    await items.create_batch([*first, draft("Last", blocked_by=[f"r{at}" for at in range(50)])])
    path.assert_called_once()
    await check_counts(items)


def draft(description: str, **more: Any) -> WorkItemDraft:
    return WorkItemDraft(description=description, **more)


@pytest.mark.parametrize(
    "drafts, refusal",
    [
        ([draft("a", ref="x"), draft("b", ref="x")], InvalidWorkItem),
        ([draft("a", ref="x", parent_id="y"), draft("b", ref="y", parent_id="x")], InvalidWorkItem),
        ([draft("a", ref="x", parent_id="x")], InvalidWorkItem),
        ([draft("a", ref="x", blocked_by=["y"]), draft("b", ref="y", blocked_by=["x"])], DependencyCycle),
        ([draft("a"), draft("b", blocked_by=["nowhere"])], WorkItemNotFound),
        ([draft("a"), draft(" ")], InvalidWorkItem),
    ],
)
async def test_all_of_a_plan_or_nothing(
    items: WorkItemStore, drafts: list[WorkItemDraft], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        await items.create_batch(drafts)
    assert (await items.list_page(ListQuery())).items == []
    await check_counts(items)


async def test_work_is_given_out_by_scope(items: WorkItemStore) -> None:
    house, garden = await create_item(items, "House"), await create_item(items, "Garden")
    await create_item(items, "Urgent elsewhere", priority=1)
    room = await create_item(items, "Room", parent_id=house)
    paint = await create_item(items, "Paint the wall", parent_id=room)
    dig = await create_item(items, "Dig a hole for the wall", parent_id=garden)
    assert await items.next("ann", parent_id=house, query="dig") is None
    first = await items.next("ann", parent_id=house)
    second = await items.next("bob", query="WALL")
    assert first is not None and second is not None
    assert (first.id, second.id) == (paint, dig)
    assert await items.next("ann", parent_id=house) is None
    with pytest.raises(WorkItemNotFound):
        await items.next("ann", parent_id="task_00000000000000000")
    await check_counts(items)


@pytest.mark.parametrize("what", ["made", "unblocked", "given back"])
async def test_worker_waits_for_something_to_do(serving: Serving, what: str) -> None:
    client, other = await serving(), await serving()
    first = (await client.call_tool("create_task", {"description": "first"}, result_type=dict)).data["id"]
    await client.call_tool("next_task", {"worker": "zoe"})
    if what == "unblocked":
        await client.call_tool("create_task", {"description": "second", "blocked_by": [first]})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        waiting = asyncio.create_task(client.call_tool("next_task", {"worker": "ann", "wait": 50}, result_type=dict))
        await asyncio.sleep(0)
        if what == "made":
            await other.call_tool("create_task", {"description": "second"})
        elif what == "unblocked":
            await other.call_tool("complete_task", {"id": first})
        else:
            await other.call_tool("update_task", {"id": first, "status": "pending"})
        result = (await waiting).data
    assert result["task"]["description"] == ("first" if what == "given back" else "second")
    assert result["task"]["worker"] == "ann"


async def test_each_of_many_that_wait_gets_one(serving: Serving) -> None:
    client, other = await serving(), await serving()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        waiting = [
            asyncio.create_task(client.call_tool("next_task", {"worker": f"w{n}", "wait": 50}, result_type=dict))
            for n in range(5)
        ]
        await asyncio.sleep(0)
        await other.call_tool("create_tasks", {"tasks": [{"description": f"task {n}"} for n in range(5)]})
        results = [item.data["task"]["id"] for item in await asyncio.gather(*waiting)]
    assert len(set(results)) == 5


async def test_wait_has_an_end(serving: Serving) -> None:
    client = await serving()
    result = (await client.call_tool("next_task", {"worker": "ann", "wait": 0.05}, result_type=dict)).data
    assert result["found"] is False
    with pytest.raises(ToolError, match="wait"):
        await client.call_tool("next_task", {"worker": "ann", "wait": 1e9})


async def test_circle_in_a_plan_is_reported_in_the_names_of_the_plan(items: WorkItemStore) -> None:
    there = await create_item(items)
    for plan, path in (
        ([WorkItemDraft(description="x", ref="a", blocked_by=["a"])], ["a", "a"]),
        (
            [
                WorkItemDraft(description="x", ref="a", parent_id=there),
                WorkItemDraft(description="x", blocked_by=["a", there], parent_id="a"),
            ],
            ["tasks[1]", "a", "tasks[1]"],
        ),
        ([WorkItemDraft(description="x", parent_id=there, blocked_by=[there])], ["tasks[0]", there, "tasks[0]"]),
    ):
        with pytest.raises(DependencyCycle) as refused:
            await items.create_batch(plan)
        assert refused.value.path == path
    assert await items.count(ListQuery()) == 1


async def test_filtered_worker_is_informed_about_other_tasks(serving: Serving) -> None:
    client = await serving()
    await client.call_tool("create_task", {"description": "Cut some trees"})
    answer = (await client.call_tool("next_task", {"worker": "ann", "query": "roof"}, result_type=dict)).data
    assert answer == {
        "found": False,
        "note": "No matching task can be started now. In the whole list 1 can be started.",
    }


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_item_taken_by_a_cancelled_call_is_pending_again(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    client = await serving(revision=revision)
    made = (await client.call_tool("create_task", {"description": "Cut some trees"}, result_type=dict)).data["id"]
    notification, item, cancelled = results.load_detail, asyncio.Event(), asyncio.Event()

    async def slowly(*asked: Any) -> Any:
        item.set()
        await cancelled.wait()
        return await notification(*asked)

    monkeypatch.setattr(results, "load_detail", slowly)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        call = asyncio.create_task(client.call_tool("next_task", {"worker": "ann"}))
        await item.wait()
        call.cancel()
        await asyncio.wait([call])
        monkeypatch.undo()
        cancelled.set()
        while (task := (await client.call_tool("get_task", {"id": made}, result_type=dict)).data)[
            "status"
        ] != "pending":
            pass
    assert "worker" not in task


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"description": "Third", "blocked_by": ["frist"]}, "'frist' does not exist, and none of these has that ref"),
        ({"description": "Third", "parent_id": "frist"}, "'frist' does not exist, and none of these has that ref"),
        ({"description": "Third", "due": "2027-02-30"}, r"tasks\[2\]: Invalid date '2027-02-30'"),
        ({"description": "  ", "ref": "third"}, "third: The description must not be empty"),
    ],
)
async def test_rejected_batch_names_the_invalid_task(serving: Serving, wrong: Any, words: str) -> None:
    client = await serving()
    plan = [{"description": "First", "ref": "first"}, {"description": "Second", "parent_id": "first"}, wrong]
    with pytest.raises(ToolError, match=words):
        await client.call_tool("create_tasks", {"tasks": plan})
