"""Dates as index terms.

A memory matches the day it was written and the days it mentions: `8 May`, `May 8th`, `2023-05-08`, and `yesterday` in a
memory of the 9th all become the term `@8/5`. Months and years are ordinary terms, so “in June 2023” also matches
memories written then that do not mention the date.
"""

from __future__ import annotations

import re
from collections.abc import Set
from datetime import date, timedelta
from functools import lru_cache

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_MONTH = "|".join([*MONTHS, "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sept?", "oct", "nov", "dec"])
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DAY_MONTH = re.compile(rf"\b{_DAY}(?:\s+of)?\s+({_MONTH})\b")
_MONTH_DAY = re.compile(rf"\b({_MONTH})\.?\s+{_DAY}\b")
_ISO = re.compile(r"\b\d{4}-(\d{2})-(\d{2})\b")
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "a couple of": 2, "a few": 3}
_RELATIVE = re.compile(
    r"\b(?:(?P<day>yesterday|last night|today|tonight|this morning|tomorrow)"
    rf"|(?P<ago>\d{{1,3}}|{'|'.join(_NUMBERS)}) days? ago"
    r"|last (?P<span>week|weekend|month|year)"
    r"|last (?P<weekday>mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6})\b"
)
_RELATIVE_DAY_OFFSETS = {"yesterday": -1, "last night": -1, "tomorrow": 1}
_NUMBER_OF_MONTH = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
_HAS_MONTH = re.compile("|".join(_NUMBER_OF_MONTH))


def _prefilter(pattern: str) -> dict[bool, re.Pattern[str]]:
    """Compile a pattern that rules out most texts cheaply, once for ASCII texts and once for others."""
    return {True: re.compile(pattern.replace(r"\d", "[0-9]")), False: re.compile(pattern)}


# Quick checks for `8 May` and for `May 8`.
_HAS_DAY_MONTH = _prefilter(rf"\d(?:st|nd|rd|th)?(?:\s+of)?\s+(?:{_HAS_MONTH.pattern})")
_HAS_DAY_AFTER_SPACE = _prefilter(r"\d(?<=\s\d)")
_EPOCH = date(1970, 1, 1)
_DAY_MS = 86_400_000
# The range of dates that `datetime.date` supports, with a margin for relative dates.
_MIN_TIMESTAMP_MS, _MAX_TIMESTAMP_MS = -62_000_000_000_000, 253_000_000_000_000


def date_terms(text: str, at: int | None = None) -> Set[str]:
    """Return the date terms of a lowercased text, and of the time it was written (milliseconds)."""
    result = _written_dates(text)
    # A timestamp out of range comes from an import or a wrong clock; such a memory is indexed without its date.
    if at is None or not _MIN_TIMESTAMP_MS < at < _MAX_TIMESTAMP_MS:
        return result
    day = _date_from_epoch_days(at // _DAY_MS)
    relative_days = _resolve_relative(text, day)
    return _terms_of_date(day).union(result, relative_days) if result or relative_days else _terms_of_date(day)


def relative_date_terms(text: str, at: int) -> Set[str]:
    """Return the date terms of phrases such as “yesterday”, relative to `at`."""
    if not _MIN_TIMESTAMP_MS < at < _MAX_TIMESTAMP_MS:
        return set()
    return _resolve_relative(text, _date_from_epoch_days(at // _DAY_MS))


@lru_cache(1024)
def _date_from_epoch_days(number: int) -> date:
    """Return the date this many days after 1 January 1970."""
    return _EPOCH + timedelta(number)


@lru_cache(4096)
def _terms_of_date(day: date) -> frozenset[str]:
    return frozenset((f"@{day.day}/{day.month}", MONTHS[day.month - 1], str(day.year)))


def _written_dates(text: str) -> set[str]:
    is_ascii = text.isascii()
    pairs = [(match[2], int(match[1])) for match in _ISO.finditer(text)] if "-" in text else []
    if _HAS_DAY_MONTH[is_ascii].search(text):
        pairs += [(match[1], _NUMBER_OF_MONTH[match[2][:3]]) for match in _DAY_MONTH.finditer(text)]
    if _HAS_DAY_AFTER_SPACE[is_ascii].search(text) and _HAS_MONTH.search(text):
        pairs += [(match[2], _NUMBER_OF_MONTH[match[1][:3]]) for match in _MONTH_DAY.finditer(text)]
    return {f"@{int(day)}/{month}" for day, month in pairs}


def _has_relative_word(text: str) -> bool:
    """Return whether the text contains a word of a relative date. Written out because it is faster than a loop or a
    pattern.
    """
    return (
        "yesterday" in text
        or "last " in text
        or "today" in text
        or "tonight" in text
        or "tomorrow" in text
        or "morning" in text
        or " ago" in text
    )


def _resolve_relative(text: str, day: date) -> set[str]:
    result: set[str] = set()
    if not _has_relative_word(text):
        return result
    for match in _RELATIVE.finditer(text):
        if match["day"]:
            result |= _terms_of_date(day + timedelta(_RELATIVE_DAY_OFFSETS.get(match["day"], 0)))
        elif match["ago"]:
            result |= _terms_of_date(day - timedelta(_NUMBERS.get(match["ago"]) or int(match["ago"])))
        elif match["weekday"]:
            number = next(n for n, name in enumerate(WEEKDAYS) if name.startswith(match["weekday"]))
            # “last Monday” on a Monday is a week ago.
            result |= _terms_of_date(day - timedelta((day.weekday() - number) % 7 or 7))
        elif match["span"] == "year":
            result.add(str(day.year - 1))
        else:
            # For “last week”, only the month is certain enough.
            before = day.replace(day=1) - timedelta(1) if match["span"] == "month" else day - timedelta(7)
            result.add(MONTHS[before.month - 1])
    return result
