"""Arguments from clients, checked and in the form in which they are stored."""

from __future__ import annotations

import unicodedata

from portico.services import texts
from portico.services.tasks.errors import InvalidTask

LONGEST_DESCRIPTION = 10_000
LONGEST_TEXT = 100_000
LONGEST_NAME = 200
LONGEST_QUERY, MOST_WORDS = 500, 20


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


def bounded(text: str, name: str, longest: int) -> str:
    if len(text) > longest:
        raise InvalidTask(f"{name} has {len(text):,} characters; at most {longest:,} are kept.", longest=longest)
    return text


def folded(text: str) -> str:
    """The same for texts that differ in case or width only."""
    return unicodedata.normalize("NFKC", text).casefold()


def patterns(query: str) -> list[str]:
    """Each word of a query, for `like … escape '\\'`. Nothing in it means anything but itself."""
    words = list(dict.fromkeys(folded(texts.storable(bounded(query, "The query", LONGEST_QUERY))).split()))
    if len(words) > MOST_WORDS:
        raise InvalidTask(f"The query has {len(words)} words; at most {MOST_WORDS} are looked for.")
    for sign in ("\\", "%", "_"):
        words = [word.replace(sign, f"\\{sign}") for word in words]
    return [f"%{word}%" for word in words]
