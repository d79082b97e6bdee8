"""What the tools answer: the same for a model and for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico_services import text, timestamps
from portico_services.database_service import copied
from portico_services.memory.store.memory_store import Hit
from portico_services.memory.store.records import MemoryEvent, Record
from portico_services.memory.store.screening import Passed

if TYPE_CHECKING:
    from portico_services.memory.store import capture as capturing
else:
    capturing = LazyModule("portico_services.memory.store.capture")

MEDIUM = 400
LIGHT = 120
# The fields of a found memory that only more detail shows.
_MEDIUM_FIELDS = ("author", "thread", "source")
_EVERY_FIELD = ("status", "path", "project", "branch")


class Whole(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory with everything that is known about it."""

    id: Annotated[str, "Its id"]
    urn: Annotated[str, "Its address as a resource"]
    domain: Annotated[str, "Whose it is: of a project, of a user, or of an organisation"]
    namespace: Annotated[str, "What kind of memory it is"]
    content: Annotated[str, "What is remembered"]
    tags: Annotated[list[str], "Its tags"]
    status: Annotated[str, "Whether it counts: active, superseded, archived or the like"]
    version: Annotated[int, "How often it was changed, from 1"]
    at: Annotated[str, "When it happened"]
    created_at: Annotated[str, "When it was stored"]
    updated_at: Annotated[str, "When it was last changed"]
    source: Annotated[str | None, "Where it is from"] = None
    author: Annotated[str | None, "Who said it"] = None
    thread: Annotated[str | None, "The conversation it belongs to"] = None
    project: Annotated[str | None, "The project it belongs to"] = None
    branch: Annotated[str | None, "The branch it belongs to"] = None
    path: Annotated[str | None, "The file it is about"] = None
    expires_at: Annotated[str | None, "When it will be forgotten"] = None
    deleted_at: Annotated[str | None, "When it was deleted"] = None
    origin: Annotated[
        str | None, "Where it came by a sync: the remote, and whom git names as the author of which commit"
    ] = None
    notes: Annotated[list[str], "What else there is to say about it"] = field(default_factory=list)


