"""Live Python through its tool, client and server in one process: `portico_live.py WARM FRESH jail|cold|strict
[PYTHON]`.
"""

import asyncio
import sys
import time

from timing import CODE, say, sizes


async def clock(coroutine):
    began = time.perf_counter()
    assert (await coroutine).text == "7"
    return time.perf_counter() - began


async def main():
    warm_calls, sessions = sizes()
    how = {"jail": {}, "cold": {"warm_workers": 0}, "strict": {"sandbox": "wasm", "python": sys.argv[-1]}}[sys.argv[3]]
    began = time.perf_counter()
    from portico import Client, Server
    from portico_services.livepython import LivePython

    server = Server("live", version="1")
    server.add(LivePython(**how))
    async with Client(server) as client:

        def evaluate(session):
            return client.call_tool("evaluate", {"expression": CODE, "session": session})

        await evaluate("main")
        first = time.perf_counter() - began
        warm = [await clock(evaluate("main")) for _ in range(warm_calls)]
        fresh = []
        for number in range(sessions):
            fresh.append(await clock(evaluate(f"s{number}")))
            await client.call_tool("reset_session", {"session": f"s{number}"})
    say(first, fresh, warm)


if __name__ == "__main__":
    asyncio.run(main())
