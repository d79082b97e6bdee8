"""The tools that the browser console attaches for a server of this package: upstreams, audit and policy.

The console finds them through `portico_gateway.plugin.console_views`. Its page calls them by their names and reads
their structured results.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from portico.audit.checkpoints import HeadFile
from portico.audit.signing_keys import PUBLIC, TrustedKeys, read_public
from portico.auth.principal import Principal
from portico.protocol.errors import ToolError, UsageError
from portico.server.components.results import ToolResult
from portico.server.policy.interfaces import Kind
from portico.server.registry.service import Service, tool
from portico.server.server import Server
from portico.store.database import Database
from portico.store.errors import BadStatement
from portico.store.transaction import Transaction
from portico.transports.http_server.application import Exchange
from portico.transports.upstream import Upstream
from portico_gateway.audit.hook import CallAudit
from portico_gateway.audit.queries import RecordFilter, newest
from portico_gateway.audit.store import verify_store
from portico_gateway.gateway.gateway import Gateway
from portico_gateway.gateway.status import PATH as STATUS_PATH
from portico_gateway.gateway.status import merge_reports
from portico_gateway.policy import policy_tests
from portico_gateway.policy.engine import AccessRules

MAX_AUDIT_EVENTS = 1000
READ_ONLY = {"readOnlyHint": True}
# How often the other workers are asked for the state of their upstreams while a page shows it.
REFRESH_SECONDS = 2.0
OUTCOME_LABELS = {
    "allow": "allowed",
    "deny": "denied",
    "need": "denied: insufficient scope",
    "ask": "allowed after confirmation",
}
# The console has authenticated its visitor already.
_OPERATOR = Principal("console", scopes=frozenset({"operator"}))
_KINDS: dict[str, Kind] = {"tool": "tool", "prompt": "prompt", "resource": "resource"}


def console_views(server: Server) -> list[Service]:
    """Return the services for what this server has: upstreams, an audit, rules."""
    views: list[Service] = []
    if isinstance(server, Gateway):
        views.append(UpstreamsService(server))
    protection = server.protection
    if protection is not None and isinstance(protection.witness, CallAudit):
        views.append(AuditService(protection.witness))
    if protection is not None and isinstance(protection.guard, AccessRules):
        views.append(PolicyService(server, protection.guard))
    return views


class UpstreamsService(Service):
    """The upstreams of a gateway."""

    name = "upstreams"

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        # The exchange that serves the gateway, if it is served over HTTP.
        self.exchange: Exchange | None = None
        self._others: list[dict[str, Any]] = []
        self._asked_at = -REFRESH_SECONDS
        self._asking: asyncio.Task[None] | None = None

    @tool(annotations=READ_ONLY)
    async def upstreams(self) -> ToolResult:
        """Return the state of each upstream of this gateway and the last lines that it logged."""
        await self._ask_others()
        return _structured(self._merge())

    def status(self) -> dict[str, Any]:
        """Return the state over all workers, as the others reported it at most REFRESH_SECONDS ago."""
        now = time.monotonic()
        if self.exchange is not None and self.exchange.elsewhere is not None and now - self._asked_at > REFRESH_SECONDS:
            self._asked_at = now
            self._asking = asyncio.get_running_loop().create_task(self._ask_others())
        return self._merge()

    def connections(self) -> Iterator[tuple[str, Upstream]]:
        """Return the connections that are there now, each with the alias of its upstream."""
        return self._gateway.connections()

    def _merge(self) -> dict[str, Any]:
        return merge_reports([self._gateway.report(), *self._others])

    async def _ask_others(self) -> None:
        others = None if self.exchange is None else self.exchange.elsewhere
        if others is not None:
            bodies = await others.ask_others(STATUS_PATH, _OPERATOR)
            self._others = [json.loads(body) for body in bodies]


class AuditService(Service):
    """The audit log of a server."""

    name = "audit"

    def __init__(self, audit: CallAudit) -> None:
        super().__init__()
        self._audit = audit

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
        tool's name or a pattern."""
        limit = max(1, min(limit, MAX_AUDIT_EVENTS))
        until = {} if before is None else {"until": before - 1}
        query = RecordFilter(**until, principal=principal, outcome=outcome, tool=find)
        rows = await self._read(lambda tx: newest(tx, query, limit))
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
        return _structured({"records": records, "next": records[-1]["at"] if len(records) == limit else None})

    @tool(annotations=READ_ONLY)
    async def verify_audit(self) -> ToolResult:
        """Verify the integrity of the audit log."""
        data, store = self._audit_location()
        keys = TrustedKeys(read_public(data / PUBLIC))
        expected = HeadFile(data, store).read()
        report = await self._read(lambda tx: verify_store(tx, keys, expected))
        return _structured(
            {
                "ok": not report.found,
                "records": report.records,
                "chains": report.chains,
                "checkpoints": report.checkpoints,
                "findings": [str(one) for one in report.found],
                "notes": report.notes,
            }
        )

    def _audit_location(self) -> tuple[Path, str]:
        data, store = self._audit.place()
        if store is None:
            raise ToolError("this audit log is written to files only; verify it with `portico audit verify`")
        return data, store

    async def _read(self, fn: Callable[[Transaction], Any]) -> Any:
        await self._audit.writer.written()
        async with Database(self._audit_location()[1], connections=1) as database:
            try:
                return await database.read(fn)
            except BadStatement:
                raise ToolError("no audit events recorded yet") from None


class ExplainedPrincipal(Struct):
    """The principal whose call is explained."""

    id: str
    scopes: list[str] | None = None
    groups: list[str] = []
    client: str | None = None
    issuer: str | None = None


class PolicyService(Service):
    """The rules of a server."""

    name = "policy"

    def __init__(self, server: Server, rules: AccessRules) -> None:
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
        owned = self._server.owner_of(_KINDS[kind], name)
        target = f"{owned.owner}.{owned.name}" if owned.owner else name
        caller: dict[str, Any] = {}
        if principal is not None:
            scopes = ["*"] if principal.scopes is None else principal.scopes
            caller = {"principal": principal.id, "groups": principal.groups, "scopes": scopes}
            caller |= {"client": principal.client, "issuer": principal.issuer}
        try:
            asked = policy_tests.asked(name, _KINDS[kind], target, arguments=arguments, **caller)
        except UsageError as failure:
            raise ToolError(str(failure)) from None
        verdict = policy_tests.judge(self._rules, asked)
        return _structured({"outcome": verdict.outcome, "says": OUTCOME_LABELS[verdict.outcome], "why": verdict.why})


def _structured(data: Any) -> ToolResult:
    """Return a result for a program: without the text that repeats it for a model."""
    return ToolResult(content=[], structured_content=data)
