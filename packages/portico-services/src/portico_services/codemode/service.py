"""The code mode service: a tool that runs scripts, and saved scripts."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from msgspec import Meta

from portico import Context, Server, Service, TaskConfig, ToolError, ToolResult, UsageError, resource
from portico.errors import ResourceNotFound
from portico.extend import BackgroundTasks, Call, FairPlaces, Handler, principal_id, to_json, validated_kwargs
from portico.jsonschema import did_you_mean, schema_for_type
from portico.types import TextContent
from portico_services.codemode import run_result, stubs
from portico_services.codemode.catalog_cache import CallerCatalogs, RunTools
from portico_services.codemode.consent import WriteConsent, WritePolicy
from portico_services.codemode.journal import RunJournal, RunStore, digest, read_output, resolve_store_url
from portico_services.codemode.run_result import RunResult
from portico_services.codemode.saved_scripts import SavedScript, SavedScriptStore, script_description
from portico_services.codemode.script_run import RunLimits, RunOutcome, ScriptRun
from portico_services.codemode.tool_catalog import ToolCatalog
from portico_services.livepython.sandbox.forked_worker import ForkedWorkerFactory
from portico_services.livepython.sandbox.framing import MAX_JSON_DEPTH, SCRIPT_MODULE, is_too_deep
from portico_services.livepython.sandbox.landlock import unavailable_reason
from portico_services.livepython.sandbox.limits import MIB, SandboxLimits
from portico_services.livepython.sandbox.spare_workers import SpareWorkers
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable

MAX_CODE_CHARS = 256 * 1024
MAX_DESCRIBED_TOOLS = 50
# Each run is a process with its own memory. The limit per caller leaves slots for at least three others.
MAX_RUNS, MAX_RUNS_PER_CALLER = 16, 4
MAX_WAITING_RUNS, MAX_WAITING_RUNS_PER_CALLER, MAX_WAITING_SECONDS = 256, 32, 60.0
# How long an interrupted run is remembered: longer than the server's shutdown, which also interrupts runs.
INTERRUPTED_RUN_RETENTION_SECONDS = 10.0
# Memory that the interpreter itself needs.
PYTHON_BASE_MEMORY_BYTES = 96 * MIB
# The iteration order of a set of strings affects the control flow, so it must be the same in a replay.
HASH_SEED_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

# The worst case of a script; consent is requested per tool.
RUN_HINTS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
READ_ONLY_HINTS = {"readOnlyHint": True, "openWorldHint": False}
DELETE_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}

ScriptCode = Annotated[str, Meta(max_length=MAX_CODE_CHARS, description="Python; top-level await works")]
ScriptData = Annotated[Any, Meta(description="JSON value available as `data`")]
SavedName = Annotated[str, Meta(max_length=63, description="Saved script name")]


class CodeMode(Service):
    """Scripts that call the tools of a server: `server.add(CodeMode())`.

    * `target`: handler whose tools scripts call; by default the server that the service is added to.
    * `writes`: policy for calls that may change data: `"ask"` the user, `"allow"` them as far as the server's own
      rules do, or `"deny"` them.
    * `max_calls`: calls of tools in one run.
    * `max_concurrent_calls`: concurrent calls of tools in one run.
    * `timeout`: longest time for one run.
    * `memory_bytes`: memory of one run, at least 1 MiB.
    * `max_output_bytes`: size of a result; the rest of a longer one is stored as a resource.
    * `warm_workers`: idle sandboxes that wait for the next script.
    * `allow_tasks`: whether a long run may continue as a task, if the client supports tasks.
    * `store`: path or URL of the database of runs; by default the store of the server's tasks.

    Scripts run in the Linux sandbox of live Python. Raises UsageError, with the reason, where it is not available.
    """

    # No scope is required: a script can only do what its caller may do, and scopes are checked for each call.
    name = "code"

    @validated_kwargs
    def __init__(
        self,
        *,
        target: Handler | None = None,
        writes: WritePolicy = "ask",
        max_calls: int = 200,
        max_concurrent_calls: int = 16,
        timeout: float = 60.0,
        memory_bytes: int = 64 * MIB,
        max_output_bytes: int = 32 * 1024,
        warm_workers: int = 1,
        allow_tasks: bool = True,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if writes not in ("ask", "allow", "deny"):
            raise UsageError(f"writes must be one of ask, allow, deny, got {writes!r}")
        self._limits = RunLimits(max_calls, max_concurrent_calls, timeout, max_output_bytes)
        for name in self._limits.__struct_fields__:
            if getattr(self._limits, name) <= 0:
                raise UsageError(f"{name} must be positive, got {getattr(self._limits, name)}")
        if memory_bytes < MIB:
            raise UsageError(f"memory_bytes must be at least {MIB} (1 MiB), got {memory_bytes}")
        self._target, self._writes, self._given_store = target, writes, store
        self._store = RunStore(resolve_store_url(store, None))
        self.saved = SavedScriptStore(self._store)
        self._server: Server | None = None
        # Deletes interrupted runs after the retention period.
        self._forgetting = BackgroundTasks()
        self._places = FairPlaces(
            MAX_RUNS,
            MAX_RUNS_PER_CALLER,
            waiting=MAX_WAITING_RUNS_PER_CALLER,
            waiting_total=MAX_WAITING_RUNS,
            seconds=MAX_WAITING_SECONDS,
        )
        # With another target, a service of the same name there is not this one and stays visible.
        own = (self.name,) if target is None else ()
        self.tool_catalogs = CallerCatalogs(lambda: self._server if self._target is None else self._target, own)
        try:
            self._workers = _workers(memory_bytes, timeout, warm_workers)
        except SandboxUnavailable as reason:
            raise UsageError(f"scripts need the Linux sandbox of live Python: {reason}") from None
        task = TaskConfig(mode="optional" if allow_tasks else "never", detachable=True)
        output_schema = schema_for_type(RunResult, for_output=True)
        self.tool(annotations=RUN_HINTS, task=task, output_schema=output_schema)(self.run)
        self.tool(annotations=READ_ONLY_HINTS)(self.describe_tools)
        self.tool(annotations=RUN_HINTS, task=task, output_schema=output_schema)(self.run_saved)
        self.tool(annotations=DELETE_HINTS)(self.forget_saved)

    @property
    def has_saved_scripts(self) -> bool:
        """Return whether saved scripts may exist: the store is durable, or was opened."""
        return self._store.is_durable or self._store.is_open

    def on_added(self, server: Server) -> None:
        self._server = server
        self._store.url = resolve_store_url(self._given_store, server)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._workers.open()
        try:
            yield
        finally:
            await self._workers.close()
            await self._forgetting.close()
            await self._store.close()

    async def run(
        self,
        ctx: Context,
        code: ScriptCode,
        data: ScriptData = None,
        save: Annotated[str | None, "Save the script as a tool of this name if it succeeds"] = None,
    ) -> ToolResult:
        """Run a Python script that calls this server's tools; use it instead of many single calls.

        `from tools import github`, then `await github.create_issue(repo="a/b", title="…")`; any tool can be imported by
        the name under which it is listed or found: `from tools import add`. `asyncio.gather` runs calls concurrently.
        Results are data; a failed call raises `ToolError` with `.kind` and `.details`. Returns the value of the last
        expression, or the `return` value, and the printed output. No network, scratch files only. The user confirms
        once before anything is modified.
        """
        tools = await self._tools(ctx)
        if save is not None:
            self._check_name(ctx, save, tools.table)
        result, run = await self._run(ctx, tools, code, data)
        if save is not None and not result.is_error:
            # Digests of every tool that the script used or may use, to detect later that one of them has changed.
            table = tools.table
            used = table.digests({*run.used, *(tool.name for tool in table.tools_used_in(code))})
            await self.saved.save(owner_key(ctx), SavedScript(save, script_description(code), code, used, time.time()))
            if self._server is not None:
                self._server.tools.invalidate()
        return result

    async def describe_tools(
        self, ctx: Context, tools: Annotated[list[str], Meta(max_length=MAX_DESCRIBED_TOOLS, description="Tool names")]
    ) -> TextContent:
        """Return tool signatures as typed Python stubs, for use in scripts."""
        table = (await self._tools(ctx)).table
        results = []
        for name in tools:
            tool = table.find(name)
            if tool is None:
                suggestions = did_you_mean(name[:100], list(table.by_name))
                raise ToolError(f"Unknown tool {name[:100]!r}. {suggestions}".rstrip(), error_type="ResourceNotFound")
            results.append(tool)
        return TextContent(text=stubs.render_stubs(results))

    async def run_saved(self, ctx: Context, name: SavedName, data: ScriptData = None) -> ToolResult:
        """Run a saved script."""
        script = await self.saved.find(owner_key(ctx), name)
        tools = await self._tools(ctx)
        script.check_tools_unchanged(tools.table)
        result, _ = await self._run(ctx, tools, script.code, data)
        return result

    async def forget_saved(self, ctx: Context, name: SavedName) -> TextContent:
        """Delete a saved script."""
        if not await self.saved.delete(owner_key(ctx), name):
            raise ToolError(f"Unknown saved script {name!r}.", error_type="ResourceNotFound")
        if self._server is not None:
            self._server.tools.invalidate()
        return TextContent(text=f"The saved script {name!r} was deleted.")

    def _check_name(self, ctx: Context, name: str, table: ToolCatalog) -> None:
        if ctx.principal is None and ctx.client_address is not None:
            raise ToolError(
                "Scripts are saved per user, and this caller is not authenticated.", error_type="PermissionError"
            )
        if not _NAME.fullmatch(name) or name in table.by_name or name in RESERVED_NAMES:
            raise ToolError(
                f"{name[:80]!r} is not a valid name for a saved script: use lowercase letters, digits and underscores, "
                "and no name of an existing tool.",
                error_type="ValidationError",
            )

    # Runs

    async def _tools(self, ctx: Context) -> RunTools:
        """Return the tools that the caller is shown.

        A run that was requested through a facet of the server and continues as a task keeps the tools of its beginning.
        """
        about = ctx.caller_fields
        table = await self.tool_catalogs.get(about)
        visible = await ctx.step("tools", lambda: None if about["facet"] is None else list(table.by_name))
        return RunTools(self.tool_catalogs, ctx, table, visible)

    async def _journal(self, ctx: Context, digest: str) -> RunJournal:
        """Return the journal of the run: a new one, that of an earlier round, or that of a killed process."""
        owner = owner_key(ctx)
        # Anonymous callers cannot be distinguished, so one could receive the results of another.
        goes_on = ctx.is_first_round and not ctx.call.is_anonymous
        left = await RunJournal.find_unfinished(self._store, owner, digest) if goes_on else None
        journal = left or RunJournal(self._store, owner, digest)
        id = await ctx.step("journal", lambda: journal.id)
        if id != journal.id:
            journal = RunJournal(self._store, owner, digest, id)
            if not await journal.load():
                raise ToolError(
                    "This run cannot be resumed: its journal has expired or was deleted to make room for newer runs. "
                    "Completed calls are not undone: check their effects before you run the script again.",
                    error_type="ResourceNotFound",
                )
        return journal

    async def _run(self, ctx: Context, tools: RunTools, code: str, data: Any) -> tuple[ToolResult, ScriptRun]:
        if isinstance(data, list | dict) and is_too_deep(to_json(data)):
            raise ToolError(f"data must be nested at most {MAX_JSON_DEPTH} levels deep.", error_type="ValidationError")
        # A run that began through a facet of the server resumes only there.
        facet = ctx.caller_fields["facet"]
        part = [] if facet is None else [getattr(facet, "name", "")]
        journal = await self._journal(ctx, digest(code, data, *part))
        consent = WriteConsent(ctx, journal, code, self._writes, self._limits.max_calls)
        async with self._places.hold(ctx.call):
            try:
                worker = await self._workers.take()
            except SandboxUnavailable as reason:
                raise ToolError(
                    f"Scripts cannot be run now: {reason}", error_type="ToolExecutionError", retryable=True
                ) from None
            run = ScriptRun(ctx, worker, tools, journal, self._limits, consent, self._target)
            is_over = False
            try:
                end = await run.run(code, data)
                is_over = True
            finally:
                await self._close_run(ctx, journal, run, is_over=is_over)
        return await self._result(ctx, end, run, journal), run

    async def _close_run(self, ctx: Context, journal: RunJournal, run: ScriptRun, *, is_over: bool) -> None:
        if is_over:
            await journal.finish()
            return
        try:
            if journal.is_stored and not ctx.is_cancelled:
                # The run continues with the answer to its elicitation, or as a task.
                await journal.save("paused")
        finally:
            # Last, since saving also renews the lease.
            await journal.pause()
        if ctx.is_cancelled and not self._store.is_durable:
            await run.end_tasks()
        if journal.is_stored and ctx.is_cancelled:
            self._forgetting.start(self._schedule_delete(journal, run))

    async def _schedule_delete(self, journal: RunJournal, run: ScriptRun) -> None:
        """Delete an interrupted run after a delay.

        If this server is still running then, the client has cancelled the run. If not, the server was stopped, and the
        same script resumes as after a kill, with the tasks that it waits for.
        """
        await asyncio.sleep(INTERRUPTED_RUN_RETENTION_SECONDS)
        with suppress(ToolError):
            await journal.finish()
        await run.end_tasks()

    async def _result(self, ctx: Context, end: RunOutcome, run: ScriptRun, journal: RunJournal) -> ToolResult:
        presented = run_result.decode_end(end, run.calls, run.unknown, resumed=journal.is_resumed)
        return await run_result.limit_output(presented, self._limits.max_output_bytes, self._store, owner_key(ctx))

    # Outputs that exceed the size of a result

    @resource("run://output/{id}", mime_type="text/plain", title="Full output of a run")
    async def output(self, ctx: Context, id: str) -> str:
        """The full output and result of a script, for the caller that ran it. Retained for one day."""
        output = await read_output(self._store, owner_key(ctx), id)
        if output is None:
            raise ResourceNotFound(f"run://output/{id}")
        return output[1]


def _workers(memory_bytes: int, timeout: float, warm_workers: int) -> SpareWorkers:
    """Return the workers for scripts. Each script has its own worker, which ends with the script.

    Raises SandboxUnavailable if there is no sandbox: code of clients never runs without one.
    """
    limits = SandboxLimits(
        memory_bytes=memory_bytes + PYTHON_BASE_MEMORY_BYTES,
        cpu_seconds=int(timeout) + 1,
        scratch_bytes=16 * MIB,
        max_output_bytes=MIB,
        max_text_chars=2 * MIB,
        max_value_bytes=2 * MIB,
    )
    reason = unavailable_reason(limits)
    if reason is not None:
        raise SandboxUnavailable(reason)
    return SpareWorkers(
        ForkedWorkerFactory(
            sys.executable, limits, preload=["asyncio", SCRIPT_MODULE], environment=HASH_SEED_ENVIRONMENT
        ),
        warm_workers,
    )


ANONYMOUS_OWNER = "(not logged in)"
RESERVED_NAMES: Sequence[str] = ("run", "describe_tools", "run_saved", "forget_saved", "find_tools", "call_tool")


def owner_key(caller: Context | Call) -> str:
    """Return the owner of everything that a run stores.

    An unauthenticated HTTP client is distinct from the local user who started the server.
    """
    address = caller.address if isinstance(caller, Call) else caller.client_address
    return principal_id(caller.principal) or ("" if address is None else ANONYMOUS_OWNER)
