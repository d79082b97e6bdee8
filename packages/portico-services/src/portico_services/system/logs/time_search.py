"""Binary search for a time in a text log with ascending times.

The order is not assumed but checked: in samples over the whole file, and around the result at growing distances. Slight
disorder, as caused by several threads, is tolerated. Other logs are read from the end.
"""

from __future__ import annotations

from portico_services.system.logs.continuations import INDENTS
from portico_services.system.logs.entries import LogQuery
from portico_services.system.logs.line_parser import parse_line
from portico_services.system.logs.text_file import MAX_LINE_BYTES, TextLogFile, next_line_offset
from portico_services.system.text import decode_lossy

SAMPLE_COUNT = 128
# Tolerated disorder: distance of a line from its sorted position in bytes, and between samples in microseconds.
MAX_DISORDER_BYTES = 64 * 1024
MAX_DISORDER_US = 5_000_000
_PROBE_BYTES = 4 * 1024
_MAX_PROBE_BYTES = MAX_LINE_BYTES
# Longer lines are skipped, up to this length.
_MAX_SKIPPED_LINE_BYTES = 64 * 2**20
# Number of bytes of a line that suffice to parse its time.
_HEAD_BYTES = 512


def find_time_window(part: TextLogFile, query: LogQuery, end: int) -> tuple[int, int] | None:
    """Return the range of a file before `end` that contains all entries of the queried times.

    Return None if it cannot be determined without reading everything.
    """
    # Too small to gain anything.
    if end <= 2 * MAX_DISORDER_BYTES:
        return 0, end
    if not _is_ascending(part, end):
        return None
    begin = 0
    if query.end is not None:
        if (result := _bisect(part, query.end, end)) is None:
            return None
        # Lines may be slightly out of order, so the window is wider than the exact boundary.
        end = min(end, next_line_offset(part, result + MAX_DISORDER_BYTES))
    if query.start is not None:
        if (result := _bisect(part, query.start - 1, end)) is None:
            return None
        begin = next_line_offset(part, max(0, result - MAX_DISORDER_BYTES))
    return min(begin, end), end


def time_at(part: TextLogFile, offset: int, end: int) -> tuple[int, int] | None:
    """Return the offset and time of the first line with a time at or after an offset."""
    time, is_inside = _time_near(part, offset, end)
    if time is None and is_inside:
        behind = next_line_offset(part, offset + _MAX_PROBE_BYTES)
        if behind - offset <= _MAX_SKIPPED_LINE_BYTES:
            time, _ = _time_near(part, behind, end)
    return time


def _time_near(part: TextLogFile, offset: int, end: int) -> tuple[tuple[int, int] | None, bool]:
    """Like `time_at`, but limited to a short distance; also return whether everything read is within one line."""
    base = max(0, offset - 1)  # A line starts at the offset if the byte before it is a line end.
    length = _PROBE_BYTES
    while base < end:
        data = part.read(base, min(length, end - base))
        is_all = base + len(data) >= end
        is_last = is_all or length >= _MAX_PROBE_BYTES
        at = 0 if offset <= 0 else data.find(b"\n") + 1
        if at or offset <= 0:
            lines = data[at:].split(b"\n")
            if not is_all and not (is_last and len(lines[-1]) > _HEAD_BYTES):
                lines.pop()  # Possibly incomplete.
            for line in lines:
                if line[:1] not in INDENTS and (time := parse_line(decode_lossy(line), part.newest).time) is not None:
                    return (base + at, time), False
                at += len(line) + 1
        elif is_last:
            return None, not is_all
        if is_last:
            break
        length *= 4
    return None, False


def _is_ascending(part: TextLogFile, end: int) -> bool:
    """Return whether the times of samples over the file are ascending."""
    latest = None
    step = max(_PROBE_BYTES, end // SAMPLE_COUNT)
    behind = 0
    for offset in range(0, end, step):
        if offset < behind:
            continue  # Within a long line.
        result = time_at(part, offset, end)
        if result is None:
            if offset + _MAX_PROBE_BYTES < end:
                return False  # A range without times: the order cannot be determined.
            break
        # Concurrent writers and clock corrections swap neighbouring lines; a larger step back means an unsorted file.
        if latest is not None and result[1] < latest - MAX_DISORDER_US:
            return False
        behind, latest = result
    return latest is not None


def _bisect(part: TextLogFile, time: int, end: int) -> int | None:
    """Return the approximate offset of the first line newer than a time, or None if lines around it contradict."""
    low, high = 0, end
    while high - low > _PROBE_BYTES:
        middle = (low + high) // 2
        result = time_at(part, middle, end)
        if result is None or result[1] > time:
            high = middle
        else:
            # Progress is guaranteed even if the line found is the same as before.
            low = max(result[0], low + 1)
    return high if _verify_boundary(part, time, high, end) else None


def _verify_boundary(part: TextLogFile, time: int, position: int, end: int) -> bool:
    """Return whether lines before an offset are not newer than a time and lines after it are, at growing distances."""
    away = MAX_DISORDER_BYTES
    while position - away >= 0 or position + away < end:
        if position >= away and (older := time_at(part, position - away, end)) and older[1] > time + MAX_DISORDER_US:
            return False
        if (
            position + away < end
            and (newer := time_at(part, position + away, end))
            and newer[1] < time - MAX_DISORDER_US
        ):
            return False
        # Doubling distances: close to the boundary the order is checked densely, far away rarely.
        away *= 2
    return True
