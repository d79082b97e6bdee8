"""The tools of the console about what is recorded and decided: the audit, the rules, the tasks of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from portico.protocol.errors import ToolError, UsageError
from portico.rpc.supervision import BackgroundTasks
from portico.server.components.results import ToolResult
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import Service, tool
from portico.server.server import Server
from portico.server.tasks import jobs
from portico.server.tasks.jobs import Job
from portico.store.database import Database
from portico.store.errors import BadStatement
from portico.store.transaction import Transaction
from portico_console.target_tools import AsPrincipal
from portico_console.tool_responses import shown
from portico_gateway.audit.audit_sources import verify_store
from portico_gateway.audit.checkpoints import HeadFile
from portico_gateway.audit.hook import CallAudit
from portico_gateway.audit.queries import RecordFilter, newest
from portico_gateway.audit.signing_keys import PUBLIC, TrustedKeys, read_public
from portico_gateway.policy import policy_tests
from portico_gateway.policy.engine import AccessRules

MOST_RECORDS = 1000
READS = {"readOnlyHint": True}
SAYS = {
    "allow": "allowed",
    "deny": "denied",
    "need": "refused for want of a scope",
    "ask": "allowed once a person agrees",
}


class AuditService(Service):
    """What was asked of a server."""

    name = "audit"

    def __init__(self, audit: CallAudit) -> None:
        super().__init__()
        self._audit = audit

    @tool(annotations=READS)
    async def audit(
        self,
        limit: int = 100,
        before: int | None = None,
        principal: str | None = None,
        outcome: str | None = None,
        find: str | None = None,
    ) -> ToolResult:
        """The newest records first; `before` is the `next` of the page before, `find` a tool or a pattern of tools."""
        limit = max(1, min(limit, MOST_RECORDS))
        until = {} if before is None else {"until": before - 1}
        wanted = RecordFilter(**until, principal=principal, outcome=outcome, tool=find)
        found = await self._read(lambda tx: newest(tx, wanted, limit))
        records = [
            {
                "chain": stored[0],
                "hash": stored[4],
                **{name: getattr(record, name) for name in record.__struct_fields__},
            }
            for stored, record in reversed(found)
        ]
        for record in records:
            record["time"] = record["at"] / 1e6
        return shown({"records": records, "next": records[-1]["at"] if len(records) == limit else None})

    @tool(annotations=READS)
    async def verify_audit(self) -> ToolResult:
        """Whether the record is whole: nothing was changed, left out or put in."""
        data, store = self._place()
        keys = TrustedKeys(read_public(data / PUBLIC))
        expected = HeadFile(data, store).read()
        report = await self._read(lambda tx: verify_store(tx, keys, expected))
        return shown(
            {
                "ok": not report.found,
                "records": report.records,
                "chains": report.chains,
                "checkpoints": report.checkpoints,
                "findings": [str(one) for one in report.found],
                "notes": report.notes,
            }
        )

    def _place(self) -> tuple[Path, str]:
        data, store = self._audit.place()
        if store is None:
            raise ToolError("this audit is written to files alone: `portico audit verify` reads those")
        return data, store

    async def _read(self, fn: Callable[[Transaction], Any]) -> Any:
        await self._audit.writer.written()
        async with Database(self._place()[1], connections=1) as database:
            try:
                return await database.read(fn)
            except BadStatement:
                raise ToolError("there is no audit yet") from None


class PolicyService(Service):
    """Who may do what, and why."""

    name = "policy"

    def __init__(self, server: Server, rules: AccessRules) -> None:
        super().__init__()
        self._server, self._rules = server, rules

    @tool(annotations=READS)
    async def explain(
        self,
        kind: Literal["tool", "prompt", "resource"],
        name: str,
        principal: AsPrincipal | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> ToolResult:
        """What comes of a call by a principal, and the rules that decide; without one, for who is at this machine."""
        owned = self._server.owner_of(_KINDS[kind], name)
        what = f"{owned.owner}.{owned.name}" if owned.owner else name
        who: dict[str, Any] = {}
        if principal is not None:
            scopes = ["*"] if principal.scopes is None else principal.scopes
            who = {"principal": principal.id, "groups": principal.groups, "scopes": scopes}
            who |= {"client": principal.client, "issuer": principal.issuer}
        try:
            asked = policy_tests.asked(name, _KINDS[kind], what, arguments=arguments, **who)
        except UsageError as wrong:
            raise ToolError(str(wrong)) from None
        verdict = policy_tests.judge(self._rules, asked)
        return shown({"outcome": verdict.outcome, "says": SAYS[verdict.outcome], "why": verdict.why})


_KINDS: dict[str, Kind] = {"tool": "tool", "prompt": "prompt", "resource": "resource"}


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
        most = max(1, min(limit, MOST_RECORDS))
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
