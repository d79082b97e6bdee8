"""Codomyrmex's message protocol, with `--profile codomyrmex`.

Its messages themselves, `MCPToolCall` and `MCPToolResult` with the document's samples and what they must refuse, are
tried in packages/portico-services/tests/contracts/test_models.py; here they meet the wire.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import jsonschema_rs
import pytest

from portico import Client, Server, UsageError
from portico_services import assembly, settings
from portico_services.contracts.api import MCPToolCall, MCPToolResult, call
from portico_services.contracts.definitions import is_invocation_name
from portico_services.rate_limit import rate_limit_message

pytestmark = pytest.mark.broken_frames("the profile wants members that no revision has")

Serve = Callable[..., Awaitable[Any]]
JSON = "application/json"


@pytest.fixture
async def codomyrmex(serve: Serve) -> Any:
    child = await serve("codomyrmex")
    assert (await child.open("2025-03-26"))["serverInfo"]["name"] == "codomyrmex"
    return child


async def test_tools_are_listed_by_their_invocation_names(codomyrmex: Any) -> None:
    tools = await codomyrmex.tools()
    assert "contracts.spec_list" in tools
    assert all(is_invocation_name(name) for name in tools)
    for name in tools:
        MCPToolCall(tool_name=name, arguments={})


async def test_name_is_the_one_in_the_specification(codomyrmex: Any) -> None:
    for name in await codomyrmex.tools():
        result = (await codomyrmex.call("contracts.spec_get", tool=name, format="json"))["result"]
        assert (result["data"]["tool"], result["data"]["definition"]["name"]) == (name, name)


@pytest.mark.parametrize("name", ["contracts.spec_list", "spec_list"])
async def test_success_is_a_result_message(codomyrmex: Any, name: str) -> None:
    result = (await codomyrmex.call(name, limit=1))["result"]
    assert (result["status"], result["explanation"], result["data"]["total"]) == ("success", None, 12)
    check(result)


async def test_failure_is_a_result_message_with_an_error_and_no_data(codomyrmex: Any) -> None:
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


async def test_messages_of_the_contract_call_it(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "portico", "serve", "--profile", "codomyrmex", "--data", str(tmp_path)]
    async with Client(command) as client:
        answer = await call(client, MCPToolCall(tool_name="contracts.spec_list", arguments={"limit": 2}))
    assert answer.status == "success"
    assert answer.data is not None
    assert len(answer.data["tools"]) == 2


# Revisions that have no room for an error of arguments in a result say it there all the same
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_wrong_argument_is_a_failure(serve: Serve, revision: str) -> None:
    child = await serve("codomyrmex")
    await child.open(revision)
    result = (await child.call("contracts.spec_get", tool=5))["result"]
    assert result["isError"] is True
    assert result["_meta"]["portico/error"]["error_type"] == "ValidationError"
    if revision <= "2025-03-26":
        assert (result["status"], result["error"]["error_type"]) == ("failure", "ValidationError")
        check(result)


async def test_job_can_be_cancelled(codomyrmex: Any) -> None:
    assert "contracts.tool_cancel" in await codomyrmex.tools()


OWN = """
from portico import Server
from portico_services.contracts.api import MCPErrorDetail, MCPToolResult

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


