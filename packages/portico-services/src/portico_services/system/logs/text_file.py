"""One file of a text log: its lines from the end, and the entries that they make.

An entry is a line with the lines after it that continue it. Files are recognised by how they begin, not by their
names: rotating renames a file, and packing it changes even its inode, but its first line stays the same.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from functools import cached_property
from io import BytesIO
from itertools import pairwise
from typing import IO, cast

from msgspec import Struct

from portico_services.system.errors import DamagedData, package
from portico_services.system.logs.continuations import INDENTS, LINE_START, SURE_START, entry_starts
from portico_services.system.logs.entries import Guess, LogEntry, Position
from portico_services.system.logs.level_detection import guessed
from portico_services.system.logs.line_parser import colourless, parse
from portico_services.system.path_access import OpenFile
from portico_services.system.text import decoded

LARGEST_UNPACKED = 64 * 2**20
LONGEST_LINE = 64 * 1024
MOST_CONTINUED = 200
# How many lines without a time wait for the one before them that has it.
MOST_WAITING = 200
PACKED = (".gz", ".xz", ".bz2", ".zst")

_BLOCK = 64 * 1024
_LARGEST_BLOCK = 2**20
LONGEST_BLOCK = 32 * 2**20
_FRAME = re.compile(rb"[ \t]+(?:at |File \")")
_START = 256
_OFFSET_BITS = 36


class RawEntry(Struct):
    """The lines of an entry, as they stand in the file, and where the first begins."""

    offset: int
    lines: list[bytes]


class LogFile:
    """One file of a chain, unpacked if it was packed, and in UTF-8 if it was in UTF-16."""

    def __init__(self, file: OpenFile) -> None:
        self.modified = file.info.st_mtime_ns // 1000
        self.inode = file.info.st_ino
        self.base = os.path.basename(file.path)
        # What its entries are from, where they do not say so themselves.
        self.name = self.base.partition(".")[0]
        self._file: OpenFile | None = file
        self._bytes = _in_utf8(file, _unpacked(file))
        self.size = file.size if self._bytes is None else len(self._bytes)
        start = self.read(0, _START)
        self.is_text = b"\0" not in start
        # What tells it from the others of its chain.
        self.mark = line_mark(start)

    def read(self, offset: int, length: int) -> bytes:
        if self._bytes is not None:
            return self._bytes[offset : offset + length]
        assert self._file is not None
        return self._file.read(offset, length)

    def has(self, place: list[int] | None) -> bool:
        """Whether this is the file that a place is in: it begins the same, and has the same line there."""
        return place is None or (self.mark == place[0] and self.mark_at(place[1]) == place[3])

    def mark_at(self, offset: int) -> int:
        return line_mark(self.read(offset, _START))

    def place(self, offset: int, time: int) -> Position:
        """A position: what begins before this offset is still to come, and is not newer than this time."""
        return [self.mark, offset, time, self.mark_at(offset)]

    @cached_property
    def _last_line(self) -> tuple[int | None, Guess | None]:
        """The time of the last line that has one, and what of it was guessed."""
        for raw in raw_entries(self, self.size, max(0, self.size - LONGEST_LINE)):
            line = parse(_text(raw.lines[0]), self.modified)
            if line.time is not None:
                return line.time, line.time_guess
        return None, None

    @property
    def is_dated(self) -> bool:
        """Whether its lines have times."""
        return self._last_line[0] is not None

    @property
    def time_guess(self) -> Guess | None:
        """What the times of its lines do not state, by the last of them."""
        return self._last_line[1]

    @property
    def newest(self) -> int:
        """The time of its last line that has one; otherwise when it was written."""
        time, _ = self._last_line
        return self.modified if time is None else time


def line_mark(data: bytes) -> int:
    """Sixteen bits of a line."""
    return zlib.crc32(data.split(b"\n", 1)[0][:_START]) & 0xFFFF


# Entries


def raw_entries(part: LogFile, end: int, begin: int = 0) -> Iterator[RawEntry]:
    """Yield the entries of a file before `end`, last one first. Of the lines that continue one, the first are kept.

    `begin` is 0 or behind a line's end.
    """
    length = _BLOCK
    while end > begin:
        start, data = block_before(part, begin, end, length)
        yield from reversed(list(split_entries(data, start)))
        end = start
        length = min(2 * length, _LARGEST_BLOCK)


def block_before(part: LogFile, begin: int, end: int, length: int) -> tuple[int, bytes]:
    """Read the bytes before `end` from where an entry begins: about `length` of them, more if an entry has more."""
    while True:
        start = max(begin, end - length)
        data = part.read(start, end - start)
        if start == begin:
            return start, data
        match = SURE_START.search(data) or (LINE_START.search(data) if length >= _LARGEST_BLOCK else None)
        if match is not None:
            return start + match.end(), data[match.end() :]
        if length >= LONGEST_BLOCK:
            return start, b""  # no entry begins in it
        length *= 4


def split_entries(data: bytes, offset: int) -> Iterator[RawEntry]:
    """Yield the entries of a block that begins at an offset of its file."""
    starts = entry_starts(data, is_file_start=offset == 0)
    for start, end in pairwise([*starts, len(data)]):
        yield raw_entry(data, offset, start, end)


def raw_entry(data: bytes, offset: int, start: int, end: int) -> RawEntry:
    """Return the entry between two offsets of a block; the block begins at `offset` of its file."""
    first, *more = data[start:end].split(b"\n")
    lines = [line[:LONGEST_LINE] for line in more if line not in (b"", b"\r")]
    return RawEntry(offset + start, [first[:LONGEST_LINE], *lines[:MOST_CONTINUED]])


def entries(part: LogFile, end: int, newest: int, begin: int = 0) -> Iterator[LogEntry]:
    """Yield the entries of a file before `end`, last one first; none is newer than `newest`.

    A line that does not state its time has the time of the line before it.
    """
    waiting: list[LogEntry] = []
    for raw in raw_entries(part, end, begin):
        entry = made(part, raw, newest)
        if entry.time_guess == "time" and part.is_dated and len(waiting) < MOST_WAITING:
            waiting.append(entry)
            continue
        newest = min(newest, entry.time)
        yield from _dated(waiting, entry.time)
        waiting.clear()
        yield entry
    yield from _dated(waiting, newest)


def _dated(entries: list[LogEntry], time: int) -> Iterator[LogEntry]:
    for entry in entries:
        entry.time = entry.position[2] = time
        yield entry


def made(part: LogFile, raw: RawEntry, newest: int) -> LogEntry:
    first, *more = map(_text, raw.lines)
    line = parse(first, newest)
    time = newest if line.time is None else line.time
    level = line.level
    if line.level_guessed and more and _has_trace(raw):
        level = max(level, guessed("\n".join(more)))
    return LogEntry(
        id=part.mark << _OFFSET_BITS | raw.offset,
        time=time,
        level=level,
        source=line.source or part.name,
        message="\n".join([line.message, *map(colourless, more)]),
        computer=line.computer,
        position=[part.mark, raw.offset, time, line_mark(raw.lines[0])],
        event_id=line.event_id,
        fields=line.fields,
        time_guess="time" if line.time is None else line.time_guess,
        level_guessed=line.level_guessed,
    )


def _has_trace(raw: RawEntry) -> bool:
    """Return whether lines of a stack trace continue an entry, which are evidence of an error."""
    return any(line[:1] not in INDENTS or _FRAME.match(line) for line in raw.lines[1:])


def _text(line: bytes) -> str:
    return decoded(line.rstrip(b"\r"))


def with_time(part: LogFile, entry: LogEntry) -> LogEntry:
    """Return an entry that was read by itself; if it does not state its time, with that of the line before it, or
    behind it at the beginning of a file."""
    if entry.time_guess == "time" and part.is_dated:
        end = entry.position[1]
        begin = behind_line(part, max(0, end - LONGEST_LINE))
        time = _first_time(raw_entries(part, end, begin), entry.time)
        if time is None and begin == 0:
            time = _first_time(split_entries(part.read(0, LONGEST_LINE), 0), entry.time)
        entry.time = entry.position[2] = entry.time if time is None else time
    return entry


def _first_time(found: Iterator[RawEntry], newest: int) -> int | None:
    times = (parse(_text(raw.lines[0]), newest).time for raw in found)
    return next((time for time in times if time is not None), None)


def entry_by_id(part: LogFile, id: int) -> LogEntry | None:
    """The entry of an id, if it is in this file."""
    mark, offset = id >> _OFFSET_BITS, id & (2**_OFFSET_BITS - 1)
    if part.mark != mark or offset >= part.size or (offset and part.read(offset - 1, 1) != b"\n"):
        return None
    data = part.read(offset, LONGEST_LINE)
    end = next((start for start in entry_starts(data, is_file_start=offset == 0) if start), len(data))
    return with_time(part, made(part, raw_entry(data, offset, 0, end), part.newest))


def behind_line(part: LogFile, offset: int) -> int:
    """Where the next line begins, at an offset or behind it: 0, or behind a line's end."""
    if offset <= 0:
        return 0
    at, length = offset - 1, _BLOCK // 16
    while at < part.size:
        block = part.read(at, length)
        if (found := block.find(b"\n")) >= 0:
            return at + found + 1
        if not block:
            break
        at += len(block)
        length = min(4 * length, _LARGEST_BLOCK)
    return part.size


