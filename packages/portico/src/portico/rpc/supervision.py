"""Tasks and threads that run for as long as a server does: a failure is logged, counted, and followed by a restart.

Probes, metrics and `portico gateway status` read `states()`, so that a task that cannot do its work is visible.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

log = logging.getLogger("portico.supervision")

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
# A task that ran for this long before it failed is not failing repeatedly.
STABLE_SECONDS = 60.0
# From this many consecutive failures on, a task that is backing off makes the server not ready.
FAILURES_UNTIL_NOT_READY = 3
MAX_ERROR_CHARS = 300


class SupervisedState(Struct):
    """What is known of a supervised task or thread. `error` is that of the last failure."""

    name: str
    restarts: int = 0
    # Consecutive failures; zero once it works again.
    failures: int = 0
    error: str = ""
    # Seconds since the epoch, or None if it has never failed.
    failed_at: float | None = None
    backing_off: bool = False

    @property
    def is_failing(self) -> bool:
        """Whether it fails repeatedly, and waits for its next try."""
        return self.backing_off and self.failures >= FAILURES_UNTIL_NOT_READY

    def fail(self, failure: BaseException, ran_seconds: float = 0.0) -> float:
        """Record and log a failure. Return the seconds to wait before the next try."""
        self.failures = 1 if ran_seconds >= STABLE_SECONDS else self.failures + 1
        self.restarts += 1
        self.failed_at = time.time()
        self.error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_CHARS]
        self.backing_off = True
        pause: float = min(FIRST_BACKOFF_SECONDS * 2 ** min(self.failures - 1, 16), MAX_BACKOFF_SECONDS)
        log.error(
            "%s failed (%d times in a row) and is restarted in %g s", self.name, self.failures, pause, exc_info=failure
        )
        return pause

    def recover(self) -> None:
        """Record that it works."""
        self.failures, self.backing_off = 0, False

    def report(self) -> dict[str, Any]:
        """Return the state for `portico gateway status`."""
        return {**asdict(self), "state": "backing off" if self.backing_off else "running"}


# All that are running in this process. Threads add themselves too, so changes are made under a lock.
_states: dict[int, SupervisedState] = {}
_lock = threading.Lock()


def states() -> list[SupervisedState]:
    """Return the states of all supervised tasks and threads of this process, by name."""
    with _lock:
        return sorted(_states.values(), key=lambda state: state.name)


def failing() -> dict[str, str]:
    """Return why the server is not ready: the tasks that fail repeatedly, and since when each waits for its next try.

    Probes may read it without a token, so the errors themselves are left to the log and the operator's status page.
    """
    return {
        state.name: f"failing, last at {time.strftime('%H:%M:%S', time.localtime(state.failed_at))}"
        for state in states()
        if state.is_failing
    }


def metrics() -> list[str]:
    """Return lines in the text format of Prometheus. Tasks of the same name are one series, as are those of workers."""
    totals: dict[str, list[int]] = {}
    for state in states():
        name = state.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        total = totals.setdefault(name, [0, 0])
        total[0] += state.restarts
        total[1] += state.backing_off
    lines = []
    for place, (metric, kind) in enumerate(_METRICS):
        lines.append(f"# TYPE {metric} {kind}")
        lines += [f'{metric}{{task="{name}"}} {total[place]}' for name, total in totals.items()]
    return lines


_METRICS = (("portico_task_restarts_total", "counter"), ("portico_task_backing_off", "gauge"))


@contextmanager
def observed(name: str) -> Iterator[SupervisedState]:
    """Register a task that handles its own failures. It reports them to the state: `fail` and `recover`."""
    state = SupervisedState(name)
    key = _add(state)
    try:
        yield state
    finally:
        _remove(key)


class BackgroundTasks:
    """The supervised tasks of one owner. Closing it cancels them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        until: tuple[type[BaseException], ...] = (),
    ) -> asyncio.Task[None]:
        """Run `work` until it returns, or raises one of `until`. Any other failure is followed by a restart."""

        async def supervise(state: SupervisedState) -> None:
            while True:
                began = time.monotonic()
                try:
                    await work()
                    return
                except until:
                    return
                except Exception as failure:
                    pause = state.fail(failure, time.monotonic() - began)
                await asyncio.sleep(pause)
                state.backing_off = False

        return self._start(name, supervise)

    def repeat(
        self, name: str, turn: Callable[[], Awaitable[Any] | None], seconds: float, *, delayed: bool = True
    ) -> asyncio.Task[None]:
        """Call `turn` every `seconds`, for the first time after as long. A turn that fails is tried again later."""

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
                    pause = max(seconds, state.fail(failure))

        return self._start(name, supervise)

    def _start(
        self, name: str, supervise: Callable[[SupervisedState], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        async def observe() -> None:
            with observed(name) as state:
                await supervise(state)

        task = asyncio.get_running_loop().create_task(observe(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel the tasks, without waiting for their ends."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel the tasks, and wait for their ends."""
        tasks = list(self._tasks)
        self.cancel()
        if tasks:
            await asyncio.wait(tasks)


def run_in_thread(name: str, work: Callable[[], None], stopping: threading.Event) -> threading.Thread:
    """Run `work` in a thread until it returns or `stopping` is set; restart it after a failure."""

    def supervise() -> None:
        with observed(name) as state:
            while not stopping.is_set():
                began = time.monotonic()
                try:
                    work()
                    return
                except Exception as failure:
                    pause = state.fail(failure, time.monotonic() - began)
                stopping.wait(pause)
                state.backing_off = False

    thread = threading.Thread(target=supervise, name=name, daemon=True)
    thread.start()
    return thread


def _add(state: SupervisedState) -> int:
    with _lock:
        _states[id(state)] = state
    return id(state)


def _remove(key: int) -> None:
    with _lock:
        _states.pop(key, None)
