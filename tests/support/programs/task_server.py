"""A server whose tools are tasks: `python task_server.py`."""

from __future__ import annotations

import asyncio
from typing import Any

from portico import Context, Server

server = Server("tasking", version="1")
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


@server.tool(task="optional")
async def add(a: int, b: int) -> int:
    return a + b


@server.tool(task="required")
async def must(text: str) -> str:
    return f"did {text}"


@server.tool(task="required")
async def greet(ctx: Context) -> str:
    answer = await ctx.elicit("Who are you?", FORM)
    return f"Hello, {answer.data['name']}!"


@server.tool(task="required")
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
