"""Worker threads for bodies that block: few, started when they are needed, never in the way of the process's end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from queue import SimpleQueue

MOST_THREADS = min(32, (os.cpu_count() or 1) + 4)


class _Errand(Struct):
    fn: Callable[..., Any]
    args: Sequence[Any]
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Threads:
    """The standard pool makes a second future for each call and waits for its threads at exit; this does neither."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self.most = most
        self._line: SimpleQueue[_Errand] | None = None
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0

    async def run(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        # Before there is a thread that could look for it.
        queue = self._queue
        self._make_room()
        queue.put(_Errand(fn, args, copy_context(), loop, future))
        return await future

    @property
    def _queue(self) -> SimpleQueue[_Errand]:
        """Made with the first errand: many servers have none."""
        if self._line is None:
            from queue import SimpleQueue

            self._line = SimpleQueue()
        return self._line

    def _make_room(self) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._started < self.most:
                self._started += 1
                threading.Thread(target=self._work, name=f"portico-{self._started}", daemon=True).start()

    def _work(self) -> None:
        while True:
            errand = self._queue.get()
            self._do(errand)
            del errand
            with self._lock:
                # A thread is idle only if nobody has queued more than the threads can take.
                if self._queue.empty():
                    self._idle += 1

    def _do(self, errand: _Errand) -> None:
        if errand.future.cancelled():
            return  # nobody waits for it any more, and it has not begun
        value: Any = None
        failure: BaseException | None = None
        try:
            value = errand.context.run(errand.fn, *errand.args)
        except StopIteration as stop:
            # A future cannot hold one: it would end the coroutine that waits for it.
            failure = RuntimeError("the body raised StopIteration")
            failure.__cause__ = stop
        except BaseException as raised:
            failure = raised
        try:
            errand.loop.call_soon_threadsafe(_deliver, errand.future, value, failure)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits any more


def _deliver(future: asyncio.Future[Any], value: Any, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)
