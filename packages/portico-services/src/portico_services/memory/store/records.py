"""Rows of memories and their history, and the statements that read and write them.

Every function takes a Transaction. Callers update the index.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction, encode_json_column
from portico.store.errors import DatabaseCorrupt
from portico_services.memory.errors import InvalidInput, MemoryNotFound
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.ownership import VISIBLE, is_visible, owner_of

TOPIC = "memory"
MAX_PUBLISHED_EVENTS = 100
# In the order of the fields of MemoryRecord.
COLUMNS = (
    "id", "domain", "namespace", "content", "tags", "source", "author", "author_kind", "thread", "place", "project",
    "branch", "path", "status", "version", "at", "created_at", "updated_at", "expires_at", "deleted_at", "digest",
    "origin",
)  # fmt: skip
SELECT_SQL = f"select {', '.join(f'memory.{column}' for column in COLUMNS)} from memory"
_INSERT = f"insert into memory ({', '.join(COLUMNS)}) values ({', '.join('?' * len(COLUMNS))})"
_TAGS = COLUMNS.index("tags")
_ID = re.compile(r"[0-9a-f]{4,64}")
# Length of the digest prefix in the database index.
INDEXED_DIGEST_CHARS = 16


# Time and id of a memory: its position in a list.
ListKey = tuple[int, str]


class MemoryRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A memory as stored. Timestamps are milliseconds since the epoch."""

    id: str
    domain: str
    namespace: str
    content: str
    tags: list[str] = field(default_factory=list)
    source: str | None = None
    author: str | None = None
    author_kind: str | None = None
    thread: str | None = None
    # Position in its thread.
    place: int | None = None
    project: str | None = None
    branch: str | None = None
    path: str | None = None
    status: str = "active"
    version: int = 1
    at: int
    created_at: int
    updated_at: int
    expires_at: int | None = None
    deleted_at: int | None = None
    digest: str
    # Provenance of a synced memory: the remote, and the author and commit in git.
    origin: str | None = None


class MemoryEvent(Struct, frozen=True, kw_only=True):
    """A change: the version it created and the record before it."""

    memory: str
    version: int
    change: str
    at: int
    who: str
    reason: str
    was: MemoryRecord


def content_digest(content: str) -> str:
    """Return a digest that ignores case, width and whitespace."""
    plain = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return hashlib.sha256(plain.encode(errors="surrogatepass")).hexdigest()


def format_provenance(record: MemoryRecord) -> str:
    """Return the provenance for display, `, from origin: Eve <eve@example.com> 3f6c…` for a synced memory, otherwise an
    empty string.
    """
    return "" if record.origin is None else f", from {record.origin}"


def insert(tx: Transaction, records: Sequence[MemoryRecord]) -> None:
    """Insert memories with their tags and publish the changes."""
    if not records:
        return
    columns: list[Sequence[Any]] = list(zip(*map(msgspec.structs.astuple, records), strict=True))
    columns[_TAGS] = [encode_json_column(record.tags) for record in records]
    tx.execute_columns(_INSERT, columns)
    _write_tags(tx, records)
    publish_changes(tx, records)


def publish_changes(tx: Transaction, records: Sequence[MemoryRecord]) -> None:
    """Publish the changes of these memories, up to MAX_PUBLISHED_EVENTS."""
    for record in records[:MAX_PUBLISHED_EVENTS]:
        tx.publish(TOPIC, "/".join((record.domain, record.namespace, record.id, owner_of(record) or "")).rstrip("/"))


