"""Lines of text logs, in every grammar."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portico.services.system.eventlog import syslog
from portico.services.system.eventlog.entries import CRITICAL, DEBUG, ERROR, INFORMATION, WARNING, iso, microseconds
from portico.services.system.eventlog.syslog import parse

NOW = microseconds("2026-03-01T12:00:00Z", "now")


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Most grammars leave out the zone, and mean that of the machine."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        syslog._local.cache_clear()
        yield
    time.tzset()
    syslog._local.cache_clear()


def test_every_line_of_the_corpus_is_parsed(syslog_files: list[Path]) -> None:
    for path in syslog_files:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        assert len(lines) == 2000
        for line in lines:
            parsed = parse(line, NOW)
            assert parsed.grammar == "bsd"
            assert parsed.time is not None
            assert parsed.source
            assert parsed.computer in ("combo", "LabSZ")
            assert parsed.message.strip() in line


def parsed(line: str) -> dict[str, Any]:
    found = parse(line, NOW)
    return {
        "grammar": found.grammar,
        "time": None if found.time is None else iso(found.time),
        "level": found.level,
        "source": found.source,
        "computer": found.computer,
        "message": found.message,
    }


LINES = [
    (
        '<165>1 2003-10-11T22:14:15.003Z host.example.com evntslog 12 ID47 [a@1 b="c]\\"d"][e@2] \ufeffA message',
        ("rfc5424", "2003-10-11T22:14:15.003000Z", INFORMATION, "evntslog", "host.example.com", "A message"),
    ),
    ("<34>1 - - - - - - hi", ("rfc5424", None, CRITICAL, "", "", "hi")),
    (
        "<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
        ("rfc3164", "2025-10-11T22:14:15Z", CRITICAL, "su", "mymachine", "'su root' failed"),
    ),
    ("<13>no time at all", ("rfc3164", None, INFORMATION, "", "", "no time at all")),
    (
        "<31>2003-10-11T22:14:15.003+02:00 host su[123]: message",
        ("forwarded", "2003-10-11T20:14:15.003000Z", DEBUG, "su", "host", "message"),
    ),
    (
        "2024-05-01T10:00:00.123456+00:00 host CRON[99]: (root) CMD",
        ("iso", "2024-05-01T10:00:00.123456Z", INFORMATION, "CRON", "host", "(root) CMD"),
    ),
    (
        "Oct  1 02:14:15 host <auth.err> sshd[3]: hello",
        ("bsd", "2025-10-01T02:14:15Z", ERROR, "sshd", "host", "hello"),
    ),
    (
        "Feb 28 23:59:59 combo syslogd 1.4.1: restart.",
        ("bsd", "2026-02-28T23:59:59Z", INFORMATION, "syslogd", "combo", "restart."),
    ),
    (
        "2024-01-02 03:04:05,678 WARNING something is deprecated",
        ("iso", "2024-01-02T03:04:05.678000Z", WARNING, "", "", "WARNING something is deprecated"),
    ),
    (
        '{"time":"2024-01-01T00:00:00Z","level":"error","msg":"x","logger":"app","host":"h"}',
        ("json", "2024-01-01T00:00:00Z", ERROR, "app", "h", "x"),
    ),
    ('{"ts":1700000000500,"level":30,"msg":"x"}', ("json", "2023-11-14T22:13:20.500000Z", INFORMATION, "", "", "x")),
    ("just a line", ("text", None, INFORMATION, "", "", "just a line")),
    ("Feb 30 11:11:11 h t: x", ("text", None, INFORMATION, "", "", "Feb 30 11:11:11 h t: x")),
    ("{not json", ("text", None, INFORMATION, "", "", "{not json")),
]


@pytest.mark.parametrize("line, expected", LINES, ids=[line[:30] for line, _ in LINES])
def test_a_line_says_what_it_says(line: str, expected: tuple[Any, ...]) -> None:
    assert tuple(parsed(line).values()) == expected


def test_the_year_is_the_last_in_which_a_line_is_not_from_the_future() -> None:
    assert iso(parse("Mar  2 11:00:00 h t: a day ahead is a clock that differs", NOW).time or 0).startswith(
        "2026-03-02"
    )
    assert iso(parse("Mar  3 11:00:00 h t: more is last year", NOW).time or 0).startswith("2025-03-03")
    assert iso(parse("Feb 29 11:00:00 h t: not in every year", NOW).time or 0).startswith("2024-02-29")


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "<1>1 - - - - - [" + "\\" * 50_000, "a" * 65_536, "<1>" + "x:" * 30_000]
)
def test_a_line_made_to_be_slow_is_not(text: str) -> None:
    assert parse(text, NOW).message
