"""After a request of 2026-07-28, messages of the stream follow that version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from portico import Server
from portico.protocol.versions import FIRST_MODERN_VERSION

META = {
    "io.modelcontextprotocol/protocolVersion": FIRST_MODERN_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}


@pytest.fixture
def wire(connect: Callable[..., Any]) -> Any:
    return connect(Server("eras"))


async def test_batch_of_modern_requests_is_rejected(wire: Any) -> None:
    """2026-07-28, basic/transports/stdio: each message is a single request, notification or response."""
    wire.send([LIST, {**LIST, "id": 2}])
    refusal = await wire.receive()
    assert refusal["error"]["code"] == -32600
    assert "id" not in refusal


async def test_batch_after_a_modern_request_is_rejected(wire: Any) -> None:
    wire.send(LIST)
    assert "result" in await wire.receive()
    wire.send([{"jsonrpc": "2.0", "id": 2, "method": "ping"}])
    refusal = await wire.receive()
    assert refusal["error"]["code"] == -32600
    assert "id" not in refusal


async def test_id_that_cannot_be_read_is_left_out_of_the_answer(wire: Any) -> None:
    """2026-07-28, schema: the id of an error response may be absent, and is not null."""
    wire.send(LIST)
    await wire.receive()
    wire.send({"jsonrpc": "2.0", "id": None, "method": "tools/list"})
    refusal = await wire.receive()
    assert refusal["error"]["code"] == -32600
    assert "id" not in refusal


async def test_id_in_flight_is_an_invalid_request(connect: Callable[..., Any]) -> None:
    server = Server("eras")

    @server.tool
    async def wait() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    wire = connect(server)
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "wait", "arguments": {}, "_meta": META},
    }
    wire.send(call)
    wire.send(call)
    assert (await wire.receive())["error"]["code"] == -32600


async def test_invalid_first_message_may_select_the_protocol_version(connect: Callable[..., Any]) -> None:
    wire = connect(Server("s"))
    wire.send({"jsonrpc": "2.0", "id": None, "method": "ping", "params": {"_meta": wire.envelope()}})
    message = await wire.receive()
    assert message["error"]["code"] == -32600
    assert "id" not in message
    wire.send({"jsonrpc": "2.0", "id": None, "method": "ping"})
    assert (await wire.receive())["id"] is None
