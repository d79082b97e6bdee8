"""Entries of logs, whatever log they are from, and which of them are wanted."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from msgspec import Struct

from portico_services.system.errors import InvalidArgument

Level = Literal["DEBUG", "INFORMATION", "WARNING", "ERROR", "CRITICAL"]
LEVELS: tuple[Level, ...] = ("DEBUG", "INFORMATION", "WARNING", "ERROR", "CRITICAL")
DEBUG, INFORMATION, WARNING, ERROR, CRITICAL = range(5)
# RFC 5424, 6.2.1: emergency, alert, critical, error, warning, notice, informational, debug.
OF_SEVERITY = (CRITICAL, CRITICAL, CRITICAL, ERROR, WARNING, INFORMATION, INFORMATION, DEBUG)

Guess = Literal["zone", "year", "date", "time"]
"""What of a time its line does not say: only the zone; the year, too; the day, or the order of its numbers; all."""

COUNTING_SECONDS = 2.0
MOST_SINCE = 10_000
MAX_REVERSED_ENTRIES = 50_000

_LATEST = 253_402_300_799_999_999  # the last microsecond of the year 9999

Position = Any
"""Where an entry is in its log: something that JSON can hold, and only that log can read."""


class LogEntry(Struct):
    """One entry. `time` is in microseconds; `fields` is all that its log has to say about it."""

    id: int
    time: int
    level: int
    source: str
    message: str
    computer: str
    position: Position
    event_id: int | None = None
    # Other names that its source goes by.
    also: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}
    # What of its time it does not say itself, and whether its level is only what its words suggest.
    time_guess: Guess | None = None
    level_guessed: bool = False


class EmptyStretch(Struct):
    """A stretch of a log that has nothing that is wanted, up to a position: the next page need not look there again."""

    position: Position


Step = LogEntry | EmptyStretch | None
"""What looking through a log comes to: an entry, a stretch without any, or nothing yet."""


class NewEntries(Struct):
    """What a log has written since a place, oldest first; where to go on, and whether there is more already."""

    entries: list[LogEntry]
    place: Position
    has_more: bool


class Query(Struct, frozen=True):
    """Which entries are wanted. Texts are compared without regard to case."""

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
            and (self.source is None or self.names(entry.source) or any(map(self.names, entry.also)))
            and (self.contains is None or self.contains.casefold() in _shown(entry.message))
        )

    def names(self, source: str) -> bool:
        """Whether this is the source that is wanted: `sshd` also names `sshd.service`."""
        wanted, has = (self.source or "").casefold(), source.casefold()
        return has == wanted or has == f"{wanted}.service"

    @property
    def is_open(self) -> bool:
        """Whether everything is wanted."""
        return self == Query()


def _shown(message: str) -> str:
    """A message to look for a text in: with ends of lines as they are shown."""
    return message.replace("\r\n", "\n").casefold()


class Log(ABC):
    """A named log. It is opened anew for each question, so nothing is kept while it grows or rotates."""

    def __init__(self, name: str, description: str = "") -> None:
        self.name = name
        self.description = description

    @abstractmethod
    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        """Entries that may match, from the newest on or from behind a position; the rest are steps without one.

        What was found damaged is added to `problems`.
        """

    def oldest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[Step]:
        """Yield entries that may match, from the oldest on or from behind a position that this method gave.

        This one reads the log backwards, as it is stored, and turns the result around.
        """
        found: list[LogEntry] = []
        for step in self.newest_first(query, None, problems):
            if isinstance(step, LogEntry) and query.matches(step):
                if after is not None and (step.id == after[0] or step.time < after[1]):
                    break
                found.append(step)
                if len(found) > MAX_REVERSED_ENTRIES:
                    raise InvalidArgument(
                        f"More than {MAX_REVERSED_ENTRIES:,} entries match, and this log is read from its end. "
                        "Narrow the query with startTime and endTime, or ask for the newest entries first."
                    )
            yield None
        for entry in reversed(found):
            entry.position = [entry.id, entry.time]
            yield entry

    @abstractmethod
    def entry(self, id: int) -> LogEntry | None:
        """One entry by its id."""

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        """How many entries there are, if that can be told in this time without reading them."""
        return None

    def end(self) -> Position:
        """The place where it ends now, for `since`: its newest entry, or None if it has none."""
        found = (step for step in self.newest_first(Query(), None, []) if isinstance(step, LogEntry))
        newest = next(found, None)
        return None if newest is None else [newest.id, newest.time]

    def since(self, place: Position, most: int, problems: list[str]) -> NewEntries:
        """What was written since a place."""
        found: list[LogEntry] = []
        for step in self.newest_first(Query(), None, problems):
            if not isinstance(step, LogEntry):
                continue
            # The entry itself may have been vacuumed away: what is older is not new.
            if place is not None and (step.id == place[0] or step.time < place[1]):
                break
            if len(found) == MOST_SINCE:
                problems.append(f"More than {MOST_SINCE:,} entries are new: the older ones of them are left out.")
                break
            found.append(step)
        found.reverse()
        told = found[:most]
        return NewEntries(told, [told[-1].id, told[-1].time] if told else place, len(found) > most)

    def size(self) -> int | None:
        """How many bytes it has, if that is known."""
        return None

    def stamp(self) -> object:
        """Something that is different when the log has grown."""
        return None

    def has_only_grown(self, before: object, now: object) -> bool:
        """Return whether a log has lost nothing between two stamps of it."""
        return before == now


def iso(time: int) -> str:
    """Microseconds as ISO 8601. A time beyond all calendars, which only damage can give, is the last there is."""
    seconds, micro = divmod(max(0, min(time, _LATEST)), 1_000_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{micro:06d}Z" if micro else f"{text}Z"


def microseconds(text: str, name: str) -> int:
    """ISO 8601 as microseconds. Without an offset it is UTC, as all times that are shown."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{name} is not a date and time such as 2026-01-31T12:00:00Z: {text[:80]!r}.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


