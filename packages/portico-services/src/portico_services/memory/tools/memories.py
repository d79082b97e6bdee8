"""The tools for single memories: capturing, finding, changing and deleting them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from portico import Context
from portico._lazy import LazyModule
from portico_services import git_project
from portico_services.database_service import requester
from portico_services.memory.store import validation
from portico_services.memory.store.filters import LONGEST as LONGEST_FILTER
from portico_services.memory.store.memory_store import MOST_RESULTS
from portico_services.memory.store.namespaces import WRITABLE, checked_namespace, known_namespace
from portico_services.memory.tools import results
from portico_services.memory.tools.context import Access, Id

if TYPE_CHECKING:
    from portico_services.memory.store import capture as capturing
else:
    capturing = LazyModule("portico_services.memory.store.capture")

LIST_LIMIT, SEARCH_LIMIT = 50, 10

Content = Annotated[
    str, Meta(min_length=1, description="What is to be remembered: one fact, decision or finding, in full sentences")
]
# The schema names them; that an unknown one is refused in our own words is our business.
NamespaceName = Annotated[str, Meta(extra_json_schema={"enum": list(WRITABLE)})]
Tags = Annotated[list[str] | None, "Words to find it by, such as database or auth"]
FilterText = Annotated[
    str | None,
    Meta(
        max_length=LONGEST_FILTER,
        description="Conditions, with spaces: ns:decisions tag:db,sql -tag:old since:7d until:2026-01-31 source: "
        "project: branch: path:src/ status: author: thread: entity:. A comma is or; a key twice is and",
    ),
]
DomainName = Annotated[
    Literal["project", "user", "org", "global"],
    "Who it belongs to: this project, the user everywhere (which others call global), or the organisation",
]


class MemoryTools:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def capture(
        self,
        ctx: Context,
        content: Content,
        namespace: Annotated[NamespaceName, "What kind of memory it is"],
        tags: Tags = None,
        source: Annotated[str | None, "Where it comes from: a file, a URL, a ticket"] = None,
        ttl: Annotated[str | None, "How long it is to be kept: 7d, 24h, 60m, 3600s; for ever when left out"] = None,
        domain: DomainName = "project",
        thread: Annotated[
            str | None, "The conversation, file or session it belongs to; its neighbours help to find it"
        ] = None,
        author: Annotated[
            str | None, "Who said it, such as user, assistant or a name; left out: git's user.name"
        ] = None,
        at: Annotated[str | None, "When it was said or happened, if not now: 2026-01-31T12:00:00Z"] = None,
        branch: Annotated[str | None, "The git branch it is about"] = None,
        path: Annotated[str | None, "The file it is about"] = None,
        on_duplicate: Annotated[
            capturing.OnDuplicate,
            "When it is known already: skip (keep the old one), merge (add to it), supersede (replace it), "
            "error, keep (both)",
        ] = "skip",
    ) -> results.Captured:
        """Store a memory: a decision, a finding, a preference, anything worth knowing in a later conversation.

        One thought per memory. Returns its id and URN, a memory that says the same if there is one, and memories
        that seem to disagree. Secrets are refused or masked.
        """
        memories = await self._access.writable(ctx)
        checked_namespace(namespace)
        labels = {"source": source, "thread": thread, "author": author, "branch": branch, "path": path}
        passed = await self._access.guard.check(
            validation.bounded(content),
            *(validation.bounded_label(text, name) for name, text in labels.items()),
            *validation.bounded_tags(tags or ()),
        )
        kept, kept_source, kept_thread, kept_author, kept_branch, kept_path, *kept_tags = passed.texts
        if not kept_author and domain == "project":
            kept_author = await self._access.git_author(ctx, memories) or ""
        draft = capturing.Draft(
            content=kept,
            namespace=namespace,
            tags=kept_tags,
            domain=domain,
            source=kept_source,
            ttl=ttl,
            thread=kept_thread,
            author=kept_author or None,
            at=at,
            branch=kept_branch or (git_project.branch(memories.root) if domain == "project" else None),
            path=git_project.within(kept_path, memories.root),
            on_duplicate=on_duplicate,
        )
        taken = await memories.capture(draft, who=requester(ctx, draft.author))
        if taken.is_new:
            self._access.tell("captured", taken.record)
        ctx.info(
            f"Captured memory {taken.record.id}" if taken.is_new else f"Known as {taken.record.id}", self._access.prefix
        )
        return results.captured(taken, self._access.prefix, passed, validation.replaced(content))

    async def recall(
        self,
        ctx: Context,
        query: Annotated[
            str | None, "What to look for, in plain words or as a question; left out or *: the newest"
        ] = None,
        filter: FilterText = None,
        namespace: Annotated[NamespaceName | None, "Only of this kind"] = None,
        mode: Annotated[Literal["hybrid", "vector", "text"], "How to look: by words, by meaning, or both"] = "hybrid",
        detail: Annotated[
            Literal["light", "medium", "everything"], "How much of each: a line, a paragraph, or all of it"
        ] = "medium",
        limit: Annotated[
            int | None, Meta(ge=1, le=MOST_RESULTS, description="At most so many; 10 for a search, 50 for a list")
        ] = None,
        offset: Annotated[int, Meta(ge=0, le=1_000_000, description="Leave out so many at the beginning")] = 0,
        cursor: Annotated[str | None, "nextCursor of the answer before, for what comes next"] = None,
        entity: Annotated[str | None, "Only what mentions this person, technology or file"] = None,
        as_of: Annotated[str | None, "What was known at this moment: 2026-01-31T12:00:00Z"] = None,
    ) -> results.Recalled:
        """Find memories by what they say, best first. Without a query, list them, newest first.

        A memory whose `match` is weak has little of what was asked for; without any match, the newest are shown.

        Call it before asking the user something they may have said before, and before a decision that may exist.
        Long content is cut; memory_get returns all of it.
        """
        memories = await self._access.memories(ctx)
        if namespace is not None:
            known_namespace(namespace)
        wanted = memories.filter(filter).also("ns", namespace).also("entity", entity)
        searching = (query or "").strip() not in ("", "*") or bool(wanted.words)
        count = limit or (SEARCH_LIMIT if searching else LIST_LIMIT)
        moment = None if as_of is None else validation.moment(as_of)
        # A list goes on behind the last one that was shown, whatever comes before it meanwhile.
        after = validation.behind(cursor) if cursor is not None and "." in cursor else None
        start = validation.position(cursor) if cursor is not None and after is None else offset
        page = await memories.recall(
            query or "", wanted, limit=count, offset=0 if after else start, after=after, as_of=moment, mode=mode
        )
        prefix = self._access.prefix
        shown = [
            results.from_project(
                results.recalled(hit, prefix, detail) if searching else results.found(hit.record, prefix, detail),
                hit.record,
                memories.homes,
            )
            for hit in page.hits
        ]
        ctx.debug(f"Found {len(shown)} in {memories.project}, by {memories.mode(mode)}", self._access.prefix)
        return results.Recalled(
            count=len(shown),
            memories=shown,
            mode=memories.mode(mode),
            note=page.note,
            next_cursor=validation.cursor_behind(page.last) if page.last else str(start + count) if page.more else None,
        )

    async def get(self, ctx: Context, memory_id: Id) -> results.Whole:
        """One memory with all of its content and everything known about it."""
        return results.whole(
            await (await self._access.memories(ctx, any_project=True)).get(memory_id), self._access.prefix
        )

    async def update(
        self,
        ctx: Context,
        memory_id: Id,
        content: Annotated[str | None, "The new content; all of it"] = None,
        tags: Annotated[list[str] | None, "The new tags; all of them"] = None,
        namespace: Annotated[NamespaceName | None, "Move it to this namespace"] = None,
        status: Annotated[Literal["active", "archived", "superseded", "pending"] | None, "Its new state"] = None,
        ttl: Annotated[str | None, "From now on, keep it this long: 7d, 24h; 0 for ever"] = None,
        expected_version: Annotated[int | None, "The version you have read; refused if it has changed since"] = None,
        reason: Annotated[str, "Why, for its history"] = "",
    ) -> results.Whole:
        """Change a memory. What it said before stays in its history."""
        memories = await self._access.writable(ctx, any_project=True)
        passed = await self._access.guard.check(
            validation.bounded(content or ""),
            validation.bounded_label(reason, "reason"),
            *validation.bounded_tags(tags or ()),
        )
        kept, kept_reason, *kept_tags = passed.texts
        after = await memories.update(
            memory_id,
            content=None if content is None else kept,
            tags=None if tags is None else kept_tags,
            namespace=namespace,
            status=status,
            ttl=ttl,
            expected_version=expected_version,
            who=requester(ctx),
            reason=validation.label(kept_reason, "reason") or "",
        )
        self._access.tell("updated", after)
        return results.whole(after, self._access.prefix, [*passed.notes(), *validation.replaced(content or "")])

    async def delete(
        self,
        ctx: Context,
        memory_id: Id,
        hard: Annotated[bool, "For good, with its history; otherwise memory_restore can bring it back"] = False,
        expected_version: Annotated[int | None, "The version you have read; refused if it has changed since"] = None,
        reason: Annotated[str, "Why, for its history"] = "",
    ) -> results.DeletedMemory:
        """Delete a memory: softly, or for good."""
        memories = await self._access.writable(ctx, any_project=True)
        (kept_reason,) = (await self._access.guard.check(validation.bounded_label(reason, "reason"))).texts
        gone = await memories.delete(
            memory_id,
            hard=hard,
            expected_version=expected_version,
            who=requester(ctx),
            reason=validation.label(kept_reason, "reason") or "",
        )
        self._access.tell("deleted", gone)
        note = "It is gone for good." if hard else f"{self._access.prefix}_restore brings it back."
        return results.DeletedMemory(id=gone.id, deleted=True, hard=hard, note=note)

    async def restore(self, ctx: Context, memory_id: Id) -> results.Whole:
        """Bring back a memory that was deleted, archived, superseded or merged into another."""
        back = await (await self._access.writable(ctx, any_project=True)).restore(memory_id, who=requester(ctx))
        self._access.tell("restored", back)
        return results.whole(back, self._access.prefix)

    async def history(
        self,
        ctx: Context,
        memory_id: Id,
        limit: Annotated[int, Meta(ge=1, le=MOST_RESULTS, description="At most so many changes")] = 20,
    ) -> results.MemoryHistory:
        """What a memory said before, and who changed it when; the newest change first."""
        return results.past(*await (await self._access.memories(ctx, any_project=True)).history(memory_id, limit))

    async def delete_all(
        self,
        ctx: Context,
        filter: Annotated[
            str, Meta(max_length=LONGEST_FILTER, description="Which: as for memory_recall; conditions only")
        ],
        dry_run: Annotated[bool, "Only say what would be deleted"] = True,
        hard: Annotated[bool, "For good, with their histories"] = False,
    ) -> results.DeletedMemories:
        """Delete every memory that a filter lets through. Run it dry first, and show the user what would go."""
        memories = await (self._access.memories(ctx) if dry_run else self._access.writable(ctx))
        swept = await memories.delete_all(
            memories.filter(filter), dry_run=dry_run, hard=hard, who=requester(ctx), done=ctx.report_progress
        )
        note = "Nothing was deleted. Call it again with dry_run=false." if dry_run else "Deleted."
        return results.DeletedMemories(count=swept.count, ids=swept.ids, dry_run=dry_run, note=note)
