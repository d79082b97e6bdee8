"""First ranking stage: match query terms against the postings (BM25).

The match of a memory is one integer, the sum of the contributions of its postings:

    score, in units of 1/SCORE_SCALE | one bit per term in the head | one bit per term

One addition per posting therefore collects everything the second stage needs, both database engines compute the same
sums, and comparing two of these integers compares their scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import compress, repeat
from typing import Any

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.search import id_allocator
from portico_services.memory.search.index import WEIGHT_SCALE
from portico_services.memory.search.namespace_boost import NamespaceMatch, match_namespaces

# Scores are integers: sums do not depend on the order of the postings, so SQLite and PostgreSQL rank equally. 24 bits
# of fraction are far below any difference that matters between two memories.
SCORE_SCALE = 1 << 24
# Postings read per query. In a large store, frequent terms are looked up only for memories that match a rare term.
MAX_POSTINGS_PER_TERM = 5_000
# Limits for near-duplicate queries.
MAX_SIMILAR_QUERY_TERMS, MAX_SIMILAR_POSTINGS = 8, 64
# In stores larger than this, document frequencies are counted before postings are read.
LARGE_STORE_MEMORIES = 5_000
MAX_FIRST_PASS_HITS = 160
# Document ids per range when PostgreSQL reads the postings of neighbours.
RANGE_LENGTH = 8
# Weights of the estimate that selects candidates: terms in the head, adjacent memories, and the best memory of the
# thread.
_HEAD_BOOST, _NEIGHBOUR_WEIGHT, _THREAD_WEIGHT = 2.0, 0.4, 0.5
# Maximum share of candidates without a thread. Their estimate is nearly their final score, so fewer are needed.
_STANDALONE_SHARE = 2 / 3
# The second stage gets at least this many candidates per result, and all candidates whose estimate is at least this
# share of the estimate of the last result.
_MIN_CANDIDATES_PER_RESULT, RERANK_CUTOFF = 4, 0.3

_POSITION_MASK = id_allocator.PLACES - 1
# A section of a transcript has 16 messages: a subject is discussed over some thirty.
SECTION_BITS = 4


class Postings(Struct):
    """Document ids that contain a term, with the weight of the term in each."""

    doc_ids: list[int] = []
    weights: list[int] = []

    def restrict(self, doc_ids: Set[int]) -> Postings:
        """Return the postings of the given documents."""
        # Not a loop: a search restricts up to 5,000 postings of each rare term.
        included = list(map(doc_ids.__contains__, self.doc_ids))
        return Postings(list(compress(self.doc_ids, included)), list(compress(self.weights, included)))


# One posting as a row: number of the term, document id, weight.
Row = tuple[int, int, int]

# Aggregate a column into one JSON array: decoding it is faster than fetching as many rows.
DOC_IDS_SQL = "coalesce(cast(json_agg(p.seat) as text), '[]')"
WEIGHTS_SQL = "coalesce(cast(json_agg(p.weight) as text), '[]')"


class TermMatches:
    """Matches of the query terms: a packed score per document id."""

    def __init__(self, terms: Mapping[str, float], memories: int) -> None:
        self.terms = terms
        self.document_count = memories
        # Terms that occur in the store, in the order of their bits, and their IDF.
        self.term_order: list[str] = []
        self.idfs: list[float] = []
        # Bit offsets of the head mask and of the score.
        self.head_shift = len(terms)
        self.shift = 2 * len(terms)
        self.bits = (1 << len(terms)) - 1
        self.scores: dict[int, int] = {}
        # Score of synonym matches, by document id: the IDF of the matched terms in units of 1/SCORE_SCALE.
        self.synonym_doc_ids: dict[int, int] = {}
        # Packed match of the best memory of each thread, and the union of the matches of its leading memories.
        self.thread_best: dict[int, int] = {}
        self.thread_masks: dict[int, int] = {}
        # The same sums and unions for the sections of transcripts, by document id without its last bits.
        self.section_scores: dict[int, int] = {}
        self.section_masks: dict[int, int] = {}

    def add(self, term: str, postings: Postings, frequency: int) -> None:
        """Add the postings of a term with document frequency `frequency`."""
        contribution, by_seat = self.add_term(term, frequency), self.scores
        get = by_seat.get
        for doc_id, weight in zip(postings.doc_ids, postings.weights, strict=True):
            by_seat[doc_id] = get(doc_id, 0) + contribution[weight]

    def add_all(self, by_term: Mapping[str, Postings]) -> None:
        """Add the postings of all query terms that have any."""
        for term in self.terms:
            if term in by_term:
                self.add(term, by_term[term], len(by_term[term].doc_ids))

    def add_term(self, term: str, frequency: int) -> TermWeights:
        """Register the next query term and return the contribution of its postings by weight."""
        idf = self.idf(frequency)
        bit = 1 << len(self.term_order)
        self.term_order.append(term)
        self.idfs.append(idf)
        # Divided by the logarithm of the store size, so that a score means about the same in a store of ten memories
        # and in one of a million. The fitted weights of the reranker rely on that.
        unit = SCORE_SCALE * self.terms[term] * idf / (WEIGHT_SCALE * math.log(2 + self.document_count))
        return TermWeights(unit, self.shift, (bit, bit << self.head_shift | bit))

    def idf(self, frequency: int) -> float:
        """Return the inverse document frequency of a term that `frequency` documents contain."""
        # The 1 inside the logarithm keeps the IDF positive for terms that most documents contain, as in Lucene. The
        # maximum guards against a frequency above the document count.
        return math.log(1 + max(0.0, self.document_count - frequency + 0.5) / (frequency + 0.5))

    def term_idf(self, term: str) -> float:
        """Return the IDF of a query term. A term that no memory contains has the highest IDF."""
        return (
            self.idfs[self.term_order.index(term)] if term in self.term_order else math.log(2 + 2 * self.document_count)
        )

    def boost_namespace(self, named: NamespaceMatch) -> None:
        """Add a namespace as a term that all memories of its scopes contain.

        Memories that match no other term are limited to the newest ones of each scope.
        """
        doc_ids = dict.fromkeys(
            [doc_id for doc_id in self.scores if doc_id >> id_allocator.SCOPE_SHIFT in named.scopes]
        )
        doc_ids |= dict.fromkeys(named.newest)
        self.add(named.term, Postings(list(doc_ids), [WEIGHT_SCALE << 1] * len(doc_ids)), named.memories)

    def collect_threads(self, limit: int) -> list[tuple[int, int]]:
        """Return the best `limit` matches and record the matches of their threads."""
        best, together = self.thread_best, self.thread_masks
        leading = self.top(limit)
        for value, doc_id in leading:
            thread = doc_id >> id_allocator.POSITION_BITS
            if thread in best:
                together[thread] |= value
            else:
                best[thread] = together[thread] = value
        return leading

    def collect_sections(self, threads: Collection[int]) -> None:
        """Record the matches of each section of the given threads."""
        sums, masks, shift = self.section_scores, self.section_masks, self.shift
        for doc_id, value in self.scores.items():
            if doc_id >> id_allocator.POSITION_BITS in threads:
                section = doc_id >> SECTION_BITS
                sums[section] = sums.get(section, 0) + (value >> shift)
                masks[section] = masks.get(section, 0) | value

    def candidates(self, limit: int, results_needed: int | None = None) -> list[int]:
        """Return the document ids for the second stage: the best matches and their neighbours.

        If only `results_needed` results are needed, candidates with a low estimate are dropped.
        """
        leading = self.collect_threads(limit)
        get, thread_best = self.scores.get, self.thread_best
        head_shift, bits, heads = self.head_shift, self.bits, MaskSums(self._head_weights())
        in_threads = [doc_id for _, doc_id in leading if doc_id & _POSITION_MASK != id_allocator.ALONE]
        best = [doc_id for _, doc_id in leading[: limit // 2] if doc_id & _POSITION_MASK != id_allocator.ALONE]
        # A reply often answers a matching message without repeating its words, so neighbours of the best half become
        # candidates too. Position 0 has no predecessor.
        neighbours = {doc_id + step for doc_id in best for step in (1, 2, -1) if doc_id & _POSITION_MASK or step > 0}
        # The mask bits are added together with the scores. Their value is far below the precision that matters.
        ranked = [
            (
                (own := get(doc_id, 0))
                + heads[own >> head_shift & bits]
                + _NEIGHBOUR_WEIGHT * (get(doc_id - 1, 0) + get(doc_id + 1, 0) + get(doc_id - 2, 0))
                + _THREAD_WEIGHT * thread_best[doc_id >> id_allocator.POSITION_BITS],
                doc_id,
            )
            for doc_id in neighbours.union(in_threads)
        ]
        alone = [
            (own + heads[own >> head_shift & bits] + _THREAD_WEIGHT * own, doc_id)
            for own, doc_id in leading
            if doc_id & _POSITION_MASK == id_allocator.ALONE
        ]
        alone.sort(reverse=True)
        ranked += alone[: math.ceil(_STANDALONE_SHARE * limit)]
        ranked.sort(reverse=True)
        del ranked[limit:]
        if results_needed is not None and len(ranked) > _MIN_CANDIDATES_PER_RESULT * results_needed:
            threshold = RERANK_CUTOFF * ranked[results_needed - 1][0]
            while len(ranked) > _MIN_CANDIDATES_PER_RESULT * results_needed and ranked[-1][0] < threshold:
                ranked.pop()
        return [doc_id for _, doc_id in ranked]

    def top(self, limit: int) -> list[tuple[int, int]]:
        """Return the highest packed scores with their document ids; on a tie, the newest first."""
        by_seat = self.scores
        doc_ids = self._prefilter_top(limit) if len(by_seat) > 8 * limit else list(by_seat)
        # Postings arrive sorted, and two sorts of integers are faster than one sort of pairs.
        doc_ids.sort(reverse=True)
        doc_ids.sort(key=by_seat.__getitem__, reverse=True)
        return [(by_seat[doc_id], doc_id) for doc_id in doc_ids[:limit]]

    def _prefilter_top(self, limit: int) -> list[int]:
        """Return at least `limit` of the documents with the highest scores.

        The threshold comes from a sample of one in eight: it is chosen so that about twice as many documents reach it.
        """
        # `limit // 4` in a sample of one in eight stands for twice `limit` in the whole. With an unlucky sample the
        # threshold is too high; then everything is sorted.
        sample = sorted(list(self.scores.values())[::8], reverse=True)
        threshold = sample[limit // 4]
        high = [doc_id for doc_id, value in self.scores.items() if value >= threshold]
        return high if len(high) >= limit else list(self.scores)

    def is_adjacent_match(self, doc_id: int) -> bool:
        """Return whether a memory, or one adjacent to it, matches a query term or a synonym."""
        return doc_id in self.synonym_doc_ids or any(doc_id + step in self.scores for step in (0, -1, 1, -2))

    def _head_weights(self) -> list[float]:
        """Return the boost of each term that occurs in the head, in units of packed scores."""
        unit = _HEAD_BOOST * SCORE_SCALE * (1 << self.shift) / math.log(2 + self.document_count)
        return [unit * self.terms[term] * idf for term, idf in zip(self.term_order, self.idfs, strict=True)]


class TermWeights(dict[int, int]):
    """Contribution of a posting to the packed score, by the weight of the posting. Few distinct weights occur."""

    def __init__(self, unit: float, shift: int, bits: tuple[int, int]) -> None:
        self._unit = unit
        self._shift = shift
        # Bits of a term outside the head, and of a term in the head.
        self._bits = bits

    def __missing__(self, weight: int) -> int:
        self[weight] = value = round(self._unit * (weight >> 1)) << self._shift | self._bits[weight & 1]
        return value


class MaskSums(dict[int, float]):
    """Sums of term values by bit mask of terms, computed on first use. Few distinct masks occur."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values
        self[0] = 0.0

    def __missing__(self, mask: int) -> float:
        # Clear the highest bit and reuse the sum of the rest.
        last = mask.bit_length() - 1
        self[mask] = total = self[mask ^ 1 << last] + self._values[last]
        return total


