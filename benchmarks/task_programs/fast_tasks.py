"""The benchmark's tasks on FastMCP, in memory, its default without Redis."""

import asyncio
import time

from fastmcp import Client, FastMCP
from fastmcp_tasks.client import call_tool_task
from fastmcp_tasks.extension import TasksExtension
from measurement import main

STARTED = []

server = FastMCP("bench")
server.add_extension(TasksExtension(url="memory://", concurrency=16))


@server.tool(task=True)
async def work(n: int) -> int:
    """Do almost nothing."""
    STARTED.append(time.perf_counter())
    return n


async def run(measure):
    async with Client(server) as client:

        async def task(n):
            handle = await call_tool_task(client, "work", {"n": n})
            return (await handle.result()).data

        return await measure(task, STARTED)


if __name__ == "__main__":
    main(asyncio.run, run)
