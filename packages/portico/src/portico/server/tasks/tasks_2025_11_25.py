"""Tasks of 2025-11-25, an experiment in its core: the caller asks for one, and fetches the result by `tasks/result`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico.protocol import translation
from portico.protocol.errors import InternalError, ProtocolError, TransportError, from_wire
from portico.protocol.jsonrpc import ErrorBody
from portico.protocol.methods import METHODS
from portico.protocol.tasks import RELATED, CreateTaskResult, DetailedTask, ListTasksResult, Task
from portico.protocol.tools import CallToolResult, ReceivedToolResult
from portico.protocol.versions import V2025_11_25
from portico.rpc.call import Call
from portico.server.context.input_rounds import typed
from portico.server.registry.catalog import ListCursors
from portico.server.tasks import jobs
from portico.server.tasks.engine import LOOK_SECONDS, Engine
from portico.server.tasks.execution import RETRY_SECONDS, TRANSIENT, RefusedAnswer
from portico.server.tasks.jobs import Job
from portico.server.tasks.tasks_2026_07_28 import STATUS, iso, message
from portico.store.errors import StoreError

log = logging.getLogger("portico")


class TaskWish(Struct):
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
    """In this design a tool that refused has failed; the extension keeps that word for errors of the protocol."""
    return "failed" if job.refused else STATUS[job.status]


def created(job: Job, poll: float) -> CreateTaskResult:
    return CreateTaskResult(task=task(job, poll))


def got(job: Job, poll: float) -> DetailedTask:
    got: DetailedTask = task(job, poll, DetailedTask)
    return got


def result(job: Job) -> CallToolResult:
    """What the call would have been answered with, and which task it was. Raises the error that it failed with."""
    if job.status == "failed":
        error = msgspec.json.decode(job.outcome, type=ErrorBody)
        raise from_wire(error.code, error.message, error.data)
    if job.status == "cancelled":
        raise InternalError("The task was cancelled")
    outcome = msgspec.json.decode(job.outcome, type=ReceivedToolResult)
    meta = outcome.meta if isinstance(outcome.meta, dict) else {}
    result = CallToolResult(
        content=outcome.content,
        structured_content=outcome.structured_content,
        is_error=outcome.is_error,
        meta={**meta, RELATED: {"taskId": job.id}},
    )
    translated: CallToolResult = translation.result(result, V2025_11_25)
    return translated


def listed(found: list[Job], poll: Callable[[Job], float], cursors: ListCursors, owner: str) -> ListTasksResult:
    page = ListTasksResult(tasks=[task(job, poll(job)) for job in found[: jobs.PAGE]])
    if len(found) > jobs.PAGE:
        last = found[jobs.PAGE - 1]
        page.next_cursor = cursors.issue(_list_of(owner), f"{last.created_at} {last.id}")
    return page


def after(cursor: str | None, cursors: ListCursors, owner: str) -> tuple[int, str]:
    """The place that a cursor stands for: when the last job of its page was created, and the job's id."""
    if cursor is None:
        return (-1, "")
    created, _, id = cursors.read(_list_of(owner), cursor).partition(" ")
    return (int(created), id)


def _list_of(owner: str) -> str:
    return f"tasks/list of {owner}"


# `tasks/result`

# The questions that a client has been asked: job and key. A second client that waits for the result is not asked too.
Asked = set[tuple[str, str]]


class InputRelay:
    """Waits for the end of a job, and asks the client that waits what the body wants to know."""

    def __init__(self, call: Call, engine: Engine, asked: Asked) -> None:
        self._call = call
        self._engine = engine
        self._asked = asked
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def wait(self, id: str) -> Job | None:
        """The job when it has ended. None: it was deleted."""
        try:
            with self._engine.watching(id) as news:
                while True:
                    news.clear()
                    job = await self._engine.get(id, None)
                    if job is None or job.ended:
                        return job
                    self._ask(job)
                    await _soon(news)
        finally:
            await self._withdraw(list(self._asking))

    def _ask(self, job: Job) -> None:
        """Ask the questions that are new, and withdraw those that were answered on another way."""
        for key in self._asking.keys() - job.questions.keys():
            self._asking[key].cancel()
        if not self._call.reply.asks or job.status != "waiting":
            return
        for key, question in job.questions.items():
            if (job.id, key) not in self._asked:
                self._asked.add((job.id, key))
                asking = asyncio.get_running_loop().create_task(self._relay(job.id, key, question))
                self._asking[key] = asking
                asking.add_done_callback(lambda _, key=key: self._end(job.id, key))  # type: ignore[misc]

    def _end(self, id: str, key: str) -> None:
        self._asked.discard((id, key))
        del self._asking[key]

    async def _relay(self, id: str, key: str, question: dict[str, Any]) -> None:
        method = question["method"]
        # 2025-11-25, basic/utilities/tasks: the request must say which task it belongs to.
        params = {**question.get("params", {}), "_meta": {RELATED: {"taskId": id}}}
        try:
            answer = await self._call.reply.ask(method, params)
            typed(answer, METHODS[method].result, key)
        except ProtocolError as refusal:
            # The body decides what a refusal means.
            answer = Raw(msgspec.json.encode(RefusedAnswer(refusal.message)))
        except TransportError as failure:
            log.debug("the question of a task did not reach its client: %s", failure)
            return
        await self._store(id, key, answer)

    async def _store(self, id: str, key: str, answer: Raw) -> None:
        """Store an answer, trying again while the store is away, so that the client is not asked twice."""
        while True:
            try:
                await self._engine.update(id, {key: answer})
                return
            except TRANSIENT as failure:
                log.warning("the answer to a task waits for the store: %s", failure)
            except StoreError as failure:
                log.error("the answer to a task cannot be stored: %s", failure)
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _withdraw(self, keys: list[str]) -> None:
        tasks = [self._asking[key] for key in keys]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _soon(news: asyncio.Event) -> None:
    """Wait for an event, but not for ever: events may get lost between processes."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await news.wait()
    except TimeoutError:
        pass
