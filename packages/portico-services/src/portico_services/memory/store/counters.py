"""Counts that are kept with what they count, in the same transaction, so that no overview reads all memories.

The current memories of each place are counted in `memory_scope`, and those that mention an entity in `memory_entity`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from portico.extend import Transaction
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import Record

Tally = Literal["tag", "branch", "status", "vector"]


def count(tx: Transaction, memories: Iterable[Record], *, gone: bool = False) -> None:
    """Memories came to be as they are here, or are so no more."""
    step = -1 if gone else 1
    tags, branches, statuses = (defaultdict[str, int](int) for _ in range(3))
    for one in memories:
        if one.status != "active":
            statuses[one.status] += step
        if one.status in CURRENT:
            for tag in set(one.tags):
                tags[tag] += step
            if one.branch is not None:
                branches[one.branch] += step
    add(tx, "tag", tags)
    add(tx, "branch", branches)
    add(tx, "status", statuses)


def recount(tx: Transaction, before: Record, after: Record) -> None:
    """A memory has changed."""
    if _counted(before) != _counted(after):
        count(tx, [before], gone=True)
        count(tx, [after])


def add(tx: Transaction, kind: Tally, steps: Mapping[str, int]) -> None:
    # In the order of their names, so that two who count the same at once do not wait for each other in a circle.
    rows = [(kind, name, step) for name, step in sorted(steps.items()) if step]
    if not rows:
        return
    tx.many(
        "insert into memory_tally (kind, name, memories) values (?, ?, ?) "
        "on conflict (kind, name) do update set memories = memory_tally.memories + excluded.memories",
        rows,
    )
    fewer = [(kind, name) for kind, name, step in rows if step < 0]
    if fewer:
        tx.many("delete from memory_tally where kind = ? and name = ? and memories <= 0", fewer)


def tallied(tx: Transaction, kind: Tally, name: str) -> int:
    sql = "select memories from memory_tally where kind = :kind and name = :name"
    return tx.maybe(int, sql, {"kind": kind, "name": name}) or 0


def most(tx: Transaction, kind: Tally, limit: int) -> dict[str, int]:
    """Those that occur most, and how often."""
    sql = (
        "select name, memories from memory_tally where kind = :kind "
        "order by memories desc, name limit cast(:limit as bigint)"
    )
    return dict(tx.all(tuple[str, int], sql, {"kind": kind, "limit": limit}))


def _counted(one: Record) -> tuple[object, ...]:
    return one.status, set(one.tags), one.branch
