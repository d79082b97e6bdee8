"""A line of a text log: when it was written, how bad it is, who wrote it, and what it says.

Programs agree on little but this: a time stands in the head of a line, and often a level. So both are looked for in
the forms that are usual, whatever the order of things is; only syslog, JSON and `key=value` are read by their grammars.
What a line does not say is supplied, and marked as guessed.
"""

from __future__ import annotations

import re
from typing import Any

from portico_services.system.logs import structured_lines, timestamps
from portico_services.system.logs.entries import DEBUG, ERROR, INFORMATION, OF_SEVERITY, WARNING
from portico_services.system.logs.level_detection import NAMES, OF_LETTER, Stated, guessed, stated
from portico_services.system.logs.log_line import LogLine
from portico_services.system.logs.timestamps import Moment

_PRIORITY = re.compile(r"<(\d{1,3})> ?")
_STRUCTURED = r"-|(?:\[(?:[^\]\\\"]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+"
_RFC5424 = re.compile(rf"<(\d{{1,3}})>1 (\S{{1,64}}) (\S+) (\S+) (\S+) (\S+) ({_STRUCTURED}) ?(.*)", re.DOTALL)
_HOST = re.compile(r":?\s+(-|[A-Za-z0-9](?:[\w.:/-]{0,253}\w)?) +(?:<\w+\.(\w+)> )?(.*)", re.DOTALL)
# A name, perhaps with a version or a module, perhaps with a number of a process; or several words with a number.
_TAG = re.compile(
    r"(?:-- )?(?:([^\s:\[\]]{1,64}?(?:\([^)\s]{1,64}\))?)(?: \d[\d.]{0,20})?(?:\[([^\]\s]{1,32})\])?"
    r"|([A-Za-z][\w.+-]*(?: [\w.+-]+){1,3})\[(\d{1,10})\])(?: \([^)]{1,128}\))?:(?:\s|(?<=\]:)|$)(.*)",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
# What a program says in a grammar of its own, and syslog carries: JSON, `key=value`, a time or a letter of its own.
_NESTED = re.compile(
    r"\{|[\[*]?\d{4}[-/.]\d\d|[IWEFD]\d{4} \d\d:|(?:time|ts|t|level|lvl)=|\*?[A-Z][a-z]{2} +\d{1,2} \d\d:"
)
_REPEATED = re.compile(r"(?:last )?message repeated \d|-- ?MARK ?--")
_GLOG = re.compile(r"([IWEFD])(\d{4})?(\d\d)(\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?) +(\d+) (\S+?)\] ?(.*)", re.DOTALL)
_REDIS = re.compile(r"(?:\d+:[MSCX]|\[\d+\]) ?\Z")
_OF_REDIS = {".": DEBUG, "-": DEBUG, "*": INFORMATION, "#": WARNING}
_LETTER = re.compile(r"(?<![\w-])([DIWEFCVT]),? ?\[?\Z")
_ACCESS = re.compile(r'\] "(?:[A-Z]{1,16} [^"]*|[^"]{0,64})" ([1-5]\d\d)(?: |$)')
# Squid has the status behind a slash.
_SQUID = re.compile(r" +\d+ \S+ [A-Z_]+/([1-5]\d\d) \d+ [A-Z]+ ")
# A record of PostgreSQL's csvlog: the level, and the five letters of a state.
_RECORD = re.compile(rf",({'|'.join(name.upper() for name in NAMES)}),[0-9A-Z]{{5}},")
_LONGEST_RECORD = 1024
DEEPEST = 3
# How Windows marks what went wrong when it set up a device.
_SETUP = re.compile(r"(!{1,3})\s{2,}\w+: ")
# What Ruby puts behind a time: ` #123]  INFO -- name: …`
_RUBY = re.compile(r" #(?P<pid>\d+)\]\s+[A-Z]+ -- (?P<name>[^:]{0,64}): ?(?P<said>.*)", re.DOTALL)
_CONTAINER = re.compile(r" (?:stdout|stderr) [FP] (.*)", re.DOTALL)
# What may stand between a time and its level without being part of what is said: numbers, and what runs it.
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


def parse(text: str, newest: int, depth: int = 0) -> LogLine:
    """One line. `newest` is a time, in microseconds, that it is not newer than: it tells the year.

    `depth` is how many lines it is in: a container's has a program's, which may have another's.
    """
    if text[:1] == "\ufeff":
        text = text[1:]
    if "\x1b" in text:
        text = colourless(text)
    if text.startswith("{") and (line := structured_lines.json_line(text, newest, parse, depth)):
        return line
    if text.startswith("<"):
        if found := _RFC5424.match(text):
            return _rfc5424(found, newest)
        if found := _PRIORITY.match(text):
            return _prioritised(text[found.end() :], int(found[1]), newest)
    return _plain(text, newest, depth)


def colourless(text: str) -> str:
    """Without what colours it on a terminal."""
    return _COLOUR.sub("", text)


def _plain(text: str, newest: int, depth: int) -> LogLine:
    if found := _GLOG.match(text):
        return _glog(found, newest)
    moment = timestamps.find(text, newest)
    if moment is None:
        return structured_lines.logfmt(text, newest) or _untimed(text)
    before, rest = text[: moment.begin], text[moment.end :]
    if before.strip(" [(<") and (line := structured_lines.logfmt(text, newest)):
        return line
    if not before.strip("[ ") and (line := _syslogs(text, moment, rest, depth)):
        return line
    if depth < DEEPEST and (found := _CONTAINER.match(rest)):
        inner = parse(found[1], moment.time, depth + 1)
        inner.time, inner.time_guess = moment.time, moment.guess
        return inner
    return _general(text, moment, before, rest)


# Syslog


def _rfc5424(found: re.Match[str], newest: int) -> LogLine:
    priority, time, host, app, process, kind, structured, message = found.groups()
    moment = None if time == "-" else timestamps.at(time, 0, newest)
    fields = {"facility": int(priority) >> 3, "pid": process, "messageId": kind, "structuredData": structured}
    return LogLine(
        "rfc5424",
        None if moment is None else moment.time,
        OF_SEVERITY[int(priority) & 7],
        _said(app),
        message.removeprefix("\ufeff"),
        _said(host),
        fields={name: value for name, value in fields.items() if value != "-"},
        time_guess="time" if moment is None else moment.guess,
    )


def _prioritised(text: str, priority: int, newest: int) -> LogLine:
    """RFC 3164, and what is forwarded with a newer time. What has no time begins with the tag or the message."""
    moment = timestamps.at(text, 0, newest)
    line = None if moment is None else _tagged(moment, priority, text[moment.end :])
    if line is None:
        rest = text if moment is None else text[moment.end :].lstrip()
        source, process, message = _split(rest)
        line = LogLine("rfc3164", None, 0, source, message, fields=_process(process), time_guess="time")
        if moment is not None:
            line.time, line.time_guess = moment.time, moment.guess
    line.level, line.level_guessed = OF_SEVERITY[priority & 7], False
    line.fields = line.fields | {"facility": priority >> 3}
    return line


def _syslogs(text: str, moment: Moment, rest: str, depth: int) -> LogLine | None:
    """A line with a host behind `Oct 11 22:14:15`, or behind what rsyslog, journalctl and macOS write."""
    begin = moment.begin
    if text[begin].isalpha():
        is_short = text[begin : begin + 3].lower() in timestamps.MONTHS or text[begin + 4].isdigit()
        line = _tagged(moment, None, rest) if is_short else None
    elif text[begin + 10 : begin + 11] == "T":
        # Many programs write a time that ends in Z, but hardly any that ends in an offset.
        line = _tagged(moment, None, rest, is_sure=text[moment.end - 1] != "Z" and moment.guess is None)
    else:
        line = None if moment.guess else _tagged(moment, None, rest, is_sure=False)
        line = line if line and "pid" in line.fields else None
    if line and line.level_guessed and depth < DEEPEST and _NESTED.match(line.message):
        inner = parse(line.message, moment.time, depth + 1)
        line.level, line.level_guessed = inner.level, inner.level_guessed
    return line


def _tagged(moment: Moment, priority: int | None, rest: str, *, is_sure: bool = True) -> LogLine | None:
    """A host, a tag with perhaps a number, and the message; None where it does not look like that.

    Where it is not sure to be syslog, `starting worker: …` is no host and tag.
    """
    found = _HOST.match(rest)
    if found is None or found[1].lower() in NAMES:
        return None
    host, named, said = found.groups()
    source, process, message = _split(said)
    if not source and named is None and priority is None and not _REPEATED.match(message):
        return None
    if process is None and (source.lower() in NAMES or (not is_sure and host.isalpha())):
        return None
    line = LogLine("syslog", moment.time, 0, source, message, _said(host), fields=_process(process))
    line.time_guess = moment.guess
    if named is not None and named.lower() in NAMES:
        line.level = NAMES[named.lower()]
    else:
        _judge(line, stated(message, 0, 1))
    return line


def _split(text: str) -> tuple[str, str | None, str]:
    """The tag, the number of a process and the message of what follows a host."""
    tag = _TAG.match(text)
    if tag is None:
        return "", None, text
    return tag[1] or tag[3], tag[2] or tag[4], tag[5]


def _process(number: str | None) -> dict[str, Any]:
    return {"pid": number} if number else {}


def _said(value: str) -> str:
    return "" if value == "-" else value


def _judge(line: LogLine, found: Stated | None) -> None:
    """The level that was found, or one by the words of the message."""
    line.level_guessed = found is None
    line.level = guessed(line.message) if found is None else found.level


# Everything else


def _glog(found: re.Match[str], newest: int) -> LogLine:
    letter, year, month, day, clock, process, place, message = found.groups()
    moment = timestamps.at(f"{year}-{month}-{day} {clock}" if year else f"{month}-{day} {clock}", 0, newest)
    fields = {"pid": process, "place": place}
    line = LogLine("glog", None, OF_LETTER[letter], "", message, fields=fields, time_guess="time")
    if moment is not None:
        line.time, line.time_guess = moment.time, moment.guess
    return line


def _untimed(text: str) -> LogLine:
    line = LogLine("text", None, INFORMATION, "", text, time_guess="time")
    if found := _SETUP.match(text):
        line.level = WARNING if found[1] == "!" else ERROR
    else:
        _judge(line, stated(text, 0, 1))
    return line


def _general(text: str, moment: Moment, before: str, rest: str) -> LogLine:
    """A time, and around it what a program puts there: a level, a thread, a name."""
    line = LogLine("timed", moment.time, INFORMATION, "", rest, time_guess=moment.guess)
    if found := _ACCESS.match(rest) or _SQUID.match(rest):
        status = found[1]
        line.level = ERROR if status[0] == "5" else WARNING if status[0] == "4" else INFORMATION
        line.grammar, line.level_guessed = "access", True
        line.message = text
        return line
    heads = before.strip(" [(<|*")
    if heads and (found_before := _before(before, rest)) is not None:
        line.level = found_before
        if ruby := _RUBY.match(rest):
            line.source, line.message, line.fields = ruby["name"].strip(), ruby["said"], {"pid": ruby["pid"]}
            return line
        if not rest.strip("= "):
            line.message = text  # Erlang's `=ERROR REPORT==== … ===`, with the rest on other lines
            return line
        return _named(line, _AFTER.sub("", rest[2:] if _REDIS.match(before) else rest, count=1))
    if heads:
        # Whole, with the time in it: a message is always one piece of its line, and can be looked for there.
        line.message = text
    if rest[:1] == "," and (record := _RECORD.search(rest, 0, _LONGEST_RECORD)):
        line.level, line.message = NAMES[record[1].lower()], rest
        return line
    here = stated(rest, 0)
    _judge(line, here)
    if here is None:
        line.message = line.message.strip(" ]:,\t") if not heads else line.message
        return line
    between = _BETWEEN.match(rest[: here.begin])
    if between is None or heads or _begins_a_sentence(rest, here):
        line.message = line.message.strip(" ]:,\t")
        return line
    line.source = between["name"] or here.source
    line.fields = {name: between[name] for name in ("pid", "thread") if between[name]}
    return _named(line, _AFTER.sub("", rest[here.end :], count=1))


def _begins_a_sentence(rest: str, here: Stated) -> bool:
    """Whether the level is also the first word of what is said: `error connecting to …`."""
    word, following = rest[here.begin : here.end], rest[here.end : here.end + 2]
    return word.isalpha() and word.islower() and following[:1] == " " and following[1:].strip() != ""


def _before(before: str, rest: str) -> int | None:
    """The level that stands before a time."""
    if _REDIS.match(before) and rest[1:2] in _OF_REDIS:
        return _OF_REDIS[rest[1:2]]
    if found := _LETTER.search(before):
        return OF_LETTER[found[1]]
    here = stated(before.rstrip("[("), 0)
    return None if here is None else here.level


def _named(line: LogLine, message: str) -> LogLine:
    """With the name of what wrote it taken off the beginning of a message, if it stands there."""
    line.message = message
    if not line.source and (found := _LOGGER.match(message)):
        line.source = found["name"] or found["dotted"] or found["column"] or found["closed"]
        line.message = found["said"]
        numbers = {"pid": found["pid"] or found["number"], "thread": found["thread"]}
        line.fields = line.fields | {name: value for name, value in numbers.items() if value}
    return line
