"""Work items as tools. This and `resources` know that there is a protocol; the rest of the folder does not."""

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
from portico.extend import Component, Event, LateTool, StoreError, explained
from portico_services.database_service import StoredService, requester
from portico_services.project_resolver import Projects
from portico_services.workitems import records, results, validation
from portico_services.workitems.dependencies import MOST_BLOCKERS
from portico_services.workitems.edits import PRIORITY, Changes, TaskDraft
from portico_services.workitems.errors import TaskRefusal, TasksReadOnly
from portico_services.workitems.item_store import MOST_OF_HISTORY, WorkItems, refusal_of
from portico_services.workitems.listing import LONGEST_CURSOR, MOST_LISTED, Wanted
from portico_services.workitems.maintenance import Upkeep
from portico_services.workitems.parameters import (
    BACKGROUND,
    DESCRIPTION,
    DUE,
    LABELS,
    LONGEST_ID,
    URGENCY,
    AllLabels,
    AnyProject,
    BlockerId,
    ExpectedVersion,
    Id,
    Label,
    Lease,
    PlannedTask,
    Project,
    Reason,
    Result,
    TaskId,
    Worker,
    id_of,
)
from portico_services.workitems.records import Item
from portico_services.workitems.resources import SCHEME, TaskResources
from portico_services.workitems.states import STATUSES, Status
from portico_services.workitems.validation import (
    LONGEST_NAME,
    LONGEST_NOTE,
    LONGEST_PROJECT,
    LONGEST_QUERY,
    MOST_LABELS,
)

LISTS = ("all", "ready", "blocked", *(f"status/{one}" for one in STATUSES))
LONGEST_WAIT_SECONDS = 600.0
MOST_AT_ONCE = 1000
MOST_NOTES_SHOWN = 200
MAX_IDS_LOGGED = 5

READ = {"readOnlyHint": True, "openWorldHint": False}
WRITE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
AGAIN = {**WRITE, "idempotentHint": True}
DESTROY = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


class TaskToolRow(NamedTuple):
    name: str
    hints: Mapping[str, bool]
    # The same without the word that `tasks_` says already.
    short: str
    version: str = "1.0.0"


