"""Validation and normalization of client input: contents, labels, tags, timestamps and durations."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from portico_services import git_project, text as texts, timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.timestamps import MS_PER_SECOND

# Far above any fact; a longer text is a document, which should be split or referenced by its path.
MAX_CONTENT_CHARS = 200_000
MAX_LABEL_CHARS = 500
MAX_TAGS, MAX_TAG_CHARS = 50, 100
# Higher than MAX_TAGS, because several tags may normalize to the same one.
MAX_INPUT_TAGS = 1000
_BREAKS = re.compile(r"[\s,]+")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d{1,9})\s*([smhdw]?)")
# Time in milliseconds and id. Bounded, so that a forged cursor cannot exceed a 64-bit column.
_CURSOR = re.compile(r"(-?\d{1,15})\.([0-9a-f]{1,64})")
# Allows for clock differences between machines and for time zones.
MAX_CLOCK_SKEW_MS = 86_400 * MS_PER_SECOND
MAX_DURATION_MS = 100 * 366 * 86_400 * MS_PER_SECOND


def validate_content(text: str) -> str:
    """Return the content as it is stored. Raises `InvalidInput` if it is empty or too long."""
    text = texts.replace_unstorable(check_length(text))
    if not text.strip():
        raise InvalidInput("content must not be empty.")
    return text


def check_length(text: str) -> str:
    """Return the text if it is within MAX_CONTENT_CHARS. Call it before any other processing."""
    if len(text) > MAX_CONTENT_CHARS:
        raise InvalidInput(
            f"content must have at most {MAX_CONTENT_CHARS:,} characters, got {len(text):,}. "
            "Store a shorter text, or several memories in one thread.",
            longest=MAX_CONTENT_CHARS,
            length=len(text),
        )
    return text


def replacement_note(before: str) -> list[str]:
    """Return a note if the text contains characters that the database cannot store."""
    lost = texts.replace_unstorable(before).count("\ufffd") - before.count("\ufffd")
    return [f"{lost} characters that cannot be stored (NUL, halves of characters) became U+FFFD."] if lost else []


def validate_label(text: str | None, name: str) -> str | None:
    """Return a label (source, author, path) as it is stored; None if it is empty."""
    if not text:
        return None
    check_label_length(text, name)
    return texts.replace_unstorable(text.strip()) or None


def validate_project(text: str | None) -> str | None:
    named = validate_label(text, "project")
    return None if named is None else git_project.normalize_project_name(named)


def check_label_length(text: str | None, name: str) -> str | None:
    """Return the label if it is within MAX_LABEL_CHARS. Call it before any other processing."""
    if text is not None and len(text) > MAX_LABEL_CHARS:
        raise InvalidInput(f"{name} must have at most {MAX_LABEL_CHARS} characters, got {len(text):,}.")
    return text


def validate_labels(labels: Any) -> dict[str, Any]:
    """Return the validated labels of an object with the attributes of a memory."""
    return {
        name: validate_label(getattr(labels, name), name) for name in ("source", "author", "thread", "branch", "path")
    }


def normalize_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags lowercased, with hyphens for spaces and commas, without duplicates, in order."""
    if not tags:
        return []
    result = dict.fromkeys(
        # A comma separates values in a filter, so a tag that contains one could not be searched for.
        _BREAKS.sub("-", texts.replace_unstorable(tag).strip(" \t\n,#")).casefold()
        for tag in check_tags(tags)
    )
    result.pop("", None)
    _check_tags(result, MAX_TAGS, MAX_TAG_CHARS)
    return list(result)


def check_tags(tags: Sequence[str]) -> Sequence[str]:
    """Return the tags if they are within the input limits. Call it before any other processing; normalization may
    shorten them.
    """
    _check_tags(tags, MAX_INPUT_TAGS, MAX_LABEL_CHARS)
    return tags


def _check_tags(tags: Collection[str], max_tags: int, max_chars: int) -> None:
    if len(tags) > max_tags:
        raise InvalidInput(f"A memory can have at most {MAX_TAGS} tags, got {len(tags)}.")
    long = next((item for item in tags if len(item) > max_chars), None)
    if long is not None:
        raise InvalidInput(f"A tag must have at most {MAX_TAG_CHARS} characters, got {len(long)}: {long[:40]}…")


def parse_duration(text: str) -> int | None:
    """Return a duration in milliseconds, from `7d`, `24h`, `60m`, `3600s`, `2w` or seconds; None for 0, which means
    forever.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInput(
            f"Invalid duration {text[:40]!r}: expected for example 7d, 24h, 60m, 3600s or 2w; 0 for no expiry."
        )
    length = int(match[1]) * _UNITS[match[2] or "s"] * MS_PER_SECOND
    if length > MAX_DURATION_MS:
        raise InvalidInput(f"Invalid duration {text[:40]!r}: expected at most 100 years; 0 for no expiry.")
    return length or None


def parse_timestamp(text: str) -> int:
    """Return the timestamp of a date or date-time in milliseconds; without a time zone it is UTC."""
    try:
        return timestamps.parse_iso(text)
    except ValueError:
        raise InvalidInput(f"Invalid date {text[:40]!r}: expected 2026-01-31 or 2026-01-31T12:00:00Z.") from None


def parse_past_timestamp(text: str, now: int) -> int:
    """Return the time at which something was said or happened. Future times are rejected: such a memory would always be
    listed first.
    """
    at = parse_timestamp(text)
    if at > now + MAX_CLOCK_SKEW_MS:
        raise InvalidInput(f"at must not be in the future, got {text[:40]!r}.")
    return at


def parse_relative_timestamp(text: str, at: int) -> int:
    """Return the timestamp for `since:` and `until:`, from a duration before `at` or a date."""
    if _DURATION.fullmatch(text.strip().lower()):
        return at - (parse_duration(text) or 0)
    return parse_timestamp(text)


def parse_offset_cursor(cursor: str | None) -> int:
    """Return the offset that a cursor encodes, 0 without a cursor."""
    if cursor is None:
        return 0
    # Seven digits cover the largest offset that `recall` accepts.
    if not cursor.isdecimal() or len(cursor) > 7:
        raise InvalidInput("Invalid cursor. Use nextCursor from the previous page, or omit it.")
    return int(cursor)


def make_cursor(listed: tuple[int, str]) -> str:
    """Return a cursor for the page after a memory in a list of the newest."""
    return f"{listed[0]}.{listed[1]}"


def parse_cursor(cursor: str) -> tuple[int, str]:
    """Return the time and id that `make_cursor` encoded."""
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidInput("Invalid cursor. Use nextCursor from the previous page, or omit it.")
    return int(match[1]), match[2]
