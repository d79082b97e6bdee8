"""A log made of text files: one file, with those it has rotated to.

It is read from the end. Files are recognised by how they begin, not by their names: rotating renames a file, and
packing it changes even its inode, but its first line stays the same.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import IO, Any, cast

from msgspec import Struct

from portico.services.system.containment import AllowedRoots, OpenFile
from portico.services.system.errors import Absent, DamagedData, MachineError, package
from portico.services.system.eventlog.entries import Log, LogEntry, Position, Query
from portico.services.system.eventlog.lines import parse
from portico.services.system.eventlog.times import DAY
from portico.services.system.text import decoded

LARGEST_UNPACKED = 64 * 2**20
LONGEST_LINE = 64 * 1024
MOST_CONTINUED = 200

_BLOCK = 64 * 1024
_START = 256
_OFFSET_BITS = 36
_NAME = re.compile(r"(?P<stem>.+?)(?:[.-](?P<number>\d{1,8}))?(?P<packed>\.(?:gz|xz|zst|bz2))?$")
_NOT_TEXT = (".journal", ".journal~", ".evtx", ".db", ".sqlite", ".dat")


class Chain(Struct):
    """One file and what it has rotated to, newest first."""

    stem: str
    paths: list[str]


class LogFile:
    """One file of a chain, unpacked if it was packed."""

    def __init__(self, file: OpenFile) -> None:
        self.modified = file.info.st_mtime_ns // 1000
        # What its entries are from, where they do not say so themselves.
        self.name = os.path.basename(file.path).partition(".")[0]
        self._file: OpenFile | None = file
        self._bytes = _unpacked(file)
        self.size = file.size if self._bytes is None else len(self._bytes)
        start = self.read(0, _START)
        self.is_text = b"\0" not in start
        # What tells it from the others of its chain.
        self.mark = _mark(start)

    def read(self, offset: int, length: int) -> bytes:
        if self._bytes is not None:
            return self._bytes[offset : offset + length]
        assert self._file is not None
        return self._file.read(offset, length)

    def has(self, place: list[int] | None) -> bool:
        """Whether this is the file that a place is in: it begins the same, and has the same line there."""
        return place is None or (self.mark == place[0] and _mark(self.read(place[1], _START)) == place[3])

    def lines(self, end: int) -> Iterator[tuple[int, bytes]]:
        """The lines before `end`, last one first, each with where it begins. Of a very long one, the beginning."""
        rest = b""
        at = end
        while at > 0:
            step = min(_BLOCK, at)
            at -= step
            rest = self.read(at, step) + rest
            first, *lines = rest.split(b"\n")
            here = at + len(rest)
            for line in reversed(lines):
                here -= len(line) + 1
                if line:
                    yield here + 1, line[:LONGEST_LINE]
            # What is cut off of the end of a long line is counted no more, so offsets of lines before it are right.
            rest = first[: 2 * LONGEST_LINE]
        if rest:
            yield 0, rest[:LONGEST_LINE]


def _mark(data: bytes) -> int:
    """Sixteen bits of a line."""
    return zlib.crc32(data.split(b"\n", 1)[0][:_START]) & 0xFFFF


class TextLog(Log):
    """One chain of files."""

    def __init__(self, name: str, description: str, roots: AllowedRoots, chain: Callable[[], Chain]) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._chain = chain

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        newest = None if after is None else after[2]
        for part in self._parts(problems):
            if not part.is_text or not part.has(after):
                continue
            end, after = part.size if after is None else after[1], None
            newest = part.modified if newest is None else newest
            for entry in entries(part, end, newest):
                newest = min(newest, entry.time)
                if query.start is not None and entry.time < query.start - DAY:
                    return
                yield entry

    def entry(self, id: int) -> LogEntry | None:
        mark, offset = id >> _OFFSET_BITS, id & (2**_OFFSET_BITS - 1)
        for part in self._parts([]):
            if part.is_text and part.mark == mark and offset < part.size:
                return _one(part, offset)
        return None

    def size(self) -> int | None:
        return sum(info.st_size for info in self._stats(self._chain().paths))

    def stamp(self) -> object:
        return [(info.st_ino, info.st_size, info.st_mtime_ns) for info in self._stats(self._chain().paths[:1])]

    def _parts(self, problems: list[str]) -> Iterator[LogFile]:
        """The files of the chain as they are now, each open until the next is asked for."""
        for path in self._chain().paths:
            try:
                with self._roots.open(path) as file:
                    yield LogFile(file)
            except Absent:
                continue
            except MachineError as failure:
                problems.append(f"{os.path.basename(path)}: {failure}")

    def _stats(self, paths: list[str]) -> Iterator[os.stat_result]:
        for path in paths:
            try:
                yield self._roots.stat(path)[0]
            except MachineError:
                continue


def rotated(roots: AllowedRoots, path: str) -> Chain:
    """A file and its rotated forms. Where only the file itself may be read, it stands alone."""
    try:
        found = [chain for chain in chains(roots, os.path.dirname(path)) if chain.stem == path]
    except MachineError:
        found = []
    return found[0] if found else Chain(path, [path])


def chains(roots: AllowedRoots, path: str) -> list[Chain]:
    """The files of a folder, those together that one has rotated to."""
    with roots.folder(path) as folder:
        names = [entry.name for entry in folder.scan() if entry.is_file(follow_symlinks=False)]
    families: dict[str, list[tuple[Any, str]]] = {}
    for name in names:
        parts = _NAME.match(name)
        if parts is not None and not parts["stem"].endswith(_NOT_TEXT):
            families.setdefault(parts["stem"], []).append((_age(parts["number"]), f"{path}/{name}"))
    return [Chain(f"{path}/{stem}", [name for _, name in sorted(paths)]) for stem, paths in families.items()]


def _age(number: str | None) -> tuple[int, int]:
    """What sorts rotated files newest first: `log`, `log.1`, `log.2`; or `log`, `log-20260102`, `log-20260101`."""
    if number is None:
        return 0, 0
    return (1, int(number)) if len(number) < 8 else (1, -int(number))


def entries(part: LogFile, end: int, newest: int) -> Iterator[LogEntry]:
    """The entries of a file before `end`, last one first. Lines that are indented belong to the one before them."""
    continued: list[bytes] = []
    for offset, raw in part.lines(end):
        if raw[:1] in b" \t" and offset and len(continued) < MOST_CONTINUED:
            continued.append(raw)
            continue
        entry = _made(part, offset, [raw, *reversed(continued)], newest)
        newest = min(newest, entry.time)
        continued.clear()
        yield entry


def _made(part: LogFile, offset: int, lines: list[bytes], newest: int) -> LogEntry:
    first, *more = [decoded(line.rstrip(b"\r")) for line in lines]
    line = parse(first, newest)
    time = newest if line.time is None else line.time
    return LogEntry(
        id=part.mark << _OFFSET_BITS | offset,
        time=time,
        level=line.level,
        source=line.source or part.name,
        message="\n".join([line.message, *more]),
        computer=line.computer,
        position=[part.mark, offset, time, _mark(lines[0])],
        event_id=line.event_id,
        fields=line.fields,
        time_guess=line.time_guess,
        level_guessed=line.level_guessed,
    )


def _one(part: LogFile, offset: int) -> LogEntry | None:
    """The entry that begins at an offset."""
    if offset and part.read(offset - 1, 1) != b"\n":
        return None
    first, *more = part.read(offset, LONGEST_LINE).split(b"\n")
    continued = []
    for line in more[:MOST_CONTINUED]:
        if line[:1] not in (b" ", b"\t"):
            break
        continued.append(line)
    return _made(part, offset, [first, *continued], part.modified)


# Packed files


def _unpacked(file: OpenFile) -> bytes | None:
    """The bytes of a packed file, or None for one that is not. Not more than is good for us."""
    suffix = os.path.splitext(file.path)[1]
    if suffix not in (".gz", ".xz", ".bz2", ".zst"):
        return None
    packed = BytesIO(file.read(0, LARGEST_UNPACKED))
    try:
        found = _opened(suffix, packed).read(LARGEST_UNPACKED + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        raise DamagedData("it cannot be unpacked") from None
    if len(found) > LARGEST_UNPACKED:
        raise DamagedData(f"it has more than {LARGEST_UNPACKED:,} bytes when it is unpacked")
    return found


def _opened(suffix: str, packed: BytesIO) -> IO[bytes]:
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=packed))
    if suffix == ".bz2":
        return bz2.BZ2File(packed)
    if suffix == ".xz":
        return lzma.LZMAFile(packed)
    zstandard = package("zstandard", "Reading a log that is packed with zstd")
    return cast("IO[bytes]", zstandard.ZstdDecompressor(max_window_size=LARGEST_UNPACKED).stream_reader(packed))
