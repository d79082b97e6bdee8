"""Errors under `--profile sysmcp`: every kind has its code, and the next request succeeds."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from portico.extend import Call, Handler
from portico_services import assembly
from support import sources
from support.paths import ROOT

pytestmark = pytest.mark.broken_frames("the profile wants members that no revision has")

Serve = Callable[..., Awaitable[Any]]
# The last words of what gives a line to a shell.
SHELLS = {"create_subprocess_shell", "getoutput", "getstatusoutput", "popen", "system"}
WHO = {"clientInfo": {"name": "Claude", "version": "1.0.0"}, "protocolVersion": "2024-11-05"}


async def opened(serve: Serve) -> Any:
    child = await serve("sysmcp")
    await child.request({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": WHO})
    return child


async def test_errors_have_codes_and_connection_stays_usable(serve: Serve) -> None:
    child = await opened(serve)
    for line, code in (
        ("{", -32700),
        ('{"jsonrpc":"1.0","id":2,"method":"tools/list"}', -32600),
        ('{"jsonrpc":"2.0","id":3,"method":"tools/nothing"}', -32601),
        ('{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"nothing"}}', -32602),
        ('{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}', -32602),
    ):
        error = json.loads(await child.exchange(line))["error"]
        assert (error["code"], bool(error["message"])) == (code, True)
        assert len(await child.tools()) == 8


async def test_details_of_an_error_are_in_its_data(serve: Serve) -> None:
    error = (await (await opened(serve)).call("fs_stta"))["error"]
    assert error["data"]["name"] == "ToolNotFound" and error["data"]["suggestions"][0] == "fs_stat"
    assert error["data"]["code"] == "MCP-ToolNotFound" and isinstance(error["data"]["details"], str)


async def test_failed_call_has_the_code_of_the_table(serve: Serve) -> None:
    child = await opened(serve)
    failed = (await child.call("eventlog_query", logName="nowhere"))["result"]["error"]
    assert (failed["code"], failed["errorCode"]) == ("ToolExecutionError", "MCP-ToolExecutionError")
    wrong = (await child.call("eventlog_query", logName="System", limit="many"))["result"]["error"]
    assert (wrong["code"], wrong["errorCode"]) == ("InvalidParams", "MCP-ValidationError")


async def test_missing_argument_and_a_wrong_type_are_expected_in_the_same_words(serve: Serve) -> None:
    child = await opened(serve)
    missing = (await child.call("eventlog_query"))["result"]["error"]["details"]
    wrong = (await child.call("eventlog_query", logName=5))["result"]["error"]["details"]
    assert missing["expected"] == wrong["expected"] == "string"
    assert missing["path"] == wrong["path"] == "arguments.logName"


async def test_batch_is_answered_as_one(serve: Serve) -> None:
    child = await opened(serve)
    calls = [
        {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "eventlog_list_logs"}} for n in (7, 8)
    ]
    answers = json.loads(await child.exchange(json.dumps(calls)))
    assert sorted((answer["id"], answer["result"]["success"]) for answer in answers) == [(7, True), (8, True)]


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
async def test_internal_failure_is_an_internal_error_without_its_message(
    connect: Callable[..., Any], tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the handshake and of listing what there is."""
    place = assembly.ServiceEnvironment(data=tmp_path, store=str(tmp_path / "store.db"))
    server = assembly.build_server(None, assembly.read_settings("sysmcp", None), place)

    def failing(handler: Handler) -> Handler:
        async def answer(call: Call) -> Any:
            if call.method == method:
                raise RuntimeError("a secret")
            return await handler(call)

        return answer

    server.add_middleware(failing)
    wire = connect(server)
    answer = await wire.request("initialize", WHO)
    if method == "tools/list":
        answer = await wire.request("tools/list")
    assert answer["error"]["code"] == -32603
    assert "secret" not in json.dumps(answer)


def test_no_part_of_it_runs_a_shell() -> None:
    """Programs are run by their arguments, one by one."""
    results: list[str] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in sources.nodes(path):
            if not isinstance(node, ast.Call):
                continue
            shells = [
                keyword for keyword in node.keywords if keyword.arg == "shell" and getattr(keyword.value, "value", True)
            ]
            if shells or (sources.called(node) in SHELLS and ast.unparse(node.func) != "platform.system"):
                results.append(f"{path.name}:{node.lineno} {ast.unparse(node.func)}")
    assert not results


def test_all_of_it_is_typed_strictly() -> None:
    """`make check` runs mypy with this."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert "src" in " ".join(settings.get("files", ["src"]))
