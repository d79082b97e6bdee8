"""Capture: a draft becomes a record, unless it is known already."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import text
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search import retrieval
from portico_services.memory.store import mutations, near_duplicates, records, validation
from portico_services.memory.store.namespaces import checked_domain, checked_namespace
from portico_services.memory.store.ownership import home_of
from portico_services.memory.store.records import Record

OnDuplicate = Literal["skip", "merge", "supersede", "error", "keep"]
# How many of the most similar memories are looked at.
NEIGHBOURS = 5
# Of a long text, the beginning is enough to find what is like it.
LONGEST_QUESTION = 400
# Where things stand that were said at the same moment: those of a process in their order, and after those of the one
# before it.
_PLACES = itertools.count(time.time_ns())


class Draft(Struct, frozen=True, kw_only=True, gc=False):
    """A memory as a client gives it."""

    content: str
    namespace: str
    tags: list[str] = field(default_factory=list)
    domain: str = "project"
    source: str | None = None
    author: str | None = None
    author_kind: str | None = None
    thread: str | None = None
    project: str | None = None
    # Whose it is in the user domain: see `ownership`.
    owner: str = ""
    branch: str | None = None
    path: str | None = None
    ttl: str | None = None
    at: str | None = None
    on_duplicate: OnDuplicate = "skip"


class Disagreement(Struct, frozen=True):
    """A memory that cannot hold together with another one, as far as words tell."""

    id: Annotated[str, "Its id"]
    why: Annotated[str, "In what they differ"]
    content: Annotated[str, "What it says"]


class Taken(Struct, frozen=True, kw_only=True, gc=False):
    """What became of a draft. `record` is the memory that now says it."""

    record: Record
    is_new: bool
    duplicate_of: str | None = None
    superseded: str | None = None
    conflicts: list[Disagreement] = field(default_factory=list)


def new_id() -> str:
    return os.urandom(8).hex()


def author_kind(author: str | None) -> str | None:
    """`user`, `assistant` or `person`, which the ranking tells apart."""
    if author is None:
        return None
    said = author.strip().casefold()
    return said if said in ("user", "assistant") else "person"


def record_of(draft: Draft, now: int) -> Record:
    content = validation.content(draft.content)
    lasting = None if draft.ttl is None else validation.span(draft.ttl)
    domain = checked_domain(draft.domain)
    return Record(
        id=new_id(),
        domain=domain,
        namespace=checked_namespace(draft.namespace),
        content=content,
        tags=validation.tags(draft.tags),
        **validation.labels(draft),
        author_kind=validation.label(draft.author_kind, "author_kind") or author_kind(draft.author),
        place=next(_PLACES),
        project=home_of(domain, validation.project(draft.project) if domain == "project" else None, draft.owner),
        at=now if draft.at is None else validation.past(draft.at, now),
        created_at=now,
        updated_at=now,
        expires_at=None if lasting is None else now + lasting,
        digest=records.digest(content),
    )


def take(tx: Transaction, draft: Draft, record: Record, *, who: str, compare: bool = True) -> Taken:
    """`compare` also looks for memories that are nearly the same, or say otherwise."""
    now = record.created_at
    known = records.same(tx, record.domain, record.namespace, record.digest, record.project, now)
    conflicts: list[Disagreement] = []
    if known is None and compare:
        known, conflicts = _compared(tx, record)
    if known is None or draft.on_duplicate == "keep":
        return _stored(tx, record, conflicts, duplicate_of=None if known is None else known.id)
    if draft.on_duplicate == "error":
        raise InvalidInput(
            f"The memory {known.id} says this already: {text.preview(known.content, 200)}", duplicate_of=known.id
        )
    if draft.on_duplicate == "supersede":
        mutations.supersede(tx, known, record.id, now, who=who)
        taken = _stored(tx, record, conflicts, duplicate_of=known.id)
        return replace(taken, superseded=known.id)
    if draft.on_duplicate == "merge":
        known = _merged(tx, known, record, who)
    return Taken(record=known, is_new=False, duplicate_of=known.id, conflicts=conflicts)


def take_all(tx: Transaction, made: Sequence[tuple[Draft, Record]], *, who: str) -> list[Taken]:
    """Many, in their order. Only exact duplicates are looked for; what has none is written together."""
    said = records.said_already(tx, [record.digest for _, record in made])
    taken: list[Taken] = []
    fresh: list[Record] = []
    for draft, record in made:
        if record.digest in said:
            taken += _stored_all(tx, fresh)
            fresh = []
            taken.append(take(tx, draft, record, who=who, compare=False))
        else:
            said.add(record.digest)
            fresh.append(record)
    return taken + _stored_all(tx, fresh)


def _stored_all(tx: Transaction, found: list[Record]) -> list[Taken]:
    if found:
        mutations.insert(tx, found)
    return [Taken(record=one, is_new=True) for one in found]


def _stored(tx: Transaction, record: Record, conflicts: list[Disagreement], duplicate_of: str | None) -> Taken:
    mutations.insert(tx, [record])
    if conflicts:
        records.disagree(tx, record.id, [(one.id, one.why) for one in conflicts], record.created_at)
    return Taken(record=record, is_new=True, duplicate_of=duplicate_of, conflicts=conflicts)


def _merged(tx: Transaction, known: Record, record: Record, who: str) -> Record:
    """The one that is there, with what the new one adds to it: tags, a later end, the longer text."""
    ends = None if known.expires_at is None or record.expires_at is None else max(known.expires_at, record.expires_at)
    merged = replace(
        known,
        content=max(known.content, record.content, key=len),
        tags=list(dict.fromkeys([*known.tags, *record.tags]))[: validation.MOST_TAGS],
        source=known.source or record.source,
        expires_at=ends,
        updated_at=record.created_at,
    )
    return mutations.change(tx, known, merged, "merged", who=who)


def _compared(tx: Transaction, record: Record) -> tuple[Record | None, list[Disagreement]]:
    """The memory that is nearly the same, if there is one, and those that say otherwise."""
    conflicts = []
    least = near_duplicates.same_from(record.namespace)
    said = near_duplicates.ComparedText(record.content)
    for id, content in retrieval.alike(tx, record, NEIGHBOURS, longest=LONGEST_QUESTION, at=record.created_at):
        other = near_duplicates.ComparedText(content)
        if near_duplicates.is_same(said, other, least):
            # The neighbours are of the same place, and so of the same owner.
            return records.get(tx, id, None), []
        why = near_duplicates.contradiction(said, other)
        if why is not None:
            conflicts.append(Disagreement(id, why, text.preview(content, 200)))
    return None, conflicts
