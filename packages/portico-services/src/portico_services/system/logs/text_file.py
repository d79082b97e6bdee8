"""One file of a text log: its lines from the end, and the entries they form.

An entry is a line with its continuation lines. Files are identified by their first line, not by name: rotation renames
a file, and compression changes even its inode, but the first line stays the same.
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

from portico_services.system.errors import CorruptData, require_package
from portico_services.system.logs.continuations import INDENTS, LINE_START, SURE_START, entry_starts
from portico_services.system.logs.entries import LogEntry, LogPosition, TimeEstimate
from portico_services.system.logs.level_detection import infer_level
from portico_services.system.logs.line_parser import parse_line, strip_ansi
from portico_services.system.path_access import OpenFile
from portico_services.system.text import decode_lossy

# A compressed log is held in memory; this also limits decompression bombs.
MAX_UNCOMPRESSED_BYTES = 64 * 2**20
MAX_LINE_BYTES = 64 * 1024
MAX_CONTINUATION_LINES = 200
# Maximum number of lines without a time that wait for an earlier line that has one.
MAX_UNTIMED_LINES = 200
COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")

_BLOCK_BYTES = 64 * 1024
_MAX_BLOCK_BYTES = 2**20
# A file without line starts, e.g. one line of many megabytes, is skipped in parts of this size.
MAX_ENTRY_SCAN_BYTES = 32 * 2**20
_FRAME = re.compile(rb"[ \t]+(?:at |File \")")
_FINGERPRINT_BYTES = 256
# Files of up to 64 GiB. With the 16-bit mark an id stays below 2^53, so JavaScript clients can represent it.
_OFFSET_BITS = 36


class RawEntry(Struct):
    """Raw lines of an entry, and the offset of the first one."""

    offset: int
    lines: list[bytes]


class TextLogFile:
    """One file of a rotation chain, decompressed if needed and converted from UTF-16 to UTF-8."""

    def __init__(self, file: OpenFile) -> None:
        self.modified = file.info.st_mtime_ns // 1000
        self.inode = file.info.st_ino
        self.base = os.path.basename(file.path)
        # Default source of its entries.
        self.name = self.base.partition(".")[0]
        self._file: OpenFile | None = file
        self._bytes = _transcode_utf16(file, _decompress(file))
        self.size = file.size if self._bytes is None else len(self._bytes)
        start = self.read(0, _FINGERPRINT_BYTES)
        # After decompression and transcoding: UTF-16 text would look binary before.
        self.is_text = b"\0" not in start
        # Distinguishes it from the other files of its chain.
        self.mark = line_fingerprint(start)

    def read(self, offset: int, length: int) -> bytes:
        if self._bytes is not None:
            return self._bytes[offset : offset + length]
        assert self._file is not None
        return self._file.read(offset, length)

    def contains(self, position: list[int] | None) -> bool:
        """Return whether a position is in this file: the same first line, and the same line at the position."""
        return position is None or (self.mark == position[0] and self.fingerprint_at(position[1]) == position[3])

    def fingerprint_at(self, offset: int) -> int:
        return line_fingerprint(self.read(offset, _FINGERPRINT_BYTES))

    def position(self, offset: int, time: int) -> LogPosition:
        """Return a position: entries that start before this offset are still to come, and are not newer than
        this time.
        """
        return [self.mark, offset, time, self.fingerprint_at(offset)]

    @cached_property
    def _last_line(self) -> tuple[int | None, TimeEstimate | None]:
        """Return the time of the last line that has one, and which part of it was estimated."""
        for raw in scan_raw_entries(self, self.size, max(0, self.size - MAX_LINE_BYTES)):
            line = parse_line(_text(raw.lines[0]), self.modified)
            if line.time is not None:
                return line.time, line.time_guess
        return None, None

    @property
    def is_dated(self) -> bool:
        """Return whether its lines have times."""
        return self._last_line[0] is not None

    @property
    def time_guess(self) -> TimeEstimate | None:
        """Return which part of the times its lines do not state, judged by the last line with a time."""
        return self._last_line[1]

    @property
    def newest(self) -> int:
        """Return the time of the last line that has one, else the modification time."""
        time, _ = self._last_line
        return self.modified if time is None else time


def line_fingerprint(data: bytes) -> int:
    """Return a 16-bit fingerprint of a line."""
    # Not a security check: it recognizes a file after rotation, and collisions only repeat a page.
    return zlib.crc32(data.split(b"\n", 1)[0][:_FINGERPRINT_BYTES]) & 0xFFFF


# Entries


def scan_raw_entries(part: TextLogFile, end: int, begin: int = 0) -> Iterator[RawEntry]:
    """Yield the entries of a file before `end`, last one first. Continuation lines above the limit are dropped.

    `begin` is 0 or the start of a line.
    """
    length = _BLOCK_BYTES
    while end > begin:
        start, data = block_before(part, begin, end, length)
        yield from reversed(list(split_entries(data, start)))
        end = start
        length = min(2 * length, _MAX_BLOCK_BYTES)


def block_before(part: TextLogFile, begin: int, end: int, length: int) -> tuple[int, bytes]:
    """Read about `length` bytes before `end`, starting at an entry; more if an entry is longer."""
    while True:
        start = max(begin, end - length)
        data = part.read(start, end - start)
        if start == begin:
            return start, data
        match = SURE_START.search(data) or (LINE_START.search(data) if length >= _MAX_BLOCK_BYTES else None)
        if match is not None:
            return start + match.end(), data[match.end() :]
        if length >= MAX_ENTRY_SCAN_BYTES:
            return start, b""  # No entry starts in it.
        # Grow quickly: each attempt reads the block again.
        length *= 4


def split_entries(data: bytes, offset: int) -> Iterator[RawEntry]:
    """Yield the entries of a block that starts at an offset of its file."""
    starts = entry_starts(data, is_file_start=offset == 0)
    for start, end in pairwise([*starts, len(data)]):
        yield raw_entry(data, offset, start, end)


def raw_entry(data: bytes, offset: int, start: int, end: int) -> RawEntry:
    """Return the entry between two offsets of a block that starts at `offset` of its file."""
    first, *more = data[start:end].split(b"\n")
    lines = [line[:MAX_LINE_BYTES] for line in more if line not in (b"", b"\r")]
    return RawEntry(offset + start, [first[:MAX_LINE_BYTES], *lines[:MAX_CONTINUATION_LINES]])


def scan_entries(part: TextLogFile, end: int, newest: int, begin: int = 0) -> Iterator[LogEntry]:
    """Yield the entries of a file before `end`, last one first; none is newer than `newest`.

    A line without a time has the time of the previous line.
    """
    waiting: list[LogEntry] = []
    for raw in scan_raw_entries(part, end, begin):
        entry = to_entry(part, raw, newest)
        if entry.time_guess == "time" and part.is_dated and len(waiting) < MAX_UNTIMED_LINES:
            waiting.append(entry)
            continue
        newest = min(newest, entry.time)
        yield from _set_time(waiting, entry.time)
        waiting.clear()
        yield entry
    yield from _set_time(waiting, newest)


def _set_time(entries: list[LogEntry], time: int) -> Iterator[LogEntry]:
    for entry in entries:
        # The position carries the time too: it bounds the times of the next page.
        entry.time = entry.position[2] = time
        yield entry


def to_entry(part: TextLogFile, raw: RawEntry, newest: int) -> LogEntry:
    """Parse the lines of an entry."""
    first, *more = map(_text, raw.lines)
    line = parse_line(first, newest)
    time = newest if line.time is None else line.time
    level = line.level
    # Only if the first line states no level: a stack trace below `INFO` does not make it an error.
    if line.level_guessed and more and _has_trace(raw):
        level = max(level, infer_level("\n".join(more)))
    return LogEntry(
        id=part.mark << _OFFSET_BITS | raw.offset,
        time=time,
        level=level,
        source=line.source or part.name,
        message="\n".join([line.message, *map(strip_ansi, more)]),
        computer=line.computer,
        position=[part.mark, raw.offset, time, line_fingerprint(raw.lines[0])],
        event_id=line.event_id,
        fields=line.fields,
        time_guess="time" if line.time is None else line.time_guess,
        level_guessed=line.level_guessed,
    )


def _has_trace(raw: RawEntry) -> bool:
    """Return whether an entry has stack trace lines, which indicate an error."""
    return any(line[:1] not in INDENTS or _FRAME.match(line) for line in raw.lines[1:])


def _text(line: bytes) -> str:
    return decode_lossy(line.rstrip(b"\r"))


def resolve_time(part: TextLogFile, entry: LogEntry) -> LogEntry:
    """Return an entry that was read on its own. If it has no time, use that of the previous line, or of the next one at
    the start of a file.
    """
    if entry.time_guess == "time" and part.is_dated:
        end = entry.position[1]
        # Search back a limited distance only: a file may consist of lines without times.
        begin = next_line_offset(part, max(0, end - MAX_LINE_BYTES))
        time = _first_time(scan_raw_entries(part, end, begin), entry.time)
        if time is None and begin == 0:
            time = _first_time(split_entries(part.read(0, MAX_LINE_BYTES), 0), entry.time)
        entry.time = entry.position[2] = entry.time if time is None else time
    return entry


def _first_time(entries: Iterator[RawEntry], newest: int) -> int | None:
    times = (parse_line(_text(raw.lines[0]), newest).time for raw in entries)
    return next((time for time in times if time is not None), None)


def find_entry(part: TextLogFile, id: int) -> LogEntry | None:
    """Return the entry with an id if it is in this file, else None."""
    mark, offset = id >> _OFFSET_BITS, id & (2**_OFFSET_BITS - 1)
    if part.mark != mark or offset >= part.size or (offset and part.read(offset - 1, 1) != b"\n"):
        return None
    data = part.read(offset, MAX_LINE_BYTES)
    end = next((start for start in entry_starts(data, is_file_start=offset == 0) if start), len(data))
    return resolve_time(part, to_entry(part, raw_entry(data, offset, 0, end), part.newest))


def next_line_offset(part: TextLogFile, offset: int) -> int:
    """Return the start of the next line at or after an offset."""
    if offset <= 0:
        return 0
    at, length = offset - 1, _BLOCK_BYTES // 16
    while at < part.size:
        block = part.read(at, length)
        if (result := block.find(b"\n")) >= 0:
            return at + result + 1
        if not block:
            break
        at += len(block)
        length = min(4 * length, _MAX_BLOCK_BYTES)
    return part.size


# Compressed files


def _decompress(file: OpenFile) -> bytes | None:
    """Return the decompressed bytes of a compressed file, limited in size, or None if the file is not compressed."""
    suffix = os.path.splitext(file.path)[1]
    if suffix not in COMPRESSED_SUFFIXES:
        return None
    # The compressed size is limited as well; a larger file fails as truncated.
    packed = BytesIO(file.read(0, MAX_UNCOMPRESSED_BYTES))
    try:
        result = _open_compressed(suffix, packed).read(MAX_UNCOMPRESSED_BYTES + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        raise CorruptData("it cannot be decompressed") from None
    if len(result) > MAX_UNCOMPRESSED_BYTES:
        raise CorruptData(f"its decompressed size exceeds {MAX_UNCOMPRESSED_BYTES:,} bytes")
    return result


def _transcode_utf16(file: OpenFile, unpacked: bytes | None) -> bytes | None:
    """Convert a file that starts with a UTF-16 byte order mark to UTF-8: line ends are searched in bytes."""
    start = file.read(0, 2) if unpacked is None else unpacked[:2]
    if start not in (BOM_UTF16_LE, BOM_UTF16_BE):
        return unpacked
    data = file.read(0, MAX_UNCOMPRESSED_BYTES + 1) if unpacked is None else unpacked
    if len(data) > MAX_UNCOMPRESSED_BYTES:
        raise CorruptData(f"its UTF-16 text exceeds {MAX_UNCOMPRESSED_BYTES:,} bytes")
    return data.decode("utf-16", "replace").encode()


def _open_compressed(suffix: str, packed: BytesIO) -> IO[bytes]:
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    if suffix == ".bz2":
        return bz2.BZ2File(packed)
    if suffix == ".xz":
        return lzma.LZMAFile(packed)
    zstandard = require_package("zstandard", "Reading a zstd-compressed log")
    return cast("IO[bytes]", zstandard.ZstdDecompressor(max_window_size=MAX_UNCOMPRESSED_BYTES).stream_reader(packed))
