"""A job that this process is working on, and how many of them there may be at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import Raw

from portico.rpc.call import Call
from portico.server.tasks import holds
from portico.server.tasks.holds import Hold
from portico.server.tasks.jobs import Job
from portico.store.database import Database
from portico.store.errors import Conflict, ConnectionLost, DiskFailed, Locked, StoreError

log = logging.getLogger("portico")

T = TypeVar("T")

# What may be well again in a moment. All others stay as they are, however often they are tried.
PASSING: tuple[type[StoreError], ...] = (DiskFailed, Locked, Conflict, ConnectionLost)
PAUSE = 1.0


class LostHold(BaseException):
    """The job is somebody else's, or nobody's: cancelled, or given away because we seemed dead. Its body ends here."""


def now() -> int:
    return int(time.time() * 1000)


class Room:
    """How many bodies may run at once. Whoever comes back from waiting goes before those that have not begun."""

    def __init__(self, size: int, freed: Callable[[], None]) -> None:
        self.free = size
        self._freed = freed
        self._returning: deque[asyncio.Future[None]] = deque()

    def take(self) -> None:
        self.free -= 1

    def give(self) -> None:
        while self._returning:
            waiter = self._returning.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1
        self._freed()

    async def come_back(self) -> None:
        if self.free > 0:
            self.free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give()  # it was given to us in the same moment
            raise


class Holder(Protocol):
    """What a job needs of the engine that holds it."""

    database: Database
    worker: str
    room: Room
    # Until when this worker has said that it lives.
    alive_until: int


class Held:
    def __init__(self, engine: Holder, job: Job, steps: dict[str, Raw], *, limited: bool) -> None:
        self.engine = engine
        self.job = job
        self.hold = Hold(job.id, engine.worker, job.runs, limited)
        # What was done before, by us or by others.
        self.steps = steps
        self.task: asyncio.Task[None] | None = None
        self.call: Call | None = None
        self.lost = False
        self.waiting = 0
        self.has_room = True
        self._news = asyncio.Event()
        self._returning = asyncio.Lock()

    async def write(self, fn: Callable[..., T | None], *arguments: Any) -> T:
        """Write as its holder, when it can be written. LostHold: we no longer are.

        Nothing is done twice by trying again: what is written is the same, and only the holder can.
        """
        level = logging.WARNING
        while True:
            try:
                return await self.try_to_write(fn, *arguments)
            except PASSING as failure:
                log.log(level, "the task %s waits for the store: %s", self.job.id, failure)
            level = logging.DEBUG  # once is enough for those who can do something about it
            await asyncio.sleep(PAUSE)

    async def try_to_write(self, fn: Callable[..., T | None], *arguments: Any) -> T:
        done = await self.engine.database.write(lambda tx: fn(tx, self.hold, *arguments), isolation="read committed")
        if done is None or done is False:
            raise LostHold
        return done

    async def answer(self, key: str, question: dict[str, Any]) -> Raw:
        """The answer to a question, however long it takes. Meanwhile somebody else may run."""
        if key in self.job.answers:
            return self.job.answers[key]
        self.see(await self.write(holds.ask, {key: question}, now()))
        if key not in self.job.answers:
            self.waiting += 1
            self.leave_room()
            try:
                while key not in self.job.answers:
                    self._news.clear()
                    await self._news.wait()
            finally:
                self.waiting -= 1
            await self._come_back()
        return self.job.answers[key]

    def see(self, job: Job) -> None:
        """What the store has about it. Of two that were read at about the same time, the one with more answers."""
        if len(job.answers) >= len(self.job.answers):
            self.job = job
        self._news.set()

    def leave_room(self) -> None:
        if self.has_room:
            self.has_room = False
            self.engine.room.give()

    async def _come_back(self) -> None:
        # Of questions that are asked side by side, the first answer brings the body back.
        async with self._returning:
            if not self.has_room:
                await self.engine.room.come_back()
                self.has_room = True

    async def be_sure(self) -> None:
        """Before something is done: whether the job is still ours, when we have been away for longer than our lease."""
        if now() >= max(self.engine.alive_until, self.job.lease or 0):
            await self.write(holds.held)

    async def keep(self, name: str, value: Raw) -> None:
        await self.write(holds.step, name, value)
        self.steps[name] = value
