"""Tasks of 2025-11-25, message by message: experimental core feature of that version."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from portico import Context, Server, TaskConfig, ToolError
from portico.protocol.errors import ClientRequestFailed
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.server.tasks import tasks_2025_11_25
from portico.server.tasks.engine import TaskEngine
from portico.store.errors import ConnectionLost
from support.task_servers import (
    ADA,
    BOB,
    HANDSHAKE,
    RELATED,
    TERMINAL_STATUSES,
    TIMEOUT_SECONDS,
    YES,
    LegacyTasksClient,
    ModernTasksClient,
    wait_for_status,
    with_tools,
)

Talk = Callable[..., Awaitable[LegacyTasksClient]]
Serve = Callable[[Server], Awaitable[Server]]

COMMON = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
BEFORE = [revision for revision in SUPPORTED_PROTOCOL_VERSIONS if revision < HANDSHAKE]


# Greeting


@pytest.mark.requirement("tasks.declared")
async def test_tasks_are_among_the_capabilities(connect: Callable[..., Any]) -> None:
    server, _ = with_tools()
    offered = (await connect(server).initialize(HANDSHAKE))["capabilities"]
    assert offered["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert "extensions" not in offered


@pytest.mark.parametrize("revision", BEFORE)
async def test_older_versions_have_no_task_methods(connect: Callable[..., Any], revision: str) -> None:
    server, _ = with_tools()
    wire = connect(server)
    offered = (await wire.initialize(revision))["capabilities"]
    assert "tasks" not in offered
    assert "extensions" not in offered
    tools = (await wire.request("tools/list"))["result"]["tools"]
    assert all("execution" not in tool for tool in tools)
    for method in ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"):
        assert (await wire.request(method, {"taskId": "x"}))["error"]["code"] == -32601


@pytest.mark.requirement("tasks.declared")
async def test_tool_list_has_task_support(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    tools = (await (await old(await serving(server))).request("tools/list"))["tools"]
    message = {tool["name"]: tool.get("execution") for tool in tools}
    assert message["plain"] is None
    assert message["add"] == {"taskSupport": "optional"}
    assert message["ask"] == {"taskSupport": "required"}


async def test_server_without_tasks_does_not_offer_any(connect: Callable[..., Any]) -> None:
    server = Server("none")

    @server.tool
    def plain() -> str:
        return "x"

    wire = connect(server)
    assert "tasks" not in (await wire.initialize(HANDSHAKE))["capabilities"]
    # Receivers that do not declare the capability must ignore the wish.
    response = await wire.request("tools/call", {"name": "plain", "arguments": {}, "task": {}})
    assert response["result"]["content"][0]["text"] == "x"


# Creating


@pytest.mark.requirement("tasks.created")
async def test_wish_becomes_a_nested_task_and_nothing_else(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    created = await client.call("add", {"a": 1, "b": 2}, {"ttl": 60_000})
    assert set(created) == {"task"}
    assert set(created["task"]) == COMMON
    assert created["task"]["status"] == "working"
    assert created["task"]["ttl"] == 60_000
    assert created["task"]["pollInterval"] == 500


async def test_without_a_wish_the_tool_answers(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    response = await client.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    assert response["structuredContent"] == {"result": 3}
    assert "resultType" not in response


@pytest.mark.requirement("tasks.required")
async def test_task_only_tool_called_without_a_task_is_method_not_found(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    error = await client.request_error("tools/call", {"name": "ask", "arguments": {}})
    assert error["code"] == -32601
    assert "task" in error["message"]


@pytest.mark.requirement("tasks.forbidden")
async def test_plain_tool_called_as_a_task_is_method_not_found(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    error = await client.request_error("tools/call", {"name": "plain", "arguments": {}, "task": {}})
    assert error["code"] == -32601


@pytest.mark.requirement("tasks.undeclared-ignored")
@pytest.mark.parametrize("revision", BEFORE)
async def test_task_parameter_is_ignored_on_older_versions(connect: Callable[..., Any], revision: str) -> None:
    server, _ = with_tools()
    wire = connect(server)
    await wire.initialize(revision)
    response = await wire.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {"ttl": 1}})
    assert response["result"]["content"][0]["text"] == "3"
    response = await wire.request("tools/call", {"name": "ask", "arguments": {}, "task": {}})
    assert response["result"]["isError"] is True
    assert "does not support tasks" in response["result"]["content"][0]["text"]


@pytest.mark.requirement("tasks.created")
@pytest.mark.parametrize(
    ("wished", "given"),
    [
        (None, 24 * 3600 * 1000),
        (60_000, 60_000),
        (1, 1000),
        (-5, 1000),
        (10**15, 30 * 24 * 3600 * 1000),
        (10**30, 30 * 24 * 3600 * 1000),
        # The schema says number.
        (90_000.5, 90_000),
    ],
)
async def test_wish_for_a_time_to_live_is_granted_within_reason(
    old: Talk, serving: Serve, wished: Any, given: int
) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    task = (await client.call("add", {"a": 1, "b": 2}, {"ttl": wished}))["task"]
    assert task["ttl"] == given
    assert (await client.get(task["taskId"]))["ttl"] == given


@pytest.mark.parametrize("wish", [5, "soon", [], None, {"ttl": "long"}, {"ttl": [1]}])
async def test_malformed_task_parameter_is_invalid_params(old: Talk, serving: Serve, wish: Any) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "task": wish}
    assert (await client.request_error("tools/call", params))["code"] == -32602


async def test_wrong_arguments_are_reported_at_the_call(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    response = await client.call("add", {"a": "one"})
    assert response["isError"] is True
    assert "task" not in response
    assert (await client.request("tasks/list"))["tasks"] == []


async def test_update_of_the_extension_is_missing(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    error = await client.request_error("tasks/update", {"taskId": id, "inputResponses": {}})
    assert error["code"] == -32601


# Looking


async def test_task_that_works_is_flat(old: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = await old(await serving(server))
    id = await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    response = await client.get(id)
    assert set(response) == COMMON
    assert response["status"] == "working"


@pytest.mark.requirement("tasks.status")
@pytest.mark.parametrize(
    ("tool", "arguments", "status", "message"),
    [
        ("add", {"a": 1, "b": 2}, "completed", None),
        # Here a tool that says no has failed.
        ("refuse", {}, "failed", "No, and that is final."),
        ("err", {}, "failed", "It went wrong."),
    ],
)
async def test_completed_task_has_its_outcome(
    old: Talk, serving: Serve, tool: str, arguments: Any, status: str, message: str | None
) -> None:
    server, _ = with_tools()
    result = await (await old(await serving(server))).end(tool, arguments)
    assert result["status"] == status
    assert result.get("statusMessage") == message
    assert set(result) == COMMON | ({"statusMessage"} if message else set())


@pytest.mark.requirement("tasks.input-required")
async def test_task_with_elicitation_is_input_required(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    await wait_for_status(server, id, "waiting")
    response = await client.get(id)
    assert response["status"] == "input_required"
    assert set(response) == COMMON


@pytest.mark.requirement("tasks.unknown")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_unknown_id_is_invalid(old: Talk, serving: Serve, method: str) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    for id in ("", "nothing", "a\u0000b", "x" * 5000):
        assert (await client.request_error(method, {"taskId": id}))["code"] == -32602


@pytest.mark.requirement("tasks.isolated")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_task_of_another_caller_is_not_found(old: Talk, serving: Serve, method: str) -> None:
    server, _ = with_tools()
    await serving(server)
    ada, bob = await old(server, principal=ADA), await old(server, principal=BOB)
    id = await ada.start("ask")
    error = await bob.request_error(method, {"taskId": id})
    assert error["code"] == -32602
    assert error["message"] == f"Unknown task: {id}"
    assert (await ada.get(id))["status"] in ("working", "input_required")


# The result


@pytest.mark.requirement("tasks.result")
async def test_task_result_equals_the_call_result_with_related_task(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("add", {"a": 1, "b": 2})
    response = await client.request("tasks/result", {"taskId": id})
    called = await client.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    assert response == {**called, "_meta": {RELATED: {"taskId": id}}}
    # As often as one likes.
    assert await client.request("tasks/result", {"taskId": id}) == response


@pytest.mark.parametrize("returned", [3, [1, 2], "text", None, {"a": 1}, {"result": [1]}])
async def test_structured_results_are_those_of_a_call(old: Talk, serving: Serve, returned: Any) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="optional")
    async def give() -> dict[str, Any] | list[int] | int | str | None:
        return returned  # type: ignore[no-any-return]

    client = await old(await serving(server))
    called = await client.request("tools/call", {"name": "give", "arguments": {}})
    response = await client.request("tasks/result", {"taskId": await client.start("give")})
    response.pop("_meta")
    assert response == called


async def test_tool_error_is_the_task_result(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    error = await client.request("tasks/result", {"taskId": await client.start("refuse")})
    assert error["isError"] is True
    assert error["content"] == [{"type": "text", "text": "No, and that is final."}]


@pytest.mark.requirement("tasks.result")
async def test_error_of_the_protocol_is_that_error(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    error = await client.request_error("tasks/result", {"taskId": await client.start("err")})
    assert error == {"code": -32050, "message": "It went wrong.", "data": {"why": "because"}}


async def test_cancelled_task_has_no_result(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    await client.request("tasks/cancel", {"taskId": id})
    error = await client.request_error("tasks/result", {"taskId": id})
    assert error["code"] == -32603
    assert "cancelled" in error["message"]


@pytest.mark.requirement("tasks.result-waits")
async def test_result_is_waited_for_while_others_are_served(old: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = await old(await serving(server))
    id = await client.start("running", {"name": "x"})
    waiting = asyncio.ensure_future(client.send_request("tasks/result", {"taskId": id}))
    await gates.wait_for("x begun")
    other = await old(server)
    assert (await other.get(id))["status"] == "working"
    assert not waiting.done()
    gates["x"].set()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (await waiting)["result"]["content"][0]["text"] == "x is done"


async def test_abandoned_result_request_is_released(old: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = await old(await serving(server))
    id = await client.start("running", {"name": "x"})
    client.wire.send({"jsonrpc": "2.0", "id": "r", "method": "tasks/result", "params": {"taskId": id}})
    client.wire.notify("notifications/cancelled", {"requestId": "r"})
    gates["x"].set()
    await wait_for_status(server, id, "completed")
    assert (await client.request("tasks/result", {"taskId": id}))["content"][0]["text"] == "x is done"


async def test_pending_tasks_result_reports_cancellation(old: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client, other = await old(await serving(server)), await old(server)
    id = await client.start("running", {"name": "x"})
    waiting = asyncio.ensure_future(client.send_request("tasks/result", {"taskId": id}))
    await gates.wait_for("x begun")
    await other.request("tasks/cancel", {"taskId": id})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert "cancelled" in (await waiting)["error"]["message"]


# Questions


async def next_question(client: LegacyTasksClient) -> Any:
    """The next request of the server's."""
    for message in client.wire.other_messages:
        if "method" in message and "id" in message:
            client.wire.other_messages.remove(message)
            return message
    while True:
        message = await client.wire.receive()
        if "method" in message and "id" in message:
            return message
        client.wire.other_messages.append(message)


