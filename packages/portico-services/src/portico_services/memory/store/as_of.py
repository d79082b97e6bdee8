"""What was known at a moment.

A memory that has not changed since is as it is now, so the index finds it. Of one that has changed, the first change
since then says what it was; these are looked through, a few at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.search import retrieval
from portico_services.memory.search.query import terms_of
from portico_services.memory.store import listing, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import MemoryEvent, Record

PIECE = 500
# How well it fits, how new it is, which it is.
_Rank = tuple[float, int, str]


def known(tx: Transaction, words: str, filter: MemoryFilter, moment: int, most: int) -> list[tuple[Record, float]]:
    """The best first, or without words the newest, each with the share of the words that it has. What the index finds
    by other words has little of them, and not nothing."""
    wanted = terms_of(words)
    scored: dict[str, Record] = {}
    best: list[_Rank] = []

    def take(one: Record, least: float = 0.0) -> None:
        rank = (max(least, retrieval.share_of(one, wanted)), one.at, one.id)
        if len(best) < most:
            heapq.heappush(best, rank)
        elif rank > best[0]:
            scored.pop(heapq.heapreplace(best, rank)[2])
        else:
            return
        scored[one.id] = one

    for one, is_like in _unchanged(tx, words, filter, moment, most):
        take(one, retrieval.LITTLE if is_like else 0.0)
    for one in _changed(tx, filter, moment):
        take(one)
    ranked = sorted(best, key=lambda rank: (-rank[0], -rank[1], rank[2]))
    # Those that have nothing of it are the answer only where all are such.
    found = [rank for rank in ranked if rank[0]] or ranked
    return [(scored[id], score) for score, _, id in found]


def _unchanged(tx: Transaction, words: str, filter: MemoryFilter, moment: int, most: int) -> list[tuple[Record, bool]]:
    """Each, and whether the index finds it to be like what was asked for."""
    # What is dated after it was stored is so by no more than clocks differ.
    until = moment + validation.CLOCKS_DIFFER_MS
    known = replace(filter, known_at=moment, until=until if filter.until is None else min(until, filter.until))
    if not words:
        return [(one, False) for one in listing.matching(tx, known, limit=most, at=moment)]
    scored = retrieval.recall(tx, words, known, most, at=moment, mode="text")
    found = records.fetch_named(tx, [one.memory for one in scored])
    return [(found[one.memory], not one.weak) for one in scored]


def _changed(tx: Transaction, filter: MemoryFilter, moment: int) -> Iterator[Record]:
    """What was current then and has changed since, as it was."""
    last = tx.one(int, "select coalesce(min(id), 0) from memory_event where at > :moment", {"moment": moment}) - 1
    sql = (
        "select later.id, later.memory, later.version, later.change, later.at, later.who, later.reason, later.was "
        "from memory_event as later where later.id > :last and later.at > :moment and not exists (select 1 "
        "from memory_event as first where first.memory = later.memory and first.id < later.id and first.at > :moment) "
        f"order by later.id limit {PIECE}"
    )
    while found := tx.all(_Numbered, sql, {"last": last, "moment": moment}):
        last = found[-1].id
        for was in (one.was for one in found):
            expired = was.expires_at is not None and was.expires_at <= moment
            if was.created_at <= moment and not expired and was.status in CURRENT and records.fits(was, filter):
                yield was


class _Numbered(MemoryEvent, frozen=True, kw_only=True):
    id: int
