"""The task engine: claims jobs from the queue, runs them, and recovers the jobs of dead workers.

The store wakes it when there is work, in this process or another; polling is only a fallback.
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
from portico.rpc.dispatcher import log_internal_error
from portico.server.components.tools import TaskConfig
from portico.server.tasks import jobs, leases
from portico.server.tasks.execution import JobConcurrencyLimit, JobRun, LeaseLost
from portico.server.tasks.jobs import Job, JobOutcome, now_ms
from portico.server.tasks.leases import Lease, LeaseRow
from portico.server.tasks.worker_ids import is_worker_dead, new_worker_id
from portico.store.database import Database
from portico.store.errors import DatabaseClosed, StoreError
from portico.store.event_bus import Subscription
from portico.store.keys import SigningKeys
from portico.store.transaction import Event, Transaction

log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).parent / "migrations"
# Tasks mostly wait for other services. A tool that needs the processor should set
# `max_concurrency`.
DEFAULT_CONCURRENCY = 16
# Workers renew their leases every third of this; after expiry, another worker takes the job.
LEASE_SECONDS = 15.0
# Intervals for the detection of dead workers and missed events, and for the removal of expired jobs.
POLL_SECONDS = 2.0
SWEEP_SECONDS = 60.0
# Doubling reaches a day after 17 failures; an hour keeps a task useful after a long outage.
MAX_BACKOFF_SECONDS = 3600.0
SHUTDOWN_TIMEOUT_SECONDS = 5.0

JobRunner = Callable[[JobRun], Awaitable[JobOutcome]]
JobListener = Callable[[Job], None]


class TaskEngine:
    """Runs up to `concurrency` jobs of a queue in a store.

    `on_change` is called with each changed job among `followed_ids`.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        tools: Callable[[], dict[str, TaskConfig]],
        run: JobRunner,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        lease_seconds: float = LEASE_SECONDS,
        on_change: JobListener | None = None,
        followed_ids: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.name = name
        self.database = database
        self.worker = new_worker_id()
        self.concurrency_limit = JobConcurrencyLimit(concurrency, self._wake)
        self.alive_until = 0
        self._tools = tools
        self._run = run
        self._lease = int(lease_seconds * 1000)
        self._on_change = on_change
        self._followed = followed_ids
        self._running: dict[str, JobRun] = {}
        self._watching: dict[str, set[asyncio.Event]] = {}
        self._work = asyncio.Event()
        self._due_at: int | None = None
        # While jobs are being claimed, the store assigns them to us but `_running` does not contain them yet.
        self._claiming = asyncio.Lock()
        self._beats = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    @property
    def keys(self) -> SigningKeys:
        """Return the keys that sign jobs: a database role that can write rows must not be able to run tools as any
        caller.
        """
        return self.database.signing

    # Start and stop

    async def start(self) -> None:
        """Start running jobs. Raises UsageError for PostgreSQL without PORTICO_ENCRYPTION_KEYS."""
        if not self.keys.keys:
            raise UsageError(
                "tasks in PostgreSQL require a key outside the database, because otherwise a role that can "
                "write to it could run any tool as any caller: set PORTICO_ENCRYPTION_KEYS"
            )
        await self.database.open()
        try:
            await self.database.migrate("tasks", MIGRATIONS)
            events = await self._stack.enter_async_context(self.database.subscribe(jobs.JOB_CREATED, jobs.JOB_CHANGED))
        except BaseException:
            await self.database.close()
            raise
        loop = asyncio.get_running_loop()
        turns: dict[str, Callable[[], Awaitable[None]]]
        # Three independent loops: a slow claim must not delay the heartbeat, or another worker
        # would take over the jobs.
        turns = {"listener": partial(self._listen, events), "heartbeat": self._renew_leases, "scheduler": self._serve}
        self._tasks = [loop.create_task(_for_ever(f"task engine {name}", turn)) for name, turn in turns.items()]
        self._wake()

    async def stop(self) -> None:
        """Stop, and return running jobs to the queue; the next worker continues after their last step."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        async with self._claiming:  # wait for a claim in progress, so that its jobs are included
            bodies = [running.task for running in self._running.values() if running.task is not None]
        for body in bodies:
            body.cancel()
        # A function that ignores its cancellation must not block the shutdown; its lease is
        # released below either way.
        if bodies:
            await asyncio.wait(bodies, timeout=SHUTDOWN_TIMEOUT_SECONDS)
        try:
            await self._write(partial(leases.release_all, server=self.name, worker=self.worker, now=now_ms()))
        except StoreError as failure:
            log.warning("tasks are queued again when their leases expire: %s", failure)
        await self._stack.aclose()
        await self.database.close()

    async def _write(self, fn: Callable[[Transaction], Any]) -> Any:
        # Read committed is enough: every row that is relied upon is locked, or changed by a single statement.
        return await self.database.write(fn, isolation="read committed")

    # Used by the protocol methods

    async def create(self, job: Job, steps: dict[str, Raw] | None = None) -> Job:
        """Queue a job. It is durable when this returns."""
        job.sign(self.keys)
        await self._write(partial(jobs.create, job=job, steps=steps or {}))
        return job

    async def get(self, id: str, owner: str | None) -> Job | None:
        """Return a job, or None if it does not exist or has another owner."""
        job = await self.database.read(lambda tx: jobs.get(tx, self.name, id))
        # The same answer for foreign and missing ids, so that ids of other users cannot be probed.
        return job if job is not None and owner in (None, job.owner) else None

    async def get_many(self, ids: list[str], owner: str) -> list[Job]:
        result = await self.database.read(lambda tx: jobs.get_many(tx, self.name, ids))
        return [job for job in result if job.owner == owner]

    async def list_jobs(self, owner: str, after: tuple[int, str]) -> list[Job]:
        return await self.database.read(lambda tx: jobs.list_jobs(tx, self.name, owner, after, jobs.PAGE_SIZE + 1))

    async def cancel(self, id: str) -> Job | None:
        job: Job | None = await self._write(lambda tx: jobs.cancel(tx, id, now_ms()))
        return job

    async def update(self, id: str, responses: dict[str, Raw]) -> bool:
        return bool(await self._write(lambda tx: jobs.store_responses(tx, id, responses, now_ms())))

    @contextmanager
    def watch(self, id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the job changes."""
        news = asyncio.Event()
        self._watching.setdefault(id, set()).add(news)
        try:
            yield news
        finally:
            self._watching[id].discard(news)
            if not self._watching[id]:
                del self._watching[id]

    # Change events

    async def _listen(self, events: Subscription) -> None:
        async for event in events:
            await self._on_event(event)
        raise DatabaseClosed

    async def _on_event(self, event: Event) -> None:
        if event.topic == jobs.JOB_CREATED:
            if event.payload in ("", self.name):
                self._wake()
            return
        followed = self._followed()
        # An event without an id means that events were lost, so it may concern any job.
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
        if job is not None and self._on_change is not None:
            self._on_change(job)

    def _refresh(self, running: JobRun, job: Job | None) -> None:
        # The run number is the fencing token: the same worker may have lost the job and claimed it
        # again, and the old run must still stop.
        if job is None or job.is_finished or (job.worker, job.runs) != (self.worker, running.lease.run):
            self._mark_lost(running)
        else:
            running.update(job)

    def _mark_lost(self, running: JobRun) -> None:
        running.lost = True
        if running.call is not None:
            # Marks the call as cancelled for a function in a thread, which cannot be interrupted.
            running.call.reply.cancel()
        if running.task is not None:
            running.task.cancel()

    # Claiming and running jobs

    def _wake(self) -> None:
        self._work.set()

    async def _serve(self) -> None:
        """Wait until there may be jobs, and claim them while slots are free."""
        wait = POLL_SECONDS if self._due_at is None else min(POLL_SECONDS, max(0.0, (self._due_at - now_ms()) / 1000))
        try:
            async with asyncio.timeout(wait):
                await self._work.wait()
        except TimeoutError:
            pass
        # Cleared before claiming: a job that is queued during the claim sets it again.
        self._work.clear()
        try:
            await self._fill_slots()
        except BaseException:
            self._wake()
            raise

    async def _fill_slots(self) -> None:
        tools = self._tools()
        limits = {name: config.max_concurrency for name, config in tools.items()}
        while tools and (free := self.concurrency_limit.free) > 0:
            # Shielded from cancellation: a job that the store assigns to us must be in `_running`.
            if await asyncio.shield(self._claim(limits, free)) < free:
                break
        moment = now_ms()
        self._due_at = await self.database.read(lambda tx: leases.next_due(tx, self.name, list(tools), moment))

    async def _claim(self, limits: dict[str, int | None], free: int) -> int:
        async with self._claiming:
            moment = now_ms()
            claimed, steps = await self._write(
                lambda tx: leases.claim(tx, self.name, limits, self.worker, moment, self._lease, free)
            )
            for job in claimed:
                if not job.is_authentic(self.keys):
                    await self._refuse(job)
                    continue
                self._start_job(job, steps.get(job.id, {}), limited=limits.get(job.tool) is not None)
        return len(claimed)

    async def _refuse(self, job: Job) -> None:
        log.warning("the task %s is not run: the signature of its row is missing or invalid", job.id)
        reason = "Internal error: the task was changed in the store, or queued by an earlier release; start it again"
        await self._write(partial(jobs.finish_job, job=job, outcome=jobs.failed_outcome(reason), now=now_ms()))

    def _start_job(self, job: Job, steps: dict[str, Raw], *, limited: bool) -> None:
        before = self._running.get(job.id)
        if before is not None:
            self._mark_lost(before)  # another worker had it while we were stalled, and now it is ours again
        running = self._running[job.id] = JobRun(self, job, steps, is_limited=limited)
        self.concurrency_limit.acquire()
        running.task = asyncio.get_running_loop().create_task(self._run_to_end(running))

    async def _run_to_end(self, running: JobRun) -> None:
        try:
            await self._finish_job(running, await self._run(running))
        except LeaseLost:
            log.debug("the task %s was taken over by another worker", running.job.id)
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

    async def _finish_job(self, running: JobRun, outcome: JobOutcome) -> None:
        config = self._tools().get(running.job.tool) or TaskConfig()
        if outcome.is_retryable and running.job.attempts <= config.max_retries:
            doubled = config.retry_delay * 2.0 ** min(running.job.attempts - 1, 32)
            # Jitter, so that jobs that failed together with a service do not return to it at the
            # same moment.
            wait = min(MAX_BACKOFF_SECONDS, doubled) * random.uniform(0.75, 1.25)
            await running.write(leases.release, now_ms() + int(wait * 1000), now_ms())
        else:
            await running.write(leases.finish, outcome, now_ms())

    async def _give_up(self, running: JobRun, failure: Exception) -> None:
        """Fail a job whose outcome cannot be stored, because a retry would fail too."""
        message = log_internal_error(failure, f"the task {running.job.id}").message
        try:
            await running.write(leases.finish, jobs.failed_outcome(message), now_ms())
        except (LeaseLost, StoreError):
            log.debug("the task %s is left to others", running.job.id)

    async def _put_back(self, lease: Lease) -> None:
        try:
            await self._write(lambda tx: leases.release(tx, lease, None, now_ms()))
        except StoreError as failure:
            log.warning("the task %s is queued again when its lease expires: %s", lease.id, failure)

    # Renewing leases, and reclaiming the leases of dead workers

    async def _renew_leases(self) -> None:
        async with self._claiming:
            # Taken under the lock and before the renewal: a job that is claimed later is not in the
            # rows and must not count as lost.
            running = dict(self._running)
            until = now_ms() + self._lease
            rows = await self._write(partial(leases.renew, server=self.name, worker=self.worker, until=until))
            self.alive_until = until
        await self._compare(running, rows)
        await self._reclaim()
        if self._beats % max(1, int(SWEEP_SECONDS / POLL_SECONDS)) == 0:
            while await self._write(lambda tx: jobs.sweep(tx, now_ms())) >= jobs.SWEEP_BATCH_SIZE:
                pass
        self._beats += 1
        await asyncio.sleep(min(POLL_SECONDS, self._lease / 3000))

    async def _compare(self, own_runs: dict[str, JobRun], rows: list[LeaseRow]) -> None:
        """Reconcile running jobs with the leases in the store. They differ if an event or a reply was lost."""
        for row in rows:
            running = self._running.get(row.id)
            # The store assigned it to us but the reply was lost, so nothing runs it.
            if running is None or running.lease.run != row.runs:
                await self._put_back(Lease(row.id, self.worker, row.runs))
            elif running.waiting and running.job.updated_at != row.updated_at:
                await self._reload(row.id)
        current = {(row.id, row.runs) for row in rows}
        for running in own_runs.values():
            if (running.lease.id, running.lease.run) not in current and self._running.get(running.lease.id) is running:
                self._mark_lost(running)

    async def _reclaim(self) -> None:
        workers = await self.database.read(lambda tx: leases.workers(tx, self.name))
        # A crash on this machine is noticed within seconds; on another one only by the expiry of
        # the lease.
        dead = [worker for worker in workers if worker != self.worker and is_worker_dead(worker)]
        overdue = await self.database.read(lambda tx: leases.has_expired_leases(tx, self.name, now_ms()))
        while dead or overdue:
            count = await self._write(lambda tx: leases.reclaim(tx, self.name, dead, now_ms()))
            if count:
                log.info("%d tasks of dead workers are queued again", count)
            if count < leases.RECLAIM_BATCH_SIZE:
                break


async def _for_ever(name: str, turn: Callable[[], Awaitable[None]]) -> None:
    """Repeat a turn until the database is closed, whatever it raises."""
    with supervision.observe_task(name) as state:
        while True:
            try:
                await turn()
                state.recover()
            except DatabaseClosed:
                return
            except Exception as failure:
                # Tasks depend on it, so it is retried sooner than other background work.
                await asyncio.sleep(min(state.fail(failure), POLL_SECONDS))
