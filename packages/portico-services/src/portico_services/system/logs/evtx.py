"""Windows event logs in files (`.evtx`), on any system. The records are read by the package `evtx`.

A file is a header and chunks of 64 KiB, each of which can be read by itself; so it is read chunk by chunk from the
newest on, and a damaged chunk costs only its own records. The file's own header is not needed for that, and one that
is always right is put before each chunk instead.
"""

from __future__ import annotations

import atexit
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from portico.extend import decode_bounded
from portico_services.system.errors import Absent, DamagedData, MissingDependency
from portico_services.system.logs.entries import (
    COUNTING_SECONDS,
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    WARNING,
    EmptyStretch,
    Log,
    LogEntry,
    Position,
    Query,
    Step,
)
from portico_services.system.logs.event_messages import sentence, with_parameters
from portico_services.system.path_access import AllowedRoots, OpenFile

REPLY_SECONDS = 3.0
LARGEST_ANSWER = 256 * 2**20
MOST_IDLE = 2

_CHILD = str(Path(__file__).with_name("evtx_child.py"))

Records = tuple[list[dict[str, Any]], list[str]]


class EvtxReader:
    """A child process that reads chunks, and the one way to talk to it.

    The package `evtx` can be made to run for ever by a damaged chunk, and nothing in this process could stop it; a
    child can be stopped. One is kept for the next question, as starting it takes longer than most questions.
    """

    def __init__(self) -> None:
        if find_spec("evtx") is None:
            raise MissingDependency(
                "Reading a Windows event log file needs the Python package 'evtx', which is not installed here: "
                "pip install 'portico-services[system]'"
            )
        self._child = subprocess.Popen(
            [sys.executable, "-I", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def records(self, file: bytes) -> Records:
        """The records of a file of one chunk. Damaged if it takes too long, or the child did not survive it."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        watch = threading.Timer(REPLY_SECONDS, child.kill)
        watch.daemon = True
        watch.start()
        try:
            child.stdin.write(len(file).to_bytes(4, "big") + file)
            child.stdin.flush()
            length = int.from_bytes(child.stdout.read(4), "big")
            answer = child.stdout.read(length) if 0 < length <= LARGEST_ANSWER else b""
            found: Records = msgspec.json.decode(answer, type=Records)
            return found
        except (OSError, msgspec.DecodeError):
            raise DamagedData("it cannot be read, or not in any reasonable time") from None
        finally:
            watch.cancel()

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


_idle: list[EvtxReader] = []
_lock = threading.Lock()


def records(file: bytes) -> Records:
    """The records of a file of one chunk, read by a child that has nothing else to do."""
    with _lock:
        reader = _idle.pop() if _idle else None
    reader = reader or EvtxReader()
    try:
        found = reader.records(file)
    except BaseException:
        reader.close()
        raise
    with _lock:
        if len(_idle) < MOST_IDLE:
            _idle.append(reader)
            return found
    reader.close()
    return found


@atexit.register
def close() -> None:
    """Let the children go. They are started again when they are needed."""
    with _lock:
        readers = _idle[:]
        _idle.clear()
    for reader in readers:
        reader.close()


CHUNK = 65536
HEADER = 4096
MOST_CHUNKS = 65536
MAX_CHUNK_FACTS = 65536

# winmeta.xml: 0 is "log always", then from critical to verbose. Audits say success or failure by keyword.
OF_LEVEL = {0: INFORMATION, 1: CRITICAL, 2: ERROR, 3: WARNING, 4: INFORMATION, 5: DEBUG}
_AUDIT_FAILURE = 0x0010000000000000


def _header() -> bytes:
    """A header of a file with one chunk: version 3.1, and the checksum over its first 120 bytes."""
    head = struct.pack("<8sQQQIHHHH76x", b"ElfFile\0", 0, 0, 1, 128, 1, 3, HEADER, 1)
    return (head + struct.pack("<II", 0, zlib.crc32(head))).ljust(HEADER, b"\0")


_HEADER = _header()


class EvtxLog(Log):
    """One file. `tag` keeps the ids of several files of one log apart."""

    def __init__(self, name: str, description: str, roots: AllowedRoots, path: str, tag: int = 0) -> None:
        super().__init__(name, description)
        self._roots = roots
        self._path = path
        self._tag = tag << 32

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._roots.open(self._path))
            except Absent as absent:
                problems.append(str(absent))
                return
            for first, _, slot in reversed(chunks(file)):
                if after is not None and first > after[0]:
                    continue
                if not _CHUNKS.may_have(file, slot, query.min_level):
                    yield EmptyStretch([first, slot])
                    continue
                records, damage = records_of(file, slot)
                if damage:
                    first_words = damage[0].partition("\n")[0][:120]
                    problems.append(f"chunk {slot}: some of it is damaged, {len(damage)} times ({first_words})")
                worst = DEBUG
                for record in reversed(records):
                    entry = entry_of(record, slot, self._tag)
                    worst = max(worst, entry.level)
                    yield entry if after is None or entry.position < after else None
                if not damage:
                    _CHUNKS.note_level(file, slot, worst)
                if not records:
                    yield None

    def oldest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._roots.open(self._path))
            except Absent as absent:
                problems.append(str(absent))
                return
            for _, last, slot in chunks(file):
                if (after is not None and last < after[0]) or not _CHUNKS.may_have(file, slot, query.min_level):
                    continue
                for record in records_of(file, slot)[0]:
                    entry = entry_of(record, slot, self._tag)
                    yield entry if after is None or entry.position > after else None
                yield None

    def entry(self, id: int) -> LogEntry | None:
        number = id - self._tag
        with self._roots.open(self._path) as file:
            for first, last, slot in chunks(file):
                # A chunk that has lost its header claims every number.
                if first <= number <= last:
                    for record in records_of(file, slot)[0]:
                        if record["event_record_id"] == number:
                            return entry_of(record, slot, self._tag)
        return None

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        deadline = time.monotonic() + seconds
        try:
            with self._roots.open(self._path) as file:
                return _CHUNKS.count(file, deadline)
        except Absent:
            return 0

    def size(self) -> int | None:
        return self._roots.stat(self._path)[0].st_size

    def stamp(self) -> object:
        info, _ = self._roots.stat(self._path)
        return info.st_size, info.st_mtime_ns


class ChunkFacts:
    """What is known of the chunks of files, by version of a file: how many records each has, and the worst level.

    A file has a version by its size and its time; one that Windows writes to gets a new one with every record.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._levels: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, file: OpenFile, deadline: float) -> int | None:
        """Return how many records a file has that can be read, or None if there is no time to count them. What was
        counted is not counted again."""
        total = 0
        for _, _, slot in chunks(file):
            key = (*_version(file), slot)
            counted = self._counts.get(key)
            if counted is None:
                if time.monotonic() > deadline:
                    return None
                counted = _intact_records(file.read(HEADER + slot * CHUNK, CHUNK))
                if counted is None:
                    counted = len(records_of(file, slot)[0])
                self._put(self._counts, key, counted)
            total += counted
        return total

    def may_have(self, file: OpenFile, slot: int, min_level: int) -> bool:
        """Return whether a chunk may have a record of at least a level."""
        return self._levels.get((*_version(file), slot), CRITICAL) >= min_level

    def note_level(self, file: OpenFile, slot: int, worst: int) -> None:
        self._put(self._levels, (*_version(file), slot), worst)

    def _put(self, facts: OrderedDict[tuple[int, ...], int], key: tuple[int, ...], value: int) -> None:
        with self._lock:
            facts[key] = value
            while len(facts) > MAX_CHUNK_FACTS:
                facts.popitem(last=False)


_CHUNKS = ChunkFacts()


def _version(file: OpenFile) -> tuple[int, ...]:
    info = file.info
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _intact_records(chunk: bytes) -> int | None:
    """Return how many records a chunk has if its checksums are right, or None: then it must be read to be counted.

    The header has the end of the records at 48, their checksum at 52, and its own checksum at 124.
    """
    if len(chunk) < CHUNK or chunk[:8] != b"ElfChnk\0":
        return None
    end, records_sum = struct.unpack_from("<II", chunk, 48)
    (header_sum,) = struct.unpack_from("<I", chunk, 124)
    if not 512 <= end <= CHUNK or zlib.crc32(chunk[512:end]) != records_sum:
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


def chunks(file: OpenFile) -> list[tuple[int, int, int]]:
    """The first and last record number of each chunk, and where it is, oldest first. A full log begins again at its
    start, so their places say nothing about their ages."""
    found = []
    for slot in range(min((file.size - HEADER) // CHUNK, MOST_CHUNKS)):
        head = file.read(HEADER + slot * CHUNK, 40)
        if head[:8] == b"ElfChnk\0" and len(head) == 40:
            first, last = struct.unpack_from("<QQ", head, 24)
            if first != 2**64 - 1:  # what an unused chunk says
                found.append((first, last, slot))
        elif file.read(HEADER + slot * CHUNK, CHUNK).strip(b"\0"):
            # Not one that was never used. Its records are lost, but that they are is said.
            found.append((0, 2**64 - 1, slot))
    return sorted(found)


def records_of(file: OpenFile, slot: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a chunk in their order, and what is wrong with those that are missing."""
    chunk = file.read(HEADER + slot * CHUNK, CHUNK).ljust(CHUNK, b"\0")
    try:
        return records(_HEADER + chunk)
    except DamagedData as failure:
        return [], [str(failure)]


def entry_of(record: dict[str, Any], slot: int = 0, tag: int = 0) -> LogEntry:
    """An entry of what the package gives for a record."""
    try:
        event = decode_bounded(record["data"], type=dict[str, Any]).get("Event") or {}
    except (msgspec.DecodeError, RecursionError):
        event = {}
    number = record["event_record_id"]
    return event_entry(event, id=tag + number, position=[number, slot], written=record["timestamp"])


def event_entry(
    event: dict[str, Any], *, id: int, position: Position, written: str = "", message: str = ""
) -> LogEntry:
    """An entry of an event as Windows has it: `System`, and then `EventData` or `UserData`."""
    system = _object(event.get("System"))
    provider = _attributes(system.get("Provider"))
    level = OF_LEVEL.get(_number(system.get("Level")) or 0, INFORMATION)
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
    """Return the sentence of an event, if it is a common one, and its data."""
    said = with_parameters("; ".join(_said("", data)))
    known = sentence(source, event_id)
    return f"{known} {said}".rstrip() if known else said


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
        moment = datetime.fromisoformat(text.removesuffix(" UTC")[:26].rstrip("Z") + "+00:00")
    except ValueError:
        return 0
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def _said(name: str, value: Any, depth: int = 0) -> Iterator[str]:
    """The data of an event as words: its file has no sentences, they are in the program that wrote it."""
    if isinstance(value, dict):
        if "#text" in value:
            yield from _said(name, value["#text"], depth)
        for key, one in value.items():
            if not key.startswith("#") and depth < 8:
                yield from _said(key, one, depth + 1)
    elif isinstance(value, list):
        for one in value[:256]:
            yield from _said(name, one, depth + 1)
    elif value is not None:
        yield f"{name}={value}" if name and name != "Data" else str(value)