class AuthorMatches(Struct, frozen=True):
    """Authors whom the query names, and the scopes they have written in."""

    authors: Collection[int]
    scopes: Collection[int]


class KnownPostings(Struct):
    """What previous passes of a search have read, so that a further pass reads only the rest."""

    # Document frequency of each term counted so far.
    counts: dict[str, int] = {}
    # All postings of rare terms and of rare synonyms, with weights for terms only.
    terms: dict[str, Postings] = {}
    synonyms: dict[str, list[int]] = {}
    # Authors whom the query names, and the words that name them.
    authors: tuple[AuthorMatches, set[str]] | None = None


def match_terms(
    tx: Transaction, terms: Mapping[str, float], scopes: Sequence[int] | None, memories: int, known: KnownPostings
) -> TermMatches:
    """Match the query terms and return the scores.

    `scopes` limits the search to these scopes, which hold `memories` memories; None searches all of them.
    """
    # Their terms are added last: a namespace applies to documents that match another term, and to its newest ones.
    namespaces = list(match_namespaces(tx, terms, scopes))
    term_matches = TermMatches({**terms, **{namespace.term: namespace.share for namespace in namespaces}}, memories)
    if memories > LARGE_STORE_MEMORIES:
        frequent = _match_rare_terms(tx, term_matches, _document_frequencies(tx, terms, scopes, known), scopes, known)
        if frequent:
            best = [doc_id for _, doc_id in term_matches.top(MAX_FIRST_PASS_HITS)]
            _match_frequent_terms(tx, term_matches, frequent, sorted({*best, *_adjacent_doc_ids(best)}))
    else:
        term_matches.add_all(_read_postings(tx, list(terms), scopes))
    for namespace in namespaces:
        term_matches.boost_namespace(namespace)
    return term_matches


