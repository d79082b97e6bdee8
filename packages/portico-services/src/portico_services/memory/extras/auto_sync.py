"""Automatic sync: at the start of the service, and some time after memories of its project have changed."""

from __future__ import annotations

import asyncio
import logging

from portico import UsageError, __version__
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.screening import Guard
from portico_services.memory.sync import engine

log = logging.getLogger("portico.memory")

WHO = "auto-sync"
MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 86_400.0


class AutoSync:
    """Runs in the background, so that no call waits for it. Failures are logged, and the next change is another try.

    A delay collects changes that come shortly after each other. What a sync brings is a change as well, and the sync
    after it finds nothing to do.
    """

    def __init__(self, delay_seconds: float, guard: Guard) -> None:
        if not MIN_DELAY_SECONDS <= delay_seconds <= MAX_DELAY_SECONDS:
            raise UsageError(
                f"auto_sync must be between {MIN_DELAY_SECONDS:g} and {MAX_DELAY_SECONDS:g} seconds, "
                f"got {delay_seconds:g}"
            )
        self._delay_seconds = delay_seconds
        self._guard = guard
        self._changed = asyncio.Event()
        self._last_failure = ""

    def note_change(self) -> None:
        self._changed.set()

    async def run(self, memories: Memories) -> None:
        while True:
            await self._sync(memories)
            await self._changed.wait()
            await asyncio.sleep(self._delay_seconds)
            self._changed.clear()

    async def _sync(self, memories: Memories) -> None:
        try:
            await engine.sync(memories, screen=self._guard.passed, lens=f"{__version__} {self._guard.rules}", who=WHO)
        except Exception as failure:  # without a network, a remote or a repository everything else goes on
            # The same failure again and again is one line in the log.
            if str(failure) != self._last_failure:
                log.warning("automatic sync of memories failed: %s", failure)
            self._last_failure = str(failure)
        else:
            self._last_failure = ""
