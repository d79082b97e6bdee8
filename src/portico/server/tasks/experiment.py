"""Tasks of 2025-11-25, an experiment in its core: the caller asks for one, and fetches the result by `tasks/result`."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from portico.legacy import translate
from portico.server.tasks import jobs
from portico.server.tasks.extension import STATUS, message
from portico.server.tasks.jobs import Job
from portico.server.tasks.moments import iso
from portico.wire.errors import InternalError, InvalidParams, from_wire
from portico.wire.jsonrpc import ErrorBody
from portico.wire.revisions import V2025_11_25
from portico.wire.tasks import RELATED, CreateTaskResult, ListTasksResult, Task, TaskResult
from portico.wire.tools import CallToolResult, ReceivedToolResult


class Asked(Struct):
    """`params.task`: a wish for a task, and how long it should be kept, in milliseconds."""

    ttl: float | None = None


def task(job: Job, poll: float, kind: type[Any] = Task) -> Any:
    return kind(
        task_id=job.id,
        status=_status(job),
        status_message=message(job),
        created_at=iso(job.created_at),
        last_updated_at=iso(job.updated_at),
        ttl=job.ttl,
        poll_interval=int(poll * 1000),
    )


def _status(job: Job) -> Any:
    """Here a tool that says no has failed; the extension keeps that word for errors of the protocol."""
    return "failed" if job.refused else STATUS[job.status]


def created(job: Job, poll: float) -> CreateTaskResult:
    return CreateTaskResult(task=task(job, poll))


def got(job: Job, poll: float) -> TaskResult:
    found: TaskResult = task(job, poll, TaskResult)
    return found


def result(job: Job) -> CallToolResult:
    """Exactly what the call would have been answered with, and which task it was."""
    if job.status == "failed":
        error = msgspec.json.decode(job.outcome, type=ErrorBody)
        raise from_wire(error.code, error.message, error.data)
    if job.status == "cancelled":
        raise InternalError("The task was cancelled")
    said = msgspec.json.decode(job.outcome, type=ReceivedToolResult)
    meta = said.meta if isinstance(said.meta, dict) else {}
    found = CallToolResult(
        content=said.content,
        structured_content=said.structured_content,
        is_error=said.is_error,
        meta={**meta, RELATED: {"taskId": job.id}},
    )
    translated: CallToolResult = translate.result(found, V2025_11_25)
    return translated


def listed(found: list[Job], poll: Callable[[Job], float]) -> ListTasksResult:
    page = ListTasksResult(tasks=[task(job, poll(job)) for job in found[: jobs.PAGE]])
    if len(found) > jobs.PAGE:
        last = found[jobs.PAGE - 1]
        page.next_cursor = urlsafe_b64encode(f"{last.created_at} {last.id}".encode()).decode()
    return page


_CURSOR = re.compile(r"([0-9]{1,15}) ([A-Za-z0-9_-]{1,64})")


def after(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return (-1, "")
    try:
        found = _CURSOR.fullmatch(urlsafe_b64decode(cursor.encode("ascii")).decode())
    except ValueError:
        found = None
    if found is None:
        raise InvalidParams(f"Invalid cursor: {cursor[:100]!r}")
    return (int(found[1]), found[2])