def match_terms_in(
    tx: Transaction,
    terms: Mapping[str, float],
    scopes: Sequence[int] | None,
    memories: int,
    known: KnownPostings,
    doc_ids: Sequence[int],
) -> TermMatches:
    """Match the query terms in the given documents, and in the neighbours of the best of them."""
    term_matches = TermMatches(terms, memories)
    frequencies = _document_frequencies(tx, terms, scopes, known)
    own = _postings_at(tx, [term for _, term in frequencies], doc_ids, known)
    first = TermMatches(terms, memories)
    for frequency, term in frequencies:
        first.add(term, own[term], frequency)
    # Neighbours are read for the best documents only: features of neighbours matter for documents that can still reach
    # the page.
    adjacent = _adjacent_doc_ids(doc_id for _, doc_id in first.top(MAX_FIRST_PASS_HITS)) - set(doc_ids)
    around = _postings_at(tx, [term for _, term in frequencies], sorted(adjacent), known)
    for frequency, term in frequencies:
        inside, other = own[term], around[term]
        term_matches.add(term, Postings(inside.doc_ids + other.doc_ids, inside.weights + other.weights), frequency)
    term_matches.collect_threads(MAX_FIRST_PASS_HITS)
    return term_matches


def _adjacent_doc_ids(doc_ids: Iterable[int]) -> set[int]:
    """Return the document ids adjacent to the given ones, two on each side."""
    return {
        doc_id + step for doc_id in doc_ids if doc_id & _POSITION_MASK != id_allocator.ALONE for step in (-2, -1, 1, 2)
    }


