"""Changes to memories together with their consequences: rows, counters, index and entities.

Only current memories are indexed, so the index follows the status of a memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.search import index
from portico_services.memory.store import counters, entities, records
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import MemoryEvent, MemoryRecord


def insert(tx: Transaction, memories: Sequence[MemoryRecord]) -> None:
    """Insert memories and index the current ones."""
    records.insert(tx, memories)
    counters.count_memories_into(tx, memories)
    index.index_documents(tx, [memory for memory in memories if memory.status in CURRENT_STATUSES])
    entities.index_mentions(tx, memories)


def update(
    tx: Transaction,
    before: MemoryRecord,
    after: MemoryRecord,
    kind: str,
    *,
    who: str = "",
    reason: str = "",
    **imposed: int,
) -> MemoryRecord:
    """Store a new version of a memory and return it. `imposed` sets the version and the time (`at`) of a change made
    elsewhere.
    """
    after = records.write_version(tx, before, after, kind, who=who, reason=reason, **imposed)
    if after.status in CURRENT_STATUSES:
        index.index_documents(tx, [after], before=[before])
    elif before.status in CURRENT_STATUSES:
        index.remove_documents(tx, [before])
    counters.update_counters(tx, before, after)
    entities.update_mentions(tx, before, after)
    return after


def supersede(tx: Transaction, before: MemoryRecord, by: str, now: int, *, who: str) -> MemoryRecord:
    """Mark a memory as superseded by another one."""
    after = replace(before, status="superseded", updated_at=now)
    return update(tx, before, after, "superseded", who=who, reason=f"by {by}")


def delete(tx: Transaction, before: MemoryRecord, now: int, *, who: str = "", reason: str = "") -> MemoryRecord:
    """Mark a memory as deleted, so that it can be restored."""
    if before.status == "deleted":
        return before
    after = replace(before, status="deleted", deleted_at=now, updated_at=now)
    return update(tx, before, after, "deleted", who=who, reason=reason)


def revert(tx: Transaction, events: Sequence[MemoryEvent], now: int, *, who: str) -> list[str]:
    """Revert these changes and return the ids of the reverted memories. Memories changed since are skipped."""
    current = records.fetch(tx, [event.memory for event in events])
    back: list[str] = []
    for event in events:
        before = current.get(event.memory)
        if before is not None and before.version == event.version:
            update(tx, before, replace(event.was, updated_at=now), "restored", who=who)
            back.append(event.memory)
    return back


def purge(tx: Transaction, memories: Sequence[MemoryRecord], now: int, *, entirely: bool = False) -> None:
    """Remove memories permanently; with `entirely`, also the names of entities that only they mention."""
    # The index and the mentions refer to the rows, so the rows are deleted last.
    index.purge_documents(tx, memories)
    counters.count_memories_into(tx, memories, removed=True)
    entities.delete_mentions(tx, memories, entirely=entirely)
    records.remove(tx, memories, now)
