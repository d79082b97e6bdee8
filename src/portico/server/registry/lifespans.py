"""Enters and leaves the lifespans of a server and its services, also of services added while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

log = logging.getLogger("portico")

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Lifespans:
    """Lifespans that are entered once, however many transports and clients there are, and left after the last.

    Each is held by a task of its own, which enters it and leaves it: some context managers insist on that.
    """

    def __init__(self) -> None:
        self._known: dict[object, Lifespan] = {}
        self._entered: dict[object, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._users = 0

    def add(self, key: object, lifespan: Lifespan) -> None:
        self._known[key] = lifespan
        if self._users:
            self._enter(key)

    def remove(self, key: object) -> None:
        self._known.pop(key, None)
        entered = self._entered.pop(key, None)
        if entered is not None:
            entered[0].set()

    async def enter(self) -> None:
        """Enter all. Raises what the first that could not be entered raised, after leaving the others."""
        self._users += 1
        if self._users > 1:
            return
        try:
            for key in list(self._known):
                await self._enter(key)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        # The other way round, as with nested blocks: what came later may rest on what came before.
        for key in reversed(list(self._entered)):
            stop, task = self._entered.pop(key)
            stop.set()
            await asyncio.wait([task])
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                log.error("error while closing %r", key, exc_info=failure)

    def _enter(self, key: object) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        stop, up = asyncio.Event(), loop.create_future()
        self._entered[key] = stop, loop.create_task(_live(self._known[key], stop, up))
        # Of one that is added while the server runs, only the log says if it failed.
        up.add_done_callback(_log_failure)
        return up


async def _live(lifespan: Lifespan, stop: asyncio.Event, up: asyncio.Future[None]) -> None:
    try:
        async with lifespan():
            up.set_result(None)
            await stop.wait()
    except BaseException as failure:
        if up.done():
            raise
        up.set_exception(failure)


def _log_failure(up: asyncio.Future[None]) -> None:
    if not up.cancelled() and up.exception() is not None:
        log.debug("a lifespan could not be entered", exc_info=up.exception())