# Several streams, each newest first, as one


T = TypeVar("T")


def newest_first(streams: Sequence[tuple[Any, Callable[[], Iterator[tuple[Any, T]]]]]) -> Iterator[tuple[Any, T]]:
    """The items of all streams by their keys, the largest first.

    A stream is the key of what is newest in it, and how to begin it; it gives each item with its key. It is not begun
    before its turn: of a hundred files that have rotated away, a question about the last hour reads one.
    """
    if len(streams) == 1:
        yield from streams[0][1]()
        return
    waiting = sorted(enumerate(streams), key=lambda numbered: numbered[1][0])
    heap: list[tuple[_Late, T, Iterator[tuple[Any, T]]]] = []
    while waiting or heap:
        while waiting and (not heap or waiting[-1][1][0] >= heap[0][0].key):
            number, (_, begin) = waiting.pop()
            _advance(heap, number, begin(), heapq.heappush)
        if heap:
            late, item, stream = heap[0]
            yield late.key, item
            _advance(heap, late.number, stream, heapq.heapreplace)


class _Late:
    """A key that sorts the other way round; of equal ones, those of the first stream are first."""

    __slots__ = ("key", "number")

    def __init__(self, key: Any, number: int) -> None:
        self.key = key
        self.number = number

    def __lt__(self, other: _Late) -> bool:
        return bool(other.key < self.key or (other.key == self.key and self.number < other.number))


def _advance(heap: list[Any], number: int, stream: Iterator[tuple[Any, T]], put: Callable[[Any, Any], Any]) -> None:
    """Put the next item of a stream on the heap. When it is at its end, take its last one from the top."""
    following = next(stream, None)
    if following is not None:
        put(heap, (_Late(following[0], number), following[1], stream))
    elif put is heapq.heapreplace:
        heapq.heappop(heap)
