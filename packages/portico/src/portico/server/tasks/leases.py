"""The transactions of a worker: claim jobs, renew their leases, write under a lease, and let go.

A worker has a lease of each job it runs. It writes only while the lease is its own, and only for the run that it began,
so a worker that was thought dead and is not can do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct

from portico.server.tasks.jobs import BRIEF, CHANGED, CREATED, Job, Outcome, end, failed, keep_step, steps
from portico.store.rows import json_column
from portico.store.transaction import Transaction

# A job whose workers die again and again is given up at last.
MOST_DEATHS = 100
# Of those whose workers have died, so many in one transaction.
MOST_RECLAIMED = 500

_LEASED = "id = :id and worker = :worker and runs = :run and status in ('running', 'waiting')"


class Lease(Struct, frozen=True):
    """One run of a job by one worker. `limited`: of its tool only so many may run, so others may wait for its end."""

    id: str
    worker: str
    run: int
    limited: bool = False

    def where(self) -> dict[str, Any]:
        return {"id": self.id, "worker": self.worker, "run": self.run}


# Claiming


class _DueJob(Struct):
    id: str
    priority: int
    run_at: int

    def urgency(self) -> tuple[int, int, str]:
        return -self.priority, self.run_at, self.id


def claim(
    tx: Transaction, server: str, tools: Mapping[str, int | None], worker: str, now: int, duration: int, most: int
) -> tuple[list[Job], dict[str, dict[str, Raw]]]:
    """Claim up to `most` due jobs, most urgent first. Returns them, and the finished steps of each.

    `tools` are the tools of this worker, and how many jobs of each may run at once, if that is limited.
    """
    due = _due(tx, server, [tool for tool, limit in tools.items() if limit is None], now, most)
    limited = {tool: limit for tool, limit in tools.items() if limit is not None}
    if limited and _any_due(tx, server, list(limited), now):
        # Two workers that count at the same moment would both find room.
        tx.lock(f"portico jobs {server}")
        for tool, limit in limited.items():
            due += _due(tx, server, [tool], now, min(most, limit - _running(tx, server, tool)))
    due.sort(key=_DueJob.urgency)
    if len(due) > most:
        # Others may have passed over what we looked at and leave.
        tx.publish(CREATED, server)
    order = {job.id: place for place, job in enumerate(due[:most])}
    if not order:
        return [], {}
    claimed = tx.all(
        Job,
        "update portico_job set status = 'running', worker = :worker, lease = :until, attempts = attempts + 1,"
        " runs = runs + 1, updated_at = :now where id in :ids and status = 'queued' returning *",
        {"worker": worker, "until": now + duration, "now": now, "ids": list(order)},
    )
    claimed.sort(key=lambda job: order[job.id])
    return claimed, steps(tx, list(order))


def _due(tx: Transaction, server: str, tools: list[str], now: int, most: int) -> list[_DueJob]:
    if not tools or most <= 0:
        return []
    # In the order of an index, from its beginning: hence the `+` and the `||`, without which SQLite prefers another
    # index and sorts the whole queue. One tool has an index of its own.
    one = {"tool": tools[0]} if len(tools) == 1 else {"tools": tools}
    tool = "tool = :tool" if len(tools) == 1 else "tool || '' in :tools"
    return tx.all(
        _DueJob,
        f"select id, priority, run_at from portico_job where server = :server and status = 'queued' and {tool}"
        " and +run_at <= :now order by priority desc, run_at, id limit :most for update skip locked",
        {"server": server, "now": now, "most": most, **one},
    )


def _any_due(tx: Transaction, server: str, tools: list[str], now: int) -> bool:
    return bool(
        tx.all(
            int,
            "select 1 from portico_job where server = :server and status = 'queued' and tool in :tools"
            " and +run_at <= :now limit 1",
            {"server": server, "tools": tools, "now": now},
        )
    )


def _running(tx: Transaction, server: str, tool: str) -> int:
    return tx.one(
        int,
        "select count(*) from portico_job where server = :server and tool = :tool and status = 'running'",
        {"server": server, "tool": tool},
    )


def next_due(tx: Transaction, server: str, tools: list[str], now: int) -> int | None:
    """When the next job may run that has to wait."""
    found = tx.all(
        int,
        "select run_at from portico_job where server = :server and status = 'queued' and run_at > :now"
        " and tool in :tools order by run_at limit 1",
        {"server": server, "tools": tools, "now": now},
    )
    return found[0] if found else None


# Under a lease


class LeaseRow(Struct):
    """A lease as the store has it."""

    id: str
    runs: int
    updated_at: int


def renew(tx: Transaction, server: str, worker: str, until: int) -> list[LeaseRow]:
    """Say that a worker lives. Returns the leases it has."""
    return tx.all(
        LeaseRow,
        "update portico_job set lease = :until where server = :server and worker = :worker"
        " and status in ('running', 'waiting') returning id, runs, updated_at",
        {"until": until, "server": server, "worker": worker},
    )


def locked_row(tx: Transaction, lease: Lease, columns: str = BRIEF) -> Job | None:
    """The row of a leased job, locked until the transaction ends. None: the lease is lost."""
    return tx.maybe(Job, f"select {columns} from portico_job where {_LEASED} for update", lease.where())


def ask(tx: Transaction, lease: Lease, questions: dict[str, Any], now: int) -> Job | None:
    """Add questions to a job. Returns the job, with what was answered meanwhile; None: the lease is lost."""
    job = locked_row(tx, lease, "*")
    if job is None:
        return None
    job.questions |= {key: one for key, one in questions.items() if key not in job.answers}
    if job.questions:
        tx.run(
            "update portico_job set status = 'waiting', questions = :questions, updated_at = :now where id = :id",
            {"id": lease.id, "questions": json_column(job.questions), "now": now},
        )
        tx.publish(CHANGED, lease.id)
        if lease.limited:
            tx.publish(CREATED, job.server)
    return job


def report(tx: Transaction, lease: Lease, progress: float, total: float | None, message: str | None, now: int) -> bool:
    changed = tx.run(
        "update portico_job set progress = :progress, total = :total, message = :message, updated_at = :now"
        f" where {_LEASED}",
        {**lease.where(), "progress": progress, "total": total, "message": message, "now": now},
    )
    if changed:
        tx.publish(CHANGED, lease.id)
    return bool(changed)


def step(tx: Transaction, lease: Lease, name: str, value: Raw) -> bool:
    """Remember a finished step. False: the lease is lost."""
    if locked_row(tx, lease) is None:
        return False
    keep_step(tx, lease.id, name, value)
    return True


# Letting go


def finish(tx: Transaction, lease: Lease, outcome: Outcome, now: int) -> bool:
    job = locked_row(tx, lease)
    if job is None:
        return False
    end(tx, job, outcome, now)
    if lease.limited:
        tx.publish(CREATED, job.server)
    return True


def release(tx: Transaction, lease: Lease, run_at: int | None, now: int) -> bool:
    """Put a job back into the queue: for another attempt at `run_at`, or, with None, because this worker stops."""
    job = locked_row(tx, lease)
    if job is None:
        return False
    again = job.run_at if run_at is None else run_at
    tx.run(
        "update portico_job set status = 'queued', worker = null, lease = null, run_at = :run_at, updated_at = :now,"
        " attempts = :attempts where id = :id",
        {"id": lease.id, "run_at": again, "now": now, "attempts": job.attempts - (run_at is None)},
    )
    tx.publish(CREATED, job.server)
    tx.publish(CHANGED, lease.id)
    return True


def release_all(tx: Transaction, server: str, worker: str, now: int) -> None:
    """The same for everything a worker leases, when it goes away."""
    changed = tx.run(
        "update portico_job set status = 'queued', worker = null, lease = null, updated_at = :now,"
        " attempts = attempts - 1 where server = :server and worker = :worker and status in ('running', 'waiting')",
        {"server": server, "worker": worker, "now": now},
    )
    if changed:
        tx.publish(CREATED, server)


# After workers that have died


def workers(tx: Transaction, server: str) -> list[str]:
    return tx.all(
        str,
        "select distinct worker from portico_job where server = :server and status in ('running', 'waiting')",
        {"server": server},
    )


def overdue(tx: Transaction, server: str, now: int) -> bool:
    found = tx.all(
        int,
        "select 1 from portico_job where server = :server and status in ('running', 'waiting') and lease < :now"
        " limit 1",
        {"server": server, "now": now},
    )
    return bool(found)


def reclaim(tx: Transaction, server: str, dead: list[str], now: int) -> int:
    """Put jobs back whose lease has run out or whose worker is dead. Returns how many, at most MOST_RECLAIMED."""
    lost = tx.all(
        Job,
        f"select {BRIEF} from portico_job where server = :server and status in ('running', 'waiting')"
        " and (lease < :now or worker in :dead) limit :most for update skip locked",
        {"server": server, "now": now, "dead": dead, "most": MOST_RECLAIMED},
    )
    for job in lost:
        if job.deaths + 1 >= MOST_DEATHS:
            end(tx, job, failed(f"Internal error: its process ended {MOST_DEATHS} times"), now)
            continue
        # It is not the body's failure, so it does not count as an attempt.
        tx.run(
            "update portico_job set status = 'queued', worker = null, lease = null, deaths = deaths + 1,"
            " attempts = attempts - 1, updated_at = :now where id = :id",
            {"id": job.id, "now": now},
        )
        # Its worker may live after all, and should stop.
        tx.publish(CHANGED, job.id)
    if lost:
        tx.publish(CREATED, server)
    return len(lost)
