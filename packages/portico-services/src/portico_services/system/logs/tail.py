"""Reading of new entries of a text log since a position, across rotations.

A position records where a file ended and a fingerprint of that place, so that the file is recognized under another
name. A file that was truncated or replaced without a copy is read from its start, and the gap is reported.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from portico_services.system.logs.entries import LogEntry, LogPosition, TailResult
from portico_services.system.logs.text_file import MAX_LINE_BYTES, RawEntry, TextLogFile, scan_entries, to_entry

# Bytes read per call. Faster output is returned in several calls.
MAX_READ_BYTES = 2**20
# Number of rotations since the last call that are followed.
MAX_ROTATED_FILES = 8
# Long enough to include a timestamp, so that two files rarely match by chance.
_FINGERPRINT_BYTES = 256


def end_position(part: TextLogFile) -> LogPosition:
    """Return the position after the last complete line of a file."""
    return _to_position(part, _last_complete_line(part, 0))


def read_since(parts: Sequence[TextLogFile], position: LogPosition, limit: int, problems: list[str]) -> TailResult:
    """Return the entries since a position, oldest first, and the position to continue from.

    `parts` are the files from the newest one to the one that contains the position, or to the oldest.
    """
    if not parts:
        return TailResult([], position, False)
    begin = 0
    if position is not None and contains_position(parts[-1], position):
        begin = position[2]
    else:
        if position is not None:
            problems.append("The log was truncated or replaced: earlier entries may be missing.")
        # The position is lost, so only the current file is read: older files were probably read before.
        parts = parts[:1]
    results: list[LogEntry] = []
    for part in reversed(parts):
        is_newest = part is parts[0]
        end = _read_limit(part, begin, is_newest)
        for entry, following in _read_forward(part, begin, end):
            results.append(entry)
            if len(results) == limit:
                return TailResult(results, _to_position(part, following), following < end or not is_newest)
        if end < _last_complete_line(part, begin) or (not is_newest and end < part.size):
            return TailResult(results, _to_position(part, end), True)
        begin, position = 0, _to_position(part, end)
    return TailResult(results, position, False)


def contains_position(part: TextLogFile, position: LogPosition) -> bool:
    """Return whether a file contains a position."""
    inode, mark, end, tail = position
    if part.size < end or _read_tail(part, end) != tail:
        return False
    # An empty file has no first line yet, so it is recognized by its inode.
    return bool(part.mark == mark if end else part.inode == inode)


def _to_position(part: TextLogFile, end: int) -> LogPosition:
    return [part.inode, part.mark, end, _read_tail(part, end)]


def _read_tail(part: TextLogFile, end: int) -> int:
    begin = max(0, end - _FINGERPRINT_BYTES)
    return zlib.crc32(part.read(begin, end - begin))


def _last_complete_line(part: TextLogFile, begin: int) -> int:
    """Return the end of the last complete line. A line that exceeds the maximum length is not awaited."""
    start = max(begin, part.size - MAX_LINE_BYTES)
    result = part.read(start, part.size - start).rfind(b"\n") + 1
    return start + result if result or start == begin else part.size


def _read_limit(part: TextLogFile, begin: int, is_newest: bool) -> int:
    """Return the offset to read to: the end of a complete line, if the last line may still grow."""
    if part.size - begin <= MAX_READ_BYTES:
        return _last_complete_line(part, begin) if is_newest else part.size
    result = part.read(begin, MAX_READ_BYTES).rfind(b"\n") + 1
    return begin + (result or MAX_READ_BYTES)


def _read_forward(part: TextLogFile, begin: int, end: int) -> Iterator[tuple[LogEntry, int]]:
    """Yield the entries of a range in order, each with the start of the next one."""
    result = list(scan_entries(part, end, part.newest, begin))
    result.reverse()
    begins = [entry.position[1] for entry in result]
    first = begins[0] if begins else end
    if begin < first and (late := part.read(begin, min(first - begin, MAX_LINE_BYTES)).strip()):
        # Lines that continue an entry that was returned before.
        yield to_entry(part, RawEntry(begin, late.split(b"\n")), part.newest), first
    yield from zip(result, [*begins, end][1:], strict=True)
