"""Subscriptions to resources of upstreams."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico.protocol.subscriptions import SubscriptionFilter
from portico.rpc import change_relay
from portico_gateway import Gateway
from portico_gateway.gateway import change_listener as changes

TELLING = """
import os

from portico import Server

server = Server("telling")


@server.resource("note://one")
async def one() -> str:
    return "1"


@server.tool
async def die() -> str:
    os._exit(1)


@server.tool
async def grow() -> str:
    server.tool(name=f"grown{len(list(server.tools))}")(change)
    return "grown"


@server.tool
async def change() -> str:
    server.notify_resource_updated("note://one")
    return "changed"


server.run()
"""


@pytest.mark.parametrize("below", ["2025-11-25", "2026-07-28"])
async def test_resource_can_be_subscribed_before_its_upstream_is_up(tmp_path: Path, below: Any) -> None:
    script = tmp_path / "telling.py"
    script.write_text(TELLING)
    gateway = Gateway()
    gateway.add_upstream("a", [sys.executable, str(script)], protocol_version=below, isolation="shared")
    async with Client(gateway) as client, client.listen(uris=["note://one"]) as changes:
        heard = asyncio.ensure_future(anext(aiter(changes)))
        async with asyncio.timeout(20):
            # Which one is the first to be heard depends on when the upstream has begun to listen.
            while not heard.done():
                await client.call_tool("a_change")
                await asyncio.wait([heard], timeout=0.1)
        assert (await heard).uri == "note://one"


@pytest.mark.parametrize("below", ["2025-11-25", "2026-07-28"])
async def test_subscriptions_are_restored_after_an_upstream_restart(
    tmp_path: Path, below: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so are changes of its lists; those of a process that has sessions are heard by the process that is listed."""
    expected = {"note://one"} if below == "2025-11-25" else {"note://one", "tools"}
    monkeypatch.setattr(changes, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(change_relay, "RETRY_DELAY_SECONDS", 0.01)
    script = tmp_path / "telling.py"
    script.write_text(TELLING)
    gateway = Gateway()
    gateway.add_upstream("a", [sys.executable, str(script)], protocol_version=below, isolation="shared")
    async with Client(gateway) as client:
        await gateway.wait_until_listed(20)
        await client.list_tools()
        result = SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["note://one"])
        async with client.listen(result) as listening:
            with pytest.raises(ToolError):
                await client.call_tool("a_die")
            heard: set[str] = set()

            async def hear() -> None:
                async for change in listening:
                    heard.add(change.uri or change.kind)

            hearing = asyncio.ensure_future(hear())
            try:
                async with asyncio.timeout(30):
                    # After the gap everything may have changed, and is told of once; what counts comes later.
                    rounds = 0
                    while rounds < 2:
                        heard.clear()
                        for tool in ("a_change", "a_grow"):
                            await client.call_tool(tool)
                        await asyncio.sleep(0.2)
                        rounds += expected <= heard
            finally:
                hearing.cancel()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_listener_is_notified_of_changes_in_unlisted_kinds(revision: Any, view: bool) -> None:
    below = Server("below")

    @below.tool
    async def grow() -> str:
        below.tool(name="grown")(grow)
        below.prompt(name="grown")(grow)
        below.resource("grown://one")(grow)
        return "grown"

    gateway = Gateway({"a": below})
    target = gateway.add_view("part", upstreams=["a"]) if view else gateway
    result = SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
    async with Client(target, protocol_version=revision) as client, asyncio.timeout(20):
        await gateway.wait_until_listed(20)
        async with client.listen(result) as listening:
            await client.call_tool("a_grow")
            told: set[str] = set()
            async for change in listening:
                told.add(change.kind)
                if told == {"tools", "prompts", "resources"}:
                    break


async def test_listener_for_tools_gets_only_tool_changes() -> None:
    below = Server("below")

    @below.tool
    async def grow(what: str) -> str:
        getattr(below, what)(name="grown")(grow)
        return "grown"

    gateway = Gateway({"a": below})
    async with Client(gateway) as client, asyncio.timeout(20):
        await gateway.wait_until_listed(20)
        async with client.listen(SubscriptionFilter(tools_list_changed=True)) as listening:
            for what in ("prompt", "tool"):
                await client.call_tool("a_grow", {"what": what})
            assert (await anext(aiter(listening))).kind == "tools"
