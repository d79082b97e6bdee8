"""The live logs of two systems.

Windows: `wevtapi` (pywin32). Queries are XPath, made here of checked parts.
macOS: `log show --style ndjson`, which only goes forwards, so the past is asked for in windows that grow the further
back they are.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import msgspec

from portico.extend import decode_bounded
from portico_services.system import subprocesses
from portico_services.system.errors import Absent, DamagedData, MachineError, Unreadable, package
from portico_services.system.logs.entries import (
    COUNTING_SECONDS,
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    WARNING,
    Log,
    LogEntry,
    Position,
    Query,
    iso,
)
from portico_services.system.logs.evtx import OF_LEVEL, event_entry
from portico_services.system.logs.timestamps import DAY

BATCH = 64
_NOT_FOUND, _DENIED = 15007, 5
_RECORDS, _LAST_WRITTEN, _FILE_SIZE = 5, 2, 3
_PURPOSE = "Reading the event log of Windows"


def channels() -> Iterator[str]:
    """The names of all logs there are."""
    api = package("win32evtlog", _PURPOSE)
    opened = api.EvtOpenChannelEnum()
    while (name := api.EvtNextChannelPath(opened)) is not None:
        yield name


class WindowsLog(Log):
    """One channel, such as `System` or `Microsoft-Windows-Sysmon/Operational`."""

    def __init__(self, name: str, description: str = "") -> None:
        super().__init__(name, description)
        self._api = package("win32evtlog", _PURPOSE)
        self._error: type[Exception] = package("pywintypes", _PURPOSE).error
        self._publishers: dict[str, Any] = {}

    def newest_first(self, query: Query, after: Position, problems: list[str]) -> Iterator[LogEntry | None]:
        flags = self._api.EvtQueryChannelPath | self._api.EvtQueryReverseDirection
        try:
            found = self._api.EvtQuery(self.name, flags, xpath(query, before=after))
            while batch := self._api.EvtNext(found, BATCH):
                for event in batch:
                    try:
                        yield self._entry(event)
                    except DamagedData as damage:
                        problems.append(str(damage))
                        yield None
        except self._error as error:
            raise self._refusal(error) from None

    def entry(self, id: int) -> LogEntry | None:
        try:
            found = self._api.EvtQuery(self.name, self._api.EvtQueryChannelPath, f"*[System[EventRecordID={int(id)}]]")
            batch = self._api.EvtNext(found, 1)
        except self._error as error:
            raise self._refusal(error) from None
        return self._entry(batch[0]) if batch else None

    def count(self, seconds: float = COUNTING_SECONDS) -> int | None:
        return self._about(_RECORDS)

    def size(self) -> int | None:
        return self._about(_FILE_SIZE)

    def stamp(self) -> object:
        return self._about(_LAST_WRITTEN), self._about(_RECORDS)

    def _about(self, what: int) -> int | None:
        try:
            opened = self._api.EvtOpenLog(self.name, self._api.EvtOpenChannelPath)
            return int(self._api.EvtGetLogInfo(opened, what)[0])
        except (self._error, TypeError, ValueError):
            return None

    def _entry(self, event: Any) -> LogEntry:
        written = parsed(self._api.EvtRender(event, self._api.EvtRenderEventXml))
        number = int(written.get("System", {}).get("EventRecordID") or 0)
        entry = event_entry(written, id=number, position=number)
        entry.message = self._message(event, entry.source) or entry.message
        return entry

    def _message(self, event: Any, publisher: str) -> str:
        """The event as a sentence. The program that has the words may be gone; then its data must do."""
        try:
            if publisher not in self._publishers:
                self._publishers[publisher] = self._api.EvtOpenPublisherMetadata(publisher)
            said = self._api.EvtFormatMessage(self._publishers[publisher], event, self._api.EvtFormatMessageEvent)
            return str(said or "").strip()
        except self._error:
            return ""

    def _refusal(self, error: Exception) -> Exception:
        code = getattr(error, "winerror", 0)
        if code == _NOT_FOUND:
            return Absent(f"There is no log {self.name!r}.")
        if code == _DENIED:
            return Unreadable(f"The log {self.name!r} is not for this user to read.")
        return Unreadable(f"The log {self.name!r} cannot be read now (Windows error {code}).")


def xpath(query: Query, before: int | None = None) -> str:
    """A query in the XPath that the event log understands. What cannot be said safely is left to be looked at later."""
    parts: list[str] = []
    if query.min_level >= WARNING:
        # An audit has the level 0, and whether it is a failure stands elsewhere.
        numbers = [number for number, level in OF_LEVEL.items() if number == 0 or level >= query.min_level]
        parts.append("(" + " or ".join(f"Level={number}" for number in numbers) + ")")
    if query.event_id is not None:
        parts.append(f"EventID={query.event_id}")
    if query.source is not None and re.fullmatch(r"[\w .()/-]{1,128}", query.source):
        parts.append(f"Provider[@Name='{query.source}']")
    limits = [(">=", query.start), ("<=", query.end)]
    if said := [f"@SystemTime{sign}'{iso(time)}'" for sign, time in limits if time is not None]:
        parts.append(f"TimeCreated[{' and '.join(said)}]")
    if before is not None:
        parts.append(f"EventRecordID<{before}")
    return f"*[System[{' and '.join(parts)}]]" if parts else "*"


def parsed(text: str) -> dict[str, Any]:
    """An event's XML in the shape that the package `evtx` gives, so that both are read the same way."""
    if "<!" in text:
        raise DamagedData("an event declares entities, as no event does")
    try:
        return _members(ElementTree.fromstring(text))
    except ElementTree.ParseError:
        raise DamagedData("an event is no whole XML") from None


def _members(element: ElementTree.Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for child in element:
        name = child.tag.rpartition("}")[2]
        if name == "Data" and "Name" in child.attrib:
            name, value = child.attrib["Name"], child.text
        else:
            value = _value(child)
        if name in found:
            several = found[name] if isinstance(found[name], list) else [found[name]]
            found[name] = [*several, value]
        else:
            found[name] = value
    return found


def _value(element: ElementTree.Element) -> Any:
    inner = _members(element)
    if element.attrib:
        inner["#attributes"] = dict(element.attrib)
        if element.text and element.text.strip():
            inner["#text"] = element.text
    return inner or element.text


# macOS


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
        with closing(subprocesses.lines(argv)) as lines:
            try:
                found.extend(entry for line in lines if (entry := parsed_line(line)) is not None)
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


def parsed_line(line: bytes) -> LogEntry | None:
    """One line. The last one is a count, and some lines are not JSON at all."""
    try:
        said = decode_bounded(line, type=dict[str, Any])
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
