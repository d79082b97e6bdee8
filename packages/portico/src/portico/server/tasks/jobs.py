"""Jobs: tasks as the store has them. Every function here is a transaction, or part of one.

```
queued ──claim──▶ running ──ask──▶ waiting ──answer──▶ running ──finish──▶ completed | failed
   ▲                 │                                    │
   └──── retry, release, or the end of its worker ────────┘        cancel, from anywhere ──▶ cancelled
```

What the worker of a job does is in `leases.py`; here is the rest.
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
from portico.store.rows import json_column
from portico.store.transaction import Transaction

Status = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]

# An owner with so many unfinished tasks gets no more until one is done.
MOST_OPEN = 10_000
# How long a job is kept after its end at least, whatever its time to live.
GRACE_MS = 60_000
PAGE = 100
# On SQLite all others who write wait for a transaction, so one deletes no more than this.
MOST_SWEPT = 500

_PURPOSE = b"rows of tasks"

CREATED, CHANGED = "portico.job.created", "portico.job.changed"


class Job(Struct, kw_only=True):
    """A row."""

    id: str
    server: str
    tool: str
    arguments: Raw
    owner: str
    caller: Raw
    status: Status
    priority: int
    created_at: int
    updated_at: int
    run_at: int
    ttl: int | None
    expires_at: int | None
    attempts: int
    deaths: int
    # How often it was claimed: a worker may write for its own run only.
    runs: int = 0
    worker: str | None
    lease: int | None
    message: str | None
    progress: float | None
    total: float | None
    questions: dict[str, Any]
    answers: dict[str, Raw]
    # The tool refused. The two designs have different words for that.
    refused: bool = False
    outcome: Raw
    # Of what it runs and for whom, with a key that is not in the store.
    signature: str | None = None

    def sign(self, keys: SigningKeys) -> None:
        self.signature = keys.sign_row(_PURPOSE, *self._signed())

    def is_authentic(self, keys: SigningKeys) -> bool:
        """Return whether a process with the key of the store has queued it, with this tool, arguments and caller."""
        return keys.is_row_signed(_PURPOSE, self.signature, *self._signed())

    def _signed(self) -> tuple[str, ...]:
        return self.id, self.server, self.tool, bytes(self.arguments).decode(), self.owner, bytes(self.caller).decode()

    @property
    def outcome_status(self) -> Status:
        """Return the status for an operator: a completed job whose tool reported an error has failed."""
        return "failed" if self.refused and self.status == "completed" else self.status

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")


class Outcome(Struct, frozen=True):
    """What a job came to. `again`: it failed unexpectedly, and may be tried once more."""

    status: Status
    value: Raw = Raw(b"")
    message: str | None = None
    refused: bool = False
    again: bool = False


def now() -> int:
    """The time in milliseconds, as the store has it."""
    return int(time.time() * 1000)


def new_id() -> str:
    """A new id. Without logins a client that knows the id may see the task, so it cannot be guessed.

    It never begins with a dash, which at a shell is an option.
    """
    return secrets.token_hex(16)


def create(tx: Transaction, job: Job, steps: Mapping[str, Raw]) -> Job:
    """Queue a job. Raises InternalError when its owner has MOST_OPEN unfinished."""
    open_ones = tx.one(
        int,
        "select count(*) from (select 1 from portico_job where server = :server and owner = :owner"
        " and status in ('queued', 'running', 'waiting') limit :most) as counted",
        {"server": job.server, "owner": job.owner, "most": MOST_OPEN},
    )
    if open_ones >= MOST_OPEN:
        raise InternalError(f"Refused: {MOST_OPEN} tasks are open already")
    columns = Job.__struct_fields__
    values = {name: _column(getattr(job, name)) for name in columns}
    names, places = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    tx.run(f"insert into portico_job ({names}) values ({places})", values)
    for name, value in steps.items():
        keep_step(tx, job.id, name, value)
    tx.publish(CREATED, job.server)
    return job


def _column(value: Any) -> Any:
    if isinstance(value, Raw):
        return bytes(value).decode() or None
    return json_column(value) if isinstance(value, dict) else value


def get(tx: Transaction, server: str, id: str) -> Job | None:
    return tx.maybe(Job, "select * from portico_job where id = :id and server = :server", {"id": id, "server": server})


def some(tx: Transaction, server: str, ids: list[str]) -> list[Job]:
    # The server is looked at here: in the statement SQLite would take it for the better index, and read all its jobs.
    return [job for job in tx.all(Job, SOME, {"ids": ids}) if job.server == server]


SOME = "select * from portico_job where id in :ids"

# All of a job but what may be large.
BRIEF = ", ".join(
    {"arguments": "'{}' as arguments", "questions": "'{}' as questions", "answers": "'{}' as answers"}.get(
        name, "null as outcome" if name == "outcome" else name
    )
    for name in Job.__struct_fields__
)


def listed(tx: Transaction, server: str, owner: str, after: tuple[int, str], most: int = PAGE) -> list[Job]:
    """An owner's jobs, oldest first, in brief."""
    return tx.all(
        Job,
        f"select {BRIEF} from portico_job where server = :server and owner = :owner and created_at >= :created"
        " and (created_at > :created or id > :id) order by created_at, id limit :most",
        {"server": server, "owner": owner, "created": after[0], "id": after[1], "most": most},
    )


