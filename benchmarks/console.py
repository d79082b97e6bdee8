"""What a call costs while a page watches: CPU of the server, with a page that watches and without.

    python benchmarks/console.py

Both are measured in turn in one process, so that what else the machine does is the same for both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from portico import Client, Server
from portico.console import Console, ConsoleAccess, attach
from portico.extend import serve_http

CALLS, TURNS = 10_000, 5


def made() -> Server:
    server = Server("adding")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def spent(client: Client) -> float:
    """Microseconds of CPU for a call, the client's part included, which is the same in both."""
    began = time.process_time()
    for number in range(CALLS):
        await client.call_tool("add", {"a": number, "b": 1})
    return (time.process_time() - began) / CALLS * 1e6


async def main() -> None:
    server = made()
    console = Console(server)
    site = attach(server, ConsoleAccess(), b"benchmark", make=lambda: console)
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, ready=ready.set_result, stop=stop))
    url = await ready
    assert site._exchange is not None
    async with (
        console.lifespan(),
        Client(url) as client,
        Client(console.server, log_level="debug", timeout=None) as page,
    ):
        console.serve_by(site._exchange)
        await spent(client)
        alone, watched = [], []
        for _ in range(TURNS):
            alone.append(await spent(client))
            watching: asyncio.Task[Any] = asyncio.create_task(
                page.call_tool("watch", {"topics": ["wire", "metrics", "sessions", "targets"]})
            )
            await asyncio.sleep(0.3)
            watched.append(await spent(client))
            watching.cancel()
            await asyncio.sleep(0.3)
    stop.set()
    await serving
    plain, seen = statistics.median(alone), statistics.median(watched)
    print(f"no page watches   {plain:7.1f} µs a call")
    print(f"a page watches    {seen:7.1f} µs a call, {100 * (seen / plain - 1):+.1f} %")


asyncio.run(main())
