"""Which task waits for which.

- A task waits for its blockers until they are completed. One that failed still blocks: what it was needed for is not
  there. So does everything below it, because a part of a plan is not begun before the plan may be.
- A task waits for its children until they are over, completed or failed. What a failed child means for it is
  for its worker to say.

How many it waits for is counted in its row, so that the next task is found by an index. These functions keep the counts
right when something else changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from portico.extend import Transaction
from portico_services.workitems import records
from portico_services.workitems.errors import InvalidTask, TaskClosed, Waits
from portico_services.workitems.records import Item
from portico_services.workitems.states import NEEDS_BLOCKERS, NEEDS_CHILDREN

MOST_BLOCKERS = 100
DEEPEST = 32
SHOWN = 20


# What a task waits for


def blockers_of(tx: Transaction, ids: Sequence[str]) -> dict[str, list[str]]:
    """By task, the blockers of its own, whether or not they are completed."""
    found: dict[str, list[str]] = {id: [] for id in ids}
    sql = "select item, blocker from work_item_blocker where item in :ids order by item, blocker"
    for item, blocker in tx.all(tuple[str, str], sql, {"ids": list(ids)}):
        found[item].append(blocker)
    return found


def blocks(tx: Transaction, id: str, most: int) -> list[str]:
    """Those that have it as a blocker."""
    return tx.all(
        str,
        "select item from work_item_blocker where blocker = :id order by item limit cast(:most as bigint)",
        {"id": id, "most": most},
    )


def open_blockers(tx: Transaction, item: Item) -> dict[str, str]:
    """Return what a task waits for, each with the task that it blocks: this one first, then those that it is a part
    of."""
    found: dict[str, str] = {}
    for id in (item.id, *ancestors(tx, item.parent_id)):
        for blocker in tx.all(
            str,
            "select blocker from work_item_blocker join work_item on work_item.id = blocker "
            "where item = :id and status <> 'completed' order by blocker",
            {"id": id},
        ):
            found.setdefault(blocker, id)
    return found


def ancestors(tx: Transaction, parent: str | None) -> list[str]:
    """From a parent upwards."""
    found: list[str] = []
    # A circle is never written; if it were, this would still end.
    while parent is not None and len(found) <= 2 * DEEPEST:
        found.append(parent)
        parent = tx.maybe(str, "select parent_id from work_item where id = :id", {"id": parent})
    return found


def _levels(tx: Transaction, id: str) -> Iterator[list[str]]:
    """What is below a task, level by level."""
    level = [id]
    while level := tx.all(str, "select id from work_item where parent_id in :ids order by id", {"ids": level}):
        yield level


def below(tx: Transaction, id: str, most: int) -> list[str]:
    """Everything below a task, level by level; a few more than `most` where there are more."""
    ids: list[str] = []
    for level in _levels(tx, id):
        ids += level
        if len(ids) > most:
            break
    return ids


def height(tx: Transaction, id: str) -> int:
    """How many levels there are below a task; one more than DEEPEST where there are more."""
    return sum(1 for _ in islice(_levels(tx, id), DEEPEST + 1))


def allow(tx: Transaction, item: Item, wanted: str) -> None:
    """Whether it may become this while others are as they are."""
    waits = item.blocked and wanted in NEEDS_BLOCKERS
    has_open = item.children_open > 0 and wanted in NEEDS_CHILDREN
    if waits or has_open:
        children = _open_children(tx, item.id) if has_open else []
        blockers = dict(islice(open_blockers(tx, item).items(), SHOWN)) if waits else {}
        raise Waits(item.id, wanted, blockers, children)


def _open_children(tx: Transaction, id: str) -> list[str]:
    return tx.all(
        str,
        "select id from work_item where parent_id = :id and status in ('pending', 'in_progress') "
        "order by priority, id desc limit cast(:most as bigint)",
        {"id": id, "most": SHOWN},
    )


# Keeping the counts


def follow(tx: Transaction, before: Item, after: Item) -> None:
    """What it means for others that a task is in another state now, or has another parent."""
    if before.parent_id != after.parent_id:
        _count_child(tx, before.parent_id, -1 if before.is_open else 0)
        _count_child(tx, after.parent_id, 1 if after.is_open else 0)
        reflow(tx, [after.id])
    elif before.is_open != after.is_open:
        _count_child(tx, after.parent_id, 1 if after.is_open else -1)
    completed = (before.status == "completed") - (after.status == "completed")
    if completed:
        waiting = tx.all(str, "select item from work_item_blocker where blocker = :id", {"id": after.id})
        count_blockers(tx, waiting, completed)


def adopt(tx: Transaction, item: Item) -> None:
    """A new task below another."""
    _count_child(tx, item.parent_id, 1)
    reflow(tx, [item.id])


def leave(tx: Transaction, item: Item) -> None:
    """A task that is about to be gone."""
    _count_child(tx, item.parent_id, -1 if item.is_open else 0)


def _count_child(tx: Transaction, parent: str | None, by: int) -> None:
    if parent is None or by == 0:
        return
    was = records.get(tx, parent, lock=True)
    tx.run("update work_item set children_open = children_open + :by where id = :id", {"by": by, "id": parent})
    records.tell(tx, [was, records.get(tx, parent)])


def count_blockers(tx: Transaction, items: Sequence[str], by: int) -> list[str]:
    """So many more, or fewer, blockers that are not completed; which tasks are therefore blocked, or free."""
    if not items:
        return []
    tx.run("update work_item set blockers_open = blockers_open + :by where id in :ids", {"by": by, "ids": list(items)})
    return reflow(tx, items)


def reflow(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Bring `blocked` up to date for these and for what is below them, level by level; which of them changed."""
    changed: dict[str, None] = {}
    while ids:
        flipped = tx.all(
            str,
            "update work_item set blocked = not blocked where id in :ids and blocked <> (blockers_open > 0 or "
            "coalesce((select above.blocked from work_item above where above.id = work_item.parent_id), false)) "
            "returning id",
            {"ids": list(ids)},
        )
        changed |= dict.fromkeys(flipped)
        ids = tx.all(str, "select id from work_item where parent_id in :ids", {"ids": flipped}) if flipped else []
    some = records.fetch(tx, list(changed)[: records.MOST_TOLD])
    # It came from the one list and is in the other.
    records.tell(tx, some.values(), ("blocked", "ready"))
    if len(changed) > len(some):
        tx.publish(records.TOPIC)
    return list(changed)


