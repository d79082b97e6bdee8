"""Memory service: tools, resources and prompts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from portico import Server
from portico.caching import LruCache
from portico.errors import StoreError
from portico.extend import Call, Component, Event, LazyTool, validated_kwargs
from portico_services.database_service import DatabaseService
from portico_services.memory.errors import InvalidInput, MemoryToolError
from portico_services.memory.extras import saved_prompts
from portico_services.memory.extras.model_fallback import ModelFallback, ModelProvider
from portico_services.memory.extras.prompts import MemoryPrompts
from portico_services.memory.extras.resources import ExtraResources
from portico_services.memory.search import model_loader
from portico_services.memory.store import records
from portico_services.memory.store.memory_store import MemoryStore, store_error
from portico_services.memory.store.namespaces import DOMAINS
from portico_services.memory.store.screening import ContentScreen, ScreeningAction
from portico_services.memory.tools.context import Body, ErrorStyle, MemoryToolContext, OwnerOnly
from portico_services.memory.tools.dynamic_components import DynamicComponents
from portico_services.memory.tools.resources import MemoryResources
from portico_services.project_resolver import ProjectResolver

# Tool modules by subject; each is imported with the first call of one of its tools.
ToolGroup = Literal["memories", "overview", "maintenance", "extras"]

# URI schemes of memories: ours, and the one of a compatible server.
URI_SCHEMES = ("memory", "subcog")
# Maximum number of computed resources (searches, topics) whose readers are notified of changes.
MAX_WATCHED_URIS = 256

READ_ONLY_HINTS = {"readOnlyHint": True, "openWorldHint": False}
WRITE_HINTS = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTRUCTIVE_HINTS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


class MemoryToolSpec(NamedTuple):
    """A tool: its name without the prefix, its annotations, and whether it is listed by default."""

    name: str
    hints: Mapping[str, Any]
    is_default: bool = True
    aliases: tuple[str, ...] = ()
    # Method name, if it differs from the tool name because that is a keyword.
    method_name: str = ""
    # Aliases in other servers, without a prefix.
    unprefixed_aliases: tuple[str, ...] = ()
    version: str | None = None
    group: ToolGroup = "memories"


class Memory(DatabaseService[MemoryStore]):
    """Long-term memory service: `server.add(Memory("memory.db"))`.

    * `store`: path or URL of a SQLite or PostgreSQL database; `:memory:` is lost when the process ends.
    * `tools`: tools to offer: `"default"`, or `"all"` with those for maintenance.
    * `secrets`: action for secrets in new memories: reject the text, replace the value, or store it.
    * `pii`: action for personal data in new memories: reject the text, replace the value, or store it.
    * `screening`: actions by detector name, such as `ip_address`, overriding `secrets` and `pii`.
    * `flag_placeholders`: also screen obvious example values such as `4111 1111 1111 1111`.
    * `project`: project of the memories. By default it is derived from the git repository of `project_dir`, then from
      the client's roots, then from the repository of the working directory.
    * `project_dir`: directory in the repository of the project.
    * `tool_prefix`: prefix of the listed tool names, and the URI scheme of the resources.
    * `error_style`: `"jsonrpc"` sends the error numbers of this service as JSON-RPC codes at protocol version
      2024-11-05, which they were made for.
    * `read_only`: reject every write.
    * `model`: model to use if the client does not support sampling: in Python an async function
      `(prompt, max_tokens)`; its name as `module:function`; or the table of an OpenAI-compatible endpoint.
    * `embedding_model_dir`: data directory that contains the embedding model; by default that of the user.
    * `webhooks`: endpoints that receive changes, by name.
    * `auto_sync`: synchronise the project's memories through git at the start, and this many seconds after a change.
      None: on request only.
    """

    name = "memory"
    requires_scopes = True
    topics = (records.TOPIC, saved_prompts.TOPIC)

    @validated_kwargs
    def __init__(
        self,
        store: str | os.PathLike[str] = ":memory:",
        *,
        tools: Literal["default", "all"] = "default",
        secrets: ScreeningAction = "block",
        pii: ScreeningAction = "allow",
        screening: Mapping[str, ScreeningAction] | None = None,
        flag_placeholders: bool = False,
        project: str | None = None,
        project_dir: str | os.PathLike[str] | None = None,
        tool_prefix: str = "memory",
        error_style: ErrorStyle = "result",
        read_only: bool = False,
        model: ModelProvider | str | Mapping[str, Any] | None = None,
        embedding_model_dir: str | os.PathLike[str] | None = None,
        webhooks: Mapping[str, Mapping[str, Any]] | None = None,
        auto_sync: float | None = None,
    ) -> None:
        super().__init__(store, read_only=read_only)
        self.scheme_aliases = {scheme: tool_prefix for scheme in URI_SCHEMES if scheme != tool_prefix}
        self._listed_tools = tools
        self._prefix = tool_prefix
        self._projects = ProjectResolver(project, project_dir)
        self._model_dir = None if embedding_model_dir is None else Path(embedding_model_dir)
        # URIs of computed resources that were read. Any change may affect them.
        self._watched: LruCache[str, None] = LruCache(MAX_WATCHED_URIS)
        self.screening = ContentScreen(secrets, pii, screening, flag_placeholders=flag_placeholders)
        access = self._access = MemoryToolContext(self, tool_prefix, self.screening, self._projects, error_style)
        self._resources = MemoryResources(access, self._watch_uri)
        self._extra_resources = ExtraResources(access, self._watch_uri)
        if webhooks:
            from portico_services.memory.extras.webhooks import WebhookDispatcher

            access.webhooks = WebhookDispatcher(webhooks)
        self._auto_sync: AutoSync | None = None
        if auto_sync is not None and not read_only:
            from portico_services.memory.extras.auto_sync import AutoSync

            self._auto_sync = AutoSync(auto_sync, self.screening)
        self._models = ModelFallback(access, model)
        self._prompts = MemoryPrompts(access, self._models)
        self._listings = DynamicComponents(access, self._resources.list_namespace)
        self._load_group = cache(self._import_group)

    # The store.

    async def _open_store(self, stack: AsyncExitStack) -> MemoryStore:
        memories = MemoryStore(
            self._database, embeddings=model_loader.load_embedding_index(self._model_dir)
        ).for_project(await self._projects.resolve_default())
        stack.push_async_callback(memories.close)
        await memories.open(verify=True, read_only=self._read_only)
        await self._listings.refresh(memories)
        for name, work in () if self._access.webhooks is None else self._access.webhooks.workers():
            self._start_background(stack, name, work)
        if self._auto_sync is not None:
            self._start_background(stack, "memory auto-sync", partial(self._auto_sync.run, memories))
        return memories

    def _store_error(self, failure: StoreError) -> MemoryToolError:
        return store_error(failure)

    def _read_only_error(self) -> MemoryToolError:
        return InvalidInput("This memory is read-only: searching is allowed, changes are not.")

    # Changes.

    def on_added(self, server: Server) -> None:
        super().on_added(server)
        self._listings.add_server(server)

    async def _on_change(self, store: MemoryStore, event: Event) -> None:
        if event.topic == records.TOPIC and event.payload:
            # The payload ends with the owner in the user domain only.
            domain, namespace, id, owner = f"{event.payload}/".split("/")[:4]
            # Subscribers of a parent URI are notified too, so this covers whole namespaces and domains.
            name = f"{domain}/{namespace}/{id}"
            names = [name, f"_/{namespace}/{id}", f"memory/{id}", f"summaries/{id}", "topics", "status"]
            # Only the owner is notified of changes in the user domain.
            self._tell_of([*names, *self._watched], OwnerOnly(self._access, owner) if domain == "user" else None)
            if self._auto_sync is not None and domain == "project":
                # Only project memories are shared through git.
                self._auto_sync.note_change()
            # Namespaces of a single owner are not listed: the list is the same for all callers.
            if not owner:
                self._listings.add_namespace(domain, namespace)
        else:
            self._tell_of(["_prompts", *(f"{domain}/_prompts/{event.payload}" for domain in DOMAINS)])
            await self._listings.refresh(store)

    def _tell_of(self, uris: list[str], admits: Callable[[Call], bool] | None = None) -> None:
        """Notify subscribers of these resources under every URI scheme."""
        self._notify_subscribers(
            (f"{scheme}://{uri}" for scheme in (self._prefix, *self.scheme_aliases) for uri in uris), admits
        )

    def _watch_uri(self, path: str) -> None:
        """Notify readers of this resource of later changes. The least recently read resources are dropped."""
        self._watched[path] = None

    # Components.

    def components(self) -> Iterator[Component]:
        for row in TOOLS:
            if row.is_default or self._listed_tools == "all":
                yield self._build_tool(row)
        yield from self._resources.components()
        yield from self._extra_resources.offers()
        yield from self._prompts.components()
        yield from super().components()

    def _import_group(self, group: ToolGroup) -> object:
        if group == "memories":
            from portico_services.memory.tools.memories import MemoryTools

            return MemoryTools(self._access)
        if group == "overview":
            from portico_services.memory.tools.overview import OverviewTools

            return OverviewTools(self._access)
        if group == "maintenance":
            from portico_services.memory.tools.maintenance import MaintenanceTools

            return MaintenanceTools(self._access)
        from portico_services.memory.extras.tools import ExtraTools

        return ExtraTools(self._access, self._models, self._listings)

    def _build_tool(self, row: MemoryToolSpec) -> LazyTool:
        names = (row.name, *row.aliases)
        prefixes = ("memory_", "memory.", "subcog_", "subcog.")
        # The order matters: contracts call a tool by the first alias with a dot.
        aliases = [*(f"{prefix}{name}" for name in names for prefix in prefixes), *row.unprefixed_aliases]
        listed = f"{self._prefix}_{row.name}"

        def load() -> Callable[..., Any]:
            body: Body = getattr(self._load_group(row.group), row.method_name or row.name)
            return self._access.wrap(body, listed)

        return LazyTool(
            load,
            name=listed,
            aliases=[alias for alias in aliases if alias != listed],
            annotations=row.hints,
            version=row.version,
        )


TOOLS = (
    MemoryToolSpec("capture", WRITE_HINTS),
    MemoryToolSpec("recall", READ_ONLY_HINTS, aliases=("list",), version="1.1.0"),
    MemoryToolSpec("get", READ_ONLY_HINTS),
    MemoryToolSpec("update", DESTRUCTIVE_HINTS),
    MemoryToolSpec("delete", DESTRUCTIVE_HINTS),
    MemoryToolSpec("restore", WRITE_HINTS),
    MemoryToolSpec("history", READ_ONLY_HINTS),
    MemoryToolSpec("delete_all", DESTRUCTIVE_HINTS),
    MemoryToolSpec("status", READ_ONLY_HINTS, group="overview"),
    MemoryToolSpec("namespaces", READ_ONLY_HINTS, group="overview"),
    MemoryToolSpec("consolidate", DESTRUCTIVE_HINTS, group="extras"),
    MemoryToolSpec("enrich", WRITE_HINTS, group="extras"),
    MemoryToolSpec("conflicts", DESTRUCTIVE_HINTS, group="overview"),
    MemoryToolSpec("prompts", DESTRUCTIVE_HINTS, aliases=("templates",), group="extras"),
    MemoryToolSpec("graph", READ_ONLY_HINTS, group="extras"),
    MemoryToolSpec("export", READ_ONLY_HINTS, aliases=("gdpr_export",), group="maintenance"),
    MemoryToolSpec("import", DESTRUCTIVE_HINTS, method_name="import_", group="maintenance"),
    MemoryToolSpec("sync", {**DESTRUCTIVE_HINTS, "openWorldHint": True}, group="maintenance"),
    MemoryToolSpec("gc", DESTRUCTIVE_HINTS, is_default=False, group="maintenance"),
    MemoryToolSpec("reindex", {**WRITE_HINTS, "idempotentHint": True}, is_default=False, group="maintenance"),
    MemoryToolSpec("erase", DESTRUCTIVE_HINTS, is_default=False, group="maintenance"),
    MemoryToolSpec(
        "summary", READ_ONLY_HINTS, is_default=False, aliases=("get_summary",), version="1.1.0", group="extras"
    ),
    MemoryToolSpec("init", READ_ONLY_HINTS, is_default=False, version="1.1.0", group="overview"),
    MemoryToolSpec("groups", DESTRUCTIVE_HINTS, is_default=False, group="extras"),
    MemoryToolSpec("webhooks", {**WRITE_HINTS, "openWorldHint": True}, is_default=False, group="extras"),
    MemoryToolSpec("intent", READ_ONLY_HINTS, is_default=False, group="extras"),
    MemoryToolSpec(
        "guide", READ_ONLY_HINTS, is_default=False, unprefixed_aliases=("prompt_understanding",), group="overview"
    ),
)
