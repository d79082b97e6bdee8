"""The rows: a memory as it is kept, what it was before, and the statements that read and write them.

All of these are functions of a Transaction. Their callers bring the index up to date.
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

from portico.extend import Damaged, Transaction, json_column
from portico_services.memory.errors import InvalidInput, NoSuchMemory
from portico_services.memory.store.filters import MemoryFilter, where
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.ownership import VISIBLE, is_visible, owner_of

TOPIC = "memory"
MOST_TOLD = 100
# In the order of Record.
COLUMNS = (
    "id", "domain", "namespace", "content", "tags", "source", "author", "author_kind", "thread", "place", "project",
    "branch", "path", "status", "version", "at", "created_at", "updated_at", "expires_at", "deleted_at", "digest",
    "origin",
)  # fmt: skip
SELECT = f"select {', '.join(f'memory.{one}' for one in COLUMNS)} from memory"
_INSERT = f"insert into memory ({', '.join(COLUMNS)}) values ({', '.join('?' * len(COLUMNS))})"
_TAGS = COLUMNS.index("tags")
_ID = re.compile(r"[0-9a-f]{4,64}")
# How many characters of a digest the index has.
INDEXED_DIGEST = 16


# The time and the id of a memory: where it stands in a list.
Listed = tuple[int, str]


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """A memory. Moments are milliseconds."""

    id: str
    domain: str
    namespace: str
    content: str
    tags: list[str] = field(default_factory=list)
    source: str | None = None
    author: str | None = None
    author_kind: str | None = None
    thread: str | None = None
    # Where in its thread it stands.
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
    # Where it came by a sync: the remote, and whom git names as the author of which commit.
    origin: str | None = None


class MemoryEvent(Struct, frozen=True, kw_only=True):
    """One change: the version it made, and what there was before it."""

    memory: str
    version: int
    change: str
    at: int
    who: str
    reason: str
    was: Record


def digest(content: str) -> str:
    """The same for texts that differ in case, width or white space only."""
    plain = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return hashlib.sha256(plain.encode(errors="surrogatepass")).hexdigest()


def whence(record: Record) -> str:
    """For a line about it: `, from origin: Eve <eve@example.com> 3f6c…` for what came by a sync, else nothing."""
    return "" if record.origin is None else f", from {record.origin}"


def insert(tx: Transaction, records: Sequence[Record]) -> None:
    if not records:
        return
    columns: list[Sequence[Any]] = list(zip(*map(msgspec.structs.astuple, records), strict=True))
    columns[_TAGS] = [json_column(one.tags) for one in records]
    tx.fill(_INSERT, columns)
    _tag(tx, records)
    told(tx, records)


def told(tx: Transaction, records: Sequence[Record]) -> None:
    """Publish these changes; of very many at once, the first ones."""
    for one in records[:MOST_TOLD]:
        tx.publish(TOPIC, "/".join((one.domain, one.namespace, one.id, owner_of(one) or "")).rstrip("/"))


def change(
    tx: Transaction,
    before: Record,
    after: Record,
    kind: str,
    *,
    who: str = "",
    reason: str = "",
    version: int | None = None,
    at: int | None = None,
) -> Record:
    """Write the new state of a memory and remember the old one; the record with its new version.

    The version is the next one, unless it comes from elsewhere; so is the moment of the change.
    """
    after = replace(after, version=before.version + 1 if version is None else version, digest=digest(after.content))
    settings = ", ".join(f"{one} = :{one}" for one in COLUMNS if one != "id")
    tx.run(f"update memory set {settings} where id = :id", _row(after))
    event = {
        "memory": after.id,
        "version": after.version,
        "change": kind,
        "at": after.updated_at if at is None else at,
        "who": who,
        "reason": reason,
        "was": json_column(before),
    }
    tx.run(
        "insert into memory_event (memory, version, change, at, who, reason, was) "
        "values (:memory, :version, :change, :at, :who, :reason, :was)",
        event,
    )
    if (set(before.tags), before.at) != (set(after.tags), after.at):
        tx.run("delete from memory_tag where memory = :id", {"id": after.id})
        _tag(tx, [after])
    told(tx, [after])
    return after


def disagree(tx: Transaction, id: str, others: Sequence[tuple[str, str]], at: int) -> None:
    """Note that a memory cannot hold together with others, each with the reason."""
    tx.many(
        "insert into memory_conflict (memory, other, why, at) values (:memory, :other, :why, :at) "
        "on conflict (memory, other) do update set why = excluded.why, at = excluded.at",
        [{"memory": id, "other": other, "why": why, "at": at} for other, why in others],
    )


def remove(tx: Transaction, records: Sequence[Record], at: int) -> None:
    """For good. What refers to them goes with them."""
    ids = [one.id for one in records]
    tx.many(
        "insert into memory_gone (memory, at) values (:id, :at) on conflict (memory) do nothing",
        [{"id": one, "at": at} for one in ids],
    )
    tx.run("delete from memory where id in :ids", {"ids": ids})
    told(tx, records)


def _row(record: Record) -> dict[str, Any]:
    return {**msgspec.structs.asdict(record), "tags": json_column(record.tags)}


def _tag(tx: Transaction, records: Iterable[Record]) -> None:
    rows = [(one.id, tag, one.at) for one in records for tag in one.tags]
    if rows:
        tx.many("insert into memory_tag (memory, tag, at) values (?, ?, ?)", rows)


# Reading


def get(tx: Transaction, id: str, owner: str | None) -> Record:
    """Return a memory by its id or by a prefix that only one memory has. Raises NoSuchMemory, also for a memory that
    this owner does not see; an owner of None sees all."""
    seen = "true" if owner is None else VISIBLE
    found = tx.maybe(Record, f"{SELECT} where memory.id = :id and {seen}", {"id": id, "owner": owner})
    if found is None and _ID.fullmatch(id):
        near = tx.all(
            Record,
            f"{SELECT} where memory.id >= :id and memory.id < :end and {seen} limit 2",
            {"id": id, "end": id + "g", "owner": owner},
        )
        found = near[0] if len(near) == 1 else None
        if len(near) > 1:
            raise InvalidInput(f"More than one memory begins with {id!r}. Give more of its id.")
    if found is None:
        raise NoSuchMemory(id)
    return found


def findable(record: Record) -> str:
    """All that it can be found by, as one text: what it says, its tags, where it comes from, and its kind."""
    return " ".join(filter(None, (record.content, *record.tags, record.source, record.path, record.namespace)))


def fetch(tx: Transaction, ids: Sequence[str]) -> dict[str, Record]:
    found = tx.all(Record, f"{SELECT} where memory.id in :ids", {"ids": list(ids)})
    return {one.id: one for one in found}


def fetch_named(tx: Transaction, ids: Sequence[str]) -> dict[str, Record]:
    """As `fetch`, of those that another table or an index has just named: one that is not there is damage."""
    found = fetch(tx, ids)
    lost = next((id for id in ids if id not in found), None)
    if lost is not None:
        raise Damaged(f"The memory {lost} is named in the store, and is not in its table. Restore a backup.")
    return found


def allowed(
    tx: Transaction, ids: Sequence[str], filter: MemoryFilter, *, statuses: tuple[str, ...] = CURRENT, at: int
) -> set[str]:
    """Those of these that a filter lets through."""
    condition, values = where(filter, statuses)
    sql = f"select memory.id from memory where memory.id in :among and {condition} and {ALIVE}"
    return set(tx.all(str, sql, {**values, "among": list(ids), "now": at}))


def which(tx: Transaction, condition: str, values: dict[str, Any], limit: int) -> list[Record]:
    """Those that a phrase of ours is true of."""
    sql = f"{SELECT} where {condition} order by memory.id limit cast(:limit as bigint)"
    return tx.all(Record, sql, {**values, "limit": limit})


# Whatever has expired is not seen any more, whether or not it has been collected.
ALIVE = "(memory.expires_at is null or memory.expires_at > :now)"


def same(tx: Transaction, domain: str, namespace: str, digest: str, project: str | None, at: int) -> Record | None:
    """A memory of this place that says exactly this."""
    # Written so that SQLite takes the index of digests: not that of places, whose memories it would all read.
    values = {"start": digest[:INDEXED_DIGEST], "digest": digest, "domain": domain, "namespace": namespace}
    return tx.maybe(
        Record,
        f"{SELECT} where substr(memory.digest, 1, {INDEXED_DIGEST}) = :start "
        "and memory.digest || '' = :digest and memory.domain || '' = :domain and memory.namespace = :namespace "
        f"and coalesce(memory.project, '') = :project and memory.status in {CURRENT} and {ALIVE} "
        "order by memory.created_at limit 1",
        {**values, "project": project or "", "now": at},
    )


def said_already(tx: Transaction, digests: Iterable[str]) -> set[str]:
    """Those of these digests that any memory has, and perhaps a few others."""
    sql = f"select digest from memory where substr(digest, 1, {INDEXED_DIGEST}) in :starts"
    return set(tx.all(str, sql, {"starts": [one[:INDEXED_DIGEST] for one in digests]}))


def history(tx: Transaction, id: str, limit: int) -> list[MemoryEvent]:
    """The newest first."""
    return tx.all(
        MemoryEvent,
        "select memory, version, change, at, who, reason, was from memory_event where memory = :id "
        "order by id desc limit cast(:limit as bigint)",
        {"id": id, "limit": limit},
    )


def events(tx: Transaction, reason: str) -> list[MemoryEvent]:
    """Those that were made for a reason, the newest first."""
    return tx.all(
        MemoryEvent,
        "select memory, version, change, at, who, reason, was from memory_event where reason = :reason "
        "order by id desc",
        {"reason": reason},
    )


def fits(record: Record, filter: MemoryFilter) -> bool:
    """The same as `where`, for a record that is not in the table; without the entities, which have no past."""
    for one in filter.conditions:
        if one.key == "tag":
            held = bool(set(one.values) & set(record.tags))
        elif one.key == "path":
            path = record.path or ""
            held = any(
                path == value or (value.endswith(("/", "*")) and path.startswith(value.rstrip("*")))
                for value in one.values
            )
        elif one.key == "entity":
            held = any(value in record.content.casefold() for value in one.values)
        elif one.key == "project" and ("*" in one.values or record.domain != "project"):
            held = "*" in one.values
        else:
            held = (getattr(record, one.column) or "") in one.values
        if held == one.negated:
            return False
    if filter.homes and record.domain == "project" and record.project not in filter.homes:
        return False
    if not is_visible(record, filter.owner):
        return False
    return (filter.since is None or record.at >= filter.since) and (filter.until is None or record.at <= filter.until)
