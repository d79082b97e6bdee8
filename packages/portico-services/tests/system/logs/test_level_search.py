"""A byte search for a level finds the same entries as parsing every line."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from portico_services.system.logs import text_file, text_log
from portico_services.system.logs.entries import CRITICAL, ERROR, WARNING, LogEntry, LogQuery
from portico_services.system.logs.level_search import LevelSearch
from portico_services.system.logs.line_parser import parse_line
from portico_services.system.logs.text_log import TextLog, find_rotated_files
from portico_services.system.path_access import AllowedPaths

from .test_line_parser import JSON_LINES, LINES
from .test_line_styles import NOW, SAID, STATED

pytest.importorskip("re2")
pytestmark = pytest.mark.usefixtures("utc")

LEVELS = (WARNING, ERROR, CRITICAL)
SAMPLES = [
    *(line for line, *_ in STATED),
    *(line for line, _ in LINES),
    *(json.dumps(line) for line, *_ in (*SAID, *JSON_LINES)),
]


def log_of(path: Path) -> TextLog:
    roots = AllowedPaths([path.parent])
    return TextLog("test", "", roots, partial(find_rotated_files, roots, str(path)))


def found(log: TextLog, query: LogQuery) -> list[LogEntry]:
    steps = (step for step in log.scan_newest_first(query, None, []) if isinstance(step, LogEntry))
    return [entry for entry in steps if query.matches(entry)]


def assert_same_as_parsing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(path)
    for level in LEVELS:
        searched = found(log, LogQuery(min_level=level))
        with monkeypatch.context() as patch:
            patch.setattr(text_log, "_search", lambda query: None)
            parsed = found(log, LogQuery(min_level=level))
        assert searched == parsed


@pytest.mark.parametrize("level", LEVELS)
def test_no_line_with_a_level_is_missed(level: int) -> None:
    search = LevelSearch.at_least(level)
    assert search is not None
    missed = [
        text
        for text in SAMPLES
        for whole in (text, f"<13>{text}", f"Nov 16 10:15:32 host app[1]: {text}", json.dumps({"log": text, "time": 1}))
        if parse_line(whole, NOW).level >= level and search.find(whole.encode("utf-8", "surrogatepass"), 0) < 0
    ]
    assert missed == []


def test_most_lines_without_a_level_are_not_candidates() -> None:
    search = LevelSearch.at_least(ERROR)
    assert search is not None
    for line in (
        b"2026-01-02 12:00:00,123 INFO shop.payments[17]: request 5 handled in 17 ms",
        b"Jun 14 15:16:01 combo sshd[1]: Accepted password for ann from 10.0.0.1 port 22",
        b'{"level":30,"time":1763288132123,"msg":"request completed","responseTime":5}',
        b'10.0.0.1 - - [16/Nov/2026:10:15:32 +0000] "GET /a HTTP/1.1" 200 512',
        b"I1116 10:15:32.123456 1 server.go:5] started",
        b"2026-01-02 12:00:00,123 INFO shop.payments[17]: failed=0 errors=0, no error, no exception",
        b"2026-01-02T12:00:00.123Z DEBUG [main] error handler installed",
    ):
        assert search.find(line, 0) < 0, line


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet=st.sampled_from("eErRoOEFWA<>[](): |*\"'=#!1357\\u\x1b[31mſKı\xa0.,-_/"), max_size=40),
    head=st.sampled_from(
        [
            "",
            "2026-01-02 12:00:00 ",
            "2026-01-02 12:00:00 INFO ",
            "2026-01-02T12:00:00.123+02:00 DEBUG ",
            "Jan  2 12:00:00 host app: ",
            '{"level":',
            "<3>",
            "E0102 12:00:00 ",
        ]
    ),
)
def test_no_line_of_these_letters_is_missed(text: str, head: str) -> None:
    line = head + text
    for level in LEVELS:
        search = LevelSearch.at_least(level)
        assert search is not None
        if parse_line(line, NOW).level >= level:
            assert search.find(line.encode(), 0) >= 0


def test_logs_of_real_machines(syslog_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in syslog_files:
        path = tmp_path / source.name
        path.write_bytes(source.read_bytes())
        assert_same_as_parsing(path, monkeypatch)


@pytest.mark.parametrize("seed", range(20))
def test_mixed_lines_and_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(text_file, "_BLOCK_BYTES", 512)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    lines = []
    for n in range(400):
        moment += timedelta(seconds=chance.randrange(5000))
        stamp = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        kind = chance.randrange(8)
        if kind == 0:
            lines.append(
                f'{stamp} ERROR app: failed {n}\nTraceback (most recent call last):\n  File "x"\nValueError: {n}\n'
            )
        elif kind == 1:
            lines.append(f'{stamp} INFO app: fine {n}\nTraceback (most recent call last):\n  File "x"\nKeyError: {n}\n')
        elif kind == 2:
            lines.append(
                f"{stamp} WARN app: x {n}\njava.lang.Error: {n}\n\tat a.b(C.java:1)\nCaused by: x.Y: z\n\tat d.e(F:2)\n"
            )
        elif kind == 3:
            lines.append(f"no time, an error {n}\n")
        else:
            lines.append(f"{stamp} INFO app: message {n}\n")
    path = tmp_path / "log"
    path.write_text("".join(lines))
    assert_same_as_parsing(path, monkeypatch)
    assert log_of(path).count() == len(found(log_of(path), LogQuery()))


@pytest.mark.parametrize("form", ["%b %d %H:%M:%S", "%m-%d %H:%M:%S.000  1  2"])
@pytest.mark.parametrize("hours", [1, 20, 24, 30, 24 * 200])
def test_lines_without_a_year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, hours: int) -> None:
    """The lines span several years, and are now and then out of order by some hours."""
    chance = random.Random(hours)
    lines = []
    for n in range(600):
        moment = datetime(2020, 11, 3, tzinfo=UTC) + timedelta(hours=n * hours - chance.choice([0] * 20 + [1, 2, 25]))
        level, letter = chance.choice([("error: ", "E"), ("", "I"), ("", "I")])
        text = f"host app: {level}{n}" if form.startswith("%b") else f"{letter} Tag: {n}"
        lines.append(f"{moment.strftime(form)} {text}\n")
    path = tmp_path / "log"
    path.write_text("".join(lines))
    assert_same_as_parsing(path, monkeypatch)
