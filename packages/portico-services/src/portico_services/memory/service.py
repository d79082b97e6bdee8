"""Memory as tools, resources and prompts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from portico import Server, UsageError
from portico._lazy import LazyModule
from portico.extend import Call, Component, Event, LateTool, StoreError, explained
from portico_services.database_service import StoredService
from portico_services.memory.errors import InvalidInput, MemoryRefusal
from portico_services.memory.extras import saved_prompts
from portico_services.memory.extras.model_fallback import ModelLadder, Provider
from portico_services.memory.search import model_loader
from portico_services.memory.store import records
from portico_services.memory.store.memory_store import Memories, refusal_of
from portico_services.memory.store.namespaces import DOMAINS
from portico_services.memory.store.screening import Guard, Policy
from portico_services.memory.tools.context import Access, OwnerOnly
from portico_services.memory.tools.dynamic_components import ServerListings
from portico_services.memory.tools.prompts import MemoryPrompts
from portico_services.memory.tools.resources import MemoryResources
from portico_services.memory.tools.wrapper import Body, Codes
from portico_services.project_resolver import Projects

if TYPE_CHECKING:
    from portico_services.memory.extras import auto_sync as syncing
    from portico_services.memory.extras import tools as sharing
    from portico_services.memory.extras import webhooks as hooks
    from portico_services.memory.tools import maintenance, overview
    from portico_services.memory.tools import memories as tools
else:
    syncing = LazyModule("portico_services.memory.extras.auto_sync")
    overview = LazyModule("portico_services.memory.tools.overview")
    sharing = LazyModule("portico_services.memory.extras.tools")
    tools = LazyModule("portico_services.memory.tools.memories")
    maintenance = LazyModule("portico_services.memory.tools.maintenance")
    hooks = LazyModule("portico_services.memory.extras.webhooks")

Group = Literal["single", "overview", "upkeep", "sharing"]

# What memories are addressed by, here and in servers that others know.
SCHEMES = ("memory", "subcog")
# How many of the searches, topics and the like that were read are told of changes.
MOST_WATCHED = 256

READ = {"readOnlyHint": True, "openWorldHint": False}
WRITE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTROY = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


class ToolRow(NamedTuple):
    """A tool: its name behind the prefix, its hints, and whether it is listed as a rule."""

    name: str
    hints: Mapping[str, Any]
    usual: bool = True
    also: tuple[str, ...] = ()
    # Where the name is none that a method can have.
    method: str = ""
    # Names that it is known by elsewhere, without a prefix.
    alone: tuple[str, ...] = ()
    version: str | None = None
    group: Group = "single"


class Memory(StoredService[Memories]):
    """What an assistant should still know tomorrow: `server.add(Memory("memory.db"))`.

    `store` is a path or a URL, of SQLite or PostgreSQL. `offered` says whether to list the usual tools or all of them.
    `secrets` and `personal` say what becomes of secrets and of personal data in what is to be stored, `screening` what
    becomes of some by name, and `examples` whether what is plainly made up counts as one.
    `project` is whose memories are meant by "project"; without it, the git repository that `folder` is in says it, and
    without that the client's roots, or the repository that this process works in.
    `naming` and `codes` are for clients that were written for another server: which names are listed, and whether this
    service's own error numbers are JSON-RPC's on the revision they were made for.
    `provider(question, tokens)` is a model to ask where the client has none; a string names it as `module:function`,
    and a table such as `{"url": "http://127.0.0.1:11434/v1", "model": "llama3.2"}` is an endpoint like OpenAI's.
    `webhooks` are told of changes, by name: `{"chat": {"url": "https://example.com/hook"}}`.
    `auto_sync` shares the project's memories through git by itself: at the start, and this many seconds after a change.
    """

    name = "memory"
    scoped = True
    topics = (records.TOPIC, saved_prompts.TOPIC)

    @explained
    def __init__(
        self,
        store: str | os.PathLike[str] = ":memory:",
        *,
        offered: Literal["usual", "all"] = "usual",
        secrets: Policy = "block",
        personal: Policy = "allow",
        screening: Mapping[str, Policy] | None = None,
        examples: bool = False,
        project: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        naming: str = "memory",
        codes: Codes = "result",
        read_only: bool = False,
        provider: Provider | str | Mapping[str, Any] | None = None,
        models: str | os.PathLike[str] | None = None,
        webhooks: Mapping[str, Mapping[str, Any]] | None = None,
        auto_sync: float | None = None,
    ) -> None:
        for word, known in ((offered, ("usual", "all")), (codes, ("result", "protocol"))):
            if word not in known:
                raise UsageError(f"{word!r} is none of {', '.join(known)}")
        super().__init__(store, read_only=read_only)
        self.schemes = {other: naming for other in SCHEMES if other != naming}
        self._offered_tools = offered
        self._prefix = naming
        self._projects = Projects(project, folder)
        self._models = None if models is None else Path(models)
        # What was read and is computed from many memories: any change may be one of it.
        self._watched: dict[str, None] = {}
        self.guard = Guard(secrets, personal, screening, examples=examples)
        access = self._access = Access(self, naming, self.guard, self._projects, codes)
        self._resources = MemoryResources(access, self._watch)
        if webhooks:
            access.webhooks = hooks.Webhooks(webhooks)
        self._auto_sync = None if auto_sync is None or read_only else syncing.AutoSync(auto_sync, self.guard)
        ladder = ModelLadder(access, provider)
        self._prompts = MemoryPrompts(access, ladder)
        self._listings = ServerListings(access, self._resources.listed)
        # The tools, by what they are about: each group is loaded with the first of it.
        self._groups: dict[Group, Callable[[], Any]] = {
            "single": cache(lambda: tools.MemoryTools(access)),
            "overview": cache(lambda: overview.OverviewTools(access)),
            "upkeep": cache(lambda: maintenance.UpkeepTools(access, ladder, self._listings)),
            "sharing": cache(lambda: sharing.SharingTools(access)),
        }

    # The store

    async def _open_store(self, stack: AsyncExitStack) -> Memories:
        memories = Memories(self._database, meanings=model_loader.meanings(self._models)).of(
            await self._projects.here()
        )
        stack.push_async_callback(memories.close)
        await memories.open(thorough=True, read_only=self._read_only)
        await self._listings.refresh(memories)
        for name, work in () if self._access.webhooks is None else self._access.webhooks.work():
            self._run(stack, name, work)
        if self._auto_sync is not None:
            self._run(stack, "memory auto-sync", partial(self._auto_sync.run, memories))
        return memories

    def _failed(self, failure: StoreError) -> MemoryRefusal:
        return refusal_of(failure)

    def _refused(self) -> MemoryRefusal:
        return InvalidInput("This memory is read-only: it can be searched, and not changed.")

    # Changes

    def added(self, server: Server) -> None:
        super().added(server)
        self._listings.add_server(server)

    async def _changed(self, store: Memories, event: Event) -> None:
        if event.topic == records.TOPIC and event.payload:
            domain, namespace, id, owner = f"{event.payload}/".split("/")[:4]
            # A listener to what stands above a URI is told too, so this is enough for whole namespaces and domains.
            place = f"{domain}/{namespace}/{id}"
            places = [place, f"_/{namespace}/{id}", f"memory/{id}", f"summaries/{id}", "topics", "status"]
            # A change in the user domain is its owner's business alone.
            self._tell_of([*places, *self._watched], OwnerOnly(self._access, owner) if domain == "user" else None)
            if self._auto_sync is not None and domain == "project":
                self._auto_sync.note_change()
            if not owner:
                self._listings.add_namespace(domain, namespace)
        else:
            self._tell_of(["_prompts", *(f"{domain}/_prompts/{event.payload}" for domain in DOMAINS)])
            await self._listings.refresh(store)

    def _tell_of(self, places: list[str], admits: Callable[[Call], bool] | None = None) -> None:
        """Subscribers by another scheme are told by that scheme."""
        self._tell((f"{scheme}://{place}" for scheme in (self._prefix, *self.schemes) for place in places), admits)

    def _watch(self, place: str) -> None:
        """This was read, and its reader may want to know when it changes. The oldest are forgotten."""
        self._watched.pop(place, None)
        self._watched[place] = None
        if len(self._watched) > MOST_WATCHED:
            del self._watched[next(iter(self._watched))]

    # What is offered

    def offers(self) -> Iterator[Component]:
        for row in TOOLS:
            if row.usual or self._offered_tools == "all":
                yield self._tool(row)
        yield from self._resources.offers()
        yield from self._prompts.offers()
        yield from super().offers()

    def _tool(self, row: ToolRow) -> LateTool:
        names = (row.name, *row.also)
        prefixes = ("memory_", "memory.", "subcog_", "subcog.")
        # In this order: contracts call a tool by the first that has a dot.
        aliases = [*(f"{prefix}{name}" for name in names for prefix in prefixes), *row.alone]
        listed = f"{self._prefix}_{row.name}"

        def load() -> Callable[..., Any]:
            body: Body = getattr(self._groups[row.group](), row.method or row.name)
            return self._access.speaking(body, listed)

        return LateTool(
            load,
            name=listed,
            aliases=[one for one in aliases if one != listed],
            annotations=row.hints,
            version=row.version,
        )


TOOLS = (
    ToolRow("capture", WRITE),
    ToolRow("recall", READ, also=("list",), version="1.1.0"),
    ToolRow("get", READ),
    ToolRow("update", DESTROY),
    ToolRow("delete", DESTROY),
    ToolRow("restore", WRITE),
    ToolRow("history", READ),
    ToolRow("delete_all", DESTROY),
    ToolRow("status", READ, group="overview"),
    ToolRow("namespaces", READ, group="overview"),
    ToolRow("consolidate", DESTROY, group="upkeep"),
    ToolRow("enrich", WRITE, group="upkeep"),
    ToolRow("conflicts", DESTROY, group="overview"),
    ToolRow("prompts", DESTROY, also=("templates",), group="upkeep"),
    ToolRow("graph", READ, group="upkeep"),
    ToolRow("export", READ, also=("gdpr_export",), group="upkeep"),
    ToolRow("import", DESTROY, method="import_", group="upkeep"),
    ToolRow("sync", {**DESTROY, "openWorldHint": True}, group="upkeep"),
    ToolRow("gc", DESTROY, usual=False, group="upkeep"),
    ToolRow("reindex", {**WRITE, "idempotentHint": True}, usual=False, group="upkeep"),
    ToolRow("erase", DESTROY, usual=False, group="upkeep"),
    ToolRow("summary", READ, usual=False, also=("get_summary",), version="1.1.0", group="overview"),
    ToolRow("init", READ, usual=False, version="1.1.0", group="overview"),
    ToolRow("groups", DESTROY, usual=False, group="sharing"),
    ToolRow("webhooks", {**WRITE, "openWorldHint": True}, usual=False, group="sharing"),
    ToolRow("intent", READ, usual=False, group="upkeep"),
    ToolRow("guide", READ, usual=False, alone=("prompt_understanding",), group="overview"),
)
