"""What happens beside the calls: leases end, what was written is indexed, and those who wait for work are woken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from portico_services import timestamps
from portico_services.workitems.errors import TaskRefusal
from portico_services.workitems.item_store import WorkItems

log = logging.getLogger("portico")

T = TypeVar("T")

# The longest time between two looks for leases that have ended: the event of a new one may be lost.
LONGEST_PAUSE_SECONDS = 60.0
# The shortest one, however much is being claimed. No lease is shorter than a second.
SHORTEST_PAUSE_SECONDS = 0.2
# Between two looks for what has to be indexed.
INDEX_SECONDS = 2.0


class Upkeep:
    """Of one server's tasks. `on_change` is called for each event, whichever process it comes from."""

    def __init__(self) -> None:
        self._leased = asyncio.Event()
        self._unindexed = asyncio.Event()
        # Of those who wait for something to do; each is set when something can be begun.
        self._waiting: set[asyncio.Event] = set()

    def on_change(self, lists: Collection[str] | None) -> None:
        """A task has changed that is in these lists; None: it is not known which."""
        self._unindexed.set()
        if lists is None or "in_progress" in lists:
            self._leased.set()
        if lists is None or "ready" in lists:
            for news in self._waiting:
                news.set()

    async def index(self, items: WorkItems) -> None:
        """Indexes what was written, here or by another process, some time after it was."""
        while True:
            self._unindexed.clear()
            try:
                await items.index_all()
            except TaskRefusal as refusal:
                log.warning("tasks could not be indexed: %s", refusal)
            await asyncio.sleep(INDEX_SECONDS)
            await self._unindexed.wait()

    async def end_leases(self, items: WorkItems) -> None:
        """Sets what was not finished in time to pending when its lease ends, also when no one asks for work."""
        while True:
            self._leased.clear()
            try:
                await items.take_back()
                end = await items.next_end()
            except TaskRefusal as refusal:
                log.warning("leases of tasks could not be looked at: %s", refusal)
                end = None
            await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
            pause = LONGEST_PAUSE_SECONDS if end is None else (end - timestamps.now()) / timestamps.SECOND_MS
            try:
                async with asyncio.timeout(min(max(pause, 0.0), LONGEST_PAUSE_SECONDS)):
                    await self._leased.wait()
            except TimeoutError:
                continue

    async def wait_for(self, take: Callable[[], Awaitable[T | None]], wait: float) -> T | None:
        """What `take` gives, which is tried again when there may be something; None where there was nothing for `wait`
        seconds."""
        until = asyncio.get_running_loop().time() + wait
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while (taken := await take()) is None:
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    return None
                try:
                    async with asyncio.timeout(min(left, LONGEST_PAUSE_SECONDS)):
                        await news.wait()
                except TimeoutError:
                    pass
                news.clear()
            return taken
        finally:
            self._waiting.discard(news)
