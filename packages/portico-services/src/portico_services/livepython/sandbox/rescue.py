"""Last resort for a worker whose code cannot be interrupted: save the names of its session.

Python runs signal handlers between bytecode instructions, so a C function that never checks for signals delays them
indefinitely: `sum(range(10**10))`. A handler in C runs immediately, in the middle of that function. This one does what
no such handler should: it runs Python. But nothing continues after it, because the process is about to be killed
anyway. If it fails, no more is lost than without it.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable

RESCUE_SIGNAL = signal.SIGUSR1

_steps: list[Callable[[], None]] = []


def handle_signal(number: int = 0) -> None:
    """Run the installed step. `Interpreter.is_handling` recognizes this frame in the stack."""
    for step in _steps:
        step()


# Created before the sandbox is entered, since it allocates executable memory.
_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(handle_signal)
_set_handler = ctypes.CDLL(None).signal
_set_handler.argtypes = [ctypes.c_int, ctypes.c_void_p]
_set_handler.restype = ctypes.c_void_p


def install_handler(step: Callable[[], None]) -> None:
    """Install the step to run on the signal. Must be called again after code has run, which may have replaced it."""
    _steps[:] = [step]
    _set_handler(RESCUE_SIGNAL, ctypes.cast(_handler, ctypes.c_void_p))
    # Code may have blocked the signal, which would disable the rescue.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (RESCUE_SIGNAL,))
