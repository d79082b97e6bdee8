"""Search a text log in its bytes, so that only the entries that may be wanted are parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from portico_services.system.byte_search import ByteSearch
from portico_services.system.logs.continuations import INDENTS, LINE_START, continued_lines
from portico_services.system.logs.day_runs import NO_DAYS, days_of
from portico_services.system.logs.entries import EmptyStretch, LogEntry
from portico_services.system.logs.text_file import (
    LogFile,
    RawEntry,
    block_before,
    entries,
    made,
    raw_entry,
    with_time,
)

FIRST_BLOCK = 256 * 1024
BLOCK = 2 * 2**20
# Characters that a line has as they are, however it is quoted or escaped.
_SAFE = re.compile(r"[A-Za-z0-9_.,:;=() -]+")
# What may stand in the midst of a text that is looked for: a letter that means the same as others, and a colour.
_UNSURE = re.compile(rb"[\x1b\x80-\xff]")


def searchable(text: str) -> str | None:
    """The part of a text that the bytes of every line have whose message has the text; None if there is none."""
    if "\\" in text:
        return None  # how a byte is shown that is no character
    return max(_SAFE.findall(text), key=len, default=None)


class EntrySearch(Protocol):
    """Finds places in the bytes of a log whose entries may be wanted."""

    def find(self, data: bytes, at: int) -> int:
        """Return the next place from an offset on, or -1."""


class TextSearch:
    """Finds a text. Letters beyond ASCII may mean the same as some in it, `ß` the same as `ss`, and colours are not
    shown, so lines with either are candidates, too."""

    def __init__(self, text: str) -> None:
        self._search = ByteSearch(text)

    def find(self, data: bytes, at: int) -> int:
        found = self._search.find(data, at)
        if (other := _UNSURE.search(data, at, found if found >= 0 else len(data))) is not None:
            return other.start()
        return found


def matching(
    part: LogFile, end: int, newest: int, begin: int, search: EntrySearch
) -> Iterator[LogEntry | EmptyStretch]:
    """Yield the entries before `end` that a search finds, last one first, and after each block what was passed."""
    length = min(FIRST_BLOCK, BLOCK)
    while end > begin:
        start, data = block_before(part, begin, end, length)
        days = days_of(data, newest) if part.time_guess == "year" else NO_DAYS
        if days is None:
            # The year of a line depends on the lines behind it here, so all of them are read.
            yield from entries(part, end, newest, start)
        else:
            for raw in reversed(list(_candidates(data, start, search))):
                yield with_time(part, made(part, raw, days.latest(raw.offset - start, newest)))
            newest = min(newest, days.oldest(newest))
        end = start
        length = min(2 * length, BLOCK)
        yield EmptyStretch(part.place(end, newest))


def _candidates(data: bytes, start: int, search: EntrySearch) -> Iterator[RawEntry]:
    """Yield the entries in which a search finds something, in their order."""
    continued = frozenset(continued_lines(data))
    at = 0
    while (found := search.find(data, at)) >= 0:
        begin = data.rfind(b"\n", 0, found) + 1
        while begin > 0 and (data[begin : begin + 1] in INDENTS or begin in continued):
            begin = data.rfind(b"\n", 0, begin - 1) + 1
        at = found
        while (following := LINE_START.search(data, at)) is not None and following.end() in continued:
            at = following.end()
        at = len(data) if following is None else following.end()
        # Lines before the first entry continue one that is not in this block.
        if data[begin : begin + 1] not in INDENTS or (start + begin == 0 and data[begin : begin + 1] not in b"\r\n"):
            yield raw_entry(data, start, begin, at)
