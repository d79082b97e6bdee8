"""Everything that can be done with work items in a database, without any protocol.

async with Database(url) as database:
    items = WorkItems(database)
    await items.open()
    made = await items.create(TaskDraft(description="Fix the parser"))
    mine = await items.next("ann", lease=600)
    await items.complete(mine.id, "It was a missing comma", worker="ann")

Each change is one transaction: it happens wholly, or it is refused and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from portico.extend import Database, StoreError, Transaction
from portico_services import git_project, timestamps
from portico_services import text as texts
from portico_services.workitems import claims, dependencies, edits, listing, records, text_index, validation
from portico_services.workitems.edits import Changes, Deletion, Edit, TaskDraft
from portico_services.workitems.errors import Circle, InvalidTask, NoSuchTask, TaskStoreFailed
from portico_services.workitems.ids import Ids
from portico_services.workitems.listing import Page, Tree, Wanted
from portico_services.workitems.query_plan import Narrowing
from portico_services.workitems.records import Item, TaskEvent, TaskNote
from portico_services.workitems.validation import id_in

T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
# Not "tasks", which are the protocol's.
HISTORY = "work_items"
LOCK = "portico work items"
LONGEST_LEASE = 30 * 86_400
MOST_OF_HISTORY = 1000
MOST_SHOWN = 100


class Waiting(Struct, frozen=True, kw_only=True):
    """What a task waits for, and what waits for it."""

    item: Item
    blocked_by: list[Item]
    # Of what it is a part of.
    inherited: list[Item]
    blocks: list[Item]


class TaskBackground(Struct, frozen=True, kw_only=True):
    """What is known of a task that is not in its row: what it waits for, and the newest notes."""

    blocked_by: list[str]
    notes: list[TaskNote]
    # How many notes there are in all.
    noted: int


class Counts(Struct, frozen=True, kw_only=True):
    pending: int
    in_progress: int
    completed: int
    failed: int
    ready: int
    blocked: int


class ItemHistory(Struct, frozen=True, kw_only=True):
    """What was done to a task. There is no item if it was deleted."""

    item: Item | None
    events: list[TaskEvent]


class By(TypedDict, total=False):
    """Who makes a change and why, which worker says that the task is theirs, and which version they have read."""

    who: str
    reason: str
    worker: str | None
    expected_version: int | None


class WorkItems:
    """`project` is the list that is meant unless a call names another; empty are those of none."""

    def __init__(
        self,
        database: Database,
        *,
        project: str = "",
        ids: Ids | None = None,
        clock: Callable[[], int] = timestamps.now,
    ) -> None:
        self.database = database
        self.project = git_project.spelled(project)
        self._clock = clock
        self._ids = ids or Ids(clock)

    async def open(self) -> None:
        await self.database.migrate(HISTORY, MIGRATIONS)

    def of(self, project: str | None) -> WorkItems:
        """The same tasks, seen from another project; None: from this one."""
        if project is None:
            return self
        other = copy(self)
        other.project = validation.project(project)
        return other

    async def index_all(self) -> None:
        """Bring the index up to date. Until then a query looks at what is not in it, and finds the same."""
        while await self._write(text_index.work_off, alone=False):
            pass

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        try:
            return await self.database.read(fn)
        except StoreError as failure:
            raise refusal_of(failure) from failure

    async def _write(self, fn: Callable[[Transaction], T], *, alone: bool = True) -> T:
        """`alone`: no other such change happens meanwhile, in any process. That is how SQLite always is; PostgreSQL
        would otherwise let two changes pass each other that each look right and together are not."""

        def write(tx: Transaction) -> T:
            if alone:
                tx.lock(LOCK)
            return fn(tx)

        try:
            return await self.database.write(write, isolation="read committed")
        except StoreError as failure:
            raise refusal_of(failure) from failure

    # Making

    async def create(self, draft: TaskDraft, *, who: str = "") -> Item:
        item = edits.drafted(draft, self._ids.make(), self._clock(), who, self._home)
        # A task without parent and blockers cannot conflict with other changes.
        alone = draft.parent_id is not None or bool(draft.blocked_by)
        return await self._write(lambda tx: edits.create(tx, item, draft.blocked_by), alone=alone)

    async def create_all(self, drafts: Sequence[TaskDraft], *, who: str = "") -> list[Item]:
        """Many in one transaction, all of them or none. They may name one another by their `ref`."""
        given = [(one, self._ids.make()) for one in drafts]
        # No caller has their ids, and if one is refused there will be no such tasks.
        names = {id: one.ref or f"tasks[{at}]" for at, (one, id) in enumerate(given)}
        made = []
        for one, id in edits.resolved(given):
            try:
                made.append((edits.drafted(one, id, self._clock(), who, self._home), one.blocked_by))
            except InvalidTask as wrong:
                raise InvalidTask(f"{names[id]}: {wrong}") from None
        try:
            by_id = {one.id: one for one in await self._write(lambda tx: edits.create_all(tx, made))}
        except Circle as circle:
            raise Circle([names.get(id, id) for id in circle.path]) from None
        except NoSuchTask as missing:
            raise NoSuchTask(missing.details["id"], ", and none of these has that ref") from None
        return [by_id[id] for _, id in given]

    @property
    def _home(self) -> str:
        return validation.home(self.project)

    # Looking

    async def id(self, text: str) -> str:
        """The id that is meant by a part of one."""
        return await self.read(lambda tx: records.named(tx, text))

    async def get(self, id: str) -> Item:
        return await self.read(lambda tx: records.get(tx, id_in(id)))

    async def page(self, wanted: Wanted, *, limit: int = 50, cursor: str | None = None) -> Page:
        """`wanted` without a project: it is this one, or that of the parent."""

        def look(tx: Transaction) -> Page:
            asked = replace(wanted, project=self.project)
            if wanted.parent_id:
                parent = records.get(tx, id_in(wanted.parent_id))
                asked = replace(wanted, parent_id=parent.id, project=parent.project)
            return listing.page(tx, asked, limit, cursor, self._clock())

        return await self.read(look)

    async def ready(self, limit: int = 50) -> list[Item]:
        return await self.read(lambda tx: listing.ready(tx, self.project, limit))

    async def ended(self, status: str, *, within: float, limit: int = 50) -> list[Item]:
        """What was completed or failed within so many seconds."""
        since = self._clock() - int(within * timestamps.SECOND_MS)
        return await self.read(lambda tx: listing.ended(tx, self.project, status, since, limit))

    async def tree(self, id: str | None = None, *, open_only: bool = False) -> Tree:
        root = None if id is None else id_in(id)
        return await self.read(lambda tx: listing.tree(tx, root, open_only=open_only, project=self.project))

    async def waiting(self, id: str) -> Waiting:
        def look(tx: Transaction) -> Waiting:
            item = records.get(tx, id_in(id))
            above = dependencies.blockers_of(tx, [item.id, *dependencies.ancestors(tx, item.parent_id)])
            own = above.pop(item.id)
            others = [blocker for blockers in above.values() for blocker in blockers]
            blocks = dependencies.blocks(tx, item.id, MOST_SHOWN)
            found = records.fetch(tx, [*own, *others, *blocks])
            return Waiting(
                item=item,
                blocked_by=[found[one] for one in own],
                inherited=[found[one] for one in dict.fromkeys(others)][:MOST_SHOWN],
                blocks=[found[one] for one in blocks],
            )

        return await self.read(look)

    async def background(self, id: str, notes: int = 0) -> TaskBackground:
        """With so many of the notes."""

        def look(tx: Transaction) -> TaskBackground:
            newest = records.notes(tx, id, notes)
            return TaskBackground(
                blocked_by=dependencies.blockers_of(tx, [id])[id],
                notes=newest,
                noted=records.count_notes(tx, id) if len(newest) == notes else len(newest),
            )

        return await self.read(look)

    async def projects(self) -> list[str]:
        """The names of the lists there are, at most MOST_PROJECTS; empty is what stands in every one."""
        return await self.read(lambda tx: records.projects(tx, listing.MOST_PROJECTS))

    async def elsewhere(self) -> dict[str, int]:
        """Return the other lists and how many tasks each has, if the list of this project is empty."""
        return await self.read(lambda tx: listing.elsewhere(tx, self.project))

    async def count(self, wanted: Wanted) -> int:
        wanted = replace(wanted, project=self.project)
        return await self.read(lambda tx: listing.count(tx, wanted, self._clock()))

    async def history(self, id: str, limit: int = 50) -> ItemHistory:
        """Also of a task that is gone."""
        if not 1 <= limit <= MOST_OF_HISTORY:
            raise InvalidTask(f"limit is 1 to {MOST_OF_HISTORY:,}.")

        def look(tx: Transaction) -> ItemHistory:
            item = records.fetch(tx, [id_in(id)]).get(id_in(id))
            events = records.history(tx, id_in(id), limit)
            if item is None and not events:
                raise NoSuchTask(id)
            return ItemHistory(item=item, events=events)

        return await self.read(look)

    async def counts(self) -> Counts:
        def look(tx: Transaction) -> Counts:
            of = partial(Wanted, project=self.project)
            by_status = {
                status: listing.count(tx, of(status=status))
                for status in ("pending", "in_progress", "completed", "failed")
            }
            ready, blocked = listing.count(tx, of(ready=True)), listing.count(tx, of(blocked=True))
            return Counts(**by_status, ready=ready, blocked=blocked)

        return await self.read(look)

    # Changing

    async def update(self, id: str, changes: Changes, *, lease: float | None = None, **by: Unpack[By]) -> Item:
        """Change a task and return it. With `lease` the worker's claim lasts so many seconds from now on."""
        return (await self.change(id, changes, lease=lease, **by))[1]

    async def change(
        self, id: str, changes: Changes, *, lease: float | None = None, **by: Unpack[By]
    ) -> tuple[Item, Item]:
        """Do the same, and return the task before and after."""
        change = partial(edits.update, id=id_in(id), changes=edits.checked(changes), lease=_lease(lease))
        edit = self._edit(**by)
        return await self._write(lambda tx: (records.get(tx, id_in(id)), change(tx, edit=edit)))

    async def add_note(self, id: str, text: str, **by: Unpack[By]) -> Item:
        text = validation.note(text)
        return await self._write(partial(edits.add_note, id=id_in(id), text=text, edit=self._edit(**by)), alone=False)

    async def complete(self, id: str, result: str | None = None, **by: Unpack[By]) -> Item:
        """Completed once, it stays as it is: to say so again is no mistake, unless the result is another."""
        result = None if result is None else validation.longer(result, "The result")
        return await self._write(partial(edits.complete, id=id_in(id), result=result, edit=self._edit(**by)))

    async def delete(
        self,
        id: str,
        *,
        children: Literal["refuse", "delete", "keep"] = "refuse",
        dry_run: bool = False,
        **by: Unpack[By],
    ) -> Deletion:
        delete = partial(edits.delete, id=id_in(id), children=children, edit=self._edit(**by))
        if not dry_run:
            return await self._write(delete)
        try:
            await self._write(partial(_rehearsed, delete))
        except _Rehearsed as done:
            return done.deleted
        raise AssertionError("a rehearsal has no other end")

    async def block(self, id: str, blocker: str, **by: Unpack[By]) -> tuple[Item, bool]:
        """Have a task wait for another; whether it did not already."""
        return await self._write(partial(edits.block, id=id_in(id), blocker=id_in(blocker), edit=self._edit(**by)))

    async def unblock(self, id: str, blocker: str, **by: Unpack[By]) -> tuple[Item, bool]:
        return await self._write(partial(edits.unblock, id=id_in(id), blocker=id_in(blocker), edit=self._edit(**by)))

    def _edit(
        self, *, who: str = "", reason: str = "", worker: str | None = None, expected_version: int | None = None
    ) -> Edit:
        reason = validation.bounded(texts.storable(reason), "The reason", validation.LONGEST_DESCRIPTION)
        worker = validation.name(worker)
        return Edit(now=self._clock(), who=who, reason=reason, worker=worker, version=expected_version)

    # Working

    async def next(
        self,
        worker: str,
        *,
        lease: float | None = None,
        who: str = "",
        parent_id: str | None = None,
        query: str | None = None,
        labels: Sequence[str] = (),
    ) -> Item | None:
        """The most urgent task that can be begun, of these the one that is due first, and then the oldest, claimed for
        this worker alone.

        With `parent_id` one that is below that task, with `query` one that all its words occur in, with `labels` one
        that has them all.
        """
        name, length = validation.name(worker), _lease(lease)
        if name is None:
            raise InvalidTask("Who is to work on it? A worker needs a name.")
        above = None if parent_id is None else id_in(parent_id)
        scope = Narrowing(above=above, query=query or "", labels=validation.labels(labels))
        claim = partial(claims.claim, worker=name, lease=length, who=who, scope=scope)
        return await self._write(
            lambda tx: claim(tx, now=self._clock(), projects=listing.projects(tx, self.project)), alone=False
        )

    async def take_back(self) -> list[Item]:
        """What workers did not finish before their leases ended is pending again."""
        end = await self.next_end()
        if end is None or end > self._clock():
            return []
        return await self._write(lambda tx: claims.take_back(tx, self._clock()), alone=False)

    async def next_end(self) -> int | None:
        """When the first lease ends, in milliseconds."""
        return await self.read(claims.next_end)


class _Rehearsed(Exception):
    """Undoes a transaction that was only to be looked at."""

    def __init__(self, deleted: Deletion) -> None:
        self.deleted = deleted


def _rehearsed(delete: Callable[[Transaction], Deletion], tx: Transaction) -> Any:
    raise _Rehearsed(replace(delete(tx), dry_run=True))


def _lease(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 1 <= seconds <= LONGEST_LEASE:
        raise InvalidTask(f"A lease is 1 to {LONGEST_LEASE:,} seconds.")
    return int(seconds * timestamps.SECOND_MS)


def refusal_of(failure: StoreError) -> TaskStoreFailed:
    """What a client is told of a failed store: without the paths and addresses that the store names."""
    return TaskStoreFailed(
        f"The tasks could not be stored or read: {failure.outward}.",
        brief=f"storage failed: {failure.outward}",
        retryable=failure.passing,
    )
