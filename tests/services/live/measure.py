"""How quick live Python is, and how much memory it takes, beside other ways to run code. Not a test: a program.

    python tests/services/live/measure.py [--eryx PYTHON] [--monty PYTHON] [--rounds N]

PYTHON is one that has `pyeryx` or `pydantic-monty`; without it that row is left out. Every number is a median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from escapes import ALL

from portico import Client, Server
from portico.services.live.service import Live

CODE = "3 + 4"
SESSIONS = 200

MONTY = """
import json, sys, time
from pydantic_monty import Monty
rounds, code = int(sys.argv[1]), sys.argv[2]
def clock(fn):
    began = time.perf_counter(); fn(); return time.perf_counter() - began
began = time.perf_counter()
with Monty() as pool:
    with pool.checkout() as session:
        session.feed_run(code)
        first = time.perf_counter() - began
        warm = [clock(lambda: session.feed_run(code)) for _ in range(rounds)]
    def fresh():
        with pool.checkout() as session: session.feed_run(code)
    print(json.dumps([[first], [clock(fresh) for _ in range(max(3, rounds // 20))], warm]))
"""

ERYX = """
import json, sys, time
rounds, code = int(sys.argv[1]), sys.argv[2]
def clock(fn):
    began = time.perf_counter(); fn(); return time.perf_counter() - began
began = time.perf_counter()
import eryx
session = eryx.Session(result_variable="r")
session.execute("r = " + code)
first = time.perf_counter() - began
warm = [clock(lambda: session.execute("r = " + code)) for _ in range(rounds)]
def fresh():
    eryx.Session(result_variable="r").execute("r = " + code)
print(json.dumps([[first], [clock(fresh) for _ in range(max(3, rounds // 50))], warm]))
"""

Row = list[list[float]]


async def clock(fn: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await fn()
    return time.perf_counter() - began


async def through_the_service(rounds: int, **settings: object) -> Row:
    """First: from nothing to the first answer. Fresh: a session of its own. Warm: one more in a session."""
    began = time.perf_counter()
    server = Server("live", version="1")
    server.add(Live(sessions=10_000, **settings))  # type: ignore[arg-type]
    async with Client(server) as client:

        async def evaluate(session: str) -> None:
            await client.call_tool("evaluate", {"expression": CODE, "session": session})

        await evaluate("main")
        first = time.perf_counter() - began
        warm = [await clock(lambda: evaluate("main")) for _ in range(rounds)]
        fresh = []
        for number in range(max(3, rounds // 20)):
            fresh.append(await clock(lambda number=number: evaluate(f"s{number}")))  # type: ignore[misc]
            await client.call_tool("reset_session", {"session": f"s{number}"})
        return [[first], fresh, warm]


def as_a_process(rounds: int) -> Row:
    """`python -I -c …` for each evaluation: no jail, no names that stay."""
    times = []
    for _ in range(max(5, rounds // 50)):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", f"print({CODE})"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return [times[:1], times, times]


def by_another(python: str, program: str, rounds: int) -> Row:
    done = subprocess.run([python, "-c", program, str(rounds), CODE], stdout=subprocess.PIPE, check=True)
    row: Row = json.loads(done.stdout)
    return row


def memory_of(pids: list[int]) -> dict[str, float]:
    """In MiB: all that each of them has resident, and its fair share of what several have."""
    totals = {"Rss": 0, "Pss": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in totals:
                totals[name] += int(rest.split()[0])
    return {name: total / 1024 for name, total in totals.items()}


def children_of(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found += [int(name), *children_of(int(name))]
            except OSError:
                continue
    return found


async def many_at_once() -> None:
    server = Server("live", version="1")
    server.add(Live(sessions=SESSIONS, spare=0))
    async with Client(server) as client:
        began = time.perf_counter()
        for number in range(SESSIONS):
            await client.call_tool("evaluate", {"expression": "x = list(range(1000))", "session": f"s{number}"})
        seconds = time.perf_counter() - began
        found = memory_of(children_of(os.getpid()))
        print(
            f"\n{SESSIONS} sessions at once, each with names, made in {seconds:.1f} s: "
            f"{found['Pss']:.0f} MiB (PSS), {found['Rss']:.0f} MiB (RSS)"
        )


async def while_code_tries_to_escape() -> None:
    """The longest that a ping was waited for, over all of the escapes."""
    worst, of = 0.0, ""
    server = Server("live", version="1")
    server.add(Live(scratch=200 * 2**20))
    async with Client(server, revision="2025-11-25") as client:
        for escape in ALL:
            asked = {"expression": escape.code, "timeout": escape.seconds, "session": "s"}
            trying = asyncio.ensure_future(client.call_tool("evaluate", asked, raise_on_error=False))
            while not trying.done():
                waited = await clock(client.ping)
                if waited > worst:
                    worst, of = waited, escape.name
                await asyncio.wait([trying], timeout=0.002)
            await client.call_tool("reset_session", {"session": "s"})
    print(f"\n{len(ALL)} escapes tried; the longest wait for a ping meanwhile: {1000 * worst:.1f} ms ({of})")


def show(rows: dict[str, Row]) -> None:
    print(f"{'milliseconds':34} {'first':>10} {'fresh':>10} {'warm':>10}")
    for name, row in rows.items():
        print(f"{name:34} " + " ".join(f"{1000 * statistics.median(times):10.3f}" for times in row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eryx", help="a Python that has pyeryx")
    parser.add_argument("--monty", help="a Python that has pydantic-monty")
    parser.add_argument("--rounds", type=int, default=1000)
    asked = parser.parse_args()
    rows = {"in the jail": asyncio.run(through_the_service(asked.rounds))}
    rows["in the jail, no worker waiting"] = asyncio.run(through_the_service(asked.rounds, spare=0))
    if asked.eryx:
        rows["strict"] = asyncio.run(through_the_service(asked.rounds // 5, strict=True, python=asked.eryx))
        rows["pyeryx alone"] = by_another(asked.eryx, ERYX, asked.rounds)
    if asked.monty:
        rows["pydantic-monty alone"] = by_another(asked.monty, MONTY, asked.rounds)
    rows["a process each time"] = as_a_process(asked.rounds)
    show(rows)
    asyncio.run(many_at_once())
    asyncio.run(while_code_tries_to_escape())


if __name__ == "__main__":
    main()
