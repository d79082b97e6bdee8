"""Lines that name what they say: JSON, and `key=value`.

The names are those of pino and bunyan, logstash and ECS, GELF, zap, Serilog, log4j, Docker, MongoDB, the JSON of
`journalctl`, and of programs that do as these do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from portico.extend import decode_bounded
from portico_services.system.logs import timestamps
from portico_services.system.logs.entries import CRITICAL, DEBUG, ERROR, INFORMATION, OF_SEVERITY, WARNING, Guess
from portico_services.system.logs.level_detection import NAMES, OF_LETTER, guessed, stated
from portico_services.system.logs.log_line import LogLine

# The first that is there is taken; a dot goes into an object.
_TIME = (
    *("timestamp", "@timestamp", "time", "ts", "@t", "t", "datetime", "date"),
    *("eventTime", "timeMillis", "instant", "event.created", "asctime", "Timestamp", "T"),
)
_LEVEL = (
    *("level", "severity", "levelname", "log.level", "@l", "lvl", "loglevel", "log_level"),
    *("severityText", "severity_text", "priority", "PRIORITY", "s", "levelno", "Level", "LogLevel", "level_name"),
    *("error_severity", "severityNumber", "severity_number", "L"),
)
_MESSAGE = (
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
_SOURCE = (
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
_HOST = ("host", "hostname", "computer", "host.name", "_HOSTNAME", "HOSTNAME")
_PINO = ((60, CRITICAL), (50, ERROR), (40, WARNING), (30, INFORMATION), (0, DEBUG))
_PYTHON = ((50, CRITICAL), (40, ERROR), (30, WARNING), (20, INFORMATION), (0, DEBUG))
_MONOLOG = ((500, CRITICAL), (400, ERROR), (300, WARNING), (200, INFORMATION), (0, DEBUG))
_JAVA = ((1000, ERROR), (900, WARNING), (800, INFORMATION), (700, INFORMATION), (0, DEBUG))
_LOG4J = ((50_000, CRITICAL), (40_000, ERROR), (30_000, WARNING), (20_000, INFORMATION), (0, DEBUG))
_OPENTELEMETRY = ((21, CRITICAL), (17, ERROR), (13, WARNING), (9, INFORMATION), (0, DEBUG))
_PAIR = re.compile(r'([\w@.-]{1,64})=("(?:[^"\\]|\\.)*"|\S*)(?:\s+|$)')
_ESCAPE = re.compile(r'\\(["\\])')
_AUDIT = re.compile(r"(?:node=\S+ )?type=(\S+) msg=audit\((\d{10}\.\d{1,6}):\d+\): ?")
# What Go's slog writes of a level between those that have names: `ERROR+2`
_STEP = re.compile(r"[+-]\d{1,3}\Z")
# How far MongoDB traces: `D1` to `D5`
_TRACED = re.compile(r"D[1-5]\Z")
_MOST_PAIRS = 64


Parse = Callable[[str, int, int], LogLine]


def json_line(text: str, newest: int, parse: Parse, depth: int) -> LogLine | None:
    """A line that is an object of JSON; None where it is none. A line in it is read by `parse`."""
    try:
        said: dict[str, Any] = decode_bounded(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(said.get("log"), str) and ("stream" in said or "time" in said):
        return _container(said, newest, parse, depth)
    line = _line("json", said, text, newest)
    if "__REALTIME_TIMESTAMP" in said:
        line.time, line.time_guess = _time(said["__REALTIME_TIMESTAMP"], newest)
    number = said.get("eventId")
    line.event_id = number if type(number) is int else None
    return line


def logfmt(text: str, newest: int) -> LogLine | None:
    """A line of `key=value`, such as `ts=… level=info msg="…"`; None where it is none, or says too little."""
    if audit := _AUDIT.match(text):
        time, guess = _time(audit[2], newest)
        return LogLine("audit", time, INFORMATION, "audit", text, time_guess=guess, level_guessed=True)
    said: dict[str, Any] = {}
    at = 0
    while len(said) < _MOST_PAIRS and (found := _PAIR.match(text, at)):
        value = found[2]
        said.setdefault(found[1], _ESCAPE.sub(r"\1", value[1:-1]) if value[:1] == '"' and len(value) > 1 else value)
        at = found.end()
    if len(said) < 2 or _first(said, _TIME) is None:
        return None
    return _line("logfmt", said, text, newest)


def _line(grammar: str, said: dict[str, Any], text: str, newest: int) -> LogLine:
    message = _text(_first(said, _MESSAGE))
    time, guess = _time(_first(said, _TIME), newest)
    level = _level(said)
    return LogLine(
        grammar,
        time,
        guessed(message or "") if level is None else level,
        _text(_first(said, _SOURCE)) or "",
        text if message is None else message,
        _text(_first(said, _HOST)) or "",
        fields=said,
        time_guess=guess,
        level_guessed=level is None,
    )


def _container(said: dict[str, Any], newest: int, parse: Parse, depth: int) -> LogLine:
    """What Docker keeps of what a container has written: a line in a line."""
    time, guess = _time(_first(said, _TIME), newest)
    line = parse(said["log"].rstrip("\r\n"), newest if time is None else time, depth + 1)
    if time is not None or line.time is None:
        line.time, line.time_guess = time, guess
    line.fields = said | {"line": line.fields} if line.fields else said
    return line


def _first(said: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in said:
            return said[name]
        if "." in name:
            outer, _, inner = name.partition(".")
            within = said.get(outer)
            if isinstance(within, dict) and inner in within:
                return within[inner]
    return None


def _text(value: Any) -> str | None:
    """A text; of the bytes that journalctl writes as numbers, what they spell."""
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 256 for one in value):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value
    return str(value) if type(value) in (int, float) else None


def _time(value: Any, newest: int) -> tuple[int | None, Guess | None]:
    """A time as text, as a number of seconds or of something smaller since 1970, or in an object."""
    if isinstance(value, dict):
        if "epochSecond" in value and type(value["epochSecond"]) is int:
            nanos = value.get("nanoOfSecond", 0)
            return _number(value["epochSecond"] + (nanos / 1e9 if type(nanos) is int else 0))
        value = value.get("$date")
    if isinstance(value, str):
        moment = timestamps.at(value.strip(), 0, newest)
        return (None, "time") if moment is None else (moment.time, moment.guess)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, "time"
    return _number(value)


def _number(value: float) -> tuple[int | None, Guess | None]:
    if not 0 <= value < 1e20:
        return None, "time"
    if isinstance(value, int):
        scale = 1_000_000
        while value >= 100_000_000_000 * (1_000_000 // scale):
            scale //= 1000
            if not scale:
                return value // 1000, None
        return value * scale, None
    while value >= 1e11:
        value /= 1000
    return round(value * 1_000_000), None


def _level(said: dict[str, Any]) -> int | None:
    """The level that is stated: by a name, a letter or a number. A name is sure, and numbers mean many things."""
    number: int | None = None
    for name in _LEVEL:
        value = _first(said, (name,))
        if isinstance(value, str):
            if (found := _named(value.strip())) is not None:
                return found
            value = int(value) if value.strip().isdigit() and len(value) < 6 else None
        if number is None and type(value) is int:
            number = _numbered(name, value, said)
    if number is not None:
        return number
    # Serilog leaves out the level that is usual.
    return INFORMATION if "@t" in said and ("@mt" in said or "@m" in said) else None


def _named(name: str) -> int | None:
    name = "D" if _TRACED.match(name) else _STEP.sub("", name)
    if name.lower() in NAMES:
        return NAMES[name.lower()]
    if len(name) == 1:
        return OF_LETTER.get(name)
    here = stated(name, 0, 1)
    return None if here is None else here.level


def _numbered(name: str, value: int, said: dict[str, Any]) -> int | None:
    if value < 0:
        return None
    if name == "levelno" or (value <= 50 and value % 10 == 0 and "levelname" in said):
        scale = _PYTHON
    elif name in ("severityNumber", "severity_number"):
        scale = _OPENTELEMETRY
    elif 0 <= value <= 7:
        return OF_SEVERITY[value]
    elif value < 100:
        scale = _PINO
    elif value % 50:
        return None
    else:
        scale = _MONOLOG if value <= 600 else _JAVA if value <= 1000 else _LOG4J
    return next(level for least, level in scale if value >= least)
