"""Tasks of 2026-07-28, the extension io.modelcontextprotocol/tasks: the server decides, and `tasks/get` returns
everything.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from portico.protocol.errors import MissingClientCapability
from portico.protocol.tasks import EXTENSION, TASK_PROGRESS_EXTENSION, DetailedTask, TaskHandle, TaskStatus
from portico.rpc.call import Call
from portico.server.tasks.jobs import Job

# Status of a job in both task designs.
STATUS_BY_JOB_STATUS: dict[str, TaskStatus] = {
    "queued": "working",
    "running": "working",
    "waiting": "input_required",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def client_supports_tasks(call: Call) -> bool:
    """Return whether the client supports tasks, as declared by each request."""
    return EXTENSION in (call.capabilities.extensions or {})


# Extension Tasks: capabilities are declared with every request, so a client that created a task may
# later send one without.
def require_tasks_capability(call: Call) -> None:
    if not client_supports_tasks(call):
        raise MissingClientCapability({"extensions": {EXTENSION: {}}})


def to_task_handle(job: Job, poll: float) -> TaskHandle:
    """Return the result of a call that has become a task: flat, and without an outcome."""
    return TaskHandle(
        task_id=job.id,
        status="working",
        created_at=to_iso8601(job.created_at),
        last_updated_at=to_iso8601(job.updated_at),
        ttl_ms=job.ttl,
        poll_interval_ms=int(poll * 1000),
    )


def to_detailed_task(job: Job, poll: float) -> DetailedTask:
    """Return the result of `tasks/get`: the status, and the outcome or the input requests."""
    task = DetailedTask(
        task_id=job.id,
        status=STATUS_BY_JOB_STATUS[job.status],
        status_message=status_message(job),
        created_at=to_iso8601(job.created_at),
        last_updated_at=to_iso8601(job.updated_at),
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


def status_message(job: Job) -> str | None:
    """Return the progress as text, or after the end the error message."""
    if job.progress is None or job.is_finished:
        return job.message
    far = f"{job.progress:g}" + (f" of {job.total:g}" if job.total is not None else "")
    return f"{far}: {job.message}" if job.message else far


def progress_meta(job: Job) -> dict[str, Any]:
    """Return the progress as numbers, for which the extension has no member."""
    if job.progress is None or job.is_finished:
        return {}
    far = {"progress": job.progress, "total": job.total, "message": job.message}
    return {TASK_PROGRESS_EXTENSION: {name: value for name, value in far.items() if value is not None}}


def visible_state(job: Job) -> tuple[TaskStatus, str | None, list[str]]:
    """Return the part of a job's state that subscribers can see. Being claimed by a worker is not visible."""
    return STATUS_BY_JOB_STATUS[job.status], status_message(job), list(job.questions)


def to_iso8601(milliseconds: int) -> str:
    """Return a time of the store in the format of the protocol."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    # Both are ISO 8601; the examples of the specification use `Z`.
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
