"""A server with tools for scripts, and a client to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico_services.codemode import CodeMode
from portico_services.livepython.sandbox.landlock import unavailable_reason
from portico_services.livepython.sandbox.limits import SandboxLimits

TIMEOUT_SECONDS = 30.0
READS = {"readOnlyHint": True}

jail_only = pytest.mark.skipif(
    unavailable_reason(SandboxLimits()) is not None, reason=f"no jail here: {unavailable_reason(SandboxLimits())}"
)


class ToolShop:
    """What the tools have done, and what the person says who is asked."""

    def __init__(self, **settings: Any) -> None:
        self.orders: list[str] = []
        self.asked: list[str] = []
        self.agrees = True
        self.running = self.most_running = 0
        self.server = Server("shop", version="1")
        self._offer(self.server)
        self.code = CodeMode(**settings)
        self.server.add(self.code)

    def _offer(self, server: Server) -> None:
        @server.tool(annotations=READS)
        async def price(item: str) -> int:
            """Return the price of an item."""
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await asyncio.sleep(0)
            finally:
                self.running -= 1
            return len(item)

        @server.tool(annotations=READS)
        def describe(item: str, size: int = 10) -> str:
            """The description of an item."""
            return (item * size)[:size]

        @server.tool(annotations=READS)
        async def refuse(item: str) -> str:
            """Never works."""
            raise ToolError(f"there is no {item}", error_type="SoldOut", details={"item": item}, retryable=True)

        @server.tool(annotations=READS)
        async def wait_for_ever() -> str:
            """Never ends."""
            return await asyncio.get_running_loop().create_future()

        @server.tool
        async def order(item: str) -> str:
            """Buy something."""
            self.orders.append(item)
            return f"ordered {item}"

        @server.tool(annotations={"destructiveHint": True})
        async def cancel(item: str) -> str:
            """Undo an order."""
            self.orders.remove(item)
            return f"cancelled {item}"

    async def answer(self, message: Any, *_: Any, **__: Any) -> Any:
        self.asked.append(getattr(message, "message", str(message)))
        if not self.agrees:
            return None
        return {}

    @asynccontextmanager
    async def client(self, revision: str = "2026-07-28", *, asks: bool = True) -> AsyncIterator[Client]:
        more = {"elicitation_handler": self.answer} if asks else {}
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(self.server, protocol_version=revision, **more) as client:
            yield client


async def run(client: Client, code: str, **more: Any) -> Any:
    return await client.call_tool("run", {"code": code, **more}, raise_on_error=False)
