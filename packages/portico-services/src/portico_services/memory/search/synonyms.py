"""Synonym expansion from a thesaurus: “which database” also matches `PostgreSQL`.

A query term counts once, through the closest synonym that a memory contains, and not at all if the memory contains the
term itself. A synonym counts as much as the IDF of the query term times its similarity to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portico.extend import Transaction
from portico.search import find_synonyms
from portico_services.memory.search.bm25 import (
    DOC_IDS_SQL,
    LARGE_STORE_MEMORIES,
    SCORE_SCALE,
    KnownPostings,
    TermMatches,
    order_newest_first,
    scope_ranges,
    term_values,
    union_per_term,
)

# Synonyms searched for, and the higher limit for synonyms at least this similar.
MAX_SYNONYMS, MAX_CLOSE_SYNONYMS, MIN_CLOSE_SIMILARITY = 12, 64, 0.54
# For a frequent synonym in a large store, only this many of the newest postings are read.
MAX_POSTINGS_PER_SYNONYM = 100
# Candidates added because of synonyms.
MAX_SYNONYM_CANDIDATES = 16


# Negative weight, synonym, query term, similarity. Tuples sort by weight, so the best comes first.
SynonymCandidate = tuple[float, str, str, float]


def expand_synonyms(
    tx: Transaction,
    matches: TermMatches,
    terms: Mapping[str, float],
    scopes: Sequence[int] | None,
    known: KnownPostings,
    within_doc_ids: Sequence[int] | None = None,
) -> list[int]:
    """Add synonym matches to the scores and return the documents with the highest ones.

    `within_doc_ids` limits the search to these documents.
    """
    # Weights are negative so that an ascending sort puts the best first without a key function.
    selected = _select_synonyms(matches, terms)
    if not selected:
        return []
    words = list(dict.fromkeys([word for _, word, _, _ in selected]))
    by_word = (
        _newest_postings(tx, words, scopes, matches.document_count, known)
        if within_doc_ids is None
        else _postings_among(tx, words, within_doc_ids, known)
    )
    nearest: dict[str, dict[int, int]] = {}
    # The closest synonym comes last and overwrites the others.
    for negative_weight, word, term, _ in reversed(selected):
        if doc_ids := by_word.get(word):
            nearest.setdefault(term, {}).update(dict.fromkeys(doc_ids, round(SCORE_SCALE * -negative_weight)))
    synonym_scores, get, get_own = matches.synonym_doc_ids, matches.synonym_doc_ids.get, matches.scores.get
    for term, values in nearest.items():
        # A term without postings has no bit, so every document may match it through a synonym.
        bit = 1 << matches.term_order.index(term) if term in matches.term_order else 0
        for doc_id, value in values.items():
            # The memory contains the query term itself; a synonym adds nothing.
            if not get_own(doc_id, 0) & bit:
                synonym_scores[doc_id] = get(doc_id, 0) + value
    return [
        doc_id
        for _, doc_id in sorted(zip(synonym_scores.values(), synonym_scores, strict=True), reverse=True)[
            :MAX_SYNONYM_CANDIDATES
        ]
    ]


def _select_synonyms(matches: TermMatches, terms: Mapping[str, float]) -> list[SynonymCandidate]:
    """Return the synonyms with the highest weights and all close ones, best first."""
    candidates: list[SynonymCandidate] = []
    for term, term_weight in terms.items():
        related = find_synonyms(term)
        if related:
            negative_weight = -term_weight * matches.term_idf(term)
            candidates += [
                (negative_weight * similarity, word, term, similarity)
                for word, similarity in related
                if word not in terms
            ]
    candidates.sort()
    return (
        candidates[:MAX_SYNONYMS]
        + [candidate for candidate in candidates[MAX_SYNONYMS:] if candidate[3] >= MIN_CLOSE_SIMILARITY][
            : MAX_CLOSE_SYNONYMS - MAX_SYNONYMS
        ]
    )


def _postings_among(
    tx: Transaction, words: list[str], doc_ids: Sequence[int], known: KnownPostings
) -> dict[str, list[int]]:
    """Return which of the given documents contain each word. Known postings are not read again."""
    doc_id_set = set(doc_ids)
    result = {word: [doc_id for doc_id in known.synonyms[word] if doc_id in doc_id_set] for word in known.synonyms}
    unread = [word for word in words if word not in result]
    if unread and doc_ids:
        source = "memory_posting as p where p.seat in :seats and"
        result |= _group_by_word(tx, unread, source, {"seats": list(doc_ids)})
    return result


def _newest_postings(
    tx: Transaction, words: list[str], scopes: Sequence[int] | None, document_count: int, known: KnownPostings
) -> dict[str, list[int]]:
    """Return the documents that contain each word; for a frequent word in a large store, the newest ones."""
    source, values = scope_ranges(scopes)
    if document_count <= LARGE_STORE_MEMORIES:
        return _group_by_word(tx, words, source, values)
    newest = (
        f"select p.seat from {source} p.term = :term_{{0}} "
        f"order by {order_newest_first(scopes)} limit {MAX_POSTINGS_PER_SYNONYM}"
    )
    sql = union_per_term(f"select {{0}}, {DOC_IDS_SQL} from ({newest}) as p", len(words))
    rows = tx.fetch_all(tuple[int, list[int]], sql, values | term_values(words))
    result = {words[number]: doc_ids for number, doc_ids in rows}
    known.synonyms |= {word: ids for word, ids in result.items() if len(ids) < MAX_POSTINGS_PER_SYNONYM}
    return result


def _group_by_word(tx: Transaction, words: list[str], source: str, values: dict[str, Any]) -> dict[str, list[int]]:
    # Most synonyms occur in no memory, so one IN list is faster than a lookup for each.
    sql = f"select p.term, {DOC_IDS_SQL} from {source} p.term in :words group by p.term"
    return dict(tx.fetch_all(tuple[str, list[int]], sql, {"words": words, **values}))
