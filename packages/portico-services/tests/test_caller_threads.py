"""Work that a caller can multiply does not occupy the threads that resolve names and write the audit log."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.extend import run_blocking
from portico_services.memory import Memory
from portico_services.system import System

TIMEOUT_SECONDS = 10.0
LONG = "The orchard has trees of many kinds. " * 1_000
CALLS = [
    ("memory_capture", {"content": LONG, "namespace": "decisions"}),
    ("memory_import", {"data": "# nothing", "format": "markdown", "dry_run": True}),
    ("eventlog_follow", {"logName": "app", "waitSeconds": 0}),
]


@pytest.mark.parametrize(("tool", "arguments"), CALLS)
async def test_a_call_needs_no_thread_of_the_event_loop(tmp_path: Path, tool: str, arguments: dict[str, Any]) -> None:
    (tmp_path / "app.log").write_text("2026-01-01T00:02:00Z pc7 app: more\n")
    server, done = Server("threads", version="1"), threading.Event()
    server.add(Memory(str(tmp_path / "memory.db"), project="orchard", tools="all"))
    server.add(System(logs={"app": tmp_path / "app.log"}, platform_logs=False, data_dir=tmp_path, log_poll_interval=60))
    async with server.lifespan(), Client(server) as client:
        # Open the store and load the project first.
        await client.call_tool("memory_recall", {"query": "trees"})
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        occupied = loop.run_in_executor(None, done.wait)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert json.dumps((await client.call_tool(tool, arguments)).data)
        finally:
            done.set()
            await occupied


async def test_blocking_work_runs_in_the_pool_of_the_current_call() -> None:
    server = Server("threads", version="1")

    @server.tool
    async def work() -> str:
        return await run_blocking(lambda: threading.current_thread().name)

    async with Client(server) as client:
        assert (await client.call_tool("work")).text.startswith("portico-")
    # Without a call, in a thread of the event loop.
    assert not (await run_blocking(lambda: threading.current_thread().name)).startswith("portico-")
