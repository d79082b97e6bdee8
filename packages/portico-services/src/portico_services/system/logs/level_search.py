"""Find the lines of a text log that may have a certain level, without parsing the others.

Parsing a line takes some 20 µs, and most lines of a log are not errors. A level leaves a trace in the bytes of its
line: a word (`error`), a letter (`E/`, `E0131`), or a number (`<11>`, `"level":50`, a status of HTTP). One pattern has
all the traces of the levels from a minimum on. It matches more lines than have such a level, and never fewer: the
lines that it finds are parsed, and that decides.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from portico_services.system.logs.entries import CRITICAL, DEBUG, ERROR, OF_SEVERITY, WARNING
from portico_services.system.logs.level_detection import GUESS_WORDS, NAMES

# Words are bounded on the left; by an escape of JSON or a colour as well, which end in a letter.
_LEFT = r"(?:\b|\\[bfnrt]|\\u00[0-9a-f]{2}|\x1b\[[0-9;]*[mK]|\\u001b\[[0-9;]*[mK])"
# Letters hidden from a search for words: escaped in JSON, divided by a colour, or others that are the same to a search
# without regard to case (long s, the Kelvin sign, i with and without a dot). Spaces beyond ASCII count as spaces.
_HIDDEN = (
    r"\\u00(?:3[0-9]|[4-7][0-9a-f])",
    r"\\u003c[0-9]",
    r"\\u(?:017f|212a|013[01])",
    r"[a-z](?:\x1b|\\u001b)\[[0-9;]*[mK][a-z]",
    r"\xc5\xbf|\xe2\x84\xaa|\xc4[\xb0\xb1]",
    r"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80",
    r":\s*\[\s*[0-9]{1,3}\s*,",  # a text as a list of bytes, as journalctl writes it
)
# Single letters of glog, Android, MongoDB, Ruby and others: `E0131`, `E/Tag`, `1702 E `, `[E 12:00:00`, `"s":"E"`.
_LETTERS = {CRITICAL: "F", ERROR: "EF", WARNING: "EFW"}
_NUMBER_KEYS = r"(?:level\w*|severity\w*|lvl|priority|error_severity|\b[sl])[\\\"']*\s*[=:]\s*[\\\"']*0*"
# Numbers that mean at least this level on some scale: syslog's, pino's, Python's, Monolog's, OpenTelemetry's.
_NUMBERS = {
    CRITICAL: r"(?:[0-2]\b|[5-9][0-9]\b|2[0-9]\b|[0-9]{3})",
    ERROR: r"(?:[0-3]\b|[4-9][0-9]\b|[0-9]{3})",
    WARNING: r"(?:[0-4]\b|[3-9][0-9]\b|[0-9]{3})",
}
_STATUSES = {CRITICAL: "", ERROR: "5", WARNING: "45"}


class LevelSearch:
    """Finds places in lines that may have at least a certain level."""

    def __init__(self, min_level: int) -> None:
        re2 = import_module("re2")
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.case_sensitive = False
        options.log_errors = False
        self._pattern: Any = re2.compile("|".join(_traces(min_level)).encode("latin-1"), options)

    def find(self, data: bytes, at: int) -> int:
        """Return the next place from an offset on, or -1."""
        match = self._pattern.search(data, at)
        return -1 if match is None else int(match.start())

    @staticmethod
    @lru_cache(8)
    def at_least(min_level: int) -> LevelSearch | None:
        """Return the search for a level, or None: for a level that most lines have, and where RE2 is not installed.
        The standard library takes longer for such a pattern than for parsing the lines."""
        return LevelSearch(min_level) if min_level >= WARNING and find_spec("re2") is not None else None


def _traces(min_level: int) -> list[str]:
    names = sorted(name for name, level in NAMES.items() if level >= min_level)
    guesses = [words for level, words in GUESS_WORDS.items() if level >= min_level and level != DEBUG]
    letters = _LETTERS[min_level]
    priorities = [str(n) for n in range(192) if OF_SEVERITY[n & 7] >= min_level]
    severities = "".join(str(n) for n, level in enumerate(OF_SEVERITY) if level >= min_level)
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
