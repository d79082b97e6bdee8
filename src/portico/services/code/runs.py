"""One run of a script, seen from the server: what the script asks for is done here, and written down.

The script says what it wants and is believed nothing else. Each of its calls is a Call of the same principal through
the same Handlers as if the client had made it; what it may not do is refused there, and told to the script.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from portico import Context, ToolError
from portico.extend import Handler
from portico.services.code import answers
from portico.services.code.consent import Consent
from portico.services.code.journal import Journal, JournalEntry
from portico.services.code.table import ScriptTool, ToolTable
from portico.services.live.limits import LONGEST_REPLY, MIB
from portico.services.live.workers import PythonWorker, WorkerEnded, WorkerReply

log = logging.getLogger("portico")

# The worker's own clock: ours is the one that counts, because it stands still while a person is asked.
A_DAY = 24 * 3600.0
# Of all results of one run.
LONGEST_JOURNAL = 32 * MIB
# Beyond its ceiling every call is refused; beyond so many times that, the script is ended.
PATIENCE = 2
MOST_WAITS = 5_000
# How often a call may be answered with a question.
MOST_ROUNDS = 10
NOTHING = Raw(b"")


class Ceilings(Struct, frozen=True):
    """How much one run may do."""

    calls: int
    at_once: int
    seconds: float
    output: int


class ScriptCall(Struct):
    """Something that the script wants: a tool called, or time to pass."""

    n: int
    tool: str | None = None
    arguments: Raw = Raw(b"{}")
    seconds: float | None = None


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
        table: ToolTable,
        journal: Journal,
        ceilings: Ceilings,
        consent: Consent,
        handler: Handler | None,
    ) -> None:
        self._ctx, self._worker, self._table, self._journal = ctx, worker, table, journal
        self._ceilings, self._consent, self._handler = ceilings, consent, handler
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(ceilings.at_once)
        self._deadline: asyncio.Timeout = asyncio.timeout(None)
        self._last = self.calls = self._waits = self._replayed = self._asking = 0
        self._left: float | None = None
        self._over = False
        # What is being done: by number, and of these the writes.
        self._working: dict[int, asyncio.Task[None]] = {}
        self._writes: set[int] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        # What the script is to learn of, in this order, and who stores it first where that matters.
        self._outbox: deque[tuple[ScriptCall, str, bool]] = deque()
        self._storing: asyncio.Task[None] | None = None
        # Writes that were begun by a process that was killed, and of which it is not known what became.
        self.unknown: list[str] = []
        self.used: set[str] = set()

    async def run(self, code: str, data: Any) -> RunEnd:
        asked = {
            "code": code,
            "tools": self._table.encoded,
            "data": data,
            "seed": self._journal.seed,
            "at": self._journal.begun_at,
        }
        try:
            async with self._deadline:
                self._set_deadline(self._ceilings.seconds)
                reply = await self._worker.ask("run_script", asked, A_DAY, self._hear)
                await self._settle_writes()
                self._over = True
        except TimeoutError:
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
        """While a person thinks, the run has time."""
        when = self._deadline.when()
        if when is not None:
            self._left = when - self._loop.time()
        self._asking += 1
        self._set_deadline(None)
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking and self._left is not None:
                self._set_deadline(max(self._left, 0.1))

    # What the script says

    def _hear(self, said: Raw) -> None:
        """Raises ValueError for what no script of ours would say."""
        batch = _batch.decode(said)
        for one in batch:
            if one.n != self._last + 1 or (one.tool is None) == (one.seconds is None):
                raise ValueError("not the next")
            self._last = one.n
        fresh = [one for one in batch if not self._is_recorded(one)]
        self._replay()
        writes = []
        for one in fresh:
            if one.seconds is not None:
                self._wait(one, one.seconds)
            elif (tool := self._admitted(one)) is not None:
                if tool.reads:
                    self._start(one, tool)
                else:
                    writes.append((one, tool))
        if writes:
            self._work(writes[0][0].n, self._make_writes(writes))

    def _admitted(self, one: ScriptCall) -> ScriptTool | None:
        """The tool that is meant. Others, and those beyond a ceiling, are refused."""
        self.calls += 1
        ceiling = self._ceilings.calls
        if self.calls > PATIENCE * ceiling:
            self._worker.kill(f"it made more than {PATIENCE * ceiling} calls")
        elif self.calls > ceiling:
            self._finish(one, answers.error(f"A run makes at most {ceiling} calls.", "LimitExceeded"))
        elif self._journal.size > LONGEST_JOURNAL:
            self._finish(one, answers.error("The results of this run have become too many bytes.", "LimitExceeded"))
        elif (tool := self._table.by_name.get(one.tool or "")) is None:
            self._finish(one, answers.error(f"Unknown tool: {str(one.tool)[:100]}", "ResourceNotFound"))
        else:
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
            self._finish(one, "{}")

        timer = self._loop.call_later(max(seconds, 0.0), passed)
        self._timers.add(timer)

    # What was done before

    def _is_recorded(self, one: ScriptCall) -> bool:
        entry = self._journal.entries.get(one.n)
        if entry is None:
            return False
        if (entry.tool, entry.digest) != (one.tool or "", _digest(one)):
            self._worker.kill(
                "when it was run again it did something else than before, so it cannot go on; "
                f"{_done(self._journal.places)}"
            )
        if one.tool is not None and entry.place is not None:
            self.calls += 1
            self.used.add(one.tool)
        return entry.place is not None

    def _replay(self) -> None:
        """What the script had learnt, in the same order."""
        places = self._journal.places
        told: list[str] = []
        while self._replayed < len(places) and places[self._replayed].n <= self._last:
            entry = places[self._replayed]
            told.append(_answer(entry.n, entry.at, entry.outcome))
            self._replayed += 1
        if told:
            self._tell(told)
            self._pump()

    # What is done now

    def _work(self, n: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working[n] = task
        task.add_done_callback(lambda _: self._working.pop(n, None))

    def _start(self, one: ScriptCall, tool: ScriptTool) -> None:
        self._work(one.n, self._perform(one, tool))

    async def _make_writes(self, writes: list[tuple[ScriptCall, ScriptTool]]) -> None:
        """Writes that were asked for side by side: a person agrees to all of them, or to none."""
        known: list[tuple[ScriptCall, ScriptTool]] = []
        for one, tool in writes:
            if one.n in self._journal.entries and not tool.may_be_repeated:
                self.unknown.append(tool.name)
                self._finish(one, answers.error(_unknown(tool), "OutcomeUnknown"))
            else:
                known.append((one, tool))
        try:
            refused = await self._consent.agree(self._table, known, self._before_question)
        except ToolError as refusal:
            refused = {one.n: refusal for one, _ in known}
        for one, tool in known:
            if one.n in refused:
                self._finish(one, answers.outcome_of_failure(tool, refused[one.n]))
            else:
                self._start(one, tool)

    @contextmanager
    def _before_question(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Around a question to a person: time stands still, and nothing is in the middle of being done."""
        with self._untimed():
            yield self._settle

    async def _settle(self) -> None:
        await self._settle_writes()
        await self._journal.save()

    async def _perform(self, one: ScriptCall, tool: ScriptTool) -> None:
        async with self._slots:
            if not tool.reads:
                try:
                    await self._journal.begin(one.n, tool.name, _digest(one))
                except ToolError as refusal:
                    self._finish(one, answers.outcome_of_failure(tool, refusal))
                    return
                self._writes.add(one.n)
            try:
                outcome = answers.outcome_of(tool, await self._result(one, tool))
            except Exception as failure:
                outcome = answers.outcome_of_failure(tool, failure)
            self._finish(one, outcome, wrote=not tool.reads)

    async def _result(self, one: ScriptCall, tool: ScriptTool) -> Any:
        """The result of a call. What an upstream asks in the middle is passed on."""
        params: dict[str, Any] = {"name": tool.name, "arguments": one.arguments}
        settle = self._settle if tool.reads else self._settling(one.n)
        for _ in range(MOST_ROUNDS):
            result = await self._ctx.request(
                "tools/call", params, key=f"call-{one.n}", settle=settle, handler=self._handler
            )
            asked = answers.questions_in(result)
            if asked is None:
                return result
            with self._untimed():
                given = await self._ctx.answer_questions(asked, key=f"call-{one.n}", settle=settle)
            params = {**params, **given}
        raise ToolError(f"{tool.name} asks without end.")

    def _settling(self, n: int) -> Callable[[], Awaitable[None]]:
        """Before a call that is to be made again stops the run: it has not been made, and the others are finished."""

        async def settle() -> None:
            self._writes.discard(n)
            self._journal.take_back(n)
            await self._settle()

        return settle

    async def _settle_writes(self) -> None:
        """Until no write is in the middle, and each that was made is stored."""
        while self._writes or self._storing is not None:
            working = [self._working[n] for n in self._writes if n in self._working]
            if self._storing is not None:
                working.append(self._storing)
            if not working:
                return
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)

    # What the script learns

    def _finish(self, one: ScriptCall, outcome: str, *, wrote: bool = False) -> None:
        self._outbox.append((one, outcome, wrote))
        self._pump()

    def _pump(self) -> None:
        """Tell the script what is new. Nothing of it before all that it had learnt in earlier runs, and of a write
        nothing before it is stored."""
        if self._storing is not None or self._replayed < len(self._journal.places):
            return
        if any(wrote for _, _, wrote in self._outbox):
            self._storing = self._loop.create_task(self._store())
        elif self._outbox:
            self._tell_all()

    async def _store(self) -> None:
        wrote = [one.n for one, _, wrote in self._outbox if wrote]
        told = self._recorded()
        try:
            await self._journal.save()
        except ToolError as failure:
            log.error("a script has written something, and its journal cannot be: %s", failure.__cause__ or failure)
        self._writes.difference_update(wrote)
        self._storing = None
        self._tell(told)
        self._pump()

    def _tell_all(self) -> None:
        self._tell(self._recorded())

    def _recorded(self) -> list[str]:
        """All that waits to be told, put into the journal."""
        told: list[str] = []
        now = time.time()
        while self._outbox:
            one, outcome, _ = self._outbox.popleft()
            self._journal.record(one.n, one.tool or "", _digest(one), now, outcome)
            told.append(_answer(one.n, now, outcome))
        return told

    def _tell(self, told: list[str]) -> None:
        self._worker.tell(f'{{"answers":[{",".join(told)}]}}'.encode())

    async def _stop(self) -> None:
        """Nothing goes on after the end."""
        for timer in self._timers:
            timer.cancel()
        working = [*self._working.values(), *([self._storing] if self._storing is not None else [])]
        for task in self._working.values():
            task.cancel()
        if working:
            await asyncio.wait(working)


def _ended(reply: WorkerReply, reason: str) -> RunEnd:
    return RunEnd(ended=reason, output=reply.output, dropped=reply.dropped)


def _answer(n: int, at: float, outcome: str) -> str:
    inside = outcome[1:-1]
    return f'{{"n":{n},"at":{at!r}{"," if inside else ""}{inside}}}'


def _digest(one: ScriptCall) -> str:
    """A script that is run again writes its arguments in the same way."""
    return "" if one.tool is None else sha256(one.arguments).hexdigest()


def _unknown(tool: ScriptTool) -> str:
    return (
        f"{tool.name} was about to be called when the server was stopped, and it is not known whether it was done. "
        "It is not called again: look first."
    )


def _done(entries: list[JournalEntry]) -> str:
    tools = [one.tool for one in entries if one.tool]
    return f"it had made {len(tools)} calls" + (f", the last of {tools[-1]}" if tools else "")
