"""What a finished call says never reaches the answer to another one on the same connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from portico import Context, Server

from .conftest import PATIENCE, Here

Serve = Callable[..., Awaitable[Here]]


class Bodies:
    """`late` goes on after its answer, `sleepy` is being answered meanwhile."""

    def __init__(self) -> None:
        self.server = Server("late")
        self.speak = asyncio.Event()
        self.spoken = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()
        for tool in (self.late, self.sleepy):
            self.server.tool(tool)

    async def late(self, ctx: Context, stream: bool = False) -> str:
        if stream:
            await ctx.report_progress(1)
        self._errands.add(asyncio.get_running_loop().create_task(self._speak(ctx)))
        return "late is done"

    async def _speak(self, ctx: Context) -> None:
        await self.speak.wait()
        await ctx.error("of the first client")
        await ctx.report_progress(5)
        self.spoken.set()

    async def sleepy(self, ctx: Context, stream: bool = False) -> str:
        if stream:
            await ctx.report_progress(1)
        self.speak.set()
        await self.spoken.wait()
        return "sleepy is done"


@pytest.mark.parametrize("streams", [False, True])
async def test_what_a_finished_call_says_is_not_in_the_next_answer(streams: bool, serve: Serve) -> None:
    bodies = Bodies()
    site = await serve(bodies.server)
    raw = await site.connect()
    for number, tool in enumerate(("late", "sleepy"), 1):
        meta: dict[str, Any] = {"progressToken": f"{tool}-token", "io.modelcontextprotocol/logLevel": "debug"}
        params = {"name": tool, "arguments": {"stream": streams}}
        raw.send(site.modern_bytes("tools/call", params, id=number, meta=meta))
        async with asyncio.timeout(PATIENCE):
            response = await raw.response()
        assert response["content-type"] == ("text/event-stream" if streams else "application/json")
        messages = response.messages
        assert messages[-1]["id"] == number
        assert {one["params"]["progressToken"] for one in messages[:-1]} <= {f"{tool}-token"}
        assert len(messages) == (2 if streams else 1)
