"""The lease of a worker: as long as it lasts no other worker takes over its sessions."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from portico.store.errors import StoreError
from portico.transports.http_server.workers.store import LEASE_SECONDS, PATIENCE_SECONDS

log = logging.getLogger("portico")

RENEW_SECONDS = 5.0
# The same after it could not be renewed.
AGAIN_SECONDS = 1.0
# So long before others may take our sessions we do not answer in them any more: no two clocks run at one speed.
MARGIN_SECONDS = 1.0


class WorkerLease:
    """Renews it again and again, and knows by the clock of this process when it is over.

    `renew` asks the store, and is told whether the lease was over before: then others may have taken sessions over.
    `began` is called when there is one again, and `ended` when it is over.
    """

    def __init__(
        self,
        renew: Callable[[bool], Awaitable[None]],
        began: Callable[[], None],
        ended: Callable[[], None],
        *,
        alone: bool,
    ) -> None:
        """`alone`: all workers are on this machine. They take over from none that answers, with a store or without."""
        self._renew = renew
        self._began = began
        self._ended = ended
        self._alone = alone
        self.until = 0.0
        self._renewed = self._tried = -LEASE_SECONDS
        self._failed = False
        self._trying: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether other workers may have taken over our sessions."""
        return time.monotonic() >= self.until

    @property
    def is_known(self) -> bool:
        """Whether the store has lately heard of us."""
        return time.monotonic() - self._renewed < LEASE_SECONDS

    async def renew(self) -> None:
        """Renew it once. Raises StoreError."""
        # The store counts from later than this.
        asked = time.monotonic()
        was_over, late = self.is_over, asked >= self._renewed + LEASE_SECONDS - MARGIN_SECONDS
        self._failed = True
        try:
            await self._renew(late)
            self._failed = False
            self._renewed = asked
        finally:
            self._tried = time.monotonic()
            if not self._failed or (self._alone and not was_over):
                self._last_from(asked)
        if late:
            self._began()

    def _last_from(self, asked: float) -> None:
        self.until = asked + LEASE_SECONDS - MARGIN_SECONDS
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self.until, self._ended)

    async def keep(self) -> None:
        """Renew it for ever."""
        while True:
            pause = AGAIN_SECONDS if self._failed else RENEW_SECONDS
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            await self._try()

    async def confirm(self) -> None:
        """Ask the store whether it is over, unless that was done a moment ago. Not for long: a client waits."""
        if time.monotonic() - self._tried > AGAIN_SECONDS:
            await self._try(PATIENCE_SECONDS)

    async def _try(self, seconds: float | None = None) -> None:
        # One at a time: a store that says nothing is not asked more and more.
        if self._trying is None or self._trying.done():
            self._trying = asyncio.get_running_loop().create_task(self._try_once())
        await asyncio.wait([self._trying], timeout=seconds)

    async def _try_once(self) -> None:
        try:
            await self.renew()
        except StoreError as failure:
            log.warning("the other workers are not told that we are here: %s", failure)
        except Exception:
            # It is not awaited for its result, and the lease must be tried again.
            log.exception("error while renewing the lease of this worker")

    def close(self) -> None:
        for one in (self._timer, self._trying):
            if one is not None:
                one.cancel()
