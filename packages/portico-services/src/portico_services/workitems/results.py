"""Results of the tools, as structured content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from portico_services import text as texts, timestamps
from portico_services.database_service import copy_to_result
from portico_services.workitems.edits import DeletionResult
from portico_services.workitems.item_store import (
    BlockerInfo,
    StatusCounts,
    WorkItemContext,
    WorkItemHistory,
    WorkItemStore,
)
from portico_services.workitems.listing import MAX_COUNTED_ELSEWHERE, ItemPage, ItemTree
from portico_services.workitems.records import COUNTER_COLUMNS, NO_DUE_DATE, WorkItem, WorkItemEvent
from portico_services.workitems.states import Status

# A list of 50 tasks should cost a model a few thousand tokens at most.
MAX_LIST_DESCRIPTION_CHARS = 300
# Notes returned with a task by default.
DEFAULT_NOTES = 20
EMPTY_CONTEXT = WorkItemContext(blocked_by=[], notes=[], noted=0)
# Maximum length of a field value in a history; get_task returns it in full.
MAX_HISTORY_FIELD_CHARS = 500
MAX_LISTS_NAMED = 5
_TIMESTAMP_FIELDS = ("created_at", "started_at", "completed_at", "updated_at", "lease_until", "due_at")


class NoteResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: Annotated[str, "Time of writing"]
    text: Annotated[str, "Text of the note"]
    who: Annotated[str | None, "Author"] = None


FieldValue = Annotated[
    Any,
    Meta(extra_json_schema={"type": ["string", "number", "boolean", "array", "null"], "items": {"type": "string"}}),
]


class WorkItemDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task with all its fields."""

    id: Annotated[str, "Task id"]
    description: Annotated[str, "Description of the work"]
    status: Annotated[Status, "Status"]
    priority: Annotated[int, "1 (most urgent) to 5"]
    blocked: Annotated[bool, "Whether the task or one of its parents has an open blocker"]
    version: Annotated[int, "Version, increased by each change, from 1"]
    created_at: Annotated[str, "Creation time"]
    updated_at: Annotated[str, "Time of the last change"]
    parent_id: Annotated[str | None, "Parent task"] = None
    context: Annotated[str | None, "Background for the worker"] = None
    result: Annotated[str | None, "Outcome"] = None
    worker: Annotated[str | None, "Worker that holds the claim"] = None
    lease_until: Annotated[str | None, "End of the claim"] = None
    started_at: Annotated[str | None, "Time when work began"] = None
    completed_at: Annotated[str | None, "Time when it was completed or failed"] = None
    created_by: Annotated[str | None, "Creator"] = None
    blocked_by: Annotated[list[str], "Ids of its blockers"] = field(default_factory=list)
    open_children: Annotated[int, "Number of open children"] = 0
    urgency: Annotated[int | None, "Urgency inherited from the tasks it blocks, if higher than its priority"] = None
    labels: Annotated[list[str], "Labels"] = field(default_factory=list)
    due_at: Annotated[str | None, "Due date"] = None
    overdue: Annotated[bool, "Whether it is open and past its due date"] = False
    project: Annotated[str | None, "Project of the task, if it is not the requested one"] = None
    notes: Annotated[list[NoteResult], "Newest notes, oldest first"] = field(default_factory=list)
    older_notes: Annotated[int, "Number of older notes"] = 0


class WorkItemSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a list: enough to decide whether to read it."""

    id: Annotated[str, "Task id"]
    description: Annotated[str, "Description of the work"]
    status: Annotated[Status, "Status"]
    priority: Annotated[int, "1 (most urgent) to 5"]
    blocked: Annotated[bool, "Whether the task or one of its parents has an open blocker"]
    created_at: Annotated[str, "Creation time"]
    cut: Annotated[bool, "Whether the description is truncated"] = False
    parent_id: Annotated[str | None, "Parent task"] = None
    worker: Annotated[str | None, "Worker that holds the claim"] = None
    open_children: Annotated[int, "Number of open children"] = 0
    labels: Annotated[list[str], "Labels"] = field(default_factory=list)
    due_at: Annotated[str | None, "Due date"] = None
    overdue: Annotated[bool, "Whether it is open and past its due date"] = False
    project: Annotated[str | None, "Project of the task, if it is not the requested one"] = None


class WorkItemList(Struct, frozen=True, kw_only=True):
    """A list of tasks."""

    count: Annotated[int, "Number of tasks in this result"]
    tasks: Annotated[list[WorkItemSummary], "The tasks"]


class WorkItemPage(WorkItemList, frozen=True, kw_only=True, omit_defaults=True):
    next_cursor: Annotated[str | None, "Cursor of the next page"] = field(default=None, name="nextCursor")
    note: Annotated[str | None, "If this list is empty: other projects with tasks"] = None


class ClaimResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Claimed task, or the reason for an empty result."""

    found: Annotated[bool, "Whether a task was claimed"]
    task: Annotated[WorkItemDetail | None, "Claimed task"] = None
    note: Annotated[str | None, "Reason for an empty result and next step"] = None


class CreatedItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task created in a batch."""

    id: Annotated[str, "Task id"]
    description: Annotated[str, "Description of the work"]
    blocked: Annotated[bool, "Whether the task or one of its parents has an open blocker"]
    ref: Annotated[str | None, "Ref from the call"] = None
    parent_id: Annotated[str | None, "Parent task"] = None


class CreateBatchResult(Struct, frozen=True, kw_only=True):
    """Created tasks, in the order of the call."""

    count: Annotated[int, "Number of tasks"]
    tasks: Annotated[list[CreatedItem], "Tasks, in the order of the call"]


class AddNoteResult(Struct, frozen=True, kw_only=True):
    id: Annotated[str, "Task id"]
    version: Annotated[int, "New version"]
    notes: Annotated[int, "Number of notes"]


class BlockerChange(Struct, frozen=True, kw_only=True):
    task_id: Annotated[str, "Blocked task"]
    blocked_by_id: Annotated[str, "Blocker"]
    changed: Annotated[bool, "Whether the call changed anything"]
    blocked: Annotated[bool, "Whether the task is blocked now"]


class BlockerList(Struct, frozen=True, kw_only=True):
    task_id: Annotated[str, "Claimed task"]
    blocked: Annotated[bool, "Whether the task is blocked"]
    blocked_by: Annotated[list[WorkItemSummary], "Its own blockers"]
    inherited: Annotated[list[WorkItemSummary], "Blockers inherited from its parents"]
    blocks: Annotated[list[WorkItemSummary], "Tasks that it blocks"]


class DeleteItemResult(DeletionResult, frozen=True, kw_only=True):
    note: Annotated[str, "Next step"]


class TreeItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task in a tree. Its parent is the closest preceding task with a lower depth."""

    id: Annotated[str, "Task id"]
    depth: Annotated[int, "Depth in the tree, from 0"]
    description: Annotated[str, "Description of the work"]
    status: Annotated[Status, "Status"]
    priority: Annotated[int, "1 (most urgent) to 5"]
    blocked: Annotated[bool, "Whether the task or one of its parents has an open blocker"]
    blocked_by: Annotated[list[str], "Ids of its blockers"] = field(default_factory=list)
    worker: Annotated[str | None, "Worker that holds the claim"] = None


