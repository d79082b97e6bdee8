"""Measurement shared by all task engines: minimal tasks, from the call to the fetched result.

The client and the server are one process, so that nothing is measured but the engine and its store. Prints one JSON
object.
"""

import asyncio
import json
import statistics
import time

TASKS = 300
WINDOW = 32
IDLE = 30
PAUSE = 0.05


def main(run, work):
    print(json.dumps(run(work(measure))))


async def measure(task, started):
    assert await task(0) == 0
    return {"task_rate": await rate(task), "task_pickup": await pickup(task, started)}


async def rate(task):
    left = iter(range(1, TASKS + 1))

    async def one_after_the_other():
        for n in left:
            assert await task(n) == n

    begun = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(WINDOW)))
    return TASKS / (time.perf_counter() - begun)


async def pickup(task, started):
    """Return the time from the call to the first line of the body, with an idle worker."""
    waits = []
    for n in range(IDLE):
        await asyncio.sleep(PAUSE)
        begun = time.perf_counter()
        await task(n)
        waits.append(started[-1] - begun)
    return statistics.median(waits) * 1000
