"""Log level names, and their detection in lines.

A level is stated if it appears at the start of a line in one of the usual forms: `[error]`, `INFO`, `level=warn`,
`Warning:`, or Android's single letter. A word in the message is not a statement; it is only used to infer a level if
there is no other sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from portico_services.system.logs.entries import CRITICAL, DEBUG, ERROR, INFORMATION, LEVEL_BY_SYSLOG_SEVERITY, WARNING

# Words that state a level anywhere in the head of a line, and words that need a bracket or colon.
_LEVEL_WORDS = {
    CRITICAL: "emerg emergency alert crit critical fatal fata panic pani dpanic ftl",
    ERROR: "err error erro severe failure",
    WARNING: "warn warning wrn",
    INFORMATION: "notice info information informational inf",
    DEBUG: "debug debu trace trac verbose dbg debug1 debug2 debug3 debug4 debug5",
}
_BRACKETED_LEVEL_WORDS = {
    CRITICAL: "fault",
    ERROR: "eror fail ee",
    WARNING: "ww",
    INFORMATION: "note log status success audit default config detail hint statement context ii ntc",
    DEBUG: "trc vrb verb finest finer fine",
}
LEVEL_BY_WORD = {name: level for level, names in _LEVEL_WORDS.items() for name in names.split()}
LEVEL_BY_NAME = LEVEL_BY_WORD | {
    name: level for level, names in _BRACKETED_LEVEL_WORDS.items() for name in names.split()
}
LEVEL_BY_LETTER = {
    "F": CRITICAL, "A": CRITICAL, "C": CRITICAL, "E": ERROR, "W": WARNING, "N": INFORMATION, "I": INFORMATION,
    "D": DEBUG, "V": DEBUG, "T": DEBUG,
}  # fmt: skip

# In lower case and without a colon only these are levels: `info x`, but not `notice of x`.
_EVEN_SMALL = frozenset(["fatal", "critical", "crit", "error", "err", "warn", "warning", "info", "inf", "debug", "dbg"])

# Levels are stated near the start of a line; a word further on belongs to the message.
MAX_HEAD_CHARS = 256
_MAX_HEAD_WORDS = 9
# After a few lowercase words the message has begun, and `error` in it is no longer a level.
_MAX_PROSE_WORDS = 2


def _alternation(names: dict[str, int]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


_ALL, _SURE = _alternation(LEVEL_BY_NAME), _alternation(LEVEL_BY_WORD)
# `[error]`, `<warn>`, `| INFO |`, `*INFO*`, `[core:error]`, `(WW)`, `[INFO ]`, `[I]`
_BRACKETED = re.compile(rf"[\[<(|{{*]\s*(?:([\w-]{{1,32}})[:.])?({_ALL}|[DIWEFV])\s*[\]>)|}}*]", re.IGNORECASE)
# systemd's boot messages start with the outcome.
_OUTCOME = re.compile(r"\s*\[\s*(OK|FAILED)\s*\] ")
# Adjacent brackets: `[17][warning][main]`
_NEXT_BRACKET = re.compile(r"\](?=\[)")
_KEYED = re.compile(
    rf"(?:^|[\s,;\[({{|\"'])(?:(?:log_?)?(?:level|lvl|severity)(?:_?name)?|at(?==))[\"']?\s?[=:]\s?[\"']?({_ALL})\b",
    re.IGNORECASE,
)
# A separate word and its suffix.
_WORD = re.compile(r"([A-Za-z]\w*)(?=[\s:,|/\]\-;)>]|$|\[\d{4}\])")
_WORDS = re.compile(r"[^\s|]+")
# Monolog: `production.INFO: …`
_CHANNEL = re.compile(rf"[\w-]{{1,64}}\.({_ALL.upper()}):")
# Cloud PostgreSQL: `10.0.0.1(5):ann@shop:[123]:LOG:  …`
_SESSION = re.compile(rf"\S*:\[\d+\]:({_ALL.upper()}):")
# Routers and switches, with syslog severity: `%LINK-3-UPDOWN: …`
_FACILITY = re.compile(r"%([A-Z]\w*)(?:-[A-Z]\w*)?-([0-7])-[A-Z0-9]\w*:")
_LEADING = re.compile(r"[\s\-:,;|\])>]*")
# Formats with the level in a column; the group is the level.
_COLUMNS: tuple[tuple[re.Pattern[str], Mapping[str, int]], ...] = (
    # Android: `1702  2395 D Tag: …`, optionally after a user; `D/Tag( 1702): …`; and ESP-IDF's `I (123) tag: …`
    (
        re.compile(
            r"\s*(?:[\w.-]+\s+)?\d{1,7}\s+\d{1,7}\s+([VDIWEFA]) (?=[^:]{1,100}:)"
            r"|\s*(?:\d{1,7}: *\d{1,7} )?([VDIWEFA])[/ ](?=[\w.:$ -]{1,100}(?:\(| \])|\(\d)"
        ),
        LEVEL_BY_LETTER,
    ),
    # apt: `E: Unable to locate …`
    (re.compile(r"\s*([EWIN]): (?=\S)"), LEVEL_BY_LETTER),
    # MongoDB: `I NETWORK  [main] …`
    (re.compile(r"\s*([DIWEF])\d?\s+(?:[A-Z_]{2,16}|-)\s+(?=\[)"), LEVEL_BY_LETTER),
    # macOS: `0x1a2b  Error  0x0  123  0  name: …`
    (re.compile(r"\s*0x[0-9a-f]+\s+([A-Z][A-Za-z]+)\s+0x[0-9a-f]+\s+\d+\s+\d+\s+"), LEVEL_BY_NAME),
    # macOS, compact: `Df name[123:1a2b] …`
    (
        re.compile(r"\s*(Df|I|Db|E|F|A)\s+(?=\S+\[\d+:[0-9a-f]+\])"),
        {"df": INFORMATION, "i": INFORMATION, "db": DEBUG, "e": ERROR, "f": CRITICAL, "a": INFORMATION},
    ),
)
# stunnel, with syslog severity: `LOG3[1:2]: …`
_NUMBERED = re.compile(r"\s*LOG([0-7])\[")
# A state that Nagios reports is not the level of the report.
_REPORT = re.compile(r"\s*\]?\s*(?:SERVICE|HOST) (?:FLAPPING )?ALERT:")
_PROSE = re.compile(r"[A-Za-z]?[a-z]{2,}[.,;]?\Z")


class LevelMatch(Struct):
    """Level with the range of text that states it, and the source if it is named there."""

    level: int
    begin: int
    end: int
    source: str = ""


def find_level(text: str, begin: int, limit: int = _MAX_HEAD_WORDS) -> LevelMatch | None:
    """Return the level that a text states in its head, among the first words from an offset on, or None."""
    head = text[begin : begin + MAX_HEAD_CHARS]
    if outcome := _OUTCOME.match(head):
        return LevelMatch(INFORMATION if outcome[1] == "OK" else ERROR, begin, begin)
    # Columns first: their formats are specific, and a later word such as `error` may belong to the message.
    if (columns := _level_in_column(head)) is not None:
        return LevelMatch(columns[0], begin, begin + columns[1])
    if _REPORT.match(head):
        return None
    skipped = _LEADING.match(head)
    prose = 0
    for number, word in enumerate(_WORDS.finditer(head, 0 if skipped is None else skipped.end())):
        position = word.start()
        column = head[:position].rstrip()
        if bracketed := _match_bracketed(head, len(column) - 1 if column.endswith("|") else position, word):
            return LevelMatch(_level(bracketed[2]), begin + position, begin + bracketed.end(), bracketed[1] or "")
        if (named := _level_in_word(head, word, is_first=number == 0)) is not None:
            return LevelMatch(named[0], begin + position, begin + named[1])
        if channel := _CHANNEL.match(word[0]):
            source = word[0][: channel.start(1) - 1]
            return LevelMatch(_level(channel[1]), begin + position, begin + position + channel.end(1), source)
        if session := _SESSION.match(word[0]):
            return LevelMatch(_level(session[1]), begin + position, begin + position)
        if facility := _FACILITY.match(word[0]):
            return LevelMatch(
                LEVEL_BY_SYSLOG_SEVERITY[int(facility[2])], begin + position, begin + position, facility[1]
            )
        # Names, numbers and bracketed parts do not count: a long header may precede the level.
        prose += _PROSE.match(word[0]) is not None
        if number + 1 == limit or prose > _MAX_PROSE_WORDS:
            break
    if keyed := _KEYED.search(head) if limit == _MAX_HEAD_WORDS else _KEYED.match(head):
        return LevelMatch(_level(keyed[1]), begin + keyed.start(1), begin + keyed.end())
    return None


def _level_in_column(head: str) -> tuple[int, int] | None:
    """Return the level of a line that has it in a column, and the end of the column."""
    if match := _NUMBERED.match(head):
        return LEVEL_BY_SYSLOG_SEVERITY[int(match[1])], 0
    for pattern, levels in _COLUMNS:
        if match := pattern.match(head):
            name = match[match.lastindex or 1]
            return levels.get(name, levels.get(name.lower(), INFORMATION)), match.end()
    return None


def _match_bracketed(head: str, position: int, word: re.Match[str]) -> re.Match[str] | None:
    """Match a level in brackets, here or in the next brackets of the same word."""
    match = _BRACKETED.match(head, position)
    if match is None and word[0].startswith("["):
        following = (_BRACKETED.match(head, gap.end()) for gap in _NEXT_BRACKET.finditer(head, position, word.end()))
        match = next((item for item in following if item), None)
    return match


def _level_in_word(head: str, word: re.Match[str], *, is_first: bool) -> tuple[int, int] | None:
    """Return the level that one word of the head states, and its end."""
    opened = len(word[0]) - len(word[0].lstrip("[(<{\"'-:,="))
    # `INFO/main]` and `[main/INFO]:`
    for inner in (opened, word[0].rfind("/") + 1):
        match = _WORD.match(head, word.start() + inner)
        if match is None or match.end() > word.end() or (name := match[1].lower()) not in LEVEL_BY_NAME:
            continue
        with_colon = head[match.end() : match.end() + 2] in (":", ": ", ":\t")
        # `Error: …` states a level; `failed` in lower case without a colon is only a word.
        if with_colon or (name in LEVEL_BY_WORD and (match[1].isupper() or (is_first and name in _EVEN_SMALL))):
            return LEVEL_BY_NAME[name], match.end()
    return None


def _level(word: str) -> int:
    return LEVEL_BY_LETTER[word.upper()] if len(word) == 1 else LEVEL_BY_NAME[word.lower()]


# Words that suggest a level, highest level first, matched at word boundaries.
GUESS_WORDS = {
    CRITICAL: "panic|panicked|emerg(?:ency)?|critical|crit|fatal",
    ERROR: "err|error|errors|fail|failed|failure|denied|segfault|exception|traceback",
    WARNING: "warn|warning|deprecated|timed? ?out",
    DEBUG: "debug|trace",
}
# Also class names: `ValueError`
_CLASS = r"|(?-i:(?<=\w)(?:Exception|Error)\b)"
_KEYWORD_LEVELS = tuple(
    (level, re.compile(rf"\b(?:{words})\b{_CLASS if level == ERROR else ''}", re.IGNORECASE))
    for level, words in GUESS_WORDS.items()
)
_ANY_GUESS = re.compile("|".join(words.pattern for _, words in _KEYWORD_LEVELS), re.IGNORECASE)


def infer_level(message: str) -> int:
    """Infer the level of a message from its words."""
    # One search for the common case that no word suggests a level.
    if _ANY_GUESS.search(message) is None:
        return INFORMATION
    return next((level for level, words in _KEYWORD_LEVELS if words.search(message)), INFORMATION)
