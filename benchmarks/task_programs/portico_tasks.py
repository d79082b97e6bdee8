"""The benchmark's tasks on Portico: `portico_tasks.py STORE`."""

import asyncio
import sys
import time

from measurement import main

from portico import Client, Server

STARTED = []


def build(store):
    server = Server("bench", version="1.0.0", store=store)

    @server.tool(task="optional")
    async def work(n: int) -> int:
        """Do almost nothing."""
        STARTED.append(time.perf_counter())
        return n

    return server


async def run(measure):
    async with Client(build(sys.argv[1])) as client:

        async def task(n):
            handle = await client.start_task("work", {"n": n})
            return (await handle.result()).data

        return await measure(task, STARTED)


if __name__ == "__main__":
    from uvloop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        main(runner.run, run)
