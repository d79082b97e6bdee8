"""First stage of retrieval: parse the query, expand its synonyms and retrieve the candidates for reranking.

Candidates are the memories with the highest BM25 scores and their neighbours, memories that contain synonyms of the
query terms, and with an embedding model also the nearest neighbours of the query embedding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from portico.extend import Transaction
from portico_services.memory.search import id_allocator
from portico_services.memory.search.bm25 import AuthorMatches, KnownPostings, TermMatches, match_terms, match_terms_in
from portico_services.memory.search.embeddings import QueryEmbedding
from portico_services.memory.search.id_allocator import MESSAGE, PERSON
from portico_services.memory.search.query import ParsedQuery, parse_query
from portico_services.memory.search.synonyms import expand_synonyms

# Candidates passed to the reranker; fewer in small scopes.
MAX_CANDIDATES, MAX_CANDIDATES_SMALL_SCOPE, SMALL_SCOPE_MEMORIES = 192, 96, 1000
# Candidates retrieved by embedding.
MAX_VECTOR_CANDIDATES = 64
# If a condition leaves too few candidates, retrieval continues up to this many.
MAX_CANDIDATES_FILTERED = 4 * MAX_CANDIDATES
# Expired memories that have not been collected yet are rare; joining each candidate with `memory` would take longer.
_UNEXPIRED = (
    " and (not exists (select 1 from memory where expires_at <= :recall_now) "
    "or memory_seat.memory not in (select id from memory where expires_at <= :recall_now))"
)


# A thread of messages or of persons that is longer than this is ranked as a transcript, for example of a meeting: its
# subjects change within the thread, so the section around a message says more than the thread does.
MIN_TRANSCRIPT_MESSAGES = 100
# Kind of the candidates in such a thread, in addition to the kinds of `id_allocator`.
TRANSCRIPT = 5


# A candidate for reranking: document id, memory id, author, kind, number of terms, flags.
Candidate = tuple[int, str, int | None, int, int, int]


class RetrievalRequest(Struct, frozen=True):
    """Search query and the part of the store to search."""

    query: str
    # Numbers of `memory_scope`, or None for all; and the number of memories in them, if known.
    scopes: Sequence[int] | None = None
    memories: int | None = None
    limit: int = 10
    # SQL condition on `memory` or on `memory_seat` alone, and its parameters.
    condition: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    # Reference time of relative dates; memories that have expired by then are not returned.
    now: int | None = None
    query_embedding: QueryEmbedding | None = None
    # Ids of the only memories to consider, or None for all.
    among: Sequence[str] | None = None
    known: KnownPostings = field(default_factory=KnownPostings)


class CandidateSet(Struct, frozen=True):
    """Candidates with the values that the reranker scores them by."""

    query: ParsedQuery
    matches: TermMatches
    authors: AuthorMatches
    candidates: list[Candidate]
    # Cosine similarity of each candidate, if there is a query embedding.
    similarities: list[float] | None


def retrieve_candidates(tx: Transaction, request: RetrievalRequest) -> CandidateSet:
    """Parse the query and retrieve the candidates for reranking."""
    parsed, query_embedding = parse_query(request.query, request.now), request.query_embedding
    memories = _document_count(tx, request.scopes) if request.memories is None else request.memories
    # Author names are matched before the terms: a name that selects an author is not searched for in the texts.
    if request.known.authors is None:
        request.known.authors = match_authors(tx, parsed, request.scopes)
    named, names = request.known.authors
    # A capitalized name selects its author; searching for it in the text would favour those who talk about the author.
    terms = {term: share for term, share in parsed.terms.items() if parsed.spellings[term] not in names}
    reader = CandidateReader(tx, request)
    # If the query is only a name, search for texts that mention it.
    terms = terms or parsed.terms
    if request.among is None:
        matches = match_terms(tx, terms, request.scopes, memories, request.known)
        synonym_ids = expand_synonyms(tx, matches, terms, request.scopes, request.known)
        nearest = (
            []
            if query_embedding is None
            else query_embedding.nearest_neighbours(tx, request.scopes, MAX_VECTOR_CANDIDATES)
        )
        # Three candidates per result at least, so that a large page is reranked too and not only cut off.
        limit = max(
            MAX_CANDIDATES if memories > SMALL_SCOPE_MEMORIES else MAX_CANDIDATES_SMALL_SCOPE, 3 * request.limit
        )
        # With a condition, the number of candidates that remain is not known in advance, so none are dropped early.
        choose = matches.candidates if request.condition else partial(matches.candidates, results_needed=request.limit)
        candidates = reader.read_until(choose, limit, [*synonym_ids, *nearest])
    else:
        candidates = reader.read_ids(request.among)
        doc_ids = [candidate[0] for candidate in candidates]
        matches = match_terms_in(tx, terms, request.scopes, memories, request.known, doc_ids)
        expand_synonyms(tx, matches, terms, request.scopes, request.known, doc_ids)
        # Without a query embedding, a memory that matches neither a term nor a synonym has no feature that speaks for
        # it. With one, its similarity may.
        if query_embedding is None:
            candidates = [candidate for candidate in candidates if matches.is_adjacent_match(candidate[0])]
    candidates = _mark_transcripts(matches, candidates)
    similarities = None if query_embedding is None else _similarities(tx, query_embedding, candidates)
    return CandidateSet(parsed, matches, named, candidates, similarities)


def _mark_transcripts(matches: TermMatches, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with kind TRANSCRIPT for those in long threads, and record the sections of these."""
    # Candidates come from all over a long thread, so their positions show its length without another statement.
    threads = {
        candidate[0] >> id_allocator.POSITION_BITS
        for candidate in candidates
        if MIN_TRANSCRIPT_MESSAGES <= candidate[0] & id_allocator.PLACES - 1 < id_allocator.ALONE
        and candidate[3] in (MESSAGE, PERSON)
    }
    if not threads:
        return candidates
    matches.collect_sections(threads)
    return [
        (doc_id, memory, author, TRANSCRIPT, words, flags)
        if kind in (MESSAGE, PERSON) and doc_id >> id_allocator.POSITION_BITS in threads
        else (doc_id, memory, author, kind, words, flags)
        for doc_id, memory, author, kind, words, flags in candidates
    ]


