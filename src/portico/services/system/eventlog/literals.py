"""A text in a text log, looked for in its bytes: only the entries that may have it are read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from portico.services.system.bytesearch import ByteSearch
from portico.services.system.eventlog.entries import EmptyStretch, LogEntry
from portico.services.system.eventlog.textfile import (
    GOES_ON,
    LONGEST_LINE,
    MOST_CONTINUED,
    LogFile,
    RawEntry,
    made,
    with_time,
)

BLOCK = 2 * 2**20
LARGEST_BLOCK = 32 * 2**20
# Characters that a line has as they are, however it is quoted or escaped.
_SAFE = re.compile(r"[A-Za-z0-9_.,:;=() -]+")
_ENTRY = re.compile(rb"\n(?=[^ \t\r\n])")
# What may stand in the midst of a text that is looked for: a letter that means the same as others, and a colour.
_UNSURE = re.compile(rb"[\x1b\x80-\xff]")


def searchable(text: str) -> str | None:
    """The part of a text that the bytes of every line have whose message has the text; None if there is none."""
    if "\\" in text:
        return None  # how a byte is shown that is no character
    return max(_SAFE.findall(text), key=len, default=None)


def holding(part: LogFile, end: int, newest: int, begin: int, text: str) -> Iterator[LogEntry | EmptyStretch]:
    """The entries before `end` that may have a text, last one first, and after each block what was passed."""
    search = ByteSearch(text)
    while end > begin:
        start, data = _block(part, begin, end)
        for raw in reversed(list(_candidates(data, start, search))):
            yield with_time(part, made(part, raw, newest))
        end = start
        yield EmptyStretch(part.place(end, newest))


def _block(part: LogFile, begin: int, end: int) -> tuple[int, bytes]:
    """The bytes before `end`, from where an entry begins: as many as one look takes, more if an entry has more."""
    length = BLOCK
    while True:
        start = max(begin, end - length)
        data = part.read(start, end - start)
        if start == begin:
            return start, data
        if found := _ENTRY.search(data):
            return start + found.end(), data[found.end() :]
        if length >= LARGEST_BLOCK:
            return start, b""  # no entry begins in it
        length *= 4


def _candidates(data: bytes, start: int, search: ByteSearch) -> Iterator[RawEntry]:
    """The entries that may have it, in their order."""
    folds = not data.isascii() or b"\x1b" in data
    at = 0
    while (found := _next(data, at, search, folds)) >= 0:
        begin = data.rfind(b"\n", 0, found) + 1
        while begin > 0 and data[begin : begin + 1] in GOES_ON:
            begin = data.rfind(b"\n", 0, begin - 1) + 1
        following = _ENTRY.search(data, found)
        at = len(data) if following is None else following.end()
        first, *more = data[begin:at].split(b"\n")
        if first.strip(b"\r"):
            lines = [line[:LONGEST_LINE] for line in more[:MOST_CONTINUED] if line not in (b"", b"\r")]
            yield RawEntry(start + begin, [first[:LONGEST_LINE], *lines])


def _next(data: bytes, at: int, search: ByteSearch, folds: bool) -> int:
    """Where the next candidate is. Letters beyond ASCII may mean the same as some in it, `ß` the same as `ss`; and
    colours are not shown."""
    found = search.find(data, at)
    if folds and (other := _UNSURE.search(data, at)) and (found < 0 or other.start() < found):
        return other.start()
    return found
