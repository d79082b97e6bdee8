"""Work items as tools. This and `resources` know that there is a protocol; the rest of the folder does not."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import asdict

from portico import Context
from portico.extend import Component, Event, StoreError, Tool, explained
from portico.services import moments
from portico.services.stored import StoredService, requester
from portico.services.tasks import records, results
from portico.services.tasks.dependencies import MOST_BLOCKERS
from portico.services.tasks.edits import PRIORITY, Changes, TaskDraft
from portico.services.tasks.errors import TaskRefusal, TasksReadOnly
from portico.services.tasks.ids import LENGTH
from portico.services.tasks.inputs import LONGEST_DESCRIPTION, LONGEST_NAME, LONGEST_QUERY, LONGEST_TEXT
from portico.services.tasks.items import LONGEST_LEASE, MOST_OF_HISTORY, WorkItems, refusal_of
from portico.services.tasks.listing import LONGEST_CURSOR, MOST_LISTED, Wanted
from portico.services.tasks.records import Item
from portico.services.tasks.resources import SCHEME, TaskResources
from portico.services.tasks.states import STATUSES, Status

LISTS = ("all", "ready", "blocked", *(f"status/{one}" for one in STATUSES))
# The longest time between two looks for leases that have ended: the event of a new one may be lost.
LONGEST_PAUSE_SECONDS = 60.0
# The shortest one, however much is being claimed. No lease is shorter than a second.
SHORTEST_PAUSE_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 600.0
MOST_AT_ONCE = 200

# As long as an id or its address can be, with some room for what is none: that gets an error of its own.
log = logging.getLogger("portico")

_LONGEST_ID = LENGTH + 200


def _id(about: str) -> Meta:
    return Meta(min_length=1, max_length=_LONGEST_ID, description=about)


Id = Annotated[str, _id("The id of the task, such as task_1hf3k9d0qv7e2m5rx")]
TaskId = Annotated[str, _id("The id of the task that waits")]
BlockerId = Annotated[str, _id("The id of the task that it waits for")]
DESCRIPTION = Meta(
    min_length=1,
    max_length=LONGEST_DESCRIPTION,
    description="What is to be done, so that another worker understands it and can tell when it is done",
)
URGENCY = Meta(ge=1, le=5, description="1 is the most urgent, 5 the least; 3 is usual")
BACKGROUND = Meta(
    max_length=LONGEST_TEXT, description="What a worker has to know: files, links, decisions, constraints"
)
Result = Annotated[str | None, Meta(max_length=LONGEST_TEXT, description="What came of it")]
Worker = Annotated[
    str | None,
    Meta(
        max_length=LONGEST_NAME,
        description="Who works on it: a name of your own, the same each time. Refused if another worker has the task",
    ),
]
Lease = Annotated[
    int | None,
    Meta(
        ge=1,
        le=LONGEST_LEASE,
        description="For how many seconds it is yours; then others may get it, unless it is finished or renewed",
    ),
]
ExpectedVersion = Annotated[
    int | None, Meta(ge=1, description="The version you have read; refused if it has changed since")
]
Reason = Annotated[str, Meta(max_length=LONGEST_DESCRIPTION, description="Why, for its history")]

READ = {"readOnlyHint": True, "openWorldHint": False}
WRITE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
AGAIN = {**WRITE, "idempotentHint": True}
DESTROY = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}


class PlannedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several tasks that are made at once."""

    description: Annotated[str, DESCRIPTION]
    ref: Annotated[
        str | None, Meta(min_length=1, max_length=LONGEST_NAME, description="What the others of this call call it")
    ] = None
    parent_id: Annotated[str | None, _id("The task that it is a part of: a ref of this call, or an id")] = None
    priority: Annotated[int, URGENCY] = PRIORITY
    context: Annotated[str, BACKGROUND] = ""
    blocked_by: Annotated[
        list[str] | None,
        Meta(max_length=MOST_BLOCKERS, description="What must be completed first: refs of this call, or ids"),
    ] = None


class TaskToolRow(NamedTuple):
    name: str
    hints: Mapping[str, bool]
    # The same without the word that `tasks_` says already.
    short: str
    version: str = "1.0.0"


