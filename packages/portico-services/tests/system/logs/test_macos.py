"""The macOS unified log, with a stand-in that prints the format of `log show`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from portico_services.system import subprocesses
from portico_services.system.logs.entries import CRITICAL, ERROR, INFORMATION, LogQuery
from portico_services.system.logs.platform_logs import MacOSLog, parse_log_line

NOW = 1_782_748_482.0
HOUR = 3600


def line(second: float, kind: str = "Default", message: str = "hello") -> bytes:
    moment = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S.%f+0000")
    said = {
        "timestamp": moment,
        "machTimestamp": int(second * 1_000_000),
        "threadID": 11537025,
        "bootUUID": "6B7A3C0B-0000-4000-8000-000000000000",
        "eventMessage": message,
        "messageType": kind,
        "eventType": "logEvent",
        "subsystem": "com.apple.bluetooth",
        "category": "Server.LE.Scan",
        "processID": 401,
        "processImagePath": "/usr/sbin/bluetoothd",
    }
    return json.dumps(said).encode() + b"\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every minute of the last day has an entry; what was asked for is written down."""
    commands: list[list[str]] = []

    def lines(argv: list[str]) -> Iterator[bytes]:
        commands.append(argv)
        begin, end = (_seconds(argv[argv.index(option) + 1]) for option in ("--start", "--end"))
        for second in range(int(NOW - 24 * HOUR), int(NOW), 60):
            if begin <= second <= end:
                yield line(second, "Error" if second % 600 == 0 else "Default", f"at {second}")
        yield b'{"count":1,"finished":1}\n'

    monkeypatch.setattr(subprocesses, "run_lines", lines)
    return commands


def _seconds(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S%z").timestamp()


def log() -> MacOSLog:
    return MacOSLog("System", "", clock=lambda: NOW)


def test_line_is_an_entry() -> None:
    entry = parse_log_line(line(NOW, "Fault"))
    assert entry is not None
    assert (entry.source, entry.also, entry.level) == (
        "bluetoothd",
        ("com.apple.bluetooth", "Server.LE.Scan"),
        CRITICAL,
    )
    assert entry.time == NOW * 1_000_000
    assert parse_log_line(line(NOW, "Error")).level == ERROR  # type: ignore[union-attr]
    assert parse_log_line(line(NOW, "Info")).level == INFORMATION  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", [b"", b"Filtering the log data\n", b'{"count":3,"finished":1}', b"[]", b'{"timestamp":1}']
)
def test_lines_that_are_not_entries_are_skipped(text: bytes) -> None:
    assert parse_log_line(text) is None


def test_past_is_requested_in_growing_windows(asked: list[list[str]]) -> None:
    entries = [entry for entry in log().scan_newest_first(LogQuery(), None, []) if entry]
    assert len(entries) == 24 * 60
    assert [entry.time for entry in entries] == sorted((entry.time for entry in entries), reverse=True)
    assert len(asked) < 15


def test_only_requested_entries_are_read(asked: list[list[str]]) -> None:
    for _ in zip(range(5), log().scan_newest_first(LogQuery(), None, []), strict=False):
        pass
    assert len(asked) == 1


def test_page_continues_behind_the_last_entry(asked: list[list[str]]) -> None:
    everything = [entry for entry in log().scan_newest_first(LogQuery(), None, []) if entry]
    rest = [entry for entry in log().scan_newest_first(LogQuery(), everything[99].position, []) if entry]
    assert [entry.id for entry in rest] == [entry.id for entry in everything[100:]]


def test_errors_are_requested_by_a_predicate(asked: list[list[str]]) -> None:
    list(
        MacOSLog("Kernel", "", 'process == "kernel"', clock=lambda: NOW).scan_newest_first(
            LogQuery(min_level=ERROR), None, []
        )
    )
    command = asked[0]
    assert command[:4] == ["log", "show", "--style", "ndjson"]
    assert command[-1] == '(process == "kernel") AND (messageType == error OR messageType == fault)'


def test_entry_is_found_by_its_id(asked: list[list[str]]) -> None:
    entry = next(entry for entry in log().scan_newest_first(LogQuery(), None, []) if entry)
    again = log().entry(entry.id)
    assert again is not None
    assert again.message == entry.message
