"""Search index of tools, built once per catalog.

Tools have fields. A term counts by its field, its IDF and its saturated frequency (BM25F: Robertson and Zaragoza, The
Probabilistic Relevance Framework, 2009). Names are split into words, and words are stemmed. Synonyms of query terms and
the types of files and URLs in the query count, too. For the choice of the weights and their effect, see
docs/decisions/tool-search.md.
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

from portico.search.fuzzy_names import FuzzyNames
from portico.search.places import strip_paths_and_urls
from portico.search.synonyms import find_synonyms
from portico.search.text import STOPWORDS, split_camel_case, stem, tokenize_words, word_set

# Limits for a query; the rest is ignored.
# A model may paste the user's whole message. Beyond this, terms add noise and time.
MAX_QUERY_CHARS = 4000
MAX_QUERY_TERMS = 96
# Limit for a field.
MAX_FIELD_CHARS = 20_000
# Candidates that are reranked.
MAX_CANDIDATES = 100
SMALL_INDEX_SIZE = 100


class ToolDocument(Struct, frozen=True):
    """Searchable text of a tool."""

    name: str
    title: str = ""
    description: str = ""
    # Names and descriptions of its parameters.
    parameters: str = ""
    parameter_descriptions: str = ""
    # The name of its server, and its position in the server's list.
    server: str = ""
    position: int = 0


class _FieldWeight(Struct, frozen=True):
    """BM25F parameters of a field: weight of its terms, and length normalization."""

    weight: float
    length: float


# Weights: the name says most. Descriptions of parameters are long and mention everything, so each
# of their words counts little. Length: 0 ignores the length of the field, 1 normalizes fully. Tuned
# on the benchmark in docs/decisions/tool-search.md.
_FIELDS = {
    "name": _FieldWeight(3.0, 0.4),
    "title": _FieldWeight(2.0, 0.3),
    "summary": _FieldWeight(1.5, 0.6),
    "rest": _FieldWeight(0.6, 0.8),
    "parameters": _FieldWeight(0.5, 0.6),
    "explanations": _FieldWeight(0.2, 0.7),
    "server": _FieldWeight(1.2, 0.3),
}
# BM25 saturation: how quickly repeated terms stop counting.
_BM25_K1 = 0.9
# Weights of query terms: generic request words, numbers, file types, and words inside paths and URLs.
_LOW_SIGNAL_WEIGHT, _NUMBER_WEIGHT, _FILE_TYPE_WEIGHT, _PATH_TERM_WEIGHT = 0.1, 0.2, 0.7, 0.1
# Synonyms: minimum similarity, maximum number per term, and weight.
_MIN_SYNONYM_SIMILARITY, _MAX_SYNONYMS, _SYNONYM_WEIGHT = 0.4, 6, 0.2
# Boosts: for a tool whose whole name is in the query; for tools of a server that has another match; and in addition for
# tools early in that server's list.
_NAME_MATCH_BOOST, _SERVER_MATCH_BOOST, _LIST_POSITION_BOOST = 0.6, 0.3, 0.3

_LOW_SIGNAL_WORDS = frozenset(
    map(
        stem,
        word_set(
            """please help give tell show want need could can let know make find get look way using use based provide
            following also specifically say like try ask would should thing various related relevant according
            information result answer question content several each every other another first second next final finally
            step required good best well one two three specific given new different main possible able"""
        ),
    )
)
_SENTENCE = re.compile(r"(.{20,}?[.。!?])(?:\s|$)", re.DOTALL)
MAX_SUMMARY_CHARS = 200


def tokenize(text: str) -> list[str]:
    """Return the stems of the words in a text, in order, including parts of camel-case names."""
    text = text[:MAX_FIELD_CHARS]
    return [stem(word) for word in (*tokenize_words(text.lower()), *split_camel_case(text)) if word not in STOPWORDS]


class ToolIndex:
    """Inverted index over tools, identified by position."""

    def __init__(self, tools: Sequence[ToolDocument]) -> None:
        count = self._count = len(tools)
        self._names = [_own_name(tool) for tool in tools]
        servers: dict[str, int] = {}
        self._servers = [servers.setdefault(tool.server, len(servers)) for tool in tools]
        self._server_boosts = [_SERVER_MATCH_BOOST + _LIST_POSITION_BOOST * early for early in _position_scores(tools)]
        gathered = _build_postings([_fields(tool) for tool in tools])
        self._rarities = {term: _idf(count, len(postings)) for term, postings in gathered.items()}
        self._postings = {
            # Everything that does not depend on the query is computed here, so that a search only
            # adds numbers.
            term: [(at, worth * (_BM25_K1 + 1) / (worth + _BM25_K1) * rarity) for at, worth in postings.items()]
            for (term, postings), rarity in zip(gathered.items(), self._rarities.values(), strict=True)
        }

        # Frequent terms are not used as synonyms, because they do not discriminate.
        self._telling = {
            term for term, postings in gathered.items() if len(postings) <= max(count // 10, SMALL_INDEX_SIZE)
        }

    def search(self, query: str, limit: int, visible: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """Return the positions and scores of the best matches. `visible` has a zero for each tool to exclude."""
        term_weights = self._parse_query(query[:MAX_QUERY_CHARS])
        scores = [0.0] * self._count
        terms = self._expand_synonyms(term_weights)
        for term, share in terms:
            for at, worth in self._postings[term]:
                scores[at] += worth * share
        if not terms:
            # Only if no term is known: a typing error in one of several words is outweighed by the
            # others.
            scores = self._fuzzy_matches(term_weights)
        if visible is not None:
            scores = [score if is_visible else 0.0 for score, is_visible in zip(scores, visible, strict=True)]
        # `nlargest` is stable, so equal scores keep the order of the catalog.
        best = nlargest(max(limit, MAX_CANDIDATES), range(self._count), key=scores.__getitem__)
        return self._rerank(term_weights, [(at, scores[at]) for at in best if scores[at] > 0])[:limit]

    def search_many(self, queries: Sequence[str], limit: int, visible: Sequence[int] | None = None) -> list[list[int]]:
        """Return the best matches for each of several queries.

        A tool that an earlier query returned is repeated, without taking the place of another one.
        """
        returned: set[int] = set()
        chosen: list[list[int]] = []
        for query in queries:
            result = [at for at, _ in self.search(query, limit + len(returned), visible)]
            fresh = [at for at in result if at not in returned][:limit]
            repeated = [at for at in result[:limit] if at in returned]
            chosen.append(sorted({*fresh, *repeated}, key=result.index))
            returned.update(fresh)
        return chosen

    def _parse_query(self, query: str) -> dict[str, float]:
        """Return the terms of a query with their weights."""
        text, kinds, inside = strip_paths_and_urls(query)
        term_weights: dict[str, float] = {}
        tokens = tokenize(text)
        for term in tokens:
            term_weights[term] = (
                _LOW_SIGNAL_WEIGHT if term in _LOW_SIGNAL_WORDS else _NUMBER_WEIGHT if term.isdigit() else 1.0
            )
        for texts, share in ((kinds, _FILE_TYPE_WEIGHT), (inside, _PATH_TERM_WEIGHT)):
            for term in tokenize(texts):
                term_weights[term] = max(share, term_weights.get(term, 0.0))
        # `word cloud` also matches `wordcloud`.
        for first, two in pairwise(tokens):
            if first + two in self._postings:
                term_weights[first + two] = 1.0
        return dict(list(term_weights.items())[:MAX_QUERY_TERMS])

    def _expand_synonyms(self, term_weights: dict[str, float]) -> list[tuple[str, float]]:
        """Return the indexed query terms and synonyms with their weights.

        A synonym counts once, for the closest term, and never more than the term itself.
        """
        result = {term: share for term, share in term_weights.items() if term in self._postings}
        others: dict[str, float] = {}
        for term, share in term_weights.items():
            # Generic words and parts of paths are not expanded.
            if share < 0.5:
                continue
            indexed_terms = [
                synonym
                for synonym in find_synonyms(term)
                if synonym[1] >= _MIN_SYNONYM_SIMILARITY and synonym[0] in self._telling
            ][:_MAX_SYNONYMS]
            own = self._rarities.get(term, math.inf)
            for other, similarity in indexed_terms:
                # A rare synonym of a common word would otherwise outrank the word itself: its IDF
                # is limited to that of the term.
                worth = share * similarity * _SYNONYM_WEIGHT * min(1.0, own / self._rarities[other])
                if other not in term_weights:
                    others[other] = max(worth, others.get(other, 0.0))
        return [*result.items(), *others.items()]

    def _rerank(self, term_weights: dict[str, float], best: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """Boost matches in the name and tools of servers with other matches, and sort."""
        results: list[tuple[int, float]] = []
        by_server: dict[int, float] = {}
        for at, score in best:
            name = self._names[at]
            total_weight = sum(self._rarities[term] for term in name)
            matched_weight = sum(
                self._rarities[term] * min(1.0, term_weights[term]) for term in name if term in term_weights
            )
            # The share of the name's IDF that the query covers: `create issue` matches create_issue
            # completely and create_issue_comment in part.
            score *= 1 + _NAME_MATCH_BOOST * matched_weight / total_weight if total_weight else 1
            results.append((at, score))
            server = self._servers[at]
            by_server[server] = max(score, by_server.get(server, 0.0))
        combined = [(at, score + self._server_boosts[at] * by_server[self._servers[at]]) for at, score in results]
        return sorted(combined, key=lambda ranked: (-ranked[1], ranked[0]))

    @cached_property
    def _fuzzy_names(self) -> FuzzyNames:
        return FuzzyNames(self._postings)

    def _fuzzy_matches(self, term_weights: dict[str, float]) -> list[float]:
        """Return scores of tools that contain similar terms."""
        scores = [0.0] * self._count
        for term in term_weights:
            for at in {at for neighbor in self._fuzzy_names.nearest(term) for at, _ in self._postings[neighbor]}:
                scores[at] += 1 / (10 * len(term_weights))
        return scores


def _own_name(tool: ToolDocument) -> frozenset[str]:
    """Return the terms of a tool's name without the terms of its server, which a gateway prepends."""
    name = frozenset(tokenize(tool.name))
    return name - frozenset(tokenize(tool.server)) or name


