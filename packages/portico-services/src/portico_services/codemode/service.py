"""Code mode as a service: one tool that runs a script, and the scripts that callers have saved."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from msgspec import Meta

from portico import Context, Server, Service, TaskConfig, ToolError, ToolResult, UsageError, resource
from portico.extend import Call, FairPlaces, Handler, ResourceNotFound, TextContent, explained, identity_of, to_json
from portico.jsonschema import did_you_mean, schema
from portico_services.codemode import run_result, stubs
from portico_services.codemode.catalog_cache import CallerTables, RunTools
from portico_services.codemode.consent import Consent, Writes
from portico_services.codemode.journal import Journal, RunStore, digest_of, kept_output, store_url
from portico_services.codemode.run_result import RunResult
from portico_services.codemode.saved_scripts import SavedScript, SavedScripts, description_of
from portico_services.codemode.script_run import Ceilings, RunEnd, ScriptRun
from portico_services.codemode.tool_catalog import ToolTable
from portico_services.codemode.worker_pool import JailPool
from portico_services.livepython.sandbox.framing import DEEPEST_JSON, is_too_deep
from portico_services.livepython.sandbox.limits import MIB
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable

LONGEST_CODE = 256 * 1024
MOST_DESCRIBED = 50
# Each run is a process with its own memory. The share of one caller leaves places for at least three others.
MAX_RUNS, MAX_RUNS_PER_CALLER = 16, 4
MAX_WAITING_RUNS, MAX_WAITING_RUNS_PER_CALLER, MAX_WAITING_SECONDS = 256, 32, 60.0
# How long a run that was cut off is remembered: longer than a server takes to stop that cuts off what it runs.
FORGET_SECONDS = 10.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

# It does what its script does, and for that each tool is asked about by itself.
RUNS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
READS = {"readOnlyHint": True, "openWorldHint": False}
FORGETS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}

Script = Annotated[str, Meta(max_length=LONGEST_CODE, description="Python; `await` works at the top")]
Data = Annotated[Any, Meta(description="JSON that the script finds in `data`")]
SavedName = Annotated[str, Meta(max_length=63, description="The name of a saved script")]


class Code(Service):
    """Scripts that call the tools of a server: `server.add(Code())`.

    They run in live Python's jail, which Linux alone has: elsewhere this raises UsageError with the reason. `target` is
    whose tools they call: those of the server it is added to unless said otherwise. `writes`: whether a person is asked
    before a script changes something ("ask"), the rules of the server are enough ("allow"), or scripts only read
    ("refuse"). `calls`, `at_once`, `seconds`, `memory` (bytes) and `output` (bytes of a result; the rest is kept as a
    resource) are the ceilings of one run. `spare`: how many jails wait for the next script. `tasks`: whether a run goes
    on as a task where the client can deal with one. `store` is where runs are kept: where the server keeps its tasks
    unless said otherwise.
    """

    # It needs no scope of its own: a script does what its caller may do anyway, and each call is asked for its scopes.
    name = "code"

    @explained
    def __init__(
        self,
        *,
        target: Handler | None = None,
        writes: Writes = "ask",
        calls: int = 200,
        at_once: int = 16,
        seconds: float = 60.0,
        memory: int = 64 * MIB,
        output: int = 32 * 1024,
        spare: int = 1,
        tasks: bool = True,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if writes not in ("ask", "allow", "refuse"):
            raise UsageError(f"{writes!r} is none of ask, allow, refuse")
        if min(calls, at_once, seconds, output) <= 0 or memory < MIB:
            raise UsageError("a run needs at least one call, one at once, some seconds, a byte of output and 1 MiB")
        self._ceilings = Ceilings(calls, at_once, seconds, output)
        self._target, self._writes, self._given_store = target, writes, store
        self._store = RunStore(store_url(store, None))
        self.saved = SavedScripts(self._store)
        self._server: Server | None = None
        # What forgets the runs that were cut off.
        self._forgetting: set[asyncio.Task[None]] = set()
        self._places = FairPlaces(
            MAX_RUNS,
            MAX_RUNS_PER_CALLER,
            waiting=MAX_WAITING_RUNS_PER_CALLER,
            waiting_total=MAX_WAITING_RUNS,
            seconds=MAX_WAITING_SECONDS,
        )
        # Another's tools are not ours, even if they come from one that is called so.
        own = (self.name,) if target is None else ()
        self.tables = CallerTables(lambda: self._server if self._target is None else self._target, own)
        try:
            self._jails = JailPool(memory=memory, seconds=seconds, spare=spare)
        except SandboxUnavailable as reason:
            raise UsageError(f"scripts need live Python's jail: {reason}") from None
        task = TaskConfig(mode="optional" if tasks else "never", detached=True)
        output_schema = schema(RunResult, output=True)
        self.tool(annotations=RUNS, task=task, output_schema=output_schema)(self.run)
        self.tool(annotations=READS)(self.describe_tools)
        self.tool(annotations=RUNS, task=task, output_schema=output_schema)(self.run_saved)
        self.tool(annotations=FORGETS)(self.forget_saved)

    @property
    def saves(self) -> bool:
        """Whether there may be saved scripts: the store lasts, or something was stored in it."""
        return self._store.lasts or self._store.is_open

    def added(self, server: Server) -> None:
        self._server = server
        self._store.url = store_url(self._given_store, server)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._jails.open()
        try:
            yield
        finally:
            await self._jails.close()
            for one in self._forgetting:
                one.cancel()
            if self._forgetting:
                await asyncio.wait(self._forgetting)
            await self._store.close()

    async def run(
        self,
        ctx: Context,
        code: Script,
        data: Data = None,
        save: Annotated[str | None, "Keep it under this name, as a tool of yours, if it works"] = None,
    ) -> ToolResult:
        """Run a Python script that calls tools: one call in place of many.

        `from tools import github`, then `await github.create_issue(repo="a/b", title="…")`; any tool can be imported by
        the name that it is listed or found under: `from tools import add`. `asyncio.gather` calls side by side. Results
        are data; a refusal is a `ToolError` with `.kind` and `.details`. The result is the value of the last
        expression, or what is returned, with what was printed. No network, no files but scratch. A person is asked once
        before something is changed.
        """
        tools = await self._tools(ctx)
        if save is not None:
            self._check_name(ctx, save, tools.table)
        said, run = await self._run(ctx, tools, code, data)
        if save is not None and not said.is_error:
            table = tools.table
            used = table.digests({*run.used, *(tool.name for tool in table.named_in(code))})
            await self.saved.save(owner_of(ctx), SavedScript(save, description_of(code), code, used, time.time()))
            if self._server is not None:
                self._server.tools.changed()
        return said

    async def describe_tools(
        self, ctx: Context, tools: Annotated[list[str], Meta(max_length=MOST_DESCRIBED, description="Their names")]
    ) -> TextContent:
        """What tools take and give, as typed Python."""
        table = (await self._tools(ctx)).table
        found = []
        for name in tools:
            tool = table.find(name)
            if tool is None:
                near = did_you_mean(name[:100], list(table.by_name))
                raise ToolError(f"There is no tool {name[:100]!r}. {near}".rstrip(), kind="ResourceNotFound")
            found.append(tool)
        return TextContent(text=stubs.written(found))

    async def run_saved(self, ctx: Context, name: SavedName, data: Data = None) -> ToolResult:
        """Run a script that you have saved."""
        script = await self.saved.find(owner_of(ctx), name)
        tools = await self._tools(ctx)
        script.check(tools.table)
        said, _ = await self._run(ctx, tools, script.code, data)
        return said

    async def forget_saved(self, ctx: Context, name: SavedName) -> TextContent:
        """Forget a script that you have saved."""
        if not await self.saved.forget(owner_of(ctx), name):
            raise ToolError(f"There is no saved script {name!r}.", kind="ResourceNotFound")
        if self._server is not None:
            self._server.tools.changed()
        return TextContent(text=f"The script {name!r} is forgotten.")

    def _check_name(self, ctx: Context, name: str, table: ToolTable) -> None:
        if ctx.principal is None and ctx.address is not None:
            raise ToolError("A script is saved for who ran it, and you have not logged in.", kind="PermissionError")
        if not _NAME.fullmatch(name) or name in table.by_name or name in RESERVED:
            raise ToolError(
                f"{name[:80]!r} cannot be the name of a saved script: it is small letters, digits and underscores, and "
                "not the name of a tool that there is.",
                kind="ValidationError",
            )

    # Running

    async def _tools(self, ctx: Context) -> RunTools:
        """The tools that the caller is shown. What goes on as a task does so with those of the beginning, where it was
        asked through a part of the server alone."""
        about = ctx.on_behalf
        table = await self.tables.of(about)
        shown = await ctx.step("tools", lambda: None if about["facet"] is None else list(table.by_name))
        return RunTools(self.tables, ctx, table, shown)

    async def _journal(self, ctx: Context, digest: str) -> Journal:
        """What the run goes on with: the journal of an earlier round of it, or of a process that was killed."""
        owner = owner_of(ctx)
        # Who has not logged in cannot be told from another, who would then get what this one has done.
        goes_on = ctx.is_first_round and not ctx.call.anonymous
        left = await Journal.left_behind(self._store, owner, digest) if goes_on else None
        journal = left or Journal(self._store, owner, digest)
        id = await ctx.step("journal", lambda: journal.id)
        if id != journal.id:
            journal = Journal(self._store, owner, digest, id)
            if not await journal.load():
                raise ToolError(
                    "The journal of this run is gone, so it cannot go on: it has waited for too long, or had to make "
                    "room for newer runs. What it had done stays done: look at that before you run it again.",
                    kind="ResourceNotFound",
                )
        return journal

    async def _run(self, ctx: Context, tools: RunTools, code: str, data: Any) -> tuple[ToolResult, ScriptRun]:
        _check_depth(data)
        # What was begun through a part of the server goes on there alone.
        facet = ctx.on_behalf["facet"]
        part = [] if facet is None else [getattr(facet, "name", "")]
        journal = await self._journal(ctx, digest_of(code, data, *part))
        consent = Consent(ctx, journal, code, self._writes, self._ceilings.calls)
        async with self._places.hold(ctx.call):
            try:
                worker = await self._jails.take()
            except SandboxUnavailable as reason:
                raise ToolError(
                    f"Scripts cannot be run now: {reason}", kind="ToolExecutionError", retryable=True
                ) from None
            run = ScriptRun(ctx, worker, tools, journal, self._ceilings, consent, self._target)
            is_over = False
            try:
                end = await run.run(code, data)
                is_over = True
            finally:
                await self._leave(ctx, journal, run, is_over=is_over)
        return await self._result(ctx, end, run, journal), run

    async def _leave(self, ctx: Context, journal: Journal, run: ScriptRun, *, is_over: bool) -> None:
        if is_over:
            await journal.finish()
            return
        try:
            if journal.stored and not ctx.cancelled:
                # It goes on with the answer to its question, or as a task.
                await journal.save("paused")
        finally:
            # Last: what is saved says that a process is alive.
            await journal.rest()
        if ctx.cancelled and not self._store.lasts:
            await run.end_tasks()
        if journal.stored and ctx.cancelled:
            forgetting = asyncio.create_task(self._forget_later(journal, run))
            self._forgetting.add(forgetting)
            forgetting.add_done_callback(self._forgetting.discard)

    async def _forget_later(self, journal: Journal, run: ScriptRun) -> None:
        """A run was cut off. If this server is there a while later, it was the client that did not want it any more;
        if not, the server was stopped, and the same script goes on as after a kill, with the tasks it waits for."""
        await asyncio.sleep(FORGET_SECONDS)
        with suppress(ToolError):
            await journal.finish()
        await run.end_tasks()

    async def _result(self, ctx: Context, end: RunEnd, run: ScriptRun, journal: Journal) -> ToolResult:
        shown = run_result.read(end, run.calls, run.unknown, resumed=journal.resumed)
        return await run_result.bounded(shown, self._ceilings.output, self._store, owner_of(ctx))

    # What was too long for a result

    @resource("run://output/{id}", mime_type="text/plain", title="The whole output of a run")
    async def output(self, ctx: Context, id: str) -> str:
        """What a script printed and came to, for the caller that ran it. It is kept for a day."""
        found = await kept_output(self._store, owner_of(ctx), id)
        if found is None:
            raise ResourceNotFound(f"run://output/{id}")
        return found[1]


def _check_depth(data: Any) -> None:
    if isinstance(data, list | dict) and is_too_deep(to_json(data)):
        raise ToolError(f"The data is nested more than {DEEPEST_JSON} deep.", kind="ValidationError")


STRANGERS = "(not logged in)"
RESERVED: Sequence[str] = ("run", "describe_tools", "run_saved", "forget_saved", "find_tools", "call_tool")


def owner_of(caller: Context | Call) -> str:
    """Whose everything is that a run leaves behind. Who comes over HTTP and has not logged in is not the person who
    has started the server."""
    return identity_of(caller.principal) or ("" if caller.address is None else STRANGERS)
