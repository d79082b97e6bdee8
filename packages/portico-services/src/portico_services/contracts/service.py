"""Contracts service: specifications of the server's tools, and calls by contract."""

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
from portico.errors import InvalidParams
from portico.extend import ERROR_META_KEY, RESULT, Handler, principal_id, validated_kwargs
from portico.jsonschema import codegen, list_fields
from portico.protocol import notifications
from portico.search import ToolDocument, ToolIndex
from portico_services.contracts import (
    background_calls,
    invoker,
    loader,
    outcomes,
    results,
    schemas,
    spec_parser as specification,
)
from portico_services.contracts.background_calls import BackgroundCall, BackgroundCalls
from portico_services.contracts.codegen.client_model import build_client_model
from portico_services.contracts.codegen.python import generate_python
from portico_services.contracts.codegen.typescript import generate_typescript
from portico_services.contracts.contract_cache import ContractCache
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot
from portico_services.contracts.diff import diff_contracts
from portico_services.contracts.invocation_names import INVOCATION_META_KEY, SPEC_META_KEY
from portico_services.contracts.lint import lint_document, lint_tools
from portico_services.contracts.outcomes import Outcome, require_validator
from portico_services.contracts.spec_writer import render_specification
from portico_services.rate_limit import ToolRateLimiter, rate_limit_message

log = logging.getLogger("portico.contracts")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PAGES_DIR = Path(__file__).parent / "pages"
_USE_CASES = msgspec.json.decode((Path(__file__).parent / "use_cases.json").read_bytes(), type=dict[str, list[str]])
# Large enough for the specification of a server with hundreds of tools. Texts are parsed in a thread.
MAX_TEXT_CHARS = 2 * 1024 * 1024
# Below the request timeout of common clients, so that a long poll ends with a result and not with a timeout.
MAX_WAIT_SECONDS = 30.0
# Comparing recursive schemas can take exponential time, and both sides may come from the caller.
DIFF_TIMEOUT_SECONDS = 5.0

ToolName = Annotated[str, Meta(description="Tool name or invocation name (module_name.tool_name)", max_length=300)]
SpecText = Annotated[str, Meta(description="Specification in Markdown", max_length=MAX_TEXT_CHARS)]
Language = Literal["python", "typescript"]
CallId = Annotated[str, Meta(description="Id returned by tool_start", max_length=64)]
ContractSource = Annotated[
    Annotated[str, Meta(max_length=MAX_TEXT_CHARS)] | dict[str, Any] | list[dict[str, Any]],
    "Tool name, definition, list of definitions, contracts.lock, or Markdown specification",
]

READ_ONLY_HINTS = {"readOnlyHint": True, "openWorldHint": False}
# These tools call other tools and can have any of their effects.
CALL_HINTS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}

_GENERATORS = {"python": (generate_python, "py"), "typescript": (generate_typescript, "ts")}
# Set inside a batch, to reject nested batches: they could multiply without limit.
_in_batch: ContextVar[bool] = ContextVar("within a batch", default=False)


class BatchCall(Struct, forbid_unknown_fields=True):
    """One call of a batch."""

    tool_name: ToolName
    arguments: Annotated[dict[str, Any], "Tool arguments"] = {}


def typed_error(error_type: str, message: str, details: dict[str, Any] | str | None = None) -> Any:
    """Return a ToolResult that reports a typed failure to callers by contract: `return typed_error("FileNotFoundError",
    …)`.

    `error_type` is one of `ERROR_TYPES`, `message` is shown to the caller, `details` is optional structured data. A
    tool may return it whatever its declared return type is.
    """
    error = outcomes.failure(error_type, message, details)["error"]
    return ToolResult(content=message, is_error=True, meta={ERROR_META_KEY: error})


def _contract_tool(name: str, annotations: dict[str, bool], version: str = "1.0.0") -> Callable[[F], F]:
    """Register a tool of this service with its version and its dotted alias."""
    invocation = f"contracts.{name}"
    return tool(
        name,
        version=version,
        annotations=annotations,
        aliases=[invocation],
        meta={INVOCATION_META_KEY: invocation, SPEC_META_KEY: {"use_cases": _USE_CASES[invocation]}},
    )


