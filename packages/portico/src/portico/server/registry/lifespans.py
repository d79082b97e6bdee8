"""Enters and leaves the lifespans of a server and its services, also of services added while it runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from portico.transports.event_loop import HeldLifespan, Lifespan

log = logging.getLogger("portico")


class Lifespans:
    """Lifespans that are entered once, however many transports and clients there are, and left after the last.

    Each is held by a task of its own, which enters it and leaves it: some context managers insist on that.
    """

    def __init__(self) -> None:
        self._known: dict[object, Lifespan] = {}
        self._held: dict[object, HeldLifespan] = {}
        # What was removed meanwhile, and is still closing.
        self._ending: set[asyncio.Task[None]] = set()
        self._users = 0

    def add(self, key: object, lifespan: Lifespan, *, first: bool = False) -> None:
        """`first`: it is entered before the others, and left after them."""
        self._known = {key: lifespan, **self._known} if first else {**self._known, key: lifespan}
        if self._users:
            self._hold(key)

    def remove(self, key: object) -> None:
        self._known.pop(key, None)
        held = self._held.pop(key, None)
        if held is not None:
            held.end()
            self._ending.add(held.task)
            held.task.add_done_callback(self._ending.discard)

    @property
    def users(self) -> int:
        """How many have entered them, and not left."""
        return self._users

    def value(self, key: object) -> Any:
        """What a lifespan has yielded; None if it has not been entered."""
        held = self._held.get(key)
        return None if held is None else held.value

    async def enter(self) -> None:
        """Enter all. Raises what the first that could not be entered raised, after leaving the others."""
        self._users += 1
        if self._users > 1:
            return
        try:
            for key in list(self._known):
                await self._hold(key)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> bool:
        """Leave all, if nothing uses them any more. Returns whether it was so."""
        self._users -= 1
        if self._users:
            return False
        # The other way round, as with nested blocks: what came later may rest on what came before.
        for key in reversed(list(self._held)):
            held = self._held.pop(key)
            held.end()
            await asyncio.wait([held.task])
            failure = None if held.task.cancelled() else held.task.exception()
            if failure is not None:
                log.error("error while closing %r", key, exc_info=failure)
        if self._ending:
            await asyncio.wait(self._ending)
        return True

    def _hold(self, key: object) -> asyncio.Future[None]:
        self._held[key] = held = HeldLifespan(self._known[key])
        # Of one that is added while the server runs, only the log says if it failed.
        held.entered.add_done_callback(_log_failure)
        return held.entered


def _log_failure(up: asyncio.Future[None]) -> None:
    if not up.cancelled() and up.exception() is not None:
        log.debug("a lifespan could not be entered", exc_info=up.exception())
