"""Large text logs: binary search for times, byte search for text, counting without parsing."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.cursors import EncryptedCursorCodec
from portico_services.system.logs import literal_search, text_file
from portico_services.system.logs.discovery import DirectoryLog, log_from_path
from portico_services.system.logs.entries import LogEntry, LogQuery, SkippedRange, parse_iso_us
from portico_services.system.logs.line_counts import LINE_COUNTER
from portico_services.system.logs.log_registry import EntryPage, LogRegistry
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths, OpenFile

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def log_of(path: Path) -> TextLog:
    roots = AllowedPaths([path.parent])
    return TextLog("test", "", roots, partial(find_rotated_files, roots, str(path)))


def read(log: Any, query: LogQuery) -> list[str]:
    """The messages that match, newest first."""
    steps = (step for step in log.scan_newest_first(query, None, []) if isinstance(step, LogEntry))
    return [entry.message for entry in steps if query.matches(entry)]


def stamped(n: int, moment: datetime, form: str = "%Y-%m-%dT%H:%M:%S+00:00") -> str:
    return f"{moment.strftime(form)} INFO app: message {n} {'x' * (n % 90)}\n"


def written(path: Path, lines: list[str]) -> list[str]:
    path.write_text("".join(lines))
    return lines


class BytesRead:
    """How many bytes of files were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = 0
        whole = OpenFile.read

        def counted(file: OpenFile, offset: int, length: int) -> bytes:
            data = whole(file, offset, length)
            self.total += len(data)
            return data

        monkeypatch.setattr(OpenFile, "read", counted)


# Times


def ascending(n: int) -> datetime:
    return BEGIN + timedelta(seconds=n)


def in_some_disorder(n: int) -> datetime:
    return BEGIN + timedelta(seconds=n + random.Random(n).randrange(-20, 20))


def put_back_by_half_an_hour(n: int) -> datetime:
    return BEGIN + timedelta(seconds=n - 1800 * (n > 2_000))


def descending(n: int) -> datetime:
    return BEGIN + timedelta(seconds=4_000 - n)


def begun_again(n: int) -> datetime:
    return BEGIN + timedelta(seconds=n % 1_500)


@cache
def lines_and_times(time: Callable[[int], datetime]) -> tuple[list[str], list[float]]:
    """Return 4,000 lines of a log, and their times in microseconds."""
    moments = [time(n) for n in range(4_000)]
    return [stamped(n, moment) for n, moment in enumerate(moments)], [one.timestamp() * 1_000_000 for one in moments]


@pytest.mark.parametrize("time", [ascending, in_some_disorder, put_back_by_half_an_hour, descending, begun_again])
@pytest.mark.parametrize("between", [(0, 60), (1_400, 1_430), (2_010, 2_011), (3_990, 8_000), (-100, -1)])
def test_entries_of_a_time_range_are_found_in_any_order(
    tmp_path: Path, time: Callable[[int], datetime], between: tuple[int, int]
) -> None:
    lines, times = lines_and_times(time)
    written(tmp_path / "log", lines)
    start, end = (int((BEGIN + timedelta(seconds=second)).timestamp()) * 1_000_000 for second in between)
    expected = [n for n in range(len(times) - 1, -1, -1) if start <= times[n] <= end]
    found = read(log_of(tmp_path / "log"), LogQuery(start=start, end=end))
    assert [int(message.split()[1]) for message in found] == expected


def test_minute_is_found_without_reading_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    written(log, [stamped(n, ascending(n)) for n in range(100_000)])
    reading = BytesRead(monkeypatch)
    minute = LogQuery(start=parse_iso_us("2026-01-01T01:00:00Z", "t"), end=parse_iso_us("2026-01-01T01:00:59Z", "t"))
    assert len(read(log_of(log), minute)) == 60
    assert reading.total < log.stat().st_size / 2