class Tasks(StoredService[WorkItems]):
    """What an assistant plans with: `server.add(Tasks("tasks.db"))`.

    `store` is a path or a URL, of SQLite or PostgreSQL. With `read_only` tasks can be looked at and not changed.
    `project` is whose list is meant where a call does not say it; without it the client's roots say it, or the git
    repository that `folder` is in.
    """

    name = "tasks"
    scoped = True
    topics = (records.TOPIC,)

    @explained
    def __init__(
        self,
        store: str | os.PathLike[str] = ":memory:",
        *,
        read_only: bool = False,
        project: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(store, read_only=read_only)
        self._projects = Projects(project, folder)
        self._upkeep = Upkeep()
        self._resources = TaskResources(self.store, self._looking)

    async def _open_store(self, stack: AsyncExitStack) -> WorkItems:
        items = WorkItems(self._database, project=(await self._projects.here()).project)
        await items.open()
        if not self._read_only:
            self._run(stack, "work item leases", partial(self._upkeep.end_leases, items))
            self._run(stack, "work item index", partial(self._upkeep.index, items))
        return items

    async def _looking(self, ctx: Context, project: str | None = None) -> WorkItems:
        """The tasks as the project of a call sees them, or the one that it names. The store itself is of this server's
        own project, which will do where a call names a task."""
        return (await self.store()).of(await self._project(ctx, project))

    async def _writing(self, ctx: Context, project: str | None = None) -> WorkItems:
        return (await self.writable_store()).of(await self._project(ctx, project))

    async def _project(self, ctx: Context, named: str | None) -> str:
        return (await self._projects.of(ctx)).project if named is None else named

    def _failed(self, failure: StoreError) -> TaskRefusal:
        return refusal_of(failure)

    def _refused(self) -> TaskRefusal:
        return TasksReadOnly()

    async def _changed(self, store: WorkItems, event: Event) -> None:
        id, *lists = event.payload.split(" ")
        self._upkeep.on_change(lists if id else None)
        places = ["all", id, *map(_list_uri, lists)] if id else LISTS
        self._tell(f"{SCHEME}://{place}" for place in places)

    # Making and changing

    async def create_task(
        self,
        ctx: Context,
        description: Annotated[str, DESCRIPTION],
        parent_id: Annotated[str | None, id_of("The task that this one is a part of")] = None,
        priority: Annotated[int, URGENCY] = PRIORITY,
        context: Annotated[str, BACKGROUND] = "",
        blocked_by: Annotated[
            list[str] | None, Meta(max_length=MOST_BLOCKERS, description="Ids of tasks that must be completed first")
        ] = None,
        labels: Annotated[list[Label] | None, LABELS] = None,
        due: Annotated[str | None, DUE] = None,
        project: Project = None,
    ) -> results.TaskDetails:
        """Create a task: something that is to be done, now or later, by you or another worker.

        It may be a part of another task, and may have to wait until others are completed.
        """
        items = await self._writing(ctx, project)
        draft = TaskDraft(
            description=description,
            parent_id=parent_id,
            priority=priority,
            context=context,
            blocked_by=blocked_by or (),
            labels=labels or (),
            due=due,
        )
        made = await items.create(draft, who=requester(ctx))
        ctx.debug(f"Created {made.id}", SCHEME)
        return await results.details(items, made) if blocked_by else results.task(made, project=items.project)

    async def create_tasks(
        self,
        ctx: Context,
        tasks: Annotated[
            list[PlannedTask], Meta(min_length=1, max_length=MOST_AT_ONCE, description="The tasks, in any order")
        ],
        project: Project = None,
    ) -> results.CreatedTasks:
        """Create several tasks at once, such as a whole plan: all of them, or none if one is refused.

        Each may have a ref, a name of your own by which the others say that they are a part of it or wait for it.
        """
        items = await self._writing(ctx, project)
        lists = ("blocked_by", "labels")
        drafts = [TaskDraft(**{**asdict(one), **{name: getattr(one, name) or () for name in lists}}) for one in tasks]
        made = await items.create_all(drafts, who=requester(ctx))
        ctx.debug(f"Created {len(made)} tasks", SCHEME)
        return results.created(made, [one.ref for one in tasks])

    async def update_task(
        self,
        ctx: Context,
        id: Id,
        description: Annotated[str | None, DESCRIPTION] = None,
        priority: Annotated[int | None, URGENCY] = None,
        status: Annotated[
            Status | None,
            "From pending to in_progress, completed or failed; from in_progress to completed, failed or pending; from "
            "completed or failed only to pending, which reopens it",
        ] = None,
        context: Annotated[str | None, BACKGROUND] = None,
        result: Result = None,
        parent_id: Annotated[str | None, Meta(max_length=LONGEST_ID, description='The new parent; "" for none')] = None,
        labels: Annotated[
            list[Label] | None, Meta(max_length=MOST_LABELS, description="All its labels, instead of those it has")
        ] = None,
        add_labels: Annotated[
            list[Label] | None, Meta(max_length=MOST_LABELS, description="Labels to have besides")
        ] = None,
        remove_labels: Annotated[
            list[Label] | None, Meta(max_length=MOST_LABELS, description="Labels to have no longer")
        ] = None,
        due: Annotated[
            str | None, Meta(max_length=40, description='When it is due, as in create_task; "" for never')
        ] = None,
        project: Annotated[
            str | None,
            Meta(max_length=LONGEST_PROJECT, description='Move it and all below it to this list; "" is every list'),
        ] = None,
        worker: Worker = None,
        lease: Lease = None,
        expected_version: ExpectedVersion = None,
        reason: Reason = "",
    ) -> results.TaskDetails:
        """Change a task: only what is given. What was there before stays in its history.

        With worker and lease, a claim on a task in progress is renewed. To finish a task, use complete_task.
        """
        items = await self.writable_store()
        changes = Changes(
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
            who=requester(ctx),
            reason=reason,
        )
        if before.status != after.status:
            ctx.info(f"{after.id} changed from {before.status} to {after.status}", SCHEME)
        return await results.details(items, after)

    async def delete_task(
        self,
        ctx: Context,
        id: Id,
        children: Annotated[
            Literal["refuse", "delete", "keep"],
            "If there are tasks below it: refuse; delete them too; or keep them and move them up to where it was",
        ] = "refuse",
        dry_run: Annotated[
            bool, "Only say what would be deleted, and which tasks would not be blocked any more"
        ] = False,
        expected_version: ExpectedVersion = None,
        reason: Reason = "",
    ) -> results.DeletedTasks:
        """Delete a task for good. Tasks that waited for it do not wait for it any more. Its history stays.

        What was finished or given up need not be deleted: complete it, or set it to failed.
        """
        items = await self.writable_store()
        gone = await items.delete(
            id, children=children, dry_run=dry_run, expected_version=expected_version, who=requester(ctx), reason=reason
        )
        if not dry_run:
            ctx.info(f"Deleted {', '.join(gone.deleted[:MAX_IDS_LOGGED])}{_more(gone.deleted)}", SCHEME)
        return results.deleted(gone)

    # Looking

    async def list_tasks(
        self,
        ctx: Context,
        status: Annotated[Status | None, "Only these"] = None,
        parent_id: Annotated[
            str | None,
            Meta(max_length=LONGEST_ID, description='Only the children of this task; "": only those of none'),
        ] = None,
        query: Annotated[
            str | None,
            Meta(max_length=LONGEST_QUERY, description="Words that all occur in the description or the context"),
        ] = None,
        blocked: Annotated[
            bool | None, "true: only open tasks that wait for a blocker; false: only those that do not"
        ] = None,
        labels: AllLabels = None,
        worker: Annotated[
            str | None, Meta(max_length=LONGEST_NAME, description='Only what this worker has or had; "": unclaimed')
        ] = None,
        due_before: Annotated[
            str | None,
            Meta(
                max_length=40,
                description="Only open tasks that are due before this date; the first one due comes first",
            ),
        ] = None,
        overdue: Annotated[
            bool, "Only open tasks that should have been done by now; the first one due comes first"
        ] = False,
        project: AnyProject = None,
        limit: Annotated[int, Meta(ge=1, le=MOST_LISTED, description="At most so many")] = 50,
        cursor: Annotated[
            str | None,
            Meta(max_length=LONGEST_CURSOR, description="nextCursor of the answer before, for what comes next"),
        ] = None,
    ) -> results.TaskPage:
        """List tasks, the most urgent first and of these the newest. Descriptions may be cut; get_task has all."""
        items = await self._looking(ctx, project)
        wanted = Wanted(
            status=status,
            parent_id=parent_id,
            query=query,
            blocked=blocked,
            labels=validation.labels(labels or ()),
            worker=None if worker is None else validation.name(worker) or "",
            due_before=None if due_before is None else validation.moment(due_before),
            overdue=overdue,
        )
        page = await items.page(wanted, limit=limit, cursor=cursor)
        elsewhere = await items.elsewhere() if not page.items and cursor is None and _is_local(ctx) else None
        return results.listed(page, items.project, elsewhere)

    async def get_task(
        self,
        ctx: Context,
        id: Id,
        notes: Annotated[
            int, Meta(ge=0, le=MOST_NOTES_SHOWN, description="How many of its notes to show, the newest ones")
        ] = results.USUAL_NOTES,
    ) -> results.TaskDetails:
        """One task with everything that is known about it."""
        items = await self.store()
        return await results.details(items, await items.get(id), notes)

    async def task_tree(
        self,
        ctx: Context,
        id: Annotated[str | None, id_of("The task at the root; left out: all of them")] = None,
        open_only: Annotated[bool, "Leave out what is completed or failed"] = False,
        project: AnyProject = None,
    ) -> results.TaskPlan:
        """A task with everything below it, each before its parts; how deep it is says what it is a part of."""
        items = await self.store() if id is not None else await self._looking(ctx, project)
        return results.plan(await items.tree(id, open_only=open_only))

    async def task_history(
        self,
        ctx: Context,
        id: Id,
        limit: Annotated[int, Meta(ge=1, le=MOST_OF_HISTORY, description="At most so many changes")] = 50,
    ) -> results.TaskHistory:
        """What was done to a task, by whom and when; the newest change first. Also of a task that was deleted."""
        return results.history(id, await (await self.store()).history(id, limit), limit)

    # Blockers

    async def add_blocker(self, ctx: Context, task_id: TaskId, blocked_by_id: BlockerId) -> results.Blocking:
        """Have a task wait until another is completed. Refused if they would wait for one another."""
        after, changed = await (await self.writable_store()).block(task_id, blocked_by_id, who=requester(ctx))
        return results.Blocking(task_id=after.id, blocked_by_id=blocked_by_id, changed=changed, blocked=after.blocked)

    async def remove_blocker(self, ctx: Context, task_id: TaskId, blocked_by_id: BlockerId) -> results.Blocking:
        """Have a task not wait for another any more."""
        after, changed = await (await self.writable_store()).unblock(task_id, blocked_by_id, who=requester(ctx))
        return results.Blocking(task_id=after.id, blocked_by_id=blocked_by_id, changed=changed, blocked=after.blocked)

    async def get_blockers(self, ctx: Context, task_id: TaskId) -> results.Blockers:
        """What a task waits for, of its own and of what it is a part of; and which tasks wait for it."""
        items = await self.store()
        return results.blockers(await items.waiting(task_id), items.project)

    # Working

    async def next_task(
        self,
        ctx: Context,
        worker: Annotated[
            str | None,
            Meta(
                max_length=LONGEST_NAME,
                description="Who is going to work on it: a name of your own. Left out: the name of the client",
            ),
        ] = None,
        lease: Lease = None,
        parent_id: Annotated[str | None, id_of("Only tasks below this one, however deep")] = None,
        query: Annotated[
            str | None,
            Meta(max_length=LONGEST_QUERY, description="Only tasks in which all these words occur"),
        ] = None,
        labels: AllLabels = None,
        project: Project = None,
        wait: Annotated[
            float,
            Meta(
                ge=0,
                le=LONGEST_WAIT_SECONDS,
                description="For how many seconds to wait for one, if there is none now: better than asking again",
            ),
        ] = 0,
    ) -> results.Next:
        """Get something to do: the most urgent task that waits for nothing, of these the one due first or the oldest.

        It is in progress and yours from then on; no other worker is given it. A task with open children is not given
        out, its children are. When it is done call complete_task; when you give up, update_task with failed or pending.
        """
        items = await self._writing(ctx, project)
        asking = requester(ctx)
        take = partial(
            items.next,
            worker or asking or "unnamed",
            lease=lease,
            who=asking,
            parent_id=parent_id,
            query=query,
            labels=labels or (),
        )
        taken = await self._upkeep.wait_for(partial(_taken_for_caller, items, take), wait)
        if taken is None:
            return results.nothing(
                await items.counts(), await items.elsewhere() if _is_local(ctx) else None, items.project
            )
        ctx.info(f"{taken.worker} took {taken.id}", SCHEME)
        return results.Next(found=True, task=taken)

    async def add_note(
        self,
        ctx: Context,
        id: Id,
        text: Annotated[
            str,
            Meta(
                min_length=1, max_length=LONGEST_NOTE, description="What was found, tried or decided; it stays as it is"
            ),
        ],
        worker: Worker = None,
    ) -> results.NotedTask:
        """Add a note to a task, for the next worker. Notes before it stay; get_task shows them."""
        items = await self.writable_store()
        after = await items.add_note(id, text, worker=worker, who=requester(ctx, worker))
        return results.NotedTask(id=after.id, version=after.version, notes=(await items.background(after.id)).noted)

    async def complete_task(
        self,
        ctx: Context,
        id: Id,
        result: Result = None,
        worker: Worker = None,
        expected_version: ExpectedVersion = None,
    ) -> results.TaskDetails:
        """Say that a task is done, and what came of it. What waited for it can go on."""
        items = await self.writable_store()
        done = await items.complete(id, result, worker=worker, expected_version=expected_version, who=requester(ctx))
        ctx.info(f"Completed {done.id}", SCHEME)
        return await results.details(items, done)

    # Offering

    def offers(self) -> Iterator[Component]:
        for one in TOOLS:
            names = {f"{SCHEME}{mark}{name}" for mark in "_." for name in (one.name, one.short)}
            yield LateTool(
                partial(getattr, self, one.name),
                name=one.name,
                aliases=sorted(names),
                annotations=dict[str, Any](one.hints),
                version=one.version,
            )
        yield from self._resources.offers()
        yield from super().offers()


TOOLS = (
    TaskToolRow("create_task", WRITE, "create", "1.1.0"),
    TaskToolRow("create_tasks", WRITE, "create_all", "1.1.0"),
    TaskToolRow("list_tasks", READ, "list", "1.2.0"),
    TaskToolRow("get_task", READ, "get", "1.1.0"),
    TaskToolRow("update_task", DESTROY, "update", "1.1.0"),
    TaskToolRow("delete_task", DESTROY, "delete"),
    TaskToolRow("add_blocker", AGAIN, "block"),
    TaskToolRow("remove_blocker", DESTROY, "unblock"),
    TaskToolRow("get_blockers", READ, "blockers"),
    TaskToolRow("next_task", WRITE, "next", "1.2.0"),
    TaskToolRow("complete_task", AGAIN, "complete", "1.1.0"),
    TaskToolRow("add_note", WRITE, "note"),
    TaskToolRow("task_tree", READ, "tree", "1.1.0"),
    TaskToolRow("task_history", READ, "history"),
)


def _is_local(ctx: Context) -> bool:
    """Return whether the caller is the user of this machine, on stdio or in this process: only they are told which
    other lists there are."""
    return ctx.principal is None and ctx.address is None


def _more(ids: Sequence[str]) -> str:
    return f" and {len(ids) - MAX_IDS_LOGGED:,} more" if len(ids) > MAX_IDS_LOGGED else ""


async def _taken_for_caller(items: WorkItems, take: Callable[[], Awaitable[Item | None]]) -> results.TaskDetails | None:
    """The next task, as its worker is told of it. If the call is cancelled meanwhile it is pending again: no worker
    would ever know that it has it."""

    async def told() -> results.TaskDetails | None:
        taken = await take()
        return None if taken is None else await results.details(items, taken, results.USUAL_NOTES)

    telling = asyncio.ensure_future(told())
    try:
        return await asyncio.shield(telling)
    except asyncio.CancelledError:
        with suppress(TaskRefusal):
            if (taken := await telling) is not None:
                await items.update(
                    taken.id, Changes(status="pending"), expected_version=taken.version, reason="the call was cancelled"
                )
        raise


def _list_uri(name: str) -> str:
    return f"status/{name}" if name in STATUSES else name
