"""Export and import: memories out of one database and into another."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import Blocked, InvalidInput
from portico_services.memory.store import listing, mutations, records, validation
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.memory_store import LOT, Memories
from portico_services.memory.store.namespaces import STATUSES
from portico_services.memory.store.ownership import is_visible
from portico_services.memory.store.records import Listed, Record
from portico_services.memory.sync import serialization
from portico_services.memory.sync.serialization import Format, Portable

Screen = Callable[[str], tuple[str, list[str]]]

LONGEST_IMPORT = 3_000_000
MOST_COMPLAINTS = 20
MOST_EXPORTED = 1000
# How many authors, threads, tags and the like are remembered while an import goes on.
MOST_LABELS = 1000


class Brought(Struct, frozen=True, kw_only=True):
    """What an import did, or would do."""

    added: Annotated[int, "How many are new"] = 0
    updated: Annotated[int, "How many were changed"] = 0
    unchanged: Annotated[int, "How many were here already"] = 0
    refused: Annotated[int, "How many were not taken"] = 0
    problems: Annotated[list[str], "Why, one line for each"] = field(default_factory=list)


async def export(
    memories: Memories, filter: MemoryFilter, format: Format, *, limit: int = MOST_EXPORTED, after: Listed | None = None
) -> tuple[str, int, Listed | None]:
    """A text with these memories, how many they are, and if there are more, where the last one stands: what the next
    part comes after. Deleted ones only if asked for."""
    if filter.words:
        raise InvalidInput(f"{filter.words[:80]!r} is no condition; an export takes conditions only.")
    now = timestamps.now()
    usual = tuple(one for one in STATUSES if one != "deleted")
    found = await memories.read(
        lambda tx: listing.matching(tx, filter, limit=limit + 1, statuses=usual, at=now, after=after)
    )
    shown = found[:limit]
    return serialization.dumped(shown, format), len(shown), (shown[-1].at, shown[-1].id) if len(found) > limit else None


async def bring(
    memories: Memories,
    text: str,
    format: Format,
    *,
    screen: Screen = lambda text: (text, []),
    who: str = "",
    dry_run: bool = False,
    all_or_nothing: bool = False,
    done: Callable[[int, int], object] = lambda count, total: None,
) -> Brought:
    """Take in an export. A memory that is here already is changed only by a newer version of itself. Where it is
    cancelled, what `done` was told of is here, and the same import goes on from there. With `all_or_nothing`, nothing
    is stored if one of them is refused."""
    now = timestamps.now()
    # As many as it holds have to be read and looked through; others are served meanwhile.
    read, problems = await asyncio.to_thread(_read, text, format, screen, now, memories.project, memories.owner)
    fine = [] if all_or_nothing and problems else _newest(read)
    totals = [0, 0, len(read) - len(fine) if fine else 0]
    for at in range(0, len(fine), LOT):
        some = fine[at : at + LOT]
        if dry_run:
            counts = await memories.read(lambda tx, some=some: _compared(tx, some, memories.owner))  # type: ignore[misc]
        else:
            counts = await memories.write(lambda tx, some=some: _merged(tx, some, now, who, memories.owner))  # type: ignore[misc]
        totals = [one + other for one, other in zip(totals, counts, strict=True)]
        done(sum(totals), len(read))
    if not dry_run:
        await memories.loaded(totals[0])
    return Brought(
        added=totals[0],
        updated=totals[1],
        unchanged=totals[2],
        refused=len(problems),
        problems=problems[:MOST_COMPLAINTS],
    )


def _read(
    text: str, format: Format, screen: Screen, now: int, project: str | None, owner: str
) -> tuple[list[Record], list[str]]:
    fine: list[Record] = []
    problems: list[str] = []
    # Authors, threads and tags are said again and again.
    screen_label = lru_cache(MOST_LABELS)(screen)
    for number, given in enumerate(serialization.loaded(text, format), 1):
        try:
            if isinstance(given, str):
                raise InvalidInput(given)
            fine.append(
                serialization.unpacked(screened(given, screen, screen_label), now, project=project, owner=owner)
            )
        except (InvalidInput, Blocked) as trouble:
            named = "" if isinstance(given, str) else f"{given.id[:16] or f'memory {number}'}: "
            problems.append(f"{named}{trouble}"[:300])
    if not fine and not problems and text.strip():
        problems.append(f"There is no memory in this, read as {format}. memory_export writes what is understood.")
    # What was said first comes first: neighbours in threads find each other by that.
    return sorted(fine, key=lambda one: (one.at, one.id)), problems


def _newest(read: list[Record]) -> list[Record]:
    """Each memory once, whatever the order of its versions: several exports may stand in one file."""
    found: dict[str, Record] = {}
    for one in read:
        if one.id not in found or _is_newer(one, found[one.id]):
            found[one.id] = one
    return list(found.values())


def screened(given: Portable, screen: Screen, screen_label: Screen) -> Portable:
    """The memory with every text of its author screened."""
    validation.bounded(given.content)
    labels = ("source", "author", "thread", "branch", "path")
    kept: dict[str, str] = {
        name: screen_label(said)[0] for name in labels if (said := validation.bounded_label(getattr(given, name), name))
    }
    tags = [screen_label(one)[0] for one in validation.bounded_tags(given.tags)[: validation.MOST_TAGS + 1]]
    return replace(given, content=screen(given.content)[0], tags=tags, **kept)


def _known(tx: Transaction, some: list[Record], owner: str) -> tuple[list[Record], dict[str, Record]]:
    """Return the imported memories and those that are stored under their ids.

    An id that belongs to another owner's memory must look unused, and cannot be used twice: the imported memory gets
    one that is made of it, the same for each import by this owner.
    """
    known = records.fetch(tx, [one.id for one in some])
    hidden = {id for id, one in known.items() if not is_visible(one, owner)}
    if not hidden:
        return some, known
    some = [replace(one, id=_other_id(one.id, owner)) if one.id in hidden else one for one in some]
    return some, records.fetch(tx, [one.id for one in some])


def _other_id(id: str, owner: str) -> str:
    return hashlib.sha256(f"{owner} {id}".encode()).hexdigest()[:16]


def _compared(tx: Transaction, some: list[Record], owner: str) -> tuple[int, int, int]:
    some, known = _known(tx, some, owner)
    added = sum(one.id not in known for one in some)
    updated = sum(one.id in known and _is_newer(one, known[one.id]) for one in some)
    return added, updated, len(some) - added - updated


def _merged(tx: Transaction, some: list[Record], now: int, who: str, owner: str) -> tuple[int, int, int]:
    some, known = _known(tx, some, owner)
    fresh = {one.id: one for one in some if one.id not in known}
    tx.run("delete from memory_gone where memory in :ids", {"ids": list(fresh)})
    mutations.insert(tx, list(fresh.values()))
    newer = [one for one in some if one.id in known and _is_newer(one, known[one.id])]
    for one in newer:
        before = known[one.id]
        after = replace(one, created_at=before.created_at, updated_at=max(now, before.updated_at))
        mutations.change(tx, before, after, "imported", who=who, version=one.version)
    return len(fresh), len(newer), len(some) - len(fresh) - len(newer)


def _is_newer(given: Record, known: Record) -> bool:
    return given.version > known.version
