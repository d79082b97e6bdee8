"""Log styles of many programs: a stated level takes precedence over the words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.logs.entries import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    WARNING,
    LogEntry,
    LogQuery,
    format_iso,
    parse_iso_us,
)
from portico_services.system.logs.line_parser import parse_line
from portico_services.system.logs.text_log import RotatedFiles, TextLog
from portico_services.system.path_access import AllowedPaths

pytestmark = pytest.mark.usefixtures("utc")

NOW = parse_iso_us("2026-11-17T04:00:00Z", "now")
AT = "2026-11-16T10:15:32Z"
SHORT = "2026-11-16T10:15:00Z"
MILLI = "2026-11-16T10:15:32.123000Z"
CSV = '2026-11-16 10:15:32.123 UTC,"ann","shop",12,"10.0.0.1:55",65.4d,1,"x",2026-11-16 10:00:00 UTC,3/1,0,'

# line, time, what of it is guessed, level; whatever is said in it, the level is stated
STATED: list[tuple[str, str | None, str | None, int]] = [
    # PostgreSQL: records of a table, and what a cloud puts before a message
    (f'{CSV}LOG,00000,"no error",,,,', MILLI, None, INFORMATION),
    (f'{CSV}ERROR,42P01,"no relation",,,,', MILLI, None, ERROR),
    ("2026-11-16 10:15:32 UTC:10.0.0.1(5):ann@shop:[123]:LOG:  no error", AT, None, INFORMATION),
    # Redis, before it wrote years, and in its children
    ("1234:C 16 Nov 10:15:32.123 * no error", MILLI, "year", INFORMATION),
    ("1234:C 16 Nov 2026 10:15:32.123 # x", MILLI, "zone", WARNING),
    ("[1234] 16 Nov 10:15:32 # x", AT, "year", WARNING),
    # MongoDB
    ("2026-11-16T10:15:32.123+0000 I NETWORK  [listener] no error", MILLI, None, INFORMATION),
    ("2026-11-16T10:15:32.123+0000 E STORAGE  [main] x", MILLI, None, ERROR),
    # Envoy, glog with a year, Chromium
    ("[2026-11-16 10:15:32.123][1][info][upstream] [a/b.cc:1] no error", MILLI, "zone", INFORMATION),
    ("[2026-11-16 10:15:32.123][12][critical][assert] x", MILLI, "zone", CRITICAL),
    ("W20261116 10:15:32.123 1234 foo.cc:12] no error", MILLI, "zone", WARNING),
    ("[1116/101532.123:ERROR:gpu_init.cc(446)] x", MILLI, "year", ERROR),
    ("[12:34:1116/101532.123:INFO:gpu_init.cc(446)] no error", MILLI, "year", INFORMATION),
    # Apple's unified log, in its three styles
    ("2026-11-16 11:15:32.123+0100 0x1a2b  Default  0x0  123  0  kernel: (A) no error", MILLI, None, INFORMATION),
    ("2026-11-16 11:15:32.123+0100 0x1a2b  Fault    0x0  123  0  x: x", MILLI, None, CRITICAL),
    ("2026-11-16 10:15:32.123 Df kernel[0:1a2b] (A) no error", MILLI, "zone", INFORMATION),
    ("2026-11-16 10:15:32.123 E  sharingd[123:1a2b] x", MILLI, "zone", ERROR),
    # Android, with the message on the next line
    ("[ 11-16 10:15:32.123  1702: 2395 W/Tag ]", MILLI, "year", WARNING),
    # Routers
    ("Nov 16 2026 10:15:32 asa : %ASA-3-106001: x", AT, "zone", ERROR),
    ("Nov 16 10:15:32 rtr 12: *Nov 16 10:15:32.123: %SYS-5-CONFIG_I: no error", AT, "year", INFORMATION),
    # Colours of a terminal, and marks that a file begins with
    ("\x1b[2m2026-11-16T10:15:32Z\x1b[0m \x1b[33m WARN\x1b[0m \x1b[2ma\x1b[0m: no error", AT, None, WARNING),
    ("\x1b[32mINFO\x1b[0m 2026-11-16 10:15:32 no error", AT, "zone", INFORMATION),
    ("[\x1b[32m  OK  \x1b[0m] no error", None, "time", INFORMATION),
    ("[FAILED] x", None, "time", ERROR),
    ("\ufeff2026-11-16T10:15:32Z WARN no error", AT, None, WARNING),
    ('\ufeff{"time":"2026-11-16T10:15:32Z","level":"warn","msg":"no error"}', AT, None, WARNING),
    # logrus, zerolog and zap on a terminal
    ("INFO[0001] no error                key=1", None, "time", INFORMATION),
    ("ERRO[2026-11-16T10:15:32Z] x", AT, None, ERROR),
    ("10:15AM INF started error=none", SHORT, "date", INFORMATION),
    ("3:04PM ERR x", "2026-11-16T15:04:00Z", "date", ERROR),
    ("10:15:32 AM WARN no error", AT, "date", WARNING),
    ("1.794824132e+09\tinfo\tx\tno error", AT, None, INFORMATION),
    # Days by the week and the year, minutes only, TAI64N, Erlang
    ("2026-W47-1T10:15:32Z INFO no error", AT, None, INFORMATION),
    ("2026W471T101532Z INFO no error", AT, None, INFORMATION),
    ("2026-320T10:15:32Z INFO no error", AT, None, INFORMATION),
    ("2026-11-16T10:15Z INFO no error", SHORT, None, INFORMATION),
    ("2026-11-16 10:15 WARN no error", SHORT, "zone", WARNING),
    ("@400000006afad7ce00000000 INFO no error", AT, None, INFORMATION),
    ("=ERROR REPORT==== 16-Nov-2026::10:15:32 ===", AT, "zone", ERROR),
    # What syslog carries says its own level
    ('Nov 16 10:15:32 h kubelet[8]: I1116 10:15:32.123456     8 a.go:1] "no error"', AT, "year", INFORMATION),
    ("Nov 16 10:15:32 h kubelet[8]: E1116 10:15:32.123456     8 a.go:1] x", AT, "year", ERROR),
    ('Nov 16 10:15:32 h dockerd[8]: time="2026-11-16T10:15:32Z" level=info msg="no error"', AT, "year", INFORMATION),
    ('Nov 16 10:15:32 h app[8]: {"level":"warn","msg":"no error"}', AT, "year", WARNING),
    ("Nov 16 10:15:32 h app[8]: 2026-11-16 10:15:32,123 INFO no error", AT, "year", INFORMATION),
    ('Nov 16 10:15:32 h app[8]: level=debug msg="no error"', AT, "year", DEBUG),
    # Others
    ("2026-11-16T10:15:32Z - info: no error", AT, None, INFORMATION),
    ("16.11.2026 10:15:32 *INFO* [x] no error", AT, "zone", INFORMATION),
    ("2026.11.16 10:15:32 LOG7[1:2]: no error", AT, "zone", DEBUG),
    ("[I 10:15:32.123 NotebookApp] no error", MILLI, "date", INFORMATION),
    ("2026-11-16T10:15:32Z heroku[router]: at=info path=/error", AT, None, INFORMATION),
    ("E: Unable to locate package foo", None, "time", ERROR),
    ("W: GPG error", None, "time", WARNING),
    ("!!!  dvi: Device not started", None, "time", ERROR),
    ("!    dvi: x", None, "time", WARNING),
    ("level=warn msg=error", None, "time", WARNING),
]  # fmt: skip


@pytest.mark.parametrize("line, when, guess, level", STATED, ids=[line[:50] for line, *_ in STATED])
def test_stated_level_counts(line: str, when: str | None, guess: str | None, level: int) -> None:
    result = parse_line(line, NOW)
    assert (None if result.time is None else format_iso(result.time), result.time_guess) == (when, guess)
    assert (result.level, result.level_guessed) == (level, False)


SAID: list[tuple[dict[str, Any], int, str, str]] = [
    # PostgreSQL, tracing for Rust, zap, Monolog, .NET, log4j, MongoDB, OpenTelemetry
    ({"timestamp": AT, "error_severity": "LOG", "message": "no error"}, INFORMATION, "", "no error"),
    ({"timestamp": AT, "level": "WARN", "fields": {"message": "error"}, "target": "a::b"}, WARNING, "a::b", "error"),
    ({"L": "WARN", "T": AT, "M": "no error"}, WARNING, "", "no error"),
    ({"message": "no error", "level": 200, "level_name": "INFO", "channel": "a", "datetime": AT}, 1, "a", "no error"),
    ({"message": "no error", "level": 300, "datetime": AT}, WARNING, "", "no error"),
    ({"Timestamp": AT, "LogLevel": "Warning", "Category": "A.B", "Message": "error"}, WARNING, "A.B", "error"),
    ({"timestamp": AT, "level": 30000, "message": "error"}, WARNING, "", "error"),
    ({"timestamp": AT, "level": 800, "message": "error"}, INFORMATION, "", "error"),
    ({"t": {"$date": AT}, "s": "D2", "c": "QUERY", "msg": "error"}, DEBUG, "QUERY", "error"),
    ({"timestamp": AT, "severityNumber": 13, "body": "error"}, WARNING, "", "error"),
]


@pytest.mark.parametrize("said, level, source, message", SAID, ids=[str(said)[:50] for said, *_ in SAID])
def test_level_of_a_json_object_is_parsed(said: dict[str, Any], level: int, source: str, message: str) -> None:
    result = parse_line(json.dumps(said), NOW)
    assert (format_iso(result.time or 0), result.time_guess) == (AT, None)
    assert (result.level, result.level_guessed, result.source, result.message) == (level, False, source, message)


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("Completed 500 Internal Server Error in 12ms", ERROR),
        ("Inserted 3 A records: done", INFORMATION),
        ("2026-11-16 10:15:32 Deployed 3 Errors: none", ERROR),
        ("[1794824132] HOST ALERT: web;UP;HARD;1;fine", INFORMATION),
        ("[1794824132] SERVICE ALERT: web;HTTP;CRITICAL;HARD;3;x", CRITICAL),
        ("1794824132.123    5 10.0.0.1 TCP_MISS/200 1234 GET http://x/error - DIRECT/1.2.3.4 text/html", INFORMATION),
        ("1794824132.123    5 10.0.0.1 TCP_DENIED/403 1234 CONNECT x:443 - HIER_NONE/- text/html", WARNING),
        ('{"level": 777, "msg": "it failed"}', ERROR),
    ],
)
def test_inferred_level_is_marked_as_guessed(line: str, level: int) -> None:
    result = parse_line(line, NOW)
    assert (result.level, result.level_guessed) == (level, True)


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("# Time: 2026-11-16T10:15:32Z", AT),
        (">>>  Section start 2026/11/16 10:15:32", AT),
        ("http 2026-11-16T10:15:32Z app/lb/1 1.2.3.4:5 200", AT),
        ("2026-11-16\t10:15:32\tSEA19\t1234", AT),
        ("Mon 2026-11-16 10:15:32 UTC h systemd[1]: x", AT),
    ],
)
def test_time_after_a_label_is_parsed(line: str, when: str) -> None:
    assert format_iso(parse_line(line, NOW).time or 0) == when


@pytest.mark.parametrize(
    ("line", "source", "message"),
    [
        ("1794824132.5 h systemd[1]: x", "systemd", "x"),
        ("2026-11-16 10:15:32+0100  localhost kernel[0]: (A) x", "kernel", "(A) x"),
        ("2026-11-16T10:15:32Z  INFO a_b::c: x", "a_b::c", "x"),
        ("10:15:32.123 [main] INFO  c.e.App -- x", "c.e.App", "x"),
        ("2026-11-16T10:15:32Z  WARN 12 --- [app] [main] o.s.App : x", "o.s.App", "x"),
        ("E, [2026-11-16T10:15:32.1 #12] ERROR -- app: x", "app", "x"),
        ("I, [2026-11-16T10:15:32.1 #12]  INFO -- : x", "", "x"),
    ],
)
def test_source_is_parsed_from_the_line(line: str, source: str, message: str) -> None:
    result = parse_line(line, NOW)
    assert (result.source, result.message) == (source, message)


def test_coloured_lines_match_without_their_escape_codes(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("2026-11-16T10:15:32Z \x1b[31mERROR\x1b[0m disk \x1b[1mfull\x1b[0m\n  at \x1b[3mline\x1b[0m 3\n")
    roots = AllowedPaths([tmp_path])
    log = TextLog("app", "", roots, lambda: RotatedFiles(str(path), [str(path)]))
    query = LogQuery(contains="disk full")
    (entry,) = [step for step in log.scan_newest_first(query, None, []) if isinstance(step, LogEntry)]
    assert query.matches(entry)
    assert (entry.level, entry.message) == (ERROR, "disk full\n  at line 3")