# Whatever waits for a task lends it its urgency. Tasks never wait in circles, so this comes to an end
_URGENCY = (
    "(select min(lent) from (select work_item.priority as lent "
    "union all select waiting.urgency from work_item_blocker join work_item waiting on waiting.id = item "
    "where blocker = work_item.id and waiting.status in ('pending', 'in_progress') "
    "union all select above.urgency from work_item above "
    "where above.id = work_item.parent_id and above.status in ('pending', 'in_progress')) lenders)"
)


def lend(tx: Transaction, ids: Iterable[str]) -> None:
    """Bring `urgency` up to date for these, and for what they wait for in turn."""
    wanted = list(ids)
    while wanted:
        changed = tx.all(
            str,
            f"update work_item set urgency = {_URGENCY} where id in :ids and urgency <> {_URGENCY} returning id",
            {"ids": wanted},
        )
        wanted = waited_for(tx, changed) if changed else []


def waited_for(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """What these wait for: blockers of their own, and children."""
    return tx.all(
        str,
        "select blocker from work_item_blocker where item in :ids "
        "union select id from work_item where parent_id in :ids",
        {"ids": list(ids)},
    )


# Changing


def block(tx: Transaction, item: Item, blockers: Sequence[Item]) -> bool:
    """Have a task wait for others; whether it did not for all of them before. The caller looks for circles."""
    if not item.is_open:
        raise TaskClosed(item.id, item.status, "it does not wait for anything any more")
    known = blockers_of(tx, [item.id])[item.id]
    new = [one for one in blockers if one.id not in known]
    if not new:
        return False
    if len(known) + len(new) > MOST_BLOCKERS:
        raise InvalidTask(
            f"The task {item.id} has {len(known)} blockers, and a task has at most {MOST_BLOCKERS}. Make one task that "
            "waits for several of them, and let it wait for that one."
        )
    tx.many("insert into work_item_blocker (item, blocker) values (?, ?)", [(item.id, one.id) for one in new])
    if waiting := sum(one.status != "completed" for one in new):
        count_blockers(tx, [item.id], waiting)
    return True


def unblock(tx: Transaction, item: Item, blocker: Item) -> bool:
    """Whether it was waiting for it at all."""
    gone = tx.run(
        "delete from work_item_blocker where item = :item and blocker = :blocker",
        {"item": item.id, "blocker": blocker.id},
    )
    if gone and blocker.status != "completed":
        count_blockers(tx, [item.id], -1)
    return bool(gone)


def fits_below(tx: Transaction, item: Item, parent: Item) -> None:
    """Whether a task may be a child of another: what is over has nothing open below it, and nothing is too deep."""
    if item.is_open and not parent.is_open:
        raise TaskClosed(parent.id, parent.status, "nothing open can be below it")
    depth = len(ancestors(tx, parent.id)) + 1 + height(tx, item.id)
    if depth > DEEPEST:
        raise InvalidTask(f"That would be {depth} levels of tasks; there can be {DEEPEST}.")
