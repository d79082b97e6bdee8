"""Conflicts: memories that contradict each other, recorded on capture and listed until resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct

from portico.extend import Transaction
from portico_services import text, timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import mutations, near_duplicates, records
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.ownership import is_visible
from portico_services.memory.store.records import MemoryRecord

ConflictChoice = Literal["this", "other", "both"]
MAX_LISTED_CONFLICTS = 200


class MemoryConflict(Struct, frozen=True, kw_only=True):
    """Two contradictory memories. If both ids are equal, two sides of a sync changed the memory and one version
    lost.
    """

    memory_id: Annotated[str, "Id of the first memory"]
    other_id: Annotated[str, "Id of the other memory; the same id for a conflict of a sync"]
    why: Annotated[str, "Difference"]
    content: Annotated[str, "Content of the first memory"]
    other_content: Annotated[str, "Content of the other memory, or the losing side of a sync"]
    noted_at: Annotated[str, "Time of detection"]


class ConflictRow(Struct, frozen=True):
    """Row of the table `memory_conflict`."""

    memory: str
    other: str
    why: str
    at: int


async def list_conflicts(memories: MemoryStore, limit: int) -> list[MemoryConflict]:
    """Return the unresolved conflicts, newest first.

    Conflicts that were settled by changing or deleting one of the memories are omitted.
    """
    return await memories.read(lambda tx: _list_unresolved(tx, memories, limit))


def _list_unresolved(tx: Transaction, memories: MemoryStore, limit: int) -> list[MemoryConflict]:
    """Read the unresolved conflicts that the owner and project of the store may see."""
    rows = tx.fetch_all(
        ConflictRow, "select memory, other, why, at from memory_conflict order by at desc, memory, other limit 1000"
    )
    memories_by_id = records.fetch_existing(tx, list({id for item in rows for id in (item.memory, item.other)}))
    conflicts: list[MemoryConflict] = []
    for item in rows:
        memory, other_memory = memories_by_id[item.memory], memories_by_id[item.other]
        # Conflicts of other projects concern other people; a list that mixes them could not be worked through.
        is_here = memory.domain != "project" or memory.project in (None, *memories.project_scopes)
        seen = is_visible(memory, memories.owner) and is_visible(other_memory, memories.owner)
        if memory.status in CURRENT_STATUSES and other_memory.status in CURRENT_STATUSES and is_here and seen:
            dispute = _to_conflict(tx, item, memory, other_memory)
            conflicts += [dispute] if dispute is not None else []
        if len(conflicts) == limit:
            break
    return conflicts


def find_disputed(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Return the given memories that are part of an unresolved conflict, even if the other memory is not among them."""
    rows = tx.fetch_all(
        ConflictRow,
        "select memory, other, why, at from memory_conflict where memory in :ids or other in :ids",
        {"ids": list(ids)},
    )
    memories_by_id = records.fetch(tx, list({id for item in rows for id in (item.memory, item.other)}))
    pairs = [
        (item, memories_by_id[item.memory], memories_by_id[item.other])
        for item in rows
        if {item.memory, item.other} <= memories_by_id.keys()
    ]
    unsettled = [
        {memory.id, other_memory.id}
        for item, memory, other_memory in pairs
        if memory.status in CURRENT_STATUSES
        and other_memory.status in CURRENT_STATUSES
        and _to_conflict(tx, item, memory, other_memory) is not None
    ]
    return set(ids) & {id for pair in unsettled for id in pair}


def _to_conflict(
    tx: Transaction, noted: ConflictRow, memory: MemoryRecord, other_memory: MemoryRecord
) -> MemoryConflict | None:
    """Return the conflict, or None if the two memories no longer contradict each other."""
    why: str | None = noted.why
    other = other_memory.content
    if memory.id != other_memory.id:
        # Computed again, because one of the texts may have changed since the conflict was recorded.
        why = near_duplicates.find_contradiction(memory.content, other_memory.content)
    else:
        # Both ids are equal: the content that lost the merge is only in the history.
        synced = [item.was.content for item in records.history(tx, memory.id, 20) if item.change == "synced"]
        lost = [item for item in synced if item != memory.content]
        other = lost[0] if lost else other
    if why is None:
        return None
    return MemoryConflict(
        memory_id=memory.id,
        other_id=other_memory.id,
        why=why,
        content=text.truncate_preview(memory.content, 300),
        other_content=text.truncate_preview(other, 300),
        noted_at=timestamps.format_iso(noted.at),
    )


async def resolve_conflict(
    memories: MemoryStore, id: str, other: str, keep: ConflictChoice, *, who: str = ""
) -> list[str]:
    """Resolve a conflict and return the ids of the changed memories. The rejected memory is superseded and can be
    restored.
    """
    now = timestamps.now_ms()

    def write(tx: Transaction) -> list[str]:
        memory, other_memory = (records.get(tx, item, memories.owner) for item in (id, other))
        # A conflict may be stored in either direction.
        pair = {"here": memory.id, "there": other_memory.id}
        resolved = tx.execute(
            "delete from memory_conflict where (memory = :here and other = :there) "
            "or (memory = :there and other = :here)",
            pair,
        )
        if not resolved:
            raise InvalidInput(
                f"No conflict is recorded between {memory.id} and {other_memory.id}. "
                "Use the action list to see all conflicts."
            )
        if keep == "both" or memory.id == other_memory.id:
            return []
        loses, holds = (other_memory, memory) if keep == "this" else (memory, other_memory)
        # The memory may have been archived or deleted in the meantime; then there is nothing to supersede.
        if loses.status in CURRENT_STATUSES:
            mutations.supersede(tx, loses, holds.id, now, who=who)
        return [loses.id]

    return await memories.write(write)
