"""The live log of Windows, against a double of its interface: the events are as Windows renders them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from portico_services.system.errors import CorruptData, MissingDependency, NotFound, SystemToolError
from portico_services.system.logs import discovery
from portico_services.system.logs.entries import ERROR, WARNING, LogQuery, format_iso, parse_iso_us
from portico_services.system.logs.platform_logs import WindowsLog, list_channels, parse_event_xml, to_xpath
from support.outcomes import has_outcome

EVENT = """<Event xmlns='http://schemas.microsoft.com/win/2004/08/events/event'><System>\
<Provider Name='Service Control Manager' Guid='{{555908d1-a6d7-4695-8e1e-26931d2012f4}}' EventSourceName='SCM'/>\
<EventID Qualifiers='49152'>{event_id}</EventID><Version>0</Version><Level>{level}</Level><Task>0</Task>\
<Opcode>0</Opcode><Keywords>0x8080000000000000</Keywords>\
<TimeCreated SystemTime='2026-03-06T08:13:{second:02}.0091592Z'/>\
<EventRecordID>{number}</EventRecordID><Correlation/><Execution ProcessID='592' ThreadID='6048'/>\
<Channel>System</Channel><Computer>DESKTOP-2KGM189</Computer><Security UserID='S-1-5-18'/></System>\
<EventData><Data Name='param1'>Interactive &amp; Services</Data><Data Name='param2'>%%1</Data><Data>bare</Data>\
</EventData></Event>"""


class Failure(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code, "EvtQuery", "words of Windows")
        self.winerror = code


class Api(SimpleNamespace):
    """What pywin32 has of wevtapi, with a log of twenty events."""

    EvtQueryChannelPath, EvtQueryReverseDirection = 1, 0x200
    EvtOpenChannelPath, EvtRenderEventXml, EvtFormatMessageEvent = 1, 1, 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.events = [EVENT.format(number=n, event_id=7000 + n, level=2 + n % 3, second=n) for n in range(20)]

    def EvtQuery(self, path: str, flags: int, query: str) -> Iterator[str]:
        self.asked.append(query)
        if path not in ("System", "Security"):
            raise Failure(15007)
        if path == "Security":
            raise Failure(5)
        expected = [event for event in reversed(self.events) if self._fits(event, query)]
        return iter(expected)

    def _fits(self, event: str, query: str) -> bool:
        number = int(event.split("<EventRecordID>")[1].split("<")[0])
        if "EventRecordID=" in query:
            return number == int(query.split("EventRecordID=")[1].split("]")[0])
        return "EventRecordID<" not in query or number < int(query.split("EventRecordID<")[1].split("]")[0])

    def EvtNext(self, found: Iterator[str], count: int) -> tuple[str, ...]:
        return tuple(event for _, event in zip(range(count), found, strict=False))

    def EvtRender(self, event: str, flags: int) -> str:
        return event

    def EvtOpenPublisherMetadata(self, name: str) -> str:
        return name

    def EvtFormatMessage(self, metadata: str, event: str, flags: int) -> str:
        if "<EventID Qualifiers='49152'>7003" in event:
            raise Failure(15027)
        return "The service terminated.\r\n"

    def EvtOpenLog(self, name: str, flags: int) -> str:
        return name

    def EvtGetLogInfo(self, log: str, what: int) -> tuple[int, int]:
        return {5: 20, 3: 69632, 2: 1}[what], 0

    def EvtOpenChannelEnum(self) -> Iterator[str]:
        return iter(["System", "Microsoft-Windows-Sysmon/Operational"])

    def EvtNextChannelPath(self, opened: Iterator[str]) -> str | None:
        return next(opened, None)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    monkeypatch.setitem(sys.modules, "win32evtlog", made)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pywintypes", SimpleNamespace(error=Failure))  # type: ignore[arg-type]
    return made


def test_events_are_entries_newest_first(api: Api) -> None:
    entries = [entry for entry in WindowsLog("System").scan_newest_first(LogQuery(), None, []) if entry]
    assert [entry.id for entry in entries] == list(range(19, -1, -1))
    first = entries[0]
    assert (first.source, first.computer, first.event_id) == ("Service Control Manager", "DESKTOP-2KGM189", 7019)
    assert first.message == "The service terminated."
    assert format_iso(first.time) == "2026-03-06T08:13:19.009159Z"
    assert first.level == WARNING


def test_event_without_message_file_shows_its_data(api: Api) -> None:
    entry = WindowsLog("System").entry(3)
    assert entry is not None
    assert entry.message == "param1=Interactive & Services; param2=Incorrect function.; bare"


def test_page_continues_behind_the_last_record(api: Api) -> None:
    entries = WindowsLog("System").scan_newest_first(LogQuery(), 5, [])
    assert [entry.id for entry in entries if entry] == [4, 3, 2, 1, 0]


def test_log_reports_its_count_size_and_change_stamp(api: Api) -> None:
    log = WindowsLog("System")
    assert (log.count(), log.size(), log.change_stamp()) == (20, 69632, (1, 20))


def test_trouble_is_typed(api: Api) -> None:
    with pytest.raises(NotFound):
        list(WindowsLog("Nothing").scan_newest_first(LogQuery(), None, []))
    with pytest.raises(SystemToolError, check=has_outcome("unreadable")):
        list(WindowsLog("Security").scan_newest_first(LogQuery(), None, []))


def test_logs_of_a_machine_are_its_channels(api: Api) -> None:
    assert list(list_channels()) == ["System", "Microsoft-Windows-Sysmon/Operational"]
    assert list(dict(discovery._windows())) == [
        "System",
        "Application",
        "Security",
        "Microsoft-Windows-Sysmon/Operational",
    ]


def test_missing_pywin32_is_reported() -> None:
    if "win32evtlog" in sys.modules:
        pytest.skip("it is installed here")
    with pytest.raises(MissingDependency, match="win32evtlog"):
        WindowsLog("System")


@pytest.mark.parametrize(
    "query, before, expected",
    [
        (LogQuery(), None, "*"),
        (LogQuery(min_level=ERROR), None, "*[System[(Level=0 or Level=1 or Level=2)]]"),
        (LogQuery(event_id=7), 9, "*[System[EventID=7 and EventRecordID<9]]"),
        (LogQuery(source="Service Control Manager"), None, "*[System[Provider[@Name='Service Control Manager']]]"),
        (LogQuery(source="x'] or *[System"), None, "*"),
        (
            LogQuery(start=parse_iso_us("2026-01-01T00:00:00Z", "")),
            None,
            "*[System[TimeCreated[@SystemTime>='2026-01-01T00:00:00Z']]]",
        ),
    ],
)
def test_query_is_translated_to_xpath_without_injection(query: LogQuery, before: Any, expected: str) -> None:
    assert to_xpath(query, before) == expected


@pytest.mark.parametrize("text", ["<Event>", "", "<!DOCTYPE a [<!ENTITY b 'c'>]><Event>&b;</Event>"])
def test_invalid_event_xml_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptData):
        parse_event_xml(text)
