"""Second stage of retrieval: rerank the candidates by a weighted sum of features.

Each feature has a name and a weight in `weights.txt`. The weights are fitted by `benchmarks/fit_memory_weights.py`, one
set for each kind of memory, with and without embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import mul
from pathlib import Path
from typing import NamedTuple

from portico.caching import LruCache
from portico_services.memory.search import id_allocator
from portico_services.memory.search.analyzer import (
    FIRST_PERSON,
    FOLLOWS_QUESTION,
    HAS_NAMES,
    HAS_NUMBER,
    HAS_TIME,
    IS_QUESTION,
    IS_REPLY,
    IS_STANDING_INSTRUCTION,
    SECOND_PERSON,
)
from portico_services.memory.search.bm25 import SCORE_SCALE, SECTION_BITS, AuthorMatches, MaskSums, TermMatches
from portico_services.memory.search.candidates import TRANSCRIPT, Candidate, CandidateSet
from portico_services.memory.search.id_allocator import ASSISTANT, NOTE, PERSON, USER
from portico_services.memory.search.namespace_boost import NAMESPACE_BY_TERM
from portico_services.memory.search.query import ParsedQuery, QueryIntent

FEATURES = (
    "words",  # BM25 score
    "head",  # share of the query terms that occur in its head
    "around",  # share of the query by IDF that it and two neighbours on each side contain
    "further_around",  # the same in the heads of four neighbours on each side
    "before",  # BM25 score of the previous message
    "after",  # … of the next message
    "before_two",  # … two before, by the same author in a dialogue
    "thread_best",  # BM25 score of the best message of its thread
    "thread_share",  # share of the query that its thread contains
    "alike",  # share of the query by IDF that it matches through synonyms
    "before_answer",  # `before` of a message that follows a question
    "around_answer",  # `further_around` of such a message
    "named",  # written by an author whom the query names
    "named_head",  # `head`, for those
    "in_company",  # written by another author in a scope of the named author
    "own_share",  # share of the query by IDF that it contains; this and the next two in transcripts only
    "section",  # BM25 score of all messages of its section and of the nearest adjacent one
    "section_share",  # share of the query by IDF that these contain
    "substance",  # number of content terms (logarithm)
    "broad_substance",  # the same, for a broad query
    "asks",
    "answers",  # follows a question
    "opens",  # first message of its thread
    "replies",  # begins like a reply: yes, thanks, hmm
    "to_other",  # second person
    "of_self",  # first person
    "names",  # contains names
    "number",
    "time",
    "when_time",  # mentions a time, and the query asks for one
    "standing",  # standing instruction, and the query is a request
    "at_all",  # constant 1: the bias of each kind of memory
)  # fmt: skip

FIRST_TEXT_FEATURE = FEATURES.index("substance")

# Features that equal another one in messages that follow a question, and are 0 elsewhere. Their weight is added to that
# of the other feature before candidates are scored, so they cost nothing per candidate.
_ANSWER_FEATURES = {"before_answer": "before", "around_answer": "further_around"}


# A result is strong if it covers at least this share of the query or is at least this similar. Chosen by asking
# questions of the wrong conversation (`benchmarks/recall_calibration.py`, docs/decisions/recall.md).
MIN_STRONG_SHARE, MIN_SIMILARITY = 0.35, 0.5
# Cached text scores per query intent.
MAX_CACHED_SCORES = 4096
_POSITION_MASK = id_allocator.PLACES - 1

# Weights of the features before FIRST_TEXT_FEATURE except those of answers, for each kind of memory, by the flag
# FOLLOWS_QUESTION.
FeatureWeights = Sequence[Mapping[int, tuple[float, ...]]]


class ScoredMemory(NamedTuple):
    """A search result: memory id, score relative to the best result (0 to 1), whether it covers little of the query,
    and its similarity if there is a query embedding.
    """

    memory: str
    score: float
    is_weak: bool = False
    similarity: float | None = None


class FeatureScorer:
    """Scores candidates by the features that depend on the query."""

    def __init__(self, question: ParsedQuery, matches: TermMatches, author_matches: AuthorMatches) -> None:
        self._matches = matches
        self._named = author_matches
        self._about = ASSISTANT if question.intent.about_assistant else USER
        self._shares, self._rarities, self._everything = _query_coverage(matches)

    def query_shares(self, candidates: Iterable[Candidate]) -> list[float]:
        """Return how much of the query each candidate covers by IDF, from 0 to about 1: its own terms count two thirds,
        those of it and its neighbours a third, and synonyms half.
        """
        matches, idf_shares = self._matches, self._rarities
        get, bits, synonym_scores = matches.scores.get, matches.bits, matches.synonym_doc_ids.get
        # An unknown term counts like one that a single memory contains. Its own IDF would dominate in a small store.
        # A term that names a namespace of the store is known, even if no text contains it.
        unknown = sum(
            share
            for term, share in matches.terms.items()
            if term not in matches.term_order and f"ns:{NAMESPACE_BY_TERM.get(term)}" not in matches.term_order
        )
        matched_idf = sum(matches.terms[term] * idf for term, idf in zip(matches.term_order, matches.idfs, strict=True))
        total = (matched_idf + unknown * matches.idf(1)) or 1.0
        scale, unit = self._everything / total / 3, 1 / (2 * SCORE_SCALE * total)
        results = []
        for doc_id, _, _, kind, _, _ in candidates:
            own = around = get(doc_id, 0)
            if kind != NOTE:
                around = own | get(doc_id - 1, 0) | get(doc_id + 1, 0) | get(doc_id - 2, 0) | get(doc_id + 2, 0)
            results.append(
                (2 * idf_shares[own & bits] + idf_shares[around & bits]) * scale + synonym_scores(doc_id, 0) * unit
            )
        return results

    def score(self, candidates: Iterable[Candidate], weights: FeatureWeights) -> list[float]:
        """Return the weighted sum of the features before FIRST_TEXT_FEATURE for each candidate.

        A search spends most of its time here, hence one loop without a list of features.
        """
        matches, shares, idf_shares = self._matches, self._shares, self._rarities
        get, head_shift, bits = matches.scores.get, matches.head_shift, matches.bits
        thread_best, thread_all, synonym_scores = (
            matches.thread_best.get,
            matches.thread_masks.get,
            matches.synonym_doc_ids.get,
        )
        authors, scopes, about = self._named.authors, self._named.scopes, self._about
        unit, alike_unit = 1 / (SCORE_SCALE << matches.shift), 1 / (SCORE_SCALE * self._everything)
        section_of, section_mask, section_unit = matches.section_scores.get, matches.section_masks.get, 1 / SCORE_SCALE
        # Integers of the packed matches are scaled once per candidate (`unit`) instead of once per feature.
        dialogue, persons = (USER, ASSISTANT), (PERSON, TRANSCRIPT)
        results: list[float] = []
        for doc_id, _, author, kind, _, flags in candidates:
            (
                of_words, of_head, of_around, of_further, of_before, of_after, of_before_two, of_best, of_share,
                of_alike, of_named, of_named_head, of_company, of_own_share, of_section, of_section_share,
            ) = weights[kind][flags & FOLLOWS_QUESTION]  # fmt: skip
            # Packed matches of the memory and of its neighbours.
            own, thread = get(doc_id, 0), doc_id >> id_allocator.POSITION_BITS
            head = shares[own >> head_shift & bits]
            term_score = of_words * own + of_best * thread_best(thread, 0)
            # Packed matches can be combined with OR, because only the mask bits of the result are read.
            around = further = own
            if kind != NOTE:
                before, after, before_two = get(doc_id - 1, 0), get(doc_id + 1, 0), get(doc_id - 2, 0)
                around = own | before | after | before_two | get(doc_id + 2, 0)
                further = around | get(doc_id - 3, 0) | get(doc_id + 3, 0) | get(doc_id - 4, 0) | get(doc_id + 4, 0)
                term_score += of_before * before + of_after * after + of_before_two * before_two
            score = (
                term_score * unit
                + of_head * head
                + of_around * idf_shares[around & bits]
                + of_further * idf_shares[further >> head_shift & bits]
                + of_share * idf_shares[thread_all(thread, 0) & bits]
                + of_alike * synonym_scores(doc_id, 0) * alike_unit
            )
            if kind == TRANSCRIPT:
                section = doc_id >> SECTION_BITS
                # The other section is the one that the message is nearer to.
                neighbour = section + 1 if doc_id >> SECTION_BITS - 1 & 1 else section - 1
                together = section_of(section, 0) + section_of(neighbour, 0)
                mask = section_mask(section, 0) | section_mask(neighbour, 0)
                score += (
                    of_own_share * idf_shares[own & bits]
                    + of_section * together * section_unit
                    + of_section_share * idf_shares[mask & bits]
                )
            # “What did you recommend” names the assistant, and any other query the user, in conversations whose authors
            # have no names. Otherwise the author must be one whom the query names.
            if kind == about if kind in dialogue else author in authors:
                score += of_named + of_named_head * head
            elif kind in persons and doc_id >> id_allocator.SCOPE_SHIFT in scopes:
                score += of_company
            results.append(score)
        return results


def text_features(kind: int, words: int, flags: int, opens: bool, question: QueryIntent) -> tuple[float, ...]:
    """Return the features from FIRST_TEXT_FEATURE on, which depend only on the text and the intent of the query.
    Booleans count as 1 or 0.
    """
    substance = math.log(1 + words)
    return (
        substance,
        substance if question.is_broad else 0.0,
        flags & IS_QUESTION != 0,
        flags & FOLLOWS_QUESTION != 0,
        opens,
        flags & IS_REPLY != 0,
        flags & SECOND_PERSON != 0,
        flags & FIRST_PERSON != 0,
        flags & HAS_NAMES != 0,
        flags & HAS_NUMBER != 0,
        flags & HAS_TIME != 0,
        question.asks_when and flags & HAS_TIME != 0,
        question.is_request and kind != ASSISTANT and flags & IS_STANDING_INSTRUCTION != 0,
        1.0,
    )


def _query_coverage(matches: TermMatches) -> tuple[MaskSums, MaskSums, float]:
    """Return the share of the query that a set of terms covers, by weight and by weighted IDF, and the total weighted
    IDF.
    """
    terms, order = matches.terms, matches.term_order
    # Terms that no memory contains count too: a query with one unknown term of two is half answered.
    unknown = sum(share for term, share in terms.items() if term not in order)
    shares = [terms[term] for term in order]
    total = (sum(shares) + unknown) or 1.0
    idf_shares = [share * idf for share, idf in zip(shares, matches.idfs, strict=True)]
    total_idf = (sum(idf_shares) + unknown * math.log(2 + 2 * matches.document_count)) or 1.0
    return MaskSums([item / total for item in shares]), MaskSums([item / total_idf for item in idf_shares]), total_idf


def _weights() -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Load the weights for text search and for hybrid search: for each kind of memory, in the order of
    `id_allocator`.
    """
    lines = Path(__file__).with_name("weights.txt").read_text(encoding="utf-8").splitlines()
    rows = [[float(number) for number in line.split()[1:]] for line in lines if not line.startswith("#")]
    columns = list(zip(*rows, strict=True))
    # The user and the assistant share a column. The last feature is the similarity.
    by_words, by_both = ((*half[:4], half[3], half[4]) for half in (columns[:5], columns[5:]))
    return tuple(column[:-1] for column in by_words), tuple(by_both)


