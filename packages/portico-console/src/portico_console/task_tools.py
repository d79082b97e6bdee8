"""Console tools for protocol tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from portico.protocol.errors import ToolError
from portico.rpc.supervision import BackgroundTasks
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.server.server import Server
from portico.server.tasks import jobs
from portico.server.tasks.jobs import Job
from portico.store.database import Database
from portico.store.transaction import Transaction
from portico.text import truncate
from portico_console.tool_responses import structured_response

MAX_TASKS = 1000
# Of the arguments, in the list.
MAX_PREVIEW_CHARS = 160
READS = {"readOnlyHint": True}


class ProtocolTasksService(Service):
    """The protocol tasks in the server's store."""

    name = "jobs"

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        # Called when a task was created or has changed.
        self.listeners: list[Callable[[], None]] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        supervisor = BackgroundTasks()
        supervisor.run("console job changes", self._watch_changes)
        try:
            yield
        finally:
            await supervisor.close()

    async def _watch_changes(self) -> None:
        database = await self._database()
        async with database.subscribe(jobs.JOB_CREATED, jobs.JOB_CHANGED) as changes:
            async for _ in changes:
                for listener in self.listeners:
                    listener()

    async def _database(self) -> Database:
        assert self._server.tasks is not None
        return (await self._server.tasks.engine()).database

    @tool(annotations=READS)
    async def jobs(self, status: str | None = None, limit: int = 200) -> ToolResult:
        """List the newest tasks of this server."""
        max_jobs = max(1, min(limit, MAX_TASKS))

        def read(tx: Transaction) -> tuple[list[Job], dict[str, str]]:
            own = [job for job in jobs.list_recent(tx, status, max_jobs) if job.server == self._server.name]
            return own, jobs.argument_previews(tx, [job.id for job in own], MAX_PREVIEW_CHARS + 1)

        own, previews = await (await self._database()).read(read)
        return structured_response(
            {
                "jobs": [
                    {**_to_json_object(job), "preview": truncate(previews.get(job.id, ""), MAX_PREVIEW_CHARS)}
                    for job in own
                ]
            }
        )

    @tool(annotations=READS)
    async def job(self, id: str) -> ToolResult:
        """Return one task with its arguments, result and completed steps."""
        job = await self._find(id)
        steps = (await (await self._database()).read(lambda tx: jobs.finished_steps(tx, [job.id]))).get(job.id, {})
        details = {**_to_json_object(job), "arguments": job.arguments, "steps": steps, "result": job.outcome or None}
        return structured_response(details)

    @tool
    async def cancel_job(self, id: str) -> ToolResult:
        """Cancel a task that has not ended."""
        return await self._change(id, jobs.cancel)

    @tool
    async def retry_job(self, id: str) -> ToolResult:
        """Queue an ended task again."""
        return await self._change(id, jobs.retry)

    async def _change(self, id: str, change: Any) -> ToolResult:
        job = await self._find(id)
        done = await (await self._database()).write(lambda tx: change(tx, job.id, jobs.now_ms()))
        return structured_response({"changed": done is not None})

    async def _find(self, id: str) -> Job:
        result = await (await self._database()).read(lambda tx: jobs.find(tx, id))
        if result is None or result.server != self._server.name:
            raise ToolError(f"unknown task {id[:80]!r}")
        return result


def _to_json_object(job: Job) -> dict[str, Any]:
    hidden = {"arguments", "caller", "outcome", "answers", "owner"}
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name not in hidden}
    return {**fields, "status": job.outcome_status}
