"""Parser for structured log lines: JSON and logfmt (`key=value`).

The keys are those of pino and bunyan, logstash and ECS, GELF, zap, Serilog, log4j, Docker, MongoDB, journalctl's JSON
output, and programs with similar formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from portico.extend import decode_bounded
from portico_services.system.logs import timestamps
from portico_services.system.logs.entries import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFORMATION,
    LEVEL_BY_SYSLOG_SEVERITY,
    WARNING,
    ParsedLine,
    TimeEstimate,
)
from portico_services.system.logs.level_detection import LEVEL_BY_LETTER, LEVEL_BY_NAME, find_level, infer_level

# The first key that is present wins; a dot refers to a nested object.
_TIME_KEYS = (
    *("timestamp", "@timestamp", "time", "ts", "@t", "t", "datetime", "date"),
    *("eventTime", "timeMillis", "instant", "event.created", "asctime", "Timestamp", "T"),
)
_LEVEL_KEYS = (
    *("level", "severity", "levelname", "log.level", "@l", "lvl", "loglevel", "log_level"),
    *("severityText", "severity_text", "priority", "PRIORITY", "s", "levelno", "Level", "LogLevel", "level_name"),
    *("error_severity", "severityNumber", "severity_number", "L"),
)
_MESSAGE_KEYS = (
    "message",
    "msg",
    "MESSAGE",
    "@m",
    "short_message",
    "text",
    "body",
    "event",
    "@mt",
    "RenderedMessage",
    "MessageTemplate",
    "Message",
    "fields.message",
    "M",
)
_SOURCE_KEYS = (
    *("source", "logger", "loggerName", "logger_name", "log.logger", "SYSLOG_IDENTIFIER", "_SYSTEMD_UNIT", "_COMM"),
    *(
        "service.name",
        "service",
        "app",
        "program",
        "name",
        "module",
        "component",
        "SourceContext",
        "c",
        "caller",
        "Properties.SourceContext",
        "channel",
        "Category",
        "target",
    ),
)
_HOST_KEYS = ("host", "hostname", "computer", "host.name", "_HOSTNAME", "HOSTNAME")
_PINO = ((60, CRITICAL), (50, ERROR), (40, WARNING), (30, INFORMATION), (0, DEBUG))
_PYTHON = ((50, CRITICAL), (40, ERROR), (30, WARNING), (20, INFORMATION), (0, DEBUG))
_MONOLOG = ((500, CRITICAL), (400, ERROR), (300, WARNING), (200, INFORMATION), (0, DEBUG))
_JAVA = ((1000, ERROR), (900, WARNING), (800, INFORMATION), (700, INFORMATION), (0, DEBUG))
_LOG4J = ((50_000, CRITICAL), (40_000, ERROR), (30_000, WARNING), (20_000, INFORMATION), (0, DEBUG))
_OPENTELEMETRY = ((21, CRITICAL), (17, ERROR), (13, WARNING), (9, INFORMATION), (0, DEBUG))
_PAIR = re.compile(r'([\w@.-]{1,64})=("(?:[^"\\]|\\.)*"|\S*)(?:\s+|$)')
_ESCAPE = re.compile(r'\\(["\\])')
_AUDIT = re.compile(r"(?:node=\S+ )?type=(\S+) msg=audit\((\d{10}\.\d{1,6}):\d+\): ?")
# Go's slog writes levels between the named ones as `ERROR+2`.
_STEP = re.compile(r"[+-]\d{1,3}\Z")
# MongoDB's debug levels: `D1` to `D5`
_TRACED = re.compile(r"D[1-5]\Z")
_MAX_PAIRS = 64


LineParser = Callable[[str, int, int], ParsedLine]


def parse_json_line(text: str, newest: int, parse: LineParser, depth: int) -> ParsedLine | None:
    """Parse a line that is a JSON object, or return None. `parse` handles a nested line."""
    try:
        record: dict[str, Any] = decode_bounded(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(record.get("log"), str) and ("stream" in record or "time" in record):
        return _parse_container_line(record, newest, parse, depth)
    line = _line("json", record, text, newest)
    if "__REALTIME_TIMESTAMP" in record:
        line.time, line.time_guess = _time(record["__REALTIME_TIMESTAMP"], newest)
    number = record.get("eventId")
    line.event_id = number if type(number) is int else None
    return line


def parse_logfmt(text: str, newest: int) -> ParsedLine | None:
    """Parse a logfmt line such as `ts=… level=info msg="…"`; return None if it is not one or has too few pairs."""
    if audit := _AUDIT.match(text):
        time, guess = _time(audit[2], newest)
        return ParsedLine("audit", time, INFORMATION, "audit", text, time_guess=guess, level_guessed=True)
    record: dict[str, Any] = {}
    at = 0
    while len(record) < _MAX_PAIRS and (match := _PAIR.match(text, at)):
        value = match[2]
        record.setdefault(match[1], _ESCAPE.sub(r"\1", value[1:-1]) if value[:1] == '"' and len(value) > 1 else value)
        at = match.end()
    if len(record) < 2 or _first_present(record, _TIME_KEYS) is None:
        return None
    return _line("logfmt", record, text, newest)


def _line(grammar: str, record: dict[str, Any], text: str, newest: int) -> ParsedLine:
    message = _text(_first_present(record, _MESSAGE_KEYS))
    time, guess = _time(_first_present(record, _TIME_KEYS), newest)
    level = _level(record)
    return ParsedLine(
        grammar,
        time,
        infer_level(message or "") if level is None else level,
        _text(_first_present(record, _SOURCE_KEYS)) or "",
        text if message is None else message,
        _text(_first_present(record, _HOST_KEYS)) or "",
        fields=record,
        time_guess=guess,
        level_guessed=level is None,
    )


def _parse_container_line(record: dict[str, Any], newest: int, parse: LineParser, depth: int) -> ParsedLine:
    """Parse a line of Docker's json-file driver, which contains the line of the container."""
    time, guess = _time(_first_present(record, _TIME_KEYS), newest)
    line = parse(record["log"].rstrip("\r\n"), newest if time is None else time, depth + 1)
    if time is not None or line.time is None:
        line.time, line.time_guess = time, guess
    # The fields of both layers: the container runtime's and the program's.
    line.fields = record | {"line": line.fields} if line.fields else record
    return line


