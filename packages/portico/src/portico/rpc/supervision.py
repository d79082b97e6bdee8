"""Supervision of tasks and threads that run as long as the server: failures are logged, counted and followed by a
restart.

Probes, metrics and `portico gateway status` read `states()`, so a task that keeps failing is visible.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

log = logging.getLogger("portico.supervision")

T = TypeVar("T")

# Doubles with each failure: a dependency that restarts is found quickly, and one that stays away is not
# flooded.
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
# A task that ran for this long before it failed is not failing repeatedly.
STABLE_SECONDS = 60.0
# From this many consecutive failures on, a task that is backing off makes the server not ready.
FAILURES_UNTIL_NOT_READY = 3
# Error messages may contain whole SQL statements or responses.
MAX_ERROR_CHARS = 300


class SupervisedState(Struct):
    """State of a supervised task or thread. `error` is that of the last failure."""

    name: str
    restarts: int = 0
    # Consecutive failures; reset once it works again.
    failures: int = 0
    error: str = ""
    # Seconds since the epoch, or None if it has never failed.
    failed_at: float | None = None
    backing_off: bool = False

    @property
    def is_failing(self) -> bool:
        """Return whether it fails repeatedly and is waiting for its next attempt."""
        return self.backing_off and self.failures >= FAILURES_UNTIL_NOT_READY

    def fail(self, failure: BaseException, ran_seconds: float = 0.0) -> float:
        """Record and log a failure. Return the seconds to wait before the next attempt."""
        self.failures = 1 if ran_seconds >= STABLE_SECONDS else self.failures + 1
        self.restarts += 1
        self.failed_at = time.time()
        self.error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_CHARS]
        self.backing_off = True
        # The exponent is limited, because 2 ** 1024 exceeds a float.
        pause: float = min(FIRST_BACKOFF_SECONDS * 2 ** min(self.failures - 1, 16), MAX_BACKOFF_SECONDS)
        log.error(
            "%s failed (%d times in a row) and is restarted in %g s", self.name, self.failures, pause, exc_info=failure
        )
        return pause

    def recover(self) -> None:
        """Record that it works again."""
        self.failures, self.backing_off = 0, False

    def report(self) -> dict[str, Any]:
        """Return the state for `portico gateway status`."""
        return {**asdict(self), "state": "backing off" if self.backing_off else "running"}


# All supervised tasks and threads of this process. Threads register themselves, hence the lock.
_states: dict[int, SupervisedState] = {}
_lock = threading.Lock()


def states() -> list[SupervisedState]:
    """Return the states of all supervised tasks and threads of this process, by name."""
    with _lock:
        return sorted(_states.values(), key=lambda state: state.name)


def failing() -> dict[str, str]:
    """Return why the server is not ready: the tasks that fail repeatedly, with the time of the last failure.

    Probes may read it without a token, so error messages appear only in the log and on the operator's status page.
    """
    return {
        state.name: f"failing, last at {time.strftime('%H:%M:%S', time.localtime(state.failed_at))}"
        for state in states()
        if state.is_failing
    }


def metrics() -> list[str]:
    """Return metrics in the Prometheus text format. Tasks with the same name share a series."""
    totals: dict[str, list[int]] = {}
    for state in states():
        name = state.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        total = totals.setdefault(name, [0, 0])
        total[0] += state.restarts
        total[1] += state.backing_off
    lines = []
    for position, (metric, kind) in enumerate(_METRICS):
        lines.append(f"# TYPE {metric} {kind}")
        lines += [f'{metric}{{task="{name}"}} {total[position]}' for name, total in totals.items()]
    return lines


_METRICS = (("portico_task_restarts_total", "counter"), ("portico_task_backing_off", "gauge"))


@contextmanager
def observe_task(name: str) -> Iterator[SupervisedState]:
    """Register a task that handles its own failures. It reports them with `fail` and `recover`."""
    state = SupervisedState(name)
    key = _add(state)
    try:
        yield state
    finally:
        _remove(key)


class BackgroundTasks:
    """Tasks of one owner, referenced until they are done: the event loop alone only holds weak references.

    `start` and `add` are for work that ends by itself, `run` and `repeat` for work that is restarted after a failure.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._tasks))

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine in a task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Hold a reference to a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def run(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        until: tuple[type[BaseException], ...] = (),
    ) -> asyncio.Task[None]:
        """Run `work` until it returns or raises one of `until`. Restart it after any other failure."""

        async def supervise(state: SupervisedState) -> None:
            while True:
                started_at = time.monotonic()
                try:
                    await work()
                    return
                except until:
                    return
                except Exception as failure:
                    pause = state.fail(failure, time.monotonic() - started_at)
                await asyncio.sleep(pause)
                state.backing_off = False

        return self._start(name, supervise)

    def repeat(
        self, name: str, turn: Callable[[], Awaitable[Any] | None], seconds: float, *, delayed: bool = True
    ) -> asyncio.Task[None]:
        """Call `turn` every `seconds`, first after one interval unless `delayed` is false. Failed turns are retried
        later.
        """

        async def supervise(state: SupervisedState) -> None:
            pause = seconds if delayed else 0.0
            while True:
                await asyncio.sleep(pause)
                try:
                    pending = turn()
                    if pending is not None:
                        await pending
                    state.recover()
                    pause = seconds
                except Exception as failure:
                    # Backoff never makes a periodic task run more often than its interval.
                    pause = max(seconds, state.fail(failure))

        return self._start(name, supervise)

    def _start(
        self, name: str, supervise: Callable[[SupervisedState], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        async def observe() -> None:
            with observe_task(name) as state:
                await supervise(state)

        return self.start(observe(), name)

    def cancel(self) -> None:
        """Cancel the tasks without waiting for them."""
        for task in self:
            task.cancel()

    async def close(self) -> None:
        """Cancel the tasks and wait for them."""
        self.cancel()
        await self.wait()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for the tasks that are running now."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)


def run_in_thread(name: str, work: Callable[[], None], stopping: threading.Event) -> threading.Thread:
    """Run `work` in a thread until it returns or `stopping` is set. Restart it after a failure."""

    def supervise() -> None:
        with observe_task(name) as state:
            while not stopping.is_set():
                started_at = time.monotonic()
                try:
                    work()
                    return
                except Exception as failure:
                    pause = state.fail(failure, time.monotonic() - started_at)
                stopping.wait(pause)
                state.backing_off = False

    thread = threading.Thread(target=supervise, name=name, daemon=True)
    thread.start()
    return thread


def _add(state: SupervisedState) -> int:
    with _lock:
        # By identity: several connections may supervise tasks with the same name.
        _states[id(state)] = state
    return id(state)


def _remove(key: int) -> None:
    with _lock:
        _states.pop(key, None)
