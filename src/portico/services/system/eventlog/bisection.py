"""Where in a text log a time is: found by halving, if its times ascend.

That they do is not known, but looked at: in samples over the whole file, and around the place that was found, ever
further away. A little disorder, as several threads make it, is allowed for. A log whose times go back otherwise is
read from its end, as long as that takes.
"""

from __future__ import annotations

from portico.services.system.eventlog.entries import Query
from portico.services.system.eventlog.lines import parse
from portico.services.system.eventlog.textfile import GOES_ON, LogFile, behind_line
from portico.services.system.text import decoded

SAMPLES = 128
# How far lines may be from where their times belong: so many bytes, and between samples so many microseconds.
DISORDER = 64 * 1024
EARLIER = 5_000_000
_WINDOW = 4 * 1024
_FURTHEST = 64 * 1024


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
    base = max(0, offset - 1)  # a line begins right at the offset if the byte before it is a line's end
    length = _WINDOW
    while base < end:
        data = part.read(base, min(length, end - base))
        is_all = base + len(data) >= end
        at = 0 if offset <= 0 else data.find(b"\n") + 1
        if at or offset <= 0:
            # The last line of a window may not be whole.
            for line in data[at:].split(b"\n")[: None if is_all else -1]:
                if line[:1] not in GOES_ON and (time := parse(decoded(line), part.newest).time) is not None:
                    return base + at, time
                at += len(line) + 1
        if is_all or length >= _FURTHEST:
            break
        length *= 4
    return None


def _is_ascending(part: LogFile, end: int) -> bool:
    """Whether the times of samples, from the beginning to the end, do not go back."""
    latest = None
    step = max(_WINDOW, end // SAMPLES)
    for offset in range(0, end, step):
        found = time_at(part, offset, end)
        if found is None:
            if offset + _FURTHEST < end:
                return False  # a stretch without times, so nothing can be said
            break
        if latest is not None and found[1] < latest - EARLIER:
            return False
        latest = found[1]
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
