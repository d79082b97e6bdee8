"""What the tools answer: the same for a model and for a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from portico_services import text as texts
from portico_services import timestamps
from portico_services.database_service import copied
from portico_services.workitems.edits import Deletion
from portico_services.workitems.item_store import Counts, ItemHistory, TaskBackground, Waiting, WorkItems
from portico_services.workitems.listing import MAX_COUNTED_ELSEWHERE, Page, Tree
from portico_services.workitems.records import COUNTED, NEVER, Item, TaskEvent
from portico_services.workitems.states import Status

SHORT = 300
# Notes that are shown with a task unless more are asked for.
USUAL_NOTES = 20
NOTHING_MORE = TaskBackground(blocked_by=[], notes=[], noted=0)
# Of a field in a history, which get_task has whole.
LONGEST_FIELD = 500
MAX_LISTS_NAMED = 5
_MOMENTS = ("created_at", "started_at", "completed_at", "updated_at", "lease_until", "due_at")


class ShownNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: Annotated[str, "When it was written"]
    text: Annotated[str, "What it says"]
    who: Annotated[str | None, "Who wrote it"] = None


FieldValue = Annotated[
    Any,
    Meta(extra_json_schema={"type": ["string", "number", "boolean", "array", "null"], "items": {"type": "string"}}),
]


class TaskDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task with everything that is known about it."""

    id: Annotated[str, "Its id"]
    description: Annotated[str, "What is to be done"]
    status: Annotated[Status, "How it stands"]
    priority: Annotated[int, "From 1, the most urgent, to 5"]
    blocked: Annotated[bool, "Whether it, or what it is a part of, waits for a blocker"]
    version: Annotated[int, "How often it was changed, from 1"]
    created_at: Annotated[str, "When it was made"]
    updated_at: Annotated[str, "When it was last changed"]
    parent_id: Annotated[str | None, "The task it is a part of"] = None
    context: Annotated[str | None, "What is good to know for it"] = None
    result: Annotated[str | None, "What came of it"] = None
    worker: Annotated[str | None, "Who is working on it"] = None
    lease_until: Annotated[str | None, "Until when it is theirs"] = None
    started_at: Annotated[str | None, "When work on it began"] = None
    completed_at: Annotated[str | None, "When it was over"] = None
    created_by: Annotated[str | None, "Who made it"] = None
    blocked_by: Annotated[list[str], "The ids of the tasks it waits for"] = field(default_factory=list)
    open_children: Annotated[int, "How many of its children are not over"] = 0
    urgency: Annotated[
        int | None, "How urgent it is because of what waits for it, where that is more than its priority"
    ] = None
    labels: Annotated[list[str], "Its labels"] = field(default_factory=list)
    due_at: Annotated[str | None, "When it is due"] = None
    overdue: Annotated[bool, "Whether it is open and should have been done by now"] = False
    project: Annotated[str | None, "Whose list it is in, where that is not the one that was looked at"] = None
    notes: Annotated[list[ShownNote], "The newest notes, the newest last"] = field(default_factory=list)
    older_notes: Annotated[int, "How many notes there are before these"] = 0


class TaskLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list: enough to decide whether to read it."""

    id: Annotated[str, "Its id"]
    description: Annotated[str, "What is to be done"]
    status: Annotated[Status, "How it stands"]
    priority: Annotated[int, "From 1, the most urgent, to 5"]
    blocked: Annotated[bool, "Whether it, or what it is a part of, waits for a blocker"]
    created_at: Annotated[str, "When it was made"]
    cut: Annotated[bool, "Whether the description is only the beginning"] = False
    parent_id: Annotated[str | None, "The task it is a part of"] = None
    worker: Annotated[str | None, "Who is working on it"] = None
    open_children: Annotated[int, "How many of its children are not over"] = 0
    labels: Annotated[list[str], "Its labels"] = field(default_factory=list)
    due_at: Annotated[str | None, "When it is due"] = None
    overdue: Annotated[bool, "Whether it is open and should have been done by now"] = False
    project: Annotated[str | None, "Whose list it is in, where that is not the one that was looked at"] = None


class TaskList(Struct, frozen=True, kw_only=True):
    """A list as a resource."""

    count: Annotated[int, "How many are shown"]
    tasks: Annotated[list[TaskLine], "The tasks"]


class TaskPage(TaskList, frozen=True, kw_only=True, omit_defaults=True):
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page"] = field(default=None, name="nextCursor")
    note: Annotated[str | None, "If this list is empty: which other lists there are"] = None


class Next(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task that is yours now, or why there is none."""

    found: Annotated[bool, "Whether there is one"]
    task: Annotated[TaskDetails | None, "The task"] = None
    note: Annotated[str | None, "Why there is none, or what to do"] = None


class CreatedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that was made together with others."""

    id: Annotated[str, "Its id"]
    description: Annotated[str, "What is to be done"]
    blocked: Annotated[bool, "Whether it, or what it is a part of, waits for a blocker"]
    ref: Annotated[str | None, "What it was called in the call"] = None
    parent_id: Annotated[str | None, "The task it is a part of"] = None


class CreatedTasks(Struct, frozen=True, kw_only=True):
    """In the order of the call."""

    count: Annotated[int, "How many"]
    tasks: Annotated[list[CreatedTask], "The tasks, in the order of the call"]


class NotedTask(Struct, frozen=True, kw_only=True):
    id: Annotated[str, "The id of the task"]
    version: Annotated[int, "Its version now"]
    notes: Annotated[int, "How many notes it has now"]


class Blocking(Struct, frozen=True, kw_only=True):
    task_id: Annotated[str, "The task that waits"]
    blocked_by_id: Annotated[str, "The task it waits for"]
    changed: Annotated[bool, "Whether it was not so before"]
    blocked: Annotated[bool, "Whether the task waits for anything now"]


class Blockers(Struct, frozen=True, kw_only=True):
    task_id: Annotated[str, "The task"]
    blocked: Annotated[bool, "Whether it waits for anything"]
    blocked_by: Annotated[list[TaskLine], "What it waits for"]
    inherited: Annotated[list[TaskLine], "What it waits for because of what it is a part of"]
    blocks: Annotated[list[TaskLine], "Tasks that wait for this one"]


class DeletedTasks(Deletion, frozen=True, kw_only=True):
    note: Annotated[str, "What can be done about it"]


class TaskNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task of a tree; it is part of the one before it that is less deep."""

    id: Annotated[str, "Its id"]
    depth: Annotated[int, "How deep it stands in the tree, from 0"]
    description: Annotated[str, "What is to be done"]
    status: Annotated[Status, "How it stands"]
    priority: Annotated[int, "From 1, the most urgent, to 5"]
    blocked: Annotated[bool, "Whether it, or what it is a part of, waits for a blocker"]
    blocked_by: Annotated[list[str], "The ids of the tasks it waits for"] = field(default_factory=list)
    worker: Annotated[str | None, "Who is working on it"] = None


class TaskPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: Annotated[int, "How many tasks there are"]
    completed: Annotated[int, "How many of them are completed"]
    tasks: Annotated[list[TaskNode], "The tasks, each before its parts"]
    cut: Annotated[bool, "Whether there is more than is shown"] = False


class FieldChange(Struct, frozen=True, kw_only=True):
    name: Annotated[str, "Which field"]
    before: Annotated[FieldValue, "What it held before"]
    after: Annotated[FieldValue, "What it holds since; null where it holds nothing"]


class TaskRevision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: Annotated[int, "Which version it made"]
    change: Annotated[str, "What was done"]
    at: Annotated[str, "When"]
    who: Annotated[str | None, "Who did it"] = None
    reason: Annotated[str | None, "Why"] = None
    fields: Annotated[list[FieldChange], "What changed"] = field(default_factory=list)


class TaskHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: Annotated[str, "Its id"]
    deleted: Annotated[bool, "Whether it is gone"]
    changes: Annotated[list[TaskRevision], "The changes, the last one first"]
    cut: Annotated[bool, "Whether there is more before these"] = False


def task(item: Item, background: TaskBackground = NOTHING_MORE, project: str = "") -> TaskDetails:
    """As it is seen from a project."""
    notes = [
        ShownNote(at=timestamps.written_exactly(one.at), text=one.text, who=one.who or None) for one in background.notes
    ]
    return copied(
        item,
        TaskDetails,
        timestamps.written_exactly,
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
        "due_at": None if item.due is None else timestamps.written_exactly(item.due),
        "overdue": item.is_open and item.due_at < timestamps.now(),
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
        timestamps.written_exactly,
        description=texts.preview(item.description, SHORT),
        cut=len(item.description) > SHORT,
        open_children=item.children_open,
        **_listed(item, project),
    )


def lines(items: Iterable[Item], project: str = "") -> list[TaskLine]:
    return [line(one, project) for one in items]


def listed(page: Page, project: str, elsewhere: Mapping[str, int] | None = None) -> TaskPage:
    note = _elsewhere(elsewhere, project) if elsewhere else None
    return TaskPage(count=len(page.items), tasks=lines(page.items, project), next_cursor=page.cursor, note=note)


def _elsewhere(lists: Mapping[str, int], project: str) -> str:
    """Name the other lists and how many tasks each has."""
    named = [
        f"{name} ({count if count < MAX_COUNTED_ELSEWHERE else f'{count:,} or more'})" for name, count in lists.items()
    ]
    shown = ", ".join(named[:MAX_LISTS_NAMED]) + (", …" if len(named) > MAX_LISTS_NAMED else "")
    here = f"The list of {project}" if project else "This list"
    return f"{here} is empty. Other lists have tasks: {shown}. Pass project to use one of them, or * for all."


def nothing(counts: Counts, elsewhere: Mapping[str, int] | None = None, project: str = "") -> Next:
    """Say why there is nothing to do, so that a worker does not ask again and again."""
    if not counts.pending and not counts.in_progress:
        others = f" {_elsewhere(elsewhere, project)}" if elsewhere else ""
        return Next(found=False, note=f"There is nothing to do: no task is pending or in progress.{others}")
    if counts.ready:
        return Next(found=False, note=f"Nothing of this can be begun now. Of the whole list {counts.ready:,} can be.")
    said = f"Nothing can be begun now: {counts.in_progress:,} in progress, {counts.blocked:,} blocked"
    return Next(
        found=False, note=f"{said}, {counts.pending:,} pending. Ask again with wait, or listen to tasks://ready."
    )


def blockers(found: Waiting, project: str) -> Blockers:
    return Blockers(
        task_id=found.item.id,
        blocked=found.item.blocked,
        blocked_by=lines(found.blocked_by, project),
        inherited=lines(found.inherited, project),
        blocks=lines(found.blocks, project),
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
            timestamps.written_exactly,
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
        at, who = timestamps.written_exactly(first.created_at), first.created_by or None
        changes.append(TaskRevision(version=1, change="created", at=at, who=who))
    return TaskHistory(id=id, deleted=past.item is None, changes=changes, cut=not is_whole)


def _change(event: TaskEvent) -> TaskRevision:
    shown = [
        FieldChange(name=name, before=_shown(name, before), after=_shown(name, after))
        for name, (before, after) in event.fields.items()
        if name not in COUNTED
    ]
    who, reason = event.who or None, event.reason or None
    return copied(event, TaskRevision, timestamps.written_exactly, who=who, reason=reason, fields=shown)


def _shown(name: str, value: Any) -> Any:
    if name in _MOMENTS and isinstance(value, int):
        if value == NEVER:
            return None
        return timestamps.written_exactly(value)
    return texts.preview(value, LONGEST_FIELD) if isinstance(value, str) and len(value) > LONGEST_FIELD else value
