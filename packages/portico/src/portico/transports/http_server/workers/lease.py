"""Lease of a worker: while it is valid, no other worker takes over its sessions."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from portico.store.errors import StoreError
from portico.transports.http_server.workers.store import LEASE_DURATION_SECONDS, STORE_TIMEOUT_SECONDS

log = logging.getLogger("portico")

RENEW_INTERVAL_SECONDS = 5.0
# Interval after a failed renewal.
RETRY_INTERVAL_SECONDS = 1.0
# The worker stops serving its sessions this long before others may take them over, because clocks drift.
SAFETY_MARGIN_SECONDS = 1.0


class WorkerLease:
    """Renews the lease periodically, and tracks its expiry on the local clock.

    `renew` updates the store, and receives whether the lease had expired before: then other workers may have taken over
    sessions. `on_acquired` is called when the lease is valid again, and `on_expired` when it expires.
    """

    def __init__(
        self,
        renew: Callable[[bool], Awaitable[None]],
        on_acquired: Callable[[], None],
        on_expired: Callable[[], None],
        *,
        single_machine: bool,
    ) -> None:
        """Create the lease. With `single_machine`, it stays valid without the store: local workers never take over from
        one that responds.
        """
        self._renew = renew
        self._on_acquired = on_acquired
        self._on_expired = on_expired
        self._single_machine = single_machine
        self.expires_at = 0.0
        self._renewed_at = self._last_attempt_at = -LEASE_DURATION_SECONDS
        self._failed = False
        self._renewal_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_expired(self) -> bool:
        """Return whether other workers may have taken over the sessions of this worker."""
        return time.monotonic() >= self.expires_at

    @property
    def is_recorded(self) -> bool:
        """Return whether the lease was recently recorded in the store."""
        return time.monotonic() - self._renewed_at < LEASE_DURATION_SECONDS

    async def renew(self) -> None:
        """Renew the lease once. Raises `StoreError`."""
        # Measured before the request: the store's lease starts later, so the local expiry is the earlier one.
        started = time.monotonic()
        was_over, late = self.is_expired, started >= self._renewed_at + LEASE_DURATION_SECONDS - SAFETY_MARGIN_SECONDS
        self._failed = True
        try:
            await self._renew(late)
            self._failed = False
            self._renewed_at = started
        finally:
            self._last_attempt_at = time.monotonic()
            if not self._failed or (self._single_machine and not was_over):
                self._extend_from(started)
        if late:
            self._on_acquired()

    def _extend_from(self, requested_at: float) -> None:
        self.expires_at = requested_at + LEASE_DURATION_SECONDS - SAFETY_MARGIN_SECONDS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self.expires_at, self._on_expired)

    async def renew_forever(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            pause = RETRY_INTERVAL_SECONDS if self._failed else RENEW_INTERVAL_SECONDS
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            await self._renew_within()

    async def confirm(self) -> None:
        """Check with the store whether the lease is still valid, unless just done. Bounded, because a client is
        waiting.
        """
        if time.monotonic() - self._last_attempt_at > RETRY_INTERVAL_SECONDS:
            await self._renew_within(STORE_TIMEOUT_SECONDS)

    async def _renew_within(self, seconds: float | None = None) -> None:
        # One renewal at a time: an unresponsive store must not accumulate requests.
        if self._renewal_task is None or self._renewal_task.done():
            self._renewal_task = asyncio.get_running_loop().create_task(self._renew_once())
        await asyncio.wait([self._renewal_task], timeout=seconds)

    async def _renew_once(self) -> None:
        try:
            await self.renew()
        except StoreError as failure:
            log.warning("could not renew the lease of this worker: %s", failure)
        except Exception:
            # The task's result is not awaited, and the lease has to be renewed again.
            log.exception("error while renewing the lease of this worker")

    def close(self) -> None:
        for item in (self._timer, self._renewal_task):
            if item is not None:
                item.cancel()
