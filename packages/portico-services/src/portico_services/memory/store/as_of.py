"""Search in the past: memories as they were at a given time.

A memory that has not changed since is found through the index. For a memory that has changed, the first later event
holds its previous state; these events are read in batches and scored directly.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.search import reranker, retrieval
from portico_services.memory.search.query import query_terms
from portico_services.memory.store import listing, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import MemoryEvent, MemoryRecord

READ_BATCH_SIZE = 500
# Sort key of a result: score, time, id.
_Rank = tuple[float, int, str]


def search_as_of(
    tx: Transaction, words: str, filter: MemoryFilter, moment: int, limit: int
) -> list[tuple[MemoryRecord, float]]:
    """Search the memories as of `moment` and return the best matches first, or the newest if there is no query.

    Each result comes with the share of the query terms it contains. Matches that the index finds through synonyms
    contain few of the terms and get at least the share of a strong match.
    """
    terms = query_terms(words)
    scored: dict[str, MemoryRecord] = {}
    best: list[_Rank] = []

    def add_candidate(item: MemoryRecord, minimum: float = 0.0) -> None:
        rank = (max(minimum, retrieval.term_coverage(item, terms)), item.at, item.id)
        if len(best) < limit:
            heapq.heappush(best, rank)
        # `best` is a min-heap of bounded size, so its first entry is the worst result so far.
        elif rank > best[0]:
            scored.pop(heapq.heapreplace(best, rank)[2])
        else:
            return
        scored[item.id] = item

    for item, is_like in _unchanged_since(tx, words, filter, moment, limit):
        add_candidate(item, reranker.MIN_STRONG_SHARE if is_like else 0.0)
    for item in _changed_since(tx, filter, moment):
        add_candidate(item)
    ranked = sorted(best, key=lambda rank: (-rank[0], -rank[1], rank[2]))
    # Results that match nothing are returned only if nothing matches at all.
    result = [rank for rank in ranked if rank[0]] or ranked
    return [(scored[id], score) for score, _, id in result]


def _unchanged_since(
    tx: Transaction, words: str, filter: MemoryFilter, moment: int, limit: int
) -> list[tuple[MemoryRecord, bool]]:
    """Return the memories unchanged since `moment`, and whether the index considers each a good match."""
    # A memory can be dated later than it was stored, by at most the clock skew that validation allows.
    until = moment + validation.MAX_CLOCK_SKEW_MS
    bounded = replace(filter, known_at=moment, until=until if filter.until is None else min(until, filter.until))
    if not words:
        return [(memory, False) for memory in listing.list_memories(tx, bounded, limit=limit, at=moment)]
    scored = retrieval.retrieve(tx, words, bounded, limit, at=moment, mode="text")
    existing = records.fetch_existing(tx, [memory.memory for memory in scored])
    return [(existing[memory.memory], not memory.is_weak) for memory in scored]


def _changed_since(tx: Transaction, filter: MemoryFilter, moment: int) -> Iterator[MemoryRecord]:
    """Yield the previous state of memories that were current at `moment` and have changed since."""
    last = tx.fetch_one(int, "select coalesce(min(id), 0) from memory_event where at > :moment", {"moment": moment}) - 1
    sql = (
        "select later.id, later.memory, later.version, later.change, later.at, later.who, later.reason, later.was "
        "from memory_event as later where later.id > :last and later.at > :moment and not exists (select 1 "
        "from memory_event as first where first.memory = later.memory and first.id < later.id and first.at > :moment) "
        f"order by later.id limit {READ_BATCH_SIZE}"
    )
    while rows := tx.fetch_all(_NumberedEvent, sql, {"last": last, "moment": moment}):
        last = rows[-1].id
        # The query returns the first event after `moment` for each memory, so `was` is its state at that time.
        for previous in (item.was for item in rows):
            expired = previous.expires_at is not None and previous.expires_at <= moment
            if (
                previous.created_at <= moment
                and not expired
                and previous.status in CURRENT_STATUSES
                and records.matches_filter(previous, filter)
            ):
                yield previous


class _NumberedEvent(MemoryEvent, frozen=True, kw_only=True):
    """A change event with its row id, which is the batch cursor."""

    id: int
