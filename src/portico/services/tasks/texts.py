"""What comes in, made fit to be kept: bounded, without what no database holds, and otherwise as it was written."""

from __future__ import annotations

import unicodedata

from portico.services.tasks.errors import Invalid

LONGEST_DESCRIPTION = 10_000
LONGEST_TEXT = 100_000
LONGEST_NAME = 200
LONGEST_QUERY, MOST_WORDS = 500, 20


def whole(text: str) -> str:
    """A NUL, which no database keeps in text, becomes U+FFFD; so does half a character."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def id_in(text: str) -> str:
    """An id, or an address that ends with one."""
    return whole(text).strip().rpartition("/")[2]


def description(text: str) -> str:
    text = whole(bounded(text, "The description", LONGEST_DESCRIPTION)).strip()
    if not text:
        raise Invalid("The description is empty. Say what is to be done.")
    return text


def longer(text: str, name: str) -> str:
    """A context or a result."""
    return whole(bounded(text, name, LONGEST_TEXT))


def name(text: str | None) -> str | None:
    """Of a worker. Empty is none."""
    if text is None or not text.strip():
        return None
    return whole(bounded(text, "The name of the worker", LONGEST_NAME)).strip()


def bounded(text: str, name: str, longest: int) -> str:
    if len(text) > longest:
        raise Invalid(f"{name} has {len(text):,} characters; at most {longest:,} are kept.", longest=longest)
    return text


def folded(text: str) -> str:
    """The same for texts that differ in case or width only."""
    return unicodedata.normalize("NFKC", text).casefold()


def patterns(query: str) -> list[str]:
    """Each word of a query, for `like … escape '\\'`. Nothing in it means anything but itself."""
    words = list(dict.fromkeys(folded(whole(bounded(query, "The query", LONGEST_QUERY))).split()))
    if len(words) > MOST_WORDS:
        raise Invalid(f"The query has {len(words)} words; at most {MOST_WORDS} are looked for.")
    for sign in ("\\", "%", "_"):
        words = [word.replace(sign, f"\\{sign}") for word in words]
    return [f"%{word}%" for word in words]


def preview(text: str, length: int) -> str:
    """The beginning, on one line."""
    line = " ".join(text[: length * 4].split())
    return line if len(line) <= length and len(text) <= length * 4 else f"{line[:length].rstrip()} …"
