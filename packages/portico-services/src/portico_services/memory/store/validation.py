"""Arguments from clients, checked and in the form in which they are stored: contents, labels, tags, moments, spans."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from portico_services import git_project, timestamps
from portico_services import text as texts
from portico_services.memory.errors import InvalidInput
from portico_services.timestamps import SECOND_MS

LONGEST_CONTENT = 200_000
LONGEST_LABEL = 500
MOST_TAGS, LONGEST_TAG = 50, 100
# Several may turn out to be the same one.
MOST_GIVEN_TAGS = 1000
_BREAKS = re.compile(r"[\s,]+")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d{1,9})\s*([smhdw]?)")
_BEHIND = re.compile(r"(-?\d{1,15})\.([0-9a-f]{1,64})")
# The clocks of two machines are not quite the same, and a day begins earlier elsewhere.
CLOCKS_DIFFER_MS = 86_400 * SECOND_MS
LONGEST_SPAN_MS = 100 * 366 * 86_400 * SECOND_MS


def content(text: str) -> str:
    """The content of a memory, as it is stored."""
    text = texts.storable(bounded(text))
    if not text.strip():
        raise InvalidInput("The content is empty. Say what is to be remembered.")
    return text


def bounded(text: str) -> str:
    """Before anything else is done with it."""
    if len(text) > LONGEST_CONTENT:
        raise InvalidInput(
            f"The content has {len(text):,} characters; a memory has at most {LONGEST_CONTENT:,}. "
            "Store what matters of it, or several memories in one thread.",
            longest=LONGEST_CONTENT,
            length=len(text),
        )
    return text


def replaced(before: str) -> list[str]:
    """A note about what a database cannot keep, if there is anything."""
    lost = texts.storable(before).count("\ufffd") - before.count("\ufffd")
    return [f"{lost} characters that cannot be stored (NUL, halves of characters) became U+FFFD."] if lost else []


def label(text: str | None, name: str) -> str | None:
    """A short text beside the content: a source, an author, a path. Empty is none."""
    if not text:
        return None
    bounded_label(text, name)
    return texts.storable(text.strip()) or None


def project(text: str | None) -> str | None:
    named = label(text, "project")
    return None if named is None else git_project.spelled(named)


def bounded_label(text: str | None, name: str) -> str | None:
    """Before anything else is done with it."""
    if text is not None and len(text) > LONGEST_LABEL:
        raise InvalidInput(f"{name} has {len(text):,} characters; at most {LONGEST_LABEL} are kept.")
    return text


def labels(given: Any) -> dict[str, Any]:
    """The labels of a memory that is given in another form."""
    return {name: label(getattr(given, name), name) for name in ("source", "author", "thread", "branch", "path")}


def tags(given: Sequence[str]) -> list[str]:
    """In small letters, with hyphens for spaces and commas, each once, in the order they were given."""
    if not given:
        return []
    found = dict.fromkeys(
        _BREAKS.sub("-", texts.storable(one).strip(" \t\n,#")).casefold() for one in bounded_tags(given)
    )
    found.pop("", None)
    _check_tags(found, MOST_TAGS, LONGEST_TAG)
    return list(found)


def bounded_tags(given: Sequence[str]) -> Sequence[str]:
    """Before anything else is done with them. As they are stored they may be fewer, and shorter."""
    _check_tags(given, MOST_GIVEN_TAGS, LONGEST_LABEL)
    return given


def _check_tags(given: Collection[str], most: int, longest: int) -> None:
    if len(given) > most:
        raise InvalidInput(f"{len(given)} tags were given; a memory has at most {MOST_TAGS}.")
    long = next((one for one in given if len(one) > longest), None)
    if long is not None:
        raise InvalidInput(f"The tag {long[:40]}… has {len(long)} characters; at most {LONGEST_TAG} are kept.")


def span(text: str) -> int | None:
    """`7d`, `24h`, `60m`, `3600s`, `2w`, or seconds, in milliseconds; None for 0, which is for ever."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidInput(f"{text[:40]!r} is no span of time. Write 7d, 24h, 60m, 3600s or 2w; 0 is for ever.")
    length = int(found[1]) * _UNITS[found[2] or "s"] * SECOND_MS
    if length > LONGEST_SPAN_MS:
        raise InvalidInput(f"{text[:40]!r} is longer than a hundred years. 0 is for ever.")
    return length or None


def moment(text: str) -> int:
    """A date or a date with a time; without a zone it is UTC."""
    try:
        return timestamps.parsed(text)
    except ValueError:
        raise InvalidInput(f"{text[:40]!r} is no date. Write 2026-01-31 or 2026-01-31T12:00:00Z.") from None


def past(text: str, now: int) -> int:
    """When something was said or happened. What is dated later than now would come first for ever."""
    at = moment(text)
    if at > now + CLOCKS_DIFFER_MS:
        raise InvalidInput(f"{text[:40]!r} is in the future: it is when it was said or happened.")
    return at


def ago_or_moment(text: str, at: int) -> int:
    """For `since:` and `until:`: how long ago, or when."""
    if _SPAN.fullmatch(text.strip().lower()):
        return at - (span(text) or 0)
    return moment(text)


def position(cursor: str | None) -> int:
    """The number of results before the page that a cursor of ours begins."""
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > 7:
        raise InvalidInput("The cursor is none of ours. Use nextCursor of the answer before, or leave it out.")
    return int(cursor)


def cursor_behind(listed: tuple[int, str]) -> str:
    """A cursor that begins behind a memory in a list of the newest."""
    return f"{listed[0]}.{listed[1]}"


def behind(cursor: str) -> tuple[int, str]:
    """The time and the id of the memory behind which a page begins, as `cursor_behind` wrote them."""
    found = _BEHIND.fullmatch(cursor)
    if found is None:
        raise InvalidInput("The cursor is none of ours. Use nextCursor of the answer before, or leave it out.")
    return int(found[1]), found[2]
