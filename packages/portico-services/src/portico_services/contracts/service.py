"""The contracts service: what the tools beside it promise, and calls that keep to it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from portico import Context, Service, ToolError, ToolResult, prompt, resource, tool
from portico.definitions import visible_json
from portico.extend import ERROR, RESULT, Handler, InvalidParams, explained, identity_of
from portico.jsonschema import codegen
from portico.protocol import notifications
from portico_services.contracts import (
    background_calls,
    invoker,
    loader,
    outcomes,
    results,
    schemas,
)
from portico_services.contracts import (
    spec_parser as specification,
)
from portico_services.contracts.background_calls import BackgroundCall, BackgroundCalls, Full
from portico_services.contracts.codegen.client_model import surface
from portico_services.contracts.codegen.python import python
from portico_services.contracts.codegen.typescript import typescript
from portico_services.contracts.contract_cache import KeptContracts
from portico_services.contracts.definitions import Contract, Definition
from portico_services.contracts.diff import Stopped, diff
from portico_services.contracts.invocation_names import INVOCATION, NOTES
from portico_services.contracts.lint import lint, lint_tools
from portico_services.contracts.outcomes import Outcome, require_validator
from portico_services.contracts.spec_writer import render
from portico_services.contracts.tool_search import search
from portico_services.rate_limit import Limiter, too_often

log = logging.getLogger("portico.contracts")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PAGES = Path(__file__).parent / "pages"
_USE_CASES = msgspec.json.decode((Path(__file__).parent / "use_cases.json").read_bytes(), type=dict[str, list[str]])
LONGEST_TEXT = 2 * 1024 * 1024
LONGEST_WAIT_SECONDS = 30.0
COMPARING_SECONDS = 5.0

ToolName = Annotated[str, Meta(description="A tool, by its listed or its invocation name", max_length=300)]
SpecText = Annotated[str, Meta(description="The Markdown of a specification", max_length=LONGEST_TEXT)]
Language = Literal["python", "typescript"]
JobId = Annotated[str, Meta(description="What tool_start gave", max_length=64)]
Promised = Annotated[
    Annotated[str, Meta(max_length=LONGEST_TEXT)] | dict[str, Any] | list[dict[str, Any]],
    "A tool of this server by its name; or a definition, a list of them, a contracts.lock, or the Markdown of a"
    " specification",
]

READ = {"readOnlyHint": True, "openWorldHint": False}
# They call other tools, and may do whatever those do.
ACT = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}

_WRITERS = {"python": (python, "py"), "typescript": (typescript, "ts")}
# Whether this is inside a batch: batches of batches of batches have no end.
_within: ContextVar[bool] = ContextVar("within a batch", default=False)


class BatchCall(Struct, forbid_unknown_fields=True):
    """One call of a batch."""

    tool_name: ToolName
    arguments: Annotated[dict[str, Any], "What the tool is given"] = {}


def failed(error_type: str, message: str, details: dict[str, Any] | str | None = None) -> Any:
    """A tool's refusal with its type, for callers by contract: `return failed("FileNotFoundError", …)`.

    It is a ToolResult, whatever else the tool returns.
    """
    error = outcomes.failure(error_type, message, details)["error"]
    return ToolResult(content=message, is_error=True, meta={ERROR: error})


def _offer(name: str, annotations: dict[str, bool], version: str = "1.0.0") -> Callable[[F], F]:
    """A tool of ours: with its version, and also by its dotted name."""
    invocation = f"contracts.{name}"
    return tool(
        name,
        version=version,
        annotations=annotations,
        aliases=[invocation],
        meta={INVOCATION: invocation, NOTES: {"use_cases": _USE_CASES[invocation]}},
    )


class Contracts(Service):
    """What the tools of a server promise: `server.add(Contracts())`.

    `rate` and `burst`: how many calls a second of each tool that reaches outside may go through a batch or a job, and
    how many at once. `job_seconds`: how long a job may run; `keep_seconds`: how long its result is kept.
    """

    name = "contracts"
    scoped = True

    @explained
    def __init__(
        self,
        *,
        rate: float | None = None,
        burst: int = 10,
        job_seconds: float = 3600.0,
        keep_seconds: float = 3600.0,
    ) -> None:
        super().__init__()
        # Nothing here can be said about a schema without what reads it, so that is missed now and not in the middle.
        require_validator()
        self._limiter = None if rate is None else Limiter(rate, burst, time.monotonic)
        self._kept = KeptContracts()
        self._jobs = BackgroundCalls(longest=job_seconds, kept_for=keep_seconds)
        for name, schema in schemas.MESSAGES.items():
            said = f"The JSON Schema (draft-07) of the contract's {name.replace('_', ' ')}."
            offer = self.resource(
                f"spec://contract/{name}", name=name, description=said, mime_type="application/schema+json", inline=True
            )
            offer(partial(visible_json, schema))

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._jobs.close()

    # Looking around

    async def _contract(self, ctx: Context) -> Contract:
        """All tools that this caller is shown: those of the server, and of what is mounted in it."""
        return await invoker.contract_from(ctx.server, self._kept, **ctx.on_behalf)

    async def _tool(self, ctx: Context, name: str) -> tuple[Contract, Definition]:
        contract = await self._contract(ctx)
        found = contract.find(name)
        if found is None:
            near = contract.nearest(name)
            said = f"There is no tool {name[:100]!r}{f'; did you mean {near[0].name!r}?' if near else '.'}"
            details = {"name": name[:300], "suggestions": [tool.invocation for tool in near]}
            raise ToolError(said, kind="ResourceNotFound", details=details)
        return contract, found

    # Specifications

    @_offer("spec_list", READ)
    async def spec_list(
        self,
        ctx: Context,
        limit: Annotated[int, Meta(ge=1, le=1000, description="At most so many")] = 100,
        offset: Annotated[int, Meta(ge=0, description="How many to skip")] = 0,
    ) -> results.ToolListing:
        """The tools of this server, with their versions and invocation names."""
        return results.listing(await self._contract(ctx), offset, limit)

    @_offer("spec_get", READ)
    async def spec_get(
        self,
        ctx: Context,
        tool: ToolName,
        format: Annotated[Literal["md", "json", "draft-07"], "Markdown, JSON, or JSON with schemas of draft-07"] = "md",
    ) -> results.Specified:
        """The specification of a tool."""
        contract, found = await self._tool(ctx, tool)
        markdown = await _aside(ctx, render, contract, [found]) if format == "md" else None
        definition = None if format == "md" else results.definition(found, is_old=format == "draft-07")
        return results.Specified(found.invocation, str(contract.version_of(found)), format, markdown, definition)

    @_offer("spec_render", READ)
    async def spec_render(self, ctx: Context, tool: ToolName) -> results.Rendered:
        """Write the specification of a tool: eight sections of Markdown, from what it promises."""
        contract, found = await self._tool(ctx, tool)
        return results.Rendered(found.invocation, specification.FILE, await _aside(ctx, render, contract, [found]))

    @_offer("spec_lint", READ, version="1.1.0")
    async def spec_lint(
        self,
        ctx: Context,
        text: Annotated[SpecText | None, "A specification; or leave it out and name a tool"] = None,
        tool: Annotated[ToolName | None, "A tool whose generated specification is looked at"] = None,
    ) -> results.Linted:
        """Look whether a specification is complete and holds together: sections, tables, schemas, version, examples."""
        if (text is None) == (tool is None):
            raise ToolError("Give `text` or `tool`, one of the two.", kind="ValidationError")
        if tool is not None:
            contract, found = await self._tool(ctx, tool)
            return results.linted(await _aside(ctx, lint_tools, contract, [found]))
        return results.linted(await _aside(ctx, lint, text or ""))

    @_offer("spec_diff", READ)
    async def spec_diff(
        self,
        ctx: Context,
        old: Promised,
        new: Annotated[Promised | None, "The same; left out, it is what this server promises now"] = None,
    ) -> results.Compared:
        """Compare two versions of a tool or of several: breaking, minor or patch, why, and what callers have to do."""
        now = await self._contract(ctx)
        until = time.monotonic() + COMPARING_SECONDS
        try:
            before, after = await _aside(ctx, loader.pair, old, new, now)
            found = await _aside(ctx, diff, before, after, lambda: ctx.cancelled or time.monotonic() > until)
        except loader.UnreadableContract as failure:
            raise ToolError(f"This cannot be compared: {failure}.", kind="ValidationError") from None
        except Stopped:
            said = f"This takes longer than {COMPARING_SECONDS:g} s: compare fewer tools at a time."
            raise ToolError(said, kind="TimeoutError") from None
        return results.compared(found)

    @_offer("spec_codegen", READ)
    async def spec_codegen(
        self,
        ctx: Context,
        language: Annotated[Language, "Which language the client is written in"] = "python",
        tool: Annotated[ToolName | None, "One tool; left out, all of them"] = None,
    ) -> results.Generated:
        """Write a typed client for a tool, or for all tools of this server."""
        if tool is None:
            contract = await self._contract(ctx)
            tools = contract.tools
        else:
            contract, found = await self._tool(ctx, tool)
            tools = (found,)
        write, ending = _WRITERS[language]
        file = f"{codegen.snake(contract.server or 'server')}_client.{ending}"
        return results.Generated(language, file, await _aside(ctx, lambda: write(surface(contract, tools))))

    # Calling

    @_offer("tools_search", READ)
    async def tools_search(
        self,
        ctx: Context,
        query: Annotated[str, Meta(description="What the tool should be good for", max_length=2000)],
        limit: Annotated[int, Meta(ge=1, le=100, description="At most so many")] = 10,
    ) -> results.Searched:
        """Find tools of this server by what they are for."""
        found = await _aside(ctx, search, await self._contract(ctx), query, limit)
        matches = [
            results.ToolMatch(one.tool.name, one.tool.invocation, results.summary(one.tool.description), one.score)
            for one in found
        ]
        return results.Searched(matches)

    @_offer("tools_batch", ACT)
    async def tools_batch(
        self,
        ctx: Context,
        calls: Annotated[
            list[BatchCall], Meta(description="The calls", min_length=1, max_length=background_calls.MOST_CALLS)
        ],
        stop_on_error: Annotated[bool, "Begin no further call once one has failed"] = False,
        parallel: Annotated[bool, "Side by side, and not one after the other"] = False,
    ) -> results.Batch:
        """Call several tools at once. Tools that ask questions in the middle have to be called by themselves."""
        if _within.get():
            raise ToolError("A batch cannot be part of a batch: give all calls in one.", kind="ValidationError")
        mark = _within.set(True)
        try:
            contract = await self._contract(ctx)
            done = 0

            async def ask(name: str, arguments: dict[str, Any]) -> Outcome:
                nonlocal done
                found = await self._call(ctx.server, contract, name, arguments, _caller(ctx), partial(_overheard, ctx))
                done += 1
                ctx.report_progress(done, len(calls), name)
                return found

            wanted = [(one.tool_name, one.arguments) for one in calls]
            found = await background_calls.run_batch(wanted, ask, stop_on_error=stop_on_error, parallel=parallel)
        finally:
            _within.reset(mark)
        result: results.Batch = _batch(found)
        return result

    async def _call(
        self,
        server: Handler,
        contract: Contract,
        name: str,
        arguments: dict[str, Any],
        caller: dict[str, Any],
        emit: Callable[[str, Any], None],
    ) -> Outcome:
        """One call on behalf of a caller: with their rights, and without a way to ask them anything. A tool that would
        ask them if it were called by itself has to be: it must not do without their consent here."""
        found = contract.find(name)
        wait = self._limited(found)
        if wait:
            return outcomes.failure("ApiLimitExceeded", too_often(name, wait), {"retry_after": round(wait, 3)})
        about = {"emit": emit, "progress_token": "contract", "log_level": "info", **caller}
        target = invoker.HandlerTarget(server, kept=self._kept, **about)
        outcome = await invoker.ask(target, name, arguments, known=contract)
        if not _is_logged(server, name):
            log.info("%r: %s", name[:300], outcome["status"])
        return outcome

    def _limited(self, tool: Definition | None) -> float:
        """How long to wait. Only tools that may reach outside the server are held back."""
        if self._limiter is None or tool is None or not tool.hint("openWorldHint"):
            return 0.0
        return self._limiter.take(tool.name)

    # Calls that go on by themselves

    @_offer("tool_start", ACT)
    async def tool_start(
        self,
        ctx: Context,
        tool_name: ToolName,
        arguments: Annotated[dict[str, Any] | None, "What the tool is given"] = None,
    ) -> results.Running:
        """Start a call that takes long, and come back for its result later: tool_status, tool_result."""
        contract, found = await self._tool(ctx, tool_name)
        server, caller = ctx.server, _caller(ctx)

        async def work(job: BackgroundCall) -> Outcome:
            return await self._call(server, contract, found.name, arguments or {}, caller, partial(_recorded, job))

        try:
            job = self._jobs.start(found.invocation, _owner(ctx), work)
        except Full as full:
            raise ToolError(f"{full} Wait for one of them to end.", kind="ApiLimitExceeded", retryable=True) from None
        return results.running(job)

    @_offer("tool_status", READ)
    async def tool_status(
        self,
        ctx: Context,
        job_id: JobId,
        since: Annotated[int, Meta(ge=0, description="Only what was logged after this number")] = 0,
    ) -> results.Running:
        """How a call stands that was started with tool_start, and what it has said on the way."""
        return results.running(self._job(ctx, job_id), since)

    @_offer("tool_result", READ)
    async def tool_result(
        self,
        ctx: Context,
        job_id: JobId,
        wait: Annotated[
            float, Meta(ge=0, le=LONGEST_WAIT_SECONDS, description="Seconds to wait for it, if need be")
        ] = 0,
    ) -> results.Finished:
        """What a call came to that was started with tool_start."""
        job = self._job(ctx, job_id)
        await self._jobs.wait(job, wait)
        result = None if job.outcome is None else results.envelope(job.outcome)
        return results.Finished(job.id, job.status, result)

    @_offer(
        "tool_cancel", {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    )
    async def tool_cancel(self, ctx: Context, job_id: JobId) -> results.Running:
        """Stop a call that was started with tool_start."""
        job = self._job(ctx, job_id)
        await self._jobs.cancel(job)
        return results.running(job)

    def _job(self, ctx: Context, id: str) -> BackgroundCall:
        job = self._jobs.find(id, _owner(ctx))
        if job is None:
            said = f"There is no job {id!r}: it was never started here, or ended too long ago."
            raise ToolError(said, kind="ResourceNotFound", details={"job_id": id})
        return job

    # Resources

    @resource("spec://meta", mime_type="text/markdown", inline=True)
    def meta(self) -> str:
        """The rules for specifications: what each section has to say."""
        return _page("meta")

    @resource("spec://template", mime_type="text/markdown", inline=True)
    def template(self) -> str:
        """A specification to start from."""
        return _page("template")

    @resource("spec://tools", mime_type="application/json")
    async def tools(self, ctx: Context) -> str:
        """All tools of this server, with their versions and invocation names."""
        return visible_json(results.listing(await self._contract(ctx)))

    @resource("spec://tools/{name}", mime_type="text/markdown")
    async def specification(self, ctx: Context, name: str) -> str | None:
        """The specification of one tool."""
        contract = await self._contract(ctx)
        found = contract.find(name)
        return None if found is None else await _aside(ctx, render, contract, [found])

    # Prompts

    async def _asked(self, ctx: Context, name: str) -> tuple[Contract, Definition]:
        """An unknown name is a mistake in a prompt's arguments."""
        try:
            return await self._tool(ctx, name)
        except ToolError as unknown:
            raise InvalidParams(str(unknown)) from None

    @prompt("write-tool-spec")
    async def write_tool_spec(self, ctx: Context, tool: ToolName) -> str:
        """Ask for a specification of a tool that says more than a program can know."""
        contract, found = await self._asked(ctx, tool)
        draft = await _aside(ctx, render, contract, [found])
        return _page("write-tool-spec").strip().format(tool=found.invocation, rules=_page("meta"), draft=draft)

    @prompt("review-tool-spec")
    async def review_tool_spec(self, ctx: Context, tool: ToolName) -> str:
        """Ask for a review of what a tool promises."""
        contract, found = await self._asked(ctx, tool)
        text = await _aside(ctx, render, contract, [found])
        wrong = await _aside(ctx, lint_tools, contract, [found])
        lines = (f"- line {one.line}, {one.severity}: {one.message}" for one in wrong)
        findings = "\n".join(lines) or "- nothing"
        page = _page("review-tool-spec").strip()
        return page.format(tool=found.invocation, findings=findings, specification=text)


