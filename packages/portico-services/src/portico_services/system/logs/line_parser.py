"""Parser of text log lines: time, level, source and message.

Programs agree on little: a time near the start of a line, and often a level. Both are searched in their usual forms,
whatever the order; only syslog, JSON and `key=value` are parsed by their grammars. Missing values are estimated and
marked as such.
"""

from __future__ import annotations

import re
from typing import Any

from portico_services.system.logs import structured_lines, timestamps
from portico_services.system.logs.entries import (
    DEBUG,
    ERROR,
    INFORMATION,
    LEVEL_BY_SYSLOG_SEVERITY,
    WARNING,
    ParsedLine,
)
from portico_services.system.logs.level_detection import (
    LEVEL_BY_LETTER,
    LEVEL_BY_NAME,
    LevelMatch,
    find_level,
    infer_level,
)
from portico_services.system.logs.timestamps import TimestampMatch

_PRIORITY = re.compile(r"<(\d{1,3})> ?")
_STRUCTURED = r"-|(?:\[(?:[^\]\\\"]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+"
_RFC5424 = re.compile(rf"<(\d{{1,3}})>1 (\S{{1,64}}) (\S+) (\S+) (\S+) (\S+) ({_STRUCTURED}) ?(.*)", re.DOTALL)
_HOST = re.compile(r":?\s+(-|[A-Za-z0-9](?:[\w.:/-]{0,253}\w)?) +(?:<\w+\.(\w+)> )?(.*)", re.DOTALL)
# A name, optionally with version or module and process id; or several words with a process id.
_TAG = re.compile(
    r"(?:-- )?(?:([^\s:\[\]]{1,64}?(?:\([^)\s]{1,64}\))?)(?: \d[\d.]{0,20})?(?:\[([^\]\s]{1,32})\])?"
    r"|([A-Za-z][\w.+-]*(?: [\w.+-]+){1,3})\[(\d{1,10})\])(?: \([^)]{1,128}\))?:(?:\s|(?<=\]:)|$)(.*)",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
# Messages with their own format inside syslog: JSON, `key=value`, their own time or level letter.
_NESTED = re.compile(
    r"\{|[\[*]?\d{4}[-/.]\d\d|[IWEFD]\d{4} \d\d:|(?:time|ts|t|level|lvl)=|\*?[A-Z][a-z]{2} +\d{1,2} \d\d:"
)
_REPEATED = re.compile(r"(?:last )?message repeated \d|-- ?MARK ?--")
_GLOG = re.compile(r"([IWEFD])(\d{4})?(\d\d)(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?) +(\d+) (\S+?)\] ?(.*)", re.DOTALL)
_REDIS = re.compile(r"(?:\d+:[MSCX]|\[\d+\]) ?\Z")
_LEVEL_BY_REDIS_MARK = {".": DEBUG, "-": DEBUG, "*": INFORMATION, "#": WARNING}
_LETTER = re.compile(r"(?<![\w-])([DIWEFCVT]),? ?\[?\Z")
_ACCESS = re.compile(r'\] "(?:[A-Z]{1,16} [^"]*|[^"]{0,64})" ([1-5]\d\d)(?: |$)')
# Squid has the status after a slash.
_SQUID = re.compile(r" +\d+ \S+ [A-Z_]+/([1-5]\d\d) \d+ [A-Z]+ ")
# Record of PostgreSQL's csvlog: the level and the five-character SQLSTATE.
_RECORD = re.compile(rf",({'|'.join(name.upper() for name in LEVEL_BY_NAME)}),[0-9A-Z]{{5}},")
# The level is one of the first columns; the message after it may be very long.
_MAX_RECORD_CHARS = 1024
# A crafted line could otherwise nest without end.
MAX_NESTED_LINES = 3
# Error marks of Windows device setup logs.
_SETUP = re.compile(r"(!{1,3})\s{2,}\w+: ")
# Ruby's format after the time: ` #123]  INFO -- name: …`
_RUBY = re.compile(r" #(?P<pid>\d+)\]\s+[A-Z]+ -- (?P<name>[^:]{0,64}): ?(?P<said>.*)", re.DOTALL)
_CONTAINER = re.compile(r" (?:stdout|stderr) [FP] (.*)", re.DOTALL)
# Parts between time and level that do not belong to the message: numbers and thread names.
_BETWEEN = re.compile(
    r"[\s\-:,;|\])>.]*(?:[#\[(]*(?P<pid>\d{1,10})[\])]*[\s:|]+)?(?:\[(?P<thread>[^\[\]]{1,100})\]\s*)?"
    r"(?:[-|]?\s*(?P<name>[A-Za-z_][\w.$-]{0,127})(?:\[\d+\])?:?\s*(?=[-|\s]))?[\s\-:,|\[(<]*\Z"
)
_AFTER = re.compile(r"[\s:|,/\])>]*(?:-+\s+:?\s*)?")
_LOGGER = re.compile(
    r"(?:(?P<pid>\d{1,10})\s+(?:---\s+)?)?(?:\[[^\[\]]{1,100}\]\s+(?=\[))?(?:\[(?P<thread>[^\[\]]{1,100})\]\s+)?"
    r"(?:(?P<name>[A-Za-z_$](?:[\w.$/@#-]|::(?=\w)){0,127})(?:[\[(]\s*(?P<number>\d+)[\])])?\s*:(?:\s+|\Z)"
    r"|(?P<dotted>[A-Za-z_$][\w$]*(?:[.:][\w$<>]+)+)\s+--?\s+|(?P<column>[A-Za-z_][\w.$-]{0,63})(?:\s{2,}|\t)"
    r"|(?P<closed>[\w:.$/-]{1,128})\]\s+)(?P<said>.*)",
    re.DOTALL,
)


def parse_line(text: str, newest: int, depth: int = 0) -> ParsedLine:
    """Parse one line. `newest` is an upper bound of its time in microseconds, from which a missing year is inferred.

    `depth` is the nesting of lines: a container's line contains that of a program, which may contain another.
    """
    # Byte order mark at the start of a file.
    if text[:1] == "\ufeff":
        text = text[1:]
    if "\x1b" in text:
        text = strip_ansi(text)
    if text.startswith("{") and (line := structured_lines.parse_json_line(text, newest, parse_line, depth)):
        return line
    if text.startswith("<"):
        # RFC 5424 first: its version `1` after the priority would otherwise be taken for a part of an RFC 3164 line.
        if match := _RFC5424.match(text):
            return _rfc5424(match, newest)
        if match := _PRIORITY.match(text):
            return _parse_rfc3164(text[match.end() :], int(match[1]), newest)
    return _parse_text(text, newest, depth)


def strip_ansi(text: str) -> str:
    """Return the text without ANSI color codes."""
    return _COLOUR.sub("", text)


def _parse_text(text: str, newest: int, depth: int) -> ParsedLine:
    if match := _GLOG.match(text):
        return _glog(match, newest)
    moment = timestamps.find_timestamp(text, newest)
    if moment is None:
        return structured_lines.parse_logfmt(text, newest) or _parse_untimed(text)
    before, rest = text[: moment.begin], text[moment.end :]
    # A key=value line may have its time anywhere; then text precedes the time.
    if before.strip(" [(<") and (line := structured_lines.parse_logfmt(text, newest)):
        return line
    if not before.strip("[ ") and (line := _parse_syslog(text, moment, rest, depth)):
        return line
    if depth < MAX_NESTED_LINES and (match := _CONTAINER.match(rest)):
        inner = parse_line(match[1], moment.time, depth + 1)
        # The time of the container runtime is exact; the program may not even have written one.
        inner.time, inner.time_guess = moment.time, moment.guess
        return inner
    return _parse_generic(text, moment, before, rest)


# Syslog


def _rfc5424(match: re.Match[str], newest: int) -> ParsedLine:
    priority, time, host, app, process, kind, structured, message = match.groups()
    # RFC 5424, section 6.2.3: `-` is the NILVALUE, a timestamp that the sender does not know.
    moment = None if time == "-" else timestamps.parse_timestamp_at(time, 0, newest)
    fields = {"facility": int(priority) >> 3, "pid": process, "messageId": kind, "structuredData": structured}
    return ParsedLine(
        "rfc5424",
        None if moment is None else moment.time,
        LEVEL_BY_SYSLOG_SEVERITY[int(priority) & 7],
        _blank_if_dash(app),
        # RFC 5424, section 6.4: a UTF-8 message starts with a byte order mark.
        message.removeprefix("\ufeff"),
        _blank_if_dash(host),
        fields={name: value for name, value in fields.items() if value != "-"},
        time_guess="time" if moment is None else moment.guess,
    )


def _parse_rfc3164(text: str, priority: int, newest: int) -> ParsedLine:
    """Parse RFC 3164 and its variants with newer timestamps. Without a time the text starts with the tag or the
    message.
    """
    moment = timestamps.parse_timestamp_at(text, 0, newest)
    line = None if moment is None else _parse_tagged(moment, priority, text[moment.end :])
    if line is None:
        rest = text if moment is None else text[moment.end :].lstrip()
        source, process, message = _split(rest)
        line = ParsedLine("rfc3164", None, 0, source, message, fields=_process(process), time_guess="time")
        if moment is not None:
            line.time, line.time_guess = moment.time, moment.guess
    # RFC 3164, section 4.1.1: the priority is facility * 8 + severity.
    line.level, line.level_guessed = LEVEL_BY_SYSLOG_SEVERITY[priority & 7], False
    line.fields = line.fields | {"facility": priority >> 3}
    return line


def _parse_syslog(text: str, moment: TimestampMatch, rest: str, depth: int) -> ParsedLine | None:
    """Parse a line with a host after `Oct 11 22:14:15`, or in the formats of rsyslog, journalctl and macOS."""
    begin = moment.begin
    if text[begin].isalpha():
        is_short = text[begin : begin + 3].lower() in timestamps.MONTHS or text[begin + 4].isdigit()
        line = _parse_tagged(moment, None, rest) if is_short else None
    elif text[begin + 10 : begin + 11] == "T":
        # Many programs write times that end in Z, but hardly any write an offset.
        line = _parse_tagged(moment, None, rest, is_sure=text[moment.end - 1] != "Z" and moment.guess is None)
    else:
        line = None if moment.guess else _parse_tagged(moment, None, rest, is_sure=False)
        line = line if line and "pid" in line.fields else None
    if line and line.level_guessed and depth < MAX_NESTED_LINES and _NESTED.match(line.message):
        inner = parse_line(line.message, moment.time, depth + 1)
        line.level, line.level_guessed = inner.level, inner.level_guessed
    return line


def _parse_tagged(
    moment: TimestampMatch, priority: int | None, rest: str, *, is_sure: bool = True
) -> ParsedLine | None:
    """Parse a host, a tag with optional process id, and the message; return None if the text does not match.

    Unless it `is_sure` to be syslog, `starting worker: …` is not a host and tag.
    """
    match = _HOST.match(rest)
    if match is None or match[1].lower() in LEVEL_BY_NAME:
        return None
    host, named, body = match.groups()
    source, process, message = _split(body)
    if not source and named is None and priority is None and not _REPEATED.match(message):
        return None
    # `host ERROR: text` is a level with a message, not a program called ERROR.
    if process is None and (source.lower() in LEVEL_BY_NAME or (not is_sure and host.isalpha())):
        return None
    line = ParsedLine("syslog", moment.time, 0, source, message, _blank_if_dash(host), fields=_process(process))
    line.time_guess = moment.guess
    if named is not None and named.lower() in LEVEL_BY_NAME:
        line.level = LEVEL_BY_NAME[named.lower()]
    else:
        _resolve_level(line, find_level(message, 0, 1))
    return line


def _split(text: str) -> tuple[str, str | None, str]:
    """Split the text after a host into tag, process id and message."""
    tag = _TAG.match(text)
    if tag is None:
        return "", None, text
    return tag[1] or tag[3], tag[2] or tag[4], tag[5]


def _process(number: str | None) -> dict[str, Any]:
    return {"pid": number} if number else {}


def _blank_if_dash(value: str) -> str:
    return "" if value == "-" else value


def _resolve_level(line: ParsedLine, level_match: LevelMatch | None) -> None:
    """Set the level that was found, or infer it from the message."""
    line.level_guessed = level_match is None
    line.level = infer_level(line.message) if level_match is None else level_match.level


# Other formats


def _glog(match: re.Match[str], newest: int) -> ParsedLine:
    letter, year, month, day, clock, process, source, message = match.groups()
    moment = timestamps.parse_timestamp_at(
        f"{year}-{month}-{day} {clock}" if year else f"{month}-{day} {clock}", 0, newest
    )
    fields = {"pid": process, "place": source}
    line = ParsedLine("glog", None, LEVEL_BY_LETTER[letter], "", message, fields=fields, time_guess="time")
    if moment is not None:
        line.time, line.time_guess = moment.time, moment.guess
    return line


def _parse_untimed(text: str) -> ParsedLine:
    line = ParsedLine("text", None, INFORMATION, "", text, time_guess="time")
    if match := _SETUP.match(text):
        line.level = WARNING if match[1] == "!" else ERROR
    else:
        _resolve_level(line, find_level(text, 0, 1))
    return line


def _parse_generic(text: str, moment: TimestampMatch, before: str, rest: str) -> ParsedLine:
    """Parse a line with a time surrounded by level, thread and logger name."""
    line = ParsedLine("timed", moment.time, INFORMATION, "", rest, time_guess=moment.guess)
    if result := _ACCESS.match(rest) or _SQUID.match(rest):
        # Access logs state no level: server errors and client errors are the useful distinction.
        status = result[1]
        line.level = ERROR if status[0] == "5" else WARNING if status[0] == "4" else INFORMATION
        line.grammar, line.level_guessed = "access", True
        line.message = text
        return line
    heads = before.strip(" [(<|*")
    if heads and (found_before := _find_level_before(before, rest)) is not None:
        line.level = found_before
        if ruby := _RUBY.match(rest):
            line.source, line.message, line.fields = ruby["name"].strip(), ruby["said"], {"pid": ruby["pid"]}
            return line
        if not rest.strip("= "):
            line.message = text  # Erlang's `=ERROR REPORT==== … ===`, with the rest on other lines.
            return line
        return _split_logger_name(line, _AFTER.sub("", rest[2:] if _REDIS.match(before) else rest, count=1))
    if heads:
        # Keep the time: a message is always a contiguous part of its line, so that it can be searched in the bytes.
        line.message = text
    # A comma right after the time suggests a CSV record.
    if rest[:1] == "," and (record := _RECORD.search(rest, 0, _MAX_RECORD_CHARS)):
        line.level, line.message = LEVEL_BY_NAME[record[1].lower()], rest
        return line
    level_match = find_level(rest, 0)
    _resolve_level(line, level_match)
    if level_match is None:
        line.message = line.message.strip(" ]:,\t") if not heads else line.message
        return line
    between = _BETWEEN.match(rest[: level_match.begin])
    if between is None or heads or _begins_a_sentence(rest, level_match):
        line.message = line.message.strip(" ]:,\t")
        return line
    line.source = between["name"] or level_match.source
    line.fields = {name: between[name] for name in ("pid", "thread") if between[name]}
    return _split_logger_name(line, _AFTER.sub("", rest[level_match.end :], count=1))


def _begins_a_sentence(rest: str, level_match: LevelMatch) -> bool:
    """Return whether the level is also the first word of the message: `error connecting to …`."""
    word, following = rest[level_match.begin : level_match.end], rest[level_match.end : level_match.end + 2]
    return word.isalpha() and word.islower() and following[:1] == " " and following[1:].strip() != ""


def _find_level_before(before: str, rest: str) -> int | None:
    """Return the level that precedes a time, or None."""
    if _REDIS.match(before) and rest[1:2] in _LEVEL_BY_REDIS_MARK:
        return _LEVEL_BY_REDIS_MARK[rest[1:2]]
    if match := _LETTER.search(before):
        return LEVEL_BY_LETTER[match[1]]
    level_match = find_level(before.rstrip("[("), 0)
    return None if level_match is None else level_match.level


def _split_logger_name(line: ParsedLine, message: str) -> ParsedLine:
    """Remove a leading logger name from the message and set it as the source."""
    line.message = message
    if not line.source and (match := _LOGGER.match(message)):
        line.source = match["name"] or match["dotted"] or match["column"] or match["closed"]
        line.message = match["said"]
        numbers = {"pid": match["pid"] or match["number"], "thread": match["thread"]}
        line.fields = line.fields | {name: value for name, value in numbers.items() if value}
    return line
