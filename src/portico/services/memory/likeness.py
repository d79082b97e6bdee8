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


def words(text: str) -> list[str]:
    return [one for one in _WORD.findall(text.casefold()) if one not in _SMALL]


def likeness(one: str, other: str) -> float:
    """The share of words and neighbouring pairs of words that both have: 0 to 1."""
    first, second = _features(one), _features(other)
    if not first or not second:
        return float(one.split() == other.split())
    return len(first & second) / len(first | second)


def overlap(one: str, other: str) -> float:
    """The share of words that both have, whatever their order."""
    first, second = set(words(one)), set(words(other))
    return len(first & second) / len(first | second) if first and second else 0.0


def same_from(namespace: str) -> float:
    return SAME.get(namespace, USUALLY_SAME)


def conflict(one: str, other: str) -> str | None:
    """Why two texts about the same thing cannot both hold, if it looks like that."""
    first, second = set(words(one)), set(words(other))
    if not first or not second or len(first & second) / len(first | second) < RELATED:
        return None
    if bool(first & _NOT) != bool(second & _NOT):
        return "one says it and the other denies it"
    if set(_NUMBER.findall(one)) != set(_NUMBER.findall(other)):
        return "the numbers differ"
    only, too = first - second, second - first
    if len(only) == 1 and len(too) == 1:
        return f"“{only.pop()[:40]}” here, “{too.pop()[:40]}” there"
    return None


def _features(text: str) -> set[str | tuple[str, str]]:
    found = words(text)
    return {*found, *pairwise(found)}
