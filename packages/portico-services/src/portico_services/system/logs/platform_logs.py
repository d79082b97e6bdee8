"""Live logs of Windows and macOS.

Windows: `wevtapi` through pywin32. Queries are XPath expressions built from validated parts. macOS: `log show --style
ndjson`, which only reads forwards, so the past is read in windows that grow with their age.
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
from portico_services.system.errors import CorruptData, NotFound, SystemToolError, require_package
from portico_services.system.logs.entries import (
    COUNT_TIMEOUT_SECONDS,
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    WARNING,
    EventLog,
    LogEntry,
    LogPosition,
    LogQuery,
    format_iso,
)
from portico_services.system.logs.evtx import LEVEL_BY_EVTX_LEVEL, entry_from_event
from portico_services.system.logs.timestamps import DAY_US

# One call per event would be slow; a batch is held in memory as a whole.
READ_BATCH_SIZE = 64
_NOT_FOUND, _DENIED = 15007, 5
_RECORDS, _LAST_WRITTEN, _FILE_SIZE = 5, 2, 3
_PURPOSE = "Reading the Windows event log"


def list_channels() -> Iterator[str]:
    """Yield the names of all channels."""
    api = require_package("win32evtlog", _PURPOSE)
    opened = api.EvtOpenChannelEnum()
    while (name := api.EvtNextChannelPath(opened)) is not None:
        yield name


class WindowsLog(EventLog):
    """Windows event log channel, such as `System` or `Microsoft-Windows-Sysmon/Operational`."""

    def __init__(self, name: str, description: str = "") -> None:
        super().__init__(name, description)
        self._api = require_package("win32evtlog", _PURPOSE)
        self._error: type[Exception] = require_package("pywintypes", _PURPOSE).error
        # Opening the metadata of a publisher is slow, so handles are reused.
        self._publishers: dict[str, Any] = {}

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[LogEntry | None]:
        flags = self._api.EvtQueryChannelPath | self._api.EvtQueryReverseDirection
        try:
            evt_query = self._api.EvtQuery(self.name, flags, to_xpath(query, before=after))
            while batch := self._api.EvtNext(evt_query, READ_BATCH_SIZE):
                for event in batch:
                    try:
                        yield self._entry(event)
                    except CorruptData as damage:
                        problems.append(str(damage))
                        yield None
        except self._error as error:
            raise self._refusal(error) from None

    def entry(self, id: int) -> LogEntry | None:
        try:
            result = self._api.EvtQuery(self.name, self._api.EvtQueryChannelPath, f"*[System[EventRecordID={int(id)}]]")
            batch = self._api.EvtNext(result, 1)
        except self._error as error:
            raise self._refusal(error) from None
        return self._entry(batch[0]) if batch else None

    def count(self, seconds: float = COUNT_TIMEOUT_SECONDS) -> int | None:
        return self._query_info(_RECORDS)

    def size(self) -> int | None:
        return self._query_info(_FILE_SIZE)

    def change_stamp(self) -> object:
        return self._query_info(_LAST_WRITTEN), self._query_info(_RECORDS)

    def _query_info(self, info_class: int) -> int | None:
        try:
            opened = self._api.EvtOpenLog(self.name, self._api.EvtOpenChannelPath)
            return int(self._api.EvtGetLogInfo(opened, info_class)[0])
        except (self._error, TypeError, ValueError):
            return None

    def _entry(self, event: Any) -> LogEntry:
        written = parse_event_xml(self._api.EvtRender(event, self._api.EvtRenderEventXml))
        number = int(written.get("System", {}).get("EventRecordID") or 0)
        entry = entry_from_event(written, id=number, position=number)
        entry.message = self._message(event, entry.source) or entry.message
        return entry

    def _message(self, event: Any, publisher: str) -> str:
        """Return the formatted message of an event, or an empty string if its publisher is no longer installed."""
        try:
            if publisher not in self._publishers:
                self._publishers[publisher] = self._api.EvtOpenPublisherMetadata(publisher)
            text = self._api.EvtFormatMessage(self._publishers[publisher], event, self._api.EvtFormatMessageEvent)
            return str(text or "").strip()
        except self._error:
            return ""

    def _refusal(self, error: Exception) -> Exception:
        code = getattr(error, "winerror", 0)
        if code == _NOT_FOUND:
            return NotFound(f"Unknown log {self.name!r}.")
        if code == _DENIED:
            return SystemToolError(f"Access to the log {self.name!r} was denied.", outcome="unreadable")
        return SystemToolError(
            f"The log {self.name!r} cannot be read now (Windows error {code}).", outcome="unreadable"
        )


def to_xpath(query: LogQuery, before: int | None = None) -> str:
    """Convert a query to an event log XPath expression. Filters that cannot be expressed safely are applied later."""
    parts: list[str] = []
    if query.min_level >= WARNING:
        # Audit events have level 0; whether they report a failure is in the keywords.
        numbers = [number for number, level in LEVEL_BY_EVTX_LEVEL.items() if number == 0 or level >= query.min_level]
        parts.append("(" + " or ".join(f"Level={number}" for number in numbers) + ")")
    if query.event_id is not None:
        parts.append(f"EventID={query.event_id}")
    # Only harmless characters may enter the XPath expression: there is no way to escape quotes.
    if query.source is not None and re.fullmatch(r"[\w .()/-]{1,128}", query.source):
        parts.append(f"Provider[@Name='{query.source}']")
    limits = [(">=", query.start), ("<=", query.end)]
    if conditions := [f"@SystemTime{sign}'{format_iso(time)}'" for sign, time in limits if time is not None]:
        parts.append(f"TimeCreated[{' and '.join(conditions)}]")
    if before is not None:
        parts.append(f"EventRecordID<{before}")
    return f"*[System[{' and '.join(parts)}]]" if parts else "*"


def parse_event_xml(text: str) -> dict[str, Any]:
    """Parse the XML of an event into the structure of the `evtx` package, so that both are converted in the
    same way.
    """
    # Entity declarations allow entity expansion attacks ("billion laughs"); real events have no DTD.
    if "<!" in text:
        raise CorruptData("an event contains XML entity declarations, which events never do")
    try:
        return _members(ElementTree.fromstring(text))
    except ElementTree.ParseError:
        raise CorruptData("invalid event XML") from None


def _members(element: ElementTree.Element) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for child in element:
        name = child.tag.rpartition("}")[2]
        if name == "Data" and "Name" in child.attrib:
            name, value = child.attrib["Name"], child.text
        else:
            value = _value(child)
        if name in result:
            several = result[name] if isinstance(result[name], list) else [result[name]]
            result[name] = [*several, value]
        else:
            result[name] = value
    return result


def _value(element: ElementTree.Element) -> Any:
    inner = _members(element)
    if element.attrib:
        inner["#attributes"] = dict(element.attrib)
        if element.text and element.text.strip():
            inner["#text"] = element.text
    return inner or element.text


# macOS


MAX_WINDOW_ENTRIES = 20_000
# `log show` cannot read backwards, so the log is read in windows of growing length.
INITIAL_WINDOW_US = 600_000_000
# Bounds the time of a query; to read older entries, pass an end time.
MAX_LOOKBACK_US = 7 * DAY_US

LEVEL_BY_MESSAGE_TYPE = {"Fault": CRITICAL, "Error": ERROR, "Default": INFORMATION, "Info": INFORMATION, "Debug": DEBUG}


class MacOSLog(EventLog):
    """macOS unified log. `predicate` filters it: `process == "kernel"`."""

    def __init__(
        self, name: str, description: str, predicate: str = "", *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(name, description)
        self._predicate = predicate
        self._clock = clock

    def scan_newest_first(self, query: LogQuery, after: LogPosition, problems: list[str]) -> Iterator[LogEntry | None]:
        end = min(int(self._clock() * 1_000_000), query.end or 2**63, after[0] if after is not None else 2**63)
        begin = max(query.start or 0, end - MAX_LOOKBACK_US)
        window = INITIAL_WINDOW_US
        while end > begin:
            start = max(begin, end - window)
            for entry in self._read_window(start, end, query, problems):
                # `log show` only accepts whole seconds, so the edges contain extra entries.
                inside = start <= entry.time <= end and (after is None or entry.position < after)
                yield entry if inside else None
            end, window = start - 1, 2 * window
            yield None

    def _read_window(self, start: int, end: int, query: LogQuery, problems: list[str]) -> Iterator[LogEntry]:
        argv = ["log", "show", "--style", "ndjson", "--info", "--debug"]
        argv += ["--start", _clock_time(start), "--end", _clock_time(end + 1_000_000)]
        if predicate := self._build_predicate(query):
            argv += ["--predicate", predicate]
        # The newest entries of a window are needed first, so the oldest are dropped if there are too many.
        result: deque[LogEntry] = deque(maxlen=MAX_WINDOW_ENTRIES)
        with closing(subprocesses.run_lines(argv)) as lines:
            try:
                result.extend(entry for line in lines if (entry := parse_log_line(line)) is not None)
            except SystemToolError as failure:
                problems.append(str(failure))
        if len(result) == MAX_WINDOW_ENTRIES:
            problems.append(f"More than {MAX_WINDOW_ENTRIES:,} entries in one window: the oldest of them were omitted.")
        return reversed(result)

    def _build_predicate(self, query: LogQuery) -> str:
        parts = [f"({self._predicate})"] if self._predicate else []
        if query.min_level >= WARNING:
            parts.append("(messageType == error OR messageType == fault)")
        return " AND ".join(parts)

    def entry(self, id: int) -> LogEntry | None:
        """Return an entry by id. An id starts with its time in milliseconds, so only one second has to be searched."""
        moment = (id >> 10) * 1000
        result = self._read_window(moment - 1_000_000, moment + 1_000_000, LogQuery(), [])
        return next((entry for entry in result if entry.id == id), None)

    def change_stamp(self) -> object:
        # The log changes constantly and reading it takes seconds: report a change every 15 seconds.
        return int(self._clock()) // 15


def _clock_time(time: int) -> str:
    return datetime.fromtimestamp(time // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S+0000")


def parse_log_line(line: bytes) -> LogEntry | None:
    """Parse one line of output. The last line is a count, and some lines are not JSON."""
    try:
        record = decode_bounded(line, type=dict[str, Any])
        moment = datetime.fromisoformat(record["timestamp"])
        ticks = int(record["machTimestamp"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
    when = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    process = str(record.get("processImagePath") or "").rpartition("/")[2]
    names = [name for name in (process, record.get("subsystem"), record.get("category")) if name]
    return LogEntry(
        id=(when // 1000) << 10 | zlib.crc32(b"%d %s" % (ticks, str(record.get("threadID")).encode())) & 0x3FF,
        time=when,
        level=LEVEL_BY_MESSAGE_TYPE.get(str(record.get("messageType")), INFORMATION),
        source=names[0] if names else "macOS",
        message=str(record.get("eventMessage") or ""),
        computer="",
        position=[when, ticks],
        also=tuple(names[1:]),
        fields=record,
    )
