"""The seam to the ranker: what is told to its index, and what is asked of it.

Of a filter, the domain, the namespace and the project say where to look: the index is sorted by these. The rest is a
condition on what was found there.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from portico.extend import Transaction
from portico.services.memory.errors import InvalidInput
from portico.services.memory.search import index as ranking
from portico.services.memory.search import recall as ranker
from portico.services.memory.search.meaning import Sense
from portico.services.memory.search.question import terms_of
from portico.services.memory.search.recall import RecallQuery, by_meaning, recall
from portico.services.memory.search.terms import read
from portico.services.memory.store import records
from portico.services.memory.store.filters import Condition, MemoryFilter, where
from portico.services.memory.store.namespaces import CURRENT
from portico.services.memory.store.records import Record

Mode = Literal["text", "hybrid", "vector"]
NO_VECTORS = (
    "There are no vectors here. `pip install 'portico[memory-vectors]'` and `portico memory model` bring them; the "
    "modes text and hybrid search by words without them."
)
# How many states that are not current are looked through: the index does not have them.
MOST_LOOKED_THROUGH = 10_000
# So many scopes are looked into one by one; where there are more, in all of them.
MOST_SCOPES = 200
_SCOPED = {"ns": "namespace", "domain": "domain", "project": "project"}

index = ranking.index
unindex = ranking.unindex
forget = ranking.forget


def seek(
    tx: Transaction,
    query: str,
    filter: MemoryFilter,
    limit: int,
    *,
    at: int,
    sense: Sense | None = None,
    mode: Mode = "hybrid",
) -> list[tuple[str, float]]:
    """Ids, and how good each is beside the best: 1 to 0. `sense` is what the query means, where there is a model."""
    if mode == "vector" and sense is None:
        raise InvalidInput(NO_VECTORS)
    if any(one.key == "status" and (one.negated or set(one.values) - set(CURRENT)) for one in filter.conditions):
        return _looked_through(tx, query, filter, limit, at)
    scopes, rest = _scopes(tx, filter)
    condition, values = _condition(rest)
    search = RecallQuery(query, scopes, limit, condition, values, at, None if mode == "text" else sense)
    hits = by_meaning(tx, search) if mode == "vector" else recall(tx, search)
    return [(one.id, one.score) for one in hits]


def alike(tx: Transaction, record: Record, limit: int, *, longest: int, at: int) -> list[tuple[str, str]]:
    """Ids and contents of memories of the same place that share most words with the beginning of it."""
    place = (record.domain, record.namespace, record.project or "")
    return ranker.alike(tx, record.content[:longest], place, limit, at)


def _condition(filter: MemoryFilter) -> tuple[str, dict[str, Any]]:
    """What the index does not know. Whatever is in it is current."""
    if not filter.conditions and filter.home is None and filter.since is None and filter.until is None:
        return "", {}
    return where(filter, CURRENT)


def _scopes(tx: Transaction, filter: MemoryFilter) -> tuple[list[int] | None, MemoryFilter]:
    """Where a filter allows to look, None being everywhere; and what else it says."""
    phrases: list[str] = []
    values: dict[str, Any] = {}
    for number, one in enumerate(filter.conditions):
        if one.key in _SCOPED and not _is_any(one):
            phrases.append(f"{_SCOPED[one.key]} {'not in' if one.negated else 'in'} :scope_{number}")
            values[f"scope_{number}"] = list(one.values)
    if filter.home is not None:
        phrases.append("(domain <> 'project' or project = :home)")
        values["home"] = filter.home
    rest = replace(filter, home=None, conditions=tuple(c for c in filter.conditions if c.key not in _SCOPED))
    if not phrases:
        return None, rest
    sql = (
        "select number, (select count(*) from memory_scope) from memory_scope "
        f"where {' and '.join(phrases)} limit {MOST_SCOPES + 1}"
    )
    found = tx.all(tuple[int, int], sql, values)
    if len(found) > MOST_SCOPES:
        return None, filter
    everywhere = bool(found) and len(found) == found[0][1]
    return (None if everywhere else [number for number, _ in found]), rest


def _is_any(one: Condition) -> bool:
    return one.key == "project" and "*" in one.values and not one.negated


def _looked_through(tx: Transaction, query: str, filter: MemoryFilter, limit: int, at: int) -> list[tuple[str, float]]:
    """By the share of the query's words that they have; the newest of those that are alike."""
    wanted = terms_of(query)
    scored = []
    for one in records.matching(tx, filter, limit=MOST_LOOKED_THROUGH, at=at):
        share = sum(wanted[term] for term in read(one.content).terms.keys() & wanted.keys())
        if share:
            scored.append((one.id, share / sum(wanted.values())))
    scored.sort(key=lambda pair: -pair[1])
    return scored[:limit]