def _batch(found: list[Outcome]) -> Any:
    """Return the results of a batch: a failure if all calls failed, a partial success if some did or are incomplete."""
    failures = sum(one["status"] == "failure" for one in found)
    batch = results.Batch(list(map(results.envelope, found)), len(found) - failures, failures)
    text = msgspec.json.encode(batch).decode()
    if failures == len(found):
        first = found[0]["error"]
        kinds = {one["error"]["error_type"] for one in found}
        kind = first["error_type"] if len(kinds) == 1 else "ToolExecutionError"
        message = f"All {failures} calls failed. The first: {first['error_message']}"
        error = outcomes.failure(kind, message, msgspec.to_builtins(batch))["error"]
        return ToolResult(content=text, is_error=True, meta={ERROR: error})
    incomplete = sum(one["status"] == "partial_success" for one in found)
    if not failures and not incomplete:
        return batch
    said = f"{failures} of {len(found)} calls failed." if failures else f"{incomplete} of {len(found)} are incomplete."
    return ToolResult(text, batch, {RESULT: {"status": "partial_success", "explanation": said}})


async def _aside(ctx: Context, work: Callable[..., T], *given: Any) -> T:
    """The result of `work`, in a thread: a hostile schema must not hold up other callers."""
    found: T = await ctx.server.threads.run(work, given)
    return found


