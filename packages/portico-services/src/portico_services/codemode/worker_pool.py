"""Workers for runs: each script has one to itself, and it is ended with the script. A few wait for the next."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque

from portico_services.livepython.sandbox.forked_worker import Forking
from portico_services.livepython.sandbox.framing import SCRIPT
from portico_services.livepython.sandbox.landlock import obstacle
from portico_services.livepython.sandbox.limits import MIB, Limits
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import PythonWorker

log = logging.getLogger("portico")

# What Python takes of its memory by itself.
PYTHON_MEMORY = 96 * MIB
# The order of a set of texts is part of what a script does, and has to be the same when it is done again.
HASHES = {"PYTHONHASHSEED": "0"}


class JailPool:
    """Raises SandboxUnavailable where there is no jail: scripts of a client run in none but this."""

    def __init__(self, *, memory: int, seconds: float, spare: int) -> None:
        limits = Limits(
            memory=memory + PYTHON_MEMORY,
            cpu=int(seconds) + 1,
            scratch=16 * MIB,
            output=MIB,
            text=2 * MIB,
            value=2 * MIB,
        )
        reason = obstacle(limits)
        if reason is not None:
            raise SandboxUnavailable(reason)
        self._starter = Forking(sys.executable, limits, preload=["asyncio", SCRIPT], environment=HASHES)
        self._spare = spare
        self._spares: deque[PythonWorker] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self) -> PythonWorker:
        """A worker that no other script has or had. The caller ends it."""
        while self._spares:
            worker = self._spares.popleft()
            if not worker.ended:
                break
        else:
            worker = await self._starter.start()
        self._fill()
        return worker

    def _fill(self) -> None:
        if not self._closed and len(self._spares) < self._spare and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._start_spares())

    async def _start_spares(self) -> None:
        while len(self._spares) < self._spare:
            try:
                self._spares.append(await self._starter.start())
            except SandboxUnavailable as reason:
                # The next run will be told.
                log.warning("no jail for the next script: %s", reason)
                return

    def open(self) -> None:
        """The first script starts the first jail: a server whose clients run none has no process more for it."""
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        while self._spares:
            self._spares.popleft().kill("the server is ending")
        await self._starter.close()
