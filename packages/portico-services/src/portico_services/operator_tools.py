"""Switching services on and off while a server runs, for the person who operates it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from portico import Context, Service, ToolError, UsageError, tool
from portico.extend import Tool
from portico_services.system.audit_log import Audit

# A principal has to have it by name: a token that is good for everything else does not.
SCOPE = "operator"

ServiceName = Annotated[str, Meta(description="A service, as service_list gives it", max_length=64)]


class ServiceState(Struct, rename="camel"):
    name: str
    enabled: bool
    tools: int


class ServiceList(Struct):
    """The services that this server can have."""

    services: list[ServiceState]


class ServiceChange(Struct):
    """What became of it: `no_change` where it was so already."""

    name: str
    enabled: bool
    outcome: Literal["changed", "no_change"]


class ServiceSwitch(Service):
    """Tools for the operator of the server. `prepare` makes a service by its name, or raises UsageError.

    On stdio the one client was started with them on purpose. Over HTTP a principal needs the scope `operator`.
    Everything that is asked here is recorded in `audit`, refusals as well.
    """

    name = "operator"

    def __init__(
        self, names: Iterable[str], prepare: Callable[[str], Service], audit: Path, *, over_http: bool = False
    ) -> None:
        super().__init__()
        self._names = tuple(names)
        self._prepare = prepare
        self._audit = Audit(audit, "operator")
        self._over_http = over_http
        # One change at a time: two that make the same service would both find that it is not there.
        self._changing = asyncio.Lock()

    @tool(annotations={"readOnlyHint": True, "openWorldHint": False}, aliases=["operator.service_list"])
    async def service_list(self, ctx: Context) -> ServiceList:
        """List the services that this server can have, and which of them are switched on. For its operator."""
        self._permit(ctx, "service_list")
        present = {service.name: service for service in ctx.server.services}
        return ServiceList([ServiceState(name, name in present, _count(present.get(name))) for name in self._names])

    @tool(
        annotations={"destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        aliases=["operator.service_enable"],
    )
    async def service_enable(self, name: ServiceName, ctx: Context) -> ServiceChange:
        """Switch a service on: its tools, resources and prompts are there for every client. For the operator."""
        self._permit(ctx, "service_enable", name)
        async with self._changing:
            if self._is_on(ctx, name):
                return ServiceChange(name, True, "no_change")
            try:
                service = self._prepare(name)
                if self._over_http and getattr(service, "local_only", False):
                    raise UsageError("it is for this machine alone, so the server has to be started with it")
                ctx.server.add(service)
            except UsageError as reason:
                self._record(ctx, "service_enable", name, "failed")
                raise ToolError(f"The service {name!r} cannot be switched on: {reason}.") from None
            self._record(ctx, "service_enable", name, "ok")
            return ServiceChange(name, True, "changed")

    @tool(
        annotations={"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
        aliases=["operator.service_disable"],
    )
    async def service_disable(self, name: ServiceName, ctx: Context) -> ServiceChange:
        """Switch a service off: what it offers is gone for every client. What it has stored stays. For the operator."""
        self._permit(ctx, "service_disable", name)
        async with self._changing:
            is_on = self._is_on(ctx, name)
            if is_on:
                ctx.server.remove(name)
                self._record(ctx, "service_disable", name, "ok")
            return ServiceChange(name, False, "changed" if is_on else "no_change")

    def _is_on(self, ctx: Context, name: str) -> bool:
        if name not in self._names:
            raise ToolError(
                f"There is no service {name!r}. There are: {', '.join(self._names)}.", kind="ResourceNotFound"
            )
        return any(service.name == name for service in ctx.server.services)

    def _permit(self, ctx: Context, tool: str, name: str | None = None) -> None:
        principal: Any = ctx.principal
        allowed = ctx.address is None if principal is None else SCOPE in (principal.scopes or ())
        if not allowed:
            self._record(ctx, tool, name, "denied")
            raise ToolError(f"The tool {tool!r} is for the operator of this server.", kind="PermissionError")

    def _record(self, ctx: Context, tool: str, name: str | None, outcome: str) -> None:
        who = "stdio" if ctx.address is None else "anonymous" if ctx.principal is None else ctx.principal.id
        self._audit.add(tool, {"service": name, "who": who, "address": ctx.address}, outcome)


def _count(service: Service | None) -> int:
    return 0 if service is None else sum(isinstance(one, Tool) for one in service.offers())
