"""The tests of the tutorial."""

import pytest
from tutorial import server

from portico import Client, ToolError


async def test_add() -> None:
    async with Client(server) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert result.data == 3


async def test_division_by_zero_is_rejected() -> None:
    async with Client(server) as client:
        with pytest.raises(ToolError, match="must not be 0"):
            await client.call_tool("divide", {"a": 1, "b": 0})


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_old_and_new_clients(version: str) -> None:
    async with Client(server, protocol_version=version) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add", "divide"]
