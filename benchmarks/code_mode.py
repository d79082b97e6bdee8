"""Measure code mode: one call from the sandbox, and a script with fifty calls against fifty client calls.

    python benchmarks/code_mode.py

The rows belong to the table `find`. The client speaks to a server on stdio, each in a separate process; the
script's sandbox is a third. Times are the minimum of several turns, which excludes other load. The cost of a call
is given in CPU time too, of the server and the sandbox together, which depends less on other load.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import compiled  # noqa: F401
from goals import Goal, limit
from portico import Client, Server
from portico_services.codemode import CodeMode
from scenarios import Answers, Question

CALLS = 50
TURNS, QUICK_TURNS = 20, 3
SCRIPT = "from tools import add\nfor n in range({calls}):\n    await add(n, 1)"
SIDE_BY_SIDE = "from tools import add\nawait asyncio.gather(*[add(n, 1) for n in range({calls})])\nNone"

# Between two looks at the clocks: one after the other, and fifty side by side.
MARKED = "from tools import add, mark\nawait mark()\n{work}\nawait mark()\nNone"
IN_A_ROW = "for n in range({calls}):\n    await add(n, 1)"
GATHERED = "for n in range({calls} // 50):\n    await asyncio.gather(*[add(n, 1) for _ in range(50)])"

QUESTIONS = (
    Question("inner_cpu", "processor time of a call from within a script, server and jail together", "µs"),
    Question("gathered_cpu", "the same, side by side", "µs"),
    Question("inner", "a call from within a script, with the jail", "µs"),
    Question("inner_gathered", "one of fifty side by side", "µs"),
    Question("run_none", "a run without a call", "ms"),
    Question("run", f"a run with {CALLS} calls, one after the other", "ms"),
    Question("direct", f"{CALLS} calls by a client over stdio, one after the other", "ms"),
    Question("run_bytes", f"bytes between client and server for a run with {CALLS} calls", "bytes"),
    Question("direct_bytes", f"the same for {CALLS} calls by the client", "bytes"),
)


def server() -> Server:
    made = Server("adder")

    @made.tool(annotations={"readOnlyHint": True})
    async def add(a: int, b: int) -> int:
        """Return the sum."""
        return a + b

    made.add(CodeMode(warm_workers=2))
    return made


async def shortest(turns: int, work: Callable[[], Awaitable[Any]]) -> float:
    """Return the shortest time in seconds."""
    took: list[float] = []
    for _ in range(turns):
        # The next sandbox is created in the background; it is not part of a run.
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return min(took)


def spent(process: int) -> float:
    """Return the CPU seconds of another process."""
    with open(f"/proc/{process}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


async def processor_time(turns: int, work: str) -> float:
    """Return CPU seconds per call, read by a tool before the first call and after the last."""
    made, marks = server(), []
    jails: Any = next(service for service in made.services if isinstance(service, CodeMode))._workers
    take, item = jails.take, []

    async def remember() -> Any:
        item.append(await take())
        return item[-1]

    jails.take = remember

    @made.tool(annotations={"readOnlyHint": True})
    async def mark() -> None:
        """Read the clocks."""
        marks.append(time.process_time() + spent(item[-1].ends.pid))

    async with Client(made) as client:
        for _ in range(turns):
            await client.call_tool("run", {"code": MARKED.format(work=work.format(calls=3 * CALLS))})
    return min(after - before for before, after in zip(marks[::2], marks[1::2], strict=True)) / (3 * CALLS)


async def times(turns: int) -> dict[str, float]:
    async with Client([sys.executable, __file__, "serve"]) as client:

        async def run(script: str, calls: int) -> None:
            result = await client.call_tool("run", {"code": script.format(calls=calls)})
            assert result.structured["calls"] == calls

        async def direct() -> None:
            for n in range(CALLS):
                await client.call_tool("add", {"a": n, "b": 1})

        await run(SCRIPT, 1)
        await direct()
        none = await shortest(turns, lambda: run(SCRIPT, 0))
        many = await shortest(turns, lambda: run(SCRIPT, CALLS))
        gathered = await shortest(turns, lambda: run(SIDE_BY_SIDE, CALLS))
        by_client = await shortest(turns, direct)
    return {
        "inner_cpu": 1e6 * await processor_time(turns, IN_A_ROW),
        "gathered_cpu": 1e6 * await processor_time(turns, GATHERED),
        "inner": 1e6 * (many - none) / CALLS,
        "inner_gathered": 1e6 * (gathered - none) / CALLS,
        "run_none": 1e3 * none,
        "run": 1e3 * many,
        "direct": 1e3 * by_client,
    }


def traffic() -> dict[str, float]:
    """Return the characters that a model would write and read: arguments and results, without the envelope."""
    script = SCRIPT.format(calls=CALLS)
    item = len('{"a":25,"b":1}') + len('{"content":[{"type":"text","text":"26"}],"structuredContent":{"result":26}}')
    return {"run_bytes": len(script) + len('{"calls":50}'), "direct_bytes": CALLS * item}


def measure(quick: bool = False) -> dict[str, float]:
    return {**asyncio.run(times(QUICK_TURNS if quick else TURNS)), **traffic()}


def goals(answers: Answers) -> list[Goal]:
    return [
        limit("a call from within a script: at most 300 µs", answers.value("inner_cpu", "portico"), 300, "µs"),
    ]


def main() -> None:
    if sys.argv[1:] == ["serve"]:
        server().run()
        return
    result = measure("--quick" in sys.argv)
    for question in QUESTIONS:
        print(f"{question.text:70} {result[question.key]:10.1f} {question.unit}")


if __name__ == "__main__":
    main()
