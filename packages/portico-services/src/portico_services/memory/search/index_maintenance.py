"""Background maintenance of the index: build it if incomplete, repair it if damaged, and compute missing embeddings if
there is a model.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from portico.extend import BackgroundTasks
from portico.store.errors import DatabaseClosed, DatabaseCorrupt, InvalidStatement
from portico_services.memory.search import index_builder
from portico_services.memory.search.embeddings import EmbeddingsUnavailable, create_pending_index, embed_pending
from portico_services.memory.store import statistics

if TYPE_CHECKING:
    from portico.extend import Database
    from portico_services.memory.search.embeddings import EmbeddingIndex

log = logging.getLogger("portico")

# Delay after the start before the index is compared with the memories.
INTEGRITY_CHECK_DELAY_SECONDS = 5.0


class IndexMaintenance:
    """Index maintenance of one process that has a store open. The next process resumes unfinished work."""

    def __init__(self, database: Database, embeddings: EmbeddingIndex | None) -> None:
        self._database = database
        self._embeddings = embeddings
        self._task: asyncio.Task[None] | None = None
        self._complete_event = asyncio.Event()
        self._news = asyncio.Event()
        self._stop_event = asyncio.Event()
        self._mending = asyncio.Lock()
        self._mended = 0

    async def start(self, *, verify: bool) -> None:
        """Check the index and start the background task if there is work.

        With `verify`, the task also compares the index with the memories, which takes as long as reading all
        memories.
        """
        try:
            is_complete, empty = await self._database.read(
                lambda tx: (index_builder.is_complete(tx), index_builder.is_empty(tx))
            )
            # An empty store is complete after one empty batch; a first search need not wait for a background task.
            if empty and not is_complete:
                await self._database.write(index_builder.build_batch)
                is_complete = True
        except (InvalidStatement, DatabaseCorrupt):
            is_complete = not await self.repair()
        if is_complete:
            self._complete_event.set()
        if self._task is None and (verify or self._embeddings is not None or not is_complete):
            self._task = BackgroundTasks().run("memory index", partial(self._run, verify))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Wake the background task after a write."""
        self._news.set()
        if self._embeddings is not None:
            self._stop_event.clear()

    async def wait_until_done(self) -> None:
        """Wait until the background task has no work left."""
        if self._task is not None:
            await self._stop_event.wait()

    async def wait_until_ready(self, seconds: float) -> bool:
        """Wait up to `seconds` until the index is complete; return whether it is."""
        if self._complete_event.is_set() or self._task is None:
            return True
        try:
            await asyncio.wait_for(self._complete_event.wait(), seconds)
        except TimeoutError:
            pass
        return self._complete_event.is_set()

    async def repair(self) -> bool:
        """Repair the index and return whether it was damaged. The rebuild continues in the background."""
        # Several searches may find the same damage. Only the first repairs it; the others see the counter change.
        repairs_before = self._mended
        async with self._mending:
            if self._mended != repairs_before:
                return True  # another caller repaired it while this one waited
            if damaged := await self._database.read(index_builder.find_unreadable_tables):
                log.warning("memory search index is damaged; rebuilding it")
                await self._database.write(lambda tx: index_builder.recreate_tables(tx, damaged))
            elif await self._database.read(index_builder.check_integrity) is not None:
                log.warning("memory search index does not match the memories; rebuilding it")
                await self._database.write(index_builder.reset)
            else:
                return False
            self._mended += 1
        # Searches wait again until the rebuilt index is complete.
        self._complete_event.clear()
        self._stop_event.clear()
        if self._task is None or self._task.done():
            self._task = BackgroundTasks().run("memory index", partial(self._run, verify=False))
        else:
            self._news.set()
        return True

    async def _run(self, verify: bool) -> None:
        try:
            try:
                await self._maintain(verify)
            except (InvalidStatement, DatabaseCorrupt):
                if not await self.repair():
                    raise
                await self._maintain(verify=False)
            self._stop_event.set()
        except DatabaseClosed:
            pass  # the next process continues
        except EmbeddingsUnavailable as failure:
            # Full-text search works without embeddings.
            log.warning("memory search index: embeddings unavailable: %s", failure)

    async def _maintain(self, verify: bool) -> None:
        await self._build()
        if verify:
            # Leave a process that has just started to more urgent work.
            await asyncio.sleep(INTEGRITY_CHECK_DELAY_SECONDS)
            if await self._database.read(index_builder.check_integrity) is not None and await self.repair():
                await self._build()
        while self._embeddings is not None:
            self._news.clear()
            while await embed_pending(self._database, self._embeddings):
                pass
            # A write during the last batch sets the event again; then the work is not done yet.
            if not self._news.is_set():
                self._stop_event.set()
            await self._news.wait()
            if not self._complete_event.is_set():
                await self._build()

    async def _build(self) -> None:
        built = 0
        while lot := await self._database.write(index_builder.build_batch):
            built += lot
        if built >= statistics.BULK_LOAD_ROWS:
            await self._database.write(
                partial(statistics.analyze_after_load, written=built), isolation="read committed"
            )
        if self._embeddings is not None:
            await self._database.write(create_pending_index)
        self._complete_event.set()
