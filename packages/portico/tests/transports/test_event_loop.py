"""The event loop of servers and clients: lifespans entered and exited in one task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from portico.transports.event_loop import LifespanTask


async def test_lifespan_is_exited_if_the_waiting_task_is_cancelled_while_it_is_entered() -> None:
    may_enter, events = asyncio.Event(), []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await may_enter.wait()
        events.append("entered")
        yield
        events.append("exited")

    task = LifespanTask(lifespan)
    task.entered.cancel()
    may_enter.set()
    await task.task
    assert events == ["entered", "exited"]