def most_similar(tx: Transaction, terms: Mapping[str, float], scope: int, memories: int, limit: int) -> list[int]:
    """Return the documents of a scope that share the most terms with a text.

    Only the longest terms are read: a near-duplicate contains the rare terms, and long words are seldom frequent.
    """
    longest = sorted(terms, key=lambda term: (-len(term), term))[:MAX_SIMILAR_QUERY_TERMS]
    term_matches = TermMatches({term: terms[term] for term in longest}, memories)
    by_seat = term_matches.scores
    get = by_seat.get
    for postings, term in _read_rare_postings(tx, longest, scope) or _read_frequent_postings(tx, longest, scope):
        contribution = term_matches.add_term(term, len(postings))
        for _, doc_id, weight in postings:
            by_seat[doc_id] = get(doc_id, 0) + contribution[weight]
    # Near-duplicates share most of their terms, so they share at least some of the long ones.
    minimum = math.ceil(len(term_matches.term_order) / 4)
    return [doc_id for value, doc_id in term_matches.top(limit) if (value & term_matches.bits).bit_count() >= minimum]


def _match_rare_terms(
    tx: Transaction,
    matches: TermMatches,
    frequencies: list[tuple[int, str]],
    scopes: Sequence[int] | None,
    known: KnownPostings,
) -> list[tuple[int, str]]:
    """Add the postings of the rarest terms within the budget; return the remaining terms with their document
    frequencies.
    """
    left = MAX_POSTINGS_PER_TERM
    frequent: list[tuple[int, str]] = []
    for frequency, term in frequencies:
        # The rarest term is always read, even if it alone exceeds the budget.
        if frequency > left and left < MAX_POSTINGS_PER_TERM:
            frequent.append((frequency, term))
        else:
            postings = _postings_of(tx, term, scopes, left)
            matches.add(term, postings, frequency)
            if frequency <= left:
                known.terms[term] = postings
            left -= frequency
    return frequent


