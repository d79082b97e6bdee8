"""Cached tool catalogs for scripts, one per distinct tool list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from portico import Context
from portico.extend import Call, ToolPage, VisibleTools, get_capabilities
from portico.types import ToolAnnotations
from portico_services.codemode.tool_catalog import ScriptTool, ToolCatalog, read_tools

# Distinct lists, since visibility differs by caller.
MAX_TABLES = 64


class CallerCatalogs:
    """The tools that each caller of a handler is shown, as scripts see them.

    `handler` returns the handler to ask; `hidden` are owners whose tools scripts cannot call.
    """

    def __init__(self, handler: Callable[[], Any], hidden: tuple[str, ...]) -> None:
        self._handler = handler
        self._hidden = hidden
        self._visible: VisibleTools[ToolCatalog] | None = None

    async def get(self, about: Mapping[str, Any]) -> ToolCatalog:
        """Return the table of the caller that these members of a Call describe."""
        handler = self._handler()
        # The handler changes when the service is added to another server; its old catalogs must not be used then.
        if self._visible is None or self._visible.handler is not handler:
            self._visible = VisibleTools(handler, partial(self._table, handler), MAX_TABLES)
        return await self._visible.get(Call(method="tools/list", id="tools", **about))

    def hints(self) -> Callable[[Call, str], ToolAnnotations | None]:
        """Return the function that looks up a tool's current annotations."""
        return get_capabilities(self._handler()).directory.tool_annotations

    def _table(self, handler: Any, pages: Sequence[ToolPage]) -> ToolCatalog:
        directory, name = get_capabilities(handler).directory, str(getattr(handler, "name", ""))
        tools = read_tools(entry for page in pages for entry in page.entries)
        return ToolCatalog(
            tools, partial(directory.qualified_name, "tool"), name, self._hidden, directory.requires_task
        )


class RunTools:
    """The tools of one run.

    `table` is the catalog the caller was shown last; `only` restricts it to these names.
    """

    def __init__(self, tables: CallerCatalogs, ctx: Context, table: ToolCatalog, only: Collection[str] | None) -> None:
        self._tables, self._ctx, self._only = tables, ctx, only
        self._hints = tables.hints()
        self.table = table if only is None else table.select(only)

    async def get_current(self, tool: ScriptTool) -> ScriptTool | None:
        """Return the current version of a tool, which may have changed since the run began, or None if it is gone."""
        # Fast path: only a change of the annotations can turn a read into a write.
        if self._hints(self._ctx.call, tool.name) == tool.hints:
            return tool
        table = await self._tables.get(self._ctx.caller_fields)
        self.table = table if self._only is None else table.select(self._only)
        return self.table.by_name.get(tool.name)
