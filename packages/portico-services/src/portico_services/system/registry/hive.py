"""Reader of a Windows registry hive file.

A hive consists of a header of 4096 bytes and cells, each with its size; they refer to each other by offsets from the
end of the header. A key (`nk`) refers to a list of its subkeys (`lf`, `lh`, `li`, or `ri`, a list of such lists) and to
a list of its values (`vk`); a long value is stored in segments (`db`).

Files may be corrupt or malicious. Unreadable parts are skipped and reported in `problems`; sizes are checked against
the file, lists against their cells, and a walk visits each key once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from portico_services.system.errors import CorruptData
from portico_services.system.path_access import FileImage
from portico_services.system.registry.values import StoredValue

MAX_SUBKEYS = 1_000_000
MAX_DEPTH = 512
MAX_VALUE_BYTES = 16 * 2**20
MAX_REPORTED_PROBLEMS = 20

_HEADER_BYTES = 4096
_BIG_DATA_SEGMENT_BYTES = 16344
_ASCII_NAME = 0x20
_RESIDENT = 0x80000000
_FILETIME_EPOCH_US = 11_644_473_600_000_000  # 1601 to 1970 in microseconds.

_Key = struct.Struct("<i2sHQ8xI4xI4xII28xHH")
_Value = struct.Struct("<i2sHIIIH")
_List = struct.Struct("<i2sH")
_Pieces = struct.Struct("<i2sHI")


class HiveKey:
    """Registry key. Its content is read on demand."""

    __slots__ = ("_hive", "_subkeys", "_values", "count", "name", "offset", "written")

    def __init__(self, hive: Hive, offset: int, name: str, written: int, subkeys: int, values: int, count: int) -> None:
        self._hive = hive
        self.offset = offset
        self.name = name
        self.written = written  # In microseconds since 1970.
        self._subkeys = subkeys
        self._values = values
        self.count = count  # Number of values.

    def subkeys(self) -> Iterator[HiveKey]:
        for offset in self._hive.read_subkeys(self._subkeys):
            try:
                yield self._hive.key(offset)
            except CorruptData as damage:
                self._hive.report_damage(damage)

    def values(self, longest: int = MAX_VALUE_BYTES, named: str | None = None) -> Iterator[StoredValue]:
        """Yield its values, each with up to `longest` bytes; with `named`, only those of that case-folded name."""
        for offset in self._hive.offsets(self._values, self.count):
            try:
                result = self._hive.value(offset, longest, named)
            except CorruptData as damage:
                self._hive.report_damage(damage)
            else:
                if result is not None:
                    yield result

    def subkey(self, name: str) -> HiveKey | None:
        """Return a subkey by name, ignoring case, or None."""
        folded_name = name.casefold()
        return next((key for key in self.subkeys() if key.name.casefold() == folded_name), None)


class Hive:
    """Parsed hive file."""

    def __init__(self, image: FileImage) -> None:
        self._image = image
        self._size = len(image)
        if self._size < _HEADER_BYTES + 32 or image[:4] != b"regf":
            raise CorruptData("not a hive file: invalid signature")
        first, second, written, major, minor = struct.unpack_from("<IIQII", image, 4)
        if major != 1:
            raise CorruptData(f"unsupported hive version {major}.{minor}")
        self.written = _time(written)
        # The hive was not completely written at its last use: the newest changes are in a log file next to it.
        self.is_dirty = first != second
        self._minor = minor
        self.problems: list[str] = []
        self._root, cells = struct.unpack_from("<II", image, 36)
        # Number of bytes missing from a truncated file.
        self.missing = max(0, _HEADER_BYTES + cells - self._size)
        self.key(self._root)

    @property
    def root(self) -> HiveKey:
        """Return the root key. Not cached: a key refers to its hive, and a reference cycle would keep the file in
        memory.
        """
        return self.key(self._root)

    def walk(self) -> Iterator[tuple[tuple[str, ...], HiveKey]]:
        """Yield every key once, with its path; a key before its subkeys."""
        # A malicious hive can refer to a key from several places or from below itself.
        seen = {self._root}
        waiting: list[tuple[tuple[str, ...], HiveKey]] = [((), self.root)]
        while waiting:
            path, key = waiting.pop()
            yield path, key
            below = [sub for sub in key.subkeys() if sub.offset not in seen]
            if len(path) < MAX_DEPTH:
                seen.update(sub.offset for sub in below)
                waiting.extend(((*path, sub.name), sub) for sub in reversed(below))

    def find(self, path: list[str]) -> HiveKey | None:
        """Return a key by path, or None. Damage found on the way is not reported: it does not concern the key."""
        key: HiveKey | None = self.root
        for name in path[:MAX_DEPTH]:
            key = key.subkey(name) if key is not None else None
        if key is not None:
            self.problems.clear()
        return key

    def report_damage(self, damage: CorruptData) -> None:
        if len(self.problems) < MAX_REPORTED_PROBLEMS:
            self.problems.append(str(damage))

    # Cells

    def key(self, offset: int) -> HiveKey:
        at = offset + _HEADER_BYTES
        try:
            size, kind, flags, written, count, subkeys, values_count, values, length, _ = _Key.unpack_from(
                self._image, at
            )
        except struct.error:
            raise CorruptData(f"a key is outside the file: {offset:#x}") from None
        # The name follows the fixed part of 80 bytes and must lie within the cell.
        if kind != b"nk" or size > -80 - length:
            raise CorruptData(f"expected a key at {offset:#x}")
        name = self._name(at + 80, length, flags & _ASCII_NAME)
        return HiveKey(self, offset, name, _time(written), subkeys if count else 0, values, values_count)

    def value(self, offset: int, longest: int, named: str | None = None) -> StoredValue | None:
        """Return a value with up to `longest` bytes, or None if its name differs from the case-folded `named`."""
        at = offset + _HEADER_BYTES
        try:
            size, kind, length, data_size, data, number, flags = _Value.unpack_from(self._image, at)
        except struct.error:
            raise CorruptData(f"a value is outside the file: {offset:#x}") from None
        if kind != b"vk" or size > -24 - length:
            raise CorruptData(f"expected a value at {offset:#x}")
        name = self._name(at + 24, length, flags & 1)
        if named is not None and named != name.casefold():
            return None
        # Values of up to four bytes are stored in the offset field itself.
        if data_size & _RESIDENT:
            resident_bytes = min(data_size & ~_RESIDENT, 4)
            return StoredValue(name, number, self._image[at + 12 : at + 12 + resident_bytes], resident_bytes)
        return StoredValue(name, number, self._data(data, data_size, longest) if data_size else b"", data_size)

    def _name(self, at: int, length: int, is_ascii: int) -> str:
        raw = self._image[at : at + length]
        return raw.decode("latin-1") if is_ascii else raw.decode("utf-16-le", "backslashreplace")

    def _cell(self, offset: int) -> tuple[int, int]:
        """Return the offset and size of a cell's content."""
        at = offset + _HEADER_BYTES
        if at + 8 > self._size:
            raise CorruptData(f"a cell is outside the file: {offset:#x}")
        size: int = -struct.unpack_from("<i", self._image, at)[0]
        # Sizes of used cells are negative in the file; a positive one means that the cell is free.
        if not 8 <= size <= self._size - at:
            raise CorruptData(f"invalid cell size {size:,} bytes: {offset:#x}")
        return at + 4, size - 4

    def _data(self, offset: int, size: int, longest: int) -> bytes:
        if size > MAX_VALUE_BYTES:
            raise CorruptData(f"a value claims {size:,} bytes")
        at, room = self._cell(offset)
        if size > _BIG_DATA_SEGMENT_BYTES and self._minor > 3 and self._image[at : at + 2] == b"db":
            return self._read_segments(at, min(size, longest))
        if room < size:
            raise CorruptData(f"a value exceeds its cell: {offset:#x}")
        return self._image[at : at + min(size, longest)]

    def _read_segments(self, at: int, size: int) -> bytes:
        _, _, count, listed = _Pieces.unpack_from(self._image, at - 4)
        results: list[bytes] = []
        for offset in self.offsets(listed, count):
            where, room = self._cell(offset)
            results.append(self._image[where : where + min(room, _BIG_DATA_SEGMENT_BYTES, size)])
            size -= len(results[-1])
            if size <= 0:
                return b"".join(results)
        raise CorruptData("a segment of a long value is missing")

    # Lists

    def offsets(self, offset: int, count: int) -> tuple[int, ...]:
        """Return a list of `count` offsets, as far as its cell contains them."""
        if not count:
            return ()
        try:
            at, room = self._cell(offset)
        except CorruptData as damage:
            self.report_damage(damage)
            return ()
        return struct.unpack_from(f"<{min(count, room // 4)}I", self._image, at)

    def read_subkeys(self, offset: int) -> Iterator[int]:
        """Yield the offsets of the subkeys in a list or a list of lists."""
        left = MAX_SUBKEYS
        # An `ri` list contains lists but never another `ri`, which also bounds the recursion.
        for offsets in self._lists(offset, 2):
            yield from offsets[:left]
            left -= len(offsets)
            if left <= 0:
                return

    def _lists(self, offset: int, depth: int) -> Iterator[tuple[int, ...]]:
        if not offset or offset == 0xFFFFFFFF or not depth:
            return
        try:
            at, room = self._cell(offset)
        except CorruptData as damage:
            self.report_damage(damage)
            return
        _, kind, count = _List.unpack_from(self._image, at - 4)
        if kind in (b"lf", b"lh"):
            yield struct.unpack_from("<" + "I4x" * min(count, (room - 4) // 8), self._image, at + 4)
        elif kind in (b"li", b"ri"):
            result = struct.unpack_from(f"<{min(count, (room - 4) // 4)}I", self._image, at + 4)
            if kind == b"li":
                yield result
            else:
                for item in result:
                    yield from self._lists(item, depth - 1)
        else:
            self.report_damage(CorruptData(f"expected a list of keys at {offset:#x}"))


def _time(filetime: int) -> int:
    """Convert a FILETIME (100 ns since 1601) to microseconds since 1970."""
    return max(0, filetime // 10 - _FILETIME_EPOCH_US)
