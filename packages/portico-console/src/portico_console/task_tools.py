"""The tools of the console about the tasks of the protocol."""

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
from portico_console.tool_responses import shown

MAX_TASKS = 1000
READS = {"readOnlyHint": True}


class JobsService(Service):
    """The tasks of the protocol, as the store has them."""

    name = "jobs"

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        # Told when a task is new, or has changed.
        self.listeners: list[Callable[[], None]] = []

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        supervisor = BackgroundTasks()
        supervisor.run("console job changes", self._follow)
        try:
            yield
        finally:
            await supervisor.close()

    async def _follow(self) -> None:
        database = await self._database()
        async with database.subscribe(jobs.CREATED, jobs.CHANGED) as changes:
            async for _ in changes:
                for told in self.listeners:
                    told()

    async def _database(self) -> Database:
        assert self._server.tasks is not None
        return (await self._server.tasks.engine()).database

    @tool(annotations=READS)
    async def jobs(self, status: str | None = None, limit: int = 200) -> ToolResult:
        """The newest tasks of this server."""
        most = max(1, min(limit, MAX_TASKS))
        found = await (await self._database()).read(lambda tx: jobs.recent(tx, status, most))
        return shown({"jobs": [_plain(job) for job in found if job.server == self._server.name]})

    @tool(annotations=READS)
    async def job(self, id: str) -> ToolResult:
        """One task, with its arguments, its result and the steps that it has taken."""
        job = await self._find(id)
        steps = (await (await self._database()).read(lambda tx: jobs.steps(tx, [job.id]))).get(job.id, {})
        whole = {**_plain(job), "arguments": job.arguments, "steps": steps, "result": job.outcome or None}
        return shown(whole)

    @tool
    async def cancel_job(self, id: str) -> ToolResult:
        """End a task that has not ended."""
        return await self._change(id, jobs.cancel)

    @tool
    async def retry_job(self, id: str) -> ToolResult:
        """Queue a task again that has ended."""
        return await self._change(id, jobs.retry)

    async def _change(self, id: str, change: Any) -> ToolResult:
        job = await self._find(id)
        done = await (await self._database()).write(lambda tx: change(tx, job.id, jobs.now()))
        return shown({"changed": done is not None})

    async def _find(self, id: str) -> Job:
        found = await (await self._database()).read(lambda tx: jobs.find(tx, id))
        if found is None or found.server != self._server.name:
            raise ToolError(f"there is no task {id[:80]!r}")
        return found


def _plain(job: Job) -> dict[str, Any]:
    hidden = {"arguments", "caller", "outcome", "answers", "owner"}
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name not in hidden}
    return {**fields, "status": job.outcome_status}
