"""Worker ids, from which other processes of the same machine can determine whether a worker is alive."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def new_worker_id() -> str:
    """Return a new id for an engine in this process."""
    # Process ids are reused. Together with the start time they identify a process within one boot
    # and one PID namespace.
    return f"{_host_identity()}/{os.getpid()}.{_start_time(os.getpid()) or ''}/{secrets.token_hex(4)}"


def shorten(worker: str) -> str:
    """Return a short worker id for an operator: host, process and engine, such as `web1/27135/b2a3f58e`."""
    prefix, _, rest = worker.partition("/")
    process, _, engine = rest.partition("/")
    parts = (prefix.partition(":")[0], process.partition(".")[0], engine)
    return "/".join(part for part in parts if part)


def is_worker_dead(worker: str) -> bool:
    """Return whether a worker is known to be dead. For workers on other machines only the lease can tell."""
    prefix, _, rest = worker.partition("/")
    process = rest.partition("/")[0]
    pid, _, started = process.partition(".")
    # When in doubt it is alive: a wrong guess would run its jobs twice, a late one only delays them
    # until the lease expires.
    if prefix != _host_identity() or not started or not pid.isdigit():
        return False
    result = _start_time(int(pid))
    return _is_gone(int(pid)) if result is None else result != started


def _host_identity() -> str:
    """Return the identity of this boot and container: process ids are unique only within them."""
    return f"{socket.gethostname()}:{_read('/proc/sys/kernel/random/boot_id')[:8]}:{_namespace()}".replace("/", "_")


def _start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks; `""` for a zombie; None if it does not exist or /proc is
    unreadable.
    """
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) <= 19:
        return None
    return "" if fields[0] == "Z" else fields[19]


def _is_gone(pid: int) -> bool:
    """Return whether a process does not exist.

    A system may hide the details of other users' processes, but not this.
    """
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
