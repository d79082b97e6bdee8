"""Event loops of transports, stop signals, and lifespans."""

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


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def handle_signals(
    stop: Callable[[], None], signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT, where signals are available: in the main thread of a POSIX system."""
    loop = asyncio.get_running_loop()
    handled = []
    for number in signals:
        try:
            loop.add_signal_handler(number, stop)
            handled.append(number)
        except (NotImplementedError, ValueError, RuntimeError):
            log.debug("signal handlers are not available")
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


@contextmanager
def chain_signal_handlers(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on SIGTERM and SIGINT in addition to existing handlers, such as those of an ASGI server."""
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def handle_signal(number: int, frame: Any) -> None:
        loop.call_soon_threadsafe(callback)
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            # The default action would have ended the process, so repeat the signal with it.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            # A handler installed through the event loop has its own wakeup mechanism and still runs.
            before[number] = signal.signal(number, handle_signal)
    except ValueError:
        log.debug("signal handlers are not available outside the main thread")
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            if signal.getsignal(signal_number) is handle_signal:
                signal.signal(signal_number, handler)


def run_with_lifespan(serve: Callable[[], Awaitable[None]], lifespan: Lifespan = nullcontext) -> None:
    """Run `serve` in a new event loop, inside the lifespan."""
    # Objects that exist now live as long as the process; exclude them from garbage collection.
    gc.freeze()

    async def main() -> None:
        async with lifespan():
            await serve()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


class LifespanTask:
    """Lifespan that is entered and exited by its own task, so that any task may end it."""

    def __init__(self, lifespan: Lifespan) -> None:
        loop = asyncio.get_running_loop()
        # Fails with the exception that prevented entering the lifespan.
        self.entered: asyncio.Future[None] = loop.create_future()
        # The value that the lifespan yielded.
        self.value: Any = None
        self._exit_requested = asyncio.Event()
        self.task = loop.create_task(self._run(lifespan))

    async def _run(self, lifespan: Lifespan) -> None:
        try:
            async with lifespan() as self.value:
                if self.entered.cancelled():
                    # The task that waited was cancelled, and nobody else requests the exit.
                    return
                self.entered.set_result(None)
                await self._exit_requested.wait()
        except BaseException as failure:
            if self.entered.done():
                raise
            self.entered.set_exception(failure)

    def request_exit(self) -> None:
        self._exit_requested.set()

    async def exit(self) -> None:
        """Exit the lifespan and wait for it. Raises what the lifespan raises."""
        self.request_exit()
        await self.task
