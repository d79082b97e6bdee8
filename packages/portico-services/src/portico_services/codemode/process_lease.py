"""Identity and liveness of the process that holds a lease: checked on this host, by expiry time on others."""

from __future__ import annotations

import os
import time
from functools import lru_cache


def current_holder() -> str:
    """Return a unique identifier of this process: host, pid and start time."""
    return f"{_boot_id()} {os.getpid()} {_process_start_time(os.getpid())}"


def is_alive(holder: str, until: float) -> bool:
    """Return whether a process is alive. A process of another host counts as alive until `until`."""
    machine, _, rest = holder.partition(" ")
    if machine != _boot_id():
        return time.time() < until
    pid, _, started_at = rest.partition(" ")
    # The start time distinguishes a process from a later one with the same pid.
    return bool(started_at) and pid.isdigit() and _process_start_time(int(pid)) == started_at


@lru_cache(1)
def _boot_id() -> str:
    """Return an identifier of the current boot and of the pid namespace, in which pids are unique."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"


def _process_start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks, or an empty string if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The command name may contain spaces and parentheses, so split after the last parenthesis.
            state, *rest = file.read().rpartition(")")[2].split()
        # A zombie has ended, although its parent has not reaped it yet.
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        return ""
