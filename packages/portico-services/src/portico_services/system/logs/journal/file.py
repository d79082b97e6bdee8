"""Reader of one journal file: entries by number, and the index of entries by field value.

The format is systemd's "Journal File Format". A file consists of a header and objects at offsets that are multiples of
eight. Entries refer to data objects (`NAME=value`), which they share, so a common value is read once. Every data object
refers back to its entries, and every field name to its values: that is the index.

Files may be corrupt, incomplete or malicious. Offsets are only followed in one direction (entry arrays and hash chains
forwards, value chains backwards), so there are no loops; sizes are checked against the file; the decompressed size of
an entry is limited.
"""

from __future__ import annotations

import lzma
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from portico_services.system.errors import CorruptData, MissingDependency, require_package
from portico_services.system.path_access import FileImage

# systemd writes at most 1,024 fields per entry (`ENTRY_FIELD_COUNT_MAX`).
MAX_FIELDS = 1024
# Of all decompressed fields together: many small compressed fields can form a bomb as well.
MAX_ENTRY_BYTES = 32 * 2**20
MAX_FIELD_NAMES = 4096
MAX_REPORTED_PROBLEMS = 10
_CACHE_BYTES = 16 * 2**20

_SIGNATURE = b"LPKSHHRH"
_COMPACT = 16
_SUPPORTED_FLAGS = 0b11111
_DATA, _FIELD, _ENTRY, _ARRAY = 1, 2, 3, 6

_Header = struct.Struct("<8s4xI8x48x16s15Q")
_Payload = struct.Struct("<BB6xQ")
_Data = struct.Struct("<BB6xQ16x4Q")
_Field = struct.Struct("<BB6xQ8xQQ")
_Entry = struct.Struct("<B7xQQQQ16s8x")
_Array = struct.Struct("<B7xQQ")

FieldPair = tuple[str, str | bytes]
EntryHeader = tuple[int, int, int, int, int, bytes]
"""Header of an entry: offset, size, sequence number, real time, monotonic time, boot id."""

# One layout per number of fields, created on demand: most files use only a few dozen.
_ITEMS: dict[tuple[bool, int], struct.Struct] = {}


def _items(compact: bool, count: int) -> struct.Struct:
    decoder = _ITEMS.get((compact, count))
    if decoder is None:
        decoder = _ITEMS[compact, count] = struct.Struct(f"<{count}I" if compact else "<" + "Q8x" * count)
    return decoder


class EntryArray:
    """List of offsets, stored in the file as a chain of arrays of growing size."""

    def __init__(self, image: FileImage, width: int, runs: list[tuple[int, int, int]]) -> None:
        self._image = image
        self._width = width
        self._code = "<Q" if width == 8 else "<I"
        # Of each array: number of its first item, offset of that item, and item count.
        self._runs = runs
        self._starts = [run[0] for run in runs]

    def __len__(self) -> int:
        return self._runs[-1][0] + self._runs[-1][2] if self._runs else 0

    def __getitem__(self, index: int) -> int:
        first, at, _ = self._runs[bisect_right(self._starts, index) - 1]
        return int(struct.unpack_from(self._code, self._image, at + (index - first) * self._width)[0])

    def backwards(self, stop: int) -> Iterator[int]:
        """Yield the items before the number `stop`, last one first."""
        for first, at, count in reversed(self._runs):
            end = min(count, stop - first)
            while end > 0:
                # Unpack in batches: one call per item is several times slower.
                begin = max(0, end - 1024)
                codes = f"<{end - begin}{self._code[1]}"
                yield from reversed(struct.unpack_from(codes, self._image, at + begin * self._width))
                end = begin


class _DataCache(dict[int, FieldPair]):
    """Data objects by offset, read on first use and decompressed within a budget.

    It references the file's bytes and not the JournalFile: a reference cycle would keep them in memory until the
    garbage collector runs.
    """

    def __init__(self, image: FileImage, start: int) -> None:
        super().__init__()
        self._image = image
        self._size = len(image)
        self._start = start
        self._room = _CACHE_BYTES
        self.budget = MAX_ENTRY_BYTES

    def __missing__(self, offset: int) -> FieldPair:
        pair = self._load(offset)
        # The constant approximates the size of the Python objects.
        self._room -= len(pair[1]) + 200
        if self._room < 0:
            self.clear()
            self._room = _CACHE_BYTES
        self[offset] = pair
        return pair

    def _load(self, offset: int) -> FieldPair:
        try:
            kind, flags, size = _Payload.unpack_from(self._image, offset)
        except (struct.error, OverflowError):
            raise CorruptData(f"a field is outside the file: {offset:#x}") from None
        if kind != _DATA or offset & 7 or not self._start < size <= self._size - offset:
            raise CorruptData(f"expected a field at {offset:#x}")
        if size > self.budget:
            raise CorruptData("an entry exceeds the maximum size")
        data = self._image[offset + self._start : offset + size]
        if flags:
            data = decompress(flags, data, self.budget)
        self.budget -= len(data)
        name, equals, value = data.partition(b"=")
        if not equals:
            raise CorruptData(f"a field has no name: {offset:#x}")
        try:
            return name.decode("ascii"), value.decode()
        except UnicodeDecodeError:
            return name.decode("ascii", "backslashreplace"), value


