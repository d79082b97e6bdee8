"""Validation and normalization of client input."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from portico_services import git_project, text as texts, timestamps
from portico_services.workitems.errors import InvalidWorkItem

MAX_DESCRIPTION_CHARS = 10_000
MAX_TEXT_CHARS = 100_000
MAX_NAME_CHARS = 200
MAX_QUERY_CHARS, MAX_QUERY_WORDS = 500, 20
MAX_LABEL_CHARS, MAX_LABELS = 60, 20
MAX_NOTE_CHARS = 10_000
MAX_PROJECT_CHARS = 300
# Wildcard for all projects.
ALL_PROJECTS = "*"
# A due date without a time includes the whole day.
_DAY_MS = 86_400 * timestamps.MS_PER_SECOND


def parse_id(text: str) -> str:
    """Return the id from an id or a URI that ends with one."""
    return texts.replace_unstorable(text).strip().rpartition("/")[2]


def validate_description(text: str) -> str:
    """Return the description as it is stored. Raises `InvalidWorkItem`."""
    text = texts.replace_unstorable(check_length(text, "The description", MAX_DESCRIPTION_CHARS)).strip()
    if not text:
        raise InvalidWorkItem("The description must not be empty. Describe the work to do.")
    return text


def validate_long_text(text: str, name: str) -> str:
    """Return a context or result as it is stored."""
    return texts.replace_unstorable(check_length(text, name, MAX_TEXT_CHARS))


def validate_worker(text: str | None) -> str | None:
    """Return a worker name as it is stored; None if it is empty."""
    if text is None or not text.strip():
        return None
    return texts.replace_unstorable(check_length(text, "The name of the worker", MAX_NAME_CHARS)).strip()


def validate_note(text: str) -> str:
    text = texts.replace_unstorable(check_length(text, "The note", MAX_NOTE_CHARS)).strip()
    if not text:
        raise InvalidWorkItem("The note must not be empty.")
    return text


def normalize_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels lowercased, sorted and without duplicates."""
    # A set: labels that differ only in case or spacing are the same label.
    return check_label_count({normalize_label(item) for item in labels})


def check_label_count(stored: set[str]) -> tuple[str, ...]:
    """Return the labels sorted. Raises `InvalidWorkItem` if there are too many."""
    result = sorted(stored)
    if len(result) > MAX_LABELS:
        raise InvalidWorkItem(f"A task can have at most {MAX_LABELS} labels, got {len(result)}.")
    return tuple(result)


def normalize_label(text: str) -> str:
    result = "-".join(casefold_text(texts.replace_unstorable(text)).split())
    if not result:
        raise InvalidWorkItem("A label must not be empty.")
    # Checked after normalization, which can make a label longer: some characters expand to several.
    return check_length(result, "A label", MAX_LABEL_CHARS)


def validate_project_filter(text: str) -> str:
    return git_project.normalize_project_name(
        texts.replace_unstorable(check_length(text, "The name of the project", MAX_PROJECT_CHARS)).strip()
    )


def validate_project(text: str) -> str:
    """Return the project of a task. Raises `InvalidWorkItem` for the wildcard."""
    if validate_project_filter(text) == ALL_PROJECTS:
        raise InvalidWorkItem(
            f"{ALL_PROJECTS!r} means all projects, but a task belongs to one. Name the project or omit it."
        )
    return validate_project_filter(text)


def parse_timestamp(text: str) -> int:
    """Return the timestamp of a date (its beginning) or date-time; without a time zone it is UTC."""
    try:
        return timestamps.parse_iso(texts.replace_unstorable(text))
    except ValueError:
        raise InvalidWorkItem(f"Invalid date {text[:40]!r}. Expected 2026-01-31 or 2026-01-31T12:00:00Z.") from None


def parse_due_date(text: str) -> int:
    """Return the last millisecond that is in time. A date without a time includes the whole day."""
    return parse_timestamp(text) + (_DAY_MS - 1 if timestamps.is_date_only(text) else 0)


def check_length(text: str, name: str, longest: int) -> str:
    if len(text) > longest:
        raise InvalidWorkItem(f"{name} must have at most {longest:,} characters, got {len(text):,}.", longest=longest)
    return text


def casefold_text(text: str) -> str:
    """Normalize case and width for comparison."""
    return unicodedata.normalize("NFKC", text).casefold()


def query_words(query: str) -> list[str]:
    """Return the distinct words of a query. Raises `InvalidWorkItem` if it is too long."""
    result = list(
        dict.fromkeys(
            casefold_text(texts.replace_unstorable(check_length(query, "The query", MAX_QUERY_CHARS))).split()
        )
    )
    # Each word adds a condition to the SQL statement.
    if len(result) > MAX_QUERY_WORDS:
        raise InvalidWorkItem(f"The query must have at most {MAX_QUERY_WORDS} words, got {len(result)}.")
    return result


def like_patterns(query: str) -> list[str]:
    """Return a LIKE pattern for each query word, with wildcards escaped by a backslash."""
    result = query_words(query)
    # The backslash comes first, or it would escape the escapes added for the others.
    for sign in ("\\", "%", "_"):
        result = [word.replace(sign, f"\\{sign}") for word in result]
    return [f"%{word}%" for word in result]
