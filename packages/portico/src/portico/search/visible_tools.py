"""Which tools of a server the sender of a call is shown, and finding among them.

The server is asked for its list as that caller would ask for it, so nothing is found that it would not list; lists that
have not changed are the same objects, and are read once. All callers share one index: what one of them sees is a map of
it with a byte for each tool.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.jsonschema.explanation import fields
from portico.protocol import jsonrpc
from portico.protocol.tools import Tool as Definition
from portico.protocol.versions import LATEST, Revision
from portico.rpc.call import Call, Handler, members
from portico.search.fuzzy_names import NearNames
from portico.search.signatures import printable, signature
from portico.search.tool_index import ToolIndex, ToolWords

# An endless list is not followed further.
MOST_PAGES = 1000
# Of each: lists that differ, and pages that were read.
MOST_VIEWS = 256
MOST_READ = 4096
# Beyond so many tools, an index is made in a thread: it takes longer than others should wait.
FEW_TOOLS = 100
# Tools that are in no list any more are forgotten when there are more of them than this, and than of the others.
MOST_GONE = 1000

_NOTHING = Raw(b"{}")


class SeenTool:
    """A tool as it is listed: its entry, and whose it is."""

    def __init__(self, entry: Raw, owner: str, definition: Definition) -> None:
        self.entry, self.owner, self.definition = entry, owner, definition
        self.name = definition.name
        # Where it stands in the longest list that it was seen in.
        self.place = 0

    @cached_property
    def signature(self) -> str:
        try:
            return signature(self.name, self.definition.input_schema, self.definition.output_schema)
        except (RecursionError, TypeError, ValueError, AttributeError):
            # What its server calls a schema is none; it may still be called.
            return f"{printable(self.name)}(…)"

    def words(self) -> ToolWords:
        one = self.definition
        parts = fields(one.input_schema)
        annotated = one.annotations.title if one.annotations is not None else None
        return ToolWords(
            name=one.name,
            title=one.title or annotated or "",
            description=one.description or "",
            parameters=" ".join(part.name for part in parts),
            explanations=" ".join(str(part.schema.get("description", "")) for part in parts),
            server=self.owner,
            place=self.place,
        )


class _ReadPage(Struct, eq=False):
    page: Raw
    cursor: str | None
    entries: list[Raw]
    # The places of its tools, once they were looked for.
    places: list[int] | None = None


class ToolView:
    """What one caller sees."""

    def __init__(self, pages: Sequence[_ReadPage], tools: Sequence[SeenTool]) -> None:
        # Held, so that no other object gets their identity.
        self._pages = pages
        # What the places are places in.
        self.all = tools
        places = [at for page in pages for at in page.places or ()]
        self.tools = [tools[at] for at in places]
        self.visible = bytearray(len(tools))
        for number, at in enumerate(places):
            self.visible[at] = 1
            tools[at].place = max(number, tools[at].place)

    @cached_property
    def by_name(self) -> Mapping[str, SeenTool]:
        return {one.name: one for one in self.tools}

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Whose they are, and how many of each."""
        found: dict[str, int] = {}
        for one in self.tools:
            found[one.owner] = found.get(one.owner, 0) + 1
        return found

    @cached_property
    def _near(self) -> NearNames:
        return NearNames(self.by_name)

    def nearest(self, name: str, most: int = 3) -> list[SeenTool]:
        return [self.by_name[one] for one in self._near.nearest(name, most)]