def test_multi_line_entries_and_lines_without_times_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    trace = "Traceback (most recent call last):\n" + "  File somewhere\n" * 30 + "ValueError: no\n"
    written(log, [stamped(n, ascending(n)) + (trace if n % 7 == 0 else "") for n in range(20_000)])
    reading = BytesRead(monkeypatch)
    start = parse_iso_us("2026-01-01T01:00:00Z", "t")
    found = read(log_of(log), LogQuery(start=start, end=start + 59_000_000))
    assert [message.split()[1] for message in found if message.startswith("message")] == [
        str(n) for n in range(3659, 3599, -1)
    ]
    # 3605, 3612, … have one, and what it ends with is of the time of the line before it.
    assert sum(message.startswith("Traceback") for message in found) == 8
    assert sum(message.endswith("\nValueError: no") for message in found) == 8
    assert reading.total < log.stat().st_size / 2


def test_times_without_years_are_found_in_the_year_of_the_file(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    moments = [now - timedelta(minutes=20_000 - n) for n in range(20_000)]
    written(
        tmp_path / "log",
        [f"{moment:%b %d %H:%M:%S} pc7 app: message {n} {'x' * 50}\n" for n, moment in enumerate(moments)],
    )
    start = int(moments[5_000].timestamp()) * 1_000_000
    found = read(log_of(tmp_path / "log"), LogQuery(start=start, end=start + 120_000_000))
    assert [int(message.split()[1]) for message in found] == [5_002, 5_001, 5_000]


def test_rotated_files_are_read_if_they_may_have_the_time(tmp_path: Path) -> None:
    lines = [stamped(n, ascending(n)) for n in range(9_000)]
    written(tmp_path / "log", lines[6_000:])
    written(tmp_path / "log.1", lines[3_000:6_000])
    (tmp_path / "log.2.gz").write_bytes(gzip.compress("".join(lines[:3_000]).encode()))
    (tmp_path / "log.3.gz").write_bytes(b"not even packed")
    os.utime(tmp_path / "log.3.gz", (1_000_000_000, 1_000_000_000))
    for second in (600, 2_995, 4_000, 8_000):
        start = int((BEGIN + timedelta(seconds=second)).timestamp()) * 1_000_000
        problems: list[str] = []
        query = LogQuery(start=start, end=start + 9_000_000)
        steps = list(log_of(tmp_path / "log").scan_newest_first(query, None, problems))
        assert sum(isinstance(step, LogEntry) and query.matches(step) for step in steps) == 10
        assert problems == []  # what was last written in 2001 has nothing to do with it


# Texts


LITERALS = [
    "message 77",
    "MESSAGE 1711",
    "xyzzy",
    "größe",
    "STRASSE",
    'said "no"',
    "tab\there",
    "app: nothing",
    "naïve",
]
SAMPLES = [
    "2026-01-01T00:00:00+00:00 INFO app: Die Größe der Straße\n",
    "2026-01-01T00:00:00+00:00 INFO app: first\n  the second line has xyzzy\n\tand a third\n",
    '{"time":"2026-01-01T00:00:00Z","level":"info","msg":"he said \\"no\\" to a tab\\there"}\n',
    '{"time":"2026-01-01T00:00:00Z","level":"info","msg":"na\\u00efve, gr\\u00f6\\u00dfe"}\n',
    "node-7 unix.hw 1767225600 xyz zy message 77 app\n",
    "\n",
    "\r\n",
]


@pytest.mark.parametrize("with_re2", [True, False])
@pytest.mark.parametrize("text", LITERALS)
def test_text_is_found_as_if_every_entry_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, with_re2: bool
) -> None:
    if not with_re2:
        monkeypatch.setattr("portico_services.system.text.find_spec", lambda name: None)
    monkeypatch.setattr(literal_search, "BLOCK_BYTES", 20_000)
    lines = [stamped(n, ascending(n)) for n in range(2_000)]
    for n, sample in enumerate(SAMPLES * 3):
        lines.insert(n * 90, sample)
    written(tmp_path / "log", lines)
    log = log_of(tmp_path / "log")
    expected = [message for message in read(log, LogQuery()) if text.casefold() in message.casefold()]
    assert read(log, LogQuery(contains=text)) == expected
    assert bool(expected) == (text != "app: nothing")


