"""Code mode as a service: one tool that runs a script, and the scripts that callers have saved."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from portico import Context, Server, Service, TaskConfig, ToolError, ToolResult, UsageError, resource, tool
from portico.extend import MODERN, Call, Handler, ResourceNotFound, explained, identity_of, to_json
from portico.schema import schema
from portico.services.code import outputs
from portico.services.code.consent import Consent, Writes
from portico.services.code.jails import JailPool
from portico.services.code.journal import Journal, RunStore, digest_of, kept_output, store_url
from portico.services.code.outputs import RunResult
from portico.services.code.runs import Ceilings, RunEnd, ScriptRun
from portico.services.code.table import ScriptTool, ToolTable, read_page
from portico.services.live.kernel import SandboxUnavailable
from portico.services.live.limits import MIB

LONGEST_CODE = 256 * 1024
LONGEST_DATA = MIB
MOST_PAGES = 1000
NAME_PATTERN = r"^[a-z][a-z0-9_]{0,62}$"

# It does what its script does, and for that each tool is asked about by itself.
HINTS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}

Script = Annotated[str, Meta(max_length=LONGEST_CODE, description="Python; `await` works at the top")]
Data = Annotated[Any, Meta(description="JSON that the script finds in `data`")]


class Code(Service):
    """Scripts that call the tools of a server: `server.add(Code())`.

    They run in live Python's jail, which Linux alone has: elsewhere this raises UsageError with the reason. `target` is
    whose tools they call: those of the server it is added to unless said otherwise. `writes`: whether a person is asked
    before a script changes something ("ask"), the rules of the server are enough ("allow"), or scripts only read
    ("refuse"). `calls`, `at_once`, `seconds`, `memory` (bytes) and `output` (bytes of a result; the rest is kept as a
    resource) are the ceilings of one run. `store` is where runs are kept: where the server keeps its tasks unless said
    otherwise.
    """

    name = "code"
    scoped = True

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
        self._server: Server | None = None
        self._tables: dict[bytes, ToolTable] = {}
        try:
            self._jails = JailPool(memory=memory, seconds=seconds, spare=spare)
        except SandboxUnavailable as reason:
            raise UsageError(f"scripts need live Python's jail: {reason}") from None

    def added(self, server: Server) -> None:
        self._server = server
        self._store.url = store_url(self._given_store, server)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            await self._jails.open()
        except SandboxUnavailable as reason:
            await self._jails.close()
            raise UsageError(f"scripts cannot be run: {reason}") from None
        try:
            yield
        finally:
            await self._jails.close()
            await self._store.close()

    @tool(
        annotations=HINTS,
        task=TaskConfig(mode="optional", detached=True),
        output_schema=schema(RunResult, output=True),
    )
    async def run(self, ctx: Context, code: Script, data: Data = None) -> ToolResult:
        """Run a Python script that calls tools: one call in place of many.

        `from tools import github`, then `await github.create_issue(repo="a/b", title="…")`; tools without a module are
        imported by their name: `from tools import add`. `asyncio.gather` calls side by side. Results are data, and a
        refusal is a `ToolError` with `.kind` and `.details`. The value of the last expression, or what is returned, is
        the result, with what was printed. No network, no files but scratch. A person is asked once before something is
        changed.
        """
        table = await self._table(ctx)
        journal = await self._journal(ctx, digest_of(code, data))
        return await self._run(ctx, table, journal, code, data)

    async def _journal(self, ctx: Context, digest: str) -> Journal:
        """What the run goes on with: the journal of an earlier round of it, or of a process that was killed."""
        owner = owner_of(ctx)
        left = await Journal.left_behind(self._store, owner, digest) if ctx.is_first_round else None
        journal = left or Journal(self._store, owner, digest)
        id = await ctx.step("journal", lambda: journal.id)
        if id != journal.id:
            journal = Journal(self._store, owner, digest, id)
            if not await journal.load():
                raise ToolError("The journal of this run is gone, so it cannot go on: run it again.", kind="Expired")
        return journal

    async def _run(self, ctx: Context, table: ToolTable, journal: Journal, code: str, data: Any) -> ToolResult:
        consent = Consent(ctx, journal, code, self._writes, self._ceilings.calls)
        try:
            worker = await self._jails.take()
        except SandboxUnavailable as reason:
            raise ToolError(f"Scripts cannot be run now: {reason}", kind="Unavailable", retryable=True) from None
        run = ScriptRun(ctx, worker, table, journal, self._ceilings, consent, self._target)
        status = "paused"
        try:
            end = await run.run(code, data)
            status = "ended"
        finally:
            await self._leave(journal, status)
        return await self._result(ctx, end, run, journal)

    async def _leave(self, journal: Journal, status: str) -> None:
        if status == "ended":
            await journal.finish()
            return
        await journal.rest()
        if journal.stored:
            # It goes on with the answer to its question, if it has one.
            await journal.save(status)

    async def _result(self, ctx: Context, end: RunEnd, run: ScriptRun, journal: Journal) -> ToolResult:
        shown = outputs.read(end, run.calls, run.unknown, resumed=journal.resumed)
        return await outputs.bounded(shown, self._ceilings.output, self._store, owner_of(ctx))

    # Which tools there are

    async def _table(self, ctx: Context) -> ToolTable:
        """The tools that the caller is shown, worked out once for each list."""
        pages: list[bytes] = []
        params: dict[str, Any] = {}
        tools: list[ScriptTool] = []
        for _ in range(MOST_PAGES):
            # In the newest words: older revisions do not say which tools only read.
            asked = Call(method="tools/list", params=Raw(to_json(params)), id="tools", revision=MODERN, **ctx.on_behalf)
            page = await self._handler()(asked)
            pages.append(page if isinstance(page, Raw) else to_json(page))
            cursor = msgspec.json.decode(pages[-1], type=_NextPage).nextCursor
            if cursor is None:
                break
            params = {"cursor": cursor}
        key = b"\n".join(pages)
        table = self._tables.get(key)
        if table is None:
            tools = [one for page in pages for one in read_page(page)[0]]
            table = ToolTable(tools, self._owner_of, self._own_name(), hidden=(self.name,))
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            self._tables[key] = table
        return table

    def _owner_of(self, name: str) -> tuple[str, str]:
        whose = getattr(self._handler(), "owner_of", None)
        owned: Iterable[str] = ("", name) if whose is None else whose("tool", name)
        owner, inward = owned
        return owner, inward

    def _own_name(self) -> str:
        return str(getattr(self._handler(), "name", ""))

    def _handler(self) -> Any:
        return self._target if self._target is not None else self._server

    # What was too long for a result

    @resource("run://output/{id}", mime_type="text/plain", title="The whole output of a run")
    async def output(self, ctx: Context, id: str) -> str:
        """What a script printed and came to, for who ran it. It is kept for a day."""
        found = await kept_output(self._store, owner_of(ctx), id)
        if found is None:
            raise ResourceNotFound(f"run://output/{id}")
        return found[1]


MOST_TABLES = 16


class _NextPage(msgspec.Struct):
    nextCursor: str | None = None


def owner_of(ctx: Context) -> str:
    """Whose everything is that a run leaves behind."""
    return identity_of(ctx.principal) or ""
