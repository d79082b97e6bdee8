"""Lines that name what they say: JSON, and `key=value`.

The names are those of pino and bunyan, logstash and ECS, GELF, zap, Serilog, log4j, Docker, MongoDB, the JSON of
`journalctl`, and of programs that do as these do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from portico.services.system.eventlog import times
from portico.services.system.eventlog.entries import CRITICAL, DEBUG, ERROR, INFORMATION, OF_SEVERITY, WARNING, Guess
from portico.services.system.eventlog.logline import LogLine
from portico.services.system.eventlog.named_levels import NAMES, OF_LETTER, guessed, stated

# The first that is there is taken; a dot goes into an object.
_TIME = (
    *("timestamp", "@timestamp", "time", "ts", "@t", "t", "datetime", "date"),
    *("eventTime", "timeMillis", "instant", "event.created", "asctime", "Timestamp"),
)
_LEVEL = (
    *("level", "severity", "levelname", "log.level", "@l", "lvl", "loglevel", "log_level"),
    *("severityText", "priority", "PRIORITY", "s", "levelno", "Level"),
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
    ),
)
_HOST = ("host", "hostname", "computer", "host.name", "_HOSTNAME", "HOSTNAME")
_PINO = ((60, CRITICAL), (50, ERROR), (40, WARNING), (30, INFORMATION), (0, DEBUG))
_PYTHON = ((50, CRITICAL), (40, ERROR), (30, WARNING), (20, INFORMATION), (0, DEBUG))
_PAIR = re.compile(r'([\w@.-]{1,64})=("(?:[^"\\]|\\.)*"|\S*)(?:\s+|$)')
_ESCAPE = re.compile(r'\\(["\\])')
_AUDIT = re.compile(r"(?:node=\S+ )?type=(\S+) msg=audit\((\d{10}\.\d{1,6}):\d+\): ?")
# What Go's slog writes of a level between those that have names: `ERROR+2`
_STEP = re.compile(r"[+-]\d{1,3}\Z")
_MOST_PAIRS = 64


Parse = Callable[[str, int], LogLine]


def json_line(text: str, newest: int, parse: Parse) -> LogLine | None:
    """A line that is an object of JSON; None where it is none. A line in it is read by `parse`."""
    try:
        said: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(said.get("log"), str) and ("stream" in said or "time" in said):
        return _container(said, newest, parse)
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


def _container(said: dict[str, Any], newest: int, parse: Parse) -> LogLine:
    """What Docker keeps of what a container has written: a line in a line."""
    time, guess = _time(_first(said, _TIME), newest)
    line = parse(said["log"].rstrip("\r\n"), newest if time is None else time)
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
        moment = times.at(value.strip(), 0, newest)
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
    """The level that is stated: by a name, a letter or a number."""
    for name in _LEVEL:
        value = _first(said, (name,))
        if isinstance(value, str):
            found = _named(value.strip())
            if found is None and value.strip().isdigit() and len(value) < 6:
                found = _numbered(name, int(value), said)
        else:
            found = _numbered(name, value, said) if type(value) is int else None
        if found is not None:
            return found
    # Serilog leaves out the level that is usual.
    return INFORMATION if "@t" in said and ("@mt" in said or "@m" in said) else None


def _named(name: str) -> int | None:
    name = _STEP.sub("", name)
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
    elif 0 <= value <= 7:
        return OF_SEVERITY[value]
    else:
        scale = _PINO
    return next(level for least, level in scale if value >= least)
