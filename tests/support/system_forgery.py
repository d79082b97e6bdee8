"""Write journals and registry hives of every layout, which tests then corrupt."""

from __future__ import annotations

import lzma
import struct
from collections.abc import Callable, Sequence

Entry = Sequence[tuple[str, bytes | str]]

SEQNUM_ID = bytes(range(16))
BOOT_ID = bytes.fromhex("4f2fd2ad2a2b4a2ea2e5e5b2ad7bd5ae")
START = 1_700_000_000_000_000


def _lz4(data: bytes) -> bytes:
    import lz4.block

    return len(data).to_bytes(8, "little") + lz4.block.compress(data, store_size=False)


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


_PACKERS: dict[str, tuple[int, int, Callable[[bytes], bytes]]] = {
    # flag of the object, flag of the file
    "xz": (1, 1, lambda data: lzma.compress(data, check=lzma.CHECK_NONE)),
    "lz4": (2, 2, _lz4),
    "zstd": (4, 8, _zstd),
}


class Journal:
    """A journal file, object by object. Stores the offsets of all objects, for tests that corrupt them."""

    def __init__(
        self, *, compact: bool = False, packer: str = "", seqnum_id: bytes = SEQNUM_ID, first: int = 1
    ) -> None:
        self.compact = compact
        self._flag, file_flag, self._pack = _PACKERS.get(packer, (0, 0, bytes))
        self.incompatible = file_flag | (16 if compact else 0)
        self.seqnum_id = seqnum_id
        self.out = bytearray(272)
        self.objects = 0
        self.data: dict[bytes, int] = {}
        self.fields: dict[str, int] = {}
        self.having: dict[int, list[int]] = {}
        self.entries: list[int] = []
        self.times: list[int] = []
        self.next_seqnum = first
        self.data_table = self._object(4, bytes(16 * 8)) + 16
        self.field_table = self._object(5, bytes(16 * 4)) + 16

    def _object(self, kind: int, body: bytes, flags: int = 0) -> int:
        self.out += bytes(-len(self.out) % 8)
        at = len(self.out)
        self.out += struct.pack("<BB6xQ", kind, flags, 16 + len(body)) + body
        self.objects += 1
        return at

    def _put(self, at: int, *values: int) -> None:
        struct.pack_into(f"<{len(values)}Q", self.out, at, *values)

    def _get(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.out, at)[0])

    def _datum(self, name: str, value: bytes | str) -> int:
        payload = name.encode() + b"=" + (value.encode() if isinstance(value, str) else value)
        if payload in self.data:
            return self.data[payload]
        packed = self._flag and len(payload) > 64
        body = self._pack(payload) if packed else payload
        field = self._field(name)
        head = bytes(48) + (bytes(8) if self.compact else b"")
        at = self._object(1, head + body, self._flag if packed else 0)
        self._put(at + 16, hash(payload) & 0xFFFFFFFF)
        self._put(at + 32, self._get(field + 32))
        self._put(field + 32, at)
        self._chain(self.data_table + 16 * (len(self.data) % 8), at)
        self.data[payload] = at
        self.having[at] = []
        return at

    def _field(self, name: str) -> int:
        if name not in self.fields:
            at = self._object(2, bytes(24) + name.encode())
            self._chain(self.field_table + 16 * (len(self.fields) % 4), at)
            self.fields[name] = at
        return self.fields[name]

    def _chain(self, bucket: int, at: int) -> None:
        """Append an object to its bucket of a hash table."""
        head, tail = self._get(bucket), self._get(bucket + 8)
        self._put(bucket, head or at)
        if tail:
            self._put(tail + 24, at)
        self._put(bucket + 8, at)

    def add(self, entry: Entry, time: int | None = None) -> int:
        time = START + len(self.entries) * 1_000_000 if time is None else time
        items = [self._datum(name, value) for name, value in entry]
        body = struct.pack("<QQQ16sQ", self.next_seqnum, time, time - START + 1, BOOT_ID, 0)
        if self.compact:
            body += struct.pack(f"<{len(items)}I", *items)
        else:
            body += b"".join(struct.pack("<QQ", item, self._get(item + 16)) for item in items)
        at = self._object(3, body)
        for item in dict.fromkeys(items):
            self.having[item].append(at)
        self.next_seqnum += 1
        self.entries.append(at)
        self.times.append(time)
        return at

    def _arrays(self, offsets: list[int], sizes: Sequence[int] = (4, 8, 16)) -> int:
        """Write a chain of growing entry arrays, and return the offset of the first."""
        first = last = 0
        number = 0
        while offsets:
            size = sizes[min(number, len(sizes) - 1)] << max(0, number - len(sizes) + 1)
            here, offsets = offsets[:size], offsets[size:]
            code = "I" if self.compact else "Q"
            at = self._object(6, bytes(8) + struct.pack(f"<{len(here)}{code}", *here))
            if last:
                self._put(last + 16, at)
            first, last, number = first or at, at, number + 1
        return first

    def bytes(self) -> bytes:
        for at, entries in self.having.items():
            self._put(at + 40, entries[0] if entries else 0, self._arrays(entries[1:]), len(entries))
        array = self._arrays(self.entries)
        tail = len(self.out)
        self.out += bytes(-len(self.out) % 4096)
        header = struct.pack(
            "<8sIIB7x16s16s16s16s", b"LPKSHHRH", 0, self.incompatible, 0, b"f" * 16, b"m" * 16, BOOT_ID, self.seqnum_id
        )
        count = len(self.entries)
        numbers = [
            272, len(self.out) - 272, self.data_table, 16 * 8, self.field_table, 16 * 4, tail, self.objects, count,
            self.next_seqnum - 1, self.next_seqnum - count, array,
            min(self.times, default=0), max(self.times, default=0), 0, len(self.data), len(self.fields), 0, 0, 0, 0,
        ]  # fmt: skip
        header += struct.pack(f"<{len(numbers)}Q", *numbers)
        self.out[: len(header)] = header
        return bytes(self.out)


