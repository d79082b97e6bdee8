"""Find processes and files that outlive their tests.

Processes are found by an inherited environment variable, and files in a temporary directory that only the tests use."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "STARTED_BY_TESTS"
GOODBYE_SECONDS = 5.0
# The socket folder of a server's workers: none of them knows that it is the last.
MEETING_PLACE = re.compile(r"portico-\d+-[0-9a-f]{12}").fullmatch


def start() -> None:
    """Mark all processes that this process starts from now on."""
    os.environ[MARK] = str(os.getpid())


def running() -> dict[int, str]:
    """Return the marked processes and their command lines. Linux only; empty elsewhere."""
    response = f"{MARK}={os.getpid()}".encode()
    results = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has exited, or belongs to another user
        if response in environment.split(b"\0") and command and int(folder.name) != os.getpid():
            results[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return results


def end() -> dict[int, str]:
    """Wait for the marked processes, then kill and return those that still run."""
    deadline = time.monotonic() + GOODBYE_SECONDS
    while (left := running()) and time.monotonic() < deadline:
        time.sleep(0.05)  # they are not our children, so `wait` does not work
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Use a new temporary directory for this process and its children. Its path is short, because addresses of unix
    sockets are limited."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    folder.chmod(0o711)  # programs of other users write into it
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder)


def files(folder: Path) -> list[str]:
    """Return the names of our files that remain."""
    return sorted(path.name for path in folder.glob("portico-*") if not MEETING_PLACE(path.name))
