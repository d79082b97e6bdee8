"""Where in a text log a time is: found by halving, if its times ascend.

That they do is not known, but looked at: in samples over the whole file, and around the place that was found, ever
further away. A little disorder, as several threads make it, is allowed for. A log whose times go back otherwise is
read from its end, as long as that takes.
"""

from __future__ import annotations

from portico_services.system.logs.continuations import INDENTS
from portico_services.system.logs.entries import Query
from portico_services.system.logs.line_parser import parse
from portico_services.system.logs.text_file import LONGEST_LINE, LogFile, behind_line
from portico_services.system.text import decoded

SAMPLES = 128
# How far lines may be from where their times belong: so many bytes, and between samples so many microseconds.
DISORDER = 64 * 1024
EARLIER = 5_000_000
_WINDOW = 4 * 1024
_FURTHEST = LONGEST_LINE
# A line that is longer than that is passed over, if it is no longer than this.
_LONGEST_PASSED = 64 * 2**20
# By so much of a line its time is known, even if the line goes on.
_HEAD = 512


def window(part: LogFile, query: Query, end: int) -> tuple[int, int] | None:
    """The part of a file before `end` that has all entries of the times that are asked for: where it begins and ends.

    None if that cannot be told without reading everything.
    """
    if end <= 2 * DISORDER:
        return 0, end
    if not _is_ascending(part, end):
        return None
    begin = 0
    if query.end is not None:
        if (found := _behind(part, query.end, end)) is None:
            return None
        end = min(end, behind_line(part, found + DISORDER))
    if query.start is not None:
        if (found := _behind(part, query.start - 1, end)) is None:
            return None
        begin = behind_line(part, max(0, found - DISORDER))
    return min(begin, end), end


def time_at(part: LogFile, offset: int, end: int) -> tuple[int, int] | None:
    """The first line at an offset or behind it that has a time: where it begins, and the time."""
    found, is_inside = _time_near(part, offset, end)
    if found is None and is_inside:
        behind = behind_line(part, offset + _FURTHEST)
        if behind - offset <= _LONGEST_PASSED:
            found, _ = _time_near(part, behind, end)
    return found


def _time_near(part: LogFile, offset: int, end: int) -> tuple[tuple[int, int] | None, bool]:
    """The same, not further away than is quickly read; and whether all that was read is inside of one line."""
    base = max(0, offset - 1)  # a line begins right at the offset if the byte before it is a line's end
    length = _WINDOW
    while base < end:
        data = part.read(base, min(length, end - base))
        is_all = base + len(data) >= end
        is_last = is_all or length >= _FURTHEST
        at = 0 if offset <= 0 else data.find(b"\n") + 1
        if at or offset <= 0:
            lines = data[at:].split(b"\n")
            if not is_all and not (is_last and len(lines[-1]) > _HEAD):
                lines.pop()  # it may not be whole
            for line in lines:
                if line[:1] not in INDENTS and (time := parse(decoded(line), part.newest).time) is not None:
                    return (base + at, time), False
                at += len(line) + 1
        elif is_last:
            return None, not is_all
        if is_last:
            break
        length *= 4
    return None, False


def _is_ascending(part: LogFile, end: int) -> bool:
    """Whether the times of samples, from the beginning to the end, do not go back."""
    latest = None
    step = max(_WINDOW, end // SAMPLES)
    behind = 0
    for offset in range(0, end, step):
        if offset < behind:
            continue  # inside of a long line
        found = time_at(part, offset, end)
        if found is None:
            if offset + _FURTHEST < end:
                return False  # a stretch without times, so nothing can be said
            break
        if latest is not None and found[1] < latest - EARLIER:
            return False
        behind, latest = found
    return latest is not None


def _behind(part: LogFile, time: int, end: int) -> int | None:
    """About where the first line is that is newer than a time; None if lines around it contradict."""
    low, high = 0, end
    while high - low > _WINDOW:
        middle = (low + high) // 2
        found = time_at(part, middle, end)
        if found is None or found[1] > time:
            high = middle
        else:
            low = max(found[0], low + 1)
    return high if _is_between(part, time, high, end) else None


def _is_between(part: LogFile, time: int, place: int, end: int) -> bool:
    """Whether lines before a place are not newer than a time, and those behind it are: looked at ever further away."""
    away = DISORDER
    while place - away >= 0 or place + away < end:
        if place >= away and (older := time_at(part, place - away, end)) and older[1] > time + EARLIER:
            return False
        if place + away < end and (newer := time_at(part, place + away, end)) and newer[1] < time - EARLIER:
            return False
        away *= 2
    return True