def journal(entries: Sequence[Entry], **options: object) -> bytes:
    made = Journal(**options)  # type: ignore[arg-type]
    for entry in entries:
        made.add(entry)
    return made.bytes()


def entry(message: str | bytes, priority: int = 6, source: str = "test", **fields: str) -> Entry:
    values = [
        ("MESSAGE", message),
        ("PRIORITY", str(priority)),
        ("SYSLOG_IDENTIFIER", source),
        ("_HOSTNAME", "maschine"),
    ]
    return [*values, *fields.items()]


# Hives


class Hive:
    """A registry hive, cell by cell."""

    def __init__(self) -> None:
        self.out = bytearray()

    def cell(self, body: bytes) -> int:
        if not self.out:
            self.out += struct.pack("<4sII20x", b"hbin", 0, 4096)
        at = len(self.out)
        size = -(-(len(body) + 4) // 8) * 8
        self.out += struct.pack("<i", -size) + body.ljust(size - 4, b"\0")
        return at

    def value(self, name: str, kind: int, data: bytes) -> int:
        kept, offset = (
            (len(data) | 0x80000000, int.from_bytes(data.ljust(4, b"\0"), "little"))
            if len(data) <= 4
            else (len(data), 0)
        )
        if len(data) > 16344:
            pieces = [self.cell(data[at : at + 16344]) for at in range(0, len(data), 16344)]
            listed = self.cell(struct.pack(f"<{len(pieces)}I", *pieces))
            offset = self.cell(struct.pack("<2sHI", b"db", len(pieces), listed))
        elif len(data) > 4:
            offset = self.cell(data)
        return self.cell(struct.pack("<2sHIIIHH", b"vk", len(name), kept, offset, kind, 1, 0) + name.encode("latin-1"))

    def key(
        self, name: str, subkeys: Sequence[int] = (), values: Sequence[int] = (), kind: str = "lf", root: bool = False
    ) -> int:
        listed = self._list(list(subkeys), kind) if subkeys else 0xFFFFFFFF
        valued = self.cell(struct.pack(f"<{len(values)}I", *values)) if values else 0xFFFFFFFF
        head = struct.pack(
            "<2sHQIIIIIIIIII20xHH",
            b"nk", 0x20 | (0x4 if root else 0), 132_000_000_000_000_000, 0, 0, len(subkeys), 0, listed, 0xFFFFFFFF,
            len(values), valued, 0xFFFFFFFF, 0xFFFFFFFF, len(name), 0,
        )  # fmt: skip
        return self.cell(head + name.encode("latin-1"))

    def _list(self, offsets: list[int], kind: str) -> int:
        if kind == "ri":
            halves = [offsets[: len(offsets) // 2], offsets[len(offsets) // 2 :]]
            offsets = [self._list(half, "lh") for half in halves if half]
        if kind in ("li", "ri"):
            return self.cell(struct.pack(f"<2sH{len(offsets)}I", kind.encode(), len(offsets), *offsets))
        pairs = b"".join(struct.pack("<II", offset, 0) for offset in offsets)
        return self.cell(struct.pack("<2sH", kind.encode(), len(offsets)) + pairs)

    def bytes(self, root: int) -> bytes:
        self.out += bytes(-len(self.out) % 4096)
        struct.pack_into("<I", self.out, 8, len(self.out))
        header = bytearray(4096)
        struct.pack_into(
            "<4sIIQIIIIII", header, 0, b"regf", 1, 1, 132_000_000_000_000_000, 1, 5, 0, 1, root, len(self.out)
        )
        checksum = 0
        for [word] in struct.iter_unpack("<I", header[:508]):
            checksum ^= word
        struct.pack_into("<I", header, 508, checksum)
        return bytes(header + self.out)


def hive(kind: str = "lf") -> bytes:
    made = Hive()
    long = bytes(range(256)) * 100
    values = [
        made.value("", 1, "default\0".encode("utf-16-le")),
        made.value("number", 4, (42).to_bytes(4, "little")),
        made.value("long", 3, long),
        made.value("several", 7, "one\0two\0\0".encode("utf-16-le")),
    ]
    leaves = [made.key(f"leaf{n}", values=[made.value("n", 11, n.to_bytes(8, "little"))]) for n in range(5)]
    branch = made.key("branch", subkeys=leaves, kind=kind)
    return made.bytes(made.key("ROOT", subkeys=[branch], values=values, kind=kind, root=True))
