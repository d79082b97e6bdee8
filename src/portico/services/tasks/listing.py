"""Lists: which tasks, in which order, a page at a time; and trees.

The order is the most urgent first, and of these the newest. A cursor is the place of the last task of a page, not a
number of tasks: what is added or deleted meanwhile neither hides a task nor shows one twice.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from portico.extend import Transaction
from portico.services.tasks import inputs, records
from portico.services.tasks.dependencies import blockers_of
from portico.services.tasks.errors import InvalidTask
from portico.services.tasks.ids import is_id
from portico.services.tasks.records import READY, Item
from portico.services.tasks.states import STATUSES

MOST_LISTED = 1000
MOST_IN_TREE = 1000
LONGEST_CURSOR = 200
# Of a number that is only said, not gone through.
MOST_COUNTED = 100_000
_OPEN = "status in ('pending', 'in_progress')"


class Wanted(Struct, frozen=True, kw_only=True):
    """What a list is asked for. An empty parent is: those that have none."""

    status: str | None = None
    parent_id: str | None = None
    query: str | None = None
    blocked: bool | None = None
    ready: bool = False
    open: bool = False

    def where(self) -> tuple[str, dict[str, Any]]:
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
        if self.open:
            parts.append(_OPEN)
        if self.ready:
            parts.append(READY)
        for number, pattern in enumerate(inputs.patterns(self.query or "")):
            parts.append(f"words like :word{number} escape '\\'")
            values[f"word{number}"] = pattern
        return " and ".join(parts) or "true", values


class Page(Struct, frozen=True):
    items: list[Item]
    # Where to go on, if there are more.
    cursor: str | None


def page(tx: Transaction, wanted: Wanted, limit: int, cursor: str | None = None) -> Page:
    if not 1 <= limit <= MOST_LISTED:
        raise InvalidTask(f"limit is 1 to {MOST_LISTED:,}.")
    condition, values = wanted.where()
    if cursor is not None:
        values["priority"], values["last"] = _opened(cursor, wanted)
        condition += " and (priority > :priority or (priority = :priority and id < :last))"
    found = records.which(tx, condition, values, order="priority, id desc", limit=limit + 1)
    last = found[limit - 1] if len(found) > limit else None
    return Page(found[:limit], None if last is None else _sealed(last, wanted))


def ready(tx: Transaction, limit: int) -> list[Item]:
    """In the order in which `next_task` gives them out."""
    return records.which(tx, READY, {}, order="urgency, id", limit=limit)


def ended(tx: Transaction, status: str, since: int, limit: int) -> list[Item]:
    """What was completed or failed since a moment, the latest first."""
    # Hence the `||`: without it SQLite takes the index of the status, and sorts all that ever ended.
    condition, values = "completed_at >= :since and status || '' = :status", {"since": since, "status": status}
    return records.which(tx, condition, values, order="completed_at desc", limit=limit)


def count(tx: Transaction, wanted: Wanted) -> int:
    """How many there are, at most MOST_COUNTED."""
    condition, values = wanted.where()
    return tx.one(
        int,
        f"select count(*) from (select 1 from work_item where {condition} limit cast(:most as bigint)) counted",
        {**values, "most": MOST_COUNTED},
    )


def _sealed(last: Item, wanted: Wanted) -> str:
    return urlsafe_b64encode(msgspec.json.encode((_asked(wanted), last.priority, last.id))).decode().rstrip("=")


def _opened(cursor: str, wanted: Wanted) -> tuple[int, str]:
    """One answer for every way in which a cursor can be wrong."""
    try:
        if len(cursor) > LONGEST_CURSOR:
            raise ValueError
        data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        asked, priority, id = msgspec.json.decode(data, type=tuple[str, int, str])
        if asked == _asked(wanted) and 1 <= priority <= 5 and is_id(id):
            return priority, id
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


def tree(tx: Transaction, id: str | None, *, open_only: bool = False, most: int = MOST_IN_TREE) -> Tree:
    """A task and everything below it; without an id, everything there is."""
    only = f" and {_OPEN}" if open_only else ""
    sorted_items = partial(records.which, tx, order="priority, id", limit=most + 1)
    level = [records.get(tx, id)] if id is not None else sorted_items(f"parent_id is null{only}", {})
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


def _walked(below: dict[str | None, list[Item]], parent: str | None, depth: int) -> list[tuple[Item, int]]:
    found: list[tuple[Item, int]] = []
    for one in below.get(parent, ()):
        found.append((one, depth))
        found += _walked(below, one.id, depth + 1)
    return found
