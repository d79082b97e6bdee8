"""The item store without a server, on both engines."""

from __future__ import annotations

import pytest

from portico_services.workitems import item_store as items_module, listing
from portico_services.workitems.edits import WorkItemChanges, WorkItemDraft
from portico_services.workitems.errors import (
    DependencyCycle,
    InvalidWorkItem,
    WorkItemConflict,
    WorkItemNotFound,
)
from portico_services.workitems.item_store import WorkItemStore
from portico_services.workitems.listing import ListQuery
from portico_services.workitems.states import STATUSES, TRANSITIONS
from support.work_items import HOSTILE, Clock, check_counts, create_item, move_item, read_all_rows, set_status

# How to bring a fresh task into each state.
WAYS = {"pending": [], "in_progress": ["in_progress"], "completed": ["completed"], "failed": ["failed"]}


# States


@pytest.mark.parametrize("before", STATUSES)
@pytest.mark.parametrize("after", STATUSES)
async def test_transition_is_legal_or_changes_nothing(items: WorkItemStore, before: str, after: str) -> None:
    id = await create_item(items)
    for status in WAYS[before]:
        await set_status(items, id, status)
    was = await read_all_rows(items)
    if after == before:
        assert (await set_status(items, id, after)).version == was[0][0].version
        assert await read_all_rows(items) == was
    elif after in TRANSITIONS[before]:
        assert (await set_status(items, id, after)).status == after
        await check_counts(items)
    else:
        with pytest.raises(WorkItemConflict) as refusal:
            await set_status(items, id, after)
        for legal in TRANSITIONS[before]:
            assert legal in str(refusal.value)
        assert await read_all_rows(items) == was


async def test_timestamps_follow_status_transitions(items: WorkItemStore, clock: Clock) -> None:
    id = await create_item(items)
    begun = await set_status(items, id, "in_progress", worker="ann")
    assert (begun.started_at, begun.completed_at, begun.worker) == (clock.now, None, "ann")
    done = await items.complete(id, "fine")
    assert (done.started_at, done.completed_at, done.worker) == (begun.started_at, clock.now, "ann")
    again = await set_status(items, id, "pending")
    assert (again.started_at, again.completed_at, again.worker, again.result) == (None, None, None, "")
    failed = await items.update(id, WorkItemChanges(status="failed", result="no"))
    assert (failed.started_at, failed.completed_at, failed.result) == (None, clock.now, "no")
    past = await items.history(id)
    assert [event.change for event in past.events] == ["failed", "reopened", "completed", "started"]
    assert past.events[1].fields["result"] == ["fine", ""]


async def test_completing_again_is_idempotent_unless_the_result_differs(items: WorkItemStore) -> None:
    id = await create_item(items)
    first = await items.complete(id, "fine")
    assert await items.complete(id, "fine") == first
    assert await items.complete(id) == first
    with pytest.raises(WorkItemConflict, match="another result"):
        await items.complete(id, "not fine")
    assert await items.get(id) == first


async def test_version_mismatch_is_a_conflict(items: WorkItemStore) -> None:
    id = await create_item(items)
    first = await items.update(id, WorkItemChanges(priority=1), expected_version=1)
    assert first.version == 2
    was = await read_all_rows(items)
    for change in (
        items.update(id, WorkItemChanges(priority=2), expected_version=1),
        items.complete(id, expected_version=1),
        items.delete(id, expected_version=1),
    ):
        with pytest.raises(WorkItemConflict, match="version 2"):
            await change
    assert await read_all_rows(items) == was


