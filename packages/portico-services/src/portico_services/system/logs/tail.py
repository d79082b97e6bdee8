"""What a text log has written since a place: forwards, and over its rotations.

A place is where a file ended, and how it looked there, so that the file is found again under another name. A file that
was cut or replaced without a copy is begun anew, and that is said.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from portico_services.system.logs.entries import LogEntry, NewEntries, Position
from portico_services.system.logs.text_file import LONGEST_LINE, LogFile, RawEntry, entries, made

# What is read at once. What is written faster than this is told in several answers.
MOST_BYTES = 2**20
# How many files a log may have rotated through since the last question.
MOST_ROTATED = 8
_TAIL = 256


def end_of(part: LogFile) -> Position:
    """The place behind the last whole line of a file."""
    return _place(part, _whole(part, 0))


def since(parts: Sequence[LogFile], place: Position, most: int, problems: list[str]) -> NewEntries:
    """The entries since a place, oldest first; at least one is tried for each call, and a position to go on from.

    `parts` are the files from the newest on, up to the one that has the place or to the last there is.
    """
    if not parts:
        return NewEntries([], place, False)
    begin = 0
    if place is not None and holds(parts[-1], place):
        begin = place[2]
    else:
        if place is not None:
            problems.append("The log was cut or replaced meanwhile: what it had before may be missing here.")
        parts = parts[:1]
    found: list[LogEntry] = []
    for part in reversed(parts):
        is_newest = part is parts[0]
        end = _end(part, begin, is_newest)
        for entry, following in _forwards(part, begin, end):
            found.append(entry)
            if len(found) == most:
                return NewEntries(found, _place(part, following), following < end or not is_newest)
        if end < _whole(part, begin) or (not is_newest and end < part.size):
            return NewEntries(found, _place(part, end), True)
        begin, place = 0, _place(part, end)
    return NewEntries(found, place, False)


def holds(part: LogFile, place: Position) -> bool:
    """Whether this is the file that a place is in."""
    inode, mark, end, tail = place
    if part.size < end or _tail(part, end) != tail:
        return False
    return bool(part.mark == mark if end else part.inode == inode)


def _place(part: LogFile, end: int) -> Position:
    return [part.inode, part.mark, end, _tail(part, end)]


def _tail(part: LogFile, end: int) -> int:
    begin = max(0, end - _TAIL)
    return zlib.crc32(part.read(begin, end - begin))


def _whole(part: LogFile, begin: int) -> int:
    """Where the last whole line ends. A line that is longer than any should be is not waited for."""
    start = max(begin, part.size - LONGEST_LINE)
    found = part.read(start, part.size - start).rfind(b"\n") + 1
    return start + found if found or start == begin else part.size


def _end(part: LogFile, begin: int, is_newest: bool) -> int:
    """How far to read: whole lines, if more may come to the last one."""
    if part.size - begin <= MOST_BYTES:
        return _whole(part, begin) if is_newest else part.size
    found = part.read(begin, MOST_BYTES).rfind(b"\n") + 1
    return begin + (found or MOST_BYTES)


def _forwards(part: LogFile, begin: int, end: int) -> Iterator[tuple[LogEntry, int]]:
    """The entries of a stretch in their order, each with where the next begins."""
    found = list(entries(part, end, part.newest, begin))
    found.reverse()
    begins = [entry.position[1] for entry in found]
    first = begins[0] if begins else end
    if begin < first and (late := part.read(begin, min(first - begin, LONGEST_LINE)).strip()):
        # Lines that go on with an entry that was told before.
        yield made(part, RawEntry(begin, late.split(b"\n")), part.newest), first
    yield from zip(found, [*begins, end][1:], strict=True)