def answer(tx: Transaction, id: str, responses: Mapping[str, Raw], now: int) -> bool:
    """Answers to what is asked now; others are ignored (tasks/update). Whether there were any."""
    job = tx.maybe(Job, "select * from portico_job where id = :id for update", {"id": id})
    if job is None or job.ended:
        return False
    known = {key: value for key, value in responses.items() if key in job.questions}
    if not known:
        return False
    questions = {key: one for key, one in job.questions.items() if key not in known}
    # Its worker goes on with it; without one it waits in the queue already.
    status = "running" if job.status == "waiting" and not questions else job.status
    tx.run(
        "update portico_job set questions = :questions, answers = :answers, status = :status, updated_at = :now"
        " where id = :id",
        {
            "id": id,
            "questions": json_column(questions),
            "answers": json_column({**job.answers, **known}),
            "status": status,
            "now": now,
        },
    )
    tx.publish(CHANGED, id)
    return True


def steps(tx: Transaction, ids: list[str]) -> dict[str, dict[str, Raw]]:
    """The steps that are done, of several jobs."""
    found: dict[str, dict[str, Raw]] = {}
    for job, name, value in tx.all(
        tuple[str, str, str], "select job, name, value from portico_job_step where job in :ids", {"ids": ids}
    ):
        found.setdefault(job, {})[name] = Raw(value.encode())
    return found


def keep_step(tx: Transaction, id: str, name: str, value: Raw) -> None:
    tx.run(
        "insert into portico_job_step (job, name, value) values (:job, :name, :value)"
        " on conflict (job, name) do nothing",
        {"job": id, "name": name, "value": bytes(value).decode()},
    )


# The end


def end(tx: Transaction, job: Job, outcome: Outcome, now: int) -> None:
    expires = None if job.ttl is None else max(job.created_at + job.ttl, now + GRACE_MS)
    tx.run(
        "update portico_job set status = :status, outcome = :outcome, refused = :refused, message = :message,"
        " updated_at = :now, expires_at = :expires, worker = null, lease = null, questions = '{}' where id = :id",
        {
            "id": job.id,
            "status": outcome.status,
            "outcome": bytes(outcome.value).decode() or None,
            "refused": outcome.refused,
            "message": outcome.message,
            "now": now,
            "expires": expires,
        },
    )
    tx.publish(CHANGED, job.id)


def failed(message: str) -> Outcome:
    """The outcome of a job that failed because of the server, not of its tool."""
    return Outcome("failed", Raw(msgspec.json.encode({"code": -32603, "message": message})), message)


def cancel(tx: Transaction, id: str, now: int) -> Job | None:
    """Cancel a job. Returns it; None: there is nothing to cancel any more."""
    job = tx.maybe(Job, "select * from portico_job where id = :id for update", {"id": id})
    if job is None or job.ended:
        return None
    end(tx, job, Outcome("cancelled", message="The task was cancelled by request."), now)
    return tx.one(Job, "select * from portico_job where id = :id", {"id": id})


def retry(tx: Transaction, id: str, now: int) -> Job | None:
    """Queue a job again that has ended, however it did; finished steps stay finished. None: it has not ended."""
    job = tx.maybe(Job, "select * from portico_job where id = :id for update", {"id": id})
    if job is None or not job.ended:
        return None
    tx.run(
        "update portico_job set status = 'queued', attempts = 0, deaths = 0, run_at = :now, updated_at = :now,"
        " expires_at = null, outcome = null, refused = false, message = null, progress = null, total = null"
        " where id = :id",
        {"id": id, "now": now},
    )
    tx.publish(CREATED, job.server)
    tx.publish(CHANGED, id)
    return tx.one(Job, "select * from portico_job where id = :id", {"id": id})


def sweep(tx: Transaction, now: int) -> int:
    """Remove some of what has outlived its time to live. Returns how many.

    Jobs that have ended are deleted; those that are queued or wait for an answer have failed; what runs may go on.
    """
    gone = tx.run(
        "delete from portico_job where id in (select id from portico_job where expires_at < :now"
        " and status in ('completed', 'failed', 'cancelled') limit :most)",
        {"now": now, "most": MOST_SWEPT},
    )
    late = tx.all(
        Job,
        f"select {BRIEF} from portico_job where expires_at < :now and status in ('queued', 'waiting') limit :most"
        " for update skip locked",
        {"now": now, "most": MOST_SWEPT},
    )
    for job in late:
        end(tx, job, failed("Internal error: its time to live ended before it did"), now)
    return gone + len(late)


# For the command line


# As `Job.outcome_status` has it.
_BY_OUTCOME = {
    "completed": "where status = :status and refused = false",
    "failed": "where (status = :status or (status = 'completed' and refused = true))",
}


def recent(tx: Transaction, status: str | None, most: int) -> list[Job]:
    """Return the newest jobs of all servers that share the store, optionally those with one `outcome_status`."""
    where = "" if status is None else _BY_OUTCOME.get(status, "where status = :status")
    return tx.all(
        Job,
        f"select * from portico_job {where} order by created_at desc, id limit :most",
        {"most": most} if status is None else {"status": status, "most": most},
    )


def find(tx: Transaction, id: str) -> Job | None:
    """Return the job with this id, or with the only id that begins like this."""
    found = matching(tx, id)
    return found[0] if len(found) == 1 else None


def matching(tx: Transaction, prefix: str, most: int = 2) -> list[Job]:
    """Return jobs whose id begins like this; only one if it is a whole id, none for an empty prefix."""
    found = tx.all(
        Job,
        "select * from portico_job where substr(id, 1, :length) = :id order by id limit :most",
        {"id": prefix, "length": len(prefix), "most": most},
    )
    exact = [job for job in found if job.id == prefix]
    return exact or (found if prefix else [])
