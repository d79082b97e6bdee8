"""Sharing the memories of a project through its git repository: one file for each, on a ref beside the branches.

Three sides are compared for every memory: ours, theirs, and what both had when they last met. What changed on one side
only is taken over. What changed on both is put together field by field; where both changed the same field, the higher
version wins, then the later change, then the greater text, so that everybody decides alike. The other text is in the
history, and the memory is listed as a conflict. Files are compared by what git calls them, so only new ones are
read.

Only memories of the project are shared, never the user's own. A deletion travels as a memory that is deleted. One that
is gone for good is a file that is gone, with another that says so in its place, and the commit has no past: git forgets
the old ones when it collects its garbage.

That a file is not there does not mean that it was removed: a repository may have been made anew, or a backup
put back. It was removed where there is a file that says so, or where the commit follows the one that both met at. Then
it is deleted here, so that it can be restored.
"""

from __future__ import annotations

import asyncio
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services import text as texts
from portico_services import timestamps
from portico_services.memory import export_import
from portico_services.memory.errors import Blocked, InvalidInput, SyncFailed
from portico_services.memory.export_import import Screen
from portico_services.memory.store import mutations, records
from portico_services.memory.store.memory_store import Memories
from portico_services.memory.store.ownership import is_visible
from portico_services.memory.store.records import Record
from portico_services.memory.sync import merge, schema, serialization
from portico_services.memory.sync import state as sides
from portico_services.memory.sync.git_repository import MOST_TRIES, Blob, Git
from portico_services.memory.sync.merge import Clash, Side, Step
from portico_services.memory.sync.project_rename import adopt
from portico_services.memory.sync.state import (
    FOLDER,
    REF,
    Known,
    Meeting,
    OurSide,
    Refusal,
    TheirSide,
    path_of,
    place_of,
    side,
    tombstone_of,
)

Direction = Literal["push", "fetch", "full"]

_GONE_TEXT = "This memory is gone for good.\n"
MOST_LISTED = 50
LONGEST_ORIGIN = 200
# Of a git author, `Ann Smith <ann@example.com>`.
_ADDRESS = re.compile(r"\s*<[^>]*>")
# As many may vanish in one sync without a question: so many, and of all that there are one in so many.
MOST_VANISHING = 20
VANISHING_SHARE = 10


class Synced(Struct, frozen=True, kw_only=True):
    remote: Annotated[str, "Where it was synchronised with"]
    added: Annotated[int, "How many came"] = 0
    updated: Annotated[int, "How many were changed here"] = 0
    removed: Annotated[int, "How many were removed here"] = 0
    merged: Annotated[int, "How many were changed on both sides"] = 0
    sent: Annotated[int, "How many went there"] = 0
    restored: Annotated[int, "How many came back by `undo`"] = 0
    conflicts: Annotated[list[Clash], "What both sides changed"] = field(default_factory=list)
    problems: Annotated[list[str], "What was not taken, and why"] = field(default_factory=list)
    run: Annotated[str | None, "Where memories have vanished from here: what `undo` takes to bring them back"] = None


class _Read(NamedTuple):
    """What of theirs is new: as it can be taken, and why not. `common` are files that both had."""

    sides: dict[str, Side]
    refused: dict[str, Refusal]
    common: dict[str, Record]
    problems: list[str]


async def sync(
    memories: Memories,
    *,
    direction: Direction = "full",
    remote: str | None = None,
    screen: Screen = lambda text: (text, []),
    lens: str = "",
    who: str = "",
    confirm: bool = False,
) -> Synced:
    """`confirm`: also where so much would vanish from here that it may be a mistake."""
    if memories.root is None:
        raise SyncFailed("This is not a git repository, so there is nothing to sync with.")
    await schema.prepare(memories)
    with ExitStack() as stack:
        git = await asyncio.to_thread(stack.enter_context, Git.opened(memories.root))
        name = _remote(git.remotes(), remote)
        total = Synced(remote=name)
        run = os.urandom(6).hex()
        await adopt(memories, place_of(name, memories.project), place_of(name, memories.former), who=who)
        for _ in range(MOST_TRIES):
            meeting = Meeting(memories, git, name, screen, lens, who, confirm, run, timestamps.now())
            total, done = await _round(meeting, direction, total)
            if done:
                return total
    raise SyncFailed("Others were quicker every time. Try again in a moment.", retryable=True)


