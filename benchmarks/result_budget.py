"""Measure what the result budget adds to a call whose result is small, and how long large results take.

python benchmarks/result_budget.py
"""

from __future__ import annotations

import asyncio
import time
from timeit import repeat

from msgspec import Raw

from portico import Server
from portico.extend import Call, ResultLimits
from portico.protocol.content import TextContent
from portico.protocol.jsonrpc import encode
from portico.protocol.tools import CallToolResult

CALLS = 200_000


def main() -> None:
    limits = ResultLimits()
    Server("measured").add(limits)
    call = Call(method="tools/call", params=Raw(b'{"name":"x"}'), id=1)
    for name, result in (
        ("text of 1 KB", CallToolResult(content=[TextContent(text="x" * 1_000)], is_error=False)),
        ("encoded, 16 KB", Raw(b"x" * 16_000)),
    ):

        def handler(call: Call, result: object = result) -> object:
            return result

        wrapped = limits.wrap_method("tools/call", handler)
        plain = min(repeat(lambda: handler(call), number=CALLS, repeat=5)) / CALLS
        bounded = min(repeat(lambda: wrapped(call), number=CALLS, repeat=5)) / CALLS  # noqa: B023
        print(f"{name}: {(bounded - plain) * 1e9:.0f} ns more than without a budget")
    asyncio.run(measure_large())


async def measure_large() -> None:
    server = Server("large")
    server.add(ResultLimits())
    server.tool(name="text", structured_output=False)(lambda size: "A line of the text.\n" * (size // 20))
    server.tool(name="rows")(lambda size: [{"id": at, "name": f"name {at}"} for at in range(size // 32)])
    async with server.lifespan():
        for tool in ("text", "rows"):
            for size in (100_000, 1_000_000, 10_000_000, 100_000_000):
                params = Raw(encode({"name": tool, "arguments": {"size": size}}))
                began = time.perf_counter()
                await server(Call(method="tools/call", params=params, id=1, protocol_version="2026-07-28"))
                print(f"{tool}, {size:,} bytes: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
