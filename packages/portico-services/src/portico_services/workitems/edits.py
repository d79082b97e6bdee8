"""Making, changing and deleting, each within a Transaction.

Whatever is refused is refused by raising: then nothing of it has happened.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from portico.extend import Transaction
from portico_services.workitems import cycles, dependencies, records, validation
from portico_services.workitems.errors import (
    Circle,
    ClaimedByOther,
    HasChildren,
    InvalidTask,
    NotNow,
    TaskChanged,
    TaskClosed,
)
from portico_services.workitems.records import NEVER, Item
from portico_services.workitems.states import STATUSES, transition

PRIORITY = 3
MOST_DELETED = 10_000
MOST_NOTES = 1000


class TaskDraft(Struct, frozen=True, kw_only=True):
    """A task that is to be. 1 is the most urgent, 5 the least."""

    description: str
    parent_id: str | None = None
    priority: int = PRIORITY
    context: str = ""
    blocked_by: Sequence[str] = ()
    labels: Sequence[str] = ()
    # A date, perhaps with a time.
    due: str | None = None
    # What others that are made together with it call it in `parent_id` and `blocked_by`.
    ref: str | None = None


class Changes(Struct, frozen=True, kw_only=True):
    """What is to be another; None stays as it is. An empty parent or date is none, an empty text is empty."""

    description: str | None = None
    priority: int | None = None
    status: str | None = None
    context: str | None = None
    result: str | None = None
    parent_id: str | None = None
    project: str | None = None
    due: str | None = None
    labels: Sequence[str] | None = None
    add_labels: Sequence[str] = ()
    remove_labels: Sequence[str] = ()


class Edit(Struct, frozen=True, kw_only=True):
    """Who changes a task, when and why; and for whom and at which version only, if that is said."""

    now: int
    who: str = ""
    reason: str = ""
    worker: str | None = None
    version: int | None = None


class Deletion(Struct, frozen=True, kw_only=True):
    """What is gone, or would be."""

    deleted: Annotated[list[str], "The ids of the tasks that are gone"]
    kept: Annotated[list[str], "The ids of children that moved up"]
    unblocked: Annotated[list[str], "The ids of tasks that waited for what is gone, and wait for nothing any more"]
    dry_run: Annotated[bool, "Whether nothing was done"]


def _expected(tx: Transaction, id: str, edit: Edit) -> Item:
    """A task that is to be changed, locked: at the expected version, and not claimed by another worker."""
    item = records.get(tx, id, lock=True)
    if edit.version is not None and edit.version != item.version:
        raise TaskChanged(item.id, edit.version, item.version)
    # A worker that gives its name can change only tasks that are its own or unclaimed.
    if edit.worker is not None and item.status == "in_progress" and item.worker not in (None, edit.worker):
        raise ClaimedByOther(item.id, str(item.worker), edit.worker)
    return item


# Making


def drafted(draft: TaskDraft, id: str, now: int, who: str, project: str) -> Item:
    return Item(
        id=id,
        parent_id=validation.id_in(draft.parent_id or "") or None,
        description=validation.description(draft.description),
        priority=_priority(draft.priority),
        context=validation.longer(draft.context, "The context"),
        created_by=who,
        created_at=now,
        updated_at=now,
        urgency=_priority(draft.priority),
        project=project,
        due_at=validation.due(draft.due) if draft.due else NEVER,
        labels=validation.labels(draft.labels),
    )


def create(tx: Transaction, item: Item, blocked_by: Sequence[str]) -> Item:
    if item.parent_id is not None:
        parent = records.get(tx, item.parent_id, lock=True)
        dependencies.fits_below(tx, item, parent)
        item = replace(item, blocked=parent.blocked, project=parent.project)
    records.insert(tx, [item])
    if item.parent_id is None and not blocked_by:
        return item
    if item.parent_id is not None:
        dependencies.adopt(tx, item)
        dependencies.lend(tx, [item.id])
    waits_for = _wait_for(tx, item, blocked_by)
    dependencies.lend(tx, waits_for)
    return records.get(tx, item.id)


def _wait_for(tx: Transaction, item: Item, blocked_by: Sequence[str]) -> list[str]:
    """The blockers, to which the caller lends its urgency."""
    blockers = list(dict.fromkeys(map(validation.id_in, blocked_by)))
    if item.id in blockers:
        raise Circle([item.id, item.id])
    if blockers:
        dependencies.block(tx, item, records.locked(tx, blockers))
        cycles.refuse_blockers(tx, item.id, blockers)
    return blockers


def resolved(drafts: Sequence[tuple[TaskDraft, str]]) -> list[tuple[TaskDraft, str]]:
    """Drafts and their ids, each behind its parent, with ids where they name one another. Raises InvalidTask."""
    ids: dict[str, str] = {}
    for draft, id in drafts:
        if draft.ref is not None:
            if draft.ref in ids:
                raise InvalidTask(f"Two of these tasks have the ref {draft.ref!r}. Each ref stands for one.")
            ids[draft.ref] = id
    named = {
        id: replace(
            draft,
            parent_id=None if draft.parent_id is None else ids.get(draft.parent_id, draft.parent_id),
            blocked_by=[ids.get(one, one) for one in draft.blocked_by],
        )
        for draft, id in drafts
    }
    ordered: dict[str, TaskDraft] = {}
    while len(ordered) < len(named):
        ready = [id for id in named if id not in ordered and _is_ready(named[id], named, ordered)]
        if not ready:
            raise InvalidTask("Some of these tasks are parts of one another, in a circle. Look at their parent_id.")
        ordered |= {id: named[id] for id in ready}
    return [(draft, id) for id, draft in ordered.items()]


def _is_ready(draft: TaskDraft, named: Container[str], ordered: Container[str]) -> bool:
    return draft.parent_id not in named or draft.parent_id in ordered


def create_all(tx: Transaction, made: Sequence[tuple[Item, Sequence[str]]]) -> list[Item]:
    """First all of them, then what they wait for: that may be one that stands further down."""
    for item, _ in made:
        create(tx, item, ())
    lent: dict[str, None] = {}
    for item, blocked_by in made:
        lent |= dict.fromkeys(_wait_for(tx, item, blocked_by))
    dependencies.lend(tx, lent)
    return list(records.fetch(tx, [item.id for item, _ in made]).values())


# Changing


def checked(changes: Changes) -> Changes:
    """As it can be kept."""
    if changes.status is not None and changes.status not in STATUSES:
        raise InvalidTask(f"{changes.status[:40]!r} is no status. Use one of {', '.join(STATUSES)}.")
    return replace(
        changes,
        description=None if changes.description is None else validation.description(changes.description),
        priority=None if changes.priority is None else _priority(changes.priority),
        context=None if changes.context is None else validation.longer(changes.context, "The context"),
        result=None if changes.result is None else validation.longer(changes.result, "The result"),
        parent_id=None if changes.parent_id is None else validation.id_in(changes.parent_id),
        project=None if changes.project is None else validation.home(changes.project),
        labels=None if changes.labels is None else validation.labels(changes.labels),
        add_labels=validation.labels(changes.add_labels),
        remove_labels=validation.labels(changes.remove_labels),
    )


def update(tx: Transaction, id: str, changes: Changes, edit: Edit, lease: int | None) -> Item:
    before = _expected(tx, id, edit)
    worker, now = edit.worker, edit.now
    after = replace(before, **_moved(tx, before, changes.status, worker or edit.who or None, now))
    after = _placed(tx, replace(after, **_fresh(before, changes)), changes)
    if lease is not None:
        if after.status != "in_progress":
            raise InvalidTask(
                "A lease is for a task that is in progress. Begin it with next_task or status in_progress."
            )
        after = replace(after, lease_until=now + lease, worker=worker or after.worker)
    if after == before:
        return before
    return _written(tx, before, replace(after, updated_at=now), _change(before, after), edit)


def _fresh(before: Item, changes: Changes) -> dict[str, Any]:
    """The fields that are given, but for the status and the place."""
    names = ("description", "priority", "context", "result")
    fresh = {name: value for name, value in asdict(changes).items() if name in names and value is not None}
    if changes.due is not None:
        fresh["due_at"] = validation.due(changes.due) if changes.due else NEVER
    labels = {*(before.labels if changes.labels is None else changes.labels), *changes.add_labels}
    return {**fresh, "labels": validation.few_labels(labels - set(changes.remove_labels))}


def _placed(tx: Transaction, after: Item, changes: Changes) -> Item:
    """What is below a task is in its list: a task goes to the list of its parent, and no other way."""
    if changes.parent_id is not None:
        after = replace(after, parent_id=changes.parent_id or None)
    parent = None if after.parent_id is None else records.get(tx, after.parent_id, lock=changes.parent_id is not None)
    project = after.project if changes.project is None else changes.project
    if parent is not None:
        if changes.project not in (None, parent.project):
            raise InvalidTask(f"It is a part of {parent.id}, and goes with it. Move that, or take it out of it.")
        project = parent.project
    return replace(after, project=project)


def complete(tx: Transaction, id: str, result: str | None, edit: Edit) -> Item:
    before = _expected(tx, id, edit)
    if before.status == "completed":
        if result is None or result == before.result:
            return before
        raise NotNow(
            f"The task {id} is completed already, with another result. update_task changes the result.",
            brief=f"task is completed: {id} (with another result; update_task changes the result)",
            id=id,
            status="completed",
        )
    fields = _moved(tx, before, "completed", edit.worker, edit.now)
    after = replace(before, **fields, result=before.result if result is None else result, updated_at=edit.now)
    if edit.worker is not None:
        after = replace(after, worker=edit.worker)
    return _written(tx, before, after, "completed", edit)


def _moved(tx: Transaction, before: Item, status: str | None, worker: str | None, now: int) -> dict[str, Any]:
    """What a new status brings with it, if it is a new one."""
    if status is None or status == before.status:
        return {}
    fields = transition(before.id, before.status, status, now, worker)
    dependencies.allow(tx, before, status)
    if status == "pending" and not before.is_open and before.parent_id is not None:
        parent = records.get(tx, before.parent_id, lock=True)
        if not parent.is_open:
            raise TaskClosed(parent.id, parent.status, f"nothing open can be below it, and {before.id} is")
    return fields


def _written(tx: Transaction, before: Item, after: Item, change: str, edit: Edit) -> Item:
    """Write it, and what it means for others; then look whether all of that may be."""
    moved = before.parent_id != after.parent_id
    saved = records.save(tx, before, after, change, who=edit.who, reason=edit.reason)
    if moved and after.parent_id is not None:
        cycles.refuse_parent(tx, after.id, after.parent_id)
        dependencies.fits_below(tx, after, records.get(tx, after.parent_id, lock=True))
    dependencies.follow(tx, before, after)
    if before.project != after.project:
        records.move_below(tx, after.id, after.project)
    lent = moved or before.priority != after.priority or before.is_open != after.is_open
    if lent:
        # Whether it is open is nothing to its own urgency, but to that of what it waits for.
        dependencies.lend(tx, [after.id])
        dependencies.lend(tx, dependencies.waited_for(tx, [after.id]))
    return records.get(tx, saved.id) if lent else saved


def _change(before: Item, after: Item) -> str:
    """One word for the history."""
    if before.status == after.status:
        return "moved" if before.parent_id != after.parent_id else "updated"
    if after.status == "pending":
        return "reopened" if not before.is_open else "released"
    return {"in_progress": "started", "completed": "completed", "failed": "failed"}[after.status]


def add_note(tx: Transaction, id: str, text: str, edit: Edit) -> Item:
    item = _expected(tx, id, edit)
    if records.count_notes(tx, id) >= MOST_NOTES:
        raise InvalidTask(
            f"The task {id} has {MOST_NOTES:,} notes, and no room for more. Put what matters into its context."
        )
    return records.touch(tx, item, records.NOTED, {"note": [None, text]}, edit.now, who=edit.who)


# Blockers


def block(tx: Transaction, id: str, blocker: str, edit: Edit) -> tuple[Item, bool]:
    item, other = _expected(tx, id, edit), records.get(tx, blocker, lock=True)
    if item.id == other.id:
        raise Circle([id, id])
    if not dependencies.block(tx, item, [other]):
        return item, False
    cycles.refuse_blockers(tx, id, [blocker])
    dependencies.lend(tx, [blocker])
    records.touch(tx, item, "blocker added", {"blocked_by": [None, blocker]}, edit.now, who=edit.who)
    return records.get(tx, id), True


def unblock(tx: Transaction, id: str, blocker: str, edit: Edit) -> tuple[Item, bool]:
    item, other = _expected(tx, id, edit), records.get(tx, blocker, lock=True)
    if not dependencies.unblock(tx, item, other):
        return item, False
    dependencies.lend(tx, [blocker])
    records.touch(tx, item, "blocker removed", {"blocked_by": [blocker, None]}, edit.now, who=edit.who)
    return records.get(tx, id), True


# Deleting


def delete(tx: Transaction, id: str, children: Literal["refuse", "delete", "keep"], edit: Edit) -> Deletion:
    item = _expected(tx, id, edit)
    below = dependencies.below(tx, id, MOST_DELETED)
    if below and children == "refuse":
        raise HasChildren(id, below, len(below))
    kept = _moved_up(tx, item, edit) if children == "keep" else []
    gone = [id] if children == "keep" else [id, *below]
    if len(gone) > MOST_DELETED:
        raise InvalidTask(f"That would delete more than {MOST_DELETED:,} tasks at once. Delete parts of it first.")
    items = records.fetch(tx, gone)
    unblocked = _freed(tx, list(items.values()), edit)
    dependencies.leave(tx, item)
    waited_for = dependencies.waited_for(tx, gone)
    # What is below first, so that the history of a plan reads from its leaves to its root.
    records.remove(tx, [items[one] for one in reversed(gone)], edit.now, who=edit.who, reason=edit.reason)
    dependencies.lend(tx, [*waited_for, *kept])
    return Deletion(deleted=gone, kept=kept, unblocked=unblocked, dry_run=False)


def _moved_up(tx: Transaction, item: Item, edit: Edit) -> list[str]:
    """Whatever waited for them, or they for it, did so through their parent already: no circle can come of it."""
    children = records.which(tx, "parent_id = :id", {"id": item.id}, lock="for update")
    for one in children:
        after = replace(one, parent_id=item.parent_id, updated_at=edit.now)
        records.save(tx, one, after, "moved", who=edit.who, reason=f"{item.id} was deleted")
        dependencies.follow(tx, one, after)
    return [one.id for one in children]


def _freed(tx: Transaction, gone: list[Item], edit: Edit) -> list[str]:
    """Take these off as blockers of others; which of those wait for nothing any more."""
    leaving = {one.id for one in gone}
    sql = "select item, blocker from work_item_blocker where blocker in :ids order by item"
    pairs = tx.all(tuple[str, str], sql, {"ids": list(leaving)})
    open_ones = {one.id for one in gone if one.status != "completed"}
    before = records.fetch(tx, [item for item, _ in pairs if item not in leaving])
    for item, blocker in pairs:
        if item in leaving:
            continue
        current, fields = records.get(tx, item, lock=True), {"blocked_by": [blocker, None]}
        reason = f"{blocker} was deleted"
        records.touch(tx, current, "blocker removed", fields, edit.now, who=edit.who, reason=reason)
        if blocker in open_ones:
            dependencies.count_blockers(tx, [item], -1)
    tx.run("delete from work_item_blocker where blocker in :ids", {"ids": list(leaving)})
    after = records.fetch(tx, list(before))
    return [id for id, one in after.items() if before[id].blocked and not one.blocked and one.is_open]


def _priority(number: int) -> int:
    if not 1 <= number <= 5:
        raise InvalidTask(f"{number} is no priority: 1 is the most urgent, 5 the least.")
    return number
