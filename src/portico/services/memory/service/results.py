"""What the tools answer: the same for a model and for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from portico.services import moments, texts
from portico.services.memory.store.capture import Disagreement, Taken
from portico.services.memory.store.memories import Hit
from portico.services.memory.store.records import MemoryEvent, Record
from portico.services.memory.store.screening_policy import Passed
from portico.services.stored import copied

MEDIUM = 400
LIGHT = 120
# The fields of a found memory that only more detail shows.
_MEDIUM_FIELDS = ("author", "thread", "source")
_EVERY_FIELD = ("status", "path", "project", "branch")


class Whole(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory with everything that is known about it."""

    id: str
    urn: str
    domain: str
    namespace: str
    content: str
    tags: list[str]
    status: str
    version: int
    at: str
    created_at: str
    updated_at: str
    source: str | None = None
    author: str | None = None
    thread: str | None = None
    project: str | None = None
    branch: str | None = None
    path: str | None = None
    expires_at: str | None = None
    deleted_at: str | None = None
    # Where it came by a sync: the remote, and whom git names as the author of which commit.
    origin: str | None = None
    notes: list[str] = field(default_factory=list)


class Captured(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    urn: str
    namespace: str
    domain: str
    tags: list[str]
    # Whether a new memory was made; otherwise `duplicate_of` says which one says it already.
    stored: bool
    redacted: bool
    # The names of secrets and personal data that it contains as it is stored.
    contains: list[str] = field(default_factory=list)
    duplicate_of: str | None = None
    superseded: str | None = None
    conflicts: list[Disagreement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    expires_at: str | None = None


class FoundMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One memory in a list; how much of it depends on the detail that was asked for."""

    id: str
    urn: str
    namespace: str
    tags: list[str]
    content: str
    at: str
    score: float | None = None
    # Whether it has much of what was asked for, or little.
    match: Literal["strong", "weak"] | None = None
    # Whether `content` is only the beginning.
    cut: bool = False
    author: str | None = None
    thread: str | None = None
    source: str | None = None
    status: str | None = None
    path: str | None = None
    project: str | None = None
    branch: str | None = None
    # Where it came by a sync: the remote, and whom git names as the author of which commit.
    origin: str | None = None


class Recalled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: int
    memories: list[FoundMemory]
    mode: str
    next_cursor: str | None = field(default=None, name="nextCursor")
    note: str | None = None


class MemoryRevision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int
    change: str
    at: str
    who: str | None = None
    reason: str | None = None
    # What it said before.
    content: str | None = None
    tags: list[str] | None = None
    status: str | None = None


class MemoryHistory(Struct, frozen=True, kw_only=True):
    id: str
    version: int
    status: str
    changes: list[MemoryRevision]


class DeletedMemory(Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool
    hard: bool
    note: str


class DeletedMemories(Struct, frozen=True, kw_only=True):
    count: int
    ids: list[str]
    dry_run: bool
    note: str


class NamespaceCount(Struct, frozen=True, kw_only=True):
    name: str
    about: str
    signals: list[str]
    writable: bool
    count: int


class Namespaces(Struct, frozen=True, kw_only=True):
    namespaces: list[NamespaceCount]


class Standing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the memory stands."""

    total: int
    by_namespace: dict[str, int]
    by_domain: dict[str, int]
    by_status: dict[str, int]
    by_project: dict[str, int]
    by_branch: dict[str, int]
    # How many pairs seemed to contradict each other and are undecided; memory_conflicts lists those that still do.
    conflicts: int
    storage: str
    secrets: str
    personal: str
    modes: list[str]
    # How many of them can be found by their words, and by their meaning.
    indexed: int
    embedded: int
    # What gives them a meaning, where there is something.
    model: str | None = None
    tags: dict[str, int]
    project: str | None = None
    newest: str | None = None
    oldest: str | None = None


def urn(record: Record, scheme: str) -> str:
    return f"{scheme}://{record.domain}/{record.namespace}/{record.id}"


def whole(record: Record, scheme: str, notes: Sequence[str] = ()) -> Whole:
    return copied(record, Whole, moments.written, urn=urn(record, scheme), notes=list(notes))


def captured(taken: Taken, scheme: str, passed: Passed, notes: Sequence[str] = ()) -> Captured:
    """`passed` is what was found in it before it was stored."""
    return copied(
        taken.record,
        Captured,
        moments.written,
        urn=urn(taken.record, scheme),
        stored=taken.is_new,
        redacted=bool(passed.hidden),
        contains=passed.seen if taken.is_new else [],
        duplicate_of=taken.duplicate_of,
        superseded=taken.superseded,
        conflicts=taken.conflicts,
        notes=[*passed.notes(), *notes] if taken.is_new else [],
    )


def recalled(hit: Hit, scheme: str, detail: str) -> FoundMemory:
    """What a search found, with how good it is."""
    return replace(found(hit.record, scheme, detail), score=round(hit.score, 4), match="weak" if hit.weak else "strong")


def found(record: Record, scheme: str, detail: str) -> FoundMemory:
    room = {"light": LIGHT, "medium": MEDIUM}.get(detail)
    content = record.content if room is None else texts.preview(record.content, room)
    hidden = {"light": _MEDIUM_FIELDS + _EVERY_FIELD, "medium": _EVERY_FIELD}.get(detail, ())
    return copied(
        record,
        FoundMemory,
        moments.written,
        urn=urn(record, scheme),
        content=content,
        cut=content.endswith(" …") and not record.content.endswith(" …"),
        **dict.fromkeys(hidden),
    )


def past(record: Record, events: list[MemoryEvent]) -> MemoryHistory:
    changes = [
        copied(
            one,
            MemoryRevision,
            moments.written,
            who=one.who or None,
            reason=one.reason or None,
            content=one.was.content,
            tags=one.was.tags,
            status=one.was.status,
        )
        for one in events
    ]
    if not events or events[-1].version == 2:
        changes.append(
            MemoryRevision(version=1, change="captured", at=moments.written(record.created_at), who=record.author)
        )
    return MemoryHistory(id=record.id, version=record.version, status=record.status, changes=changes)
