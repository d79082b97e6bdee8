"""Console tools for targets: list them, list their components, and send requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal
from portico.client.client import Client
from portico.plugins import require_plugin
from portico.protocol.errors import PorticoError, ToolError, UsageError
from portico.protocol.notifications import ProgressParams
from portico.protocol.versions import LATEST_PROTOCOL_VERSION
from portico.server.components.results import ToolResult
from portico.server.context.context import Context
from portico.server.registry.service import Service, tool
from portico.transports.short_urls import with_scheme
from portico_console.server_requests import ElicitationAction, ServerRequests, UserResponse
from portico_console.session_auth import visitor_of
from portico_console.targets import (
    ConsoleTarget,
    ListKind,
    TargetRegistry,
    detect_target_kind,
    estimate_tool_tokens,
    list_all,
    validate_protocol_version,
)
from portico_console.tool_responses import emit_event, structured_response

READ_ONLY = {"readOnlyHint": True}

TokenLookup = Callable[[str], str | None]
"""The bearer token for a URL, where this user has one."""


class ImpersonatedPrincipal(Struct):
    """Another principal whose view of a server is requested."""

    id: str
    scopes: list[str] | None = None
    groups: list[str] = []
    client: str | None = None
    issuer: str | None = None

    def principal(self) -> Principal:
        return Principal(
            self.id,
            None if self.scopes is None else frozenset(self.scopes),
            frozenset(self.groups),
            client_id=self.client,
            issuer=self.issuer,
        )


class TargetService(Service):
    """Tools for targets and their components."""

    name = "targets"

    def __init__(self, targets: TargetRegistry, questions: ServerRequests) -> None:
        super().__init__()
        self._targets, self._questions = targets, questions
        self._runs = count(1)

    @tool(annotations=READ_ONLY)
    async def list_targets(self) -> ToolResult:
        """List the servers that can be inspected."""
        return structured_response({"targets": self._targets.states()})

    @tool
    async def set_revision(self, target: str, revision: str | None = None) -> ToolResult:
        """Reconnect with this protocol version; without one, with the newest that both sides support."""
        result = self._targets.get(target)
        await result.open(validate_protocol_version(revision))
        return structured_response(result.state)

    @tool(annotations=READ_ONLY)
    async def list_items(
        self,
        target: str,
        kind: ListKind,
        as_principal: ImpersonatedPrincipal | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """List a target's tools, resources, templates or prompts, optionally as another principal."""
        result = self._targets.get(target)
        principal = visitor_of(ctx) if as_principal is None else as_principal.principal()
        items = await self._list_as(ctx, result, kind, principal, named=as_principal is not None)
        answer: dict[str, Any] = {"kind": kind, "items": items, "version": result.state.versions[kind]}
        if kind == "tools":
            weights = estimate_tool_tokens(items)
            answer |= {"weights": weights, "weight": sum(weights.values()), "owners": result.tool_origins()}
            if as_principal is None:
                services = detect_services(str(tool.get("name")) for tool in items)
                if services != result.state.services:
                    result.state.services = services
                    self._targets.notify()
        return structured_response(answer)

    async def _list_as(
        self, ctx: Context, target: ConsoleTarget, kind: ListKind, principal: Principal | None, *, named: bool = False
    ) -> list[dict[str, Any]]:
        other = self._client_as(ctx, target, principal, named=named)
        if other is None:
            return await target.list_entries(kind)
        async with other as client:
            return await list_all(client, kind)

    @tool(annotations=READ_ONLY)
    async def lint(self, target: str, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """Lint the tools of a target, as `portico contracts lint` does."""
        services = require_plugin("services", "linting tools")
        result = self._targets.get(target)
        items = await self._list_as(ctx, result, "tools", visitor_of(ctx))
        info = result.state.server
        about = ("", "") if info is None else (info.name, info.version)
        return structured_response(
            {"findings": services.lint_tools(items, *about, result.state.protocol_version or LATEST_PROTOCOL_VERSION)}
        )

    def _client_as(
        self, ctx: Context, target: ConsoleTarget, principal: Principal | None, *, named: bool
    ) -> Client | None:
        """Return a client for the named principal or the signed-in visitor, or None to use the shared client."""
        if named and target.state.kind != "self":
            raise ToolError("only this server itself can be viewed as another principal")
        return (
            None
            if principal is None or target.state.kind != "self"
            else target.client_as(principal, _current_principal(ctx))
        )

    # Requests

    @tool
    async def call_tool(
        self,
        target: str,
        name: str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        as_principal: ImpersonatedPrincipal | None = None,
        as_task: bool = False,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Call a tool of a target. Progress, log messages and input requests are streamed until the result.

        With `as_task` the tool runs as a task, if it supports task execution.
        """
        params = {"name": name, "arguments": arguments or {}}
        return await self._run(ctx, target, "tools/call", params, timeout, as_principal, as_task)

    @tool
    async def read_resource(
        self,
        target: str,
        uri: str,
        as_principal: ImpersonatedPrincipal | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Read a resource of a target."""
        return await self._run(ctx, target, "resources/read", {"uri": uri}, other=as_principal)

    @tool
    async def get_prompt(
        self,
        target: str,
        name: str,
        arguments: dict[str, str] | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Render a prompt of a target."""
        return await self._run(ctx, target, "prompts/get", {"name": name, "arguments": arguments or {}})

    @tool
    async def complete(
        self,
        target: str,
        ref: dict[str, str],
        argument: str,
        value: str,
        context: dict[str, str] | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Complete an argument of a prompt or a resource template."""
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": context}
        return await self._run(ctx, target, "completion/complete", params)

    async def _run(
        self,
        ctx: Context,
        target: str,
        method: str,
        params: Mapping[str, Any],
        seconds: float | None = None,
        other: ImpersonatedPrincipal | None = None,
        as_task: bool = False,
    ) -> ToolResult:
        result = self._targets.get(target)
        if other is not None and visitor_of(ctx) is not None:
            raise ToolError("signed-in users cannot call as another principal")
        principal = visitor_of(ctx) if other is None else other.principal()
        run = partial(
            result.run, f"r{next(self._runs)}", partial(emit_event, ctx), partial(_progress, ctx), method, dict(params),
            seconds, principal=_current_principal(ctx), as_task=as_task,
        )  # fmt: skip
        client = self._client_as(ctx, result, principal, named=other is not None)
        if client is None:
            return structured_response(await run())
        async with client:
            return structured_response(await run(client=client))

    @tool
    async def cancel_run(self, run: str, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """Cancel a running request. The target receives a cancellation notification."""
        result = next((target.runs[run] for target in self._targets if run in target.runs), None)
        own = result is not None and _current_principal(ctx) in (None, result.principal)
        return structured_response({"cancelled": result is not None and own and result.cancel()})

    @tool
    async def subscribe(self, target: str, uri: str, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """Subscribe to changes of a resource."""
        result = self._targets.get(target)
        other = self._client_as(ctx, result, visitor_of(ctx), named=False)
        if other is not None:
            # All pages share the owner's connection for notifications, so check that the visitor may read the resource.
            async with other as client:
                try:
                    await client.read_resource(uri)
                except PorticoError as failure:
                    raise ToolError(f"cannot subscribe: {failure}") from None
        return structured_response({"uris": await result.set_subscription(uri, True)})

    @tool
    async def unsubscribe(self, target: str, uri: str) -> ToolResult:
        """Unsubscribe from changes of a resource."""
        return structured_response({"uris": await self._targets.get(target).set_subscription(uri, False)})

    # Server-to-client requests

    @tool(annotations=READ_ONLY)
    async def list_questions(self, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """List the pending server-to-client requests."""
        return structured_response({"questions": self._questions.pending_for(_current_principal(ctx))})

    @tool
    async def answer(
        self,
        question: str,
        action: ElicitationAction,
        content: dict[str, Any] | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Respond to a server-to-client request."""
        self._questions.respond(question, UserResponse(action, content), _current_principal(ctx))
        return structured_response({"answered": True})


class TargetConnectionService(Service):
    """Tools that connect to other servers, if the console was started for that."""

    name = "opening"

    def __init__(self, targets: TargetRegistry, auth_for: TokenLookup | None = None) -> None:
        super().__init__()
        self._targets, self._auth_for = targets, auth_for

    @tool
    async def open_target(
        self,
        target: str,
        revision: str | None = None,
        headers: dict[str, str] | None = None,
        token: str | None = None,
        oauth: bool = False,
    ) -> ToolResult:
        """Connect to a server: a URL, a command, a file.py, a module:object or an mcp.json.

        `oauth`: log in with a browser on this machine if the server requires it.
        """
        spec = with_scheme(target.strip())
        kind = detect_target_kind(spec)
        options: dict[str, Any] = {}
        if kind == "url":
            found_token = self._auth_for(spec) if self._auth_for is not None else None
            options = {"headers": headers, "auth": token or ("oauth" if oauth else found_token)}
        elif headers or token or oauth:
            raise ToolError("headers and token require a server at a URL")
        result = self._targets.add(spec, spec, kind, **options)
        try:
            await result.open(validate_protocol_version(revision))
        except (PorticoError, UsageError) as wrong:
            await self._targets.close(result.state.id)
            raise ToolError(str(wrong)) from None
        return structured_response(result.state)

    @tool
    async def close_target(self, target: str) -> ToolResult:
        """Disconnect from a server and remove it."""
        if target == "self":
            raise ToolError("this server itself cannot be closed")
        await self._targets.close(target)
        return structured_response({"targets": self._targets.states()})


def _current_principal(ctx: Context) -> str | None:
    """Return the identity of the visitor, or None for the owner of this process."""
    principal = visitor_of(ctx)
    return None if principal is None else principal.identity


def _progress(ctx: Context, progress: ProgressParams) -> None:
    ctx.report_progress(progress.progress, progress.total, progress.message)


_MEMORY = (
    "capture", "recall", "get", "update", "delete", "restore", "history", "delete_all", "status", "namespaces",
    "consolidate", "enrich", "conflicts", "prompts", "graph", "export", "import", "sync",
)  # fmt: skip
_TASKS = (
    "create_task", "create_tasks", "list_tasks", "get_task", "update_task", "delete_task", "add_blocker",
    "remove_blocker", "get_blockers", "next_task", "complete_task", "add_note", "task_tree", "task_history",
)  # fmt: skip
_CONTRACTS = ("list", "get", "render", "lint", "diff", "codegen")

# By the page's name of each tool.
SERVICE_TOOLS: dict[str, dict[str, str]] = {
    "memory": {word: f"memory_{word}" for word in _MEMORY},
    "tasks": {word: word for word in _TASKS},
    "contracts": {word: f"spec_{word}" for word in _CONTRACTS},
}
# Tools that identify a service. A gateway adds a prefix to them.
_MARKER_TOOLS = {
    "memory": ("memory_capture", "memory_recall", "memory_get"),
    "tasks": ("create_task", "list_tasks", "get_task"),
    "contracts": ("spec_list", "spec_lint", "spec_diff"),
}


def detect_services(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the tools of each detected service: the page's name, and the name at the target."""
    available = set(names)
    result = {}
    for service, signs in _MARKER_TOOLS.items():
        prefixes = sorted((name.removesuffix(signs[0]) for name in available if name.endswith(signs[0])), key=len)
        prefix = next((item for item in prefixes if all(item + sign in available for sign in signs)), None)
        if prefix is not None:
            tools = {word: prefix + name for word, name in SERVICE_TOOLS[service].items()}
            result[service] = {word: name for word, name in tools.items() if name in available}
    return result
