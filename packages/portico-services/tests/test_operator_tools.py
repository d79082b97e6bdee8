"""Operators, and only they, enable and disable services at run time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, ToolError
from portico.audit import verify_log_file
from portico.auth import Principal
from portico.auth.principal import OPERATOR
from portico.extend import serve_http
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services import assembly
from portico_services.settings import SettingsFile

TIMEOUT_SECONDS = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Server:
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "store.db"), operator=True)
    return assembly.build_server(["tasks", "contracts"], SettingsFile(), place)


class Changes:
    """Counts what a client is told of."""

    def __init__(self) -> None:
        self._told = asyncio.Semaphore(0)

    def heard(self, method: str, _: Any) -> None:
        if method == "notifications/tools/list_changed":
            self._told.release()

    async def one(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._told.acquire()


async def names(client: Client) -> set[str]:
    return {tool.name for tool in await client.list_tools(refresh=True)}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_clients_of_every_revision_are_informed(server: Server, revision: Any) -> None:
    changes = Changes()
    async with (
        server.lifespan(),
        Client(server, protocol_version=revision, message_handler=changes.heard) as client,
        client.listen(tools=True),
        Client(server) as operator,
    ):
        before = await names(client)
        assert "create_task" in before
        result = await operator.call_tool("service_disable", {"name": "tasks"})
        assert result.structured == {"name": "tasks", "enabled": False, "outcome": "changed"}
        await changes.one()
        assert await names(client) < before
        await operator.call_tool("service_enable", {"name": "tasks"})
        await changes.one()
        assert await names(client) == before
        assert "It works again" in (await client.call_tool("create_task", {"description": "It works again"})).text


async def test_service_absent_at_startup_can_be_enabled(server: Server) -> None:
    async with server.lifespan(), Client(server) as client:
        listed = (await client.call_tool("service_list")).structured["services"]
        assert {item["name"] for item in listed if item["enabled"]} == {"tasks", "contracts"}
        assert {item["name"] for item in listed} == set(assembly.SERVICE_CLASSES)
        await client.call_tool("service_enable", {"name": "system"})
        assert (await client.call_tool("reg_list")).structured["subkeys"]
        again = await client.call_tool("service_enable", {"name": "system"})
        assert again.structured["outcome"] == "no_change"


async def test_unknown_or_uninstalled_service_is_reported(server: Server, monkeypatch: Any) -> None:
    async with server.lifespan(), Client(server) as client:
        for tool in ("service_enable", "service_disable"):
            with pytest.raises(ToolError, match="Unknown service 'operator'"):
                await client.call_tool(tool, {"name": "operator"})
        monkeypatch.setitem(assembly.SERVICE_CLASSES, "memory", ("portico_services.nowhere", "Memory"))
        with pytest.raises(ToolError, match="cannot be enabled: missing dependency"):
            await client.call_tool("service_enable", {"name": "memory"})


@pytest.mark.parametrize("principal", [Principal("token"), Principal("guest", frozenset({"tasks:read"}))])
async def test_caller_who_is_not_the_operator_is_denied_and_audited(
    server: Server, tmp_path: Path, principal: Principal
) -> None:
    async with server.lifespan():
        async with Client(server, principal=principal) as client:
            for tool in ("service_list", "service_enable", "service_disable"):
                arguments = {} if tool == "service_list" else {"name": "tasks"}
                with pytest.raises(ToolError, match="for the operator of this server"):
                    await client.call_tool(tool, arguments)
        async with Client(server, principal=OPERATOR) as client:
            await client.call_tool("service_disable", {"name": "tasks"})
            # It operates, and nothing else.
            with pytest.raises(ToolError, match="needs the scope contracts:read"):
                await client.call_tool("spec_list")
    trail = tmp_path / "operator-audit.jsonl"
    assert not verify_log_file(trail).findings
    lines = [json.loads(line) for line in trail.read_bytes().splitlines()]
    records = [line["record"] for line in lines if "record" in line]
    assert [(record["name"], record["outcome"]) for record in records] == [
        ("service_list", "denied"),
        ("service_enable", "denied"),
        ("service_disable", "denied"),
        ("service_disable", "ok"),
    ]


async def over_http(server: Server, use: Callable[[str], Awaitable[None]], **options: Any) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop, **options))
    async with asyncio.timeout(2 * TIMEOUT_SECONDS):
        await use(await ready)
        stop.set()
        await serving


@pytest.mark.parametrize("token", ["clients", None])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_http_requires_the_operator_token(server: Server, token: str | None, revision: Any) -> None:
    changes = Changes()

    async def use(url: str) -> None:
        async with (
            Client(url, protocol_version=revision, auth=token, message_handler=changes.heard) as client,
            client.listen(tools=True),
            Client(url, auth="operators") as operator,
        ):
            with pytest.raises(ToolError, match="for the operator"):
                await client.call_tool("service_disable", {"name": "tasks"})
            before = await names(client)
            await operator.call_tool("service_disable", {"name": "tasks"})
            await changes.one()
            assert await names(client) < before

    await over_http(server, use, token=token, operator_token="operators")


async def test_operator_tools_are_absent_by_default(tmp_path: Path) -> None:
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "store.db"))
    async with Client(assembly.build_server(["tasks"], SettingsFile(), place)) as client:
        assert not {name for name in await names(client) if name.startswith("service_")}
