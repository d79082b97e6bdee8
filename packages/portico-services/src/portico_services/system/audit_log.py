"""The audit trail: a record of every call, which those whom it records can neither change nor push out."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from portico.audit import CallRecord, FileTrail, redact_secrets, trail_parts, verify_trail
from portico_services.system.errors import Denied
from portico_services.system.logs.entries import iso
from portico_services.system.results import AuditRecord

LARGEST_FILE = 10 * 2**20
LARGEST_TRAIL = 2**30
MOST_REMEMBERED = 1000
LONGEST_ARGUMENT = 200
# A flood of refusals is counted: so many of one kind are recorded one by one within this time.
MOST_REFUSALS = 100
FLOOD_SECONDS = 60.0


class Audit:
    """Each record is bound to the one before it, and signed with them: none can be changed or taken out unnoticed.

    The last records are kept in memory; with a `file`, all of them there. A file that is full is put aside as `file.1`,
    the next as `file.2`, and nothing is ever removed: that would be a way to get rid of evidence by calling often.
    Where there is no more room, nothing is done that could not be recorded.
    """

    def __init__(self, file: Path | None = None, owner: str = "system") -> None:
        self._file = file
        self._trail = None if file is None else FileTrail(file, owner, LARGEST_FILE)
        self._lock = threading.Lock()
        self.recent: deque[AuditRecord] = deque(maxlen=MOST_REMEMBERED)
        self._number = 0
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
            if self._trail is not None:
                self._trail.close()

    def _end_window(self) -> None:
        """What was only counted is recorded as a number."""
        refused, self._refused, self._window = self._refused, {}, time.monotonic()
        for (tool, outcome), count in refused.items():
            if count > MOST_REFUSALS:
                self._record(tool, {"more": count - MOST_REFUSALS}, outcome)

    def _record(self, tool: str, arguments: dict[str, Any], outcome: str) -> None:
        at = time.time_ns() // 1000
        if self._trail is None:
            self._number += 1
            self.recent.append(AuditRecord(self._number, iso(at), tool, outcome, arguments, ""))
            return
        record = CallRecord(number=0, at=at, method="tools/call", name=tool, fields=arguments, outcome=outcome)
        done = self._trail.append(record)
        self.recent.append(AuditRecord(done.record.number, iso(at), tool, outcome, arguments, done.previous, done.hash))
        self._size += done.size


def parts(file: Path) -> list[Path]:
    """The files of a trail, the oldest first."""
    return trail_parts(file)


def _size(file: Path) -> int:
    return sum(part.stat().st_size for part in parts(file))


def verify(file: Path) -> int | None:
    """The number of the first record that is not what was written, or that what came before is missing of; None if the
    trail is whole, from the first record on."""
    found = verify_trail(file).found
    return found[0].number if found else None


def _short(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as they were given, but not at any length, and without secrets."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return {
        name: redact_secrets(value[: 20 * LONGEST_ARGUMENT])[:LONGEST_ARGUMENT] if isinstance(value, str) else value
        for name, value in given.items()
    }
