"""Maintenance tools: garbage collection, sync, export, import, erasure and reindexing."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from portico import Context, __version__
from portico_services.database_service import actor_name
from portico_services.memory import export_import
from portico_services.memory.errors import InvalidInput
from portico_services.memory.export_import import MAX_EXPORTED_MEMORIES, MAX_IMPORT_CHARS, ImportReport
from portico_services.memory.store import garbage_collection, validation
from portico_services.memory.store.garbage_collection import GarbageCollectionReport
from portico_services.memory.sync import engine as sync
from portico_services.memory.sync.engine import SyncDirection, SyncReport
from portico_services.memory.sync.serialization import ExportFormat
from portico_services.memory.tools.context import DryRun, MemoryToolContext, OptionalFilter


class ExportResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of memory_export."""

    format: Annotated[str, "Format of the data"]
    count: Annotated[int, "Number of memories"]
    data: Annotated[str, "Exported memories"]
    next_cursor: Annotated[str | None, "Cursor of the next page; null on the last"] = field(
        default=None, name="nextCursor"
    )


class MaintenanceResult(Struct, frozen=True, kw_only=True):
    """Result of memory_erase and memory_reindex."""

    count: Annotated[int, "Number of memories"]
    note: Annotated[str, "Outcome"]


class MaintenanceTools:
    def __init__(self, access: MemoryToolContext) -> None:
        self._access = access

    async def gc(
        self,
        ctx: Context,
        dry_run: DryRun = True,
        branch: Annotated[str | None, "Finished branch whose memories should be archived"] = None,
        purge: Annotated[bool, "Permanently remove memories deleted long ago"] = False,
        older_than: Annotated[str | None, "Age for purge, e.g. 30d (default)"] = None,
    ) -> GarbageCollectionReport:
        """Remove expired memories, archive the memories of a finished branch, and purge old deletions.

        Runs as a dry run by default.
        """
        memories = await (self._access.store(ctx) if dry_run else self._access.writable_store(ctx))
        return await garbage_collection.collect_garbage(
            memories, dry_run=dry_run, branch=branch, purge=purge, older_than=older_than, done=ctx.report_progress
        )

    async def sync(
        self,
        ctx: Context,
        direction: Annotated[SyncDirection, "push, fetch, or full (default, both)"] = "full",
        remote: Annotated[str | None, "Git remote name; default origin"] = None,
        confirm: Annotated[bool, "Apply even if the remote deleted many memories"] = False,
        undo: Annotated[str | None, "Run id of a sync whose deletions should be reverted"] = None,
    ) -> SyncReport:
        """Synchronise the project's memories with its other clones through a ref in the git repository.

        Concurrent edits are merged; unresolvable ones are returned in `conflicts` and the losing text stays in the
        history. Imported memories carry `origin` (commit and author).
        """
        memories = await self._access.writable_store(ctx)
        # `undo` takes precedence: it must not run a new sync that could delete the restored memories again.
        if undo is not None:
            back = await sync.undo_sync(memories, undo, who=actor_name(ctx))
            return SyncReport(remote=remote or "", restored=len(back))
        # The version is part of the policy: a newer release may detect more, and rejected files get another chance.
        guard = self._access.screening
        return await sync.sync_memories(
            memories,
            direction=direction,
            remote=remote,
            screen=guard.screen_text,
            lens=f"{__version__} {guard.describe}",
            who=actor_name(ctx),
            confirm=confirm,
        )

    async def export(
        self,
        ctx: Context,
        filter: OptionalFilter = None,
        format: Annotated[ExportFormat, "jsonl (default, one memory per line) or markdown (for reading)"] = "jsonl",
        limit: Annotated[int, Meta(ge=1, le=MAX_EXPORTED_MEMORIES, description="Memories per page")] = 100,
        cursor: Annotated[str | None, "`nextCursor` from the previous page"] = None,
    ) -> ExportResult:
        """Export memories as text that memory_import accepts, page by page: from this project, the user and the
        organisation.

        The filter project:* adds all other projects.
        """
        memories = await self._access.store(ctx)
        # Pages continue after a key, so memories captured between two pages neither repeat nor hide others.
        after = None if cursor is None else validation.parse_cursor(cursor)
        data, count, last = await export_import.export_memories(
            memories, memories.filter(filter), format, limit=limit, after=after
        )
        return ExportResult(format=format, count=count, data=data, next_cursor=last and validation.make_cursor(last))

    async def import_(
        self,
        ctx: Context,
        data: Annotated[str, Meta(max_length=MAX_IMPORT_CHARS, description="Text produced by memory_export")],
        format: Annotated[ExportFormat, "Format of the data; default jsonl"] = "jsonl",
        dry_run: DryRun = False,
    ) -> ImportReport:
        """Import memories produced by memory_export.

        A memory that exists already is replaced only by a newer version of itself. Returns counts of added, updated,
        unchanged and rejected memories.
        """
        memories = await (self._access.store(ctx) if dry_run else self._access.writable_store(ctx))
        return await export_import.import_memories(
            memories,
            data,
            format,
            screen=self._access.screening.screen_text,
            who=actor_name(ctx),
            dry_run=dry_run,
            done=ctx.report_progress,
        )

    async def erase(
        self,
        ctx: Context,
        memory_id: Annotated[str | None, "Memory to erase"] = None,
        author: Annotated[str | None, "Erase everything by this author"] = None,
        filter: OptionalFilter = None,
        confirm: Annotated[bool, "Must be true to erase; default false"] = False,
    ) -> MaintenanceResult:
        """Permanently erase memories with their history and derived data, e.g. for a privacy (GDPR) request.

        Requires confirm=true. For ordinary deletion use memory_delete.
        """
        memories = await self._access.writable_store(ctx)
        # A model must not erase on its own initiative; the hint sends it back to the user.
        if not confirm:
            raise InvalidInput("Erasure cannot be undone. Ask the user, then repeat the call with confirm=true.")
        # Erasure crosses projects: a request to be forgotten is not limited to the current one.
        parsed_filter = None if filter is None else memories.filter(f"project:* {filter}")
        count = await garbage_collection.erase_memories(
            memories, id=memory_id, author=author, filter=parsed_filter, done=ctx.report_progress
        )
        return MaintenanceResult(count=count, note="Erased. Synced clones delete them at their next sync.")

    async def reindex(self, ctx: Context) -> MaintenanceResult:
        """Rebuild the search index from the stored memories. Use only when search results are incomplete."""
        memories = await self._access.writable_store(ctx)

        def done(count: int, total: int) -> None:
            ctx.report_progress(count, total)

        return MaintenanceResult(count=await memories.reindex(done), note="The index was rebuilt.")
