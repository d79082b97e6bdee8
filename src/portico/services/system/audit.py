"""The audit trail: a record of every call, which those whom it records can neither change nor push out."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from portico.services.system.errors import Denied
from portico.services.system.eventlog.entries import iso
from portico.services.system.results import AuditRecord

LARGEST_FILE = 10 * 2**20
LARGEST_TRAIL = 2**30
MOST_REMEMBERED = 1000
LONGEST_ARGUMENT = 200
# A flood of refusals is counted: so many of one kind are recorded one by one within this time.
MOST_REFUSALS = 100
FLOOD_SECONDS = 60.0

_CHAIN_START = "0" * 64


class Audit:
    """Each record is bound to the one before it: none can be changed or taken out unnoticed.

    The last records are kept in memory; with a `file`, all of them there. A file that is full is put aside as `file.1`,
    the next as `file.2`, and nothing is ever removed: that would be a way to get rid of evidence by calling often.
    Where there is no more room, nothing is done that could not be recorded.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.recent: deque[AuditRecord] = deque(maxlen=MOST_REMEMBERED)
        self._last = self._resumed()
        self._size = _size(file) if file is not None else 0
        # Refusals of each kind since the window began, and those that were only counted.
        self._refused: dict[tuple[str, str], int] = {}
        self._window = time.monotonic()

    def permit(self) -> None:
        """Raises Denied where there is no more room for a record."""
        if self._file is not None and self._size > LARGEST_TRAIL:
            self._size = _size(self._file)  # the operator may have seen to it
        if self._size > LARGEST_TRAIL:
            raise Denied(
                "The audit trail of this service is full, and nothing is done without a record. The operator of this "
                "server has to put its files elsewhere."
            )

    def add(self, tool: str, arguments: dict[str, Any], outcome: str) -> None:
        with self._lock:
            if time.monotonic() - self._window > FLOOD_SECONDS:
                self._end_window()
            if outcome != "ok":
                kind = (tool, outcome)
                self._refused[kind] = self._refused.get(kind, 0) + 1
                if self._refused[kind] > MOST_REFUSALS:
                    return
            self._record(tool, _short(arguments), outcome)

    def close(self) -> None:
        with self._lock:
            self._end_window()

    def _end_window(self) -> None:
        """What was only counted is recorded as a number."""
        refused, self._refused, self._window = self._refused, {}, time.monotonic()
        for (tool, outcome), count in refused.items():
            if count > MOST_REFUSALS:
                self._record(tool, {"more": count - MOST_REFUSALS}, outcome)

    def _record(self, tool: str, arguments: dict[str, Any], outcome: str) -> None:
        number, previous = self._last
        record = AuditRecord(number + 1, iso(time.time_ns() // 1000), tool, outcome, arguments, previous)
        record.hash = _hash(record)
        self._last = record.number, record.hash
        self.recent.append(record)
        if self._file is not None:
            self._write(self._file, record)

    def _write(self, file: Path, record: AuditRecord) -> None:
        if file.exists() and file.stat().st_size > LARGEST_FILE:
            last = parts(file)[:-1]
            number = int(last[-1].suffix[1:]) + 1 if last else 1
            file.rename(file.with_name(f"{file.name}.{number}"))
        line = msgspec.json.encode(record) + b"\n"
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(fd, "ab") as opened:
            opened.write(line)
        self._size += len(line)

    def _resumed(self) -> tuple[int, str]:
        """Where the trail ends. What cannot be read there breaks the chain, and verifying shows it."""
        found = parts(self._file) if self._file is not None else []
        if not found:
            return 0, _CHAIN_START
        with found[-1].open("rb") as opened:
            opened.seek(max(0, found[-1].stat().st_size - 65536))
            lines = opened.read().splitlines()
        try:
            last = msgspec.json.decode(lines[-1], type=AuditRecord)
        except (IndexError, msgspec.DecodeError):
            return 0, _CHAIN_START
        return last.number, last.hash


def parts(file: Path) -> list[Path]:
    """The files of a trail, the oldest first."""
    found = {int(path.suffix[1:]): path for path in file.parent.glob(f"{file.name}.*") if path.suffix[1:].isdecimal()}
    return [found[number] for number in sorted(found)] + ([file] if file.exists() else [])


def _size(file: Path) -> int:
    return sum(part.stat().st_size for part in parts(file))


def verify(file: Path) -> int | None:
    """The number of the first record that is not what was written, or that what came before is missing of; None if the
    trail is whole, from the first record on."""
    expected, previous = 1, _CHAIN_START
    for line in _lines(file):
        try:
            record = msgspec.json.decode(line, type=AuditRecord)
        except msgspec.DecodeError:
            return expected
        if record.hash != _hash(record) or record.previous != previous:
            return record.number
        expected, previous = record.number + 1, record.hash
    return None


def _lines(file: Path) -> Iterator[bytes]:
    for part in parts(file):
        with part.open("rb") as opened:
            yield from opened


def _hash(record: AuditRecord) -> str:
    bare = msgspec.structs.replace(record, hash="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def _short(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as they were given, but not at any length."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return {name: value[:LONGEST_ARGUMENT] if isinstance(value, str) else value for name, value in given.items()}
