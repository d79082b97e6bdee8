"""What the tools answer: the same for a model and for a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from portico.services import moments, texts
from portico.services.stored import copied
from portico.services.tasks.edits import Deletion
from portico.services.tasks.items import Counts, ItemHistory, TaskBackground, Waiting, WorkItems
from portico.services.tasks.listing import Page, Tree
from portico.services.tasks.records import COUNTED, NEVER, Item, TaskEvent
from portico.services.tasks.states import Status

SHORT = 300
# Notes that are shown with a task unless more are asked for.
USUAL_NOTES = 20
NOTHING_MORE = TaskBackground(blocked_by=[], notes=[], noted=0)
# Of a field in a history, which get_task has whole.
LONGEST_FIELD = 500
_MOMENTS = ("created_at", "started_at", "completed_at", "updated_at", "lease_until", "due_at")


class ShownNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: str
    text: str
    who: str | None = None


class TaskDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task with everything that is known about it."""

    id: str
    description: str
    status: Status
    priority: int
    # Whether it, or what it is a part of, waits for a blocker.
    blocked: bool
    version: int
    created_at: str
    updated_at: str
    parent_id: str | None = None
    context: str | None = None
    result: str | None = None
    worker: str | None = None
    lease_until: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    created_by: str | None = None
    blocked_by: list[str] = field(default_factory=list)
    # How many of its children are not over.
    open_children: int = 0
    # How urgent it is because of what waits for it, where that is more than its priority.
    urgency: int | None = None
    labels: list[str] = field(default_factory=list)
    due_at: str | None = None
    # Whether it is open and should have been done by now.
    overdue: bool = False
    # Whose list it is in, where that is not the one that was looked at.
    project: str | None = None
    # The newest ones, the newest last; and how many there are before these.
    notes: list[ShownNote] = field(default_factory=list)
    older_notes: int = 0


class TaskLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list: enough to decide whether to read it."""

    id: str
    description: str
    status: Status
    priority: int
    blocked: bool
    created_at: str
    # Whether the description is only the beginning.
    cut: bool = False
    parent_id: str | None = None
    worker: str | None = None
    open_children: int = 0
    labels: list[str] = field(default_factory=list)
    due_at: str | None = None
    overdue: bool = False
    project: str | None = None


class TaskList(Struct, frozen=True, kw_only=True):
    """A list as a resource."""

    count: int
    tasks: list[TaskLine]


class TaskPage(TaskList, frozen=True, kw_only=True, omit_defaults=True):
    next_cursor: str | None = field(default=None, name="nextCursor")


class Next(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task that is yours now, or why there is none."""

    found: bool
    task: TaskDetails | None = None
    note: str | None = None


class CreatedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that was made together with others."""

    id: str
    description: str
    blocked: bool
    # What it was called in the call.
    ref: str | None = None
    parent_id: str | None = None


class CreatedTasks(Struct, frozen=True, kw_only=True):
    """In the order of the call."""

    count: int
    tasks: list[CreatedTask]


class NotedTask(Struct, frozen=True, kw_only=True):
    id: str
    version: int
    # How many it has now.
    notes: int


class Blocking(Struct, frozen=True, kw_only=True):
    task_id: str
    blocked_by_id: str
    # Whether it was not so before.
    changed: bool
    # Whether the task waits for anything now.
    blocked: bool


class Blockers(Struct, frozen=True, kw_only=True):
    task_id: str
    blocked: bool
    blocked_by: list[TaskLine]
    # Those of what it is a part of: it waits for them, too.
    inherited: list[TaskLine]
    # Tasks that wait for this one.
    blocks: list[TaskLine]


class DeletedTasks(Deletion, frozen=True, kw_only=True):
    note: str


class TaskNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task of a tree; it is part of the one before it that is less deep."""

    id: str
    depth: int
    description: str
    status: Status
    priority: int
    blocked: bool
    blocked_by: list[str] = field(default_factory=list)
    worker: str | None = None


class TaskPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: int
    completed: int
    tasks: list[TaskNode]
    # Whether there is more than is shown.
    cut: bool = False


class FieldChange(Struct, frozen=True, kw_only=True):
    name: str
    before: Any
    after: Any


class TaskRevision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int
    change: str
    at: str
    who: str | None = None
    reason: str | None = None
    fields: list[FieldChange] = field(default_factory=list)


class TaskHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    deleted: bool
    changes: list[TaskRevision]
    # Whether there is more before these.
    cut: bool = False


