"""Resources of upstreams that clients want to hear of."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Gateway

TELLING = """
from portico import Server

server = Server("telling")


@server.resource("note://one")
async def one() -> str:
    return "1"


@server.tool
async def change() -> str:
    server.resource_updated("note://one")
    return "changed"


server.run()
"""


@pytest.mark.parametrize("below", ["2025-11-25", "2026-07-28"])
async def test_a_resource_can_be_subscribed_before_its_upstream_is_there(tmp_path: Path, below: Any) -> None:
    script = tmp_path / "telling.py"
    script.write_text(TELLING)
    gateway = Gateway()
    gateway.add("a", [sys.executable, str(script)], revision=below, isolation="shared")
    async with Client(gateway) as client, client.listen(uris=["note://one"]) as changes:
        heard = asyncio.ensure_future(anext(aiter(changes)))
        async with asyncio.timeout(20):
            # Which one is the first to be heard depends on when the upstream has begun to listen.
            while not heard.done():
                await client.call_tool("a_change")
                await asyncio.wait([heard], timeout=0.1)
        assert (await heard).uri == "note://one"
