"""The unified log of macOS, through `log show --style ndjson`.

`log` only goes forwards, so the past is asked for in windows that grow the further back they are.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import msgspec

from portico.services.system import programs
from portico.services.system.errors import MachineError
from portico.services.system.eventlog.entries import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    WARNING,
    Log,
    LogEntry,
    Position,
    Query,
)
from portico.services.system.eventlog.syslog import DAY

MOST_IN_WINDOW = 20_000
FIRST_WINDOW = 600_000_000
FURTHEST = 7 * DAY

OF_TYPE = {"Fault": CRITICAL, "Error": ERROR, "Default": INFORMATION, "Info": INFORMATION, "Debug": DEBUG}


class MacLog(Log):
    """`predicate` narrows it: `process == "kernel"`."""

    def __init__(
        self, name: str, description: str, predicate: str = "", *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(name, description)
        self._predicate = predicate
        self._clock = clock

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        end = min(int(self._clock() * 1_000_000), query.end or 2**63, after[0] if after is not None else 2**63)
        begin = max(query.start or 0, end - FURTHEST)
        window = FIRST_WINDOW
        while end > begin:
            start = max(begin, end - window)
            for entry in self._between(start, end, query, problems):
                # The program's times are whole seconds, so at the edges there is more than was asked for.
                inside = start <= entry.time <= end and (after is None or entry.position < after)
                yield entry if inside else None
            end, window = start - 1, 2 * window
            yield None

    def _between(self, start: int, end: int, query: Query, problems: list[str]) -> Iterator[LogEntry]:
        argv = ["log", "show", "--style", "ndjson", "--info", "--debug"]
        argv += ["--start", _clock_time(start), "--end", _clock_time(end + 1_000_000)]
        if predicate := self._narrowed(query):
            argv += ["--predicate", predicate]
        found: deque[LogEntry] = deque(maxlen=MOST_IN_WINDOW)
        with closing(programs.lines(argv)) as lines:
            try:
                found.extend(entry for line in lines if (entry := parsed(line)) is not None)
            except MachineError as failure:
                problems.append(str(failure))
        if len(found) == MOST_IN_WINDOW:
            problems.append(f"More than {MOST_IN_WINDOW:,} entries in a window: the older ones of it were left out.")
        return reversed(found)

    def _narrowed(self, query: Query) -> str:
        parts = [f"({self._predicate})"] if self._predicate else []
        if query.min_level >= WARNING:
            parts.append("(messageType == error OR messageType == fault)")
        return " AND ".join(parts)

    def entry(self, id: int) -> LogEntry | None:
        """An id begins with its time, in milliseconds, so there is one second to look at."""
        moment = (id >> 10) * 1000
        found = self._between(moment - 1_000_000, moment + 1_000_000, Query(), [])
        return next((entry for entry in found if entry.id == id), None)

    def stamp(self) -> object:
        # It never stands still, and asking takes seconds: who follows it is told every quarter of a minute.
        return int(self._clock()) // 15


def _clock_time(time: int) -> str:
    return datetime.fromtimestamp(time // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S+0000")


def parsed(line: bytes) -> LogEntry | None:
    """One line. The last one is a count, and some lines are not JSON at all."""
    try:
        said = msgspec.json.decode(line, type=dict[str, Any])
        moment = datetime.fromisoformat(said["timestamp"])
        ticks = int(said["machTimestamp"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
    when = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    process = str(said.get("processImagePath") or "").rpartition("/")[2]
    names = [name for name in (process, said.get("subsystem"), said.get("category")) if name]
    return LogEntry(
        id=(when // 1000) << 10 | zlib.crc32(b"%d %s" % (ticks, str(said.get("threadID")).encode())) & 0x3FF,
        time=when,
        level=OF_TYPE.get(str(said.get("messageType")), INFORMATION),
        source=names[0] if names else "macOS",
        message=str(said.get("eventMessage") or ""),
        computer="",
        position=[when, ticks],
        also=tuple(names[1:]),
        fields=said,
    )
