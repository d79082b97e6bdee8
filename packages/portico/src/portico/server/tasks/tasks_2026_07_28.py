"""Tasks of 2026-07-28, the extension io.modelcontextprotocol/tasks: the server decides, and `tasks/get` tells all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from portico.protocol.errors import MissingCapability
from portico.protocol.tasks import EXTENSION, PROGRESS, DetailedTask, Status, TaskHandle
from portico.rpc.call import Call
from portico.server.tasks.jobs import Job

# The status of a job as both designs have it.
STATUS: dict[str, Status] = {
    "queued": "working",
    "running": "working",
    "waiting": "input_required",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def declared(call: Call) -> bool:
    """Whether the client can deal with tasks; each request says so for itself."""
    return EXTENSION in (call.capabilities.extensions or {})


def check(call: Call) -> None:
    if not declared(call):
        raise MissingCapability({"extensions": {EXTENSION: {}}})


def created(job: Job, poll: float) -> TaskHandle:
    """The answer to a call that has become a task: flat, and with nothing of what may come of it."""
    return TaskHandle(
        task_id=job.id,
        status="working",
        created_at=iso(job.created_at),
        last_updated_at=iso(job.updated_at),
        ttl_ms=job.ttl,
        poll_interval_ms=int(poll * 1000),
    )


def detailed(job: Job, poll: float) -> DetailedTask:
    """The answer to `tasks/get`: the status, and the outcome or the questions."""
    task = DetailedTask(
        task_id=job.id,
        status=STATUS[job.status],
        status_message=message(job),
        created_at=iso(job.created_at),
        last_updated_at=iso(job.updated_at),
        ttl_ms=job.ttl,
        poll_interval_ms=int(poll * 1000),
    )
    if job.status == "completed":
        task.result = job.outcome
    elif job.status == "failed":
        task.error = job.outcome
    elif job.status == "waiting":
        task.input_requests = job.questions
    return task


def message(job: Job) -> str | None:
    """The progress in words; at the end, what was wrong."""
    if job.progress is None or job.ended:
        return job.message
    far = f"{job.progress:g}" + (f" of {job.total:g}" if job.total is not None else "")
    return f"{far}: {job.message}" if job.message else far


def progress(job: Job) -> dict[str, Any]:
    """The progress in numbers, which the extension has no member for."""
    if job.progress is None or job.ended:
        return {}
    far = {"progress": job.progress, "total": job.total, "message": job.message}
    return {PROGRESS: {name: one for name, one in far.items() if one is not None}}


def visible(job: Job) -> tuple[Status, str | None, list[str]]:
    """What a listener can see of a job. That a worker has claimed it is not visible."""
    return STATUS[job.status], message(job), list(job.questions)


def iso(milliseconds: int) -> str:
    """A time of the store as the protocol writes it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
