"""A server upgrade with connected clients: compatible changes break no client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pydantic
import pytest
from msgspec import Struct

from portico import Client, ProtocolError, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.server.http import build_application
from portico.transports import version_discovery
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from portico_services.contracts import diff, invoker
from portico_services.contracts.api import MCPToolCall, call


class Before(Struct):
    a: int


class After(Struct):
    a: int
    b: Annotated[str, "Is new"] = "new"


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int


# As other servers describe what they give.
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
WIDER = {**CLOSED, "properties": {**CLOSED["properties"], "b": {"type": "string"}}}  # type: ignore[dict-item]


def first(*, strict: bool = False) -> Server:
    server = Server("up", version="1.0.0")

    @server.tool(output_schema=CLOSED if strict else None)
    async def t(x: int = 1) -> Before:
        return Before(x)

    return server


def second(*, strict: bool = False) -> Server:
    server = Server("up", version="1.1.0")

    @server.tool(output_schema=WIDER if strict else None)
    async def t(x: int = 1, y: int = 2) -> After:
        return After(x)

    return server


class Upgraded:
    """A Handler that becomes another one, and tells nobody."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def info(self) -> Any:
        return self.server.info

    async def __call__(self, call: Call) -> Any:
        return await self.server(call)


def request(**arguments: Any) -> MCPToolCall:
    return MCPToolCall(tool_name="up.t", arguments=arguments)


async def test_new_field_is_a_minor_change() -> None:
    old, new = [await invoker.fetch_contract(make(strict=True)) for make in (first, second)]
    assert diff.diff_contracts(old, new).level == "minor"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_new_field_breaks_no_client(revision: str, strict: bool) -> None:
    server = Upgraded(first(strict=strict))
    async with Client(server, protocol_version=revision) as client:
        assert (await call(client, request(x=1))).data == {"a": 1}
        assert (await client.call_tool("t", {"x": 1})).structured in ({"a": 1}, None)
        server.server = second(strict=strict)
        for _ in range(2):
            result = await call(client, request(x=1))
            assert (result.status, result.data) == ("success", {"a": 1, "b": "new"})
            assert (await client.call_tool("t", {"x": 1})).structured in ({"a": 1, "b": "new"}, None)
        assert (await call(client, request(x=1, y=3))).status == "success"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_server_that_is_started_again_over_http(revision: str) -> None:
    version_discovery._modern_by_target.clear()
    async with listening(first(strict=True)) as port:
        client = Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision)
        await client.connect()
        assert (await call(client, request(x=1))).data == {"a": 1}
    try:
        async with listening(second(strict=True), port):
            assert (await call(client, request(x=1))).data == {"a": 1, "b": "new"}
            assert (await client.call_tool("t", {"x": 1})).structured in ({"a": 1, "b": "new"}, None)
    finally:
        await client.close()


@pytest.mark.parametrize("revision", [one for one in SUPPORTED_PROTOCOL_VERSIONS if one >= "2025-06-18"])
async def test_broken_promise_stays_so(revision: str) -> None:
    lying = Server("up")

    @lying.tool
    async def t(x: int = 1) -> dict[str, str]:
        return {"a": "b"}

    class Liar(Upgraded):
        async def __call__(self, call: Call) -> Any:
            return await (lying if call.method == "tools/call" else self.server)(call)

    async with Client(Liar(first(strict=True)), protocol_version=revision) as client:
        result = await call(client, request(x=1))
        assert result.error is not None and "violates its output schema" in result.error.error_message
        with pytest.raises(ProtocolError, match="violates its output schema"):
            await client.call_tool("t", {"x": 1})


def test_output_schemas_allow_additional_properties() -> None:
    server = Server("open")

    @server.tool
    async def structs() -> list[After]:
        return []

    @server.tool
    async def models() -> dict[str, Model]:
        return {}

    for name in ("structs", "models"):
        tool = server.registry.tool(name)
        assert tool is not None
        assert "additionalProperties': False" not in str(tool.definition.output_schema)
        assert tool.definition.input_schema["additionalProperties"] is False


@asynccontextmanager
async def listening(server: Server, port: int = 0) -> AsyncIterator[int]:
    listener = Listener(build_application(server, HttpServerSettings()))
    [(_, port, *_)] = await listener.listen("127.0.0.1", port)
    try:
        yield port
    finally:
        await listener.stop(0)
