"""Byte search for lines of a text log that may have a certain level, without parsing the others.

Parsing a line takes about 20 µs, and most lines of a log are not errors. A level leaves a trace in the bytes of its
line: a word (`error`), a letter (`E/`, `E0131`), or a number (`<11>`, `"level":50`, an HTTP status). One pattern covers
all traces of the levels from a minimum on. It may match too many lines but never too few: the matching lines are parsed
to decide.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from portico_services.system.logs.entries import CRITICAL, DEBUG, ERROR, LEVEL_BY_SYSLOG_SEVERITY, WARNING
from portico_services.system.logs.level_detection import GUESS_WORDS, LEVEL_BY_NAME

# Left word boundary; JSON escapes and ANSI colors, which end in a letter, count as one.
_LEFT = r"(?:\b|\\[bfnrt]|\\u00[0-9a-f]{2}|\x1b\[[0-9;]*[mK]|\\u001b\[[0-9;]*[mK])"
# Letters that a word search would miss: JSON escapes, letters separated by a color code, and letters that are equal
# under case folding (long s, Kelvin sign, dotted and dotless i). Non-ASCII spaces count as spaces.
_HIDDEN = (
    r"\\u00(?:3[0-9]|[4-7][0-9a-f])",
    r"\\u003c[0-9]",
    r"\\u(?:017f|212a|013[01])",
    r"[a-z](?:\x1b|\\u001b)\[[0-9;]*[mK][a-z]",
    r"\xc5\xbf|\xe2\x84\xaa|\xc4[\xb0\xb1]",
    r"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80",
    r":\s*\[\s*[0-9]{1,3}\s*,",  # A text as a list of bytes, as written by journalctl.
)
# Single letters of glog, Android, MongoDB, Ruby and others: `E0131`, `E/Tag`, `1702 E `, `[E 12:00:00`, `"s":"E"`.
_LETTERS = {CRITICAL: "F", ERROR: "EF", WARNING: "EFW"}
_NUMBER_KEYS = r"(?:level\w*|severity\w*|lvl|priority|error_severity|\b[sl])[\\\"']*\s*[=:]\s*[\\\"']*0*"
# Numbers that mean at least this level on one of the scales of syslog, pino, Python, Monolog and OpenTelemetry.
_NUMBERS = {
    CRITICAL: r"(?:[0-2]\b|[5-9][0-9]\b|2[0-9]\b|[0-9]{3})",
    ERROR: r"(?:[0-3]\b|[4-9][0-9]\b|[0-9]{3})",
    WARNING: r"(?:[0-4]\b|[3-9][0-9]\b|[0-9]{3})",
}
_STATUSES = {CRITICAL: "", ERROR: "5", WARNING: "45"}
# Lines that state a lower level right after their time: `2026-01-02 12:00:00,123 INFO shop: no errors`. A word in their
# message does not change it, and a program may write the word `error` in every line. Only valid dates, and no digit
# after the level, because the parser could read such lines in another way.
_DATE = r"20\d\d-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d{1,6})?(?:Z|[+-](?:0\d|1[0-2]):?[03]0)?"
_LOWER_LINES = rf"(?-i:(?:{_DATE}[T ]{_TIME} {{1,4}}(?:INFO|DEBUG|TRACE) {{1,4}}[A-Za-z_\[(][^\n]*(?:\n|\z))+)"


class LevelSearch:
    """Finds positions in lines that may have at least a certain level."""

    def __init__(self, min_level: int) -> None:
        re2 = import_module("re2")
        options = re2.Options()
        # Bytes, not UTF-8: logs contain invalid sequences, which must not end the search.
        options.encoding = re2.Options.Encoding.LATIN1
        options.case_sensitive = False
        # RE2 would write to stderr, which belongs to the server's own log.
        options.log_errors = False
        self._pattern: Any = re2.compile("|".join(_traces(min_level)).encode("latin-1"), options)
        self._lower_lines: Any = re2.compile(_LOWER_LINES.encode("latin-1"), options)

    def find(self, data: bytes, at: int) -> int:
        """Return the next position from an offset on, or -1."""
        while (match := self._pattern.search(data, at)) is not None:
            position = int(match.start())
            lower = self._lower_lines.match(data, data.rfind(b"\n", 0, position) + 1)
            if lower is None:
                return position
            at = lower.end()
        return -1

    @staticmethod
    @lru_cache(8)
    def at_least(min_level: int) -> LevelSearch | None:
        """Return the search for a level, or None for levels that most lines have and if RE2 is not installed.

        The standard library's `re` takes longer for this pattern than parsing the lines.
        """
        # Below WARNING nearly every line is a candidate, and the search would only add to the cost of parsing.
        return LevelSearch(min_level) if min_level >= WARNING and find_spec("re2") is not None else None


def _traces(min_level: int) -> list[str]:
    names = sorted(name for name, level in LEVEL_BY_NAME.items() if level >= min_level)
    guesses = [words for level, words in GUESS_WORDS.items() if level >= min_level and level != DEBUG]
    letters = _LETTERS[min_level]
    priorities = [str(n) for n in range(192) if LEVEL_BY_SYSLOG_SEVERITY[n & 7] >= min_level]
    # Cisco IOS and others number severities as syslog does: `%LINK-3-UPDOWN`.
    severities = "".join(str(n) for n, level in enumerate(LEVEL_BY_SYSLOG_SEVERITY) if level >= min_level)
    traces = [
        rf"{_LEFT}(?:{'|'.join([*names, *guesses])})\b",
        r"(?:Exception|Error)\b",
        rf"(?-i:{_LEFT}[{letters}](?:\b|[0-9]|[A-Z][a-z][a-z]))",
        rf"(?-i:{_LEFT}(?:A[/ ]|C,? ?\[?(?:[0-9@]|[A-Z][a-z][a-z])))",
        rf"[\[<(|{{*:.]\s*[{letters}]\s*[\]>)|}}*]",
        rf"<0*(?:{'|'.join(priorities)}|19[2-9]|[2-9][0-9][0-9])>",
        rf"%[A-Z]\w*(?:-[A-Z]\w*)?-[{severities}]-[A-Z0-9]",
        rf"LOG[{severities}]\[",
        rf"{_NUMBER_KEYS}{_NUMBERS[min_level]}",
        r"severity_?number[\\\"']*\s*[=:]",
        *_HIDDEN,
    ]
    if statuses := _STATUSES[min_level]:
        traces += [rf"\" [{statuses}][0-9][0-9]\b", rf"/[{statuses}][0-9][0-9] [0-9]"]
        traces.append(r"\\u0022 [45]")
    if min_level <= ERROR:
        traces.append(r"!!")
    if min_level <= WARNING:
        traces += [r"!\s\s", r" # "]
    return traces
