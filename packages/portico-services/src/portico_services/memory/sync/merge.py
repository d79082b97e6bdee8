"""Three-way merge of a memory: local version, remote version and common base."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from portico_services.memory.store import records
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.records import MemoryRecord
from portico_services.memory.sync import serialization

# Fields that are merged, apart from tags and timestamps.
_MERGED_FIELDS = (
    "domain", "namespace", "content", "source", "author", "thread", "branch", "path", "status", "at", "expires_at",
    "deleted_at",
)  # fmt: skip


class MergeConflict(Struct, frozen=True):
    """A memory that was changed on both sides, and the winning side."""

    id: Annotated[str, "Memory id"]
    fields: Annotated[list[str], "Fields that both sides changed"]
    kept: Annotated[Literal["ours", "theirs"], "The winning side"]


class VersionedRecord(Struct, frozen=True):
    """A memory on one side with the git blob id of its file."""

    record: MemoryRecord
    digest: str


class SyncStep(Struct, frozen=True):
    """One change to apply to the local store."""

    id: str
    what: Literal["add", "update", "remove", "merge"]
    after: MemoryRecord
    # Blob id of the remote version, which is now known to both sides.
    theirs: str | None
    clash: MergeConflict | None = None
    # Remote version, if both sides changed the memory.
    other: MemoryRecord | None = None

    def removes_from_view(self, before: MemoryRecord | None, now: int) -> bool:
        """Return whether a visible memory becomes invisible."""
        return before is not None and _is_visible(before, now) and not _is_visible(self.after, now)


def _is_visible(item: MemoryRecord, now: int) -> bool:
    return item.status in CURRENT_STATUSES and (item.expires_at is None or item.expires_at > now)


def to_file(record: MemoryRecord) -> str:
    """Return the file content of a memory. The project is omitted, because each clone may call it differently."""
    return serialization.to_markdown_file(replace(record, project=None))


def plan_incoming(
    ours: VersionedRecord | None, theirs: VersionedRecord, base: str | None, common: MemoryRecord | None
) -> SyncStep | None:
    """Return the step for a remote memory, or None if nothing changes. `common` is the common base, if it is still
    known.
    """
    id, record = theirs.record.id, theirs.record
    if ours is None:
        return SyncStep(id, "add", record, theirs.digest)
    # The remote has our version, or one that was merged before.
    if theirs.digest in (ours.digest, base):
        return None
    if ours.digest == base:
        # An older version means that a backup was restored on the remote; the local version is sent again.
        return SyncStep(id, "update", record, theirs.digest) if record.version >= ours.record.version else None
    merged, clash = three_way_merge(ours.record, record, common)
    return SyncStep(id, "merge", merged, theirs.digest, clash, record)


def plan_removal(ours: VersionedRecord | None, base: str | None, now: int) -> SyncStep | None:
    """Return the step for a memory removed on the remote: delete it locally unless it changed since the last sync."""
    if ours is None or ours.digest != base or ours.record.status == "deleted":
        return None
    # The version stays the same: if the file comes back, it is the same memory.
    return SyncStep(ours.record.id, "remove", replace(ours.record, status="deleted", deleted_at=now), None)


def three_way_merge(
    ours: MemoryRecord, theirs: MemoryRecord, base: MemoryRecord | None
) -> tuple[MemoryRecord, MergeConflict | None]:
    """Merge two changed versions and return the result and the conflict, if any.

    A field changed on one side takes that value; if both changed it, one side wins. Both sides compute the same result.
    """
    # A total order over both versions, which does not depend on the side that computes it: two clones that merge at the
    # same time arrive at the same file.
    wins = max(
        ours, theirs, key=lambda version: (version.version, version.updated_at, version.content, to_file(version))
    )
    # Field by field: an edited text and a new tag do not conflict.
    chosen: dict[str, Any] = {}
    clashes: list[str] = []
    for name in _MERGED_FIELDS:
        our_value, yours = getattr(ours, name), getattr(theirs, name)
        base_value = getattr(base, name) if base is not None else None
        # Without a base, every difference counts as changed on both sides.
        if our_value == yours or (base is not None and yours == base_value):
            chosen[name] = our_value
        elif base is not None and our_value == base_value:
            chosen[name] = yours
        else:
            chosen[name] = getattr(wins, name)
            clashes.append(name)
    if base is not None and chosen["status"] == "deleted" and chosen["content"] != base.content and not clashes:
        clashes = ["status", "content"]  # one side deleted the memory while the other one edited it
    before = set(base.tags) if base is not None else set()
    # Keep tags that both have and tags that either added.
    tags = (set(ours.tags) & set(theirs.tags)) | ((set(ours.tags) | set(theirs.tags)) - before)
    merged = replace(
        wins,
        **chosen,
        tags=sorted(tags),
        created_at=min(ours.created_at, theirs.created_at),
        updated_at=max(ours.updated_at, theirs.updated_at),
        # Above both sides, so that neither clone takes the result for an older version of its own.
        version=max(ours.version, theirs.version) + 1,
        origin=ours.origin if chosen["content"] == ours.content else theirs.origin,
    )
    merged = replace(merged, digest=records.content_digest(merged.content))
    if not set(clashes) & {"content", "status", "namespace"}:
        return merged, None
    return merged, MergeConflict(ours.id, clashes, "ours" if wins is ours else "theirs")
