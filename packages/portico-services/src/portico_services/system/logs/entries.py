"""Common model of log entries and queries, independent of the kind of log."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from msgspec import Struct

from portico_services.system.errors import SystemToolError

LogLevel = Literal["DEBUG", "INFORMATION", "WARNING", "ERROR", "CRITICAL"]
LEVELS: tuple[LogLevel, ...] = ("DEBUG", "INFORMATION", "WARNING", "ERROR", "CRITICAL")
DEBUG, INFORMATION, WARNING, ERROR, CRITICAL = range(5)
# RFC 5424, 6.2.1: emergency, alert, critical, error, warning, notice, informational, debug.
LEVEL_BY_SYSLOG_SEVERITY = (CRITICAL, CRITICAL, CRITICAL, ERROR, WARNING, INFORMATION, INFORMATION, DEBUG)

TimeEstimate = Literal["zone", "year", "date", "time"]
"""Missing part of a timestamp: the time zone; also the year; the day, or the order of its numbers; everything."""

COUNT_TIMEOUT_SECONDS = 2.0
MAX_NEW_ENTRIES = 10_000
MAX_REVERSED_ENTRIES = 50_000

_MAX_TIMESTAMP_US = 253_402_300_799_999_999  # Last microsecond of the year 9999.

LogPosition = Any
"""JSON-serializable position of an entry, opaque to everything but its log."""


class LogEntry(Struct):
    """Log entry. `time` is in microseconds; `fields` contains all data of the entry."""

    id: int
    time: int
    level: int
    source: str
    message: str
    computer: str
    position: LogPosition
    event_id: int | None = None
    # Other names of the source.
    also: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}
    # Which part of the time was estimated, and whether the level was inferred from the message.
    time_guess: TimeEstimate | None = None
    level_guessed: bool = False


class SkippedRange(Struct):
    """Range of a log without matching entries, up to a position: the next page can skip it."""

    position: LogPosition


ScanStep = LogEntry | SkippedRange | None
"""Step of a log scan: an entry, a range without matches, or no result yet."""


class TailResult(Struct):
    """New entries since a position, oldest first; the position to continue from, and whether there are more."""

    entries: list[LogEntry]
    place: LogPosition
    has_more: bool


class LogQuery(Struct, frozen=True):
    """Filter for log entries. Text comparison ignores case."""

    min_level: int = 0
    source: str | None = None
    event_id: int | None = None
    start: int | None = None
    end: int | None = None
    contains: str | None = None

    def matches(self, entry: LogEntry) -> bool:
        return (
            entry.level >= self.min_level
            and (self.start is None or entry.time >= self.start)
            and (self.end is None or entry.time <= self.end)
            and (self.event_id is None or (entry.event_id or 0) == self.event_id)
            and (self.source is None or self.matches_source(entry.source) or any(map(self.matches_source, entry.also)))
            and (self.contains is None or self.contains.casefold() in _fold_message(entry.message))
        )

    def matches_source(self, source: str) -> bool:
        """Return whether a source matches: `sshd` also matches `sshd.service`."""
        expected, has = (self.source or "").casefold(), source.casefold()
        return has == expected or has == f"{expected}.service"

    @property
    def is_unfiltered(self) -> bool:
        """Return whether the query matches every entry."""
        return self == LogQuery()


def _fold_message(message: str) -> str:
    """Return a message in the form in which text is searched: case-folded, with normalized line ends."""
    # Results show `\r\n` as `\n`, and a text that was copied from a result must match.
    return message.replace("\r\n", "\n").casefold()


class EventLog(ABC):
    """Named log. It is opened for each query, so no state becomes stale while it grows or is rotated."""

    def __init__(self, name: str, description: str = "") -> None:
        self.name = name
        self.description = description

    @abstractmethod
    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        """Yield entries that may match, newest first, from the end or from a position; other steps have no entry.

        Descriptions of damaged parts are appended to `problems`.
        """

    def oldest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[ScanStep]:
        """Yield entries that may match, oldest first, from the start or from a position that this method returned.

        This implementation reads the log backwards, as it is stored, and reverses the result.
        """
        results: list[LogEntry] = []
        for step in self.scan_newest_first(query, None, problems):
            if isinstance(step, LogEntry) and query.matches(step):
                if after is not None and (step.id == after[0] or step.time < after[1]):
                    break
                results.append(step)
                if len(results) > MAX_REVERSED_ENTRIES:
                    raise SystemToolError(
                        f"More than {MAX_REVERSED_ENTRIES:,} entries match, and this log can only be read from "
                        "its end. Narrow the query with startTime and endTime, or read the newest entries "
                        "first.",
                        outcome="invalid",
                    )
            yield None
        for entry in reversed(results):
            entry.position = [entry.id, entry.time]
            yield entry

    @abstractmethod
    def entry(self, id: int) -> LogEntry | None:
        """Return one entry by its id, or None."""

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        """Return the number of entries, or None if it cannot be determined in this time without reading them."""
        return None

    def end_position(self) -> LogPosition:
        """Return the current end position for `read_since`: the newest entry, or None if the log is empty."""
        result = (step for step in self.scan_newest_first(LogQuery(), None, []) if isinstance(step, LogEntry))
        newest = next(result, None)
        return None if newest is None else [newest.id, newest.time]

    def read_since(self, position: LogPosition, limit: int, problems: list[str]) -> TailResult:
        """Return the entries that were written after a position."""
        results: list[LogEntry] = []
        for step in self.scan_newest_first(LogQuery(), None, problems):
            if not isinstance(step, LogEntry):
                continue
            # The entry at the position may have been removed: anything older is not new.
            if position is not None and (step.id == position[0] or step.time < position[1]):
                break
            if len(results) == MAX_NEW_ENTRIES:
                problems.append(f"More than {MAX_NEW_ENTRIES:,} entries are new; the oldest of them are omitted.")
                break
            results.append(step)
        results.reverse()
        page = results[:limit]
        return TailResult(page, [page[-1].id, page[-1].time] if page else position, len(results) > limit)

    def size(self) -> int | None:
        """Return the size in bytes, or None if unknown."""
        return None

    def change_stamp(self) -> object:
        """Return a value that changes when the log grows."""
        return None

    def has_only_grown(self, before: object, now: object) -> bool:
        """Return whether a log has only grown between two stamps, without losing entries."""
        return before == now


def format_iso(time: int) -> str:
    """Format microseconds as ISO 8601. Out-of-range times, which only occur in corrupt data, are clamped."""
    seconds, micro = divmod(max(0, min(time, _MAX_TIMESTAMP_US)), 1_000_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{micro:06d}Z" if micro else f"{text}Z"


def parse_iso_us(text: str, name: str) -> int:
    """Parse ISO 8601 to microseconds. Times without an offset are UTC, like all times in results."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SystemToolError(
            f"{name} must be an ISO 8601 date and time such as 2026-01-31T12:00:00Z, got {text[:80]!r}.",
            outcome="invalid",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