def _match_frequent_terms(
    tx: Transaction, matches: TermMatches, frequent: list[tuple[int, str]], adjacent: list[int]
) -> None:
    """Add the postings of frequent terms for the documents that matched a rare term."""
    by_term = _postings_at(tx, [term for _, term in frequent], adjacent)
    for frequency, term in frequent:
        matches.add(term, by_term[term], frequency)


def _postings_at(
    tx: Transaction, terms: Sequence[str], doc_ids: Sequence[int], known: KnownPostings | None = None
) -> dict[str, Postings]:
    """Return the postings of each term, limited to the given documents. Known postings are not read again."""
    included = set(doc_ids)
    result = {term: Postings() for term in terms}
    if known is not None:
        result |= {term: known.terms[term].restrict(included) for term in terms if term in known.terms}
    unread = [term for term in terms if known is None or term not in known.terms]
    if unread and doc_ids:
        source, values = _postings_near(tx, doc_ids)
        sql = f"select p.term, {DOC_IDS_SQL}, {WEIGHTS_SQL} from {source} p.term in :terms group by p.term"
        for term, at, weights in tx.fetch_all(tuple[str, list[int], list[int]], sql, {"terms": unread, **values}):
            postings = Postings(at, weights)
            result[term] = postings.restrict(included) if "starts" in values else postings
    return result


