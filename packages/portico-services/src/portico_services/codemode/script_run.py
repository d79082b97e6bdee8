"""One run of a script, as seen from the server: executes the script's requests and records them.

The script is untrusted. Each of its calls is a Call of the same principal through the same handlers as if the client
had made it, so access rules apply there; the script receives the error.
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
from portico.errors import MethodNotFound, MissingClientCapability, TaskRequired
from portico.extend import TASKS_EXTENSION, Handler
from portico_services.codemode import results
from portico_services.codemode.answer_replay import AnswerReplay, ScriptRequest, check_arguments
from portico_services.codemode.catalog_cache import RunTools
from portico_services.codemode.consent import WriteConsent
from portico_services.codemode.inner_tasks import ElicitationResolver, InnerTasks, task_id_in
from portico_services.codemode.journal import MAX_JOURNAL_BYTES, JournalEntry, RunJournal
from portico_services.codemode.tool_catalog import ScriptTool
from portico_services.livepython.sandbox.limits import MAX_REPLY_BYTES
from portico_services.livepython.sandbox.worker import PythonWorker, WorkerEnded, WorkerReply

# The worker's own timeout is only a backstop: the deadline of the run is paused while the user is asked.
WORKER_TIMEOUT_SECONDS = 24 * 3600.0
# How long a run waits for the user's answers in total. Its process stays alive during that time.
MAX_ASKING_SECONDS = 300.0
# A run that takes longer becomes a task.
DETACH_AFTER_SECONDS = 2.0
# Calls beyond the limit are rejected; beyond this multiple of the limit, the script is killed.
CALL_LIMIT_KILL_FACTOR = 2
MAX_SLEEPS = 5_000
# How often a call may respond with input requests.
MAX_INPUT_ROUNDS = 10
EMPTY_RESULT = Raw(b"")
# Eager tasks (Python 3.12) run without an extra iteration of the event loop if they do not block.
_EAGER_START: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class RunLimits(Struct, frozen=True):
    """Limits of one run."""

    max_calls: int
    max_concurrent_calls: int
    timeout: float
    max_output_bytes: int


_batch = msgspec.json.Decoder(list[ScriptRequest])


class RunOutcome(Struct):
    """How a run ended: with the script's result, or with the reason why it was ended."""

    result: Raw = EMPTY_RESULT
    ended: str | None = None
    output: str = ""
    dropped: int = 0


