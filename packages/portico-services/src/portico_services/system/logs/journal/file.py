"""One journal file: its entries by number, and which entries have a field of a given value.

The format is systemd's "Journal File Format". A file is a header and objects at offsets that are multiples of eight.
Entries point to data objects (`NAME=value`), which they share; so a value that many entries have is read once. Every
data object points back to its entries, and every field name to its values: that is the index.

Files may be damaged, half written, or made to do harm. No offset is followed that does not lead on (lists of arrays
and hash chains only forwards, chains of values only backwards), so nothing goes in circles; sizes are held against
the file; what one entry may unpack is bounded.
"""

from __future__ import annotations

import lzma
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from portico_services.system.errors import DamagedData, MissingDependency, package
from portico_services.system.path_access import Image

MOST_FIELDS = 1024
LARGEST_ENTRY = 32 * 2**20
MOST_NAMES = 4096
MOST_PROBLEMS = 10
_CACHE = 16 * 2**20

_SIGNATURE = b"LPKSHHRH"
_COMPACT = 16
_KNOWN = 0b11111
_DATA, _FIELD, _ENTRY, _ARRAY = 1, 2, 3, 6

_Header = struct.Struct("<8s4xI8x48x16s15Q")
_Payload = struct.Struct("<BB6xQ")
_Data = struct.Struct("<BB6xQ16x4Q")
_Field = struct.Struct("<BB6xQ8xQQ")
_Entry = struct.Struct("<B7xQQQQ16s8x")
_Array = struct.Struct("<B7xQQ")

Pair = tuple[str, str | bytes]
Head = tuple[int, int, int, int, int, bytes]
"""Of an entry: offset, size, sequence number, real time, monotonic time, boot id."""

# One for each number of fields; made when it is needed, as most files know only a few dozen.
_ITEMS: dict[tuple[bool, int], struct.Struct] = {}


def _items(compact: bool, count: int) -> struct.Struct:
    made = _ITEMS.get((compact, count))
    if made is None:
        made = _ITEMS[compact, count] = struct.Struct(f"<{count}I" if compact else "<" + "Q8x" * count)
    return made


class Offsets:
    """A list of offsets that lies in the file as a chain of arrays, each larger than the one before."""

    def __init__(self, image: Image, width: int, runs: list[tuple[int, int, int]]) -> None:
        self._image = image
        self._width = width
        self._code = "<Q" if width == 8 else "<I"
        # Of each array: the number of its first item, where that lies, and how many there are.
        self._runs = runs
        self._starts = [run[0] for run in runs]

    def __len__(self) -> int:
        return self._runs[-1][0] + self._runs[-1][2] if self._runs else 0

    def __getitem__(self, index: int) -> int:
        first, at, _ = self._runs[bisect_right(self._starts, index) - 1]
        return int(struct.unpack_from(self._code, self._image, at + (index - first) * self._width)[0])

    def backwards(self, stop: int) -> Iterator[int]:
        """Those before the number `stop`, the last one first."""
        for first, at, count in reversed(self._runs):
            end = min(count, stop - first)
            while end > 0:
                begin = max(0, end - 1024)
                codes = f"<{end - begin}{self._code[1]}"
                yield from reversed(struct.unpack_from(codes, self._image, at + begin * self._width))
                end = begin


class _Values(dict[int, Pair]):
    """Data objects by their offsets, read when they are first asked for, and unpacked within a budget.

    It knows the file's bytes and not the file: a circle of references would keep them until the garbage collector runs.
    """

    def __init__(self, image: Image, start: int) -> None:
        super().__init__()
        self._image = image
        self._size = len(image)
        self._start = start
        self._room = _CACHE
        self.budget = LARGEST_ENTRY

    def __missing__(self, offset: int) -> Pair:
        pair = self._load(offset)
        self._room -= len(pair[1]) + 200
        if self._room < 0:
            self.clear()
            self._room = _CACHE
        self[offset] = pair
        return pair

    def _load(self, offset: int) -> Pair:
        try:
            kind, flags, size = _Payload.unpack_from(self._image, offset)
        except (struct.error, OverflowError):
            raise DamagedData(f"a field lies outside the file: {offset:#x}") from None
        if kind != _DATA or offset & 7 or not self._start < size <= self._size - offset:
            raise DamagedData(f"no field where there should be one: {offset:#x}")
        if size > self.budget:
            raise DamagedData("an entry is larger than any entry may be")
        data = self._image[offset + self._start : offset + size]
        if flags:
            data = inflate(flags, data, self.budget)
        self.budget -= len(data)
        name, equals, value = data.partition(b"=")
        if not equals:
            raise DamagedData(f"a field without a name: {offset:#x}")
        try:
            return name.decode("ascii"), value.decode()
        except UnicodeDecodeError:
            return name.decode("ascii", "backslashreplace"), value


