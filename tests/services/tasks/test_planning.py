"""A whole plan in one call, and work that is handed out by scope, to workers that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
from workbench import check, make

from portico import ToolError
from portico.protocol.versions import REVISIONS
from portico_services.workitems import cycles, results
from portico_services.workitems.edits import TaskDraft
from portico_services.workitems.errors import Circle, InvalidTask, NoSuchTask
from portico_services.workitems.item_store import WorkItems
from portico_services.workitems.listing import Wanted

Serving = Callable[..., Awaitable[Any]]
PATIENCE = 60.0

PLAN: list[dict[str, Any]] = [
    {"ref": "roof", "description": "Put up the roof", "parent_id": "hut", "blocked_by": ["walls"], "priority": 1},
    {"ref": "hut", "description": "Build a hut"},
    {"ref": "walls", "description": "Put up the walls", "parent_id": "hut", "blocked_by": ["trees"]},
    {"ref": "trees", "description": "Cut some trees"},
]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_plan_is_made_in_one_call(serving: Serving, revision: str) -> None:
    client = await serving(revision=revision)
    made = (await client.call_tool("create_tasks", {"tasks": PLAN}, returns=dict)).data
    by_ref = {one["ref"]: one for one in made["tasks"]}
    assert [one["ref"] for one in made["tasks"]] == ["roof", "hut", "walls", "trees"]
    assert by_ref["roof"]["parent_id"] == by_ref["walls"]["parent_id"] == by_ref["hut"]["id"]
    roof = (await client.call_tool("get_task", {"id": by_ref["roof"]["id"]}, returns=dict)).data
    assert (roof["blocked_by"], roof["priority"]) == ([by_ref["walls"]["id"]], 1)
    assert [one["blocked"] for one in made["tasks"]] == [True, False, True, False]
    given = (await client.call_tool("next_task", {"worker": "ann"}, returns=dict)).data
    assert given["task"]["id"] == by_ref["trees"]["id"]


async def test_a_plan_may_go_on_from_what_is_there(items: WorkItems) -> None:
    there = await make(items, "there")
    first, second = await items.create_all(
        [
            TaskDraft(description="second", blocked_by=["a", there]),
            TaskDraft(description="first", ref="a", parent_id=there),
        ]
    )
    assert (first.description, second.parent_id) == ("second", there)
    assert sorted((await items.background(first.id)).blocked_by) == sorted([second.id, there])
    await check(items)


async def test_a_thousand_tasks_are_one_plan_all_or_none(serving: Serving) -> None:
    client = await serving()
    plan = [{"ref": f"r{at}", "description": f"Task {at}"} for at in range(999)]
    with pytest.raises(ToolError, match="There is no task 'r999'"):
        await client.call_tool("create_tasks", {"tasks": [*plan, {"description": "Last", "blocked_by": ["r999"]}]})
    assert (await client.call_tool("list_tasks", {}, returns=dict)).data["count"] == 0
    done = await client.call_tool("create_tasks", {"tasks": [*plan, {"description": "Last"}]}, returns=dict)
    assert done.data["count"] == 1000


async def test_circles_are_looked_for_once_a_task_however_much_it_waits_for(
    items: WorkItems, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Mock(wraps=cycles.path)
    monkeypatch.setattr(cycles, "path", path)
    first = [draft(f"Task {at}", ref=f"r{at}") for at in range(50)]
    await items.create_all([*first, draft("Last", blocked_by=[f"r{at}" for at in range(50)])])
    path.assert_called_once()
    await check(items)


def draft(description: str, **more: Any) -> TaskDraft:
    return TaskDraft(description=description, **more)


@pytest.mark.parametrize(
    "drafts, refusal",
    [
        ([draft("a", ref="x"), draft("b", ref="x")], InvalidTask),
        ([draft("a", ref="x", parent_id="y"), draft("b", ref="y", parent_id="x")], InvalidTask),
        ([draft("a", ref="x", parent_id="x")], InvalidTask),
        ([draft("a", ref="x", blocked_by=["y"]), draft("b", ref="y", blocked_by=["x"])], Circle),
        ([draft("a"), draft("b", blocked_by=["nowhere"])], NoSuchTask),
        ([draft("a"), draft(" ")], InvalidTask),
    ],
)
async def test_all_of_a_plan_or_nothing(items: WorkItems, drafts: list[TaskDraft], refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        await items.create_all(drafts)
    assert (await items.page(Wanted())).items == []
    await check(items)


async def test_work_is_given_out_by_scope(items: WorkItems) -> None:
    house, garden = await make(items, "House"), await make(items, "Garden")
    await make(items, "Urgent elsewhere", priority=1)
    room = await make(items, "Room", parent_id=house)
    paint = await make(items, "Paint the wall", parent_id=room)
    dig = await make(items, "Dig a hole for the wall", parent_id=garden)
    assert await items.next("ann", parent_id=house, query="dig") is None
    first = await items.next("ann", parent_id=house)
    second = await items.next("bob", query="WALL")
    assert first is not None and second is not None
    assert (first.id, second.id) == (paint, dig)
    assert await items.next("ann", parent_id=house) is None
    with pytest.raises(NoSuchTask):
        await items.next("ann", parent_id="task_00000000000000000")
    await check(items)


@pytest.mark.parametrize("what", ["made", "unblocked", "given back"])
async def test_a_worker_waits_for_something_to_do(serving: Serving, what: str) -> None:
    client, other = await serving(), await serving()
    first = (await client.call_tool("create_task", {"description": "first"}, returns=dict)).data["id"]
    await client.call_tool("next_task", {"worker": "zoe"})
    if what == "unblocked":
        await client.call_tool("create_task", {"description": "second", "blocked_by": [first]})
    async with asyncio.timeout(PATIENCE):
        waiting = asyncio.create_task(client.call_tool("next_task", {"worker": "ann", "wait": 50}, returns=dict))
        await asyncio.sleep(0)
        if what == "made":
            await other.call_tool("create_task", {"description": "second"})
        elif what == "unblocked":
            await other.call_tool("complete_task", {"id": first})
        else:
            await other.call_tool("update_task", {"id": first, "status": "pending"})
        found = (await waiting).data
    assert found["task"]["description"] == ("first" if what == "given back" else "second")
    assert found["task"]["worker"] == "ann"


async def test_each_of_many_that_wait_gets_one(serving: Serving) -> None:
    client, other = await serving(), await serving()
    async with asyncio.timeout(PATIENCE):
        waiting = [
            asyncio.create_task(client.call_tool("next_task", {"worker": f"w{n}", "wait": 50}, returns=dict))
            for n in range(5)
        ]
        await asyncio.sleep(0)
        await other.call_tool("create_tasks", {"tasks": [{"description": f"task {n}"} for n in range(5)]})
        found = [one.data["task"]["id"] for one in await asyncio.gather(*waiting)]
    assert len(set(found)) == 5


async def test_a_wait_has_an_end(serving: Serving) -> None:
    client = await serving()
    found = (await client.call_tool("next_task", {"worker": "ann", "wait": 0.05}, returns=dict)).data
    assert found["found"] is False
    with pytest.raises(ToolError, match="wait"):
        await client.call_tool("next_task", {"worker": "ann", "wait": 1e9})


async def test_a_circle_in_a_plan_is_told_in_the_names_of_the_plan(items: WorkItems) -> None:
    there = await make(items)
    for plan, path in (
        ([TaskDraft(description="x", ref="a", blocked_by=["a"])], ["a", "a"]),
        (
            [
                TaskDraft(description="x", ref="a", parent_id=there),
                TaskDraft(description="x", blocked_by=["a", there], parent_id="a"),
            ],
            ["tasks[1]", "a", "tasks[1]"],
        ),
        ([TaskDraft(description="x", parent_id=there, blocked_by=[there])], ["tasks[0]", there, "tasks[0]"]),
    ):
        with pytest.raises(Circle) as refused:
            await items.create_all(plan)
        assert refused.value.path == path
    assert await items.count(Wanted()) == 1


async def test_a_worker_that_asks_for_some_is_told_that_there_are_others(serving: Serving) -> None:
    client = await serving()
    await client.call_tool("create_task", {"description": "Cut some trees"})
    answer = (await client.call_tool("next_task", {"worker": "ann", "query": "roof"}, returns=dict)).data
    assert answer == {"found": False, "note": "Nothing of this can be begun now. Of the whole list 1 can be."}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_a_cancelled_call_has_taken_is_pending_again(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    client = await serving(revision=revision)
    made = (await client.call_tool("create_task", {"description": "Cut some trees"}, returns=dict)).data["id"]
    told, taken, cancelled = results.details, asyncio.Event(), asyncio.Event()

    async def slowly(*asked: Any) -> Any:
        taken.set()
        await cancelled.wait()
        return await told(*asked)

    monkeypatch.setattr(results, "details", slowly)
    async with asyncio.timeout(PATIENCE):
        call = asyncio.create_task(client.call_tool("next_task", {"worker": "ann"}))
        await taken.wait()
        call.cancel()
        await asyncio.wait([call])
        monkeypatch.undo()
        cancelled.set()
        while (task := (await client.call_tool("get_task", {"id": made}, returns=dict)).data)["status"] != "pending":
            pass
    assert "worker" not in task


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"description": "Third", "blocked_by": ["frist"]}, "'frist', and none of these has that ref"),
        ({"description": "Third", "parent_id": "frist"}, "'frist', and none of these has that ref"),
        ({"description": "Third", "due": "2027-02-30"}, r"tasks\[2\]: '2027-02-30' is no date"),
        ({"description": "  ", "ref": "third"}, "third: The description is empty"),
    ],
)
async def test_a_refused_plan_says_which_of_its_tasks_is_meant(serving: Serving, wrong: Any, words: str) -> None:
    client = await serving()
    plan = [{"description": "First", "ref": "first"}, {"description": "Second", "parent_id": "first"}, wrong]
    with pytest.raises(ToolError, match=words):
        await client.call_tool("create_tasks", {"tasks": plan})