def _similarities(tx: Transaction, query_embedding: QueryEmbedding, candidates: list[Candidate]) -> list[float]:
    """Return the similarity of each candidate; a memory without an embedding gets the mean of the others."""
    similarities = query_embedding.cosine_similarity(tx, [candidate[0] for candidate in candidates])
    # The mean is neutral: a memory captured a moment ago, whose embedding is still pending, is neither favoured nor
    # buried.
    mean = sum(similarities.values()) / len(similarities) if similarities else 0.0
    return [similarities.get(candidate[0], mean) for candidate in candidates]


def _document_count(tx: Transaction, scopes: Sequence[int] | None) -> int:
    if scopes is None:
        return tx.fetch_one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    sql = "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope where number in :scopes"
    return tx.fetch_one(int, sql, {"scopes": list(scopes)})


def match_authors(tx: Transaction, parsed: ParsedQuery, scopes: Sequence[int] | None) -> tuple[AuthorMatches, set[str]]:
    """Return the authors whom the query names, and the capitalized words that name them.

    An author matches by a capitalized word or by all words of the name; a lowercase word alone may be any word. The
    capitalized words are excluded from the text search, because authors seldom mention their own name.
    """
    if not parsed.names:
        return AuthorMatches((), ()), set()
    values: dict[str, Any] = {"words": list(parsed.names)}
    within = ""
    if scopes is not None:
        within = " and scope in :scopes"
        values["scopes"] = list(scopes)
    sql = f"select word, scope, author, words from memory_author_word where word in :words{within}"
    called: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for word, scope, author, count in tx.fetch_all(tuple[str, int, int, int], sql, values):
        called[author, scope, count].append(word)
    authors = {
        (author, scope): [word for word in words if parsed.names[word]]
        for (author, scope, count), words in called.items()
        if len(words) == count or any(parsed.names[word] for word in words)
    }
    named = AuthorMatches({author for author, _ in authors}, {scope for _, scope in authors})
    return named, {word for words in authors.values() for word in words}


class CandidateReader:
    """Reads the candidates with given document ids that satisfy the condition."""

    def __init__(self, tx: Transaction, request: RetrievalRequest) -> None:
        self._tx = tx
        self._search = request
        # A condition on tags or entities alone refers to `memory_seat`.
        joined = " join memory on memory.id = memory_seat.memory" if "memory." in request.condition else ""
        self._source = f"memory_seat{joined}"
        self._where = f"memory_seat.kind >= 0{_UNEXPIRED if request.now is not None else ''}"
        self._values = {**request.values, "recall_now": request.now} if request.now is not None else request.values
        if request.condition:
            self._where += f" and ({request.condition})"

    def read_until(self, choose: Callable[[int], list[int]], limit: int, also: Sequence[int] = ()) -> list[Candidate]:
        """Return the candidates that `choose` selects.

        If the condition leaves too few of them, `choose` is called again with a larger limit.
        """
        fetched: dict[int, Candidate | None] = {}
        while True:
            chosen = choose(limit)
            requested = dict.fromkeys([*chosen, *also])
            fresh = [doc_id for doc_id in requested if doc_id not in fetched]
            fetched |= dict.fromkeys(fresh) | {candidate[0]: candidate for candidate in self._candidates("seat", fresh)}
            result = [candidate for candidate in map(fetched.__getitem__, requested) if candidate is not None]
            # Fewer chosen than asked for means that the matches are exhausted, so a larger limit would return the same.
            if len(result) >= self._search.limit or len(chosen) < limit or not self._search.condition:
                return result
            limit *= 4
            if limit > max(MAX_CANDIDATES_FILTERED, 4 * self._search.limit):
                return result

    def read_ids(self, ids: Sequence[str]) -> list[Candidate]:
        """Return the given memories that are indexed and satisfy the condition."""
        result = self._candidates("memory", ids)
        # Ids come from a filter that knows nothing of scopes, so they are checked here.
        inside = None if self._search.scopes is None else set(self._search.scopes)
        return [item for item in result if inside is None or id_allocator.scope_from_doc_id(item[0]) in inside]

    def _candidates(self, column: str, keys: Sequence[int | str]) -> list[Candidate]:
        if not keys:
            return []
        # One JSON array instead of rows, because fetching each row acquires the GIL again.
        sql = (
            "select coalesce(cast(json_agg(json_build_array(memory_seat.seat, memory_seat.memory, memory_seat.author, "
            "memory_seat.kind, memory_seat.substance, memory_seat.marks)) as text), '[]') "
            f"from {self._source} where memory_seat.{column} in :keys and {self._where}"
        )
        return self._tx.fetch_one(list[Candidate], sql, {**self._values, "keys": list(keys)})
