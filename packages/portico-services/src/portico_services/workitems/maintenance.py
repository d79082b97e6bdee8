"""Background work: release expired leases, index changed tasks, and wake workers that wait for a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from portico_services import timestamps
from portico_services.workitems.errors import WorkItemError
from portico_services.workitems.item_store import WorkItemStore

log = logging.getLogger("portico")

T = TypeVar("T")

# Maximum interval between checks for expired leases, since the event of a new one may be lost.
MAX_LEASE_CHECK_SECONDS = 60.0
# Minimum interval, however many tasks are claimed. No lease is shorter than a second.
MIN_LEASE_CHECK_SECONDS = 0.2
# Minimum interval between index updates.
INDEX_INTERVAL_SECONDS = 2.0


class WorkItemMaintenance:
    """Background work of one service. `on_change` is called for each event of any process."""

    def __init__(self) -> None:
        # Set by events of any process; each loop clears its event before it reads, so that no change in between is
        # lost.
        self._leased = asyncio.Event()
        self._unindexed = asyncio.Event()
        # Events of waiting workers; each is set when a task becomes ready.
        self._waiters: set[asyncio.Event] = set()

    def on_change(self, lists: Collection[str] | None) -> None:
        """Handle a change of a task in these lists; None if the lists are not known."""
        self._unindexed.set()
        if lists is None or "in_progress" in lists:
            self._leased.set()
        if lists is None or "ready" in lists:
            # All of them: only the store can decide which worker gets the task, and the others wait again.
            for news in self._waiters:
                news.set()

    async def run_indexer(self, items: WorkItemStore) -> None:
        """Index tasks changed by this or another process, with a short delay."""
        while True:
            self._unindexed.clear()
            try:
                await items.index_pending()
            except WorkItemError as refusal:
                log.warning("tasks could not be indexed: %s", refusal)
            # Collect changes for a moment: indexing a batch costs a fraction of indexing each task.
            await asyncio.sleep(INDEX_INTERVAL_SECONDS)
            await self._unindexed.wait()

    async def run_lease_expiry(self, items: WorkItemStore) -> None:
        """Release claims when their leases expire, even if no worker asks for a task."""
        while True:
            self._leased.clear()
            try:
                await items.take_back()
                end = await items.next_end()
            except WorkItemError as refusal:
                log.warning("expired leases of tasks could not be released: %s", refusal)
                end = None
            await asyncio.sleep(MIN_LEASE_CHECK_SECONDS)
            pause = MAX_LEASE_CHECK_SECONDS if end is None else (end - timestamps.now_ms()) / timestamps.MS_PER_SECOND
            try:
                async with asyncio.timeout(min(max(pause, 0.0), MAX_LEASE_CHECK_SECONDS)):
                    await self._leased.wait()
            except TimeoutError:
                continue

    async def wait_for_item(self, take: Callable[[], Awaitable[T | None]], wait: float) -> T | None:
        """Call `take` until it returns a task, again whenever one may be ready; return None after `wait` seconds."""
        until = asyncio.get_running_loop().time() + wait
        news = asyncio.Event()
        # Registered before the first attempt, so that no event is missed in between.
        self._waiters.add(news)
        try:
            while (item := await take()) is None:
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    return None
                try:
                    # An upper bound, because an event of another process may be lost; then the wait becomes a slow
                    # poll.
                    async with asyncio.timeout(min(left, MAX_LEASE_CHECK_SECONDS)):
                        await news.wait()
                except TimeoutError:
                    pass
                news.clear()
            return item
        finally:
            self._waiters.discard(news)
