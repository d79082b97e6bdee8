"""Dependencies between tasks.

- A task waits for its blockers until they are completed. A failed blocker still blocks, because its result is missing.
  So do blockers of an ancestor: a part of a plan cannot start before the plan.
- A task waits for its children until they are completed or failed. Its worker decides about a failed child.

The numbers of open blockers and children are stored with each task, so that the next task is found by an index. These
functions keep the counts up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from portico.extend import Transaction
from portico_services.workitems import records
from portico_services.workitems.errors import InvalidWorkItem, work_item_blocked, work_item_closed
from portico_services.workitems.records import WorkItem
from portico_services.workitems.states import REQUIRES_BLOCKERS_DONE, REQUIRES_CHILDREN_DONE

# Limits that keep cycle checks and the propagation of counts within one short transaction.
MAX_BLOCKERS = 100
MAX_DEPTH = 32
MAX_SHOWN_BLOCKERS = 20


# Reading dependencies.


def load_blockers(tx: Transaction, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the direct blockers of each task, whether or not they are completed."""
    result: dict[str, list[str]] = {id: [] for id in ids}
    sql = "select item, blocker from work_item_blocker where item in :ids order by item, blocker"
    for item, blocker in tx.fetch_all(tuple[str, str], sql, {"ids": list(ids)}):
        result[item].append(blocker)
    return result


def load_dependents(tx: Transaction, id: str, limit: int) -> list[str]:
    """Return the tasks that a task blocks directly."""
    return tx.fetch_all(
        str,
        "select item from work_item_blocker where blocker = :id order by item limit cast(:most as bigint)",
        {"id": id, "most": limit},
    )


def open_blockers(tx: Transaction, item: WorkItem) -> dict[str, str]:
    """Return the open blockers of a task, each with the task that it blocks: the task itself first, then its
    ancestors.
    """
    result: dict[str, str] = {}
    for id in (item.id, *ancestors(tx, item.parent_id)):
        for blocker in tx.fetch_all(
            str,
            "select blocker from work_item_blocker join work_item on work_item.id = blocker "
            "where item = :id and status <> 'completed' order by blocker",
            {"id": id},
        ):
            result.setdefault(blocker, id)
    return result


def ancestors(tx: Transaction, parent: str | None) -> list[str]:
    """Return the ancestors, from a parent upwards."""
    results: list[str] = []
    # Cycles are never stored; the limit guarantees termination anyway.
    while parent is not None and len(results) <= 2 * MAX_DEPTH:
        results.append(parent)
        parent = tx.fetch_optional(str, "select parent_id from work_item where id = :id", {"id": parent})
    return results


def _descendant_levels(tx: Transaction, id: str) -> Iterator[list[str]]:
    """Yield the descendants of a task, level by level."""
    level = [id]
    while level := tx.fetch_all(str, "select id from work_item where parent_id in :ids order by id", {"ids": level}):
        yield level


def load_descendants(tx: Transaction, id: str, limit: int) -> list[str]:
    """Return the descendants of a task, level by level; at least one more than `limit` if there are more."""
    ids: list[str] = []
    for level in _descendant_levels(tx, id):
        ids += level
        if len(ids) > limit:
            break
    return ids


def subtree_height(tx: Transaction, id: str) -> int:
    """Return the number of levels below a task, up to MAX_DEPTH + 1."""
    # Cut off one level beyond the limit: more precision is not needed to reject it.
    return sum(1 for _ in islice(_descendant_levels(tx, id), MAX_DEPTH + 1))


def check_transition_allowed(tx: Transaction, item: WorkItem, status: str) -> None:
    """Raise `WorkItemConflict` if open blockers or children prevent the new status."""
    waits = item.blocked and status in REQUIRES_BLOCKERS_DONE
    has_open = item.children_open > 0 and status in REQUIRES_CHILDREN_DONE
    if waits or has_open:
        # Names are loaded only for the error message; the decision needs the stored counts alone.
        children = _open_children(tx, item.id) if has_open else []
        blockers = dict(islice(open_blockers(tx, item).items(), MAX_SHOWN_BLOCKERS)) if waits else {}
        raise work_item_blocked(item.id, status, blockers, children)


def _open_children(tx: Transaction, id: str) -> list[str]:
    return tx.fetch_all(
        str,
        "select id from work_item where parent_id = :id and status in ('pending', 'in_progress') "
        "order by priority, id desc limit cast(:most as bigint)",
        {"id": id, "most": MAX_SHOWN_BLOCKERS},
    )


# Updating the counts.


def propagate_status_change(tx: Transaction, before: WorkItem, after: WorkItem) -> None:
    """Update the counts of other tasks after a change of status or parent."""
    if before.parent_id != after.parent_id:
        _adjust_open_children(tx, before.parent_id, -1 if before.is_open else 0)
        _adjust_open_children(tx, after.parent_id, 1 if after.is_open else 0)
        recompute_blocked(tx, [after.id])
    elif before.is_open != after.is_open:
        _adjust_open_children(tx, after.parent_id, 1 if after.is_open else -1)
    completed = (before.status == "completed") - (after.status == "completed")
    if completed:
        waiting = tx.fetch_all(str, "select item from work_item_blocker where blocker = :id", {"id": after.id})
        adjust_open_blockers(tx, waiting, completed)


def attach_child(tx: Transaction, item: WorkItem) -> None:
    """Update the counts for a new child task."""
    _adjust_open_children(tx, item.parent_id, 1)
    recompute_blocked(tx, [item.id])


