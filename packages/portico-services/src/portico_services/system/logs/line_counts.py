"""Entry counts of text files, from the number of line ends, without parsing.

Counts are cached by file identity and continued when the file has grown.
"""

from __future__ import annotations

import re
import time
import zlib

from msgspec import Struct

from portico.caching import LruCache
from portico_services.system.logs.continuations import INDENTS, continued_lines, last_sure_start
from portico_services.system.logs.text_file import COMPRESSED_SUFFIXES, TextLogFile
from portico_services.system.path_access import OpenFile

# A count is a few numbers; recounting a large file takes seconds.
MAX_CACHED_FILES = 4096
_BLOCK_BYTES = 2**18
_MAX_BLOCK_BYTES = 2**22
# Bytes before the counted offset that recognize a file that was rewritten in place.
_TAIL = 256
_CONTINUED = re.compile(rb"\n(?=[ \t\r\n])")

Identity = tuple[int, ...]


class LineCount(Struct):
    """Number of entries that start before an offset, with a checksum of the bytes there."""

    entries: int = 0
    upto: int = 0
    tail: int = 0
    total: int | None = None


class LineCountCache:
    """Cache of entry counts."""

    def __init__(self) -> None:
        self._cache: LruCache[Identity, LineCount] = LruCache(MAX_CACHED_FILES)

    def count(self, file: OpenFile, deadline: float) -> int | None:
        """Return the number of entries of a file, or None on timeout; the next call continues."""
        key = _identity(file)
        counted = self._cache.get(key, LineCount())
        if file.path.endswith(COMPRESSED_SUFFIXES) and counted.total is not None:
            return counted.total
        part = TextLogFile(file)
        if not part.is_text:
            return 0
        # A cached count is only continued if the bytes before it are still the same.
        if part.size < counted.upto or _read_tail(part, counted.upto) != counted.tail:
            counted = LineCount()  # The file was truncated or rewritten.
        counted, is_whole = _continue_count(part, counted, deadline)
        self._cache[key] = counted
        return counted.total if is_whole else None


def _identity(file: OpenFile) -> Identity:
    info = file.info
    if file.path.endswith(COMPRESSED_SUFFIXES):
        # A compressed file is complete, so any change makes it another file. A plain log grows under the same inode.
        return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
    return info.st_dev, info.st_ino


def _read_tail(part: TextLogFile, upto: int) -> int:
    begin = max(0, upto - _TAIL)
    return zlib.crc32(part.read(begin, upto - begin))


def _continue_count(part: TextLogFile, counted: LineCount, deadline: float) -> tuple[LineCount, bool]:
    """Count to the end of the file, or until the deadline. The stored count ends where an entry certainly starts,
    because later lines may still continue the last entry.
    """
    entries, at = counted.entries, counted.upto
    length = _BLOCK_BYTES
    while part.size - at > length:
        if time.monotonic() > deadline:
            return _to_line_count(part, entries, at), False
        data = part.read(at, length)
        end = last_sure_start(data)
        if end is None and length < _MAX_BLOCK_BYTES:
            length *= 4
            continue
        end = len(data) if end is None else end
        entries += _entries_in(part, data[:end], at)
        at += end
        length = _BLOCK_BYTES
    data = part.read(at, part.size - at)
    total = entries + _entries_in(part, data, at)
    if (end := last_sure_start(data)) is not None:
        entries += _entries_in(part, data[:end], at)
        at += end
    stored = _to_line_count(part, entries, at)
    stored.total = total
    return stored, True


def _to_line_count(part: TextLogFile, entries: int, at: int) -> LineCount:
    return LineCount(entries, at, _read_tail(part, at))


def _entries_in(part: TextLogFile, data: bytes, at: int) -> int:
    """Return the number of entries that start in a block at an offset of its file."""
    result = data.count(b"\n") - len(_CONTINUED.findall(data)) - data.endswith(b"\n")
    result -= sum(1 for _ in continued_lines(data))
    first = data[:1]
    if at == 0:
        return result + (first not in b"\r\n" if first else 0)
    # No entry starts within a line that is longer than a block.
    return result + (first not in INDENTS and part.read(at - 1, 1) == b"\n" if first else 0)


LINE_COUNTER = LineCountCache()
