"""The loop a transport runs on, and being told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("portico")


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it exists."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask us to stop, where signals can be had: in the main thread, on systems that have them."""
    loop = asyncio.get_running_loop()
    handled = []
    for number in (signal.SIGTERM, signal.SIGINT):
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
