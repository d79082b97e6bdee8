"""Changes of memories, each with all that follows from it: the rows, the index, and the entities that are mentioned.

Only what is current can be found, so the index follows the state of a memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.search import index
from portico_services.memory.store import counters, entities, records
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import MemoryEvent, Record


def insert(tx: Transaction, memories: Sequence[Record]) -> None:
    records.insert(tx, memories)
    counters.count(tx, memories)
    index.index(tx, [one for one in memories if one.status in CURRENT])
    entities.note(tx, memories)


def change(
    tx: Transaction, before: Record, after: Record, kind: str, *, who: str = "", reason: str = "", **imposed: int
) -> Record:
    """The record with its new version. `imposed` are the version and the moment (`at`) of a change made elsewhere."""
    after = records.change(tx, before, after, kind, who=who, reason=reason, **imposed)
    if after.status in CURRENT:
        index.index(tx, [after], before=[before])
    elif before.status in CURRENT:
        index.unindex(tx, [before])
    counters.recount(tx, before, after)
    entities.renote(tx, before, after)
    return after


def supersede(tx: Transaction, before: Record, by: str, now: int, *, who: str) -> Record:
    after = replace(before, status="superseded", updated_at=now)
    return change(tx, before, after, "superseded", who=who, reason=f"by {by}")


def delete(tx: Transaction, before: Record, now: int, *, who: str = "", reason: str = "") -> Record:
    """Softly, so that it can be restored."""
    if before.status == "deleted":
        return before
    after = replace(before, status="deleted", deleted_at=now, updated_at=now)
    return change(tx, before, after, "deleted", who=who, reason=reason)


def take_back(tx: Transaction, events: Sequence[MemoryEvent], now: int, *, who: str) -> list[str]:
    """Make memories what they were before these changes, except those that have been changed since; their ids."""
    current = records.fetch(tx, [one.memory for one in events])
    back: list[str] = []
    for one in events:
        before = current.get(one.memory)
        if before is not None and before.version == one.version:
            change(tx, before, replace(one.was, updated_at=now), "restored", who=who)
            back.append(one.memory)
    return back


def remove(tx: Transaction, memories: Sequence[Record], now: int, *, entirely: bool = False) -> None:
    """For good; `entirely` with the names of what they alone spoke of."""
    index.forget(tx, memories)
    counters.count(tx, memories, gone=True)
    entities.forget(tx, memories, entirely=entirely)
    records.remove(tx, memories, now)
