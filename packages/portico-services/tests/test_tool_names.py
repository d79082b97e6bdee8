"""Tool names are unique whatever the order of services; scopes limit the callable tools."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ProtocolError, Server, Service, Tool, ToolError, tool
from portico.auth import Principal
from portico.protocol.errors import UsageError
from portico_services import assembly
from portico_services.settings import SettingsFile
from portico_services.system import System


@pytest.fixture
def place(tmp_path: Path) -> assembly.ServiceEnvironment:
    return assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "store.db"))


def assembled(place: assembly.ServiceEnvironment, *names: str) -> Server:
    try:
        return assembly.build_server(names, SettingsFile(), place)
    except UsageError as reason:
        pytest.skip(f"a service cannot be had on this machine: {reason}")


async def test_order_of_services_changes_no_name(place: assembly.ServiceEnvironment) -> None:
    results: list[dict[str, Any]] = []
    for names in (("live", "system"), ("system", "live")):
        async with Client(assembled(place, *names)) as client:
            tools = {tool.name: tool.description for tool in await client.list_tools()}
            results.append(tools)
            assert "os_name" in (await client.call_tool("system_info")).structured
            assert "os_name" in (await client.call_tool("system_system_info")).structured
            for name in ("live_system_info", "live.system_info"):
                assert "python" in (await client.call_tool(name)).structured
    assert results[0] == results[1]


async def test_single_service_has_its_own_name(place: assembly.ServiceEnvironment) -> None:
    async with Client(assembled(place, "live")) as client:
        for name in ("system_info", "live_system_info", "live.system_info"):
            assert "python" in (await client.call_tool(name)).structured


def test_every_name_that_two_services_have_is_known_to_be_shared(place: assembly.ServiceEnvironment) -> None:
    names: Counter[str] = Counter()
    for name in assembly.SERVICE_CLASSES:
        offers = assembly.create_service("memory:all" if name == "memory" else name, {}, place).components()
        tools = [assembly._add_prefixed_aliases(item, name) for item in offers if isinstance(item, Tool)]
        names.update({known_names for item in tools for known_names in (item.name, *item.aliases)})
    assert {name for name, count in names.items() if count > 1} == assembly.TOOL_OWNERS.keys()


# Scopes


class Desk(Service):
    name = "desk"
    requires_scopes = True

    @tool(annotations={"readOnlyHint": True})
    def look(self) -> str:
        """Look at it."""
        return "tidy"

    @tool
    def clear(self) -> str:
        """Clear it."""
        return "cleared"


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        (None, {"look", "clear"}),
        (Principal("token"), {"look", "clear"}),
        (Principal("guest", frozenset()), set()),
        (Principal("reader", frozenset({"desk:read"})), {"look"}),
        (Principal("worker", frozenset({"desk:read", "desk:write"})), {"look", "clear"}),
    ],
)
async def test_principal_with_scopes_needs_that_of_the_tool(principal: Any, allowed: set[str]) -> None:
    server = Server("office")
    server.add(Desk())
    async with Client(server, principal=principal) as client:
        for name in ("look", "clear"):
            if name in allowed:
                assert (await client.call_tool(name)).text
            else:
                scope = "desk:read" if name == "look" else "desk:write"
                with pytest.raises(ToolError, match=f"needs the scope {scope}"):
                    await client.call_tool(name)


async def test_tools_and_resources_of_the_system_service_have_scopes(tmp_path: Path) -> None:
    server = Server("machine")
    server.add(
        System(
            allowed_paths=[tmp_path], platform_logs=False, file_index=False, access_levels={"registry": "read-write"}
        )
    )
    write = {"path": r"HKCU\Software\X", "name": "n", "value": 1}
    async with Client(server, principal=Principal("reader", frozenset({"system:read"}))) as client:
        assert (await client.call_tool("fs_list", {"path": str(tmp_path)})).structured["files"] == []
        assert await client.read_resource("reg://hives")
        with pytest.raises(ToolError, match="needs the scope system:write"):
            await client.call_tool("reg_write", write)
    async with Client(server, principal=Principal("other", frozenset({"memory:read"}))) as client:
        with pytest.raises(ToolError, match="needs the scope system:read"):
            await client.call_tool("fs_list")
        with pytest.raises(ProtocolError, match="needs the scope system:read"):
            await client.read_resource("reg://hives")


def test_every_built_in_tool_has_a_scope(place: assembly.ServiceEnvironment) -> None:
    server = assembled(place, *assembly.SERVICE_CLASSES)
    tools = list(server.registry.tools)
    assert tools and all(tool.runner.service_scopes for tool in tools)
    kinds = {scope for tool in tools for scope in tool.runner.service_scopes}
    assert kinds >= {f"{name}:{kind}" for name in ("memory", "tasks", "system", "live") for kind in ("read", "write")}
