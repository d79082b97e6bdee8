"""`RateLimiter`: the token buckets of one rate."""

from __future__ import annotations

import pytest

from portico.rpc.rate_limit import RateLimit, RateLimiter


def test_burst_is_taken_and_then_refilled_one_by_one() -> None:
    limiter = RateLimiter(RateLimit(interval=2.0, burst=3))
    assert [limiter.take("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]
    assert limiter.take("a", 101.0) == pytest.approx(1.0)
    assert limiter.take("a", 102.0) == 0.0
    assert limiter.take("a", 102.0) == pytest.approx(2.0)


def test_buckets_are_independent_and_bounded() -> None:
    limiter = RateLimiter(RateLimit(interval=60.0, burst=1), max_buckets=2)
    assert limiter.take("a", 0.0) == limiter.take("b", 0.0) == 0.0
    assert limiter.take("a", 0.0) == 60.0
    # "b" was used least recently, so it is dropped and starts again with a full bucket.
    assert limiter.take("c", 0.0) == 0.0
    assert limiter.take("b", 0.0) == 0.0
    assert len(limiter._due) == 2


def test_first_request_at_any_time_is_allowed() -> None:
    # Monotonic clocks may start anywhere.
    assert RateLimiter(RateLimit(1.0, 1)).take("a", -1e9) == 0.0
