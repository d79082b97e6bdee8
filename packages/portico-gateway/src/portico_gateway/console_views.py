"""Tools that the browser console attaches to a server of this package: upstreams, audit log, usage and policy.

The console finds them through `portico_gateway.plugin.console_views`. Its page calls the tools by name and reads their
structured results.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from portico.audit.checkpoints import CheckpointFile
from portico.audit.signing_keys import PUBLIC_KEYS_FILE, TrustedKeys, load_public_keys
from portico.auth.principal import Principal
from portico.caching import LruCache
from portico.protocol.errors import ToolError, UsageError
from portico.server.components.results import ToolResult
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import Service, tool
from portico.server.server import Server
from portico.store.database import Database
from portico.store.errors import InvalidStatement
from portico.store.transaction import Transaction
from portico.transports.http_server.application import HttpApplication
from portico.transports.upstream import Upstream
from portico_gateway.audit.hook import AuditLogger
from portico_gateway.audit.queries import AuditFilter, newest_events
from portico_gateway.audit.store import verify_store
from portico_gateway.audit.usage import UsageDimension, UsageReport, format_csv, read_usage
from portico_gateway.gateway.gateway import Gateway
from portico_gateway.gateway.status import STATUS_PATH as STATUS_PATH, merge_reports
from portico_gateway.policy import policy_tests
from portico_gateway.policy.engine import PolicyEngine
from portico_gateway.policy.limiter import PolicyLimiter
from portico_gateway.policy.shared_limit_store import current_month, month_end, previous_month

MAX_AUDIT_EVENTS = 1000
MAX_USAGE_ROWS = 1000
MAX_USAGE_HOURS = 400 * 24
# Reports are read again after this time, however many pages show them.
USAGE_CACHE_SECONDS, MAX_CACHED_REPORTS = 10.0, 20
READ_ONLY = {"readOnlyHint": True}
# Interval at which the other workers are queried for upstream states while a page displays them.
REFRESH_SECONDS = 2.0
# Used for requests to other workers. The console has already authenticated its user.
_OPERATOR = Principal("console", scopes=frozenset({"operator"}))
_KINDS: dict[str, Kind] = {"tool": "tool", "prompt": "prompt", "resource": "resource"}


def console_views(server: Server) -> list[Service]:
    """Return the services that fit the server: upstreams of a gateway, audit log, usage, policy."""
    views: list[Service] = []
    if isinstance(server, Gateway):
        views.append(UpstreamsService(server))
    protection = server.policy
    if protection is not None and isinstance(protection.audit_hook, AuditLogger):
        views.append(AuditService(protection.audit_hook))
        views.append(UsageService(server, protection.audit_hook))
    if protection is not None and isinstance(protection.access_policy, PolicyEngine):
        views.append(PolicyService(server, protection.access_policy))
    return views


class UpstreamsService(Service):
    """Tools that show the upstreams of a gateway."""

    name = "upstreams"

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        # HTTP application that serves the gateway, or None if it is not served over HTTP.
        self.exchange: HttpApplication | None = None
        self._others: list[dict[str, Any]] = []
        self._asked_at = -REFRESH_SECONDS
        self._asking: asyncio.Task[None] | None = None

    @tool(annotations=READ_ONLY)
    async def upstreams(self) -> ToolResult:
        """Return the state of each upstream of this gateway and the last lines that it logged."""
        await self._ask_others()
        return _make_result(self._merge())

    def status(self) -> dict[str, Any]:
        """Return the state over all workers. Reports of other workers are at most REFRESH_SECONDS old."""
        now = time.monotonic()
        if self.exchange is not None and self.exchange.cluster is not None and now - self._asked_at > REFRESH_SECONDS:
            self._asked_at = now
            self._asking = asyncio.get_running_loop().create_task(self._ask_others())
        return self._merge()

    def connections(self) -> Iterator[tuple[str, Upstream]]:
        """Iterate over the open connections, each with the alias of its upstream."""
        return self._gateway.connections()

    def _merge(self) -> dict[str, Any]:
        return merge_reports([self._gateway.status_report(), *self._others])

    async def _ask_others(self) -> None:
        others = None if self.exchange is None else self.exchange.cluster
        if others is not None:
            bodies = await others.ask_others(STATUS_PATH, _OPERATOR)
            self._others = [json.loads(body) for body in bodies]


class _AuditReader:
    """Reads the audit log of a running server."""

    def __init__(self, audit: AuditLogger) -> None:
        self._audit = audit

    def location(self) -> tuple[Path, str]:
        """Return the data directory and the store URL of the audit log. Raises ToolError if it is written to files
        only.
        """
        data, store = self._audit.location()
        if store is None:
            raise ToolError("this audit log is written to files only; verify it with `portico audit verify`")
        return data, store

    async def read(self, fn: Callable[[Transaction], Any]) -> Any:
        await self._audit.writer.flush()
        async with Database(self.location()[1], max_connections=1) as database:
            try:
                return await database.read(fn)
            except InvalidStatement:
                raise ToolError("no audit events recorded yet") from None


class UsageService(Service):
    """Tools that aggregate the audit log of a server."""

    name = "usage"

    def __init__(self, server: Server, audit: AuditLogger) -> None:
        super().__init__()
        self._server = server
        self._log = _AuditReader(audit)
        self._reports: LruCache[tuple[str, float], tuple[float, UsageReport]] = LruCache(MAX_CACHED_REPORTS)
        # One at a time: a busy server writes millions of records in a month.
        self._reading = asyncio.Lock()

    @tool(annotations=READ_ONLY)
    async def usage(
        self,
        by: UsageDimension = "tool",
        hours: Annotated[float, Meta(gt=0, le=MAX_USAGE_HOURS)] | None = None,
        format: Literal["rows", "csv"] = "rows",
    ) -> ToolResult:
        """Return calls, errors, latency and estimated tokens of this month (UTC), or of the last `hours`.

        By principal also remaining monthly budgets.
        """
        report = await self._report(by, hours)
        if format == "csv":
            return _make_result({"csv": format_csv(report.rows)})
        rows = report.rows[:MAX_USAGE_ROWS]
        return _make_result({"rows": rows, "total": report.total, "left_out": len(report.rows) - len(rows)})

    async def _report(self, by: UsageDimension, hours: float | None) -> UsageReport:
        key = (by, 0.0 if hours is None else hours)
        async with self._reading:
            cached = self._reports.get(key)
            if cached is not None and time.monotonic() - cached[0] < USAGE_CACHE_SECONDS:
                return cached[1]
            now = time.time()
            since = month_end(previous_month(current_month(now))) if hours is None else now - hours * 3600
            report: UsageReport = await self._log.read(
                lambda tx: read_usage(tx, by, int(since * 1e6), int(now * 1e6) + 1)
            )
            # A reload may have replaced the limiter.
            limiter = None if self._server.policy is None else self._server.policy.rate_limiter
            if by == "principal" and isinstance(limiter, PolicyLimiter):
                report = report.add_budgets(await limiter.remaining_budgets(row.name for row in report.rows))
            self._reports[key] = (time.monotonic(), report)
            return report


class AuditService(Service):
    """Tools that query and verify the audit log of a server."""

    name = "audit"

    def __init__(self, audit: AuditLogger) -> None:
        super().__init__()
        self._log = _AuditReader(audit)

    @tool(annotations=READ_ONLY)
    async def audit(
        self,
        limit: int = 100,
        before: int | None = None,
        principal: str | None = None,
        outcome: str | None = None,
        find: str | None = None,
    ) -> ToolResult:
        """List audit events, newest first. `before` is the `next` cursor of the previous page; `find` filters by a
        tool's name or a pattern.
        """
        limit = max(1, min(limit, MAX_AUDIT_EVENTS))
        until = {} if before is None else {"until": before - 1}
        query = AuditFilter(**until, principal=principal, outcome=outcome, tool=find)
        rows = await self._log.read(lambda tx: newest_events(tx, query, limit))
        records = [
            {
                "chain": stored[0],
                "hash": stored[4],
                **{name: getattr(record, name) for name in record.__struct_fields__},
            }
            for stored, record in reversed(rows)
        ]
        for record in records:
            record["time"] = record["at"] / 1e6
        return _make_result({"records": records, "next": records[-1]["at"] if len(records) == limit else None})

    @tool(annotations=READ_ONLY)
    async def verify_audit(self) -> ToolResult:
        """Verify the integrity of the audit log."""
        data, store = self._log.location()
        keys = TrustedKeys(load_public_keys(data / PUBLIC_KEYS_FILE))
        expected = CheckpointFile(data, store).read()
        report = await self._log.read(lambda tx: verify_store(tx, keys, expected))
        return _make_result(
            {
                "ok": not report.findings,
                "records": report.records,
                "chains": report.chains,
                "checkpoints": report.checkpoints,
                "findings": [str(item) for item in report.findings],
                "notes": report.notes,
            }
        )


class ExplainedPrincipal(Struct):
    """Principal for which a policy decision is explained."""

    id: str
    scopes: list[str] | None = None
    groups: list[str] = []
    client: str | None = None
    issuer: str | None = None


class PolicyService(Service):
    """Tools that explain the access rules of a server."""

    name = "policy"

    def __init__(self, server: Server, rules: PolicyEngine) -> None:
        super().__init__()
        self._server, self._rules = server, rules

    @tool(annotations=READ_ONLY)
    async def explain(
        self,
        kind: Literal["tool", "prompt", "resource"],
        name: str,
        principal: ExplainedPrincipal | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> ToolResult:
        """Explain the policy decision for a call by a principal; without a principal, for the local user."""
        owned = self._server.qualified_name(_KINDS[kind], name)
        target = f"{owned.owner}.{owned.name}" if owned.owner else name
        caller: dict[str, Any] = {}
        if principal is not None:
            scopes = ["*"] if principal.scopes is None else principal.scopes
            caller = {"principal": principal.id, "groups": principal.groups, "scopes": scopes}
            caller |= {"client": principal.client, "issuer": principal.issuer}
        try:
            query = policy_tests.make_query(name, _KINDS[kind], target, arguments=arguments, **caller)
        except UsageError as failure:
            raise ToolError(str(failure)) from None
        verdict = policy_tests.explain(self._rules, query)
        return _make_result(
            {"outcome": verdict.outcome, "says": policy_tests.OUTCOME_LABELS[verdict.outcome], "why": verdict.why}
        )


def _make_result(data: Any) -> ToolResult:
    """Return a tool result with structured content only; the console does not read the text."""
    return ToolResult(content=[], structured_content=data)
