"""Rate limits of tools."""

from __future__ import annotations

import math
from collections.abc import Callable

from portico import ToolError
from portico.extend import RateLimit, RateLimiter


class ToolRateLimiter:
    """Rate limiter with `rate` calls per second and a burst of `burst` calls for each tool, counted like
    `[[limit]]`.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        # The clock is a parameter, so that tests need not sleep.
        self._limiter, self._clock = RateLimiter(RateLimit(1 / rate, burst)), clock

    def try_acquire(self, name: str) -> float:
        """Take a token and return 0, or return the seconds to wait before the next call."""
        return self._limiter.take(name, self._clock())

    def acquire(self, name: str) -> None:
        """Take a token. Raises ToolError if the rate limit is exceeded."""
        wait = self.try_acquire(name)
        if wait:
            details = {"retry_after": round(wait, 3)}
            raise ToolError(
                rate_limit_message(name, wait), error_type="ApiLimitExceeded", details=details, retryable=True
            )


def rate_limit_message(name: str, wait: float) -> str:
    """Return the message for an exceeded rate limit. The wait is rounded up so that it is never 0."""
    return f"Rate limit of {name} exceeded. Retry in {math.ceil(10 * wait) / 10:g} s."
