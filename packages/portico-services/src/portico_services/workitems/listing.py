"""Listing: filtered and ordered tasks, page by page, and trees.

The order is most urgent first, then newest; lists by due date are earliest first. A cursor is the position of the last
task of a page, not an offset, so tasks added or deleted between two pages are neither skipped nor repeated.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from portico.extend import Transaction
from portico_services.workitems import query_plan as narrowing, records
from portico_services.workitems.claims import CLAIM_ORDER
from portico_services.workitems.dependencies import load_blockers
from portico_services.workitems.errors import InvalidWorkItem
from portico_services.workitems.ids import is_id
from portico_services.workitems.query_plan import TextFilter
from portico_services.workitems.records import NO_DUE_DATE, READY_SQL, WorkItem
from portico_services.workitems.states import STATUSES
from portico_services.workitems.validation import ALL_PROJECTS

MAX_PAGE_ITEMS = 1000
MAX_TREE_ITEMS = 1000
MAX_CURSOR_CHARS = 200
# Upper bound of counts that are only displayed.
# Counting is linear; nobody reads the difference between 100,000 and a million.
MAX_COUNTED_ITEMS = 100_000
MAX_PROJECTS = 100
MAX_COUNTED_ELSEWHERE = 1000
_OPEN_SQL = "status in ('pending', 'in_progress')"


class ListQuery(Struct, frozen=True, kw_only=True):
    """Filter of a list. An empty parent selects top-level tasks."""

    status: str | None = None
    parent_id: str | None = None
    query: str | None = None
    blocked: bool | None = None
    ready: bool = False
    open: bool = False
    labels: tuple[str, ...] = ()
    # Claimed or finished by this worker; empty selects unclaimed tasks.
    worker: str | None = None
    # Open tasks due before this time, or before now.
    due_before: int | None = None
    overdue: bool = False
    # Tasks of this project and tasks without a project; ALL_PROJECTS for all.
    project: str = ""

    @property
    def order(self) -> str:
        return "due_at, id" if self.is_ordered_by_due_date else "priority, id desc"

    @property
    def is_ordered_by_due_date(self) -> bool:
        return self.overdue or self.due_before is not None

    @property
    def text_filter(self) -> TextFilter:
        return TextFilter(query=self.query or "", labels=self.labels)

    def where(self, now: int = 0) -> tuple[str, dict[str, Any]]:
        """Return the SQL condition without words, labels and projects, and its parameters."""
        parts: list[str] = []
        values: dict[str, Any] = {}
        if self.status is not None:
            if self.status not in STATUSES:
                raise InvalidWorkItem(f"Unknown status {self.status[:40]!r}. Expected one of {', '.join(STATUSES)}.")
            # A validated literal instead of a parameter, so that the planner can use the partial index for this status.
            parts.append(f"status = '{self.status}'")
        if self.parent_id is not None:
            parts.append("parent_id = :parent" if self.parent_id else "parent_id is null")
            values |= {"parent": self.parent_id} if self.parent_id else {}
        if self.blocked is not None:
            # A closed task keeps its flag, so `blocked` alone would list finished tasks.
            parts.append(f"blocked = true and {_OPEN_SQL}" if self.blocked else f"(blocked = false or not {_OPEN_SQL})")
        if self.worker is not None:
            parts.append("worker = :worker" if self.worker else "worker is null")
            values |= {"worker": self.worker} if self.worker else {}
        if self.open:
            parts.append(_OPEN_SQL)
        if self.ready:
            parts.append(READY_SQL)
        if self.is_ordered_by_due_date:
            # Must match the condition of the partial index `work_item_due`.
            parts.append(f"due_at < :due and due_at < {NO_DUE_DATE} and {_OPEN_SQL}")
            dates = [self.due_before] if self.due_before is not None else []
            # Both limits together mean the earlier one.
            values["due"] = min([*dates, now] if self.overdue else dates)
        return " and ".join(parts) or "true", values


class ItemPage(Struct, frozen=True):
    """One page of a list."""

    items: list[WorkItem]
    # Position of the next page, if there is one.
    cursor: str | None


def list_page(tx: Transaction, query: ListQuery, limit: int, cursor: str | None = None, now: int = 0) -> ItemPage:
    """Return a page of tasks. Raises `InvalidWorkItem` for an invalid limit or cursor."""
    if not 1 <= limit <= MAX_PAGE_ITEMS:
        raise InvalidWorkItem(f"limit must be between 1 and {MAX_PAGE_ITEMS:,}, got {limit}.")
    condition, values = query.where(now)
    if cursor is not None:
        values["place"], values["last"] = _decode_cursor(cursor, query)
        # Keyset pagination instead of an offset: pages stay consistent while tasks are added, and the last page is as
        # fast as the first.
        ahead, behind = ("due_at", ">") if query.is_ordered_by_due_date else ("priority", "<")
        condition += f" and ({ahead} > :place or ({ahead} = :place and id {behind} :last))"
    # One more than requested tells whether there is a next page.
    page = _select_page(tx, query, condition, values, limit + 1)
    last = page[limit - 1] if len(page) > limit else None
    return ItemPage(page[:limit], None if last is None else _encode_cursor(last, query))


def _select_page(
    tx: Transaction, query: ListQuery, condition: str, values: dict[str, Any], limit: int
) -> list[WorkItem]:
    lists = matching_projects(tx, query.project)
    if not query.text_filter.is_empty:
        among = f"{condition} and project in :projects"
        ids = narrowing.selective_ids(tx, query.text_filter, among, {**values, "projects": lists}, query.order, limit)
        if ids is not None:
            result = records.fetch(tx, ids)
            return [result[id] for id in ids]
        text_condition, more = query.text_filter.where()
        condition, values = f"{condition} and {text_condition}", {**values, **more}
    return records.select_first(tx, lists, condition, values, order=query.order, limit=limit)


def matching_projects(tx: Transaction, project: str) -> list[str]:
    """Return the projects to search for a project: itself and tasks without a project."""
    if project != ALL_PROJECTS:
        # Tasks without a project belong to every project.
        return list(dict.fromkeys(("", project)))
    projects = records.list_projects(tx, MAX_PROJECTS + 1)
    if len(projects) > MAX_PROJECTS:
        raise InvalidWorkItem(f"There are more than {MAX_PROJECTS} projects. Name one of them.", some=projects[:20])
    return projects or [""]


def elsewhere(tx: Transaction, project: str) -> dict[str, int]:
    """Return the number of tasks of each other project, up to MAX_COUNTED_ELSEWHERE, if this project has none."""
    lists = records.list_projects(tx, MAX_PROJECTS)
    if project == ALL_PROJECTS or any(list_ in lists for list_ in ("", project)):
        return {}
    counted = "select count(*) from (select 1 from work_item where project = :list limit cast(:most as bigint)) counted"
    return {list_: tx.fetch_one(int, counted, {"list": list_, "most": MAX_COUNTED_ELSEWHERE}) for list_ in lists}


def list_ready(tx: Transaction, project: str, limit: int) -> list[WorkItem]:
    """Return tasks that can be started, in the order in which `next_task` assigns them."""
    return records.select_first(tx, matching_projects(tx, project), READY_SQL, {}, order=CLAIM_ORDER, limit=limit)


def list_finished(tx: Transaction, project: str, status: str, since: int, limit: int) -> list[WorkItem]:
    """Return tasks completed or failed since a time, latest first."""
    # `|| ''` prevents SQLite from using the index of the status and sorting all tasks that ever ended.
    condition = "completed_at >= :since and status || '' = :status and project || '' in :projects"
    values = {"since": since, "status": status, "projects": matching_projects(tx, project)}
    return records.select_where(tx, condition, values, order="completed_at desc", limit=limit)


def count_items(tx: Transaction, query: ListQuery, now: int = 0) -> int:
    """Count the tasks that match a query, up to MAX_COUNTED_ITEMS per project. Words and labels are ignored."""
    condition, values = query.where(now)
    return sum(
        tx.fetch_one(
            int,
            f"select count(*) from (select 1 from work_item where project = :list and {condition} "
            "limit cast(:most as bigint)) counted",
            {**values, "list": matching_project, "most": MAX_COUNTED_ITEMS},
        )
        for matching_project in matching_projects(tx, query.project)
    )


def _encode_cursor(last: WorkItem, query: ListQuery) -> str:
    """Return the cursor of the page after a task. It includes a digest of the query."""
    sort_value = last.due_at if query.is_ordered_by_due_date else last.priority
    return urlsafe_b64encode(msgspec.json.encode((_query_digest(query), sort_value, last.id))).decode().rstrip("=")


def _decode_cursor(cursor: str, query: ListQuery) -> tuple[int, str]:
    """Return the position that a cursor encodes. All kinds of invalid cursors raise the same error."""
    try:
        if len(cursor) > MAX_CURSOR_CHARS:
            raise ValueError
        data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        digest, sort_value, id = msgspec.json.decode(data, type=tuple[str, int, str])
        # The digest binds the cursor to its query: with another filter its position would skip or repeat tasks.
        if digest == _query_digest(query) and abs(sort_value) <= NO_DUE_DATE and is_id(id):
            return sort_value, id
    except (ValueError, msgspec.MsgspecError):
        pass
    raise InvalidWorkItem(
        "Invalid cursor: expected the nextCursor of the previous page of the same list. Repeat the call with the same "
        "arguments and that cursor, or begin without a cursor."
    )


def _query_digest(query: ListQuery) -> str:
    return hashlib.sha256(msgspec.json.encode(query)).hexdigest()[:12]


# Trees.


class TreeNode(Struct, frozen=True):
    """A task in a tree."""

    item: WorkItem
    depth: int
    blocked_by: list[str]


class ItemTree(Struct, frozen=True):
    """A tree of tasks."""

    # Parents before their children.
    nodes: list[TreeNode]
    # Whether the tree was truncated.
    cut: bool


def load_tree(
    tx: Transaction, id: str | None, *, open_only: bool = False, limit: int = MAX_TREE_ITEMS, project: str = ""
) -> ItemTree:
    """Return a task with its descendants; without an id, all tasks of a project."""
    only = f" and {_OPEN_SQL}" if open_only else ""
    sorted_items = partial(records.select_where, tx, order="priority, id", limit=limit + 1)
    level = [records.get(tx, id)] if id is not None else _roots(tx, project, only, limit + 1)
    result: dict[str, WorkItem] = {}
    below: dict[str | None, list[WorkItem]] = {None: level}
    while level:
        result |= {item.id: item for item in level}
        # Stop before loading the next level of a very wide tree; the result is marked as truncated.
        if len(result) > limit:
            break
        level = sorted_items(f"parent_id in :ids{only}", {"ids": [item.id for item in level]})
        for item in level:
            below.setdefault(item.parent_id, []).append(item)
    nodes = list(_depth_first(below, None, 0))[:limit]
    blockers = load_blockers(tx, [item.id for item, _ in nodes])
    tree = [TreeNode(item, depth, blockers[item.id]) for item, depth in nodes]
    return ItemTree(tree, len(result) > len(nodes))


def _roots(tx: Transaction, project: str, only: str, limit: int) -> list[WorkItem]:
    condition = f"parent_id is null{only}"
    return records.select_first(tx, matching_projects(tx, project), condition, {}, order="priority, id", limit=limit)


def _depth_first(below: dict[str | None, list[WorkItem]], parent: str | None, depth: int) -> list[tuple[WorkItem, int]]:
    results: list[tuple[WorkItem, int]] = []
    for item in below.get(parent, ()):
        results.append((item, depth))
        results += _depth_first(below, item.id, depth + 1)
    return results
