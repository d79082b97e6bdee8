"""Waiting for new log entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from portico import ToolError
from portico.extend import run_blocking
from portico_services.system.logs.entries import LogQuery
from portico_services.system.results import FollowResult

if TYPE_CHECKING:
    from portico_services.system.machine import Machine

# Some clients and proxies give up on calls that stay silent for long.
MAX_WAIT_SECONDS = 60
# Each waiting call polls its log.
MAX_WAITING_CALLS = 64


class LogFollower:
    """Calls that wait for logs to grow. A log is polled every `seconds`, and read if it has changed."""

    def __init__(self, machine: Callable[[], Machine], seconds: float) -> None:
        self._machine = machine
        self._poll_interval = seconds
        self._waiter_count = 0

    async def wait(self, name: str, query: LogQuery, limit: int, cursor: str | None, seconds: float) -> FollowResult:
        """Return the entries after the cursor as soon as there are any, or an empty result on timeout."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        machine = self._machine()
        # Take the stamp before reading, so that an entry written in between is noticed.
        stamp = await run_blocking(machine.log_stamp, name)
        result = await run_blocking(machine.follow, name, query, limit, cursor)
        # Without a cursor there is nothing to continue from, so waiting would only lose entries.
        if result.entries or result.has_more or seconds <= 0 or result.next_cursor is None:
            return result
        if self._waiter_count >= MAX_WAITING_CALLS:
            raise ToolError(
                f"The limit of {MAX_WAITING_CALLS} waiting calls is reached. Retry later, or with waitSeconds=0.",
                retryable=True,
            )
        self._waiter_count += 1
        try:
            while not result.entries and (left := until - loop.time()) > 0:
                await asyncio.sleep(min(self._poll_interval, left))
                before, stamp = stamp, await run_blocking(machine.log_stamp, name)
                if stamp != before:
                    result = await run_blocking(machine.follow, name, query, limit, result.next_cursor)
        finally:
            self._waiter_count -= 1
        return result
