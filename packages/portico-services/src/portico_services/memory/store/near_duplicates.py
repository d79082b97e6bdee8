"""How alike two texts are, and whether they contradict each other. By their words alone, so that it is the same every
time and on every machine.

The words are not those of the index (`search/text.py`): here a date, a file name, a version or `x-api-key` is one
word, and so is `don't`, and `not` counts; see docs/decisions/stemming.md for what changes otherwise.
"""

from __future__ import annotations

import re
from itertools import pairwise

from portico.extend import listed

_WORD = re.compile(r"\w+(?:[.'-]\w+)*")
# The same for ASCII in small letters, which is found more quickly.
_ASCII_WORD = re.compile(r"[a-z0-9_]+(?:[.'-][a-z0-9_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_IGNORED = listed(
    """
    a an and are as at be been but by can could did do does for from had has have he her his i if in into is it its me
    my of on or our she should so some than that the their them then there these they this to too up us was we were what
    when which who will with would you your
    """
)
_NEGATIONS = listed(
    """
    not no never don't doesn't isn't aren't won't can't cannot without avoid stop against instead
    """
)

# From which likeness on two memories of a namespace are the same. Where a single word may change everything, more.
SAME = {"decisions": 0.92, "config": 0.95, "apis": 0.95, "learnings": 0.88}
USUALLY_SAME = 0.9
# From here on they are about the same thing.
RELATED = 0.45


class ComparedText:
    """A text split into words, to be compared with many others."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.order = words(text)
        self.words = set(self.order)

    def pairs(self) -> set[tuple[str, str]]:
        return set(pairwise(self.order))


def words(text: str) -> list[str]:
    # “don’t” is written with either apostrophe.
    plain = text.casefold().replace("’", "'")
    found = (_ASCII_WORD if plain.isascii() else _WORD).findall(plain)
    return [word for word in found if word not in _IGNORED]


def likeness(one: str, other: str) -> float:
    """The share of words and neighbouring pairs of words that both have: 0 to 1."""
    return _likeness(ComparedText(one), ComparedText(other))


def same_from(namespace: str) -> float:
    return SAME.get(namespace, USUALLY_SAME)


def is_same(one: ComparedText, other: ComparedText, least: float) -> bool:
    """Whether the likeness is at least this."""
    common = len(one.words & other.words)
    # At best all pairs of the shorter one are common; nearly always that is not enough, and the rest is saved.
    pairs = min(len(one.order), len(other.order)) - 1
    if pairs >= 0 and (common + pairs) / (len(one.words) + len(other.words) - common + pairs) < least:
        return False
    return _likeness(one, other) >= least


def conflict(one: str, other: str) -> str | None:
    """Why two texts seem to contradict each other; None if they do not."""
    return contradiction(ComparedText(one), ComparedText(other))


def contradiction(one: ComparedText, other: ComparedText) -> str | None:
    """`conflict`, for texts that are split already."""
    if overlap(one, other) < RELATED:
        return None
    first, second = one.words, other.words
    if first.isdisjoint(_NEGATIONS) != second.isdisjoint(_NEGATIONS):
        return "one says it and the other denies it"
    if set(_NUMBER.findall(one.text)) != set(_NUMBER.findall(other.text)):
        return "the numbers differ"
    only, too = first - second, second - first
    if len(only) == 1 and len(too) == 1:
        return f"“{only.pop()[:40]}” here, “{too.pop()[:40]}” there"
    return None


def overlap(one: ComparedText, other: ComparedText) -> float:
    """The share of words that both have."""
    if not one.words or not other.words:
        return 0.0
    common = len(one.words & other.words)
    return common / (len(one.words) + len(other.words) - common)


def _likeness(one: ComparedText, other: ComparedText) -> float:
    if not one.words or not other.words:
        return float(one.text.split() == other.text.split())
    first, second = one.pairs(), other.pairs()
    words, pairs = len(one.words & other.words), len(first & second)
    whole = len(one.words) + len(other.words) - words + len(first) + len(second) - pairs
    return (words + pairs) / whole
