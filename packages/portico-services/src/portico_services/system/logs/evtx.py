"""Windows event log files (`.evtx`) on any platform. The `evtx` package parses the records.

A file consists of a header and chunks of 64 KiB that can be read independently. It is read chunk by chunk from the
newest one, and a corrupt chunk affects only its own records. The file header is not needed; a valid one is prepended to
each chunk instead.
"""

from __future__ import annotations

import atexit
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from portico.caching import LruCache
from portico.extend import decode_bounded
from portico_services.system.errors import CorruptData, MissingDependency, NotFound
from portico_services.system.logs.entries import (
    COUNT_TIMEOUT_SECONDS,
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    WARNING,
    EventLog,
    LogEntry,
    LogPosition,
    LogQuery,
    ScanStep,
    SkippedRange,
)
from portico_services.system.logs.event_messages import sentence, with_parameters
from portico_services.system.path_access import AllowedPaths, OpenFile

# The child limits its own processor time to 3 s per chunk; this is for one that hangs without using any.
CHILD_TIMEOUT_SECONDS = 15.0
# JSON of a 64 KiB chunk is far smaller; this only limits a compromised child.
MAX_RESPONSE_BYTES = 256 * 2**20
# Concurrent queries are rare, and each child holds an interpreter in memory.
MAX_IDLE_CHILDREN = 2

_CHILD = str(Path(__file__).with_name("evtx_child.py"))

Records = tuple[list[dict[str, Any]], list[str]]


