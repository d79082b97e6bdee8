"""The exchanges of bossman's implementation guide, with `--profile bossman`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from portico.cli import serve as serving
from portico.cli.specs import parser_for
from portico_services import assembly

Serve = Callable[..., Awaitable[Any]]

INITIALIZE = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},'
    '"clientInfo":{"name":"ExampleClient","version":"1.0.0"}}}'
)
OPENED = (
    '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{},"logging":{}},'
    '"serverInfo":{"name":"bossman","version":"0.1.0"}}}'
)
PING, PONG = '{"jsonrpc":"2.0","id":7,"method":"ping"}', '{"jsonrpc":"2.0","id":7,"result":{}}'
EIGHT = {
    "create_task",
    "list_tasks",
    "get_task",
    "update_task",
    "delete_task",
    "add_blocker",
    "remove_blocker",
    "get_blockers",
}
LARGEST = 1024 * 1024
ROUNDS = 10


@pytest.fixture
async def bossman(serve: Serve) -> Any:
    child = await serve("bossman")
    assert await child.exchange(INITIALIZE) == OPENED
    child.notify("notifications/initialized")
    return child


def calling(tool: str, number: Any = 3, /, **arguments: Any) -> str:
    params = {"name": tool, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


# The lifecycle


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_tools_wait_for_the_end_of_the_handshake(serve: Serve, revision: str) -> None:
    child = await serve("bossman")
    assert await child.exchange(PING) == PONG
    assert (await child.child.request("tools/list"))["error"]["code"] == -32600
    await child.child.initialize(revision, initialized=False)
    assert await child.exchange(PING) == PONG
    for method, params in (("tools/list", None), ("tools/call", {"name": "create_task"})):
        assert (await child.child.request(method, params))["error"]["code"] == -32600
    child.notify("notifications/initialized")
    assert "create_task" in await child.tools()


async def test_handshake_occurs_once(bossman: Any) -> None:
    answer = json.loads(await bossman.exchange(INITIALIZE.replace('"id":1', '"id":"again"')))
    assert (answer["id"], answer["error"]["code"]) == ("again", -32600)
    assert await bossman.exchange(PING) == PONG


async def test_end_of_input_is_a_clean_end(bossman: Any) -> None:
    await bossman.call("create_task", description="Left behind")
    assert (await bossman.end())[:2] == (0, "")


# tools/list


async def test_eight_tools_are_listed_with_closed_schemas(bossman: Any) -> None:
    tools = await bossman.tools()
    assert tools.keys() == EIGHT
    for tool in tools.values():
        schema = tool["inputSchema"]
        assert (schema["type"], schema["additionalProperties"]) == ("object", False)
        assert tool["description"]
        assert all(item["description"] for item in schema["properties"].values())
        assert tool["name"] == "list_tasks" or schema["required"]
    create = tools["create_task"]["inputSchema"]
    assert create["required"] == ["description"]
    assert create["properties"]["description"]["type"] == "string"
    status = tools["list_tasks"]["inputSchema"]["properties"]["status"]
    assert set(status["enum"]) == {"pending", "in_progress", "completed", "failed"}


async def test_server_has_only_tools_and_logging(bossman: Any) -> None:
    for method in ("resources/list", "prompts/list", "completion/complete"):
        assert (await bossman.child.request(method))["error"]["code"] == -32601
    assert (await bossman.child.request("logging/setLevel", {"level": "error"}))["result"] == {}


# tools/call


async def test_task_is_created_and_found_again(bossman: Any) -> None:
    # No level was set, and nothing is logged unasked: the next line is the answer.
    answer = json.loads(await bossman.exchange(calling("create_task", description="Fix parser bug")))
    assert answer.keys() == {"jsonrpc", "id", "result"}
    assert answer["result"].keys() == {"content", "isError"}
    assert answer["result"]["isError"] is False
    (block,) = answer["result"]["content"]
    task = json.loads(block["text"])
    assert task["id"].startswith("task_")
    assert (task["description"], task["status"]) == ("Fix parser bug", "pending")
    for name in ("get_task", "tasks.get_task", "tasks_get_task"):
        response = await bossman.call(name, id=task["id"])
        assert json.loads(response["result"]["content"][0]["text"])["description"] == "Fix parser bug"


async def test_missing_task_is_an_execution_error(bossman: Any) -> None:
    result = json.loads(await bossman.exchange(calling("get_task", id="task_xyz")))["result"]
    assert result["content"] == [{"type": "text", "text": "error: task not found: task_xyz"}]
    assert result["isError"] is True


async def test_rejected_call_starts_with_the_same_prefix(bossman: Any) -> None:
    created = await bossman.call("create_task", description="Alone")
    id = json.loads(created["result"]["content"][0]["text"])["id"]
    result = (await bossman.call("add_blocker", task_id=id, blocked_by_id=id))["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("error: ")


async def test_call_that_never_ran_is_a_protocol_error(bossman: Any) -> None:
    answer = json.loads(await bossman.exchange(calling("nonexistent_tool")))
    assert answer["id"] == 3
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32602, "Unknown tool: nonexistent_tool")
    for arguments in ({}, {"description": 7}, {"description": "x", "colour": "red"}):
        answer = json.loads(await bossman.exchange(calling("create_task", **arguments)))
        assert answer["error"]["code"] == -32602


@pytest.mark.parametrize(
    "tool, arguments",
    [
        ("create_task", {"description": "x", "priority": "3"}),
        ("create_task", {"description": "x", "labels": '["a"]'}),
        ("list_tasks", {"blocked": "true"}),
        ("list_tasks", {"limit": "5"}),
    ],
)
async def test_texts_for_numbers_and_booleans_are_rejected(bossman: Any, tool: str, arguments: dict[str, Any]) -> None:
    error = json.loads(await bossman.exchange(calling(tool, **arguments)))["error"]
    assert error["code"] == -32602
    assert "expected" in error["message"]
    assert (await bossman.call("list_tasks"))["result"]["isError"] is False


async def test_rejection_names_the_blocker_and_the_remedy(bossman: Any) -> None:
    async def text(tool: str, **arguments: Any) -> str:
        return str((await bossman.call(tool, **arguments))["result"]["content"][0]["text"])

    first = json.loads(await text("create_task", description="first"))["id"]
    second = json.loads(await text("create_task", description="second", blocked_by=[first]))["id"]
    assert (await text("update_task", id=second, status="completed")) == (
        f"error: task is waiting: {second} (blocked by {first}: complete that first, or remove the blocker with "
        "remove_blocker)"
    )


async def test_status_changes_are_logged_once_a_level_is_set(bossman: Any) -> None:
    assert (await bossman.child.request("logging/setLevel", {"level": "info"}))["result"] == {}
    made = json.loads((await bossman.call("create_task", description="x"))["result"]["content"][0]["text"])
    line = await bossman.exchange(calling("update_task", 4, id=made["id"], status="completed"))
    data = json.loads(line)
    assert data["method"] == "notifications/message"
    assert data["params"]["data"] == f"{made['id']} changed from pending to completed"


async def test_tools_of_the_service_that_bossman_has_not_are_missing(bossman: Any) -> None:
    answer = await bossman.call("next_task")
    assert answer["error"]["message"] == "Unknown tool: next_task"


# JSON-RPC


async def test_batch_is_answered_as_one(bossman: Any) -> None:
    line = '[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"ping"}]'
    answers = {answer["id"]: answer["result"] for answer in json.loads(await bossman.exchange(line))}
    assert {tool["name"] for tool in answers[1]["tools"]} == EIGHT
    assert answers[2] == {}
    data = json.loads(await bossman.exchange('[{"jsonrpc":"2.0","id":9,"method":"ping"}]'))
    assert data == [{"jsonrpc": "2.0", "id": 9, "result": {}}]
    # Nothing is said to what asks for nothing.
    bossman.child.send_bytes(b'[{"jsonrpc":"2.0","method":"notifications/initialized"}]')
    assert await bossman.exchange(PING) == PONG
    assert json.loads(await bossman.exchange("[]"))["error"]["code"] == -32600


async def test_ids_keep_their_type(bossman: Any) -> None:
    for id in ('"1"', "1", '"abc"', "-3"):
        response = await bossman.exchange(f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}')
        assert response == f'{{"jsonrpc":"2.0","id":{id},"result":{{}}}}'
    refused = json.loads(await bossman.exchange('{"jsonrpc":"2.0","id":null,"method":"ping"}'))
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)


async def test_every_mistake_has_its_code(bossman: Any) -> None:
    for line, code in (
        ("{", -32700),
        ('{"jsonrpc":"2.0"}', -32600),
        ('{"jsonrpc":"2.0","id":1,"method":"tasks/dance"}', -32601),
        ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', -32602),
    ):
        assert json.loads(await bossman.exchange(line))["error"]["code"] == code


async def test_message_of_more_than_a_megabyte_is_rejected_and_the_next_one_served(bossman: Any) -> None:
    line = calling("create_task", description="x" * LARGEST)
    assert json.loads(await bossman.exchange(line))["error"]["code"] == -32600
    fits = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"x": "x" * (LARGEST - 100)}})
    assert await bossman.exchange(fits) == PONG


async def test_cancelling_an_unknown_request_gets_no_response(bossman: Any) -> None:
    bossman.notify("notifications/cancelled", {"requestId": "123", "reason": "User requested cancellation"})
    assert await bossman.exchange(PING) == PONG


@pytest.mark.parametrize("params", ["[]", "null", "1", '{"requestId": null}', '{"requestId": {}}', "{}"])
async def test_notification_with_invalid_params_gets_no_response(bossman: Any, params: str) -> None:
    for method in ("notifications/cancelled", "tools/call", "unknown"):
        bossman.child.send_bytes(f'{{"jsonrpc": "2.0", "method": "{method}", "params": {params}}}\n'.encode())
    assert await bossman.exchange(PING) == PONG


async def test_names_in_errors_are_bounded(bossman: Any) -> None:
    name = "x" * 8000
    unknown_tool = (await bossman.child.request("tools/call", {"name": name, "arguments": {}}))["error"]
    unknown_method = (await bossman.child.request(name * 10))["error"]
    assert (unknown_tool["code"], unknown_method["code"]) == (-32602, -32601)
    assert unknown_tool["message"].startswith("Unknown tool: xxx") and len(str(unknown_tool)) < 500
    assert unknown_method["message"].startswith("Method not found: xxx") and len(str(unknown_method)) < 500


async def test_cancelled_call_gets_no_response(bossman: Any, tmp_path: Path) -> None:
    # Somebody else is writing, so the call has to wait.
    with closing(sqlite3.connect(tmp_path / "data" / "portico.db", isolation_level=None)) as other:
        for _ in range(ROUNDS):
            other.execute("begin immediate")
            bossman.child.send_bytes(calling("create_task", "123", description="Never to be").encode())
            assert await bossman.exchange(PING) == PONG
            bossman.notify("notifications/cancelled", {"requestId": "123", "reason": "User requested cancellation"})
            assert await bossman.exchange(PING) == PONG
            other.execute("rollback")
            kept = await bossman.call("create_task", description="Kept")
            assert "Kept" in kept["result"]["content"][0]["text"]
    answer = json.loads(await bossman.exchange(calling("list_tasks", 4)))
    listed = json.loads(answer["result"]["content"][0]["text"])
    assert [task["description"] for task in listed["tasks"]] == ["Kept"] * ROUNDS
    assert (await bossman.end())[:2] == (0, "")


async def test_late_cancellation_is_ignored(bossman: Any) -> None:
    """Side by side, either may be first; what was answered is there."""
    for n in range(ROUNDS):
        bossman.child.send_bytes(calling("create_task", f"call {n}", description=f"Task {n}").encode())
        bossman.notify("notifications/cancelled", {"requestId": f"call {n}", "reason": "User requested cancellation"})
    bossman.child.send_bytes(calling("create_task", "last", description="The last").encode())
    answered: list[str] = []
    while "The last" not in answered:
        answer = json.loads(await bossman.line())
        answered.append(json.loads(answer["result"]["content"][0]["text"])["description"])
    listed = await bossman.call("list_tasks")
    stored = {task["description"] for task in json.loads(listed["result"]["content"][0]["text"])["tasks"]}
    assert set(answered) <= stored


# The same without a handshake


async def test_stateless_request_needs_no_handshake(serve: Serve) -> None:
    child = await serve("bossman")
    answer = await child.child.request_stateless(
        "tools/call", {"name": "create_task", "arguments": {"description": "Alone"}}
    )
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["structuredContent"]["status"] == "pending"
    assert (await child.child.request_stateless("ping"))["error"]["code"] == -32601


def test_over_http_tools_wait_for_the_end_of_the_handshake() -> None:
    """The profile says so to whichever transport is served."""
    settings = assembly.read_settings("bossman", None)
    arguments = parser_for("serve").parse_args(["--transport", "http"])
    assert serving._options(arguments, settings.serve)["lifecycle"] == "strict"


@pytest.mark.parametrize("id", ["1.5", "1e3", "true", "[]", "{}"])
async def test_id_is_a_string_or_an_integer(bossman: Any, id: str) -> None:
    """docs/decisions/strict-json.md says why fractions are refused."""
    data = json.loads(await bossman.exchange(f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}'))
    assert (data["id"], data["error"]["code"]) == (None, -32600)
    assert data["error"]["message"] == "Invalid request: id must be a string or an integer"


async def test_standard_output_has_nothing_but_messages(serve: Serve) -> None:
    child = await serve("bossman")
    assert await child.exchange(INITIALIZE) == OPENED
    child.notify("notifications/initialized")
    messages = [await child.exchange(line) for line in (PING, calling("create_task", description="a"), "{")]
    assert [json.loads(line)["jsonrpc"] for line in messages] == ["2.0"] * 3
    status, out, _ = await child.end()
    assert (status, out) == (0, "")
