"""Overview tools: status, namespaces, conflicts, session start and usage guide."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from portico import Context
from portico_services.database_service import actor_name
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import conflicts, statistics
from portico_services.memory.store.conflicts import ConflictChoice, MemoryConflict
from portico_services.memory.store.namespaces import NAMESPACES
from portico_services.memory.tools import resources, results
from portico_services.memory.tools.context import MemoryToolContext

MAX_BRIEFING_MEMORIES = 20


class ConflictReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of memory_conflicts."""

    count: Annotated[int, "Number of conflicts"]
    conflicts: Annotated[list[MemoryConflict], "Pairs that seem to contradict each other"]
    superseded: Annotated[list[str], "Ids of superseded memories"] = field(default_factory=list)
    note: Annotated[str | None, "Outcome, or next step"] = None


class SessionBriefing(Struct, frozen=True, kw_only=True):
    """Result of memory_init."""

    guide: Annotated[str, "Short usage guide"]
    total: Annotated[int, "Number of memories"]
    by_namespace: Annotated[dict[str, int], "Number of memories by namespace"]
    project: Annotated[str | None, "Current project, if known"]
    memories: Annotated[list[results.MemoryHit], "Relevant memories"]


class UsageGuide(Struct, frozen=True, kw_only=True):
    """Result of memory_guide."""

    text: Annotated[str, "Guide in Markdown"]


class OverviewTools:
    def __init__(self, access: MemoryToolContext) -> None:
        self._access = access

    async def status(self, ctx: Context) -> results.MemoryStatus:
        """Return counts of stored memories by namespace, domain, status and project, and the search index state."""
        return await resources.get_status(self._access, ctx)

    async def namespaces(self, ctx: Context) -> results.NamespaceList:
        """List the namespaces with their purpose and number of memories. Use it to choose a namespace for
        memory_capture.
        """
        memories = await self._access.store(ctx)
        counts = await memories.read(lambda tx: statistics.count_by_namespace(tx, memories.owner))
        return results.NamespaceList(
            namespaces=[
                results.NamespaceInfo(
                    name=namespace.name,
                    about=namespace.about,
                    signals=list(namespace.signals),
                    writable=namespace.writable,
                    count=counts.get(namespace.name, 0),
                )
                for namespace in NAMESPACES.values()
            ]
        )

    async def conflicts(
        self,
        ctx: Context,
        action: Annotated[Literal["list", "resolve"], "list (default) or resolve"] = "list",
        memory_id: Annotated[str | None, Meta(max_length=300, description="For resolve: first memory id")] = None,
        other_id: Annotated[str | None, Meta(max_length=300, description="For resolve: second memory id")] = None,
        keep: Annotated[
            ConflictChoice, "For resolve: this, other, or both (not a contradiction); the rejected one is superseded"
        ] = "both",
        limit: Annotated[
            int, Meta(ge=1, le=conflicts.MAX_LISTED_CONFLICTS, description="Maximum number of conflicts")
        ] = 50,
    ) -> ConflictReport:
        """List memories that contradict each other, or resolve one contradiction.

        Ask the user which statement is correct before resolving.
        """
        if action == "list":
            result = await conflicts.list_conflicts(await self._access.store(ctx), limit)
            return ConflictReport(count=len(result), conflicts=result)
        if memory_id is None or other_id is None:
            raise InvalidInput("The action resolve requires memory_id and other_id.")
        resolved = await conflicts.resolve_conflict(
            await self._access.writable_store(ctx), memory_id, other_id, keep, who=actor_name(ctx)
        )
        # Return the remaining conflicts, so that the model can continue without another call.
        left = await conflicts.list_conflicts(await self._access.store(ctx), limit)
        note = f"{self._access.prefix}_restore restores it." if resolved else "Both memories stay unchanged."
        return ConflictReport(count=len(left), conflicts=left, superseded=resolved, note=note)

    async def init(
        self,
        ctx: Context,
        include_recall: Annotated[bool, "Include memories; default true"] = True,
        recall_query: Annotated[str, "Topic of the session; default: newest memories"] = "",
        recall_limit: Annotated[
            int, Meta(ge=1, le=MAX_BRIEFING_MEMORIES, description="Number of memories; default 5")
        ] = 5,
    ) -> SessionBriefing:
        """Start a session: return a short usage guide, memory counts and relevant memories in one call."""
        memories = await self._access.store(ctx)
        counts = await memories.read(lambda tx: statistics.count_by_namespace(tx, memories.owner))
        # Light hits: a session start goes into every context, so each memory costs one line.
        result: list[results.MemoryHit] = []
        if include_recall:
            page = await memories.recall(recall_query, memories.filter(""), limit=recall_limit)
            result = [results.to_hit(hit.record, self._access.prefix, "light") for hit in page.hits]
        return SessionBriefing(
            # Only the sections needed to start; memory_guide returns all of them.
            guide=resources.beginning(self._access.prefix),
            total=sum(counts.values()),
            by_namespace=dict(sorted(counts.items())),
            project=memories.project,
            memories=result,
        )

    async def guide(self, ctx: Context) -> UsageGuide:
        """Return the usage guide for this memory (same text as the resource memory://help)."""
        return UsageGuide(text=resources.help_page(self._access.prefix))
