"""How often a tool may be called."""

from __future__ import annotations

from collections.abc import Callable

from portico import ToolError

MOST_BUCKETS = 10_000


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

    def require(self, name: str) -> None:
        """Take one, or raise ToolError."""
        wait = self.take(name)
        if wait:
            said = f"{name} was called too often. Wait {wait:.1f} s."
            raise ToolError(said, kind="ApiLimitExceeded", details={"retry_after": round(wait, 3)}, retryable=True)
