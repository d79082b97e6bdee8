"""Many concurrent sessions with their own names: `portico_sessions.py SESSIONS`. Prints their memory in MB."""

import asyncio
import json
import os
import sys
from pathlib import Path

from portico import Client, Server
from portico_services.livepython import LivePython


def memory_of(pids):
    """Return the proportional set size of all of them."""
    totals = {"Rss": 0, "Pss": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in totals:
                totals[name] += int(rest.split()[0])
    return {name: total * 1024 / 1e6 for name, total in totals.items()}


def below(pid):
    """Return a process and its descendants."""
    results = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            results += below(int(child))
    return results


async def main():
    sessions = int(sys.argv[1])
    server = Server("live", version="1")
    server.add(LivePython(max_sessions=sessions, warm_workers=0))
    async with Client(server) as client:
        for number in range(sessions):
            await client.call_tool("evaluate", {"expression": "x = list(range(1000))", "session": f"s{number}"})
        here = below(os.getpid())
        assert len(here) > sessions
        result = memory_of(here)
    print(json.dumps({"pss": result["Pss"], "rss": result["Rss"]}))


if __name__ == "__main__":
    asyncio.run(main())
