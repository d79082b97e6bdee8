"""Calls on behalf of a caller: several in one batch; or in the background, started now and asked about later.

Background calls are kept in memory, and end with the server. What has to survive that is a task.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct, field

from portico_services.contracts import outcomes
from portico_services.contracts.outcomes import Outcome

MOST_RUNNING = 32
# Of one principal, where clients log in: none of them can hold every place.
MAX_RUNNING_PER_PRINCIPAL = 8
MOST_KEPT = 500
MOST_LINES = 200
LONGEST_LINE = 2000
LARGEST = 4 * 1024 * 1024

Status = Literal["working", "completed", "failed", "cancelled"]
Work = Callable[["BackgroundCall"], Awaitable[Outcome]]


class Full(Exception):
    """Too many calls are running."""


class CallLogLine(Struct, frozen=True):
    """Something that was said on the way."""

    number: Annotated[int, "Counts up; give the last one you have seen as `since`"]
    level: Annotated[str, "How important it is"]
    text: Annotated[str, "What was said"]


class BackgroundCall(Struct, eq=False):
    id: str
    tool: str
    owner: str
    started: float
    status: Status = "working"
    ended: float | None = None
    progress: float | None = None
    total: float | None = None
    message: str = ""
    lines: list[CallLogLine] = field(default_factory=list)
    said: int = 0
    outcome: Outcome | None = None
    task: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress, self.total = progress, total
        self.message = (message or self.message)[:LONGEST_LINE]

    def log(self, level: str, data: Any) -> None:
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        self.said += 1
        self.lines.append(CallLogLine(self.said, level, text[:LONGEST_LINE]))
        del self.lines[:-MOST_LINES]


class BackgroundCalls:
    def __init__(
        self, *, longest: float = 3600.0, kept_for: float = 3600.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._longest, self._kept_for, self._clock = longest, kept_for, clock
        self._jobs: dict[str, BackgroundCall] = {}

    def start(self, tool: str, owner: str, work: Work) -> BackgroundCall:
        """Raises Full."""
        self._forget()
        working = [job.owner for job in self._jobs.values() if job.status == "working"]
        if len(working) >= MOST_RUNNING:
            raise Full(f"{len(working)} calls are running already, which is the most.")
        if owner and working.count(owner) >= MAX_RUNNING_PER_PRINCIPAL:
            raise Full(f"{MAX_RUNNING_PER_PRINCIPAL} of your calls are running already, which is the most.")
        job = BackgroundCall(f"job_{secrets.token_urlsafe(18)}", tool, owner, self._clock())
        self._jobs[job.id] = job
        job.task = asyncio.get_running_loop().create_task(self._run(job, work))
        return job

    async def _run(self, job: BackgroundCall, work: Work) -> None:
        status: Status = "completed"
        try:
            async with asyncio.timeout(self._longest):
                job.outcome = _within(await work(job))
            status = "failed" if job.outcome["status"] == "failure" else "completed"
        except TimeoutError:
            said = f"{job.tool} did not finish within {self._longest:g} s."
            job.outcome, status = outcomes.failure("TimeoutError", said), "failed"
        except asyncio.CancelledError:
            job.outcome = outcomes.failure("ToolExecutionError", "The call was cancelled.")
            status = "cancelled"
            raise
        finally:
            job.status, job.ended = status, self._clock()

    def find(self, id: str, owner: str) -> BackgroundCall | None:
        """The call with this id, if this owner started it."""
        self._forget()
        job = self._jobs.get(id)
        return job if job is not None and job.owner == owner else None

    async def wait(self, job: BackgroundCall, seconds: float) -> None:
        """Until it has ended, or for so long."""
        if job.task is not None and seconds > 0:
            await asyncio.wait([job.task], timeout=seconds)

    async def cancel(self, job: BackgroundCall) -> None:
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait([job.task], timeout=1.0)

    async def close(self) -> None:
        running = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=5.0)

    def _forget(self) -> None:
        """What has ended long ago, and of the rest the oldest where there are too many."""
        ended = sorted((job for job in self._jobs.values() if job.ended is not None), key=lambda job: job.ended or 0.0)
        before = self._clock() - self._kept_for
        excess = len(self._jobs) - MOST_KEPT
        for at, job in enumerate(ended):
            if at < excess or (job.ended or 0.0) < before:
                del self._jobs[job.id]


def _within(outcome: Outcome) -> Outcome:
    size = len(msgspec.json.encode(outcome))
    if size <= LARGEST:
        return outcome
    return outcomes.failure("ToolExecutionError", f"The result has {size} bytes, and at most {LARGEST} are kept.")


MOST_CALLS = 100
AT_ONCE = 8
# All results together; what does not fit is asked for by itself.
LARGEST_BATCH = 2 * 1024 * 1024

Ask = Callable[[str, dict[str, Any]], Awaitable[Outcome]]


async def run_batch(
    calls: Sequence[tuple[str, dict[str, Any]]], ask: Ask, *, stop_on_error: bool = False, parallel: bool = False
) -> list[Outcome]:
    """The results, each in the place of its call. With `stop_on_error`, calls that have not begun when one fails never
    do, and their results say so."""
    found: list[Outcome | None] = [None] * len(calls)
    failed: list[int] = []
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for at, (name, arguments) in waiting:
            if failed and stop_on_error:
                return
            found[at] = await ask(name, arguments)
            if found[at]["status"] == "failure":  # type: ignore[index]
                failed.append(at)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(calls)) if parallel else 1):
            group.create_task(work())
    return _batch_within(
        [
            one or outcomes.failure("ToolExecutionError", f"Not called, because call {failed[0]} failed.")
            for one in found
        ]
    )


def _batch_within(found: list[Outcome]) -> list[Outcome]:
    left = LARGEST_BATCH
    kept = []
    for one in found:
        size = len(msgspec.json.encode(one))
        if size > left and one["status"] != "failure":
            said = f"It was done. Its result of {size} bytes has no room in this batch: call it by itself."
            one = outcomes.success(None, said, "partial_success")
        else:
            left -= min(size, left)
        kept.append(one)
    return kept