def task(item: Item, background: TaskBackground = NOTHING_MORE, project: str = "") -> TaskDetails:
    """As it is seen from a project."""
    notes = [
        ShownNote(at=moments.written_exactly(one.at), text=one.text, who=one.who or None) for one in background.notes
    ]
    return copied(
        item,
        TaskDetails,
        moments.written_exactly,
        context=item.context or None,
        result=item.result or None,
        created_by=item.created_by or None,
        blocked_by=background.blocked_by,
        open_children=item.children_open,
        urgency=item.urgency if item.urgency < item.priority else None,
        notes=notes,
        older_notes=background.noted - len(notes),
        **_listed(item, project),
    )


def _listed(item: Item, project: str) -> dict[str, Any]:
    """What is said alike of a task and of a line."""
    return {
        "labels": list(item.labels),
        "due_at": None if item.due is None else moments.written_exactly(item.due),
        "overdue": item.is_open and item.due_at < moments.now(),
        "project": item.project if item.project not in ("", project) else None,
    }


def created(items: Sequence[Item], refs: Sequence[str | None]) -> CreatedTasks:
    made = [
        CreatedTask(
            id=one.id,
            description=texts.preview(one.description, SHORT),
            blocked=one.blocked,
            ref=ref,
            parent_id=one.parent_id,
        )
        for one, ref in zip(items, refs, strict=True)
    ]
    return CreatedTasks(count=len(made), tasks=made)


async def details(items: WorkItems, item: Item, notes: int = 0) -> TaskDetails:
    return task(item, await items.background(item.id, notes), items.project)


def line(item: Item, project: str = "") -> TaskLine:
    return copied(
        item,
        TaskLine,
        moments.written_exactly,
        description=texts.preview(item.description, SHORT),
        cut=len(item.description) > SHORT,
        open_children=item.children_open,
        **_listed(item, project),
    )


def lines(items: Iterable[Item], project: str = "") -> list[TaskLine]:
    return [line(one, project) for one in items]


def listed(page: Page, project: str) -> TaskPage:
    return TaskPage(count=len(page.items), tasks=lines(page.items, project), next_cursor=page.cursor)


def nothing(counts: Counts) -> Next:
    """Why there is nothing to do, so that a worker does not ask again and again."""
    if not counts.pending and not counts.in_progress:
        return Next(found=False, note="There is nothing to do: no task is pending or in progress.")
    said = f"Nothing can be begun now: {counts.in_progress:,} in progress, {counts.blocked:,} blocked"
    return Next(found=False, note=f"{said}, {counts.pending:,} pending. Listen to tasks://ready, or ask again later.")


def blockers(found: Waiting) -> Blockers:
    return Blockers(
        task_id=found.item.id,
        blocked=found.item.blocked,
        blocked_by=lines(found.blocked_by),
        inherited=lines(found.inherited),
        blocks=lines(found.blocks),
    )


def deleted(gone: Deletion) -> DeletedTasks:
    count = "one task" if len(gone.deleted) == 1 else f"{len(gone.deleted):,} tasks"
    note = (
        f"Nothing was deleted; {count} would be. Call it again without dry_run."
        if gone.dry_run
        else f"Deleted {count}; their history stays."
    )
    return DeletedTasks(**msgspec.structs.asdict(gone), note=note)


def plan(tree: Tree) -> TaskPlan:
    nodes = [
        copied(
            one.item,
            TaskNode,
            moments.written_exactly,
            depth=one.depth,
            description=texts.preview(one.item.description, SHORT),
            blocked_by=one.blocked_by,
        )
        for one in tree.nodes
    ]
    completed = sum(one.status == "completed" for one in nodes)
    return TaskPlan(count=len(nodes), completed=completed, tasks=nodes, cut=tree.cut)


def history(id: str, past: ItemHistory, limit: int) -> TaskHistory:
    changes = [_change(one) for one in past.events]
    first = past.item
    if first is None and past.events[0].change == "deleted":
        was = {name: value[0] for name, value in past.events[0].fields.items()}
        first = msgspec.convert(was, Item)
    is_whole = len(past.events) < limit or past.events[-1].version == 2
    if first is not None and is_whole:
        at, who = moments.written_exactly(first.created_at), first.created_by or None
        changes.append(TaskRevision(version=1, change="created", at=at, who=who))
    return TaskHistory(id=id, deleted=past.item is None, changes=changes, cut=not is_whole)


def _change(event: TaskEvent) -> TaskRevision:
    shown = [
        FieldChange(name=name, before=_shown(name, before), after=_shown(name, after))
        for name, (before, after) in event.fields.items()
        if name not in COUNTED
    ]
    who, reason = event.who or None, event.reason or None
    return copied(event, TaskRevision, moments.written_exactly, who=who, reason=reason, fields=shown)


def _shown(name: str, value: Any) -> Any:
    if name in _MOMENTS and isinstance(value, int):
        if value == NEVER:
            return None
        return moments.written_exactly(value)
    return texts.preview(value, LONGEST_FIELD) if isinstance(value, str) and len(value) > LONGEST_FIELD else value
