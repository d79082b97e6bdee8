"""Jobs: tasks as stored. Every function here is a transaction, or part of one.

```
queued ──claim──▶ running ──ask──▶ waiting ──answer──▶ running ──finish──▶ completed | failed
   ▲                 │                                    │
   └──── retry, release, or the end of its worker ────────┘        cancel, from anywhere ──▶ cancelled
```

The transactions of workers are in `leases.py`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from portico.protocol.errors import InternalError
from portico.store.keys import SigningKeys
from portico.store.rows import encode_json_column
from portico.store.transaction import Transaction

JobStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]

# Maximum number of unfinished tasks of one owner.
MAX_OPEN_JOBS_PER_OWNER = 10_000
# Minimum retention of a finished job, whatever its time to live.
EXPIRY_GRACE_MS = 60_000
PAGE_SIZE = 100
# SQLite has one writer, so one transaction deletes no more than this.
SWEEP_BATCH_SIZE = 500

_PURPOSE = b"rows of tasks"

JOB_CREATED, JOB_CHANGED = "portico.job.created", "portico.job.changed"


class Job(Struct, kw_only=True):
    """A row of the job table."""

    id: str
    server: str
    tool: str
    arguments: Raw
    owner: str
    caller: Raw
    status: JobStatus
    priority: int
    created_at: int
    updated_at: int
    run_at: int
    ttl: int | None
    expires_at: int | None
    attempts: int
    deaths: int
    # How often it was claimed: a worker may write only for its own run.
    runs: int = 0
    worker: str | None
    lease: int | None
    message: str | None
    progress: float | None
    total: float | None
    questions: dict[str, Any]
    answers: dict[str, Raw]
    # Whether the tool reported an error. The two task designs use different statuses for it.
    refused: bool = False
    outcome: Raw
    # Signature of tool, arguments and caller, with a key that is not in the store.
    signature: str | None = None

    def sign(self, keys: SigningKeys) -> None:
        self.signature = keys.sign_row(_PURPOSE, *self._signed_values())

    def is_authentic(self, keys: SigningKeys) -> bool:
        """Return whether it was queued by a process with the store's key, with this tool, these arguments and this
        caller.
        """
        # Attack: an intruder with write access to the database, but not to the key, inserts a row that
        # runs a tool as another user.
        return keys.is_row_signed(_PURPOSE, self.signature, *self._signed_values())

    def _signed_values(self) -> tuple[str, ...]:
        return self.id, self.server, self.tool, bytes(self.arguments).decode(), self.owner, bytes(self.caller).decode()

    @property
    def outcome_status(self) -> JobStatus:
        """Return the status for an operator: a completed job whose tool reported an error has failed."""
        return "failed" if self.refused and self.status == "completed" else self.status

    @property
    def is_finished(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")


class JobOutcome(Struct, frozen=True):
    """Outcome of a job. `again`: it failed unexpectedly and may be retried."""

    status: JobStatus
    value: Raw = Raw(b"")
    message: str | None = None
    is_tool_error: bool = False
    is_retryable: bool = False


def now_ms() -> int:
    """Return the current time in milliseconds, the unit of the store."""
    return int(time.time() * 1000)


def new_id() -> str:
    """Return a new id. Without authentication the id alone gives access to the task, so it must be unguessable.

    It never begins with a dash, which a shell would pass as an option.
    """
    return secrets.token_hex(16)


def create(tx: Transaction, job: Job, steps: Mapping[str, Raw]) -> Job:
    """Queue a job. Raises InternalError if its owner has MAX_OPEN_JOBS_PER_OWNER unfinished jobs."""
    # `limit` inside the count: an owner with a million rows must not make each new task slower.
    open_ones = tx.fetch_one(
        int,
        "select count(*) from (select 1 from portico_job where server = :server and owner = :owner"
        " and status in ('queued', 'running', 'waiting') limit :most) as counted",
        {"server": job.server, "owner": job.owner, "most": MAX_OPEN_JOBS_PER_OWNER},
    )
    if open_ones >= MAX_OPEN_JOBS_PER_OWNER:
        raise InternalError(f"Rejected: {MAX_OPEN_JOBS_PER_OWNER} tasks are unfinished")
    columns = Job.__struct_fields__
    values = {name: _column(getattr(job, name)) for name in columns}
    names, placeholders = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    tx.execute(f"insert into portico_job ({names}) values ({placeholders})", values)
    for name, value in steps.items():
        store_step(tx, job.id, name, value)
    tx.publish(JOB_CREATED, job.server)
    return job


def _column(value: Any) -> Any:
    if isinstance(value, Raw):
        return bytes(value).decode() or None
    return encode_json_column(value) if isinstance(value, dict) else value


def get(tx: Transaction, server: str, id: str) -> Job | None:
    return tx.fetch_optional(
        Job, "select * from portico_job where id = :id and server = :server", {"id": id, "server": server}
    )


def get_many(tx: Transaction, server: str, ids: list[str]) -> list[Job]:
    # Filter by server here: in the statement, SQLite would choose that index and read all jobs of the server.
    return [job for job in tx.fetch_all(Job, SELECT_BY_IDS, {"ids": ids}) if job.server == server]


SELECT_BY_IDS = "select * from portico_job where id in :ids"

# All columns except large ones.
SUMMARY_COLUMNS = ", ".join(
    {"arguments": "'{}' as arguments", "questions": "'{}' as questions", "answers": "'{}' as answers"}.get(
        name, "null as outcome" if name == "outcome" else name
    )
    for name in Job.__struct_fields__
)


def list_jobs(tx: Transaction, server: str, owner: str, after: tuple[int, str], limit: int = PAGE_SIZE) -> list[Job]:
    """Return an owner's jobs, oldest first, without large columns."""
    return tx.fetch_all(
        Job,
        f"select {SUMMARY_COLUMNS} from portico_job where server = :server and owner = :owner and created_at >= "
        ":created"
        " and (created_at > :created or id > :id) order by created_at, id limit :most",
        {"server": server, "owner": owner, "created": after[0], "id": after[1], "most": limit},
    )


