"""Which process works on something, and whether it still can: one on this machine is looked at, others say so."""

from __future__ import annotations

import os
import time
from functools import lru_cache


def own() -> str:
    """This process, so that no other is ever taken for it: where it runs, its number, and when it began."""
    return f"{_machine()} {os.getpid()} {_begun(os.getpid())}"


def is_alive(holder: str, until: float) -> bool:
    """Whether a process is there. One of another machine is until the time that it has named."""
    machine, _, rest = holder.partition(" ")
    if machine != _machine():
        return time.time() < until
    pid, _, begun = rest.partition(" ")
    return bool(begun) and pid.isdigit() and _begun(int(pid)) == begun


@lru_cache(1)
def _machine() -> str:
    """The machine since it was started, and in it the space that the numbers of processes are counted in."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"


def _begun(pid: int) -> str:
    """When a process began, as the kernel counts; nothing if there is none any more."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *rest = file.read().rpartition(")")[2].split()
        # A process that has ended, and whose parent has not asked about it yet, does nothing any more.
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        return ""
