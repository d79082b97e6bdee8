"""Ten connections of the MCP SDK 1.x client: `python sdk_v1_client.py URL` prints their observations.

It runs in an environment of its own (mcp_sdk_v1.py), which has nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client

CONNECTIONS = 10
TIMEOUT_SECONDS = 30.0


async def one(url: str, number: int, connected: asyncio.Barrier) -> dict[str, Any]:
    changed, steps = asyncio.Event(), []

    async def elicit(context: Any, params: Any) -> Any:
        return types.ElicitResult(action="accept", content={"username": f"user {number}", "email": "a@b.example"})

    async def sample(context: Any, params: Any) -> Any:
        result = types.TextContent(type="text", text=f"Paris {number}")
        return types.CreateMessageResult(role="assistant", content=result, model="a-model")

    async def hear(message: Any) -> None:
        if isinstance(getattr(message, "root", None), types.ToolListChangedNotification):
            changed.set()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append(done)

    async with (
        streamablehttp_client(url) as (read, write, _),
        ClientSession(
            read, write, elicitation_callback=elicit, sampling_callback=sample, message_handler=hear
        ) as session,
    ):
        opened = await session.initialize()

        async def text(tool: str, arguments: dict[str, Any] | None = None, **how: Any) -> str:
            return (await session.call_tool(tool, arguments or {}, **how)).content[0].text

        result = {
            "revision": opened.protocolVersion,
            "call": await text("test_simple_text"),
            "elicitation": await text("test_elicitation", {"message": "Who?"}),
            "sampling": await text("test_sampling", {"prompt": "The capital of France?"}),
            "progress": [await text("test_tool_with_progress", progress_callback=progress), steps],
            "resumption": await text("test_reconnection"),
        }
        await connected.wait()
        if number == 0:
            await text("grow")
        await changed.wait()
        result["tools"] = [tool.name for tool in (await session.list_tools()).tools]
        await connected.wait()
        if number == 0:
            await text("shrink")
        return result


async def main(url: str) -> None:
    connected = asyncio.Barrier(CONNECTIONS)
    async with asyncio.timeout(TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(url, number, connected)) for number in range(CONNECTIONS)]
    print(json.dumps([task.result() for task in tasks]))


asyncio.run(main(sys.argv[1]))
