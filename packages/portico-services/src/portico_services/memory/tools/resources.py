"""The resources: help, listings, single memories, searches, topics, summaries, saved prompts, the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from portico import Context
from portico._lazy import LazyModule
from portico.extend import Call, CallerCompleter, Completer, Completes, Component, LateResource
from portico_services import text, timestamps
from portico_services.database_service import among
from portico_services.memory.errors import InvalidInput, NoSuchMemory, NoSuchPrompt
from portico_services.memory.extras import graph, saved_prompts
from portico_services.memory.extras.saved_prompts import SavedPrompt
from portico_services.memory.store import listing as selection
from portico_services.memory.store import records, statistics
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.namespaces import DOMAINS, NAMESPACES
from portico_services.memory.tools import prompts, results
from portico_services.memory.tools.context import Access
from portico_services.memory.tools.wrapper import Body

if TYPE_CHECKING:
    from portico_services.memory.tools import overview
else:
    overview = LazyModule("portico_services.memory.tools.overview")

MOST_LISTED, MOST_COUNTED = 100, 2000
JSON, MARKDOWN = "application/json", "text/markdown"


class MemoryLine(Struct, frozen=True, omit_defaults=True):
    """One memory in a listing: enough to decide whether to read it."""

    id: str
    ns: str
    tags: list[str]
    uri: str
    summary: str
    origin: str | None = None


class Listing(Struct, frozen=True, omit_defaults=True):
    # How many there are, of which the newest are shown.
    count: int
    memories: list[MemoryLine]
    # Very many are not counted to the end.
    at_least: bool = False


class SavedLine(Struct, frozen=True):
    """One saved prompt in a listing."""

    name: str
    domain: str
    description: str
    variables: list[str]
    uri: str


class SavedListing(Struct, frozen=True):
    count: int
    prompts: list[SavedLine]


class MemoryResources:
    def __init__(self, access: Access, watch: Callable[[str], None]) -> None:
        self._access = access
        self._watch = watch

    def offers(self) -> Iterator[Component]:
        at = f"{self._access.prefix}://"
        listing = "List {}-scoped memories"
        yield self._resource(self._help, f"{at}help", name="Help Documentation", mime_type=MARKDOWN)
        yield self._resource(self._help_topic, f"{at}help/{{topic}}", name="Help on a topic", mime_type=MARKDOWN)
        yield Completes(f"{at}help/{{topic}}", "topic", Completer(among(text.sections(prompts.HELP))))
        for domain in DOMAINS:
            name = f"{domain.capitalize()} Memories"
            about = listing.format(domain)
            yield self._resource(self._of_domain(domain), f"{at}{domain}", name=name, description=about)
        yield self._resource(self._everything, f"{at}_", name="All Memories")
        yield self._resource(self._namespace_table, f"{at}namespaces", name="Namespaces")
        yield self._resource(self._topics, f"{at}topics", name="Topics")
        yield self._resource(self._of_topic, f"{at}topics/{{topic}}", name="Memories on a topic")
        yield Completes(f"{at}topics/{{topic}}", "topic", CallerCompleter(self._access.complete_topic))
        yield self._resource(self.listed, f"{at}{{domain}}/{{namespace}}", name="A namespace")
        yield Completes(f"{at}{{domain}}/{{namespace}}", "domain", Completer(among((*DOMAINS, "_"))))
        yield Completes(f"{at}{{domain}}/{{namespace}}", "namespace", Completer(among((*NAMESPACES, "_"))))
        yield self._resource(self._by_urn, f"{at}{{domain}}/{{namespace}}/{{id}}", name="A memory")
        yield self._resource(self._by_id, f"{at}memory/{{id}}", name="A memory by its id")
        yield self._resource(self._search, f"{at}search/{{query}}", name="A search")
        yield self._resource(self._status, f"{at}status", name="Status")
        yield self._resource(self._summaries, f"{at}summaries", name="Summaries")
        yield self._resource(self._summary, f"{at}summaries/{{id}}", name="A summary")
        yield self._resource(self._saved_prompts, f"{at}_prompts", name="Saved Prompts")
        yield self._resource(
            self._saved_in, f"{at}{{domain}}/_prompts", name="Saved prompts of a domain", mime_type=JSON
        )
        yield self._resource(
            self._saved_one, f"{at}{{domain}}/_prompts/{{name}}", name="A saved prompt", mime_type=JSON
        )
        yield Completes(f"{at}{{domain}}/_prompts/{{name}}", "domain", Completer(among((*DOMAINS, "_"))))
        yield Completes(f"{at}{{domain}}/_prompts/{{name}}", "name", CallerCompleter(self._complete_saved))
        yield self._resource(self._around, f"{at}graph/{{entity}}", name="What is around an entity")
        yield Completes(f"{at}graph/{{entity}}", "entity", CallerCompleter(self._complete_entity))

    def _resource(
        self, body: Body, uri: str, name: str, *, mime_type: str = JSON, description: str | None = None
    ) -> LateResource:
        def load() -> Body:
            return self._access.speaking(body, f"reading {uri}", resource=True)

        return LateResource(load, uri, name=name, mime_type=mime_type, description=description)

    async def _help(self, ctx: Context) -> str:
        """What this memory is and how to use it"""
        return prompts.help_page(self._access.prefix)

    async def _help_topic(self, ctx: Context, topic: str) -> str | None:
        """Help on setup, concepts, capture, search, workflows, troubleshooting or advanced use"""
        return prompts.help_topic(topic, self._access.prefix)

    def _of_domain(self, domain: str) -> Any:
        async def read(ctx: Context) -> Listing:
            return await self._listing(ctx, MemoryFilter().also("domain", domain))

        return read

    async def _everything(self, ctx: Context) -> Listing:
        """The newest memories of every domain"""
        return await self._listing(ctx, MemoryFilter())

    async def listed(self, ctx: Context, domain: str, namespace: str) -> Listing | None:
        """The memories of one namespace; _ stands for any domain or namespace"""
        domain = "user" if domain == "global" else domain
        if domain not in (*DOMAINS, "_") or namespace not in (*NAMESPACES, "_"):
            return None
        wanted = MemoryFilter().also("domain", None if domain == "_" else domain)
        return await self._listing(ctx, wanted.also("ns", None if namespace == "_" else namespace))

    async def _listing(self, ctx: Context, wanted: MemoryFilter) -> Listing:
        memories, now = await self._access.memories(ctx), timestamps.now()
        wanted = memories.seen(wanted)
        count = await memories.read(lambda tx: selection.count(tx, wanted, at=now, most=MOST_COUNTED))
        found = await memories.read(lambda tx: selection.matching(tx, wanted, limit=MOST_LISTED, at=now))
        return Listing(count, [self._line(one) for one in found], at_least=count == MOST_COUNTED)

    def _line(self, record: records.Record) -> MemoryLine:
        shown = results.found(record, self._access.prefix, "light")
        return MemoryLine(shown.id, shown.namespace, shown.tags, shown.urn, shown.content, shown.origin)

    async def _by_urn(self, ctx: Context, domain: str, namespace: str, id: str) -> results.Whole:
        """One memory by its URN"""
        found = await self._by_id(ctx, id)
        if domain not in (found.domain, "_") or namespace not in (found.namespace, "_"):
            raise NoSuchMemory(id)
        return found

    async def _by_id(self, ctx: Context, id: str) -> results.Whole:
        """One memory with all of its content"""
        try:
            return results.whole(
                await (await self._access.memories(ctx, any_project=True)).get(id), self._access.prefix
            )
        except InvalidInput:
            raise NoSuchMemory(id) from None

    async def _search(self, ctx: Context, query: str) -> results.Recalled:
        """The memories that a search finds, best first"""
        self._watch(f"search/{quote(query, safe='')}")
        memories = await self._access.memories(ctx)
        page = await memories.recall(query, memories.seen(MemoryFilter()), limit=10)
        shown = [results.recalled(hit, self._access.prefix, "medium") for hit in page.hits]
        return results.Recalled(count=len(shown), memories=shown, mode=memories.mode("hybrid"))

    async def _topics(self, ctx: Context) -> dict[str, int]:
        """The tags that memories have, the most frequent first"""
        memories = await self._access.memories(ctx, any_project=True)
        return await memories.read(lambda tx: statistics.topics(tx, MOST_LISTED, owner=memories.owner))

    async def _of_topic(self, ctx: Context, topic: str) -> Listing:
        """The memories with a tag"""
        self._watch(f"topics/{quote(topic, safe='')}")
        return await self._listing(ctx, MemoryFilter().also("tag", topic))

    async def _status(self, ctx: Context) -> results.Standing:
        """How many memories there are, of which kinds, and how they are kept"""
        return await overview.status_of(self._access, ctx)

    async def _summaries(self, ctx: Context) -> Listing:
        """The memories that sum others up"""
        self._watch("summaries")
        return await self._listing(ctx, MemoryFilter().also("tag", "summary"))

    async def _summary(self, ctx: Context, id: str) -> overview.Summary:
        """A memory that sums others up, and those it stands for"""
        return await overview.summary_of(self._access, id, ctx)

    async def _saved_prompts(self, ctx: Context) -> SavedListing:
        """The prompts that were saved; each is also a prompt of this server"""
        return await self._saved(ctx, "_")

    async def _saved_in(self, ctx: Context, domain: str) -> SavedListing | None:
        """The prompts that were saved in one domain"""
        return await self._saved(ctx, domain) if domain in (*DOMAINS, "_") else None

    async def _saved_one(self, ctx: Context, domain: str, name: str) -> SavedPrompt:
        """A saved prompt with its text"""
        for one in await self._templates(ctx):
            if one.name == name and domain in (one.domain, "_"):
                return one
        raise NoSuchPrompt(f"There is no saved prompt {name[:80]!r} in {domain[:80]}.")

    async def _saved(self, ctx: Context, domain: str) -> SavedListing:
        found = [one for one in await self._templates(ctx) if domain in (one.domain, "_")]
        return SavedListing(len(found), [self._saved_line(one) for one in found])

    def _saved_line(self, one: SavedPrompt) -> SavedLine:
        uri = f"{self._access.prefix}://{one.domain}/_prompts/{one.name}"
        return SavedLine(one.name, one.domain, one.description, list(one.variables), uri)

    async def _templates(self, ctx: Context) -> list[SavedPrompt]:
        memories = await self._access.memories(ctx)
        found = await memories.read(lambda tx: saved_prompts.visible(tx, memories.homes, memories.owner))
        # Of the user domain the project holds the key of the owner, which clients do not need.
        return [one if one.domain == "project" else replace(one, project="") for one in found]

    async def _around(self, ctx: Context, entity: str) -> graph.Graph | None:
        """What memories say about a person, a technology or a file, and what is mentioned together with it"""
        self._watch(f"graph/{quote(entity, safe='')}")
        memories = await self._access.memories(ctx, any_project=True)
        try:
            return await memories.read(lambda tx: graph.neighbours(tx, entity, 1, MOST_LISTED, owner=memories.owner))
        except InvalidInput:
            return None

    async def _complete_saved(self, typed: str, call: Call) -> list[str]:
        memories = await self._access.memories_for(call)
        found = await memories.read(lambda tx: saved_prompts.visible(tx, memories.homes, memories.owner))
        return [one.name for one in found if one.name.startswith(typed)]

    async def _complete_entity(self, typed: str, call: Call) -> list[str]:
        memories = await self._access.memories_for(call)
        found = await memories.read(lambda tx: graph.entities(tx, None, 1000, owner=memories.owner))
        return [one.name for one in found if one.name.casefold().startswith(typed.casefold())][:MOST_LISTED]

    async def _namespace_table(self, ctx: Context) -> dict[str, str]:
        """The namespaces and what each is for"""
        return {one.name: one.about for one in NAMESPACES.values()}
