"""Near-duplicate and contradiction detection, based on words alone and therefore deterministic.

The tokens differ from those of the index (`search/analyzer.py`): a date, a file name, a version or `x-api-key` is one
token, so is `don't`, and `not` counts. See docs/decisions/stemming.md for the effect.
"""

from __future__ import annotations

import re
from itertools import pairwise

from portico.search import word_set

_WORD = re.compile(r"\w+(?:[.'-]\w+)*")
# The same for lowercase ASCII, which matches faster.
_ASCII_WORD = re.compile(r"[a-z0-9_]+(?:[.'-][a-z0-9_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_STOPWORDS = word_set(
    """
    a an and are as at be been but by can could did do does for from had has have he her his i if in into is it its me
    my of on or our she should so some than that the their them then there these they this to too up us was we were what
    when which who will with would you your
    """
)
_NEGATIONS = word_set(
    """
    not no never don't doesn't isn't aren't won't can't cannot without avoid stop against instead
    """
)

# Similarity from which two memories of a namespace are duplicates. Higher where a single word can change the meaning.
DUPLICATE_THRESHOLDS = {"decisions": 0.92, "config": 0.95, "apis": 0.95, "learnings": 0.88}
DEFAULT_DUPLICATE_THRESHOLD = 0.9
# Similarity from which two memories are about the same subject.
RELATED_THRESHOLD = 0.45


class TokenizedText:
    """A tokenized text, for comparison with many others."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.token_set = set(self.tokens)

    def bigrams(self) -> set[tuple[str, str]]:
        return set(pairwise(self.tokens))


def tokenize(text: str) -> list[str]:
    """Return the tokens of a text without stopwords."""
    # Both apostrophes are used in “don’t”.
    plain = text.casefold().replace("’", "'")
    result = (_ASCII_WORD if plain.isascii() else _WORD).findall(plain)
    return [word for word in result if word not in _STOPWORDS]


def similarity(item: str, other: str) -> float:
    """Return the share of common words and bigrams (Jaccard index), 0 to 1."""
    return _jaccard(TokenizedText(item), TokenizedText(other))


def duplicate_threshold(namespace: str) -> float:
    """Return the similarity from which two memories of a namespace are duplicates."""
    return DUPLICATE_THRESHOLDS.get(namespace, DEFAULT_DUPLICATE_THRESHOLD)


def is_near_duplicate(item: TokenizedText, other: TokenizedText, minimum: float) -> bool:
    """Return whether the similarity is at least `least`."""
    common = len(item.token_set & other.token_set)
    # Upper bound: all bigrams of the shorter text are common. It is nearly always too low, which saves the exact
    # computation.
    pairs = min(len(item.tokens), len(other.tokens)) - 1
    if pairs >= 0 and (common + pairs) / (len(item.token_set) + len(other.token_set) - common + pairs) < minimum:
        return False
    return _jaccard(item, other) >= minimum


def find_contradiction(item: str, other: str) -> str | None:
    """Return how two texts contradict each other, or None if they do not."""
    return find_contradiction_tokenized(TokenizedText(item), TokenizedText(other))


def find_contradiction_tokenized(item: TokenizedText, other: TokenizedText) -> str | None:
    """Return how two tokenized texts contradict each other, or None if they do not."""
    if word_overlap(item, other) < RELATED_THRESHOLD:
        return None
    first, second = item.token_set, other.token_set
    if first.isdisjoint(_NEGATIONS) != second.isdisjoint(_NEGATIONS):
        return "one says it and the other denies it"
    if set(_NUMBER.findall(item.text)) != set(_NUMBER.findall(other.text)):
        return "the numbers differ"
    only, too = first - second, second - first
    if len(only) == 1 and len(too) == 1:
        return f"“{only.pop()[:40]}” here, “{too.pop()[:40]}” there"
    return None


def word_overlap(item: TokenizedText, other: TokenizedText) -> float:
    """Return the share of common words (Jaccard index)."""
    if not item.token_set or not other.token_set:
        return 0.0
    common = len(item.token_set & other.token_set)
    return common / (len(item.token_set) + len(other.token_set) - common)


def _jaccard(item: TokenizedText, other: TokenizedText) -> float:
    if not item.token_set or not other.token_set:
        # Texts of stopwords only are compared literally.
        return float(item.text.split() == other.text.split())
    first, second = item.bigrams(), other.bigrams()
    words, pairs = len(item.token_set & other.token_set), len(first & second)
    union_size = len(item.token_set) + len(other.token_set) - words + len(first) + len(second) - pairs
    return (words + pairs) / union_size