def _position_scores(tools: Sequence[ToolDocument]) -> list[float]:
    """Return 1 for the first tool of a server down to 0 for its last: authors list important tools first.

    Tools without a server have no order.
    """
    result = [0.0] * len(tools)
    servers: dict[str, list[int]] = {}
    for at, tool in enumerate(tools):
        servers.setdefault(tool.server, []).append(at)
    servers.pop("", None)
    for positions in servers.values():
        for number, at in enumerate(sorted(positions, key=lambda at: tools[at].position)):
            result[at] = 1 - number / max(1, len(positions) - 1)
    return result


def _fields(tool: ToolDocument) -> dict[str, Counter[str]]:
    """Return the term counts of each field. The first sentence of a description is a separate field, because it states
    the purpose.
    """
    begins = " ".join(tool.description[:MAX_FIELD_CHARS].partition("\n\n")[0].split())
    sentence = _SENTENCE.match(begins)
    summary = sentence[1] if sentence is not None else begins[:MAX_SUMMARY_CHARS]
    texts = {
        "name": tool.name,
        "title": tool.title,
        "summary": summary,
        "rest": " ".join(tool.description[:MAX_FIELD_CHARS].split())[len(summary) :],
        "parameters": tool.parameters,
        "explanations": tool.parameter_descriptions,
        "server": tool.server,
    }
    return {field: Counter(tokenize(text)) for field, text in texts.items() if text}


def _build_postings(tools: Sequence[dict[str, Counter[str]]]) -> dict[str, dict[int, float]]:
    """Return the weighted frequency of each term by tool."""
    usual = {
        field: _mean_length([tool[field].total() for tool in tools if field in tool], len(tools)) for field in _FIELDS
    }
    result: dict[str, dict[int, float]] = {}
    for at, fields in enumerate(tools):
        for field, counted in fields.items():
            weight, length = _FIELDS[field].weight, _FIELDS[field].length
            share = weight / (1 - length + length * counted.total() / usual[field])
            for term, times in counted.items():
                postings = result.setdefault(term, {})
                postings[at] = postings.get(at, 0.0) + share * times
    return result


def _idf(tools: int, with_it: int) -> float:
    # The IDF of BM25 with 1 added, so that a term in more than half of the tools is not negative.
    return math.log(1 + (tools - with_it + 0.5) / (with_it + 0.5))


def _mean_length(lengths: Sequence[int], tools: int) -> float:
    return max(1.0, sum(lengths) / max(1, tools))
