"""Work in a thread of its own, which can be told to stop. There is no signal to a thread, but there are exceptions."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from portico_services.livepython.sandbox.worker import GRACE_SECONDS, INTERRUPT_SECONDS

T = TypeVar("T")


class InterruptibleThread(Generic[T]):
    """`done` has the outcome; None if there is none, because the work was interrupted.

    Python raises KeyboardInterrupt in the thread as soon as that runs Python's own code again: a loop is stopped, a
    call into C that waits is not, before it comes back. The thread has no other work that could be met.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[T | None] = self._loop.create_future()
        self._outcome: T | None = None
        # Held while the thread is interrupted, so that it does not end meanwhile and leave its number to another.
        self._fence = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="portico-attached", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            try:
                self._outcome = self._work()
            finally:
                self._end()
        except KeyboardInterrupt:
            self._end()

    def _end(self) -> None:
        with self._fence:
            self._ended = True
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            pass  # the loop has gone, and the caller with it

    def _tell(self) -> None:
        if not self.done.done():
            self.done.set_result(self._outcome)

    def stop(self, wake: Callable[[], None], waited: float = 0.0) -> None:
        """Interrupt it, again and again for a while: it may have caught the first. `wake` ends what it waits for."""
        if self.done.done() or waited >= GRACE_SECONDS:
            return
        self._interrupt()
        wake()
        self._loop.call_later(INTERRUPT_SECONDS, self.stop, wake, waited + INTERRUPT_SECONDS)

    def _interrupt(self) -> None:
        with self._fence:
            if not self._ended and self._thread.ident is not None:
                number = ctypes.c_ulong(self._thread.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(KeyboardInterrupt))
