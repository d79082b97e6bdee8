"""Dates as words of the index.

A memory is found by the day it was made, and by the days it speaks of: `8 May`, `May 8th`, `2023-05-08`, and
`yesterday` in a memory of the 9th are all the word `@8/5`. Months and years are words like others, so that “in June
2023” finds what was written then, even where the text does not say so.
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
_NEAR = {"yesterday": -1, "last night": -1, "tomorrow": 1}
_NUMBER_OF_MONTH = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
_HAS_MONTH = re.compile("|".join(_NUMBER_OF_MONTH))


def _quick(pattern: str) -> dict[bool, re.Pattern[str]]:
    """What rules out most texts, for those that are ASCII and for others."""
    return {True: re.compile(pattern.replace(r"\d", "[0-9]")), False: re.compile(pattern)}


# What `8 May` has in it, and what `May 8` has.
_HAS_DAY_MONTH = _quick(rf"\d(?:st|nd|rd|th)?(?:\s+of)?\s+(?:{_HAS_MONTH.pattern})")
_HAS_DAY_AFTER_SPACE = _quick(r"\d(?<=\s\d)")
_EPOCH = date(1970, 1, 1)
_DAY_MS = 86_400_000
# The first and the last moment that a date can have, with a margin for what is added to it.
_EARLIEST, _LATEST = -62_000_000_000_000, 253_000_000_000_000


def date_words(text: str, at: int | None = None) -> Set[str]:
    """The date words of a lowered text, and of the moment it was written, in milliseconds."""
    found = _spoken(text)
    if at is None or not _EARLIEST < at < _LATEST:
        return found
    day = _day(at // _DAY_MS)
    near = _relative(text, day)
    return _of(day).union(found, near) if found or near else _of(day)


def relative_words(text: str, at: int) -> Set[str]:
    """The date words of phrases such as “yesterday”, relative to the moment."""
    if not _EARLIEST < at < _LATEST:
        return set()
    return _relative(text, _day(at // _DAY_MS))


@lru_cache(1024)
def _day(number: int) -> date:
    """The date that is so many days after 1 January 1970."""
    return _EPOCH + timedelta(number)


@lru_cache(4096)
def _of(day: date) -> frozenset[str]:
    return frozenset((f"@{day.day}/{day.month}", MONTHS[day.month - 1], str(day.year)))


def _spoken(text: str) -> set[str]:
    is_ascii = text.isascii()
    pairs = [(one[2], int(one[1])) for one in _ISO.finditer(text)] if "-" in text else []
    if _HAS_DAY_MONTH[is_ascii].search(text):
        pairs += [(one[1], _NUMBER_OF_MONTH[one[2][:3]]) for one in _DAY_MONTH.finditer(text)]
    if _HAS_DAY_AFTER_SPACE[is_ascii].search(text) and _HAS_MONTH.search(text):
        pairs += [(one[2], _NUMBER_OF_MONTH[one[1][:3]]) for one in _MONTH_DAY.finditer(text)]
    return {f"@{int(day)}/{month}" for day, month in pairs}


def _has_near_word(text: str) -> bool:
    """Without one there is no relative date. Written out, because that is quicker than a loop or a pattern."""
    return (
        "yesterday" in text
        or "last " in text
        or "today" in text
        or "tonight" in text
        or "tomorrow" in text
        or "morning" in text
        or " ago" in text
    )


def _relative(text: str, day: date) -> set[str]:
    found: set[str] = set()
    if not _has_near_word(text):
        return found
    for one in _RELATIVE.finditer(text):
        if one["day"]:
            found |= _of(day + timedelta(_NEAR.get(one["day"], 0)))
        elif one["ago"]:
            found |= _of(day - timedelta(_NUMBERS.get(one["ago"]) or int(one["ago"])))
        elif one["weekday"]:
            number = next(n for n, name in enumerate(WEEKDAYS) if name.startswith(one["weekday"]))
            found |= _of(day - timedelta((day.weekday() - number) % 7 or 7))
        elif one["span"] == "year":
            found.add(str(day.year - 1))
        else:
            # Of a week only the month is certain enough.
            before = day.replace(day=1) - timedelta(1) if one["span"] == "month" else day - timedelta(7)
            found.add(MONTHS[before.month - 1])
    return found
