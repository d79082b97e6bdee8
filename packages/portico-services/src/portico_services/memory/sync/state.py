"""The sides of a sync: ours, theirs, and what both had when they last met.

A sync costs what has changed. What of ours is still as it was when both had the same is told by its version, in the
database; its file is not written again to be compared. What of theirs is new is the difference between two commits:
the one up to which everything was taken or refused, and the one of today. Where that does not do, all of their files
are listed: there was no such commit, git has forgotten it, a memory has vanished from here without a trace, or what
was refused is to be looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from portico.extend import Transaction
from portico_services import timestamps
from portico_services.memory.errors import SyncFailed
from portico_services.memory.export_import import Screen
from portico_services.memory.store import records
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.records import Record
from portico_services.memory.sync import merge
from portico_services.memory.sync.git_repository import Blob, Git, GitListing
from portico_services.memory.sync.merge import Side

REF = "refs/portico/memories"
FOLDER, GONE = "memories", "gone"
_NAMES = re.compile(rf"{FOLDER}/[0-9a-f]{{2}}/[0-9a-f]{{8,64}}\.md|{GONE}/[0-9a-f]{{2}}/[0-9a-f]{{8,64}}")
MOST_SHARED = 100_000
# A file that was refused may be fit later: its date may have come.
REFUSED_FOR_MS = 86_400 * timestamps.SECOND_MS


class Meeting(Struct, frozen=True):
    """This side and a remote, once: who screens what comes in, who asked for it, and when."""

    memories: Memories
    git: Git
    remote: str
    screen: Screen
    # What the screening goes by: with another one, what was refused is looked at again.
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
        return place_of(self.remote, self.memories.project)


def place_of(remote: str, project: str | None) -> str:
    """One database serves many projects, and each has its own `origin`."""
    return f"{remote} {REF} {project or ''}"


class Known(NamedTuple):
    """What is known before the remote is looked at."""

    # The commit that both had when they last met.
    met: str | None
    # The one up to which everything of theirs was taken or refused.
    taken: str | None
    # Whether it is not enough to see what has changed since.
    whole: bool


class Refusal(NamedTuple):
    digest: str
    why: str
    lens: str
    at: int


def is_old(refusal: Refusal, meeting: Meeting) -> bool:
    return meeting.now - refusal.at >= REFUSED_FOR_MS


class OurSide(NamedTuple):
    """Our memories and what both had when they last met, as far as they matter; all of them where theirs are."""

    ours: dict[str, Side]
    # Those of them that may not be what both had any more.
    suspects: frozenset[str]
    base: dict[str, str]
    # What both had, and is not among ours any more.
    lost: frozenset[str]
    gone: frozenset[str]
    # What both had, and is another's here now: it was moved to another domain, or is gone.
    withdrawn: frozenset[str]
    refused: dict[str, Refusal]
    # How many memories the project has.
    total: int


class TheirSide(NamedTuple):
    """Their side, as far as git lists it."""

    tip: str | None = None
    blobs: Mapping[str, Blob] = {}
    # Under names of memories, and unfit to be read.
    unfit: frozenset[str] = frozenset()
    # Memories whose files say that they are gone.
    gone: frozenset[str] = frozenset()
    # Whether the commit was built on the one that both met at.
    follows: bool = False
    problems: tuple[str, ...] = ()
    # Whether these are all of their files, or those that have changed; then, whose files went away.
    whole: bool = True
    absent: frozenset[str] = frozenset()

    def lacks(self, id: str) -> bool:
        """Whether it is known that they have no file of it."""
        return id not in self.blobs and id not in self.unfit and (self.whole or id in self.absent)

    def removed(self, id: str) -> bool:
        return self.lacks(id) and (self.follows or id in self.gone)

    def sha(self, id: str, here: OurSide) -> str | None:
        """What git calls their file of a memory; None where there is none that could be read."""
        if id in self.blobs:
            return self.blobs[id].sha
        if self.lacks(id) or id in self.unfit:
            return None
        refused = here.refused.get(id)
        return refused.digest if refused is not None else here.base.get(id)


# Ours

_MINE = "memory.domain = 'project' and memory.project = :project"
_LOST = (
    "from memory_synced left join memory on memory.id = memory_synced.memory and {mine} "
    "where memory_synced.place = :place and memory.id is null"
)
_SUSPECTS = (
    "select memory.id from memory left join memory_synced "
    "on memory_synced.memory = memory.id and memory_synced.place = :place where {mine} and case "
    # They need not know of the deletion of what they do not have.
    "when memory_synced.memory is null then memory.status <> 'deleted' "
    "else memory_synced.version is null or memory_synced.version <> memory.version "
    "or memory_synced.updated_at <> memory.updated_at or memory_synced.status <> memory.status end"
)


def _mine(meeting: Meeting) -> tuple[str, dict[str, Any]]:
    project = meeting.memories.project
    if project is None:
        return "memory.domain = 'project' and memory.project is null", {}
    return _MINE, {"project": project}


def known(tx: Transaction, meeting: Meeting) -> Known:
    mine, values = _mine(meeting)
    values = {**values, "place": meeting.place}
    sql = "select tip, taken from memory_meeting where place = :place"
    met, taken = tx.maybe(tuple[str | None, str | None], sql, {"place": meeting.place}) or (None, None)
    strayed = tx.maybe(
        str,
        f"select memory_synced.memory {_LOST.format(mine=mine)} "
        "and not exists (select 1 from memory as other where other.id = memory_synced.memory) "
        "and not exists (select 1 from memory_gone where memory_gone.memory = memory_synced.memory) limit 1",
        values,
    )
    stale = tx.maybe(
        str,
        "select memory from memory_refused where place = :place and (lens <> :lens or at <= :then) limit 1",
        {"place": meeting.place, "lens": meeting.lens, "then": meeting.now - REFUSED_FOR_MS},
    )
    return Known(met, taken, whole=taken is None or strayed is not None or stale is not None)


def here(tx: Transaction, meeting: Meeting, there: TheirSide) -> OurSide:
    mine, values = _mine(meeting)
    place = {"place": meeting.place}
    count = tx.one(int, f"select count(*) from memory where {mine}", values)
    if count > MOST_SHARED:
        # What was left out would look as if it had been taken away.
        raise SyncFailed(f"The project has more than {MOST_SHARED:,} memories, which is more than are shared.")
    suspects = frozenset(tx.all(str, _SUSPECTS.format(mine=mine), {**values, **place}))
    lost = frozenset(tx.all(str, f"select memory_synced.memory {_LOST.format(mine=mine)}", {**values, **place}))
    theirs = [*there.blobs, *there.absent]
    if there.whole:
        found = records.which(tx, mine, values, MOST_SHARED)
        base = dict(tx.all(tuple[str, str], "select memory, digest from memory_synced where place = :place", place))
    else:
        ids = [*suspects.union(theirs, lost)]
        project = meeting.memories.project
        known_here = records.fetch(tx, ids).values()
        found = [one for one in known_here if one.domain == "project" and one.project == project]
        sql = "select memory, digest from memory_synced where place = :place and memory in :ids"
        base = dict(tx.all(tuple[str, str], sql, {**place, "ids": ids}))
    ours = {one.id: _ours(one, meeting.git, suspects, base, there) for one in found}
    gone = frozenset(tx.all(str, "select memory from memory_gone where memory in :ids", {"ids": [*lost, *theirs]}))
    moved = frozenset(tx.all(str, "select id from memory where id in :ids", {"ids": [*lost]}))
    sql = "select memory, digest, why, lens, at from memory_refused where place = :place"
    rows = tx.all(tuple[str, str, str, str, int], sql, place)
    refused = {id: Refusal(digest, why, lens, at) for id, digest, why, lens, at in rows}
    return OurSide(ours, suspects, base, lost, gone, gone | moved, refused, count)


def _ours(one: Record, git: Git, suspects: frozenset[str], base: Mapping[str, str], there: TheirSide) -> Side:
    if one.id not in suspects and (one.id in base or one.id not in there.blobs):
        return Side(one, base.get(one.id, ""))
    return side(one, git)


def side(record: Record, git: Git) -> Side:
    return Side(record, git.blob_id(merge.shared(record)))


# Theirs


def look(meeting: Meeting, known: Known) -> TheirSide:
    git, tracking = meeting.git, meeting.tracking
    tip = git.tip(meeting.remote, REF)
    if tip is None:
        return TheirSide()
    if git.commit(tracking) != tip:
        tip = git.fetch(meeting.remote, REF, tracking)
    if tip is None:
        return TheirSide()
    follows = tip == known.met or git.follows(tip, known.met)
    changed = None if known.whole or known.taken is None else _changed(git, known.taken, tip)
    listing = changed or git.listing(tip, (f"{FOLDER}/", f"{GONE}/"), _NAMES)
    blobs = {id_of(path): blob for path, blob in listing.blobs.items() if path == path_of(id_of(path))}
    unfit = {id_of(path) for path in (*listing.blobs, *listing.unfit) if path.startswith(f"{FOLDER}/")} - blobs.keys()
    wrong = [f"{path[:100]}: it is not where it belongs" for path in listing.blobs if _is_misplaced(path)]
    gone = {id_of(path) for path in listing.blobs if path.startswith(f"{GONE}/")}
    absent = {id_of(path) for path in listing.removed if path == path_of(id_of(path))} - blobs.keys() - unfit
    return TheirSide(
        tip,
        blobs,
        frozenset(unfit),
        frozenset(gone),
        follows,
        (*listing.problems, *wrong),
        whole=changed is None,
        absent=frozenset(absent),
    )


def _changed(git: Git, before: str, after: str) -> GitListing | None:
    """What is different in a commit; None where git cannot tell any more."""
    if before == after:
        return GitListing({}, [], [])
    try:
        return git.changed(before, after, (f"{FOLDER}/", f"{GONE}/"), _NAMES)
    except SyncFailed:
        return None


def _is_misplaced(path: str) -> bool:
    return path.startswith(f"{FOLDER}/") and path != path_of(id_of(path))


def path_of(id: str) -> str:
    return f"{FOLDER}/{id[:2]}/{id}.md"


def tombstone_of(id: str) -> str:
    return f"{GONE}/{id[:2]}/{id}"


def id_of(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".md")