async def test_server_of_ones_own_in_this_shape(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    child = await serve("codomyrmex", tmp_path / "my.py")
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


@pytest.mark.parametrize(
    "content_type, body, status, error_type, words",
    [
        (JSON, {"tool_name": "my_module.double", "arguments": {"number": 4}}, 200, None, ""),
        (JSON, {"tool_name": "my_module.double", "arguments": {}}, 200, "ValidationError", "number"),
        (JSON, {"tool_name": "my_module.doubel", "arguments": {}}, 200, "ResourceNotFound", "my_module.doubel"),
        (JSON, {"tool_name": "double", "arguments": {}}, 400, "ValidationError", "module_name.tool_name"),
        (JSON, {"tool_name": "my_module.double"}, 400, "ValidationError", "arguments"),
        (JSON, {"tool_name": "my_module.double", "arguments": {}, "id": 1}, 400, "ValidationError", "id"),
        (JSON, [], 400, "ValidationError", "object"),
        (JSON, {"tool_name": "my_module.double", "arguments": []}, 400, "ValidationError", "arguments: "),
        (JSON, {"tool_name": 5, "arguments": {}}, 400, "ValidationError", "tool_name: "),
        ("text/plain", {"tool_name": "my_module.double", "arguments": {}}, 415, "ValidationError", "application/json"),
    ],
)
async def test_bare_call_over_http_is_answered_with_a_bare_result(
    content_type: str, body: Any, status: int, error_type: str | None, words: str
) -> None:
    server = Server("my_module")

    @server.tool
    def double(number: int) -> int:
        return 2 * number

    assembly.apply_compat(server, assembly.read_settings("codomyrmex", None))
    async with post(server, content_type, json.dumps(body).encode(), token="secret") as (answered, result):
        assert answered == status
        message = MCPToolResult.model_validate(result)
    if error_type is None:
        assert (message.status, message.data) == ("success", {"result": 8})
    else:
        assert message.error is not None and message.error.error_type == error_type
        assert words in message.error.error_message


@pytest.mark.parametrize(
    "body, words",
    [
        (b'{"tool_name": "my_module.double", "arguments": {"number": ' + b"[" * 500 + b"]" * 500 + b"}}", "too deeply"),
        (b'{"tool_name": "a.b", "tool_name": "my_module.double", "arguments": {"number": 1}}', "duplicated"),
        (b'{"tool_name": "my_module.double", "arguments": {"number": 1, "number": 2}}', "duplicated"),
        (b'{"tool_name": "my_module.double", "arguments": {"number": NaN}}', "malformed"),
        (b'{"tool_name": "\xff", "arguments": {}}', "UTF-8"),
    ],
)
async def test_bare_call_that_is_no_message_is_rejected(body: bytes, words: str) -> None:
    server = Server("my_module")

    @server.tool
    def double(number: Any) -> Any:
        return number

    assembly.apply_compat(server, assembly.read_settings("codomyrmex", None))
    async with post(server, JSON, body, token="secret") as (answered, result):
        error = MCPToolResult.model_validate(result).error
        assert answered == 400 and error is not None
        assert words in error.error_message and error.error_details == {"parameter": "body", "constraint": ANY}


async def test_bare_call_may_be_as_large_as_a_message_and_a_rejection_repeats_only_its_beginning() -> None:
    server = Server("my_module")

    @server.tool
    def size(code: str, number: int = 0) -> int:
        return len(code)

    assembly.apply_compat(server, assembly.read_settings("codomyrmex", None))
    arguments: dict[str, Any] = {"code": "x" * 1_000_000}
    body = {"tool_name": "my_module.size", "arguments": arguments}
    async with post(server, JSON, json.dumps(body).encode(), token="secret") as (answered, result):
        assert (answered, result["data"]) == (200, {"result": 1_000_000})
    arguments["number"] = "9" * 100_000
    async with post(server, JSON, json.dumps(body).encode(), token="secret") as (answered, result):
        assert result["error"]["error_details"]["parameter"] == "number"
        assert result["error"]["error_details"]["provided_value"].startswith("999")
        assert len(json.dumps(result)) < 2000


async def test_call_is_logged_once_if_services_are_added_to_the_users_server(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    child = await serve("codomyrmex", tmp_path / "my.py", "--services", "contracts")
    await child.open("2025-03-26")
    await child.call("my_module.nothing")
    await child.call("contracts.spec_list")
    _, _, log = await child.end()
    assert (log.count("'my_module.nothing'"), log.count("'contracts.spec_list'")) == (1, 1)


async def test_bare_call_needs_the_token_of_the_endpoint() -> None:
    server = Server("my_module")
    assembly.apply_compat(server, assembly.read_settings("codomyrmex", None))
    async with post(server, JSON, b"{}", token=None) as (answered, _):
        assert answered == 401


@asynccontextmanager
async def post(
    server: Server, content_type: str, body: bytes, token: str | None
) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """One request to `/call` of a server with the token "secret", and its answer."""
    application = server.http_app(token="secret")
    headers = [(b"host", b"localhost"), (b"content-type", content_type.encode())]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/call",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    pending: list[Any] = [{"type": "http.request", "body": body}]
    sent: list[Any] = []

    async def receive() -> Any:
        return pending.pop(0) if pending else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(20):
        await application(scope, receive, send)
    text = b"".join(part.get("body", b"") for part in sent[1:])
    try:
        yield sent[0]["status"], json.loads(text)
    finally:
        await application.stop()


PLAIN_WORDS = """
from portico import Server, ToolError
from portico_services.contracts.api import MCPErrorDetail, MCPToolResult

server = Server("my_module")

@server.tool
async def number(value: str, code: int = 0) -> str:
    if not value:
        details = {"parameter": "value", "provided_value": "", "constraint": "non-empty string"}
        raise ToolError("a number, please; look_up has some", error_type="ValidationError", details=details)
    return value

@server.tool
async def look_up() -> MCPToolResult:
    "What number is."
    error = MCPErrorDetail(error_type="ResourceNotFound", error_message="no number in look_up", error_details="none")
    return MCPToolResult(status="failure", error=error, explanation="there is no number")
"""


@pytest.fixture
async def plain_words(serve: Serve, tmp_path: Path) -> Any:
    (tmp_path / "my.py").write_text(PLAIN_WORDS)
    child = await serve("codomyrmex", tmp_path / "my.py")
    await child.open("2025-03-26")
    return child


async def test_tool_text_is_not_rewritten_as_a_tool_name(plain_words: Any) -> None:
    assert (await plain_words.tools())["my_module.look_up"]["description"] == "What number is."
    wrong = (await plain_words.call("my_module.number", value=5))["result"]
    assert "received the number 5" in wrong["content"][0]["text"]
    refused = (await plain_words.call("my_module.number", value=""))["result"]
    assert refused["content"][0]["text"] == "a number, please; look_up has some"
    failed = (await plain_words.call("my_module.look_up"))["result"]
    assert json.loads(failed["content"][0]["text"])["error"]["error_message"] == "no number in look_up"


async def test_failure_has_details_and_explanation(plain_words: Any) -> None:
    refused = (await plain_words.call("my_module.number", value=""))["result"]
    message = {"parameter": "value", "provided_value": "", "constraint": "non-empty string"}
    assert refused["error"]["error_details"].items() >= message.items()
    failed = (await plain_words.call("my_module.look_up"))["result"]
    assert (failed["error"]["error_details"], failed["explanation"]) == ("none", "there is no number")


@pytest.mark.parametrize(
    ("arguments", "details"),
    [
        ({}, {"parameter": "value", "constraint": "a string"}),
        ({"value": 5}, {"parameter": "value", "constraint": "a string", "provided_value": 5}),
        ({"value": "x", "code": "y"}, {"parameter": "code", "constraint": "an integer", "provided_value": "y"}),
    ],
)
async def test_invalid_argument_error_has_its_value(plain_words: Any, arguments: Any, details: Any) -> None:
    result = (await plain_words.call("my_module.number", **arguments))["result"]
    assert result["error"]["error_details"] == details
    check(result)


@pytest.mark.parametrize("params", [None, {}, {"name": 5}, {"name": None}])
async def test_call_without_tool_name_is_rejected(plain_words: Any, params: Any) -> None:
    message = {} if params is None else {"params": params}
    answer = await plain_words.request({"jsonrpc": "2.0", "id": 7, "method": "tools/call", **message})
    assert answer["error"]["code"] == -32602


async def test_every_service_can_be_listed_by_dotted_names_and_logged(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "dotted.toml").write_text("[compat.tasks]\ndotted_names = true\nlog_calls = true\n")
    child = await serve(None, "--services", "tasks,contracts", "--config", tmp_path / "dotted.toml")
    await child.open("2025-03-26")
    names = list(await child.tools())
    assert "tasks.create_task" in names and "spec_list" in names
    await child.call("tasks.create_task", description="Seen")
    await child.call("spec_list")
    _, _, log = await child.end()
    assert "'tasks.create_task': success" in log
    assert "spec_list" not in log


async def test_configured_log_level_applies(serve: Serve) -> None:
    child = await serve("codomyrmex", PORTICO_LOG_LEVEL="warning")
    await child.open("2025-03-26")
    await child.call("contracts.spec_list")
    assert "spec_list" not in (await child.end())[2]


def limited() -> Server:
    server = Server("mine")

    @server.tool
    async def outside() -> str:
        return "there"

    @server.tool(annotations={"openWorldHint": False})
    async def inside() -> str:
        return "here"

    result = settings.merge_settings(
        {"compat": {"target": {"dotted_names": True, "rate_limit": 0.001, "rate_burst": 2}}}
    )
    assembly.apply_compat(server, result)
    return server


async def test_calls_that_reach_outside_are_held_back() -> None:
    async with Client(limited()) as client:
        results = [await call(client, MCPToolCall(tool_name="mine.outside", arguments={})) for _ in range(3)]
        assert [result.status for result in results] == ["success", "success", "failure"]
        error = results[-1].error
        assert error is not None and error.error_type == "ApiLimitExceeded"
        assert isinstance(error.error_details, dict) and error.error_details["retry_after"] > 0
        for _ in range(5):
            assert (await call(client, MCPToolCall(tool_name="mine.inside", arguments={}))).status == "success"


def test_waiting_always_has_a_cause() -> None:
    assert rate_limit_message("mine.outside", 0.004) == "Rate limit of mine.outside exceeded. Retry in 0.1 s."
    assert rate_limit_message("mine.outside", 2.0) == "Rate limit of mine.outside exceeded. Retry in 2 s."


async def test_all_versions_of_a_tool_are_dressed() -> None:
    server = Server("mine")
    for version in ("1.0.0", "2.0.0"):
        server.tool(name="look", version=version)(lambda version=version: version)
    server.tool(name="other")(lambda: "x")
    assembly.apply_compat(server, settings.merge_settings({"compat": {"target": {"dotted_names": True}}}))
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["mine.look", "mine.other"]
        messages = [(await client.call_tool(name, {})).text for name in ("mine.look", "look", "mine.look@1.0.0")]
    assert messages == ["2.0.0", "2.0.0", "1.0.0"]


def test_profile_without_a_target_section_is_rejected_for_other_servers() -> None:
    with pytest.raises(UsageError, match=r"add \[compat.target\]"):
        assembly.apply_compat(Server("mine"), assembly.read_settings("bossman", None))


async def test_call_inside_a_batch_is_logged_once(serve: Serve) -> None:
    child = await serve("codomyrmex")
    await child.open("2025-03-26")
    calls = [{"tool_name": name} for name in ("contracts.spec_list", "spec_list", "nobody.knows_it")]
    result = (await child.call("contracts.tools_batch", calls=calls))["result"]
    assert (result["status"], result["explanation"]) == ("partial_success", "1 of 3 calls failed.")
    check(result)
    failed = (await child.call("contracts.tools_batch", calls=calls[2:]))["result"]
    assert (failed["status"], failed["isError"]) == ("failure", True)
    check(failed)
    _, _, log = await child.end()
    lines = [line for line in log.splitlines() if "portico.contracts" in line]
    assert sum("spec_list'" in line for line in lines) == 2
    assert sum("'nobody.knows_it'" in line for line in lines) == 2


async def test_request_log_reports_an_error_as_one(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(OWN)
    child = await serve("codomyrmex", tmp_path / "my.py", PORTICO_LOG_LEVEL="info")
    await child.open("2025-03-26")
    await child.call("my_module.slow_down")
    await child.call("my_module.nothing")
    _, _, log = await child.end()
    assert "tools/call my_module.slow_down tool_error" in log
    assert "tools/call my_module.nothing ok" in log
