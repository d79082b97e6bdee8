"""What was asked of this service: a record of every call, each bound to the one before it.

A record cannot be changed or taken out without the hashes of all that follow giving it away.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from portico.services.system.eventlog.entries import iso
from portico.services.system.results import AuditRecord

LARGEST_FILE = 10 * 2**20
MOST_REMEMBERED = 1000
LONGEST_ARGUMENT = 200

_START = "0" * 64


class Audit:
    """The last records are kept in memory; with a `file`, all of them there, and the ones before in `file.1`."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.recent: deque[AuditRecord] = deque(maxlen=MOST_REMEMBERED)
        self._last = self._resumed()

    def add(self, tool: str, arguments: dict[str, Any], outcome: str) -> None:
        with self._lock:
            number, previous = self._last
            record = AuditRecord(number + 1, iso(time.time_ns() // 1000), tool, outcome, _short(arguments), previous)
            record.hash = _hash(record)
            self._last = record.number, record.hash
            self.recent.append(record)
            if self._file is not None:
                self._write(self._file, record)

    def _write(self, file: Path, record: AuditRecord) -> None:
        if file.exists() and file.stat().st_size > LARGEST_FILE:
            file.replace(file.with_name(f"{file.name}.1"))
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with open(fd, "ab") as opened:
            opened.write(msgspec.json.encode(record) + b"\n")

    def _resumed(self) -> tuple[int, str]:
        """Where the file ends. What cannot be read there breaks the chain, and verifying shows it."""
        if self._file is None or not self._file.exists():
            return 0, _START
        with self._file.open("rb") as opened:
            opened.seek(max(0, self._file.stat().st_size - 65536))
            lines = opened.read().splitlines()
        try:
            last = msgspec.json.decode(lines[-1], type=AuditRecord)
        except (IndexError, msgspec.DecodeError):
            return 0, _START
        return last.number, last.hash


def verify(file: Path) -> int | None:
    """The number of the first record that is not what was written, or None if all are."""
    previous: str | None = None
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            try:
                record = msgspec.json.decode(line, type=AuditRecord)
            except msgspec.DecodeError:
                return number
            if record.hash != _hash(record) or (previous is not None and record.previous != previous):
                return record.number
            previous = record.hash
    return None


def _hash(record: AuditRecord) -> str:
    bare = msgspec.structs.replace(record, hash="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def _short(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as they were given, but not at any length."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return {name: value[:LONGEST_ARGUMENT] if isinstance(value, str) else value for name, value in given.items()}
