"""Tools for single memories: capture, recall, update and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from portico import Context
from portico._lazy import LazyModule
from portico.text import one_line
from portico_services import git_project
from portico_services.database_service import actor_name
from portico_services.memory.store import statistics, validation
from portico_services.memory.store.filters import FILTER_KEYS, MAX_FILTER_CHARS, MemoryFilter
from portico_services.memory.store.memory_store import MAX_RESULTS
from portico_services.memory.store.namespaces import (
    WRITABLE_NAMESPACES,
    validate_namespace,
    validate_readable_namespace,
)
from portico_services.memory.tools import results
from portico_services.memory.tools.context import MemoryId, MemoryToolContext

if TYPE_CHECKING:
    from portico_services.memory.store import capture as capturing
    from portico_services.memory.store.memory_store import MemoryStore
else:
    capturing = LazyModule("portico_services.memory.store.capture")

DEFAULT_LIST_LIMIT, DEFAULT_SEARCH_LIMIT = 50, 10

ContentText = Annotated[str, Meta(min_length=1, description="Text to store: one fact in full sentences")]
# The schema lists the values, but an unknown one is rejected by this service with its own message.
NamespaceName = Annotated[str, Meta(extra_json_schema={"enum": list(WRITABLE_NAMESPACES)})]
Tags = Annotated[list[str] | None, "Search tags, e.g. database, auth"]
FilterExpression = Annotated[
    str | None,
    Meta(
        max_length=MAX_FILTER_CHARS,
        description="Space-separated conditions: ns:decisions tag:db,sql -tag:old since:7d until:2026-01-31 "
        "source: project: branch: path:src/ status: author: thread: entity:. Comma means OR, "
        "repeated key AND, leading - NOT",
    ),
]
DomainName = Annotated[
    Literal["project", "user", "org", "global"],
    "Owner: this project (default), the user (alias global) or the organisation",
]


class MemoryTools:
    def __init__(self, access: MemoryToolContext) -> None:
        self._access = access

    async def capture(
        self,
        ctx: Context,
        content: ContentText,
        namespace: Annotated[NamespaceName, "Kind of memory"],
        tags: Tags = None,
        source: Annotated[str | None, "Origin: file, URL or ticket"] = None,
        ttl: Annotated[str | None, "Lifetime, e.g. 7d, 24h, 60m; default: no expiry"] = None,
        domain: DomainName = "project",
        thread: Annotated[str | None, "Conversation, file or session id; improves ranking of neighbours"] = None,
        author: Annotated[str | None, "Speaker: user, assistant or a name; default git user.name"] = None,
        at: Annotated[str | None, "Time it was said, ISO 8601; default now"] = None,
        branch: Annotated[str | None, "Git branch it concerns"] = None,
        path: Annotated[str | None, "File it concerns"] = None,
        on_duplicate: Annotated[
            capturing.OnDuplicate,
            "If it already exists: skip (default, keep the stored one), merge, supersede, error, or keep both",
        ] = "skip",
    ) -> results.CaptureResult:
        """Store one fact, decision, finding or preference so that later conversations can recall it.

        Use one call per fact. Returns the id, an existing duplicate if there is one, and memories that seem to
        contradict it. Text that contains secrets is rejected or redacted.
        """
        memories = await self._access.writable_store(ctx)
        # Before screening: an invalid argument should not cost a scan of the text.
        validate_namespace(namespace)
        labels = {"source": source, "thread": thread, "author": author, "branch": branch, "path": path}
        # All texts are screened together, before anything is stored or compared.
        passed = await self._access.screening.screen(
            validation.check_length(content),
            *(validation.check_label_length(text, name) for name, text in labels.items()),
            *validation.check_tags(tags or ()),
        )
        # In the order in which they were passed to `screen`.
        screened, kept_source, kept_thread, kept_author, kept_branch, kept_path, *kept_tags = passed.texts
        # Only in the project domain: memories of the user already belong to one person.
        if not kept_author and domain == "project":
            kept_author = await self._access.git_author(ctx, memories) or ""
        draft = capturing.MemoryDraft(
            content=screened,
            namespace=namespace,
            tags=kept_tags,
            domain=domain,
            source=kept_source,
            ttl=ttl,
            thread=kept_thread,
            author=kept_author or None,
            at=at,
            branch=kept_branch or (git_project.current_branch(memories.root) if domain == "project" else None),
            path=git_project.relative_to_root(kept_path, memories.root),
            on_duplicate=on_duplicate,
        )
        # The actor is the authenticated principal if there is one; `author` is what the caller claims.
        outcome = await memories.capture(draft, who=actor_name(ctx, draft.author))
        if outcome.is_new:
            self._access.notify_webhooks("captured", outcome.record)
        ctx.info(
            f"Captured memory {outcome.record.id}" if outcome.is_new else f"Duplicate of memory {outcome.record.id}",
            self._access.prefix,
        )
        return results.to_capture_result(outcome, self._access.prefix, passed, validation.replacement_note(content))

    async def recall(
        self,
        ctx: Context,
        query: Annotated[str | None, "Question or keywords; omit to list the newest"] = None,
        filter: FilterExpression = None,
        namespace: Annotated[NamespaceName | None, "Namespace to search; default all"] = None,
        mode: Annotated[Literal["hybrid", "vector", "text"], "Full-text, vector or hybrid (default)"] = "hybrid",
        detail: Annotated[
            Literal["light", "medium", "everything"],
            "Content per hit: light (a line), medium (default, a paragraph) or everything",
        ] = "medium",
        limit: Annotated[
            int | None, Meta(ge=1, le=MAX_RESULTS, description="Maximum results; default 10 with a query, 50 without")
        ] = None,
        offset: Annotated[int, Meta(ge=0, le=1_000_000, description="Results to skip")] = 0,
        cursor: Annotated[str | None, "`nextCursor` from the previous page"] = None,
        entity: Annotated[str | None, "Person, technology or file that must be mentioned"] = None,
        as_of: Annotated[str | None, "Search memories as they were at this time, ISO 8601"] = None,
        explain: Annotated[bool, "Add reasons"] = False,
    ) -> results.RecallResult:
        """Search stored memories and return the best matches, ranked.

        Use it before asking the user for something they may have said already, and before a decision that may exist.
        `match: weak` marks poor matches; `nothing_known`: all are poor. memory_get returns truncated content in full.
        """
        memories = await self._access.store(ctx)
        if namespace is not None:
            validate_readable_namespace(namespace)
        parsed_filter = memories.filter(filter).with_condition("ns", namespace).with_condition("entity", entity)
        # Some clients send * for “everything”.
        searching = (query or "").strip() not in ("", "*") or bool(parsed_filter.words)
        count = limit or (DEFAULT_SEARCH_LIMIT if searching else DEFAULT_LIST_LIMIT)
        moment = None if as_of is None else validation.parse_timestamp(as_of)
        # A list continues after the last memory shown, even if newer ones were added in between.
        # Two kinds of cursors: a key (`time.id`) for lists, an offset for ranked results, which have no stable key.
        after = validation.parse_cursor(cursor) if cursor is not None and "." in cursor else None
        start = validation.parse_offset_cursor(cursor) if cursor is not None and after is None else offset
        page = await memories.recall(
            query or "",
            parsed_filter,
            limit=count,
            offset=0 if after else start,
            after=after,
            as_of=moment,
            mode=mode,
            explain=explain,
        )
        prefix = self._access.prefix
        hits = [
            results.from_project(
                results.to_scored_hit(hit, prefix, detail) if searching else results.to_hit(hit.record, prefix, detail),
                hit.record,
                memories.project_scopes,
            )
            for hit in page.hits
        ]
        filter_notes = [_unknown_conditions_note(parsed_filter), await _unknown_projects_note(memories, parsed_filter)]
        ctx.debug(f"Found {len(hits)} in {memories.project}, by {memories.resolve_mode(mode)}", self._access.prefix)
        return results.RecallResult(
            count=len(hits),
            memories=hits,
            mode=memories.resolve_mode(mode),
            nothing_known=page.nothing_known,
            note=" ".join(filter_note for filter_note in (*filter_notes, page.note) if filter_note) or None,
            next_cursor=validation.make_cursor(page.last) if page.last else str(start + count) if page.more else None,
        )

    async def get(self, ctx: Context, memory_id: MemoryId) -> results.MemoryDetail:
        """Return one memory in full with all its metadata. Use memory_recall to find the id."""
        return results.to_detail(
            await (await self._access.store(ctx, any_project=True)).get(memory_id), self._access.prefix
        )

    async def update(
        self,
        ctx: Context,
        memory_id: MemoryId,
        content: Annotated[str | None, "New content, replaces the old text"] = None,
        tags: Annotated[list[str] | None, "New tags, replace the old list"] = None,
        namespace: Annotated[NamespaceName | None, "New namespace"] = None,
        status: Annotated[Literal["active", "archived", "superseded", "pending"] | None, "New status"] = None,
        ttl: Annotated[str | None, "New lifetime from now, e.g. 7d; 0 for no expiry"] = None,
        expected_version: Annotated[int | None, "Version you last read; fails if changed since"] = None,
        reason: Annotated[str, "Reason recorded in the history"] = "",
    ) -> results.MemoryDetail:
        """Change a stored memory in place; the previous version stays in its history.

        Only the given fields change. To record a new fact, use memory_capture.
        """
        memories = await self._access.writable_store(ctx, any_project=True)
        passed = await self._access.screening.screen(
            validation.check_length(content or ""),
            validation.check_label_length(reason, "reason"),
            *validation.check_tags(tags or ()),
        )
        screened, kept_reason, *kept_tags = passed.texts
        after = await memories.update(
            memory_id,
            content=None if content is None else screened,
            tags=None if tags is None else kept_tags,
            namespace=namespace,
            status=status,
            ttl=ttl,
            expected_version=expected_version,
            who=actor_name(ctx),
            reason=validation.validate_label(kept_reason, "reason") or "",
        )
        self._access.notify_webhooks("updated", after)
        return results.to_detail(
            after, self._access.prefix, [*passed.notes(), *validation.replacement_note(content or "")]
        )

    async def delete(
        self,
        ctx: Context,
        memory_id: MemoryId,
        hard: Annotated[bool, "Delete permanently, including history; default false"] = False,
        expected_version: Annotated[int | None, "Version you last read; fails if changed since"] = None,
        reason: Annotated[str, "Reason recorded in the history"] = "",
    ) -> results.DeleteResult:
        """Delete one memory. By default it can be restored with memory_restore; `hard` also removes its history.

        For many memories use memory_delete_all.
        """
        memories = await self._access.writable_store(ctx, any_project=True)
        # The reason is stored in the history, so it is screened like content.
        (kept_reason,) = (await self._access.screening.screen(validation.check_label_length(reason, "reason"))).texts
        removed = await memories.delete(
            memory_id,
            hard=hard,
            expected_version=expected_version,
            who=actor_name(ctx),
            reason=validation.validate_label(kept_reason, "reason") or "",
        )
        self._access.notify_webhooks("deleted", removed)
        note = "Deleted permanently." if hard else f"{self._access.prefix}_restore restores it."
        return results.DeleteResult(id=removed.id, deleted=True, hard=hard, note=note)

    async def restore(self, ctx: Context, memory_id: MemoryId) -> results.MemoryDetail:
        """Restore a memory that was deleted, archived, superseded or merged. Returns the restored memory."""
        back = await (await self._access.writable_store(ctx, any_project=True)).restore(memory_id, who=actor_name(ctx))
        self._access.notify_webhooks("restored", back)
        return results.to_detail(back, self._access.prefix)

    async def history(
        self,
        ctx: Context,
        memory_id: MemoryId,
        limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="Maximum number of versions")] = 20,
    ) -> results.MemoryHistory:
        """Return the earlier versions of a memory, newest first, with who changed it, when and why."""
        return results.to_history(*await (await self._access.store(ctx, any_project=True)).history(memory_id, limit))

    async def delete_all(
        self,
        ctx: Context,
        filter: Annotated[
            str,
            Meta(
                max_length=MAX_FILTER_CHARS,
                description="Filter expression, same syntax as memory_recall; conditions only",
            ),
        ],
        dry_run: Annotated[bool, "Report what would be deleted without deleting; default true"] = True,
        hard: Annotated[bool, "Delete permanently, including history; default false"] = False,
    ) -> results.DeleteAllResult:
        """Delete every memory that matches a filter.

        Runs as a dry run by default: show the user the result before repeating the call with dry_run=false.
        """
        memories = await (self._access.store(ctx) if dry_run else self._access.writable_store(ctx))
        swept = await memories.delete_all(
            memories.filter(filter), dry_run=dry_run, hard=hard, who=actor_name(ctx), done=ctx.report_progress
        )
        note = "Nothing was deleted. Repeat the call with dry_run=false to delete." if dry_run else "Deleted."
        return results.DeleteAllResult(count=swept.count, ids=swept.ids, dry_run=dry_run, note=note)


def _unknown_conditions_note(filter: MemoryFilter) -> str | None:
    """Return a note about words of a filter that were searched as text because their key is unknown, or None."""
    words = filter.unknown_conditions
    if not words:
        return None
    keys = ", ".join(FILTER_KEYS)
    return f"Not a condition, searched as text: {one_line(' '.join(words), 80)}. The keys of a filter are {keys}."


async def _unknown_projects_note(memories: MemoryStore, filter: MemoryFilter) -> str | None:
    """Return a note about projects in a filter that have no memories, or None. Their absence looks like a mistake."""
    names = {name for item in filter.conditions if item.key == "project" for name in item.values} - {"*"}
    if not names:
        return None
    projects = await memories.read(statistics.projects)
    # A filter has each name as written and normalized; one of the two is enough.
    unknown = sorted(name for name in names if not {name, git_project.normalize_project_name(name)} & {*projects})
    if not unknown:
        return None
    return (
        f"No memories in the project {one_line(', '.join(unknown), 80)}; projects with memories: "
        f"{one_line(', '.join(projects), 400) or 'none'}."
    )
