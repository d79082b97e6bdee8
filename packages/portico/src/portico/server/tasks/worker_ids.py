"""Names of workers, by which another process of the same machine can tell whether a worker is still alive."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def new_worker() -> str:
    """A new name: this process, and one engine in it."""
    return f"{_place()}/{os.getpid()}.{_started(os.getpid()) or ''}/{secrets.token_hex(4)}"


def shorten(worker: str) -> str:
    """Return a worker's name for an operator: its host, its process and which engine, such as `web1/27135/b2a3f58e`."""
    place, _, rest = worker.partition("/")
    process, _, engine = rest.partition("/")
    parts = (place.partition(":")[0], process.partition(".")[0], engine)
    return "/".join(part for part in parts if part)


def is_dead(worker: str) -> bool:
    """Whether a worker is known to have ended. Of those on other machines only the lease can tell."""
    place, _, rest = worker.partition("/")
    process = rest.partition("/")[0]
    pid, _, started = process.partition(".")
    if place != _place() or not started or not pid.isdigit():
        return False
    found = _started(int(pid))
    return _is_gone(int(pid)) if found is None else found != started


def _place() -> str:
    """This boot of this machine, and the container: process ids are unique only within them."""
    return f"{socket.gethostname()}:{_read('/proc/sys/kernel/random/boot_id')[:8]}:{_namespace()}".replace("/", "_")


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks; `""` for a zombie; None if it does not exist or /proc is unreadable."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) <= 19:
        return None
    return "" if fields[0] == "Z" else fields[19]


def _is_gone(pid: int) -> bool:
    """Whether there is no such process. A system may hide the details of other users' processes, but not this."""
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