def _query_weights(weights: Sequence[float]) -> dict[int, tuple[float, ...]]:
    """Return the weights of the features before FIRST_TEXT_FEATURE, without and with those of answers, by the flag."""
    by_name = dict(zip(FEATURES[:FIRST_TEXT_FEATURE], weights, strict=False))
    additional = {_ANSWER_FEATURES[name]: by_name.pop(name) for name in _ANSWER_FEATURES}
    of_answer = tuple(value + additional.get(name, 0.0) for name, value in by_name.items())
    return {0: tuple(by_name.values()), FOLLOWS_QUESTION: of_answer}


# Read once at import: 33 lines, and every search needs them.
_WEIGHTS = _weights()
_TEXT_ONLY_WEIGHTS = tuple([_query_weights(weights) for weights in kinds] for kinds in _WEIGHTS)
_SIMILARITY_WEIGHTS = [weights[-1] for weights in _WEIGHTS[True]]
# Weights that select a single feature each, used to compute the feature matrix.
_SINGLE_FEATURE_WEIGHTS = [
    [_query_weights([float(name == other) for other in FEATURES])] * len(_TEXT_ONLY_WEIGHTS[0])
    for name in FEATURES[:FIRST_TEXT_FEATURE]
]


class _TextScores(LruCache[tuple[int, int, int, bool], float]):
    """Cached scores of the text features, by kind, number of terms, flags and whether the memory opens a thread.

    The same combinations occur again and again.
    """

    def __init__(self, with_embeddings: bool, intent: QueryIntent) -> None:
        super().__init__(MAX_CACHED_SCORES)
        self._weights = [weight[FIRST_TEXT_FEATURE:] for weight in _WEIGHTS[with_embeddings]]
        self._intent = intent

    def __missing__(self, text: tuple[int, int, int, bool]) -> float:
        result: float = sum(map(mul, self._weights[text[0]], text_features(*text, self._intent)))
        self[text] = result
        return result


