"""Capture: validate a draft, detect duplicates and contradictions, and store the record."""

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
from portico_services.memory.store.namespaces import normalize_domain, validate_namespace
from portico_services.memory.store.ownership import home_of
from portico_services.memory.store.records import MemoryRecord

OnDuplicate = Literal["skip", "merge", "supersede", "error", "keep"]
# Most similar memories compared with a draft.
MAX_SIMILAR_CHECKED = 5
# Characters of a draft used to find similar memories; the beginning of a long text is enough.
MAX_QUERY_CHARS = 400
# Order of memories with the same timestamp. Seeded with the clock, so that memories of a later process come after those
# of an earlier one.
_SEQUENCE = itertools.count(time.time_ns())


class MemoryDraft(Struct, frozen=True, kw_only=True, gc=False):
    """A memory as submitted by a client."""

    content: str
    namespace: str
    tags: list[str] = field(default_factory=list)
    domain: str = "project"
    source: str | None = None
    author: str | None = None
    author_kind: str | None = None
    thread: str | None = None
    project: str | None = None
    # Owner in the user domain; see `ownership`.
    owner: str = ""
    branch: str | None = None
    path: str | None = None
    ttl: str | None = None
    at: str | None = None
    on_duplicate: OnDuplicate = "skip"


class Contradiction(Struct, frozen=True):
    """A memory that contradicts another one, judged by their words."""

    id: Annotated[str, "Memory id"]
    why: Annotated[str, "Difference"]
    content: Annotated[str, "Content"]


class CaptureOutcome(Struct, frozen=True, kw_only=True, gc=False):
    """Result of a capture. `record` is the stored memory: the new one or an existing duplicate."""

    record: MemoryRecord
    is_new: bool
    duplicate_of: str | None = None
    superseded: str | None = None
    conflicts: list[Contradiction] = field(default_factory=list)


def new_id() -> str:
    """Return a random id for a memory."""
    return os.urandom(8).hex()


def classify_author(author: str | None) -> str | None:
    """Return `user`, `assistant` or `person`, which the ranking distinguishes; None without an author."""
    if author is None:
        return None
    name = author.strip().casefold()
    return name if name in ("user", "assistant") else "person"


def build_record(draft: MemoryDraft, now: int) -> MemoryRecord:
    """Validate a draft and return the record to store."""
    content = validation.validate_content(draft.content)
    lasting = None if draft.ttl is None else validation.parse_duration(draft.ttl)
    domain = normalize_domain(draft.domain)
    return MemoryRecord(
        id=new_id(),
        domain=domain,
        namespace=validate_namespace(draft.namespace),
        content=content,
        tags=validation.normalize_tags(draft.tags),
        **validation.validate_labels(draft),
        author_kind=validation.validate_label(draft.author_kind, "author_kind") or classify_author(draft.author),
        place=next(_SEQUENCE),
        project=home_of(
            domain, validation.validate_project(draft.project) if domain == "project" else None, draft.owner
        ),
        at=now if draft.at is None else validation.parse_past_timestamp(draft.at, now),
        created_at=now,
        updated_at=now,
        expires_at=None if lasting is None else now + lasting,
        digest=records.content_digest(content),
    )


def capture(
    tx: Transaction, draft: MemoryDraft, record: MemoryRecord, *, who: str, compare: bool = True
) -> CaptureOutcome:
    """Store a record, or handle it as a duplicate according to `draft.on_duplicate`.

    With `compare`, near-duplicates and contradictions are detected in addition to exact duplicates. Raises
    `InvalidInput` for a duplicate if `on_duplicate` is `error`.
    """
    now = record.created_at
    # The digest lookup is one index probe; the comparison by words reads several memories and is skipped if the digest
    # matches.
    duplicate = records.find_exact_duplicate(tx, record.domain, record.namespace, record.digest, record.project, now)
    conflicts: list[Contradiction] = []
    if duplicate is None and compare:
        duplicate, conflicts = _find_similar(tx, record)
    if duplicate is None or draft.on_duplicate == "keep":
        return _insert(tx, record, conflicts, duplicate_of=None if duplicate is None else duplicate.id)
    if draft.on_duplicate == "error":
        raise InvalidInput(
            f"Duplicate of memory {duplicate.id}: {text.truncate_preview(duplicate.content, 200)}",
            duplicate_of=duplicate.id,
        )
    if draft.on_duplicate == "supersede":
        mutations.supersede(tx, duplicate, record.id, now, who=who)
        outcome = _insert(tx, record, conflicts, duplicate_of=duplicate.id)
        return replace(outcome, superseded=duplicate.id)
    if draft.on_duplicate == "merge":
        duplicate = _merge_duplicate(tx, duplicate, record, who)
    return CaptureOutcome(record=duplicate, is_new=False, duplicate_of=duplicate.id, conflicts=conflicts)


