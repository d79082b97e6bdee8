"""A process uses shared state only while it is registered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from portico import Server
from portico.server.context.replay_guard import process_store

TIMEOUT_SECONDS = 30


async def test_private_store_is_deleted_with_its_server(tmp_path: Path) -> None:
    """Another server of the process would count its limits there."""
    app = Server("one", store=str(tmp_path / "shared.db")).http_app()
    result: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    life = asyncio.create_task(app({"type": "lifespan"}, result.get, heard.put))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await result.put({"type": "lifespan.startup"})
        assert (await heard.get())["type"] == "lifespan.startup.complete"
        shared = process_store()
        await result.put({"type": "lifespan.shutdown"})
        assert (await heard.get())["type"] == "lifespan.shutdown.complete"
        await life
    assert shared is not None
    assert process_store() is None
