"""A face: a server that shows a few tools in place of all of its own.

The tools that are not shown are there all the same, under their own names and by the same rules: whatever is asked of a
face goes to the server, which decides, counts and records as it does for everybody. Nothing depends on the connection,
so what a client keeps of a list stays true.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.protocol import jsonrpc
from portico.protocol.header_params import Mirror
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import Implementation, ServerCapabilities
from portico.protocol.tasks import EXTENSION
from portico.protocol.tools import Tool as Definition
from portico.protocol.versions import LATEST
from portico.rpc.call import Call, Handler, members
from portico.search.visible_tools import SeenTools
from portico.server.policy.interfaces import Kind, Owned
from portico.server.registry.service import Answer
from portico.server.server import Server

# Pages that were put together of our own tools and of those that are always shown.
MOST_KEPT = 64
# Whose its own tools are that come from no service, and those that give no more than the server's list does.
FACES = "faces"
LISTING = frozenset({"find_tools"})
# What Claude Code looks for in a tool that it should not defer: what finds other tools need not be found itself.
ALWAYS_LOAD = "anthropic/alwaysLoad"


class _ShownPage(Struct):
    # What it was made of, which is the same as long as these are the same objects.
    sources: tuple[Raw, ...]
    page: Raw


class ServerFace:
    """A Handler over another one.

    * **server** – a Server, a Gateway, or any Handler.
    * **name** – what this face is called; over HTTP it is at `/mcp/NAME`.
    * **always** – the names of those tools of the server that are shown as they are.
    * **brief** – whether those are listed without their output schemas, which `find_tools` gives.
    * **instructions** – how a model should use the face: said after the server's own instructions.

    What it shows besides is registered with its `desk`, a Server: `@face.desk.tool`. A body there finds the request
    that it answers in `ctx.call`, and this face's `seen` knows which tools the sender of it is shown.
    """

    def __init__(
        self,
        server: Handler,
        name: str,
        *,
        always: Sequence[str] = (),
        brief: bool = False,
        instructions: str | None = None,
    ) -> None:
        about = members(server)
        self.server, self.name, self.instructions = server, name, instructions
        self.always, self.brief = tuple(dict.fromkeys(always)), brief
        info = about.info or Implementation(name, "0")
        self.desk = Server(
            info.name,
            version=info.version,
            capabilities={"tools": {}},
            argument_errors="result",
            structured_output=False,
        )
        self.seen = SeenTools(server)
        # What is answered here in place of the desk, by the name of the tool.
        self.answers: dict[str, Answer] = {}
        self.start_server: Callable[[Call], Any] = about.start
        # Puts the server's middleware around what is answered here.
        self._answer_with: Callable[[Answer, Call], Any] = getattr(server, "answer_with", _answer_plainly)
        self._kept: dict[tuple[Any, ...], _ShownPage] = {}
        self._listed: dict[bool, tuple[Sequence[Any], Sequence[Definition]]] = {}

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if type(result) is CoroutineType else result

    def start(self, call: Call) -> Any:
        if call.method == "tools/call":
            return self._call_tool(call)
        if call.method == "tools/list":
            return self._answer_with(self._list, call)
        return self.start_server(call) if call.method != "server/discover" else self._discover(call)

    def _call_tool(self, call: Call) -> Any:
        name = call.typed().name
        answer = self.answers.get(name)
        if answer is not None:
            return answer(call)
        if name in self.desk.registry.by_name:
            return self.answer_own(call, "tool", self.owned(name), decided=name not in LISTING)
        return self.start_server(call)

    # What is our own is decided, counted and recorded as what the server has

    def owned(self, name: str) -> Owned:
        """Whose a tool of our own is for rules and records: the service that it comes from, or else of `faces`."""
        return Owned(getattr(self.desk.registry.by_name[name], "owner", "") or FACES, name)

    def answer_own(self, call: Call, kind: Kind, owned: Owned, *, decided: bool = True) -> Any:
        return self._answer_with(partial(self._answer_protected, kind, owned, decided), call)

    def _answer_protected(self, kind: Kind, owned: Owned, decided: bool, call: Call) -> Any:
        protection = getattr(self.server, "protection", None)
        if protection is None:
            return self.desk.start(call)
        return protection.pass_to(call, kind, owned, self.desk.start, decided=decided)

    def sees(self, call: Call, owned: Owned) -> bool:
        """Whether rules let the sender of a call see a tool of our own."""
        guard = getattr(getattr(self.server, "protection", None), "guard", None)
        return guard is None or guard.sight(call).sees("tool", owned)

    def _shown(self, call: Call, whole: Sequence[Definition]) -> Sequence[Definition]:
        """Those of our own tools that the sender of a call is shown: the same object if it is all of them."""
        shown = [one for one in whole if self._is_shown(call, one.name)]
        return whole if len(shown) == len(whole) else shown

    def _is_shown(self, call: Call, name: str) -> bool:
        return name in LISTING or name in self.answers or self.sees(call, self.owned(name))

    # Listing

    def _list(self, call: Call) -> Any:
        revision = call.revision or LATEST
        whole, cursor = self._definitions(), call.typed().cursor
        shown = self._shown(call, whole)
        if shown is whole:
            page = self.desk.tools.page(revision, cursor, whole)
        else:
            page = self.desk.tools.once(shown, revision, cursor)
        # Those that are always shown stand on the first page.
        return self._with_always(call, page) if self.always and cursor is None else page

    def _definitions(self) -> Sequence[Definition]:
        """Our own tools; those that pass calls on may become a task wherever the server has tasks."""
        able = self.capabilities
        tasks = EXTENSION in (able.extensions or {} if isinstance(able, ServerCapabilities) else {})
        own = self.desk.tools.definitions
        kept = self._listed.get(tasks)
        if kept is None or kept[0] is not own:
            kept = self._listed[tasks] = (own, [self._listed_as(one, tasks) for one in own])
        return kept[1]

    def _listed_as(self, own: Definition, tasks: bool) -> Definition:
        own = replace(own, meta={**(own.meta or {}), ALWAYS_LOAD: True})
        return replace(own, execution={"taskSupport": "optional"}) if tasks and own.name in self.answers else own

    async def _with_always(self, call: Call, page: Raw) -> Raw:
        sources = (page, *await self.seen.pages(call, call.revision or LATEST))
        key = tuple(map(id, sources))
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            kept = self._kept[key] = _ShownPage(sources, self._joined(*sources))
        return kept.page

    def _joined(self, page: Raw, *others: Raw) -> Raw:
        """Our own page with those entries of the others that are always shown, in the order in which they are named."""
        whole: dict[str, Raw] = _members.decode(page)
        known = {_name.decode(one).name: one for other in others for one in _entries.decode(other).tools}
        shown = [known[name] for name in self.always if name in known and name not in self.desk.registry.by_name]
        own = msgspec.json.decode(whole["tools"], type=list[Raw])
        if self.brief:
            shown = [_without_output(one) for one in shown]
        return Raw(jsonrpc.encode({**whole, "tools": own + shown}))

    async def _discover(self, call: Call) -> Any:
        said = self.start_server(call)
        said = await said if type(said) is CoroutineType else said
        if isinstance(said, DiscoverResult) and self.instructions:
            both = (said.instructions, self.instructions)
            said = replace(said, instructions="\n\n".join(one for one in both if one))
        return said

    # What a Handler may offer besides: what the server offers

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[ServerFace]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(members(self.server).lifespan())
            await stack.enter_async_context(self.desk.lifespan())
            yield self

    @property
    def info(self) -> Implementation | None:
        return members(self.server).info

    @property
    def capabilities(self) -> Any:
        return getattr(self.server, "capabilities", None)

    @property
    def mirrored(self) -> Mapping[str, Sequence[Mirror]]:
        return members(self.server).mirrored

    def needs(self, method: str, name: str, *more: Any) -> Any:
        ours = method == "tools/call" and name in self.desk.registry.by_name
        return frozenset() if ours else members(self.server).needs(method, name, *more)

    def canonical(self, kind: Kind, name: str) -> str | None:
        ours = kind == "tool" and name in self.desk.registry.by_name
        return name if ours else members(self.server).canonical(kind, name)

    def hides(self, call: Call, kind: Kind, name: str) -> bool:
        ours = kind == "tool" and name in self.desk.registry.by_name
        return not self._is_shown(call, name) if ours else members(self.server).hides(call, kind, name)

    def refused(self, status: int, reason: str, address: str | None) -> None:
        members(self.server).refused(status, reason, address)

    def endpoints(self) -> Mapping[str, Handler]:
        return members(self.server).endpoints()

    def readiness(self) -> Mapping[str, str]:
        return members(self.server).readiness()

    def is_settled(self) -> bool:
        return members(self.server).is_settled()

    def conditions(self) -> Mapping[str, str]:
        return members(self.server).conditions()

    def measures(self) -> Sequence[str]:
        return members(self.server).measures()


def _answer_plainly(answer: Answer, call: Call) -> Any:
    return answer(call)


def _without_output(entry: Raw) -> Raw:
    members = _members.decode(entry)
    return Raw(jsonrpc.encode({name: one for name, one in members.items() if name != "outputSchema"}))


class _EntryName(Struct):
    name: str


class _ListedEntries(Struct):
    tools: list[Raw] = []


_members = msgspec.json.Decoder(dict[str, Raw])
_name = msgspec.json.Decoder(_EntryName)
_entries = msgspec.json.Decoder(_ListedEntries)
