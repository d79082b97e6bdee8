"""Test a server in the same process, without a network."""

from calculator import server

from portico import Client


async def test_add() -> None:
    async with Client(server) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert result.data == 3