def store_responses(tx: Transaction, id: str, responses: Mapping[str, Raw], now: int) -> bool:
    """Store responses to pending input requests; others are ignored (tasks/update). Return whether any were stored."""
    job = tx.fetch_optional(Job, "select * from portico_job where id = :id for update", {"id": id})
    if job is None or job.is_finished:
        return False
    # Only pending requests: a second response must not replace the one that the function already
    # used.
    accepted = {key: value for key, value in responses.items() if key in job.questions}
    if not accepted:
        return False
    questions = {key: question for key, question in job.questions.items() if key not in accepted}
    # Its worker resumes it; without a worker it is in the queue already.
    status = "running" if job.status == "waiting" and not questions else job.status
    tx.execute(
        "update portico_job set questions = :questions, answers = :answers, status = :status, updated_at = :now"
        " where id = :id",
        {
            "id": id,
            "questions": encode_json_column(questions),
            "answers": encode_json_column({**job.answers, **accepted}),
            "status": status,
            "now": now,
        },
    )
    tx.publish(JOB_CHANGED, id)
    return True


def argument_previews(tx: Transaction, ids: list[str], max_chars: int) -> dict[str, str]:
    """Return the beginning of the arguments of several jobs, as JSON text. Jobs without arguments are left out."""
    sql = "select id, substr(arguments, 1, :most) from portico_job where id in :ids"
    rows = tx.fetch_all(tuple[str, str], sql, {"ids": ids, "most": max_chars})
    return {id: text for id, text in rows if text != "{}"}


def finished_steps(tx: Transaction, ids: list[str]) -> dict[str, dict[str, Raw]]:
    """Return the finished steps of several jobs."""
    result: dict[str, dict[str, Raw]] = {}
    for job, name, value in tx.fetch_all(
        tuple[str, str, str], "select job, name, value from portico_job_step where job in :ids", {"ids": ids}
    ):
        result.setdefault(job, {})[name] = Raw(value.encode())
    return result


def store_step(tx: Transaction, id: str, name: str, value: Raw) -> None:
    tx.execute(
        "insert into portico_job_step (job, name, value) values (:job, :name, :value)"
        " on conflict (job, name) do nothing",
        {"job": id, "name": name, "value": bytes(value).decode()},
    )


# Finishing jobs


