"""Codomyrmex's message protocol, with `--profile codomyrmex`.

Its messages themselves, `MCPToolCall` and `MCPToolResult` with the document's samples and what they must refuse, are
tried in tests/services/contracts/test_models.py; here they meet the wire.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import jsonschema_rs
import pytest

from portico import Client
from portico.contracts import MCPToolCall, MCPToolResult, call
from portico.services.contracts.definitions import is_invocation

pytestmark = pytest.mark.broken_frames("the profile wants members that no revision has")

Serve = Callable[..., Awaitable[Any]]


@pytest.fixture
async def codomyrmex(serve: Serve) -> Any:
    child = await serve("codomyrmex")
    assert (await child.open("2025-03-26"))["serverInfo"]["name"] == "codomyrmex"
    return child


async def test_tools_are_listed_by_their_invocation_names(codomyrmex: Any) -> None:
    tools = await codomyrmex.tools()
    assert "contracts.spec_list" in tools
    assert all(is_invocation(name) for name in tools)
    for name in tools:
        MCPToolCall(tool_name=name, arguments={})


async def test_a_name_is_the_one_in_the_specification(codomyrmex: Any) -> None:
    for name in await codomyrmex.tools():
        result = (await codomyrmex.call("contracts.spec_get", tool=name, format="json"))["result"]
        assert (result["data"]["tool"], result["data"]["definition"]["name"]) == (name, name)


@pytest.mark.parametrize("name", ["contracts.spec_list", "spec_list"])
async def test_a_success_is_a_result_message(codomyrmex: Any, name: str) -> None:
    result = (await codomyrmex.call(name, limit=1))["result"]
    assert (result["status"], result["explanation"], result["data"]["total"]) == ("success", None, 11)
    check(result)


async def test_a_failure_is_a_result_message_with_an_error_and_no_data(codomyrmex: Any) -> None:
    result = (await codomyrmex.call("contracts.spec_get", tool="nobody.knows_it"))["result"]
    assert (result["status"], result["data"]) == ("failure", None)
    assert result["error"]["error_type"]
    assert "nobody.knows_it" in result["error"]["error_message"]
    check(result)


def check(result: Any) -> None:
    """The members of the contract are valid against its published schema, with everything that stands beside them."""
    assert jsonschema_rs.Draft7Validator(MCPToolResult.model_json_schema()).is_valid(result)
    MCPToolResult.model_validate({name: result.get(name) for name in ("status", "data", "error", "explanation")})


async def test_texts_name_tools_as_they_are_listed(codomyrmex: Any) -> None:
    tools = await codomyrmex.tools()
    described = tools["contracts.tool_status"]["inputSchema"]["properties"]
    assert "contracts.tool_start" in json.dumps(described)
    assert " tool_start" not in json.dumps(tools)


async def test_the_messages_of_the_contract_call_it(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "portico", "serve", "--profile", "codomyrmex", "--data", str(tmp_path)]
    async with Client(command) as client:
        answer = await call(client, MCPToolCall(tool_name="contracts.spec_list", arguments={"limit": 2}))
    assert answer.status == "success"
    assert answer.data is not None
    assert len(answer.data["tools"]) == 2