async def test_history_records_the_actor_and_outlives_the_task(items: WorkItemStore) -> None:
    made = await items.create(WorkItemDraft(description="first"), who="ann")
    await items.update(made.id, WorkItemChanges(description="second", priority=1), who="ben", reason="clearer")
    await items.delete(made.id, who="cleo", reason="pointless")
    past = await items.history(made.id)
    assert past.item is None
    assert [(event.change, event.who, event.version) for event in past.events] == [
        ("deleted", "cleo", 3),
        ("updated", "ben", 2),
    ]
    assert past.events[1].fields == {"description": ["first", "second"], "priority": [3, 1]}
    assert past.events[1].reason == "clearer"
    assert past.events[0].fields["description"] == ["second", None]
    with pytest.raises(WorkItemNotFound):
        await items.history("task_00000000000000000")


# Parents


async def test_parent_is_not_over_before_its_children(items: WorkItemStore) -> None:
    parent = await create_item(items)
    child = await create_item(items, parent_id=parent)
    for status in ("completed", "failed"):
        with pytest.raises(WorkItemConflict, match=child):
            await set_status(items, parent, status)
    await set_status(items, child, "failed")
    assert (await items.complete(parent)).status == "completed"
    await check_counts(items)


async def test_open_tasks_cannot_be_placed_below_a_closed_one(items: WorkItemStore) -> None:
    parent = await create_item(items)
    child = await create_item(items, parent_id=parent)
    other = await create_item(items)
    await items.complete(child)
    await items.complete(parent)
    for attempt in (
        items.create(WorkItemDraft(description="late", parent_id=parent)),
        set_status(items, child, "pending"),
        move_item(items, other, parent),
    ):
        with pytest.raises(WorkItemConflict, match=parent):
            await attempt
    await set_status(items, parent, "pending")
    assert (await set_status(items, child, "pending")).is_open
    await check_counts(items)


async def test_task_moves_to_another_parent_and_away(items: WorkItemStore) -> None:
    first, second = await create_item(items), await create_item(items)
    child = await create_item(items, parent_id=first)
    assert (await move_item(items, child, second)).parent_id == second
    await check_counts(items)
    assert (await move_item(items, child, "")).parent_id is None
    await check_counts(items)
    assert [event.change for event in (await items.history(child)).events] == ["moved", "moved"]
    with pytest.raises(WorkItemNotFound):
        await move_item(items, child, "task_nowhere")


async def test_task_is_never_below_itself(items: WorkItemStore) -> None:
    top = await create_item(items)
    middle = await create_item(items, parent_id=top)
    leaf = await create_item(items, parent_id=middle)
    was = await read_all_rows(items)
    for id, parent in ((top, top), (top, middle), (top, leaf), (middle, leaf)):
        with pytest.raises(DependencyCycle):
            await move_item(items, id, parent)
    assert await read_all_rows(items) == was


