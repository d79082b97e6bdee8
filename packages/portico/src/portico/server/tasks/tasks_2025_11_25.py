"""Tasks of 2025-11-25, experimental in that version: the client requests a task, and fetches its result by
`tasks/result`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import translation
from portico.protocol.errors import InternalError, ProtocolError, TransportError, error_from_response
from portico.protocol.jsonrpc import ErrorObject
from portico.protocol.methods import METHODS
from portico.protocol.tasks import RELATED_TASK_META_KEY, CreateTaskResult, DetailedTask, ListTasksResult, Task
from portico.protocol.tools import CallToolResult, ReceivedToolResult
from portico.protocol.versions import V2025_11_25
from portico.rpc.call import Call
from portico.server.context.input_rounds import decode_response
from portico.server.registry.catalog import ListCursorCodec
from portico.server.tasks import jobs
from portico.server.tasks.engine import POLL_SECONDS, TaskEngine
from portico.server.tasks.execution import RETRY_SECONDS, TRANSIENT_ERRORS, RefusedInput
from portico.server.tasks.jobs import Job
from portico.server.tasks.tasks_2026_07_28 import STATUS_BY_JOB_STATUS, status_message, to_iso8601
from portico.store.errors import StoreError

log = logging.getLogger("portico")


class TaskMetadata(Struct):
    """`params.task`: a request for a task, with its retention in milliseconds."""

    ttl: float | None = None


def to_task(job: Job, poll: float, kind: type[Any] = Task) -> Any:
    return kind(
        task_id=job.id,
        status=_status(job),
        status_message=status_message(job),
        created_at=to_iso8601(job.created_at),
        last_updated_at=to_iso8601(job.updated_at),
        ttl=job.ttl,
        poll_interval=int(poll * 1000),
    )


def _status(job: Job) -> Any:
    """Return the status. Here a tool error counts as failed; the extension reserves that status for protocol errors."""
    return "failed" if job.refused else STATUS_BY_JOB_STATUS[job.status]


def to_create_result(job: Job, poll: float) -> CreateTaskResult:
    return CreateTaskResult(task=to_task(job, poll))


def to_get_result(job: Job, poll: float) -> DetailedTask:
    task: DetailedTask = to_task(job, poll, DetailedTask)
    return task


def to_call_result(job: Job) -> CallToolResult:
    """Return the result of the call, with the task id in `_meta`. Raises the error that the task failed with."""
    if job.status == "failed":
        error = msgspec.json.decode(job.outcome, type=ErrorObject)
        raise error_from_response(error.code, error.message, error.data)
    if job.status == "cancelled":
        raise InternalError("The task was cancelled")
    outcome = msgspec.json.decode(job.outcome, type=ReceivedToolResult)
    meta = outcome.meta if isinstance(outcome.meta, dict) else {}
    result = CallToolResult(
        content=outcome.content,
        structured_content=outcome.structured_content,
        is_error=outcome.is_error,
        meta={**meta, RELATED_TASK_META_KEY: {"taskId": job.id}},
    )
    translated: CallToolResult = translation.translate_result(result, V2025_11_25)
    return translated


def to_list_result(
    rows: list[Job], poll: Callable[[Job], float], cursors: ListCursorCodec, owner: str
) -> ListTasksResult:
    page = ListTasksResult(tasks=[to_task(job, poll(job)) for job in rows[: jobs.PAGE_SIZE]])
    if len(rows) > jobs.PAGE_SIZE:
        last = rows[jobs.PAGE_SIZE - 1]
        page.next_cursor = cursors.issue(_list_of(owner), f"{last.created_at} {last.id}")
    return page


def parse_cursor(cursor: str | None, cursors: ListCursorCodec, owner: str) -> tuple[int, str]:
    """Return the position of a cursor: creation time and id of the last job of its page."""
    if cursor is None:
        return (-1, "")
    created, _, id = cursors.read(_list_of(owner), cursor).partition(" ")
    return (int(created), id)


def _list_of(owner: str) -> str:
    return f"tasks/list of {owner}"


# `tasks/result`

# Input requests that were relayed, by job and key: a second client that waits for the result does not receive them too.
AskedRequests = set[tuple[str, str]]


class InputRelay:
    """Waits for the end of a job, and relays its input requests to the waiting client."""

    def __init__(self, call: Call, engine: TaskEngine, asked_requests: AskedRequests) -> None:
        self._call = call
        self._engine = engine
        self._asked_requests = asked_requests
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def wait(self, id: str) -> Job | None:
        """Return the job when it has finished, or None if it was deleted."""
        try:
            with self._engine.watch(id) as news:
                while True:
                    news.clear()
                    job = await self._engine.get(id, None)
                    if job is None or job.is_finished:
                        return job
                    self._relay_requests(job)
                    await _wait_for_event(news)
        finally:
            # Another client may wait for the same task and relay the requests from then on.
            await self._cancel_requests(list(self._asking))

    def _relay_requests(self, job: Job) -> None:
        """Relay new input requests, and cancel requests that were answered elsewhere."""
        for key in self._asking.keys() - job.questions.keys():
            self._asking[key].cancel()
        if not self._call.reply.can_request or job.status != "waiting":
            return
        for key, question in job.questions.items():
            if (job.id, key) not in self._asked_requests:
                self._asked_requests.add((job.id, key))
                asking = asyncio.get_running_loop().create_task(self._relay(job.id, key, question))
                self._asking[key] = asking
                asking.add_done_callback(lambda _, key=key: self._on_request_done(job.id, key))  # type: ignore[misc]

    def _on_request_done(self, id: str, key: str) -> None:
        self._asked_requests.discard((id, key))
        del self._asking[key]

    async def _relay(self, id: str, key: str, question: dict[str, Any]) -> None:
        method = question["method"]
        # 2025-11-25, basic/utilities/tasks: the request must name the task that it belongs to.
        params = {**question.get("params", {}), "_meta": {RELATED_TASK_META_KEY: {"taskId": id}}}
        try:
            answer = await self._call.reply.request(method, params)
            decode_response(answer, METHODS[method].result, key)
        except ProtocolError as refusal:
            # The function decides how to handle a rejection.
            answer = Raw(msgspec.json.encode(RefusedInput(refusal.message)))
        except TransportError as failure:
            log.debug("an input request of a task did not reach its client: %s", failure)
            return
        await self._store(id, key, answer)

    async def _store(self, id: str, key: str, answer: Raw) -> None:
        """Store a response, retrying while the store is unavailable, so that the client is not asked twice."""
        while True:
            try:
                await self._engine.update(id, {key: answer})
                return
            except TRANSIENT_ERRORS as failure:
                log.warning("a response to a task is waiting for the store: %s", failure)
            except StoreError as failure:
                log.error("cannot store a response to a task: %s", failure)
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _cancel_requests(self, keys: list[str]) -> None:
        tasks = [self._asking[key] for key in keys]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _wait_for_event(news: asyncio.Event) -> None:
    """Wait for an event, with a timeout: events between processes may get lost."""
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await news.wait()
    except TimeoutError:
        pass
