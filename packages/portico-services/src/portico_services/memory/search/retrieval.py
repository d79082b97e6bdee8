"""Retrieval: search memories for a query and return the best matches first.

The domain, namespace and project conditions of a filter select scopes, by which the index is sorted. The remaining
conditions are applied to the candidates.

The path of a recall:

    parse_query            query.py        terms with their weights, and the intent of the query
    embed_query            embeddings.py   query embedding, before the transaction and only with a model
    expand_synonyms        synonyms.py     matches of related terms
    retrieve_candidates    candidates.py   BM25 matches, their neighbours and the nearest vectors
    rerank                 reranker.py     weighted sum of features
    fetch                  records.py      the memories themselves
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search.bm25 import most_similar
from portico_services.memory.search.candidates import (
    MAX_VECTOR_CANDIDATES,
    CandidateReader,
    RetrievalRequest,
    match_authors,
    retrieve_candidates,
)
from portico_services.memory.search.embeddings import QueryEmbedding
from portico_services.memory.search.index import analyze_record
from portico_services.memory.search.query import parse_query, query_terms
from portico_services.memory.search.reranker import MIN_STRONG_SHARE, ScoredMemory, rank_by_similarity, rerank
from portico_services.memory.store import listing, query_plan
from portico_services.memory.store.filters import FilterCondition, MemoryFilter, label_sql, to_sql
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import MemoryRecord

Mode = Literal["text", "hybrid", "vector"]
VECTORS_UNAVAILABLE = (
    "Vector search requires an embedding model: run `pip install 'portico-services[memory-vectors]'` and "
    "`portico memory download-model`, or use the mode text or hybrid."
)
# Superseded and archived memories are not indexed; a search for them scans up to this many of the newest.
MAX_SCAN = 500
# Maximum number of scopes in an index search; with more, the whole index is searched.
MAX_SCOPES = 200
# If a condition leaves too few candidates, the newest memories that satisfy it become candidates, up to this many.
MAX_NEWEST_FALLBACK = 200


def retrieve(
    tx: Transaction,
    query: str,
    filter: MemoryFilter,
    limit: int,
    *,
    at: int,
    query_embedding: QueryEmbedding | None = None,
    mode: Mode = "hybrid",
) -> list[ScoredMemory]:
    """Search memories and return the best matches first, with weak matches marked.

    If nothing matches, return the newest memories: of the authors that the query names, otherwise of all. `sense` is
    the embedding of the query, if there is a model. Raises `InvalidInput` for mode `vector` without one.
    """
    # An explicit request for vectors must not silently return text matches: their scores are not comparable.
    if mode == "vector" and query_embedding is None:
        raise InvalidInput(VECTORS_UNAVAILABLE)
    if needs_full_scan(filter):
        result = _full_scan(tx, query, filter, limit, at)
    else:
        result = _retrieve_filtered(tx, query, filter, limit, at, None if mode == "text" else query_embedding, mode)
    # A recall with a query is never empty if the filter admits anything: an assistant that sees the newest memories can
    # rephrase, while an empty page reads like an empty store.
    result = result or [ScoredMemory(id, 1.0) for id in _newest_by_author(tx, query, filter, limit, at)]
    return result or [
        ScoredMemory(id, 0.0, is_weak=True) for _, id in listing.list_keys(tx, filter, limit=limit, at=at)
    ]


def _newest_by_author(tx: Transaction, query: str, filter: MemoryFilter, limit: int, at: int) -> list[str]:
    """Return the newest memories of the authors that a query names: “what did Ann say” asks for nothing else."""
    named, _ = match_authors(tx, parse_query(query, at), _scopes_of_filter(tx, filter)[0])
    if not named.authors:
        return []
    sql = "select distinct name from memory_author where number in :authors"
    by = FilterCondition("author", tuple(tx.fetch_all(str, sql, {"authors": list(named.authors)})))
    theirs = replace(filter, conditions=(*filter.conditions, by))
    return [id for _, id in listing.list_keys(tx, theirs, limit=limit, at=at)]


def _retrieve_filtered(
    tx: Transaction,
    query: str,
    filter: MemoryFilter,
    limit: int,
    at: int,
    query_embedding: QueryEmbedding | None,
    mode: Mode,
) -> list[ScoredMemory]:
    """Return the best matches that satisfy the filter."""
    scopes, memories, rest = _scopes_of_filter(tx, filter)
    condition, values = _filter_sql(rest)
    # If the filter admits few memories, it is cheaper to read all of them than to look for them among the best matches
    # of the whole scope.
    among = query_plan.selective_ids_by_condition(tx, rest) if condition else None
    request = RetrievalRequest(query, scopes, memories, limit, condition, values, at, query_embedding, among)
    rank = _rank_vectors if mode == "vector" else _rank_hybrid
    result = rank(tx, request)
    if condition and among is None and len(result) < limit:
        # Many memories satisfy the filter, but few of the first candidates do.
        newest = listing.list_keys(tx, filter, limit=MAX_NEWEST_FALLBACK, at=at, many=True)
        among = list(dict.fromkeys([*(item.memory for item in result), *(id for _, id in newest)]))
        # All of these satisfy the filter, so the condition is not needed.
        result = rank(tx, replace(request, among=among, condition="", values={}))
    return result


def _rank_hybrid(tx: Transaction, request: RetrievalRequest) -> list[ScoredMemory]:
    """Retrieve candidates and rerank them by their features."""
    return rerank(retrieve_candidates(tx, request), request.limit)


def _rank_vectors(tx: Transaction, request: RetrievalRequest) -> list[ScoredMemory]:
    """Retrieve the nearest neighbours of the query embedding and rank them by similarity."""
    embedding = request.query_embedding
    if embedding is None:
        return []
    reader = CandidateReader(tx, request)
    if request.among is None:
        candidates = reader.read_until(
            lambda limit: embedding.nearest_neighbours(tx, request.scopes, limit), MAX_VECTOR_CANDIDATES
        )
    else:
        candidates = reader.read_ids(request.among)
    similarities = embedding.cosine_similarity(tx, [candidate[0] for candidate in candidates])
    return rank_by_similarity(similarities, candidates, request.limit)


def find_similar(tx: Transaction, record: MemoryRecord, limit: int, *, longest: int, at: int) -> list[tuple[str, str]]:
    """Return ids and contents of memories in the same scope that share the most terms with the beginning of
    `record`.
    """
    sql = "select number, memories from memory_scope where domain = ? and namespace = ? and project = ?"
    scope = tx.fetch_optional(tuple[int, int], sql, (record.domain, record.namespace, record.project or ""))
    # The beginning of a text names its subject, and few terms suffice to find a near-duplicate.
    terms = query_terms(record.content[:longest])
    if scope is None or not terms:
        return []
    doc_ids = most_similar(tx, terms, *scope, limit)
    if not doc_ids:
        return []
    sql = (
        "select memory_seat.seat, memory.id, memory.content from memory_seat join memory "
        "on memory.id = memory_seat.memory where memory_seat.seat in :seats and memory_seat.kind >= 0 "
        "and (memory.expires_at is null or memory.expires_at > :now)"
    )
    result = {
        doc_id: (id, content)
        for doc_id, id, content in tx.fetch_all(tuple[int, str, str], sql, {"seats": doc_ids, "now": at})
    }
    return [result[doc_id] for doc_id in doc_ids if doc_id in result]


# Filters.


def _filter_sql(filter: MemoryFilter) -> tuple[str, dict[str, Any]]:
    """Return the SQL of the conditions that the index cannot answer. Indexed memories are always current."""
    if (
        not filter.conditions
        and not filter.homes
        and filter.owner is None
        and filter.since is None
        and filter.until is None
    ):
        return "", {}
    # An index answers labels: without a join, no wide row is read for each candidate.
    return label_sql(filter, "memory_seat.memory") or to_sql(filter, CURRENT_STATUSES)


def _scopes_of_filter(tx: Transaction, filter: MemoryFilter) -> tuple[list[int] | None, int | None, MemoryFilter]:
    """Return the scopes that a filter selects (None for all), the number of memories in them if known, and the
    remaining filter.
    """
    phrases, values = query_plan.scope_conditions(filter)
    conditions = tuple(condition for condition in filter.conditions if condition.key not in query_plan.SCOPE_KEYS)
    rest = replace(filter, homes=(), owner=None, conditions=conditions)
    if not phrases:
        return None, None, rest
    where = " and ".join(phrases)
    sql = (
        f"select number, memories, exists (select 1 from memory_scope where not ({where})) from memory_scope "
        f"where {where} limit {MAX_SCOPES + 1}"
    )
    rows = tx.fetch_all(tuple[int, int, bool], sql, values)
    if len(rows) > MAX_SCOPES:
        return None, None, filter
    # A filter that selects every scope is no restriction; without ranges the index scan is faster.
    everywhere = bool(rows) and not rows[0][2]
    return None if everywhere else [number for number, *_ in rows], sum(memories for _, memories, _ in rows), rest


def needs_full_scan(filter: MemoryFilter) -> bool:
    """Return whether the filter includes memories that are not current, which the index does not contain."""
    return any(
        condition.key == "status" and (condition.negated or set(condition.values) - set(CURRENT_STATUSES))
        for condition in filter.conditions
    )


def _full_scan(tx: Transaction, query: str, filter: MemoryFilter, limit: int, at: int) -> list[ScoredMemory]:
    """Rank memories by the share of the query terms they contain; on a tie, the newest first."""
    terms = query_terms(query)
    scored = []
    for memory in listing.list_memories(tx, filter, limit=MAX_SCAN, at=at):
        share = term_coverage(memory, terms)
        if share:
            scored.append(ScoredMemory(memory.id, share, share < MIN_STRONG_SHARE))
    # The sort is stable, and the list is ordered by time: on a tie, the newest stays first.
    scored.sort(key=lambda weights: -weights.score)
    return scored[:limit]


def term_coverage(item: MemoryRecord, terms: Mapping[str, float]) -> float:
    """Return the weighted share of the query terms that a memory contains."""
    # In the order of the query: the sum of an unordered set depends on the hash seed in its last digit.
    contained = analyze_record(item).terms
    share = sum(weight for term, weight in terms.items() if term in contained)
    return share / sum(terms.values()) if share else 0.0
