"""The engine: claims jobs from the queue, runs them, and sees to it that none is lost.

The store wakes it when there is something to do, in this process or another; it polls only now and then.
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

from portico.protocol.errors import UsageError
from portico.rpc import supervision
from portico.rpc.dispatcher import unexpected
from portico.server.components.tools import TaskConfig
from portico.server.tasks import jobs, leases
from portico.server.tasks.execution import LeaseLost, RunningJob, Slots
from portico.server.tasks.jobs import Job, Outcome, now
from portico.server.tasks.leases import Lease, LeaseRow
from portico.server.tasks.worker_ids import is_dead, new_worker
from portico.store.database import Database
from portico.store.errors import DatabaseClosed, StoreError
from portico.store.event_bus import Subscription
from portico.store.keys import SigningKeys
from portico.store.transaction import Event, Transaction

log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).parent / "migrations"
CONCURRENCY = 16
# A worker renews its leases every third of this; when one has run out, its job is given to another worker.
LEASE_SECONDS = 15.0
# How often dead workers and missed changes are looked for, and expired jobs, without an event.
LOOK_SECONDS = 2.0
SWEEP_SECONDS = 60.0
LONGEST_BACKOFF_SECONDS = 3600.0
STOP_SECONDS = 5.0

Run = Callable[[RunningJob], Awaitable[Outcome]]
Heard = Callable[[Job], None]


class Engine:
    """A queue of jobs in a store, of which up to `concurrency` run here.

    `heard` is called with each job among `followed` that has changed.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        tools: Callable[[], dict[str, TaskConfig]],
        run: Run,
        *,
        concurrency: int = CONCURRENCY,
        lease: float = LEASE_SECONDS,
        heard: Heard | None = None,
        followed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.name = name
        self.database = database
        self.worker = new_worker()
        self.slots = Slots(concurrency, self._look)
        self.alive_until = 0
        self._tools = tools
        self._run = run
        self._lease = int(lease * 1000)
        self._heard = heard
        self._followed = followed
        self._running: dict[str, RunningJob] = {}
        self._watching: dict[str, set[asyncio.Event]] = {}
        self._work = asyncio.Event()
        self._due_at: int | None = None
        # While jobs are being claimed the store has them as ours, and `_running` does not.
        self._claiming = asyncio.Lock()
        self._beats = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    @property
    def keys(self) -> SigningKeys:
        """What jobs are signed with: a role that can write rows must not be able to run tools as any caller."""
        return self.database.signing

    # Beginning and end

    async def start(self) -> None:
        """Begin to run jobs. Raises UsageError for PostgreSQL without PORTICO_SEALING_KEYS."""
        if not self.keys.keys:
            raise UsageError(
                "tasks in PostgreSQL need a key that is not in the database, or a role that can write to it could run "
                "any tool as any caller: set PORTICO_SEALING_KEYS"
            )
        await self.database.open()
        try:
            await self.database.migrate("tasks", MIGRATIONS)
            events = await self._stack.enter_async_context(self.database.subscribe(jobs.CREATED, jobs.CHANGED))
        except BaseException:
            await self.database.close()
            raise
        loop = asyncio.get_running_loop()
        turns: dict[str, Callable[[], Awaitable[None]]]
        turns = {"listener": partial(self._listen, events), "heartbeat": self._live, "scheduler": self._serve}
        self._tasks = [loop.create_task(_for_ever(f"task engine {name}", turn)) for name, turn in turns.items()]
        self._look()

    async def stop(self) -> None:
        """Put what runs back into the queue; the next worker goes on after its last step."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        async with self._claiming:  # so that jobs which are being claimed at this moment are among them
            bodies = [running.task for running in self._running.values() if running.task is not None]
        for body in bodies:
            body.cancel()
        if bodies:
            await asyncio.wait(bodies, timeout=STOP_SECONDS)
        try:
            await self._write(partial(leases.release_all, server=self.name, worker=self.worker, now=now()))
        except StoreError as failure:
            log.warning("tasks are queued again when their leases run out: %s", failure)
        await self._stack.aclose()
        await self.database.close()

    async def _write(self, fn: Callable[[Transaction], Any]) -> Any:
        # Every row that is relied upon is locked, or changed by one statement.
        return await self.database.write(fn, isolation="read committed")

    # For the methods of the protocol

    async def create(self, job: Job, steps: dict[str, Raw] | None = None) -> Job:
        """Queue a job. When this returns it is on the disk."""
        job.sign(self.keys)
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
        job: Job | None = await self._write(lambda tx: jobs.cancel(tx, id, now()))
        return job

    async def update(self, id: str, responses: dict[str, Raw]) -> bool:
        return bool(await self._write(lambda tx: jobs.answer(tx, id, responses, now())))

    @contextmanager
    def watching(self, id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the job changes."""
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
        # An event without an id may be about any of them.
        for id in [event.payload] if event.payload else {*self._running, *self._watching, *followed}:
            for news in self._watching.get(id, ()):
                news.set()
            if id in self._running or id in followed:
                await self._reload(id)

    async def _reload(self, id: str) -> None:
        running = self._running.get(id)
        job = await self.get(id, None)
        if running is not None:
            self._refresh(running, job)
        if job is not None and self._heard is not None:
            self._heard(job)

    def _refresh(self, running: RunningJob, job: Job | None) -> None:
        if job is None or job.ended or (job.worker, job.runs) != (self.worker, running.lease.run):
            self._lose(running)
        else:
            running.update(job)

    def _lose(self, running: RunningJob) -> None:
        running.lost = True
        if running.call is not None:
            running.call.reply.cancel()
        if running.task is not None:
            running.task.cancel()

    # Claiming and running

    def _look(self) -> None:
        self._work.set()

    async def _serve(self) -> None:
        """Wait until there may be jobs, and claim them while slots are free."""
        wait = LOOK_SECONDS if self._due_at is None else min(LOOK_SECONDS, max(0.0, (self._due_at - now()) / 1000))
        try:
            async with asyncio.timeout(wait):
                await self._work.wait()
        except TimeoutError:
            pass
        self._work.clear()
        try:
            await self._fill_slots()
        except BaseException:
            self._look()
            raise

    async def _fill_slots(self) -> None:
        tools = self._tools()
        limits = {name: config.concurrency for name, config in tools.items()}
        while tools and (free := self.slots.free) > 0:
            # Shielded: a job that is ours in the store has to be ours here.
            if await asyncio.shield(self._claim(limits, free)) < free:
                break
        moment = now()
        self._due_at = await self.database.read(lambda tx: leases.next_due(tx, self.name, list(tools), moment))

    async def _claim(self, limits: dict[str, int | None], free: int) -> int:
        async with self._claiming:
            moment = now()
            claimed, steps = await self._write(
                lambda tx: leases.claim(tx, self.name, limits, self.worker, moment, self._lease, free)
            )
            for job in claimed:
                if not job.is_authentic(self.keys):
                    await self._refuse(job)
                    continue
                self._begin(job, steps.get(job.id, {}), limited=limits.get(job.tool) is not None)
        return len(claimed)

    async def _refuse(self, job: Job) -> None:
        log.warning("the task %s is not run: the signature of its row is missing or wrong", job.id)
        reason = "Internal error: the task was changed in the store, or queued by an earlier release; start it again"
        await self._write(partial(jobs.end, job=job, outcome=jobs.failed(reason), now=now()))

    def _begin(self, job: Job, steps: dict[str, Raw], *, limited: bool) -> None:
        before = self._running.get(job.id)
        if before is not None:
            self._lose(before)  # another worker had it while we were away, and now it is ours again
        running = self._running[job.id] = RunningJob(self, job, steps, limited=limited)
        self.slots.acquire()
        running.task = asyncio.get_running_loop().create_task(self._run_to_end(running))

    async def _run_to_end(self, running: RunningJob) -> None:
        try:
            await self._finish(running, await self._run(running))
        except LeaseLost:
            log.debug("the task %s is another worker's now", running.job.id)
        except asyncio.CancelledError:
            if not running.lost:
                await self._put_back(running.lease)
        except DatabaseClosed:
            log.debug("the task %s is left to other workers", running.job.id)
        except Exception as failure:
            await self._give_up(running, failure)
        finally:
            if self._running.get(running.job.id) is running:
                del self._running[running.job.id]
            running.release_slot()

    async def _finish(self, running: RunningJob, outcome: Outcome) -> None:
        config = self._tools().get(running.job.tool) or TaskConfig()
        if outcome.again and running.job.attempts <= config.retries:
            doubled = config.backoff * 2.0 ** min(running.job.attempts - 1, 32)
            wait = min(LONGEST_BACKOFF_SECONDS, doubled) * random.uniform(0.75, 1.25)
            await running.write(leases.release, now() + int(wait * 1000), now())
        else:
            await running.write(leases.finish, outcome, now())

    async def _give_up(self, running: RunningJob, failure: Exception) -> None:
        """The outcome cannot be stored, and could not the next time: the job has failed."""
        message = unexpected(failure, f"the task {running.job.id}").message
        try:
            await running.write(leases.finish, jobs.failed(message), now())
        except (LeaseLost, StoreError):
            log.debug("the task %s is left to others", running.job.id)

    async def _put_back(self, lease: Lease) -> None:
        try:
            await self._write(lambda tx: leases.release(tx, lease, None, now()))
        except StoreError as failure:
            log.warning("the task %s is queued again when its lease runs out: %s", lease.id, failure)

    # Renewing leases, and reclaiming those of dead workers

    async def _live(self) -> None:
        async with self._claiming:
            mine = dict(self._running)
            until = now() + self._lease
            rows = await self._write(partial(leases.renew, server=self.name, worker=self.worker, until=until))
            self.alive_until = until
        await self._compare(mine, rows)
        await self._reclaim()
        if self._beats % max(1, int(SWEEP_SECONDS / LOOK_SECONDS)) == 0:
            while await self._write(lambda tx: jobs.sweep(tx, now())) >= jobs.MOST_SWEPT:
                pass
        self._beats += 1
        await asyncio.sleep(min(LOOK_SECONDS, self._lease / 3000))

    async def _compare(self, mine: dict[str, RunningJob], rows: list[LeaseRow]) -> None:
        """Settle what runs here with the leases in the store. They differ when an event or a reply was lost."""
        for row in rows:
            running = self._running.get(row.id)
            if running is None or running.lease.run != row.runs:
                await self._put_back(Lease(row.id, self.worker, row.runs))
            elif running.waiting and running.job.updated_at != row.updated_at:
                await self._reload(row.id)
        known = {(row.id, row.runs) for row in rows}
        for running in mine.values():
            if (running.lease.id, running.lease.run) not in known and self._running.get(running.lease.id) is running:
                self._lose(running)

    async def _reclaim(self) -> None:
        workers = await self.database.read(lambda tx: leases.workers(tx, self.name))
        dead = [worker for worker in workers if worker != self.worker and is_dead(worker)]
        overdue = await self.database.read(lambda tx: leases.overdue(tx, self.name, now()))
        while dead or overdue:
            count = await self._write(lambda tx: leases.reclaim(tx, self.name, dead, now()))
            if count:
                log.info("%d tasks of workers that have ended are queued again", count)
            if count < leases.MOST_RECLAIMED:
                break


async def _for_ever(name: str, turn: Callable[[], Awaitable[None]]) -> None:
    """Repeat a turn until the database is closed, whatever it raises."""
    with supervision.observed(name) as state:
        while True:
            try:
                await turn()
                state.recover()
            except DatabaseClosed:
                return
            except Exception as failure:
                # Tasks wait for it, so that it is tried again sooner than other tasks are.
                await asyncio.sleep(min(state.fail(failure), LOOK_SECONDS))
