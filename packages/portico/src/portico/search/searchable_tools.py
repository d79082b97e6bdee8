"""The tools visible to a caller, and search among them.

All callers share one index; the view of a caller is a bytearray with one flag per tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec import Raw

from portico.jsonschema.explanation import list_fields
from portico.protocol.tools import Tool as Definition
from portico.protocol.versions import ProtocolVersion
from portico.rpc.call import Call, Handler, get_capabilities
from portico.rpc.visible_tools import ToolPage, VisibleTools
from portico.search.fuzzy_names import FuzzyNames
from portico.search.signatures import format_signature
from portico.search.tool_index import ToolDocument, ToolIndex
from portico.text import one_line

# Larger indexes are built in a thread, because that would block the event loop.
SMALL_CATALOG_SIZE = 100
# Unlisted tools are dropped when there are more of them than this, and than listed ones.
MAX_STALE_ENTRIES = 1000


class VisibleTool:
    """A tool as listed: its encoded entry and its owner."""

    def __init__(self, entry: Raw, owner: str, definition: Definition) -> None:
        self.entry, self.owner, self.definition = entry, owner, definition
        self.name = definition.name
        # Its position in the longest list that contains it.
        self.place = 0

    @cached_property
    def signature(self) -> str:
        """Return the tool's signature on one line."""
        try:
            return format_signature(self.name, self.definition.input_schema, self.definition.output_schema)
        except (RecursionError, TypeError, ValueError, AttributeError):
            # The server's schema is invalid; the tool can still be called.
            return f"{one_line(self.name)}(…)"

    def to_document(self) -> ToolDocument:
        """Return the fields of the tool for the search index."""
        definition = self.definition
        parts = list_fields(definition.input_schema)
        annotated = definition.annotations.title if definition.annotations is not None else None
        return ToolDocument(
            name=definition.name,
            title=definition.title or annotated or "",
            description=definition.description or "",
            parameters=" ".join(part.name for part in parts),
            parameter_descriptions=" ".join(str(part.schema.get("description", "")) for part in parts),
            server=self.owner,
            position=self.place,
        )


class ToolView:
    """The tools that one caller sees."""

    def __init__(self, positions: Sequence[int], tools: Sequence[VisibleTool]) -> None:
        # The list that positions refer to.
        self.all = tools
        self.tools = [tools[at] for at in positions]
        self.visible = bytearray(len(tools))
        for number, at in enumerate(positions):
            self.visible[at] = 1
            # A caller with few rights sees a tool at an earlier position. The largest one is that
            # in the complete list, which the ranking needs.
            tools[at].place = max(number, tools[at].place)

    @cached_property
    def by_name(self) -> Mapping[str, VisibleTool]:
        return {tool.name: tool for tool in self.tools}

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """Return the number of tools of each owner."""
        result: dict[str, int] = {}
        for tool in self.tools:
            result[tool.owner] = result.get(tool.owner, 0) + 1
        return result

    @cached_property
    def _fuzzy_names(self) -> FuzzyNames:
        return FuzzyNames(self.by_name)

    def nearest(self, name: str, limit: int = 3) -> list[VisibleTool]:
        """Return the tools with the most similar names."""
        return [self.by_name[item] for item in self._fuzzy_names.nearest(name, limit)]


class SeenTools:
    """The tools of one server, as its callers see them."""

    def __init__(self, server: Handler) -> None:
        self._owner_of = get_capabilities(server).directory.qualified_name
        self._visible = VisibleTools(server, self._view)
        self._building = asyncio.Lock()
        self._forget()

    def _forget(self) -> None:
        self._tools: list[VisibleTool] = []
        self._positions: dict[tuple[str, bytes], int] = {}
        self._index: ToolIndex | None = None
        self._indexed = 0
        self._visible.clear()

    async def view(self, call: Call) -> ToolView:
        """Return the tools that the sender of a call sees now."""
        return await self._visible.get(call)

    def _view(self, pages: Sequence[ToolPage]) -> ToolView:
        # Tools are never removed one by one, because all positions would shift. Servers whose
        # descriptions change with each request would otherwise grow this list forever.
        if len(self._tools) > MAX_STALE_ENTRIES + 2 * sum(len(item.entries) for item in pages):
            self._forget()
        positions = [self._find_position(entry) for page in pages for entry in page.entries]
        return ToolView([at for at in positions if at is not None], self._tools)

    async def pages(self, call: Call, revision: ProtocolVersion) -> list[Raw]:
        """Return the pages of the tool list for the sender of a call, in a protocol version."""
        return [page.data for page in await self._visible.pages(call, revision)]

    async def search(
        self, call: Call, queries: Iterable[str], limit: int, owner: str | None = None
    ) -> list[list[VisibleTool]]:
        """Return the best matching tools for each query, optionally of one owner."""
        view, index = await self.view(call), await self._refresh_index()
        while view.all is not self._tools:
            # The list was reset in the meantime, so positions refer to other tools.
            view, index = await self.view(call), await self._refresh_index()
        # Tools added after the view was made are not visible in it.
        visible = bytes(view.visible) + bytes(len(self._tools) - len(view.visible))
        if owner is not None:
            visible = bytes(
                is_visible and item.owner == owner for is_visible, item in zip(visible, self._tools, strict=True)
            )
        many = index.search_many(list(queries), limit, visible)
        return [[self._tools[at] for at in item] for item in many]

    async def _refresh_index(self) -> ToolIndex:
        while self._index is None or self._indexed != len(self._tools):
            # Building a large index takes long, so concurrent searches share one.
            async with self._building:
                if self._index is None or self._indexed != len(self._tools):
                    await self._build_index()
        return self._index

    async def _build_index(self) -> None:
        tools = list(self._tools)
        if len(tools) <= SMALL_CATALOG_SIZE:
            index = _build_index(tools)
        else:
            index = await asyncio.to_thread(_build_index, tools)
        # Tools may have been added or reset while the index was built in a thread.
        if tools == self._tools[: len(tools)]:
            self._index, self._indexed = index, len(tools)

    def _find_position(self, entry: Raw) -> int | None:
        """Return the position of an entry, or None if it is not a valid tool."""
        try:
            definition = _definitions.decode(entry)
        except (msgspec.DecodeError, RecursionError):
            return None
        owner = self._owner_of("tool", definition.name).owner
        # The whole definition is the key: callers may see different descriptions of one tool, and
        # each is indexed.
        key = (owner, bytes(entry))
        at = self._positions.get(key)
        if at is None:
            at = self._positions[key] = len(self._tools)
            self._tools.append(VisibleTool(Raw(key[1]), owner, definition))
        return at


_definitions = msgspec.json.Decoder(Definition)


def _build_index(tools: Sequence[VisibleTool]) -> ToolIndex:
    return ToolIndex([tool.to_document() for tool in tools])
