"""Finding a tool by what it is for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from portico.schema import fields, nearest
from portico.services.contracts.definitions import Definition
from portico.services.words import camel_parts, stem, words

MOST_WORDS = 32
LONGEST_TEXT = 20_000
# What a word counts for, by where it stands.
_WEIGHTS = {"name": 4.0, "title": 3.0, "description": 1.5, "parameters": 1.0}


class SearchMatch(Struct, frozen=True):
    tool: Definition
    score: float


def search(tools: Iterable[Definition], query: str, most: int = 10) -> list[SearchMatch]:
    """The tools that the words of a query speak of, best first."""
    wanted = list(dict.fromkeys(_words(query)))[:MOST_WORDS]
    known = [(tool, _weights(tool)) for tool in tools]
    vocabulary = Counter(word for _, weights in known for word in weights)
    found = [
        SearchMatch(tool, round(sum(_score(word, weights, vocabulary, len(known)) for word in wanted), 4))
        for tool, weights in known
    ]
    ranked = sorted((one for one in found if one.score > 0), key=lambda one: (-one.score, one.tool.name))
    return ranked[:most] or _misspelt(wanted, known, most)


def _words(text: str) -> list[str]:
    text = text[:LONGEST_TEXT]
    return [stem(word) for word in (*words(text.lower()), *camel_parts(text))]


def _weights(tool: Definition) -> dict[str, float]:
    texts = {
        "name": f"{tool.name} {tool.invocation}",
        "title": tool.title,
        "description": tool.description,
        "parameters": " ".join(f"{one.name} {one.schema.get('description', '')}" for one in fields(tool.input_schema)),
    }
    found: dict[str, float] = {}
    for place, text in texts.items():
        for word, count in Counter(_words(text)).items():
            found[word] = found.get(word, 0.0) + _WEIGHTS[place] * (1 + math.log(count))
    return found


def _score(word: str, weights: dict[str, float], vocabulary: Counter[str], total: int) -> float:
    """Rare words tell more than common ones; the beginning of a word counts for a part of it."""
    score = 0.0
    for known, weight in weights.items():
        if known == word or (len(word) > 2 and known.startswith(word)):
            share = 1.0 if known == word else len(word) / len(known) / 2
            score += weight * share * math.log(1 + total / vocabulary[known])
    return score


def _misspelt(wanted: list[str], known: list[tuple[Definition, dict[str, float]]], most: int) -> list[SearchMatch]:
    found = {}
    for tool, weights in known:
        close = [word for word in wanted if nearest(word, weights)]
        if close:
            found[tool.name] = SearchMatch(tool, round(len(close) / (10 * len(wanted)), 4))
    return sorted(found.values(), key=lambda one: (-one.score, one.tool.name))[:most]