def write_version(
    tx: Transaction,
    before: MemoryRecord,
    after: MemoryRecord,
    kind: str,
    *,
    who: str = "",
    reason: str = "",
    version: int | None = None,
    at: int | None = None,
) -> MemoryRecord:
    """Store a new version of a memory, append the old one to its history and return the new record.

    The version is incremented unless `version` is given; `at` overrides the time of the change.
    """
    after = replace(
        after, version=before.version + 1 if version is None else version, digest=content_digest(after.content)
    )
    settings = ", ".join(f"{column} = :{column}" for column in COLUMNS if column != "id")
    tx.execute(f"update memory set {settings} where id = :id", _row(after))
    event = {
        "memory": after.id,
        "version": after.version,
        "change": kind,
        "at": after.updated_at if at is None else at,
        "who": who,
        "reason": reason,
        "was": encode_json_column(before),
    }
    tx.execute(
        "insert into memory_event (memory, version, change, at, who, reason, was) "
        "values (:memory, :version, :change, :at, :who, :reason, :was)",
        event,
    )
    if (set(before.tags), before.at) != (set(after.tags), after.at):
        tx.execute("delete from memory_tag where memory = :id", {"id": after.id})
        _write_tags(tx, [after])
    publish_changes(tx, [after])
    return after


def record_conflict(tx: Transaction, id: str, others: Sequence[tuple[str, str]], at: int) -> None:
    """Record that a memory contradicts others, each with the reason."""
    tx.execute_many(
        "insert into memory_conflict (memory, other, why, at) values (:memory, :other, :why, :at) "
        "on conflict (memory, other) do update set why = excluded.why, at = excluded.at",
        [{"memory": id, "other": other, "why": why, "at": at} for other, why in others],
    )


def remove(tx: Transaction, records: Sequence[MemoryRecord], at: int) -> None:
    """Delete memories permanently, together with the rows that refer to them."""
    ids = [item.id for item in records]
    # Leave a tombstone, so that a sync does not bring the memory back.
    tx.execute_many(
        "insert into memory_gone (memory, at) values (:id, :at) on conflict (memory) do nothing",
        [{"id": item, "at": at} for item in ids],
    )
    tx.execute("delete from memory where id in :ids", {"ids": ids})
    publish_changes(tx, records)


def _row(record: MemoryRecord) -> dict[str, Any]:
    return {**msgspec.structs.asdict(record), "tags": encode_json_column(record.tags)}


def _write_tags(tx: Transaction, records: Iterable[MemoryRecord]) -> None:
    rows = [(record.id, tag, record.at) for record in records for tag in record.tags]
    if rows:
        tx.execute_many("insert into memory_tag (memory, tag, at) values (?, ?, ?)", rows)


# Reads.


def get(tx: Transaction, id: str, owner: str | None) -> MemoryRecord:
    """Return a memory by its id or by a unique prefix of it.

    Raises `MemoryNotFound`, also for a memory that the owner does not see; an owner of None sees all. Raises
    `InvalidInput` if several memories have the prefix.
    """
    seen = "true" if owner is None else VISIBLE
    optional = tx.fetch_optional(
        MemoryRecord, f"{SELECT_SQL} where memory.id = :id and {seen}", {"id": id, "owner": owner}
    )
    if optional is None and _ID.fullmatch(id):
        similar_ids = tx.fetch_all(
            MemoryRecord,
            f"{SELECT_SQL} where memory.id >= :id and memory.id < :end and {seen} limit 2",
            # Ids are hexadecimal, so "g" follows every id with this prefix.
            {"id": id, "end": id + "g", "owner": owner},
        )
        optional = similar_ids[0] if len(similar_ids) == 1 else None
        if len(similar_ids) > 1:
            raise InvalidInput(f"Ambiguous id {id!r}: several memories start with it. Use a longer prefix.")
    if optional is None:
        raise MemoryNotFound(id)
    return optional


def searchable_text(record: MemoryRecord) -> str:
    """Return all searchable fields as one text: content, tags, source, path and namespace."""
    return " ".join(filter(None, (record.content, *record.tags, record.source, record.path, record.namespace)))


def fetch(tx: Transaction, ids: Sequence[str]) -> dict[str, MemoryRecord]:
    """Return the existing memories among `ids`, by id."""
    rows = tx.fetch_all(MemoryRecord, f"{SELECT_SQL} where memory.id in :ids", {"ids": list(ids)})
    return {item.id: item for item in rows}


