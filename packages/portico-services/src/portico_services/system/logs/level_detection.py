"""Levels as logs name them, and where in a line one is stated.

A level is stated if it stands in the head of a line in one of the forms that programs write: `[error]`, `INFO`,
`level=warn`, `Warning:`, or Android's single letter. A word in the message is no statement; where there is nothing
else, it is what a level is guessed by.
"""

from __future__ import annotations

import re

from msgspec import Struct

from portico_services.system.logs.entries import CRITICAL, DEBUG, ERROR, INFORMATION, OF_SEVERITY, WARNING

# Names that state a level even in the midst of a head, and those that need a bracket or a colon to be believed.
_PLAIN = {
    CRITICAL: "emerg emergency alert crit critical fatal fata panic pani dpanic ftl",
    ERROR: "err error erro severe failure",
    WARNING: "warn warning wrn",
    INFORMATION: "notice info information informational inf",
    DEBUG: "debug debu trace trac verbose dbg debug1 debug2 debug3 debug4 debug5",
}
_MARKED = {
    CRITICAL: "fault",
    ERROR: "eror fail ee",
    WARNING: "ww",
    INFORMATION: "note log status success audit default config detail hint statement context ii ntc",
    DEBUG: "trc vrb verb finest finer fine",
}
PLAIN = {name: level for level, names in _PLAIN.items() for name in names.split()}
NAMES = PLAIN | {name: level for level, names in _MARKED.items() for name in names.split()}
OF_LETTER = {
    "F": CRITICAL, "A": CRITICAL, "C": CRITICAL, "E": ERROR, "W": WARNING, "N": INFORMATION, "I": INFORMATION,
    "D": DEBUG, "V": DEBUG, "T": DEBUG,
}  # fmt: skip

# In small letters and without a colon these are a level, and the others a word: `info x`, but `notice of x`.
_EVEN_SMALL = frozenset(["fatal", "critical", "crit", "error", "err", "warn", "warning", "info", "inf", "debug", "dbg"])

LONGEST_HEAD = 256
_MOST_WORDS = 9
_MOST_PROSE = 2


