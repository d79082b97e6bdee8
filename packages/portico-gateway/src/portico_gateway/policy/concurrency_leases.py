"""Concurrency limits over all processes: each process leases slots from the store and returns unused ones.

The slots of a killed process become free when its lease expires.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from portico.rpc.supervision import BackgroundTasks
from portico_gateway.policy.shared_limit_store import SLOT_LEASE_SECONDS, SharedLimitStore

# Three renewals may fail in a row before a lease expires under a running call.
RENEW_INTERVAL_SECONDS = SLOT_LEASE_SECONDS / 4
# Fraction of a limit that a process may hold unused, and the delay before it returns unused slots.
_MAX_UNUSED_DIVISOR = 4
RETURN_DELAY_SECONDS = 0.1
# Other processes may hold unused slots: attempts and initial delay when waiting for them to be returned.
MAX_ACQUIRE_ATTEMPTS = 5
MIN_BACKOFF_SECONDS = 0.02
# After these attempts the store is not queried for this long.
EXHAUSTED_RETRY_SECONDS = 0.25


class InFlightCalls(Struct, eq=False):
    """Calls in flight for one key in this process, and the slots leased for them."""

    # Key in the store.
    key: str
    most: int
    count: int = 0
    slots: int = 0
    # Expiry of the lease; and the time until which the limit is known to be exhausted.
    until: float = 0.0
    full_until: float = 0.0
    # Running store operation (one at a time); and whether a return of slots is scheduled.
    asking: asyncio.Task[None] | None = None
    returning: bool = False

    def has_slots(self, needed: int) -> bool:
        # An expired lease does not count, even if the slots are still in use: another process may hold them now.
        return needed <= self.slots and time.monotonic() < self.until

    @property
    def is_idle(self) -> bool:
        return not (self.count or self.slots or self.asking)


class ConcurrencyLeases:
    """Slots that this process leases from a store."""

    def __init__(self, store: SharedLimitStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[str, InFlightCalls] = {}
        self._renewing = BackgroundTasks().repeat("quota slot renewal", self._renew, RENEW_INTERVAL_SECONDS)

    def close(self) -> None:
        """Drop all slots; the store gives them to other processes. A server restarted on another event loop begins with
        none.
        """
        self._renewing.cancel()
        for running in self._in_flight.values():
            if running.asking is not None:
                running.asking.cancel()
            running.slots, running.until, running.returning = 0, 0.0, False

    async def acquire(self, running: InFlightCalls, needed: int) -> None:
        """Lease at least `needed` slots, or wait for a running operation on the same key."""
        # Concurrent calls for one key share one store operation; each of them checks afterwards whether there are
        # enough slots.
        if running.asking is None:
            self._in_flight[running.key] = running
            self._run_exclusive(running, self._acquire(running, needed))
        if running.asking is not None:
            # The grant is recorded even if the call no longer waits for it.
            await asyncio.wait([running.asking])

    def _run_exclusive(self, running: InFlightCalls, question: Coroutine[Any, Any, None]) -> None:
        running.asking = self._loop.create_task(question)

        def on_answer(_: object) -> None:
            running.asking = None
            self.schedule_return(running)

        running.asking.add_done_callback(on_answer)

    async def _acquire(self, running: InFlightCalls, needed: int) -> None:
        for attempt in range(MAX_ACQUIRE_ATTEMPTS):
            # The lease is counted from before the query, so that this process never believes in it longer than the
            # store does.
            started_at = time.monotonic()
            granted = await self._store.acquire_slots(
                running.key, needed, running.most // _MAX_UNUSED_DIVISOR, running.most
            )
            if granted is None:
                return
            if granted:
                running.slots, running.until = granted, started_at + SLOT_LEASE_SECONDS
                return
            # Other processes return unused slots after a short delay, so waiting a little often succeeds where an
            # immediate rejection would be wrong.
            await asyncio.sleep(MIN_BACKOFF_SECONDS * 2**attempt)
            if running.has_slots(needed):
                return
        running.full_until = time.monotonic() + EXHAUSTED_RETRY_SECONDS

    def schedule_return(self, running: InFlightCalls) -> None:
        """Schedule the return of slots that are unused by then."""
        unused = running.slots - running.count
        if unused > 0 and not running.returning:
            running.returning = True
            # A burst that just ended often continues, so a few slots are retained for a moment; a large surplus is
            # returned immediately.
            pause = 0.0 if unused > running.most // _MAX_UNUSED_DIVISOR else RETURN_DELAY_SECONDS
            self._loop.call_later(pause, self._return_unused, running)
        elif running.is_idle:
            self._in_flight.pop(running.key, None)

    def _return_unused(self, running: InFlightCalls) -> None:
        running.returning = False
        if running.slots > running.count and running.asking is None and not self._renewing.done():
            self._run_exclusive(running, self._release(running))

    async def _release(self, running: InFlightCalls) -> None:
        running.slots = running.count
        if not await self._store.release_slots(running.key, running.slots):
            # The store still records more slots than are used. Let the lease expire instead of renewing it.
            running.until = 0.0

    async def _renew(self) -> None:
        started_at = time.monotonic()
        keys = [key for key, running in self._in_flight.items() if running.until > started_at]
        for key in await self._store.renew_slots(keys) if keys else ():
            running = self._in_flight.get(key)
            if running is not None and running.until:
                running.until = started_at + SLOT_LEASE_SECONDS