class Captured(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: Annotated[str, "Its id"]
    urn: Annotated[str, "Its address as a resource"]
    namespace: Annotated[str, "What kind of memory it is"]
    domain: Annotated[str, "Whose it is: of a project, of a user, or of an organisation"]
    tags: Annotated[list[str], "Its tags"]
    stored: Annotated[bool, "Whether a new memory was made; otherwise `duplicate_of` says which one says it already"]
    redacted: Annotated[bool, "Whether something was taken out before it was stored"]
    contains: Annotated[list[str], "The names of secrets and personal data that it contains as it is stored"] = field(
        default_factory=list
    )
    duplicate_of: Annotated[str | None, "The id of the memory that says it already"] = None
    superseded: Annotated[str | None, "The id of the memory that it takes the place of"] = None
    conflicts: Annotated[list[capturing.Disagreement], "Memories that it seems to contradict"] = field(
        default_factory=list
    )
    notes: Annotated[list[str], "What else there is to say about it"] = field(default_factory=list)
    expires_at: Annotated[str | None, "When it will be forgotten"] = None


class FoundMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One memory in a list; how much of it depends on the detail that was asked for."""

    id: Annotated[str, "Its id"]
    urn: Annotated[str, "Its address as a resource"]
    namespace: Annotated[str, "What kind of memory it is"]
    tags: Annotated[list[str], "Its tags"]
    content: Annotated[str, "What is remembered"]
    at: Annotated[str, "When it happened"]
    score: Annotated[float | None, "The higher, the better it fits"] = None
    match: Annotated[Literal["strong", "weak"] | None, "Whether it has much of what was asked for, or little"] = None
    cut: Annotated[bool, "Whether `content` is only the beginning"] = False
    author: Annotated[str | None, "Who said it"] = None
    thread: Annotated[str | None, "The conversation it belongs to"] = None
    source: Annotated[str | None, "Where it is from"] = None
    status: Annotated[str | None, "Whether it counts: active, superseded, archived or the like"] = None
    path: Annotated[str | None, "The file it is about"] = None
    project: Annotated[str | None, "The project it belongs to"] = None
    branch: Annotated[str | None, "The branch it belongs to"] = None
    origin: Annotated[
        str | None, "Where it came by a sync: the remote, and whom git names as the author of which commit"
    ] = None


class Recalled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: Annotated[int, "How many are on this page"]
    memories: Annotated[list[FoundMemory], "Best first"]
    mode: Annotated[str, "How was searched"]
    next_cursor: Annotated[str | None, "Pass it as cursor for the next page; null on the last"] = field(
        default=None, name="nextCursor"
    )
    note: Annotated[str | None, "What was left out, or what to do"] = None


class MemoryRevision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: Annotated[int, "Which version it made"]
    change: Annotated[str, "What was done"]
    at: Annotated[str, "When"]
    who: Annotated[str | None, "Who did it"] = None
    reason: Annotated[str | None, "Why"] = None
    content: Annotated[str | None, "What it said before"] = None
    tags: Annotated[list[str] | None, "The tags it had before"] = None
    status: Annotated[str | None, "The status it had before"] = None


class MemoryHistory(Struct, frozen=True, kw_only=True):
    id: Annotated[str, "Its id"]
    version: Annotated[int, "Its version now"]
    status: Annotated[str, "Its status now"]
    changes: Annotated[list[MemoryRevision], "All changes, the last one first"]


class DeletedMemory(Struct, frozen=True, kw_only=True):
    id: Annotated[str, "Its id"]
    deleted: Annotated[bool, "Whether it was there, and is deleted now"]
    hard: Annotated[bool, "Whether nothing of it is left"]
    note: Annotated[str, "What can be done about it"]


class DeletedMemories(Struct, frozen=True, kw_only=True):
    count: Annotated[int, "How many"]
    ids: Annotated[list[str], "Their ids"]
    dry_run: Annotated[bool, "Whether nothing was done"]
    note: Annotated[str, "What can be done about it"]


class NamespaceCount(Struct, frozen=True, kw_only=True):
    name: Annotated[str, "Its name"]
    about: Annotated[str, "What belongs in it"]
    signals: Annotated[list[str], "Words that hint at it"]
    writable: Annotated[bool, "Whether memories can be stored in it"]
    count: Annotated[int, "How many memories there are in it"]


class Namespaces(Struct, frozen=True, kw_only=True):
    namespaces: Annotated[list[NamespaceCount], "All of them"]


class Standing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the memory stands."""

    total: Annotated[int, "How many memories there are"]
    by_namespace: Annotated[dict[str, int], "How many in each namespace"]
    by_domain: Annotated[dict[str, int], "How many in each domain"]
    by_status: Annotated[dict[str, int], "How many of each status"]
    by_project: Annotated[dict[str, int], "How many in each project"]
    by_branch: Annotated[dict[str, int], "How many in each branch"]
    conflicts: Annotated[
        int,
        "How many pairs seemed to contradict each other and are undecided",
    ]
    storage: Annotated[str, "Where they are stored"]
    secrets: Annotated[str, "What is done about secrets"]
    personal: Annotated[str, "What is done about personal data"]
    modes: Annotated[list[str], "The ways to search that there are"]
    indexed: Annotated[int, "How many can be found by their words"]
    embedded: Annotated[int, "How many can be found by their meaning"]
    model: Annotated[str | None, "What gives them a meaning, where there is something"] = None
    tags: Annotated[dict[str, int], "How often each tag is used"]
    project: Annotated[str | None, "The project that is worked on, where it is known"] = None
    newest: Annotated[str | None, "When the newest was stored"] = None
    oldest: Annotated[str | None, "When the oldest was stored"] = None


def urn(record: Record, scheme: str) -> str:
    return f"{scheme}://{record.domain}/{record.namespace}/{record.id}"


def whole(record: Record, scheme: str, notes: Sequence[str] = ()) -> Whole:
    return copied(_outward(record), Whole, timestamps.written, urn=urn(record, scheme), notes=list(notes))


def _outward(record: Record) -> Record:
    """The record without the key of its owner, which the project of the user domain holds."""
    return record if record.domain == "project" or record.project is None else replace(record, project=None)


def captured(taken: capturing.Taken, scheme: str, passed: Passed, notes: Sequence[str] = ()) -> Captured:
    """`passed` is what was found in it before it was stored."""
    return copied(
        taken.record,
        Captured,
        timestamps.written,
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
    content = record.content if room is None else text.preview(record.content, room)
    hidden = {"light": _MEDIUM_FIELDS + _EVERY_FIELD, "medium": _EVERY_FIELD}.get(detail, ())
    return copied(
        _outward(record),
        FoundMemory,
        timestamps.written,
        urn=urn(record, scheme),
        content=content,
        cut=content.endswith(" …") and not record.content.endswith(" …"),
        **dict.fromkeys(hidden),
    )


def _captured_by(record: Record) -> str | None:
    """Return who captured a memory. The author of one that came by a sync is what its sender says, so whom git names
    stands beside it."""
    if record.author is None or record.origin is None:
        return record.author or record.origin
    return f"{record.author} ({record.origin})"


def from_project(shown: FoundMemory, record: Record, homes: tuple[str, ...]) -> FoundMemory:
    """Return it with its project where that is not the project of the call, whatever the detail."""
    is_foreign = record.domain == "project" and record.project is not None and record.project not in homes
    return replace(shown, project=record.project) if is_foreign else shown


def past(record: Record, events: list[MemoryEvent]) -> MemoryHistory:
    changes = [
        copied(
            one,
            MemoryRevision,
            timestamps.written,
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
            MemoryRevision(
                version=1,
                change="captured",
                at=timestamps.written(record.created_at),
                who=_captured_by(record),
            )
        )
    return MemoryHistory(id=record.id, version=record.version, status=record.status, changes=changes)
