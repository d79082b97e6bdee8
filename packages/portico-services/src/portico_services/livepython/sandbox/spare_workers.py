"""Workers that are started ahead of need."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import PythonWorker

log = logging.getLogger("portico")


class WorkerFactory(Protocol):
    """Starts workers that are ready for requests."""

    version: str
    # The packages of projects.
    packages: list[str]
    limits: SandboxLimits

    async def open(self) -> None: ...

    async def start(self) -> PythonWorker: ...

    async def close(self) -> None: ...


class SpareWorkers:
    """Pool of up to `spare` idle workers, so that the next caller does not wait for a start."""

    def __init__(self, starter: WorkerFactory, spare: int) -> None:
        self.starter = starter
        self.spare = spare
        self.waiting: deque[PythonWorker] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    def open(self) -> None:
        """Allow spare workers again after `close`. None is started before the first `take`."""
        self._closed = False

    async def take(self) -> PythonWorker:
        """Return a fresh worker, which the caller must end. Raises SandboxUnavailable if none can be started."""
        while self.waiting:
            worker = self.waiting.popleft()
            if not worker.has_ended:
                break
        else:
            worker = await self.starter.start()
        # Refill in the background; one task is enough, since it fills the pool completely.
        if not self._closed and len(self.waiting) < self.spare and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill())
        return worker

    async def _fill(self) -> None:
        while len(self.waiting) < self.spare:
            try:
                self.waiting.append(await self.starter.start())
            except SandboxUnavailable as reason:
                # The next caller that needs one gets the error.
                log.warning("no spare Python worker: %s", reason)
                return

    async def close(self) -> None:
        self._closed = True
        if self._filling is not None:
            # First the filler, then its workers: it could otherwise append one after the loop below.
            self._filling.cancel()
            await asyncio.wait([self._filling])
        while self.waiting:
            self.waiting.popleft().kill("the server is ending")
        await self.starter.close()
