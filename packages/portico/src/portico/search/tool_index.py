"""Finding tools by what they are for: an index of their words, made once for a catalogue.

A tool has fields, and a word counts by the field that it stands in, by how rare it is among the tools, and less each
further time (BM25F: Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009). Names are split into the
words that they are made of, and words into stems. A word of the query also counts where a tool says it otherwise, and
where what it speaks of needs such a tool. How the weights were found, and what they are worth:
docs/decisions/finding.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from heapq import nlargest
from itertools import pairwise

from msgspec import Struct

from portico.search.fuzzy_names import NearNames
from portico.search.places import without_places
from portico.search.synonyms import neighbours
from portico.search.text import STOP, camel_parts, listed, stem, words

# Of a query: beyond these nothing is looked at.
LONGEST_QUERY = 4000
MOST_TERMS = 96
# Of a field.
LONGEST_FIELD = 20_000
# How many tools are looked at closely.
CANDIDATES = 100
FEW = 100


class ToolWords(Struct, frozen=True):
    """What is said of a tool."""

    name: str
    title: str = ""
    description: str = ""
    # The names of its parameters, and what is said of them.
    parameters: str = ""
    explanations: str = ""
    # What its server is called, and where that lists it; those of one place are in order.
    server: str = ""
    place: int = 0


class _FieldWeight(Struct, frozen=True):
    """What a word in a field counts for, and how much a long field is held against its words."""

    weight: float
    length: float


_FIELDS = {
    "name": _FieldWeight(3.0, 0.4),
    "title": _FieldWeight(2.0, 0.3),
    "summary": _FieldWeight(1.5, 0.6),
    "rest": _FieldWeight(0.6, 0.8),
    "parameters": _FieldWeight(0.5, 0.6),
    "explanations": _FieldWeight(0.2, 0.7),
    "server": _FieldWeight(1.2, 0.3),
}
# How soon a word that is said again counts no more.
_SATURATION = 0.9
# What words of a query count for: those of every request, numbers, kinds of files and addresses, what stands in them.
_USUAL, _NUMBER, _KIND, _INSIDE = 0.1, 0.2, 0.7, 0.1
# What is said otherwise: how near it has to be, how many such words there are of one, and what they count for.
_NEAR, _MOST_OTHERS, _OTHERWISE = 0.4, 6, 0.2
# How much more a tool counts whose whole name is in the query, and one whose server has another that fits: so much for
# the last of the server's tools, and so much more for its first.
_NAMED, _BESIDE, _EARLY = 0.6, 0.3, 0.3

_USUAL_WORDS = frozenset(
    map(
        stem,
        listed(
            """please help give tell show want need could can let know make find get look way using use based provide
            following also specifically say like try ask would should thing various related relevant according
            information result answer question content several each every other another first second next final finally
            step required good best well one two three specific given new different main possible able"""
        ),
    )
)
_SENTENCE = re.compile(r"(.{20,}?[.。!?])(?:\s|$)", re.DOTALL)
LONGEST_SUMMARY = 200


def terms_of(text: str) -> list[str]:
    """The stems of a text's words, in order, and of the parts of names in it."""
    text = text[:LONGEST_FIELD]
    return [stem(word) for word in (*words(text.lower()), *camel_parts(text)) if word not in STOP]