# Merging of streams


T = TypeVar("T")


def merge_newest_first(streams: Sequence[tuple[Any, Callable[[], Iterator[tuple[Any, T]]]]]) -> Iterator[tuple[Any, T]]:
    """Merge streams of keyed items, largest key first.

    A stream is given by the key of its newest item and a function that starts it. It is not started before its turn: a
    query for the last hour reads one of a hundred rotated files.
    """
    if len(streams) == 1:
        yield from streams[0][1]()
        return
    waiting = sorted(enumerate(streams), key=lambda numbered: numbered[1][0])
    heap: list[tuple[_ReverseKey, T, Iterator[tuple[Any, T]]]] = []
    while waiting or heap:
        while waiting and (not heap or waiting[-1][1][0] >= heap[0][0].key):
            number, (_, begin) = waiting.pop()
            _advance(heap, number, begin(), heapq.heappush)
        if heap:
            late, item, stream = heap[0]
            yield late.key, item
            _advance(heap, late.number, stream, heapq.heapreplace)


class _ReverseKey:
    """Key with reversed order; for equal keys, lower stream numbers come first."""

    __slots__ = ("key", "number")

    def __init__(self, key: Any, number: int) -> None:
        self.key = key
        self.number = number

    def __lt__(self, other: _ReverseKey) -> bool:
        return bool(other.key < self.key or (other.key == self.key and self.number < other.number))


def _advance(heap: list[Any], number: int, stream: Iterator[tuple[Any, T]], push: Callable[[Any, Any], Any]) -> None:
    """Push the next item of a stream onto the heap. At the end of the stream, remove its last item from the top."""
    following = next(stream, None)
    if following is not None:
        push(heap, (_ReverseKey(following[0], number), following[1], stream))
    elif push is heapq.heapreplace:
        heapq.heappop(heap)


class ParsedLine(Struct):
    """Parsed line. `time` is None if the line has none, and `grammar` names the format."""

    grammar: str
    time: int | None
    level: int
    source: str
    message: str
    computer: str = ""
    event_id: int | None = None
    fields: dict[str, Any] = {}
    time_guess: TimeEstimate | None = None
    level_guessed: bool = False
