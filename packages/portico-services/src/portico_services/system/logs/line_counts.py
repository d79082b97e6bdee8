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

from portico_services.system.logs.continuations import INDENTS, continued_lines, last_sure_start
from portico_services.system.logs.text_file import PACKED, LogFile
from portico_services.system.path_access import OpenFile

MOST_FILES = 4096
_BLOCK = 2**18
_LARGEST_BLOCK = 2**22
_TAIL = 256
_CONTINUED = re.compile(rb"\n(?=[ \t\r\n])")

Identity = tuple[int, ...]


class Counted(Struct):
    """How many entries begin before an offset, and what stands there."""

    entries: int = 0
    upto: int = 0
    tail: int = 0
    total: int | None = None


class LineCounts:
    def __init__(self) -> None:
        self._kept: OrderedDict[Identity, Counted] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, file: OpenFile, deadline: float) -> int | None:
        """How many entries a file has; None if there is no time to count them. The next time goes on from there."""
        key = _identity(file)
        with self._lock:
            counted = self._kept.get(key, Counted())
        if file.path.endswith(PACKED) and counted.total is not None:
            return counted.total
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
        return counted.total if is_whole else None


def _identity(file: OpenFile) -> Identity:
    info = file.info
    if file.path.endswith(PACKED):
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
    return info.st_dev, info.st_ino


def _tail(part: LogFile, upto: int) -> int:
    begin = max(0, upto - _TAIL)
    return zlib.crc32(part.read(begin, upto - begin))


def _counted_on(part: LogFile, counted: Counted, deadline: float) -> tuple[Counted, bool]:
    """Count to the end of the file, or as far as there is time. What is stored ends where an entry surely begins, so
    that lines that are written later may still continue the last entry."""
    entries, at = counted.entries, counted.upto
    length = _BLOCK
    while part.size - at > length:
        if time.monotonic() > deadline:
            return _stored(part, entries, at), False
        data = part.read(at, length)
        end = last_sure_start(data)
        if end is None and length < _LARGEST_BLOCK:
            length *= 4
            continue
        end = len(data) if end is None else end
        entries += _entries_in(part, data[:end], at)
        at += end
        length = _BLOCK
    data = part.read(at, part.size - at)
    total = entries + _entries_in(part, data, at)
    if (end := last_sure_start(data)) is not None:
        entries += _entries_in(part, data[:end], at)
        at += end
    stored = _stored(part, entries, at)
    stored.total = total
    return stored, True


def _stored(part: LogFile, entries: int, at: int) -> Counted:
    return Counted(entries, at, _tail(part, at))


def _entries_in(part: LogFile, data: bytes, at: int) -> int:
    """Return how many entries begin in a block that stands at an offset of its file."""
    found = data.count(b"\n") - len(_CONTINUED.findall(data)) - data.endswith(b"\n")
    found -= sum(1 for _ in continued_lines(data))
    first = data[:1]
    if at == 0:
        return found + (first not in b"\r\n" if first else 0)
    # In the midst of a line that is longer than a block no entry begins.
    return found + (first not in INDENTS and part.read(at - 1, 1) == b"\n" if first else 0)


COUNTS = LineCounts()
