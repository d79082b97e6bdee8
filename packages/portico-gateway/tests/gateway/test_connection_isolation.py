"""Sharing of connections to stateful upstreams."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from portico import Client, Context, Server
from portico_gateway import Gateway
from support.logins import served

COUNTER = """
from portico import Server

server = Server("counter")
count = 0


@server.tool
async def more() -> int:
    global count
    count += 1
    return count


server.run()
"""


@pytest.fixture
def counter(tmp_path: Path) -> list[str]:
    script = tmp_path / "counter.py"
    script.write_text(COUNTER)
    return [sys.executable, str(script)]


def gateway_to(command: list[str], **options: Any) -> Gateway:
    gateway = Gateway()
    gateway.add_upstream("a", command, protocol_version="2025-11-25", **options)
    return gateway


async def more(client: Client, times: int) -> list[int]:
    return [int((await client.call_tool("a_more")).text) for _ in range(times)]


async def test_two_sessions_of_one_user_are_two(counter: list[str]) -> None:
    gateway = gateway_to(counter)
    async with (
        Client(gateway, protocol_version="2025-11-25", principal="ada") as client,
        Client(gateway, protocol_version="2025-11-25", principal="ada") as other,
    ):
        assert await asyncio.gather(more(client, 3), more(other, 3)) == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("isolation, found", [("principal", [1, 2, 1]), ("shared", [1, 2, 3])])
async def test_principals_are_distinguished_if_wanted(counter: list[str], isolation: str, found: list[int]) -> None:
    gateway = gateway_to(counter, isolation=isolation)
    async with Client(gateway, principal="ada") as ada, Client(gateway, principal="bob") as bob:
        assert [*await more(ada, 2), *await more(bob, 1)] == found


def counting() -> Server:
    """A server with a count for each of its sessions."""
    server = Server("counter")
    counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @server.tool
    async def more(ctx: Context) -> int:
        counts[ctx.connection] = counts.get(ctx.connection, 0) + 1
        return counts[ctx.connection]

    return server


@pytest.mark.parametrize("isolation", ["session", "principal"])
async def test_fifty_clients_of_two_principals(isolation: str) -> None:
    """With a count for each session of the upstream: those who share one share a count, and no others do."""
    async with served(counting()) as url:
        gateway = Gateway()
        gateway.add_upstream("a", url, protocol_version="2025-11-25", isolation=isolation, max_connections=60)
        clients = [
            Client(gateway, protocol_version="2025-11-25", principal=("ada", "bob")[number % 2]) for number in range(50)
        ]
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            counts = await asyncio.gather(*(more(client, 4) for client in clients))
            if isolation == "session":
                assert counts == [[1, 2, 3, 4]] * 50
            else:
                for who in range(2):
                    assert sorted(chain.from_iterable(counts[who::2])) == list(range(1, 101))
            upstream = gateway._router.upstreams["a"]
            # One is the gateway's own, which lists and listens.
            assert len(upstream.connections) == (50 if isolation == "session" else 2) + 1
        assert not len(upstream.connections)


async def test_session_connection_closes_with_the_session(counter: list[str]) -> None:
    gateway = gateway_to(counter)
    async with gateway.lifespan():
        async with Client(gateway, protocol_version="2025-11-25") as client:
            assert await more(client, 1) == [1]
            before = len(gateway._router.upstreams["a"].connections)
        assert len(gateway._router.upstreams["a"].connections) == before - 1


async def test_many_at_once_do_not_get_mixed_up(counter: list[str]) -> None:
    gateway = gateway_to(counter, isolation="principal", max_connections=6)
    clients = [Client(gateway, principal=f"user-{number % 3}") for number in range(12)]
    for client in clients:
        await client.__aenter__()
    try:
        counts = await asyncio.gather(*(more(client, 5) for client in clients))
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)
    for user in range(3):
        mine = sorted(number for at in range(user, 12, 3) for number in counts[at])
        assert mine == list(range(1, 21)), f"user-{user} has a counter of its own"
