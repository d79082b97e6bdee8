"""Log queries: filters, offsets, cursors, counts and time limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.cursors import MAX_CURSOR_CHARS, EncryptedCursorCodec
from portico_services.system.errors import NotFound, SystemToolError
from portico_services.system.logs import discovery
from portico_services.system.logs.discovery import EmptyLog, log_from_path
from portico_services.system.logs.entries import ERROR, EventLog, LogEntry, LogQuery, format_iso, parse_iso_us
from portico_services.system.logs.log_registry import LogRegistry
from support import system_forgery as forgery
from support.outcomes import has_outcome


class Numbers:
    """A log of numbers: each is an entry, and takes a while."""

    name, description = "Numbers", ""

    def __init__(self, count: int, knows: bool = False) -> None:
        self._count = count
        self._knows = knows
        self.asked = 0

    def scan_newest_first(self, query: LogQuery, after: Any, problems: list[str]) -> Iterator[LogEntry | None]:
        for n in range(self._count if after is None else after, 0, -1):
            self.asked += 1
            level = ERROR if n % 10 == 0 else 1
            yield LogEntry(n, n * 1_000_000, level, f"s{n % 3}", f"number {n}", "", n - 1, event_id=n % 7)

    def entry(self, id: int) -> LogEntry | None:
        return next((entry for entry in self.scan_newest_first(LogQuery(), None, []) if entry and entry.id == id), None)

    def count(self) -> int | None:
        return self._count if self._knows else None

    def size(self) -> int | None:
        return None

    def change_stamp(self) -> object:
        return self._count


class Clock:
    """Time that passes each time one looks."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def logs(log: EventLog | None = None, clock: Clock | None = None) -> LogRegistry:
    return LogRegistry(
        lambda: {"Numbers": log or Numbers(1000)}, EncryptedCursorCodec(b"k" * 32), clock=clock or Clock()
    )


def ids(found: Any) -> list[int]:
    return [entry.id for entry in found.entries]


def test_newest_are_first_and_all_are_counted() -> None:
    result = logs().query("Numbers", LogQuery(), limit=3)
    assert ids(result) == [1000, 999, 998]
    assert (result.total, result.counted, result.has_more) == (1000, True, True)


def test_log_with_stored_count_is_not_counted() -> None:
    log = Numbers(100_000, knows=True)
    result = logs(log).query("Numbers", LogQuery(), limit=3)
    assert (result.total, result.counted) == (100_000, True)
    assert log.asked < 10


@pytest.mark.parametrize(
    "query, expected",
    [
        (LogQuery(min_level=ERROR), [1000, 990, 980]),
        (LogQuery(source="S1"), [1000, 997, 994]),
        (LogQuery(event_id=3), [997, 990, 983]),
        (LogQuery(start=10 * 10**6, end=12 * 10**6), [12, 11, 10]),
        (LogQuery(contains="R 77"), [779, 778, 777]),
        (LogQuery(min_level=ERROR, source="s0"), [990, 960, 930]),
    ],
)
def test_filters(query: LogQuery, expected: list[int]) -> None:
    assert ids(logs().query("Numbers", query, limit=3)) == expected


def test_offset_passes_over_the_newest() -> None:
    result = logs().query("Numbers", LogQuery(min_level=ERROR), limit=3, offset=2)
    assert ids(result) == [980, 970, 960]
    assert (result.offset, result.total) == (2, 100)


def test_cursors_lead_through_everything() -> None:
    result = logs()
    found, cursor = [], None
    while True:
        page = result.query("Numbers", LogQuery(min_level=ERROR), limit=7, cursor=cursor)
        assert page.offset == len(found)
        assert page.total == 100
        found += ids(page)
        cursor = page.cursor
        if cursor is None:
            break
    assert found == list(range(1000, 0, -10))


def test_query_over_the_deadline_returns_a_partial_page_and_a_cursor() -> None:
    """A clock that moves with each look: time is up long before the end, and page by page it is reached."""
    result = logs(Numbers(5000), Clock(step=0.5))
    found, cursor, pages = [], None, 0
    while True:
        page = result.query("Numbers", LogQuery(contains="number 77"), limit=100, cursor=cursor)
        found += ids(page)
        pages += 1
        cursor = page.cursor
        if cursor is None:
            break
        assert page.has_more
    assert found == [n for n in range(5000, 0, -1) if str(n).startswith("77")]
    assert pages > 5


def test_incomplete_count_is_not_reported_as_exact() -> None:
    result = logs(Numbers(100_000), Clock(step=0.01)).query("Numbers", LogQuery(), limit=10)
    assert not result.counted
    assert 10 < result.total < 100_000


def test_page_of_very_long_messages_has_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.system.logs.log_registry.MAX_PAGE_MESSAGE_CHARS", 50)
    result = logs().query("Numbers", LogQuery(), limit=100)
    assert ids(result) == [1000, 999, 998, 997, 996]
    assert result.has_more
    assert result.cursor is not None


def test_cursor_is_bound_to_its_query() -> None:
    result = logs()
    cursor = result.query("Numbers", LogQuery(), limit=3).cursor
    assert cursor is not None
    with pytest.raises(SystemToolError, check=has_outcome("invalid"), match="does not belong to this query"):
        result.query("Numbers", LogQuery(min_level=ERROR), limit=3, cursor=cursor)


def test_statistics() -> None:
    stats = logs().stats("Numbers", LogQuery())
    assert stats.by_level == {"ERROR": 100, "INFORMATION": 900}
    assert stats.by_source == {"s1": 334, "s0": 333, "s2": 333}
    assert (stats.oldest, stats.newest, stats.total_is_exact) == (format_iso(10**6), format_iso(1000 * 10**6), True)


