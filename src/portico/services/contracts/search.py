"""Finding a tool by what it is for."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from portico.schema import fields
from portico.services.contracts.definitions import Contract, Definition
from portico.services.contracts.near import NearNames
from portico.services.words import camel_parts, stem, words

MOST_WORDS = 32
LONGEST_TEXT = 20_000
# What a word counts for, by where it stands.
_WEIGHTS = {"name": 4.0, "title": 3.0, "description": 1.5, "parameters": 1.0}


class SearchMatch(Struct, frozen=True):
    tool: Definition
    score: float


def search(contract: Contract, query: str, most: int = 10) -> list[SearchMatch]:
    """The tools that the words of a query speak of, best first."""
    index = contract.once(ToolIndex)
    wanted = list(dict.fromkeys(_words(query)))[:MOST_WORDS]
    scores: defaultdict[int, float] = defaultdict(float)
    for word in wanted:
        index.add_scores(word, scores)
    return index.best(scores, most) or index.best(index.misspelt(wanted), most)


class ToolIndex:
    """The words of all tools, and which tools each of them stands in."""

    def __init__(self, contract: Contract) -> None:
        self._tools = contract.tools
        self._places: dict[str, list[tuple[int, float]]] = {}
        for at, tool in enumerate(self._tools):
            for word, weight in _weights(tool).items():
                self._places.setdefault(word, []).append((at, weight))
        self._sorted = sorted(self._places)

    def add_scores(self, word: str, scores: dict[int, float]) -> None:
        """Rare words tell more than common ones; the beginning of a word counts for a part of it."""
        for known in self._beginning(word):
            share = 1.0 if known == word else len(word) / len(known) / 2
            places = self._places[known]
            rarity = math.log(1 + len(self._tools) / len(places))
            for at, weight in places:
                scores[at] += weight * share * rarity

    def _beginning(self, word: str) -> Iterator[str]:
        """The known words that begin so; of short ones only the same."""
        if len(word) < 3:
            yield from (word,) if word in self._places else ()
            return
        for at in range(bisect_left(self._sorted, word), len(self._sorted)):
            if not self._sorted[at].startswith(word):
                return
            yield self._sorted[at]

    @cached_property
    def _near(self) -> NearNames:
        return NearNames(self._sorted)

    def misspelt(self, wanted: list[str]) -> dict[int, float]:
        """The scores of tools with words that are nearly these."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in wanted:
            for at in {at for known in self._near.nearest(word) for at, _ in self._places[known]}:
                scores[at] += 1 / (10 * len(wanted))
        return scores

    def best(self, scores: dict[int, float], most: int) -> list[SearchMatch]:
        found = [SearchMatch(self._tools[at], round(score, 4)) for at, score in scores.items()]
        return sorted(found, key=lambda one: (-one.score, one.tool.name))[:most]


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
