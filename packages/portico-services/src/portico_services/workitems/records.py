"""Rows of work items and their history, and the statements that read and write them.

Every function takes a Transaction. The effects of a change on dependent tasks are in `dependencies.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from portico.extend import Transaction, encode_json_column
from portico_services.workitems import text_index, validation
from portico_services.workitems.errors import InvalidWorkItem, WorkItemNotFound
from portico_services.workitems.ids import ID_PREFIX, is_id

TOPIC = "work_item"
# The kind of change that is a note.
NOTE_ADDED = "note added"
# Changes published individually; beyond that, a single event without details.
# Subscribers reload whole lists anyway after a large change.
MAX_PUBLISHED_EVENTS = 100
COLUMNS = (
    "id", "parent_id", "description", "status", "priority", "context", "result", "worker", "lease_until",
    "blockers_open", "children_open", "blocked", "version", "created_by", "created_at", "started_at", "completed_at",
    "updated_at", "urgency", "project", "due_at", "labels",
)  # fmt: skip
# Derived values, which are not part of a version.
COUNTER_COLUMNS = ("blockers_open", "children_open", "blocked", "urgency")
COLUMNS_SQL = ", ".join(COLUMNS)
# Stored for tasks without a due date: later than every date, so that every engine sorts them last.
NO_DUE_DATE = 2**53 - 1
_SELECT = f"select {COLUMNS_SQL} from work_item"
# All descendants of the task `:above`.
DESCENDANTS_CTE = (
    "with recursive part(id) as (select id from work_item where parent_id = :above union all "
    "select work_item.id from work_item join part on work_item.parent_id = part.id) select id from part"
)
# Must match the condition of the partial index `work_item_ready`.
READY_SQL = "status = 'pending' and blocked = false and children_open = 0"


class WorkItem(Struct, frozen=True, kw_only=True):
    """A work item. Timestamps are milliseconds since the epoch."""

    id: str
    parent_id: str | None = None
    description: str
    status: str = "pending"
    priority: int = 3
    context: str = ""
    result: str = ""
    worker: str | None = None
    lease_until: int | None = None
    # Numbers of blockers that are not completed and of open children.
    blockers_open: int = 0
    children_open: int = 0
    # Whether it or an ancestor has an open blocker.
    blocked: bool = False
    version: int = 1
    created_by: str = ""
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    updated_at: int
    # Its priority, or that of the most urgent open task that waits for it.
    urgency: int = 3
    # Project; empty for tasks that every project sees. Descendants have the same project.
    project: str = ""
    due_at: int = NO_DUE_DATE
    labels: tuple[str, ...] = ()

    @property
    def due(self) -> int | None:
        """Return the due date, or None."""
        return None if self.due_at == NO_DUE_DATE else self.due_at

    @property
    def is_open(self) -> bool:
        return self.status in ("pending", "in_progress")

    @property
    def is_ready(self) -> bool:
        """Return whether the task can be started, as defined by READY_SQL."""
        return self.status == "pending" and not self.blocked and self.children_open == 0

    @property
    def list_names(self) -> set[str]:
        """Return the names of the lists that contain the task."""
        results = {self.status}
        if self.is_ready:
            results.add("ready")
        if self.blocked and self.is_open:
            results.add("blocked")
        return results


class WorkItemEvent(Struct, frozen=True, kw_only=True):
    """A change: the version it created, its actor, and the old and new value of each field."""

    item: str
    version: int
    change: str
    at: int
    who: str
    reason: str
    fields: dict[str, list[Any]]


class WorkItemNote(Struct, frozen=True, kw_only=True):
    """A note of a task."""

    at: int
    who: str
    text: str


# Writing.


def insert(tx: Transaction, items: Sequence[WorkItem]) -> None:
    """Insert tasks with their labels, queue them for indexing and publish the changes."""
    names, marks = ", ".join(COLUMNS), ", ".join(f":{item}" for item in COLUMNS)
    rows = [
        {**msgspec.structs.asdict(item), "labels": encode_json_column(item.labels), "words": searchable_text(item)}
        for item in items
    ]
    tx.execute_many(f"insert into work_item ({names}, words) values ({marks}, :words)", rows)
    _write_labels(tx, [(label, item.id) for item in items for label in item.labels])
    text_index.enqueue_items(tx, [item.id for item in items])
    publish_changes(tx, items)


def _write_labels(tx: Transaction, pairs: Sequence[tuple[str, str]]) -> None:
    if pairs:
        tx.execute_many("insert into work_item_label (label, item) values (?, ?)", pairs)


def searchable_text(item: WorkItem) -> str:
    """Return the text that queries search."""
    return validation.casefold_text(f"{item.description}\n{item.context}")


def save(
    tx: Transaction, before: WorkItem, after: WorkItem, change: str, *, who: str = "", reason: str = ""
) -> WorkItem:
    """Store the changed fields and a history entry; return the task with its new version."""
    changed = [
        name for name in COLUMNS if getattr(before, name) != getattr(after, name) and name not in COUNTER_COLUMNS
    ]
    values = {name: getattr(after, name) for name in changed}
    if {"description", "context"} & set(changed):
        values["words"] = searchable_text(after)
        # Postings are removed by the old text, so this comes before the update.
        text_index.remove_items(tx, [(before.id, searchable_text(before))])
    if "labels" in changed:
        values["labels"] = encode_json_column(after.labels)
        tx.execute("delete from work_item_label where item = :id", {"id": after.id})
        _write_labels(tx, [(label, after.id) for label in after.labels])
    after = replace(after, version=before.version + 1)
    settings = ", ".join(f"{name} = :{name}" for name in values)
    tx.execute(
        f"update work_item set {settings}, version = :version where id = :id",
        {**values, "version": after.version, "id": after.id},
    )
    if "words" in values:
        text_index.enqueue_items(tx, [after.id])
    fields = {name: [getattr(before, name), getattr(after, name)] for name in changed if name != "updated_at"}
    record_event(tx, after, change, fields, who=who, reason=reason)
    publish_changes(tx, [before, after])
    return after


def move_descendants(tx: Transaction, id: str, project: str) -> None:
    """Move the descendants of a task to a project."""
    tx.execute(
        f"update work_item set project = :project where id in ({DESCENDANTS_CTE})", {"project": project, "above": id}
    )


def touch(
    tx: Transaction, item: WorkItem, change: str, fields: dict[str, list[Any]], now: int, *, who: str, reason: str = ""
) -> WorkItem:
    """Record a change that is not in the task's own row, such as a blocker."""
    after = replace(item, version=item.version + 1, updated_at=now)
    tx.execute(
        "update work_item set version = :version, updated_at = :now where id = :id",
        {"version": after.version, "now": now, "id": item.id},
    )
    record_event(tx, after, change, fields, who=who, reason=reason)
    publish_changes(tx, [after])
    return after


