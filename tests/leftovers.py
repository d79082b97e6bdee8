"""Processes that outlive the tests that started them: found by a mark in their environment, which is inherited."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = "STARTED_BY_TESTS"
GOODBYE_SECONDS = 5.0


def mark() -> None:
    """From now on, whatever this process starts bears its number."""
    os.environ[MARK] = str(os.getpid())


def running() -> dict[int, str]:
    """The processes that bear our number, and their command lines. Linux only; elsewhere there are none to see."""
    wanted = f"{MARK}={os.getpid()}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or is not ours to see
        if wanted in environment.split(b"\0") and command and int(folder.name) != os.getpid():
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def end() -> dict[int, str]:
    """The processes that do not end by themselves within a moment. They are killed."""
    deadline = time.monotonic() + GOODBYE_SECONDS
    while (left := running()) and time.monotonic() < deadline:
        time.sleep(0.05)  # they are not our children, so they cannot be waited for
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left