def finish_job(tx: Transaction, job: Job, outcome: JobOutcome, now: int) -> None:
    """Store the outcome of a job, and release its lease."""
    # 2025-11-25, Tasks: the time to live counts from the creation. A task that took longer must
    # still be readable for a moment.
    expires = None if job.ttl is None else max(job.created_at + job.ttl, now + EXPIRY_GRACE_MS)
    tx.execute(
        "update portico_job set status = :status, outcome = :outcome, refused = :refused, message = :message,"
        " updated_at = :now, expires_at = :expires, worker = null, lease = null, questions = '{}' where id = :id",
        {
            "id": job.id,
            "status": outcome.status,
            "outcome": bytes(outcome.value).decode() or None,
            "refused": outcome.is_tool_error,
            "message": outcome.message,
            "now": now,
            "expires": expires,
        },
    )
    tx.publish(JOB_CHANGED, job.id)


def failed_outcome(message: str) -> JobOutcome:
    """Return the outcome of a job that failed because of the server, not its tool."""
    return JobOutcome("failed", Raw(msgspec.json.encode({"code": -32603, "message": message})), message)


def cancel(tx: Transaction, id: str, now: int) -> Job | None:
    """Cancel a job and return it, or None if there is nothing to cancel."""
    job = tx.fetch_optional(Job, "select * from portico_job where id = :id for update", {"id": id})
    if job is None or job.is_finished:
        return None
    finish_job(tx, job, JobOutcome("cancelled", message="The task was cancelled by request."), now)
    return tx.fetch_one(Job, "select * from portico_job where id = :id", {"id": id})


def retry(tx: Transaction, id: str, now: int) -> Job | None:
    """Queue a finished job again, whatever its outcome; finished steps stay finished.

    Returns None if it is unfinished.
    """
    job = tx.fetch_optional(Job, "select * from portico_job where id = :id for update", {"id": id})
    if job is None or not job.is_finished:
        return None
    tx.execute(
        "update portico_job set status = 'queued', attempts = 0, deaths = 0, run_at = :now, updated_at = :now,"
        " expires_at = null, outcome = null, refused = false, message = null, progress = null, total = null"
        " where id = :id",
        {"id": id, "now": now},
    )
    tx.publish(JOB_CREATED, job.server)
    tx.publish(JOB_CHANGED, id)
    return tx.fetch_one(Job, "select * from portico_job where id = :id", {"id": id})


def sweep(tx: Transaction, now: int) -> int:
    """Remove a batch of expired jobs, and return their number.

    Finished jobs are deleted; queued and waiting ones fail; running ones continue.
    """
    deleted = tx.execute(
        "delete from portico_job where id in (select id from portico_job where expires_at < :now"
        " and status in ('completed', 'failed', 'cancelled') limit :most)",
        {"now": now, "most": SWEEP_BATCH_SIZE},
    )
    # Failed instead of deleted, so that a waiting client receives an error and not `Unknown task`.
    late = tx.fetch_all(
        Job,
        f"select {SUMMARY_COLUMNS} from portico_job where expires_at < :now and status in ('queued', 'waiting') "
        "limit :most"
        " for update skip locked",
        {"now": now, "most": SWEEP_BATCH_SIZE},
    )
    for job in late:
        finish_job(tx, job, failed_outcome("Internal error: the task's time to live ended before it finished"), now)
    return deleted + len(late)


# Used by the command line


# Conditions that match `Job.outcome_status`.
_BY_OUTCOME = {
    "completed": "where status = :status and refused = false",
    "failed": "where (status = :status or (status = 'completed' and refused = true))",
}


def list_recent(tx: Transaction, status: str | None, limit: int) -> list[Job]:
    """Return the newest jobs of all servers that share the store, optionally those with one `outcome_status`."""
    where = "" if status is None else _BY_OUTCOME.get(status, "where status = :status")
    return tx.fetch_all(
        Job,
        f"select * from portico_job {where} order by created_at desc, id limit :most",
        {"most": limit} if status is None else {"status": status, "most": limit},
    )


def find(tx: Transaction, id: str) -> Job | None:
    """Return the job with this id, or with the only id that starts with it."""
    result = matching(tx, id)
    return result[0] if len(result) == 1 else None


def matching(tx: Transaction, prefix: str, limit: int = 2) -> list[Job]:
    """Return jobs whose id starts with a prefix; only one for a complete id, none for an empty prefix."""
    rows = tx.fetch_all(
        Job,
        "select * from portico_job where substr(id, 1, cast(:length as integer)) = :id order by id limit :most",
        {"id": prefix, "length": len(prefix), "most": limit},
    )
    exact = [job for job in rows if job.id == prefix]
    return exact or (rows if prefix else [])
