"""Synchronisation of a project's memories through its git repository: one file per memory, on a separate ref.

Each memory is merged three-way: local version, remote version, and the common base of the last sync. A change on one
side only is applied. Changes on both sides are merged field by field; if both changed the same field, the higher
version wins, then the later change, then the greater text, so that every clone decides alike. The losing text goes into
the history, and the memory is listed as a conflict. Files are compared by their git blob ids, so only new ones are
read.

Only memories of the project domain are shared. A deletion is synced as a memory with the status deleted. A permanent
deletion removes the file and adds a tombstone file, and the commit has no parent: git drops the old objects in its
garbage collection.

A missing file does not mean that it was removed: the repository may have been recreated, or a backup restored. A memory
counts as removed if there is a tombstone, or if the commit descends from the last synced one. It is then deleted
locally in a way that can be restored.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction, run_blocking
from portico_services import text as texts, timestamps
from portico_services.memory import export_import
from portico_services.memory.errors import ContentBlocked, InvalidInput, SyncError
from portico_services.memory.export_import import ScreenText
from portico_services.memory.store import mutations, records
from portico_services.memory.store.memory_store import MemoryStore
from portico_services.memory.store.ownership import is_visible
from portico_services.memory.store.records import MemoryRecord
from portico_services.memory.sync import merge, serialization, state as sides
from portico_services.memory.sync.git_repository import MAX_PUSH_ATTEMPTS, GitBlob, GitRepository
from portico_services.memory.sync.merge import MergeConflict, SyncStep, VersionedRecord
from portico_services.memory.sync.state import (
    MEMORIES_DIR,
    SYNC_REF,
    LocalState,
    RejectedFile,
    RemoteState,
    SyncBaseline,
    SyncRun,
    adopt,
    file_path,
    remote_key,
    to_versioned_record,
    tombstone_path,
)

SyncDirection = Literal["push", "fetch", "full"]

_TOMBSTONE_TEXT = "This memory is gone for good.\n"
MAX_LISTED_CONFLICTS = 50
MAX_ORIGIN_CHARS = 200
MAX_SCREENED_ORIGIN_CHARS = 5 * MAX_ORIGIN_CHARS
# Email address in a git author, `Ann Smith <ann@example.com>`.
_ADDRESS = re.compile(r"\s*<[^>]*>")
# Deletions applied without confirmation: at most this many, and at most one in this many memories.
MAX_UNCONFIRMED_DELETIONS = 20
UNCONFIRMED_DELETION_FRACTION = 10


class SyncReport(Struct, frozen=True, kw_only=True):
    """Result of a sync."""

    remote: Annotated[str, "Git remote"]
    added: Annotated[int, "Memories added here"] = 0
    updated: Annotated[int, "Memories updated here"] = 0
    removed: Annotated[int, "Memories deleted here"] = 0
    merged: Annotated[int, "Memories merged"] = 0
    sent: Annotated[int, "Memories sent"] = 0
    restored: Annotated[int, "Memories restored by undo"] = 0
    conflicts: Annotated[list[MergeConflict], "Conflicting changes"] = field(default_factory=list)
    problems: Annotated[list[str], "Memories that were not imported, with the reason"] = field(default_factory=list)
    run: Annotated[str | None, "Run id for undo, if memories were deleted here"] = None


class _RemoteChanges(NamedTuple):
    """New remote files: accepted, rejected, and the common bases for merging."""

    sides: dict[str, VersionedRecord]
    refused: dict[str, RejectedFile]
    common: dict[str, MemoryRecord]
    problems: list[str]


async def sync_memories(
    memories: MemoryStore,
    *,
    direction: SyncDirection = "full",
    remote: str | None = None,
    screen: ScreenText = lambda text: (text, []),
    lens: str = "",
    who: str = "",
    confirm: bool = False,
) -> SyncReport:
    """Synchronise the project's memories with a remote and return a report.

    `direction` limits it to one way. `screen` is applied to incoming texts; `lens` identifies its policy. `confirm`
    allows an unusually large number of local deletions. Raises `SyncError`.
    """
    if memories.root is None:
        raise SyncError("Sync requires a git repository; this directory is not in one.")
    await sides.prepare(memories)
    with ExitStack() as stack:
        git = await run_blocking(stack.enter_context, GitRepository.open(memories.root))
        name = _remote(git.remotes(), remote)
        total = SyncReport(remote=name)
        run = os.urandom(6).hex()
        # A renamed project continues from the baseline of its former name. Otherwise every memory would look new on
        # both sides, and each change would be a conflict.
        await adopt(memories, remote_key(name, memories.project), remote_key(name, memories.former), who=who)
        # Each attempt fetches again, because another clone may push in between.
        for _ in range(MAX_PUSH_ATTEMPTS):
            sync_run = SyncRun(memories, git, name, screen, lens, who, confirm, run, timestamps.now_ms())
            total, done = await _sync_round(sync_run, direction, total)
            if done:
                return total
    raise SyncError("Concurrent syncs changed the remote on every attempt. Try again in a moment.", retryable=True)


async def undo_sync(memories: MemoryStore, run: str, *, who: str = "") -> list[str]:
    """Restore the memories that a sync deleted, except those changed since. The next sync sends them."""
    now = timestamps.now_ms()

    def write(tx: Transaction) -> list[str]:
        events = [
            item
            for item in records.events_with_reason(tx, _removal_reason(run))
            if is_visible(item.was, memories.owner)
        ]
        return mutations.revert(tx, events, now, who=who)

    back = await memories.write(write)
    if not back:
        raise InvalidInput(f"Sync run {run[:40]!r} not found, or already reverted.")
    return back


def _removal_reason(run: str) -> str:
    return f"sync {run[:40]}: no longer in the repository"


def _remote(remotes: list[str], remote_name: str | None) -> str:
    """Return the remote to use. Only configured remotes are accepted: a URL could point anywhere or run a command."""
    if not remotes:
        raise SyncError("The repository has no remote. Add one with git remote add.")
    name = remote_name or ("origin" if "origin" in remotes else remotes[0])
    if name not in remotes:
        raise SyncError(f"Unknown remote {name[:60]!r} (expected one of {', '.join(remotes)}).")
    return name


async def _sync_round(sync_run: SyncRun, direction: SyncDirection, total: SyncReport) -> tuple[SyncReport, bool]:
    """Run one round: fetch, merge, store and push. The flag is False if another clone pushed in between."""
    memories = sync_run.memories
    # Reads and writes are separate transactions: a fetch may take minutes, and other writers must not wait for it.
    baseline = await memories.read(lambda tx: sides.load_baseline(tx, sync_run))
    remote = await run_blocking(sides.load_remote_state, sync_run, baseline)
    local = await memories.read(lambda tx: sides.load_local_state(tx, sync_run, remote))
    total = replace(total, problems=list(remote.problems))
    if direction != "push":
        total, local = await _apply_remote(sync_run, baseline, remote, local, total)
    pages = {} if direction == "fetch" else _files_to_write(remote, local, push_only=direction == "push")
    tip = remote.tip
    if pages:
        tip = await run_blocking(_push, sync_run, remote, pages)
        if tip is None:
            return total, False
        total = replace(total, sent=total.sent + len(pages))
    agreed = _common_state(remote, local, pages)
    looked = remote.tip == baseline.taken if direction == "push" else _is_up_to_date(remote, local, pages)
    # `taken` only advances if everything up to the tip was applied or rejected, so that a file skipped now is listed
    # again next time.
    applied_tip = tip if looked else baseline.taken
    vanished = [id for id in local.refused if remote.is_missing(id)]
    if agreed or vanished or (tip, applied_tip) != (baseline.last_synced_commit, baseline.taken):
        await memories.write(lambda tx: _record_synced(tx, sync_run.place, agreed, vanished, tip, applied_tip))
    return total, True


def _common_state(
    remote: RemoteState, local_state: LocalState, pages: Mapping[str, str | None]
) -> dict[str, VersionedRecord | None]:
    """Return the state that both sides now share, where it was not recorded yet; None for memories that neither has."""
    result: dict[str, VersionedRecord | None] = {
        id: None if page is None else local_state.ours[id] for id, page in pages.items()
    }
    for id, local in local_state.ours.items():
        # A memory deleted here because the remote has no file of it counts as equal on both sides.
        same = remote.blob_sha(id, local_state) or local_state.base.get(id)
        if (
            id not in result
            and local.digest == same
            and (id in local_state.changed or local_state.base.get(id) != same)
        ):
            result[id] = local
    return result | {id: None for id in local_state.deleted & local_state.gone if remote.is_missing(id)}


def _is_up_to_date(remote: RemoteState, local_state: LocalState, pages: Mapping[str, str | None]) -> bool:
    """Return whether all remote changes were applied or rejected, so that they need not be read again."""
    # A file that could not be listed may have to be read later.
    if remote.problems:
        return False
    for id, blob in remote.blobs.items():
        refused = local_state.refused.get(id)
        applied = local_state.base.get(id) == blob.sha or (
            id in local_state.ours and local_state.ours[id].digest == blob.sha
        )
        if id not in pages and not applied and (refused is None or refused.digest != blob.sha):
            return False
    for id in local_state.base:
        local = local_state.ours.get(id)
        deleted = local is not None and local.record.status == "deleted"
        if remote.is_missing(id) and id not in pages and local is not None and not deleted:
            return False
    return True


async def _apply_remote(
    sync_run: SyncRun, baseline: SyncBaseline, remote: RemoteState, local_state: LocalState, total: SyncReport
) -> tuple[SyncReport, LocalState]:
    """Read the remote changes, apply them and return the updated report and local state."""
    read = await run_blocking(_read, sync_run, baseline, remote, local_state)
    # A file counts as removed only if the last common state had it. A memory that was never sent is not one that others
    # deleted.
    removed = {
        id
        for id, local in local_state.ours.items()
        if id in local_state.base and _is_removed(local, remote, local_state)
    }
    steps: list[SyncStep] = []
    vanished = 0
    if removed or read.sides or read.refused:
        seen = local_state.total
        steps, strange, vanished = await sync_run.memories.write(lambda tx: _apply(tx, sync_run, read, removed, seen))
        read.problems.extend(f"{file_path(id)}: {_ID_COLLISION}" for id in strange)
        local_state = await sync_run.memories.read(lambda tx: sides.load_local_state(tx, sync_run, remote))
    total = _add_counts(total, steps, read.problems)
    return replace(total, run=sync_run.run if total.run or vanished else None), local_state


# Reading.


def _read(sync_run: SyncRun, baseline: SyncBaseline, remote: RemoteState, local: LocalState) -> _RemoteChanges:
    """Read and validate the new remote files. Invalid files are left in place and reported."""
    new: dict[str, GitBlob] = {}
    problems = [
        f"{file_path(id)}: {rejection.why}"[:300]
        for id, rejection in local.refused.items()
        if _is_unchanged(id, remote)
    ]
    for id, blob in remote.blobs.items():
        ours, refusal = local.ours.get(id), local.refused.get(id)
        # Unchanged, already merged, or permanently deleted here.
        if id in local.gone or (ours is not None and blob.sha in (ours.digest, local.base.get(id))):
            continue
        if (
            refusal is not None
            and refusal[0::2] == (blob.sha, sync_run.lens)
            and not sides.is_rejection_expired(refusal, sync_run)
        ):
            problems.append(f"{file_path(id)}: {refusal.why}"[:300])
        else:
            new[id] = blob
    pages = sync_run.git.read_blobs(new.values())
    readable = [id for id, blob in new.items() if blob.sha in pages]
    origins = _origins(sync_run, remote, baseline.last_synced_commit, readable)
    read = _RemoteChanges({}, {}, _read_merge_bases(sync_run, local, readable), problems)
    for id, blob in new.items():
        page = pages.get(blob.sha)
        if page is None:
            problems.append(f"{file_path(id)}: more than can be read at once; it is left for the next sync")
            continue
        try:
            record = replace(
                _validate_incoming(page, id, sync_run),
                origin=origins.get(file_path(id)) or f"{sync_run.remote}: {(remote.tip or '')[:12]}",
            )
            read.sides[id] = VersionedRecord(record, blob.sha)
        except (InvalidInput, ContentBlocked) as trouble:
            problems.append(f"{file_path(id)}: {trouble}"[:300])
            read.refused[id] = RejectedFile(blob.sha, str(trouble)[:300], sync_run.lens, sync_run.now)
    return read


def _is_unchanged(id: str, remote: RemoteState) -> bool:
    """Return whether a rejected file is still there and was not listed as changed."""
    return not remote.whole and id not in remote.blobs and id not in remote.absent and id not in remote.invalid


def _validate_incoming(page: str, id: str, sync_run: SyncRun) -> MemoryRecord:
    """Return the record of a file. Raises `InvalidInput` or `ContentBlocked` if it cannot be accepted."""
    portable = serialization.from_markdown_file(page)
    # Otherwise a pushed file could overwrite any local memory under a harmless name.
    if portable.id != id:
        raise InvalidInput("the id in the file does not match its name")
    # Memories of the user and of the organisation are never shared through a repository, in either direction.
    if portable.domain != "project":
        raise InvalidInput("it is not in the project domain")
    # Incoming text is screened like a capture: a user who can push to the repository must not bypass the policy.
    portable = export_import.screen_memory(replace(portable, project=None), sync_run.screen, sync_run.screen)
    return serialization.from_portable(portable, sync_run.now, project=sync_run.memories.project)


def _read_merge_bases(sync_run: SyncRun, local: LocalState, new: Iterable[str]) -> dict[str, MemoryRecord]:
    """Return the common bases of memories that both sides changed, as far as git still has them."""
    both = [id for id in new if id in local.ours and id in local.base and local.ours[id].digest != local.base[id]]
    pages = sync_run.git.read_blobs(GitBlob(local.base[id], 0) for id in both)
    result: dict[str, MemoryRecord] = {}
    for id in both:
        try:
            result[local.base[id]] = _validate_incoming(pages[local.base[id]], id, sync_run)
        except (KeyError, InvalidInput, ContentBlocked):
            continue
    return result


def _origins(sync_run: SyncRun, remote: RemoteState, met: str | None, ids: list[str]) -> dict[str, str]:
    """Return the provenance of the files of these memories, by path."""
    if not ids:
        return {}
    try:
        origins = sync_run.git.read_origins(remote.tip or "", met, MEMORIES_DIR)
    except SyncError:  # the history exceeds the size limit
        return {}
    # One commit may change any number of files: its author is screened once.
    screened: dict[str, str] = {}
    result: dict[str, str] = {}
    for path in map(file_path, ids):
        if (author := origins.get(path)) is not None:
            if author not in screened:
                screened[author] = _origin(sync_run, author)
            result[path] = screened[author]
    return result


def _origin(sync_run: SyncRun, commit_author: str) -> str:
    """Return the provenance on one line and screened: names and addresses are chosen by others."""
    # Anyone who can push chooses the length of a name. More is screened than is stored, so that no part of a secret
    # remains.
    commit_author = commit_author[-MAX_SCREENED_ORIGIN_CHARS:]
    # Control characters could forge lines in the output that shows the origin.
    plain = "".join(letter for letter in commit_author if unicodedata.category(letter)[0] != "C")
    author, _, commit = plain.rpartition(" ")
    # If addresses are blocked, the name alone still identifies the author.
    forms = (plain, f"{_ADDRESS.sub('', author)} {commit}", commit)
    plain = next((passed for form in forms if (passed := _screen_or_skip(sync_run, form)) is not None), commit)
    return texts.replace_unstorable(f"{sync_run.remote}: {' '.join(plain.split())[-MAX_ORIGIN_CHARS:]}")


def _screen_or_skip(sync_run: SyncRun, text: str) -> str | None:
    """Return the text as it may be stored, or None if it is blocked."""
    try:
        return sync_run.screen(text)[0]
    except ContentBlocked:
        return None


def _record_synced(
    tx: Transaction,
    replica: str,
    agreed: Mapping[str, VersionedRecord | None],
    vanished: Iterable[str],
    tip: str | None,
    commit: str | None,
) -> None:
    """Record the common state of both sides; None removes an entry. `vanished` are rejected files that no longer
    exist.
    """
    rows = [_row(replica, id, version) for id, version in agreed.items()]
    tx.execute_many("delete from memory_synced where place = :place and memory = :memory", [_key(row) for row in rows])
    _insert(tx, [row for row in rows if row["digest"] is not None])
    stale = [{"place": replica, "memory": id} for id in vanished]
    tx.execute_many("delete from memory_refused where place = :place and memory = :memory", stale)
    tx.execute("delete from memory_meeting where place = :place", {"place": replica})
    if tip is not None:
        values = {"place": replica, "tip": tip, "taken": commit}
        tx.execute("insert into memory_meeting (place, tip, taken) values (:place, :tip, :taken)", values)


def _row(replica: str, id: str, item: VersionedRecord | None) -> dict[str, Any]:
    if item is None:
        return {"place": replica, "memory": id, "digest": None}
    record = item.record
    stamp = {"version": record.version, "updated_at": record.updated_at, "status": record.status}
    return {"place": replica, "memory": id, "digest": item.digest, **stamp}


def _key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"place": row["place"], "memory": row["memory"]}


def _insert(tx: Transaction, rows: list[dict[str, Any]]) -> None:
    tx.execute_many(
        "insert into memory_synced (place, memory, digest, version, updated_at, status) "
        "values (:place, :memory, :digest, :version, :updated_at, :status)",
        rows,
    )


# Applying.

_ID_COLLISION = "another memory here has this id"


def _is_removed(item: VersionedRecord, remote: RemoteState, local: LocalState) -> bool:
    id = item.record.id
    return remote.is_removed(id) and item.digest == local.base.get(id) and item.record.status != "deleted"


class _AppliedChanges(NamedTuple):
    """Result of applying changes: the steps, ids that belong to another local memory (of the user or another project),
    and the number of memories no longer visible.
    """

    steps: list[SyncStep]
    strange: list[str]
    vanished: int


def _apply(tx: Transaction, sync_run: SyncRun, read: _RemoteChanges, removed: set[str], seen: int) -> _AppliedChanges:
    """Apply remote changes in one transaction. The local state is read again, because it may have changed since the
    fetch.
    """
    ids = [*read.sides, *removed]
    project, values = sync_run.memories.project, {"ids": ids, "place": sync_run.place}
    existing = records.fetch(tx, ids)
    ours = {
        id: to_versioned_record(record, sync_run.git)
        for id, record in existing.items()
        if record.domain == "project" and record.project == project
    }
    sql = "select memory, digest from memory_synced where place = :place and memory in :ids"
    base = dict(tx.fetch_all(tuple[str, str], sql, values))
    # Memories erased here stay erased, even if a clone that has not synced since still sends them.
    removed_ids = set(tx.fetch_all(str, "select memory from memory_gone where memory in :ids", {"ids": ids}))
    # A pushed file must not change a memory of the user or of another project that happens to have its id.
    strange = sorted(existing.keys() & read.sides.keys() - ours.keys())
    steps = [merge.plan_removal(ours.get(id), base.get(id), sync_run.now) for id in sorted(removed)]
    steps += [
        merge.plan_incoming(ours.get(id), side, base.get(id), read.common.get(base.get(id, "")))
        for id, side in sorted(read.sides.items())
        if id not in strange and id not in removed_ids
    ]
    todo = [step for step in steps if step is not None]
    # Counted after planning and before the first write: the limit rejects the whole sync, never half of it.
    vanishing = sum(step.removes_from_view(ours[step.id].record, sync_run.now) for step in todo if step.id in ours)
    _confirm_deletions(vanishing, seen, sync_run)
    # Null versions mark the rows as changed, so that the next sync compares the files once.
    unseen = {"version": None, "updated_at": None, "status": None}
    rows: list[dict[str, Any]] = []
    for step in todo:
        after = _apply_step(tx, step, ours.get(step.id), sync_run)
        # For a memory deleted here because its file is missing, record the local file, so that it is not compared again
        # until one side changes.
        digest = step.theirs or to_versioned_record(after, sync_run.git).digest
        rows.append({"place": sync_run.place, "memory": step.id, "digest": digest, **unseen})
    tx.execute_many("delete from memory_synced where place = :place and memory = :memory", [_key(row) for row in rows])
    _insert(tx, rows)
    refused = dict(read.refused)
    for id in strange:
        refused[id] = RejectedFile(read.sides[id].digest, _ID_COLLISION, sync_run.lens, sync_run.now)
    _record_rejections(tx, sync_run.place, refused)
    return _AppliedChanges(todo, strange, vanishing)


def _confirm_deletions(count: int, seen: int, sync_run: SyncRun) -> None:
    """Raise `SyncError` if the sync would delete more memories than is likely to be intended."""
    if (
        count > 1
        and (count > MAX_UNCONFIRMED_DELETIONS or count * UNCONFIRMED_DELETION_FRACTION > seen)
        and not sync_run.confirm
    ):
        raise SyncError(
            f"This sync would delete {count} of {seen} local memories, because they were deleted on the remote. "
            "Nothing was changed. Ask the user, then repeat the call with confirm=true. Deletions can be reverted "
            "with undo.",
            vanishing=count,
            memories=seen,
        )


def _record_rejections(tx: Transaction, replica: str, refused: Mapping[str, RejectedFile]) -> None:
    rows = [{"place": replica, "memory": id, **rejection._asdict()} for id, rejection in refused.items()]
    tx.execute_many("delete from memory_refused where place = :place and memory = :memory", rows)
    tx.execute_many(
        "insert into memory_refused (place, memory, digest, why, lens, at) "
        "values (:place, :memory, :digest, :why, :lens, :at)",
        rows,
    )


def _apply_step(tx: Transaction, step: SyncStep, ours: VersionedRecord | None, sync_run: SyncRun) -> MemoryRecord:
    if ours is None:
        mutations.insert(tx, [step.after])
        return step.after
    before, who, now = ours.record, sync_run.who, sync_run.now
    if step.clash is not None and step.other is not None:
        # The text of the losing side is stored in the history.
        lost = replace(step.other, updated_at=before.updated_at)
        before = mutations.update(tx, before, lost, "synced", who=who, version=lost.version, at=now, reason="theirs")
    reason = _removal_reason(sync_run.run) if step.removes_from_view(ours.record, now) else step.what
    after = mutations.update(
        tx, before, step.after, "synced", who=who, version=step.after.version, at=now, reason=reason
    )
    if step.clash is not None:
        why = f"both sides changed {', '.join(step.clash.fields)}; the losing version is in the history"
        records.record_conflict(tx, step.id, [(step.id, why)], now)
    return after


# Sending.


def _files_to_write(remote: RemoteState, local_state: LocalState, *, push_only: bool) -> dict[str, str | None]:
    """Return the files to write by memory id; None removes a file.

    Remote files that could not be read are left alone, but memories erased here are removed in any case.
    """
    pages: dict[str, str | None] = {}
    for id, local in local_state.ours.items():
        sha, base = remote.blob_sha(id, local_state), local_state.base.get(id)
        if sha is None:
            # The remote need not know about deletions of memories it never had, and memories removed there are not sent
            # again.
            waits = local.record.status == "deleted" or (local.digest == base and remote.is_removed(id))
        else:
            refused = local_state.refused.get(id)
            left = refused is not None and refused.digest == sha and local.digest == base
            # A memory changed on both sides waits until the remote version has been fetched.
            waits = local.digest == sha or left or (push_only and base not in (sha, None))
        if not waits:
            pages[id] = merge.to_file(local.record)
    theirs = local_state.deleted.union(remote.blobs)
    erased = [
        id
        for id in theirs
        if id not in local_state.ours and id in local_state.withdrawn and remote.blob_sha(id, local_state) is not None
    ]
    return pages | dict.fromkeys(erased)


def _push(sync_run: SyncRun, remote: RemoteState, pages: Mapping[str, str | None]) -> str | None:
    """Push the files and return the new commit, or None if another clone pushed first."""
    # A separate ref for this push, so that concurrent syncs in one clone do not overwrite each other.
    git, own_ref = sync_run.git, f"{sync_run.tracking}-{os.urandom(6).hex()}"
    message = f"{len(pages)} memories"
    files = {file_path(id): page for id, page in pages.items()}
    erased = [id for id, page in pages.items() if page is None]
    files |= {tombstone_path(id): _TOMBSTONE_TEXT for id in erased}
    # A memory that is sent again after an erasure elsewhere needs its tombstone removed.
    buried = (id for id, page in pages.items() if page is not None and (id in remote.gone or not remote.whole))
    files |= {tombstone_path(id): None for id in buried}
    try:
        commit = git.write_commit(files, message, remote.tip, own_ref)
        if erased:
            # Drop the history, which would still contain the erased content.
            commit = git.alone(commit, message, own_ref)
        # The expected old tip makes the push fail if another clone was faster, instead of overwriting its commit.
        if not git.push(sync_run.remote, commit, SYNC_REF, remote.tip):
            return None
        git.set(sync_run.tracking, commit)
        return commit
    finally:
        git.forget(own_ref)


def _add_counts(total: SyncReport, steps: list[SyncStep], problems: list[str]) -> SyncReport:
    counts: dict[str, Any] = {
        name: getattr(total, name) + sum(step.what == action for step in steps)
        for name, action in (("added", "add"), ("updated", "update"), ("removed", "remove"), ("merged", "merge"))
    }
    clashes = [step.clash for step in steps if step.clash is not None]
    return replace(
        total,
        **counts,
        conflicts=[*total.conflicts, *clashes][:MAX_LISTED_CONFLICTS],
        problems=[*total.problems, *problems][:MAX_LISTED_CONFLICTS],
    )
