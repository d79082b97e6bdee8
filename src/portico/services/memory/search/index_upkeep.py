"""Who looks after the index while others work: it is built where it is not whole, mended where it is damaged, and where
there is a model, what has no vector yet gets one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from portico.services.memory.search import index_build
from portico.services.memory.search.meaning import NoModel, embed_pending
from portico.store.errors import BadStatement, Damaged, DatabaseClosed, StoreError

if TYPE_CHECKING:
    from portico.services.memory.search.meaning import Meanings
    from portico.store.database import Database
    from portico.store.transaction import Transaction

log = logging.getLogger("portico")

# Seconds after the start, when the index is compared with the memories.
LATER = 5.0


class Keeper:
    """One for each process that has a store open. What it does not get done, the next one does."""

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
            whole, empty = await self._database.read(lambda tx: (index_build.is_whole(tx), index_build.is_empty(tx)))
            if empty and not whole:
                await self._database.write(index_build.build)
                whole = True
        except (BadStatement, Damaged):
            whole = not await self.mend()
        if whole:
            self._whole.set()
        if self._task is None and (thorough or self._meanings is not None or not whole):
            self._task = asyncio.create_task(self._run(thorough))

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Something was written."""
        self._news.set()
        if self._meanings is not None:
            self._done.clear()

    async def done(self) -> None:
        """Wait until there is nothing left to do, for now."""
        if self._task is not None:
            await self._done.wait()

    async def ready(self, seconds: float) -> None:
        """Wait until the index is whole, but not longer than this."""
        if self._whole.is_set() or self._task is None:
            return
        try:
            await asyncio.wait_for(self._whole.wait(), seconds)
        except TimeoutError:
            pass

    async def mend(self) -> bool:
        """Whether something was wrong with the index. It is then there again, and being built."""
        known = self._mended
        async with self._mending:
            if self._mended != known:
                return True  # somebody else has seen it, too
            if damaged := await self._database.read(index_build.unreadable):
                log.warning("The index of the memory is damaged, and is built anew.")
                await self._database.write(lambda tx: index_build.anew(tx, damaged))
            elif await self._database.read(_trouble) is not None:
                log.warning("The index of the memory does not fit the memories, and is built anew.")
                await self._database.write(index_build.begin)
            else:
                return False
            self._mended += 1
        self._whole.clear()
        self._done.clear()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(thorough=False))
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
            pass  # whoever opens it next goes on
        except (StoreError, NoModel) as failure:
            # Without it everything works, only not as well.
            log.warning("The index of the memory cannot be looked after: %s", failure)

    async def _keep(self, thorough: bool) -> None:
        await self._build()
        if thorough:
            # What has just been started has something else to do.
            await asyncio.sleep(LATER)
            if await self._database.read(_trouble) is not None and await self.mend():
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
        while await self._database.write(index_build.build):
            pass
        self._whole.set()


def _trouble(tx: Transaction) -> str | None:
    """An index that is still being built is not in trouble."""
    return index_build.trouble(tx) if index_build.is_whole(tx) else None