class ScriptRun:
    """A run of a script. `run` executes it; the other methods serve the script's requests."""

    def __init__(
        self,
        ctx: Context,
        worker: PythonWorker,
        tools: RunTools,
        journal: RunJournal,
        limits: RunLimits,
        consent: WriteConsent,
        handler: Handler | None,
    ) -> None:
        self._ctx, self._worker, self._tools, self._journal = ctx, worker, tools, journal
        self._limits, self._consent, self._handler = limits, consent, handler
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._slots = asyncio.Semaphore(limits.max_concurrent_calls)
        self._deadline: asyncio.Timeout = asyncio.timeout(None)
        self._last = self.calls = self._waits = self._asking = 0
        self._remaining_seconds: float | None = None
        # Time left for the user's answers, and when the current wait began.
        self._asking_left = MAX_ASKING_SECONDS
        self._asking_since = 0.0
        self._over = False
        # The run may be continued in another round or by another process.
        self._cut_off = False
        # Running tasks by request number, and the numbers of the writes among them.
        self._working: dict[int, asyncio.Task[None]] = {}
        self._writes: set[int] = set()
        # Tool and digest of each write, and whether a write may start: not while the user is asked.
        self._pending_calls: dict[int, tuple[str, str]] = {}
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._request_count = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks = InnerTasks(ctx, handler)
        self._replay = AnswerReplay(worker, journal, self._writes)
        # Writes that a killed process had begun, with unknown outcome.
        self.unknown: list[str] = []
        self.used: set[str] = set()

    async def run(self, code: str, data: Any) -> RunOutcome:
        """Run the script and return how it ended."""
        request = {
            "code": code,
            "tools": self._tools.table.to_json,
            "data": data,
            "seed": self._journal.seed,
            "at": self._journal.begun_at,
        }
        try:
            async with self._deadline:
                self._set_deadline(self._limits.timeout)
                self._timers.add(self._loop.call_later(DETACH_AFTER_SECONDS, self._detach))
                reply = await self._worker.request("run_script", request, WORKER_TIMEOUT_SECONDS, self._on_requests)
                await self._settle_writes()
                self._over = True
        except asyncio.CancelledError:
            self._cut_off = True
            raise
        except TimeoutError:
            if self._asking:
                return RunOutcome(ended=f"The user did not answer within {MAX_ASKING_SECONDS:g} s.")
            return RunOutcome(ended=f"The script did not finish within {self._limits.timeout:g} s.")
        except WorkerEnded as end:
            # A write in progress completes and is recorded, even though the script is gone.
            await self._settle_writes()
            return _outcome_of_ended_worker(end.answer, f"{end.reason[:1].upper()}{end.reason[1:]}.")
        finally:
            self._over = True
            self._worker.kill("the run is over")
            await self._stop()
        if len(reply.result) > MAX_REPLY_BYTES or reply.refusal is not None:
            return _outcome_of_ended_worker(reply, reply.refusal or "The result is too large.")
        return RunOutcome(reply.result, None, reply.output, reply.dropped)

    # Time

    def _set_deadline(self, seconds: float | None) -> None:
        if not self._over:
            self._deadline.reschedule(None if seconds is None else self._loop.time() + seconds)

    @contextmanager
    def _pause_deadline(self) -> Iterator[None]:
        """Pause the deadline of the run while the user is asked; the total time for answers has a separate limit."""
        if not self._asking:
            when, now = self._deadline.when(), self._loop.time()
            self._remaining_seconds = None if when is None else when - now
            self._asking_since = now
            self._set_deadline(self._asking_left)
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                self._asking_left = max(self._asking_left - (self._loop.time() - self._asking_since), 0.1)
                if self._remaining_seconds is not None:
                    self._set_deadline(max(self._remaining_seconds, 0.1))

    def _detach(self) -> None:
        """Continue a long run as a task, if the client supports tasks."""
        self._work(0, self._ctx.continue_as_task(self._wait_idle))

    async def _wait_idle(self) -> None:
        """Stop starting writes and store the journal, because another process continues the run."""
        self._may_write.clear()
        await self._save_journal()

    # Requests of the script

    def _on_requests(self, message: Raw) -> None:
        """Start the requests of a batch. Raises ValueError for a message that a genuine script does not send."""
        batch = _batch.decode(message)
        for item in batch:
            if item.n != self._last + 1 or (item.tool is None) == (item.seconds is None):
                raise ValueError("invalid request number or kind")
            self._last = item.n
        fresh = [item for item in batch if not self._is_recorded(item)]
        self._replay.replay(self._last)
        self._replay.pause()
        writes = []
        for item in fresh:
            if item.seconds is not None:
                self._wait(item, item.seconds)
            elif (tool := self._admit(item)) is not None:
                # An entry without outcome was recorded as a write, even if the tool is read-only now.
                if tool.is_read_only and item.n not in self._journal.entries:
                    self._start(item, tool)
                else:
                    writes.append((item, tool))
        if writes:
            # The negative number cannot collide with that of a call.
            self._work(-writes[0][0].n, self._perform_writes(writes))
        if _EAGER_START:
            self._replay.resume()
        else:
            # In the same iteration of the event loop as the tasks just created, and after them.
            self._loop.call_soon(self._replay.resume)

    def _admit(self, item: ScriptRequest) -> ScriptTool | None:
        """Return the requested tool. Unknown tools, and calls beyond a limit, are answered with an error."""
        self.calls += 1
        limit = self._limits.max_calls
        if self.calls > CALL_LIMIT_KILL_FACTOR * limit:
            self._worker.kill(f"it made more than {CALL_LIMIT_KILL_FACTOR * limit} calls")
        elif self.calls > limit:
            self._replay.finish(
                item, results.error_outcome(f"A run may make at most {limit} calls.", "ApiLimitExceeded")
            )
        elif self._journal.size > MAX_JOURNAL_BYTES:
            self._replay.finish(
                item,
                results.error_outcome(
                    f"The results of this run exceed {MAX_JOURNAL_BYTES:,} bytes.", "ApiLimitExceeded"
                ),
            )
        elif (tool := self._tools.table.by_name.get(item.tool or "")) is None:
            self._replay.finish(item, _unknown_tool_error(item))
        else:
            try:
                check_arguments(item.arguments)
            except ValueError as problem:
                self._replay.finish(item, results.error_outcome(f"{tool.name}: {problem}", "ValidationError"))
                return None
            self.used.add(tool.name)
            return tool
        return None

    def _wait(self, item: ScriptRequest, seconds: float) -> None:
        self._waits += 1
        if self._waits > MAX_SLEEPS:
            self._worker.kill("it sleeps too often")
            return

        def on_elapsed() -> None:
            self._timers.discard(timer)
            self._replay.finish(item, "{}")

        timer = self._loop.call_later(max(seconds, 0.0), on_elapsed)
        self._timers.add(timer)

    # Replay

    def _is_recorded(self, item: ScriptRequest) -> bool:
        entry = self._journal.entries.get(item.n)
        if entry is None:
            return False
        # A deterministic script repeats the same requests. If it does not, recorded outcomes would answer the wrong
        # calls.
        if (entry.tool, entry.digest) != (item.tool or "", item.digest):
            self._worker.kill(
                "it did not repeat the recorded calls when it was resumed, so it cannot continue; "
                f"{_completed_calls(self._journal.sequences)}"
            )
        if item.tool is not None and entry.place is not None:
            self.calls += 1
            self.used.add(item.tool)
        return entry.place is not None

    # Execution

    def _work(self, n: int, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine concurrently.

        The coroutine removes itself from `_working`: a done callback would cost one more iteration of the event loop
        per call.
        """
        # Messages of the sandbox arrive in the context in which the reader was started, which belongs to another
        # request.
        task = asyncio.Task(work, loop=self._loop, context=self._context.copy(), **_EAGER_START)
        if not task.done():
            self._working[n] = task

    def _start(self, item: ScriptRequest, tool: ScriptTool) -> None:
        self._work(item.n, self._perform(item, tool))

    async def _perform_writes(self, writes: list[tuple[ScriptRequest, ScriptTool]]) -> None:
        """Make writes that were requested concurrently: the user consents to all of them or to none."""
        pending: list[tuple[ScriptRequest, ScriptTool]] = []
        for item, tool in writes:
            if self._journal.task_of(item.n) is not None:
                self._start(item, tool)
            # The write was begun by a killed process. Only an idempotent one can be repeated safely.
            elif item.n in self._journal.entries and not tool.is_retryable:
                self.unknown.append(tool.name)
                self._replay.finish(item, results.error_outcome(_outcome_unknown_error(tool), "OutcomeUnknown"))
            elif (now := await self._current_tool(item, tool)) is not None:
                pending.append((item, now))
        try:
            refused = await self._consent.require(self._tools.table, pending, self._elicitation)
        except ToolError as refusal:
            refused = {item.n: refusal for item, _ in pending}
        finally:
            self._working.pop(-writes[0][0].n, None)
        for item, tool in pending:
            if item.n in refused:
                self._replay.finish(item, results.outcome_from_exception(tool, refused[item.n]))
            else:
                self._start(item, tool)

    @asynccontextmanager
    async def _elicitation(self, n: int | None = None) -> AsyncIterator[None]:
        """Prepare for an elicitation, which may suspend this run.

        The deadline is paused, no write is in progress, and everything done is stored. `n` is the write that asks; it
        has not been made yet.
        """
        with self._pause_deadline():
            self._request_count += 1
            self._may_write.clear()
            try:
                if n is not None:
                    self._writes.discard(n)
                    self._journal.discard(n)
                await self._save_journal()
                yield
            finally:
                self._request_count -= 1
                if not self._request_count:
                    self._may_write.set()
        if n is not None:
            await self._begin_write(n)

    async def _save_journal(self) -> None:
        await self._settle_writes()
        await self._journal.save()

    async def _begin_write(self, n: int) -> None:
        """Record that a write is about to be made. On return the record is stored."""
        await self._may_write.wait()
        self._writes.add(n)
        try:
            await self._journal.begin(n, *self._pending_calls[n])
        except ToolError:
            self._writes.discard(n)
            raise

    async def _perform(self, item: ScriptRequest, tool: ScriptTool) -> None:
        try:
            async with self._slots:
                if not tool.is_read_only or self._journal.task_of(item.n) is not None:
                    return await self._call_tool(item, tool)
                now = await self._current_tool(item, tool)
                if now is None:
                    return None
                if now.is_read_only:
                    return await self._call_tool(item, now)
        finally:
            self._working.pop(item.n, None)
        # The tool was read-only when the run began and no longer is.
        self._work(-item.n, self._perform_writes([(item, now)]))

    async def _current_tool(self, item: ScriptRequest, tool: ScriptTool) -> ScriptTool | None:
        """Return the current version of a tool, or None if it cannot be called; the script then receives the error."""
        try:
            now = await self._tools.get_current(tool)
        except Exception as failure:
            outcome = results.outcome_from_exception(tool, failure)
        else:
            if now is not None:
                return now
            outcome = _unknown_tool_error(item)
        self._replay.finish(item, outcome)
        return None

    async def _call_tool(self, item: ScriptRequest, tool: ScriptTool) -> None:
        task = self._journal.task_of(item.n)
        if task is None and not tool.is_read_only:
            self._pending_calls[item.n] = (tool.name, item.digest)
            try:
                await self._begin_write(item.n)
            except ToolError as refusal:
                self._replay.finish(item, results.outcome_from_exception(tool, refusal))
                return
        try:
            result = await (self._result(item, tool) if task is None else self._task_result(item, tool, task))
            outcome = results.outcome_from_result(tool, result)
        except Exception as failure:
            outcome = results.outcome_from_exception(tool, failure)
        self._replay.finish(item, outcome, wrote=not tool.is_read_only)

    async def _result(self, item: ScriptRequest, tool: ScriptTool) -> Any:
        """Return the result of a call. Input requests of an upstream are forwarded to the client."""
        params: dict[str, Any] = {"name": tool.name, "arguments": item.arguments}
        settle = self._elicitation if tool.is_read_only else partial(self._elicitation, item.n)
        for _ in range(MAX_INPUT_ROUNDS):
            result = await self._request(item, tool, params, settle)
            requests = results.input_requests_in(result)
            if requests is None:
                task = task_id_in(result)
                return result if task is None else await self._record_task(item, tool, task)
            responses = await self._ctx.answer_input_requests(requests, key=f"call-{item.n}", settle=settle)
            params = {**params, **responses}
        raise ToolError(f"{tool.name} requested input more than {MAX_INPUT_ROUNDS} times.")

    async def _request(
        self, item: ScriptRequest, tool: ScriptTool, params: dict[str, Any], settle: ElicitationResolver
    ) -> Any:
        request = self._ctx.request
        key = f"call-{item.n}"
        if not tool.needs_task:
            try:
                return await request("tools/call", params, key=key, settle=settle, handler=self._handler)
            except (MethodNotFound, MissingClientCapability, TaskRequired) as refusal:
                if not _requires_task(refusal):
                    raise
        # The rejected call had no effect. The tool runs only as a task, which tool lists of 2026-07-28 do not state.
        result = await self._tasks.create(request("tools/call", params, key=key, handler=self._handler, tasks=True))
        tool.needs_task = True
        return result

    async def _record_task(self, item: ScriptRequest, tool: ScriptTool, id: str) -> Any:
        """Record the task of a call and wait for its result. A resumed run continues with the same task."""
        try:
            await self._journal.begin_task(item.n, tool.name, item.digest, id)
        except BaseException:
            # Without a record, a resumed run would create the task again.
            await self._tasks.end(id)
            raise
        self._writes.discard(item.n)
        return await self._task_result(item, tool, id)

    async def _task_result(self, item: ScriptRequest, tool: ScriptTool, id: str) -> Any:
        try:
            return await self._tasks.wait_for_result(item.n, tool, id, self._elicitation)
        except ToolError as refusal:
            if refusal.error_type == "OutcomeUnknown" and not tool.is_read_only:
                self.unknown.append(tool.name)
            raise

    async def _settle_writes(self) -> None:
        """Wait until no write is in progress and the outcome of every write is stored."""
        while self._writes or self._replay.storing is not None:
            working = [self._working[n] for n in self._writes if n in self._working]
            if self._replay.storing is not None:
                working.append(self._replay.storing)
            if not working:
                return
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)

    async def _stop(self) -> None:
        """Cancel everything that is still running."""
        for timer in self._timers:
            timer.cancel()
        storing = self._replay.storing
        working = [*self._working.values(), *([storing] if storing is not None else [])]
        for task in self._working.values():
            task.cancel()
        if working:
            await asyncio.wait(working)
        if not self._cut_off:
            await self.end_tasks()

    async def end_tasks(self) -> None:
        """Cancel the tasks of a run that will not be continued."""
        await self._tasks.cancel()


def _outcome_of_ended_worker(reply: WorkerReply, reason: str) -> RunOutcome:
    return RunOutcome(ended=reason, output=reply.output, dropped=reply.dropped)


def _unknown_tool_error(item: ScriptRequest) -> str:
    return results.error_outcome(f"Unknown tool: {str(item.tool)[:100]}", "ResourceNotFound")


def _outcome_unknown_error(tool: ScriptTool) -> str:
    return (
        f"{tool.name} was being called when the server stopped, and its outcome is unknown. "
        "It is not called again: check its effect first."
    )


def _requires_task(refusal: Exception) -> bool:
    """Return whether the call was rejected because the tool requires a task.

    Under 2025-11-25 such a call fails with "Method not found".
    """
    return not isinstance(refusal, MissingClientCapability) or TASKS_EXTENSION in refusal.required_extensions


def _completed_calls(entries: list[JournalEntry]) -> str:
    tools = [entry.tool for entry in entries if entry.tool]
    return f"it had made {len(tools)} calls" + (f", the last of {tools[-1]}" if tools else "")
