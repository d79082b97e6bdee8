"""Memories that contradict each other: noted when they come in, listed until one of them is decided for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct

from portico.extend import Transaction
from portico_services import text, timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import mutations, near_duplicates, records
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.ownership import is_visible
from portico_services.memory.store.records import Record

Keep = Literal["this", "other", "both"]
MOST_LISTED = 200


class Dispute(Struct, frozen=True, kw_only=True):
    """Two memories and why they cannot both hold. With itself: two sides of a sync changed it, and one lost."""

    memory_id: Annotated[str, "The id of one of them"]
    other_id: Annotated[str, "The id of the other; the same where two sides of a sync changed it"]
    why: Annotated[str, "In what they differ"]
    content: Annotated[str, "What the one says"]
    other_content: Annotated[str, "What the other says, or the side that lost"]
    noted_at: Annotated[str, "When it was noticed"]


class Noted(Struct, frozen=True):
    memory: str
    other: str
    why: str
    at: int


async def disputes(memories: Memories, limit: int) -> list[Dispute]:
    """The newest first. What was settled by changing or deleting one of them is not shown."""
    return await memories.read(lambda tx: _open(tx, memories, limit))


def _open(tx: Transaction, memories: Memories, limit: int) -> list[Dispute]:
    found = tx.all(
        Noted, "select memory, other, why, at from memory_conflict order by at desc, memory, other limit 1000"
    )
    known = records.fetch_named(tx, list({id for one in found for id in (one.memory, one.other)}))
    shown: list[Dispute] = []
    for one in found:
        here, there = known[one.memory], known[one.other]
        is_here = here.domain != "project" or here.project in (None, *memories.homes)
        seen = is_visible(here, memories.owner) and is_visible(there, memories.owner)
        if here.status in CURRENT and there.status in CURRENT and is_here and seen:
            dispute = _dispute(tx, one, here, there)
            shown += [dispute] if dispute is not None else []
        if len(shown) == limit:
            break
    return shown


def disputed(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Return those of these memories that an open conflict is about, whether or not the other one is among them."""
    found = tx.all(
        Noted,
        "select memory, other, why, at from memory_conflict where memory in :ids or other in :ids",
        {"ids": list(ids)},
    )
    known = records.fetch(tx, list({id for one in found for id in (one.memory, one.other)}))
    pairs = [(one, known[one.memory], known[one.other]) for one in found if {one.memory, one.other} <= known.keys()]
    unsettled = [
        {here.id, there.id}
        for one, here, there in pairs
        if here.status in CURRENT and there.status in CURRENT and _dispute(tx, one, here, there) is not None
    ]
    return set(ids) & {id for pair in unsettled for id in pair}


def _dispute(tx: Transaction, noted: Noted, here: Record, there: Record) -> Dispute | None:
    """None where they have come to agree since."""
    why: str | None = noted.why
    other = there.content
    if here.id != there.id:
        why = near_duplicates.conflict(here.content, there.content)
    else:
        synced = [one.was.content for one in records.history(tx, here.id, 20) if one.change == "synced"]
        lost = [one for one in synced if one != here.content]
        other = lost[0] if lost else other
    if why is None:
        return None
    return Dispute(
        memory_id=here.id,
        other_id=there.id,
        why=why,
        content=text.preview(here.content, 300),
        other_content=text.preview(other, 300),
        noted_at=timestamps.written(noted.at),
    )


async def settle(memories: Memories, id: str, other: str, keep: Keep, *, who: str = "") -> list[str]:
    """Decide between two: the one that does not hold is superseded, and can be restored. What was changed."""
    now = timestamps.now()

    def write(tx: Transaction) -> list[str]:
        here, there = (records.get(tx, one, memories.owner) for one in (id, other))
        pair = {"here": here.id, "there": there.id}
        gone = tx.run(
            "delete from memory_conflict where (memory = :here and other = :there) "
            "or (memory = :there and other = :here)",
            pair,
        )
        if not gone:
            raise InvalidInput(
                f"No conflict between {here.id} and {there.id} is known. The action list shows those there are."
            )
        if keep == "both" or here.id == there.id:
            return []
        loses, holds = (there, here) if keep == "this" else (here, there)
        if loses.status in CURRENT:
            mutations.supersede(tx, loses, holds.id, now, who=who)
        return [loses.id]

    return await memories.write(write)
