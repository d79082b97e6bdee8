"""State of a sync: local side, remote side and the common base of the last sync.

A sync costs as much as has changed. Local changes are detected by version in the database, without serializing the
memories again. Remote changes are the diff between the last completely processed commit and the current one. All remote
files are listed only if there is no such commit, git no longer has it, a memory disappeared here without a trace, or
rejected files are due for a retry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import SyncError
from portico_services.memory.export_import import ScreenText
from portico_services.memory.store import mutations, records
from portico_services.memory.store.memory_store import WRITE_BATCH_SIZE, MemoryStore
from portico_services.memory.store.records import MemoryRecord
from portico_services.memory.sync import merge
from portico_services.memory.sync.git_repository import GitBlob, GitRepository, GitTree
from portico_services.memory.sync.merge import VersionedRecord

HISTORY = "memory share"
MIGRATIONS = Path(__file__).parent / "migrations"
SYNC_REF = "refs/portico/memories"
MEMORIES_DIR, TOMBSTONES_DIR = "memories", "gone"
_NAMES = re.compile(
    rf"{MEMORIES_DIR}/[0-9a-f]{{2}}/[0-9a-f]{{8,64}}\.md|{TOMBSTONES_DIR}/[0-9a-f]{{2}}/[0-9a-f]{{8,64}}"
)
MAX_SYNCED_MEMORIES = 100_000
# A rejected file may become acceptable later, for example when its date is no longer in the future.
REJECTION_RETRY_MS = 86_400 * timestamps.MS_PER_SECOND


async def prepare(memories: MemoryStore) -> None:
    """Create the sync and group tables on first use."""
    await memories.database.migrate(HISTORY, MIGRATIONS)


class SyncRun(Struct, frozen=True):
    """One sync of this store with a remote: screening, actor and time."""

    memories: MemoryStore
    git: GitRepository
    remote: str
    screen: ScreenText
    # Identifies the screening policy: if it changes, rejected files are checked again.
    lens: str
    who: str
    confirm: bool
    run: str
    now: int

    @property
    def tracking(self) -> str:
        return f"refs/portico/remotes/{self.remote}/memories"

    @property
    def place(self) -> str:
        return remote_key(self.remote, self.memories.project)


def remote_key(remote: str, project: str | None) -> str:
    """Return the key of a remote in the sync tables. One database serves many projects, each with its own `origin`."""
    return f"{remote} {SYNC_REF} {project or ''}"


class SyncBaseline(NamedTuple):
    """State recorded by the previous sync."""

    # Last commit that both sides shared.
    last_synced_commit: str | None
    # Last commit whose changes were all applied or rejected.
    taken: str | None
    # Whether all remote files must be listed instead of the diff.
    is_complete: bool


class RejectedFile(NamedTuple):
    """A rejected remote file: blob id, reason, screening policy and time."""

    digest: str
    why: str
    lens: str
    at: int


def is_rejection_expired(refusal: RejectedFile, sync_run: SyncRun) -> bool:
    return sync_run.now - refusal.at >= REJECTION_RETRY_MS


class LocalState(NamedTuple):
    """Local memories and the common base, limited to the memories that the remote state requires."""

    ours: dict[str, VersionedRecord]
    # Memories that may differ from the common base.
    changed: frozenset[str]
    base: dict[str, str]
    # Memories of the common base that are no longer in this project.
    deleted: frozenset[str]
    gone: frozenset[str]
    # Memories of the common base that were moved to another domain or erased.
    withdrawn: frozenset[str]
    refused: dict[str, RejectedFile]
    # Number of memories in the project.
    total: int


class RemoteState(NamedTuple):
    """Remote side, as listed by git."""

    tip: str | None = None
    blobs: Mapping[str, GitBlob] = {}
    # Ids of files that cannot be read.
    invalid: frozenset[str] = frozenset()
    # Ids with a tombstone.
    gone: frozenset[str] = frozenset()
    # Whether the commit descends from the last synced one.
    follows: bool = False
    problems: tuple[str, ...] = ()
    # Whether `blobs` contains all files or only the changed ones; in the latter case, `absent` are the deleted ones.
    whole: bool = True
    absent: frozenset[str] = frozenset()

    def is_missing(self, id: str) -> bool:
        """Return whether the remote is known to have no file for a memory."""
        return id not in self.blobs and id not in self.invalid and (self.whole or id in self.absent)

    def is_removed(self, id: str) -> bool:
        """Return whether the memory was removed on the remote on purpose, not just lost."""
        return self.is_missing(id) and (self.follows or id in self.gone)

    def blob_sha(self, id: str, local: LocalState) -> str | None:
        """Return the blob id of the remote file, or None without a readable one."""
        if id in self.blobs:
            return self.blobs[id].sha
        if self.is_missing(id) or id in self.invalid:
            return None
        refused = local.refused.get(id)
        return refused.digest if refused is not None else local.base.get(id)


# Local side.

_PROJECT_CONDITION = "memory.domain = 'project' and memory.project = :project"
_DELETED_JOIN = (
    "from memory_synced left join memory on memory.id = memory_synced.memory and {mine} "
    "where memory_synced.place = :place and memory.id is null"
)
_CHANGED_SQL = (
    "select memory.id from memory left join memory_synced "
    "on memory_synced.memory = memory.id and memory_synced.place = :place where {mine} and case "
    # The remote need not know about deletions of memories it never had.
    "when memory_synced.memory is null then memory.status <> 'deleted' "
    "else memory_synced.version is null or memory_synced.version <> memory.version "
    "or memory_synced.updated_at <> memory.updated_at or memory_synced.status <> memory.status end"
)


def _local_condition(sync_run: SyncRun) -> tuple[str, dict[str, Any]]:
    project = sync_run.memories.project
    if project is None:
        return "memory.domain = 'project' and memory.project is null", {}
    return _PROJECT_CONDITION, {"project": project}


def load_baseline(tx: Transaction, sync_run: SyncRun) -> SyncBaseline:
    """Read the state of the previous sync."""
    condition, values = _local_condition(sync_run)
    values = {**values, "place": sync_run.place}
    sql = "select tip, taken from memory_meeting where place = :place"
    met, applied_tip = tx.fetch_optional(tuple[str | None, str | None], sql, {"place": sync_run.place}) or (None, None)
    # A synced memory that is neither here nor recorded as deleted: the database was replaced or restored.
    strayed = tx.fetch_optional(
        str,
        f"select memory_synced.memory {_DELETED_JOIN.format(mine=condition)} "
        "and not exists (select 1 from memory as other where other.id = memory_synced.memory) "
        "and not exists (select 1 from memory_gone where memory_gone.memory = memory_synced.memory) limit 1",
        values,
    )
    stale = tx.fetch_optional(
        str,
        "select memory from memory_refused where place = :place and (lens <> :lens or at <= :then) limit 1",
        {"place": sync_run.place, "lens": sync_run.lens, "then": sync_run.now - REJECTION_RETRY_MS},
    )
    return SyncBaseline(met, applied_tip, is_complete=applied_tip is None or strayed is not None or stale is not None)


def load_local_state(tx: Transaction, sync_run: SyncRun, remote: RemoteState) -> LocalState:
    """Read the local memories that may take part in the sync, and the common base."""
    condition, values = _local_condition(sync_run)
    params = {"place": sync_run.place}
    count = tx.fetch_one(int, f"select count(*) from memory where {condition}", values)
    if count > MAX_SYNCED_MEMORIES:
        # Omitted memories would look as if they had been removed.
        raise SyncError(f"A project can sync at most {MAX_SYNCED_MEMORIES:,} memories, and this one has more.")
    suspects = frozenset(tx.fetch_all(str, _CHANGED_SQL.format(mine=condition), {**values, **params}))
    lost = frozenset(
        tx.fetch_all(str, f"select memory_synced.memory {_DELETED_JOIN.format(mine=condition)}", {**values, **params})
    )
    theirs = [*remote.blobs, *remote.absent]
    if remote.whole:
        where = records.select_where(tx, condition, values, MAX_SYNCED_MEMORIES)
        base = dict(
            tx.fetch_all(tuple[str, str], "select memory, digest from memory_synced where place = :place", params)
        )
    else:
        ids = [*suspects.union(theirs, lost)]
        project = sync_run.memories.project
        known_here = records.fetch(tx, ids).values()
        where = [item for item in known_here if item.domain == "project" and item.project == project]
        sql = "select memory, digest from memory_synced where place = :place and memory in :ids"
        base = dict(tx.fetch_all(tuple[str, str], sql, {**params, "ids": ids}))
    ours = {item.id: _local_version(item, sync_run.git, suspects, base, remote) for item in where}
    removed = frozenset(
        tx.fetch_all(str, "select memory from memory_gone where memory in :ids", {"ids": [*lost, *theirs]})
    )
    moved = frozenset(tx.fetch_all(str, "select id from memory where id in :ids", {"ids": [*lost]}))
    sql = "select memory, digest, why, lens, at from memory_refused where place = :place"
    rows = tx.fetch_all(tuple[str, str, str, str, int], sql, params)
    refused = {id: RejectedFile(digest, why, lens, at) for id, digest, why, lens, at in rows}
    return LocalState(ours, suspects, base, lost, removed, removed | moved, refused, count)


def _local_version(
    item: MemoryRecord, git: GitRepository, suspects: frozenset[str], base: Mapping[str, str], remote: RemoteState
) -> VersionedRecord:
    if item.id not in suspects and (item.id in base or item.id not in remote.blobs):
        return VersionedRecord(item, base.get(item.id, ""))
    return to_versioned_record(item, git)


def to_versioned_record(record: MemoryRecord, git: GitRepository) -> VersionedRecord:
    return VersionedRecord(record, git.blob_id(merge.to_file(record)))


# Remote side.


def load_remote_state(sync_run: SyncRun, baseline: SyncBaseline) -> RemoteState:
    """Fetch the remote ref and list its files."""
    git, tracking = sync_run.git, sync_run.tracking
    tip = git.tip(sync_run.remote, SYNC_REF)
    if tip is None:
        return RemoteState()
    if git.commit(tracking) != tip:
        tip = git.fetch(sync_run.remote, SYNC_REF, tracking)
    if tip is None:
        return RemoteState()
    follows = tip == baseline.last_synced_commit or git.is_ancestor(tip, baseline.last_synced_commit)
    changed = None if baseline.is_complete or baseline.taken is None else _diff_trees(git, baseline.taken, tip)
    listing = changed or git.list_tree(tip, (f"{MEMORIES_DIR}/", f"{TOMBSTONES_DIR}/"), _NAMES)
    blobs = {
        memory_id_from_path(path): blob
        for path, blob in listing.blobs.items()
        if path == file_path(memory_id_from_path(path))
    }
    unfit = {
        memory_id_from_path(path) for path in (*listing.blobs, *listing.invalid) if path.startswith(f"{MEMORIES_DIR}/")
    } - blobs.keys()
    wrong = [f"{path[:100]}: it is not where it belongs" for path in listing.blobs if _is_misplaced(path)]
    removed = {memory_id_from_path(path) for path in listing.blobs if path.startswith(f"{TOMBSTONES_DIR}/")}
    absent = (
        {memory_id_from_path(path) for path in listing.removed if path == file_path(memory_id_from_path(path))}
        - blobs.keys()
        - unfit
    )
    return RemoteState(
        tip,
        blobs,
        frozenset(unfit),
        frozenset(removed),
        follows,
        (*listing.problems, *wrong),
        whole=changed is None,
        absent=frozenset(absent),
    )


def _diff_trees(git: GitRepository, before: str, after: str) -> GitTree | None:
    """Return the diff of two commits, or None if git no longer has one of them."""
    if before == after:
        return GitTree({}, [], [])
    try:
        return git.diff_trees(before, after, (f"{MEMORIES_DIR}/", f"{TOMBSTONES_DIR}/"), _NAMES)
    except SyncError:
        return None


def _is_misplaced(path: str) -> bool:
    return path.startswith(f"{MEMORIES_DIR}/") and path != file_path(memory_id_from_path(path))


def file_path(id: str) -> str:
    return f"{MEMORIES_DIR}/{id[:2]}/{id}.md"


def tombstone_path(id: str) -> str:
    return f"{TOMBSTONES_DIR}/{id[:2]}/{id}"


def memory_id_from_path(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".md")


# Memories under the former name of a project, which several projects may have shared, are moved to the project when it
# is synced. Until then every folder of that name sees them, because nothing tells which project they belong to.

_SYNC_TABLES = ("memory_synced", "memory_meeting", "memory_refused")


async def adopt(memories: MemoryStore, replica: str, former_place: str, *, who: str) -> None:
    """Move the memories of the project's former name and the sync state recorded under `former_place`."""
    if memories.former is None:
        return
    while await memories.write(lambda tx: _adopt_batch(tx, memories, who)) == WRITE_BATCH_SIZE:
        pass
    await memories.write(lambda tx: _move_sync_state(tx, former_place, replica))


def _adopt_batch(tx: Transaction, memories: MemoryStore, who: str) -> int:
    former = {"former": memories.former}
    where = records.select_where(tx, "domain = 'project' and project = :former", former, WRITE_BATCH_SIZE)
    for item in where:
        # The version stays the same: for other clones the memory has not changed.
        after = replace(item, project=memories.project)
        mutations.update(tx, item, after, "moved", who=who, version=item.version, at=timestamps.now_ms())
    return len(where)


def _move_sync_state(tx: Transaction, before: str, after: str) -> None:
    if tx.fetch_optional(str, "select place from memory_meeting where place = :place", {"place": after}) is not None:
        return
    for table in _SYNC_TABLES:
        tx.execute(f"update {table} set place = :after where place = :before", {"before": before, "after": after})
