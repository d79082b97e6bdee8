"""Lifespans of a server and its services, including services added while it runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from portico.rpc.supervision import BackgroundTasks
from portico.transports.event_loop import Lifespan, LifespanTask

log = logging.getLogger("portico")


class LifespanManager:
    """Lifespans that are entered once, however many transports and clients there are, and left after the last.

    Each has a dedicated task that enters and leaves it, because some context managers require one task for both.
    """

    def __init__(self) -> None:
        self._factories: dict[object, Lifespan] = {}
        self._running: dict[object, LifespanTask] = {}
        # Tasks of removed lifespans that are still closing.
        self._ending = BackgroundTasks()
        self._users = 0

    def add(self, key: object, lifespan: Lifespan, *, first: bool = False) -> None:
        """Register a lifespan, entered immediately if the server is running. `first`: enter before and leave after the
        others.
        """
        # A new dict, because `enter` may be iterating over the old one while a service is added.
        self._factories = {key: lifespan, **self._factories} if first else {**self._factories, key: lifespan}
        if self._users:
            self._start_task(key)

    def remove(self, key: object) -> None:
        """Remove a lifespan, and leave it in the background if it was entered."""
        self._factories.pop(key, None)
        task = self._running.pop(key, None)
        if task is not None:
            task.request_exit()
            self._ending.add(task.task)

    @property
    def active_count(self) -> int:
        """Return how many users have entered the lifespans and not left."""
        return self._users

    def get_state(self, key: object) -> Any:
        """Return the value that a lifespan yielded, or None if it was not entered."""
        task = self._running.get(key)
        return None if task is None else task.value

    async def enter(self) -> None:
        """Enter all lifespans. If one fails, the others are left and its exception is raised."""
        self._users += 1
        # A server can be served on several transports in one process; the first one enters.
        if self._users > 1:
            return
        try:
            for key in list(self._factories):
                await self._start_task(key)
        except BaseException:
            # Leave the lifespans that were entered before the failure, in reverse order.
            await self.leave()
            raise

    async def leave(self) -> bool:
        """Leave all lifespans if this was the last user. Return whether it was."""
        self._users -= 1
        if self._users:
            return False
        # In reverse order, like nested blocks: later ones may depend on earlier ones.
        for key in reversed(list(self._running)):
            task = self._running.pop(key)
            task.request_exit()
            # `wait` does not raise: a lifespan that fails to close must not keep the others open.
            await asyncio.wait([task.task])
            failure = None if task.task.cancelled() else task.task.exception()
            if failure is not None:
                log.error("error while closing %r", key, exc_info=failure)
        await self._ending.wait()
        return True

    def _start_task(self, key: object) -> asyncio.Future[None]:
        self._running[key] = task = LifespanTask(self._factories[key])
        # A failure of one that is added while the server runs is only logged.
        task.entered.add_done_callback(_log_failure)
        return task.entered


def _log_failure(up: asyncio.Future[None]) -> None:
    if not up.cancelled() and up.exception() is not None:
        log.debug("a lifespan failed to start", exc_info=up.exception())
