"""Log lines: time, level and source, stated or marked as guessed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.logs import timestamps
from portico_services.system.logs.entries import CRITICAL, DEBUG, ERROR, INFORMATION, WARNING, format_iso, parse_iso_us
from portico_services.system.logs.line_parser import parse_line

NOW = parse_iso_us("2026-03-01T12:00:00Z", "now")


pytestmark = pytest.mark.usefixtures("utc")


def test_every_line_of_the_corpus_is_parsed(syslog_files: list[Path]) -> None:
    for path in syslog_files:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        assert len(lines) == 2000
        for line in lines:
            parsed = parse_line(line, NOW)
            assert parsed.grammar == "syslog"
            assert parsed.time is not None
            assert parsed.source or "last message repeated" in line
            assert parsed.computer in ("combo", "LabSZ")
            assert parsed.message.strip() in line


def parsed(line: str) -> tuple[Any, ...]:
    result = parse_line(line, NOW)
    when = None if result.time is None else format_iso(result.time)
    return when, result.time_guess, result.level, result.level_guessed, result.source, result.computer, result.message


WHOLE = "the whole line"
TRACES = [
    "java.lang.IllegalStateException: broken",
    "Caused by: java.io.IOException: nope",
    "ZeroDivisionError: division by zero",
    "Traceback (most recent call last):",
]
# time, what of it is guessed, level, whether that is guessed, source, computer, message
LINES: list[tuple[str, tuple[Any, ...]]] = [
    # syslog
    (
        '<165>1 2003-10-11T22:14:15.003Z host.example.com evntslog 12 ID47 [a@1 b="c]\\"d"][e@2] \ufeffA message',
        ("2003-10-11T22:14:15.003000Z", None, INFORMATION, False, "evntslog", "host.example.com", "A message"),
    ),
    ("<34>1 - - - - - - hi", (None, "time", CRITICAL, False, "", "", "hi")),
    (
        "<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
        ("2025-10-11T22:14:15Z", "year", CRITICAL, False, "su", "mymachine", "'su root' failed"),
    ),
    ("<13>no time at all", (None, "time", INFORMATION, False, "", "", "no time at all")),
    ("<30>dhcp[7]: error", (None, "time", INFORMATION, False, "dhcp", "", "error")),
    (
        "<31>2003-10-11T22:14:15.003+02:00 host su[123]: message",
        ("2003-10-11T20:14:15.003000Z", None, DEBUG, False, "su", "host", "message"),
    ),
    (
        "2024-05-01T10:00:00.123456+00:00 host CRON[99]: (root) CMD",
        ("2024-05-01T10:00:00.123456Z", None, INFORMATION, True, "CRON", "host", "(root) CMD"),
    ),
    (
        "Oct  1 02:14:15 host <auth.err> sshd[3]: hello",
        ("2025-10-01T02:14:15Z", "year", ERROR, False, "sshd", "host", "hello"),
    ),
    (
        "Feb 28 23:59:59 combo syslogd 1.4.1: restart.",
        ("2026-02-28T23:59:59Z", "year", INFORMATION, True, "syslogd", "combo", "restart."),
    ),
    (
        "Feb 28 23:59:59 combo last message repeated 3 times",
        ("2026-02-28T23:59:59Z", "year", INFORMATION, True, "", "combo", "last message repeated 3 times"),
    ),
    (
        "Feb 28 23:59:59 mac Some Long Name[123]: error: no disk",
        ("2026-02-28T23:59:59Z", "year", ERROR, False, "Some Long Name", "mac", "error: no disk"),
    ),
    # No host of a level or a verb.
    ("Feb 28 23:59:59 ERROR the engine", ("2026-02-28T23:59:59Z", "year", ERROR, False, "", "", "the engine")),
    ("Feb 28 23:59:59 starting up", ("2026-02-28T23:59:59Z", "year", INFORMATION, True, "", "", "starting up")),
    (
        "2026-02-01T10:00:00Z starting worker: one",
        ("2026-02-01T10:00:00Z", None, INFORMATION, True, "", "", "starting worker: one"),
    ),
    (
        "2026-02-01 10:00:00 install libc6:amd64 <none> 2.36-9",
        ("2026-02-01T10:00:00Z", "zone", INFORMATION, True, "", "", "install libc6:amd64 <none> 2.36-9"),
    ),
    # Python, log4j and their relatives: what is stated counts, not the words that follow.
    (
        "2026-02-01 10:00:00,123 ERROR shop.orders: could not charge card",
        ("2026-02-01T10:00:00.123000Z", "zone", ERROR, False, "shop.orders", "", "could not charge card"),
    ),
    (
        "2026-02-01 10:00:00,123 - shop.orders - INFO - no error at all",
        ("2026-02-01T10:00:00.123000Z", "zone", INFORMATION, False, "shop.orders", "", "no error at all"),
    ),
    (
        "2024-01-02 03:04:05,678 WARNING something is deprecated",
        ("2024-01-02T03:04:05.678000Z", "zone", WARNING, False, "", "", "something is deprecated"),
    ),
    ("WARNING:root:careful", (None, "time", WARNING, False, "", "", "WARNING:root:careful")),
    (
        "[2026-02-01 10:00:00 +0000] [123] [INFO] Booting after a fatal error",
        ("2026-02-01T10:00:00Z", None, INFORMATION, False, "", "", "Booting after a fatal error"),
    ),
    (
        "[2026-02-01 10:00:00,123: WARNING/MainProcess] slow",
        ("2026-02-01T10:00:00.123000Z", "zone", WARNING, False, "MainProcess", "", "slow"),
    ),
    (
        "2026-02-01 10:00:00.123 | SUCCESS  | app.main:run:12 - failed over",
        ("2026-02-01T10:00:00.123000Z", "zone", INFORMATION, False, "app.main:run:12", "", "failed over"),
    ),
    (
        "2026-02-01 10:00:00,123 WARN [main] org.example.Server: down",
        ("2026-02-01T10:00:00.123000Z", "zone", WARNING, False, "org.example.Server", "", "down"),
    ),
    (
        "2026-02-01T10:00:00.123Z  INFO 77 --- [main] c.e.Shop   : error page is set",
        ("2026-02-01T10:00:00.123000Z", None, INFORMATION, False, "c.e.Shop", "", "error page is set"),
    ),
    (
        "[2026-02-01T10:00:00,123][ERROR][o.e.n.Node] [one] x",
        ("2026-02-01T10:00:00.123000Z", "zone", ERROR, False, "", "", "[o.e.n.Node] [one] x"),
    ),
    (
        "INFO  [main] 2026-02-01 10:00:00,123 Shop.java:12 - error",
        ("2026-02-01T10:00:00.123000Z", "zone", INFORMATION, False, "Shop.java:12", "", "error"),
    ),
    (
        "01-Feb-2026 10:00:00.123 SEVERE [main] down",
        ("2026-02-01T10:00:00.123000Z", "zone", ERROR, False, "", "", "[main] down"),
    ),
    (
        "26/02/09 20:10:40 INFO storage.Blocks: Failed to find one",
        ("2026-02-09T20:10:40Z", "date", INFORMATION, False, "storage.Blocks", "", "Failed to find one"),
    ),
    (
        "081109 203615 148 WARN dfs.Node$Part: x",
        ("2008-11-09T20:36:15Z", "zone", WARNING, False, "dfs.Node$Part", "", "x"),
    ),
    # The clock alone: the day is the last on which it can have been.
    ("11:00:00.5 [main] WARN  o.Shop - x", ("2026-03-01T11:00:00.500000Z", "date", WARNING, False, "o.Shop", "", "x")),
    (
        "[23:00:00] [Server thread/INFO]: x",
        ("2026-02-28T23:00:00Z", "date", INFORMATION, False, "", "", "[Server thread/INFO]: x"),
    ),
    # Web servers
    (
        "2026/02/01 10:00:00 [warn] 7#7: *1 an upstream response, error",
        ("2026-02-01T10:00:00Z", "zone", WARNING, False, "", "", "7#7: *1 an upstream response, error"),
    ),
    (
        '10.0.0.7 - - [01/Feb/2026:10:00:00 +0100] "GET /error HTTP/1.1" 200 12',
        ("2026-02-01T09:00:00Z", None, INFORMATION, True, "", "", WHOLE),
    ),
    (
        '10.0.0.7 - anna [01/Feb/2026:10:00:00 +0100] "GET / HTTP/1.1" 503 12 "-" "curl"',
        ("2026-02-01T09:00:00Z", None, ERROR, True, "", "", WHOLE),
    ),
    (
        "[Sun Feb 01 10:00:00.5 2026] [core:notice] [pid 7:tid 8] AH00094: Command line, error",
        (
            "2026-02-01T10:00:00.500000Z",
            "zone",
            INFORMATION,
            False,
            "core",
            "",
            "[pid 7:tid 8] AH00094: Command line, error",
        ),
    ),
    ("[Sun Feb 01 10:00:00 2026] [error] x", ("2026-02-01T10:00:00Z", "zone", ERROR, False, "", "", "x")),
    # Windows, Android, and what else there is
    (
        "2016-09-28 04:30:30, Info                  CBS    Warning: Unrecognized attribute",
        ("2016-09-28T04:30:30Z", "zone", INFORMATION, False, "CBS", "", "Warning: Unrecognized attribute"),
    ),
    (
        "02-01 10:00:00.811  1702  2395 W Windows: error",
        ("2026-02-01T10:00:00.811000Z", "year", WARNING, False, "Windows", "", "error"),
    ),
    ("D/Tag( 123): error", (None, "time", DEBUG, False, "", "", "D/Tag( 123): error")),
    ("E0201 10:00:00.5   77 main.go:12] x", ("2026-02-01T10:00:00.500000Z", "year", ERROR, False, "", "", "x")),
    (
        "2026-02-01 10:00:00.123 UTC [77] LOG:  no error",
        ("2026-02-01T10:00:00.123000Z", None, INFORMATION, False, "", "", "no error"),
    ),
    (
        "2026-02-01T10:00:00.123456Z 0 [Warning] [MY-1] x",
        ("2026-02-01T10:00:00.123456Z", None, WARNING, False, "", "", "[MY-1] x"),
    ),
    (
        "7:M 01 Feb 2026 10:00:00.123 # x",
        ("2026-02-01T10:00:00.123000Z", "zone", WARNING, False, "", "", "x"),
    ),
    ("[01-Feb-2026 10:00:00 UTC] PHP Warning:  x", ("2026-02-01T10:00:00Z", None, WARNING, False, "PHP", "", "x")),
    ("02/01/2026 10:00:00 PM x", ("2026-02-01T22:00:00Z", "date", INFORMATION, True, "", "", "x")),
    ("13.02.2026 10:00:00 x", ("2026-02-13T10:00:00Z", "zone", INFORMATION, True, "", "", "x")),
    (
        "1700000000.123 45 10.0.0.7 TCP_MISS/200",
        ("2023-11-14T22:13:20.123000Z", None, INFORMATION, True, "", "", "45 10.0.0.7 TCP_MISS/200"),
    ),
    (
        "node-7 unix.hw 1700000000 RAS KERNEL FATAL x",
        ("2023-11-14T22:13:20Z", None, CRITICAL, False, "", "", WHOLE),
    ),
    # A mark before the time is a mark, whatever letter it ends with.
    (
        "APPREAD 1700000000 R23-M1 2023-11-14-22.13.20.398284 R23-M1 RAS APP FATAL x",
        ("2023-11-14T22:13:20Z", None, CRITICAL, False, "", "", WHOLE),
    ),
    # The words of a table's row are no sentence.
    (
        "460903 node-70 action error 1700000000 1 boot (command 3399)",
        ("2023-11-14T22:13:20Z", None, ERROR, True, "", "", WHOLE),
    ),
    ("17 errors since 2026-02-01 10:00:00", (None, "time", ERROR, True, "", "", WHOLE)),
    (
        "20260131-9:5:3:7|Steps|300|x",
        ("2026-01-31T09:05:03.007000Z", "zone", INFORMATION, True, "", "", "|Steps|300|x"),
    ),
    (
        "2026-02-01 10:00:00.5 u0_a12  1702  2395 F libc    : x",
        ("2026-02-01T10:00:00.500000Z", "zone", CRITICAL, False, "libc", "", "x"),
    ),
    (
        "*Feb  1 10:00:00.123: %LINK-3-UPDOWN: down",
        ("2026-02-01T10:00:00.123000Z", "year", ERROR, False, "LINK", "", "%LINK-3-UPDOWN: down"),
    ),
    # key=value
    (
        'time="2026-02-01T10:00:00Z" level=warning msg="he said \\"no\\"" app=shop',
        ("2026-02-01T10:00:00Z", None, WARNING, False, "shop", "", 'he said "no"'),
    ),
    (
        "level=info ts=2026-02-01T10:00:00Z caller=main.go:12 msg=error",
        ("2026-02-01T10:00:00Z", None, INFORMATION, False, "main.go:12", "", "error"),
    ),
    (
        "type=SYSCALL msg=audit(1700000000.123:45): arch=x",
        (
            "2023-11-14T22:13:20.123000Z",
            None,
            INFORMATION,
            True,
            "audit",
            "",
            "type=SYSCALL msg=audit(1700000000.123:45): arch=x",
        ),
    ),
    # A container's line in a line
    (
        "2026-02-01T10:00:00.123456789Z stderr F ERROR boom",
        ("2026-02-01T10:00:00.123456Z", None, ERROR, False, "", "", "ERROR boom"),
    ),
    # Monolog: a channel with the level behind it
    (
        "[2026-02-01 10:00:00] production.INFO: no error here [] []",
        ("2026-02-01T10:00:00Z", "zone", INFORMATION, False, "production", "", "no error here [] []"),
    ),
    (
        "[2026-02-01T10:00:00.5+01:00] app-2.CRITICAL: down",
        ("2026-02-01T09:00:00.500000Z", None, CRITICAL, False, "app-2", "", "down"),
    ),
    # What is left of a stack trace
    *((trace, (None, "time", ERROR, True, "", "", WHOLE)) for trace in TRACES),
    # Nothing to go by
    ("just a line", (None, "time", INFORMATION, True, "", "", "just a line")),
    ("it failed", (None, "time", ERROR, True, "", "", "it failed")),
    ("Feb 30 11:11:11 h t: x", (None, "time", INFORMATION, True, "", "", "Feb 30 11:11:11 h t: x")),
    ("{not json", (None, "time", INFORMATION, True, "", "", "{not json")),
    (
        "A copy from 2026-02-01 10:00:00 was made",
        (None, "time", INFORMATION, True, "", "", "A copy from 2026-02-01 10:00:00 was made"),
    ),
]


@pytest.mark.parametrize("line, expected", LINES, ids=[line[:40] for line, _ in LINES])
def test_line_is_parsed(line: str, expected: tuple[Any, ...]) -> None:
    assert parsed(line) == tuple(line if item is WHOLE else item for item in expected)


JSON_LINES: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    (
        {"time": "2024-01-01T00:00:00Z", "level": "error", "msg": "x", "logger": "app", "host": "h"},
        ("2024-01-01T00:00:00Z", None, ERROR, False, "app", "h", "x"),
    ),
    # pino and bunyan: 10 trace, 20 debug, 30 info, 40 warn, 50 error, 60 fatal
    (
        {"level": 40, "time": 1700000000500, "pid": 7, "hostname": "h", "msg": "no error"},
        ("2023-11-14T22:13:20.500000Z", None, WARNING, False, "", "h", "no error"),
    ),
    (
        {"level": 60, "time": 1700000000500, "msg": "x"},
        ("2023-11-14T22:13:20.500000Z", None, CRITICAL, False, "", "", "x"),
    ),
    ({"level": 20, "time": 1700000000, "msg": "x"}, ("2023-11-14T22:13:20Z", None, DEBUG, False, "", "", "x")),
    # Python's numbers are others
    (
        {"levelno": 30, "levelname": "?", "asctime": "2026-02-01 10:00:00,5", "message": "x"},
        ("2026-02-01T10:00:00.500000Z", "zone", WARNING, False, "", "", "x"),
    ),
    # GELF has those of syslog
    (
        {"version": "1.1", "host": "h", "short_message": "x", "timestamp": 1700000000.5, "level": 3},
        ("2023-11-14T22:13:20.500000Z", None, ERROR, False, "", "h", "x"),
    ),
    # Docker
    (
        {
            "log": "2026-02-01 09:59:59,5 WARN shop: error\n",
            "stream": "stderr",
            "time": "2026-02-01T10:00:00.123456789Z",
        },
        ("2026-02-01T10:00:00.123456Z", None, WARNING, False, "shop", "", "error"),
    ),
    (
        {"log": '{"level":50,"msg":"x"}\n', "stream": "stdout", "time": "2026-02-01T10:00:00Z"},
        ("2026-02-01T10:00:00Z", None, ERROR, False, "", "", "x"),
    ),
    # journalctl -o json
    (
        {
            "__REALTIME_TIMESTAMP": "1700000000500000",
            "PRIORITY": "4",
            "MESSAGE": "x error",
            "_HOSTNAME": "h",
            "SYSLOG_IDENTIFIER": "sshd",
        },
        ("2023-11-14T22:13:20.500000Z", None, WARNING, False, "sshd", "h", "x error"),
    ),
    (
        {"__REALTIME_TIMESTAMP": "1700000000500000", "MESSAGE": [104, 105]},
        ("2023-11-14T22:13:20.500000Z", None, INFORMATION, True, "", "", "hi"),
    ),
    # ECS, MongoDB, Serilog, log4j
    (
        {"@timestamp": "2026-02-01T10:00:00Z", "log": {"level": "warn", "logger": "a.B"}, "message": "x"},
        ("2026-02-01T10:00:00Z", None, WARNING, False, "a.B", "", "x"),
    ),
    (
        {"t": {"$date": "2026-02-01T10:00:00.5+00:00"}, "s": "E", "c": "NETWORK", "msg": "x"},
        ("2026-02-01T10:00:00.500000Z", None, ERROR, False, "NETWORK", "", "x"),
    ),
    (
        {"@t": "2026-02-01T10:00:00Z", "@mt": "error {n}"},
        ("2026-02-01T10:00:00Z", None, INFORMATION, False, "", "", "error {n}"),
    ),
    (
        {
            "instant": {"epochSecond": 1700000000, "nanoOfSecond": 500000000},
            "level": "FATAL",
            "loggerName": "a",
            "message": "x",
        },
        ("2023-11-14T22:13:20.500000Z", None, CRITICAL, False, "a", "", "x"),
    ),
    # slog, between the levels that have names; and Serilog's older names.
    (
        {"time": "2026-02-01T10:00:00Z", "level": "ERROR+2", "msg": "x"},
        ("2026-02-01T10:00:00Z", None, ERROR, False, "", "", "x"),
    ),
    (
        {"time": "2026-02-01T10:00:00Z", "level": "DEBUG-4", "msg": "error"},
        ("2026-02-01T10:00:00Z", None, DEBUG, False, "", "", "error"),
    ),
    (
        {"Timestamp": "2026-02-01T10:00:00Z", "Level": "Fatal", "MessageTemplate": "{n}", "RenderedMessage": "3"},
        ("2026-02-01T10:00:00Z", None, CRITICAL, False, "", "", "3"),
    ),
    # A time or level that is nonsense is guessed, and says so.
    ({"time": "yesterday", "level": "loud", "msg": "it failed"}, (None, "time", ERROR, True, "", "", "it failed")),
    (
        {"time": {"a": 1}, "level": None, "msg": ["x"]},
        (None, "time", INFORMATION, True, "", "", '{"time":{"a":1},"level":null,"msg":["x"]}'),
    ),
]


@pytest.mark.parametrize("said, expected", JSON_LINES, ids=[str(line)[:40] for line, _ in JSON_LINES])
def test_json_line_is_parsed(said: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert parsed(json.dumps(said, separators=(",", ":"))) == expected


def test_zone_of_a_line_without_one_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    timestamps._at_minute.cache_clear()
    assert parsed("2026-02-01 10:00:00 INFO x")[:2] == ("2026-02-01T08:00:00Z", "zone")
    assert parsed("Feb  1 10:00:00 h t: x")[:2] == ("2026-02-01T08:00:00Z", "year")
    assert parsed("2026-02-01 10:00:00 +0100 INFO x")[:2] == ("2026-02-01T09:00:00Z", None)
    assert parsed("2026-02-01 10:00:00 UTC INFO x")[:2] == ("2026-02-01T10:00:00Z", None)


def test_year_is_the_last_in_which_a_line_is_not_from_the_future() -> None:
    assert format_iso(parse_line("Mar  2 11:00:00 h t: a day ahead is a clock that differs", NOW).time or 0).startswith(
        "2026-03-02"
    )
    assert format_iso(parse_line("Mar  3 11:00:00 h t: more is last year", NOW).time or 0).startswith("2025-03-03")
    assert format_iso(parse_line("Feb 29 11:00:00 h t: not in every year", NOW).time or 0).startswith("2024-02-29")


def test_date_order_is_inferred_from_the_log() -> None:
    """The same digits: in a log that ends in February 2026 they are a day of that month."""
    assert parsed("02/01/26 10:00:00 x")[0] == "2026-02-01T10:00:00Z"
    assert parse_line("17/06/09 10:00:00 x", parse_iso_us("2017-06-10", "t")).time == parse_iso_us(
        "2017-06-09T10:00", "t"
    )
    assert parse_line("17/06/09 10:00:00 x", parse_iso_us("2009-06-18", "t")).time == parse_iso_us(
        "2009-06-17T10:00", "t"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "<1>1 - - - - - [" + "\\" * 50_000,
        "a" * 65_536,
        "<1>" + "x:" * 30_000,
        "1" * 60_000,
        "a=" * 30_000,
        "2026-01-01 10:00:00 " + "- " * 30_000,
        "2026-01-01 10:00:00 " + "a.b" * 20_000,
        "2026-01-01 10:00:00 INFO " + "a." * 30_000,
        "Feb  1 10:00:00 h " + "a b" * 20_000,
        "a - " * 15_000,
        '{"log":' * 1000,
        "<" * 60_000,
        '1 - - [01/Feb/2026:10:00:00] "' + "A " * 30_000,
        "[a] " * 15_000,
        "2026-01-01T10:00:00Z stdout F " * 2_000,
        "Feb  1 10:00:00 h a: " * 3_000,
        "2026-01-01T10:00:00+00:00 h a[1]: " * 1_800,
        "2026-01-01 10:00:00 " + "][" * 30_000,
        "2026-01-01 10:00:00," + ",ERROR" * 10_000,
        "\x1b[" * 30_000,
    ],
)
def test_line_made_to_be_slow_is_not(text: str) -> None:
    began = time.process_time()
    assert parse_line(text, NOW).message
    # A second is two hundred times what the slowest of them takes.
    assert time.process_time() - began < 1
