"""Waiting for what a log writes next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from portico import ToolError
from portico_services.system.logs.entries import Query
from portico_services.system.results import FollowedEntries

if TYPE_CHECKING:
    from portico_services.system.machine import Machine

LONGEST_WAIT = 60
MOST_WAITING = 64


class Following:
    """Calls that wait for logs to grow. A log is looked at every `seconds`, and read if it is another than before."""

    def __init__(self, machine: Callable[[], Machine], seconds: float) -> None:
        self._machine = machine
        self._seconds = seconds
        self._waiting = 0

    async def wait(self, name: str, query: Query, limit: int, cursor: str | None, seconds: float) -> FollowedEntries:
        """The entries since the cursor, as soon as there are any; none if there are none in this time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        machine = self._machine()
        stamp = await asyncio.to_thread(machine.log_stamp, name)
        found = await asyncio.to_thread(machine.follow, name, query, limit, cursor)
        if found.entries or found.has_more or seconds <= 0 or found.next_cursor is None:
            return found
        if self._waiting >= MOST_WAITING:
            raise ToolError(
                f"{MOST_WAITING} calls are waiting for logs already. Ask again later, or with waitSeconds=0.",
                retryable=True,
            )
        self._waiting += 1
        try:
            while not found.entries and (left := until - loop.time()) > 0:
                await asyncio.sleep(min(self._seconds, left))
                before, stamp = stamp, await asyncio.to_thread(machine.log_stamp, name)
                if stamp != before:
                    found = await asyncio.to_thread(machine.follow, name, query, limit, found.next_cursor)
        finally:
            self._waiting -= 1
        return found