# Packed files


def _unpacked(file: OpenFile) -> bytes | None:
    """The bytes of a packed file, or None for one that is not. Not more than is good for us."""
    suffix = os.path.splitext(file.path)[1]
    if suffix not in PACKED:
        return None
    packed = BytesIO(file.read(0, LARGEST_UNPACKED))
    try:
        found = _opened(suffix, packed).read(LARGEST_UNPACKED + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        raise DamagedData("it cannot be unpacked") from None
    if len(found) > LARGEST_UNPACKED:
        raise DamagedData(f"it has more than {LARGEST_UNPACKED:,} bytes when it is unpacked")
    return found


def _in_utf8(file: OpenFile, unpacked: bytes | None) -> bytes | None:
    """The bytes of a file that begins as UTF-16 does, in UTF-8: ends of lines are looked for in bytes."""
    start = file.read(0, 2) if unpacked is None else unpacked[:2]
    if start not in (BOM_UTF16_LE, BOM_UTF16_BE):
        return unpacked
    data = file.read(0, LARGEST_UNPACKED + 1) if unpacked is None else unpacked
    if len(data) > LARGEST_UNPACKED:
        raise DamagedData(f"it has more than {LARGEST_UNPACKED:,} bytes of UTF-16")
    return data.decode("utf-16", "replace").encode()


def _opened(suffix: str, packed: BytesIO) -> IO[bytes]:
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    if suffix == ".bz2":
        return bz2.BZ2File(packed)
    if suffix == ".xz":
        return lzma.LZMAFile(packed)
    zstandard = package("zstandard", "Reading a log that is packed with zstd")
    return cast("IO[bytes]", zstandard.ZstdDecompressor(max_window_size=LARGEST_UNPACKED).stream_reader(packed))
