"""One run of a script, seen from the server: what the script asks for is done here, and written down.

The script says what it wants and is believed nothing else. Each of its calls is a Call of the same principal through
the same Handlers as if the client had made it; what it may not do is refused there, and told to the script.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico import Context, ToolError
from portico.extend import TASKS_EXTENSION, Handler, MethodNotFound, MissingCapability, NeedsTask
from portico_services.codemode import results
from portico_services.codemode.answer_replay import ScriptAnswers, ScriptCall, check_arguments
from portico_services.codemode.catalog_cache import RunTools
from portico_services.codemode.consent import Consent
from portico_services.codemode.inner_tasks import InnerTasks, Settle, task_in
from portico_services.codemode.journal import LONGEST_JOURNAL, Journal, JournalEntry
from portico_services.codemode.tool_catalog import ScriptTool
from portico_services.livepython.sandbox.limits import LONGEST_REPLY
from portico_services.livepython.sandbox.worker import PythonWorker, WorkerEnded, WorkerReply

# The worker's own clock: ours is the one that counts, because it stands still while a person is asked.
A_DAY = 24 * 3600.0
# How long a run waits in total for the answers of a person. Its process is there meanwhile.
MAX_ASKING_SECONDS = 300.0
# After so long a run becomes a task.
DETACH_SECONDS = 2.0
# Beyond its ceiling every call is refused; beyond so many times that, the script is ended.
PATIENCE = 2
MOST_WAITS = 5_000
# How often a call may be answered with a question.
MOST_ROUNDS = 10
NOTHING = Raw(b"")
# Work that has nothing to wait for is done where it is begun: without a turn of the loop for it. Since 3.12.
_AT_ONCE: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class Ceilings(Struct, frozen=True):
    """How much one run may do."""

    calls: int
    at_once: int
    seconds: float
    output: int


_batch = msgspec.json.Decoder(list[ScriptCall])


class RunEnd(Struct):
    """How a run ended: with a result of the script's, or because it was ended."""

    result: Raw = NOTHING
    ended: str | None = None
    output: str = ""
    dropped: int = 0


