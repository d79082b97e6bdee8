"""Codomyrmex's message protocol, with `--profile codomyrmex`.

Its messages themselves, `MCPToolCall` and `MCPToolResult` with the document's samples and what they must refuse, are
tried in tests/services/contracts/test_models.py; here they meet the wire.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from portico import Client, Server, UsageError
from portico.contracts import MCPToolCall, MCPToolResult, call
from portico.services import assembly, settings
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
    assert (result["status"], result["explanation"], result["data"]["total"]) == ("success", None, 12)
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


# Revisions that have no room for an error of arguments in a result say it there all the same
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_wrong_argument_is_a_failure(serve: Serve, revision: str) -> None:
    child = await serve("codomyrmex")
    await child.open(revision)
    result = (await child.call("contracts.spec_get", tool=5))["result"]
    assert result["isError"] is True
    assert result["_meta"]["portico/error"]["error_type"] == "ValidationError"
    if revision <= "2025-03-26":
        assert (result["status"], result["error"]["error_type"]) == ("failure", "ValidationError")
        check(result)


async def test_a_job_can_be_cancelled(codomyrmex: Any) -> None:
    assert "contracts.tool_cancel" in await codomyrmex.tools()


OWN = """
from portico import Server
from portico.contracts import MCPErrorDetail, MCPToolResult

server = Server("my_module", version="1.2.3")

@server.tool
async def double(number: int) -> dict[str, int]:
    return {"result": 2 * number}

@server.tool
async def slow_down() -> MCPToolResult:
    error = MCPErrorDetail(error_type="ApiLimitExceeded", error_message="slow down")
    return MCPToolResult(status="failure", error=error)

@server.tool
async def nothing() -> MCPToolResult:
    return MCPToolResult(status="no_change_needed", explanation="as it was")
"""


async def test_a_server_of_ones_own_in_this_shape(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    child = await serve("codomyrmex", tmp_path / "my.py", LOG_LEVEL="info")
    assert (await child.open("2025-03-26"))["serverInfo"]["name"] == "my_module"
    assert list(await child.tools()) == ["my_module.double", "my_module.slow_down", "my_module.nothing"]
    for name in ("my_module.double", "double"):
        result = (await child.call(name, number=4))["result"]
        assert (result["status"], result["data"]) == ("success", {"result": 8})
        check(result)
    wrong = (await child.call("my_module.double", number="x"))["result"]
    assert (wrong["status"], wrong["error"]["error_type"]) == ("failure", "ValidationError")
    check(wrong)
    slow = (await child.call("my_module.slow_down"))["result"]
    assert (slow["isError"], slow["error"]["error_type"]) == (True, "ApiLimitExceeded")
    assert slow["error"]["error_message"] == "slow down"
    same = (await child.call("my_module.nothing"))["result"]
    assert (same["status"], same["explanation"]) == ("no_change_needed", "as it was")
    check(same)
    _, _, log = await child.end()
    assert log.count("'my_module.double'") == 2
    assert "'my_module.slow_down': failure" in log


def limited() -> Server:
    server = Server("mine")

    @server.tool
    async def outside() -> str:
        return "there"

    @server.tool(annotations={"openWorldHint": False})
    async def inside() -> str:
        return "here"

    said = settings.of({"shapes": {"own": {"dotted": True, "rate": 0.001, "burst": 2}}})
    assembly.dress(server, said)
    return server


async def test_calls_that_reach_outside_are_held_back() -> None:
    async with Client(limited()) as client:
        results = [await call(client, MCPToolCall(tool_name="mine.outside", arguments={})) for _ in range(3)]
        assert [one.status for one in results] == ["success", "success", "failure"]
        error = results[-1].error
        assert error is not None and error.error_type == "ApiLimitExceeded"
        assert isinstance(error.error_details, dict) and error.error_details["retry_after"] > 0
        for _ in range(5):
            assert (await call(client, MCPToolCall(tool_name="mine.inside", arguments={}))).status == "success"


def test_a_profile_that_has_nothing_for_other_servers_says_so() -> None:
    with pytest.raises(UsageError, match=r"no \[shapes.own\]"):
        assembly.dress(Server("mine"), assembly.read_settings("bossman", None))