class Tasks(StoredService[WorkItems]):
    """What an assistant plans with: `server.add(Tasks("tasks.db"))`.

    `store` is a path or a URL, of SQLite or PostgreSQL. With `read_only` tasks can be looked at and not changed.
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
    ) -> None:
        super().__init__(store, read_only=read_only)
        self._leased = asyncio.Event()
        # Of those who wait for something to do; each is set when something can be begun.
        self._waiting: set[asyncio.Event] = set()
        self._resources = TaskResources(self.store)

    async def _open_store(self, stack: AsyncExitStack) -> WorkItems:
        items = WorkItems(self._database)
        await items.open()
        if not self._read_only:
            self._run(stack, self._end_leases(items))
        return items

    def _failed(self, failure: StoreError) -> TaskRefusal:
        return refusal_of(failure)

    def _refused(self) -> TaskRefusal:
        return TasksReadOnly()

    async def _changed(self, store: WorkItems, event: Event) -> None:
        id, *lists = event.payload.split(" ")
        if not id or "in_progress" in lists:
            self._leased.set()
        if not id or "ready" in lists:
            for news in self._waiting:
                news.set()
        places = ["all", id, *map(_list_uri, lists)] if id else LISTS
        self._tell(f"{SCHEME}://{place}" for place in places)

    async def _end_leases(self, items: WorkItems) -> None:
        """Sets what was not finished in time to pending when its lease ends, also when no one asks for work."""
        while True:
            self._leased.clear()
            try:
                await items.take_back()
                end = await items.next_end()
            except TaskRefusal as refusal:
                log.warning("leases of tasks could not be looked at: %s", refusal)
                end = None
            await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
            pause = LONGEST_PAUSE_SECONDS if end is None else (end - moments.now()) / moments.SECOND_MS
            try:
                async with asyncio.timeout(min(max(pause, 0.0), LONGEST_PAUSE_SECONDS)):
                    await self._leased.wait()
            except TimeoutError:
                continue

    # Making and changing

    async def create_task(
        self,
        ctx: Context,
        description: Annotated[str, DESCRIPTION],
        parent_id: Annotated[str | None, _id("The task that this one is a part of")] = None,
        priority: Annotated[int, URGENCY] = PRIORITY,
        context: Annotated[str, BACKGROUND] = "",
        blocked_by: Annotated[
            list[str] | None, Meta(max_length=MOST_BLOCKERS, description="Ids of tasks that must be completed first")
        ] = None,
    ) -> results.TaskDetails:
        """Create a task: something that is to be done, now or later, by you or another worker.

        It may be a part of another task, and may have to wait until others are completed.
        """
        items = await self.writable_store()
        draft = TaskDraft(
            description=description,
            parent_id=parent_id,
            priority=priority,
            context=context,
            blocked_by=blocked_by or (),
        )
        made = await items.create(draft, who=requester(ctx))
        ctx.debug(f"Created {made.id}", SCHEME)
        return await results.details(items, made) if blocked_by else results.task(made, [])

    async def create_tasks(
        self,
        ctx: Context,
        tasks: Annotated[
            list[PlannedTask], Meta(min_length=1, max_length=MOST_AT_ONCE, description="The tasks, in any order")
        ],
    ) -> results.CreatedTasks:
        """Create several tasks at once, such as a whole plan: all of them, or none if one is refused.

        Each may have a ref, a name of your own by which the others say that they are a part of it or wait for it.
        """
        items = await self.writable_store()
        drafts = [TaskDraft(**{**asdict(one), "blocked_by": one.blocked_by or ()}) for one in tasks]
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
        parent_id: Annotated[
            str | None, Meta(max_length=_LONGEST_ID, description='The new parent; "" for none')
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
        )
        after = await items.update(
            id,
            changes,
            worker=worker,
            lease=lease,
            expected_version=expected_version,
            who=requester(ctx),
            reason=reason,
        )
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
        return results.deleted(gone)

    # Looking

    async def list_tasks(
        self,
        ctx: Context,
        status: Annotated[Status | None, "Only these"] = None,
        parent_id: Annotated[
            str | None,
            Meta(max_length=_LONGEST_ID, description='Only the children of this task; "": only those of none'),
        ] = None,
        query: Annotated[
            str | None,
            Meta(max_length=LONGEST_QUERY, description="Words that all occur in the description or the context"),
        ] = None,
        blocked: Annotated[
            bool | None, "true: only open tasks that wait for a blocker; false: only those that do not"
        ] = None,
        limit: Annotated[int, Meta(ge=1, le=MOST_LISTED, description="At most so many")] = 50,
        cursor: Annotated[
            str | None,
            Meta(max_length=LONGEST_CURSOR, description="nextCursor of the answer before, for what comes next"),
        ] = None,
    ) -> results.TaskPage:
        """List tasks, the most urgent first and of these the newest. Descriptions may be cut; get_task has all."""
        items = await self.store()
        wanted = Wanted(status=status, parent_id=parent_id, query=query, blocked=blocked)
        return results.listed(await items.page(wanted, limit=limit, cursor=cursor))

    async def get_task(self, ctx: Context, id: Id) -> results.TaskDetails:
        """One task with everything that is known about it."""
        items = await self.store()
        return await results.details(items, await items.get(id))

    async def task_tree(
        self,
        ctx: Context,
        id: Annotated[str | None, _id("The task at the root; left out: all of them")] = None,
        open_only: Annotated[bool, "Leave out what is completed or failed"] = False,
    ) -> results.TaskPlan:
        """A task with everything below it, each before its parts; how deep it is says what it is a part of."""
        return results.plan(await (await self.store()).tree(id, open_only=open_only))

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
        return results.blockers(await (await self.store()).waiting(task_id))

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
        parent_id: Annotated[str | None, _id("Only tasks below this one, however deep")] = None,
        query: Annotated[
            str | None,
            Meta(max_length=LONGEST_QUERY, description="Only tasks in which all these words occur"),
        ] = None,
        wait: Annotated[
            float,
            Meta(
                ge=0,
                le=LONGEST_WAIT_SECONDS,
                description="For how many seconds to wait for one, if there is none now: better than asking again",
            ),
        ] = 0,
    ) -> results.Next:
        """Get something to do: the most urgent task that waits for nothing, the oldest of these first.

        It is in progress and yours from then on; no other worker is given it. A task with open children is not given
        out, its children are. When it is done call complete_task; when you give up, update_task with failed or pending.
        """
        items = await self.writable_store()
        asking = requester(ctx)
        take = partial(
            items.next, worker or asking or "unnamed", lease=lease, who=asking, parent_id=parent_id, query=query
        )
        taken = await self._taken(take, wait)
        if taken is None:
            return results.nothing(await items.counts())
        ctx.debug(f"{taken.worker} took {taken.id}", SCHEME)
        return results.Next(found=True, task=await results.details(items, taken))

    async def _taken(self, take: Callable[[], Awaitable[Item | None]], wait: float) -> Item | None:
        """The next task, or None where there was none for so many seconds."""
        until = asyncio.get_running_loop().time() + wait
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while (taken := await take()) is None:
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    return None
                try:
                    async with asyncio.timeout(min(left, LONGEST_PAUSE_SECONDS)):
                        await news.wait()
                except TimeoutError:
                    pass
                news.clear()
            return taken
        finally:
            self._waiting.discard(news)

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
        ctx.debug(f"Completed {done.id}", SCHEME)
        return await results.details(items, done)

    # Offering

    def offers(self) -> Iterator[Component]:
        for one in TOOLS:
            names = {f"{SCHEME}{mark}{name}" for mark in "_." for name in (one.name, one.short)}
            yield Tool(
                getattr(self, one.name),
                aliases=sorted(names),
                annotations=dict[str, Any](one.hints),
                version=one.version,
            )
        yield from self._resources.offers()
        yield from super().offers()


TOOLS = (
    TaskToolRow("create_task", WRITE, "create"),
    TaskToolRow("create_tasks", WRITE, "create_all"),
    TaskToolRow("list_tasks", READ, "list"),
    TaskToolRow("get_task", READ, "get"),
    TaskToolRow("update_task", DESTROY, "update"),
    TaskToolRow("delete_task", DESTROY, "delete"),
    TaskToolRow("add_blocker", AGAIN, "block"),
    TaskToolRow("remove_blocker", DESTROY, "unblock"),
    TaskToolRow("get_blockers", READ, "blockers"),
    TaskToolRow("next_task", WRITE, "next", "1.1.0"),
    TaskToolRow("complete_task", AGAIN, "complete"),
    TaskToolRow("task_tree", READ, "tree"),
    TaskToolRow("task_history", READ, "history"),
)


def _list_uri(name: str) -> str:
    return f"status/{name}" if name in STATUSES else name
