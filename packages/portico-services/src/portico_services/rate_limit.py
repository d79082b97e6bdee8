"""How often a tool may be called."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from portico import ToolError
from portico.extend import Rate

MOST_BUCKETS = 10_000


class Limiter:
    """For each tool `rate` calls a second, and `burst` of them at once, as `[[limit]]` counts them."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._clock = Rate(1 / rate, burst), clock
        # Of each tool when its bucket is empty; the one that was called last is the last.
        self._due: OrderedDict[str, float] = OrderedDict()

    def take(self, name: str) -> float:
        """0, or how many seconds to wait before the next call."""
        due, wait = self._rate.take(self._due.get(name, -math.inf), self._clock())
        self._due[name] = due
        self._due.move_to_end(name)
        if len(self._due) > MOST_BUCKETS:
            self._due.popitem(last=False)
        return wait

    def require(self, name: str) -> None:
        """Take one, or raise ToolError."""
        wait = self.take(name)
        if wait:
            details = {"retry_after": round(wait, 3)}
            raise ToolError(too_often(name, wait), kind="ApiLimitExceeded", details=details, retryable=True)


def too_often(name: str, wait: float) -> str:
    """In words; never that there is nothing to wait for."""
    return f"{name} was called too often. Wait {math.ceil(10 * wait) / 10:g} s."
