"""Sharing the memories of a project through its git repository: one file for each, on a ref beside the branches.

Three sides are compared for every memory: ours, theirs, and what both had when they last met. What changed on one side
only is taken over. What changed on both is put together field by field; where both changed the same field, the higher
version wins, then the later change, then the greater text, so that everybody decides alike. The other text is in the
history, and the memory is listed as a conflict.

Only memories of the project are shared, never the user's own. A deletion travels as a memory that is deleted; one that
is gone for good is a file that is gone, and the commit without it has no past: git forgets the old ones when it
collects its garbage.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico.services import moments
from portico.services.memory.errors import Blocked, InvalidInput, SyncFailed
from portico.services.memory.share import export_import, portable
from portico.services.memory.share.export_import import Screen
from portico.services.memory.share.git import MOST_TRIES, Git
from portico.services.memory.store import changes, records
from portico.services.memory.store.memories import Memories
from portico.services.memory.store.records import Record

Direction = Literal["push", "fetch", "full"]

REF = "refs/portico/memories"
FOLDER = "memories"
_NAMES = re.compile(r"memories/[0-9a-f]{2}/[0-9a-f]{8,64}\.md")
MOST_SHARED = 100_000
MOST_LISTED = 50
# What a merge looks at, apart from the tags and the moments.
_FIELDS = (
    "domain", "namespace", "content", "source", "author", "thread", "branch", "path", "status", "at", "expires_at",
    "deleted_at",
)  # fmt: skip


class Clash(Struct, frozen=True):
    """A memory that was changed on both sides, and what became of it."""

    id: str
    fields: list[str]
    kept: Literal["ours", "theirs"]


class Synced(Struct, frozen=True, kw_only=True):
    remote: str
    added: int = 0
    updated: int = 0
    removed: int = 0
    merged: int = 0
    sent: int = 0
    conflicts: list[Clash] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Meeting(Struct, frozen=True):
    """This side and a remote, once: who screens what comes in, who asked for it, and when."""

    memories: Memories
    git: Git
    remote: str
    screen: Screen
    who: str
    now: int

    @property
    def tracking(self) -> str:
        return f"refs/portico/remotes/{self.remote}/memories"

    @property
    def place(self) -> str:
        return f"{self.remote} {REF}"


class Side(Struct, frozen=True):
    """A memory on one side: its file, and what is in it."""

    page: str
    record: Record

    @property
    def digest(self) -> str:
        return digest(self.page)


class Step(Struct, frozen=True):
    """What is to be done about one memory."""

    id: str
    what: Literal["add", "update", "remove", "merge"]
    after: Record | None
    # What theirs was, which both sides now know of.
    theirs: str | None
    clash: Clash | None = None
    # Where both had changed it, what they have.
    other: Record | None = None


def digest(page: str) -> str:
    return hashlib.sha256(page.encode()).hexdigest()


def shared(record: Record) -> str:
    """Its file. The project is the repository's own, whatever each clone calls it."""
    return portable.page(replace(record, project=None))


async def sync(
    memories: Memories,
    *,
    direction: Direction = "full",
    remote: str | None = None,
    screen: Screen = lambda text: (text, []),
    who: str = "",
) -> Synced:
    if memories.root is None:
        raise SyncFailed("This is not a git repository, so there is nothing to sync with.")
    git = Git(memories.root)
    name = _remote(await asyncio.to_thread(git.remotes), remote)
    total = Synced(remote=name)
    for _ in range(MOST_TRIES):
        meeting = _Meeting(memories, git, name, screen, who, moments.now())
        total, done = await _round(meeting, direction, total)
        if done:
            return total
    raise SyncFailed("Others were quicker every time. Try again in a moment.")


def _remote(known: list[str], wanted: str | None) -> str:
    """Only remotes that the repository knows: an address could be anywhere, or a command."""
    if not known:
        raise SyncFailed("The repository has no remote to sync with. Add one with git remote add.")
    name = wanted or ("origin" if "origin" in known else known[0])
    if name not in known:
        raise SyncFailed(f"There is no remote {name[:60]!r}; there is {', '.join(known)}.")
    return name


