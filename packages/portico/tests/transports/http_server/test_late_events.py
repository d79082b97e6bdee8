"""Late events do not affect the next response of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from portico import Context, Server

from .conftest import TIMEOUT_SECONDS, Here

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


@pytest.mark.requirement("progress.stops", "logging.own-stream")
@pytest.mark.parametrize("streams", [False, True])
async def test_notifications_of_a_finished_call_are_not_in_the_next_response(streams: bool, serve: Serve) -> None:
    bodies = Bodies()
    site = await serve(bodies.server)
    raw = await site.connect()
    for number, tool in enumerate(("late", "sleepy"), 1):
        meta: dict[str, Any] = {"progressToken": f"{tool}-token", "io.modelcontextprotocol/logLevel": "debug"}
        params = {"name": tool, "arguments": {"stream": streams}}
        raw.send(site.modern_bytes("tools/call", params, id=number, meta=meta))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            response = await raw.response()
        assert response["content-type"] == ("text/event-stream" if streams else "application/json")
        messages = response.messages
        assert messages[-1]["id"] == number
        assert {message["params"]["progressToken"] for message in messages[:-1]} <= {f"{tool}-token"}
        assert len(messages) == (2 if streams else 1)


async def test_trailers_are_not_merged_into_the_headers(serve: Serve) -> None:
    """RFC 9110, 6.5.1: the head has been judged by then, and trailers must not change it."""
    site = await serve(Bodies().server)
    raw = await site.connect()
    request = site.modern_bytes("tools/call", {"name": "late", "arguments": {}})
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    chunked = b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n"
    raw.send(chunked + b"%x\r\n%b\r\n0\r\nmcp-name: sleepy\r\norigin: https://evil.example\r\n\r\n" % (len(body), body))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        response = await raw.response()
    assert response.status == 200
    assert "access-control-allow-origin" not in response
    assert response.json["result"]["content"][0]["text"] == "late is done"