def test_only_entries_that_may_have_a_text_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(20_000)])
    parsed: list[str] = []
    whole = text_file.parse_line
    monkeypatch.setattr(text_file, "parse_line", lambda text, newest: parsed.append(text) or whole(text, newest))
    assert len(read(log_of(tmp_path / "log"), LogQuery(contains="message 1234 "))) == 1
    assert len(parsed) < 20


def test_timed_out_search_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page looks at one block, finds nothing, says so, and the next does not begin again."""
    monkeypatch.setattr(literal_search, "BLOCK_BYTES", 50_000)
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(10_000)])
    ticks = iter(range(10**9))
    logs = LogRegistry(
        lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec(b"k" * 32), clock=lambda: float(next(ticks)) * 3
    )
    page = logs.query("log", LogQuery(contains="message 17 "), limit=10)
    pages: list[EntryPage] = [page]
    while page.cursor is not None:
        assert page.timed_out
        assert page.has_more
        page = logs.query("log", LogQuery(contains="message 17 "), limit=10, cursor=page.cursor)
        pages.append(page)
        assert len(pages) < 1000
    assert [entry.message.split()[1] for page in pages for entry in page.entries] == ["17"]
    assert 5 < len(pages) < 100


def test_in_a_folder_a_search_continues_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(literal_search, "BLOCK_BYTES", 50_000)
    for part in range(3):
        written(tmp_path / f"{part}.log", [stamped(n, ascending(n)) for n in range(part, 9_000, 3)])
    log = DirectoryLog("test", "", AllowedPaths([tmp_path]), str(tmp_path))
    ticks = iter(range(10**9))
    logs = LogRegistry(lambda: {"log": log}, EncryptedCursorCodec(b"k" * 32), clock=lambda: float(next(ticks)) * 1.5)
    results: list[str] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page = logs.query("log", LogQuery(contains="message 88"), limit=10, cursor=cursor)
        results += [entry.message.split()[1] for entry in page.entries]
        cursor, pages = page.cursor, pages + 1
        assert pages < 1000
    assert sorted(results, key=int) == [str(n) for n in range(9_000) if str(n).startswith("88")]


# Counting


def contents(seed: int) -> bytes:
    chance = random.Random(seed)
    parts = [b"a line", b" indented", b"\tindented", b"", b"\r", b"with an end\r", b"x" * 300_000, b"\xff\xfe", b"  "]
    lines = chance.choices(parts, [20, 4, 4, 4, 2, 4, 1 if seed % 4 == 0 else 0, 1, 1], k=chance.randrange(60))
    return b"\n".join(lines) + chance.choice([b"", b"\n", b"\r\n"])


@pytest.mark.parametrize("seed", range(60))
def test_as_many_are_counted_as_are_read(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "log"
    data = contents(seed)
    cuts = sorted(random.Random(seed).randrange(len(data) + 1) for _ in range(3))
    log = log_of(path)
    # It grows between counts, in the midst of lines, too.
    for cut in [*cuts, len(data)]:
        path.write_bytes(data[:cut])
        assert log.count() == len(read(log, LogQuery()))


def test_only_appended_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    written(path, [stamped(n, ascending(n)) for n in range(20_000)])
    log = log_of(path)
    assert log.count() == 20_000
    reading = BytesRead(monkeypatch)
    with path.open("a") as file:
        file.write(stamped(20_000, ascending(20_000)))
    assert log.count() == 20_001
    assert reading.total < 10_000


def test_file_that_was_cut_or_written_again_is_counted_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = log_of(path)
    for lines in (50, 20, 70):
        with path.open("r+" if path.exists() else "w") as file:  # the same inode
            file.truncate()
            file.writelines(f"{lines} {n}\n" for n in range(lines))
        assert log.count() == lines


def test_packed_files_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("a\nb\n")
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(b"c\nd\n"))
    log = log_of(tmp_path / "log")
    assert log.count() == 4
    monkeypatch.setattr(text_file, "MAX_UNCOMPRESSED_BYTES", 1)  # it would be refused now
    assert log.count() == 4


def test_total_is_exact_and_the_same_every_time(tmp_path: Path) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(30_000)])
    logs = LogRegistry(lambda: {"log": log_from_path("log", str(tmp_path / "log"))}, EncryptedCursorCodec(b"k" * 32))
    for _ in range(3):
        page = logs.query("log", LogQuery(), limit=7)
        assert (page.total, page.counted, page.has_more) == (30_000, True, True)


def test_total_of_a_filter_never_gets_smaller_and_becomes_exact(tmp_path: Path) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(30_000)])
    still = LogRegistry(
        lambda: {"log": log_from_path("log", str(tmp_path / "log"))}, EncryptedCursorCodec(b"k" * 32), clock=lambda: 0.0
    )
    pages = [still.query("log", LogQuery(min_level=1), limit=7) for _ in range(10)]
    totals = [page.total for page in pages]
    assert totals == sorted(totals)
    assert totals[0] > 1000 and not pages[0].counted
    assert all(page.counted == (page.total == 30_000) for page in pages)
    assert pages[-1].counted


def test_count_over_the_deadline_returns_none_and_continues(tmp_path: Path) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(20_000)])
    log = log_of(tmp_path / "log")
    assert log.count(-1.0) is None
    assert log.count() == 20_000
    assert log.count(-1.0) == 20_000


def test_line_count_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINE_COUNTER._cache, "maxsize", 5)
    for n in range(20):
        (tmp_path / f"log{n}").write_text("a line\n")
        assert log_of(tmp_path / f"log{n}").count() == 1
    assert len(LINE_COUNTER._cache) <= 5


# Files that are not there


def test_missing_log_file_is_reported(tmp_path: Path) -> None:
    for name in ("shop.log", "shop.evtx", "shop.journal", "missing/shop.log"):
        logs = LogRegistry(
            lambda name=name: {"shop": log_from_path("shop", str(tmp_path / name))}, EncryptedCursorCodec()
        )
        page = logs.query("shop", LogQuery(), limit=5)
        assert page.entries == []
        assert len(page.problems) == 1
        assert "shop" in page.problems[0]
        assert str(tmp_path) not in page.problems[0]
    (tmp_path / "shop.log.1").write_text("a line\n")  # just rotated away
    assert (
        LogRegistry(lambda: {"shop": log_from_path("shop", str(tmp_path / "shop.log"))}, EncryptedCursorCodec())
        .query("shop", LogQuery(), limit=5)
        .problems
        == []
    )


def test_steps_without_entries_have_positions(tmp_path: Path) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(100)])
    steps = list(log_of(tmp_path / "log").scan_newest_first(LogQuery(contains="nowhere"), None, []))
    assert [type(step) for step in steps] == [SkippedRange]


def with_a_long_line(path: Path) -> Path:
    lines = [stamped(n, ascending(n)) for n in range(20_000)]
    lines.insert(12_000, f"{stamped(12_000, ascending(12_000))[:-1]}{'x' * 3_000_000} far behind\n")
    written(path, lines)
    return path


@pytest.mark.parametrize("second", [5, 11_990, 12_010, 19_990])
def test_minute_is_found_around_a_line_of_megabytes(tmp_path: Path, second: int) -> None:
    log = log_of(with_a_long_line(tmp_path / "log"))
    begin = parse_iso_us(ascending(second).isoformat(), "begin")
    query = LogQuery(start=begin, end=begin + 2_000_000)
    assert [message.split()[1] for message in read(log, query)] == [str(second + n) for n in (2, 1, 0)]
    assert len(list(log.scan_newest_first(query, None, []))) < 5000


def test_of_a_line_of_megabytes_only_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(literal_search, "BLOCK_BYTES", 2**18)
    monkeypatch.setattr(text_file, "MAX_ENTRY_SCAN_BYTES", 2**20)
    log = log_of(with_a_long_line(tmp_path / "log"))
    assert read(log, LogQuery(contains="far behind")) == []
    results = [len(message) for message in read(log, LogQuery(contains="message 12000 "))]
    assert len(results) == 2 and max(results) < text_file.MAX_LINE_BYTES


# Pages


def test_full_page_continues_at_the_unread_entries(tmp_path: Path) -> None:
    lines = [stamped(n, ascending(n)) for n in range(5000)]
    for n in (0, 4999):
        lines[n] = lines[n].replace("INFO", "ERROR")
    written(tmp_path / "log", lines)
    logs = LogRegistry(lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec())
    query = LogQuery(min_level=3)
    page = logs.query("log", query, limit=1)
    assert page.has_more and page.cursor is not None
    (last,) = logs.query("log", query, limit=1, cursor=page.cursor).entries
    assert last.message.startswith("message 0 ")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_log_in_utf_16_is_read(tmp_path: Path, encoding: str) -> None:
    text = "".join(stamped(n, ascending(n)) for n in range(3)).replace("\n", " ä\r\n")
    (tmp_path / "log").write_bytes(f"\ufeff{text}".encode(encoding))
    log = log_of(tmp_path / "log")
    assert [message[:9] + message[-1] for message in read(log, LogQuery())] == [
        "message 2ä",
        "message 1ä",
        "message 0ä",
    ]
    assert log.count() == 3


# Oldest entries first, and the numbers of pages


def all_pages(
    logs: LogRegistry, query: LogQuery, *, limit: int, by_offset: bool = False, oldest_first: bool = True
) -> list[EntryPage]:
    page = logs.query("log", query, limit=limit, oldest_first=oldest_first)
    pages = [page]
    while page.has_more:
        seen = page.offset + len(page.entries)
        more = {"offset": seen} if by_offset else {"cursor": page.cursor}
        page = logs.query("log", query, limit=limit, oldest_first=oldest_first, **more)  # type: ignore[arg-type]
        pages.append(page)
        assert len(pages) < 1000
    return pages


@pytest.mark.parametrize("by_offset", [False, True])
@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S+00:00", "%b %d %H:%M:%S"])
@pytest.mark.parametrize(
    "query", [LogQuery(), LogQuery(min_level=3), LogQuery(contains="message 7"), LogQuery(source="app")]
)
def test_oldest_entries_first_are_the_newest_first_turned_around(
    tmp_path: Path, query: LogQuery, form: str, by_offset: bool
) -> None:
    words = ["INFO", "INFO", "ERROR"]
    lines = [stamped(n, ascending(n), form).replace("INFO", words[n % 3]) for n in range(3000)]
    written(tmp_path / "log.1", lines[:1200])
    written(tmp_path / "log", lines[1200:])
    logs = LogRegistry(lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec(b"k" * 32), clock=lambda: 0.0)
    down = [entry.id for page in all_pages(logs, query, limit=400, oldest_first=False) for entry in page.entries]
    pages = all_pages(logs, query, limit=400, by_offset=by_offset)
    assert [entry.id for page in pages for entry in page.entries] == down[::-1]
    assert [page.page for page in pages] == list(range(1, len(pages) + 1))
    assert pages[-1].total == len(down) and pages[-1].counted


def test_folder_is_read_from_its_oldest_entry(tmp_path: Path) -> None:
    for part in range(3):
        written(tmp_path / f"{part}.log", [stamped(n, ascending(n)) for n in range(part, 900, 3)])
    log = DirectoryLog("log", "", AllowedPaths([tmp_path]), str(tmp_path))
    logs = LogRegistry(lambda: {"log": log}, EncryptedCursorCodec(b"k" * 32))
    pages = all_pages(logs, LogQuery(), limit=250)
    assert [entry.message.split()[1] for page in pages for entry in page.entries] == [str(n) for n in range(900)]


def test_first_entries_are_read_without_a_full_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(50_000)])
    log = log_of(tmp_path / "log")
    steps = (step for step in log.oldest_first(LogQuery(), None, []) if isinstance(step, LogEntry))
    reading = BytesRead(monkeypatch)
    assert [next(steps).message.split()[1] for _ in range(10)] == [str(n) for n in range(10)]
    assert reading.total < 500_000


@pytest.mark.parametrize("by_offset", [False, True])
def test_cut_pages_short_are_numbered_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_offset: bool) -> None:
    monkeypatch.setattr("portico_services.system.logs.log_registry.MAX_PAGE_MESSAGE_CHARS", 5000)
    monkeypatch.setattr("portico_services.system.logs.log_registry.MAX_PAGE_ENTRIES", 90)
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(700)])
    logs = LogRegistry(lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec(b"k" * 32))
    pages = all_pages(logs, LogQuery(), limit=100, by_offset=by_offset, oldest_first=False)
    assert [page.page for page in pages] == list(range(1, len(pages) + 1))
    assert {page.total for page in pages} == {700}
    for page in pages[:-1]:
        assert page.page_size == len(page.entries) <= 90


def test_limit_beyond_the_size_of_a_page_is_reported(tmp_path: Path) -> None:
    written(tmp_path / "log", [f"{n}\n" for n in range(7000)])
    logs = LogRegistry(lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec(b"k" * 32), clock=lambda: 0.0)
    first = logs.query("log", LogQuery(), limit=10_000)
    second = logs.query("log", LogQuery(), limit=10_000, offset=len(first.entries))
    assert (first.page, first.page_size, len(first.entries)) == (1, 6000, 6000)
    assert (second.page, len(second.entries), second.has_more) == (2, 1000, False)


def test_errors_among_20_000_lines_are_counted_in_one_call(tmp_path: Path) -> None:
    pytest.importorskip("re2")
    lines = [stamped(n, ascending(n)).replace("INFO", "ERROR" if n % 10 == 0 else "INFO") for n in range(20_000)]
    written(tmp_path / "log", lines)
    logs = LogRegistry(lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec(b"k" * 32), clock=lambda: 0.0)
    page = logs.query("log", LogQuery(min_level=3), limit=10)
    assert (page.total, page.counted) == (2000, True)


@pytest.mark.parametrize("query", [LogQuery(), LogQuery(min_level=1), LogQuery(contains="message 1")])
def test_offset_beyond_the_last_match_does_not_count_as_matches(tmp_path: Path, query: LogQuery) -> None:
    written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(300)])
    logs = LogRegistry(lambda: {"log": log_of(tmp_path / "log")}, EncryptedCursorCodec(b"k" * 32), clock=lambda: 0.0)
    matches = 300 if query.contains is None else 111
    # Twice: the first count is cached.
    for _ in range(2):
        for offset in (1_000_000, matches + 1, matches):
            page = logs.query("log", query, limit=10, offset=offset)
            assert (page.entries, page.total, page.counted, page.has_more) == ([], matches, True, False)
    assert logs.query("log", query, limit=10, offset=matches - 1).total == matches


def test_skipping_to_an_offset_continues_with_the_cursor_if_time_runs_out(tmp_path: Path) -> None:
    lines = written(tmp_path / "log", [stamped(n, ascending(n)) for n in range(3000)])
    ticks = iter(range(10**9))
    logs = LogRegistry(
        lambda: {"log": log_of(tmp_path / "log")},
        EncryptedCursorCodec(b"k" * 32),
        clock=lambda: float(next(ticks)) * 0.5,
    )
    page = logs.query("log", LogQuery(), limit=10, offset=2500)
    pages = [page]
    while not page.entries:
        assert page.timed_out and page.total <= len(lines)
        page = logs.query("log", LogQuery(), limit=10, cursor=page.cursor)
        pages.append(page)
    assert len(pages) > 2
    assert {page.page for page in pages} == {251}
    assert page.entries[0].message.split()[1] == "499"
