"""What a project has under the name that it once shared with others becomes its own when it is synced.

Until then it is seen from every folder of that name, as it always was: nothing says whose it is. A sync does, because
it has always sent all of it.
"""

from __future__ import annotations

from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.store import mutations, records
from portico_services.memory.store.memory_store import BATCH, Memories

_PLACED = ("memory_synced", "memory_meeting", "memory_refused")


async def adopt(memories: Memories, place: str, former_place: str, *, who: str) -> None:
    """The memories of the project's former name, and what is known of the remote at `former_place`, move."""
    if memories.former is None:
        return
    while await memories.write(lambda tx: _some(tx, memories, who)) == BATCH:
        pass
    await memories.write(lambda tx: _move(tx, former_place, place))


def _some(tx: Transaction, memories: Memories, who: str) -> int:
    former = {"former": memories.former}
    found = records.which(tx, "domain = 'project' and project = :former", former, BATCH)
    for one in found:
        # With its version: to the others it is what it was.
        after = replace(one, project=memories.project)
        mutations.change(tx, one, after, "moved", who=who, version=one.version, at=timestamps.now())
    return len(found)


def _move(tx: Transaction, before: str, after: str) -> None:
    if tx.maybe(str, "select place from memory_meeting where place = :place", {"place": after}) is not None:
        return
    for table in _PLACED:
        tx.run(f"update {table} set place = :after where place = :before", {"before": before, "after": after})
