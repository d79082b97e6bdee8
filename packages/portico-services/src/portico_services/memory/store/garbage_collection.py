"""Collecting what is no longer wanted, and forgetting for good."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import listing, mutations, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.memory_store import BATCH, Memories
from portico_services.memory.store.namespaces import STATUSES
from portico_services.memory.store.ownership import VISIBLE
from portico_services.memory.store.records import Record

KEPT_AFTER_DELETION = "30d"

# Phrases of ours about the table, with their parameters.
Which = tuple[str, dict[str, Any]]
# Told how many it were so far.
Done = Callable[[int], object]


class Collected(Struct, frozen=True, kw_only=True):
    """How many, or in a dry run how many it would be."""

    expired: Annotated[int, "How many had expired"]
    archived: Annotated[int, "How many are of a branch that is done with"]
    purged: Annotated[int, "How many were deleted long ago, and are gone"]


async def collect(
    memories: Memories,
    *,
    dry_run: bool,
    branch: str | None = None,
    purge: bool = False,
    older_than: str | None = None,
    done: Done = lambda count: None,
) -> Collected:
    """Delete what has expired, archive what is of a branch that is done with, purge what was deleted long ago.

    `done` is told how many that were so far; where it is cancelled, these are done."""
    now = timestamps.now()
    age = validation.span(older_than or KEPT_AFTER_DELETION) or 0

    def expire(tx: Transaction, found: list[Record]) -> None:
        for one in found:
            mutations.delete(tx, one, now, reason="expired")

    def archive(tx: Transaction, found: list[Record]) -> None:
        for one in found:
            after = replace(one, status="archived", updated_at=now)
            mutations.change(tx, one, after, "archived", reason=f"the branch {branch} is done with")

    over = ("expires_at <= :now and status <> 'deleted'", {"now": now})
    expired = await _each(memories, over, dry_run, expire, done)
    archived = purged = 0
    if branch:
        which = _of_branch(branch, memories)
        archived = await _each(memories, which, dry_run, archive, lambda count: done(expired + count))
    if purge:
        before = expired + archived
        # That it is not active tells the engines which index to take.
        old = ("status <> 'active' and status = 'deleted' and deleted_at <= :moment", {"moment": now - age})
        remove = partial(mutations.remove, now=now)
        purged = await _each(memories, old, dry_run, remove, lambda count: done(before + count))
    return Collected(expired=expired, archived=archived, purged=purged)


def _of_branch(branch: str, memories: Memories) -> Which:
    which, values = "branch = :branch and status in ('active', 'pending')", {"branch": branch}
    if memories.project is None:
        return which, values
    return f"{which} and project = :project", {**values, "project": memories.project}


async def _each(
    memories: Memories, which: Which, dry_run: bool, do: Callable[[Transaction, list[Record]], None], done: Done
) -> int:
    """Whatever is done takes them out of the condition, so the next lot are others."""
    condition, values = f"{which[0]} and {VISIBLE}", {**which[1], "owner": memories.owner}
    if dry_run:
        return await memories.read(lambda tx: tx.one(int, f"select count(*) from memory where {condition}", values))

    def some(tx: Transaction) -> int:
        found = records.which(tx, condition, values, BATCH)
        do(tx, found)
        return len(found)

    total = 0
    while count := await memories.write(some):
        total += count
        done(total)
    return total


async def erase(
    memories: Memories,
    *,
    id: str | None = None,
    author: str | None = None,
    filter: MemoryFilter | None = None,
    done: Done = lambda count: None,
) -> int:
    """For good, whatever their state: the texts, the index, the histories, and what was noted about them."""
    if sum(one is not None for one in (id, author, filter)) != 1:
        raise InvalidInput("Give one of memory_id, author or filter: whose memories are to be erased.")
    if filter is not None and (filter.words or filter.is_empty):
        raise InvalidInput("Erasing needs a filter of conditions alone, such as thread:t1.")
    wanted = filter
    if author is not None:
        wanted = memories.seen(MemoryFilter().also("author", author), every_project=True)
    now = timestamps.now()

    def some(tx: Transaction) -> int:
        if tx.engine == "sqlite":
            # What is deleted is overwritten, instead of being left in the file until something else needs the room.
            tx.all(int, "pragma secure_delete = on")
        if wanted is None:
            found = [records.get(tx, id or "", memories.owner)]
        else:
            found = listing.matching(tx, wanted, limit=BATCH, statuses=STATUSES, at=-1)
        mutations.remove(tx, found, now, entirely=True)
        # That others have a file of it is still known, but not what was in it.
        tx.run("update memory_synced set digest = '' where memory in :ids", {"ids": [one.id for one in found]})
        return len(found)

    total = await memories.write(some)
    while wanted is not None and total and (count := await memories.write(some)):
        total += count
        done(total)
    return total
