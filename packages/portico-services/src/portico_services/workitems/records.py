"""The rows: a work item as it is kept, what was done to it, and the statements that read and write them.

All of these are functions of a Transaction. What a change means for tasks that wait is in `dependencies.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from portico.extend import Transaction, json_column
from portico_services.workitems import text_index, validation
from portico_services.workitems.errors import InvalidTask, NoSuchTask
from portico_services.workitems.ids import PREFIX, is_id

TOPIC = "work_item"
# The change that is a note.
NOTED = "note added"
# Of more at once, only that there was something.
MOST_TOLD = 100
COLUMNS = (
    "id", "parent_id", "description", "status", "priority", "context", "result", "worker", "lease_until",
    "blockers_open", "children_open", "blocked", "version", "created_by", "created_at", "started_at", "completed_at",
    "updated_at", "urgency", "project", "due_at", "labels",
)  # fmt: skip
# What is counted, and belongs to no version.
COUNTED = ("blockers_open", "children_open", "blocked", "urgency")
LISTED = ", ".join(COLUMNS)
# What is not due at all: later than every date, so that each engine puts it last.
NEVER = 2**53 - 1
_SELECT = f"select {LISTED} from work_item"
# Whatever is below the task `:above`.
BELOW = (
    "with recursive part(id) as (select id from work_item where parent_id = :above union all "
    "select work_item.id from work_item join part on work_item.parent_id = part.id) select id from part"
)
# The words of the index `work_item_ready`: what can be begun.
READY = "status = 'pending' and blocked = false and children_open = 0"


class Item(Struct, frozen=True, kw_only=True):
    """A work item. Moments are milliseconds."""

    id: str
    parent_id: str | None = None
    description: str
    status: str = "pending"
    priority: int = 3
    context: str = ""
    result: str = ""
    worker: str | None = None
    lease_until: int | None = None
    # Blockers that are not completed, children that are not over.
    blockers_open: int = 0
    children_open: int = 0
    # Whether it, or anything that it is a part of, has a blocker that is not completed.
    blocked: bool = False
    version: int = 1
    created_by: str = ""
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    updated_at: int
    # Its priority, or that of the most urgent open task that waits for it.
    urgency: int = 3
    # Which list it stands in; empty: in all of them. What is below a task is in the same one.
    project: str = ""
    due_at: int = NEVER
    labels: tuple[str, ...] = ()

    @property
    def due(self) -> int | None:
        return None if self.due_at == NEVER else self.due_at

    @property
    def is_open(self) -> bool:
        return self.status in ("pending", "in_progress")

    @property
    def is_ready(self) -> bool:
        """As the index of what can be begun has it."""
        return self.status == "pending" and not self.blocked and self.children_open == 0

    @property
    def lists(self) -> set[str]:
        """Where it is to be found."""
        found = {self.status}
        if self.is_ready:
            found.add("ready")
        if self.blocked and self.is_open:
            found.add("blocked")
        return found


class TaskEvent(Struct, frozen=True, kw_only=True):
    """One change: the version it made, who made it, and of each field what it was and what it is."""

    item: str
    version: int
    change: str
    at: int
    who: str
    reason: str
    fields: dict[str, list[Any]]


class TaskNote(Struct, frozen=True, kw_only=True):
    at: int
    who: str
    text: str


# Writing


def insert(tx: Transaction, items: Sequence[Item]) -> None:
    names, marks = ", ".join(COLUMNS), ", ".join(f":{one}" for one in COLUMNS)
    rows = [{**msgspec.structs.asdict(one), "labels": json_column(one.labels), "words": words(one)} for one in items]
    tx.many(f"insert into work_item ({names}, words) values ({marks}, :words)", rows)
    _label(tx, [(label, one.id) for one in items for label in one.labels])
    text_index.enqueue(tx, [one.id for one in items])
    tell(tx, items)


def _label(tx: Transaction, pairs: Sequence[tuple[str, str]]) -> None:
    if pairs:
        tx.many("insert into work_item_label (label, item) values (?, ?)", pairs)


def words(item: Item) -> str:
    return validation.folded(f"{item.description}\n{item.context}")


def save(tx: Transaction, before: Item, after: Item, change: str, *, who: str = "", reason: str = "") -> Item:
    """Write what is another now, and that it was changed; the item with its new version."""
    changed = [name for name in COLUMNS if getattr(before, name) != getattr(after, name) and name not in COUNTED]
    values = {name: getattr(after, name) for name in changed}
    if {"description", "context"} & set(changed):
        values["words"] = words(after)
        text_index.remove(tx, [(before.id, words(before))])
    if "labels" in changed:
        values["labels"] = json_column(after.labels)
        tx.run("delete from work_item_label where item = :id", {"id": after.id})
        _label(tx, [(label, after.id) for label in after.labels])
    after = replace(after, version=before.version + 1)
    settings = ", ".join(f"{name} = :{name}" for name in values)
    tx.run(
        f"update work_item set {settings}, version = :version where id = :id",
        {**values, "version": after.version, "id": after.id},
    )
    if "words" in values:
        text_index.enqueue(tx, [after.id])
    fields = {name: [getattr(before, name), getattr(after, name)] for name in changed if name != "updated_at"}
    note(tx, after, change, fields, who=who, reason=reason)
    tell(tx, [before, after])
    return after


def move_below(tx: Transaction, id: str, project: str) -> None:
    """What is below a task goes to its list."""
    tx.run(f"update work_item set project = :project where id in ({BELOW})", {"project": project, "above": id})


def touch(
    tx: Transaction, item: Item, change: str, fields: dict[str, list[Any]], now: int, *, who: str, reason: str = ""
) -> Item:
    """A change that is not in its own row, such as a blocker."""
    after = replace(item, version=item.version + 1, updated_at=now)
    tx.run(
        "update work_item set version = :version, updated_at = :now where id = :id",
        {"version": after.version, "now": now, "id": item.id},
    )
    note(tx, after, change, fields, who=who, reason=reason)
    tell(tx, [after])
    return after


def note(
    tx: Transaction, item: Item, change: str, fields: dict[str, list[Any]], *, who: str, reason: str, at: int = 0
) -> None:
    tx.run(
        "insert into work_item_event (item, version, change, at, who, reason, fields) "
        "values (:item, :version, :change, :at, :who, :reason, :fields)",
        {
            "item": item.id,
            "version": item.version,
            "change": change,
            "at": at or item.updated_at,
            "who": who,
            "reason": reason,
            "fields": json_column(fields),
        },
    )


def remove(tx: Transaction, items: Sequence[Item], now: int, *, who: str, reason: str) -> None:
    """For good, except for the history; its last entry says what it was."""
    for one in items:
        was = {name: [value, None] for name, value in msgspec.structs.asdict(one).items() if name not in COUNTED}
        last = replace(one, version=one.version + 1)
        note(tx, last, "deleted", was, who=who, reason=reason, at=now)
    text_index.remove(tx, [(one.id, words(one)) for one in items])
    tx.run("delete from work_item where id in :ids", {"ids": [one.id for one in items]})
    tell(tx, items)


def tell(tx: Transaction, items: Iterable[Item], also: Sequence[str] = ()) -> None:
    """Publish the id of each and the lists where it is or was; for very many at once, only that there are some."""
    told: dict[str, set[str]] = {}
    for one in items:
        told.setdefault(one.id, set(also)).update(one.lists)
    for id, lists in list(told.items())[:MOST_TOLD]:
        tx.publish(TOPIC, " ".join([id, *sorted(lists)]))
    if len(told) > MOST_TOLD:
        tx.publish(TOPIC)


# Reading


def get(tx: Transaction, id: str, *, lock: bool = False) -> Item:
    """With `lock`, no other transaction changes it before this one ends."""
    found = tx.maybe(Item, f"{_SELECT} where id = :id{' for update' if lock else ''}", {"id": id})
    if found is None:
        raise NoSuchTask(id)
    return found


def locked(tx: Transaction, ids: Sequence[str]) -> list[Item]:
    """Those of these ids, in this order. No other transaction changes them before this one ends."""
    found = {one.id: one for one in tx.all(Item, f"{_SELECT} where id in :ids for update", {"ids": list(ids)})}
    for id in ids:
        if id not in found:
            raise NoSuchTask(id)
    return [found[id] for id in ids]


def named(tx: Transaction, text: str) -> str:
    """The id that is meant by an id, its beginning or its end, as people type them. Only one may be like that."""
    text = validation.id_in(text)
    if is_id(text):
        return text
    part = text.removeprefix(PREFIX).lower()
    if not part.isalnum() or not part.isascii():
        raise NoSuchTask(text)
    found = beginning(tx, f"{PREFIX}{part}", 2)
    if not text.startswith(PREFIX):
        found = list({*found, *_ending(tx, part)})
    if len(found) > 1:
        raise InvalidTask(
            f"More than one task begins or ends with {text!r}. Give more of its id.", some=sorted(found)[:5]
        )
    if not found:
        raise NoSuchTask(text)
    return found[0]


def _ending(tx: Transaction, part: str) -> list[str]:
    """What is open first, for of what is over there may be very much."""
    found: list[str] = []
    for condition in ("status in ('pending', 'in_progress')", "status in ('completed', 'failed')"):
        found += tx.all(
            str, f"select id from work_item where {condition} and id like :end limit 2", {"end": f"%{part}"}
        )
        if found:
            break
    return found


def beginning(tx: Transaction, typed: str, most: int) -> list[str]:
    """Ids that begin like this, the newest first."""
    return tx.all(
        str,
        "select id from work_item where id >= :first and id < :last order by id desc limit cast(:most as bigint)",
        {"first": typed, "last": f"{typed}~", "most": most},
    )


def fetch(tx: Transaction, ids: Sequence[str]) -> dict[str, Item]:
    return {one.id: one for one in tx.all(Item, f"{_SELECT} where id in :ids", {"ids": list(ids)})}


def which(
    tx: Transaction, condition: str, values: dict[str, Any], *, order: str = "id", limit: int = 0, lock: str = ""
) -> list[Item]:
    """Those that a phrase of ours is true of; without a limit, all of them."""
    if limit:
        values, lock = {**values, "limit": limit}, f"limit cast(:limit as bigint) {lock}"
    return tx.all(Item, f"{_SELECT} where {condition} order by {order} {lock}", values)


def first(
    tx: Transaction, projects: Sequence[str], condition: str, values: dict[str, Any], *, order: str, limit: int
) -> list[Item]:
    """The first of those that a phrase of ours is true of, in some lists."""
    sql, lists = in_lists(LISTED, projects, condition, order)
    sql = f"{sql} limit cast(:each as bigint)" if len(projects) > 1 else sql
    return tx.all(Item, sql, {**values, **lists, "each": limit})


def in_lists(columns: str, projects: Sequence[str], condition: str, order: str) -> tuple[str, dict[str, str]]:
    """A statement for the first `:each` of every list, and the values that name the lists. A list has its place in an
    index, so each is asked by itself."""
    named = {f"list{number}": project for number, project in enumerate(projects)}
    parts = [
        f"select {columns} from work_item where project = :{name} and {condition} order by {order} "
        "limit cast(:each as bigint)"
        for name in named
    ]
    if len(parts) == 1:
        return parts[0], named
    union = " union all ".join(f"select * from ({part}) {name}" for name, part in zip(named, parts, strict=True))
    return f"{union} order by {order}", named


def projects(tx: Transaction, most: int) -> list[str]:
    """The names of the lists that there are, by steps from one to the next in an index."""
    return tx.all(
        str,
        "with recursive list(name) as (select min(project) from work_item union all "
        "select (select min(project) from work_item where project > list.name) from list where list.name is not null) "
        "select name from list where name is not null limit cast(:most as bigint)",
        {"most": most},
    )


def notes(tx: Transaction, id: str, limit: int) -> list[TaskNote]:
    """The newest ones, in the order in which they were written."""
    found = tx.all(
        TaskEvent,
        "select item, version, change, at, who, reason, fields from work_item_event "
        f"where item = :id and change = '{NOTED}' order by id desc limit cast(:limit as bigint)",
        {"id": id, "limit": limit},
    )
    return [TaskNote(at=one.at, who=one.who, text=one.fields["note"][1]) for one in reversed(found)]


def count_notes(tx: Transaction, id: str) -> int:
    return tx.one(int, f"select count(*) from work_item_event where item = :id and change = '{NOTED}'", {"id": id})


def history(tx: Transaction, id: str, limit: int) -> list[TaskEvent]:
    """The newest first."""
    return tx.all(
        TaskEvent,
        "select item, version, change, at, who, reason, fields from work_item_event where item = :id "
        "order by id desc limit cast(:limit as bigint)",
        {"id": id, "limit": limit},
    )