def _either(names: dict[str, int]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


_ALL, _SURE = _either(NAMES), _either(PLAIN)
# `[error]`, `<warn>`, `| INFO |`, `*INFO*`, `[core:error]`, `(WW)`, `[INFO ]`, `[I]`
_BRACKETED = re.compile(rf"[\[<(|{{*]\s*(?:([\w-]{{1,32}})[:.])?({_ALL}|[DIWEFV])\s*[\]>)|}}*]", re.IGNORECASE)
# What systemd says first when it starts something.
_OUTCOME = re.compile(r"\s*\[\s*(OK|FAILED)\s*\] ")
# Brackets one behind the other: `[17][warning][main]`
_NEXT_BRACKET = re.compile(r"\](?=\[)")
_KEYED = re.compile(
    rf"(?:^|[\s,;\[({{|\"'])(?:(?:log_?)?(?:level|lvl|severity)(?:_?name)?|at(?==))[\"']?\s?[=:]\s?[\"']?({_ALL})\b",
    re.IGNORECASE,
)
# A word by itself, with what it may be followed by.
_WORD = re.compile(r"([A-Za-z]\w*)(?=[\s:,|/\]\-;)>]|$|\[\d{4}\])")
_WORDS = re.compile(r"[^\s|]+")
# Monolog: `production.INFO: …`
_CHANNEL = re.compile(rf"[\w-]{{1,64}}\.({_ALL.upper()}):")
# PostgreSQL in the cloud: `10.0.0.1(5):ann@shop:[123]:LOG:  …`
_SESSION = re.compile(rf"\S*:\[\d+\]:({_ALL.upper()}):")
# Routers and switches: `%LINK-3-UPDOWN: …`, with the severity of syslog
_FACILITY = re.compile(r"%([A-Z]\w*)(?:-[A-Z]\w*)?-([0-7])-[A-Z0-9]\w*:")
_LEADING = re.compile(r"[\s\-:,;|\])>]*")
# Android: `1702  2395 D Tag: …`, perhaps behind a user; `D/Tag( 1702): …`; and `I (123) tag: …` of small devices.
_ANDROID = re.compile(
    r"\s*(?:[\w.-]+\s+)?\d{1,7}\s+\d{1,7}\s+([VDIWEFA]) (?=[^:]{1,100}:)"
    r"|\s*(?:\d{1,7}: *\d{1,7} )?([VDIWEFA])[/ ](?=[\w.:$ -]{1,100}(?:\(| \])|\(\d)"
)
# MongoDB's `I NETWORK  [main] …`, and what macOS prints: `0x1a2b  Error  0x0  123  0  name: …`, `Df name[123:1a2b] …`
_MONGO = re.compile(r"\s*([DIWEF])\d?\s+(?:[A-Z_]{2,16}|-)\s+(?=\[)")
_UNIFIED = re.compile(r"\s*0x[0-9a-f]+\s+([A-Z][A-Za-z]+)\s+0x[0-9a-f]+\s+\d+\s+\d+\s+")
_COMPACT = re.compile(r"\s*(Df|I|Db|E|F|A)\s+(?=\S+\[\d+:[0-9a-f]+\])")
_OF_COMPACT = {"Df": INFORMATION, "I": INFORMATION, "Db": DEBUG, "E": ERROR, "F": CRITICAL, "A": INFORMATION}
# What apt says: `E: Unable to locate …`; and stunnel, with the severity of syslog: `LOG3[1:2]: …`
_LETTERED = re.compile(r"\s*([EWIN]): (?=\S)")
_NUMBERED = re.compile(r"\s*LOG([0-7])\[")
# A state that Nagios reports is no level of its report.
_REPORT = re.compile(r"\s*\]?\s*(?:SERVICE|HOST) (?:FLAPPING )?ALERT:")
_PROSE = re.compile(r"[A-Za-z]?[a-z]{2,}[.,;]?\Z")


class Stated(Struct):
    """A level, the part of the text that states it, and what it says it comes from, if that stands with it."""

    level: int
    begin: int
    end: int
    source: str = ""


def stated(text: str, begin: int, most: int = _MOST_WORDS) -> Stated | None:
    """The level that a text states in its head, among the first words from an offset on."""
    head = text[begin : begin + LONGEST_HEAD]
    if outcome := _OUTCOME.match(head):
        return Stated(INFORMATION if outcome[1] == "OK" else ERROR, begin, begin)
    if (columns := _in_columns(head)) is not None:
        return Stated(columns[0], begin, begin + columns[1])
    if _REPORT.match(head):
        return None
    skipped = _LEADING.match(head)
    prose = 0
    for number, word in enumerate(_WORDS.finditer(head, 0 if skipped is None else skipped.end())):
        place = word.start()
        column = head[:place].rstrip()
        if bracketed := _bracketed(head, len(column) - 1 if column.endswith("|") else place, word):
            return Stated(_level(bracketed[2]), begin + place, begin + bracketed.end(), bracketed[1] or "")
        if (named := _of_word(head, word, is_first=number == 0)) is not None:
            return Stated(named[0], begin + place, begin + named[1])
        if channel := _CHANNEL.match(word[0]):
            source = word[0][: channel.start(1) - 1]
            return Stated(_level(channel[1]), begin + place, begin + place + channel.end(1), source)
        if session := _SESSION.match(word[0]):
            return Stated(_level(session[1]), begin + place, begin + place)
        if facility := _FACILITY.match(word[0]):
            return Stated(OF_SEVERITY[int(facility[2])], begin + place, begin + place, facility[1])
        prose += _PROSE.match(word[0]) is not None
        if number + 1 == most or prose > _MOST_PROSE:
            break
    if keyed := _KEYED.search(head) if most == _MOST_WORDS else _KEYED.match(head):
        return Stated(_level(keyed[1]), begin + keyed.start(1), begin + keyed.end())
    return None


def _in_columns(head: str) -> tuple[int, int] | None:
    """The level of a line that has it in a place of its own, and where that ends."""
    if found := _ANDROID.match(head):
        return OF_LETTER[found[1] or found[2]], found.end()
    if head.lstrip()[:1] not in ("0", "A", "D", "E", "F", "I", "L", "N", "W"):
        return None
    if found := _LETTERED.match(head):
        return OF_LETTER[found[1]], found.end()
    if found := _NUMBERED.match(head):
        return OF_SEVERITY[int(found[1])], 0
    if found := _MONGO.match(head):
        return OF_LETTER[found[1]], found.end()
    if found := _UNIFIED.match(head):
        return NAMES.get(found[1].lower(), INFORMATION), found.end()
    if found := _COMPACT.match(head):
        return _OF_COMPACT[found[1]], found.end()
    return None


def _bracketed(head: str, place: int, word: re.Match[str]) -> re.Match[str] | None:
    """A level in brackets, here or in the next brackets of the same word."""
    found = _BRACKETED.match(head, place)
    if found is None and word[0].startswith("["):
        following = (_BRACKETED.match(head, gap.end()) for gap in _NEXT_BRACKET.finditer(head, place, word.end()))
        found = next((one for one in following if one), None)
    return found


def _of_word(head: str, word: re.Match[str], *, is_first: bool) -> tuple[int, int] | None:
    """What one word of a head states, and where it ends."""
    opened = len(word[0]) - len(word[0].lstrip("[(<{\"'-:,="))
    # `INFO/main]` and `[main/INFO]:`
    for inner in (opened, word[0].rfind("/") + 1):
        found = _WORD.match(head, word.start() + inner)
        if found is None or found.end() > word.end() or (name := found[1].lower()) not in NAMES:
            continue
        with_colon = head[found.end() : found.end() + 2] in (":", ": ", ":\t")
        if with_colon or (name in PLAIN and (found[1].isupper() or (is_first and name in _EVEN_SMALL))):
            return NAMES[name], found.end()
    return None


def _level(word: str) -> int:
    return OF_LETTER[word.upper()] if len(word) == 1 else NAMES[word.lower()]


# Words that suggest a level, the worst level first; between boundaries of words.
GUESS_WORDS = {
    CRITICAL: "panic|panicked|emerg(?:ency)?|critical|crit|fatal",
    ERROR: "err|error|errors|fail|failed|failure|denied|segfault|exception|traceback",
    WARNING: "warn|warning|deprecated|timed? ?out",
    DEBUG: "debug|trace",
}
# The name of a class, too: `ValueError`
_CLASS = r"|(?-i:(?<=\w)(?:Exception|Error)\b)"
_GUESSES = tuple(
    (level, re.compile(rf"\b(?:{words})\b{_CLASS if level == ERROR else ''}", re.IGNORECASE))
    for level, words in GUESS_WORDS.items()
)
_ANY_GUESS = re.compile("|".join(words.pattern for _, words in _GUESSES), re.IGNORECASE)


def guessed(message: str) -> int:
    """The level of a message that does not come with one, by its words."""
    if _ANY_GUESS.search(message) is None:
        return INFORMATION
    return next((level for level, words in _GUESSES if words.search(message)), INFORMATION)
