"""How often a tool may be called: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

from collections.abc import Callable

MOST_BUCKETS = 10_000


class Limiter:
    """`rate` calls a second for each name, and `burst` of them at once."""

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
            # Whoever has not been called for longest has a full bucket by now.
            del self._buckets[min(self._buckets, key=lambda one: self._buckets[one][1])]
        self._buckets[name] = tokens - 1, now
        return 0.0