def capture_batch(
    tx: Transaction, pairs: Sequence[tuple[MemoryDraft, MemoryRecord]], *, who: str
) -> list[CaptureOutcome]:
    """Store many records in order and return their outcomes. Only exact duplicates are detected.

    Consecutive records without a duplicate are inserted together.
    """
    digests = records.existing_digests(tx, [record.digest for _, record in pairs])
    outcomes: list[CaptureOutcome] = []
    fresh: list[MemoryRecord] = []
    for draft, record in pairs:
        if record.digest in digests:
            # Write pending records first: the duplicate may be among them.
            outcomes += _insert_batch(tx, fresh)
            fresh = []
            outcomes.append(capture(tx, draft, record, who=who, compare=False))
        else:
            digests.add(record.digest)
            fresh.append(record)
    return outcomes + _insert_batch(tx, fresh)


def _insert_batch(tx: Transaction, new_records: list[MemoryRecord]) -> list[CaptureOutcome]:
    if new_records:
        mutations.insert(tx, new_records)
    return [CaptureOutcome(record=item, is_new=True) for item in new_records]


def _insert(
    tx: Transaction, record: MemoryRecord, conflicts: list[Contradiction], duplicate_of: str | None
) -> CaptureOutcome:
    mutations.insert(tx, [record])
    if conflicts:
        records.record_conflict(
            tx, record.id, [(conflict.id, conflict.why) for conflict in conflicts], record.created_at
        )
    return CaptureOutcome(record=record, is_new=True, duplicate_of=duplicate_of, conflicts=conflicts)


def _merge_duplicate(tx: Transaction, existing: MemoryRecord, record: MemoryRecord, who: str) -> MemoryRecord:
    """Merge a duplicate into the existing memory: its tags, the later expiry and the longer content."""
    # No expiry is the latest expiry.
    ends = (
        None
        if existing.expires_at is None or record.expires_at is None
        else max(existing.expires_at, record.expires_at)
    )
    merged = replace(
        existing,
        content=max(existing.content, record.content, key=len),
        tags=list(dict.fromkeys([*existing.tags, *record.tags]))[: validation.MAX_TAGS],
        source=existing.source or record.source,
        expires_at=ends,
        updated_at=record.created_at,
    )
    return mutations.update(tx, existing, merged, "merged", who=who)


def _find_similar(tx: Transaction, record: MemoryRecord) -> tuple[MemoryRecord | None, list[Contradiction]]:
    """Return the near-duplicate of a record, if there is one, and the memories that contradict it."""
    conflicts = []
    threshold = near_duplicates.duplicate_threshold(record.namespace)
    tokens = near_duplicates.TokenizedText(record.content)
    for id, content in retrieval.find_similar(
        tx, record, MAX_SIMILAR_CHECKED, longest=MAX_QUERY_CHARS, at=record.created_at
    ):
        # Tokenized once, for both the duplicate and the contradiction check.
        other = near_duplicates.TokenizedText(content)
        if near_duplicates.is_near_duplicate(tokens, other, threshold):
            # Similar memories are of the same scope, and therefore of the same owner.
            return records.get(tx, id, None), []
        why = near_duplicates.find_contradiction_tokenized(tokens, other)
        if why is not None:
            conflicts.append(Contradiction(id, why, text.truncate_preview(content, 200)))
    return None, conflicts
