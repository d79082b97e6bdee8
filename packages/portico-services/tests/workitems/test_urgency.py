"""A task inherits the urgency of the tasks that it blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from portico.store.database import Database
from portico.store.transaction import Transaction
from portico_services.workitems.edits import WorkItemChanges
from portico_services.workitems.item_store import MIGRATIONS, WorkItemStore
from support.engines import sqlite_engine  # noqa: F401
from support.work_items import check_counts, create_item, move_item, set_status


async def order(items: WorkItemStore) -> list[str]:
    return [item.id for item in await items.list_ready()]


async def test_blocker_of_an_urgent_item_comes_first(items: WorkItemStore) -> None:
    usual = await create_item(items, priority=2)
    deep = await create_item(items, priority=5)
    blocker = await create_item(items, priority=5, blocked_by=[deep])
    await create_item(items, priority=1, blocked_by=[blocker])
    assert await order(items) == [deep, usual]
    result = await items.next("ann")
    assert result is not None and (result.id, result.urgency, result.priority) == (deep, 1, 5)
    await items.complete(deep)
    assert await order(items) == [blocker, usual]
    await check_counts(items)


async def test_parts_of_an_urgent_task_come_first(items: WorkItemStore) -> None:
    usual = await create_item(items, priority=2)
    plan = await create_item(items, priority=1)
    part = await create_item(items, priority=4, parent_id=plan)
    assert await order(items) == [part, usual]
    await move_item(items, part, "")
    assert await order(items) == [plan, usual, part]
    await move_item(items, part, plan)
    await items.update(plan, WorkItemChanges(priority=5))
    assert await order(items) == [usual, part]
    await check_counts(items)


@pytest.mark.parametrize("end", ["completed", "failed", "unblocked", "deleted", "lowered"])
async def test_urgency_ends_with_its_reason(items: WorkItemStore, end: str) -> None:
    low = await create_item(items, priority=5)
    usual = await create_item(items, priority=3)
    urgent = await create_item(items, priority=1)
    await items.block(urgent, low)
    assert await order(items) == [low, usual]
    if end == "deleted":
        await items.delete(urgent)
    elif end == "lowered":
        await items.update(urgent, WorkItemChanges(priority=5))
    elif end == "failed":
        await set_status(items, urgent, "failed")
    else:
        await items.unblock(urgent, low)
    if end == "completed":
        await items.complete(urgent)
    assert [item for item in await order(items) if item != urgent] == [usual, low]
    await check_counts(items)
    if end == "failed":
        await set_status(items, urgent, "pending")
        assert await order(items) == [low, usual]
        await check_counts(items)


async def test_migration_keeps_items_and_computes_urgency(bare_url: str, tmp_path: Path) -> None:
    """A store of before: the first migration alone, and tasks in it."""
    first = MIGRATIONS / "0001_work_items.sql"
    rows = [("task_a", None, 5), ("task_b", None, 1), ("task_c", "task_b", 4), ("task_d", None, 2)]
    async with Database(bare_url) as database:
        older = _folder(tmp_path, first.read_text())
        await database.migrate("work_items", older)

        def fill(tx: Transaction) -> None:
            for id, parent, priority in rows:
                tx.execute(
                    "insert into work_item (id, parent_id, description, status, priority, created_at, updated_at, "
                    "words) values (:id, :parent, 'x', 'pending', :priority, 1, 1, 'x')",
                    {"id": id, "parent": parent, "priority": priority},
                )
            tx.execute("insert into work_item_blocker (item, blocker) values ('task_c', 'task_a')", {})

        await database.write(fill)
        items = WorkItemStore(database)
        await items.open()
        results = {item.id: item.urgency for item in [await items.get(id) for id, *_ in rows]}
        assert results == {"task_a": 1, "task_b": 1, "task_c": 1, "task_d": 2}


def _folder(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "older"
    folder.mkdir()
    (folder / "0001_work_items.sql").write_text(text)
    return folder