class JournalFile:
    def __init__(self, image: Image) -> None:
        self._image = image
        self._size = len(image)
        if self._size < _Header.size or image[:8] != _SIGNATURE:
            raise DamagedData("no journal: it does not begin as one")
        (_, flags, self.seqnum_id, *numbers) = _Header.unpack_from(image)
        if flags & ~_KNOWN:
            raise DamagedData("a journal of a later version of systemd than is known here")
        self._compact = bool(flags & _COMPACT)
        self._width = 4 if self._compact else 8
        (_, _, _, _, self._fields_at, self._fields_size, _, _, self.count) = numbers[:9]
        self.newest_seqnum, _, entries_at, self.oldest, self.newest, _ = numbers[9:]
        self._values = _Values(image, 72 if self._compact else 64)
        self._names: dict[str, int] | None = None
        self.problems: set[str] = set()
        self.entries = self._chain(entries_at, self.count)

    # Objects

    def _object(self, offset: int, kind: int, layout: struct.Struct) -> tuple[int, ...]:
        """An object's members, if it is one of this kind and lies in the file as a whole."""
        if offset & 7 or not 0 < offset < self._size:
            raise DamagedData(f"an offset leads nowhere: {offset:#x}")
        try:
            members = layout.unpack_from(self._image, offset)
        except struct.error:
            raise DamagedData(f"an object is cut short: {offset:#x}") from None
        if members[0] != kind:
            raise DamagedData(f"an object of kind {members[0]} where there should be one of kind {kind}: {offset:#x}")
        return members

    def _whole(self, offset: int, size: int, least: int) -> None:
        if not least <= size <= self._size - offset:
            raise DamagedData(f"an object claims a size of {size:,} bytes: {offset:#x}")

    def _chain(self, at: int, most: int) -> Offsets:
        """A list of at most so many offsets. Where its chain is broken, it ends."""
        runs: list[tuple[int, int, int]] = []
        count = 0
        while at and count < most:
            try:
                _, size, following = self._object(at, _ARRAY, _Array)
                self._whole(at, size, 24)
            except DamagedData:
                break
            here = min((size - 24) // self._width, most - count)
            runs.append((count, at + 24, here))
            count += here
            # An array is always appended behind those that there are.
            if following < at + size:
                break
            at = following
        return Offsets(self._image, self._width, runs)

    # Entries

    def head(self, offset: int) -> Head:
        try:
            kind, size, seqnum, real, monotonic, boot = _Entry.unpack_from(self._image, offset)
        except (struct.error, OverflowError):
            raise DamagedData(f"an entry lies outside the file: {offset:#x}") from None
        if kind != _ENTRY or offset & 7 or not 64 <= size <= self._size - offset:
            raise DamagedData(f"no entry where there should be one: {offset:#x}")
        return offset, size, seqnum, real, monotonic, boot

    def fields(self, head: Head) -> list[Pair]:
        """All fields of an entry, in the order they were written; those that are damaged are left out."""
        offset, size = head[0], head[1]
        count = (size - 64) // (4 if self._compact else 16)
        if count > MOST_FIELDS:
            raise DamagedData(f"an entry claims {count:,} fields")
        self._values.budget = LARGEST_ENTRY
        offsets = _items(self._compact, count).unpack_from(self._image, offset + 64)
        try:
            return list(map(self._values.__getitem__, offsets))
        except (DamagedData, MissingDependency):
            return list(self._sound(offsets))

    def _sound(self, offsets: Iterable[int]) -> Iterator[Pair]:
        for offset in offsets:
            try:
                yield self._values[offset]
            except (DamagedData, MissingDependency) as failure:
                if len(self.problems) < MOST_PROBLEMS:
                    self.problems.add(str(failure))

    def before_seqnum(self, seqnum: int) -> int:
        """How many entries there are before the one of this sequence number, or where it would be."""
        return self._first(lambda head: head[2] >= seqnum)

    def before_time(self, time: int) -> int:
        """How many entries there are before this time."""
        return self._first(lambda head: head[3] >= time)

    def _first(self, reached: Callable[[Head], bool]) -> int:
        """The first entry for which something holds that then holds for all. A damaged one counts as late: damage is
        most often at the end, where the machine stopped."""
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            try:
                is_late = reached(self.head(self.entries[middle]))
            except DamagedData:
                is_late = True
            low, high = (low, middle) if is_late else (middle + 1, high)
        return low

    # The index

    def values(self, field: str) -> Iterator[tuple[str | bytes, int]]:
        """The values that a field has anywhere in this file, each with the offset of its data object."""
        offset = self._fields().get(field, 0)
        while offset:
            try:
                members = self._object(offset, _DATA, _Data)
                self._values.budget = LARGEST_ENTRY
                yield self._values[offset][1], offset
            except DamagedData:
                return
            following = members[3]
            # The newest value is the first, so the way leads back.
            offset = following if following < offset else 0

    def having(self, data: int) -> Iterator[int]:
        """The entries that have this data object: their offsets, oldest first."""
        _, _, _, _, _, first, arrays, count = (0, *self._object(data, _DATA, _Data))
        if count:
            yield first
            chain = self._chain(arrays, count - 1)
            yield from reversed(list(chain.backwards(len(chain))))

    def _fields(self) -> dict[str, int]:
        """The names of all fields, each with its newest value. There are few, so the hash table is walked, not used."""
        if self._names is None:
            self._names = {}
            for bucket in range(self._fields_at, min(self._fields_at + self._fields_size, self._size - 15), 16):
                self._collect(struct.unpack_from("<Q", self._image, bucket)[0], self._names)
        return self._names

    def _collect(self, offset: int, names: dict[str, int]) -> None:
        while offset and len(names) < MOST_NAMES:
            try:
                _, _, size, following, newest = self._object(offset, _FIELD, _Field)
                self._whole(offset, size, 40)
            except DamagedData:
                return
            names[self._image[offset + 40 : offset + min(size, 40 + 256)].decode("ascii", "replace")] = newest
            offset = following if following > offset else 0


# Fields that were compressed


XZ, LZ4, ZSTD = 1, 2, 4

_MEMORY = 64 * 2**20


def inflate(kind: int, data: bytes, most: int) -> bytes:
    """The bytes that were compressed, at most so many. What claims to be more is damaged, or a bomb."""
    if kind == ZSTD:
        return _zstd(data, most)
    if kind == LZ4:
        return _lz4(data, most)
    if kind == XZ:
        return _xz(data, most)
    raise DamagedData("a field says that it was compressed in two ways at once")


def _zstd(data: bytes, most: int) -> bytes:
    zstandard: Any = package("zstandard", "Reading the compressed fields of this journal")
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size <= most:
            return bytes(zstandard.ZstdDecompressor(max_window_size=_MEMORY).decompress(data, max_output_size=most))
        if size < 2**63:
            raise _too_large(size, most)
        # It does not say, so it is watched.
        reader = zstandard.ZstdDecompressor(max_window_size=_MEMORY).stream_reader(data)
        return _bounded(reader.read(most + 1), most)
    except zstandard.ZstdError:
        raise DamagedData("a field is no whole zstd frame") from None


def _lz4(data: bytes, most: int) -> bytes:
    block: Any = package("lz4.block", "Reading the compressed fields of this journal")
    size = int.from_bytes(data[:8], "little")
    if size > most:
        raise _too_large(size, most)
    try:
        return bytes(block.decompress(data[8:], uncompressed_size=size))
    except block.LZ4BlockError:
        raise DamagedData("a field is no whole lz4 block") from None


def _xz(data: bytes, most: int) -> bytes:
    unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    try:
        found = _bounded(unpacking.decompress(data, most + 1), most)
    except (lzma.LZMAError, EOFError):
        raise DamagedData("a field is no whole xz stream") from None
    if not unpacking.eof:
        raise DamagedData("a field is no whole xz stream")
    return found


def _bounded(found: bytes, most: int) -> bytes:
    if len(found) > most:
        raise _too_large(len(found), most)
    return found


def _too_large(size: int, most: int) -> DamagedData:
    return DamagedData(f"a compressed field claims {size:,} bytes or more, and {most:,} is the most")