def fetch_existing(tx: Transaction, ids: Sequence[str]) -> dict[str, MemoryRecord]:
    """Fetch memories that an index or another table refers to. Raises `DatabaseCorrupt` if one is missing."""
    result = fetch(tx, ids)
    lost = next((id for id in ids if id not in result), None)
    if lost is not None:
        raise DatabaseCorrupt(f"The store is damaged: memory {lost} is referenced but missing. Restore a backup.")
    return result


def select_where(tx: Transaction, condition: str, values: dict[str, Any], limit: int) -> list[MemoryRecord]:
    """Return the memories that satisfy a fixed SQL condition. Never pass client input as the condition."""
    sql = f"{SELECT_SQL} where {condition} order by memory.id limit cast(:limit as bigint)"
    return tx.fetch_all(MemoryRecord, sql, {**values, "limit": limit})


# Expired memories are invisible, whether or not they have been collected.
NOT_EXPIRED_SQL = "(memory.expires_at is null or memory.expires_at > :now)"


def find_exact_duplicate(
    tx: Transaction, domain: str, namespace: str, digest: str, project: str | None, at: int
) -> MemoryRecord | None:
    """Return a current memory of this scope with the same digest, or None."""
    # `|| ''` prevents SQLite from using the index of scopes, whose memories it would all read, instead of the index of
    # digests.
    values = {"start": digest[:INDEXED_DIGEST_CHARS], "digest": digest, "domain": domain, "namespace": namespace}
    return tx.fetch_optional(
        MemoryRecord,
        f"{SELECT_SQL} where substr(memory.digest, 1, {INDEXED_DIGEST_CHARS}) = :start "
        "and memory.digest || '' = :digest and memory.domain || '' = :domain and memory.namespace = :namespace "
        f"and coalesce(memory.project, '') = :project and memory.status in {CURRENT_STATUSES} and {NOT_EXPIRED_SQL} "
        "order by memory.created_at limit 1",
        {**values, "project": project or "", "now": at},
    )


def existing_digests(tx: Transaction, digests: Iterable[str]) -> set[str]:
    """Return the digests of existing memories with the same digest prefix. The result may contain a few others."""
    sql = f"select digest from memory where substr(digest, 1, {INDEXED_DIGEST_CHARS}) in :starts"
    return set(tx.fetch_all(str, sql, {"starts": [digest[:INDEXED_DIGEST_CHARS] for digest in digests]}))


def history(tx: Transaction, id: str, limit: int) -> list[MemoryEvent]:
    """Return the changes of a memory, newest first."""
    return tx.fetch_all(
        MemoryEvent,
        "select memory, version, change, at, who, reason, was from memory_event where memory = :id "
        "order by id desc limit cast(:limit as bigint)",
        {"id": id, "limit": limit},
    )


def events_with_reason(tx: Transaction, reason: str) -> list[MemoryEvent]:
    """Return the changes with a given reason, newest first."""
    return tx.fetch_all(
        MemoryEvent,
        "select memory, version, change, at, who, reason, was from memory_event where reason = :reason "
        "order by id desc",
        {"reason": reason},
    )


def matches_filter(record: MemoryRecord, filter: MemoryFilter) -> bool:
    """Evaluate a filter on a record that is not in the table, as `to_sql` does. Entities are compared by text, because
    they have no history.
    """
    for condition in filter.conditions:
        if condition.key == "tag":
            matches = bool(set(condition.values) & set(record.tags))
        elif condition.key == "path":
            path = record.path or ""
            matches = any(
                path == value or (value.endswith(("/", "*")) and path.startswith(value.rstrip("*")))
                for value in condition.values
            )
        elif condition.key == "entity":
            matches = any(value in record.content.casefold() for value in condition.values)
        elif condition.key == "project" and ("*" in condition.values or record.domain != "project"):
            matches = "*" in condition.values
        else:
            matches = (getattr(record, condition.column) or "") in condition.values
        if matches == condition.negated:
            return False
    if filter.homes and record.domain == "project" and record.project not in filter.homes:
        return False
    if not is_visible(record, filter.owner):
        return False
    return (filter.since is None or record.at >= filter.since) and (filter.until is None or record.at <= filter.until)
