"""Programs of the system that are asked for something: by a list of arguments, never by a shell, and not for long."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Generator

from portico_services.system.errors import DamagedData, MissingDependency

# Not the PATH that the server was started with: these are programs of the system.
_FOLDERS = "/usr/bin:/bin:/usr/sbin:/sbin"
_ENVIRONMENT = {"PATH": _FOLDERS, "LC_ALL": "C.UTF-8", "TZ": "UTC"}

PROGRAM_SECONDS = 20.0
LONGEST_LINE = 2**20


def find(program: str) -> str | None:
    return shutil.which(program, path=_FOLDERS)


def lines(
    argv: list[str], *, seconds: float = PROGRAM_SECONDS, env: dict[str, str] | None = None
) -> Generator[bytes, None, None]:
    """The lines that a program writes, as long as they are read. It is stopped when its time is up."""
    program = find(argv[0])
    if program is None:
        raise MissingDependency(f"This needs the program {argv[0]!r}, which this machine does not have.")
    running = subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT | (env or {}),
        close_fds=True,
    )
    assert running.stdout is not None
    watch = threading.Timer(seconds, running.kill)
    watch.daemon = True
    watch.start()
    try:
        while line := running.stdout.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise DamagedData(f"{argv[0]} wrote a line of more than {LONGEST_LINE:,} bytes")
            yield line
    finally:
        watch.cancel()
        running.kill()
        running.stdout.close()
        running.wait()
