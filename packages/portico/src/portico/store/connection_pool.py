"""Transactions are run by threads that each own a connection; their results come back to the event loop.

One hop there and one back. What several threads, or one group commit, have finished by the time the loop looks is
delivered by one wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from portico.store.errors import DatabaseClosed
from portico.store.transaction import Event, Isolation, Transaction

T = TypeVar("T")

_IDLE_SECONDS = 300.0


class TransactionJob(Struct, eq=False):
    """A transaction whose caller waits. The thread that runs it leaves the outcome here."""

    fn: Callable[[Transaction], Any]
    future: asyncio.Future[Any]
    writes: bool
    isolation: Isolation = "serializable"
    # A migration: alone, and free to rebuild tables that others refer to.
    rebuilds: bool = False
    value: Any = None
    failure: BaseException | None = None
    events: list[Event] = []

    @property
    def dropped(self) -> bool:
        """Whether its caller was cancelled. Such a job is not begun any more; one that has begun is finished."""
        return self.future.cancelled()

    def end(self, value: Any = None, failure: BaseException | None = None, events: list[Event] | None = None) -> None:
        self.value, self.failure, self.events = value, failure, events or []

    def deliver(self) -> None:
        # Taken off, because a failure holds the frames that hold the job.
        failure, self.failure = self.failure, None
        if self.future.done():
            return  # the caller was cancelled; the transaction is whole
        if failure is None:
            self.future.set_result(self.value)
        elif isinstance(failure, StopIteration):
            # A future cannot hold one: it would end the coroutine that waits for it.
            self.future.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            self.future.set_exception(failure)


async def perform(submit: Callable[[TransactionJob], None], fn: Callable[[Transaction], T], **how: Any) -> T:
    """Run a function as a transaction in a thread; its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    submit(TransactionJob(fn, future, **how))
    return await future


class CompletionQueue:
    """Finished jobs, on their way to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[list[Event]], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._jobs: deque[TransactionJob] = deque()
        self._due = False

    def put(self, jobs: list[TransactionJob]) -> None:
        # First in, then look: the loop first forgets that it is due, then takes all, so nothing is left lying.
        self._jobs.extend(jobs)
        if not self._due:
            self._due = True
            self.call(self._deliver)

    def call(self, fn: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            pass  # the loop is closed, and with it all that waited

    def _deliver(self) -> None:
        self._due = False
        events: list[Event] = []
        while self._jobs:
            job = self._jobs.popleft()
            events += job.events
            job.deliver()
        if events:
            self._tell(events)


class ConnectionWorker(Protocol):
    """What one thread works with: a connection."""

    def perform(self, jobs: list[TransactionJob], more: Callable[[], TransactionJob | None]) -> None:
        """Run the one job in the list. Others that wait may be taken from `more` and appended to the list."""

    def rest(self) -> None:
        """Called after each answer, for what the caller need not wait for."""

    def close(self) -> None: ...


class ThreadPool:
    """A few threads that take jobs from one queue. They start when needed and end after a long time idle."""

    def __init__(
        self,
        name: str,
        most: int,
        connect: Callable[[], ConnectionWorker],
        completions: CompletionQueue,
        idle: float | None = _IDLE_SECONDS,
    ) -> None:
        self._name = name
        self._most = most
        self._connect = connect
        self._completions = completions
        self._longest_idle = idle
        self._queue: SimpleQueue[TransactionJob | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0
        self._left = 0
        self._closed: asyncio.Future[None] | None = None

    def submit(self, job: TransactionJob) -> None:
        with self._lock:
            if self._closed is not None:
                raise DatabaseClosed
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self._most:
                self._started += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._queue.put(job)

    async def close(self) -> None:
        """End all threads, once what was submitted is finished."""
        with self._lock:
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
                for _ in range(self._started):
                    self._queue.put(None)
                if not self._started:
                    self._closed.set_result(None)
        await asyncio.shield(self._closed)

    def _work(self) -> None:
        worker: ConnectionWorker | None = None
        while (job := self._next()) is not None:
            jobs = [job]
            if not job.dropped:
                try:
                    worker = worker or self._connect()
                    worker.perform(jobs, self._more)
                except BaseException as failure:
                    for one in jobs:
                        one.end(failure=failure)
            self._completions.put(jobs)
            del job, jobs
            if worker is not None:
                worker.rest()
            with self._lock:
                # A thread is idle only if no more is queued than the other threads can take.
                if self._queue.empty():
                    self._idle += 1
        if worker is not None:
            worker.close()
        self._completions.call(self._leave)

    def _next(self) -> TransactionJob | None:
        while True:
            try:
                return self._queue.get(timeout=self._longest_idle)
            except Empty:
                with self._lock:
                    if self._idle > 0:  # else `submit` has counted on this thread just now
                        self._idle -= 1
                        self._started -= 1
                        return None

    def _more(self) -> TransactionJob | None:
        while True:
            try:
                job = self._queue.get_nowait()
            except Empty:
                return None
            if job is None:
                self._queue.put(None)  # it is the last
                return None
            if not job.dropped:
                return job

    def _leave(self) -> None:
        """Called on the loop for each thread that ends."""
        if self._closed is not None and not self._closed.done():
            self._left += 1
            if self._left >= self._started:
                self._closed.set_result(None)
