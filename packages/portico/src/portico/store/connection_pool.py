"""Threads that each own a database connection, and delivery of their results to the event loop.

A transaction costs one hop to a thread and one back. Jobs that finish before the loop runs are delivered by a single
wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from portico.store.errors import DatabaseClosed
from portico.store.transaction import Event, Isolation, Transaction

T = TypeVar("T")

# An idle connection occupies a slot of the PostgreSQL server and memory here.
_IDLE_TIMEOUT_SECONDS = 300.0


class TransactionJob(Struct, eq=False):
    """A transaction whose caller waits for its outcome."""

    fn: Callable[[Transaction], Any]
    future: asyncio.Future[Any]
    is_write: bool
    isolation: Isolation = "serializable"
    # A migration: runs alone and may rebuild tables that others refer to.
    rebuilds_tables: bool = False
    result: Any = None
    error: BaseException | None = None
    events: list[Event] = []

    @property
    def is_cancelled(self) -> bool:
        """Return whether the caller was cancelled. A job that has not begun is skipped; a running one is finished."""
        return self.future.cancelled()

    def complete(
        self, result: Any = None, error: BaseException | None = None, events: list[Event] | None = None
    ) -> None:
        self.result, self.error, self.events = result, error, events or []

    def deliver(self) -> None:
        """Set the result of the future. Runs on the event loop."""
        # Cleared, because the exception references the frames that reference the job.
        error, self.error = self.error, None
        if self.future.done():
            return  # the caller was cancelled; the transaction is complete
        if error is None:
            self.future.set_result(self.result)
        elif isinstance(error, StopIteration):
            # A future cannot hold StopIteration: it would end the awaiting coroutine.
            self.future.set_exception(RuntimeError("the transaction function raised StopIteration"))
        else:
            self.future.set_exception(error)


async def run_transaction(
    submit: Callable[[TransactionJob], None], fn: Callable[[Transaction], T], **options: Any
) -> T:
    """Run a function as a transaction in a thread and return its result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    submit(TransactionJob(fn, future, **options))
    return await future


class CompletionQueue:
    """Finished jobs to be delivered on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, publish: Callable[[list[Event]], None]) -> None:
        self._loop = loop
        self._publish = publish
        self._jobs: deque[TransactionJob] = deque()
        self._is_scheduled = False

    def put(self, jobs: list[TransactionJob]) -> None:
        """Schedule the delivery of finished jobs. Called by the threads."""
        # Append first, then check: the loop clears the flag before it takes the jobs, so none is left behind.
        self._jobs.extend(jobs)
        if not self._is_scheduled:
            self._is_scheduled = True
            self.call(self._deliver)

    def call(self, fn: Callable[[], object]) -> None:
        """Call a function on the event loop."""
        try:
            self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            pass  # the loop is closed, and so is everything that waited

    def _deliver(self) -> None:
        self._is_scheduled = False
        events: list[Event] = []
        while self._jobs:
            job = self._jobs.popleft()
            events += job.events
            job.deliver()
        if events:
            self._publish(events)


class ConnectionWorker(Protocol):
    """Connection of one thread."""

    def run_jobs(self, jobs: list[TransactionJob], take_queued: Callable[[], TransactionJob | None]) -> None:
        """Run the single job in the list. Further queued jobs may be taken with `take_queued` and appended."""

    def on_idle(self) -> None:
        """Do work that the caller need not wait for; called after each job."""

    def close(self) -> None: ...


class ConnectionThreadPool:
    """Threads with a connection each. They start on demand and end after a long idle time.

    A job goes to the thread that became idle last: its connection has prepared the usual statements, and threads that
    are not needed stay idle until they end.
    """

    def __init__(
        self,
        name: str,
        max_threads: int,
        connect: Callable[[], ConnectionWorker],
        completions: CompletionQueue,
        idle_timeout: float | None = _IDLE_TIMEOUT_SECONDS,
    ) -> None:
        self._name = name
        self._max_threads = max_threads
        self._connect = connect
        self._completions = completions
        self._idle_timeout = idle_timeout
        self._lock = threading.Lock()
        # Jobs that wait for a thread. It is empty while a thread is idle.
        self._queue: deque[TransactionJob] = deque()
        # Inboxes of the idle threads, the one used last at the end. None ends the thread.
        self._idle: list[SimpleQueue[TransactionJob | None]] = []
        self._started = 0
        self._closed: asyncio.Future[None] | None = None

    def submit(self, job: TransactionJob) -> None:
        """Pass a job to an idle thread or to a new one, or queue it if there are enough. Raises DatabaseClosed."""
        with self._lock:
            if self._closed is not None:
                raise DatabaseClosed
            if self._idle:
                self._idle.pop().put(job)
            # Started on demand: most processes need one connection.
            elif self._started < self._max_threads:
                self._started += 1
                inbox: SimpleQueue[TransactionJob | None] = SimpleQueue()
                inbox.put(job)
                threading.Thread(target=self._work, args=[inbox], name=self._name, daemon=True).start()
            else:
                self._queue.append(job)

    async def close(self) -> None:
        """Finish the submitted jobs, then end all threads."""
        with self._lock:
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
                # Busy threads end when the queue is empty.
                for inbox in self._idle:
                    inbox.put(None)
                self._idle.clear()
                if not self._started:
                    self._closed.set_result(None)
        await asyncio.shield(self._closed)

    def _work(self, inbox: SimpleQueue[TransactionJob | None]) -> None:
        worker: ConnectionWorker | None = None
        job = inbox.get()
        while job is not None:
            jobs = [job]
            if not job.is_cancelled:
                try:
                    worker = worker or self._connect()
                    worker.run_jobs(jobs, self._take_queued)
                except BaseException as error:
                    for item in jobs:
                        item.complete(error=error)
            # Idle before the delivery, so that the next job of a caller that has its result returns to this thread.
            job = self._take_queued_or_wait(inbox)
            self._completions.put(jobs)
            # Drop references, so that results are not kept alive while the thread is idle.
            del jobs
            if worker is not None:
                worker.on_idle()
            job = job or self._receive(inbox)
            if job is None:
                if worker is not None:
                    worker.close()
                    worker = None
                job = self._take_queued_or_exit()

    def _take_queued(self) -> TransactionJob | None:
        with self._lock:
            return self._next_queued()

    def _take_queued_or_wait(self, inbox: SimpleQueue[TransactionJob | None]) -> TransactionJob | None:
        """Return a queued job, or None after announcing that the thread of this inbox is idle."""
        with self._lock:
            job = self._next_queued()
            if job is None and self._closed is None:
                self._idle.append(inbox)
            elif job is None:
                inbox.put(None)
            return job

    def _receive(self, inbox: SimpleQueue[TransactionJob | None]) -> TransactionJob | None:
        """Return the next job of an idle thread, or None if the thread should end."""
        try:
            return inbox.get(timeout=self._idle_timeout)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # `submit` has just counted on this thread

    def _take_queued_or_exit(self) -> TransactionJob | None:
        """Return a job that was queued while the thread was about to end, or None after counting it as ended."""
        with self._lock:
            job = self._next_queued()
            if job is None:
                self._started -= 1
                if self._closed is not None and not self._started:
                    self._completions.call(partial(self._closed.set_result, None))
            return job

    def _next_queued(self) -> TransactionJob | None:
        while self._queue:
            job = self._queue.popleft()
            if not job.is_cancelled:
                return job
        return None
