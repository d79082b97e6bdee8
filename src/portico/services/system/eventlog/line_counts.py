"""How many entries a text file has: the ends of its lines are counted, and nothing is read.

What was counted is kept by the file's identity, and goes on where it ended when the file has grown.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections import OrderedDict

from msgspec import Struct

from portico.services.system.containment import OpenFile
from portico.services.system.eventlog.textfile import PACKED, LogFile

MOST_FILES = 4096
_BLOCK = 2**18
_TAIL = 256
_CONTINUED = re.compile(rb"\n(?=[ \t\r\n])")

Identity = tuple[int, ...]


class Counted(Struct):
    """How many entries begin before an offset, and what stands there."""

    entries: int = 0
    upto: int = 0
    tail: int = 0


class LineCounts:
    def __init__(self) -> None:
        self._kept: OrderedDict[Identity, Counted] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, file: OpenFile, deadline: float) -> int | None:
        """How many entries a file has; None if there is no time to count them. The next time goes on from there."""
        key = _identity(file)
        with self._lock:
            counted = self._kept.get(key, Counted())
        if file.path.endswith(PACKED) and counted.upto:
            return counted.entries
        part = LogFile(file)
        if not part.is_text:
            return 0
        if part.size < counted.upto or _tail(part, counted.upto) != counted.tail:
            counted = Counted()  # it was cut, or written anew
        counted, is_whole = _counted_on(part, counted, deadline)
        with self._lock:
            self._kept[key] = counted
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_FILES:
                self._kept.popitem(last=False)
        return counted.entries if is_whole else None


def _identity(file: OpenFile) -> Identity:
    info = file.info
    if file.path.endswith(PACKED):
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
    return info.st_dev, info.st_ino


def _tail(part: LogFile, upto: int) -> int:
    begin = max(0, upto - _TAIL)
    return zlib.crc32(part.read(begin, upto - begin))


def _counted_on(part: LogFile, counted: Counted, deadline: float) -> tuple[Counted, bool]:
    """Counted to the end of the file, or as far as there was time.

    An entry begins with the file, or behind a line's end that nothing follows which would go on with the last entry.
    """
    entries, at = counted.entries, counted.upto
    if at == 0 and part.size:
        entries = int(part.read(0, 1) not in b"\r\n")
    while at + 1 < part.size:
        if time.monotonic() > deadline:
            return Counted(entries, at, _tail(part, at)), False
        # One byte more than is counted: the one that follows.
        data = part.read(at, _BLOCK + 1)
        if len(data) < 2:
            break
        entries += data.count(b"\n", 0, len(data) - 1) - len(_CONTINUED.findall(data))
        at += len(data) - 1
    return Counted(entries, at, _tail(part, at)), True


COUNTS = LineCounts()
