"""A job that this process runs: its lease, its slot, and the body of its tool.

What the body asks waits in the store, and what it has done is remembered there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from portico.auth.principal import Principal
from portico.protocol import notifications
from portico.protocol.content import TextContent
from portico.protocol.errors import ProtocolError, Refused, ToolError
from portico.protocol.jsonrpc import ErrorBody, encode
from portico.protocol.meta import ClientCapabilities, Implementation
from portico.protocol.methods import METHODS
from portico.protocol.tools import CallToolParams, CallToolResult
from portico.protocol.versions import MODERN, Revision
from portico.rpc.call import Call, Facet, Listening
from portico.rpc.client_requests import require
from portico.rpc.dispatcher import refusal, unforeseen
from portico.server.components.runtime import Runtime
from portico.server.components.tools import Tool
from portico.server.context.input_rounds import BodyReply, ReplayKeys, typed
from portico.server.tasks import leases
from portico.server.tasks.jobs import Job, Outcome, now
from portico.server.tasks.leases import Lease
from portico.store.database import Database
from portico.store.errors import Conflict, ConnectionLost, DiskFailed, Locked, StoreError

log = logging.getLogger("portico")

T = TypeVar("T")

# Failures of the store after which the same write may succeed. The others stay, however often it is tried.
TRANSIENT: tuple[type[StoreError], ...] = (DiskFailed, Locked, Conflict, ConnectionLost)
RETRY_SECONDS = 1.0
# Clients poll for progress, so it is not written more often than one would.
REPORT_SECONDS = 0.25
LONGEST_MESSAGE = 500


class LeaseLost(BaseException):
    """The job was cancelled, or given to another worker because this one seemed dead. Its body ends here."""


class Slots:
    """How many bodies may run at once. A body that comes back from waiting goes before jobs that have not begun."""

    def __init__(self, size: int, freed: Callable[[], None]) -> None:
        self.free = size
        self._freed = freed
        self._returning: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> None:
        self.free -= 1

    def release(self) -> None:
        while self._returning:
            waiter = self._returning.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1
        self._freed()

    async def reacquire(self) -> None:
        if self.free > 0:
            self.free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # it was given to us in the same moment
            raise


class Worker(Protocol):
    """What a running job needs of its engine."""

    database: Database
    worker: str
    slots: Slots
    # Until when this worker has said that it lives.
    alive_until: int


class RunningJob:
    """One run of a job in this process. It has a slot except while its body waits for an answer."""

    def __init__(self, engine: Worker, job: Job, steps: dict[str, Raw], *, limited: bool) -> None:
        self.engine = engine
        self.job = job
        self.lease = Lease(job.id, engine.worker, job.runs, limited)
        # The steps that earlier runs have finished, and this one.
        self.steps = steps
        self.task: asyncio.Task[None] | None = None
        self.call: Call | None = None
        self.lost = False
        self.waiting = 0
        self.has_slot = True
        self._news = asyncio.Event()
        self._returning = asyncio.Lock()

    async def write(self, fn: Callable[..., T | None], *arguments: Any) -> T:
        """Write under the lease, trying again while the store is away. Raises LeaseLost if the lease is not ours.

        Trying again does nothing twice: what is written is the same, and only the holder of the lease can.
        """
        level = logging.WARNING
        while True:
            try:
                return await self.try_to_write(fn, *arguments)
            except TRANSIENT as failure:
                log.log(level, "the task %s waits for the store: %s", self.job.id, failure)
            level = logging.DEBUG  # one warning is enough
            await asyncio.sleep(RETRY_SECONDS)

    async def try_to_write(self, fn: Callable[..., T | None], *arguments: Any) -> T:
        done = await self.engine.database.write(lambda tx: fn(tx, self.lease, *arguments), isolation="read committed")
        if done is None or done is False:
            raise LeaseLost
        return done

    async def answer(self, key: str, question: dict[str, Any]) -> Raw:
        """The answer to a question, however long it takes."""
        if key in self.job.answers:
            return self.job.answers[key]
        self.update(await self.write(leases.ask, {key: question}, now()))
        if key not in self.job.answers:
            async with self.idle():
                while key not in self.job.answers:
                    self._news.clear()
                    await self._news.wait()
        return self.job.answers[key]

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[None]:
        """While its body waits, the slot is free for another job."""
        self.waiting += 1
        self.release_slot()
        try:
            yield
        finally:
            self.waiting -= 1
        await self._reacquire_slot()

    def update(self, job: Job) -> None:
        """Take over the row. Of two that were read at about the same time, the one with more answers is the newer."""
        if len(job.answers) >= len(self.job.answers):
            self.job = job
        self._news.set()

    def release_slot(self) -> None:
        if self.has_slot:
            self.has_slot = False
            self.engine.slots.release()

    async def _reacquire_slot(self) -> None:
        # Of questions that are asked side by side, the first answer brings the body back.
        async with self._returning:
            if not self.has_slot:
                await self.engine.slots.reacquire()
                self.has_slot = True

    async def ensure_lease(self) -> None:
        """Before a side effect: ask the store whether the lease is still ours, if it may have run out."""
        if now() >= max(self.engine.alive_until, self.job.lease or 0):
            await self.write(leases.locked_row)

    async def finish_step(self, name: str, value: Raw) -> None:
        await self.write(leases.step, name, value)
        self.steps[name] = value


# Running the body


class Caller(Struct, omit_defaults=True):
    """The client that asked for the task, as far as a body may want to know it, also after a restart."""

    principal: Principal | None = None
    # Where it came from: who is no principal and has one is a stranger, and not the user of this machine.
    address: str | None = None
    capabilities: ClientCapabilities = ClientCapabilities()
    client: Implementation | None = None
    # The result is what the call would have been answered with in this revision.
    revision: Revision = MODERN
    # The part of the server that it was asked through, by its name; empty: the whole.
    facet: str = ""


class _GoneFacet:
    """In place of a part that is no longer there: it has nothing."""

    def shows(self, owner: str, name: str) -> bool:
        return False


_GONE = _GoneFacet()


class RefusedAnswer(Struct):
    """Stored in the place of an answer: the client refused to give one."""

    reason: str = field(name="portico/refused")


async def run(
    running: RunningJob,
    tool: Tool | None,
    runtime: Runtime,
    check: Callable[[Call, Tool], None] | None = None,
    watch: Callable[[Call, Tool, Awaitable[Any]], Awaitable[Any]] | None = None,
    facets: Mapping[str, Facet] = MappingProxyType({}),
) -> Outcome:
    """Run the body of a job from its beginning; finished steps are not done again. `check` raises what a call is
    refused with that may not be made any more; `watch` awaits the rest, and takes note of it. `facets` are the parts of
    the server: a body sees no more of it than the client that asked."""
    if tool is None:
        raise LeaseLost  # removed since the job was claimed; another process may have the tool
    job = running.job
    caller = msgspec.json.decode(job.caller, type=Caller)
    reporter = Reporter(running)
    rounds, reply = JobRounds(running), Listening(reporter.emit)
    call = Call(
        method="tools/call",
        id=job.id,
        revision=caller.revision,
        capabilities=caller.capabilities,
        client=caller.client,
        principal=caller.principal,
        address=caller.address,
        facet=facets.get(caller.facet, _GONE) if caller.facet else None,
        progress_token=job.id,
        reply=BodyReply(reply, rounds=rounds),
    )
    rounds.call = running.call = call
    try:
        if check is not None:
            check(call, tool)
        work: Awaitable[Any] = tool.call(call, CallToolParams(job.tool, job.arguments), runtime)
        return _completed(await (work if watch is None else watch(call, tool, work)))
    except BaseException as failure:
        return _failed(failure, job.tool, caller.revision)
    finally:
        reply.close()
        await reporter.end()


def _completed(result: Any) -> Outcome:
    refused = isinstance(result, CallToolResult) and result.is_error is True
    message = next((one.text for one in result.content if isinstance(one, TextContent)), None) if refused else None
    return Outcome("completed", Raw(encode(result)), message and message[:LONGEST_MESSAGE], refused)


def _failed(failure: BaseException, tool: str, revision: Revision) -> Outcome:
    """The outcome that matches the door's answer to a call that fails like this."""
    if isinstance(failure, LeaseLost | KeyboardInterrupt | GeneratorExit) or _is_being_cancelled(failure):
        raise failure
    if isinstance(failure, BaseExceptionGroup) and failure.subgroup(LeaseLost) is not None:
        raise LeaseLost from failure
    try:
        if isinstance(failure, ProtocolError):
            error = Raw(encode(ErrorBody(failure.code_at(revision), failure.message, failure.data)))
            return Outcome("failed", error, failure.message[:LONGEST_MESSAGE])
    except Exception as worse:  # the author's data cannot be encoded as JSON
        failure = worse
    if isinstance(failure, ToolError):
        return _completed(refusal(failure))
    return msgspec.structs.replace(_completed(unforeseen(failure, f"the task {tool}")), again=True)