def _first_present(record: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in record:
            return record[name]
        # Dotted keys of ECS may be written flat (`log.level`) or nested.
        if "." in name:
            outer, _, inner = name.partition(".")
            within = record.get(outer)
            if isinstance(within, dict) and inner in within:
                return within[inner]
    return None


def _text(value: Any) -> str | None:
    """Return a value as text, including byte arrays as written by journalctl; None for other types."""
    # journalctl exports fields that are not valid UTF-8 as arrays of byte values.
    if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 256 for item in value):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value
    return str(value) if type(value) in (int, float) else None


def _time(value: Any, newest: int) -> tuple[int | None, TimeEstimate | None]:
    """Parse a time: text, a number of seconds or smaller units since 1970, or an object."""
    if isinstance(value, dict):
        if "epochSecond" in value and type(value["epochSecond"]) is int:
            nanos = value.get("nanoOfSecond", 0)
            return _number(value["epochSecond"] + (nanos / 1e9 if type(nanos) is int else 0))
        value = value.get("$date")
    if isinstance(value, str):
        moment = timestamps.parse_timestamp_at(value.strip(), 0, newest)
        return (None, "time") if moment is None else (moment.time, moment.guess)
    # `True` is an int in Python, but never a time.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, "time"
    return _number(value)


def _number(value: float) -> tuple[int | None, TimeEstimate | None]:
    if not 0 <= value < 1e20:
        return None, "time"
    if isinstance(value, int):
        scale = 1_000_000
        # Seconds, milliseconds or microseconds, judged by magnitude: 10^11 seconds is the year 5138.
        while value >= 100_000_000_000 * (1_000_000 // scale):
            scale //= 1000
            if not scale:
                return value // 1000, None
        return value * scale, None
    while value >= 1e11:
        value /= 1000
    return round(value * 1_000_000), None


def _level(record: dict[str, Any]) -> int | None:
    """Return the stated level by name, letter or number. Names take precedence, because the meaning of numbers
    varies.
    """
    number: int | None = None
    for name in _LEVEL_KEYS:
        value = _first_present(record, (name,))
        if isinstance(value, str):
            if (result := _level_from_name(value.strip())) is not None:
                return result
            value = int(value) if value.strip().isdigit() and len(value) < 6 else None
        if number is None and type(value) is int:
            number = _level_from_number(name, value, record)
    if number is not None:
        return number
    # Serilog omits the level for Information.
    return INFORMATION if "@t" in record and ("@mt" in record or "@m" in record) else None


def _level_from_name(name: str) -> int | None:
    name = "D" if _TRACED.match(name) else _STEP.sub("", name)
    if name.lower() in LEVEL_BY_NAME:
        return LEVEL_BY_NAME[name.lower()]
    if len(name) == 1:
        return LEVEL_BY_LETTER.get(name)
    level_match = find_level(name, 0, 1)
    return None if level_match is None else level_match.level


def _level_from_number(name: str, value: int, record: dict[str, Any]) -> int | None:
    if value < 0:
        return None
    if name == "levelno" or (value <= 50 and value % 10 == 0 and "levelname" in record):
        scale = _PYTHON
    elif name in ("severityNumber", "severity_number"):
        scale = _OPENTELEMETRY
    elif 0 <= value <= 7:
        return LEVEL_BY_SYSLOG_SEVERITY[value]
    elif value < 100:
        scale = _PINO
    # Monolog, java.util.logging and Log4j use multiples of 50; other numbers are no levels.
    elif value % 50:
        return None
    else:
        scale = _MONOLOG if value <= 600 else _JAVA if value <= 1000 else _LOG4J
    return next(level for minimum, level in scale if value >= minimum)
