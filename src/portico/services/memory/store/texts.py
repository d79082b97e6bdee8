"""What comes in, made fit to be kept: bounded, without what no database holds, and otherwise as it was written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from portico.services.memory.errors import Invalid

LONGEST_CONTENT = 200_000
LONGEST_LABEL = 500
MOST_TAGS, LONGEST_TAG = 50, 100
_BREAKS = re.compile(r"[\s,]+")


def content(text: str) -> str:
    """Fit to be a memory: see `whole`."""
    text = whole(bounded(text))
    if not text.strip():
        raise Invalid("The content is empty. Say what is to be remembered.")
    return text


def bounded(text: str) -> str:
    """Before anything else is done with it."""
    if len(text) > LONGEST_CONTENT:
        raise Invalid(
            f"The content has {len(text):,} characters; a memory has at most {LONGEST_CONTENT:,}. "
            "Store what matters of it, or several memories in one thread.",
            longest=LONGEST_CONTENT,
            length=len(text),
        )
    return text


def whole(text: str) -> str:
    """A NUL, which no database keeps in text, becomes U+FFFD; so does half of a character, of which UTF-8 knows
    nothing. Two halves that belong together become the character they are."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "\ufffd") if "\0" in text else text


def replaced(before: str) -> list[str]:
    """A note about what `whole` cannot keep, if there is anything."""
    lost = whole(before).count("\ufffd") - before.count("\ufffd")
    return [f"{lost} characters that cannot be stored (NUL, halves of characters) became U+FFFD."] if lost else []


def label(text: str | None, name: str) -> str | None:
    """A short text beside the content: a source, an author, a path. Empty is none."""
    if text is None or not text.strip():
        return None
    if len(text) > LONGEST_LABEL:
        raise Invalid(f"{name} has {len(text):,} characters; at most {LONGEST_LABEL} are kept.")
    return whole(text.strip())


def tags(given: Sequence[str]) -> list[str]:
    """In small letters, with hyphens for spaces and commas, each once, in the order they were given."""
    found = dict.fromkeys(_BREAKS.sub("-", whole(one).strip(" \t\n,#")).casefold() for one in given)
    found.pop("", None)
    if len(found) > MOST_TAGS:
        raise Invalid(f"{len(found)} tags were given; a memory has at most {MOST_TAGS}.")
    long = next((one for one in found if len(one) > LONGEST_TAG), None)
    if long is not None:
        raise Invalid(f"The tag {long[:40]}… has {len(long)} characters; at most {LONGEST_TAG} are kept.")
    return list(found)


def preview(text: str, length: int) -> str:
    """The beginning, on one line, cut between words where that is possible."""
    line = " ".join(text[: length * 4].split())
    if len(line) <= length:
        return line if len(text) <= length * 4 else line + " …"
    cut = line[:length]
    head, space, _ = cut.rpartition(" ")
    return f"{head if space and len(head) > length // 2 else cut} …"
