"""Export and import of memories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction, run_blocking
from portico_services import timestamps
from portico_services.memory.errors import ContentBlocked, InvalidInput
from portico_services.memory.store import listing, mutations, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.memory_store import INSERT_BATCH_SIZE, MemoryStore
from portico_services.memory.store.namespaces import STATUSES
from portico_services.memory.store.ownership import is_visible
from portico_services.memory.store.records import ListKey, MemoryRecord
from portico_services.memory.sync import serialization
from portico_services.memory.sync.serialization import ExportFormat, PortableMemory

ScreenText = Callable[[str], tuple[str, list[str]]]

# Below the largest message of the protocol layer; the command line imports larger files without a tool call.
MAX_IMPORT_CHARS = 3_000_000
MAX_REPORTED_ERRORS = 20
MAX_EXPORTED_MEMORIES = 1000
# Screened authors, threads, tags and other labels cached during an import.
MAX_CACHED_LABELS = 1000


class ImportReport(Struct, frozen=True, kw_only=True):
    """Result of an import, or of a dry run."""

    added: Annotated[int, "How many are new"] = 0
    updated: Annotated[int, "How many were changed"] = 0
    unchanged: Annotated[int, "How many were here already"] = 0
    refused: Annotated[int, "How many were not taken"] = 0
    problems: Annotated[list[str], "Why, one line for each"] = field(default_factory=list)


async def export_memories(
    memories: MemoryStore,
    filter: MemoryFilter,
    format: ExportFormat,
    *,
    limit: int = MAX_EXPORTED_MEMORIES,
    after: ListKey | None = None,
) -> tuple[str, int, ListKey | None]:
    """Return the serialized memories, their number and, if there are more, the key of the last one for the next page.

    Deleted memories are included only if the filter selects them. Raises `InvalidInput` if the filter contains a query.
    """
    if filter.words:
        raise InvalidInput(f"An export filter must consist of conditions, got the words {filter.words[:80]!r}.")
    now = timestamps.now_ms()
    usual = tuple(status for status in STATUSES if status != "deleted")
    result = await memories.read(
        lambda tx: listing.list_memories(tx, filter, limit=limit + 1, statuses=usual, at=now, after=after)
    )
    exported = result[:limit]
    return (
        serialization.dump(exported, format),
        len(exported),
        (exported[-1].at, exported[-1].id) if len(result) > limit else None,
    )


async def import_memories(
    memories: MemoryStore,
    text: str,
    format: ExportFormat,
    *,
    screen: ScreenText = lambda text: (text, []),
    who: str = "",
    dry_run: bool = False,
    all_or_nothing: bool = False,
    done: Callable[[int, int], object] = lambda count, total: None,
) -> ImportReport:
    """Import memories from an export. An existing memory is changed only by a newer version of itself.

    `done` receives the numbers imported so far and in total. If the task is cancelled, imported batches stay, and
    repeating the import continues from there. With `all_or_nothing`, nothing is stored if one memory is rejected.
    """
    now = timestamps.now_ms()
    # Parsing and screening a large import takes seconds, so it runs in a thread.
    read, problems = await run_blocking(_read, text, format, screen, now, memories.project, memories.owner)
    fine = [] if all_or_nothing and problems else _latest_versions(read)
    totals = [0, 0, len(read) - len(fine) if fine else 0]
    for at in range(0, len(fine), INSERT_BATCH_SIZE):
        some = fine[at : at + INSERT_BATCH_SIZE]
        if dry_run:
            counts = await memories.read(lambda tx, some=some: _plan_batch(tx, some, memories.owner))  # type: ignore[misc]
        else:
            counts = await memories.write(lambda tx, some=some: _import_batch(tx, some, now, who, memories.owner))  # type: ignore[misc]
        totals = [subtotal + other for subtotal, other in zip(totals, counts, strict=True)]
        done(sum(totals), len(read))
    if not dry_run:
        await memories.note_bulk_load(totals[0])
    return ImportReport(
        added=totals[0],
        updated=totals[1],
        unchanged=totals[2],
        refused=len(problems),
        problems=problems[:MAX_REPORTED_ERRORS],
    )


def _read(
    text: str, format: ExportFormat, screen: ScreenText, now: int, project: str | None, owner: str
) -> tuple[list[MemoryRecord], list[str]]:
    """Parse and screen an export; return the records and a message for each rejected memory."""
    fine: list[MemoryRecord] = []
    problems: list[str] = []
    # The same authors, threads and tags occur again and again.
    screen_label = lru_cache(MAX_CACHED_LABELS)(screen)
    for number, item in enumerate(serialization.load(text, format), 1):
        try:
            if isinstance(item, str):
                raise InvalidInput(item)
            fine.append(
                serialization.from_portable(
                    screen_memory(item, screen, screen_label), now, project=project, owner=owner
                )
            )
        except (InvalidInput, ContentBlocked) as trouble:
            named = "" if isinstance(item, str) else f"{item.id[:16] or f'memory {number}'}: "
            problems.append(f"{named}{trouble}"[:300])
    if not fine and not problems and text.strip():
        problems.append(f"No memory found in the data, read as {format}. Use the output of memory_export.")
    # In chronological order, so that neighbours in a thread get adjacent positions.
    return sorted(fine, key=lambda memory: (memory.at, memory.id)), problems


def _latest_versions(read: list[MemoryRecord]) -> list[MemoryRecord]:
    """Return the latest version of each memory. A file can contain several exports of the same memory."""
    result: dict[str, MemoryRecord] = {}
    for item in read:
        if item.id not in result or _is_newer(item, result[item.id]):
            result[item.id] = item
    return list(result.values())


def screen_memory(memory: PortableMemory, screen: ScreenText, screen_label: ScreenText) -> PortableMemory:
    """Return the memory with its content, labels and tags screened."""
    validation.check_length(memory.content)
    labels = ("source", "author", "thread", "branch", "path")
    screened: dict[str, str] = {
        name: screen_label(label)[0]
        for name in labels
        if (label := validation.check_label_length(getattr(memory, name), name))
    }
    tags = [screen_label(check_tag)[0] for check_tag in validation.check_tags(memory.tags)[: validation.MAX_TAGS + 1]]
    return replace(memory, content=screen(memory.content)[0], tags=tags, **screened)


def _find_existing(
    tx: Transaction, some: list[MemoryRecord], owner: str
) -> tuple[list[MemoryRecord], dict[str, MemoryRecord]]:
    """Return the imported memories and the stored memories with the same ids.

    An id of another owner's memory must look unused but cannot be used twice. The imported memory gets an id derived
    from it, the same one for each import by this owner.
    """
    existing = records.fetch(tx, [item.id for item in some])
    hidden = {id for id, item in existing.items() if not is_visible(item, owner)}
    if not hidden:
        return some, existing
    some = [replace(item, id=_other_id(item.id, owner)) if item.id in hidden else item for item in some]
    return some, records.fetch(tx, [item.id for item in some])


def _other_id(id: str, owner: str) -> str:
    return hashlib.sha256(f"{owner} {id}".encode()).hexdigest()[:16]


def _plan_batch(tx: Transaction, some: list[MemoryRecord], owner: str) -> tuple[int, int, int]:
    """Count the memories of a batch that would be added, updated and left unchanged."""
    some, existing = _find_existing(tx, some, owner)
    added = sum(item.id not in existing for item in some)
    updated = sum(item.id in existing and _is_newer(item, existing[item.id]) for item in some)
    return added, updated, len(some) - added - updated


def _import_batch(tx: Transaction, some: list[MemoryRecord], now: int, who: str, owner: str) -> tuple[int, int, int]:
    """Import a batch; return the numbers of added, updated and unchanged memories."""
    some, existing = _find_existing(tx, some, owner)
    fresh = {item.id: item for item in some if item.id not in existing}
    # An explicit import overrides an earlier permanent deletion.
    tx.execute("delete from memory_gone where memory in :ids", {"ids": list(fresh)})
    mutations.insert(tx, list(fresh.values()))
    newer = [item for item in some if item.id in existing and _is_newer(item, existing[item.id])]
    for item in newer:
        before = existing[item.id]
        after = replace(item, created_at=before.created_at, updated_at=max(now, before.updated_at))
        mutations.update(tx, before, after, "imported", who=who, version=item.version)
    return len(fresh), len(newer), len(some) - len(fresh) - len(newer)


def _is_newer(incoming: MemoryRecord, stored: MemoryRecord) -> bool:
    return incoming.version > stored.version
