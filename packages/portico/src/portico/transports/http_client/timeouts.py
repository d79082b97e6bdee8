"""How long an exchange may take. A person who logs in the middle of it takes as long as a person takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from portico.transports.deadlines import TimeLimit

_limit: ContextVar[asyncio.Timeout | TimeLimit | None] = ContextVar("limit", default=None)


@asynccontextmanager
async def limited(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """`asyncio.timeout`, which `unhurried` can suspend."""
    async with asyncio.timeout(seconds) as limit:
        before = _limit.set(limit)
        try:
            yield limit
        finally:
            _limit.reset(before)


@contextmanager
def suspendable(limit: TimeLimit) -> Iterator[TimeLimit]:
    """The same for a limit that there is already."""
    with limit:
        before = _limit.set(limit)
        try:
            yield limit
        finally:
            _limit.reset(before)


@contextmanager
def unhurried() -> Iterator[None]:
    """Suspend the enclosing `limited()` deadline, for instance while a person logs in."""
    with suspended(_limit.get()):
        yield


@contextmanager
def suspended(limit: asyncio.Timeout | TimeLimit | None) -> Iterator[None]:
    """Suspend a time limit: what was left of it is left afterwards."""
    when = limit.when() if limit is not None else None
    if limit is None or when is None:
        yield
        return
    clock = asyncio.get_running_loop().time
    left = when - clock()
    if left <= 0:
        yield  # it is over, and is about to be said
        return
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(clock() + left)
