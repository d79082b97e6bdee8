"""A service whose workers are in the real jail, and a client to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from portico import Client, Server
from portico.transports.event_loop import new_event_loop
from portico_services.livepython import LivePython
from support.prison import REVISION, Talk


@pytest.fixture
async def talk() -> AsyncIterator[Callable[..., Any]]:
    """`await talk(timeout=…)` gives a Talk with a service of these settings."""
    clients: list[Client] = []

    async def begin(**settings: Any) -> Talk:
        server, live = Server("live", version="1"), LivePython(**settings)
        server.add(live)
        clients.append(await Client(server, protocol_version=REVISION).__aenter__())
        return Talk(clients[-1], live)

    yield begin
    for client in clients:
        await client.__aexit__(None, None, None)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Workers of both kinds hang on what a loop has for processes and descriptors, so on both loops. What is
    inside does not."""
    inside = item.name in ("test_the_questions_are_answered", "test_there_is_nothing_to_reach")
    if item.path.name in ("test_interrupts.py", "test_wasm.py", "test_worker.py") and not inside:
        return {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
