"""Finding tools by what they are for: an index of their words, made once for a catalogue.

A tool has fields, and a word counts by the field that it stands in, by how rare it is among the tools, and less each
further time (BM25F: Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009). Names are split into the
words that they are made of, and words into stems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from heapq import nlargest

from msgspec import Struct

from portico.finding.near import NearNames
from portico.finding.words import STOP, camel_parts, stem, words

# Of a query: beyond these nothing is looked at.
LONGEST_QUERY = 4000
MOST_TERMS = 64
# Of a field.
LONGEST_FIELD = 20_000


class ToolWords(Struct, frozen=True):
    """What is said of a tool, by field. `server` is whose it is."""

    name: str
    title: str = ""
    description: str = ""
    parameters: str = ""
    server: str = ""


class FieldWeights(Struct, frozen=True):
    """What a word counts for in each field."""

    name: float = 3.0
    title: float = 2.0
    description: float = 1.5
    parameters: float = 0.7
    server: float = 0.7


WEIGHTS = FieldWeights()
_FIELDS = FieldWeights.__struct_fields__
# How soon a word that is said again counts no more, and how much a long field is held against its words.
_SATURATION, _LENGTH = 1.2, 0.6


def terms_of(text: str) -> list[str]:
    """The stems of a text's words, in order, and of the parts of names in it."""
    text = text[:LONGEST_FIELD]
    return [stem(word) for word in (*words(text.lower()), *camel_parts(text)) if word not in STOP]


class ToolIndex:
    """The words of some tools, each known by its place among them."""

    def __init__(self, tools: Sequence[ToolWords], weights: FieldWeights = WEIGHTS) -> None:
        self._count = len(tools)
        counted = [{field: Counter(terms_of(getattr(tool, field))) for field in _FIELDS} for tool in tools]
        usual = {field: _mean([one[field].total() for one in counted]) for field in _FIELDS}
        gathered: dict[str, dict[int, float]] = {}
        for at, fields in enumerate(counted):
            for field, found in fields.items():
                share = getattr(weights, field) / (1 - _LENGTH + _LENGTH * found.total() / usual[field])
                for term, times in found.items():
                    places = gathered.setdefault(term, {})
                    places[at] = places.get(at, 0.0) + share * times
        self._places: dict[str, list[tuple[int, float]]] = {
            term: [(at, worth * _rarity(self._count, len(places))) for at, worth in _saturated(places)]
            for term, places in gathered.items()
        }

    def search(self, query: str, most: int, visible: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """The places of the tools that fit a query best, with their scores; `visible` has a zero for each that is not
        to be found."""
        scores: dict[int, float] = {}
        wanted = list(dict.fromkeys(terms_of(query[:LONGEST_QUERY])))[:MOST_TERMS]
        for term in wanted:
            for at, worth in self._places.get(term, ()):
                scores[at] = scores.get(at, 0.0) + worth
        if not scores:
            scores = self._misspelt(wanted)
        found = scores.items() if visible is None else ((at, score) for at, score in scores.items() if visible[at])
        return nlargest(most, found, key=lambda one: (one[1], -one[0]))

    @cached_property
    def _near(self) -> NearNames:
        return NearNames(self._places)

    def _misspelt(self, wanted: Sequence[str]) -> dict[int, float]:
        """The scores of tools with words that are nearly these."""
        scores: dict[int, float] = {}
        for term in wanted:
            for at in {at for known in self._near.nearest(term) for at, _ in self._places[known]}:
                scores[at] = scores.get(at, 0.0) + 1 / (10 * len(wanted))
        return scores


def _saturated(places: dict[int, float]) -> list[tuple[int, float]]:
    return [(at, worth * (_SATURATION + 1) / (worth + _SATURATION)) for at, worth in places.items()]


def _rarity(tools: int, with_it: int) -> float:
    return math.log(1 + (tools - with_it + 0.5) / (with_it + 0.5))


def _mean(lengths: list[int]) -> float:
    return max(1.0, sum(lengths) / max(1, len(lengths)))
