"""Reading chunks of Windows event logs in another process.

The package `evtx` can be made to run for ever by a damaged chunk, and nothing in this process could stop it. A child
can be stopped. One is kept for the next question, as starting it takes longer than most questions.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from portico.services.system.errors import DamagedData, MissingDependency

REPLY_SECONDS = 3.0
LARGEST_ANSWER = 256 * 2**20
MOST_IDLE = 2

_CHILD = str(Path(__file__).with_name("evtx_child.py"))

Records = tuple[list[dict[str, Any]], list[str]]


class EvtxReader:
    """A child, and the one way to talk to it."""

    def __init__(self) -> None:
        if find_spec("evtx") is None:
            raise MissingDependency(
                "Reading a Windows event log file needs the Python package 'evtx', which is not installed here: "
                "pip install 'portico[system]'"
            )
        self._child = subprocess.Popen(
            [sys.executable, "-I", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def records(self, file: bytes) -> Records:
        """The records of a file of one chunk. Damaged if it takes too long, or the child did not survive it."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        watch = threading.Timer(REPLY_SECONDS, child.kill)
        watch.daemon = True
        watch.start()
        try:
            child.stdin.write(len(file).to_bytes(4, "big") + file)
            child.stdin.flush()
            length = int.from_bytes(child.stdout.read(4), "big")
            answer = child.stdout.read(length) if 0 < length <= LARGEST_ANSWER else b""
            found: Records = msgspec.json.decode(answer, type=Records)
            return found
        except (OSError, msgspec.DecodeError):
            raise DamagedData("it cannot be read, or not in any reasonable time") from None
        finally:
            watch.cancel()

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


_idle: list[EvtxReader] = []
_lock = threading.Lock()


def records(file: bytes) -> Records:
    """The records of a file of one chunk, read by a child that has nothing else to do."""
    with _lock:
        reader = _idle.pop() if _idle else None
    reader = reader or EvtxReader()
    try:
        found = reader.records(file)
    except BaseException:
        reader.close()
        raise
    with _lock:
        if len(_idle) < MOST_IDLE:
            _idle.append(reader)
            return found
    reader.close()
    return found


@atexit.register
def close() -> None:
    """Let the children go. They are started again when they are needed."""
    with _lock:
        readers = _idle[:]
        _idle.clear()
    for reader in readers:
        reader.close()
