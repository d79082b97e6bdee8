"""Execution of a job in this process: its lease, its slot, and the function of its tool.

Input requests wait in the store, and finished steps are recorded there.
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
from portico.protocol.errors import ClientRequestFailed, ProtocolError, ToolError
from portico.protocol.jsonrpc import ErrorObject, encode
from portico.protocol.meta import ClientCapabilities, Implementation
from portico.protocol.methods import METHODS
from portico.protocol.tools import CallToolParams, CallToolResult
from portico.protocol.versions import FIRST_MODERN_VERSION, ProtocolVersion
from portico.rpc.call import Call, CallbackReply, ServerView
from portico.rpc.client_requests import validate_client_request
from portico.rpc.dispatcher import internal_error_result, tool_error_result
from portico.server.components.runtime import Runtime
from portico.server.components.tools import Tool
from portico.server.context.input_rounds import ComponentReply, ReplayKeys, decode_response
from portico.server.tasks import leases
from portico.server.tasks.jobs import Job, JobOutcome, now_ms
from portico.server.tasks.leases import Lease
from portico.store.database import Database
from portico.store.errors import ConnectionLost, DiskError, LockTimeout, SerializationConflict, StoreError

log = logging.getLogger("portico")

T = TypeVar("T")

# Store failures after which the same write may succeed. Others are permanent.
TRANSIENT_ERRORS: tuple[type[StoreError], ...] = (DiskError, LockTimeout, SerializationConflict, ConnectionLost)
RETRY_SECONDS = 1.0
# Clients poll for progress, so writing it more often would be wasted.
PROGRESS_INTERVAL_SECONDS = 0.25
MAX_MESSAGE_CHARS = 500


class LeaseLost(BaseException):
    """Raised when the job was cancelled, or taken over because this worker seemed dead. Ends the function.

    A BaseException, so that `except Exception` in a tool cannot suppress it.
    """


class JobConcurrencyLimit:
    """Limits concurrently running functions.

    A function that resumes takes precedence over jobs that have not started.
    """

    def __init__(self, size: int, on_free: Callable[[], None]) -> None:
        self.free = size
        self._freed = on_free
        self._returning: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> None:
        self.free -= 1

    def release(self) -> None:
        # Functions that resume come first: they hold the state of a user's answered request, while
        # a queued job holds nothing.
        while self._returning:
            waiter = self._returning.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1
        self._freed()

    async def reacquire(self) -> None:
        """Acquire a slot again after waiting for input."""
        if self.free > 0:
            self.free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # the slot was granted at the moment of cancellation
            raise


class WorkerEngine(Protocol):
    """The part of the engine that a running job uses."""

    database: Database
    worker: str
    concurrency_limit: JobConcurrencyLimit
    # Time until which this worker's leases are renewed.
    alive_until: int


class JobRun:
    """One run of a job in this process. It has a slot except while its function waits for input."""

    def __init__(self, engine: WorkerEngine, job: Job, steps: dict[str, Raw], *, is_limited: bool) -> None:
        self.engine = engine
        self.job = job
        self.lease = Lease(job.id, engine.worker, job.runs, is_limited)
        # Steps finished by this run and earlier ones.
        self.steps = steps
        self.task: asyncio.Task[None] | None = None
        self.call: Call | None = None
        self.lost = False
        self.waiting = 0
        self.has_slot = True
        self._news = asyncio.Event()
        self._returning = asyncio.Lock()

    async def write(self, fn: Callable[..., T | None], *arguments: Any) -> T:
        """Write under the lease, retrying while the store is unavailable. Raises LeaseLost if the lease is not ours.

        Retrying is idempotent: the same values are written, and only the holder of the lease can write.
        """
        level = logging.WARNING
        while True:
            try:
                return await self.try_to_write(fn, *arguments)
            except TRANSIENT_ERRORS as failure:
                log.log(level, "the task %s is waiting for the store: %s", self.job.id, failure)
            level = logging.DEBUG  # one warning is enough
            await asyncio.sleep(RETRY_SECONDS)

    async def try_to_write(self, fn: Callable[..., T | None], *arguments: Any) -> T:
        """Write under the lease once. Raises LeaseLost if the lease is not ours."""
        done = await self.engine.database.write(lambda tx: fn(tx, self.lease, *arguments), isolation="read committed")
        if done is None or done is False:
            raise LeaseLost
        return done

    async def wait_for_response(self, key: str, request: dict[str, Any]) -> Raw:
        """Return the response to an input request, waiting as long as it takes."""
        if key in self.job.answers:
            return self.job.answers[key]
        self.update(await self.write(leases.add_input_requests, {key: request}, now_ms()))
        if key not in self.job.answers:
            async with self.release_slot_while_waiting():
                while key not in self.job.answers:
                    self._news.clear()
                    await self._news.wait()
        return self.job.answers[key]

    @asynccontextmanager
    async def release_slot_while_waiting(self) -> AsyncIterator[None]:
        """Free the slot for another job while the function waits."""
        self.waiting += 1
        self.release_slot()
        try:
            yield
        finally:
            self.waiting -= 1
        await self._reacquire_slot()

    def update(self, job: Job) -> None:
        """Adopt a newly read row. Of two rows read at about the same time, the one with more responses is newer."""
        if len(job.answers) >= len(self.job.answers):
            self.job = job
        self._news.set()

    def release_slot(self) -> None:
        if self.has_slot:
            self.has_slot = False
            self.engine.concurrency_limit.release()

    async def _reacquire_slot(self) -> None:
        # With several pending input requests, the first response resumes the function.
        async with self._returning:
            if not self.has_slot:
                await self.engine.concurrency_limit.reacquire()
                self.has_slot = True

    async def ensure_lease(self) -> None:
        """Check with the store before a side effect that the lease is still ours, if it may have expired."""
        # Usually the heartbeat has renewed the lease and this costs nothing. After a pause of the
        # process, such as a suspended machine, the store decides before the side effect happens.
        if now_ms() >= max(self.engine.alive_until, self.job.lease or 0):
            await self.write(leases.locked_row)

    async def finish_step(self, name: str, value: Raw) -> None:
        """Store the value of a finished step."""
        await self.write(leases.store_leased_step, name, value)
        self.steps[name] = value


# Running the function


class TaskCaller(Struct, omit_defaults=True):
    """The client that created the task, as far as functions can see it, stored for restarts."""

    principal: Principal | None = None
    # Address of the client: with an address but no principal it is anonymous, not the local user.
    address: str | None = None
    client_capabilities: ClientCapabilities = ClientCapabilities()
    client_info: Implementation | None = None
    # Protocol version of the call, which determines the form of the result.
    protocol_version: ProtocolVersion = FIRST_MODERN_VERSION
    # Name of the server view that the call used; empty: the whole server.
    server_view: str = ""


class _GoneFacet:
    """Replacement for a server view that no longer exists: contains nothing."""

    def includes(self, owner: str, name: str) -> bool:
        return False


_GONE = _GoneFacet()


class RefusedInput(Struct):
    """Stored instead of a response when the client rejected an input request."""

    reason: str = field(name="portico/refused")


async def run_job(
    job_run: JobRun,
    tool: Tool | None,
    runtime: Runtime,
    check: Callable[[Call, Tool], None] | None = None,
    audit: Callable[[Call, Tool, Awaitable[Any]], Awaitable[Any]] | None = None,
    server_views: Mapping[str, ServerView] = MappingProxyType({}),
) -> JobOutcome:
    """Run the function of a job from the start; finished steps are not repeated.

    `check` raises if the call is no longer allowed; `audit` awaits the rest and records it. `server_views` are the
    views of the server: a function sees no more of it than its client.
    """
    if tool is None:
        raise LeaseLost  # the tool was removed since the job was claimed; another process may have it
    job = job_run.job
    caller = msgspec.json.decode(job.caller, type=TaskCaller)
    reporter = ProgressReporter(job_run)
    rounds, reply = JobInputRounds(job_run), CallbackReply(reporter.emit)
    call = Call(
        method="tools/call",
        id=job.id,
        protocol_version=caller.protocol_version,
        capabilities=caller.client_capabilities,
        client=caller.client_info,
        principal=caller.principal,
        address=caller.address,
        # A view that was removed since must not widen to the whole server.
        facet=server_views.get(caller.server_view, _GONE) if caller.server_view else None,
        progress_token=job.id,
        reply=ComponentReply(reply, rounds=rounds),
    )
    rounds.call = job_run.call = call
    try:
        if check is not None:
            check(call, tool)
        work: Awaitable[Any] = tool.call(call, CallToolParams(job.tool, job.arguments), runtime)
        return _outcome_of_result(await (work if audit is None else audit(call, tool, work)))
    except BaseException as failure:
        return _outcome_of_failure(failure, job.tool, caller.protocol_version)
    finally:
        reply.close()
        await reporter.end()


def _outcome_of_result(result: Any) -> JobOutcome:
    refused = isinstance(result, CallToolResult) and result.is_error is True
    message = next((item.text for item in result.content if isinstance(item, TextContent)), None) if refused else None
    return JobOutcome("completed", Raw(encode(result)), message and message[:MAX_MESSAGE_CHARS], refused)


def _outcome_of_failure(failure: BaseException, tool: str, revision: ProtocolVersion) -> JobOutcome:
    """Return the outcome that matches the response to a call that fails like this."""
    if isinstance(failure, LeaseLost | KeyboardInterrupt | GeneratorExit) or _is_being_cancelled(failure):
        raise failure
    # A TaskGroup in the function wraps it in a group.
    if isinstance(failure, BaseExceptionGroup) and failure.subgroup(LeaseLost) is not None:
        raise LeaseLost from failure
    try:
        if isinstance(failure, ProtocolError):
            error = Raw(encode(ErrorObject(failure.code_for(revision), failure.message, failure.data)))
            return JobOutcome("failed", error, failure.message[:MAX_MESSAGE_CHARS])
    except Exception as worse:  # the error's data cannot be encoded as JSON
        failure = worse
    # Intended by the author, so it is not retried.
    if isinstance(failure, ToolError):
        return _outcome_of_result(tool_error_result(failure))
    return msgspec.structs.replace(
        _outcome_of_result(internal_error_result(failure, f"the task {tool}")), is_retryable=True
    )


def _is_being_cancelled(failure: BaseException) -> bool:
    """Return whether the job is being cancelled, rather than the function leaking one that it caused itself."""
    task = asyncio.current_task()
    return isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class JobInputRounds:
    """Input rounds of a function that runs as a job: input requests wait in the store, and steps are durable."""

    call: Call

    def __init__(self, job_run: JobRun) -> None:
        self._running = job_run
        self.keys = ReplayKeys()
        self.is_replay = bool(job_run.steps or job_run.job.answers)

    async def request_input(self, method: str, params: Any, key: str | None = None) -> Any:
        params = validate_client_request(self.call, method, params)
        key = self.keys.request_key(method.partition("/")[0], key)
        question = {"method": method} if params is None else {"method": method, "params": params}
        answer = await self._running.wait_for_response(key, question)
        try:
            # Stored instead of a response, because the client may reject a request in one process
            # while the function waits in another.
            refused = msgspec.json.decode(answer, type=RefusedInput)
        except msgspec.DecodeError:
            return decode_response(answer, METHODS[method].result, key)
        raise ClientRequestFailed(f"The client rejected {method}: {refused.reason}")

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """Return the value of a step that runs once. It is durable when this returns."""
        key = self.keys.step(name)
        if key not in self._running.steps:
            # Two workers must not both run a step. The check and the write of the result leave a
            # gap that only an idempotent side effect can close.
            await self._running.ensure_lease()
            with self.keys.inside_step(name):
                value = fn()
                if isinstance(value, Awaitable):
                    value = await value
            await self._running.finish_step(key, Raw(encode(value)))
        return msgspec.json.decode(self._running.steps[key])

    async def continue_as_task(self, settle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Do nothing: the call is a task already."""

    def release_slot(self) -> AbstractAsyncContextManager[None]:
        return self._running.release_slot_while_waiting()


class ProgressReporter:
    """Writes the latest progress to the store, at a limited rate."""

    def __init__(self, job_run: JobRun) -> None:
        self._running = job_run
        self._newest: notifications.ProgressParams | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_finished = False

    def emit(self, method: str, params: Any) -> None:
        # A thread may still report after its task has ended.
        if isinstance(params, notifications.ProgressParams) and not self._is_finished:
            self._newest = params
            # One writer at a time. Values in between are dropped: only the latest progress matters.
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._report())

    async def _report(self) -> None:
        while self._newest is not None:
            newest, self._newest = self._newest, None
            if not await self._write(newest):
                break
            await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
        self._task = None

    async def _write(self, newest: notifications.ProgressParams) -> bool:
        """Write progress, and return False if the lease is lost."""
        message = newest.message and newest.message[:MAX_MESSAGE_CHARS]
        try:
            await self._running.try_to_write(leases.store_progress, newest.progress, newest.total, message, now_ms())
        except LeaseLost:
            return False
        except StoreError as failure:
            log.warning("failed to store progress: %s", failure)
        return True

    async def end(self) -> None:
        self._is_finished = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._newest is not None:
            # The last progress stays visible from now on, so it must be written.
            await self._write(self._newest)
