"""The last thing a worker does whose code cannot be interrupted: it saves the names of its session.

Python runs the handler of a signal between two of its own instructions, and a function in C that never looks for
signals does not let it come to the next one: `sum(range(10**10))`. A handler in C runs at once, in the middle of that
function. This one does what no such handler should: it runs Python. But nothing goes on after it, because the process
is about to be ended in any case. If it fails, no more is lost than would have been lost without it.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

SIGNAL = signal.SIGUSR1

_steps: list[Callable[[], None]] = []


def run(number: int = 0) -> None:
    """What the handler does. Code that is interrupted by it has this in its frames: see `Interpreter.is_answering`."""
    for step in _steps:
        step()


# Made before the jail: it is machine code of its own.
_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(run)
_set_handler = ctypes.CDLL(None).signal
_set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
_set_handler.restype = ctypes.c_void_p


def prepare(step: Callable[[], None]) -> None:
    """This is done when the signal comes. To be called again whenever code has run, which may have changed it."""
    _steps[:] = [step]
    _set_handler(SIGNAL, ctypes.cast(_handler, ctypes.c_void_p))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGNAL,))