async def undo(memories: Memories, run: str, *, who: str = "") -> list[str]:
    """Bring back what vanished with a sync, except what has been changed since. The next sync sends it."""
    now = timestamps.now()

    def write(tx: Transaction) -> list[str]:
        events = [one for one in records.events(tx, _reason(run)) if is_visible(one.was, memories.owner)]
        return mutations.take_back(tx, events, now, who=who)

    back = await memories.write(write)
    if not back:
        raise InvalidInput(f"There is no sync {run[:40]!r} that could be taken back.")
    return back


def _reason(run: str) -> str:
    return f"sync {run[:40]}: not there any more"


def _remote(known: list[str], wanted: str | None) -> str:
    """Only remotes that the repository knows: an address could be anywhere, or a command."""
    if not known:
        raise SyncFailed("The repository has no remote to sync with. Add one with git remote add.")
    name = wanted or ("origin" if "origin" in known else known[0])
    if name not in known:
        raise SyncFailed(f"There is no remote {name[:60]!r}; there is {', '.join(known)}.")
    return name


async def _round(meeting: Meeting, direction: Direction, total: Synced) -> tuple[Synced, bool]:
    """Fetch, merge, write down, send. The flag is False when another clone has sent something meanwhile."""
    memories = meeting.memories
    known = await memories.read(lambda tx: sides.known(tx, meeting))
    there = await asyncio.to_thread(sides.look, meeting, known)
    here = await memories.read(lambda tx: sides.here(tx, meeting, there))
    total = replace(total, problems=list(there.problems))
    if direction != "push":
        total, here = await _take_over(meeting, known, there, here, total)
    pages = {} if direction == "fetch" else _wanted(there, here, push_only=direction == "push")
    tip = there.tip
    if pages:
        tip = await asyncio.to_thread(_send, meeting, there, pages)
        if tip is None:
            return total, False
        total = replace(total, sent=total.sent + len(pages))
    agreed = _agreed(there, here, pages)
    looked = there.tip == known.taken if direction == "push" else _is_settled(there, here, pages)
    taken = tip if looked else known.taken
    vanished = [id for id in here.refused if there.lacks(id)]
    if agreed or vanished or (tip, taken) != (known.met, known.taken):
        await memories.write(lambda tx: _met(tx, meeting.place, agreed, vanished, tip, taken))
    return total, True


def _agreed(there: TheirSide, here: OurSide, pages: Mapping[str, str | None]) -> dict[str, Side | None]:
    """What both sides have now, where that was not known; None for what neither has."""
    found: dict[str, Side | None] = {id: None if page is None else here.ours[id] for id, page in pages.items()}
    for id, one in here.ours.items():
        # What is deleted here because they have no file of it is so on both sides.
        same = there.sha(id, here) or here.base.get(id)
        if id not in found and one.digest == same and (id in here.suspects or here.base.get(id) != same):
            found[id] = one
    return found | {id: None for id in here.lost & here.gone if there.lacks(id)}


def _is_settled(there: TheirSide, here: OurSide, pages: Mapping[str, str | None]) -> bool:
    """Whether all that is new of theirs was taken or refused, so that it need not be looked at again."""
    if there.problems:
        return False
    for id, blob in there.blobs.items():
        refused = here.refused.get(id)
        taken = here.base.get(id) == blob.sha or (id in here.ours and here.ours[id].digest == blob.sha)
        if id not in pages and not taken and (refused is None or refused.digest != blob.sha):
            return False
    for id in here.base:
        one = here.ours.get(id)
        deleted = one is not None and one.record.status == "deleted"
        if there.lacks(id) and id not in pages and one is not None and not deleted:
            return False
    return True


async def _take_over(
    meeting: Meeting, known: Known, there: TheirSide, here: OurSide, total: Synced
) -> tuple[Synced, OurSide]:
    read = await asyncio.to_thread(_read, meeting, known, there, here)
    removed = {id for id, one in here.ours.items() if id in here.base and _is_removed(one, there, here)}
    steps: list[Step] = []
    vanished = 0
    if removed or read.sides or read.refused:
        seen = here.total
        steps, strange, vanished = await meeting.memories.write(lambda tx: _apply(tx, meeting, read, removed, seen))
        read.problems.extend(f"{path_of(id)}: {_STRANGE}" for id in strange)
        here = await meeting.memories.read(lambda tx: sides.here(tx, meeting, there))
    total = _counted(total, steps, read.problems)
    return replace(total, run=meeting.run if total.run or vanished else None), here


