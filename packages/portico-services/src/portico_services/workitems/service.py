"""Work item service. Only this module and `resources` depend on the protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import asdict

from portico import Context
from portico.errors import StoreError
from portico.extend import Component, Event, LazyTool, validated_kwargs
from portico_services.database_service import DatabaseService, actor_name
from portico_services.project_resolver import ProjectResolver
from portico_services.workitems import records, results, validation
from portico_services.workitems.dependencies import MAX_BLOCKERS
from portico_services.workitems.edits import DEFAULT_PRIORITY, WorkItemChanges, WorkItemDraft
from portico_services.workitems.errors import WorkItemError, read_only
from portico_services.workitems.item_store import MAX_HISTORY_EVENTS, WorkItemStore, store_error
from portico_services.workitems.listing import MAX_CURSOR_CHARS, MAX_PAGE_ITEMS, ListQuery
from portico_services.workitems.maintenance import WorkItemMaintenance
from portico_services.workitems.parameters import (
    CONTEXT_META,
    DESCRIPTION_META,
    DUE_META,
    LABELS_META,
    MAX_ID_CHARS,
    PRIORITY_META,
    BlockedItemId,
    BlockerId,
    ExpectedVersion,
    ItemId,
    Label,
    LabelFilter,
    Lease,
    PlannedItem,
    Project,
    ProjectFilter,
    Reason,
    Result,
    Worker,
    id_parameter,
)
from portico_services.workitems.records import WorkItem
from portico_services.workitems.resources import URI_SCHEME, WorkItemResources
from portico_services.workitems.states import STATUSES, Status
from portico_services.workitems.validation import (
    MAX_LABELS,
    MAX_NAME_CHARS,
    MAX_NOTE_CHARS,
    MAX_PROJECT_CHARS,
    MAX_QUERY_CHARS,
)

LIST_NAMES = ("all", "ready", "blocked", *(f"status/{status}" for status in STATUSES))
# Long enough to replace polling, short enough for clients that give up on silent calls.
MAX_WAIT_SECONDS = 600.0
MAX_BATCH_ITEMS = 1000
MAX_NOTES_RETURNED = 200
# A deletion may remove thousands of tasks; one log message names only the first.
MAX_IDS_LOGGED = 5

READ_ONLY_HINTS = {"readOnlyHint": True, "openWorldHint": False}
WRITE_HINTS = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
IDEMPOTENT_HINTS = {**WRITE_HINTS, "idempotentHint": True}
DESTRUCTIVE_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


class WorkItemToolSpec(NamedTuple):
    """A tool: its name, annotations and short name."""

    name: str
    hints: Mapping[str, bool]
    # Name without "task", used after the prefix `tasks_`.
    cli_name: str
    version: str = "1.0.0"


class Tasks(DatabaseService[WorkItemStore]):
    """Work items for planning: `server.add(Tasks("tasks.db"))`.

    * `store`: path or URL of a SQLite or PostgreSQL database; `:memory:` is lost when the process ends.
    * `read_only`: reject every change.
    * `project`: default project of calls. By default it is derived from the client's roots, then from the git
      repository of `project_dir`, then from that directory.
    * `project_dir`: directory of that repository; by default the working directory of the server.
    """

    name = "tasks"
    requires_scopes = True
    topics = (records.TOPIC,)

    @validated_kwargs
    def __init__(
        self,
        store: str | os.PathLike[str] = ":memory:",
        *,
        read_only: bool = False,
        project: str | None = None,
        project_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(store, read_only=read_only)
        self._projects = ProjectResolver(project, project_dir)
        self._upkeep = WorkItemMaintenance()
        self._resources = WorkItemResources(self.store, self._store_for_call)

    async def _open_store(self, stack: AsyncExitStack) -> WorkItemStore:
        items = WorkItemStore(self._database, project=(await self._projects.resolve_default()).project)
        await items.open()
        if not self._read_only:
            self._start_background(stack, "work item leases", partial(self._upkeep.run_lease_expiry, items))
            self._start_background(stack, "work item index", partial(self._upkeep.run_indexer, items))
        return items

    async def _store_for_call(self, ctx: Context, project: str | None = None) -> WorkItemStore:
        """Return the store for the project of a call, or for the one it names.

        Calls that name a task use the store of the service itself, because ids are unique across projects.
        """
        return (await self.store()).for_project(await self._project(ctx, project))

    async def _writable_store_for_call(self, ctx: Context, project: str | None = None) -> WorkItemStore:
        return (await self.writable_store()).for_project(await self._project(ctx, project))

    async def _project(self, ctx: Context, named: str | None) -> str:
        return (await self._projects.resolve(ctx)).project if named is None else named

    def _store_error(self, failure: StoreError) -> WorkItemError:
        return store_error(failure)

    def _read_only_error(self) -> WorkItemError:
        return read_only()

    async def _on_change(self, store: WorkItemStore, event: Event) -> None:
        id, *lists = event.payload.split(" ")
        self._upkeep.on_change(lists if id else None)
        # An event without details stands for many changes, so every list may have changed.
        names = ["all", id, *map(_list_uri, lists)] if id else LIST_NAMES
        self._notify_subscribers(f"{URI_SCHEME}://{name}" for name in names)

    # Creating and changing.

    async def create_task(
        self,
        ctx: Context,
        description: Annotated[str, DESCRIPTION_META],
        parent_id: Annotated[str | None, id_parameter("Parent task")] = None,
        priority: Annotated[int, PRIORITY_META] = DEFAULT_PRIORITY,
        context: Annotated[str, CONTEXT_META] = "",
        blocked_by: Annotated[
            list[str] | None, Meta(max_length=MAX_BLOCKERS, description="Ids of tasks that must be completed first")
        ] = None,
        labels: Annotated[list[Label] | None, LABELS_META] = None,
        due: Annotated[str | None, DUE_META] = None,
        project: Project = None,
    ) -> results.WorkItemDetail:
        """Create a task: something to do now or later, by you or another worker.

        It can be a child of another task and can be blocked by others. For a whole plan use create_tasks. Returns the
        created task.
        """
        items = await self._writable_store_for_call(ctx, project)
        draft = WorkItemDraft(
            description=description,
            parent_id=parent_id,
            priority=priority,
            context=context,
            blocked_by=blocked_by or (),
            labels=labels or (),
            due=due,
        )
        item = await items.create(draft, who=actor_name(ctx))
        ctx.debug(f"Created {item.id}", URI_SCHEME)
        # A task without blockers has no context to load, which saves a read.
        return await results.load_detail(items, item) if blocked_by else results.to_detail(item, project=items.project)

    async def create_tasks(
        self,
        ctx: Context,
        tasks: Annotated[
            list[PlannedItem], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="Tasks, in any order")
        ],
        project: Project = None,
    ) -> results.CreateBatchResult:
        """Create several tasks in one transaction, e.g. a whole plan: all or none. Tasks refer to each other by
        `ref`.
        """
        items = await self._writable_store_for_call(ctx, project)
        lists = ("blocked_by", "labels")
        drafts = [
            WorkItemDraft(**{**asdict(task), **{name: getattr(task, name) or () for name in lists}}) for task in tasks
        ]
        created_items = await items.create_batch(drafts, who=actor_name(ctx))
        ctx.debug(f"Created {len(created_items)} tasks", URI_SCHEME)
        return results.to_batch_result(created_items, [task.ref for task in tasks])

    async def update_task(
        self,
        ctx: Context,
        id: ItemId,
        description: Annotated[str | None, DESCRIPTION_META] = None,
        priority: Annotated[int | None, PRIORITY_META] = None,
        status: Annotated[
            Status | None,
            "New status: pending -> in_progress, completed, failed; in_progress -> completed, failed, pending; "
            "completed or failed -> pending (reopen)",
        ] = None,
        context: Annotated[str | None, CONTEXT_META] = None,
        result: Result = None,
        parent_id: Annotated[str | None, Meta(max_length=MAX_ID_CHARS, description='New parent; "" for none')] = None,
        labels: Annotated[
            list[Label] | None, Meta(max_length=MAX_LABELS, description="New labels, replace the old list")
        ] = None,
        add_labels: Annotated[list[Label] | None, Meta(max_length=MAX_LABELS, description="Labels to add")] = None,
        remove_labels: Annotated[
            list[Label] | None, Meta(max_length=MAX_LABELS, description="Labels to remove")
        ] = None,
        due: Annotated[str | None, Meta(max_length=40, description='New due date; "" for none')] = None,
        project: Annotated[
            str | None,
            Meta(
                max_length=MAX_PROJECT_CHARS,
                description='Project to move the task and its children to; "" for all projects',
            ),
        ] = None,
        worker: Worker = None,
        lease: Lease = None,
        expected_version: ExpectedVersion = None,
        reason: Reason = "",
    ) -> results.WorkItemDetail:
        """Change the given fields of a task; previous values stay in its history.

        With worker and lease, renews a claim. To finish a task use complete_task.
        """
        items = await self.writable_store()
        changes = WorkItemChanges(
            description=description,
            priority=priority,
            status=status,
            context=context,
            result=result,
            parent_id=parent_id,
            project=project,
            due=due,
            labels=labels,
            add_labels=add_labels or (),
            remove_labels=remove_labels or (),
        )
        before, after = await items.change(
            id,
            changes,
            worker=worker,
            lease=lease,
            expected_version=expected_version,
            who=actor_name(ctx),
            reason=reason,
        )
        if before.status != after.status:
            ctx.info(f"{after.id} changed from {before.status} to {after.status}", URI_SCHEME)
        return await results.load_detail(items, after)

    async def delete_task(
        self,
        ctx: Context,
        id: ItemId,
        children: Annotated[
            Literal["refuse", "delete", "keep"],
            "If it has children: refuse (default), delete them, or keep them under its parent",
        ] = "refuse",
        dry_run: Annotated[bool, "Report what would be deleted and unblocked, without deleting"] = False,
        expected_version: ExpectedVersion = None,
        reason: Reason = "",
    ) -> results.DeleteItemResult:
        """Delete a task permanently and unblock its dependents; its history stays.

        Finished or abandoned tasks should be completed or set to failed instead.
        """
        items = await self.writable_store()
        removed = await items.delete(
            id,
            children=children,
            dry_run=dry_run,
            expected_version=expected_version,
            who=actor_name(ctx),
            reason=reason,
        )
        if not dry_run:
            ctx.info(
                f"Deleted {', '.join(removed.deleted[:MAX_IDS_LOGGED])}{_format_more(removed.deleted)}", URI_SCHEME
            )
        return results.to_delete_result(removed)

    # Reading.

    async def list_tasks(
        self,
        ctx: Context,
        status: Annotated[Status | None, "Status filter"] = None,
        parent_id: Annotated[
            str | None,
            Meta(max_length=MAX_ID_CHARS, description='Only children of this task; "" for top-level tasks'),
        ] = None,
        query: Annotated[
            str | None,
            Meta(max_length=MAX_QUERY_CHARS, description="Words that must all occur in description or context"),
        ] = None,
        blocked: Annotated[bool | None, "true: only blocked open tasks; false: only unblocked"] = None,
        labels: LabelFilter = None,
        worker: Annotated[
            str | None,
            Meta(max_length=MAX_NAME_CHARS, description='Only tasks that this worker has or had; "" for unclaimed'),
        ] = None,
        due_before: Annotated[
            str | None,
            Meta(
                max_length=40,
                description="Only open tasks due before this date, earliest first",
            ),
        ] = None,
        overdue: Annotated[bool, "Only overdue open tasks, earliest first"] = False,
        project: ProjectFilter = None,
        limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ITEMS, description="Maximum tasks")] = 50,
        cursor: Annotated[
            str | None,
            Meta(max_length=MAX_CURSOR_CHARS, description="`nextCursor` from the previous page"),
        ] = None,
    ) -> results.WorkItemPage:
        """List tasks, most urgent first, then newest. Descriptions may be truncated; get_task returns them in full.

        To take work, use next_task.
        """
        items = await self._store_for_call(ctx, project)
        list_query = ListQuery(
            status=status,
            parent_id=parent_id,
            query=query,
            blocked=blocked,
            labels=validation.normalize_labels(labels or ()),
            worker=None if worker is None else validation.validate_worker(worker) or "",
            due_before=None if due_before is None else validation.parse_timestamp(due_before),
            overdue=overdue,
        )
        page = await items.list_page(list_query, limit=limit, cursor=cursor)
        # An empty list is often the wrong project. Only local callers learn the names of other projects.
        elsewhere = await items.elsewhere() if not page.items and cursor is None and _is_local(ctx) else None
        return results.to_page(page, items.project, elsewhere)

    async def get_task(
        self,
        ctx: Context,
        id: ItemId,
        notes: Annotated[
            int, Meta(ge=0, le=MAX_NOTES_RETURNED, description="Number of newest notes to include")
        ] = results.DEFAULT_NOTES,
    ) -> results.WorkItemDetail:
        """Return one task in full: context, result, blockers and its newest notes."""
        items = await self.store()
        return await results.load_detail(items, await items.get(id), notes)

    async def task_tree(
        self,
        ctx: Context,
        id: Annotated[str | None, id_parameter("Root task; default: all")] = None,
        open_only: Annotated[bool, "Omit completed and failed tasks"] = False,
        project: ProjectFilter = None,
    ) -> results.WorkItemTree:
        """Return a task with all its descendants, depth first; `depth` gives the level."""
        items = await self.store() if id is not None else await self._store_for_call(ctx, project)
        tree = await items.tree(id, open_only=open_only)
        elsewhere = await items.elsewhere() if id is None and not tree.nodes and _is_local(ctx) else None
        return results.to_tree(tree, items.project, elsewhere)

    async def task_history(
        self,
        ctx: Context,
        id: ItemId,
        limit: Annotated[int, Meta(ge=1, le=MAX_HISTORY_EVENTS, description="Maximum number of changes")] = 50,
    ) -> results.WorkItemHistoryResult:
        """Return all changes of a task, newest first, with actor, time and reason. Works for deleted tasks too."""
        return results.to_history(id, await (await self.store()).history(id, limit), limit)

    # Blockers.

    async def add_blocker(
        self, ctx: Context, task_id: BlockedItemId, blocked_by_id: BlockerId
    ) -> results.BlockerChange:
        """Block a task until another is completed. Fails if this would create a cycle."""
        after, changed = await (await self.writable_store()).block(task_id, blocked_by_id, who=actor_name(ctx))
        return results.BlockerChange(
            task_id=after.id, blocked_by_id=blocked_by_id, changed=changed, blocked=after.blocked
        )

    async def remove_blocker(
        self, ctx: Context, task_id: BlockedItemId, blocked_by_id: BlockerId
    ) -> results.BlockerChange:
        """Remove a blocker from a task."""
        after, changed = await (await self.writable_store()).unblock(task_id, blocked_by_id, who=actor_name(ctx))
        return results.BlockerChange(
            task_id=after.id, blocked_by_id=blocked_by_id, changed=changed, blocked=after.blocked
        )

    async def get_blockers(self, ctx: Context, task_id: BlockedItemId) -> results.BlockerList:
        """Return the blockers of a task, its own and those inherited from its parents, and the tasks it blocks."""
        items = await self.store()
        return results.to_blocker_list(await items.get_blockers(task_id), items.project)

    # Claiming and completing.

    async def next_task(
        self,
        ctx: Context,
        worker: Annotated[
            str | None,
            Meta(
                max_length=MAX_NAME_CHARS,
                description="Your worker name; default: the client name",
            ),
        ] = None,
        lease: Lease = None,
        parent_id: Annotated[str | None, id_parameter("Only descendants of this task")] = None,
        query: Annotated[
            str | None,
            Meta(max_length=MAX_QUERY_CHARS, description="Words that must all occur"),
        ] = None,
        labels: LabelFilter = None,
        project: Project = None,
        wait: Annotated[
            float,
            Meta(
                ge=0,
                le=MAX_WAIT_SECONDS,
                description="Seconds to wait for work instead of polling; default 0",
            ),
        ] = 0,
    ) -> results.ClaimResult:
        """Claim the most urgent unblocked task and set it to in_progress; no other worker gets it.

        Ties go to the earliest due, then the oldest. Call complete_task when done, or update_task with failed or
        pending to give it up.
        """
        items = await self._writable_store_for_call(ctx, project)
        actor = actor_name(ctx)
        take = partial(
            items.next,
            worker or actor or "unnamed",
            lease=lease,
            who=actor,
            parent_id=parent_id,
            query=query,
            labels=labels or (),
        )
        claimed = await self._upkeep.wait_for_item(partial(_claim_for_caller, items, take), wait)
        if claimed is None:
            return results.no_work_result(
                await items.counts(), await items.elsewhere() if _is_local(ctx) else None, items.project
            )
        ctx.info(f"{claimed.worker} took {claimed.id}", URI_SCHEME)
        return results.ClaimResult(found=True, task=claimed)

    async def add_note(
        self,
        ctx: Context,
        id: ItemId,
        text: Annotated[
            str,
            Meta(
                min_length=1,
                max_length=MAX_NOTE_CHARS,
                description="Finding, attempt or decision",
            ),
        ],
        worker: Worker = None,
    ) -> results.AddNoteResult:
        """Append a note to a task for the next worker. Notes are never overwritten; get_task returns them."""
        items = await self.writable_store()
        after = await items.add_note(id, text, worker=worker, who=actor_name(ctx, worker))
        return results.AddNoteResult(
            id=after.id, version=after.version, notes=(await items.get_context(after.id)).noted
        )

    async def complete_task(
        self,
        ctx: Context,
        id: ItemId,
        result: Result = None,
        worker: Worker = None,
        expected_version: ExpectedVersion = None,
    ) -> results.WorkItemDetail:
        """Mark a task as completed, record its result and unblock its dependents. Returns the task."""
        items = await self.writable_store()
        done = await items.complete(id, result, worker=worker, expected_version=expected_version, who=actor_name(ctx))
        ctx.info(f"Completed {done.id}", URI_SCHEME)
        return await results.load_detail(items, done)

    # Components.

    def components(self) -> Iterator[Component]:
        for item in TOOLS:
            # Prefixed spellings are accepted too, such as `tasks_create` and `tasks.create_task`.
            names = {f"{URI_SCHEME}{mark}{name}" for mark in "_." for name in (item.name, item.cli_name)}
            yield LazyTool(
                # Loaded on first use, so that starting a server does not inspect the signatures of all tools.
                partial(getattr, self, item.name),
                name=item.name,
                aliases=sorted(names),
                annotations=dict[str, Any](item.hints),
                version=item.version,
            )
        yield from self._resources.components()
        yield from super().components()


TOOLS = (
    WorkItemToolSpec("create_task", WRITE_HINTS, "create", "1.1.0"),
    WorkItemToolSpec("create_tasks", WRITE_HINTS, "create_all", "1.1.0"),
    WorkItemToolSpec("list_tasks", READ_ONLY_HINTS, "list", "1.2.0"),
    WorkItemToolSpec("get_task", READ_ONLY_HINTS, "get", "1.1.0"),
    WorkItemToolSpec("update_task", DESTRUCTIVE_HINTS, "update", "1.1.0"),
    WorkItemToolSpec("delete_task", DESTRUCTIVE_HINTS, "delete"),
    WorkItemToolSpec("add_blocker", IDEMPOTENT_HINTS, "block"),
    WorkItemToolSpec("remove_blocker", DESTRUCTIVE_HINTS, "unblock"),
    WorkItemToolSpec("get_blockers", READ_ONLY_HINTS, "blockers"),
    WorkItemToolSpec("next_task", WRITE_HINTS, "next", "1.2.0"),
    WorkItemToolSpec("complete_task", IDEMPOTENT_HINTS, "complete", "1.1.0"),
    WorkItemToolSpec("add_note", WRITE_HINTS, "note"),
    WorkItemToolSpec("task_tree", READ_ONLY_HINTS, "tree", "1.1.0"),
    WorkItemToolSpec("task_history", READ_ONLY_HINTS, "history"),
)


def _is_local(ctx: Context) -> bool:
    """Return whether the caller is the user of this machine, on stdio or in this process. Only this user may see which
    other projects exist.
    """
    return ctx.principal is None and ctx.client_address is None


def _format_more(ids: Sequence[str]) -> str:
    return f" and {len(ids) - MAX_IDS_LOGGED:,} more" if len(ids) > MAX_IDS_LOGGED else ""


async def _claim_for_caller(
    items: WorkItemStore, take: Callable[[], Awaitable[WorkItem | None]]
) -> results.WorkItemDetail | None:
    """Claim the next task and return its details.

    If the call is cancelled in between, the task becomes pending again, because no worker would know that it holds it.
    """

    async def claim() -> results.WorkItemDetail | None:
        claimed = await take()
        return None if claimed is None else await results.load_detail(items, claimed, results.DEFAULT_NOTES)

    claiming = asyncio.ensure_future(claim())
    try:
        # The claim commits in another thread and cannot be interrupted there.
        # Shielded, so that a cancellation cannot interrupt the claim between the commit and the response.
        return await asyncio.shield(claiming)
    except asyncio.CancelledError:
        with suppress(WorkItemError):
            if (claimed := await claiming) is not None:
                await items.update(
                    claimed.id,
                    WorkItemChanges(status="pending"),
                    # Only if nothing else has happened to it: another call of the same worker may have finished it
                    # already.
                    expected_version=claimed.version,
                    reason="the call was cancelled",
                )
        raise


def _list_uri(name: str) -> str:
    return f"status/{name}" if name in STATUSES else name
