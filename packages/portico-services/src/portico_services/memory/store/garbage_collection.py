"""Garbage collection of expired and deleted memories, and permanent erasure."""

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
from portico_services.memory.store.memory_store import WRITE_BATCH_SIZE, MemoryStore
from portico_services.memory.store.namespaces import STATUSES
from portico_services.memory.store.ownership import VISIBLE
from portico_services.memory.store.records import MemoryRecord

DEFAULT_TRASH_RETENTION = "30d"

# SQL condition on the table `memory` and its parameters. Never built from client input.
SqlCondition = tuple[str, dict[str, Any]]
# Receives the number of memories processed so far.
ProgressCallback = Callable[[int], object]


class GarbageCollectionReport(Struct, frozen=True, kw_only=True):
    """Numbers of collected memories; in a dry run, the numbers that would be collected."""

    expired: Annotated[int, "Expired memories deleted"]
    archived: Annotated[int, "Memories of the finished branch archived"]
    purged: Annotated[int, "Old deletions purged"]


async def collect_garbage(
    memories: MemoryStore,
    *,
    dry_run: bool,
    branch: str | None = None,
    purge: bool = False,
    older_than: str | None = None,
    done: ProgressCallback = lambda count: None,
) -> GarbageCollectionReport:
    """Delete expired memories, archive the memories of a finished branch, and purge old deletions.

    `done` receives the number processed so far. If the task is cancelled, processed batches stay committed.
    """
    now = timestamps.now_ms()
    age = validation.parse_duration(older_than or DEFAULT_TRASH_RETENTION) or 0

    def expire(tx: Transaction, batch: list[MemoryRecord]) -> None:
        for item in batch:
            mutations.delete(tx, item, now, reason="expired")

    def archive(tx: Transaction, batch: list[MemoryRecord]) -> None:
        for item in batch:
            after = replace(item, status="archived", updated_at=now)
            mutations.update(tx, item, after, "archived", reason=f"the branch {branch} is done with")

    over = ("expires_at <= :now and status <> 'deleted'", {"now": now})
    expired = await _for_each_batch(memories, over, dry_run, expire, done)
    archived = purged = 0
    if branch:
        condition = _branch_condition(branch, memories)
        archived = await _for_each_batch(memories, condition, dry_run, archive, lambda count: done(expired + count))
    if purge:
        before = expired + archived
        # The redundant `status <> 'active'` lets the query planners use the partial index.
        old = ("status <> 'active' and status = 'deleted' and deleted_at <= :moment", {"moment": now - age})
        remove = partial(mutations.purge, now=now)
        purged = await _for_each_batch(memories, old, dry_run, remove, lambda count: done(before + count))
    return GarbageCollectionReport(expired=expired, archived=archived, purged=purged)


def _branch_condition(branch: str, memories: MemoryStore) -> SqlCondition:
    condition, values = "branch = :branch and status in ('active', 'pending')", {"branch": branch}
    if memories.project is None:
        return condition, values
    return f"{condition} and project = :project", {**values, "project": memories.project}


async def _for_each_batch(
    memories: MemoryStore,
    selection: SqlCondition,
    dry_run: bool,
    do: Callable[[Transaction, list[MemoryRecord]], None],
    done: ProgressCallback,
) -> int:
    """Apply `do` to all memories that match a condition, batch by batch, and return their number.

    `do` must make the memories stop matching, so that each query returns the next batch.
    """
    condition, values = f"{selection[0]} and {VISIBLE}", {**selection[1], "owner": memories.owner}
    if dry_run:
        return await memories.read(
            lambda tx: tx.fetch_one(int, f"select count(*) from memory where {condition}", values)
        )

    def delete_batch(tx: Transaction) -> int:
        where = records.select_where(tx, condition, values, WRITE_BATCH_SIZE)
        do(tx, where)
        return len(where)

    total = 0
    while count := await memories.write(delete_batch):
        total += count
        done(total)
    return total


async def erase_memories(
    memories: MemoryStore,
    *,
    id: str | None = None,
    author: str | None = None,
    filter: MemoryFilter | None = None,
    done: ProgressCallback = lambda count: None,
) -> int:
    """Erase memories permanently, whatever their status: content, index, history, entities and conflicts.

    Exactly one of `id`, `author` and `filter` is required.
    """
    if sum(item is not None for item in (id, author, filter)) != 1:
        raise InvalidInput("Pass exactly one of memory_id, author and filter.")
    if filter is not None and (filter.words or filter.is_empty):
        raise InvalidInput("The filter must consist of conditions, for example thread:t1.")
    scoped = filter
    if author is not None:
        scoped = memories.restrict_to_visible(MemoryFilter().with_condition("author", author), every_project=True)
    now = timestamps.now_ms()

    def delete_batch(tx: Transaction) -> int:
        if tx.engine == "sqlite":
            # Overwrite deleted content instead of leaving it in the file until the page is reused.
            tx.fetch_all(int, "pragma secure_delete = on")
        if scoped is None:
            result = [records.get(tx, id or "", memories.owner)]
        else:
            result = listing.list_memories(tx, scoped, limit=WRITE_BATCH_SIZE, statuses=STATUSES, at=-1)
        mutations.purge(tx, result, now, entirely=True)
        # Keep the record that a synced file exists, so that the file is removed, but not the digest of its content.
        tx.execute("update memory_synced set digest = '' where memory in :ids", {"ids": [item.id for item in result]})
        return len(result)

    total = await memories.write(delete_batch)
    while scoped is not None and total and (count := await memories.write(delete_batch)):
        total += count
        done(total)
    return total
