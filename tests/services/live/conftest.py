"""A service whose workers are in the real jail, and a client to it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.services.live import Live

sys.path.insert(0, str(Path(__file__).parent))  # for prison.py and escapes.py

from prison import REVISION, Talk


@pytest.fixture
async def talk() -> AsyncIterator[Callable[..., Any]]:
    """`await talk(timeout=…)` gives a Talk with a service of these settings."""
    clients: list[Client] = []

    async def begin(**settings: Any) -> Talk:
        server, live = Server("live", version="1"), Live(**settings)
        server.add(live)
        clients.append(await Client(server, revision=REVISION).__aenter__())
        return Talk(clients[-1], live)

    yield begin
    for client in clients:
        await client.__aexit__(None, None, None)
