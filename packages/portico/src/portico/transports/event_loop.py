"""The loop a transport runs on, being told to stop, and lifespans that are held open meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any

log = logging.getLogger("portico")

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it exists."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def on_signals(stop: Callable[[], None], numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> Iterator[None]:
    """SIGTERM and SIGINT ask us to stop, where signals can be had: in the main thread, on systems that have them."""
    loop = asyncio.get_running_loop()
    handled = []
    for number in numbers:
        try:
            loop.add_signal_handler(number, stop)
            handled.append(number)
        except (NotImplementedError, ValueError, RuntimeError):
            log.debug("signals are left alone")
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


@contextmanager
def before_signals(ending: Callable[[], None]) -> Iterator[None]:
    """Be told of SIGTERM and SIGINT besides who handles them: a server that runs us does."""
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def told(number: int, frame: Any) -> None:
        loop.call_soon_threadsafe(ending)
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            # It would have ended us, and does.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            # Where a loop handles it, that has its own way of being told, and is.
            before[number] = signal.signal(number, told)
    except ValueError:
        log.debug("signals are left alone: this is not the main thread")
    try:
        yield
    finally:
        for known, handler in before.items():
            if signal.getsignal(known) is told:
                signal.signal(known, handler)


def run(serve: Callable[[], Awaitable[None]], lifespan: Lifespan = nullcontext) -> None:
    """Serve in a loop of our own, inside the lifespan."""
    # What is there now stays for as long as the process does; the collector need not look at it again.
    gc.freeze()

    async def main() -> None:
        async with lifespan():
            await serve()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


class HeldLifespan:
    """A lifespan that is entered and left by a task of its own, so that it may be ended by any other one."""

    def __init__(self, lifespan: Lifespan) -> None:
        loop = asyncio.get_running_loop()
        # Fails with what the lifespan could not be entered for.
        self.entered: asyncio.Future[None] = loop.create_future()
        # What it has yielded.
        self.value: Any = None
        self._leaving = asyncio.Event()
        self.task = loop.create_task(self._hold(lifespan))

    async def _hold(self, lifespan: Lifespan) -> None:
        try:
            async with lifespan() as self.value:
                self.entered.set_result(None)
                await self._leaving.wait()
        except BaseException as failure:
            if self.entered.done():
                raise
            self.entered.set_exception(failure)

    def end(self) -> None:
        self._leaving.set()

    async def leave(self) -> None:
        """End it, and wait for that. What it raises then is raised here."""
        self.end()
        await self.task
