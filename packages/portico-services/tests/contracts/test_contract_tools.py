"""Tools that return contract results: failures are errors for every client and protocol version."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

from portico import Client, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services.contracts.api import MCPErrorDetail, MCPToolCall, MCPToolResult, call

LIMIT = MCPErrorDetail(error_type="ApiLimitExceeded", error_message="slow down", error_details={"retry_after": 3})


def speaking() -> Server:
    server = Server("s")

    @server.tool
    async def fails() -> MCPToolResult:
        return MCPToolResult(status="failure", error=LIMIT)

    @server.tool
    async def partly() -> MCPToolResult:
        return MCPToolResult(status="partial_success", data={"done": 1}, error=LIMIT, explanation="one of two")

    @server.tool
    async def nothing() -> MCPToolResult:
        return MCPToolResult(status="no_change_needed")

    return server


def request(name: str) -> MCPToolCall:
    return MCPToolCall(tool_name=f"s.{name}", arguments={})


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_failure_is_an_error_on_the_wire(revision: str) -> None:
    async with Client(speaking(), protocol_version=revision) as client:
        data = msgspec.json.decode(await client.request("tools/call", {"name": "fails", "arguments": {}}))
        assert data["isError"] is True
        assert data["_meta"]["portico/error"]["error_type"] == "ApiLimitExceeded"
        for name in ("partly", "nothing"):
            data = msgspec.json.decode(await client.request("tools/call", {"name": name, "arguments": {}}))
            assert data["isError"] is False


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_each_status_is_reported_unchanged(revision: str) -> None:
    async with Client(speaking(), protocol_version=revision) as client:
        failed = await call(client, request("fails"))
        assert failed == MCPToolResult(status="failure", error=LIMIT)
        partly = await call(client, request("partly"))
        assert (partly.status, partly.data, partly.error) == ("partial_success", {"done": 1}, LIMIT)
        assert (await call(client, request("nothing"))).status == "no_change_needed"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_explanation_of_a_failure_arrives(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def fails() -> MCPToolResult:
        return MCPToolResult(status="failure", error=LIMIT, explanation="Too many calls today.")

    assert (await call(server, request("fails"))).explanation == "Too many calls today."
    async with Client(server, protocol_version=revision) as client:
        assert (await call(client, request("fails"))).explanation == "Too many calls today."


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_failure_is_parsed_from_text_content(revision: str) -> None:
    """As servers say it that know the contract, and not our `_meta`."""
    server = Server("s")

    @server.tool
    async def fails() -> Any:
        from portico import ToolResult

        return ToolResult(
            content=MCPToolResult(status="failure", error=LIMIT).model_dump_json(),
            is_error=True,
        )

    async with Client(server, protocol_version=revision) as client:
        assert (await call(client, request("fails"))).error == LIMIT


@pytest.mark.parametrize("said", [{}, {"content": [], "isError": True}, {"data": {"a": 1}}])
def test_external_result_requires_a_status(said: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="status"):
        MCPToolResult.model_validate(said)
    with pytest.raises(pydantic.ValidationError, match="status"):
        MCPToolResult.model_validate_json(msgspec.json.encode(said))
    with pytest.raises(pydantic.ValidationError, match="status"):
        pydantic.TypeAdapter(list[MCPToolResult]).validate_python([said])


def test_result_of_ones_own_is_a_success() -> None:
    assert MCPToolResult(data={"a": 1}).status == "success"
    assert MCPToolResult.model_validate({"status": "success"}) == MCPToolResult()
