"""Rate limiting with GCRA, a leaky bucket whose state is one number. Pure: the caller supplies the time."""

from __future__ import annotations

import re
from math import inf
from typing import Any, NamedTuple

from msgspec import Struct

from portico.caching import LruCache
from portico.protocol.errors import UsageError

MAX_BUCKETS = 10_000

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(\d*(?:\.\d+)?)\s*([a-z]+)")
_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}


class RateDecision(NamedTuple):
    """Outcome of an acquisition: when the bucket will be empty, and the seconds to wait if it was rejected."""

    theoretical_arrival: float
    retry_after: float


class RateLimit(Struct, frozen=True):
    """One unit every `interval` seconds, with bursts of up to `burst` units."""

    interval: float
    burst: float

    def acquire(self, due: float, now: float, cost: float = 1.0) -> RateDecision:
        """Take `cost` units from a bucket that will be empty at `due` (0 for an unused bucket)."""
        start = max(due, now)
        after = start + cost * self.interval
        wait = after - self.burst * self.interval - now
        # Tolerate rounding errors.
        return RateDecision(after, 0.0) if wait <= 1e-9 else RateDecision(due, wait)

    def available(self, due: float, now: float) -> float:
        """Return the units that could be taken now."""
        return max(0.0, self.burst - (max(due, now) - now) / self.interval)


class RateLimiter:
    """Buckets of one rate, keyed by client, tool or address. The least recently used buckets are dropped."""

    def __init__(self, rate: RateLimit, max_buckets: int = MAX_BUCKETS) -> None:
        self.rate = rate
        # Time at which each bucket will be empty.
        self._due: LruCache[Any, float] = LruCache(max_buckets)

    def take(self, key: Any, now: float) -> float:
        """Take one unit from a bucket. Return 0, or the seconds to wait before the next attempt."""
        due, wait = self.rate.acquire(self._due.get(key, -inf), now)
        self._due[key] = due
        return wait


def parse_rate(location: str, text: str, burst: float | None) -> RateLimit:
    """Parse a rate such as "30/min", "5/s" or "100/10min". Raises `UsageError` if it is invalid."""
    match = _RATE.fullmatch(text.strip().lower())
    unit = _UNITS.get(match[3].removesuffix("s") or "s") if match is not None else None
    if match is None or unit is None:
        raise UsageError(f"{location}: rate must be such as '30/min', '5/s' or '1000/day', got {text!r}")
    many, seconds = float(match[1]), float(match[2] or 1) * unit
    if not (0 < many < 1e9 and 0 < seconds < 1e9):
        raise UsageError(f"{location}: rate must have a positive count and period below 1e9, got {text!r}")
    limit = max(1.0, many) if burst is None else float(burst)
    if not 1 <= limit < 1e9:
        raise UsageError(f"{location}: burst must be at least 1, got {burst}")
    return RateLimit(seconds / many, limit)
