"""Processes and the machine, in the columns that osquery uses for them (`processes`, `system_info`, `os_version`)."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Callable
from typing import Any

from portico_services.system.errors import package
from portico_services.system.results import MachineInfo, Order, ProcessInfo

# What is passed on a command line for everybody to see, and should not be.
_SECRETS = re.compile(
    r"((?:^|[\s&?])-{0,2}[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|credential)[\w-]*(?:=|\s+))(\S+)",
    re.IGNORECASE,
)
_LETTERS = {
    "running": "R", "sleeping": "S", "disk-sleep": "D", "stopped": "T", "tracing-stop": "t", "zombie": "Z",
    "dead": "X", "idle": "I", "parked": "P", "waking": "W", "locked": "L", "waiting": "W", "suspended": "T",
}  # fmt: skip


def processes(name: str | None, order: Order, limit: int | None) -> tuple[list[ProcessInfo], int]:
    """The processes whose name or command has a text in it, and how many there are of them."""
    psutil = package("psutil", "Listing processes")
    wanted = (name or "").casefold()
    found = [one for one in map(_of, psutil.process_iter()) if one is not None]
    found = [one for one in found if wanted in one.name.casefold() or wanted in (one.cmdline or "").casefold()]
    found.sort(key=_ORDERS[order])
    return found[:limit], len(found)


_ORDERS: dict[Order, Callable[[ProcessInfo], Any]] = {
    "pid": lambda one: one.pid,
    "cpu": lambda one: -((one.user_time or 0) + (one.system_time or 0)),
    "memory": lambda one: -(one.resident_size or 0),
}


def _of(process: Any) -> ProcessInfo | None:
    psutil = package("psutil", "Listing processes")
    failures = (psutil.Error, OSError, AttributeError, NotImplementedError)
    try:
        with process.oneshot():
            found = ProcessInfo(process.pid, process.name())
            for fill in (_fill_command, _fill_ids, _fill_usage, _fill_rest):
                try:
                    fill(process, found)
                except failures:
                    continue  # another user's
            return found
    except failures:
        return None  # it has ended


def _fill_command(process: Any, found: ProcessInfo) -> None:
    found.path = process.exe() or None
    found.on_disk = int(os.path.exists(found.path)) if found.path else -1
    found.cmdline = without_secrets(" ".join(process.cmdline()))


def _fill_ids(process: Any, found: ProcessInfo) -> None:
    found.username = process.username()
    found.uid, found.euid, found.suid = process.uids()
    found.gid, found.egid, found.sgid = process.gids()


def _fill_usage(process: Any, found: ProcessInfo) -> None:
    memory, times = process.memory_info(), process.cpu_times()
    found.resident_size, found.total_size = memory.rss, memory.vms
    found.user_time, found.system_time = int(times.user * 1000), int(times.system * 1000)


def _fill_rest(process: Any, found: ProcessInfo) -> None:
    found.state = _LETTERS.get(process.status(), "?")
    found.start_time = int(process.create_time())
    found.parent = process.ppid()
    found.threads = process.num_threads()
    found.nice = process.nice()
    counters = process.io_counters()
    found.disk_bytes_read, found.disk_bytes_written = counters.read_bytes, counters.write_bytes


def without_secrets(command: str) -> str:
    """A command line without the values that its own words call secret."""
    return _SECRETS.sub(r"\1***", command)


def machine() -> MachineInfo:
    psutil = package("psutil", "Looking at the machine")
    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(os.path.abspath(os.sep))
    system = _os()
    return MachineInfo(
        hostname=socket.gethostname(),
        computer_name=platform.node(),
        cpu_type=platform.machine(),
        cpu_brand=_line("/proc/cpuinfo", "model name") or platform.processor(),
        cpu_physical_cores=psutil.cpu_count(logical=False),
        cpu_logical_cores=psutil.cpu_count(),
        physical_memory=memory.total,
        available_memory=memory.available,
        hardware_vendor=_line("/sys/class/dmi/id/sys_vendor"),
        hardware_model=_line("/sys/class/dmi/id/product_name"),
        os_name=system["NAME"],
        os_version=system["VERSION"],
        os_platform=system["ID"],
        os_build=platform.release(),
        os_arch=platform.machine(),
        uptime_seconds=max(0, int(time.time() - psutil.boot_time())),
        load_average=[round(load, 2) for load in psutil.getloadavg()],
        disk_total=disk.total,
        disk_free=disk.free,
    )


def _os() -> dict[str, str]:
    found = {"NAME": platform.system(), "VERSION": platform.version(), "ID": platform.system().lower()}
    try:
        found |= {name: value for name, value in platform.freedesktop_os_release().items() if name in found}
    except OSError:
        pass
    return found


def _line(path: str, label: str = "") -> str:
    """A line of a file of the kernel's own: what stands behind a label, or the first."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(label):
                    return line.partition(":")[2].strip() if label else line.strip()
    except OSError:
        pass
    return ""
