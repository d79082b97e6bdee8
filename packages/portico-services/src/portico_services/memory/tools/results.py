"""Results of the tools, as structured content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from portico._lazy import LazyModule
from portico_services import text, timestamps
from portico_services.database_service import copy_to_result
from portico_services.memory.search.explain import Explanation
from portico_services.memory.store.memory_store import SearchHit
from portico_services.memory.store.records import MemoryEvent, MemoryRecord
from portico_services.memory.store.screening import ContentScreenResult

if TYPE_CHECKING:
    from portico_services.memory.store import capture as capturing
else:
    capturing = LazyModule("portico_services.memory.store.capture")

MEDIUM_DETAIL_CHARS = 400
LIGHT_DETAIL_CHARS = 120
# Fields of a search result that require more detail.
# Each field costs tokens in every result, so the lower levels of detail leave out what a model rarely needs.
_MEDIUM_FIELDS = ("author", "thread", "source")
_FULL_FIELDS = ("status", "path", "project", "branch")


class MemoryDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory with all its metadata."""

    id: Annotated[str, "Memory id"]
    urn: Annotated[str, "Resource URI"]
    domain: Annotated[str, "Owner: project, user or org"]
    namespace: Annotated[str, "Kind of memory"]
    content: Annotated[str, "Content"]
    tags: Annotated[list[str], "Tags"]
    status: Annotated[str, "Status: active, superseded, archived, pending or deleted"]
    version: Annotated[int, "Version, starting at 1"]
    at: Annotated[str, "Time it was said or happened"]
    created_at: Annotated[str, "Time of capture"]
    updated_at: Annotated[str, "Time of the last change"]
    source: Annotated[str | None, "Origin: file, URL or ticket"] = None
    author: Annotated[str | None, "Author"] = None
    thread: Annotated[str | None, "Conversation, file or session"] = None
    project: Annotated[str | None, "Project"] = None
    branch: Annotated[str | None, "Git branch"] = None
    path: Annotated[str | None, "File it concerns"] = None
    expires_at: Annotated[str | None, "Expiry time"] = None
    deleted_at: Annotated[str | None, "Time of deletion"] = None
    origin: Annotated[str | None, "Origin of a synced memory: remote, commit and its author"] = None
    notes: Annotated[list[str], "Notes"] = field(default_factory=list)


class CaptureResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of memory_capture."""

    id: Annotated[str, "Memory id"]
    urn: Annotated[str, "Resource URI"]
    namespace: Annotated[str, "Kind of memory"]
    domain: Annotated[str, "Owner: project, user or org"]
    tags: Annotated[list[str], "Tags"]
    stored: Annotated[bool, "Whether a new memory was stored; otherwise duplicate_of is set"]
    redacted: Annotated[bool, "Whether text was redacted before storage"]
    contains: Annotated[list[str], "Kinds of secrets and personal data that were stored unredacted"] = field(
        default_factory=list
    )
    duplicate_of: Annotated[str | None, "Id of the existing duplicate"] = None
    superseded: Annotated[str | None, "Id of the memory it replaces"] = None
    conflicts: Annotated[list[capturing.Contradiction], "Memories it seems to contradict"] = field(default_factory=list)
    notes: Annotated[list[str], "Notes"] = field(default_factory=list)
    expires_at: Annotated[str | None, "Expiry time"] = None


class MemoryHit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory in a list. The fields depend on the requested detail."""

    id: Annotated[str, "Memory id"]
    urn: Annotated[str, "Resource URI"]
    namespace: Annotated[str, "Kind of memory"]
    tags: Annotated[list[str], "Tags"]
    content: Annotated[str, "Content"]
    at: Annotated[str, "Time it was said or happened"]
    score: Annotated[float | None, "Score relative to the best result, 0 to 1"] = None
    match: Annotated[
        Literal["strong", "weak"] | None, "Whether it covers much (strong) or little (weak) of the query"
    ] = None
    explain: Annotated[Explanation | None, "Reasons for this result, if requested"] = None
    cut: Annotated[bool, "Whether content is truncated"] = False
    author: Annotated[str | None, "Author"] = None
    thread: Annotated[str | None, "Conversation, file or session"] = None
    source: Annotated[str | None, "Origin: file, URL or ticket"] = None
    status: Annotated[str | None, "Status: active, superseded, archived, pending or deleted"] = None
    path: Annotated[str | None, "File it concerns"] = None
    project: Annotated[str | None, "Project"] = None
    branch: Annotated[str | None, "Git branch"] = None
    origin: Annotated[str | None, "Origin of a synced memory: remote, commit and its author"] = None


class RecallResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of memory_recall."""

    count: Annotated[int, "Number of results on this page"]
    memories: Annotated[list[MemoryHit], "Results, best first"]
    mode: Annotated[str, "Search mode used"]
    next_cursor: Annotated[str | None, "Cursor of the next page; null on the last"] = field(
        default=None, name="nextCursor"
    )
    nothing_known: Annotated[bool, "Whether no result is a strong match: nothing relevant seems to be stored"] = False
    note: Annotated[str | None, "Limitation of the result, or next step"] = None


class MemoryRevision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change in the history of a memory."""

    version: Annotated[int, "Version after the change"]
    change: Annotated[str, "Kind of change"]
    at: Annotated[str, "Time of the change"]
    who: Annotated[str | None, "Actor"] = None
    reason: Annotated[str | None, "Reason"] = None
    content: Annotated[str | None, "Previous content"] = None
    tags: Annotated[list[str] | None, "Previous tags"] = None
    status: Annotated[str | None, "Previous status"] = None


class MemoryHistory(Struct, frozen=True, kw_only=True):
    """Result of memory_history."""

    id: Annotated[str, "Memory id"]
    version: Annotated[int, "Current version"]
    status: Annotated[str, "Current status"]
    changes: Annotated[list[MemoryRevision], "Changes, newest first"]


class DeleteResult(Struct, frozen=True, kw_only=True):
    """Result of memory_delete."""

    id: Annotated[str, "Memory id"]
    deleted: Annotated[bool, "Whether the memory was deleted"]
    hard: Annotated[bool, "Whether it was deleted permanently"]
    note: Annotated[str, "Outcome, or next step"]


class DeleteAllResult(Struct, frozen=True, kw_only=True):
    """Result of memory_delete_all."""

    count: Annotated[int, "Number of memories"]
    ids: Annotated[list[str], "Memory ids"]
    dry_run: Annotated[bool, "Whether this was a dry run"]
    note: Annotated[str, "Outcome, or next step"]


class NamespaceInfo(Struct, frozen=True, kw_only=True):
    """A namespace."""

    name: Annotated[str, "Name"]
    about: Annotated[str, "Purpose"]
    signals: Annotated[list[str], "Words that suggest this namespace"]
    writable: Annotated[bool, "Whether memories can be stored in it"]
    count: Annotated[int, "Number of memories"]


class NamespaceList(Struct, frozen=True, kw_only=True):
    """Result of memory_namespaces."""

    namespaces: Annotated[list[NamespaceInfo], "Namespaces"]


class MemoryStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of memory_status."""

    total: Annotated[int, "Number of memories"]
    by_namespace: Annotated[dict[str, int], "Memories by namespace"]
    by_domain: Annotated[dict[str, int], "Memories by domain"]
    by_status: Annotated[dict[str, int], "Memories by status"]
    by_project: Annotated[dict[str, int], "Memories by project"]
    by_branch: Annotated[dict[str, int], "Memories by git branch"]
    conflicts: Annotated[
        int,
        "Unresolved contradictions",
    ]
    storage: Annotated[str, "Database engine"]
    secrets: Annotated[str, "Action for secrets: block, redact or allow"]
    personal: Annotated[str, "Action for personal data: block, redact or allow"]
    modes: Annotated[list[str], "Available search modes"]
    indexed: Annotated[int, "Memories in the full-text index"]
    embedded: Annotated[int, "Memories with an embedding"]
    model: Annotated[str | None, "Embedding model, if installed"] = None
    tags: Annotated[dict[str, int], "Tags with their number of uses"]
    project: Annotated[str | None, "Current project, if known"] = None
    newest: Annotated[str | None, "Time of the newest memory"] = None
    oldest: Annotated[str | None, "Time of the oldest memory"] = None


def memory_urn(record: MemoryRecord, scheme: str) -> str:
    """Return the resource URI of a memory."""
    return f"{scheme}://{record.domain}/{record.namespace}/{record.id}"


def to_detail(record: MemoryRecord, scheme: str, notes: Sequence[str] = ()) -> MemoryDetail:
    """Return a memory with all its metadata."""
    return copy_to_result(
        _without_owner(record), MemoryDetail, timestamps.format_iso, urn=memory_urn(record, scheme), notes=list(notes)
    )


def _without_owner(record: MemoryRecord) -> MemoryRecord:
    """Return the record without the owner key, which the project column of the user domain contains."""
    # A key is a hash of an identity. Clients do not need it, and could correlate users by it.
    return record if record.domain == "project" or record.project is None else replace(record, project=None)


def to_capture_result(
    outcome: capturing.CaptureOutcome, scheme: str, screening: ContentScreenResult, notes: Sequence[str] = ()
) -> CaptureResult:
    """Return the result of a capture. `passed` is the result of screening."""
    return copy_to_result(
        outcome.record,
        CaptureResult,
        timestamps.format_iso,
        urn=memory_urn(outcome.record, scheme),
        stored=outcome.is_new,
        redacted=bool(screening.redacted),
        contains=screening.allowed if outcome.is_new else [],
        duplicate_of=outcome.duplicate_of,
        superseded=outcome.superseded,
        conflicts=outcome.conflicts,
        notes=[*screening.notes(), *notes] if outcome.is_new else [],
    )


def to_scored_hit(hit: SearchHit, scheme: str, detail: str) -> MemoryHit:
    """Return a search result with its score."""
    return replace(
        to_hit(hit.record, scheme, detail),
        score=round(hit.score, 4),
        match="weak" if hit.weak else "strong",
        explain=hit.explanation,
    )


def to_hit(record: MemoryRecord, scheme: str, detail: str) -> MemoryHit:
    """Return a memory with the requested amount of detail."""
    room = {"light": LIGHT_DETAIL_CHARS, "medium": MEDIUM_DETAIL_CHARS}.get(detail)
    content = record.content if room is None else text.truncate_preview(record.content, room)
    hidden = {"light": _MEDIUM_FIELDS + _FULL_FIELDS, "medium": _FULL_FIELDS}.get(detail, ())
    return copy_to_result(
        _without_owner(record),
        MemoryHit,
        timestamps.format_iso,
        urn=memory_urn(record, scheme),
        content=content,
        # The ellipsis may also be part of the content itself.
        cut=content.endswith(" …") and not record.content.endswith(" …"),
        **dict.fromkeys(hidden),
    )


def _captured_by(record: MemoryRecord) -> str | None:
    """Return who captured a memory. For a synced one this includes the git author, because the sender chose the
    author.
    """
    if record.author is None or record.origin is None:
        return record.author or record.origin
    return f"{record.author} ({record.origin})"


def from_project(hit: MemoryHit, record: MemoryRecord, homes: tuple[str, ...]) -> MemoryHit:
    """Return the hit with its project if that is not the project of the call, whatever the detail."""
    is_foreign = record.domain == "project" and record.project is not None and record.project not in homes
    return replace(hit, project=record.project) if is_foreign else hit


def to_history(record: MemoryRecord, events: list[MemoryEvent]) -> MemoryHistory:
    """Return the history of a memory, newest change first."""
    changes = [
        copy_to_result(
            event,
            MemoryRevision,
            timestamps.format_iso,
            who=event.who or None,
            reason=event.reason or None,
            content=event.was.content,
            tags=event.was.tags,
            status=event.was.status,
        )
        for event in events
    ]
    # The history holds only changes; the capture itself is added if no older changes were cut off.
    if not events or events[-1].version == 2:
        changes.append(
            MemoryRevision(
                version=1,
                change="captured",
                at=timestamps.format_iso(record.created_at),
                who=_captured_by(record),
            )
        )
    return MemoryHistory(id=record.id, version=record.version, status=record.status, changes=changes)
