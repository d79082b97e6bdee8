"""The years of lines that do not state one.

The year of such a line follows from the lines behind it: going back through a log, `Dec 31` before `Jan 1` is in the
year before. To parse a line by itself, the days of all the lines are read from their bytes, which is much faster.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache

from portico_services.system.logs import timestamps
from portico_services.system.logs.timestamps import DAY

# `Jun 14 `, `06-14 `, `06/14 ` and `E0614 ` at the beginning of a line, perhaps behind a priority.
_PREFIX = rb"(?:<\d{1,3}>|[IWEFD](?=\d{4} ))?"
_KEY = _PREFIX + rb"([A-Z][a-z]{2} [ \d]\d|\d\d[-/]\d\d|\d{4}) "
_DAY_KEY = re.compile(rb"\n" + _KEY)


class Days:
    """The days of a block of lines: where each begins, and its last microsecond."""

    def __init__(self, begins: list[int], ends: list[int]) -> None:
        self._begins = begins
        self._ends = ends

    def latest(self, offset: int, newest: int) -> int:
        """Return a time that the line at an offset is not newer than."""
        number = bisect_right(self._begins, offset) - 1
        return min(newest, self._ends[number]) if number >= 0 else newest

    def oldest(self, newest: int) -> int:
        """Return a time that no line before this block is newer than by a day or more."""
        return self._ends[0] - DAY + 1 if self._ends else newest


NO_DAYS = Days([], [])


def days_of(data: bytes, newest: int) -> Days | None:
    """Return the days of a block of lines, whose last one is not newer than `newest`.

    None if they cannot be told by the beginnings of lines, or if a day comes before an earlier one: then the year of a
    line depends on the clock times around it.
    """
    runs: list[tuple[int, bytes]] = []
    lines = b"\n" + data
    match = _DAY_KEY.search(lines)
    while match is not None:
        runs.append((match.start(), match[1]))
        match = _other_day(match[1]).search(lines, match.end())
    begins: list[int] = []
    ends: list[int] = []
    bound = newest
    for begin, key in reversed(runs):
        moment = timestamps.at(f"{_spelled(key)} 00:00:00", 0, bound)
        if moment is None or moment.time > bound:
            return None
        bound = moment.time
        begins.append(begin)
        ends.append(bound + DAY - 1)
    return Days(begins[::-1], ends[::-1]) if runs else None


@lru_cache(1024)
def _other_day(key: bytes) -> re.Pattern[bytes]:
    """Return a pattern for the beginning of a line of another day: most lines have the day of the line before them."""
    return re.compile(rb"\n(?!%b%b )%b" % (_PREFIX, re.escape(key), _KEY))


def _spelled(key: bytes) -> str:
    """Return a day in a form that a time can follow."""
    text = key.decode("ascii")
    return f"{text[:2]}-{text[2:]}" if text.isdigit() else text
