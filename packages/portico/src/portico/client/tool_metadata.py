"""Cache of tool metadata, such as output schemas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from portico.client import results
from portico.client.pagination import ListPaginator
from portico.client.requests import RequestSession
from portico.client.results import ToolMetadata
from portico.protocol.errors import PorticoError
from portico.protocol.tools import Tool

log = logging.getLogger("portico")


class ToolMetadataCache:
    """Tool metadata by tool name, valid until the tools change."""

    def __init__(self, lists: ListPaginator, requests: RequestSession) -> None:
        self.entries: dict[str, ToolMetadata] = {}
        # Whether all tools were listed, so that an unknown name need not be searched.
        self._knows_all = False
        self._lists = lists
        self._requests = requests

    def clear(self) -> None:
        self.entries, self._knows_all = {}, False

    def set_all(self, tools: Iterable[Tool]) -> None:
        """Replace the cache with the metadata of the complete tool list."""
        self.entries, self._knows_all = {tool.name: results.read_tool_metadata(tool) for tool in tools}, True

    async def get(self, name: str, timeout: float | None = None, *, refresh: bool = False) -> ToolMetadata | None:
        """Return the metadata of a tool, searching the tool list page by page, or None if it is not listed."""
        if name not in self.entries and not self._knows_all:
            try:
                async with asyncio.timeout(self._requests.effective_timeout(timeout)):
                    tool = await self._lists.restart_on_bad_cursor(lambda: self._lists.find_tool(name, refresh=refresh))
            except (PorticoError, TimeoutError) as failure:
                log.debug("%s: cannot read tool metadata: %s", self._requests.name, failure)
                tool = None
            if tool is None:
                self._knows_all = True
            else:
                self.entries[name] = results.read_tool_metadata(tool)
        return self.entries.get(name)
