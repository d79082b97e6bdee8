"""Resources of the extras: summaries, saved prompts and the entity graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from portico import Context
from portico.extend import Call, CallerCompleter, Completer, CompletionBinding, Component
from portico_services.database_service import choice_completer
from portico_services.memory.errors import InvalidInput, SavedPromptNotFound
from portico_services.memory.extras import graph, saved_prompts
from portico_services.memory.extras.saved_prompts import SavedPrompt
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.namespaces import DOMAINS
from portico_services.memory.tools import results
from portico_services.memory.tools.context import MemoryToolContext
from portico_services.memory.tools.resources import MAX_LISTED_MEMORIES, MemoryListing, list_memories


class SummaryDetail(Struct, frozen=True, kw_only=True):
    """A summary with the memories it replaces."""

    memory: Annotated[results.MemoryDetail, "The summary"]
    sources: Annotated[list[results.MemoryHit], "Memories it replaces"]


class SavedPromptSummary(Struct, frozen=True):
    """A saved prompt in a listing."""

    name: str
    domain: str
    description: str
    variables: list[str]
    uri: str


class SavedPromptListing(Struct, frozen=True):
    count: int
    prompts: list[SavedPromptSummary]


class ExtraResources:
    def __init__(self, access: MemoryToolContext, watch: Callable[[str], None]) -> None:
        self._access = access
        self._watch = watch

    def offers(self) -> Iterator[Component]:
        at = f"{self._access.prefix}://"
        yield self._access.resource(self._summaries, f"{at}summaries", name="Summaries")
        yield self._access.resource(self._summary, f"{at}summaries/{{id}}", name="A summary")
        yield self._access.resource(self._saved_prompts, f"{at}_prompts", name="Saved Prompts")
        yield self._access.resource(self._saved_in, f"{at}{{domain}}/_prompts", name="Saved prompts of a domain")
        yield self._access.resource(self._saved_one, f"{at}{{domain}}/_prompts/{{name}}", name="A saved prompt")
        yield CompletionBinding(
            f"{at}{{domain}}/_prompts/{{name}}", "domain", Completer(choice_completer((*DOMAINS, "_")))
        )
        yield CompletionBinding(f"{at}{{domain}}/_prompts/{{name}}", "name", CallerCompleter(self._complete_saved))
        yield self._access.resource(self._entity_graph, f"{at}graph/{{entity}}", name="Entity neighbourhood")
        yield CompletionBinding(f"{at}graph/{{entity}}", "entity", CallerCompleter(self._complete_entity))

    async def _summaries(self, ctx: Context) -> MemoryListing:
        """Summaries created by memory_consolidate"""
        self._watch("summaries")
        return await list_memories(self._access, ctx, MemoryFilter().with_condition("tag", "summary"))

    async def _summary(self, ctx: Context, id: str) -> SummaryDetail:
        """One summary with the memories it replaces"""
        return await get_summary(self._access, id, ctx)

    async def _saved_prompts(self, ctx: Context) -> SavedPromptListing:
        """Saved prompt templates; each is also listed as an MCP prompt"""
        return await self._list_saved(ctx, "_")

    async def _saved_in(self, ctx: Context, domain: str) -> SavedPromptListing | None:
        """Saved prompt templates of one domain"""
        return await self._list_saved(ctx, domain) if domain in (*DOMAINS, "_") else None

    async def _saved_one(self, ctx: Context, domain: str, name: str) -> SavedPrompt:
        """One saved prompt template with its text"""
        for template in await self._templates(ctx):
            # _ stands for any domain.
            if template.name == name and domain in (template.domain, "_"):
                return template
        raise SavedPromptNotFound(f"Saved prompt {name[:80]!r} not found in {domain[:80]}.")

    async def _list_saved(self, ctx: Context, domain: str) -> SavedPromptListing:
        templates = [template for template in await self._templates(ctx) if domain in (template.domain, "_")]
        return SavedPromptListing(len(templates), [self._saved_line(template) for template in templates])

    def _saved_line(self, item: SavedPrompt) -> SavedPromptSummary:
        uri = f"{self._access.prefix}://{item.domain}/_prompts/{item.name}"
        return SavedPromptSummary(item.name, item.domain, item.description, list(item.variables), uri)

    async def _templates(self, ctx: Context) -> list[SavedPrompt]:
        memories = await self._access.store(ctx)
        result = await memories.read(lambda tx: saved_prompts.list_visible(tx, memories.project_scopes, memories.owner))
        # In the user domain the project holds the owner key, which is internal.
        return [item if item.domain == "project" else replace(item, project="") for item in result]

    async def _entity_graph(self, ctx: Context, entity: str) -> graph.EntityGraph | None:
        """Relations and co-mentions of one entity in the memory graph"""
        self._watch(f"graph/{quote(entity, safe='')}")
        memories = await self._access.store(ctx, any_project=True)
        try:
            return await memories.read(
                lambda tx: graph.neighbours(tx, entity, 1, MAX_LISTED_MEMORIES, owner=memories.owner)
            )
        except InvalidInput:
            return None

    async def _complete_saved(self, typed: str, call: Call) -> list[str]:
        memories = await self._access.memories_for(call)
        result = await memories.read(lambda tx: saved_prompts.list_visible(tx, memories.project_scopes, memories.owner))
        return [item.name for item in result if item.name.startswith(typed)]

    async def _complete_entity(self, typed: str, call: Call) -> list[str]:
        memories = await self._access.memories_for(call)
        # Ordered by mentions, so the first thousand are the ones a user is likely to type.
        result = await memories.read(lambda tx: graph.list_entities(tx, None, 1000, owner=memories.owner))
        return [item.name for item in result if item.name.casefold().startswith(typed.casefold())][:MAX_LISTED_MEMORIES]


async def get_summary(access: MemoryToolContext, id: str, ctx: Context) -> SummaryDetail:
    # Imported here because only summaries need it.
    from portico_services.memory.extras import consolidation

    memories = await access.store(ctx)
    record = await memories.get(id)
    sources = await memories.read(lambda tx: consolidation.summary_sources(tx, record, memories.owner))
    return SummaryDetail(
        memory=results.to_detail(record, access.prefix),
        sources=[results.to_hit(source, access.prefix, "medium") for source in sources],
    )
