"""Arguments from clients, checked and in the form in which they are stored."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from portico_services import git_project, timestamps
from portico_services import text as texts
from portico_services.workitems.errors import InvalidTask

LONGEST_DESCRIPTION = 10_000
LONGEST_TEXT = 100_000
LONGEST_NAME = 200
LONGEST_QUERY, MOST_WORDS = 500, 20
LONGEST_LABEL, MOST_LABELS = 60, 20
LONGEST_NOTE = 10_000
LONGEST_PROJECT = 300
# Instead of a project: every one of them.
ALL = "*"
# A day that ends: a task that is due on a day can be done on all of it.
_DAY_MS = 86_400 * timestamps.SECOND_MS


def id_in(text: str) -> str:
    """An id, or an address that ends with one."""
    return texts.storable(text).strip().rpartition("/")[2]


def description(text: str) -> str:
    text = texts.storable(bounded(text, "The description", LONGEST_DESCRIPTION)).strip()
    if not text:
        raise InvalidTask("The description is empty. Say what is to be done.")
    return text


def longer(text: str, name: str) -> str:
    """A context or a result."""
    return texts.storable(bounded(text, name, LONGEST_TEXT))


def name(text: str | None) -> str | None:
    """Of a worker. Empty is none."""
    if text is None or not text.strip():
        return None
    return texts.storable(bounded(text, "The name of the worker", LONGEST_NAME)).strip()


def note(text: str) -> str:
    text = texts.storable(bounded(text, "The note", LONGEST_NOTE)).strip()
    if not text:
        raise InvalidTask("The note is empty. Say what is to be remembered.")
    return text


def labels(given: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order and in small letters."""
    return few_labels({label(one) for one in given})


def few_labels(stored: set[str]) -> tuple[str, ...]:
    """In order, if a task can have so many."""
    found = sorted(stored)
    if len(found) > MOST_LABELS:
        raise InvalidTask(f"A task has at most {MOST_LABELS} labels, and these are {len(found)}.")
    return tuple(found)


def label(text: str) -> str:
    found = "-".join(folded(texts.storable(text)).split())
    if not found:
        raise InvalidTask("A label is a word, and not empty.")
    # As it is kept, it may be longer than it was given: there are letters that stand for several.
    return bounded(found, "A label", LONGEST_LABEL)


def project(text: str) -> str:
    return git_project.spelled(texts.storable(bounded(text, "The name of the project", LONGEST_PROJECT)).strip())


def home(text: str) -> str:
    """The project that a task is of."""
    if project(text) == ALL:
        raise InvalidTask(f"{ALL!r} is every project; a task is of one. Name it, or leave it out.")
    return project(text)


def moment(text: str) -> int:
    """A date, which begins with its day, or a date with a time; without a zone it is UTC."""
    try:
        return timestamps.parsed(texts.storable(text))
    except ValueError:
        raise InvalidTask(f"{text[:40]!r} is no date. Write 2026-01-31 or 2026-01-31T12:00:00Z.") from None


def due(text: str) -> int:
    """The last moment that is in time: of a date without a time, all of the day is."""
    return moment(text) + (_DAY_MS - 1 if timestamps.is_day(text) else 0)


def bounded(text: str, name: str, longest: int) -> str:
    if len(text) > longest:
        raise InvalidTask(f"{name} has {len(text):,} characters; at most {longest:,} are kept.", longest=longest)
    return text


def folded(text: str) -> str:
    """The same for texts that differ in case or width only."""
    return unicodedata.normalize("NFKC", text).casefold()


def words(query: str) -> list[str]:
    found = list(dict.fromkeys(folded(texts.storable(bounded(query, "The query", LONGEST_QUERY))).split()))
    if len(found) > MOST_WORDS:
        raise InvalidTask(f"The query has {len(found)} words; at most {MOST_WORDS} are looked for.")
    return found


def patterns(query: str) -> list[str]:
    """Each word of a query, for `like … escape '\\'`. Nothing in it means anything but itself."""
    found = words(query)
    for sign in ("\\", "%", "_"):
        found = [word.replace(sign, f"\\{sign}") for word in found]
    return [f"%{word}%" for word in found]
