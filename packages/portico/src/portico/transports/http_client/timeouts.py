"""Timeouts of exchanges that can be paused while a user logs in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from portico.transports.deadlines import Deadline

_limit: ContextVar[asyncio.Timeout | Deadline | None] = ContextVar("limit", default=None)


@asynccontextmanager
async def suspendable_timeout(timeout: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Apply an `asyncio.timeout` that `pause_timeout` can suspend."""
    async with asyncio.timeout(timeout) as limit:
        before = _limit.set(limit)
        try:
            yield limit
        finally:
            _limit.reset(before)


@contextmanager
def make_suspendable(deadline: Deadline) -> Iterator[Deadline]:
    """Make an existing deadline suspendable by `pause_timeout`."""
    with deadline:
        before = _limit.set(deadline)
        try:
            yield deadline
        finally:
            _limit.reset(before)


@contextmanager
def pause_timeout() -> Iterator[None]:
    """Suspend the enclosing `suspendable_timeout`, for example while a user logs in."""
    with suspend_timeout(_limit.get()):
        yield


@contextmanager
def suspend_timeout(limit: asyncio.Timeout | Deadline | None) -> Iterator[None]:
    """Suspend a timeout. The remaining time is the same afterwards."""
    when = limit.when() if limit is not None else None
    if limit is None or when is None:
        yield
        return
    clock = asyncio.get_running_loop().time
    left = when - clock()
    if left <= 0:
        yield  # already expired; the timeout is about to be raised
        return
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(clock() + left)
