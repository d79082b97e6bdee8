"""Lines of text logs: syslog in its four grammars, JSON, and whatever else begins with a time.

```
RFC 5424     <165>1 2003-10-11T22:14:15.003Z host app 123 ID47 [exampleSDID@32473 iut="3"] message
RFC 3164     <34>Oct 11 22:14:15 host su[123]: message
forwarded    <34>2003-10-11T22:14:15.003+02:00 host su[123]: message     (also without the number, as rsyslog files)
BSD          Oct 11 22:14:15 host su[123]: message      (also `host <auth.info> su[123]: message`)
```

Most grammars leave something out: the year, the zone, the severity. The year is the one that makes a line no newer
than the line after it; the zone is this machine's; the severity is guessed from the words.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from portico.services.system.eventlog.entries import CRITICAL, DEBUG, ERROR, INFORMATION, LEVELS, OF_SEVERITY, WARNING

DAY = 86_400_000_000

_MONTHS = ("", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?"

_STRUCTURED = r"-|(?:\[(?:[^\]\\\"]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+"
_RFC5424 = re.compile(rf"<(\d{{1,3}})>1 (?:({_ISO})|-) (\S+) (\S+) (\S+) (\S+) ({_STRUCTURED}) ?(.*)", re.DOTALL)
_BSD = re.compile(
    r"(?:<(\d{1,3})>)?\s?([A-Z][a-z]{2}) +(\d{1,2}) (?:(\d{4}) )?(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?:? (.*)", re.DOTALL
)
_FORWARDED = re.compile(rf"(?:<(\d{{1,3}})>)?\[?({_ISO})\]?:? (.*)", re.DOTALL)
_PRIORITY_ONLY = re.compile(r"<(\d{1,3})>(.*)", re.DOTALL)
_HOST = re.compile(r"(\S+) +(?:<\w+\.(\w+)> )?(.*)", re.DOTALL)
# A name, perhaps with a version or a module, perhaps with a number of a process.
_TAG = re.compile(
    r"(?:-- )?([^\s:\[\]]{1,64}?(?:\([^)\s]{1,64}\))?)(?: \d[\d.]{0,20})?(?:\[([^\]\s]{1,32})\])?: ?(.*)", re.DOTALL
)
_WORDS = (
    (CRITICAL, re.compile(r"\b(?:panic|emerg(?:ency)?|critical|crit|fatal)\b", re.IGNORECASE)),
    (ERROR, re.compile(r"\b(?:err|error|errors|fail|failed|failure|denied|segfault)\b", re.IGNORECASE)),
    (WARNING, re.compile(r"\b(?:warn|warning|deprecated|timed? ?out)\b", re.IGNORECASE)),
    (DEBUG, re.compile(r"\b(?:debug|trace)\b", re.IGNORECASE)),
)
_ANY_WORD = re.compile("|".join(words.pattern for _, words in _WORDS), re.IGNORECASE)
_NAMES = {
    "emerg": CRITICAL, "alert": CRITICAL, "crit": CRITICAL, "critical": CRITICAL, "fatal": CRITICAL, "panic": CRITICAL,
    "err": ERROR, "error": ERROR, "warning": WARNING, "warn": WARNING, "notice": INFORMATION, "info": INFORMATION,
    "information": INFORMATION, "debug": DEBUG, "trace": DEBUG, "verbose": DEBUG,
}  # fmt: skip
# Where logs in JSON keep things; the first that is there is taken.
_TIME_KEYS = ("timestamp", "@timestamp", "time", "ts", "datetime", "date", "eventTime")
_LEVEL_KEYS = ("level", "severity", "levelname", "log.level", "priority", "loglevel")
_MESSAGE_KEYS = ("message", "msg", "MESSAGE", "text", "event")
_SOURCE_KEYS = ("source", "logger", "service", "app", "program", "name", "module")
_HOST_KEYS = ("host", "hostname", "computer", "host.name")


class SyslogLine(Struct):
    """What a line says. `time` is None where it has none, and `grammar` says how it was read."""

    grammar: str
    time: int | None
    level: int
    source: str
    message: str
    computer: str = ""
    event_id: int | None = None
    fields: dict[str, Any] = {}


def parse(text: str, newest: int) -> SyslogLine:
    """One line. `newest` is a time, in microseconds, that it is not newer than: it tells the year."""
    if text.startswith("{") and (line := _json(text)):
        return line
    if text.startswith("<") and (found := _RFC5424.match(text)):
        return _rfc5424(found)
    if found := _BSD.match(text):
        return _bsd(found, newest)
    if found := _FORWARDED.match(text):
        grammar = "forwarded" if found[1] else "iso"
        return _tagged(grammar, _iso(found[2]), found[1], found[3])
    if found := _PRIORITY_ONLY.match(text):
        return _tagged("rfc3164", None, found[1], f"- {found[2]}")
    return SyslogLine("text", None, guessed(text), "", text)


def guessed(message: str) -> int:
    """The level of a message that does not come with one, by its words."""
    if _ANY_WORD.search(message) is None:
        return INFORMATION
    return next((level for level, words in _WORDS if words.search(message)), INFORMATION)


def _rfc5424(found: re.Match[str]) -> SyslogLine:
    priority, time, host, app, process, kind, structured, message = found.groups()
    fields = {"facility": int(priority) >> 3, "pid": process, "messageId": kind, "structuredData": structured}
    return SyslogLine(
        "rfc5424",
        _iso(time) if time else None,
        OF_SEVERITY[int(priority) & 7],
        _said(app),
        message.removeprefix("\ufeff"),
        _said(host),
        fields={name: value for name, value in fields.items() if value != "-"},
    )


def _bsd(found: re.Match[str], newest: int) -> SyslogLine:
    priority, month, day, year, hour, minute, second, fraction, rest = found.groups()
    try:
        number = _MONTHS.index(month)
        clock = (int(day), int(hour), int(minute))
        time = _local(int(year), number, *clock) if year else _dated(number, *clock, newest=newest)
        time += int(second) * 1_000_000 + int((fraction or "0").ljust(6, "0"))
    except ValueError:
        return SyslogLine("text", None, guessed(found[0]), "", found[0])
    return _tagged("rfc3164" if priority else "bsd", time, priority, rest)


def _tagged(grammar: str, time: int | None, priority: str | None, rest: str) -> SyslogLine:
    """The part that all but RFC 5424 have in common: a host, a tag with perhaps a number, and the message."""
    found = _HOST.match(rest)
    host, named, said = found.groups() if found is not None else ("", None, rest)
    tag = _TAG.match(said)
    if tag is None and grammar == "iso":
        # Many programs write the time and then at once what they have to say.
        host, said = "", rest
    source, process, message = tag.groups() if tag is not None else ("", None, said)
    fields: dict[str, Any] = {"pid": process} if process else {}
    level = guessed(message)
    if priority is not None:
        level, fields["facility"] = OF_SEVERITY[int(priority) & 7], int(priority) >> 3
    elif named is not None:
        level = _NAMES.get(named, level)
    return SyslogLine(grammar, time, level, source, message, _said(host), fields=fields)


def _said(value: str) -> str:
    return "" if value == "-" else value


# Times


def _iso(text: str) -> int | None:
    text = text.replace(",", ".").replace(" +", "+").replace(" -", "-").replace(" Z", "Z")
    try:
        moment = datetime.fromisoformat(text[:10] + "T" + text[11:])
    except ValueError:
        return None
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def _dated(month: int, day: int, hour: int, minute: int, *, newest: int) -> int:
    """The last such minute that is not after `newest`. A day is allowed for clocks that differ."""
    year = datetime.fromtimestamp(newest // 1_000_000, UTC).year
    for candidate in range(year + 1, year - 9, -1):
        try:
            time = _local(candidate, month, day, hour, minute)
        except ValueError:
            continue  # the 29th of February is not in every year
        if time <= newest + DAY:
            return time
    raise ValueError


@lru_cache(4096)
def _local(year: int, month: int, day: int, hour: int, minute: int) -> int:
    return int(datetime(year, month, day, hour, minute).timestamp()) * 1_000_000


# JSON


def _json(text: str) -> SyslogLine | None:
    try:
        said: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    message = _first(said, _MESSAGE_KEYS)
    number = said.get("eventId")
    return SyslogLine(
        "json",
        _moment(_first(said, _TIME_KEYS)),
        _level(_first(said, _LEVEL_KEYS), str(message or "")),
        str(_first(said, _SOURCE_KEYS) or ""),
        message if isinstance(message, str) else text,
        str(_first(said, _HOST_KEYS) or ""),
        number if type(number) is int else None,
        said,
    )


def _first(said: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((said[name] for name in names if name in said), None)


def _moment(value: Any) -> int | None:
    """A time as text, or as a number of seconds or of something smaller since 1970."""
    if isinstance(value, str):
        return _iso(value) if re.fullmatch(_ISO, value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e20:
        return None
    while value >= 1e11:
        value /= 1000
    return int(value * 1_000_000)


def _level(value: Any, message: str) -> int:
    if isinstance(value, str):
        return _NAMES.get(value.lower(), LEVELS.index(value) if value in LEVELS else guessed(message))
    return guessed(message)
