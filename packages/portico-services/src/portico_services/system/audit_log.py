"""Audit log of every call, which recorded callers can neither change nor flush."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from portico.audit import AuditEvent, AuditLogFile, log_file_parts, redact_secrets
from portico_services.system.errors import SystemToolError
from portico_services.system.logs.entries import format_iso
from portico_services.system.results import AuditRecord

# Rotation keeps single files small enough to be verified and copied.
MAX_FILE_BYTES = 10 * 2**20
MAX_LOG_BYTES = 2**30
MAX_RECENT_RECORDS = 1000
MAX_ARGUMENT_CHARS = 200
# Floods of denied calls are aggregated: beyond this number per kind and window they are only counted.
MAX_DENIALS_PER_WINDOW = 100
DENIAL_WINDOW_SECONDS = 60.0


class AuditLog:
    """Hash-chained and signed audit log: no record can be changed or removed unnoticed.

    The latest records are held in memory; with a `file`, all records are stored there. A full file is rotated to
    `file.1`, `file.2` and so on, and nothing is ever removed: otherwise a caller could destroy evidence by calling
    often. When the space limit is reached, calls that cannot be recorded are rejected.
    """

    def __init__(self, file: Path | None = None, owner: str = "system") -> None:
        self._file = file
        self._trail = None if file is None else AuditLogFile(file, owner, MAX_FILE_BYTES)
        self._lock = threading.Lock()
        self.recent: deque[AuditRecord] = deque(maxlen=MAX_RECENT_RECORDS)
        self._number = 0
        self._size = _size(file) if file is not None else 0
        # Denied calls per kind in the current window, including those that were only counted.
        self._refused: dict[tuple[str, str], int] = {}
        self._window = time.monotonic()

    def ensure_writable(self) -> None:
        """Raise SystemToolError if there is no more space for a record."""
        if self._file is not None and self._size > MAX_LOG_BYTES:
            self._size = _size(self._file)  # The operator may have moved files away.
        if self._size > MAX_LOG_BYTES:
            raise SystemToolError(
                "The audit log of this service is full, and no call runs without a record. The operator must "
                "move its files elsewhere.",
                outcome="denied",
            )

    def add(self, tool: str, arguments: dict[str, Any], outcome: str) -> None:
        """Record a call. Denied calls above the limit of the window are only counted."""
        with self._lock:
            if time.monotonic() - self._window > DENIAL_WINDOW_SECONDS:
                self._flush_denial_counts()
            # Only failures are aggregated: successful calls are what an investigation needs in full.
            if outcome != "ok":
                kind = (tool, outcome)
                self._refused[kind] = self._refused.get(kind, 0) + 1
                if self._refused[kind] > MAX_DENIALS_PER_WINDOW:
                    return
            self._record(tool, _redact_arguments(arguments), outcome)

    def close(self) -> None:
        """Write the pending counts and close the file."""
        with self._lock:
            self._flush_denial_counts()
            if self._trail is not None:
                self._trail.close()

    def _flush_denial_counts(self) -> None:
        """Record the calls that were only counted as one number per kind."""
        refused, self._refused, self._window = self._refused, {}, time.monotonic()
        for (tool, outcome), count in refused.items():
            if count > MAX_DENIALS_PER_WINDOW:
                self._record(tool, {"more": count - MAX_DENIALS_PER_WINDOW}, outcome)

    def _record(self, tool: str, arguments: dict[str, Any], outcome: str) -> None:
        at = time.time_ns() // 1000
        if self._trail is None:
            self._number += 1
            self.recent.append(AuditRecord(self._number, format_iso(at), tool, outcome, arguments, ""))
            return
        record = AuditEvent(number=0, at=at, method="tools/call", name=tool, fields=arguments, outcome=outcome)
        done = self._trail.append(record)
        self.recent.append(
            AuditRecord(done.record.number, format_iso(at), tool, outcome, arguments, done.previous, done.hash)
        )
        self._size += done.size


def log_files(file: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    return log_file_parts(file)


def _size(file: Path) -> int:
    return sum(part.stat().st_size for part in log_files(file))


def _redact_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without secrets, long values truncated."""
    present = {name: value for name, value in arguments.items() if value is not None}
    return {
        # Redact before truncating, so that a secret cannot survive in part.
        name: redact_secrets(value[: 20 * MAX_ARGUMENT_CHARS])[:MAX_ARGUMENT_CHARS] if isinstance(value, str) else value
        for name, value in present.items()
    }
