"""Batches of tool calls, and background calls that are started now and polled later.

Background calls are held in memory and end with the server. Work that must survive a restart is a task.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct, field

from portico import ToolError
from portico_services.contracts import outcomes
from portico_services.contracts.outcomes import Outcome

# Each running call may hold a connection to an upstream and a result of up to MAX_RESULT_BYTES.
MAX_RUNNING_CALLS = 32
# Per principal, if clients authenticate: a single principal cannot use all slots.
MAX_RUNNING_PER_PRINCIPAL = 8
# Finished calls that are never fetched are evicted by count as well as by age.
MAX_RETAINED_CALLS = 500
# A tool that logs in a loop must not grow the memory of the server.
MAX_LOG_LINES = 200
MAX_LOG_LINE_CHARS = 2000
MAX_RESULT_BYTES = 4 * 1024 * 1024

CallStatus = Literal["working", "completed", "failed", "cancelled"]
CallBody = Callable[["BackgroundCall"], Awaitable[Outcome]]


class CallLogLine(Struct, frozen=True):
    """Log message of a running call."""

    number: Annotated[int, "Sequence number; pass the last one you have seen as `since`"]
    level: Annotated[str, "Severity"]
    text: Annotated[str, "Message"]


class BackgroundCall(Struct, eq=False):
    id: str
    tool: str
    owner: str
    started: float
    status: CallStatus = "working"
    ended: float | None = None
    progress: float | None = None
    total: float | None = None
    message: str = ""
    lines: list[CallLogLine] = field(default_factory=list)
    line_count: int = 0
    outcome: Outcome | None = None
    task: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Record the progress of the call."""
        self.progress, self.total = progress, total
        # Progress without a message does not erase the previous one, which a poller may not have seen.
        self.message = (message or self.message)[:MAX_LOG_LINE_CHARS]

    def log(self, level: str, data: Any) -> None:
        """Append a log message; only the latest MAX_LOG_LINES are retained."""
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        self.line_count += 1
        self.lines.append(CallLogLine(self.line_count, level, text[:MAX_LOG_LINE_CHARS]))
        del self.lines[:-MAX_LOG_LINES]


class BackgroundCalls:
    """Registry of running and finished background calls."""

    def __init__(
        self, *, timeout: float = 3600.0, retention: float = 3600.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._timeout, self._retention, self._clock = timeout, retention, clock
        self._jobs: dict[str, BackgroundCall] = {}

    def start(self, tool: str, owner: str, work: CallBody) -> BackgroundCall:
        """Start a call in the background. Raises ToolError if the limit in total or for the owner is reached."""
        self._expire()
        working = [job.owner for job in self._jobs.values() if job.status == "working"]
        if len(working) >= MAX_RUNNING_CALLS:
            raise _limit_error(f"The limit of {len(working)} running calls is reached.")
        if owner and working.count(owner) >= MAX_RUNNING_PER_PRINCIPAL:
            raise _limit_error(f"Your limit of {MAX_RUNNING_PER_PRINCIPAL} running calls is reached.")
        # 18 random bytes: 144 bits, in the range of session tokens.
        # The id is the only credential for callers without authentication, so it must not be guessable.
        job = BackgroundCall(f"job_{secrets.token_urlsafe(18)}", tool, owner, self._clock())
        self._jobs[job.id] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, work))
        return job

    async def _run(self, job: BackgroundCall, work: CallBody) -> None:
        status: CallStatus = "completed"
        try:
            async with asyncio.timeout(self._timeout):
                job.outcome = _limit_result(await work(job))
            status = "failed" if job.outcome["status"] == "failure" else "completed"
        except TimeoutError:
            message = f"{job.tool} did not finish within {self._timeout:g} s."
            job.outcome, status = outcomes.failure("TimeoutError", message), "failed"
        # The outcome is set before the exception continues, so that a poller sees the cancellation and no empty
        # result.
        except asyncio.CancelledError:
            job.outcome = outcomes.failure("ToolExecutionError", "The call was cancelled.")
            status = "cancelled"
            raise
        finally:
            # Last: a poller reads `outcome` as soon as the status is no longer `working`.
            job.status, job.ended = status, self._clock()

    def find(self, id: str, owner: str) -> BackgroundCall | None:
        """Return the call with this id if this owner started it, else None."""
        self._expire()
        job = self._jobs.get(id)
        return job if job is not None and job.owner == owner else None

    async def wait(self, job: BackgroundCall, seconds: float) -> None:
        """Wait until the call has ended, but at most the given seconds."""
        if job.task is not None and seconds > 0:
            await asyncio.wait([job.task], timeout=seconds)

    async def cancel(self, job: BackgroundCall) -> None:
        if job.task is not None:
            job.task.cancel()
            # A tool may delay its cancellation for cleanup; the caller sees `working` until it has ended.
            await asyncio.wait([job.task], timeout=1.0)

    async def close(self) -> None:
        running = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in running:
            task.cancel()
        if running:
            # Shutdown must not hang on a tool that ignores cancellation.
            await asyncio.wait(running, timeout=5.0)

    def _expire(self) -> None:
        """Remove calls that ended before the retention period, then the oldest ended calls above the limit."""
        ended = sorted((job for job in self._jobs.values() if job.ended is not None), key=lambda job: job.ended or 0.0)
        before = self._clock() - self._retention
        # Only ended calls are removed: a running one is bounded by MAX_RUNNING_CALLS and by its timeout.
        excess = len(self._jobs) - MAX_RETAINED_CALLS
        for at, job in enumerate(ended):
            if at < excess or (job.ended or 0.0) < before:
                del self._jobs[job.id]


