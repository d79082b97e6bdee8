"""Claims: selection of the next task, exclusive ownership, and leases."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from portico.store.transaction import Transaction
from portico_services.workitems import claims
from portico_services.workitems.edits import WorkItemChanges, WorkItemDraft
from portico_services.workitems.errors import InvalidWorkItem, WorkItemConflict
from portico_services.workitems.item_store import WorkItemStore
from portico_services.workitems.listing import ListQuery
from support.work_items import Clock, check_counts, create_item, set_status

TIMEOUT_SECONDS = 120.0
AGENTS = 20


async def taken(items: WorkItemStore, worker: str = "ann", **more: Any) -> str | None:
    result = await items.next(worker, **more)
    return None if result is None else result.id


async def test_most_urgent_comes_first_and_of_these_the_oldest(items: WorkItemStore) -> None:
    ids = [await create_item(items, priority=priority) for priority in (3, 1, 3, 5, 1)]
    assert [item.id for item in await items.list_ready()] == [ids[1], ids[4], ids[0], ids[2], ids[3]]
    assert [await taken(items) for _ in range(6)] == [ids[1], ids[4], ids[0], ids[2], ids[3], None]
    await check_counts(items)


async def test_blocked_items_and_waiting_parents_are_not_handed_out(items: WorkItemStore) -> None:
    parent = await create_item(items, priority=1)
    first = await create_item(items, parent_id=parent, priority=5)
    second = await create_item(items, parent_id=parent, priority=1, blocked_by=[first])
    assert await taken(items) == first
    assert await taken(items) is None
    await items.complete(first)
    assert await taken(items) == second
    # A child that failed is for whoever has the parent to look at.
    await set_status(items, second, "failed")
    assert await taken(items) == parent


async def test_claim_records_worker_and_time(items: WorkItemStore, clock: Clock) -> None:
    id = await create_item(items)
    claimed = await items.next("ann", lease=60, who="client")
    assert claimed is not None
    assert (claimed.status, claimed.worker, claimed.version) == ("in_progress", "ann", 2)
    assert (claimed.started_at, claimed.lease_until) == (clock.now, clock.now + 60_000)
    (event,) = (await items.history(id)).events
    assert (event.change, event.who, event.fields["worker"]) == ("claimed", "client", [None, "ann"])


async def test_claim_that_is_not_finished_in_time_goes_back(items: WorkItemStore, clock: Clock) -> None:
    id = await create_item(items)
    await taken(items, "ann", lease=60)
    assert await taken(items, "ben") is None
    clock.wait(61)
    assert await taken(items, "ben") == id
    with pytest.raises(WorkItemConflict, match="ben"):
        await items.complete(id, "too late", worker="ann")
    changes = [(event.change, event.who) for event in (await items.history(id)).events]
    assert changes == [("claimed", "ben"), ("lease ended", ""), ("claimed", "ann")]
    await check_counts(items)


async def test_late_worker_may_complete_an_item_that_was_not_reassigned(items: WorkItemStore, clock: Clock) -> None:
    id = await create_item(items)
    await taken(items, "ann", lease=60)
    clock.wait(61)
    assert [item.id for item in await items.take_back()] == [id]
    assert (await items.complete(id, "late", worker="ann")).worker == "ann"


async def test_claim_is_renewed_by_its_worker(items: WorkItemStore, clock: Clock) -> None:
    id = await create_item(items)
    await taken(items, "ann", lease=60)
    clock.wait(50)
    await items.update(id, WorkItemChanges(), worker="ann", lease=60)
    clock.wait(50)
    assert await taken(items, "ben") is None
    with pytest.raises(WorkItemConflict):
        await items.update(id, WorkItemChanges(), worker="ben", lease=60)
    clock.wait(11)
    assert await taken(items, "ben") == id


async def test_without_a_lease_a_claim_lasts(items: WorkItemStore, clock: Clock) -> None:
    id = await create_item(items)
    await taken(items)
    clock.wait(10_000_000)
    assert await taken(items, "ben") is None
    assert (await set_status(items, id, "pending")).worker is None
    assert await taken(items, "ben") == id


@pytest.mark.parametrize("lease", [0, -1, 0.5, 10**12, float("nan")])
async def test_lease_has_bounds(items: WorkItemStore, lease: float) -> None:
    with pytest.raises(InvalidWorkItem, match="lease"):
        await items.next("ann", lease=lease)
    with pytest.raises(InvalidWorkItem, match="name"):
        await items.next("  ")


async def test_lease_requires_an_item_in_progress(items: WorkItemStore) -> None:
    id = await create_item(items)
    with pytest.raises(InvalidWorkItem, match="in progress"):
        await items.update(id, WorkItemChanges(), worker="ann", lease=60)


async def test_concurrent_workers_in_one_process_never_get_the_same_task(items: WorkItemStore) -> None:
    await items.create_batch([WorkItemDraft(description="x") for _ in range(60)])
    result = await asyncio.gather(*(taken(items, f"w{n}") for n in range(80)))
    counts = Counter(result)
    assert counts.pop(None) == 20
    assert set(counts.values()) == {1}


async def test_twenty_processes_never_get_the_same_task(
    url: str, items: WorkItemStore, spawn: Callable[..., Any]
) -> None:
    made = await items.create_batch([WorkItemDraft(description=f"{n}", priority=n % 5 + 1) for n in range(200)])
    agents = await asyncio.gather(*(spawn("agent", url, f"agent{n}") for n in range(AGENTS)))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        for agent in agents:
            assert await agent.stdout.readline() == b"ready\n"
        for agent in agents:
            agent.stdin.write(b"go\n")
        output = await asyncio.gather(*(agent.stdout.read() for agent in agents))
        assert [await agent.wait() for agent in agents] == [0] * AGENTS
    finished = [line for item in output for line in item.decode().split()]
    assert sorted(finished) == sorted(item.id for item in made)
    assert sum(bool(item) for item in output) > 1
    done = (await items.list_page(ListQuery(status="completed"), limit=1000)).items
    assert all(item.version == 3 and item.result == f"by {item.worker}" for item in done)
    assert len(done) == 200


async def test_item_of_a_killed_process_is_reassigned_after_its_lease(
    url: str, items: WorkItemStore, spawn: Callable[..., Any]
) -> None:
    id = await create_item(items)
    child = await spawn("take", url, "crashing")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (await child.stdout.readline()).decode().strip() == id
        child.kill()
        await child.wait()
    end = await items.next_end()
    assert end is not None
    before, after = (WorkItemStore(items.database, clock=lambda now=now: now) for now in (end - 1, end))
    assert await taken(before) is None
    assert await taken(after) == id


# Which index finds it: plans do not flicker as timings do.

READY = "status = 'pending' and blocked = false and children_open = 0"
DUE = ListQuery(overdue=True).where()[0].replace(":due", "5")
PLANS = {
    "work_item_ready": f"project = 'app' and {READY} order by {claims.CLAIM_ORDER} limit 1",
    "work_item_blocked": f"project = 'app' and {ListQuery(blocked=True).where()[0]} order by priority, id desc "
    "limit 50",
    "work_item_all": "project = 'app' order by priority, id desc limit 50",
    "work_item_status": "project = 'app' and status = 'completed' order by priority, id desc limit 50",
    "work_item_due": f"project = 'app' and {DUE} order by due_at, id limit 50",
    "work_item_leased": "lease_until <= 5 order by lease_until limit 100",
    "work_item_ended": "completed_at >= 5 and status || '' = 'completed' order by completed_at desc limit 50",
}


async def planned(items: WorkItemStore, condition: str) -> str:
    sql = f"select id from work_item where {condition}"

    def plan(tx: Transaction) -> str:
        if tx.engine == "sqlite":
            return " ".join(row[3] for row in tx.fetch_all(tuple[int, int, int, str], f"explain query plan {sql}"))
        return " ".join(tx.fetch_all(str, f"explain {sql}"))

    return await items.read(plan)


async def test_next_task_is_found_by_its_index(items: WorkItemStore) -> None:
    """However much is finished, blocked or in progress, none of that is looked at."""
    items = items.for_project("app")
    await items.create_batch([WorkItemDraft(description="x") for _ in range(300)])
    for _ in range(250):
        assert await items.next("ann") is not None
    if items.database.engine == "postgresql":
        await items.database.write(lambda tx: tx.execute("analyze work_item"))
    result = await planned(items, PLANS["work_item_ready"])
    assert "work_item_ready" in result
    assert "sort" not in result.lower() and "temp b-tree" not in result.lower()


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("index", PLANS)
async def test_frequent_queries_use_an_index_order(items: WorkItemStore, index: str) -> None:
    """PostgreSQL decides by how much there is, SQLite by the text alone."""
    result = await planned(items, PLANS[index])
    assert index in result and "TEMP B-TREE" not in result