async def _round(meeting: _Meeting, direction: Direction, total: Synced) -> tuple[Synced, bool]:
    """Fetch, merge, write down, send. The flag is False when another clone has sent something meanwhile."""
    memories, git, tracking = meeting.memories, meeting.git, meeting.tracking
    last = await asyncio.to_thread(git.commit, tracking)
    _, known, _ = await asyncio.to_thread(_read, meeting, last)
    tip = await asyncio.to_thread(git.fetch, meeting.remote, REF, tracking)
    files, theirs, problems = await asyncio.to_thread(_read, meeting, tip)
    steps: list[Step] = []
    if direction != "push":
        steps, strange = await memories.write(lambda tx: _apply(tx, meeting, theirs, known))
        problems += [f"{_path(id)}: another memory here has this id" for id in strange]
    total = _counted(total, steps, problems)
    if direction == "fetch":
        return total, True
    here = await memories.read(lambda tx: _here(tx, meeting))
    wanted = _wanted(files, theirs, here, push_only=direction == "push")
    sent = [path for path in {**files, **wanted} if files.get(path) != wanted.get(path)]
    if sent:
        pages = {path: wanted.get(path) for path in sent}
        commit = await asyncio.to_thread(_send, meeting, pages, tip)
        if commit is None:
            return total, False
        await asyncio.to_thread(git.set, tracking, commit)
    digests = {_id(path): digest(page) for path, page in wanted.items()}
    await memories.write(lambda tx: _met(tx, meeting.place, digests))
    return replace(total, sent=total.sent + len(sent)), True


def _send(meeting: _Meeting, pages: Mapping[str, str | None], tip: str | None) -> str | None:
    """The commit that the remote has taken; None where another clone was quicker."""
    git, mine = meeting.git, f"{meeting.tracking}-{os.urandom(6).hex()}"
    message = f"{len(pages)} memories"
    try:
        commit = git.write(pages, message, tip, mine)
        if None in pages.values():
            # What was erased would still be in the past.
            commit = git.alone(commit, message, mine)
        return commit if git.push(meeting.remote, commit, REF, tip) else None
    finally:
        git.forget(mine)


# The three sides


def _read(meeting: _Meeting, commit: str | None) -> tuple[dict[str, str], dict[str, Side], list[str]]:
    """What others have written, checked. What cannot be read stays where it is, and is mentioned."""
    if commit is None:
        return {}, {}, []
    files, problems = meeting.git.files(commit, FOLDER, _NAMES)
    found: dict[str, Side] = {}
    for path, page in files.items():
        try:
            given = portable.from_page(page)
            if given.id != _id(path) or path != _path(given.id):
                raise InvalidInput("it is not the memory that its name says")
            if given.domain != "project":
                raise InvalidInput("it does not belong to a project")
            given = export_import.screened(given, meeting.screen)
            found[given.id] = Side(page, portable.unpacked(given, meeting.now, project=meeting.memories.project))
        except (InvalidInput, Blocked) as trouble:
            problems.append(f"{path[:100]}: {trouble}"[:300])
    return files, found, problems


class _OurSide(NamedTuple):
    """Our memories, what both had when they last met, and what is gone for good."""

    ours: dict[str, Side]
    base: dict[str, str]
    gone: set[str]


def _here(tx: Transaction, meeting: _Meeting) -> _OurSide:
    project = meeting.memories.project
    of_project = "project = :project" if project is not None else "project is null"
    values = {} if project is None else {"project": project}
    found = records.which(tx, f"domain = 'project' and {of_project}", values, MOST_SHARED)
    sql = "select memory, digest from memory_synced where place = :place"
    base = dict(tx.all(tuple[str, str], sql, {"place": meeting.place}))
    gone = set(tx.all(str, "select memory from memory_gone"))
    return _OurSide({one.id: Side(shared(one), one) for one in found}, base, gone)


def _met(tx: Transaction, place: str, digests: dict[str, str]) -> None:
    """From now on this is what both have."""
    tx.run("delete from memory_synced where place = :place", {"place": place})
    rows = [{"place": place, "memory": id, "digest": one} for id, one in digests.items()]
    if rows:
        tx.many("insert into memory_synced (place, memory, digest) values (:place, :memory, :digest)", rows)


# Taking over


