"""Processes and system information, in the columns of osquery (`processes`, `system_info`, `os_version`)."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Callable
from typing import Any

from portico_services.system.errors import require_package
from portico_services.system.results import MachineInfo, ProcessInfo, ProcessSort

# Secrets on command lines, which every user of the machine can read.
_SECRETS = re.compile(
    r"((?:^|[\s&?])-{0,2}[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|credential)[\w-]*(?:=|\s+))(\S+)",
    re.IGNORECASE,
)
# The letters of `ps`, as osquery reports them.
_STATE_LETTERS = {
    "running": "R", "sleeping": "S", "disk-sleep": "D", "stopped": "T", "tracing-stop": "t", "zombie": "Z",
    "dead": "X", "idle": "I", "parked": "P", "waking": "W", "locked": "L", "waiting": "W", "suspended": "T",
}  # fmt: skip


def list_processes(name: str | None, order: ProcessSort, limit: int | None) -> tuple[list[ProcessInfo], int]:
    """Return the processes whose name or command line contains a text, and their total number."""
    psutil = require_package("psutil", "Listing processes")
    folded_name = (name or "").casefold()
    result = [item for item in map(_to_process_info, psutil.process_iter()) if item is not None]
    result = [
        item for item in result if folded_name in item.name.casefold() or folded_name in (item.cmdline or "").casefold()
    ]
    result.sort(key=_SORT_KEYS[order])
    return result[:limit], len(result)


_SORT_KEYS: dict[ProcessSort, Callable[[ProcessInfo], Any]] = {
    "pid": lambda process: process.pid,
    "cpu": lambda process: -((process.user_time or 0) + (process.system_time or 0)),
    "memory": lambda process: -(process.resident_size or 0),
}


def _to_process_info(process: Any) -> ProcessInfo | None:
    psutil = require_package("psutil", "Listing processes")
    failures = (psutil.Error, OSError, AttributeError, NotImplementedError)
    try:
        with process.oneshot():
            process_info = ProcessInfo(process.pid, process.name())
            # Separately: a process may allow reading some of its values only.
            for fill in (_fill_command, _fill_ids, _fill_usage, _fill_rest):
                try:
                    fill(process, process_info)
                except failures:
                    continue  # Access denied: the process belongs to another user.
            return process_info
    except failures:
        return None  # The process has ended.


def _fill_command(process: Any, info: ProcessInfo) -> None:
    info.path = process.exe() or None
    info.on_disk = int(os.path.exists(info.path)) if info.path else -1
    info.cmdline = redact_command_line(" ".join(process.cmdline()))


def _fill_ids(process: Any, info: ProcessInfo) -> None:
    info.username = process.username()
    info.uid, info.euid, info.suid = process.uids()
    info.gid, info.egid, info.sgid = process.gids()


def _fill_usage(process: Any, info: ProcessInfo) -> None:
    memory, times = process.memory_info(), process.cpu_times()
    info.resident_size, info.total_size = memory.rss, memory.vms
    info.user_time, info.system_time = int(times.user * 1000), int(times.system * 1000)


def _fill_rest(process: Any, info: ProcessInfo) -> None:
    info.state = _STATE_LETTERS.get(process.status(), "?")
    info.start_time = int(process.create_time())
    info.parent = process.ppid()
    info.threads = process.num_threads()
    info.nice = process.nice()
    counters = process.io_counters()
    info.disk_bytes_read, info.disk_bytes_written = counters.read_bytes, counters.write_bytes


def redact_command_line(command: str) -> str:
    """Return a command line with the values of secret-looking options redacted."""
    return _SECRETS.sub(r"\1***", command)


def machine_info() -> MachineInfo:
    psutil = require_package("psutil", "System information")
    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(os.path.abspath(os.sep))
    system = _os()
    return MachineInfo(
        hostname=socket.gethostname(),
        computer_name=platform.node(),
        cpu_type=platform.machine(),
        cpu_brand=_read_kernel_value("/proc/cpuinfo", "model name") or platform.processor(),
        cpu_physical_cores=psutil.cpu_count(logical=False),
        cpu_logical_cores=psutil.cpu_count(),
        physical_memory=memory.total,
        available_memory=memory.available,
        hardware_vendor=_read_kernel_value("/sys/class/dmi/id/sys_vendor"),
        hardware_model=_read_kernel_value("/sys/class/dmi/id/product_name"),
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
    result = {"NAME": platform.system(), "VERSION": platform.version(), "ID": platform.system().lower()}
    try:
        result |= {name: value for name, value in platform.freedesktop_os_release().items() if name in result}
    except OSError:
        pass
    return result


def _read_kernel_value(path: str, label: str = "") -> str:
    """Return the value of a label in a kernel file, or its first line without a label."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(label):
                    return line.partition(":")[2].strip() if label else line.strip()
    except OSError:
        pass
    return ""