def _is_being_cancelled(failure: BaseException) -> bool:
    """Whether the job is cancelled, and not only a body has let some cancellation of its own escape."""
    task = asyncio.current_task()
    return isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class JobRounds:
    """The `Rounds` of a body that runs as a job: its questions wait in the store, and its steps last."""

    call: Call

    def __init__(self, running: RunningJob) -> None:
        self._running = running
        self.keys = ReplayKeys()
        self.replays = bool(running.steps or running.job.answers)

    async def ask(self, method: str, params: Any, key: str | None = None) -> Any:
        params = require(self.call, method, params)
        key = self.keys.question(method.partition("/")[0], key)
        question = {"method": method} if params is None else {"method": method, "params": params}
        answer = await self._running.answer(key, question)
        try:
            refused = msgspec.json.decode(answer, type=RefusedAnswer)
        except msgspec.DecodeError:
            return typed(answer, METHODS[method].result, key)
        raise Refused(f"The client refused {method}: {refused.reason}")

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """The value of a step that is done once: when this returns, it is on the disk."""
        key = self.keys.step(name)
        if key not in self._running.steps:
            await self._running.ensure_lease()
            with self.keys.inside_step(name):
                value = fn()
                if isinstance(value, Awaitable):
                    value = await value
            await self._running.finish_step(key, Raw(encode(value)))
        return msgspec.json.decode(self._running.steps[key])

    async def detach(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Does nothing: the call is a task already."""

    def idle(self) -> AbstractAsyncContextManager[None]:
        return self._running.idle()


class Reporter:
    """Writes progress to the store: the newest, and not too often."""

    def __init__(self, running: RunningJob) -> None:
        self._running = running
        self._newest: notifications.ProgressParams | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def emit(self, method: str, params: Any) -> None:
        # A thread whose task is over may go on to report.
        if isinstance(params, notifications.ProgressParams) and not self._ended:
            self._newest = params
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._report())

    async def _report(self) -> None:
        while self._newest is not None:
            newest, self._newest = self._newest, None
            if not await self._write(newest):
                break
            await asyncio.sleep(REPORT_SECONDS)
        self._task = None

    async def _write(self, newest: notifications.ProgressParams) -> bool:
        """False: the job is another's now."""
        message = newest.message and newest.message[:LONGEST_MESSAGE]
        try:
            await self._running.try_to_write(leases.report, newest.progress, newest.total, message, now())
        except LeaseLost:
            return False
        except StoreError as failure:
            log.warning("progress was not written: %s", failure)
        return True

    async def end(self) -> None:
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._newest is not None:
            # What was said last is what is seen from now on.
            await self._write(self._newest)
