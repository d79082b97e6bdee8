"""Tools that let the operator enable and disable services of a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from portico import Context, Service, Tool, ToolError, UsageError, tool
from portico_services.system.audit_log import AuditLog

# A principal needs this scope by name: a wildcard token is not sufficient.
OPERATOR_SCOPE = "operator"

ServiceName = Annotated[str, Meta(description="Service name from service_list", max_length=64)]


class ServiceStatus(Struct, rename="camel"):
    name: str
    enabled: bool
    tools: int


class ServiceList(Struct):
    """Services that this server can offer."""

    services: list[ServiceStatus]


class ServiceToggleResult(Struct):
    """Result of enabling or disabling a service; `no_change` if it was already in that state."""

    name: str
    enabled: bool
    outcome: Literal["changed", "no_change"]


class OperatorTools(Service):
    """Tools for the operator of the server. `prepare` creates a service by name or raises UsageError.

    On stdio the single client was started with these tools on purpose. Over HTTP a principal needs the scope
    `operator`. Every call is recorded in `audit`, including denied ones.
    """

    name = "operator"

    def __init__(
        self, names: Iterable[str], prepare: Callable[[str], Service], audit: Path, *, over_http: bool = False
    ) -> None:
        super().__init__()
        self._names = tuple(names)
        self._prepare = prepare
        self._audit = AuditLog(audit, "operator")
        self._over_http = over_http
        # Serialize changes: two concurrent calls would both find the service missing and add it twice.
        self._changing = asyncio.Lock()

    @tool(annotations={"readOnlyHint": True, "openWorldHint": False}, aliases=["operator.service_list"])
    async def service_list(self, ctx: Context) -> ServiceList:
        """List the available services and whether each is enabled. Operators only."""
        self._authorize(ctx, "service_list")
        present = {service.name: service for service in ctx.server.services}
        return ServiceList(
            [ServiceStatus(name, name in present, _count_tools(present.get(name))) for name in self._names]
        )

    @tool(
        annotations={"destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
        aliases=["operator.service_enable"],
    )
    async def service_enable(self, name: ServiceName, ctx: Context) -> ServiceToggleResult:
        """Enable a service for all clients. Its tools, resources and prompts appear immediately. Operators only."""
        self._authorize(ctx, "service_enable", name)
        async with self._changing:
            if self._is_on(ctx, name):
                return ServiceToggleResult(name, True, "no_change")
            try:
                service = self._prepare(name)
                if self._over_http and getattr(service, "local_only", False):
                    raise UsageError("it serves the local machine only; start the server with it")
                ctx.server.add(service)
            except UsageError as reason:
                self._record(ctx, "service_enable", name, "failed")
                raise ToolError(f"The service {name!r} cannot be enabled: {reason}.") from None
            self._record(ctx, "service_enable", name, "ok")
            return ServiceToggleResult(name, True, "changed")

    @tool(
        annotations={"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
        aliases=["operator.service_disable"],
    )
    async def service_disable(self, name: ServiceName, ctx: Context) -> ServiceToggleResult:
        """Disable a service for all clients; stored data stays. Operators only."""
        self._authorize(ctx, "service_disable", name)
        async with self._changing:
            is_on = self._is_on(ctx, name)
            if is_on:
                ctx.server.remove(name)
                self._record(ctx, "service_disable", name, "ok")
            return ServiceToggleResult(name, False, "changed" if is_on else "no_change")

    def _is_on(self, ctx: Context, name: str) -> bool:
        if name not in self._names:
            raise ToolError(
                f"Unknown service {name!r} (expected one of {', '.join(self._names)}).", error_type="ResourceNotFound"
            )
        return any(service.name == name for service in ctx.server.services)

    def _authorize(self, ctx: Context, tool: str, name: str | None = None) -> None:
        principal: Any = ctx.principal
        # Without authentication only stdio has no address; a remote anonymous caller is never an operator.
        allowed = ctx.client_address is None if principal is None else OPERATOR_SCOPE in (principal.scopes or ())
        if not allowed:
            self._record(ctx, tool, name, "denied")
            raise ToolError(
                (f"The tool {tool!r} is reserved for the operator of this server."), error_type="PermissionError"
            )

    def _record(self, ctx: Context, tool: str, name: str | None, outcome: str) -> None:
        actor = "stdio" if ctx.client_address is None else "anonymous" if ctx.principal is None else ctx.principal.id
        self._audit.add(tool, {"service": name, "who": actor, "address": ctx.client_address}, outcome)


def _count_tools(service: Service | None) -> int:
    return 0 if service is None else sum(isinstance(component, Tool) for component in service.components())
