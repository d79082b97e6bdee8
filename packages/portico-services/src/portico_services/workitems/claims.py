"""Claims: assign the next task to exactly one worker, and release it when its lease expires.

On PostgreSQL, concurrent workers skip rows that others have locked; SQLite has a single writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.workitems import query_plan, records
from portico_services.workitems.query_plan import TextFilter
from portico_services.workitems.records import COLUMNS_SQL, READY_SQL, WorkItem
from portico_services.workitems.states import apply_transition

# Expired leases released per transaction.
# A claim releases expired leases first, so the batch bounds the time that a worker waits for its task.
MAX_EXPIRED_LEASES_PER_BATCH = 100

# Candidates tried before the worker gets an empty result: other workers may claim them first.
MAX_CLAIM_ATTEMPTS = 100
# The order of the index `work_item_ready`: most urgent first, then earliest due, then oldest.
CLAIM_ORDER = "urgency, due_at, id"
_CLAIM_SQL = (
    "update work_item set status = 'in_progress', started_at = :now, updated_at = :now, worker = :worker, "
    "lease_until = cast(:lease_until as bigint), version = version + 1 where id = "
    # `skip locked` lets concurrent workers on PostgreSQL take different tasks instead of waiting for the same row;
    # SQLite has a single writer and ignores the clause.
    f"(select id from work_item where {{condition}} order by {CLAIM_ORDER} limit 1 for update skip locked) "
    f"returning {COLUMNS_SQL}"
)
# The common case without a filter, formatted once.
_CLAIM_IN_PROJECT_SQL = _CLAIM_SQL.format(condition=f"project = :project and {READY_SQL}")


_LEASE_EXPIRED_REASON = "{0.worker} did not finish or renew it in time"


def claim_next(
    tx: Transaction,
    worker: str,
    now: int,
    lease: int | None,
    *,
    who: str = "",
    projects: Sequence[str] = ("",),
    scope: TextFilter = TextFilter(),
) -> WorkItem | None:
    """Claim the next ready task of some projects for a worker; None if there is none."""
    # Within the same transaction: the task of a crashed worker is available to the very next claim, even if the
    # background task that releases leases does not run.
    release_expired_leases(tx, now)
    if scope.above is not None:
        # Descendants are in the same project as their ancestor.
        projects = [records.get(tx, scope.above).project]
    values = {"now": now, "worker": worker, "lease_until": None if lease is None else now + lease}
    claimed = _try_claim(tx, values, projects, scope)
    if claimed is None:
        return None
    fields: dict[str, list[Any]] = {
        "status": ["pending", "in_progress"],
        "started_at": [None, now],
        "worker": [None, worker],
    }
    # Without a lease the claim lasts until the task is finished, so the history has no end to record.
    if lease is not None:
        fields["lease_until"] = [None, claimed.lease_until]
    records.record_event(tx, claimed, "claimed", fields, who=who or worker, reason="")
    # The statement above returns only the new row, so the lists that the task has left are named here.
    records.publish_changes(tx, [claimed], ("pending", "ready"))
    return claimed


def _try_claim(tx: Transaction, values: dict[str, Any], projects: Sequence[str], scope: TextFilter) -> WorkItem | None:
    """Try to claim a task, by the shortest way to the candidates."""
    if scope.is_empty:
        return _claim_first_unlocked(
            tx,
            _CLAIM_IN_PROJECT_SQL,
            [{**values, "project": item} for item in _projects_in_order(tx, projects, READY_SQL, {})],
        )
    # If the filter matches few tasks, each is claimed by id; otherwise the index of ready tasks is scanned with the
    # filter as an additional condition.
    ids = query_plan.selective_ids(
        tx,
        scope,
        f"{READY_SQL} and project in :projects",
        {"projects": list(projects)},
        CLAIM_ORDER,
        MAX_CLAIM_ATTEMPTS,
    )
    if ids is not None:
        return _claim_first_unlocked(
            # The condition is repeated: another worker may have claimed the task after its id was read.
            tx,
            _CLAIM_SQL.format(condition=f"id = :id and {READY_SQL}"),
            [{**values, "id": id} for id in ids],
        )
    scope_condition, more = scope.where()
    condition = f"{READY_SQL} and {scope_condition}"
    tries = [{**values, **more, "project": item} for item in _projects_in_order(tx, projects, condition, more)]
    return _claim_first_unlocked(tx, _CLAIM_SQL.format(condition=f"project = :project and {condition}"), tries)


def _projects_in_order(
    tx: Transaction, projects: Sequence[str], condition: str, values: dict[str, Any]
) -> Sequence[str]:
    """Return the projects that have ready tasks, the one with the next task first."""
    if "" in projects and len(projects) > 1:
        # Tasks without a project are rare, so they are checked first.
        sql = f"select id from work_item where project = '' and {condition} order by {CLAIM_ORDER} limit 1"
        if tx.fetch_optional(str, sql, values) is None:
            projects = [item for item in projects if item]
    if len(projects) == 1:
        return projects
    # Fetch the first ready task of each project, sorted, to know in which project the overall next one is.
    sql, lists = records.per_project_sql(f"project, {CLAIM_ORDER}", projects, condition, CLAIM_ORDER)
    return [project for project, *_ in tx.fetch_all(tuple[str, int, int, str], sql, {**values, **lists, "each": 1})]


def _claim_first_unlocked(tx: Transaction, sql: str, tries: Iterable[dict[str, Any]]) -> WorkItem | None:
    """Return the first task that no other worker is claiming, or None."""
    for values in tries:
        claimed = tx.fetch_optional(WorkItem, sql, values)
        if claimed is not None:
            return claimed
    return None


def release_expired_leases(tx: Transaction, now: int) -> list[WorkItem]:
    """Set tasks with an expired lease back to pending and return them."""
    ended, lock = "lease_until <= :now", "for update skip locked"
    # Most claims find no expired lease; this reads one entry of an index and takes no lock.
    first = next_lease_expiry(tx)
    if first is None or first > now:
        return []
    overdue = records.select_where(
        tx, ended, {"now": now}, order="lease_until", limit=MAX_EXPIRED_LEASES_PER_BATCH, lock=lock
    )
    return [
        records.save(tx, item, _release(item, now), "lease ended", reason=_LEASE_EXPIRED_REASON.format(item))
        for item in overdue
    ]


def _release(item: WorkItem, now: int) -> WorkItem:
    return replace(item, **apply_transition(item.id, item.status, "pending", now, None), updated_at=now)


def next_lease_expiry(tx: Transaction) -> int | None:
    """Return the time at which the first lease expires, or None."""
    return tx.fetch_optional(
        int, "select lease_until from work_item where lease_until is not null order by lease_until limit 1"
    )
