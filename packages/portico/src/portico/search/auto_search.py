"""Tool search that turns itself on when a server has many tools, for all callers or none."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from portico.rpc.call import Call, HandlerWrapper
from portico.search.searchable_tools import SeenTools
from portico.search.tool_search_base import ToolSearchBase

# Enabled from this many tools, or bytes of their definitions (about four per token).
TOOL_COUNT_THRESHOLD = 40
LIST_BYTES_THRESHOLD = 40_000


class AutoToolSearch(HandlerWrapper):
    """The plain server while it has few tools, and tool search once it has many.

    The whole catalog counts, so that the decision does not depend on the caller. Once on, tool search stays on, so that
    a client's list does not change back and forth.
    """

    def __init__(self, tool_search: ToolSearchBase) -> None:
        super().__init__(tool_search)
        self.tool_search, self.name, self.own_tools = tool_search, tool_search.name, tool_search.own_tools
        # Whether tool search has replaced the plain server.
        self.is_active = False
        self._start = tool_search.start_server
        # The catalog as seen by all callers together.
        self._full_catalog = SeenTools(getattr(tool_search.server, "handle_without_policy", tool_search.server))

    def start(self, call: Call) -> Any:
        # Once active, no further check: the flag is all that the hot path reads.
        if self.is_active:
            return self.tool_search.start(call)
        return self._choose(call) if call.method in _DECIDING_METHODS or self._is_ours(call) else self._start(call)

    def _is_ours(self, call: Call) -> bool:
        """Return whether a call is for a tool of tool search, listed by another process or before a restart."""
        return call.method == "tools/call" and call.decode_params().name in self.own_tools.registry.by_name

    async def _choose(self, call: Call) -> Any:
        self.is_active = self.is_active or await self._is_large(call)
        result = self.start(call) if self.is_active else self._start(call)
        return await result if type(result) is CoroutineType else result

    async def _is_large(self, call: Call) -> bool:
        tools = (await self._full_catalog.view(Call(method="tools/list", id=call.id, reply=call.reply))).tools
        return (
            len(tools) >= TOOL_COUNT_THRESHOLD or sum(len(bytes(tool.entry)) for tool in tools) >= LIST_BYTES_THRESHOLD
        )


_DECIDING_METHODS = frozenset({"tools/list", "server/discover"})