# Reading


def _read(meeting: Meeting, known: Known, there: TheirSide, here: OurSide) -> _Read:
    """What is new of what others have written, checked. What cannot be read stays where it is, and is
    mentioned."""
    new: dict[str, Blob] = {}
    problems = [f"{path_of(id)}: {one.why}"[:300] for id, one in here.refused.items() if _still(id, there)]
    for id, blob in there.blobs.items():
        ours, refusal = here.ours.get(id), here.refused.get(id)
        if id in here.gone or (ours is not None and blob.sha in (ours.digest, here.base.get(id))):
            continue
        if refusal is not None and refusal[0::2] == (blob.sha, meeting.lens) and not sides.is_old(refusal, meeting):
            problems.append(f"{path_of(id)}: {refusal.why}"[:300])
        else:
            new[id] = blob
    pages = meeting.git.contents(new.values())
    origins = _origins(meeting, there, known.met) if pages else {}
    read = _Read({}, {}, _common(meeting, here, new), problems)
    for id, blob in new.items():
        page = pages.get(blob.sha)
        if page is None:
            problems.append(f"{path_of(id)}: more than can be read at once; it is left for the next sync")
            continue
        try:
            record = replace(_fit(page, id, meeting), origin=origins.get(path_of(id)) or _tip(meeting, there))
            read.sides[id] = Side(record, blob.sha)
        except (InvalidInput, Blocked) as trouble:
            problems.append(f"{path_of(id)}: {trouble}"[:300])
            read.refused[id] = Refusal(blob.sha, str(trouble)[:300], meeting.lens, meeting.now)
    return read


def _still(id: str, there: TheirSide) -> bool:
    """Whether a file that was refused is there as it was, and not listed again."""
    return not there.whole and id not in there.blobs and id not in there.absent and id not in there.unfit


def _fit(page: str, id: str, meeting: Meeting) -> Record:
    """Raises InvalidInput or Blocked for what cannot be taken."""
    given = serialization.from_page(page)
    if given.id != id:
        raise InvalidInput("it is not the memory that its name says")
    if given.domain != "project":
        raise InvalidInput("it does not belong to a project")
    given = export_import.screened(replace(given, project=None), meeting.screen, meeting.screen)
    return serialization.unpacked(given, meeting.now, project=meeting.memories.project)


def _common(meeting: Meeting, here: OurSide, new: Iterable[str]) -> dict[str, Record]:
    """The files that both had of what both have changed, as far as git still has them."""
    both = [id for id in new if id in here.ours and id in here.base and here.ours[id].digest != here.base[id]]
    pages = meeting.git.contents(Blob(here.base[id], 0) for id in both)
    found: dict[str, Record] = {}
    for id in both:
        try:
            found[here.base[id]] = _fit(pages[here.base[id]], id, meeting)
        except (KeyError, InvalidInput, Blocked):
            continue
    return found


def _origins(meeting: Meeting, there: TheirSide, met: str | None) -> dict[str, str]:
    try:
        found = meeting.git.origins(there.tip or "", met, FOLDER)
    except SyncFailed:  # a past without end
        return {}
    return {path: _origin(meeting, said) for path, said in found.items()}


def _origin(meeting: Meeting, said: str) -> str:
    """On one line, and without what is not to be stored: others have chosen their names."""
    plain = "".join(letter for letter in said if unicodedata.category(letter)[0] != "C")
    author, _, commit = plain.rpartition(" ")
    # Where addresses are blocked, the name alone still says who it was.
    forms = (plain, f"{_ADDRESS.sub('', author)} {commit}", commit)
    plain = next((passed for form in forms if (passed := _passed(meeting, form)) is not None), commit)
    return texts.storable(f"{meeting.remote}: {' '.join(plain.split())[-LONGEST_ORIGIN:]}")


def _passed(meeting: Meeting, text: str) -> str | None:
    """Return the text as it may be stored, None if it may not."""
    try:
        return meeting.screen(text)[0]
    except Blocked:
        return None


def _tip(meeting: Meeting, there: TheirSide) -> str:
    return f"{meeting.remote}: {(there.tip or '')[:12]}"


