"""Generate a journal of any length with systemd, so that every reader gets what it expects."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apt
from peers import NotInstalled, complaint

UNITS = ("sshd", "cron", "nginx", "kernel", "dbus", "postgres")


def make_journal(folder: Path, entries: int) -> Path:
    remote = apt.program("systemd-journal-remote", "systemd-journal-remote")
    export, path = folder / "export", folder / "made.journal"
    with export.open("wb") as file:
        file.writelines(exported(entries))
    done = subprocess.run([remote, f"--output={path}", str(export)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(complaint(done.stderr) or f"exit status {done.returncode}")
    return path


def exported(entries: int) -> Iterator[bytes]:
    """Return the entries in systemd's export format."""
    chance = random.Random(1)
    moment = 1_700_000_000_000_000
    for n in range(entries):
        moment += chance.randint(1, 100_000)
        unit = chance.choice(UNITS)
        yield (
            f"__REALTIME_TIMESTAMP={moment}\n__MONOTONIC_TIMESTAMP={n + 1}\n_BOOT_ID=4f2fd2ad2a2b4a2ea2e5e5b2ad7bd5ae\n"
            f"_HOSTNAME=maschine\n_MACHINE_ID=2dc07f7a727e4b46a1927eab9d6cd4b7\n_TRANSPORT=syslog\n_UID=0\n_GID=0\n"
            f"PRIORITY={chance.randint(0, 7)}\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER={unit}\n_COMM={unit}\n"
            f"_EXE=/usr/sbin/{unit}\n_CMDLINE=/usr/sbin/{unit} -D\n_SYSTEMD_UNIT={unit}.service\n"
            f"_PID={chance.randint(1, 5000)}\nMESSAGE=request {n} of {unit} took {chance.randint(1, 999)} ms\n\n"
        ).encode()