class JournalFile:
    """Parsed journal file."""

    def __init__(self, image: FileImage) -> None:
        self._image = image
        self._size = len(image)
        if self._size < _Header.size or image[:8] != _SIGNATURE:
            raise CorruptData("not a journal file: invalid signature")
        (_, flags, self.seqnum_id, *numbers) = _Header.unpack_from(image)
        # `incompatible_flags` of the format: a reader that does not know a flag must not read the file.
        if flags & ~_SUPPORTED_FLAGS:
            raise CorruptData("the journal uses features of a later version of systemd")
        self._compact = bool(flags & _COMPACT)
        self._width = 4 if self._compact else 8
        (_, _, _, _, self._fields_at, self._fields_size, _, _, self.count) = numbers[:9]
        self.newest_seqnum, _, entries_at, self.oldest, self.newest, _ = numbers[9:]
        self._values = _DataCache(image, 72 if self._compact else 64)
        self._names: dict[str, int] | None = None
        self.problems: set[str] = set()
        self.entries = self._chain(entries_at, self.count)

    # Objects

    def _object(self, offset: int, kind: int, layout: struct.Struct) -> tuple[int, ...]:
        """Return the members of an object. Raises CorruptData if it has another type or exceeds the file."""
        # Objects are aligned to eight bytes; another offset is damage or an attempt to read across objects.
        if offset & 7 or not 0 < offset < self._size:
            raise CorruptData(f"invalid offset: {offset:#x}")
        try:
            members = layout.unpack_from(self._image, offset)
        except struct.error:
            raise CorruptData(f"truncated object: {offset:#x}") from None
        if members[0] != kind:
            raise CorruptData(f"expected an object of type {kind} at {offset:#x}, got type {members[0]}")
        return members

    def _read_object(self, offset: int, size: int, minimum: int) -> None:
        if not minimum <= size <= self._size - offset:
            raise CorruptData(f"invalid object size {size:,} bytes: {offset:#x}")

    def _chain(self, at: int, max_items: int) -> EntryArray:
        """Return a list of at most `max_items` offsets. It ends where its chain is broken."""
        runs: list[tuple[int, int, int]] = []
        count = 0
        while at and count < max_items:
            try:
                _, size, following = self._object(at, _ARRAY, _Array)
                self._read_object(at, size, 24)
            except CorruptData:
                break
            item_count = min((size - 24) // self._width, max_items - count)
            runs.append((count, at + 24, item_count))
            count += item_count
            # New arrays are always appended behind the existing ones; anything else is a loop.
            if following < at + size:
                break
            at = following
        return EntryArray(self._image, self._width, runs)

    # Entries

    def entry_header(self, offset: int) -> EntryHeader:
        try:
            kind, size, seqnum, real, monotonic, boot = _Entry.unpack_from(self._image, offset)
        except (struct.error, OverflowError):
            raise CorruptData(f"an entry is outside the file: {offset:#x}") from None
        if kind != _ENTRY or offset & 7 or not 64 <= size <= self._size - offset:
            raise CorruptData(f"expected an entry at {offset:#x}")
        return offset, size, seqnum, real, monotonic, boot

    def fields(self, head: EntryHeader) -> list[FieldPair]:
        """Return all fields of an entry in the order they were written; corrupt ones are omitted."""
        offset, size = head[0], head[1]
        count = (size - 64) // (4 if self._compact else 16)
        if count > MAX_FIELDS:
            raise CorruptData(f"an entry claims {count:,} fields")
        self._values.budget = MAX_ENTRY_BYTES
        offsets = _items(self._compact, count).unpack_from(self._image, offset + 64)
        try:
            return list(map(self._values.__getitem__, offsets))
        except (CorruptData, MissingDependency):
            return list(self._read_valid_fields(offsets))

    def _read_valid_fields(self, offsets: Iterable[int]) -> Iterator[FieldPair]:
        for offset in offsets:
            try:
                yield self._values[offset]
            except (CorruptData, MissingDependency) as failure:
                if len(self.problems) < MAX_REPORTED_PROBLEMS:
                    self.problems.add(str(failure))

    def before_seqnum(self, seqnum: int) -> int:
        """Return the number of entries before this sequence number."""
        return self._first(lambda head: head[2] >= seqnum)

    def before_time(self, time: int) -> int:
        """Return the number of entries before this time."""
        return self._first(lambda head: head[3] >= time)

    def _first(self, reached: Callable[[EntryHeader], bool]) -> int:
        """Return the first entry for which a monotonic predicate holds. Corrupt entries count as late: damage is most
        often at the end, where the machine stopped.
        """
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            try:
                is_late = reached(self.entry_header(self.entries[middle]))
            except CorruptData:
                is_late = True
            low, high = (low, middle) if is_late else (middle + 1, high)
        return low

    # Index

    def values(self, field: str) -> Iterator[tuple[str | bytes, int]]:
        """Yield the values of a field in this file, each with the offset of its data object."""
        offset = self._fields().get(field, 0)
        while offset:
            try:
                members = self._object(offset, _DATA, _Data)
                self._values.budget = MAX_ENTRY_BYTES
                yield self._values[offset][1], offset
            except CorruptData:
                return
            following = members[3]
            # The chain starts with the newest value, so offsets must decrease.
            offset = following if following < offset else 0

    def entries_with(self, data: int) -> Iterator[int]:
        """Yield the offsets of the entries that contain this data object, oldest first."""
        _, _, _, _, _, first, arrays, count = (0, *self._object(data, _DATA, _Data))
        if count:
            yield first
            chain = self._chain(arrays, count - 1)
            yield from reversed(list(chain.backwards(len(chain))))

    def _fields(self) -> dict[str, int]:
        """Return all field names with the offset of their newest value. There are few, so the hash table is scanned."""
        if self._names is None:
            self._names = {}
            for bucket in range(self._fields_at, min(self._fields_at + self._fields_size, self._size - 15), 16):
                self._collect(struct.unpack_from("<Q", self._image, bucket)[0], self._names)
        return self._names

    def _collect(self, offset: int, names: dict[str, int]) -> None:
        while offset and len(names) < MAX_FIELD_NAMES:
            try:
                _, _, size, following, newest = self._object(offset, _FIELD, _Field)
                self._read_object(offset, size, 40)
            except CorruptData:
                return
            names[self._image[offset + 40 : offset + min(size, 40 + 256)].decode("ascii", "replace")] = newest
            offset = following if following > offset else 0


# Compressed fields


XZ, LZ4, ZSTD = 1, 2, 4

_MAX_DECOMPRESSOR_BYTES = 64 * 2**20


def decompress(kind: int, data: bytes, max_bytes: int) -> bytes:
    """Decompress at most `max_bytes` bytes. A larger field is corrupt or a decompression bomb."""
    if kind == ZSTD:
        return _zstd(data, max_bytes)
    if kind == LZ4:
        return _lz4(data, max_bytes)
    if kind == XZ:
        return _xz(data, max_bytes)
    raise CorruptData("a field claims two compression formats")


def _zstd(data: bytes, max_bytes: int) -> bytes:
    zstandard: Any = require_package("zstandard", "Reading the compressed fields of this journal")
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size <= max_bytes:
            return bytes(
                zstandard.ZstdDecompressor(max_window_size=_MAX_DECOMPRESSOR_BYTES).decompress(
                    data, max_output_size=max_bytes
                )
            )
        if size < 2**63:
            raise _too_large(size, max_bytes)
        # The frame does not state its size, so the output is limited while reading.
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_DECOMPRESSOR_BYTES).stream_reader(data)
        return _check_size(reader.read(max_bytes + 1), max_bytes)
    except zstandard.ZstdError:
        raise CorruptData("invalid zstd frame in a field") from None


def _lz4(data: bytes, max_bytes: int) -> bytes:
    block: Any = require_package("lz4.block", "Reading the compressed fields of this journal")
    size = int.from_bytes(data[:8], "little")
    if size > max_bytes:
        raise _too_large(size, max_bytes)
    try:
        return bytes(block.decompress(data[8:], uncompressed_size=size))
    except block.LZ4BlockError:
        raise CorruptData("invalid lz4 block in a field") from None


def _xz(data: bytes, max_bytes: int) -> bytes:
    unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DECOMPRESSOR_BYTES)
    try:
        result = _check_size(unpacking.decompress(data, max_bytes + 1), max_bytes)
    except (lzma.LZMAError, EOFError):
        raise CorruptData("invalid xz stream in a field") from None
    if not unpacking.eof:
        raise CorruptData("invalid xz stream in a field")
    return result


def _check_size(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(len(data), max_bytes)
    return data


def _too_large(size: int, max_bytes: int) -> CorruptData:
    return CorruptData(f"a compressed field has at least {size:,} bytes; the limit is {max_bytes:,} bytes")