def record_event(
    tx: Transaction, item: WorkItem, change: str, fields: dict[str, list[Any]], *, who: str, reason: str, at: int = 0
) -> None:
    """Append an entry to the history."""
    tx.execute(
        "insert into work_item_event (item, version, change, at, who, reason, fields) "
        "values (:item, :version, :change, :at, :who, :reason, :fields)",
        {
            "item": item.id,
            "version": item.version,
            "change": change,
            "at": at or item.updated_at,
            "who": who,
            "reason": reason,
            "fields": encode_json_column(fields),
        },
    )


def remove(tx: Transaction, items: Sequence[WorkItem], now: int, *, who: str, reason: str) -> None:
    """Delete tasks permanently, except for their history, whose last entry contains the final values."""
    for item in items:
        previous = {
            name: [value, None] for name, value in msgspec.structs.asdict(item).items() if name not in COUNTER_COLUMNS
        }
        # A separate version, so that the deletion can be told from the last change.
        last = replace(item, version=item.version + 1)
        record_event(tx, last, "deleted", previous, who=who, reason=reason, at=now)
    text_index.remove_items(tx, [(item.id, searchable_text(item)) for item in items])
    tx.execute("delete from work_item where id in :ids", {"ids": [item.id for item in items]})
    publish_changes(tx, items)


def publish_changes(tx: Transaction, items: Iterable[WorkItem], also: Sequence[str] = ()) -> None:
    """Publish the id of each task and the lists that contain or contained it; beyond MAX_PUBLISHED_EVENTS, a single
    event without details.
    """
    published: dict[str, set[str]] = {}
    for item in items:
        published.setdefault(item.id, set(also)).update(item.list_names)
    for id, lists in list(published.items())[:MAX_PUBLISHED_EVENTS]:
        tx.publish(TOPIC, " ".join([id, *sorted(lists)]))
    if len(published) > MAX_PUBLISHED_EVENTS:
        tx.publish(TOPIC)


# Reading.


def get(tx: Transaction, id: str, *, lock: bool = False) -> WorkItem:
    """Return a task. With `lock`, no other transaction can change it until this one ends. Raises `WorkItemNotFound`."""
    # `for update` is removed on SQLite, where a write transaction excludes all others.
    optional = tx.fetch_optional(WorkItem, f"{_SELECT} where id = :id{' for update' if lock else ''}", {"id": id})
    if optional is None:
        raise WorkItemNotFound(id)
    return optional


def fetch_locked(tx: Transaction, ids: Sequence[str]) -> list[WorkItem]:
    """Return locked tasks in the order of `ids`. Raises `WorkItemNotFound`."""
    result = {
        item.id: item for item in tx.fetch_all(WorkItem, f"{_SELECT} where id in :ids for update", {"ids": list(ids)})
    }
    for id in ids:
        if id not in result:
            raise WorkItemNotFound(id)
    return [result[id] for id in ids]