_text_scores = lru_cache(64)(_TextScores)


def rerank(candidate_set: CandidateSet, limit: int) -> list[ScoredMemory]:
    """Return the best candidates by text features, and by similarity if there is a query embedding."""
    candidates, near = candidate_set.candidates, candidate_set.similarities
    scorer = FeatureScorer(candidate_set.query, candidate_set.matches, candidate_set.authors)
    scores = scorer.score(candidates, _TEXT_ONLY_WEIGHTS[near is not None])
    if near is not None:
        scores = [
            score + _SIMILARITY_WEIGHTS[candidate[3]] * close
            for score, candidate, close in zip(scores, candidates, near, strict=True)
        ]
    of_text = _text_scores(near is not None, candidate_set.query.intent)
    scored = [
        (score + of_text[kind, words, flags, not doc_id & _POSITION_MASK], doc_id, number)
        for number, (score, (doc_id, _, _, kind, words, flags)) in enumerate(zip(scores, candidates, strict=True))
    ]
    # On a tie, the newer memory first.
    scored.sort(reverse=True)
    del scored[limit:]
    best = [candidates[number] for *_, number in scored]
    similarities = [None if near is None else near[number] for *_, number in scored]
    return [
        ScoredMemory(
            memory,
            math.exp(score - scored[0][0]),
            share < MIN_STRONG_SHARE and (similarity is None or similarity < MIN_SIMILARITY),
            similarity,
        )
        for (score, *_), (_, memory, *_), share, similarity in zip(
            scored, best, scorer.query_shares(best), similarities, strict=True
        )
    ]