class ToolIndex:
    """The words of some tools, each known by its place among them."""

    def __init__(self, tools: Sequence[ToolWords]) -> None:
        count = self._count = len(tools)
        self._names = [_own_name(tool) for tool in tools]
        servers: dict[str, int] = {}
        self._servers = [servers.setdefault(tool.server, len(servers)) for tool in tools]
        self._beside = [_BESIDE + _EARLY * early for early in _earliness(tools)]
        gathered = _gathered([_fields(tool) for tool in tools])
        self._rarities = {term: _rarity(count, len(places)) for term, places in gathered.items()}
        self._places = {
            term: [(at, worth * (_SATURATION + 1) / (worth + _SATURATION) * rarity) for at, worth in places.items()]
            for (term, places), rarity in zip(gathered.items(), self._rarities.values(), strict=True)
        }

        # A word that many tools have tells nothing of one that is only like it.
        self._telling = {term for term, places in gathered.items() if len(places) <= max(count // 10, FEW)}

    def search(self, query: str, most: int, visible: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """The places of the tools that fit a query best, with their scores; `visible` has a zero for each that is not
        to be found."""
        wanted = self._wanted(query[:LONGEST_QUERY])
        scores = [0.0] * self._count
        terms = self._with_others(wanted)
        for term, share in terms:
            for at, worth in self._places[term]:
                scores[at] += worth * share
        if not terms:
            scores = self._misspelt(wanted)
        if visible is not None:
            scores = [score if shown else 0.0 for score, shown in zip(scores, visible, strict=True)]
        best = nlargest(max(most, CANDIDATES), range(self._count), key=scores.__getitem__)
        return self._looked_at_closely(wanted, [(at, scores[at]) for at in best if scores[at] > 0])[:most]

    def search_together(
        self, queries: Sequence[str], most: int, visible: Sequence[int] | None = None
    ) -> list[list[int]]:
        """For each of several queries the places of the tools that fit it best. One that an earlier query has found is
        told again, and takes no room from others."""
        told: set[int] = set()
        chosen: list[list[int]] = []
        for query in queries:
            found = [at for at, _ in self.search(query, most + len(told), visible)]
            fresh = [at for at in found if at not in told][:most]
            known = [at for at in found[:most] if at in told]
            chosen.append(sorted({*fresh, *known}, key=found.index))
            told.update(fresh)
        return chosen

    def _wanted(self, query: str) -> dict[str, float]:
        """The terms of a query, and what each counts for."""
        text, kinds, inside = without_places(query)
        wanted: dict[str, float] = {}
        said = terms_of(text)
        for term in said:
            wanted[term] = _USUAL if term in _USUAL_WORDS else _NUMBER if term.isdigit() else 1.0
        for texts, share in ((kinds, _KIND), (inside, _INSIDE)):
            for term in terms_of(texts):
                wanted[term] = max(share, wanted.get(term, 0.0))
        # `word cloud` is also `wordcloud`.
        for one, two in pairwise(said):
            if one + two in self._places:
                wanted[one + two] = 1.0
        return dict(list(wanted.items())[:MOST_TERMS])

    def _with_others(self, wanted: dict[str, float]) -> list[tuple[str, float]]:
        """The known terms among them, and those that say one of them otherwise; one counts once, by what it is nearest
        to, and no more than the word that was said would."""
        found = {term: share for term, share in wanted.items() if term in self._places}
        others: dict[str, float] = {}
        for term, share in wanted.items():
            if share < 0.5:
                continue
            known = [one for one in neighbours(term) if one[1] >= _NEAR and one[0] in self._telling][:_MOST_OTHERS]
            own = self._rarities.get(term, math.inf)
            for other, near in known:
                worth = share * near * _OTHERWISE * min(1.0, own / self._rarities[other])
                if other not in wanted:
                    others[other] = max(worth, others.get(other, 0.0))
        return [*found.items(), *others.items()]

    def _looked_at_closely(
        self, wanted: dict[str, float], best: Sequence[tuple[int, float]]
    ) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        by_server: dict[int, float] = {}
        for at, score in best:
            name = self._names[at]
            whole = sum(self._rarities[term] for term in name)
            there = sum(self._rarities[term] * min(1.0, wanted[term]) for term in name if term in wanted)
            score *= 1 + _NAMED * there / whole if whole else 1
            found.append((at, score))
            server = self._servers[at]
            by_server[server] = max(score, by_server.get(server, 0.0))
        beside = [(at, score + self._beside[at] * by_server[self._servers[at]]) for at, score in found]
        return sorted(beside, key=lambda one: (-one[1], one[0]))

    @cached_property
    def _near(self) -> NearNames:
        return NearNames(self._places)

    def _misspelt(self, wanted: dict[str, float]) -> list[float]:
        """The scores of tools with words that are nearly these."""
        scores = [0.0] * self._count
        for term in wanted:
            for at in {at for known in self._near.nearest(term) for at, _ in self._places[known]}:
                scores[at] += 1 / (10 * len(wanted))
        return scores


def _own_name(tool: ToolWords) -> frozenset[str]:
    """The terms of a name, without those of its server, which a gateway puts before all of them."""
    name = frozenset(terms_of(tool.name))
    return name - frozenset(terms_of(tool.server)) or name


def _earliness(tools: Sequence[ToolWords]) -> list[float]:
    """1 for the first tool of a server to 0 for its last: what its author lists first is what it is mostly used for.
    Tools of no server stand in no such order."""
    found = [0.0] * len(tools)
    servers: dict[str, list[int]] = {}
    for at, tool in enumerate(tools):
        servers.setdefault(tool.server, []).append(at)
    servers.pop("", None)
    for places in servers.values():
        for number, at in enumerate(sorted(places, key=lambda at: tools[at].place)):
            found[at] = 1 - number / max(1, len(places) - 1)
    return found


def _fields(tool: ToolWords) -> dict[str, Counter[str]]:
    """The first sentence of a description says what a tool is for, and the rest much else."""
    begins = " ".join(tool.description[:LONGEST_FIELD].partition("\n\n")[0].split())
    sentence = _SENTENCE.match(begins)
    summary = sentence[1] if sentence is not None else begins[:LONGEST_SUMMARY]
    texts = {
        "name": tool.name,
        "title": tool.title,
        "summary": summary,
        "rest": " ".join(tool.description[:LONGEST_FIELD].split())[len(summary) :],
        "parameters": tool.parameters,
        "explanations": tool.explanations,
        "server": tool.server,
    }
    return {field: Counter(terms_of(text)) for field, text in texts.items() if text}


def _gathered(tools: Sequence[dict[str, Counter[str]]]) -> dict[str, dict[int, float]]:
    """Where each term stands, and how much of it."""
    usual = {field: _mean([one[field].total() for one in tools if field in one], len(tools)) for field in _FIELDS}
    found: dict[str, dict[int, float]] = {}
    for at, fields in enumerate(tools):
        for field, counted in fields.items():
            weight, length = _FIELDS[field].weight, _FIELDS[field].length
            share = weight / (1 - length + length * counted.total() / usual[field])
            for term, times in counted.items():
                places = found.setdefault(term, {})
                places[at] = places.get(at, 0.0) + share * times
    return found


def _rarity(tools: int, with_it: int) -> float:
    return math.log(1 + (tools - with_it + 0.5) / (with_it + 0.5))


def _mean(lengths: Sequence[int], tools: int) -> float:
    return max(1.0, sum(lengths) / max(1, tools))