class EvtxChild:
    """Child process that parses chunks.

    A corrupt chunk can make the `evtx` package loop forever, and nothing in this process could stop it; a child can be
    killed. Idle children are reused, because starting one takes longer than most queries.
    """

    def __init__(self) -> None:
        if find_spec("evtx") is None:
            raise MissingDependency(
                "Reading Windows event log files needs the Python package 'evtx', which is not installed: pip "
                "install 'portico-services[system]'"
            )
        self._child = subprocess.Popen(
            # Isolated mode: neither PYTHONPATH nor the working directory can inject modules.
            [sys.executable, "-I", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def records(self, file: bytes) -> Records:
        """Return the records of a one-chunk file. Raises CorruptData if the child times out or crashes."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        # Killing the child closes its pipe, which ends the blocking read below.
        watch = threading.Timer(CHILD_TIMEOUT_SECONDS, child.kill)
        watch.daemon = True
        watch.start()
        try:
            child.stdin.write(len(file).to_bytes(4, "big") + file)
            child.stdin.flush()
            # Length-prefixed in both directions: a chunk may contain any byte.
            length = int.from_bytes(child.stdout.read(4), "big")
            answer = child.stdout.read(length) if 0 < length <= MAX_RESPONSE_BYTES else b""
            result: Records = msgspec.json.decode(answer, type=Records)
            return result
        except (OSError, msgspec.DecodeError):
            raise CorruptData("the chunk cannot be parsed, or not within the time limit") from None
        finally:
            watch.cancel()

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


_idle: list[EvtxChild] = []
_lock = threading.Lock()


def read_records(file: bytes) -> Records:
    """Return the records of a one-chunk file, parsed by an idle child."""
    with _lock:
        reader = _idle.pop() if _idle else None
    reader = reader or EvtxChild()
    try:
        result = reader.records(file)
    # Its protocol state is unknown after a failure, so the child is not reused.
    except BaseException:
        reader.close()
        raise
    with _lock:
        if len(_idle) < MAX_IDLE_CHILDREN:
            _idle.append(reader)
            return result
    reader.close()
    return result


@atexit.register
def close_children() -> None:
    """Stop the idle children. New ones are started on demand."""
    with _lock:
        readers = _idle[:]
        _idle.clear()
    for reader in readers:
        reader.close()


CHUNK_BYTES = 65536
HEADER_BYTES = 4096
# 4 GiB.
MAX_CHUNKS = 65536
MAX_CHUNK_FACTS = 65536

# winmeta.xml: 0 is "log always", then critical to verbose. Audit events state success or failure by keyword.
LEVEL_BY_EVTX_LEVEL = {0: INFORMATION, 1: CRITICAL, 2: ERROR, 3: WARNING, 4: INFORMATION, 5: DEBUG}
_AUDIT_FAILURE = 0x0010000000000000


def _header() -> bytes:
    """Return the header of a file with one chunk: version 3.1, and the checksum of its first 120 bytes."""
    head = struct.pack("<8sQQQIHHHH76x", b"ElfFile\0", 0, 0, 1, 128, 1, 3, HEADER_BYTES, 1)
    return (head + struct.pack("<II", 0, zlib.crc32(head))).ljust(HEADER_BYTES, b"\0")


# Built once: the library refuses a file with an invalid header, and a damaged original must not matter.
_HEADER = _header()


class EvtxLog(EventLog):
    """Event log in one file. `tag` makes the ids of several files in one log distinct."""

    def __init__(self, name: str, description: str, roots: AllowedPaths, path: str, tag: int = 0) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._path = path
        self._tag = tag << 32

    def _open_file(self, stack: ExitStack, problems: list[str]) -> OpenFile | None:
        try:
            return stack.enter_context(self._roots.open(self._path))
        except NotFound as absent:
            problems.append(str(absent))
            return None

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        with ExitStack() as stack:
            file = self._open_file(stack, problems)
            if file is None:
                return
            for first, _, slot in reversed(list_chunks(file)):
                # Chunks are in the order of record numbers, so newer ones were on earlier pages.
                if after is not None and first > after[0]:
                    continue
                if not _CHUNKS.may_have(file, slot, query.min_level):
                    yield SkippedRange([first, slot])
                    continue
                records, damage = read_chunk(file, slot)
                if damage:
                    first_words = damage[0].partition("\n")[0][:120]
                    problems.append(f"chunk {slot}: {len(damage)} corrupt records ({first_words})")
                worst = DEBUG
                for record in reversed(records):
                    entry = to_entry(record, slot, self._tag)
                    worst = max(worst, entry.level)
                    yield entry if after is None or entry.position < after else None
                # Corrupt records have no level, so nothing is known about the worst one of the chunk.
                if not damage:
                    _CHUNKS.note_level(file, slot, worst)
                if not records:
                    yield None

    def oldest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        with ExitStack() as stack:
            file = self._open_file(stack, problems)
            if file is None:
                return
            for _, last, slot in list_chunks(file):
                if (after is not None and last < after[0]) or not _CHUNKS.may_have(file, slot, query.min_level):
                    continue
                for record in read_chunk(file, slot)[0]:
                    entry = to_entry(record, slot, self._tag)
                    yield entry if after is None or entry.position > after else None
                yield None

    def entry(self, id: int) -> LogEntry | None:
        number = id - self._tag
        with self._roots.open(self._path) as file:
            for first, last, slot in list_chunks(file):
                # A chunk with a corrupt header claims every record number.
                if first <= number <= last:
                    for record in read_chunk(file, slot)[0]:
                        if record["event_record_id"] == number:
                            return to_entry(record, slot, self._tag)
        return None

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        deadline = time.monotonic() + seconds
        try:
            with self._roots.open(self._path) as file:
                return _CHUNKS.count(file, deadline)
        except NotFound:
            return 0

    def size(self) -> int | None:
        return self._roots.stat(self._path)[0].st_size

    def change_stamp(self) -> object:
        info, _ = self._roots.stat(self._path)
        return info.st_size, info.st_mtime_ns


class ChunkFacts:
    """Cached facts about chunks by file version: number of records and highest level.

    The version of a file is its size and modification time; every record that Windows writes changes it.
    """

    def __init__(self) -> None:
        self._counts: LruCache[tuple[int, ...], int] = LruCache(MAX_CHUNK_FACTS)
        self._levels: LruCache[tuple[int, ...], int] = LruCache(MAX_CHUNK_FACTS)

    def count(self, file: OpenFile, deadline: float) -> int | None:
        """Return the number of readable records of a file, or None on timeout. Counted chunks are cached."""
        total = 0
        for _, _, slot in list_chunks(file):
            key = (*_version(file), slot)
            counted = self._counts.get(key)
            if counted is None:
                if time.monotonic() > deadline:
                    return None
                counted = _intact_records(file.read(HEADER_BYTES + slot * CHUNK_BYTES, CHUNK_BYTES))
                if counted is None:
                    counted = len(read_chunk(file, slot)[0])
                self._counts[key] = counted
            total += counted
        return total

    def may_have(self, file: OpenFile, slot: int, min_level: int) -> bool:
        """Return whether a chunk may contain a record of at least this level."""
        # Unknown chunks may contain anything, so they are read.
        return self._levels.get((*_version(file), slot), CRITICAL) >= min_level

    def note_level(self, file: OpenFile, slot: int, worst: int) -> None:
        self._levels[*_version(file), slot] = worst


_CHUNKS = ChunkFacts()


def _version(file: OpenFile) -> tuple[int, ...]:
    info = file.info
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _intact_records(chunk: bytes) -> int | None:
    """Return the number of records of a chunk if its checksums are valid; None if it must be parsed to be counted.

    The header has the end of the records at 48, their checksum at 52, and its own checksum at 124.
    """
    if len(chunk) < CHUNK_BYTES or chunk[:8] != b"ElfChnk\0":
        return None
    end, records_sum = struct.unpack_from("<II", chunk, 48)
    (header_sum,) = struct.unpack_from("<I", chunk, 124)
    # With valid checksums, counting record headers suffices; parsing them would take far longer.
    if not 512 <= end <= CHUNK_BYTES or zlib.crc32(chunk[512:end]) != records_sum:
        return None
    if zlib.crc32(chunk[:120] + chunk[128:512]) != header_sum:
        return None
    count, at = 0, 512
    while at + 8 <= end:
        magic, size = struct.unpack_from("<4sI", chunk, at)
        if magic != b"**\0\0" or size < 24:
            return None
        count, at = count + 1, at + size
    return count if at == end else None


def list_chunks(file: OpenFile) -> list[tuple[int, int, int]]:
    """Return the first and last record number and the slot of each chunk, oldest first. A full log wraps around, so the
    slots are not in chronological order.
    """
    results = []
    for slot in range(min((file.size - HEADER_BYTES) // CHUNK_BYTES, MAX_CHUNKS)):
        head = file.read(HEADER_BYTES + slot * CHUNK_BYTES, 40)
        if head[:8] == b"ElfChnk\0" and len(head) == 40:
            first, last = struct.unpack_from("<QQ", head, 24)
            if first != 2**64 - 1:  # Marks an unused chunk.
                results.append((first, last, slot))
        elif file.read(HEADER_BYTES + slot * CHUNK_BYTES, CHUNK_BYTES).strip(b"\0"):
            # A used chunk with a corrupt header: its records are lost, but the loss must be reported.
            results.append((0, 2**64 - 1, slot))
    return sorted(results)


def read_chunk(file: OpenFile, slot: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a chunk in order, and the errors of records that could not be parsed."""
    chunk = file.read(HEADER_BYTES + slot * CHUNK_BYTES, CHUNK_BYTES).ljust(CHUNK_BYTES, b"\0")
    try:
        return read_records(_HEADER + chunk)
    except CorruptData as failure:
        return [], [str(failure)]


def to_entry(record: dict[str, Any], slot: int = 0, tag: int = 0) -> LogEntry:
    """Convert a record of the `evtx` package to an entry."""
    try:
        event = decode_bounded(record["data"], type=dict[str, Any]).get("Event") or {}
    # The record still counts: its number and time come from the chunk, not from its data.
    except (msgspec.DecodeError, RecursionError):
        event = {}
    number = record["event_record_id"]
    return entry_from_event(event, id=tag + number, position=[number, slot], written=record["timestamp"])


def entry_from_event(
    event: dict[str, Any], *, id: int, position: LogPosition, written: str = "", message: str = ""
) -> LogEntry:
    """Convert a Windows event (`System`, and `EventData` or `UserData`) to an entry."""
    system = _object(event.get("System"))
    provider = _attributes(system.get("Provider"))
    level = LEVEL_BY_EVTX_LEVEL.get(_number(system.get("Level")) or 0, INFORMATION)
    # Security events have no severity; a failed logon is reported by its keyword alone.
    if level == INFORMATION and (_number(system.get("Keywords")) or 0) & _AUDIT_FAILURE:
        level = ERROR
    data = event.get("EventData") or event.get("UserData")
    created = _attributes(system.get("TimeCreated")).get("SystemTime") or written
    source = str(provider.get("Name") or provider.get("EventSourceName") or "")
    event_id = _number(system.get("EventID"))
    return LogEntry(
        id=id,
        time=_time(str(created)),
        level=level,
        source=source,
        message=message or _message(source, event_id, data),
        computer=str(system.get("Computer") or ""),
        position=position,
        event_id=event_id,
        fields=event,
    )


def _message(source: str, event_id: int | None, data: Any) -> str:
    """Return the message of an event: the text of a common event, and its data."""
    text = with_parameters(source, "; ".join(_format_event_data("", data)))
    template = sentence(source, event_id)
    return f"{template} {text}".rstrip() if template else text


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _attributes(value: Any) -> dict[str, Any]:
    return _object(_object(value).get("#attributes"))


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        value = value.get("#text")
    try:
        return int(value, 0) if isinstance(value, str) else value if type(value) is int else None
    except ValueError:
        return None


def _time(text: str) -> int:
    try:
        # Cut to microseconds: FILETIME has seven decimals, which datetime does not accept.
        moment = datetime.fromisoformat(text.removesuffix(" UTC")[:26].rstrip("Z") + "+00:00")
    except ValueError:
        return 0
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def _format_event_data(name: str, value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the data of an event as text: message texts are not part of the file."""
    if isinstance(value, dict):
        if "#text" in value:
            yield from _format_event_data(name, value["#text"], depth)
        for key, item in value.items():
            if not key.startswith("#") and depth < 8:
                yield from _format_event_data(key, item, depth + 1)
    elif isinstance(value, list):
        for item in value[:256]:
            yield from _format_event_data(name, item, depth + 1)
    elif value is not None:
        yield f"{name}={value}" if name and name != "Data" else str(value)