async def test_tree_is_only_so_deep(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.workitems.dependencies.MAX_DEPTH", 4)
    ids = [await create_item(items)]
    for _ in range(3):
        ids.append(await create_item(items, parent_id=ids[-1]))
    with pytest.raises(InvalidWorkItem, match="5 levels"):
        await create_item(items, parent_id=ids[-1])
    other = await create_item(items)
    below = await create_item(items, parent_id=other)
    with pytest.raises(InvalidWorkItem, match="levels"):
        await move_item(items, other, ids[2])
    assert (await move_item(items, below, ids[2])).parent_id == ids[2]


# Deleting


async def test_deleting_a_task_with_children_requires_the_children_option(
    items: WorkItemStore,
) -> None:
    top = await create_item(items)
    middle = await create_item(items, parent_id=top)
    leaves = [await create_item(items, parent_id=middle) for _ in range(3)]
    was = await read_all_rows(items)
    with pytest.raises(WorkItemConflict, match="children=keep"):
        await items.delete(middle)
    dry = await items.delete(middle, children="delete", dry_run=True)
    assert dry.dry_run and set(dry.deleted) == {middle, *leaves}
    assert await read_all_rows(items) == was
    kept = await items.delete(middle, children="keep")
    assert (kept.deleted, kept.kept) == ([middle], leaves)
    assert {(await items.get(leave)).parent_id for leave in leaves} == {top}
    await check_counts(items)
    gone = await items.delete(top, children="delete")
    assert set(gone.deleted) == {top, *leaves}
    assert (await read_all_rows(items))[0] == []


async def test_deleting_a_blocker_unblocks_its_dependents(items: WorkItemStore) -> None:
    blocker, done = await create_item(items), await create_item(items)
    await items.complete(done)
    waiting = await create_item(items, blocked_by=[blocker, done])
    child = await create_item(items, parent_id=waiting)
    gone = await items.delete(blocker)
    assert gone.unblocked == [waiting]
    assert not (await items.get(waiting)).blocked and not (await items.get(child)).blocked
    await items.delete(done)
    await check_counts(items)


async def test_deletion_is_bounded(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.workitems.edits.MAX_DELETED_ITEMS", 3)
    top = await create_item(items)
    await items.create_batch([WorkItemDraft(description="x", parent_id=top) for _ in range(5)])
    with pytest.raises(InvalidWorkItem, match="more than 3"):
        await items.delete(top, children="delete")


# Lists


async def test_list_is_ordered_by_urgency_and_then_the_newest(items: WorkItemStore) -> None:
    ids = [await create_item(items, priority=priority) for priority in (3, 1, 3, 5, 1)]
    page = await items.list_page(ListQuery())
    assert [item.id for item in page.items] == [ids[4], ids[1], ids[2], ids[0], ids[3]]
    assert page.cursor is None


async def test_pages_are_stable_under_concurrent_changes(items: WorkItemStore) -> None:
    ids = {
        item.id
        for item in await items.create_batch([WorkItemDraft(description="x", priority=n % 5 + 1) for n in range(40)])
    }
    seen: list[str] = []
    cursor = None
    while True:
        page = await items.list_page(ListQuery(), limit=7, cursor=cursor)
        seen += [item.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
        await create_item(items, priority=1)
        await create_item(items, priority=5)
        await items.delete(seen[-1])
    assert len(seen) == len(set(seen))
    assert ids <= set(seen)


async def test_cursor_belongs_to_its_list(items: WorkItemStore) -> None:
    await items.create_batch([WorkItemDraft(description="x") for _ in range(3)])
    cursor = (await items.list_page(ListQuery(), limit=1)).cursor
    assert cursor is not None
    for wanted, given in (
        (ListQuery(status="pending"), cursor),
        (ListQuery(), cursor[:-2]),
        (ListQuery(), "x" * 10_000),
        (ListQuery(), "é"),
        (ListQuery(), ""),
    ):
        with pytest.raises(InvalidWorkItem, match="cursor"):
            await items.list_page(wanted, cursor=given)


async def test_filters_narrow_a_list(items: WorkItemStore) -> None:
    parent = await create_item(items, "Plan the ÄNDERUNG")
    child = await create_item(items, "first part", parent_id=parent, context="see src/parser.py")
    blocked = await create_item(items, "second part", parent_id=parent, blocked_by=[child])
    done = await create_item(items, "done part")
    await items.complete(done)

    async def ids(**wanted: object) -> set[str]:
        return {item.id for item in (await items.list_page(ListQuery(**wanted))).items}  # type: ignore[arg-type]

    assert await ids(parent_id=parent) == {child, blocked}
    assert await ids(parent_id="") == {parent, done}
    assert await ids(status="completed") == {done}
    assert await ids(blocked=True) == {blocked}
    assert await ids(blocked=False, status="pending") == {parent, child}
    assert await ids(query="änderung PLAN") == {parent}
    assert await ids(query="part parser") == {child}
    assert await ids(open=True) == {parent, child, blocked}
    with pytest.raises(WorkItemNotFound):
        await ids(parent_id="task_nowhere")
    with pytest.raises(InvalidWorkItem, match="Unknown status"):
        await ids(status="done'; --")


@pytest.mark.parametrize("text", HOSTILE)
async def test_query_is_data(items: WorkItemStore, text: str) -> None:
    id = await create_item(items, text, context=text)
    await create_item(items, "harmless")
    result = await items.list_page(ListQuery(query=text))
    assert [item.id for item in result.items] == [id]
    assert result.items[0].description == text
    for wild in ("%", "_", "har%ess", "h_rmless", "\\"):
        assert "harmless" not in {item.description for item in (await items.list_page(ListQuery(query=wild))).items}


async def test_tree_has_each_task_before_its_parts(items: WorkItemStore, monkeypatch: pytest.MonkeyPatch) -> None:
    top = await create_item(items, "top")
    late = await create_item(items, "late", parent_id=top, priority=5)
    early = await create_item(items, "early", parent_id=top, blocked_by=[late])
    leaf = await create_item(items, "leaf", parent_id=early)
    other = await create_item(items, "other")
    await items.complete(late)
    whole = await items.tree()
    assert [(node.item.id, node.depth) for node in whole.nodes] == [
        (top, 0),
        (early, 1),
        (leaf, 2),
        (late, 1),
        (other, 0),
    ]
    assert whole.nodes[1].blocked_by == [late]
    assert [node.item.id for node in (await items.tree(early)).nodes] == [early, leaf]
    assert late not in [node.item.id for node in (await items.tree(top, open_only=True)).nodes]
    cut = await items.read(lambda tx: listing.load_tree(tx, None, limit=3))
    assert cut.cut and len(cut.nodes) == 3


# What comes in


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_round_trips(items: WorkItemStore, text: str) -> None:
    id = await create_item(items, text, context=text)
    done = await items.complete(id, text, who=text)
    assert (done.description, done.context, done.result) == (text, text, text)
    assert (await items.history(id)).events[0].who == text


async def test_unstorable_characters_are_replaced(items: WorkItemStore) -> None:
    id = await create_item(items, "a\0b\ud800c")
    assert (await items.get(id)).description == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    "draft",
    [
        WorkItemDraft(description=""),
        WorkItemDraft(description="   \n"),
        WorkItemDraft(description="x" * 10_001),
        WorkItemDraft(description="x", context="x" * 100_001),
        WorkItemDraft(description="x", priority=0),
        WorkItemDraft(description="x", priority=6),
        WorkItemDraft(description="x", parent_id="task_nowhere"),
        WorkItemDraft(description="x", blocked_by=["task_nowhere"]),
        WorkItemDraft(description="x", blocked_by=["'; drop table work_item"]),
    ],
)
async def test_invalid_draft_is_rejected_and_changes_nothing(items: WorkItemStore, draft: WorkItemDraft) -> None:
    with pytest.raises((InvalidWorkItem, WorkItemNotFound)):
        await items.create(draft)
    assert await read_all_rows(items) == ([], [], 0)


async def test_id_may_be_cut_short(items: WorkItemStore) -> None:
    first, second = await create_item(items), await create_item(items)
    for part in (first, first[5:], first[-6:], f"tasks://{first}", first.upper()[5:]):
        assert await items.resolve_id(part) == first
    with pytest.raises(InvalidWorkItem, match="More than one"):
        await items.resolve_id(first[:8])
    for wrong in ("nothing", "%", "", "task_", "x" * 1000, "'"):
        with pytest.raises((WorkItemNotFound, InvalidWorkItem)):
            await items.resolve_id(wrong)
    await items.complete(second)
    assert await items.resolve_id(second[-6:]) == second


async def test_another_worker_cannot_complete_a_claimed_task(items: WorkItemStore) -> None:
    id = await create_item(items)
    await items.next("ann")
    for attempt in (items.complete(id, worker="ben"), items.update(id, WorkItemChanges(status="failed"), worker="ben")):
        with pytest.raises(WorkItemConflict, match="ann"):
            await attempt
    assert (await items.complete(id, worker="ann")).status == "completed"


def test_history_of_the_tables_is_not_that_of_the_protocols_tasks() -> None:
    assert items_module.MIGRATION_HISTORY != "tasks"
