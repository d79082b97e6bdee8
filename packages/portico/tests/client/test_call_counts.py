"""Function calls per tool call: counted instead of timed, because counts are stable."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import FrameType
from typing import Any

from portico import Client
from support import recorder

SERVER = """
from portico import Server
server = Server("sums")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

server.run("http", port=0)
"""
CALLS = 5
MOST_PYTHON_CALLS = 90


async def calls_of_one(url: str) -> float:
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call" and frame.f_code.co_filename != recorder.__file__

    async with Client(url) as client:
        for _ in range(CALLS):
            await client.call_tool("add", {"a": 1, "b": 2})
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            for _ in range(CALLS):
                await client.call_tool("add", {"a": 1, "b": 2})
        finally:
            sys.setprofile(before)
    return counted / CALLS


def test_call_over_http_takes_few_python_calls() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            output = process.stderr.readline()
            url = next(word.rstrip(".") for word in output.split() if word.startswith("http"))
            # On asyncio's own loop, whose calls are counted too.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                assert runner.run(calls_of_one(url)) <= MOST_PYTHON_CALLS
        finally:
            process.terminate()
