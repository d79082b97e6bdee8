"""Resources: help, listings, single memories, searches, topics and status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from portico import Context
from portico.extend import CallerCompleter, Completer, CompletionBinding, Component
from portico_services import text, timestamps
from portico_services.database_service import choice_completer, copy_to_result
from portico_services.memory.errors import InvalidInput, MemoryNotFound
from portico_services.memory.store import listing as selection, statistics
from portico_services.memory.store.filters import MemoryFilter
from portico_services.memory.store.namespaces import DOMAINS, NAMESPACES
from portico_services.memory.store.records import MemoryRecord
from portico_services.memory.tools import results
from portico_services.memory.tools.context import MemoryToolContext

MAX_LISTED_MEMORIES, MAX_COUNTED_MEMORIES = 100, 2000
MARKDOWN = "text/markdown"
HELP_FILE = Path(__file__).with_name("help.md")


class MemorySummary(Struct, frozen=True, omit_defaults=True):
    """A memory in a listing: enough to decide whether to read it."""

    id: str
    ns: str
    tags: list[str]
    uri: str
    summary: str
    origin: str | None = None


class MemoryListing(Struct, frozen=True, omit_defaults=True):
    """A list of memories, newest first."""

    # Total number; only the newest memories are listed.
    count: int
    memories: list[MemorySummary]
    # Whether counting stopped at MAX_COUNTED_MEMORIES.
    at_least: bool = False


class MemoryResources:
    def __init__(self, access: MemoryToolContext, watch: Callable[[str], None]) -> None:
        self._access = access
        self._watch = watch

    def components(self) -> Iterator[Component]:
        at = f"{self._access.prefix}://"
        listing = "List {}-scoped memories"
        yield self._access.resource(self._read_help, f"{at}help", name="Help Documentation", mime_type=MARKDOWN)
        yield self._access.resource(self._help_topic, f"{at}help/{{topic}}", name="Help on a topic", mime_type=MARKDOWN)
        yield CompletionBinding(
            f"{at}help/{{topic}}", "topic", Completer(choice_completer(text.load_markdown_sections(HELP_FILE)))
        )
        for domain in DOMAINS:
            name = f"{domain.capitalize()} Memories"
            about = listing.format(domain)
            yield self._access.resource(self._of_domain(domain), f"{at}{domain}", name=name, description=about)
        yield self._access.resource(self._list_newest, f"{at}_", name="All Memories")
        yield self._access.resource(self._namespace_table, f"{at}namespaces", name="Namespaces")
        yield self._access.resource(self._topics, f"{at}topics", name="Topics")
        yield self._access.resource(self._of_topic, f"{at}topics/{{topic}}", name="Memories on a topic")
        yield CompletionBinding(f"{at}topics/{{topic}}", "topic", CallerCompleter(self._access.complete_topic))
        yield self._access.resource(self.list_namespace, f"{at}{{domain}}/{{namespace}}", name="A namespace")
        yield CompletionBinding(f"{at}{{domain}}/{{namespace}}", "domain", Completer(choice_completer((*DOMAINS, "_"))))
        yield CompletionBinding(
            f"{at}{{domain}}/{{namespace}}", "namespace", Completer(choice_completer((*NAMESPACES, "_")))
        )
        yield self._access.resource(self._by_urn, f"{at}{{domain}}/{{namespace}}/{{id}}", name="A memory")
        yield self._access.resource(self._by_id, f"{at}memory/{{id}}", name="A memory by its id")
        yield self._access.resource(self._search, f"{at}search/{{query}}", name="Current query")
        yield self._access.resource(self._status, f"{at}status", name="Status")

    async def _read_help(self, ctx: Context) -> str:
        """Usage guide for this memory"""
        return help_page(self._access.prefix)

    async def _help_topic(self, ctx: Context, topic: str) -> str | None:
        """Help on one topic: setup, concepts, capture, search, workflows, troubleshooting or advanced"""
        return help_topic(topic, self._access.prefix)

    def _of_domain(self, domain: str) -> Any:
        async def read(ctx: Context) -> MemoryListing:
            return await list_memories(self._access, ctx, MemoryFilter().with_condition("domain", domain))

        return read

    async def _list_newest(self, ctx: Context) -> MemoryListing:
        """Newest memories of all domains"""
        return await list_memories(self._access, ctx, MemoryFilter())

    async def list_namespace(self, ctx: Context, domain: str, namespace: str) -> MemoryListing | None:
        """Memories of one domain and namespace; _ matches any"""
        domain = "user" if domain == "global" else domain
        if domain not in (*DOMAINS, "_") or namespace not in (*NAMESPACES, "_"):
            return None
        filter = MemoryFilter().with_condition("domain", None if domain == "_" else domain)
        return await list_memories(
            self._access, ctx, filter.with_condition("ns", None if namespace == "_" else namespace)
        )

    async def _by_urn(self, ctx: Context, domain: str, namespace: str, id: str) -> results.MemoryDetail:
        """One memory, addressed by its URN"""
        result = await self._by_id(ctx, id)
        if domain not in (result.domain, "_") or namespace not in (result.namespace, "_"):
            raise MemoryNotFound(id)
        return result

    async def _by_id(self, ctx: Context, id: str) -> results.MemoryDetail:
        """One memory in full, addressed by its id"""
        try:
            return results.to_detail(
                await (await self._access.store(ctx, any_project=True)).get(id), self._access.prefix
            )
        # A malformed id in a URI is a missing resource, not an invalid argument: the client may have built it from a
        # template.
        except InvalidInput:
            raise MemoryNotFound(id) from None

    async def _search(self, ctx: Context, query: str) -> results.RecallResult:
        """Search results for a query, best first"""
        self._watch(f"search/{quote(query, safe='')}")
        memories = await self._access.store(ctx)
        page = await memories.recall(query, memories.restrict_to_visible(MemoryFilter()), limit=10)
        hits = [results.to_scored_hit(hit, self._access.prefix, "medium") for hit in page.hits]
        return results.RecallResult(count=len(hits), memories=hits, mode=memories.resolve_mode("hybrid"))

    async def _topics(self, ctx: Context) -> dict[str, int]:
        """Tags in use, most frequent first"""
        memories = await self._access.store(ctx, any_project=True)
        return await memories.read(lambda tx: statistics.list_topics(tx, MAX_LISTED_MEMORIES, owner=memories.owner))

    async def _of_topic(self, ctx: Context, topic: str) -> MemoryListing:
        """Memories with this tag"""
        self._watch(f"topics/{quote(topic, safe='')}")
        return await list_memories(self._access, ctx, MemoryFilter().with_condition("tag", topic))

    async def _status(self, ctx: Context) -> results.MemoryStatus:
        """Memory counts and the state of the search index"""
        return await get_status(self._access, ctx)

    async def _namespace_table(self, ctx: Context) -> dict[str, str]:
        """Namespaces with their purpose"""
        return {namespace.name: namespace.about for namespace in NAMESPACES.values()}


async def list_memories(access: MemoryToolContext, ctx: Context, filter: MemoryFilter) -> MemoryListing:
    """Return the newest memories that match a filter, and their number."""
    # Counted up to a limit: a resource is read often, and an exact number of a large set is worth little.
    memories, now = await access.store(ctx), timestamps.now_ms()
    filter = memories.restrict_to_visible(filter)
    count = await memories.read(lambda tx: selection.count_memories(tx, filter, at=now, limit=MAX_COUNTED_MEMORIES))
    result = await memories.read(lambda tx: selection.list_memories(tx, filter, limit=MAX_LISTED_MEMORIES, at=now))
    return MemoryListing(count, [_line(item, access.prefix) for item in result], at_least=count == MAX_COUNTED_MEMORIES)


def _line(record: MemoryRecord, prefix: str) -> MemorySummary:
    hit = results.to_hit(record, prefix, "light")
    return MemorySummary(hit.id, hit.namespace, hit.tags, hit.urn, hit.content, hit.origin)


async def get_status(access: MemoryToolContext, ctx: Context) -> results.MemoryStatus:
    """Return the counts of the caller's memories and the state of the service."""
    memories = await access.store(ctx)
    counts = await memories.read(lambda tx: statistics.collect_counts(tx, memories.owner))
    return copy_to_result(
        counts,
        results.MemoryStatus,
        timestamps.format_iso,
        storage=memories.database.engine,
        secrets=access.screening.describe.secrets,
        personal=access.screening.describe.pii,
        modes=memories.modes,
        model=memories.model,
        project=memories.project,
        newest=None if counts.newest is None else timestamps.format_iso(counts.newest),
        oldest=None if counts.oldest is None else timestamps.format_iso(counts.oldest),
    )


def help_page(prefix: str) -> str:
    """Return the usage guide with the names of this server's tools."""
    parts = ["# Memory", "Long-term memory: facts, decisions and preferences for later conversations."]
    parts += [f"## {name}\n\n{page.format(p=prefix)}" for name, page in text.load_markdown_sections(HELP_FILE).items()]
    table = "\n".join(f"| {namespace.name} | {namespace.about} |" for namespace in NAMESPACES.values())
    return "\n\n".join([*parts, f"## namespaces\n\n| name | for |\n|---|---|\n{table}\n"])


def beginning(prefix: str) -> str:
    """Return the part of the usage guide that an assistant needs at the start of a session."""
    topics = text.load_markdown_sections(HELP_FILE)
    return "\n".join(f"{name}: {topics[name].format(p=prefix)}" for name in ("workflows", "capture", "search"))


def help_topic(topic: str, prefix: str) -> str | None:
    """Return the help on one topic, or None for an unknown topic."""
    page = text.load_markdown_sections(HELP_FILE).get(topic)
    return None if page is None else f"# {topic}\n\n{page.format(p=prefix)}\n"
