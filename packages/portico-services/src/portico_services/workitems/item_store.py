"""Work item store: all operations on work items in a database, independent of any protocol.

    async with Database(url) as database:
        items = WorkItemStore(database)
        await items.open()
        made = await items.create(WorkItemDraft(description="Fix the parser"))
        mine = await items.next("ann", lease=600)
        await items.complete(mine.id, "It was a missing comma", worker="ann")

Each change is one transaction: it is applied completely or raises an error and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from portico.errors import StoreError
from portico.extend import Database, Transaction
from portico_services import git_project, text as texts, timestamps
from portico_services.workitems import claims, dependencies, edits, listing, records, text_index, validation
from portico_services.workitems.edits import DeletionResult, EditContext, WorkItemChanges, WorkItemDraft
from portico_services.workitems.errors import DependencyCycle, InvalidWorkItem, WorkItemError, WorkItemNotFound
from portico_services.workitems.ids import IdGenerator
from portico_services.workitems.listing import ItemPage, ItemTree, ListQuery
from portico_services.workitems.query_plan import TextFilter
from portico_services.workitems.records import WorkItem, WorkItemEvent, WorkItemNote
from portico_services.workitems.validation import parse_id

T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
# Not "tasks", which is the name of the protocol's tasks.
MIGRATION_HISTORY = "work_items"
STORE_LOCK = "portico work items"
MAX_LEASE_SECONDS = 30 * 86_400
MAX_HISTORY_EVENTS = 1000
MAX_SHOWN_DEPENDENTS = 100


class BlockerInfo(Struct, frozen=True, kw_only=True):
    """Blockers of a task, and the tasks it blocks."""

    item: WorkItem
    blocked_by: list[WorkItem]
    # Blockers of its ancestors.
    inherited: list[WorkItem]
    blocks: list[WorkItem]


class WorkItemContext(Struct, frozen=True, kw_only=True):
    """Information about a task that is not in its row: its blockers and newest notes."""

    blocked_by: list[str]
    notes: list[WorkItemNote]
    # Total number of notes.
    noted: int


class StatusCounts(Struct, frozen=True, kw_only=True):
    """Numbers of tasks by status, and of ready and blocked ones."""

    pending: int
    in_progress: int
    completed: int
    failed: int
    ready: int
    blocked: int


class WorkItemHistory(Struct, frozen=True, kw_only=True):
    """History of a task. `item` is None if the task was deleted."""

    item: WorkItem | None
    events: list[WorkItemEvent]


class EditOptions(TypedDict, total=False):
    """Actor and reason of a change, the worker that claims to hold the task, and the version it has read."""

    who: str
    reason: str
    worker: str | None
    expected_version: int | None


class WorkItemStore:
    """Work items in a database.

    `project` is the default project of all calls; empty means tasks without a project.
    """

    def __init__(
        self,
        database: Database,
        *,
        project: str = "",
        ids: IdGenerator | None = None,
        clock: Callable[[], int] = timestamps.now_ms,
    ) -> None:
        self.database = database
        self.project = git_project.normalize_project_name(project)
        self._clock = clock
        self._ids = ids or IdGenerator(clock)

    async def open(self) -> None:
        """Migrate the schema."""
        await self.database.migrate(MIGRATION_HISTORY, MIGRATIONS)

    def for_project(self, project: str | None) -> WorkItemStore:
        """Return a view of the store for another project; None returns this one."""
        if project is None:
            return self
        other = copy(self)
        other.project = validation.validate_project_filter(project)
        return other

    async def index_pending(self) -> None:
        """Index all queued tasks. Until then queries read the queued tasks directly and find the same."""
        while await self._write(text_index.index_pending, alone=False):
            pass

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        try:
            return await self.database.read(fn)
        except StoreError as failure:
            raise store_error(failure) from failure

    async def _write(self, fn: Callable[[Transaction], T], *, alone: bool = True) -> T:
        """Run a write transaction.

        With `alone`, no other such transaction runs concurrently in any process. SQLite always works this way; on
        PostgreSQL, two changes could otherwise each be valid but together create an invalid state, such as a cycle.
        """

        def write(tx: Transaction) -> T:
            if alone:
                # Released at the end of the transaction, also when the process crashes.
                tx.advisory_lock(STORE_LOCK)
            return fn(tx)

        try:
            # `read committed` sees the changes that others made while this one waited for the lock; a stricter
            # level would raise a serialization conflict and retry.
            return await self.database.write(write, isolation="read committed")
        except StoreError as failure:
            raise store_error(failure) from failure

    # Creating.

    async def create(self, draft: WorkItemDraft, *, who: str = "") -> WorkItem:
        """Create a task and return it."""
        item = edits.build_item(draft, self._ids.next_id(), self._clock(), who, self._project)
        # A task without parent and blockers cannot conflict with other changes.
        # The store-wide lock is only taken if it is needed: creating single tasks should scale with the number of
        # writers.
        alone = draft.parent_id is not None or bool(draft.blocked_by)
        return await self._write(lambda tx: edits.create(tx, item, draft.blocked_by), alone=alone)

    async def create_batch(self, drafts: Sequence[WorkItemDraft], *, who: str = "") -> list[WorkItem]:
        """Create several tasks in one transaction, all or none. They can refer to each other by `ref`."""
        drafts_with_ids = [(draft, self._ids.next_id()) for draft in drafts]
        # The caller does not know these ids, and they will not exist if the batch is rejected, so errors use refs or
        # positions.
        names = {id: draft.ref or f"tasks[{at}]" for at, (draft, id) in enumerate(drafts_with_ids)}
        pairs = []
        for draft, id in edits.resolve_refs(drafts_with_ids):
            try:
                pairs.append((edits.build_item(draft, id, self._clock(), who, self._project), draft.blocked_by))
            except InvalidWorkItem as wrong:
                raise InvalidWorkItem(f"{names[id]}: {wrong}") from None
        try:
            by_id = {draft.id: draft for draft in await self._write(lambda tx: edits.create_batch(tx, pairs))}
        except DependencyCycle as circle:
            raise DependencyCycle([names.get(id, id) for id in circle.path]) from None
        except WorkItemNotFound as missing:
            raise WorkItemNotFound(missing.details["id"], ", and none of these has that ref") from None
        return [by_id[id] for _, id in drafts_with_ids]

    @property
    def _project(self) -> str:
        return validation.validate_project(self.project)

    # Reading.

    async def resolve_id(self, text: str) -> str:
        """Return the id for an id or a unique part of one."""
        return await self.read(lambda tx: records.resolve_id(tx, text))

    async def get(self, id: str) -> WorkItem:
        """Return a task. Raises `WorkItemNotFound`."""
        return await self.read(lambda tx: records.get(tx, parse_id(id)))

    async def list_page(self, query: ListQuery, *, limit: int = 50, cursor: str | None = None) -> ItemPage:
        """Return a page of tasks. The project of `query` is ignored: it is that of the store, or of the parent."""

        def fetch(tx: Transaction) -> ItemPage:
            scoped = replace(query, project=self.project)
            if query.parent_id:
                parent = records.get(tx, parse_id(query.parent_id))
                scoped = replace(query, parent_id=parent.id, project=parent.project)
            return listing.list_page(tx, scoped, limit, cursor, self._clock())

        return await self.read(fetch)

    async def list_ready(self, limit: int = 50) -> list[WorkItem]:
        """Return tasks that can be started, in the order in which they are claimed."""
        return await self.read(lambda tx: listing.list_ready(tx, self.project, limit))

    async def list_finished(self, status: str, *, within: float, limit: int = 50) -> list[WorkItem]:
        """Return the tasks completed or failed within the last `within` seconds."""
        since = self._clock() - int(within * timestamps.MS_PER_SECOND)
        return await self.read(lambda tx: listing.list_finished(tx, self.project, status, since, limit))

    async def tree(self, id: str | None = None, *, open_only: bool = False) -> ItemTree:
        """Return a task with its descendants, or all tasks."""
        root = None if id is None else parse_id(id)
        return await self.read(lambda tx: listing.load_tree(tx, root, open_only=open_only, project=self.project))

    async def get_blockers(self, id: str) -> BlockerInfo:
        """Return the blockers of a task and its ancestors, and the tasks it blocks."""

        def fetch(tx: Transaction) -> BlockerInfo:
            item = records.get(tx, parse_id(id))
            above = dependencies.load_blockers(tx, [item.id, *dependencies.ancestors(tx, item.parent_id)])
            own = above.pop(item.id)
            others = [blocker for blockers in above.values() for blocker in blockers]
            blocks = dependencies.load_dependents(tx, item.id, MAX_SHOWN_DEPENDENTS)
            result = records.fetch(tx, [*own, *others, *blocks])
            return BlockerInfo(
                item=item,
                blocked_by=[result[entry] for entry in own],
                inherited=[result[entry] for entry in dict.fromkeys(others)][:MAX_SHOWN_DEPENDENTS],
                blocks=[result[entry] for entry in blocks],
            )

        return await self.read(fetch)

    async def get_context(self, id: str, notes: int = 0) -> WorkItemContext:
        """Return the blockers of a task and up to `notes` of its newest notes."""

        def fetch(tx: Transaction) -> WorkItemContext:
            newest = records.list_notes(tx, id, notes)
            return WorkItemContext(
                blocked_by=dependencies.load_blockers(tx, [id])[id],
                notes=newest,
                # If fewer notes than requested exist, their number is known already.
                noted=records.count_notes(tx, id) if len(newest) == notes else len(newest),
            )

        return await self.read(fetch)

    async def projects(self) -> list[str]:
        """Return the names of the projects, at most MAX_PROJECTS; empty stands for tasks without a project."""
        return await self.read(lambda tx: records.list_projects(tx, listing.MAX_PROJECTS))

    async def elsewhere(self) -> dict[str, int]:
        """Return the number of tasks of each other project if this project has none."""
        return await self.read(lambda tx: listing.elsewhere(tx, self.project))

    async def count(self, query: ListQuery) -> int:
        """Count the tasks that match a query."""
        query = replace(query, project=self.project)
        return await self.read(lambda tx: listing.count_items(tx, query, self._clock()))

    async def history(self, id: str, limit: int = 50) -> WorkItemHistory:
        """Return the history of a task, also of a deleted one. Raises `WorkItemNotFound`."""
        if not 1 <= limit <= MAX_HISTORY_EVENTS:
            raise InvalidWorkItem(f"limit must be between 1 and {MAX_HISTORY_EVENTS:,}, got {limit}.")

        def fetch(tx: Transaction) -> WorkItemHistory:
            item = records.fetch(tx, [parse_id(id)]).get(parse_id(id))
            events = records.history(tx, parse_id(id), limit)
            if item is None and not events:
                raise WorkItemNotFound(id)
            return WorkItemHistory(item=item, events=events)

        return await self.read(fetch)

    async def counts(self) -> StatusCounts:
        """Return the numbers of tasks by status."""

        def fetch(tx: Transaction) -> StatusCounts:
            of = partial(ListQuery, project=self.project)
            by_status = {
                status: listing.count_items(tx, of(status=status))
                for status in ("pending", "in_progress", "completed", "failed")
            }
            ready, blocked = listing.count_items(tx, of(ready=True)), listing.count_items(tx, of(blocked=True))
            return StatusCounts(**by_status, ready=ready, blocked=blocked)

        return await self.read(fetch)

    # Changing.

    async def update(
        self, id: str, changes: WorkItemChanges, *, lease: float | None = None, **by: Unpack[EditOptions]
    ) -> WorkItem:
        """Change a task and return it. With `lease`, the worker's claim lasts this many seconds from now."""
        return (await self.change(id, changes, lease=lease, **by))[1]

    async def change(
        self, id: str, changes: WorkItemChanges, *, lease: float | None = None, **by: Unpack[EditOptions]
    ) -> tuple[WorkItem, WorkItem]:
        """Change a task and return it as it was before and after."""
        change = partial(
            edits.update, id=parse_id(id), changes=edits.validate_changes(changes), lease=_validate_lease(lease)
        )
        # Validated before the transaction begins, so that invalid input takes no lock.
        edit = self._edit(**by)
        return await self._write(lambda tx: (records.get(tx, parse_id(id)), change(tx, edit=edit)))

    async def add_note(self, id: str, text: str, **by: Unpack[EditOptions]) -> WorkItem:
        """Append a note to a task."""
        text = validation.validate_note(text)
        return await self._write(
            partial(edits.add_note, id=parse_id(id), text=text, edit=self._edit(**by)), alone=False
        )

    async def complete(self, id: str, result: str | None = None, **by: Unpack[EditOptions]) -> WorkItem:
        """Complete a task. Repeating the call has no effect, unless it has another result, which is an error."""
        result = None if result is None else validation.validate_long_text(result, "The result")
        return await self._write(partial(edits.complete, id=parse_id(id), result=result, edit=self._edit(**by)))

    async def delete(
        self,
        id: str,
        *,
        children: Literal["refuse", "delete", "keep"] = "refuse",
        dry_run: bool = False,
        **by: Unpack[EditOptions],
    ) -> DeletionResult:
        """Delete a task. `dry_run` runs the deletion and rolls it back."""
        delete = partial(edits.delete, id=parse_id(id), children=children, edit=self._edit(**by))
        if not dry_run:
            return await self._write(delete)
        try:
            # The real deletion in a transaction that is rolled back: the preview can never differ from the deletion.
            await self._write(partial(_dry_run, delete))
        except _DryRunRollback as done:
            return done.deleted
        raise AssertionError("a rehearsal has no other end")

    async def block(self, id: str, blocker: str, **by: Unpack[EditOptions]) -> tuple[WorkItem, bool]:
        """Add a blocker to a task; return the task and whether the blocker is new."""
        return await self._write(
            partial(edits.add_blocker, id=parse_id(id), blocker=parse_id(blocker), edit=self._edit(**by))
        )

    async def unblock(self, id: str, blocker: str, **by: Unpack[EditOptions]) -> tuple[WorkItem, bool]:
        """Remove a blocker from a task; return the task and whether it was blocked by it."""
        return await self._write(
            partial(edits.remove_blocker, id=parse_id(id), blocker=parse_id(blocker), edit=self._edit(**by))
        )

    def _edit(
        self, *, who: str = "", reason: str = "", worker: str | None = None, expected_version: int | None = None
    ) -> EditContext:
        reason = validation.check_length(
            texts.replace_unstorable(reason), "The reason", validation.MAX_DESCRIPTION_CHARS
        )
        worker = validation.validate_worker(worker)
        return EditContext(now=self._clock(), who=who, reason=reason, worker=worker, version=expected_version)

    # Claiming.

    async def next(
        self,
        worker: str,
        *,
        lease: float | None = None,
        who: str = "",
        parent_id: str | None = None,
        query: str | None = None,
        labels: Sequence[str] = (),
    ) -> WorkItem | None:
        """Claim the most urgent task that can be started for this worker; on a tie, the earliest due, then the oldest.

        `parent_id` limits it to descendants of a task, `query` to tasks that contain all words, and `labels` to tasks
        with all labels. Returns None if there is none.
        """
        name, length = validation.validate_worker(worker), _validate_lease(lease)
        if name is None:
            raise InvalidWorkItem("Who is to work on it? A worker needs a name.")
        above = None if parent_id is None else parse_id(parent_id)
        scope = TextFilter(above=above, query=query or "", labels=validation.normalize_labels(labels))
        claim = partial(claims.claim_next, worker=name, lease=length, who=who, scope=scope)
        return await self._write(
            lambda tx: claim(tx, now=self._clock(), projects=listing.matching_projects(tx, self.project)), alone=False
        )

    async def take_back(self) -> list[WorkItem]:
        """Set tasks with an expired lease back to pending."""
        # A read without a lock. Every server of a store polls here, and usually no lease has expired.
        end = await self.next_end()
        if end is None or end > self._clock():
            return []
        return await self._write(lambda tx: claims.release_expired_leases(tx, self._clock()), alone=False)

    async def next_end(self) -> int | None:
        """Return the time at which the first lease expires, in milliseconds."""
        return await self.read(claims.next_lease_expiry)


class _DryRunRollback(Exception):
    """Rolls back a dry run."""

    def __init__(self, deleted: DeletionResult) -> None:
        self.deleted = deleted


def _dry_run(delete: Callable[[Transaction], DeletionResult], tx: Transaction) -> Any:
    raise _DryRunRollback(replace(delete(tx), dry_run=True))


def _validate_lease(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 1 <= seconds <= MAX_LEASE_SECONDS:
        raise InvalidWorkItem(f"lease must be between 1 and {MAX_LEASE_SECONDS:,} seconds, got {seconds:g}.")
    return int(seconds * timestamps.MS_PER_SECOND)


def store_error(failure: StoreError) -> WorkItemError:
    """Return the error for the client, without the paths and addresses that the database error contains."""
    return WorkItemError(
        f"The tasks could not be stored or read: {failure.public_message}.",
        brief=f"storage error: {failure.public_message}",
        code="storage_error",
        retryable=failure.retryable,
    )
