"""The tools that each caller is shown, as scripts see them: worked out once for each list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from portico import Context
from portico.extend import MODERN, Call, ToolAnnotations, members, to_json
from portico_services.codemode.tool_catalog import ScriptTool, ToolTable, read_page

MOST_PAGES = 1000
# Lists that differ by who asks.
MOST_TABLES = 64


class _NextPage(msgspec.Struct):
    nextCursor: str | None = None


class CallerTables:
    """`handler` gives whom to ask; `hidden` are owners whose tools are for no script."""

    def __init__(self, handler: Callable[[], Any], hidden: tuple[str, ...]) -> None:
        self._handler = handler
        self._hidden = hidden
        self._tables: OrderedDict[bytes, ToolTable] = OrderedDict()
        # The page that was last given, if it was all: the same object as long as nothing changes.
        self._last: tuple[Raw, ToolTable] | None = None

    async def of(self, about: Mapping[str, Any]) -> ToolTable:
        """What the caller is shown whom these members of a Call say."""
        handler = self._handler()
        pages = [await self._page(handler, about, {})]
        if self._last is not None and pages[0] is self._last[0]:
            return self._last[1]
        while (cursor := _next(pages[-1])) is not None and len(pages) < MOST_PAGES:
            pages.append(await self._page(handler, about, {"cursor": cursor}))
        table = self._table(handler, pages)
        self._last = (pages[0], table) if len(pages) == 1 else None
        return table

    def hints(self) -> Callable[[Call, str], ToolAnnotations | None]:
        """What says how a tool is now."""
        return members(self._handler()).hints

    async def _page(self, handler: Any, about: Mapping[str, Any], params: dict[str, Any]) -> Raw:
        # In the newest words: older revisions do not say which tools only read.
        call = Call(method="tools/list", params=Raw(to_json(params)), id="tools", revision=MODERN, **about)
        page = await handler(call)
        return page if isinstance(page, Raw) else Raw(to_json(page))

    def _table(self, handler: Any, pages: list[Raw]) -> ToolTable:
        key = sha256(b"\n".join(bytes(one) for one in pages)).digest()
        table = self._tables.get(key)
        if table is None:
            tools = [one for page in pages for one in read_page(page)]
            table = ToolTable(tools, _owners(handler), _name(handler), self._hidden, members(handler).needs_task)
            self._tables[key] = table
            if len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return table


class RunTools:
    """The tools of one run. `table` is what its caller was shown last; `only`: with these names alone."""

    def __init__(self, tables: CallerTables, ctx: Context, table: ToolTable, only: Collection[str] | None) -> None:
        self._tables, self._ctx, self._only = tables, ctx, only
        self._hints = tables.hints()
        self.table = table if only is None else table.only(only)

    async def now(self, tool: ScriptTool) -> ScriptTool | None:
        """A tool as it is at this moment, which may not be what it was when the run began; None if it is gone."""
        if self._hints(self._ctx.call, tool.name) == tool.hints:
            return tool
        table = await self._tables.of(self._ctx.on_behalf)
        self.table = table if self._only is None else table.only(self._only)
        return self.table.by_name.get(tool.name)


def _next(page: Raw) -> str | None:
    return msgspec.json.decode(page, type=_NextPage).nextCursor


def _name(handler: Any) -> str:
    return str(getattr(handler, "name", ""))


def _owners(handler: Any) -> Callable[[str], tuple[str, str]]:
    whose = getattr(handler, "owner_of", None)

    def owner_of(name: str) -> tuple[str, str]:
        if whose is None:
            return "", name
        owner, inward = whose("tool", name)
        return owner, inward

    return owner_of
