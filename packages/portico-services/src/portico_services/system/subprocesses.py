"""System programs, run with an argument list (never through a shell) and a time limit."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Generator

from portico_services.system.errors import CorruptData, MissingDependency

# A fixed search path instead of the server's PATH: only programs of the system may be run.
_SEARCH_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
# A fixed locale and time zone make the output parseable; nothing else is inherited, since it may contain secrets.
_ENVIRONMENT = {"PATH": _SEARCH_PATH, "LC_ALL": "C.UTF-8", "TZ": "UTC"}

# Generous, because `log show` on macOS is slow for a large window.
COMMAND_TIMEOUT_SECONDS = 20.0
MAX_LINE_BYTES = 2**20


def find_command(program: str) -> str | None:
    """Return the path of a system program, or None if it is not installed."""
    return shutil.which(program, path=_SEARCH_PATH)


def run_lines(
    argv: list[str], *, seconds: float = COMMAND_TIMEOUT_SECONDS, env: dict[str, str] | None = None
) -> Generator[bytes, None, None]:
    """Yield the lines that a program writes. It is killed after the time limit, or when the generator is closed."""
    program = find_command(argv[0])
    if program is None:
        raise MissingDependency(f"The program {argv[0]!r} is required but not installed on this machine.")
    running = subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT | (env or {}),
        close_fds=True,
    )
    assert running.stdout is not None
    # A timer instead of a timeout: the blocking read ends when the program is killed.
    watch = threading.Timer(seconds, running.kill)
    watch.daemon = True
    watch.start()
    try:
        while line := running.stdout.readline(MAX_LINE_BYTES):
            # `readline` returns a part of a longer line, which must not be parsed as a whole one.
            if len(line) == MAX_LINE_BYTES:
                raise CorruptData(f"{argv[0]} wrote a line longer than {MAX_LINE_BYTES:,} bytes")
            yield line
    finally:
        watch.cancel()
        running.kill()
        running.stdout.close()
        # Reap the child, or it would stay as a zombie.
        running.wait()
