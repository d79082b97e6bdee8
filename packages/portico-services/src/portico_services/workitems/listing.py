"""Lists: which tasks, in which order, a page at a time; and trees.

The order is the most urgent first, and of these the newest; of those that are due, the first one first. A cursor is the
place of the last task of a page, not a number of tasks: what is added or deleted meanwhile neither hides a task nor
shows one twice.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from portico.extend import Transaction
from portico_services.workitems import query_plan as narrowing
from portico_services.workitems import records
from portico_services.workitems.claims import ORDER
from portico_services.workitems.dependencies import blockers_of
from portico_services.workitems.errors import InvalidTask
from portico_services.workitems.ids import is_id
from portico_services.workitems.query_plan import Narrowing
from portico_services.workitems.records import NEVER, READY, Item
from portico_services.workitems.states import STATUSES
from portico_services.workitems.validation import ALL

MOST_LISTED = 1000
MOST_IN_TREE = 1000
LONGEST_CURSOR = 200
# Of a number that is only said, not gone through.
MOST_COUNTED = 100_000
MOST_PROJECTS = 100
MAX_COUNTED_ELSEWHERE = 1000
_OPEN = "status in ('pending', 'in_progress')"


class Wanted(Struct, frozen=True, kw_only=True):
    """What a list is asked for. An empty parent is: those that have none."""

    status: str | None = None
    parent_id: str | None = None
    query: str | None = None
    blocked: bool | None = None
    ready: bool = False
    open: bool = False
    labels: tuple[str, ...] = ()
    # Claimed or finished by this worker; empty: those that no worker has.
    worker: str | None = None
    # Open ones that are due before this moment, or before now.
    due_before: int | None = None
    overdue: bool = False
    # Of this list, and of none; ALL is of every one.
    project: str = ""

    @property
    def order(self) -> str:
        return "due_at, id" if self.is_by_date else "priority, id desc"

    @property
    def is_by_date(self) -> bool:
        return self.overdue or self.due_before is not None

    @property
    def narrowing(self) -> Narrowing:
        return Narrowing(query=self.query or "", labels=self.labels)

    def where(self, now: int = 0) -> tuple[str, dict[str, Any]]:
        """What is asked for but words, labels and lists."""
        parts: list[str] = []
        values: dict[str, Any] = {}
        if self.status is not None:
            if self.status not in STATUSES:
                raise InvalidTask(f"{self.status[:40]!r} is no status. Use one of {', '.join(STATUSES)}.")
            # A word of ours by now, and the planner sees that an index with the same word will do.
            parts.append(f"status = '{self.status}'")
        if self.parent_id is not None:
            parts.append("parent_id = :parent" if self.parent_id else "parent_id is null")
            values |= {"parent": self.parent_id} if self.parent_id else {}
        if self.blocked is not None:
            parts.append(f"blocked = true and {_OPEN}" if self.blocked else f"(blocked = false or not {_OPEN})")
        if self.worker is not None:
            parts.append("worker = :worker" if self.worker else "worker is null")
            values |= {"worker": self.worker} if self.worker else {}
        if self.open:
            parts.append(_OPEN)
        if self.ready:
            parts.append(READY)
        if self.is_by_date:
            # As the index `work_item_due` has it.
            parts.append(f"due_at < :due and due_at < {NEVER} and {_OPEN}")
            dates = [self.due_before] if self.due_before is not None else []
            values["due"] = min([*dates, now] if self.overdue else dates)
        return " and ".join(parts) or "true", values


class Page(Struct, frozen=True):
    items: list[Item]
    # Where to go on, if there are more.
    cursor: str | None


def page(tx: Transaction, wanted: Wanted, limit: int, cursor: str | None = None, now: int = 0) -> Page:
    if not 1 <= limit <= MOST_LISTED:
        raise InvalidTask(f"limit is 1 to {MOST_LISTED:,}.")
    condition, values = wanted.where(now)
    if cursor is not None:
        values["place"], values["last"] = _opened(cursor, wanted)
        ahead, behind = ("due_at", ">") if wanted.is_by_date else ("priority", "<")
        condition += f" and ({ahead} > :place or ({ahead} = :place and id {behind} :last))"
    found = _found(tx, wanted, condition, values, limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return Page(found[:limit], None if last is None else _sealed(last, wanted))


def _found(tx: Transaction, wanted: Wanted, condition: str, values: dict[str, Any], limit: int) -> list[Item]:
    lists = projects(tx, wanted.project)
    if not wanted.narrowing.is_empty:
        among = f"{condition} and project in :projects"
        ids = narrowing.few(tx, wanted.narrowing, among, {**values, "projects": lists}, wanted.order, limit)
        if ids is not None:
            found = records.fetch(tx, ids)
            return [found[id] for id in ids]
        asked, more = wanted.narrowing.where()
        condition, values = f"{condition} and {asked}", {**values, **more}
    return records.first(tx, lists, condition, values, order=wanted.order, limit=limit)


def projects(tx: Transaction, project: str) -> list[str]:
    """The names of the lists that one looks through who asks for a project."""
    if project != ALL:
        return list(dict.fromkeys(("", project)))
    found = records.projects(tx, MOST_PROJECTS + 1)
    if len(found) > MOST_PROJECTS:
        raise InvalidTask(f"There are more than {MOST_PROJECTS} projects. Name one of them.", some=found[:20])
    return found or [""]


def elsewhere(tx: Transaction, project: str) -> dict[str, int]:
    """Return the other lists and how many tasks each has, up to MAX_COUNTED_ELSEWHERE, if the list of this project is
    empty."""
    lists = records.projects(tx, MOST_PROJECTS)
    if project == ALL or any(one in lists for one in ("", project)):
        return {}
    counted = "select count(*) from (select 1 from work_item where project = :list limit cast(:most as bigint)) counted"
    return {one: tx.one(int, counted, {"list": one, "most": MAX_COUNTED_ELSEWHERE}) for one in lists}


def ready(tx: Transaction, project: str, limit: int) -> list[Item]:
    """In the order in which `next_task` gives them out."""
    return records.first(tx, projects(tx, project), READY, {}, order=ORDER, limit=limit)


def ended(tx: Transaction, project: str, status: str, since: int, limit: int) -> list[Item]:
    """What was completed or failed since a moment, the latest first."""
    # Hence the `||`: without it SQLite takes the index of the status, and sorts all that ever ended.
    condition = "completed_at >= :since and status || '' = :status and project || '' in :projects"
    values = {"since": since, "status": status, "projects": projects(tx, project)}
    return records.which(tx, condition, values, order="completed_at desc", limit=limit)


def count(tx: Transaction, wanted: Wanted, now: int = 0) -> int:
    """How many there are, at most MOST_COUNTED of each list. Not for words and labels."""
    condition, values = wanted.where(now)
    return sum(
        tx.one(
            int,
            f"select count(*) from (select 1 from work_item where project = :list and {condition} "
            "limit cast(:most as bigint)) counted",
            {**values, "list": one, "most": MOST_COUNTED},
        )
        for one in projects(tx, wanted.project)
    )


def _sealed(last: Item, wanted: Wanted) -> str:
    place = last.due_at if wanted.is_by_date else last.priority
    return urlsafe_b64encode(msgspec.json.encode((_asked(wanted), place, last.id))).decode().rstrip("=")


def _opened(cursor: str, wanted: Wanted) -> tuple[int, str]:
    """One answer for every way in which a cursor can be wrong."""
    try:
        if len(cursor) > LONGEST_CURSOR:
            raise ValueError
        data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        asked, place, id = msgspec.json.decode(data, type=tuple[str, int, str])
        if asked == _asked(wanted) and abs(place) <= NEVER and is_id(id):
            return place, id
    except (ValueError, msgspec.MsgspecError):
        pass
    raise InvalidTask(
        "The cursor was not given for this list. Repeat the call with the same arguments and the nextCursor of its "
        "last page, or begin without a cursor."
    )


def _asked(wanted: Wanted) -> str:
    return hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()[:12]


# Trees


class Node(Struct, frozen=True):
    item: Item
    depth: int
    blocked_by: list[str]


class Tree(Struct, frozen=True):
    # A task before what is below it.
    nodes: list[Node]
    # Whether there is more than is shown.
    cut: bool


def tree(
    tx: Transaction, id: str | None, *, open_only: bool = False, most: int = MOST_IN_TREE, project: str = ""
) -> Tree:
    """A task and everything below it; without an id, everything there is in a list."""
    only = f" and {_OPEN}" if open_only else ""
    sorted_items = partial(records.which, tx, order="priority, id", limit=most + 1)
    level = [records.get(tx, id)] if id is not None else _roots(tx, project, only, most + 1)
    found: dict[str, Item] = {}
    below: dict[str | None, list[Item]] = {None: level}
    while level:
        found |= {one.id: one for one in level}
        if len(found) > most:
            break
        level = sorted_items(f"parent_id in :ids{only}", {"ids": [one.id for one in level]})
        for one in level:
            below.setdefault(one.parent_id, []).append(one)
    nodes = list(_walked(below, None, 0))[:most]
    blockers = blockers_of(tx, [one.id for one, _ in nodes])
    shown = [Node(one, depth, blockers[one.id]) for one, depth in nodes]
    return Tree(shown, len(found) > len(nodes))


def _roots(tx: Transaction, project: str, only: str, limit: int) -> list[Item]:
    condition = f"parent_id is null{only}"
    return records.first(tx, projects(tx, project), condition, {}, order="priority, id", limit=limit)


def _walked(below: dict[str | None, list[Item]], parent: str | None, depth: int) -> list[tuple[Item, int]]:
    found: list[tuple[Item, int]] = []
    for one in below.get(parent, ()):
        found.append((one, depth))
        found += _walked(below, one.id, depth + 1)
    return found
