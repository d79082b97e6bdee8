"""Creating, changing and deleting tasks, each within a Transaction.

An error rolls back the whole change.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from portico.extend import Transaction
from portico_services.workitems import cycles, dependencies, records, validation
from portico_services.workitems.errors import (
    DependencyCycle,
    InvalidWorkItem,
    WorkItemConflict,
    claimed_by_other,
    has_children,
    version_conflict,
    work_item_closed,
)
from portico_services.workitems.records import NO_DUE_DATE, WorkItem
from portico_services.workitems.states import STATUSES, apply_transition

DEFAULT_PRIORITY = 3
# Limits the size of a single transaction, and of the history that a deletion writes.
MAX_DELETED_ITEMS = 10_000
MAX_NOTES = 1000


class WorkItemDraft(Struct, frozen=True, kw_only=True):
    """A task to create. Priority 1 is the most urgent, 5 the least."""

    description: str
    parent_id: str | None = None
    priority: int = DEFAULT_PRIORITY
    context: str = ""
    blocked_by: Sequence[str] = ()
    labels: Sequence[str] = ()
    # A date or date-time.
    due: str | None = None
    # Name by which other tasks of the same batch refer to it in `parent_id` and `blocked_by`.
    ref: str | None = None


class WorkItemChanges(Struct, frozen=True, kw_only=True):
    """Fields to change; None leaves a field unchanged. An empty parent or due date removes it; an empty text is stored
    as empty.
    """

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


class EditContext(Struct, frozen=True, kw_only=True):
    """Actor, time and reason of a change, and the expected worker and version, if given."""

    now: int
    who: str = ""
    reason: str = ""
    worker: str | None = None
    version: int | None = None


class DeletionResult(Struct, frozen=True, kw_only=True):
    """Result of a deletion, or of a dry run."""

    deleted: Annotated[list[str], "Ids of the deleted tasks"]
    kept: Annotated[list[str], "Ids of children that moved to the parent"]
    unblocked: Annotated[list[str], "Ids of tasks that are no longer blocked"]
    dry_run: Annotated[bool, "Whether this was a dry run"]


def _lock_for_edit(tx: Transaction, id: str, edit: EditContext) -> WorkItem:
    """Return the locked task to change. Raises an error if its version is not the expected one or another worker holds
    it.
    """
    # Locked before the checks, so that neither version nor worker can change between check and write.
    item = records.get(tx, id, lock=True)
    if edit.version is not None and edit.version != item.version:
        raise version_conflict(item.id, edit.version, item.version)
    # A worker that gives its name can only change tasks that it holds or that are unclaimed.
    if edit.worker is not None and item.status == "in_progress" and item.worker not in (None, edit.worker):
        raise claimed_by_other(item.id, str(item.worker), edit.worker)
    return item


# Creating.


def build_item(draft: WorkItemDraft, id: str, now: int, who: str, project: str) -> WorkItem:
    """Validate a draft and return the task to store."""
    return WorkItem(
        id=id,
        parent_id=validation.parse_id(draft.parent_id or "") or None,
        description=validation.validate_description(draft.description),
        priority=_validate_priority(draft.priority),
        context=validation.validate_long_text(draft.context, "The context"),
        created_by=who,
        created_at=now,
        updated_at=now,
        urgency=_validate_priority(draft.priority),
        project=project,
        due_at=validation.parse_due_date(draft.due) if draft.due else NO_DUE_DATE,
        labels=validation.normalize_labels(draft.labels),
    )


def create(tx: Transaction, item: WorkItem, blocked_by: Sequence[str]) -> WorkItem:
    """Store a task and its dependencies, and return it."""
    if item.parent_id is not None:
        parent = records.get(tx, item.parent_id, lock=True)
        dependencies.check_parent_allowed(tx, item, parent)
        # Inherited from the parent: descendants wait for its blockers and are always in its project.
        item = replace(item, blocked=parent.blocked, project=parent.project)
    records.insert(tx, [item])
    # Without dependencies there are no counts to update, which is the common case of a single task.
    if item.parent_id is None and not blocked_by:
        return item
    if item.parent_id is not None:
        dependencies.attach_child(tx, item)
        dependencies.propagate_urgency(tx, [item.id])
    waits_for = _add_initial_blockers(tx, item, blocked_by)
    dependencies.propagate_urgency(tx, waits_for)
    return records.get(tx, item.id)


def _add_initial_blockers(tx: Transaction, item: WorkItem, blocked_by: Sequence[str]) -> list[str]:
    """Add the blockers of a new task and return their ids. The caller propagates the urgency to them."""
    # Without duplicates: each blocker is counted once.
    blockers = list(dict.fromkeys(map(validation.parse_id, blocked_by)))
    if item.id in blockers:
        raise DependencyCycle([item.id, item.id])
    if blockers:
        dependencies.add_blockers(tx, item, records.fetch_locked(tx, blockers))
        cycles.check_blocker_cycle(tx, item.id, blockers)
    return blockers


def resolve_refs(drafts: Sequence[tuple[WorkItemDraft, str]]) -> list[tuple[WorkItemDraft, str]]:
    """Return drafts with their ids, parents before children, with refs replaced by ids. Raises `InvalidWorkItem`."""
    ids: dict[str, str] = {}
    for draft, id in drafts:
        if draft.ref is not None:
            if draft.ref in ids:
                raise InvalidWorkItem(f"Two of these tasks have the ref {draft.ref!r}. Each ref must be unique.")
            ids[draft.ref] = id
    named = {
        id: replace(
            draft,
            parent_id=None if draft.parent_id is None else ids.get(draft.parent_id, draft.parent_id),
            blocked_by=[ids.get(item, item) for item in draft.blocked_by],
        )
        for draft, id in drafts
    }
    ordered: dict[str, WorkItemDraft] = {}
    # Topological order by parent only. Blockers may form cycles here; they are checked on the stored graph.
    while len(ordered) < len(named):
        ready = [id for id in named if id not in ordered and _has_resolved_refs(named[id], named, ordered)]
        if not ready:
            raise InvalidWorkItem("Some of these tasks are children of each other (cycle). Check their parent_id.")
        ordered |= {id: named[id] for id in ready}
    return [(draft, id) for id, draft in ordered.items()]


def _has_resolved_refs(draft: WorkItemDraft, named: Container[str], ordered: Container[str]) -> bool:
    return draft.parent_id not in named or draft.parent_id in ordered


def create_batch(tx: Transaction, pairs: Sequence[tuple[WorkItem, Sequence[str]]]) -> list[WorkItem]:
    """Store all tasks first, then their blockers, because a blocker may come later in the list."""
    for item, _ in pairs:
        create(tx, item, ())
    lent: dict[str, None] = {}
    for item, blocked_by in pairs:
        lent |= dict.fromkeys(_add_initial_blockers(tx, item, blocked_by))
    # Once for the whole batch: the urgency of a shared blocker would otherwise be recomputed for every task.
    dependencies.propagate_urgency(tx, lent)
    return list(records.fetch(tx, [item.id for item, _ in pairs]).values())


# Changing.


def validate_changes(changes: WorkItemChanges) -> WorkItemChanges:
    """Return validated and normalized changes. Raises `InvalidWorkItem`."""
    if changes.status is not None and changes.status not in STATUSES:
        raise InvalidWorkItem(f"Unknown status {changes.status[:40]!r}. Expected one of {', '.join(STATUSES)}.")
    return replace(
        changes,
        description=None if changes.description is None else validation.validate_description(changes.description),
        priority=None if changes.priority is None else _validate_priority(changes.priority),
        context=None if changes.context is None else validation.validate_long_text(changes.context, "The context"),
        result=None if changes.result is None else validation.validate_long_text(changes.result, "The result"),
        parent_id=None if changes.parent_id is None else validation.parse_id(changes.parent_id),
        project=None if changes.project is None else validation.validate_project(changes.project),
        labels=None if changes.labels is None else validation.normalize_labels(changes.labels),
        add_labels=validation.normalize_labels(changes.add_labels),
        remove_labels=validation.normalize_labels(changes.remove_labels),
    )


def update(tx: Transaction, id: str, changes: WorkItemChanges, edit: EditContext, lease: int | None) -> WorkItem:
    """Apply changes to a task and return it. With `lease`, renew the claim."""
    before = _lock_for_edit(tx, id, edit)
    worker, now = edit.worker, edit.now
    after = replace(before, **_apply_status(tx, before, changes.status, worker or edit.who or None, now))
    after = _apply_project(tx, replace(after, **_changed_fields(before, changes)), changes)
    if lease is not None:
        if after.status != "in_progress":
            raise InvalidWorkItem(
                "A lease is for a task that is in progress. Begin it with next_task or status in_progress."
            )
        after = replace(after, lease_until=now + lease, worker=worker or after.worker)
    # No version and no history entry for a change that changes nothing, so that repeated calls are idempotent.
    if after == before:
        return before
    return _save(tx, before, replace(after, updated_at=now), _change_label(before, after), edit)


def _changed_fields(before: WorkItem, changes: WorkItemChanges) -> dict[str, Any]:
    """Return the new values, except for the status, the parent and the project."""
    names = ("description", "priority", "context", "result")
    fresh = {name: value for name, value in asdict(changes).items() if name in names and value is not None}
    if changes.due is not None:
        fresh["due_at"] = validation.parse_due_date(changes.due) if changes.due else NO_DUE_DATE
    labels = {*(before.labels if changes.labels is None else changes.labels), *changes.add_labels}
    return {**fresh, "labels": validation.check_label_count(labels - set(changes.remove_labels))}


def _apply_project(tx: Transaction, after: WorkItem, changes: WorkItemChanges) -> WorkItem:
    """Apply a new parent or project. A child is always in the project of its parent."""
    if changes.parent_id is not None:
        after = replace(after, parent_id=changes.parent_id or None)
    parent = None if after.parent_id is None else records.get(tx, after.parent_id, lock=changes.parent_id is not None)
    project = after.project if changes.project is None else changes.project
    if parent is not None:
        if changes.project not in (None, parent.project):
            raise InvalidWorkItem(
                f"The task is a subtask of {parent.id} and moves with it. Move {parent.id} instead, or set parent_id "
                "to an empty string first."
            )
        project = parent.project
    return replace(after, project=project)


def complete(tx: Transaction, id: str, result: str | None, edit: EditContext) -> WorkItem:
    """Complete a task and return it. Repeating the call with the same result has no effect."""
    before = _lock_for_edit(tx, id, edit)
    if before.status == "completed":
        # Idempotent: a client that lost the response may repeat the call.
        if result is None or result == before.result:
            return before
        raise WorkItemConflict(
            f"The task {id} is completed already, with another result. update_task changes the result.",
            brief=f"task is completed: {id} (with another result; update_task changes the result)",
            id=id,
            status="completed",
        )
    fields = _apply_status(tx, before, "completed", edit.worker, edit.now)
    after = replace(before, **fields, result=before.result if result is None else result, updated_at=edit.now)
    if edit.worker is not None:
        after = replace(after, worker=edit.worker)
    return _save(tx, before, after, "completed", edit)


def _apply_status(
    tx: Transaction, before: WorkItem, status: str | None, worker: str | None, now: int
) -> dict[str, Any]:
    """Return the fields that a new status changes; empty if the status stays the same."""
    if status is None or status == before.status:
        return {}
    fields = apply_transition(before.id, before.status, status, now, worker)
    dependencies.check_transition_allowed(tx, before, status)
    # A closed task must not have open children, so the parent has to be reopened first.
    if status == "pending" and not before.is_open and before.parent_id is not None:
        parent = records.get(tx, before.parent_id, lock=True)
        if not parent.is_open:
            raise work_item_closed(parent.id, parent.status, f"nothing open can be below it, and {before.id} is")
    return fields


def _save(tx: Transaction, before: WorkItem, after: WorkItem, change: str, edit: EditContext) -> WorkItem:
    """Store a change, update dependent tasks, then check that the result is valid."""
    moved = before.parent_id != after.parent_id
    saved = records.save(tx, before, after, change, who=edit.who, reason=edit.reason)
    # Cycles are checked after the write, on the stored graph; an error rolls it back.
    if moved and after.parent_id is not None:
        cycles.check_parent_cycle(tx, after.id, after.parent_id)
        dependencies.check_parent_allowed(tx, after, records.get(tx, after.parent_id, lock=True))
    dependencies.propagate_status_change(tx, before, after)
    if before.project != after.project:
        records.move_descendants(tx, after.id, after.project)
    lent = moved or before.priority != after.priority or before.is_open != after.is_open
    if lent:
        # Whether it is open does not affect its own urgency, but that of the tasks it waits for.
        dependencies.propagate_urgency(tx, [after.id])
        dependencies.propagate_urgency(tx, dependencies.load_prerequisites(tx, [after.id]))
    return records.get(tx, saved.id) if lent else saved


def _change_label(before: WorkItem, after: WorkItem) -> str:
    """Return the kind of change for the history."""
    if before.status == after.status:
        return "moved" if before.parent_id != after.parent_id else "updated"
    if after.status == "pending":
        return "reopened" if not before.is_open else "released"
    return {"in_progress": "started", "completed": "completed", "failed": "failed"}[after.status]


def add_note(tx: Transaction, id: str, text: str, edit: EditContext) -> WorkItem:
    item = _lock_for_edit(tx, id, edit)
    if records.count_notes(tx, id) >= MAX_NOTES:
        raise InvalidWorkItem(
            f"The task {id} has {MAX_NOTES:,} notes, the maximum. Put important information into its context."
        )
    return records.touch(tx, item, records.NOTE_ADDED, {"note": [None, text]}, edit.now, who=edit.who)


# Blockers.


def add_blocker(tx: Transaction, id: str, blocker: str, edit: EditContext) -> tuple[WorkItem, bool]:
    item, other = _lock_for_edit(tx, id, edit), records.get(tx, blocker, lock=True)
    # Checked before the insert, because the row itself would violate a constraint.
    if item.id == other.id:
        raise DependencyCycle([id, id])
    if not dependencies.add_blockers(tx, item, [other]):
        return item, False
    cycles.check_blocker_cycle(tx, id, [blocker])
    dependencies.propagate_urgency(tx, [blocker])
    records.touch(tx, item, "blocker added", {"blocked_by": [None, blocker]}, edit.now, who=edit.who)
    return records.get(tx, id), True


def remove_blocker(tx: Transaction, id: str, blocker: str, edit: EditContext) -> tuple[WorkItem, bool]:
    item, other = _lock_for_edit(tx, id, edit), records.get(tx, blocker, lock=True)
    if not dependencies.remove_blocker(tx, item, other):
        return item, False
    dependencies.propagate_urgency(tx, [blocker])
    records.touch(tx, item, "blocker removed", {"blocked_by": [blocker, None]}, edit.now, who=edit.who)
    return records.get(tx, id), True


# Deleting.


def delete(
    tx: Transaction, id: str, children: Literal["refuse", "delete", "keep"], edit: EditContext
) -> DeletionResult:
    """Delete a task and, depending on `children`, its descendants."""
    item = _lock_for_edit(tx, id, edit)
    below = dependencies.load_descendants(tx, id, MAX_DELETED_ITEMS)
    if below and children == "refuse":
        raise has_children(id, below, len(below))
    remaining = _reparent_children(tx, item, edit) if children == "keep" else []
    deleted = [id] if children == "keep" else [id, *below]
    if len(deleted) > MAX_DELETED_ITEMS:
        raise InvalidWorkItem(
            f"This would delete more than {MAX_DELETED_ITEMS:,} tasks in one call. Delete subtrees first."
        )
    items = records.fetch(tx, deleted)
    unblocked = _unblock_dependents(tx, list(items.values()), edit)
    dependencies.detach(tx, item)
    waited_for = dependencies.load_prerequisites(tx, deleted)
    # Descendants first, so that the history of a plan reads from its leaves to its root.
    records.remove(tx, [items[entry] for entry in reversed(deleted)], edit.now, who=edit.who, reason=edit.reason)
    dependencies.propagate_urgency(tx, [*waited_for, *remaining])
    return DeletionResult(deleted=deleted, kept=remaining, unblocked=unblocked, dry_run=False)


def _reparent_children(tx: Transaction, item: WorkItem, edit: EditContext) -> list[str]:
    """Move the children of a task to its parent. This cannot create a cycle: all their dependencies went through the
    task already.
    """
    children = records.select_where(tx, "parent_id = :id", {"id": item.id}, lock="for update")
    for child in children:
        after = replace(child, parent_id=item.parent_id, updated_at=edit.now)
        records.save(tx, child, after, "moved", who=edit.who, reason=f"{item.id} was deleted")
        dependencies.propagate_status_change(tx, child, after)
    return [child.id for child in children]


def _unblock_dependents(tx: Transaction, deleted: list[WorkItem], edit: EditContext) -> list[str]:
    """Remove deleted tasks as blockers of others; return the tasks that are no longer blocked."""
    leaving = {entry.id for entry in deleted}
    sql = "select item, blocker from work_item_blocker where blocker in :ids order by item"
    pairs = tx.fetch_all(tuple[str, str], sql, {"ids": list(leaving)})
    open_ones = {entry.id for entry in deleted if entry.status != "completed"}
    before = records.fetch(tx, [item for item, _ in pairs if item not in leaving])
    for item, blocker in pairs:
        if item in leaving:
            continue
        current, fields = records.get(tx, item, lock=True), {"blocked_by": [blocker, None]}
        reason = f"{blocker} was deleted"
        records.touch(tx, current, "blocker removed", fields, edit.now, who=edit.who, reason=reason)
        if blocker in open_ones:
            dependencies.adjust_open_blockers(tx, [item], -1)
    tx.execute("delete from work_item_blocker where blocker in :ids", {"ids": list(leaving)})
    after = records.fetch(tx, list(before))
    return [id for id, entry in after.items() if before[id].blocked and not entry.blocked and entry.is_open]


def _validate_priority(number: int) -> int:
    if not 1 <= number <= 5:
        raise InvalidWorkItem(f"priority must be between 1 (most urgent) and 5, got {number}.")
    return number
