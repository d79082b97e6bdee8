"""The tools that describe the memory as a whole: status, namespaces, conflicts, summaries, how to begin a session."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from portico import Context
from portico_services import timestamps
from portico_services.database_service import copied, requester
from portico_services.memory.errors import InvalidInput
from portico_services.memory.extras import consolidation
from portico_services.memory.store import conflicts, statistics
from portico_services.memory.store.conflicts import Dispute, Keep
from portico_services.memory.store.namespaces import NAMESPACES
from portico_services.memory.tools import prompts, results
from portico_services.memory.tools.context import Access

MOST_AT_THE_BEGINNING = 20


class Disputed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    count: Annotated[int, "How many there are"]
    conflicts: Annotated[list[Dispute], "The pairs that seem to contradict each other"]
    superseded: Annotated[list[str], "The ids of those that gave way"] = field(default_factory=list)
    note: Annotated[str | None, "What was left out, or what to do"] = None


class Summary(Struct, frozen=True, kw_only=True):
    """A memory that sums others up, and those it stands for."""

    memory: Annotated[results.Whole, "The one that sums up"]
    sources: Annotated[list[results.FoundMemory], "The memories that it was made from"]


class Beginning(Struct, frozen=True, kw_only=True):
    guide: Annotated[str, "How this memory is used"]
    total: Annotated[int, "How many memories there are"]
    by_namespace: Annotated[dict[str, int], "How many there are in each namespace"]
    project: Annotated[str | None, "The project that is worked on, where it is known"]
    memories: Annotated[list[results.FoundMemory], "Those that matter first"]


class Guide(Struct, frozen=True, kw_only=True):
    text: Annotated[str, "The guide, in Markdown"]


class OverviewTools:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def status(self, ctx: Context) -> results.Standing:
        """How many memories there are, of which kinds, and how they are kept."""
        return await status_of(self._access, ctx)

    async def namespaces(self, ctx: Context) -> results.Namespaces:
        """The namespaces: what each is for, and how many memories it has."""
        memories = await self._access.memories(ctx)
        counts = await memories.read(lambda tx: statistics.by_namespace(tx, memories.owner))
        return results.Namespaces(
            namespaces=[
                results.NamespaceCount(
                    name=one.name,
                    about=one.about,
                    signals=list(one.signals),
                    writable=one.writable,
                    count=counts.get(one.name, 0),
                )
                for one in NAMESPACES.values()
            ]
        )

    async def conflicts(
        self,
        ctx: Context,
        action: Annotated[Literal["list", "resolve"], "list: what is undecided; resolve: decide about one"] = "list",
        memory_id: Annotated[str | None, Meta(max_length=300, description="For resolve: one of the two")] = None,
        other_id: Annotated[str | None, Meta(max_length=300, description="For resolve: the other")] = None,
        keep: Annotated[
            Keep, "For resolve: which of them holds; the other is superseded. both: it is no contradiction"
        ] = "both",
        limit: Annotated[int, Meta(ge=1, le=conflicts.MOST_LISTED, description="At most so many")] = 50,
    ) -> Disputed:
        """Memories that contradict each other, until one of them is decided for. Ask the user which of them holds."""
        if action == "list":
            found = await conflicts.disputes(await self._access.memories(ctx), limit)
            return Disputed(count=len(found), conflicts=found)
        if memory_id is None or other_id is None:
            raise InvalidInput("The action resolve needs memory_id and other_id.")
        gone = await conflicts.settle(await self._access.writable(ctx), memory_id, other_id, keep, who=requester(ctx))
        left = await conflicts.disputes(await self._access.memories(ctx), limit)
        note = f"{self._access.prefix}_restore brings it back." if gone else "Both stay as they are."
        return Disputed(count=len(left), conflicts=left, superseded=gone, note=note)

    async def summary(
        self,
        ctx: Context,
        memory_id: Annotated[str, Meta(min_length=1, max_length=300, description="The id of a summary, or its URN")],
    ) -> Summary:
        """A summary that memory_consolidate made, and the memories it stands for."""
        return await summary_of(self._access, memory_id, ctx)

    async def init(
        self,
        ctx: Context,
        include_recall: Annotated[bool, "Also show memories"] = True,
        recall_query: Annotated[str, "What the session is about; left out: the newest"] = "",
        recall_limit: Annotated[int, Meta(ge=1, le=MOST_AT_THE_BEGINNING, description="How many memories")] = 5,
    ) -> Beginning:
        """Everything to begin a session with, in one call: how to use this, how much there is, and what is known."""
        memories = await self._access.memories(ctx)
        counts = await memories.read(lambda tx: statistics.by_namespace(tx, memories.owner))
        found: list[results.FoundMemory] = []
        if include_recall:
            page = await memories.recall(recall_query, memories.filter(""), limit=recall_limit)
            found = [results.found(hit.record, self._access.prefix, "light") for hit in page.hits]
        return Beginning(
            guide=prompts.beginning(self._access.prefix),
            total=sum(counts.values()),
            by_namespace=dict(sorted(counts.items())),
            project=memories.project,
            memories=found,
        )

    async def guide(self, ctx: Context) -> Guide:
        """How to use this memory: the same as the resource help."""
        return Guide(text=prompts.help_page(self._access.prefix))


async def status_of(access: Access, ctx: Context) -> results.Standing:
    memories = await access.memories(ctx)
    counts = await memories.read(lambda tx: statistics.counts(tx, memories.owner))
    return copied(
        counts,
        results.Standing,
        timestamps.written,
        storage=memories.database.engine,
        secrets=access.guard.rules.secrets,
        personal=access.guard.rules.personal,
        modes=memories.modes,
        model=memories.model,
        project=memories.project,
        newest=None if counts.newest is None else timestamps.written(counts.newest),
        oldest=None if counts.oldest is None else timestamps.written(counts.oldest),
    )


async def summary_of(access: Access, id: str, ctx: Context) -> Summary:
    memories = await access.memories(ctx)
    record = await memories.get(id)
    sources = await memories.read(lambda tx: consolidation.sources(tx, record, memories.owner))
    return Summary(
        memory=results.whole(record, access.prefix),
        sources=[results.found(one, access.prefix, "medium") for one in sources],
    )
