"""The code face: `find_tools`, `describe_tools` and `run` stand for all tools of a server, beside saved scripts.

Where the server has the service already, the face shows that; otherwise it has one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from portico import Server, ToolError
from portico.extend import LATEST, Call, Handler, Owned, ServerFace, add_find_tools, members, to_json
from portico_services.codemode.service import Code, owner_of
from portico_services.codemode.tool_catalog import ToolTable

SHOWN = ("run", "describe_tools")
OUTPUTS = "run://output/"
INSTRUCTIONS = (
    "Only a few of this server's tools are listed. Find the others with find_tools: say in a few words what each step "
    "needs, several at once. Then write one script for run that does all of it: what is found under a name is "
    "imported by that name, as in `from tools import github_create_issue`, or from the module of its server, as in "
    "`from tools import github`."
)


class CodeFace(ServerFace):
    """Any server with scripts in place of single calls.

    * **server** – a Server, a Gateway, or any Handler.
    * **always** – the names of tools that are listed all the same.
    * **options** – those of `Code`, where the server has no such service yet.
    """

    def __init__(self, server: Handler, *, name: str = "code", always: Sequence[str] = (), **options: Any) -> None:
        given = _service_of(server)
        shown = always if given is None else (*SHOWN, *always)
        super().__init__(server, name, always=shown, instructions=INSTRUCTIONS)
        add_find_tools(self)
        self.code = given or self._own(server, options)

    def _own(self, server: Handler, options: dict[str, Any]) -> Code:
        """A service of this face's own. Its runs are no tasks: those are the server's."""
        # A view keeps things where its gateway does.
        whole = getattr(server, "whole", server)
        store = getattr(whole, "store", None)
        code = Code(target=server, tasks=False, **{"store": store, **options})
        desk = self.desk
        # What was too long for a result is read here, too.
        desk.capabilities = replace(desk.capabilities, resources={})
        if isinstance(whole, Server):
            # Any process that the server shares its key with goes on with a question.
            desk.seal, desk.spent = whole.seal, whole.spent
            # That a script was saved is told to who listens to the server.
            desk.subscriptions.spread = whole.subscriptions.publish_everywhere
        desk.add(code)
        return code

    def start(self, call: Call) -> Any:
        if call.method == "resources/read" and self.code.name in {one.name for one in self.desk.services}:
            uri = getattr(call.typed(), "uri", "")
            if uri.startswith(OUTPUTS):
                # It is given only to who ran the script.
                return self.answer_own(call, "resource", Owned(self.code.name, uri), decided=False)
        return super().start(call)

    # Saved scripts

    def _list(self, call: Call) -> Any:
        return self._list_all(call) if self.code.saves else super()._list(call)

    async def _list_all(self, call: Call) -> Raw:
        own, cursor = list(self._shown(call, self._definitions())), call.typed().cursor
        if self.sees(call, Owned(self.code.name, "run_saved")):
            own += [msgspec.convert(one, type(own[0])) for one in await self._saved(call)]
        page = self.desk.tools.once(own, call.revision or LATEST, cursor)
        return await self._with_always(call, page) if self.always and cursor is None else page

    async def _saved(self, call: Call) -> list[dict[str, Any]]:
        """The scripts of a caller that can be called: all that they use is as it was, and no tool has their name."""
        scripts = await self.code.saved.all(owner_of(call))
        if not scripts:
            return []
        table = await self._table(call)
        return [
            one.definition(table) for one in scripts if not table.changed(one.tools) and one.name not in table.by_name
        ]

    async def _table(self, call: Call) -> ToolTable:
        about = {name: getattr(call, name) for name in ("principal", "client", "address", "headers", "facet")}
        return await self.code.tables.of(about)

    def _definitions(self) -> Sequence[Any]:
        shown = super()._definitions()
        return [one for one in shown if one.name in (*SHOWN, "find_tools")]

    def _call_tool(self, call: Call) -> Any:
        name = call.typed().name
        known = name in self.answers or name in self.desk.registry.by_name
        if known or not self.code.saves or members(self.server).canonical("tool", name) not in (None, name):
            return super()._call_tool(call)
        return self._call_saved(call, name)

    async def _call_saved(self, call: Call, name: str) -> Any:
        """A saved script by its name, unless there is a tool of that name that the caller is shown."""
        try:
            await self.code.saved.find(owner_of(call), name)
            call = call if name in (await self._table(call)).by_name else _renamed(call, name)
        except ToolError:
            pass  # the server says that there is no such tool
        result = super()._call_tool(call)
        return await result if type(result) is CoroutineType else result


def _service_of(server: Handler) -> Code | None:
    found = [one for one in getattr(server, "services", ()) if isinstance(one, Code)]
    return found[0] if found else None


def _renamed(call: Call, name: str) -> Call:
    params: dict[str, Any] = msgspec.json.decode(call.params, type=dict[str, Raw])
    given = msgspec.json.decode(params.get("arguments") or b"{}")
    arguments = {**(given if isinstance(given, dict) else {}), "name": name}
    return replace(call, params=Raw(to_json({**params, "name": "run_saved", "arguments": arguments})), read=None)
