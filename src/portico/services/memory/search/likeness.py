"""How alike two texts are, and whether they contradict each other. By their words alone, so that it is the same every
time and on every machine."""

from __future__ import annotations

import re
from itertools import pairwise

_WORD = re.compile(r"\w+(?:[.'-]\w+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SMALL = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "he",
        "her",
        "his",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
        "she",
        "should",
        "so",
        "some",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "too",
        "up",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "which",
        "who",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)
_NOT = frozenset(
    [
        "not",
        "no",
        "never",
        "don't",
        "doesn't",
        "isn't",
        "aren't",
        "won't",
        "can't",
        "cannot",
        "without",
        "avoid",
        "stop",
        "against",
        "instead",
    ]
)

# From which likeness on two memories of a namespace are the same. Where a single word may change everything, more.
SAME = {"decisions": 0.92, "config": 0.95, "apis": 0.95, "learnings": 0.88}
USUALLY_SAME = 0.9
# From here on they are about the same thing.
RELATED = 0.45


class Said:
    """A text taken apart, so that it can be compared with many."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.order = words(text)
        self.words = set(self.order)

    def pairs(self) -> set[tuple[str, str]]:
        return set(pairwise(self.order))


def words(text: str) -> list[str]:
    return [one for one in _WORD.findall(text.casefold()) if one not in _SMALL]


def likeness(one: str, other: str) -> float:
    """The share of words and neighbouring pairs of words that both have: 0 to 1."""
    return _likeness(Said(one), Said(other))


def overlap(one: str, other: str) -> float:
    """The share of words that both have, whatever their order."""
    return _overlap(Said(one), Said(other))


def same_from(namespace: str) -> float:
    return SAME.get(namespace, USUALLY_SAME)


def is_same(one: Said, other: Said, least: float) -> bool:
    """Whether they are alike as much as this."""
    common = len(one.words & other.words)
    # All pairs of the shorter one in common would be the most: nearly always that is seen not to be enough.
    pairs = min(len(one.order), len(other.order)) - 1
    if pairs >= 0 and (common + pairs) / (len(one.words) + len(other.words) - common + pairs) < least:
        return False
    return _likeness(one, other) >= least


def conflict(one: str, other: str) -> str | None:
    """Why two texts about the same thing cannot both hold, if it looks like that."""
    return contradiction(Said(one), Said(other))


def contradiction(one: Said, other: Said) -> str | None:
    """`conflict`, of what was taken apart before."""
    if _overlap(one, other) < RELATED:
        return None
    first, second = one.words, other.words
    if first.isdisjoint(_NOT) != second.isdisjoint(_NOT):
        return "one says it and the other denies it"
    if set(_NUMBER.findall(one.text)) != set(_NUMBER.findall(other.text)):
        return "the numbers differ"
    only, too = first - second, second - first
    if len(only) == 1 and len(too) == 1:
        return f"“{only.pop()[:40]}” here, “{too.pop()[:40]}” there"
    return None


def _overlap(one: Said, other: Said) -> float:
    """The share of words that both have."""
    if not one.words or not other.words:
        return 0.0
    common = len(one.words & other.words)
    return common / (len(one.words) + len(other.words) - common)


def _likeness(one: Said, other: Said) -> float:
    if not one.words or not other.words:
        return float(one.text.split() == other.text.split())
    first, second = one.pairs(), other.pairs()
    words, pairs = len(one.words & other.words), len(first & second)
    whole = len(one.words) + len(other.words) - words + len(first) + len(second) - pairs
    return (words + pairs) / whole
