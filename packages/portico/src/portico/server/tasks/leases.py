"""Transactions of a worker: claim jobs, renew leases, write under a lease, and release it.

A worker has a lease on each job that it runs. It writes only while it holds the lease, and only for the run that it
started, so a worker that was wrongly presumed dead can do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct

from portico.server.tasks.jobs import (
    JOB_CHANGED,
    JOB_CREATED,
    SUMMARY_COLUMNS,
    Job,
    JobOutcome,
    failed_outcome,
    finish_job,
    finished_steps,
    store_step,
)
from portico.store.errors import RowMismatch
from portico.store.rows import encode_json_column
from portico.store.transaction import Transaction

# A job fails after this many deaths of its workers: it may be killing them.
MAX_WORKER_DEATHS = 100
# Number of jobs reclaimed in one transaction.
RECLAIM_BATCH_SIZE = 500

# The condition of every write under a lease. `runs` increases with each claim and fences off
# earlier runs.
_LEASED = "id = :id and worker = :worker and runs = :run and status in ('running', 'waiting')"


class Lease(Struct, frozen=True):
    """One run of a job by one worker.

    `limited`: its tool has a concurrency limit, so other jobs may wait for its end.
    """

    id: str
    worker: str
    run: int
    limited: bool = False

    def key(self) -> dict[str, Any]:
        return {"id": self.id, "worker": self.worker, "run": self.run}


# Claiming jobs


class _DueJob(Struct):
    id: str
    priority: int
    run_at: int

    def sort_key(self) -> tuple[int, int, str]:
        return -self.priority, self.run_at, self.id


def claim(
    tx: Transaction, server: str, tools: Mapping[str, int | None], worker: str, now: int, duration: int, max_jobs: int
) -> tuple[list[Job], dict[str, dict[str, Raw]]]:
    """Claim up to `max_jobs` due jobs, most urgent first. Return them, and the finished steps of each.

    `tools` maps the tools of this worker to their concurrency limit, or None.
    """
    due = _select_due_jobs(tx, server, [tool for tool, limit in tools.items() if limit is None], now, max_jobs)
    limited = {tool: limit for tool, limit in tools.items() if limit is not None}
    if limited and _any_due(tx, server, list(limited), now):
        # Without the lock, two workers that count at the same moment would both find room.
        tx.advisory_lock(f"portico jobs {server}")
        for tool, limit in limited.items():
            due += _select_due_jobs(tx, server, [tool], now, min(max_jobs, limit - _running(tx, server, tool)))
    # The queries are sorted each by itself; together they have to be merged by urgency.
    due.sort(key=_DueJob.sort_key)
    if len(due) > max_jobs:
        # Other workers may have skipped the rows that we locked and do not take.
        tx.publish(JOB_CREATED, server)
    order = {job.id: position for position, job in enumerate(due[:max_jobs])}
    if not order:
        return [], {}
    try:
        claimed = tx.fetch_all(
            Job,
            "update portico_job set status = 'running', worker = :worker, lease = :until, attempts = attempts + 1,"
            " runs = runs + 1, updated_at = :now where id in :ids and status = 'queued' returning *",
            {"worker": worker, "until": now + duration, "now": now, "ids": list(order)},
        )
    except RowMismatch:
        # The rows are updated, but one of them is not valid: it must not keep the others in the queue.
        claimed = _read_valid_jobs(tx, list(order), now)
        tx.publish(JOB_CREATED, server)
    # `returning` has no defined order.
    claimed.sort(key=lambda job: order[job.id])
    return claimed, finished_steps(tx, list(order))


def _read_valid_jobs(tx: Transaction, ids: list[str], now: int) -> list[Job]:
    """Return the jobs whose rows are valid, and fail the others."""
    result = []
    for id in ids:
        try:
            result.append(tx.fetch_one(Job, "select * from portico_job where id = :id", {"id": id}))
        except RowMismatch:
            job = tx.fetch_one(Job, f"select {SUMMARY_COLUMNS} from portico_job where id = :id", {"id": id})
            tx.execute("update portico_job set answers = '{}' where id = :id", {"id": id})
            finish_job(
                tx, job, failed_outcome("Internal error: the task was changed in the store; start it again"), now
            )
    return result


def _select_due_jobs(tx: Transaction, server: str, tools: list[str], now: int, limit: int) -> list[_DueJob]:
    if not tools or limit <= 0:
        return []
    # Read from the start of an index that has the right order: hence the `+` and the `||`, without which SQLite chooses
    # another index and sorts the whole queue. A single tool has its own index.
    selection = {"tool": tools[0]} if len(tools) == 1 else {"tools": tools}
    tool = "tool = :tool" if len(tools) == 1 else "tool || '' in :tools"
    return tx.fetch_all(
        _DueJob,
        f"select id, priority, run_at from portico_job where server = :server and status = 'queued' and {tool}"
        " and +run_at <= :now order by priority desc, run_at, id limit :most for update skip locked",
        {"server": server, "now": now, "most": limit, **selection},
    )


def _any_due(tx: Transaction, server: str, tools: list[str], now: int) -> bool:
    return bool(
        tx.fetch_all(
            int,
            "select 1 from portico_job where server = :server and status = 'queued' and tool in :tools"
            " and +run_at <= :now limit 1",
            {"server": server, "tools": tools, "now": now},
        )
    )


def _running(tx: Transaction, server: str, tool: str) -> int:
    return tx.fetch_one(
        int,
        "select count(*) from portico_job where server = :server and tool = :tool and status = 'running'",
        {"server": server, "tool": tool},
    )


def next_due(tx: Transaction, server: str, tools: list[str], now: int) -> int | None:
    """Return when the next delayed job is due, or None."""
    rows = tx.fetch_all(
        int,
        "select run_at from portico_job where server = :server and status = 'queued' and run_at > :now"
        " and tool in :tools order by run_at limit 1",
        {"server": server, "tools": tools, "now": now},
    )
    return rows[0] if rows else None


# Writing under a lease


class LeaseRow(Struct):
    """A lease as stored."""

    id: str
    runs: int
    updated_at: int


def renew(tx: Transaction, server: str, worker: str, until: int) -> list[LeaseRow]:
    """Renew all leases of a worker, and return them."""
    return tx.fetch_all(
        LeaseRow,
        "update portico_job set lease = :until where server = :server and worker = :worker"
        " and status in ('running', 'waiting') returning id, runs, updated_at",
        {"until": until, "server": server, "worker": worker},
    )


def locked_row(tx: Transaction, lease: Lease, columns: str = SUMMARY_COLUMNS) -> Job | None:
    """Return the row of a leased job, locked until the transaction ends, or None if the lease is lost."""
    return tx.fetch_optional(Job, f"select {columns} from portico_job where {_LEASED} for update", lease.key())


def add_input_requests(tx: Transaction, lease: Lease, requests: dict[str, Any], now: int) -> Job | None:
    """Add input requests to a job. Return the job with the responses so far, or None if the lease is lost."""
    job = locked_row(tx, lease, "*")
    if job is None:
        return None
    # A request that was answered already, in an earlier run, is not asked again.
    job.questions |= {key: input_request for key, input_request in requests.items() if key not in job.answers}
    if job.questions:
        tx.execute(
            "update portico_job set status = 'waiting', questions = :questions, updated_at = :now where id = :id",
            {"id": lease.id, "questions": encode_json_column(job.questions), "now": now},
        )
        tx.publish(JOB_CHANGED, lease.id)
        if lease.limited:
            tx.publish(JOB_CREATED, job.server)
    return job


def store_progress(
    tx: Transaction, lease: Lease, progress: float, total: float | None, message: str | None, now: int
) -> bool:
    changed = tx.execute(
        "update portico_job set progress = :progress, total = :total, message = :message, updated_at = :now"
        f" where {_LEASED}",
        {**lease.key(), "progress": progress, "total": total, "message": message, "now": now},
    )
    if changed:
        tx.publish(JOB_CHANGED, lease.id)
    return bool(changed)


def store_leased_step(tx: Transaction, lease: Lease, name: str, value: Raw) -> bool:
    """Store a finished step. Return False if the lease is lost."""
    if locked_row(tx, lease) is None:
        return False
    store_step(tx, lease.id, name, value)
    return True


# Releasing leases


def finish(tx: Transaction, lease: Lease, outcome: JobOutcome, now: int) -> bool:
    """Store the outcome of a job. Return False if the lease is lost."""
    job = locked_row(tx, lease)
    if job is None:
        return False
    finish_job(tx, job, outcome, now)
    if lease.limited:
        tx.publish(JOB_CREATED, job.server)
    return True


def release(tx: Transaction, lease: Lease, run_at: int | None, now: int) -> bool:
    """Return a job to the queue: for a retry at `run_at`, or, with None, because this worker stops."""
    job = locked_row(tx, lease)
    if job is None:
        return False
    # Without a new time it keeps its place in the queue, and the interrupted run does not count as
    # an attempt.
    again = job.run_at if run_at is None else run_at
    tx.execute(
        "update portico_job set status = 'queued', worker = null, lease = null, run_at = :run_at, updated_at = :now,"
        " attempts = :attempts where id = :id",
        {"id": lease.id, "run_at": again, "now": now, "attempts": job.attempts - (run_at is None)},
    )
    tx.publish(JOB_CREATED, job.server)
    tx.publish(JOB_CHANGED, lease.id)
    return True


def release_all(tx: Transaction, server: str, worker: str, now: int) -> None:
    """Return all jobs of a worker to the queue when it stops."""
    changed = tx.execute(
        "update portico_job set status = 'queued', worker = null, lease = null, updated_at = :now,"
        " attempts = attempts - 1 where server = :server and worker = :worker and status in ('running', 'waiting')",
        {"server": server, "worker": worker, "now": now},
    )
    if changed:
        tx.publish(JOB_CREATED, server)


# Recovering from dead workers


def workers(tx: Transaction, server: str) -> list[str]:
    return tx.fetch_all(
        str,
        "select distinct worker from portico_job where server = :server and status in ('running', 'waiting')",
        {"server": server},
    )


def has_expired_leases(tx: Transaction, server: str, now: int) -> bool:
    rows = tx.fetch_all(
        int,
        "select 1 from portico_job where server = :server and status in ('running', 'waiting') and lease < :now"
        " limit 1",
        {"server": server, "now": now},
    )
    return bool(rows)


def reclaim(tx: Transaction, server: str, dead_workers: list[str], now: int) -> int:
    """Return jobs to the queue whose lease has expired or whose worker is dead. Return their number, up to
    RECLAIM_BATCH_SIZE.
    """
    lost = tx.fetch_all(
        Job,
        f"select {SUMMARY_COLUMNS} from portico_job where server = :server and status in ('running', 'waiting')"
        " and (lease < :now or worker in :dead) limit :most for update skip locked",
        {"server": server, "now": now, "dead": dead_workers, "most": RECLAIM_BATCH_SIZE},
    )
    for job in lost:
        if job.deaths + 1 >= MAX_WORKER_DEATHS:
            finish_job(
                tx, job, failed_outcome(f"Internal error: the task's process ended {MAX_WORKER_DEATHS} times"), now
            )
            continue
        # The function did not fail, so it does not count as an attempt.
        tx.execute(
            "update portico_job set status = 'queued', worker = null, lease = null, deaths = deaths + 1,"
            " attempts = attempts - 1, updated_at = :now where id = :id",
            {"id": job.id, "now": now},
        )
        # The worker may be alive after all, and must stop.
        tx.publish(JOB_CHANGED, job.id)
    if lost:
        tx.publish(JOB_CREATED, server)
    return len(lost)