class WorkItemTree(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: Annotated[int, "Number of tasks"]
    completed: Annotated[int, "Number of completed tasks"]
    tasks: Annotated[list[TreeItem], "Tasks, each before its children"]
    cut: Annotated[bool, "Whether the tree is truncated"] = False
    note: Annotated[str | None, "If there are no tasks: other projects with tasks"] = None


class FieldChange(Struct, frozen=True, kw_only=True):
    name: Annotated[str, "Field name"]
    before: Annotated[FieldValue, "Value before"]
    after: Annotated[FieldValue, "Value after; null if empty"]


class WorkItemRevision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: Annotated[int, "Resulting version"]
    change: Annotated[str, "Kind of change"]
    at: Annotated[str, "Time"]
    who: Annotated[str | None, "Actor"] = None
    reason: Annotated[str | None, "Reason"] = None
    fields: Annotated[list[FieldChange], "Changed fields"] = field(default_factory=list)


class WorkItemHistoryResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: Annotated[str, "Task id"]
    deleted: Annotated[bool, "Whether the task was deleted"]
    changes: Annotated[list[WorkItemRevision], "Changes, newest first"]
    cut: Annotated[bool, "Whether older changes were omitted"] = False


def to_detail(item: WorkItem, background: WorkItemContext = EMPTY_CONTEXT, project: str = "") -> WorkItemDetail:
    """Return a task with all its fields, as seen from a project."""
    notes = [
        NoteResult(at=timestamps.format_iso_millis(note.at), text=note.text, who=note.who or None)
        for note in background.notes
    ]
    return copy_to_result(
        item,
        WorkItemDetail,
        timestamps.format_iso_millis,
        context=item.context or None,
        result=item.result or None,
        created_by=item.created_by or None,
        blocked_by=background.blocked_by,
        open_children=item.children_open,
        urgency=item.urgency if item.urgency < item.priority else None,
        notes=notes,
        # Counted separately, because only the newest notes are loaded.
        older_notes=background.noted - len(notes),
        **_common_fields(item, project),
    )


def _common_fields(item: WorkItem, project: str) -> dict[str, Any]:
    """Return the fields that details and summaries have in common."""
    return {
        "labels": list(item.labels),
        "due_at": None if item.due is None else timestamps.format_iso_millis(item.due),
        "overdue": item.is_open and item.due_at < timestamps.now_ms(),
        "project": item.project if item.project not in ("", project) else None,
    }


def to_batch_result(items: Sequence[WorkItem], refs: Sequence[str | None]) -> CreateBatchResult:
    created = [
        CreatedItem(
            id=item.id,
            description=texts.truncate_preview(item.description, MAX_LIST_DESCRIPTION_CHARS),
            blocked=item.blocked,
            ref=ref,
            parent_id=item.parent_id,
        )
        for item, ref in zip(items, refs, strict=True)
    ]
    return CreateBatchResult(count=len(created), tasks=created)


async def load_detail(items: WorkItemStore, item: WorkItem, notes: int = 0) -> WorkItemDetail:
    """Read the context of a task and return it with all its fields."""
    return to_detail(item, await items.get_context(item.id, notes), items.project)


def to_summary(item: WorkItem, project: str = "") -> WorkItemSummary:
    """Return a task as a list entry, as seen from a project."""
    return copy_to_result(
        item,
        WorkItemSummary,
        timestamps.format_iso_millis,
        description=texts.truncate_preview(item.description, MAX_LIST_DESCRIPTION_CHARS),
        cut=len(item.description) > MAX_LIST_DESCRIPTION_CHARS,
        open_children=item.children_open,
        **_common_fields(item, project),
    )


def to_summaries(items: Iterable[WorkItem], project: str = "") -> list[WorkItemSummary]:
    return [to_summary(item, project) for item in items]


def to_page(page: ItemPage, project: str, elsewhere: Mapping[str, int] | None = None) -> WorkItemPage:
    note = _mention_other_projects(elsewhere, project) if elsewhere else None
    return WorkItemPage(
        count=len(page.items), tasks=to_summaries(page.items, project), next_cursor=page.cursor, note=note
    )


def _mention_other_projects(lists: Mapping[str, int], project: str) -> str:
    """Return a sentence that names the other projects and their numbers of tasks."""
    named = [
        f"{name} ({count if count < MAX_COUNTED_ELSEWHERE else f'{count:,} or more'})" for name, count in lists.items()
    ]
    listed = ", ".join(named[:MAX_LISTS_NAMED]) + (", …" if len(named) > MAX_LISTS_NAMED else "")
    subject = f"The list of {project}" if project else "This list"
    return f"{subject} is empty. Other lists have tasks: {listed}. Pass project to use one of them, or * for all."


def no_work_result(counts: StatusCounts, elsewhere: Mapping[str, int] | None = None, project: str = "") -> ClaimResult:
    """Return a result that explains why no task was claimed, so that a worker does not poll."""
    if not counts.pending and not counts.in_progress:
        others = f" {_mention_other_projects(elsewhere, project)}" if elsewhere else ""
        return ClaimResult(found=False, note=f"No work: no task is pending or in progress.{others}")
    if counts.ready:
        return ClaimResult(
            found=False, note=f"No matching task can be started now. In the whole list {counts.ready:,} can be started."
        )
    message = f"No task can be started now: {counts.in_progress:,} in progress, {counts.blocked:,} blocked"
    return ClaimResult(
        found=False, note=f"{message}, {counts.pending:,} pending. Call again with wait, or subscribe to tasks://ready."
    )


def to_blocker_list(info: BlockerInfo, project: str) -> BlockerList:
    return BlockerList(
        task_id=info.item.id,
        blocked=info.item.blocked,
        blocked_by=to_summaries(info.blocked_by, project),
        inherited=to_summaries(info.inherited, project),
        blocks=to_summaries(info.blocks, project),
    )


def to_delete_result(deleted: DeletionResult) -> DeleteItemResult:
    count = "one task" if len(deleted.deleted) == 1 else f"{len(deleted.deleted):,} tasks"
    note = (
        f"Dry run: {count} would be deleted. Call again without dry_run to delete."
        if deleted.dry_run
        else f"Deleted {count}; their history stays."
    )
    return DeleteItemResult(**msgspec.structs.asdict(deleted), note=note)


def to_tree(tree: ItemTree, project: str, elsewhere: Mapping[str, int] | None = None) -> WorkItemTree:
    nodes = [
        copy_to_result(
            node.item,
            TreeItem,
            timestamps.format_iso_millis,
            depth=node.depth,
            description=texts.truncate_preview(node.item.description, MAX_LIST_DESCRIPTION_CHARS),
            blocked_by=node.blocked_by,
        )
        for node in tree.nodes
    ]
    completed = sum(node.status == "completed" for node in nodes)
    note = _mention_other_projects(elsewhere, project) if elsewhere else None
    return WorkItemTree(count=len(nodes), completed=completed, tasks=nodes, cut=tree.cut, note=note)


def to_history(id: str, past: WorkItemHistory, limit: int) -> WorkItemHistoryResult:
    """Return the history of a task, newest change first."""
    changes = [_to_revision(event) for event in past.events]
    first = past.item
    # The last entry of a deleted task holds its final values; the creation is reconstructed from them.
    if first is None and past.events[0].change == "deleted":
        original = {name: value[0] for name, value in past.events[0].fields.items()}
        first = msgspec.convert(original, WorkItem)
    # The history holds only changes; the creation is added if no older changes were cut off.
    is_whole = len(past.events) < limit or past.events[-1].version == 2
    if first is not None and is_whole:
        at, who = timestamps.format_iso_millis(first.created_at), first.created_by or None
        changes.append(WorkItemRevision(version=1, change="created", at=at, who=who))
    return WorkItemHistoryResult(id=id, deleted=past.item is None, changes=changes, cut=not is_whole)


def _to_revision(event: WorkItemEvent) -> WorkItemRevision:
    changes = [
        FieldChange(name=name, before=_format_field(name, before), after=_format_field(name, after))
        for name, (before, after) in event.fields.items()
        if name not in COUNTER_COLUMNS
    ]
    who, reason = event.who or None, event.reason or None
    return copy_to_result(event, WorkItemRevision, timestamps.format_iso_millis, who=who, reason=reason, fields=changes)


def _format_field(name: str, value: Any) -> Any:
    if name in _TIMESTAMP_FIELDS and isinstance(value, int):
        if value == NO_DUE_DATE:
            return None
        return timestamps.format_iso_millis(value)
    return (
        texts.truncate_preview(value, MAX_HISTORY_FIELD_CHARS)
        if isinstance(value, str) and len(value) > MAX_HISTORY_FIELD_CHARS
        else value
    )
