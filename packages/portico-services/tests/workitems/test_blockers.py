"""Blockers and the prevention of dependency cycles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from portico.store.database import Database
from portico_services.workitems.edits import WorkItemDraft
from portico_services.workitems.errors import (
    DependencyCycle,
    InvalidWorkItem,
    WorkItemConflict,
    WorkItemNotFound,
)
from portico_services.workitems.item_store import WorkItemStore
from portico_services.workitems.listing import ListQuery
from support.work_items import check_counts, create_item, move_item, read_all_rows, set_status

TIMEOUT_SECONDS = 120.0


async def test_task_waits_until_its_blockers_are_completed(items: WorkItemStore) -> None:
    first, second = await create_item(items), await create_item(items)
    waiting = await create_item(items, blocked_by=[first, second, first])
    assert (await items.get(waiting)).blocked
    for status in ("in_progress", "completed"):
        with pytest.raises(WorkItemConflict, match=first):
            await set_status(items, waiting, status)
    await items.complete(first)
    assert (await items.get(waiting)).blocked
    await items.complete(second)
    assert not (await items.get(waiting)).blocked
    assert (await items.complete(waiting)).status == "completed"
    await check_counts(items)


async def test_failed_blocker_blocks_until_removed(items: WorkItemStore) -> None:
    blocker = await create_item(items)
    waiting = await create_item(items, blocked_by=[blocker])
    await set_status(items, blocker, "failed")
    assert (await items.get(waiting)).blocked
    assert (await items.unblock(waiting, blocker))[1]
    assert not (await items.get(waiting)).blocked
    await check_counts(items)


async def test_reopened_blocker_blocks_again(items: WorkItemStore) -> None:
    blocker = await create_item(items)
    waiting = await create_item(items, blocked_by=[blocker])
    await items.complete(blocker)
    await set_status(items, waiting, "in_progress")
    await set_status(items, blocker, "pending")
    after = await items.get(waiting)
    assert (after.blocked, after.status) == (True, "in_progress")
    with pytest.raises(WorkItemConflict):
        await items.complete(waiting)
    assert (await set_status(items, waiting, "failed")).status == "failed"
    await check_counts(items)


async def test_descendants_of_a_blocked_item_are_blocked(items: WorkItemStore) -> None:
    blocker, top = await create_item(items), await create_item(items)
    middle = await create_item(items, parent_id=top)
    leaf = await create_item(items, parent_id=middle)
    await items.block(top, blocker)
    late = await create_item(items, parent_id=middle)
    for item in (top, middle, leaf, late):
        assert (await items.get(item)).blocked
    with pytest.raises(WorkItemConflict, match=blocker):
        await set_status(items, leaf, "in_progress")
    response = await items.get_blockers(leaf)
    assert (response.blocked_by, [item.id for item in response.inherited]) == ([], [blocker])
    await move_item(items, late, "")
    assert not (await items.get(late)).blocked
    await items.complete(blocker)
    for item in (top, middle, leaf):
        assert not (await items.get(item)).blocked
    await check_counts(items)


async def test_to_block_twice_is_to_block_once(items: WorkItemStore) -> None:
    blocker, waiting = await create_item(items), await create_item(items)
    after, changed = await items.block(waiting, blocker)
    assert changed
    assert await items.block(waiting, blocker) == (after, False)
    response = await items.get_blockers(waiting)
    assert [item.id for item in response.blocked_by] == [blocker]
    assert [item.id for item in (await items.get_blockers(blocker)).blocks] == [waiting]
    after, changed = await items.unblock(waiting, blocker)
    assert changed
    assert await items.unblock(waiting, blocker) == (after, False)
    assert [item.change for item in (await items.history(waiting)).events] == ["blocker removed", "blocker added"]
    await check_counts(items)


async def test_unknown_ids_and_tasks_that_are_over_are_rejected(items: WorkItemStore) -> None:
    id, done = await create_item(items), await create_item(items)
    await items.complete(done)
    was = await read_all_rows(items)
    for one, other in ((id, "task_nowhere"), ("task_nowhere", id), ("", id), ("task_nowhere", "task_nowhere")):
        with pytest.raises(WorkItemNotFound):
            await items.block(one, other)
    with pytest.raises(WorkItemConflict, match="completed"):
        await items.block(done, id)
    assert await read_all_rows(items) == was
    # What is completed is a blocker that blocks nothing, until it is reopened.
    assert not (await items.block(id, done))[0].blocked
    await set_status(items, done, "pending")
    assert (await items.get(id)).blocked
    await check_counts(items)


async def test_blockers_of_a_task_are_bounded(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.workitems.dependencies.MAX_BLOCKERS", 3)
    blockers = [await create_item(items) for _ in range(4)]
    with pytest.raises(InvalidWorkItem, match="at most 3"):
        await create_item(items, blocked_by=blockers)
    assert len((await read_all_rows(items))[0]) == 4


# Circles. Each row: parents, blockers, and the line that must not be added, with small letters for tasks.
CIRCLES: list[tuple[str, str, str, str, tuple[str, str]]] = [
    ("itself", "", "", "block", ("a", "a")),
    ("two", "", "ab", "block", ("b", "a")),
    ("three", "", "ab bc", "block", ("c", "a")),
    ("many", "", "ab bc cd de ef", "block", ("f", "a")),
    ("a child by its parent", "ba", "", "block", ("b", "a")),
    ("a grandchild by the top", "ba cb", "", "block", ("c", "a")),
    ("a parent by its child", "ba", "", "block", ("a", "b")),
    ("a parent by its grandchild", "ba cb", "", "block", ("a", "c")),
    ("a child by what its parent is needed for", "ba", "ca", "block", ("b", "c")),
    ("what its parent waits for by a child", "ba", "ac", "block", ("c", "b")),
    ("through two plans", "ba dc", "bc", "block", ("d", "a")),
    ("two plans by each other's parts", "ba dc", "bd", "block", ("c", "a")),
    ("below itself", "", "", "move", ("a", "a")),
    ("below its child", "ba", "", "move", ("a", "b")),
    ("below what waits for it", "", "ab", "move", ("b", "a")),
    ("below what it waits for", "", "ab", "move", ("a", "b")),
    ("below what waits for its part", "ca", "bc", "move", ("a", "b")),
    ("below what waits for what waits for it", "", "ab bc", "move", ("c", "a")),
    ("below the parent of what it waits for, which waits for it", "ba", "ac", "move", ("c", "b")),
]


@pytest.mark.parametrize(
    ("parents", "blockers", "how", "line"), [row[1:] for row in CIRCLES], ids=[r[0] for r in CIRCLES]
)
async def test_circle_is_rejected_and_changes_nothing(
    items: WorkItemStore, parents: str, blockers: str, how: str, line: tuple[str, str]
) -> None:
    tasks = {letter: await create_item(items, letter) for letter in "abcdef"}
    for child, parent in parents.split():
        await move_item(items, tasks[child], tasks[parent])
    for one, blocker in blockers.split():
        await items.block(tasks[one], tasks[blocker])
    was = await read_all_rows(items)
    with pytest.raises(DependencyCycle) as refusal:
        if how == "block":
            await items.block(tasks[line[0]], tasks[line[1]])
        else:
            await move_item(items, tasks[line[0]], tasks[line[1]])
    path = refusal.value.details["path"]
    assert path[0] == path[-1] and set(path) <= set(tasks.values())
    assert await read_all_rows(items) == was


async def test_new_task_cannot_close_a_circle(items: WorkItemStore) -> None:
    top = await create_item(items)
    after = await create_item(items, blocked_by=[top])
    was = await read_all_rows(items)
    for blocker in (top, after):
        with pytest.raises(DependencyCycle):
            await items.create(WorkItemDraft(description="x", parent_id=top, blocked_by=[blocker]))
    assert await read_all_rows(items) == was


@pytest.mark.parametrize(
    ("parents", "blockers", "how", "line"),
    [
        ("ba ca", "", "block", ("b", "c")),
        ("ba dc", "", "block", ("b", "d")),
        ("ba dc", "ac", "block", ("b", "d")),
        ("", "ab bc", "block", ("a", "c")),
        ("ba", "ac", "move", ("d", "b")),
        ("ba", "ca", "move", ("d", "c")),
        ("", "ab", "move", ("c", "b")),
        ("ba", "", "move", ("b", "c")),
    ],
)
async def test_acyclic_dependencies_are_allowed(
    items: WorkItemStore, parents: str, blockers: str, how: str, line: tuple[str, str]
) -> None:
    tasks = {letter: await create_item(items, letter) for letter in "abcd"}
    for child, parent in parents.split():
        await move_item(items, tasks[child], tasks[parent])
    for one, blocker in blockers.split():
        await items.block(tasks[one], tasks[blocker])
    if how == "block":
        await items.block(tasks[line[0]], tasks[line[1]])
    else:
        await move_item(items, tasks[line[0]], tasks[line[1]])
    await check_counts(items)
    await finish(items)


async def test_circle_is_searched_within_bounds(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.workitems.cycles.MAX_VISITED_NODES", 10)
    chain = [await create_item(items)]
    for _ in range(8):
        chain.append(await create_item(items, blocked_by=[chain[-1]]))
    # Nobody waits for a new task, so it is seen at once that there is no way back, however long the chain.
    await create_item(items, blocked_by=[chain[-1]])
    with pytest.raises((InvalidWorkItem, DependencyCycle)):
        await items.block(chain[0], chain[-1])


async def finish(items: WorkItemStore) -> None:
    """Work until nothing is left; what failed is done again."""
    for all_row in (await read_all_rows(items))[0]:
        if all_row.status == "failed":
            await reopen(items, all_row.id)
    while (await items.list_page(ListQuery(open=True), limit=1)).items:
        result = await items.next("somebody")
        if result is None:
            held = (await items.list_page(ListQuery(status="in_progress", blocked=False))).items
            ready = [all_row for all_row in held if all_row.children_open == 0]
            assert ready, "they wait for one another"
            result = ready[0]
        await items.complete(result.id)
    await check_counts(items)


async def reopen(items: WorkItemStore, id: str) -> None:
    """With what it is a part of."""
    item = await items.get(id)
    if item.parent_id is not None:
        await reopen(items, item.parent_id)
    if not item.is_open:
        await set_status(items, id, "pending")


async def test_concurrent_changes_keep_the_counts_consistent(url: str, items: WorkItemStore) -> None:
    """Several on one store, as several processes are: nobody waits for ever, and what they did fits together."""
    tops = [await create_item(items) for _ in range(3)]

    async def work(number: int) -> int:
        chance, refusals = random.Random(number), 0
        async with Database(url, timeout=60) as database:
            mine = WorkItemStore(database)
            for _ in range(25):
                known_items = [item.id for item in (await mine.list_page(ListQuery(), limit=200)).items]
                try:
                    match chance.randrange(6):
                        case 0 | 1:
                            await create_item(
                                mine, parent_id=chance.choice(tops), blocked_by=[chance.choice(known_items)]
                            )
                        case 2:
                            await mine.block(chance.choice(known_items), chance.choice(known_items))
                        case 3:
                            await set_status(mine, chance.choice(known_items), chance.choice(["completed", "pending"]))
                        case 4:
                            await move_item(mine, chance.choice(known_items), chance.choice([*tops, ""]))
                        case 5:
                            result = await mine.next(f"worker {number}")
                            if result is not None:
                                await mine.complete(result.id)
                except (WorkItemConflict, InvalidWorkItem):
                    refusals += 1
        return refusals

    async with asyncio.timeout(TIMEOUT_SECONDS):
        refusals = await asyncio.gather(*(work(number) for number in range(8)))
    assert sum(refusals) < 8 * 25
    await check_counts(items)
    await finish(items)


@pytest.mark.parametrize("seed", range(4))
async def test_random_changes_keep_the_counts_consistent(items: WorkItemStore, seed: int) -> None:
    chance = random.Random(seed)
    ids = [await create_item(items) for _ in range(4)]

    def some() -> str:
        return chance.choice(ids)

    async def create() -> None:
        parent = some() if chance.random() < 0.6 else None
        ids.append(await create_item(items, parent_id=parent, blocked_by=[some() for _ in range(chance.randrange(3))]))

    async def delete() -> None:
        gone = await items.delete(some(), children=chance.choice(["refuse", "delete", "keep"]))
        for id in gone.deleted:
            ids.remove(id)
        ids.append(await create_item(items))

    actions: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
        (8, create),
        (8, lambda: items.block(some(), some())),
        (2, lambda: items.unblock(some(), some())),
        (6, lambda: move_item(items, some(), chance.choice([*ids, ""]))),
        (8, lambda: set_status(items, some(), chance.choice(["pending", "in_progress", "completed", "failed"]))),
        (4, lambda: items.next("ann")),
        (1, delete),
    ]
    happened = 0
    for _ in range(120):
        action = chance.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        was = await read_all_rows(items)
        try:
            await action()
            happened += 1
        except (WorkItemConflict, InvalidWorkItem):
            assert await read_all_rows(items) == was
        await check_counts(items)
    assert happened > 30
    await finish(items)