def test_log_names_ignore_case_and_misspelling_gets_suggestion() -> None:
    assert logs().get("NUMBERS").name == "Numbers"
    with pytest.raises(NotFound, match="Did you mean 'Numbers'"):
        logs().get("Nubmers")


def test_deleted_entry_is_absent() -> None:
    assert logs().entry("Numbers", 5).id == 5
    with pytest.raises(NotFound, match="log rotation"):
        logs().entry("Numbers", 5000)


# Cursors


def test_cursor_cannot_be_read_or_changed() -> None:
    cursors = EncryptedCursorCodec(b"k" * 32)
    issued = cursors.encode(["q"], ["home", "alice"], [])
    assert cursors.decode(issued, ["q"]) == ["home", "alice"]
    assert issued != cursors.encode(["q"], ["home", "alice"], [])
    from base64 import urlsafe_b64decode

    assert b"alice" not in urlsafe_b64decode(issued + "==")
    for at in range(0, len(issued), 7):
        changed = issued[:at] + ("A" if issued[at] != "A" else "B") + issued[at + 1 :]
        with pytest.raises(SystemToolError, check=has_outcome("invalid")):
            cursors.decode(changed, ["q"])


@pytest.mark.parametrize("cursor", ["", "x", "ÄÖ", "A" * MAX_CURSOR_CHARS, "A" * (MAX_CURSOR_CHARS + 1), "=" * 10])
def test_invalid_cursor_is_rejected(cursor: str) -> None:
    with pytest.raises(SystemToolError, check=has_outcome("invalid")):
        EncryptedCursorCodec().decode(cursor, ["q"])


def test_token_of_another_installation_is_not_resolved() -> None:
    with pytest.raises(SystemToolError, check=has_outcome("invalid")):
        EncryptedCursorCodec(b"a" * 32).decode(EncryptedCursorCodec(b"b" * 32).encode(["q"], 1, []), ["q"])


# Times


def test_times() -> None:
    assert parse_iso_us("2026-01-31T12:00:00.5Z", "t") == parse_iso_us("2026-01-31T13:00:00.5+01:00", "t")
    assert parse_iso_us("2026-01-31", "t") == parse_iso_us("2026-01-31T00:00:00", "t")
    assert format_iso(parse_iso_us("2026-01-31T12:00:00.000001Z", "t")) == "2026-01-31T12:00:00.000001Z"
    assert format_iso(2**64) == "9999-12-31T23:59:59.999999Z"
    with pytest.raises(SystemToolError, check=has_outcome("invalid"), match="startTime"):
        parse_iso_us("yesterday", "startTime")


# Which logs there are


def test_machine_without_logs_returns_empty_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(discovery, "JOURNAL_DIRS", (str(tmp_path / "none"),))
    monkeypatch.setattr(discovery, "TEXT_LOG_DIR", str(tmp_path / "none"))
    result = dict(discovery._unix([]))
    assert set(result) == {"System", "Application", "Security", "Kernel"}
    assert all(isinstance(log, EmptyLog) for log in result.values())
    answer = LogRegistry(lambda: result, EncryptedCursorCodec()).query("System", LogQuery(), limit=10)
    assert answer.entries == []
    assert "not available on this machine" in answer.problems[0]


def test_text_logs_have_windows_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(discovery, "JOURNAL_DIRS", ())
    monkeypatch.setattr(discovery, "TEXT_LOG_DIR", str(tmp_path))
    (tmp_path / "auth.log").write_text("Oct 11 22:14:15 host sshd[1]: session opened\n")
    result = dict(discovery._unix([]))
    assert type(result["Security"]).__name__ == "TextLog"
    assert type(result["System"]).__name__ == "DirectoryLog"
    answer = LogRegistry(lambda: result, EncryptedCursorCodec()).query("security", LogQuery(), limit=10)
    assert [entry.message for entry in answer.entries] == ["session opened"]


def test_journals_have_windows_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    entries = [
        forgery.entry("from the kernel", _TRANSPORT="kernel"),
        forgery.entry("a login", SYSLOG_FACILITY="10"),
        forgery.entry("else"),
    ]
    (folder / "system.journal").write_bytes(forgery.journal(entries))
    (folder / "user-1000.journal").write_bytes(forgery.journal([forgery.entry("a program")], seqnum_id=b"u" * 16))
    monkeypatch.setattr(discovery, "JOURNAL_DIRS", (str(tmp_path),))
    result = LogRegistry(lambda: dict(discovery._unix([])), EncryptedCursorCodec())
    messages = {
        name: {entry.message for entry in result.query(name, LogQuery(), limit=10).entries}
        for name in ("System", "Kernel", "Security", "Application")
    }
    assert messages == {
        "System": {"from the kernel", "a login", "else", "a program"},
        "Kernel": {"from the kernel"},
        "Security": {"a login"},
        "Application": {"a program"},
    }


def test_path_is_a_log_of_its_kind(tmp_path: Path) -> None:
    for name in ("a.evtx", "b.journal", "c.log"):
        (tmp_path / name).touch()
    kinds = {
        name: type(log_from_path("x", str(tmp_path / name))).__name__ for name in ("", "a.evtx", "b.journal", "c.log")
    }
    assert kinds == {"": "DirectoryLog", "a.evtx": "EvtxLog", "b.journal": "JournalLog", "c.log": "TextLog"}