def _postings_near(tx: Transaction, doc_ids: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Return the FROM and WHERE clause for the postings of the given documents, and its parameters. On PostgreSQL, it
    may include documents near them.
    """
    starts: list[int] = []
    # A range takes SQLite a quarter longer than a lookup by id, and PostgreSQL less than two lookups.
    for doc_id in sorted(doc_ids) if tx.engine == "postgresql" else ():
        if not starts or doc_id >= starts[-1] + RANGE_LENGTH:
            starts.append(doc_id)
    if not starts or 2 * len(starts) > len(doc_ids):
        return "memory_posting as p where p.seat in :seats and", {"seats": list(doc_ids)}
    source = (
        "unnest(cast(:starts as bigint[])) as r (start) cross join memory_posting as p "
        f"where p.seat >= r.start and p.seat < r.start + {RANGE_LENGTH} and"
    )
    return source, {"starts": starts}


def _document_frequencies(
    tx: Transaction, query_terms: Iterable[str], scopes: Sequence[int] | None, known: KnownPostings
) -> list[tuple[int, str]]:
    """Return the document frequencies of the terms that occur in the store, rarest first.

    Frequencies are capped just above MAX_POSTINGS_PER_TERM.
    """
    query_terms = list(query_terms)
    counts = known.counts
    terms = [term for term in query_terms if term not in counts]
    if terms:
        counts.update(_counts(tx, terms, scopes))
    return sorted((counts[term], term) for term in query_terms if counts[term])


def _counts(tx: Transaction, terms: list[str], scopes: Sequence[int] | None) -> dict[str, int]:
    source, values = scope_ranges(scopes)
    # Skipping to the row after the limit is faster than counting all postings of a frequent term.
    template = (
        "select {0}, coalesce((select {1} from {2} p.term = :term_{0} limit 1 offset {3}), "
        "(select count(*) from {2} p.term = :term_{0}))"
    )
    sql = union_per_term(template.format("{0}", MAX_POSTINGS_PER_TERM + 1, source, MAX_POSTINGS_PER_TERM), len(terms))
    return {terms[number]: frequency for number, frequency in tx.fetch_all(tuple, sql, values | term_values(terms))}


def _read_postings(tx: Transaction, terms: Sequence[str], scopes: Sequence[int] | None) -> dict[str, Postings]:
    """Return the postings of the terms that occur in the given scopes."""
    source, values = scope_ranges(scopes)
    sql = union_per_term(f"select {{0}}, {DOC_IDS_SQL}, {WEIGHTS_SQL} from {source} p.term = :term_{{0}}", len(terms))
    rows = tx.fetch_all(tuple[int, list[int], list[int]], sql, values | term_values(terms)) if terms else []
    return {terms[number]: Postings(doc_ids, weights) for number, doc_ids, weights in rows if doc_ids}


def _postings_of(tx: Transaction, term: str, scopes: Sequence[int] | None, limit: int) -> Postings:
    """Return the newest `limit` postings of a term."""
    source, values = scope_ranges(scopes)
    newest = f"select p.seat, p.weight from {source} p.term = :term order by {order_newest_first(scopes)} limit :most"
    sql = f"select {DOC_IDS_SQL}, {WEIGHTS_SQL} from ({newest}) as p"
    return Postings(*tx.fetch_one(tuple[list[int], list[int]], sql, {"term": term, "most": limit, **values}))


# The postings of one of several terms within a scope. For a frequent term, which has a posting beyond the limit, the
# range is empty.
_OF_TERM = "from memory_posting where term = :term_{0} and seat >= :first and seat <"
_RARE = (
    f"select {{0}} as number, seat, weight {_OF_TERM} "
    f"coalesce((select :first {_OF_TERM} :end limit 1 offset {MAX_SIMILAR_POSTINGS - 1}), :end)"
)


def _read_rare_postings(tx: Transaction, terms: Sequence[str], scope: int) -> list[tuple[list[Row], str]]:
    """Return the postings of the terms that occur in a scope but are not frequent there, rarest first."""
    first = id_allocator.first_doc_id(scope)
    values = term_values(terms) | {"first": first, "end": first + id_allocator.SCOPE}
    read: list[list[Row]] = [[] for _ in terms]
    for row in tx.fetch_all(tuple, union_per_term(_RARE, len(terms)), values):
        read[row[0]].append(row)
    result = [(rows, term) for rows, term in zip(read, terms, strict=True) if rows]
    return sorted(result, key=lambda entry: len(entry[0]))


def _read_frequent_postings(tx: Transaction, terms: Sequence[str], scope: int) -> list[tuple[list[Row], str]]:
    """Return the newest postings of the first term that occurs in a scope, as a fallback when all terms are
    frequent.
    """
    for number, term in enumerate(terms):
        postings = _postings_of(tx, term, [scope], MAX_SIMILAR_POSTINGS)
        if postings.doc_ids:
            return [(list(zip(repeat(number), postings.doc_ids, postings.weights)), term)]
    return []


def scope_ranges(scopes: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
    """Return the FROM and WHERE clause for postings of the given scopes, and its parameters.

    A scope is a range of document ids, so each scope is one range scan of the index. `cross join` makes SQLite iterate
    over the scopes first.
    """
    if scopes is None:
        return "memory_posting as p where", {}
    if len(scopes) == 1:
        first = id_allocator.first_doc_id(scopes[0])
        values = {"first": first, "end": first + id_allocator.SCOPE}
        return "memory_posting as p where p.seat >= :first and p.seat < :end and", values
    source = (
        "memory_scope as s cross join memory_posting as p where s.number in :scopes "
        f"and p.seat >= s.number * {id_allocator.SCOPE} and p.seat < (s.number + 1) * {id_allocator.SCOPE} and"
    )
    return source, {"scopes": list(scopes)}


@lru_cache(256)
def union_per_term(sql: str, terms: int) -> str:
    """Return one UNION ALL statement with a part for each term, which is simpler for the query planner than an IN
    list.
    """
    return " union all ".join([sql.format(number) for number in range(terms)])


def term_values(terms: Iterable[str]) -> dict[str, Any]:
    return {f"term_{number}": term for number, term in enumerate(terms)}


def order_newest_first(scopes: Sequence[int] | None) -> str:
    """Return the ORDER BY clause that reads the rows of `scope_ranges` newest first.

    With several scopes it also names the scope, so that SQLite reads in index order instead of sorting.
    """
    return "p.seat desc" if scopes is None or len(scopes) == 1 else "s.number desc, p.seat desc"