def detach(tx: Transaction, item: WorkItem) -> None:
    """Update the counts for a task that is about to be deleted."""
    _adjust_open_children(tx, item.parent_id, -1 if item.is_open else 0)


def _adjust_open_children(tx: Transaction, parent: str | None, by: int) -> None:
    if parent is None or by == 0:
        return
    before = records.get(tx, parent, lock=True)
    tx.execute("update work_item set children_open = children_open + :by where id = :id", {"by": by, "id": parent})
    records.publish_changes(tx, [before, records.get(tx, parent)])


def adjust_open_blockers(tx: Transaction, items: Sequence[str], by: int) -> list[str]:
    """Add `by` to the number of open blockers of these tasks; return the tasks that became blocked or unblocked."""
    if not items:
        return []
    tx.execute(
        "update work_item set blockers_open = blockers_open + :by where id in :ids", {"by": by, "ids": list(items)}
    )
    return recompute_blocked(tx, items)


def recompute_blocked(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Update `blocked` for these tasks and their descendants, level by level; return the changed ones."""
    changed: dict[str, None] = {}
    while ids:
        flipped = tx.fetch_all(
            str,
            "update work_item set blocked = not blocked where id in :ids and blocked <> (blockers_open > 0 or "
            "coalesce((select above.blocked from work_item above where above.id = work_item.parent_id), false)) "
            "returning id",
            {"ids": list(ids)},
        )
        # Only descendants of a changed task can change, so the next level starts there.
        changed |= dict.fromkeys(flipped)
        ids = tx.fetch_all(str, "select id from work_item where parent_id in :ids", {"ids": flipped}) if flipped else []
    some = records.fetch(tx, list(changed)[: records.MAX_PUBLISHED_EVENTS])
    # A changed task moved from one of these lists to the other.
    records.publish_changes(tx, some.values(), ("blocked", "ready"))
    if len(changed) > len(some):
        tx.publish(records.TOPIC)
    return list(changed)


# A task inherits the urgency of every open task that waits for it. There are no cycles, so this terminates.
_EFFECTIVE_PRIORITY_SQL = (
    "(select min(lent) from (select work_item.priority as lent "
    "union all select waiting.urgency from work_item_blocker join work_item waiting on waiting.id = item "
    "where blocker = work_item.id and waiting.status in ('pending', 'in_progress') "
    "union all select above.urgency from work_item above "
    "where above.id = work_item.parent_id and above.status in ('pending', 'in_progress')) lenders)"
)


def propagate_urgency(tx: Transaction, ids: Iterable[str]) -> None:
    """Update `urgency` for these tasks, and for the tasks they wait for."""
    pending = list(ids)
    while pending:
        changed = tx.fetch_all(
            str,
            f"update work_item set urgency = {_EFFECTIVE_PRIORITY_SQL} where id in :ids and urgency <> "
            f"{_EFFECTIVE_PRIORITY_SQL} returning id",
            {"ids": pending},
        )
        pending = load_prerequisites(tx, changed) if changed else []


def load_prerequisites(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Return the tasks that these wait for: direct blockers and children."""
    return tx.fetch_all(
        str,
        "select blocker from work_item_blocker where item in :ids "
        "union select id from work_item where parent_id in :ids",
        {"ids": list(ids)},
    )


# Changing dependencies.


def add_blockers(tx: Transaction, item: WorkItem, blockers: Sequence[WorkItem]) -> bool:
    """Add blockers to a task; return whether any of them is new. The caller checks for cycles."""
    if not item.is_open:
        raise work_item_closed(item.id, item.status, "it no longer waits for anything")
    existing = load_blockers(tx, [item.id])[item.id]
    new = [blocker for blocker in blockers if blocker.id not in existing]
    if not new:
        return False
    if len(existing) + len(new) > MAX_BLOCKERS:
        raise InvalidWorkItem(
            f"The task {item.id} has {len(existing)} blockers, and a task has at most {MAX_BLOCKERS}. Make one task "
            "that "
            "waits for several of them, and let it wait for that one."
        )
    tx.execute_many(
        "insert into work_item_blocker (item, blocker) values (?, ?)", [(item.id, blocker.id) for blocker in new]
    )
    if waiting := sum(blocker.status != "completed" for blocker in new):
        adjust_open_blockers(tx, [item.id], waiting)
    return True


def remove_blocker(tx: Transaction, item: WorkItem, blocker: WorkItem) -> bool:
    """Remove a blocker from a task; return whether it was one."""
    deleted = tx.execute(
        "delete from work_item_blocker where item = :item and blocker = :blocker",
        {"item": item.id, "blocker": blocker.id},
    )
    if deleted and blocker.status != "completed":
        adjust_open_blockers(tx, [item.id], -1)
    return bool(deleted)


def check_parent_allowed(tx: Transaction, item: WorkItem, parent: WorkItem) -> None:
    """Raise an error if a task cannot be a child of another: a closed task cannot have open children, and the depth is
    limited.
    """
    if item.is_open and not parent.is_open:
        raise work_item_closed(parent.id, parent.status, "nothing open can be below it")
    depth = len(ancestors(tx, parent.id)) + 1 + subtree_height(tx, item.id)
    if depth > MAX_DEPTH:
        raise InvalidWorkItem(f"That would be {depth} levels of tasks; there can be {MAX_DEPTH}.")