class SeenTools:
    """The tools of one server, as its callers see them."""

    def __init__(self, server: Handler) -> None:
        self._server = server
        self._start = members(server).start
        self._owner_of = getattr(server, "owner_of", None)
        self._forget()

    def _forget(self) -> None:
        self._tools: list[SeenTool] = []
        self._places: dict[tuple[str, bytes], int] = {}
        self._read: OrderedDict[Any, _ReadPage] = OrderedDict()
        self._views: OrderedDict[Any, ToolView] = OrderedDict()
        self._index: ToolIndex | None = None
        self._indexed = 0

    async def view(self, call: Call) -> ToolView:
        """What the sender of a call sees now."""
        pages = await self._walk(call, LATEST)
        key = tuple(id(one) for one in pages)
        view = self._views.get(key)
        if view is None:
            if len(self._tools) > MOST_GONE + 2 * sum(len(one.entries) for one in pages):
                self._forget()
            for one in pages:
                one.places = [at for at in map(self._place, one.entries) if at is not None]
            view = self._views[key] = ToolView(pages, self._tools)
            if len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        return view

    async def pages(self, call: Call, revision: Revision) -> list[Raw]:
        """The pages of the list that the sender of a call is given, in the words of a revision."""
        return [one.page for one in await self._walk(call, revision)]

    async def search(
        self, call: Call, queries: Iterable[str], most: int, owner: str | None = None
    ) -> list[list[SeenTool]]:
        """For each query the tools that fit best; only those of one owner, if it is given."""
        view, index = await self.view(call), await self._current()
        while view.all is not self._tools:
            # All was forgotten meanwhile: what stands at a place now is another tool.
            view, index = await self.view(call), await self._current()
        # Tools may have been added since the view was made; they are not in it.
        visible = bytes(view.visible) + bytes(len(self._tools) - len(view.visible))
        if owner is not None:
            visible = bytes(shown and one.owner == owner for shown, one in zip(visible, self._tools, strict=True))
        found = index.search_together(list(queries), most, visible)
        return [[self._tools[at] for at in one] for one in found]

    async def _current(self) -> ToolIndex:
        while self._index is None or self._indexed != len(self._tools):
            tools = list(self._tools)
            if len(tools) <= FEW_TOOLS:
                made = _indexed(tools)
            else:
                made = await asyncio.to_thread(_indexed, tools)
            if tools == self._tools[: len(tools)]:
                self._index, self._indexed = made, len(tools)
        return self._index

    # Reading lists

    async def _walk(self, call: Call, revision: Revision) -> list[_ReadPage]:
        found: list[_ReadPage] = []
        params = _NOTHING
        for _ in range(MOST_PAGES):
            asked = replace(call, method="tools/list", params=params, revision=revision, progress_token=None, read=None)
            said = self._start(asked)
            said = await said if type(said) is CoroutineType else said
            found.append(self._page(said))
            if found[-1].cursor is None:
                break
            params = Raw(jsonrpc.encode({"cursor": found[-1].cursor}))
        return found

    def _page(self, said: Any) -> _ReadPage:
        """A page that was given before is the same object, or at least has the same bytes."""
        key: Any = id(said)
        if type(said) is not Raw:
            said = Raw(jsonrpc.encode(said))
            key = hashlib.sha256(said).digest()
        known = self._read.get(key)
        if known is None or (known.page is not said and type(key) is int):
            page = _pages.decode(said)
            known = self._read[key] = _ReadPage(said, page.nextCursor, page.tools)
            if len(self._read) > MOST_READ:
                self._read.popitem(last=False)
        self._read.move_to_end(key)
        return known

    def _place(self, entry: Raw) -> int | None:
        """None: it is no tool, whatever a server says."""
        try:
            definition = _definitions.decode(entry)
        except (msgspec.DecodeError, RecursionError):
            return None
        owner = "" if self._owner_of is None else str(self._owner_of("tool", definition.name).owner)
        key = (owner, bytes(entry))
        at = self._places.get(key)
        if at is None:
            at = self._places[key] = len(self._tools)
            self._tools.append(SeenTool(Raw(key[1]), owner, definition))
        return at


class _ToolPage(Struct):
    tools: list[Raw] = []
    nextCursor: str | None = None


_pages = msgspec.json.Decoder(_ToolPage)
_definitions = msgspec.json.Decoder(Definition)


def _indexed(tools: Sequence[SeenTool]) -> ToolIndex:
    return ToolIndex([one.words() for one in tools])