def _apply(
    tx: Transaction, meeting: _Meeting, theirs: dict[str, Side], known: dict[str, Side]
) -> tuple[list[Step], list[str]]:
    """What was done, and the ids that belong to something else here: a memory of the user's, or of another project.
    `known` is what the two sides had when they last met, as far as git still has it."""
    ours, base, gone = _here(tx, meeting)
    strange = [id for id in theirs if id not in ours]
    taken = tx.all(str, "select id from memory where id in :ids", {"ids": strange}) if strange else []
    gone |= set(taken)
    steps = [
        step
        for id in sorted({*theirs, *base})
        if (step := _step(id, ours.get(id), theirs.get(id), base.get(id), known.get(id), id in gone)) is not None
    ]
    for step in steps:
        _take(tx, step, ours.get(step.id), meeting.who, meeting.now)
        base.pop(step.id, None)
        if step.theirs is not None:
            base[step.id] = step.theirs
    _met(tx, meeting.place, base)
    return steps, sorted(taken)


def _step(
    id: str, ours: Side | None, theirs: Side | None, base: str | None, known: Side | None, gone: bool
) -> Step | None:
    if theirs is None:
        # It was there and is not any more: it was erased, unless it was changed here since.
        if ours is not None and base is not None and ours.digest == base:
            return Step(id, "remove", None, None)
        return None
    if ours is None:
        return None if gone else Step(id, "add", theirs.record, theirs.digest)
    if ours.digest == theirs.digest or theirs.digest == base:
        return None
    if ours.digest == base:
        return Step(id, "update", theirs.record, theirs.digest)
    common = known.record if known is not None and known.digest == base else None
    merged, clash = merge(ours.record, theirs.record, common)
    return Step(id, "merge", merged, theirs.digest, clash, theirs.record)


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
    )
    merged = replace(merged, digest=records.digest(merged.content))
    if not set(clashes) & {"content", "status", "namespace"}:
        return merged, None
    return merged, Clash(ours.id, clashes, "ours" if wins is ours else "theirs")


def _take(tx: Transaction, step: Step, ours: Side | None, who: str, now: int) -> None:
    if step.after is None:
        if ours is not None:
            changes.remove(tx, [ours.record], now)
        return
    if ours is None:
        changes.insert(tx, [step.after])
    else:
        before = ours.record
        if step.clash is not None and step.other is not None:
            # Whichever side wins, what the other had written is in the history.
            lost = replace(step.other, updated_at=before.updated_at)
            before = changes.change(tx, before, lost, "synced", who=who, version=lost.version, at=now, reason="theirs")
        version = step.after.version
        changes.change(tx, before, step.after, "synced", who=who, version=version, at=now, reason=step.what)
    if step.clash is not None:
        why = f"both sides changed {', '.join(step.clash.fields)}; the one that lost is in its history"
        records.disagree(tx, step.id, [(step.id, why)], now)


# Sending


def _wanted(files: dict[str, str], theirs: dict[str, Side], here: _OurSide, *, push_only: bool) -> dict[str, str]:
    """The files that are to be there. What is theirs and could not be read is left alone; what was erased here is not,
    whatever has become of it there."""
    wanted, (ours, base, gone) = dict(files), here
    for id, one in ours.items():
        other = theirs.get(id)
        # What both have changed waits until it has been fetched.
        if push_only and other is not None and base.get(id) not in (other.digest, None) and one.digest != other.digest:
            continue
        wanted[_path(id)] = one.page
    for id, other in theirs.items():
        if id not in ours and (id in gone or other.digest == base.get(id)):
            del wanted[_path(id)]
    return wanted


def _path(id: str) -> str:
    return f"{FOLDER}/{id[:2]}/{id}.md"


def _id(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".md")


def _counted(total: Synced, steps: list[Step], problems: list[str]) -> Synced:
    counts: dict[str, Any] = {
        name: getattr(total, name) + sum(one.what == what for one in steps)
        for name, what in (("added", "add"), ("updated", "update"), ("removed", "remove"), ("merged", "merge"))
    }
    clashes = [one.clash for one in steps if one.clash is not None]
    return replace(
        total, **counts, conflicts=[*total.conflicts, *clashes][:MOST_LISTED], problems=problems[:MOST_LISTED]
    )
