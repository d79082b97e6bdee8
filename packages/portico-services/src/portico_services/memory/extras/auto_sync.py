"""Automatic sync: at the start of the service, and a while after memories of its project have changed."""

from __future__ import annotations

import asyncio
import logging

from portico import UsageError, __version__
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.screening import ContentScreen
from portico_services.memory.sync import engine

log = logging.getLogger("portico.memory")

WHO = "auto-sync"
MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 86_400.0


class AutoSync:
    """Background sync, so that no call waits for it. Failures are logged and retried with the next change.

    The delay collects changes that follow each other closely. Memories received by a sync are changes too, and the sync
    after it finds nothing to do.
    """

    def __init__(self, delay_seconds: float, guard: ContentScreen) -> None:
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
        """Schedule a sync after the delay."""
        self._changed.set()

    async def run(self, memories: MemoryStore) -> None:
        """Sync now and after each change, until cancelled."""
        while True:
            await self._sync(memories)
            # The first sync at the start needs no change: other clones may have pushed since the last run.
            await self._changed.wait()
            await asyncio.sleep(self._delay_seconds)
            self._changed.clear()

    async def _sync(self, memories: MemoryStore) -> None:
        try:
            await engine.sync_memories(
                memories, screen=self._guard.screen_text, lens=f"{__version__} {self._guard.describe}", who=WHO
            )
        except Exception as failure:  # without a network, a remote or a repository, the service continues
            # Log a repeated failure only once.
            if str(failure) != self._last_failure:
                log.warning("automatic sync of memories failed: %s", failure)
            self._last_failure = str(failure)
        else:
            self._last_failure = ""
