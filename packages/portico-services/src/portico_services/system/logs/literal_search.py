"""Byte search in text logs, so that only candidate entries are parsed."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

from portico_services.system.logs import timestamps
from portico_services.system.logs.continuations import INDENTS, LINE_START, continued_lines
from portico_services.system.logs.entries import LogEntry, SkippedRange
from portico_services.system.logs.text_file import (
    RawEntry,
    TextLogFile,
    block_before,
    raw_entry,
    resolve_time,
    scan_entries,
    to_entry,
)
from portico_services.system.logs.timestamps import DAY_US
from portico_services.system.text import CaseInsensitiveByteSearch

# Years of lines without one. The year follows from the later lines: reading backwards, `Dec 31` before `Jan 1` is in
# the previous year. To parse single lines, the days of all lines are read from their bytes, which is much faster.

# `Jun 14 `, `06-14 `, `06/14 ` and `E0614 ` at the start of a line, optionally after a priority.
_PREFIX = rb"(?:<\d{1,3}>|[IWEFD](?=\d{4} ))?"
_KEY = _PREFIX + rb"([A-Z][a-z]{2} [ \d]\d|\d\d[-/]\d\d|\d{4}) "
_DAY_KEY = re.compile(rb"\n" + _KEY)


class DateRangeSearch:
    """Days of a block of lines: start offset and last microsecond of each."""

    def __init__(self, begins: list[int], ends: list[int]) -> None:
        self._begins = begins
        self._ends = ends

    def latest(self, offset: int, newest: int) -> int:
        """Return an upper bound of the time of the line at an offset."""
        number = bisect_right(self._begins, offset) - 1
        return min(newest, self._ends[number]) if number >= 0 else newest

    def oldest(self, newest: int) -> int:
        """Return an upper bound, up to a day, of the time of all lines before this block."""
        return self._ends[0] - DAY_US + 1 if self._ends else newest


NO_DAYS = DateRangeSearch([], [])


def days_of(data: bytes, newest: int) -> DateRangeSearch | None:
    """Return the days of a block of lines whose last line is not newer than `newest`.

    Return None if the line starts do not determine them, or if the days are not in order: then the year of a line
    depends on the times around it.
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
        moment = timestamps.parse_timestamp_at(f"{_spell_day(key)} 00:00:00", 0, bound)
        if moment is None or moment.time > bound:
            return None
        bound = moment.time
        begins.append(begin)
        ends.append(bound + DAY_US - 1)
    return DateRangeSearch(begins[::-1], ends[::-1]) if runs else None


@lru_cache(1024)
def _other_day(key: bytes) -> re.Pattern[bytes]:
    """Return a pattern for the start of a line of another day: most lines have the same day as the previous one."""
    return re.compile(rb"\n(?!%b%b )%b" % (_PREFIX, re.escape(key), _KEY))


def _spell_day(key: bytes) -> str:
    """Return a day in a form that a time can follow."""
    text = key.decode("ascii")
    return f"{text[:2]}-{text[2:]}" if text.isdigit() else text


# The first block is small because most pages are filled by the newest entries.
FIRST_BLOCK_BYTES = 64 * 1024
# A block that fits into the L2 cache is searched a third faster than one of 2 MiB: it is read, cut and searched twice.
BLOCK_BYTES = 256 * 1024
# Characters that are never quoted or escaped in a line.
_LITERAL_CHARS = re.compile(r"[A-Za-z0-9_.,:;=() -]+")
# Bytes that may interrupt a searched text: letters that are equal to others under case folding, and color codes.
_NON_ASCII = re.compile(rb"[\x1b\x80-\xff]")


def literal_part(text: str) -> str | None:
    """Return the longest part of a text that the bytes of every matching line contain, or None."""
    if "\\" in text:
        return None  # A backslash may stand for an undecodable byte.
    return max(_LITERAL_CHARS.findall(text), key=len, default=None)


class EntrySearch(Protocol):
    """Finds positions in the bytes of a log whose entries may match."""

    def find(self, data: bytes, at: int) -> int:
        """Return the next position from an offset on, or -1."""


class TextSearch:
    """Finds a text. Lines with non-ASCII letters or color codes are candidates too, because case folding can make them
    equal (`ß` and `ss`) and colors are removed.
    """

    def __init__(self, text: str) -> None:
        self._search = CaseInsensitiveByteSearch(text)

    def find(self, data: bytes, at: int) -> int:
        result = self._search.find(data, at)
        if (other := _NON_ASCII.search(data, at, result if result >= 0 else len(data))) is not None:
            return other.start()
        return result


def matching(
    part: TextLogFile, end: int, newest: int, begin: int, search: EntrySearch
) -> Iterator[LogEntry | SkippedRange]:
    """Yield the entries before `end` that a search finds, last one first, and after each block the skipped range."""
    length = min(FIRST_BLOCK_BYTES, BLOCK_BYTES)
    while end > begin:
        start, data = block_before(part, begin, end, length)
        days = days_of(data, newest) if part.time_guess == "year" else NO_DAYS
        if days is None:
            # The years depend on the following lines, so the whole block is parsed.
            yield from scan_entries(part, end, newest, start)
        else:
            for raw in reversed(list(_candidate_entries(data, start, search))):
                yield resolve_time(part, to_entry(part, raw, days.latest(raw.offset - start, newest)))
            # Lines before this block are at least as old as its first line.
            newest = min(newest, days.oldest(newest))
        end = start
        length = min(2 * length, BLOCK_BYTES)
        yield SkippedRange(part.position(end, newest))


def _candidate_entries(data: bytes, start: int, search: EntrySearch) -> Iterator[RawEntry]:
    """Yield the entries that contain a match, in order."""
    at = 0
    result = search.find(data, at)
    # Finding continued lines takes half as long as the search, so blocks without a match skip it.
    continued = frozenset(continued_lines(data)) if result >= 0 else frozenset()
    while result >= 0:
        begin = data.rfind(b"\n", 0, result) + 1
        while begin > 0 and (data[begin : begin + 1] in INDENTS or begin in continued):
            begin = data.rfind(b"\n", 0, begin - 1) + 1
        at = result
        while (following := LINE_START.search(data, at)) is not None and following.end() in continued:
            at = following.end()
        at = len(data) if following is None else following.end()
        # Lines before the first entry continue one of the previous block.
        if data[begin : begin + 1] not in INDENTS or (start + begin == 0 and data[begin : begin + 1] not in b"\r\n"):
            yield raw_entry(data, start, begin, at)
        result = search.find(data, at)