def wait_for_result(client: LegacyTasksClient, id: str, request: str = "result") -> None:
    client.wire.send({"jsonrpc": "2.0", "id": request, "method": "tasks/result", "params": {"taskId": id}})


@pytest.mark.requirement("tasks.input-required")
async def test_client_waiting_for_tasks_result_gets_the_elicitation(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    await wait_for_status(server, id, "waiting")
    wait_for_result(client, id)
    result = await next_question(client)
    assert result["method"] == "elicitation/create"
    assert result["params"]["message"] == "Well?"
    assert result["params"]["_meta"] == {RELATED: {"taskId": id}}
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": YES})
    said = await client.wire.response("result")
    assert said["result"]["content"][0]["text"] == "accept: yes"


async def test_client_that_already_waits_gets_a_later_elicitation(old: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    go = asyncio.Event()

    @server.tool(task="required")
    async def ask(ctx: Context) -> str:
        await go.wait()
        return str((await ctx.elicit("Well?", str)).data)

    client = await old(await serving(server))
    id = await client.start("ask")
    wait_for_result(client, id)
    assert (await client.request("ping")) == {}
    go.set()
    result = await next_question(client)
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": YES})
    assert (await client.wire.response("result"))["result"]["content"][0]["text"] == "yes"


async def test_client_that_does_not_wait_gets_no_elicitation(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    await wait_for_status(server, id, "waiting")
    await client.get(id)
    assert not [other_message for other_message in client.wire.other_messages if "id" in other_message]
    assert client.wire.is_silent


async def test_concurrent_input_requests_are_relayed_concurrently(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask_two")
    wait_for_result(client, id)
    request = {}
    for _ in range(2):
        one = await next_question(client)
        request[one["params"]["message"]] = one["id"]
    assert set(request) == {"One?", "Two?"}
    for message, answer in (("Two?", "2"), ("One?", "1")):
        result = {"action": "accept", "content": {"value": answer}}
        client.wire.send({"jsonrpc": "2.0", "id": request[message], "result": result})
    assert (await client.wire.response("result"))["result"]["structuredContent"] == {"result": ["1", "2"]}


async def test_input_request_is_sent_to_one_waiting_client(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    await serving(server)
    item, two = await old(server), await old(server)
    id = await item.start("ask")
    await wait_for_status(server, id, "waiting")
    wait_for_result(item, id)
    result = await next_question(item)
    wait_for_result(two, id)
    assert await two.request("ping") == {}
    item.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": YES})
    for client in (item, two):
        said = await client.wire.response("result")
        assert said["result"]["content"][0]["text"] == "accept: yes"
    assert not [message for message in two.wire.other_messages if "method" in message and "id" in message]


async def test_input_request_moves_to_another_client_on_disconnect(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    await serving(server)
    item, two = await old(server), await old(server)
    id = await item.start("ask")
    wait_for_result(item, id)
    await next_question(item)
    wait_for_result(two, id)
    await item.wire.close()
    result = await next_question(two)
    two.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": YES})
    assert (await two.wire.response("result"))["result"]["content"][0]["text"] == "accept: yes"


async def test_elicitation_is_not_repeated_after_a_store_failure(
    old: Talk, serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_2025_11_25, "RETRY_SECONDS", 0.01)
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    wait_for_result(client, id)
    result = await next_question(client)
    updates, failures = TaskEngine.update, [1, 2, 3]

    async def update(self: TaskEngine, id: str, responses: Any) -> bool:
        if failures:
            failures.pop()
            raise ConnectionLost("away")
        return await updates(self, id, responses)

    monkeypatch.setattr(TaskEngine, "update", update)
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": YES})
    assert (await client.wire.response("result"))["result"]["content"][0]["text"] == "accept: yes"
    assert failures == []
    assert not [
        other_message
        for other_message in client.wire.other_messages
        if other_message.get("method") == "elicitation/create"
    ]


async def test_cancelling_a_task_cancels_its_input_request(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    wait_for_result(client, id)
    result = await next_question(client)
    assert (await client.request("tasks/cancel", {"taskId": id}))["status"] == "cancelled"
    assert "cancelled" in (await client.wire.response("result"))["error"]["message"]
    withdrawn = [
        other_message["params"]
        for other_message in client.wire.other_messages
        if other_message.get("method") == "notifications/cancelled"
    ]
    assert [other_message["requestId"] for other_message in withdrawn] == [result["id"]]


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": -1, "message": "Nobody is here"}},
        {"result": {"action": "perhaps"}},
        {"result": "yes"},
    ],
)
async def test_rejection_is_for_the_body_to_deal_with(old: Talk, serving: Serve, reply: Any) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def ask(ctx: Context) -> str:
        try:
            await ctx.elicit("Well?", str)
        except ClientRequestFailed as refusal:
            return f"without: {refusal}"
        return "with"

    client = await old(await serving(server))
    id = await client.start("ask")
    wait_for_result(client, id)
    result = await next_question(client)
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], **reply})
    message = (await client.wire.response("result"))["result"]
    assert message["isError"] is False
    assert message["content"][0]["text"].startswith("without: The client rejected elicitation/create: ")


async def test_unhandled_client_error_is_shown_to_the_model(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    wait_for_result(client, id)
    result = await next_question(client)
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], "error": {"code": -1, "message": "Nobody is here"}})
    message = (await client.wire.response("result"))["result"]
    assert message["isError"] is True
    assert message["content"][0]["text"] == "The client rejected elicitation/create: Nobody is here"
    assert (await client.get(id))["status"] == "failed"


