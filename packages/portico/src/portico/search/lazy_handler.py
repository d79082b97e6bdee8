"""Tool search that is created on its first request, so that offering it does not slow down startup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from portico.protocol.errors import MethodNotFound, UsageError
from portico.rpc.call import Call, HandlerWrapper
from portico.search.tool_search_base import ToolSearchBase


class LazyHandler(HandlerWrapper):
    """Placeholder for a tool search handler until its first call; until then it exposes the server's attributes."""

    def __init__(self, server: Any, name: str, factory: Callable[[], ToolSearchBase]) -> None:
        super().__init__(server)
        self.server, self.name = server, name
        self._factory = factory
        self._tool_search: ToolSearchBase | None = None
        self._making = asyncio.Lock()
        self._stack = AsyncExitStack()

    def start(self, call: Call) -> Any:
        return self._start(call) if self._tool_search is None else self._tool_search.start(call)

    async def _start(self, call: Call) -> Any:
        return await (await self._get_handler())(call)

    def cached_list(self, method: str) -> Sequence[Any] | None:
        return None

    async def _get_handler(self) -> ToolSearchBase:
        # Two concurrent first requests must not create two handlers with two lifespans.
        async with self._making:
            if self._tool_search is None:
                try:
                    handler = self._factory()
                except UsageError as reason:
                    raise MethodNotFound(f"{self.name} is not available here: {reason}") from None
                # The server's own lifespan has started long before, so this one is entered here and
                # left in `lifespan`.
                await self._stack.enter_async_context(handler.own_tools.lifespan())
                self._tool_search = self.handler = handler
        return self._tool_search

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Keep the handler usable for the duration of the context."""
        try:
            yield
        finally:
            self._tool_search, self.handler = None, self.server
            await self._stack.aclose()
