"""How long things last: a server's lifespan, and those of its services, also of such that come and go meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

log = logging.getLogger("portico")

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Lives:
    """Lifespans that are entered once, however many transports and clients there are, and left after the last.

    Each is held by a task of its own, which enters it and leaves it: some context managers insist on that.
    """

    def __init__(self) -> None:
        self._known: dict[object, Lifespan] = {}
        self._held: dict[object, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._users = 0

    def add(self, key: object, lifespan: Lifespan) -> None:
        self._known[key] = lifespan
        if self._users:
            self._hold(key)

    def remove(self, key: object) -> None:
        self._known.pop(key, None)
        held = self._held.pop(key, None)
        if held is not None:
            held[0].set()

    async def enter(self) -> None:
        """Everything is up when this returns; whatever could not be brought up is the caller's exception."""
        self._users += 1
        if self._users > 1:
            return
        try:
            for key in list(self._known):
                await self._hold(key)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        # The other way round, as with nested blocks: what came later may rest on what came before.
        for key in reversed(list(self._held)):
            stop, task = self._held.pop(key)
            stop.set()
            await asyncio.wait([task])
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                log.error("error while closing %r", key, exc_info=failure)

    def _hold(self, key: object) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        stop, up = asyncio.Event(), loop.create_future()
        self._held[key] = stop, loop.create_task(_live(self._known[key], stop, up))
        # Added while the server runs, nobody waits for it, and the log says if it failed.
        up.add_done_callback(_noted)
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


def _noted(up: asyncio.Future[None]) -> None:
    if not up.cancelled() and up.exception() is not None:
        log.debug("a lifespan could not be entered", exc_info=up.exception())
