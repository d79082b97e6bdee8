"""Timeouts of calls, with one timer."""

from __future__ import annotations

import asyncio

import pytest

from portico.transports.deadlines import DeadlineScheduler

LONG = 60.0


async def wait(limits: DeadlineScheduler, seconds: float | None) -> str:
    try:
        with limits.start(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        return "over"
    return "done"


async def test_each_ends_when_its_own_time_is_over() -> None:
    limits = DeadlineScheduler()
    long = asyncio.create_task(wait(limits, LONG))
    async with asyncio.timeout(LONG / 2):
        await asyncio.sleep(0)
        assert await asyncio.gather(wait(limits, 0.01), wait(limits, 0.0), wait(limits, 0.02)) == ["over"] * 3
    assert not long.done()
    (left,) = limits.deadlines
    left.reschedule(None)
    left.reschedule(asyncio.get_running_loop().time())
    async with asyncio.timeout(LONG / 2):
        assert await long == "over"
    assert not limits.deadlines
    limits.close()


async def test_external_cancellation_cancels_the_task() -> None:
    limits = DeadlineScheduler()
    task = asyncio.create_task(wait(limits, LONG))
    await asyncio.sleep(0)
    (limit,) = limits.deadlines
    task.cancel()
    limit.expire()
    with pytest.raises(asyncio.CancelledError):
        await task
    limits.close()


async def test_no_timeout_sets_no_timer() -> None:
    limits = DeadlineScheduler()
    with limits.start(None):
        assert limits._timer is None
    with limits.start(LONG):
        assert limits._timer is not None
    limits.close()
    assert limits._timer is None