def _limit_result(outcome: Outcome) -> Outcome:
    size = len(msgspec.json.encode(outcome))
    if size <= MAX_RESULT_BYTES:
        return outcome
    return outcomes.failure(
        "ToolExecutionError", f"The result has {size} bytes; the limit is {MAX_RESULT_BYTES} bytes."
    )


MAX_BATCH_CALLS = 100
# Enough to hide network latency, few enough that one batch does not starve other callers.
MAX_PARALLEL_CALLS = 8
# All results together. A result that does not fit must be requested by a separate call.
MAX_BATCH_RESULT_BYTES = 2 * 1024 * 1024

InvokeTool = Callable[[str, dict[str, Any]], Awaitable[Outcome]]


async def run_batch(
    calls: Sequence[tuple[str, dict[str, Any]]], ask: InvokeTool, *, stop_on_error: bool = False, parallel: bool = False
) -> list[Outcome]:
    """Run the calls and return their results in the order of the calls.

    With `stop_on_error`, calls that have not started when one fails are skipped, and their results report that.
    """
    result: list[Outcome | None] = [None] * len(calls)
    failed: list[int] = []
    # The workers share one iterator, so each call is taken exactly once.
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for at, (name, arguments) in waiting:
            # Calls that other workers have started already are awaited: cancelling them could leave half an effect.
            if failed and stop_on_error:
                return
            result[at] = await ask(name, arguments)
            if result[at]["status"] == "failure":  # type: ignore[index]
                failed.append(at)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(MAX_PARALLEL_CALLS, len(calls)) if parallel else 1):
            group.create_task(work())
    return _limit_batch(
        [item or outcomes.failure("ToolExecutionError", f"Skipped because call {failed[0]} failed.") for item in result]
    )


def _limit_batch(results: list[Outcome]) -> list[Outcome]:
    left = MAX_BATCH_RESULT_BYTES
    remaining = []
    for item in results:
        size = len(msgspec.json.encode(item))
        # Failures are never dropped: a caller must see why a call failed.
        if size > left and item["status"] != "failure":
            message = (
                f"The call succeeded, but its result of {size} bytes does not fit into this batch. Call the tool "
                "separately."
            )
            item = outcomes.success(None, message, "partial_success")
        else:
            left -= min(size, left)
        remaining.append(item)
    return remaining


def _limit_error(limit: str) -> ToolError:
    return ToolError(f"{limit} Retry when one of them has ended.", error_type="ApiLimitExceeded", retryable=True)