def _met(
    tx: Transaction,
    place: str,
    agreed: Mapping[str, Side | None],
    vanished: Iterable[str],
    tip: str | None,
    taken: str | None,
) -> None:
    """From now on this is what both have; None for what they do not have any more. `vanished` are files that were
    refused, and went away."""
    rows = [_row(place, id, one) for id, one in agreed.items()]
    tx.many("delete from memory_synced where place = :place and memory = :memory", [_key(row) for row in rows])
    _insert(tx, [row for row in rows if row["digest"] is not None])
    stale = [{"place": place, "memory": id} for id in vanished]
    tx.many("delete from memory_refused where place = :place and memory = :memory", stale)
    tx.run("delete from memory_meeting where place = :place", {"place": place})
    if tip is not None:
        said = {"place": place, "tip": tip, "taken": taken}
        tx.run("insert into memory_meeting (place, tip, taken) values (:place, :tip, :taken)", said)


def _row(place: str, id: str, one: Side | None) -> dict[str, Any]:
    if one is None:
        return {"place": place, "memory": id, "digest": None}
    record = one.record
    stamp = {"version": record.version, "updated_at": record.updated_at, "status": record.status}
    return {"place": place, "memory": id, "digest": one.digest, **stamp}


def _key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"place": row["place"], "memory": row["memory"]}


def _insert(tx: Transaction, rows: list[dict[str, Any]]) -> None:
    tx.many(
        "insert into memory_synced (place, memory, digest, version, updated_at, status) "
        "values (:place, :memory, :digest, :version, :updated_at, :status)",
        rows,
    )


# Taking over

_STRANGE = "another memory here has this id"


def _is_removed(one: Side, there: TheirSide, here: OurSide) -> bool:
    id = one.record.id
    return there.removed(id) and one.digest == here.base.get(id) and one.record.status != "deleted"


class _Applied(NamedTuple):
    """What was done, the ids that belong to something else here (a memory of the user's, or of another project), and
    how many memories cannot be seen any more."""

    steps: list[Step]
    strange: list[str]
    vanished: int


def _apply(tx: Transaction, meeting: Meeting, read: _Read, removed: set[str], seen: int) -> _Applied:
    """All of it is looked at again: it may have been changed meanwhile."""
    ids = [*read.sides, *removed]
    project, values = meeting.memories.project, {"ids": ids, "place": meeting.place}
    known = records.fetch(tx, ids)
    ours = {
        id: side(one, meeting.git) for id, one in known.items() if one.domain == "project" and one.project == project
    }
    sql = "select memory, digest from memory_synced where place = :place and memory in :ids"
    base = dict(tx.all(tuple[str, str], sql, values))
    gone = set(tx.all(str, "select memory from memory_gone where memory in :ids", {"ids": ids}))
    strange = sorted(known.keys() & read.sides.keys() - ours.keys())
    steps = [merge.removed(ours.get(id), base.get(id), meeting.now) for id in sorted(removed)]
    steps += [
        merge.taken(ours.get(id), side, base.get(id), read.common.get(base.get(id, "")))
        for id, side in sorted(read.sides.items())
        if id not in strange and id not in gone
    ]
    todo = [step for step in steps if step is not None]
    vanishing = sum(step.hides(ours[step.id].record, meeting.now) for step in todo if step.id in ours)
    _check(vanishing, seen, meeting)
    unseen = {"version": None, "updated_at": None, "status": None}
    rows: list[dict[str, Any]] = []
    for step in todo:
        after = _take(tx, step, ours.get(step.id), meeting)
        # What is deleted here because it is not there is known to be so, until one of the two changes.
        digest = step.theirs or side(after, meeting.git).digest
        rows.append({"place": meeting.place, "memory": step.id, "digest": digest, **unseen})
    tx.many("delete from memory_synced where place = :place and memory = :memory", [_key(row) for row in rows])
    _insert(tx, rows)
    refused = dict(read.refused)
    for id in strange:
        refused[id] = Refusal(read.sides[id].digest, _STRANGE, meeting.lens, meeting.now)
    _refuse(tx, meeting.place, refused)
    return _Applied(todo, strange, vanishing)


