"""What a call costs while a page watches: CPU of the server, with a page that watches and without.

    python benchmarks/console.py

Both are measured in turn in one process, so that what else the machine does is the same for both. What a page is shown
is rationed by the second: so watching costs so much CPU a second, however many calls there are, and a call costs the
more the fewer of them the machine has time for. The page's own work is in it: it is in this process too.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from portico import Client, Server
from portico.console import Console, ConsoleAccess, attach
from portico.extend import serve_http

CALLS, TURNS = 4000, 5


def made() -> Server:
    server = Server("adding")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def spent(client: Client) -> tuple[float, float]:
    """Seconds of CPU for so many calls, the client's part included, which is the same in both; and seconds."""
    began, since = time.process_time(), time.monotonic()
    for number in range(CALLS):
        await client.call_tool("add", {"a": number, "b": 1})
    return time.process_time() - began, time.monotonic() - since


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
    plain, seen = statistics.median(cpu for cpu, _ in alone), statistics.median(cpu for cpu, _ in watched)
    took = statistics.median(seconds for _, seconds in watched)
    print(f"no page watches   {plain / CALLS * 1e6:7.1f} µs of CPU a call")
    print(f"a page watches    {seen / CALLS * 1e6:7.1f} µs of CPU a call, {100 * (seen / plain - 1):+.1f} %")
    print(f"watching takes    {(seen - plain) / took * 1000:7.1f} ms of CPU a second")


asyncio.run(main())
