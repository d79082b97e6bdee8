"""Counters, updated in the same transaction as the memories, so that overviews need not read all of them.

Current memories per scope are counted in `memory_scope`, and mentions of an entity in `memory_entity`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from portico.extend import Transaction
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import MemoryRecord

CounterKind = Literal["tag", "branch", "status", "vector"]


def count_memories_into(tx: Transaction, memories: Iterable[MemoryRecord], *, removed: bool = False) -> None:
    """Add memories to the counters, or subtract them with `gone`."""
    step = -1 if removed else 1
    tags, branches, statuses = (defaultdict[str, int](int) for _ in range(3))
    for memory in memories:
        if memory.status != "active":
            statuses[memory.status] += step
        if memory.status in CURRENT_STATUSES:
            for tag in set(memory.tags):
                tags[tag] += step
            if memory.branch is not None:
                branches[memory.branch] += step
    adjust(tx, "tag", tags)
    adjust(tx, "branch", branches)
    adjust(tx, "status", statuses)


def update_counters(tx: Transaction, before: MemoryRecord, after: MemoryRecord) -> None:
    """Update the counters for a changed memory."""
    if _counter_keys(before) != _counter_keys(after):
        count_memories_into(tx, [before], removed=True)
        count_memories_into(tx, [after])


def adjust(tx: Transaction, kind: CounterKind, steps: Mapping[str, int]) -> None:
    """Add the steps to the counters of a kind and delete counters that reach zero."""
    # Sorted by name, so that concurrent transactions lock the rows in the same order and cannot deadlock.
    rows = [(kind, name, step) for name, step in sorted(steps.items()) if step]
    if not rows:
        return
    tx.execute_many(
        "insert into memory_tally (kind, name, memories) values (?, ?, ?) "
        "on conflict (kind, name) do update set memories = memory_tally.memories + excluded.memories",
        rows,
    )
    fewer = [(kind, name) for kind, name, step in rows if step < 0]
    if fewer:
        tx.execute_many("delete from memory_tally where kind = ? and name = ? and memories <= 0", fewer)


def read_counter(tx: Transaction, kind: CounterKind, name: str) -> int:
    """Return the value of a counter, 0 if it does not exist."""
    sql = "select memories from memory_tally where kind = :kind and name = :name"
    return tx.fetch_optional(int, sql, {"kind": kind, "name": name}) or 0


def top_counters(tx: Transaction, kind: CounterKind, limit: int) -> dict[str, int]:
    """Return the highest counters of a kind with their values."""
    sql = (
        "select name, memories from memory_tally where kind = :kind "
        "order by memories desc, name limit cast(:limit as bigint)"
    )
    return dict(tx.fetch_all(tuple[str, int], sql, {"kind": kind, "limit": limit}))


def _counter_keys(item: MemoryRecord) -> tuple[object, ...]:
    return item.status, set(item.tags), item.branch
