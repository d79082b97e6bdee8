"""A server whose tools are tasks: `python task_server.py`."""

from __future__ import annotations

import asyncio
from typing import Any

from portico import Context, Server, TaskConfig

# Tests would wait for most of the default interval.
POLL_SECONDS = 0.05
server = Server("tasking", version="1")
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


@server.tool(task=TaskConfig(mode="optional", poll_interval=POLL_SECONDS))
async def add(a: int, b: int) -> int:
    return a + b


@server.tool(task=TaskConfig(mode="required", poll_interval=POLL_SECONDS))
async def must(text: str) -> str:
    return f"did {text}"


@server.tool(task=TaskConfig(mode="required", poll_interval=POLL_SECONDS))
async def greet(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", FORM)
    return f"Hello, {answer.data['name']}!"


@server.tool(task=TaskConfig(mode="required", poll_interval=POLL_SECONDS))
async def endless() -> str:
    await asyncio.sleep(1000)
    return "never"


@server.tool
async def plainly(ctx: Context) -> str:
    """No task, and it asks."""
    answer = await ctx.elicit("Who are you?", FORM)
    return f"Plainly, {answer.data['name']}!"


if __name__ == "__main__":
    server.run()