class ScriptRun:
    """`run` runs the script; everything else is what happens meanwhile."""

    def __init__(
        self,
        ctx: Context,
        worker: PythonWorker,
        tools: RunTools,
        journal: Journal,
        ceilings: Ceilings,
        consent: Consent,
        handler: Handler | None,
    ) -> None:
        self._ctx, self._worker, self._tools, self._journal = ctx, worker, tools, journal
        self._ceilings, self._consent, self._handler = ceilings, consent, handler
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._slots = asyncio.Semaphore(ceilings.at_once)
        self._deadline: asyncio.Timeout = asyncio.timeout(None)
        self._last = self.calls = self._waits = self._asking = 0
        self._left: float | None = None
        # How much time is left for the answers of a person, and since when it passes.
        self._asking_left = MAX_ASKING_SECONDS
        self._asking_since = 0.0
        self._over = False
        # It may be gone on with, in another round or another process.
        self._cut_off = False
        # What is being done: by number, and of these the writes.
        self._working: dict[int, asyncio.Task[None]] = {}
        self._writes: set[int] = set()
        # What each write is; and whether one may begin now: not while a person is asked.
        self._begun: dict[int, tuple[str, str]] = {}
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._asked = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks = InnerTasks(ctx, handler)
        self._told = ScriptAnswers(worker, journal, self._writes)
        # Writes that were begun by a process that was killed, and of which it is not known what became.
        self.unknown: list[str] = []
        self.used: set[str] = set()

    async def run(self, code: str, data: Any) -> RunEnd:
        asked = {
            "code": code,
            "tools": self._tools.table.encoded,
            "data": data,
            "seed": self._journal.seed,
            "at": self._journal.begun_at,
        }
        try:
            async with self._deadline:
                self._set_deadline(self._ceilings.seconds)
                self._timers.add(self._loop.call_later(DETACH_SECONDS, self._go_on_as_task))
                reply = await self._worker.ask("run_script", asked, A_DAY, self._hear)
                await self._settle_writes()
                self._over = True
        except asyncio.CancelledError:
            self._cut_off = True
            raise
        except TimeoutError:
            if self._asking:
                return RunEnd(ended=f"Its questions were not answered within {MAX_ASKING_SECONDS:g} s.")
            return RunEnd(ended=f"It did not end within {self._ceilings.seconds:g} s.")
        except WorkerEnded as end:
            await self._settle_writes()
            return _ended(end.answer, f"{end.reason[:1].upper()}{end.reason[1:]}.")
        finally:
            self._over = True
            self._worker.kill("the run is over")
            await self._stop()
        if len(reply.result) > LONGEST_REPLY or reply.refusal is not None:
            return _ended(reply, reply.refusal or "Its result is too long.")
        return RunEnd(reply.result, None, reply.output, reply.dropped)

    # Time

    def _set_deadline(self, seconds: float | None) -> None:
        if not self._over:
            self._deadline.reschedule(None if seconds is None else self._loop.time() + seconds)

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        """Stop the clock of the run while a person thinks; the time for all answers together is bounded as well."""
        if not self._asking:
            when, now = self._deadline.when(), self._loop.time()
            self._left = None if when is None else when - now
            self._asking_since = now
            self._set_deadline(self._asking_left)
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                self._asking_left = max(self._asking_left - (self._loop.time() - self._asking_since), 0.1)
                if self._left is not None:
                    self._set_deadline(max(self._left, 0.1))

    def _go_on_as_task(self) -> None:
        """A run that takes long goes on as a task, where the client can deal with one."""
        self._work(0, self._ctx.detach(self._stand_still))

    async def _stand_still(self) -> None:
        """Nothing more is begun: what this run has done is stored, and another goes on with it."""
        self._may_write.clear()
        await self._settle()

    # What the script says

    def _hear(self, said: Raw) -> None:
        """Raises ValueError for what no script of ours would say."""
        batch = _batch.decode(said)
        for one in batch:
            if one.n != self._last + 1 or (one.tool is None) == (one.seconds is None):
                raise ValueError("not the next")
            self._last = one.n
        fresh = [one for one in batch if not self._is_recorded(one)]
        self._told.replay(self._last)
        self._told.hold()
        writes = []
        for one in fresh:
            if one.seconds is not None:
                self._wait(one, one.seconds)
            elif (tool := self._admitted(one)) is not None:
                # What was begun was a write, whatever it is now.
                if tool.reads and one.n not in self._journal.entries:
                    self._start(one, tool)
                else:
                    writes.append((one, tool))
        if writes:
            # Under a number that is no call's.
            self._work(-writes[0][0].n, self._make_writes(writes))
        if _AT_ONCE:
            self._told.release()
        else:
            # In the same turn of the loop as the tasks that were made, and after them.
            self._loop.call_soon(self._told.release)

    def _admitted(self, one: ScriptCall) -> ScriptTool | None:
        """The tool that is meant. Others, and those beyond a ceiling, are refused."""
        self.calls += 1
        ceiling = self._ceilings.calls
        if self.calls > PATIENCE * ceiling:
            self._worker.kill(f"it made more than {PATIENCE * ceiling} calls")
        elif self.calls > ceiling:
            self._told.finish(one, results.error(f"A run makes at most {ceiling} calls.", "ApiLimitExceeded"))
        elif self._journal.size > LONGEST_JOURNAL:
            self._told.finish(
                one, results.error("The results of this run have become too many bytes.", "ApiLimitExceeded")
            )
        elif (tool := self._tools.table.by_name.get(one.tool or "")) is None:
            self._told.finish(one, _no_tool(one))
        else:
            try:
                check_arguments(one.arguments)
            except ValueError as problem:
                self._told.finish(one, results.error(f"{tool.name}: {problem}", "ValidationError"))
                return None
            self.used.add(tool.name)
            return tool
        return None

    def _wait(self, one: ScriptCall, seconds: float) -> None:
        self._waits += 1
        if self._waits > MOST_WAITS:
            self._worker.kill("it waits too often")
            return

        def passed() -> None:
            self._timers.discard(timer)
            self._told.finish(one, "{}")

        timer = self._loop.call_later(max(seconds, 0.0), passed)
        self._timers.add(timer)

    # What was done before

    def _is_recorded(self, one: ScriptCall) -> bool:
        entry = self._journal.entries.get(one.n)
        if entry is None:
            return False
        if (entry.tool, entry.digest) != (one.tool or "", one.digest):
            self._worker.kill(
                "when it was run again it did something else than before, so it cannot go on; "
                f"{_done(self._journal.places)}"
            )
        if one.tool is not None and entry.place is not None:
            self.calls += 1
            self.used.add(one.tool)
        return entry.place is not None

    # What is done now

    def _work(self, n: int, work: Coroutine[Any, Any, None]) -> None:
        """Do something meanwhile. It takes itself out of what is being done: a callback that did so would be one more
        turn of the loop for each call."""
        # What the jail says is heard in whatever context it was started in, which is another's.
        task = asyncio.Task(work, loop=self._loop, context=self._context.copy(), **_AT_ONCE)
        if not task.done():
            self._working[n] = task

    def _start(self, one: ScriptCall, tool: ScriptTool) -> None:
        self._work(one.n, self._perform(one, tool))

    async def _make_writes(self, writes: list[tuple[ScriptCall, ScriptTool]]) -> None:
        """Writes that were asked for side by side: a person agrees to all of them, or to none."""
        known: list[tuple[ScriptCall, ScriptTool]] = []
        for one, tool in writes:
            if self._journal.task_of(one.n) is not None:
                self._start(one, tool)
            elif one.n in self._journal.entries and not tool.may_be_repeated:
                self.unknown.append(tool.name)
                self._told.finish(one, results.error(_unknown(tool), "OutcomeUnknown"))
            elif (now := await self._now(one, tool)) is not None:
                known.append((one, now))
        try:
            refused = await self._consent.agree(self._tools.table, known, self._question)
        except ToolError as refusal:
            refused = {one.n: refusal for one, _ in known}
        finally:
            self._working.pop(-writes[0][0].n, None)
        for one, tool in known:
            if one.n in refused:
                self._told.finish(one, results.outcome_of_failure(tool, refused[one.n]))
            else:
                self._start(one, tool)

    @asynccontextmanager
    async def _question(self, n: int | None = None) -> AsyncIterator[None]:
        """Around a question to a person, which may end this run: time stands still, no write is in the middle of being
        made, and all that was done is stored. `n`: the write that asks; it has not been made yet."""
        with self._untimed():
            self._asked += 1
            self._may_write.clear()
            try:
                if n is not None:
                    self._writes.discard(n)
                    self._journal.take_back(n)
                await self._settle()
                yield
            finally:
                self._asked -= 1
                if not self._asked:
                    self._may_write.set()
        if n is not None:
            await self._begin_write(n)

    async def _settle(self) -> None:
        await self._settle_writes()
        await self._journal.save()

    async def _begin_write(self, n: int) -> None:
        """It is about to be made: when this returns, that is stored."""
        await self._may_write.wait()
        self._writes.add(n)
        try:
            await self._journal.begin(n, *self._begun[n])
        except ToolError:
            self._writes.discard(n)
            raise

    async def _perform(self, one: ScriptCall, tool: ScriptTool) -> None:
        try:
            async with self._slots:
                if not tool.reads or self._journal.task_of(one.n) is not None:
                    return await self._make(one, tool)
                now = await self._now(one, tool)
                if now is None:
                    return None
                if now.reads:
                    return await self._make(one, now)
        finally:
            self._working.pop(one.n, None)
        # It only read when the run began, and does not any more.
        self._work(-one.n, self._make_writes([(one, now)]))

    async def _now(self, one: ScriptCall, tool: ScriptTool) -> ScriptTool | None:
        """A tool as it is at this moment. None if it cannot be called: the script is told why."""
        try:
            now = await self._tools.now(tool)
        except Exception as failure:
            outcome = results.outcome_of_failure(tool, failure)
        else:
            if now is not None:
                return now
            outcome = _no_tool(one)
        self._told.finish(one, outcome)
        return None

    async def _make(self, one: ScriptCall, tool: ScriptTool) -> None:
        task = self._journal.task_of(one.n)
        if task is None and not tool.reads:
            self._begun[one.n] = (tool.name, one.digest)
            try:
                await self._begin_write(one.n)
            except ToolError as refusal:
                self._told.finish(one, results.outcome_of_failure(tool, refusal))
                return
        try:
            result = await (self._result(one, tool) if task is None else self._task_result(one, tool, task))
            outcome = results.outcome_of(tool, result)
        except Exception as failure:
            outcome = results.outcome_of_failure(tool, failure)
        self._told.finish(one, outcome, wrote=not tool.reads)

    async def _result(self, one: ScriptCall, tool: ScriptTool) -> Any:
        """The result of a call. What an upstream asks in the middle is passed on."""
        params: dict[str, Any] = {"name": tool.name, "arguments": one.arguments}
        settle = self._question if tool.reads else partial(self._question, one.n)
        for _ in range(MOST_ROUNDS):
            result = await self._request(one, tool, params, settle)
            asked = results.questions_in(result)
            if asked is None:
                task = task_in(result)
                return result if task is None else await self._begun_task(one, tool, task)
            given = await self._ctx.answer_questions(asked, key=f"call-{one.n}", settle=settle)
            params = {**params, **given}
        raise ToolError(f"{tool.name} asks without end.")

    async def _request(self, one: ScriptCall, tool: ScriptTool, params: dict[str, Any], settle: Settle) -> Any:
        request = self._ctx.request
        key = f"call-{one.n}"
        if not tool.needs_task:
            try:
                return await request("tools/call", params, key=key, settle=settle, handler=self._handler)
            except (MethodNotFound, MissingCapability, NeedsTask) as refusal:
                if not _wants_task(refusal):
                    raise
        # Where it was refused, nothing was done yet: it runs only as a task, which no list of 2026-07-28 says.
        result = await self._tasks.begun(request("tools/call", params, key=key, handler=self._handler, tasks=True))
        tool.needs_task = True
        return result

    async def _begun_task(self, one: ScriptCall, tool: ScriptTool, id: str) -> Any:
        """From here on the call is not in the middle: who goes on with this run takes up the same task."""
        try:
            await self._journal.begin_task(one.n, tool.name, one.digest, id)
        except BaseException:
            await self._tasks.end(id)
            raise
        self._writes.discard(one.n)
        return await self._task_result(one, tool, id)

    async def _task_result(self, one: ScriptCall, tool: ScriptTool, id: str) -> Any:
        try:
            return await self._tasks.result(one.n, tool, id, self._question)
        except ToolError as refusal:
            if refusal.kind == "OutcomeUnknown" and not tool.reads:
                self.unknown.append(tool.name)
            raise

    async def _settle_writes(self) -> None:
        """Until no write is in the middle, and each that was made is stored."""
        while self._writes or self._told.storing is not None:
            working = [self._working[n] for n in self._writes if n in self._working]
            if self._told.storing is not None:
                working.append(self._told.storing)
            if not working:
                return
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)

    async def _stop(self) -> None:
        """Nothing goes on after the end."""
        for timer in self._timers:
            timer.cancel()
        storing = self._told.storing
        working = [*self._working.values(), *([storing] if storing is not None else [])]
        for task in self._working.values():
            task.cancel()
        if working:
            await asyncio.wait(working)
        if not self._cut_off:
            await self.end_tasks()

    async def end_tasks(self) -> None:
        """Nothing goes on with this run: what it waited for is not wanted any more."""
        await self._tasks.cancel()


def _ended(reply: WorkerReply, reason: str) -> RunEnd:
    return RunEnd(ended=reason, output=reply.output, dropped=reply.dropped)


def _no_tool(one: ScriptCall) -> str:
    return results.error(f"Unknown tool: {str(one.tool)[:100]}", "ResourceNotFound")


def _unknown(tool: ScriptTool) -> str:
    return (
        f"{tool.name} was about to be called when the server was stopped, and it is not known whether it was done. "
        "It is not called again: look first."
    )


def _wants_task(refusal: Exception) -> bool:
    """2025-11-25 says that the method of a tool is not found which runs only as a task."""
    return not isinstance(refusal, MissingCapability) or TASKS_EXTENSION in refusal.extensions


def _done(entries: list[JournalEntry]) -> str:
    tools = [one.tool for one in entries if one.tool]
    return f"it had made {len(tools)} calls" + (f", the last of {tools[-1]}" if tools else "")
