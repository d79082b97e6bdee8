"""The tools of the console about targets: what is there, what it offers, and asking it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from msgspec import Struct

from portico.auth.principal import Principal
from portico.client.client import Client
from portico.plugins import require_plugin
from portico.protocol.errors import Error, ToolError, UsageError
from portico.protocol.notifications import ProgressParams
from portico.protocol.versions import LATEST
from portico.server.components.results import ToolResult
from portico.server.context.context import Context
from portico.server.registry.service import Service, tool
from portico_console.server_requests import Action, PageAnswer, Questions
from portico_console.service_detection import known_services
from portico_console.session_auth import visitor_of
from portico_console.targets import ConsoleTarget, Listed, Targets, checked_revision, kind_of, list_all, weights_of
from portico_console.tool_responses import say, shown

READS = {"readOnlyHint": True}

AuthFor = Callable[[str], str | None]
"""The bearer token for a URL, where this user has one."""


class AsPrincipal(Struct):
    """Another principal, to see with its eyes."""

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
    """Targets, and what they offer."""

    name = "targets"

    def __init__(self, targets: Targets, questions: Questions) -> None:
        super().__init__()
        self._targets, self._questions = targets, questions
        self._runs = count(1)

    @tool(annotations=READS)
    async def list_targets(self) -> ToolResult:
        """The servers that can be looked at."""
        return shown({"targets": self._targets.states()})

    @tool
    async def set_revision(self, target: str, revision: str | None = None) -> ToolResult:
        """Connect again, with this revision of the protocol; without one, with the newest that both know."""
        found = self._targets.get(target)
        await found.open(checked_revision(revision))
        return shown(found.state)

    @tool(annotations=READS)
    async def list_items(
        self,
        target: str,
        kind: Listed,
        as_principal: AsPrincipal | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """What a target offers, or what it would show to another principal."""
        found = self._targets.get(target)
        principal = visitor_of(ctx) if as_principal is None else as_principal.principal()
        items = await self._listed(ctx, found, kind, principal, named=as_principal is not None)
        answer: dict[str, Any] = {"kind": kind, "items": items, "version": found.state.versions[kind]}
        if kind == "tools":
            weights = weights_of(items)
            answer |= {"weights": weights, "weight": sum(weights.values()), "owners": found.tool_owners()}
            if as_principal is None:
                self._recognise(found, items)
        return shown(answer)

    async def _listed(
        self, ctx: Context, found: ConsoleTarget, kind: Listed, principal: Principal | None, *, named: bool = False
    ) -> list[dict[str, Any]]:
        other = self._as(ctx, found, principal, named=named)
        if other is None:
            return await found.listed(kind)
        async with other as client:
            return await list_all(client, kind)

    @tool(annotations=READS)
    async def lint(self, target: str, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """What is wrong with the tools of a target, as `portico contracts lint` says it."""
        services = require_plugin("services", "linting tools")
        found = self._targets.get(target)
        items = await self._listed(ctx, found, "tools", visitor_of(ctx))
        info = found.state.server
        about = ("", "") if info is None else (info.name, info.version)
        return shown({"findings": services.lint_tools(items, *about, found.state.revision or LATEST)})

    def _recognise(self, found: ConsoleTarget, tools: list[dict[str, Any]]) -> None:
        services = known_services(str(tool.get("name")) for tool in tools)
        if services != found.state.services:
            found.state.services = services
            self._targets.changed()

    def _as(self, ctx: Context, found: ConsoleTarget, principal: Principal | None, *, named: bool) -> Client | None:
        """A client of this server itself for a principal: one that was named, or the one who has logged in."""
        if named and found.state.kind != "self":
            raise ToolError("only this server itself can be looked at with the eyes of another principal")
        return None if principal is None or found.state.kind != "self" else found.client_as(principal, _who(ctx))

    # Asking

    @tool
    async def call_tool(
        self,
        target: str,
        name: str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,
        as_principal: AsPrincipal | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Call a tool of a target. Its progress, its log and its questions are told on the way."""
        params = {"name": name, "arguments": arguments or {}}
        return await self._run(ctx, target, "tools/call", params, timeout, as_principal)

    @tool
    async def read_resource(
        self,
        target: str,
        uri: str,
        as_principal: AsPrincipal | None = None,
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
        """Fill in a prompt of a target."""
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
        """Values for an argument of a prompt or of a template."""
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
        other: AsPrincipal | None = None,
    ) -> ToolResult:
        found = self._targets.get(target)
        if other is not None and visitor_of(ctx) is not None:
            raise ToolError("who has logged in calls in their own name")
        principal = visitor_of(ctx) if other is None else other.principal()
        run = partial(
            found.run, f"r{next(self._runs)}", partial(say, ctx), partial(_progress, ctx), method, dict(params),
            seconds, asker=_who(ctx),
        )  # fmt: skip
        client = self._as(ctx, found, principal, named=other is not None)
        if client is None:
            return shown(await run())
        async with client:
            return shown(await run(client=client))

    @tool
    async def cancel_run(self, run: str, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """Give up waiting for something that is being asked; the target is told."""
        found = next((one.runs[run] for one in self._targets if run in one.runs), None)
        own = found is not None and _who(ctx) in (None, found.asker)
        return shown({"cancelled": found is not None and own and found.cancel()})

    @tool
    async def subscribe(self, target: str, uri: str, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """Be told when a resource changes."""
        found = self._targets.get(target)
        other = self._as(ctx, found, visitor_of(ctx), named=False)
        if other is not None:
            # All pages are told by one connection, the owner's: so who asks has to be one who may read it.
            async with other as client:
                try:
                    await client.read_resource(uri)
                except Error as failure:
                    raise ToolError(f"it cannot be watched: {failure}") from None
        return shown({"uris": await found.watch(uri, True)})

    @tool
    async def unsubscribe(self, target: str, uri: str) -> ToolResult:
        """Be told no longer when a resource changes."""
        return shown({"uris": await self._targets.get(target).watch(uri, False)})

    # Being asked

    @tool(annotations=READS)
    async def list_questions(self, ctx: Context = None) -> ToolResult:  # type: ignore[assignment]
        """What servers have asked, and no person has answered yet."""
        return shown({"questions": self._questions.waiting(_who(ctx))})

    @tool
    async def answer(
        self,
        question: str,
        action: Action,
        content: dict[str, Any] | None = None,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> ToolResult:
        """Answer a question of a server."""
        self._questions.answer(question, PageAnswer(action, content), _who(ctx))
        return shown({"answered": True})


class OpeningService(Service):
    """Opening other servers: for who has started the console for that."""

    name = "opening"

    def __init__(self, targets: Targets, auth_for: AuthFor | None = None) -> None:
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
        """Connect to a server: a URL, a command, a file.py, a module:object, an mcp.json. `oauth`: log in with a
        browser of this machine, if the server wants that."""
        spec, kind = target.strip(), kind_of(target)
        options: dict[str, Any] = {}
        if kind == "url":
            found_token = self._auth_for(spec) if self._auth_for is not None else None
            options = {"headers": headers, "auth": token or ("oauth" if oauth else found_token)}
        elif headers or token or oauth:
            raise ToolError("headers and a token are for servers at a URL; this one is not")
        found = self._targets.add(spec, spec, kind, **options)
        try:
            await found.open(checked_revision(revision))
        except (Error, UsageError) as wrong:
            await self._targets.close(found.state.id)
            raise ToolError(str(wrong)) from None
        return shown(found.state)

    @tool
    async def close_target(self, target: str) -> ToolResult:
        """Disconnect from a server, and forget it."""
        if target == "self":
            raise ToolError("this server itself cannot be closed here")
        await self._targets.close(target)
        return shown({"targets": self._targets.states()})


def _who(ctx: Context) -> str | None:
    """Return the identity of the visitor; None for the owner of this process."""
    principal = visitor_of(ctx)
    return None if principal is None else principal.identity


def _progress(ctx: Context, said: ProgressParams) -> None:
    ctx.report_progress(said.progress, said.total, said.message)
