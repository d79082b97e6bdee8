"""Code mode server: `find_tools`, `describe_tools`, `run` and saved scripts replace the tools of a server.

If the server already has the service, it is used; otherwise a separate one is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico import Server, ToolError
from portico.extend import Call, Handler, QualifiedName, get_capabilities, to_json
from portico.search import ToolSearchBase, add_find_tools
from portico.types import LATEST_PROTOCOL_VERSION
from portico_services.codemode.service import CodeMode, owner_key
from portico_services.codemode.tool_catalog import ToolCatalog

OWN_TOOLS = ("run", "describe_tools")
LISTED_TOOLS = (*OWN_TOOLS, "find_tools", "read_result")
OUTPUT_URI_PREFIX = "run://output/"
INSTRUCTIONS = (
    "Only a few of this server's tools are listed. Find the others with find_tools: describe each step in a few words, "
    "several steps in one call. Then write one script for run that does everything. Import a tool by the name under "
    "which it was found, as in `from tools import github_create_issue`, or from the module of its server, as in "
    "`from tools import github`."
)


class CodeModeServer(ToolSearchBase):
    """A server that offers scripts instead of single tool calls.

    * **server** – a Server, a Gateway, or any Handler.
    * **pinned_tools** – the names of tools that are always listed.
    * **options** – options of `CodeMode`, if the server does not have the service yet.
    """

    def __init__(
        self, server: Handler, *, name: str = "code", pinned_tools: Sequence[str] = (), **options: Any
    ) -> None:
        services = [item for item in getattr(server, "services", ()) if isinstance(item, CodeMode)]
        existing = services[0] if services else None
        pinned = pinned_tools if existing is None else (*OWN_TOOLS, *pinned_tools)
        super().__init__(server, name, pinned_tools=pinned, instructions=INSTRUCTIONS)
        add_find_tools(self)
        self.code = existing or self._own_service(server, options)

    def _own_service(self, server: Handler, options: dict[str, Any]) -> CodeMode:
        """Create the service. Its runs are not tasks: `tasks/*` requests go to the wrapped server."""
        # A view uses the store of its gateway.
        gateway = getattr(server, "gateway", server)
        store = getattr(gateway, "store", None)
        code = CodeMode(target=server, allow_tasks=False, **{"store": store, **options})
        desk = self.own_tools
        # Outputs that exceed the size of a result are read here.
        desk.capabilities = replace(desk.capabilities, resources={})
        if isinstance(gateway, Server):
            # Any process that shares the server's key can continue after an elicitation.
            desk.state_sealer, desk.used_states = gateway.state_sealer, gateway.used_states
            # Clients that listen to the server are notified when a script is saved.
            desk.subscriptions.broadcast_hook = gateway.subscriptions.broadcast
        desk.add(code)
        return code

    def start(self, call: Call) -> Any:
        if call.method == "resources/read" and self.code.name in {service.name for service in self.own_tools.services}:
            uri = getattr(call.decode_params(), "uri", "")
            if uri.startswith(OUTPUT_URI_PREFIX):
                # Outputs are returned only to the caller that ran the script.
                return self.handle_own_tool(call, "resource", QualifiedName(self.code.name, uri), authorize=False)
        return super().start(call)

    # Saved scripts

    def _list(self, call: Call) -> Any:
        return self._list_all(call) if self.code.has_saved_scripts else super()._list(call)

    async def _list_all(self, call: Call) -> Raw:
        own, cursor = list(self._filter_own(call, self._definitions())), call.decode_params().cursor
        if self.is_visible(call, QualifiedName(self.code.name, "run_saved")):
            own += [msgspec.convert(saved_tool, type(own[0])) for saved_tool in await self._saved_tools(call)]
        page = self.own_tools.tools.encode_page(own, call.protocol_version or LATEST_PROTOCOL_VERSION, cursor)
        return await self._with_always(call, page) if self.pinned_tools and cursor is None else page

    async def _saved_tools(self, call: Call) -> list[dict[str, Any]]:
        """Return the caller's scripts that can be called: their tools are unchanged and no tool has their name."""
        scripts = await self.code.saved.list(owner_key(call))
        if not scripts:
            return []
        table = await self._tool_catalog(call)
        return [
            script.definition(table)
            for script in scripts
            if not table.changed_tools(script.tools) and script.name not in table.by_name
        ]

    async def _tool_catalog(self, call: Call) -> ToolCatalog:
        about = {name: getattr(call, name) for name in ("principal", "client", "address", "headers", "facet")}
        return await self.code.tool_catalogs.get(about)

    def _definitions(self) -> Sequence[Any]:
        definitions = super()._definitions()
        return [item for item in definitions if item.name in LISTED_TOOLS]

    def _call_tool(self, call: Call) -> Any:
        name = call.decode_params().name
        is_tool = name in self.handlers or name in self.own_tools.registry.by_name
        if (
            is_tool
            or not self.code.has_saved_scripts
            or get_capabilities(self.server).directory.canonical_name("tool", name) not in (None, name)
        ):
            return super()._call_tool(call)
        return self._call_saved_script(call, name)

    async def _call_saved_script(self, call: Call, name: str) -> Any:
        """Call a saved script by its name, unless the caller is shown a tool of that name."""
        try:
            await self.code.saved.find(owner_key(call), name)
            call = call if name in (await self._tool_catalog(call)).by_name else _with_tool_name(call, name)
        except ToolError:
            pass  # the server reports the unknown tool
        result = super()._call_tool(call)
        return await result if type(result) is CoroutineType else result


def _with_tool_name(call: Call, name: str) -> Call:
    params: dict[str, Any] = msgspec.json.decode(call.params, type=dict[str, Raw])
    decoded = msgspec.json.decode(params.get("arguments") or b"{}")
    arguments = {**(decoded if isinstance(decoded, dict) else {}), "name": name}
    return replace(call, params=Raw(to_json({**params, "name": "run_saved", "arguments": arguments})), read=None)
