"""Measurement shared by all clients: CPU time, elapsed time, the same calls to the same server.

    python portico_client.py stdio|http SECONDS TARGET…

Prints one JSON object.
"""

import asyncio
import json
import sys
import time

ARGUMENTS = {"a": 20, "b": 22}
WINDOW = 32


def main(load, open_stdio, open_http, *, uvloop=False):
    began = time.perf_counter()
    Client = load()
    imported = (time.perf_counter() - began) * 1000
    transport, seconds, *target = sys.argv[1:]

    def make():
        return open_stdio(Client, target) if transport == "stdio" else open_http(Client, target[0])

    result = run(measure(make, float(seconds), transport), uvloop)
    print(json.dumps({"import_client": imported, **result}))


def run(work, uvloop):
    """Run Portico on uvloop, as in a server, and the others as documented."""
    if uvloop:
        from uvloop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    return asyncio.run(work)


async def measure(make, seconds, transport):
    results = {}
    async with make() as client:
        check(await client.call_tool("add_async", ARGUMENTS))
        await one_by_one(client, seconds / 4)
        results[f"{transport}_cpu"], results[f"{transport}_p50"] = await one_by_one(client, seconds)
        results[f"{transport}_rate"] = await side_by_side(client, seconds)
    if transport == "http":
        results["connections"] = await connections(make, seconds)
    return results


def check(result):
    """Reject a client that did not get the right sum."""
    response = getattr(result, "structured_content", None) or getattr(result, "structured", None)
    response = response["result"] if isinstance(response, dict) else response
    assert response == 42, result


async def one_by_one(client, seconds):
    waits = []
    end = time.perf_counter() + seconds
    cpu = time.process_time_ns()
    while True:
        began = time.perf_counter()
        await client.call_tool("add_async", ARGUMENTS)
        now = time.perf_counter()
        waits.append(now - began)
        if now > end:
            break
    cpu = time.process_time_ns() - cpu
    return cpu / len(waits) / 1000, sorted(waits)[len(waits) // 2] * 1e6


async def side_by_side(client, seconds):
    done = 0
    begun = time.perf_counter()
    end = begun + seconds

    async def ask():
        nonlocal done
        while time.perf_counter() < end:
            await client.call_tool("add_async", ARGUMENTS)
            done += 1

    await asyncio.gather(*(ask() for _ in range(WINDOW)))
    return done / (time.perf_counter() - begun)


async def connections(make, seconds):
    """Measure connecting, the first tool result and disconnecting."""
    done = 0
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        async with make() as client:
            await client.call_tool("add_async", ARGUMENTS)
        done += 1
    return done / (time.perf_counter() - begun)
