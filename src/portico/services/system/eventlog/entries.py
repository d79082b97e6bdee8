"""Entries of logs, whatever log they are from, and which of them are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from msgspec import Struct

from portico.services.system.errors import InvalidArgument

Level = Literal["DEBUG", "INFORMATION", "WARNING", "ERROR", "CRITICAL"]
LEVELS: tuple[Level, ...] = ("DEBUG", "INFORMATION", "WARNING", "ERROR", "CRITICAL")
DEBUG, INFORMATION, WARNING, ERROR, CRITICAL = range(5)
# RFC 5424, 6.2.1: emergency, alert, critical, error, warning, notice, informational, debug.
OF_SEVERITY = (CRITICAL, CRITICAL, CRITICAL, ERROR, WARNING, INFORMATION, INFORMATION, DEBUG)

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
            and (self.event_id is None or entry.event_id == self.event_id)
            and (self.source is None or self.names(entry.source) or any(map(self.names, entry.also)))
            and (self.contains is None or self.contains.casefold() in entry.message.casefold())
        )

    def names(self, source: str) -> bool:
        """Whether this is the source that is wanted: `sshd` also names `sshd.service`."""
        wanted, has = (self.source or "").casefold(), source.casefold()
        return has == wanted or has == f"{wanted}.service"

    @property
    def is_open(self) -> bool:
        """Whether everything is wanted."""
        return self == Query()


class Log(Protocol):
    """A named log. It is opened anew for each question, so nothing is kept while it grows or rotates."""

    name: str
    description: str

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        """Entries that may match, from the newest on or from behind a position; None is a step without one.

        What was found damaged is added to `problems`.
        """
        ...

    def entry(self, id: int) -> LogEntry | None:
        """One entry by its id."""
        ...

    def count(self) -> int | None:
        """How many entries there are, if that is known without counting."""
        ...

    def size(self) -> int | None:
        """How many bytes it has, if that is known."""
        ...

    def stamp(self) -> object:
        """Something that is different when the log has grown."""
        ...


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