def rank_by_similarity(
    similarities: Mapping[int, float], candidates: Sequence[Candidate], limit: int
) -> list[ScoredMemory]:
    """Return the best candidates by cosine similarity alone; those without an embedding are left out."""
    scored = [(similarities[doc_id], doc_id, memory) for doc_id, memory, *_ in candidates if doc_id in similarities]
    # On a tie, the newer memory first.
    scored.sort(reverse=True)
    return [
        ScoredMemory(memory, max(0.0, similarity), similarity < MIN_SIMILARITY, similarity)
        for similarity, _, memory in scored[:limit]
    ]


def feature_rows(candidate_set: CandidateSet) -> list[tuple[float, ...]]:
    """Return the features of each candidate in the order of FEATURES, with the similarity appended if there is a query
    embedding. Used to fit the weights.
    """
    candidates, similarities = candidate_set.candidates, candidate_set.similarities
    scorer = FeatureScorer(candidate_set.query, candidate_set.matches, candidate_set.authors)
    query_features = zip(*[scorer.score(candidates, weights) for weights in _SINGLE_FEATURE_WEIGHTS], strict=True)
    texts = [
        text_features(kind, words, flags, not doc_id & _POSITION_MASK, candidate_set.query.intent)
        for doc_id, _, _, kind, words, flags in candidates
    ]
    rows = [(*features, *text) for features, text in zip(query_features, texts, strict=True)]
    return (
        rows
        if similarities is None
        else [(*row, similarity) for row, similarity in zip(rows, similarities, strict=True)]
    )
