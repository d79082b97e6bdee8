"""What the tools answer: the same for a model and for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from portico.services import moments, texts
from portico.services.memory.store.capture import Disagreement, Taken
from portico.services.memory.store.records import Event, Record
from portico.services.memory.store.screening_policy import Passed

MEDIUM = 400
LIGHT = 120


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


class Found(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One memory in a list; how much of it depends on the detail that was asked for."""

    id: str
    urn: str
    namespace: str
    tags: list[str]
    content: str
    at: str
    score: float | None = None
    # Whether `content` is only the beginning.
    cut: bool = False
    author: str | None = None
    thread: str | None = None
    source: str | None = None
    status: str | None = None
    path: str | None = None
    project: str | None = None
    branch: str | None = None


class Recalled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: int
    memories: list[Found]
    mode: str
    next_cursor: str | None = field(default=None, name="nextCursor")
    note: str | None = None


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int
    change: str
    at: str
    who: str | None = None
    reason: str | None = None
    # What it said before.
    content: str | None = None
    tags: list[str] | None = None
    status: str | None = None


class Past(Struct, frozen=True, kw_only=True):
    id: str
    version: int
    status: str
    changes: list[Change]


class Deleted(Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool
    hard: bool
    note: str


class Swept(Struct, frozen=True, kw_only=True):
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
    return Whole(
        notes=list(notes),
        id=record.id,
        urn=urn(record, scheme),
        domain=record.domain,
        namespace=record.namespace,
        content=record.content,
        tags=record.tags,
        status=record.status,
        version=record.version,
        at=moments.written(record.at),
        created_at=moments.written(record.created_at),
        updated_at=moments.written(record.updated_at),
        source=record.source,
        author=record.author,
        thread=record.thread,
        project=record.project,
        branch=record.branch,
        path=record.path,
        expires_at=None if record.expires_at is None else moments.written(record.expires_at),
        deleted_at=None if record.deleted_at is None else moments.written(record.deleted_at),
    )


def captured(taken: Taken, scheme: str, passed: Passed, notes: Sequence[str] = ()) -> Captured:
    """`passed` is what was found in it before it was stored."""
    record = taken.record
    return Captured(
        id=record.id,
        urn=urn(record, scheme),
        namespace=record.namespace,
        domain=record.domain,
        tags=record.tags,
        stored=taken.is_new,
        redacted=bool(passed.hidden),
        contains=passed.seen if taken.is_new else [],
        duplicate_of=taken.duplicate_of,
        superseded=taken.superseded,
        conflicts=taken.conflicts,
        notes=[*passed.notes(), *notes] if taken.is_new else [],
        expires_at=None if record.expires_at is None else moments.written(record.expires_at),
    )


def found(record: Record, scheme: str, detail: str, score: float | None = None) -> Found:
    room = {"light": LIGHT, "medium": MEDIUM}.get(detail)
    content = record.content if room is None else texts.preview(record.content, room)
    more: dict[str, Any] = {}
    if detail != "light":
        more = {"author": record.author, "thread": record.thread, "source": record.source}
    if detail == "everything":
        more |= {name: getattr(record, name) for name in ("status", "path", "project", "branch")}
    return Found(
        id=record.id,
        urn=urn(record, scheme),
        namespace=record.namespace,
        tags=record.tags,
        content=content,
        at=moments.written(record.at),
        score=None if score is None else round(score, 4),
        cut=content.endswith(" …") and not record.content.endswith(" …"),
        **more,
    )


def past(record: Record, events: list[Event]) -> Past:
    changes = [
        Change(
            version=one.version,
            change=one.change,
            at=moments.written(one.at),
            who=one.who or None,
            reason=one.reason or None,
            content=one.was.content,
            tags=one.was.tags,
            status=one.was.status,
        )
        for one in events
    ]
    if not events or events[-1].version == 2:
        changes.append(Change(version=1, change="captured", at=moments.written(record.created_at), who=record.author))
    return Past(id=record.id, version=record.version, status=record.status, changes=changes)
