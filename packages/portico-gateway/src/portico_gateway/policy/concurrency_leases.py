"""Calls at once, counted over all processes: each takes slots out of the store, some at a time, and gives back those
that it does not use. The slots of a process that is killed are free again when its lease ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from portico.rpc.supervision import BackgroundTasks
from portico_gateway.policy.shared_limit_store import SLOT_SECONDS, QuotaStore

RENEW_SECONDS = SLOT_SECONDS / 4
# A process may have this part of a limit in its hands and unused, for so long.
_SPARE = 4
SPARE_SECONDS = 0.1
# Others may hold what they do not use: how often to look whether they have given it back, and how long to wait.
TRIES = 5
FIRST_PAUSE_SECONDS = 0.02
# Then the store is not asked again for so long.
FULL_SECONDS = 0.25


class RunningCalls(Struct, eq=False):
    """The calls of one key that go on in this process, and the slots that it has for them."""

    # In the store.
    key: str
    most: int
    count: int = 0
    slots: int = 0
    # When the slots lapse; and until when there are no more.
    until: float = 0.0
    full_until: float = 0.0
    # What is being asked of the store, one thing at a time; and whether slots are soon given back.
    asking: asyncio.Task[None] | None = None
    returning: bool = False

    def has(self, needed: int) -> bool:
        return needed <= self.slots and time.monotonic() < self.until

    @property
    def idle(self) -> bool:
        return not (self.count or self.slots or self.asking)


class SlotLeases:
    """The slots that this process has of a store."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, RunningCalls] = {}
        self._renewing = BackgroundTasks().repeat("quota slot renewal", self._renew, RENEW_SECONDS)

    def close(self) -> None:
        """The store gives all of them to others: a server that is started again, on another loop, has none."""
        self._renewing.cancel()
        for running in self._held.values():
            if running.asking is not None:
                running.asking.cancel()
            running.slots, running.until, running.returning = 0, 0.0, False

    async def take(self, running: RunningCalls, needed: int) -> None:
        """Ask for so many. What is being asked for the same key already is waited for instead."""
        if running.asking is None:
            self._held[running.key] = running
            self._ask(running, self._take(running, needed))
        if running.asking is not None:
            # What the store grants is noted, whether the call still waits for it or not.
            await asyncio.wait([running.asking])

    def _ask(self, running: RunningCalls, question: Coroutine[Any, Any, None]) -> None:
        running.asking = self._loop.create_task(question)

        def answered(_: object) -> None:
            running.asking = None
            self.spare(running)

        running.asking.add_done_callback(answered)

    async def _take(self, running: RunningCalls, needed: int) -> None:
        for attempt in range(TRIES):
            began = time.monotonic()
            granted = await self._store.take_slots(running.key, needed, running.most // _SPARE, running.most)
            if granted is None:
                return
            if granted:
                running.slots, running.until = granted, began + SLOT_SECONDS
                return
            await asyncio.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
            if running.has(needed):
                return
        running.full_until = time.monotonic() + FULL_SECONDS

    def spare(self, running: RunningCalls) -> None:
        """Give back soon what is not used then."""
        unused = running.slots - running.count
        if unused > 0 and not running.returning:
            running.returning = True
            pause = 0.0 if unused > running.most // _SPARE else SPARE_SECONDS
            self._loop.call_later(pause, self._return, running)
        elif running.idle:
            self._held.pop(running.key, None)

    def _return(self, running: RunningCalls) -> None:
        running.returning = False
        if running.slots > running.count and running.asking is None and not self._renewing.done():
            self._ask(running, self._give_back(running))

    async def _give_back(self, running: RunningCalls) -> None:
        running.slots = running.count
        if not await self._store.keep_slots(running.key, running.slots):
            # More than we use is written there: it lapses, and is not renewed.
            running.until = 0.0

    async def _renew(self) -> None:
        began = time.monotonic()
        keys = [key for key, running in self._held.items() if running.until > began]
        for key in await self._store.renew_slots(keys) if keys else ():
            running = self._held.get(key)
            if running is not None and running.until:
                running.until = began + SLOT_SECONDS
