"""Upstreams that become available later: subscribers are notified of their tools."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.protocol.errors import InternalError
from portico.protocol.subscriptions import SubscriptionFilter
from portico.rpc.call import Call
from portico_gateway import Gateway
from portico_gateway.gateway import accounting, gateway as gateways

TOOLS = SubscriptionFilter(tools_list_changed=True)
TIMEOUT_SECONDS = 30.0
LATE = """
from pathlib import Path

from portico import Server

server = Server("late")


@server.tool
async def work() -> str:
    return "done"


assert Path(__file__).with_name("ready").exists()
server.run()
"""


def small(name: str) -> Server:
    server = Server(name)

    @server.tool
    async def work() -> str:
        return name

    return server


async def names(client: Client) -> set[str]:
    return {tool.name for tool in await client.list_tools(refresh=True)}


async def until_there(client: Client, listening: Any, name: str) -> None:
    """Ask again after each change, as clients do."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async for _ in listening:
            if name in await names(client):
                return


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_added_upstream_is_notified(revision: Any, nested: bool) -> None:
    inner = Gateway({"a": small("a")}, max_result_tokens=0)
    outer = Gateway({"in": inner}, max_result_tokens=0) if nested else inner
    before = "in_" if nested else ""
    # The second time is a second life of the same gateway.
    for alias in ("b", "c"):
        async with Client(outer, protocol_version=revision) as client:
            assert f"{before}a_work" in await names(client)
            async with client.listen(TOOLS) as listening:
                inner.add_upstream(alias, small(alias))
                await until_there(client, listening, f"{before}{alias}_work")
                assert (await client.call_tool(f"{before}{alias}_work")).text == alias


async def test_between_two_lives_it_can_be_changed() -> None:
    gateway = Gateway({"a": small("a")}, max_result_tokens=0)
    async with Client(gateway) as client:
        await client.list_tools()
    # No loop runs where most programs do this.
    await asyncio.to_thread(gateway.add_upstream, "b", small("b"))
    async with Client(gateway) as client:
        assert await names(client) == {"a_work", "b_work"}


async def test_upstream_added_to_the_settings_file_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "WATCH_SECONDS", 0.01)
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "ready").touch()
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    async with Client(Gateway.load(file, max_result_tokens=0)) as client:
        assert await names(client) == set()
        async with client.listen(TOOLS) as listening:
            command = {"command": sys.executable, "args": [str(tmp_path / "late.py")]}
            file.write_text(json.dumps({"mcpServers": {"late": command}}))
            await until_there(client, listening, "late_work")


async def test_recovered_upstream_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "UNAVAILABLE_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(accounting, "FIRST_PAUSE_SECONDS", 0.01)
    (tmp_path / "late.py").write_text(LATE)
    gateway = Gateway({"a": small("a"), "late": [sys.executable, str(tmp_path / "late.py")]}, max_result_tokens=0)
    async with Client(gateway) as client:
        assert await names(client) == {"a_work"}
        async with client.listen(TOOLS) as listening:
            (tmp_path / "ready").touch()
            await until_there(client, listening, "late_work")


async def test_upstream_without_list_is_not_queried_repeatedly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[upstream.a]\nurl = "http://127.0.0.1:9/mcp"\nheaders = { x = "${env:NOT_SET_ANYWHERE}" }\n')

    async def refusing(call: Call) -> Any:
        raise InternalError("not today")

    gateway = Gateway.load(file, max_result_tokens=0)
    gateway.add_upstream("b", refusing)
    async with Client(gateway) as client:
        assert await names(client) == set()
        async with client.listen(TOOLS):
            caplog.clear()
            for _ in range(100):
                gateway._refresh_for_subscribers()
                await asyncio.sleep(0.001)
            # One of each by the listener as it begins, and one more of what may be asked.
            assert len([message for message in caplog.messages if "is not configured" in message]) <= 1
            assert len([message for message in caplog.messages if "not today" in message]) <= 2


async def test_cached_catalog_survives_a_settings_change_while_unavailable(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "ready").touch()
    command = [sys.executable, str(tmp_path / "late.py")]
    gateway = Gateway(store=f"sqlite:///{tmp_path / 'kept.db'}", max_result_tokens=0)
    gateway.add_upstream("late", command)
    async with Client(gateway) as client:
        assert await names(client) == {"late_work"}
        (tmp_path / "ready").unlink()
        gateway.remove_upstream("late")
        gateway.add_upstream("late", command, timeout=5)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio.gather(*gateway._background_tasks)
            assert await names(client) == {"late_work"}
        result = await client.call_tool("late_work", raise_on_error=False)
        assert result.is_error
        assert "late is unavailable" in result.text