@pytest.mark.requirement("elicitation.url-id")
async def test_page_to_be_opened_has_the_id_that_this_revision_wants(old: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def visit(ctx: Context) -> str:
        said = await ctx.elicit_url("Log in", "https://example.com/login")
        return f"{said.action} {said.id is not None}"

    client = await old(await serving(server))
    id = await client.start("visit")
    wait_for_result(client, id)
    result = await next_question(client)
    assert result["params"]["mode"] == "url"
    assert result["params"]["elicitationId"]
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": {"action": "accept"}})
    assert (await client.wire.response("result"))["result"]["content"][0]["text"] == "accept True"


async def test_unsupported_elicitation_in_a_task_fails_as_in_a_plain_call(old: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="optional")
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("Well?", str)).data)

    client = await old(await serving(server), capabilities={})
    called = await client.request("tools/call", {"name": "ask", "arguments": {}})
    response = await client.request("tasks/result", {"taskId": await client.start("ask")})
    assert response["content"] == called["content"]
    assert response["isError"] is called["isError"] is True


# Cancelling


@pytest.mark.requirement("tasks.cancelled")
async def test_cancel_response_has_the_cancelled_status(old: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = await old(await serving(server))
    id = await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    response = await client.request("tasks/cancel", {"taskId": id})
    assert set(response) == COMMON | {"statusMessage"}
    assert response["taskId"] == id
    assert response["status"] == "cancelled"
    await gates.wait_for("x stopped")
    assert await client.get(id) == response


@pytest.mark.requirement("tasks.cancel-terminal")
@pytest.mark.parametrize(
    ("tool", "status"), [("add", "completed"), ("refuse", "failed"), ("err", "failed"), ("ask", "cancelled")]
)
async def test_task_that_is_over_cannot_be_cancelled(old: Talk, serving: Serve, tool: str, status: str) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start(tool, {"a": 1, "b": 2} if tool == "add" else {})
    if tool == "ask":
        await client.request("tasks/cancel", {"taskId": id})
    await wait_for_status(server, id, *TERMINAL_STATUSES)
    error = await client.request_error("tasks/cancel", {"taskId": id})
    assert error["code"] == -32602
    assert status in error["message"]
    assert (await client.get(id))["status"] == status


async def test_task_that_asks_can_be_cancelled(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    await wait_for_status(server, id, "waiting")
    assert (await client.request("tasks/cancel", {"taskId": id}))["status"] == "cancelled"


# Listing


@pytest.mark.requirement("tasks.list")
async def test_all_tasks_are_listed_page_by_page(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    ids = [await client.start("add", {"a": n, "b": 0}) for n in range(205)]
    for id in ids:
        await wait_for_status(server, id, "completed")
    first = await client.request("tasks/list")
    assert set(first) == {"tasks", "nextCursor"}
    assert len(first["tasks"]) == 100
    assert first["tasks"][0] == await client.get(first["tasks"][0]["taskId"])
    second = await client.request("tasks/list", {"cursor": first["nextCursor"]})
    third = await client.request("tasks/list", {"cursor": second["nextCursor"]})
    assert "nextCursor" not in third
    results = [task["taskId"] for page in (first, second, third) for task in page["tasks"]]
    assert sorted(results) == sorted(ids)
    assert [task["createdAt"] for page in (first, second, third) for task in page["tasks"]] == sorted(
        task["createdAt"] for page in (first, second, third) for task in page["tasks"]
    )


@pytest.mark.requirement("tasks.list")
async def test_task_list_entries_equal_tasks_get(old: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = await old(await serving(server))
    for tool in ("refuse", "err"):
        await client.end(tool)
    await client.end("add", {"a": 1, "b": 2})
    await wait_for_status(server, await client.start("ask"), "waiting")
    await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    listed = (await client.request("tasks/list"))["tasks"]
    assert listed == [await client.get(task["taskId"]) for task in listed]
    assert [task["status"] for task in listed] == ["failed", "failed", "completed", "input_required", "working"]


@pytest.mark.requirement("tasks.isolated")
async def test_tasks_list_shows_only_own_tasks(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    await serving(server)
    ada, bob, nobody = await old(server, principal=ADA), await old(server, principal=BOB), await old(server)
    ids = {who: await who.start("add", {"a": 1, "b": 2}) for who in (ada, bob, nobody)}
    for who, id in ids.items():
        assert [task["taskId"] for task in (await who.request("tasks/list"))["tasks"]] == [id]


@pytest.mark.requirement("tasks.unknown")
@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "",
        "é",
        "%%%",
        urlsafe_b64encode(b"tomorrow x").decode(),
        urlsafe_b64encode(b"1").decode(),
        urlsafe_b64encode(b"99999999999999999999999 x").decode(),
        urlsafe_b64encode(b"1 a\0b").decode(),
        urlsafe_b64encode(b"\xff\xfe").decode(),
        urlsafe_b64encode(b"9" * 10_000).decode(),
    ],
)
async def test_malformed_cursor_is_invalid_params(old: Talk, serving: Serve, cursor: str) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    assert (await client.request_error("tasks/list", {"cursor": cursor}))["code"] == -32602


async def test_large_results_do_not_make_a_list_large(old: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def large(text: str) -> str:
        return text * 2

    client = await old(await serving(server))
    for _ in range(5):
        await client.end("large", {"text": "x" * 500_000})
    assert server.tasks is not None
    result = await (await server.tasks.engine()).list_jobs("", (-1, ""))
    assert [len(bytes(job.outcome)) + len(bytes(job.arguments)) for job in result] == [2] * 5


# Telling


def told(client: LegacyTasksClient, id: str) -> list[Any]:
    return [
        other_message["params"]
        for other_message in client.wire.other_messages
        if other_message.get("method") == "notifications/tasks/status" and other_message["params"]["taskId"] == id
    ]


async def until_told(client: LegacyTasksClient, id: str, status: str) -> list[Any]:
    while not any(item["status"] == status for item in told(client, id)):
        client.wire.other_messages.append(await client.wire.receive())
    return told(client, id)


@pytest.mark.requirement("tasks.told")
async def test_task_creator_gets_status_notifications(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start("ask")
    heard = await until_told(client, id, "input_required")
    assert set(heard[-1]) == COMMON
    wait_for_result(client, id)
    result = await next_question(client)
    client.wire.send({"jsonrpc": "2.0", "id": result["id"], "result": YES})
    heard = await until_told(client, id, "completed")
    assert heard[-1] == await client.get(id)


@pytest.mark.parametrize(("tool", "status"), [("refuse", "failed"), ("err", "failed")])
async def test_tool_that_says_no_is_reported_as_a_failure(old: Talk, serving: Serve, tool: str, status: str) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    id = await client.start(tool)
    heard = await until_told(client, id, status)
    assert heard[-1] == await client.get(id)


@pytest.mark.requirement("tasks.told")
async def test_other_sessions_get_no_task_status_notifications(old: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    await serving(server)
    item, two = await old(server), await old(server)
    id = await item.start("add", {"a": 1, "b": 2})
    await until_told(item, id, "completed")
    await two.request("ping")
    assert not told(two, id)


# What a tool does with it


async def test_tool_error_is_not_retried(old: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    runs = []

    @server.tool(task=TaskConfig(max_retries=5, retry_delay=0))
    async def refuse() -> str:
        runs.append(True)
        raise ToolError("no")

    await (await old(await serving(server))).end("refuse")
    assert len(runs) == 1


async def test_both_designs_see_the_same_task(
    old: Talk, modern: Callable[..., ModernTasksClient], serving: Serve
) -> None:
    server, _ = with_tools()
    await serving(server)
    before, now = await old(server), modern(server)
    id = await now.start("add", {"a": 1, "b": 2})
    assert (await before.request("tasks/result", {"taskId": id}))["structuredContent"] == {"result": 3}
    id = await before.start("refuse")
    await wait_for_status(server, id, "completed")
    assert (await before.get(id))["status"] == "failed"
    assert (await now.get(id))["status"] == "completed"


@pytest.mark.requirement("tasks.progress")
@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_of_a_task_is_reported_under_its_token(old: Talk, serving: Serve, wanted: bool) -> None:
    """2025-11-25, basic/utilities/tasks: the token of the request stays valid as long as its task."""
    server = Server("tasks", store="sqlite://")
    go = asyncio.Event()

    @server.tool(task="required")
    async def count(ctx: Context) -> str:
        await go.wait()
        ctx.report_progress(1, 2, "half")
        await asyncio.Event().wait()
        return "never"

    wire = (await old(await serving(server))).wire
    params: dict[str, Any] = {"name": "count", "arguments": {}, "task": {}}
    response = await wire.request("tools/call", params | ({"_meta": {"progressToken": "far"}} if wanted else {}))
    id = response["result"]["task"]["taskId"]
    go.set()
    while (message := await wire.receive())["params"].get("statusMessage") != "1 of 2: half":
        assert message["method"] == "notifications/tasks/status"
    assert "_meta" not in message["params"]
    if wanted:
        message = await wire.receive()
        assert message["method"] == "notifications/progress"
        assert message["params"] == {
            "progressToken": "far",
            "progress": 1,
            "total": 2,
            "message": "half",
            "_meta": {"io.modelcontextprotocol/related-task": {"taskId": id}},
        }
    await wire.request("tasks/cancel", {"taskId": id})
    assert not [
        other_message for other_message in wire.other_messages if other_message["method"] == "notifications/progress"
    ]
