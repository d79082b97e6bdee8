"""The engine: takes jobs from the queue, runs them, and sees to it that none is lost.

The store wakes it when there is something to do, in this process or another; it looks by itself only now and then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Raw

from portico.rpc.door import unexpected
from portico.server.tasks import holds, jobs
from portico.server.tasks.config import TaskConfig
from portico.server.tasks.held import Held, LostHold, Room, now
from portico.server.tasks.holds import Hold, Kept
from portico.server.tasks.jobs import Job, Outcome
from portico.server.tasks.workers import is_dead, new_worker
from portico.store.bus import Subscription
from portico.store.database import Database
from portico.store.errors import DatabaseClosed, StoreError
from portico.store.transaction import Event, Transaction

log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).parent / "migrations"
CONCURRENCY = 16
# A worker says that it lives every third of this; what it holds is given to others when it has not.
LEASE = 15.0
# How often the dead are looked for, what was missed, and the expired, without being told.
LOOK, SWEEP = 2.0, 60.0
LONGEST_BACKOFF = 3600.0
GOODBYE = 5.0

Run = Callable[[Held], Awaitable[Outcome]]
Heard = Callable[[Job], None]


class Engine:
    """A queue of jobs in a store, and as many of them running here as there is room for.

    `heard` is told how those jobs stand that are `followed`, whenever something about them has changed.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        tools: Callable[[], dict[str, TaskConfig]],
        run: Run,
        *,
        concurrency: int = CONCURRENCY,
        lease: float = LEASE,
        heard: Heard | None = None,
        followed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.name = name
        self.database = database
        self.worker = new_worker()
        self.room = Room(concurrency, self._look)
        self.alive_until = 0
        self._tools = tools
        self._run = run
        self._lease = int(lease * 1000)
        self._heard = heard
        self._followed = followed
        self._held: dict[str, Held] = {}
        self._watching: dict[str, set[asyncio.Event]] = {}
        self._work = asyncio.Event()
        self._due_at: int | None = None
        # What is being taken is in the store already, and not among what we hold.
        self._taking = asyncio.Lock()
        self._beats = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    # Beginning and end

    async def start(self) -> None:
        await self.database.open()
        try:
            await self.database.migrate("tasks", MIGRATIONS)
            events = await self._stack.enter_async_context(self.database.subscribe(jobs.CREATED, jobs.CHANGED))
        except BaseException:
            await self.database.close()
            raise
        loop = asyncio.get_running_loop()
        turns = (partial(self._listen, events), self._live, self._serve)
        self._tasks = [loop.create_task(_for_ever(turn)) for turn in turns]
        self._look()

    async def stop(self) -> None:
        """What runs is put back into the queue; whoever comes next goes on after its last step."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        async with self._taking:  # so that whatever was being taken at this moment is among what we hold
            running = [held.task for held in self._held.values() if held.task is not None]
        for body in running:
            body.cancel()
        if running:
            await asyncio.wait(running, timeout=GOODBYE)
        try:
            await self._write(partial(holds.release_all, server=self.name, worker=self.worker, now=now()))
        except StoreError as failure:
            log.warning("tasks are taken up again when their leases run out: %s", failure)
        await self._stack.aclose()
        await self.database.close()

    async def _write(self, fn: Callable[[Transaction], Any]) -> Any:
        # Every row that is relied upon is locked, or changed by one statement.
        return await self.database.write(fn, isolation="read committed")

    # What others ask of it

    async def create(self, job: Job, steps: dict[str, Raw] | None = None) -> Job:
        """Queue a job. When this returns it is on the disk."""
        await self._write(partial(jobs.create, job=job, steps=steps or {}))
        return job

    async def get(self, id: str, owner: str | None) -> Job | None:
        job = await self.database.read(lambda tx: jobs.get(tx, self.name, id))
        return job if job is not None and owner in (None, job.owner) else None

    async def some(self, ids: list[str], owner: str) -> list[Job]:
        found = await self.database.read(lambda tx: jobs.some(tx, self.name, ids))
        return [job for job in found if job.owner == owner]

    async def listed(self, owner: str, after: tuple[int, str]) -> list[Job]:
        return await self.database.read(lambda tx: jobs.listed(tx, self.name, owner, after, jobs.PAGE + 1))

    async def cancel(self, id: str) -> Job | None:
        found: Job | None = await self._write(lambda tx: jobs.cancel(tx, id, now()))
        return found

    async def update(self, id: str, responses: dict[str, Raw]) -> bool:
        return bool(await self._write(lambda tx: jobs.answer(tx, id, responses, now())))

    @contextmanager
    def watching(self, id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something is new about a job, from now on."""
        news = asyncio.Event()
        self._watching.setdefault(id, set()).add(news)
        try:
            yield news
        finally:
            self._watching[id].discard(news)
            if not self._watching[id]:
                del self._watching[id]

    # Hearing of changes

    async def _listen(self, events: Subscription) -> None:
        async for event in events:
            await self._hear(event)
        raise DatabaseClosed

    async def _hear(self, event: Event) -> None:
        if event.topic == jobs.CREATED:
            if event.payload in ("", self.name):
                self._look()
            return
        followed = self._followed()
        # With no name it may be any of them.
        for id in [event.payload] if event.payload else {*self._held, *self._watching, *followed}:
            for news in self._watching.get(id, ()):
                news.set()
            if id in self._held or id in followed:
                await self._see(id)

    async def _see(self, id: str) -> None:
        held = self._held.get(id)
        job = await self.get(id, None)
        if held is not None:
            self._refresh(held, job)
        if job is not None and self._heard is not None:
            self._heard(job)

    def _refresh(self, held: Held, job: Job | None) -> None:
        if job is None or job.ended or (job.worker, job.runs) != (self.worker, held.hold.run):
            self._lose(held)
        else:
            held.see(job)

    def _lose(self, held: Held) -> None:
        held.lost = True
        if held.call is not None:
            held.call.reply.cancel()
        if held.task is not None:
            held.task.cancel()

    # Taking and running

    def _look(self) -> None:
        self._work.set()

    async def _serve(self) -> None:
        """Take jobs while there is room and there are any."""
        wait = LOOK if self._due_at is None else min(LOOK, max(0.0, (self._due_at - now()) / 1000))
        try:
            async with asyncio.timeout(wait):
                await self._work.wait()
        except TimeoutError:
            pass
        self._work.clear()
        try:
            await self._take()
        except BaseException:
            self._look()
            raise

    async def _take(self) -> None:
        tools = self._tools()
        limits = {name: config.concurrency for name, config in tools.items()}
        while tools and (room := self.room.free) > 0:
            # Once begun it is seen through: what is ours in the store has to be ours here.
            if await asyncio.shield(self._claim(limits, room)) < room:
                break
        moment = now()
        self._due_at = await self.database.read(lambda tx: holds.next_due(tx, self.name, list(tools), moment))

    async def _claim(self, limits: dict[str, int | None], room: int) -> int:
        async with self._taking:
            moment = now()
            taken, steps = await self._write(
                lambda tx: holds.claim(tx, self.name, limits, self.worker, moment, self._lease, room)
            )
            for job in taken:
                self._begin(job, steps.get(job.id, {}), limited=limits.get(job.tool) is not None)
        return len(taken)

    def _begin(self, job: Job, steps: dict[str, Raw], *, limited: bool) -> None:
        before = self._held.get(job.id)
        if before is not None:
            self._lose(before)  # it was taken from us while we were away, and now we have it again
        held = self._held[job.id] = Held(self, job, steps, limited=limited)
        self.room.take()
        held.task = asyncio.get_running_loop().create_task(self._see_through(held))

    async def _see_through(self, held: Held) -> None:
        try:
            await self._conclude(held, await self._run(held))
        except LostHold:
            log.debug("the task %s is not ours any more", held.job.id)
        except asyncio.CancelledError:
            if not held.lost:
                await self._put_back(held.hold)
        except DatabaseClosed:
            log.debug("the task %s is left to others", held.job.id)
        except Exception as failure:
            await self._give_up(held, failure)
        finally:
            if self._held.get(held.job.id) is held:
                del self._held[held.job.id]
            held.leave_room()

    async def _conclude(self, held: Held, outcome: Outcome) -> None:
        config = self._tools().get(held.job.tool) or TaskConfig()
        if outcome.again and held.job.attempts <= config.retries:
            doubled = config.backoff * 2.0 ** min(held.job.attempts - 1, 32)
            wait = min(LONGEST_BACKOFF, doubled) * random.uniform(0.75, 1.25)
            await held.write(holds.release, now() + int(wait * 1000), now())
        else:
            await held.write(holds.finish, outcome, now())

    async def _give_up(self, held: Held, failure: Exception) -> None:
        """What came of it cannot be kept, and would not be the next time."""
        said = unexpected(failure, f"the task {held.job.id}").message
        try:
            await held.write(holds.finish, jobs.failed(said), now())
        except (LostHold, StoreError):
            log.debug("the task %s is left to others", held.job.id)

    async def _put_back(self, hold: Hold) -> None:
        try:
            await self._write(lambda tx: holds.release(tx, hold, None, now()))
        except StoreError as failure:
            log.warning("the task %s is taken up again when its lease runs out: %s", hold.id, failure)

    # Living, and looking after the dead

    async def _live(self) -> None:
        async with self._taking:
            mine = dict(self._held)
            until = now() + self._lease
            kept = await self._write(partial(holds.renew, server=self.name, worker=self.worker, until=until))
            self.alive_until = until
        await self._compare(mine, kept)
        await self._reclaim()
        if self._beats % max(1, int(SWEEP / LOOK)) == 0:
            while await self._write(lambda tx: jobs.sweep(tx, now())) >= jobs.MOST_SWEPT:
                pass
        self._beats += 1
        await asyncio.sleep(min(LOOK, self._lease / 3000))

    async def _compare(self, mine: dict[str, Held], kept: list[Kept]) -> None:
        """What we hold and what the store says we hold. They differ when a word was lost on the way."""
        for one in kept:
            held = self._held.get(one.id)
            if held is None or held.hold.run != one.runs:
                await self._put_back(Hold(one.id, self.worker, one.runs))
            elif held.waiting and held.job.updated_at != one.updated_at:
                await self._see(one.id)
        known = {(one.id, one.runs) for one in kept}
        for held in mine.values():
            if (held.hold.id, held.hold.run) not in known and self._held.get(held.hold.id) is held:
                self._lose(held)

    async def _reclaim(self) -> None:
        workers = await self.database.read(lambda tx: holds.holders(tx, self.name))
        dead = [worker for worker in workers if worker != self.worker and is_dead(worker)]
        overdue = await self.database.read(lambda tx: holds.overdue(tx, self.name, now()))
        while dead or overdue:
            count = await self._write(lambda tx: holds.reclaim(tx, self.name, dead, now()))
            if count:
                log.info("%d tasks of workers that have ended are taken up again", count)
            if count < holds.MOST_RECLAIMED:
                break


async def _for_ever(turn: Callable[[], Awaitable[None]]) -> None:
    """Whatever happens: tasks wait for this."""
    while True:
        try:
            await turn()
        except DatabaseClosed:
            return
        except StoreError as failure:
            log.warning("tasks cannot be looked after: %s", failure)
            await asyncio.sleep(LOOK)
        except Exception:
            log.exception("error while looking after tasks")
            await asyncio.sleep(LOOK)