def _page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def _is_logged(server: Handler, name: str) -> bool:
    """Return whether the server itself logs this call, because a profile or a setting wants it."""
    registry = getattr(server, "registry", None)
    if registry is None:
        return False
    tool = registry.tool(name)
    if tool is not None:
        return getattr(tool, "is_logged", False) is True
    # A call of an unknown tool is logged as soon as one tool is.
    return any(getattr(one, "is_logged", False) is True for one in registry.tools)


def _owner(ctx: Context) -> str:
    """The owner of a job: empty on stdio, and a digest of the principal's identity otherwise."""
    identity = identity_of(ctx.principal)
    return "" if identity is None else hashlib.sha256(identity.encode()).hexdigest()


def _caller(ctx: Context) -> dict[str, Any]:
    """Who an inner call is for. What becomes a task elsewhere is waited for here."""
    capabilities = replace(ctx.capabilities, extensions=None)
    return {**ctx.on_behalf, "capabilities": capabilities}


def _recorded(job: BackgroundCall, method: str, params: Any) -> None:
    """A notification of a tool that runs as a job: how far it is, or what it logs."""
    if method == notifications.PROGRESS:
        job.report(params.progress, params.total, params.message)
    elif method == notifications.MESSAGE:
        job.log(params.level, params.data)


def _overheard(ctx: Context, method: str, params: Any) -> None:
    """What a tool of a batch logs is logged by the batch."""
    if method == notifications.MESSAGE:
        ctx.log(params.level, params.data, params.logger)