def resolve_id(tx: Transaction, text: str) -> str:
    """Return the id for an id, a prefix or a suffix of one. Raises `InvalidWorkItem` if it is ambiguous."""
    text = validation.parse_id(text)
    if is_id(text):
        return text
    part = text.removeprefix(ID_PREFIX).lower()
    # Excludes the wildcards of LIKE, `%` and `_`, before the text becomes a pattern.
    if not part.isalnum() or not part.isascii():
        raise WorkItemNotFound(text)
    result = ids_with_prefix(tx, f"{ID_PREFIX}{part}", 2)
    if not text.startswith(ID_PREFIX):
        result = list({*result, *_ids_with_suffix(tx, part)})
    if len(result) > 1:
        raise InvalidWorkItem(
            f"More than one task begins or ends with {text!r}. Give more of its id.", some=sorted(result)[:5]
        )
    if not result:
        raise WorkItemNotFound(text)
    return result[0]


def _ids_with_suffix(tx: Transaction, part: str) -> list[str]:
    """Return ids with a suffix. Open tasks are searched first, because there may be very many closed ones."""
    results: list[str] = []
    # No index helps with a suffix, so the search is split to find open tasks without reading all closed ones.
    for condition in ("status in ('pending', 'in_progress')", "status in ('completed', 'failed')"):
        results += tx.fetch_all(
            str, f"select id from work_item where {condition} and id like :end limit 2", {"end": f"%{part}"}
        )
        if results:
            break
    return results


def ids_with_prefix(tx: Transaction, typed: str, limit: int) -> list[str]:
    """Return ids with a prefix, newest first."""
    return tx.fetch_all(
        str,
        "select id from work_item where id >= :first and id < :last order by id desc limit cast(:most as bigint)",
        # `~` is greater than every character of an id.
        {"first": typed, "last": f"{typed}~", "most": limit},
    )


def fetch(tx: Transaction, ids: Sequence[str]) -> dict[str, WorkItem]:
    """Return the existing tasks among `ids`, by id."""
    return {item.id: item for item in tx.fetch_all(WorkItem, f"{_SELECT} where id in :ids", {"ids": list(ids)})}


def select_where(
    tx: Transaction, condition: str, values: dict[str, Any], *, order: str = "id", limit: int = 0, lock: str = ""
) -> list[WorkItem]:
    """Return the tasks that satisfy a fixed SQL condition; without a limit, all of them."""
    if limit:
        values, lock = {**values, "limit": limit}, f"limit cast(:limit as bigint) {lock}"
    return tx.fetch_all(WorkItem, f"{_SELECT} where {condition} order by {order} {lock}", values)


def select_first(
    tx: Transaction, projects: Sequence[str], condition: str, values: dict[str, Any], *, order: str, limit: int
) -> list[WorkItem]:
    """Return the first tasks of some projects that satisfy a fixed SQL condition."""
    sql, lists = per_project_sql(COLUMNS_SQL, projects, condition, order)
    sql = f"{sql} limit cast(:each as bigint)" if len(projects) > 1 else sql
    return tx.fetch_all(WorkItem, sql, {**values, **lists, "each": limit})


def per_project_sql(columns: str, projects: Sequence[str], condition: str, order: str) -> tuple[str, dict[str, str]]:
    """Return a statement for the first `:each` tasks of every project, and the parameters with the project names.

    Each project is a range of the index, so each is queried separately.
    """
    named = {f"list{number}": project for number, project in enumerate(projects)}
    parts = [
        f"select {columns} from work_item where project = :{name} and {condition} order by {order} "
        "limit cast(:each as bigint)"
        for name in named
    ]
    if len(parts) == 1:
        return parts[0], named
    # SQLite allows `order by` and `limit` only in a subquery of a union.
    union = " union all ".join(f"select * from ({part}) {name}" for name, part in zip(named, parts, strict=True))
    return f"{union} order by {order}", named


def list_projects(tx: Transaction, limit: int) -> list[str]:
    """Return the names of the projects, by skipping from one to the next in an index."""
    return tx.fetch_all(
        str,
        "with recursive list(name) as (select min(project) from work_item union all "
        "select (select min(project) from work_item where project > list.name) from list where list.name is not null) "
        "select name from list where name is not null limit cast(:most as bigint)",
        {"most": limit},
    )


def list_notes(tx: Transaction, id: str, limit: int) -> list[WorkItemNote]:
    """Return the newest notes, in the order in which they were written."""
    rows = tx.fetch_all(
        WorkItemEvent,
        "select item, version, change, at, who, reason, fields from work_item_event "
        f"where item = :id and change = '{NOTE_ADDED}' order by id desc limit cast(:limit as bigint)",
        {"id": id, "limit": limit},
    )
    return [WorkItemNote(at=item.at, who=item.who, text=item.fields["note"][1]) for item in reversed(rows)]


def count_notes(tx: Transaction, id: str) -> int:
    return tx.fetch_one(
        int, f"select count(*) from work_item_event where item = :id and change = '{NOTE_ADDED}'", {"id": id}
    )


def history(tx: Transaction, id: str, limit: int) -> list[WorkItemEvent]:
    """Return the changes of a task, newest first."""
    return tx.fetch_all(
        WorkItemEvent,
        "select item, version, change, at, who, reason, fields from work_item_event where item = :id "
        "order by id desc limit cast(:limit as bigint)",
        {"id": id, "limit": limit},
    )
