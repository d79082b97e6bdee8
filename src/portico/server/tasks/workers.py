"""Who works on a job: a name that tells, on the same machine, whether its bearer is still alive."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def new_worker() -> str:
    """This process, and one engine in it."""
    return f"{_place()}/{os.getpid()}.{_started(os.getpid()) or ''}/{secrets.token_hex(4)}"


def is_dead(worker: str) -> bool:
    """Whether a worker has ended. Only known of those that could be seen from here; others have a lease."""
    place, _, rest = worker.partition("/")
    process = rest.partition("/")[0]
    pid, _, started = process.partition(".")
    if place != _place() or not started or not pid.isdigit():
        return False
    found = _started(int(pid))
    return _is_gone(int(pid)) if found is None else found != started


def _place() -> str:
    """This machine since it was started, and this container in it: there alone does a process have its number."""
    return f"{socket.gethostname()}:{_read('/proc/sys/kernel/random/boot_id')[:8]}:{_namespace()}".replace("/", "_")


def _started(pid: int) -> str | None:
    """When a process was started, in the kernel's own count; empty when it has ended and nobody has noticed.

    None where there is none, or nobody to ask, or nobody who would tell.
    """
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) <= 19:
        return None
    return "" if fields[0] == "Z" else fields[19]


def _is_gone(pid: int) -> bool:
    """A system may hide the processes of other users, but not that there is one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
