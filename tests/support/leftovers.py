"""What outlives the tests that made it. Processes are found by a mark in their environment, which is inherited, and
files because the temporary directory is one that the tests have for themselves."""

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
# Where the processes of one server meet: none of them knows that it is the last.
MEETING_PLACE = re.compile(r"portico-\d+-[0-9a-f]{12}").fullmatch


def mark() -> None:
    """From now on, whatever this process starts bears its number."""
    os.environ[MARK] = str(os.getpid())


def running() -> dict[int, str]:
    """The processes that bear our number, and their command lines. Linux only; elsewhere there are none to see."""
    wanted = f"{MARK}={os.getpid()}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or is not ours to see
        if wanted in environment.split(b"\0") and command and int(folder.name) != os.getpid():
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def end() -> dict[int, str]:
    """The processes that do not end by themselves within a moment. They are killed."""
    deadline = time.monotonic() + GOODBYE_SECONDS
    while (left := running()) and time.monotonic() < deadline:
        time.sleep(0.05)  # they are not our children, so they cannot be waited for
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return left


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """From now on, what this process and its children make for a while is made in here. The path is short, for the
    addresses of sockets."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    folder.chmod(0o711)  # some of it is another user's
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
    """What of ours is still there."""
    return sorted(path.name for path in folder.glob("portico-*") if not MEETING_PLACE(path.name))
