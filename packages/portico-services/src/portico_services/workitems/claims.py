"""Claims: the next task is given to one worker alone, and taken back when its lease ends.

On PostgreSQL those who look at the same moment pass over what the others are about to take; SQLite has one writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.workitems import query_plan, records
from portico_services.workitems.query_plan import Narrowing
from portico_services.workitems.records import LISTED, READY, Item
from portico_services.workitems.states import transition

# Of those whose leases have ended, so many in one transaction.
MOST_TAKEN_BACK = 100

# Of those that a scope has, so many are tried before the worker is told that there is nothing: others take them, too.
MOST_TRIED = 100
# That of the index `work_item_ready`: the most urgent, of these the one that is due first, and then the oldest.
ORDER = "urgency, due_at, id"
_NEXT = (
    "update work_item set status = 'in_progress', started_at = :now, updated_at = :now, worker = :worker, "
    "lease_until = cast(:lease_until as bigint), version = version + 1 where id = "
    f"(select id from work_item where {{condition}} order by {ORDER} limit 1 for update skip locked) "
    f"returning {LISTED}"
)
_NEXT_OF_LIST = _NEXT.format(condition=f"project = :project and {READY}")


_LATE = "{0.worker} did not finish or renew it in time"


def claim(
    tx: Transaction,
    worker: str,
    now: int,
    lease: int | None,
    *,
    who: str = "",
    projects: Sequence[str] = ("",),
    scope: Narrowing = Narrowing(),
) -> Item | None:
    """The next task of some lists that can be begun, begun by this worker."""
    take_back(tx, now)
    if scope.above is not None:
        # What is below a task is in its list.
        projects = [records.get(tx, scope.above).project]
    values = {"now": now, "worker": worker, "lease_until": None if lease is None else now + lease}
    taken = _taken(tx, values, projects, scope)
    if taken is None:
        return None
    fields: dict[str, list[Any]] = {
        "status": ["pending", "in_progress"],
        "started_at": [None, now],
        "worker": [None, worker],
    }
    if lease is not None:
        fields["lease_until"] = [None, taken.lease_until]
    records.note(tx, taken, "claimed", fields, who=who or worker, reason="")
    records.tell(tx, [taken], ("pending", "ready"))
    return taken


def _taken(tx: Transaction, values: dict[str, Any], projects: Sequence[str], scope: Narrowing) -> Item | None:
    if scope.is_empty:
        return _any(tx, _NEXT_OF_LIST, [{**values, "project": one} for one in _in_turn(tx, projects, READY, {})])
    ids = query_plan.few(
        tx, scope, f"{READY} and project in :projects", {"projects": list(projects)}, ORDER, MOST_TRIED
    )
    if ids is not None:
        return _any(tx, _NEXT.format(condition=f"id = :id and {READY}"), [{**values, "id": id} for id in ids])
    asked, more = scope.where()
    condition = f"{READY} and {asked}"
    tries = [{**values, **more, "project": one} for one in _in_turn(tx, projects, condition, more)]
    return _any(tx, _NEXT.format(condition=f"project = :project and {condition}"), tries)


def _in_turn(tx: Transaction, projects: Sequence[str], condition: str, values: dict[str, Any]) -> Sequence[str]:
    """The lists that have something to do; that one first in which the next task stands."""
    if "" in projects and len(projects) > 1:
        # What is of no project is the exception.
        sql = f"select id from work_item where project = '' and {condition} order by {ORDER} limit 1"
        if tx.maybe(str, sql, values) is None:
            projects = [one for one in projects if one]
    if len(projects) == 1:
        return projects
    sql, lists = records.in_lists(f"project, {ORDER}", projects, condition, ORDER)
    return [project for project, *_ in tx.all(tuple[str, int, int, str], sql, {**values, **lists, "each": 1})]


def _any(tx: Transaction, sql: str, tries: Iterable[dict[str, Any]]) -> Item | None:
    """The first that no other worker is just taking."""
    for values in tries:
        taken = tx.maybe(Item, sql, values)
        if taken is not None:
            return taken
    return None


def take_back(tx: Transaction, now: int) -> list[Item]:
    """What workers did not finish in time can be begun by others again."""
    ended, lock = "lease_until <= :now", "for update skip locked"
    first = next_end(tx)
    if first is None or first > now:
        return []
    overdue = records.which(tx, ended, {"now": now}, order="lease_until", limit=MOST_TAKEN_BACK, lock=lock)
    return [records.save(tx, item, _released(item, now), "lease ended", reason=_LATE.format(item)) for item in overdue]


def _released(item: Item, now: int) -> Item:
    return replace(item, **transition(item.id, item.status, "pending", now, None), updated_at=now)


def next_end(tx: Transaction) -> int | None:
    """When the first lease ends."""
    return tx.maybe(int, "select lease_until from work_item where lease_until is not null order by lease_until limit 1")
