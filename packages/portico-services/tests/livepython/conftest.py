"""A service with workers in the real sandbox, and a client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from portico import Client, Server
from portico.transports.event_loop import new_event_loop
from portico_services.livepython import LivePython
from support.live_python import REVISION, WorkerDialog

ON_BOTH_LOOPS = frozenset(
    {"test_code_runs_and_names_stay", "test_names_survive_a_timeout", "test_timeout_is_reported_in_the_error_metadata"}
)


@pytest.fixture
async def talk() -> AsyncIterator[Callable[..., Any]]:
    """`await talk(timeout=…)` gives a Talk with a service of these settings."""
    clients: list[Client] = []

    async def begin(**settings: Any) -> WorkerDialog:
        server, live = Server("live", version="1"), LivePython(**settings)
        server.add(live)
        clients.append(await Client(server, protocol_version=REVISION).__aenter__())
        return WorkerDialog(clients[-1], live)

    yield begin
    for client in clients:
        await client.__aexit__(None, None, None)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run tests of the parts that differ between event loops (pipes, processes, timers) on both.

    `test_worker.py` covers them with a worker that the test controls; the named tests start, interrupt, kill and resume
    real workers.
    """
    asyncio_only = {"asyncio": asyncio.new_event_loop}
    if item.path.name not in ("test_interrupts.py", "test_wasm.py", "test_worker.py"):
        return asyncio_only
    if item.path.name == "test_worker.py" or item.name in ON_BOTH_LOOPS or os.environ.get("STORM") == "1":
        return {**asyncio_only, "uvloop": new_event_loop}
    return asyncio_only
