"""Namespaces named in a query: “what did we decide about …” favours memories in `decisions`.

The name of a namespace is not indexed as a word of its memories: every memory of the scope would contain it, and `test`
would lose its meaning where memories are about tests. Instead the namespace is a separate term that every memory of its
scopes contains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.search import id_allocator
from portico_services.memory.search.analyzer import normalize_term

# Newest memories per scope that become candidates because of the namespace, and the maximum number of scopes.
MAX_NEWEST_PER_SCOPE, MAX_SCOPES = 20, 4
# Weight of a namespace relative to a query term.
NAMESPACE_WEIGHT = 0.5

_NAMESPACE_WORDS = {
    "decisions": "decisions decision decide decided chose choice",
    "patterns": "patterns pattern convention",
    "learnings": "learnings learned lesson gotcha",
    "context": "context background",
    "tech-debt": "debt workaround",
    "blockers": "blockers blocked",
    "progress": "progress milestone",
    "apis": "apis endpoint",
    "config": "config configuration setting",
    "security": "security vulnerability",
    "performance": "performance latency benchmark",
    "testing": "testing",
    "prompts": "prompts",
}
NAMESPACE_BY_TERM = {normalize_term(word): name for name, called in _NAMESPACE_WORDS.items() for word in called.split()}


class NamespaceMatch(Struct, frozen=True):
    """Namespace named in a query: its term and weight, its scopes, and the number of memories in them."""

    term: str
    share: float
    scopes: Collection[int]
    memories: int
    newest: Sequence[int]


def match_namespaces(
    tx: Transaction, terms: Mapping[str, float], scopes: Sequence[int] | None
) -> Iterator[NamespaceMatch]:
    """Yield the namespaces that the query terms name."""
    shares: dict[str, float] = {}
    for term, share in terms.items():
        if name := NAMESPACE_BY_TERM.get(term):
            shares[name] = max(NAMESPACE_WEIGHT * share, shares.get(name, 0.0))
    for name, share in shares.items():
        values: dict[str, Any] = {"name": name}
        within = ""
        if scopes is not None:
            within, values["scopes"] = " and number in :scopes", list(scopes)
        sql = f"select number, memories from memory_scope where namespace = :name and memories > 0{within}"
        result = dict(tx.fetch_all(tuple[int, int], sql, values))
        if result:
            # A namespace can exist in thousands of projects. The largest scopes are the likeliest to hold an answer.
            largest = sorted(result, key=lambda scope: (-result[scope], scope))[:MAX_SCOPES]
            newest = [doc_id for scope in largest for doc_id in _newest_doc_ids(tx, scope)]
            yield NamespaceMatch(f"ns:{name}", share, result.keys(), sum(result.values()), newest)


def _newest_doc_ids(tx: Transaction, scope: int) -> list[int]:
    first = id_allocator.first_doc_id(scope)
    sql = (
        "select seat from memory_seat where seat >= ? and seat < ? and kind >= 0 "
        f"order by seat desc limit {MAX_NEWEST_PER_SCOPE}"
    )
    return tx.fetch_all(int, sql, (first, first + id_allocator.SCOPE))