class Contracts(Service):
    """Service with the contracts of a server's tools: `server.add(Contracts())`.

    * `rate_limit`: calls per second of each tool that may reach external systems, in batches and background calls.
      None: no limit.
    * `rate_burst`: such calls that may come at once.
    * `call_timeout`: longest time for a background call.
    * `result_retention`: time for which its result can be fetched.
    """

    name = "contracts"
    requires_scopes = True

    @validated_kwargs
    def __init__(
        self,
        *,
        rate_limit: float | None = None,
        rate_burst: int = 10,
        call_timeout: float = 3600.0,
        result_retention: float = 3600.0,
    ) -> None:
        super().__init__()
        # Every tool of this service needs the schema validator. Report a missing package at start-up rather than in a
        # call.
        require_validator()
        self._limiter = None if rate_limit is None else ToolRateLimiter(rate_limit, rate_burst, time.monotonic)
        self._cache = ContractCache()
        self._jobs = BackgroundCalls(timeout=call_timeout, retention=result_retention)
        for name, schema in schemas.MESSAGE_SCHEMAS.items():
            description = f"JSON Schema (draft-07) of the contract's {name.replace('_', ' ')}"
            offer = self.resource(
                f"spec://contract/{name}",
                name=name,
                description=description,
                mime_type="application/schema+json",
                run_in_thread=False,
            )
            offer(partial(visible_json, schema))

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._jobs.close()

    # Lookup

    async def _contract(self, ctx: Context) -> ServerContract:
        """Return the contract of all tools that this caller can see, including those of mounted servers."""
        return await invoker.fetch_contract(ctx.server, self._cache, **ctx.caller_fields)

    async def _tool(self, ctx: Context, name: str) -> tuple[ServerContract, ToolDefinitionSnapshot]:
        contract = await self._contract(ctx)
        result = contract.find(name)
        if result is None:
            suggestions = contract.suggest(name)
            message = f"Unknown tool {name[:100]!r}{f'; did you mean {suggestions[0].name!r}?' if suggestions else '.'}"
            details = {"name": name[:300], "suggestions": [tool.invocation for tool in suggestions]}
            raise ToolError(message, error_type="ResourceNotFound", details=details)
        return contract, result

    # Specifications

    @_contract_tool("spec_list", READ_ONLY_HINTS)
    async def spec_list(
        self,
        ctx: Context,
        limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum tools")] = 100,
        offset: Annotated[int, Meta(ge=0, description="Tools to skip")] = 0,
    ) -> results.ToolListing:
        """List this server's tools with version and invocation name. To find a tool by purpose use tools_search."""
        return results.list_tools(await self._contract(ctx), offset, limit)

    @_contract_tool("spec_get", READ_ONLY_HINTS)
    async def spec_get(
        self,
        ctx: Context,
        tool: ToolName,
        format: Annotated[
            Literal["md", "json", "draft-07"], ("md (default), json, or draft-07 (JSON with draft-07 schemas)")
        ] = "md",
    ) -> results.SpecResult:
        """Return the specification of one tool."""
        contract, tool_definition = await self._tool(ctx, tool)
        markdown = (
            await ctx.run_in_thread(render_specification, contract, [tool_definition]) if format == "md" else None
        )
        definition = (
            None if format == "md" else results.to_definition_json(tool_definition, is_old=format == "draft-07")
        )
        return results.SpecResult(
            tool_definition.invocation, str(contract.version_of(tool_definition)), format, markdown, definition
        )

    @_contract_tool("spec_render", READ_ONLY_HINTS)
    async def spec_render(self, ctx: Context, tool: ToolName) -> results.RenderResult:
        """Generate a Markdown specification of a tool (eight sections) from its definition, ready to be saved as a
        file.
        """
        contract, definition = await self._tool(ctx, tool)
        return results.RenderResult(
            definition.invocation,
            specification.SPEC_FILE_NAME,
            await ctx.run_in_thread(render_specification, contract, [definition]),
        )

    @_contract_tool("spec_lint", READ_ONLY_HINTS, version="1.1.0")
    async def spec_lint(
        self,
        ctx: Context,
        text: Annotated[SpecText | None, "Specification in Markdown; omit to check a tool"] = None,
        tool: Annotated[ToolName | None, "Tool whose generated specification is checked"] = None,
    ) -> results.LintResult:
        """Check a specification for completeness and consistency: sections, tables, schemas, version, examples. Returns
        findings with line numbers.
        """
        # Not a `oneOf` in the schema: several model APIs reject one at the top level of a tool's parameters.
        if (text is None) == (tool is None):
            raise ToolError("Pass either `text` or `tool`.", error_type="ValidationError")
        if tool is not None:
            contract, definition = await self._tool(ctx, tool)
            return results.to_lint_result(await ctx.run_in_thread(lint_tools, contract, [definition]))
        return results.to_lint_result(await ctx.run_in_thread(lint_document, text or ""))

    @_contract_tool("spec_diff", READ_ONLY_HINTS)
    async def spec_diff(
        self,
        ctx: Context,
        old: ContractSource,
        new: Annotated[ContractSource | None, "Same; default: the current definitions of this server"] = None,
    ) -> results.DiffResult:
        """Compare two versions of one or more tool definitions. Returns each change as breaking, minor or patch, and a
        migration guide.
        """
        now = await self._contract(ctx)
        # The deadline covers loading and comparing. A thread cannot be killed, so the comparison polls the callback.
        until = time.monotonic() + DIFF_TIMEOUT_SECONDS
        try:
            before, after = await ctx.run_in_thread(loader.load_pair, old, new, now)
            result = await ctx.run_in_thread(
                diff_contracts, before, after, lambda: ctx.is_cancelled or time.monotonic() > until
            )
        except loader.InvalidContract as failure:
            raise ToolError(f"The definitions cannot be compared: {failure}.", error_type="ValidationError") from None
        except TimeoutError:
            message = f"The comparison exceeded {DIFF_TIMEOUT_SECONDS:g} s. Compare fewer tools at a time."
            raise ToolError(message, error_type="TimeoutError") from None
        return results.to_diff_result(result)

    @_contract_tool("spec_codegen", READ_ONLY_HINTS)
    async def spec_codegen(
        self,
        ctx: Context,
        language: Annotated[Language, "python (default) or typescript"] = "python",
        tool: Annotated[ToolName | None, "Tool name; default: all tools"] = None,
    ) -> results.CodegenResult:
        """Generate a typed client for one tool or for all tools of this server."""
        if tool is None:
            contract = await self._contract(ctx)
            tools = contract.tools
        else:
            contract, definition = await self._tool(ctx, tool)
            tools = (definition,)
        write, ending = _GENERATORS[language]
        file = f"{codegen.snake_case(contract.server or 'server')}_client.{ending}"
        return results.CodegenResult(
            language, file, await ctx.run_in_thread(lambda: write(build_client_model(contract, tools)))
        )

    # Calls

    @_contract_tool("tools_search", READ_ONLY_HINTS)
    async def tools_search(
        self,
        ctx: Context,
        query: Annotated[str, Meta(description="What the tool should do", max_length=2000)],
        limit: Annotated[int, Meta(ge=1, le=100, description="Maximum tools")] = 10,
    ) -> results.ToolSearchResult:
        """Search this server's tools by purpose. Returns names with scores; spec_get returns the definition."""
        result = await ctx.run_in_thread(search_tools, await self._contract(ctx), query, limit)
        matches = [
            results.ToolSearchHit(
                item.tool.name, item.tool.invocation, results.first_paragraph(item.tool.description), item.score
            )
            for item in result
        ]
        return results.ToolSearchResult(matches)

    @_contract_tool("tools_batch", CALL_HINTS)
    async def tools_batch(
        self,
        ctx: Context,
        calls: Annotated[
            list[BatchCall],
            Meta(
                description=("Calls: tool_name and arguments"),
                min_length=1,
                max_length=background_calls.MAX_BATCH_CALLS,
            ),
        ],
        stop_on_error: Annotated[bool, "Skip the remaining calls after a failure"] = False,
        parallel: Annotated[bool, "Run concurrently instead of sequentially"] = False,
    ) -> results.BatchResult:
        """Call several tools in one request. Tools that need user input must be called on their own. Returns one result
        per call, in order.
        """
        if _in_batch.get():
            raise ToolError("Batches cannot be nested. Pass all calls in one batch.", error_type="ValidationError")
        # A context variable and not an attribute: the tools of the batch run in this context, other callers do not.
        mark = _in_batch.set(True)
        try:
            contract = await self._contract(ctx)
            done = 0

            # Progress of the single tools is not forwarded: their values would not increase monotonically across
            # calls, as MCP (2025-11-25, Progress) requires. The batch counts finished calls instead.
            async def ask(name: str, arguments: dict[str, Any]) -> Outcome:
                nonlocal done
                result = await self._call(
                    ctx.server, contract, name, arguments, _call_options(ctx), partial(_relay_log, ctx)
                )
                done += 1
                ctx.report_progress(done, len(calls), name)
                return result

            requests = [(call.tool_name, call.arguments) for call in calls]
            match = await background_calls.run_batch(requests, ask, stop_on_error=stop_on_error, parallel=parallel)
        finally:
            _in_batch.reset(mark)
        result: results.BatchResult = _batch(match)
        return result

    async def _call(
        self,
        server: Handler,
        contract: ServerContract,
        name: str,
        arguments: dict[str, Any],
        caller: dict[str, Any],
        emit: Callable[[str, Any], None],
    ) -> Outcome:
        """Call a tool with the rights of the caller but without a way to ask the user.

        A tool that needs the user's consent fails here and must be called directly.
        """
        result = contract.find(name)
        wait = self._limit_rate(result)
        if wait:
            return outcomes.failure("ApiLimitExceeded", rate_limit_message(name, wait), {"retry_after": round(wait, 3)})
        # Without a progress token and a log level, a tool would not send the notifications that `emit` records.
        about = {"emit": emit, "progress_token": "contract", "log_level": "info", **caller}
        target = invoker.HandlerTarget(server, cache=self._cache, **about)
        outcome = await invoker.invoke(target, name, arguments, cached_contract=contract)
        if not _is_logged(server, name):
            log.info("%r: %s", name[:300], outcome["status"])
        return outcome

    def _limit_rate(self, tool: ToolDefinitionSnapshot | None) -> float:
        """Return the seconds to wait. Only tools that may reach external systems are rate limited."""
        if self._limiter is None or tool is None or not tool.hint("openWorldHint"):
            return 0.0
        return self._limiter.try_acquire(tool.name)

    # Background calls

    @_contract_tool("tool_start", CALL_HINTS)
    async def tool_start(
        self,
        ctx: Context,
        tool_name: ToolName,
        arguments: Annotated[dict[str, Any] | None, "Tool arguments"] = None,
    ) -> results.CallStatusResult:
        """Start a long-running tool call in the background and return its job_id. Poll with tool_status, fetch with
        tool_result.
        """
        contract, definition = await self._tool(ctx, tool_name)
        # The context ends with this request, so everything that the background call needs is copied from it now.
        server, caller = ctx.server, _call_options(ctx)

        async def work(job: BackgroundCall) -> Outcome:
            return await self._call(
                server, contract, definition.name, arguments or {}, caller, partial(_record_notification, job)
            )

        job = self._jobs.start(definition.invocation, _call_owner(ctx), work)
        return results.to_call_status(job)

    @_contract_tool("tool_status", READ_ONLY_HINTS)
    async def tool_status(
        self,
        ctx: Context,
        job_id: CallId,
        since: Annotated[int, Meta(ge=0, description="Return only log lines after this number")] = 0,
    ) -> results.CallStatusResult:
        """Return status, progress and log lines of a background call."""
        return results.to_call_status(self._job(ctx, job_id), since)

    @_contract_tool("tool_result", READ_ONLY_HINTS)
    async def tool_result(
        self,
        ctx: Context,
        job_id: CallId,
        wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait; default 0")] = 0,
    ) -> results.CallResult:
        """Return the result of a background call, optionally waiting for it."""
        job = self._job(ctx, job_id)
        await self._jobs.wait(job, wait)
        result = None if job.outcome is None else results.to_call_outcome(job.outcome)
        return results.CallResult(job.id, job.status, result)

    @_contract_tool(
        "tool_cancel", {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    )
    async def tool_cancel(self, ctx: Context, job_id: CallId) -> results.CallStatusResult:
        """Cancel a background call."""
        job = self._job(ctx, job_id)
        await self._jobs.cancel(job)
        return results.to_call_status(job)

    def _job(self, ctx: Context, id: str) -> BackgroundCall:
        # The message is the same for missing and foreign ids, so that ids of other callers cannot be probed.
        job = self._jobs.find(id, _call_owner(ctx))
        if job is None:
            message = f"Unknown job {id!r}: it was not started by this caller, or its result has expired."
            raise ToolError(message, error_type="ResourceNotFound", details={"job_id": id})
        return job

    # Resources

    @resource("spec://meta", mime_type="text/markdown", run_in_thread=False)
    def meta(self) -> str:
        """Return the rules for tool specifications: required content of each section."""
        return _page("meta")

    @resource("spec://template", mime_type="text/markdown", run_in_thread=False)
    def template(self) -> str:
        """Return a template for a new tool specification."""
        return _page("template")

    @resource("spec://tools", mime_type="application/json")
    async def tools(self, ctx: Context) -> str:
        """List all tools of this server with version and invocation name."""
        return visible_json(results.list_tools(await self._contract(ctx)))

    @resource("spec://tools/{name}", mime_type="text/markdown")
    async def specification(self, ctx: Context, name: str) -> str | None:
        """Return the specification of one tool in Markdown."""
        contract = await self._contract(ctx)
        result = contract.find(name)
        return None if result is None else await ctx.run_in_thread(render_specification, contract, [result])

    # Prompts

    async def _find_requested_tool(self, ctx: Context, name: str) -> tuple[ServerContract, ToolDefinitionSnapshot]:
        """Return a tool that a prompt's argument names. Raises InvalidParams if it does not exist."""
        try:
            return await self._tool(ctx, name)
        except ToolError as unknown:
            raise InvalidParams(str(unknown)) from None

    @prompt("write-tool-spec")
    async def write_tool_spec(self, ctx: Context, tool: ToolName) -> str:
        """Write a tool specification that goes beyond the generated one."""
        contract, definition = await self._find_requested_tool(ctx, tool)
        draft = await ctx.run_in_thread(render_specification, contract, [definition])
        return _page("write-tool-spec").strip().format(tool=definition.invocation, rules=_page("meta"), draft=draft)

    @prompt("review-tool-spec")
    async def review_tool_spec(self, ctx: Context, tool: ToolName) -> str:
        """Review a tool's specification."""
        contract, definition = await self._find_requested_tool(ctx, tool)
        text = await ctx.run_in_thread(render_specification, contract, [definition])
        wrong = await ctx.run_in_thread(lint_tools, contract, [definition])
        lines = (f"- line {item.line}, {item.severity}: {item.message}" for item in wrong)
        findings = "\n".join(lines) or "- none"
        page = _page("review-tool-spec").strip()
        return page.format(tool=definition.invocation, findings=findings, specification=text)


def _batch(call_outcomes: list[Outcome]) -> Any:
    """Return the result of a batch: a failure if all calls failed, a partial success if some failed or are
    incomplete.
    """
    # A batch is an error only if nothing succeeded: clients that stop at `isError` would otherwise lose the results
    # of the calls that took effect.
    failures = sum(item["status"] == "failure" for item in call_outcomes)
    batch = results.BatchResult(
        list(map(results.to_call_outcome, call_outcomes)), len(call_outcomes) - failures, failures
    )
    text = msgspec.json.encode(batch).decode()
    if failures == len(call_outcomes):
        first = call_outcomes[0]["error"]
        kinds = {item["error"]["error_type"] for item in call_outcomes}
        # One common type lets a caller decide about a retry; a mixture has no single cause.
        kind = first["error_type"] if len(kinds) == 1 else "ToolExecutionError"
        message = f"All {failures} calls failed. First error: {first['error_message']}"
        error = outcomes.failure(kind, message, msgspec.to_builtins(batch))["error"]
        return ToolResult(content=text, is_error=True, meta={ERROR_META_KEY: error})
    incomplete = sum(item["status"] == "partial_success" for item in call_outcomes)
    if not failures and not incomplete:
        return batch
    summary = (
        f"{failures} of {len(call_outcomes)} calls failed."
        if failures
        else f"{incomplete} of {len(call_outcomes)} are incomplete."
    )
    return ToolResult(text, batch, {RESULT: {"status": "partial_success", "explanation": summary}})


def _page(name: str) -> str:
    return (PAGES_DIR / f"{name}.md").read_text(encoding="utf-8")


def _is_logged(server: Handler, name: str) -> bool:
    """Return whether the server itself logs this call, because a profile or a setting enables it."""
    registry = getattr(server, "registry", None)
    if registry is None:
        return False
    tool = registry.tool(name)
    if tool is not None:
        return getattr(tool, "is_logged", False) is True
    # A call of an unknown tool is logged if any tool is.
    return any(getattr(item, "is_logged", False) is True for item in registry.tools)


def _call_owner(ctx: Context) -> str:
    """Return the owner of a background call: empty on stdio, else a digest of the principal's identity."""
    # Hashed: the owner is stored with the call, and the identity may be an e-mail address.
    identity = principal_id(ctx.principal)
    return "" if identity is None else hashlib.sha256(identity.encode()).hexdigest()


def _call_options(ctx: Context) -> dict[str, Any]:
    """Return the caller's fields for an inner call, without the tasks extension, so that tasks are awaited."""
    # A tool that returned a task here would leave the caller of the batch without its result.
    capabilities = replace(ctx.client_capabilities, extensions=None)
    return {**ctx.caller_fields, "capabilities": capabilities}


def _record_notification(job: BackgroundCall, method: str, params: Any) -> None:
    """Record a progress or log notification of a background call."""
    if method == notifications.PROGRESS:
        job.report(params.progress, params.total, params.message)
    elif method == notifications.LOG_MESSAGE:
        job.log(params.level, params.data)


def _relay_log(ctx: Context, method: str, params: Any) -> None:
    """Forward the log messages of a batch's tools to the caller of the batch."""
    if method == notifications.LOG_MESSAGE:
        ctx.log(params.level, params.data, params.logger)


class ScoredTool(Struct, frozen=True):
    tool: ToolDefinitionSnapshot
    score: float


def search_tools(contract: ServerContract, query: str, limit: int = 10) -> list[ScoredTool]:
    """Return the tools that match a query, best first."""
    # The index lives as long as the contract, which is replaced whenever the tool list changes.
    match = contract.memoize(_build_index).search(query, limit)
    return [ScoredTool(contract.tools[at], round(score, 4)) for at, score in match]


def _build_index(contract: ServerContract) -> ToolIndex:
    return ToolIndex([_tool_document(tool) for tool in contract.tools])


def _tool_document(tool: ToolDefinitionSnapshot) -> ToolDocument:
    parts = list_fields(tool.input_schema)
    return ToolDocument(
        name=f"{tool.name} {tool.invocation}",
        title=tool.title,
        description=tool.description,
        parameters=" ".join(part.name for part in parts),
        parameter_descriptions=" ".join(str(part.schema.get("description", "")) for part in parts),
    )
