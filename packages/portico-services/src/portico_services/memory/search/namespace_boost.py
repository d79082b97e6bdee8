"""The namespaces that a question names: “what did we decide about …” is rather a memory of `decisions`.

A namespace is no word of a memory. It would be one of all memories of its scope, and then `test` would say nothing any
more where tests are written about. It is a term of its own, which every memory of some scopes has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.search import doc_ids
from portico_services.memory.search.analyzer import term_of

# How many of the newest memories of a scope are candidates because of its namespace, and of how many scopes.
NEWEST, MOST_SCOPES = 20, 4
# What a namespace is worth beside a word of the question.
SHARE = 0.5

_CALLED = {
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
_BY_TERM = {term_of(word): name for name, called in _CALLED.items() for word in called.split()}


class NamedNamespace(Struct, frozen=True):
    """A namespace that a question names: its term, the scopes that are of it, and how many memories these have."""

    term: str
    share: float
    scopes: Collection[int]
    memories: int
    newest: Sequence[int]


def named_namespaces(
    tx: Transaction, terms: Mapping[str, float], scopes: Sequence[int] | None
) -> Iterator[NamedNamespace]:
    shares: dict[str, float] = {}
    for term, share in terms.items():
        if name := _BY_TERM.get(term):
            shares[name] = max(SHARE * share, shares.get(name, 0.0))
    for name, share in shares.items():
        values: dict[str, Any] = {"name": name}
        within = ""
        if scopes is not None:
            within, values["scopes"] = " and number in :scopes", list(scopes)
        sql = f"select number, memories from memory_scope where namespace = :name and memories > 0{within}"
        found = dict(tx.all(tuple[int, int], sql, values))
        if found:
            largest = sorted(found, key=lambda scope: (-found[scope], scope))[:MOST_SCOPES]
            newest = [seat for scope in largest for seat in _newest(tx, scope)]
            yield NamedNamespace(f"ns:{name}", share, found.keys(), sum(found.values()), newest)


def _newest(tx: Transaction, scope: int) -> list[int]:
    first = doc_ids.first_of_scope(scope)
    sql = f"select seat from memory_seat where seat >= ? and seat < ? and kind >= 0 order by seat desc limit {NEWEST}"
    return tx.all(int, sql, (first, first + doc_ids.SCOPE))
