"""Several calls in one, one after the other or side by side; and how often a tool may be called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from portico.services.contracts import outcomes
from portico.services.contracts.outcomes import Outcome

MOST_CALLS = 100
AT_ONCE = 8
# All results together; what does not fit is asked for by itself.
LARGEST = 2 * 1024 * 1024
MOST_BUCKETS = 10_000

Ask = Callable[[str, dict[str, Any]], Awaitable[Outcome]]


async def run(
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
    return _within(
        [
            one or outcomes.failure("ToolExecutionError", f"Not called, because call {failed[0]} failed.")
            for one in found
        ]
    )


def _within(found: list[Outcome]) -> list[Outcome]:
    left = LARGEST
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


class Limiter:
    """A bucket of tokens for each tool: `rate` calls a second, and `burst` of them at once."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """0, or how many seconds to wait before the next call."""
        now = self._clock()
        tokens, since = self._buckets.get(name, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        if tokens < 1:
            self._buckets[name] = tokens, now
            return (1 - tokens) / self._rate
        if len(self._buckets) >= MOST_BUCKETS and name not in self._buckets:
            # What has not been called for longest has a full bucket by now.
            del self._buckets[min(self._buckets, key=lambda one: self._buckets[one][1])]
        self._buckets[name] = tokens - 1, now
        return 0.0
