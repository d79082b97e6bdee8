"""One hive: its keys and values, as Windows keeps them in a file.

A hive is a header of 4096 bytes and then cells, each with its size; they point to each other by offsets from the end
of the header. A key (`nk`) points to a list of its subkeys (`lf`, `lh`, `li`, or `ri`, a list of such lists) and to
a list of its values (`vk`); a long value lies in pieces (`db`).

Files may be damaged, or made to do harm. What cannot be read is left out and mentioned in `problems`; sizes are held
against the file, lists against their cells, and a walk comes by each key once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from portico_services.system.errors import DamagedData
from portico_services.system.path_access import Image

MOST_SUBKEYS = 1_000_000
MOST_DEPTH = 512
LARGEST_VALUE = 16 * 2**20
MOST_PROBLEMS = 20

_HEADER = 4096
_PIECE = 16344
_ASCII_NAME = 0x20
_RESIDENT = 0x80000000
_EPOCH = 11_644_473_600_000_000  # 1601 to 1970, in microseconds

_Key = struct.Struct("<i2sHQ8xI4xI4xII28xHH")
_Value = struct.Struct("<i2sHIIIH")
_List = struct.Struct("<i2sH")
_Pieces = struct.Struct("<i2sHI")


class HiveValue:
    """A value: its name ("" is the default one), its type as a number, its bytes or the first of them."""

    __slots__ = ("data", "name", "size", "type")

    def __init__(self, name: str, type: int, data: bytes, size: int) -> None:
        self.name = name
        self.type = type
        self.data = data
        self.size = size


class Key:
    """A key. What is in it is read when it is asked for."""

    __slots__ = ("_hive", "_subkeys", "_values", "count", "name", "offset", "written")

    def __init__(self, hive: Hive, offset: int, name: str, written: int, subkeys: int, values: int, count: int) -> None:
        self._hive = hive
        self.offset = offset
        self.name = name
        self.written = written  # in microseconds since 1970
        self._subkeys = subkeys
        self._values = values
        self.count = count  # of values

    def subkeys(self) -> Iterator[Key]:
        for offset in self._hive.listed(self._subkeys):
            try:
                yield self._hive.key(offset)
            except DamagedData as damage:
                self._hive.mention(damage)

    def values(self, longest: int = LARGEST_VALUE, named: str | None = None) -> Iterator[HiveValue]:
        """Its values, with so many of the bytes of each; or those of one name, in lower case."""
        for offset in self._hive.offsets(self._values, self.count):
            try:
                found = self._hive.value(offset, longest, named)
            except DamagedData as damage:
                self._hive.mention(damage)
            else:
                if found is not None:
                    yield found

    def subkey(self, name: str) -> Key | None:
        """A subkey by its name, in whatever case."""
        wanted = name.casefold()
        return next((key for key in self.subkeys() if key.name.casefold() == wanted), None)


class Hive:
    def __init__(self, image: Image) -> None:
        self._image = image
        self._size = len(image)
        if self._size < _HEADER + 32 or image[:4] != b"regf":
            raise DamagedData("no hive: it does not begin as one")
        first, second, written, major, minor = struct.unpack_from("<IIQII", image, 4)
        if major != 1:
            raise DamagedData(f"a hive of version {major}.{minor}, which is not known here")
        self.written = _time(written)
        # Not everything was written when it was last used: the newest changes are in a log beside it.
        self.is_dirty = first != second
        self._minor = minor
        self.problems: list[str] = []
        self._root, cells = struct.unpack_from("<II", image, 36)
        # So many bytes of it are not in the file: it was cut off.
        self.missing = max(0, _HEADER + cells - self._size)
        self.key(self._root)

    @property
    def root(self) -> Key:
        """Made each time it is asked for: kept, it would keep the hive, and the hive it."""
        return self.key(self._root)

    def walk(self) -> Iterator[tuple[tuple[str, ...], Key]]:
        """Every key once, with the names on the way to it; a key before its subkeys."""
        seen = {self._root}
        waiting: list[tuple[tuple[str, ...], Key]] = [((), self.root)]
        while waiting:
            path, key = waiting.pop()
            yield path, key
            below = [sub for sub in key.subkeys() if sub.offset not in seen]
            if len(path) < MOST_DEPTH:
                seen.update(sub.offset for sub in below)
                waiting.extend(((*path, sub.name), sub) for sub in reversed(below))

    def find(self, path: list[str]) -> Key | None:
        """A key by the names on the way to it. What is damaged beside the way is not mentioned: it is none of its."""
        key: Key | None = self.root
        for name in path[:MOST_DEPTH]:
            key = key.subkey(name) if key is not None else None
        if key is not None:
            self.problems.clear()
        return key

    def mention(self, damage: DamagedData) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(str(damage))

    # Cells

    def key(self, offset: int) -> Key:
        at = offset + _HEADER
        try:
            size, kind, flags, written, count, subkeys, values_count, values, length, _ = _Key.unpack_from(
                self._image, at
            )
        except struct.error:
            raise DamagedData(f"a key lies outside the file: {offset:#x}") from None
        if kind != b"nk" or size > -80 - length:
            raise DamagedData(f"no key where there should be one: {offset:#x}")
        name = self._name(at + 80, length, flags & _ASCII_NAME)
        return Key(self, offset, name, _time(written), subkeys if count else 0, values, values_count)

    def value(self, offset: int, longest: int, named: str | None = None) -> HiveValue | None:
        """A value with so many of its bytes; None if it has another name than this, in whatever case."""
        at = offset + _HEADER
        try:
            size, kind, length, data_size, data, number, flags = _Value.unpack_from(self._image, at)
        except struct.error:
            raise DamagedData(f"a value lies outside the file: {offset:#x}") from None
        if kind != b"vk" or size > -24 - length:
            raise DamagedData(f"no value where there should be one: {offset:#x}")
        name = self._name(at + 24, length, flags & 1)
        if named is not None and named != name.casefold():
            return None
        if data_size & _RESIDENT:
            kept = min(data_size & ~_RESIDENT, 4)
            return HiveValue(name, number, self._image[at + 12 : at + 12 + kept], kept)
        return HiveValue(name, number, self._data(data, data_size, longest) if data_size else b"", data_size)

    def _name(self, at: int, length: int, is_ascii: int) -> str:
        raw = self._image[at : at + length]
        return raw.decode("latin-1") if is_ascii else raw.decode("utf-16-le", "backslashreplace")

    def _cell(self, offset: int) -> tuple[int, int]:
        """Where a cell's contents begin, and how many bytes there are."""
        at = offset + _HEADER
        if at + 8 > self._size:
            raise DamagedData(f"a cell lies outside the file: {offset:#x}")
        size: int = -struct.unpack_from("<i", self._image, at)[0]
        if not 8 <= size <= self._size - at:
            raise DamagedData(f"a cell claims a size of {size:,} bytes: {offset:#x}")
        return at + 4, size - 4

    def _data(self, offset: int, size: int, longest: int) -> bytes:
        if size > LARGEST_VALUE:
            raise DamagedData(f"a value claims {size:,} bytes")
        at, room = self._cell(offset)
        if size > _PIECE and self._minor > 3 and self._image[at : at + 2] == b"db":
            return self._pieces(at, min(size, longest))
        if room < size:
            raise DamagedData(f"a value is larger than its cell: {offset:#x}")
        return self._image[at : at + min(size, longest)]

    def _pieces(self, at: int, size: int) -> bytes:
        _, _, count, listed = _Pieces.unpack_from(self._image, at - 4)
        found: list[bytes] = []
        for offset in self.offsets(listed, count):
            where, room = self._cell(offset)
            found.append(self._image[where : where + min(room, _PIECE, size)])
            size -= len(found[-1])
            if size <= 0:
                return b"".join(found)
        raise DamagedData("a long value lacks a piece")

    # Lists

    def offsets(self, offset: int, count: int) -> tuple[int, ...]:
        """A list of so many offsets, as far as its cell holds them."""
        if not count:
            return ()
        try:
            at, room = self._cell(offset)
        except DamagedData as damage:
            self.mention(damage)
            return ()
        return struct.unpack_from(f"<{min(count, room // 4)}I", self._image, at)

    def listed(self, offset: int) -> Iterator[int]:
        """The subkeys in a list, or in a list of lists."""
        left = MOST_SUBKEYS
        for found in self._lists(offset, 2):
            yield from found[:left]
            left -= len(found)
            if left <= 0:
                return

    def _lists(self, offset: int, depth: int) -> Iterator[tuple[int, ...]]:
        if not offset or offset == 0xFFFFFFFF or not depth:
            return
        try:
            at, room = self._cell(offset)
        except DamagedData as damage:
            self.mention(damage)
            return
        _, kind, count = _List.unpack_from(self._image, at - 4)
        if kind in (b"lf", b"lh"):
            yield struct.unpack_from("<" + "I4x" * min(count, (room - 4) // 8), self._image, at + 4)
        elif kind in (b"li", b"ri"):
            found = struct.unpack_from(f"<{min(count, (room - 4) // 4)}I", self._image, at + 4)
            if kind == b"li":
                yield found
            else:
                for one in found:
                    yield from self._lists(one, depth - 1)
        else:
            self.mention(DamagedData(f"no list of keys where there should be one: {offset:#x}"))


def _time(filetime: int) -> int:
    """Tenths of microseconds since 1601 as microseconds since 1970."""
    return max(0, filetime // 10 - _EPOCH)
