"""Test a server in the same process, without a network."""

from calculator import server

from portico import SyncClient


def test_add() -> None:
    with SyncClient(server) as client:
        assert client.call_tool("add", {"a": 1, "b": 2}).data == 3
