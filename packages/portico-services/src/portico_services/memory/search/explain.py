"""Explanation of a search result: the reasons why a memory matches a query."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from portico.search import find_synonyms, tokenize_words
from portico_services.memory.search.index import analyze_record
from portico_services.memory.search.query import ParsedQuery
from portico_services.memory.store.records import MemoryRecord

# Reasons of each kind that are listed.
MAX_REASONS = 20


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reasons for a search result."""

    terms: Annotated[list[str], "Words of the query that it contains"] = field(default_factory=list)
    synonyms: Annotated[list[str], "Words of the query that it expresses differently"] = field(default_factory=list)
    embedding: Annotated[float | None, "Cosine similarity, with an embedding model"] = None
    time: Annotated[list[str], "Dates of the query that it mentions or was written on"] = field(default_factory=list)
    author: Annotated[str | None, "Its author, if the query names them"] = None
    context: Annotated[bool, "Whether only messages beside it match"] = False


def explain(record: MemoryRecord, query: ParsedQuery, similarity: float | None) -> Explanation:
    """Return the reasons why a memory matches a query.

    They are derived from the memory itself and not from the postings, so a search without explanations does no work for
    them.
    """
    contained = analyze_record(record).terms
    own = [term for term in query.terms if term in contained]
    synonyms = [
        query.spellings[term]
        for term in query.terms
        if term not in contained and any(word in contained for word, _ in find_synonyms(term))
    ]
    named = {word for word in query.names if query.names[word]}
    author = record.author if record.author and named.intersection(tokenize_words(record.author.lower())) else None
    terms = [query.spellings[term] for term in own if not term.startswith("@")]
    time = [query.spellings[term] for term in own if term.startswith("@")]
    return Explanation(
        terms=terms[:MAX_REASONS],
        synonyms=synonyms[:MAX_REASONS],
        embedding=None if similarity is None else round(similarity, 2),
        time=time[:MAX_REASONS],
        author=author,
        context=not (terms or time or synonyms or author or similarity),
    )
