"""The background task of the index: builds it where it is not whole, repairs it where it is damaged, and computes
missing vectors where there is a model."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from portico.extend import BackgroundTasks, BadStatement, Damaged, DatabaseClosed
from portico_services.memory.search import index_builder
from portico_services.memory.search.embeddings import NoModel, embed_pending, prepare
from portico_services.memory.store import statistics

if TYPE_CHECKING:
    from portico.extend import Database
    from portico_services.memory.search.embeddings import Meanings

log = logging.getLogger("portico")

# How long after the start the index is compared with the memories.
COMPARE_AFTER_SECONDS = 5.0


class IndexUpkeep:
    """One for each process that has a store open. The next process continues what it does not finish."""

    def __init__(self, database: Database, meanings: Meanings | None) -> None:
        self._database = database
        self._meanings = meanings
        self._task: asyncio.Task[None] | None = None
        self._whole = asyncio.Event()
        self._news = asyncio.Event()
        self._done = asyncio.Event()
        self._mending = asyncio.Lock()
        self._mended = 0

    async def start(self, *, thorough: bool) -> None:
        """`thorough` also counts whether the index has everything, which takes as long as reading all memories."""
        try:
            whole, empty = await self._database.read(
                lambda tx: (index_builder.is_whole(tx), index_builder.is_empty(tx))
            )
            if empty and not whole:
                await self._database.write(index_builder.build)
                whole = True
        except (BadStatement, Damaged):
            whole = not await self.mend()
        if whole:
            self._whole.set()
        if self._task is None and (thorough or self._meanings is not None or not whole):
            self._task = BackgroundTasks().run("memory index", partial(self._run, thorough))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Called after a write: there may be work."""
        self._news.set()
        if self._meanings is not None:
            self._done.clear()

    async def done(self) -> None:
        """Wait until there is nothing left to do."""
        if self._task is not None:
            await self._done.wait()

    async def ready(self, seconds: float) -> bool:
        """Wait until the index is whole, but not longer than this. Whether it is."""
        if self._whole.is_set() or self._task is None:
            return True
        try:
            await asyncio.wait_for(self._whole.wait(), seconds)
        except TimeoutError:
            pass
        return self._whole.is_set()

    async def mend(self) -> bool:
        """Repair the index; returns whether something was wrong with it. It is then being rebuilt."""
        known = self._mended
        async with self._mending:
            if self._mended != known:
                return True  # another caller has repaired it meanwhile
            if damaged := await self._database.read(index_builder.unreadable):
                log.warning("The index of the memory is damaged, and is built anew.")
                await self._database.write(lambda tx: index_builder.anew(tx, damaged))
            elif await self._database.read(index_builder.trouble) is not None:
                log.warning("The index of the memory does not fit the memories, and is built anew.")
                await self._database.write(index_builder.begin)
            else:
                return False
            self._mended += 1
        self._whole.clear()
        self._done.clear()
        if self._task is None or self._task.done():
            self._task = BackgroundTasks().run("memory index", partial(self._run, thorough=False))
        else:
            self._news.set()
        return True

    async def _run(self, thorough: bool) -> None:
        try:
            try:
                await self._keep(thorough)
            except (BadStatement, Damaged):
                if not await self.mend():
                    raise
                await self._keep(thorough=False)
            self._done.set()
        except DatabaseClosed:
            pass  # the next process continues
        except NoModel as failure:
            # Everything works without it, only not as well.
            log.warning("The index of the memory cannot be looked after: %s", failure)

    async def _keep(self, thorough: bool) -> None:
        await self._build()
        if thorough:
            # A process that has just started has more urgent work.
            await asyncio.sleep(COMPARE_AFTER_SECONDS)
            if await self._database.read(index_builder.trouble) is not None and await self.mend():
                await self._build()
        while self._meanings is not None:
            self._news.clear()
            while await embed_pending(self._database, self._meanings):
                pass
            if not self._news.is_set():
                self._done.set()
            await self._news.wait()
            if not self._whole.is_set():
                await self._build()

    async def _build(self) -> None:
        built = 0
        while lot := await self._database.write(index_builder.build):
            built += lot
        if built >= statistics.MUCH:
            await self._database.write(partial(statistics.note_load, written=built), isolation="read committed")
        if self._meanings is not None:
            await self._database.write(prepare)
        self._whole.set()
