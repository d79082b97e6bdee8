"""What is to be done about a memory that two sides have: ours, theirs, and what both had when they last met."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from portico_services.memory.store import records
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import Record
from portico_services.memory.sync import serialization

# What a merge looks at, apart from the tags and the moments.
_FIELDS = (
    "domain", "namespace", "content", "source", "author", "thread", "branch", "path", "status", "at", "expires_at",
    "deleted_at",
)  # fmt: skip


class Clash(Struct, frozen=True):
    """A memory that was changed on both sides, and what became of it."""

    id: Annotated[str, "The id of the memory"]
    fields: Annotated[list[str], "What both sides changed"]
    kept: Annotated[Literal["ours", "theirs"], "Which side's change was kept"]


class Side(Struct, frozen=True):
    """A memory on one side, and what git calls its file."""

    record: Record
    digest: str


class Step(Struct, frozen=True):
    """What is to be done about one memory."""

    id: str
    what: Literal["add", "update", "remove", "merge"]
    after: Record
    # What theirs was, which both sides now know of.
    theirs: str | None
    clash: Clash | None = None
    # Where both had changed it, what they have.
    other: Record | None = None

    def hides(self, before: Record | None, now: int) -> bool:
        """Whether something that could be seen cannot be seen afterwards."""
        return before is not None and _is_seen(before, now) and not _is_seen(self.after, now)


def _is_seen(one: Record, now: int) -> bool:
    return one.status in CURRENT and (one.expires_at is None or one.expires_at > now)


def shared(record: Record) -> str:
    """Its file. The project is the repository's own, whatever each clone calls it."""
    return serialization.page(replace(record, project=None))


def taken(ours: Side | None, theirs: Side, base: str | None, common: Record | None) -> Step | None:
    """What to do about a memory of theirs. `common` is what was in the file that both had, where it is still known."""
    id, record = theirs.record.id, theirs.record
    if ours is None:
        return Step(id, "add", record, theirs.digest)
    if theirs.digest in (ours.digest, base):
        return None
    if ours.digest == base:
        # An older version is one that was there before: a backup was put back. Ours is sent again.
        return Step(id, "update", record, theirs.digest) if record.version >= ours.record.version else None
    merged, clash = merge(ours.record, record, common)
    return Step(id, "merge", merged, theirs.digest, clash, record)


def removed(ours: Side | None, base: str | None, now: int) -> Step | None:
    """What to do about a memory that was removed there: it is deleted here, unless it was changed since they met."""
    if ours is None or ours.digest != base or ours.record.status == "deleted":
        return None
    # With its version: where the file comes back, it is the same memory again.
    return Step(ours.record.id, "remove", replace(ours.record, status="deleted", deleted_at=now), None)


def merge(ours: Record, theirs: Record, base: Record | None) -> tuple[Record, Clash | None]:
    """Both have changed. What one side changed is taken; where both changed the same, one wins. Both sides
    come to the same result."""
    wins = max(ours, theirs, key=lambda one: (one.version, one.updated_at, one.content, shared(one)))
    chosen: dict[str, Any] = {}
    clashes: list[str] = []
    for name in _FIELDS:
        mine, yours = getattr(ours, name), getattr(theirs, name)
        was = getattr(base, name) if base is not None else None
        if mine == yours or (base is not None and yours == was):
            chosen[name] = mine
        elif base is not None and mine == was:
            chosen[name] = yours
        else:
            chosen[name] = getattr(wins, name)
            clashes.append(name)
    if base is not None and chosen["status"] == "deleted" and chosen["content"] != base.content and not clashes:
        clashes = ["status", "content"]  # one side deleted what the other went on writing
    before = set(base.tags) if base is not None else set()
    tags = (set(ours.tags) & set(theirs.tags)) | ((set(ours.tags) | set(theirs.tags)) - before)
    merged = replace(
        wins,
        **chosen,
        tags=sorted(tags),
        created_at=min(ours.created_at, theirs.created_at),
        updated_at=max(ours.updated_at, theirs.updated_at),
        version=max(ours.version, theirs.version) + 1,
        origin=ours.origin if chosen["content"] == ours.content else theirs.origin,
    )
    merged = replace(merged, digest=records.digest(merged.content))
    if not set(clashes) & {"content", "status", "namespace"}:
        return merged, None
    return merged, Clash(ours.id, clashes, "ours" if wins is ours else "theirs")