def _check(count: int, seen: int, meeting: Meeting) -> None:
    """Raises SyncFailed where more would vanish than is likely to be meant."""
    if count > 1 and (count > MOST_VANISHING or count * VANISHING_SHARE > seen) and not meeting.confirm:
        raise SyncFailed(
            f"With this sync {count} of {seen} memories would be deleted here, because others have removed them. "
            "Nothing was changed. Ask the user; if that is meant, call it again with confirm=true. What was deleted so "
            "can be brought back with undo.",
            vanishing=count,
            memories=seen,
        )


def _refuse(tx: Transaction, place: str, refused: Mapping[str, Refusal]) -> None:
    rows = [{"place": place, "memory": id, **one._asdict()} for id, one in refused.items()]
    tx.many("delete from memory_refused where place = :place and memory = :memory", rows)
    tx.many(
        "insert into memory_refused (place, memory, digest, why, lens, at) "
        "values (:place, :memory, :digest, :why, :lens, :at)",
        rows,
    )


def _take(tx: Transaction, step: Step, ours: Side | None, meeting: Meeting) -> Record:
    if ours is None:
        mutations.insert(tx, [step.after])
        return step.after
    before, who, now = ours.record, meeting.who, meeting.now
    if step.clash is not None and step.other is not None:
        # Whichever side wins, what the other had written is in the history.
        lost = replace(step.other, updated_at=before.updated_at)
        before = mutations.change(tx, before, lost, "synced", who=who, version=lost.version, at=now, reason="theirs")
    reason = _reason(meeting.run) if step.hides(ours.record, now) else step.what
    after = mutations.change(
        tx, before, step.after, "synced", who=who, version=step.after.version, at=now, reason=reason
    )
    if step.clash is not None:
        why = f"both sides changed {', '.join(step.clash.fields)}; the one that lost is in its history"
        records.disagree(tx, step.id, [(step.id, why)], now)
    return after


# Sending


def _wanted(there: TheirSide, here: OurSide, *, push_only: bool) -> dict[str, str | None]:
    """The files that are to be written, by memory, and None for those that are to be taken away. What is theirs and
    could not be read is left alone; what was erased here is not, whatever has become of it there."""
    pages: dict[str, str | None] = {}
    for id, one in here.ours.items():
        sha, base = there.sha(id, here), here.base.get(id)
        if sha is None:
            # They need not know of the deletion of what they do not have; and what was removed there is not sent again.
            waits = one.record.status == "deleted" or (one.digest == base and there.removed(id))
        else:
            refused = here.refused.get(id)
            left = refused is not None and refused.digest == sha and one.digest == base
            # What both have changed waits until it has been fetched.
            waits = one.digest == sha or left or (push_only and base not in (sha, None))
        if not waits:
            pages[id] = merge.shared(one.record)
    theirs = here.lost.union(there.blobs)
    erased = [id for id in theirs if id not in here.ours and id in here.withdrawn and there.sha(id, here) is not None]
    return pages | dict.fromkeys(erased)


def _send(meeting: Meeting, there: TheirSide, pages: Mapping[str, str | None]) -> str | None:
    """The commit that the remote has taken; None where another clone was quicker."""
    git, mine = meeting.git, f"{meeting.tracking}-{os.urandom(6).hex()}"
    message = f"{len(pages)} memories"
    files = {path_of(id): page for id, page in pages.items()}
    erased = [id for id, page in pages.items() if page is None]
    files |= {tombstone_of(id): _GONE_TEXT for id in erased}
    buried = (id for id, page in pages.items() if page is not None and (id in there.gone or not there.whole))
    files |= {tombstone_of(id): None for id in buried}
    try:
        commit = git.write(files, message, there.tip, mine)
        if erased:
            # What was erased would still be in the past.
            commit = git.alone(commit, message, mine)
        if not git.push(meeting.remote, commit, REF, there.tip):
            return None
        git.set(meeting.tracking, commit)
        return commit
    finally:
        git.forget(mine)


def _counted(total: Synced, steps: list[Step], problems: list[str]) -> Synced:
    counts: dict[str, Any] = {
        name: getattr(total, name) + sum(one.what == what for one in steps)
        for name, what in (("added", "add"), ("updated", "update"), ("removed", "remove"), ("merged", "merge"))
    }
    clashes = [one.clash for one in steps if one.clash is not None]
    return replace(
        total,
        **counts,
        conflicts=[*total.conflicts, *clashes][:MOST_LISTED],
        problems=[*total.problems, *problems][:MOST_LISTED],
    )
