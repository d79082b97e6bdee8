"""Base class of handlers that show a few tools instead of all tools of a server.

Hidden tools can still be called by name under the same rules: every request goes to the server, which authorizes,
counts and records it as usual. Nothing depends on the connection, so a client's cached list stays valid.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from types import CoroutineType
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import jsonrpc
from portico.protocol.jsonrpc import object_decoder
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import Implementation
from portico.protocol.tasks import EXTENSION
from portico.protocol.tools import Tool as Definition
from portico.protocol.versions import LATEST_PROTOCOL_VERSION
from portico.rpc.call import Call, Handler, HandlerWrapper, Kind, QualifiedName, get_capabilities
from portico.search.searchable_tools import SeenTools
from portico.server.registry.registration import ComponentDefaults
from portico.server.registry.service import MethodHandler
from portico.server.results.settings import READ_RESULT_TOOL, find_result_limits
from portico.server.server import Server

# Pages combined from our own tools and the pinned ones.
MAX_CACHED_PAGES = 64
# Owner of our own tools that belong to no service, and the tools that reveal no more than the server's list.
OWNER = "tool_search"
DISCOVERY_TOOLS = frozenset({"find_tools"})
# Claude Code does not defer tools with this marker: search tools must not have to be searched.
META_ALWAYS_LOAD = "anthropic/alwaysLoad"


class _ShownPage(Struct):
    # The encoded pages it was built from; it is valid while these are the same objects.
    sources: tuple[Raw, ...]
    page: Raw


class ToolSearchBase(HandlerWrapper):
    """Handler in front of another server.

    * **server** – a Server, a Gateway, or any Handler.
    * **name** – the name of this handler; over HTTP it is at `/mcp/NAME`.
    * **pinned_tools** – names of the server's tools that are always listed.
    * **omit_output_schemas** – whether to list those without output schemas, which `find_tools` returns.
    * **instructions** – how a model should use it; appended to the server's instructions.

    Additional tools are registered with `own_tools`, a Server: `@handler.own_tools.tool`. Their functions find the
    current request in `ctx.call`; `visible_tools` has the tools that its sender sees.
    """

    def __init__(
        self,
        server: Handler,
        name: str,
        *,
        pinned_tools: Sequence[str] = (),
        omit_output_schemas: bool = False,
        instructions: str | None = None,
    ) -> None:
        super().__init__(server)
        about = get_capabilities(server)
        self.server, self.name, self.instructions = server, name, instructions
        self.pinned_tools, self.omit_output_schemas = tuple(dict.fromkeys(pinned_tools)), omit_output_schemas
        info = about.info or Implementation(name, "0")
        self.own_tools = Server(
            info.name,
            version=info.version,
            # Without `listChanged`: our own tools do not change, and changes of the server's list
            # are announced by the server.
            capabilities={"tools": {}},
            argument_errors="result",
            component_defaults=ComponentDefaults(structured_output=False),
        )
        self.visible_tools = SeenTools(server)
        # Handlers of single tools, which replace the functions of `own_tools`.
        self.handlers: dict[str, MethodHandler] = {}
        self.start_server: Callable[[Call], Any] = about.start
        # Runs a handler inside the server's middleware.
        self._answer_with: Callable[[MethodHandler, Call], Any] = getattr(server, "with_middleware", _answer_plainly)
        self._page_cache: LruCache[tuple[Any, ...], _ShownPage] = LruCache(MAX_CACHED_PAGES)
        self._listed: dict[bool, tuple[Sequence[Any], Sequence[Definition]]] = {}
        # A view has the results of its gateway.
        gateway = getattr(server, "gateway", server)
        self._result_limits = find_result_limits(gateway) if isinstance(gateway, Server) else None
        if self._result_limits is not None:
            # Listed as one of our own tools, so that a list need not wait for the server's; the server answers it.
            self.own_tools.add(copy(cast("Server", gateway).registry.by_name[READ_RESULT_TOOL]))
            self.handlers[READ_RESULT_TOOL] = self.start_server

    def start(self, call: Call) -> Any:
        if call.method == "tools/call":
            return self._call_tool(call)
        if call.method == "tools/list":
            return self._answer_with(self._list, call)
        return self.start_server(call) if call.method != "server/discover" else self._discover(call)

    def _call_tool(self, call: Call) -> Any:
        name = call.decode_params().name
        answer = self.handlers.get(name)
        if answer is not None:
            return answer(call)
        if name in self.own_tools.registry.by_name:
            result = self.handle_own_tool(
                call, "tool", self.own_tool_owner(name), authorize=name not in DISCOVERY_TOOLS
            )
            limits = self._result_limits
            if limits is None:
                return result
            return limits.bound_own_tool(call, self.own_tools.registry.by_name[name].definition, result)
        return self.start_server(call)

    # Our own tools are authorized, counted and recorded like the server's

    def own_tool_owner(self, name: str) -> QualifiedName:
        """Return the owner of one of our tools for policies and records: its service, or `tool_search`."""
        return QualifiedName(getattr(self.own_tools.registry.by_name[name], "owner", "") or OWNER, name)

    def handle_own_tool(self, call: Call, kind: Kind, component: QualifiedName, *, authorize: bool = True) -> Any:
        return self._answer_with(partial(self._answer_protected, kind, component, authorize), call)

    def _answer_protected(self, kind: Kind, owned: QualifiedName, authorize: bool, call: Call) -> Any:
        # Security: our tools are answered by another Server object, which has no policy. Without
        # this, they would bypass the rules of the server in front of which they are.
        protection = getattr(self.server, "policy", None)
        if protection is None:
            return self.own_tools.start(call)
        return protection.handle_as(call, kind, owned, self.own_tools.start, authorize=authorize)

    def is_visible(self, call: Call, component: QualifiedName) -> bool:
        """Return whether the policy lets the sender of a call see one of our tools."""
        guard = getattr(getattr(self.server, "policy", None), "access_policy", None)
        return guard is None or guard.visibility(call).is_visible("tool", component)

    def _filter_own(self, call: Call, definitions: Sequence[Definition]) -> Sequence[Definition]:
        """Return our tools that the sender of a call may see; the same object if that is all of them."""
        visible = [item for item in definitions if self._is_shown(call, item.name)]
        return definitions if len(visible) == len(definitions) else visible

    def _is_shown(self, call: Call, name: str) -> bool:
        # `find_tools` returns only visible tools, and handlers such as `call_tool` check the
        # requested tool, so neither needs a rule.
        return name in DISCOVERY_TOOLS or name in self.handlers or self.is_visible(call, self.own_tool_owner(name))

    # Listing

    def _list(self, call: Call) -> Any:
        revision = call.protocol_version or LATEST_PROTOCOL_VERSION
        definitions, cursor = self._definitions(), call.decode_params().cursor
        visible = self._filter_own(call, definitions)
        if visible is definitions:
            page = self.own_tools.tools.page(revision, cursor, definitions)
        else:
            page = self.own_tools.tools.encode_page(visible, revision, cursor)
        # Pinned tools are on the first page.
        return self._with_always(call, page) if self.pinned_tools and cursor is None else page

    def _definitions(self) -> Sequence[Definition]:
        """Return our own tools; tools that forward calls support tasks if the server does."""
        able = self.capabilities
        tasks = able is not None and EXTENSION in (able.extensions or {})
        own = self.own_tools.tools.definitions
        cached = self._listed.get(tasks)
        if cached is None or cached[0] is not own:
            cached = self._listed[tasks] = (own, [self._listed_as(item, tasks) for item in own])
        return cached[1]

    def _listed_as(self, own: Definition, tasks: bool) -> Definition:
        own = replace(own, meta={**(own.meta or {}), META_ALWAYS_LOAD: True})
        forwards = own.name in self.handlers and own.name != READ_RESULT_TOOL
        return replace(own, execution={"taskSupport": "optional"}) if tasks and forwards else own

    async def _with_always(self, call: Call, page: Raw) -> Raw:
        sources = (page, *await self.visible_tools.pages(call, call.protocol_version or LATEST_PROTOCOL_VERSION))
        # Identity is sufficient: the cached entry keeps the sources alive.
        key = tuple(map(id, sources))
        cached = self._page_cache.get(key)
        if cached is None:
            cached = self._page_cache[key] = _ShownPage(sources, self._join_pinned(*sources))
        return cached.page

    def _join_pinned(self, page: Raw, *others: Raw) -> Raw:
        """Return our page with the pinned entries of the others, in the configured order."""
        members: dict[str, Raw] = object_decoder.decode(page)
        by_name = {_name.decode(tool).name: tool for other in others for tool in _entries.decode(other).tools}
        pinned = [
            by_name[name]
            for name in self.pinned_tools
            if name in by_name and name not in self.own_tools.registry.by_name
        ]
        own = msgspec.json.decode(members["tools"], type=list[Raw])
        if self.omit_output_schemas:
            pinned = [_without_output(tool) for tool in pinned]
        return Raw(jsonrpc.encode({**members, "tools": own + pinned}))

    async def _discover(self, call: Call) -> Any:
        result = self.start_server(call)
        result = await result if type(result) is CoroutineType else result
        if isinstance(result, DiscoverResult) and self.instructions:
            both = (result.instructions, self.instructions)
            result = replace(result, instructions="\n\n".join(item for item in both if item))
        return result

    # Optional members of the server, with our own tools added

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[ToolSearchBase]:
        async with super().lifespan(), self.own_tools.lifespan():
            yield self

    def _is_own(self, kind: Kind, name: str) -> bool:
        return kind == "tool" and name in self.own_tools.registry.by_name

    # The list depends on the caller: see `_filter_own`.
    def cached_list(self, method: str) -> Sequence[Any] | None:
        return None

    def required_scopes(self, method: str, name: str, call: Call | None = None) -> Collection[str]:
        own = method == "tools/call" and self._is_own("tool", name)
        return () if own else super().required_scopes(method, name, call)

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        return name if self._is_own(kind, name) else super().canonical_name(kind, name)

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        return not self._is_shown(call, name) if self._is_own(kind, name) else super().is_hidden(call, kind, name)


def _answer_plainly(answer: MethodHandler, call: Call) -> Any:
    return answer(call)


def _without_output(entry: Raw) -> Raw:
    members = object_decoder.decode(entry)
    return Raw(jsonrpc.encode({name: value for name, value in members.items() if name != "outputSchema"}))


class _EntryName(Struct):
    name: str


class _ListedEntries(Struct):
    tools: list[Raw] = []


_name = msgspec.json.Decoder(_EntryName)
_entries = msgspec.json.Decoder(_ListedEntries)
