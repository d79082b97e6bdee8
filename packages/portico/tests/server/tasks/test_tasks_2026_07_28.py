"""Tasks of 2026-07-28, message by message: the extension io.modelcontextprotocol/tasks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from portico import Context, Server, TaskConfig
from portico.auth.principal import Principal
from portico.store.errors import ConnectionLost
from support.task_servers import (
    ADA,
    BOB,
    CLIENT_CAPABILITIES,
    EXTENSION,
    SERVER_INFO,
    TERMINAL_STATUSES,
    TIMEOUT_SECONDS,
    YES,
    ModernTasksClient,
    wait_for_status,
    with_tools,
)

Talk = Callable[..., ModernTasksClient]
Serve = Callable[[Server], Awaitable[Server]]

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SIGNED = {"_meta": {SERVER_INFO: {"name": "tasks", "version": "1"}}}
COMMON = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "resultType", "_meta"}
WITHOUT = {name: able for name, able in CLIENT_CAPABILITIES.items() if name != "extensions"}
MISSING = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
DAY = 24 * 3600 * 1000


# Creating


async def test_call_becomes_a_flat_handle_and_nothing_else(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    created = await client.call("add", {"a": 1, "b": 2})
    assert set(created) == COMMON
    assert created["resultType"] == "task"
    assert created["status"] == "working"
    assert created["ttlMs"] == DAY
    assert created["pollIntervalMs"] == 500
    assert created["createdAt"] == created["lastUpdatedAt"]
    assert MOMENT.fullmatch(created["createdAt"])
    assert created["_meta"] == SIGNED["_meta"]


async def test_task_is_readable_as_soon_as_it_is_created(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    for n in range(20):
        id = await client.start("running", {"name": str(n)})
        assert (await client.get(id))["status"] == "working"
        gates[str(n)].set()


@pytest.mark.requirement("tasks.ids")
async def test_ids_cannot_be_guessed(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    ids = [await client.start("add", {"a": n, "b": 0}) for n in range(50)]
    assert len(set(ids)) == 50
    # 128 bits, with no beginning in common, and never a dash at it, which would be an option at a shell.
    assert all(re.fullmatch(r"[0-9a-f]{32}", id) for id in ids)
    assert len({id[:4] for id in ids}) > 40


@pytest.mark.requirement("modern.extension-fallback")
async def test_client_without_the_extension_gets_the_result(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    response = await client.call("add", {"a": 1, "b": 2}, capabilities=WITHOUT)
    assert response["resultType"] == "complete"
    assert response["structuredContent"] == {"result": 3}


@pytest.mark.requirement("modern.extension-fallback")
async def test_task_only_tool_requires_the_extension(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    error = await client.request_error("tools/call", {"name": "ask", "arguments": {}}, capabilities=WITHOUT)
    assert error["code"] == -32021
    assert error["data"] == MISSING


async def test_each_request_declares_for_itself(modern: Talk, serving: Serve) -> None:
    """Servers must not return a task to a request that did not declare it, regardless of those before."""
    server, _ = with_tools()
    client = modern(await serving(server))
    assert (await client.call("add", {"a": 1, "b": 2}))["resultType"] == "task"
    assert (await client.call("add", {"a": 1, "b": 2}, capabilities={}))["resultType"] == "complete"
    assert (await client.call("add", {"a": 1, "b": 2}))["resultType"] == "task"


async def test_plain_tool_returns_a_complete_result(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    assert (await client.call("plain", {"text": "x"}))["resultType"] == "complete"


@pytest.mark.parametrize("wish", [{"ttl": 5}, {}, {"ttl": -1}, 7, "soon", None, []])
async def test_wish_of_2025_11_25_is_ignored(modern: Talk, serving: Serve, wish: Any) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    created = await client.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "task": wish})
    assert created["resultType"] == "task"
    assert created["ttlMs"] == DAY
    plain = await client.request("tools/call", {"name": "plain", "arguments": {}, "task": wish})
    assert plain["resultType"] == "complete"
    response = await client.request(
        "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "task": wish}, capabilities=WITHOUT
    )
    assert response["resultType"] == "complete"


async def test_wrong_arguments_are_reported_at_the_call(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    response = await client.call("add", {"a": "one", "b": 2})
    assert response["resultType"] == "complete"
    assert response["isError"] is True
    assert "a" in response["content"][0]["text"]
    assert server.tasks is not None
    assert await (await server.tasks.engine()).list_jobs("", (-1, "")) == []


async def test_scopes_are_reported_at_the_call(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    ran = []

    @server.tool(task="required", scopes=["write"])
    async def write() -> str:
        ran.append(True)
        return "written"

    await serving(server)
    reader = modern(server, principal=Principal("ada", frozenset({"read"})))
    response = await reader.call("write")
    assert response["resultType"] == "complete"
    assert response["isError"] is True
    assert "scope" in response["content"][0]["text"]
    writer = modern(server, principal=Principal("ada", frozenset({"write"})))
    assert (await writer.end("write"))["result"]["content"][0]["text"] == "written"
    assert ran == [True]


async def test_task_reports_configured_ttl_and_poll_interval(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task=TaskConfig(ttl=None, poll_interval=3))
    async def for_ever() -> str:
        return "done"

    client = modern(await serving(server))
    created = await client.call("for_ever")
    assert created["ttlMs"] is None
    assert created["pollIntervalMs"] == 3000
    await wait_for_status(server, created["taskId"], "completed")
    response = await client.get(created["taskId"])
    assert response["ttlMs"] is None
    assert response["pollIntervalMs"] == 3000


async def test_extension_is_offered_and_the_experiment_is_not(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    response = await client.request("server/discover")
    assert response["capabilities"]["extensions"][EXTENSION] == {}
    assert "tasks" not in response["capabilities"]
    assert all("execution" not in tool for tool in (await client.request("tools/list"))["tools"])


async def test_tasks_capability_requires_a_task_tool(modern: Talk, serving: Serve) -> None:
    server = Server("none")

    @server.tool
    def plain() -> str:
        return "x"

    client = modern(await serving(server))
    assert server.tasks is None
    assert "extensions" not in (await client.request("server/discover"))["capabilities"]
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert (await client.request_error(method, {"taskId": "x"}))["code"] == -32601


# Looking


async def test_working_task_has_no_additional_members(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    id = await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    response = await client.get(id)
    assert set(response) == COMMON
    assert response["resultType"] == "complete"
    assert response["status"] == "working"


async def test_input_required_task_has_all_requests(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask_two")
    await wait_for_request(server, id, "one", "two")
    response = await client.get(id)
    assert set(response) == COMMON | {"inputRequests"}
    assert response["status"] == "input_required"
    assert set(response["inputRequests"]) == {"one", "two"}
    item = response["inputRequests"]["one"]
    assert item["method"] == "elicitation/create"
    assert item["params"]["message"] == "One?"
    assert item["params"]["requestedSchema"]["properties"]["value"] == {"type": "string"}
    assert await client.get(id) == response


async def wait_for_request(server: Server, id: str, *keys: str) -> None:
    assert server.tasks is not None
    engine = await server.tasks.engine()
    with engine.watch(id) as news:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                news.clear()
                job = await engine.get(id, None)
                if job is not None and set(job.questions) == set(keys):
                    return
                await news.wait()


async def test_completed_task_has_its_result(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    found = await client.end("add", {"a": 1, "b": 2})
    assert set(found) == COMMON | {"result"}
    assert found["status"] == "completed"
    result = found["result"]
    assert result["content"] == [{"type": "text", "text": "3"}]
    assert result["structuredContent"] == {"result": 3}
    assert result["isError"] is False
    # It is what the call would have given, except for who says it.
    response = await client.call("add", {"a": 1, "b": 2}, capabilities=WITHOUT)
    assert {**result, **SIGNED} == response


async def test_tool_that_says_no_has_completed(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    error = await modern(await serving(server)).end("refuse")
    assert error["status"] == "completed"
    assert error["result"]["isError"] is True
    assert error["result"]["content"] == [{"type": "text", "text": "No, and that is final."}]
    assert "error" not in error


async def test_error_of_the_protocol_is_a_failure(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    result = await modern(await serving(server)).end("err")
    assert set(result) == COMMON | {"error", "statusMessage"}
    assert result["status"] == "failed"
    # The tool raised a code that is the specification's, and that it does not define.
    assert result["error"] == {"code": -32603, "message": "It went wrong.", "data": {"why": "because"}}
    assert result["statusMessage"] == "It went wrong."


async def test_unexpected_exception_text_is_not_disclosed(
    modern: Talk, serving: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = with_tools()
    result = await modern(await serving(server)).end("crash")
    assert "secret" not in str(result)
    assert "Traceback" not in str(result)
    assert result["status"] == "completed"
    assert result["result"]["isError"] is True
    error_id = re.search(r"error id ([0-9a-f]{8})", result["result"]["content"][0]["text"])
    assert error_id is not None
    logged = [record for record in caplog.records if error_id[1] in record.getMessage()]
    assert logged[0].exc_info is not None
    assert "secret" in str(logged[0].exc_info[1])


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("id", ["", "nothing", "x" * 5000, "a\u0000b", "é", "../../etc/passwd", "' or 1=1 --"])
async def test_unknown_id_is_invalid(modern: Talk, serving: Serve, method: str, id: str) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    error = await client.request_error(method, {"taskId": id, "inputResponses": {}})
    assert error["code"] == -32602
    assert error["message"].startswith("Unknown task: ")
    assert len(error["message"]) < 200


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("params", [{}, {"taskId": 5}, {"taskId": None}, {"taskId": ["x"]}])
async def test_missing_or_non_string_task_id_is_invalid_params(
    modern: Talk, serving: Serve, method: str, params: Any
) -> None:
    server, _ = with_tools()
    assert (await modern(await serving(server)).request_error(method, params))["code"] == -32602


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_asking_about_tasks_needs_the_extension(modern: Talk, serving: Serve, method: str) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("add", {"a": 1, "b": 2})
    for known_names in (id, "unknown"):
        error = await client.request_error(method, {"taskId": known_names, "inputResponses": {}}, capabilities=WITHOUT)
        assert error["code"] == -32021
        assert error["data"] == MISSING


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_methods_of_2025_11_25_are_gone(modern: Talk, serving: Serve, method: str) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("add", {"a": 1, "b": 2})
    for capabilities in (CLIENT_CAPABILITIES, WITHOUT):
        assert (await client.request_error(method, {"taskId": id}, capabilities=capabilities))["code"] == -32601


async def test_task_of_another_caller_is_not_found(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    await serving(server)
    ada, bob, nobody = modern(server, principal=ADA), modern(server, principal=BOB), modern(server)
    id = await ada.start("running", {"name": "x"})
    stranger = {}
    for who in (bob, nobody):
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            error = await who.request_error(method, {"taskId": id, "inputResponses": {}})
            stranger = {**error, "message": error["message"].replace(id, "…"), "data": None}
            assert error["code"] == -32602
    unknown = await bob.request_error("tasks/get", {"taskId": "nothing"})
    # Nothing tells a task of somebody else's from one that never was.
    assert stranger == {**unknown, "message": "Unknown task: …", "data": None}
    assert (await ada.get(id))["status"] == "working"
    gates["x"].set()
    assert (await wait_for_status(server, id, *TERMINAL_STATUSES)).status == "completed"


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("tools/call", "the task was not started"),
        ("tasks/get", "the task cannot be read"),
        ("tasks/update", "the responses were not stored"),
        ("tasks/cancel", "the task was not cancelled"),
    ],
)
async def test_when_the_store_fails_the_client_is_informed_which_of_its_wishes_and_no_more(
    modern: Talk, serving: Serve, monkeypatch: pytest.MonkeyPatch, method: str, said: str
) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")

    async def away(fn: Any, **how: Any) -> Any:
        raise ConnectionLost("connection to server at 10.1.2.3 failed for user portico")

    assert server.tasks is not None
    database = (await server.tasks.engine()).database
    params = {"name": "ask", "arguments": {}, "taskId": id, "inputResponses": {"elicitation-1": YES}}
    with monkeypatch.context() as patched:
        patched.setattr(database, "read" if method == "tasks/get" else "write", away)
        error = await client.request_error(method, params)
    assert error["code"] == -32603
    assert re.fullmatch(rf"Internal error: {said}, for its store failed \(error id [0-9a-f]{{8}}\)", error["message"])
    # And when it is back, it is as if nothing had been.
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": YES}})
    await wait_for_status(server, id, "completed")


# Answering


async def test_answer_is_acknowledged_and_the_task_continues(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")
    response = await client.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": YES}})
    assert response == {"resultType": "complete", **SIGNED}
    await wait_for_status(server, id, "completed")
    found = await client.get(id)
    assert found["result"]["content"][0]["text"] == "accept: yes"
    assert "inputRequests" not in found


async def test_answers_are_required(modern: Talk, serving: Serve) -> None:
    """The schema of `tasks/update`: `inputResponses` is required, empty or not."""
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")
    error = await client.request_error("tasks/update", {"taskId": id})
    assert error["code"] == -32602
    assert "inputResponses" in error["message"]
    await client.request("tasks/update", {"taskId": id, "inputResponses": {}})


async def test_partial_answers_are_accepted(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask_two")
    await wait_for_request(server, id, "one", "two")
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"two": YES}})
    response = await client.get(id)
    assert response["status"] == "input_required"
    assert set(response["inputRequests"]) == {"one"}
    other = {"action": "accept", "content": {"value": "no"}}
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"one": other}})
    await wait_for_status(server, id, "completed")
    assert (await client.get(id))["result"]["structuredContent"] == {"result": ["no", "yes"]}


async def test_unrequested_answers_are_ignored(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"other": YES, "elicitation-2": YES, "": 5}})
    assert (await client.get(id))["status"] == "input_required"
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"other": YES, "elicitation-1": YES}})
    await wait_for_status(server, id, "completed")
    # And so are those to what was answered already.
    no = {"action": "decline"}
    assert await client.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": no}})
    assert (await client.get(id))["result"]["content"][0]["text"] == "accept: yes"


async def test_answer_counts_once(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask_two")
    await wait_for_request(server, id, "one", "two")
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"one": YES}})
    changed = {"action": "accept", "content": {"value": "changed my mind"}}
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"one": changed}})
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"two": YES}})
    await wait_for_status(server, id, "completed")
    assert (await client.get(id))["result"]["structuredContent"] == {"result": ["yes", "yes"]}


@pytest.mark.parametrize("answer", [5, "yes", [], None, {}, {"action": "perhaps"}, {"action": 1}])
async def test_malformed_input_response_is_rejected_and_the_task_waits(
    modern: Talk, serving: Serve, answer: Any
) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")
    error = await client.request_error("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": answer}})
    assert error["code"] == -32602
    assert "elicitation-1" in error["message"]
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": YES}})
    await wait_for_status(server, id, "completed")


@pytest.mark.parametrize("responses", [5, "x", [], None])
async def test_responses_are_an_object(modern: Talk, serving: Serve, responses: Any) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    error = await client.request_error("tasks/update", {"taskId": id, "inputResponses": responses})
    assert error["code"] == -32602


async def test_declined_elicitation_is_an_answer(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": {"action": "decline"}}})
    await wait_for_status(server, id, "completed")
    assert (await client.get(id))["result"]["content"][0]["text"] == "decline: None"


async def test_keys_are_not_used_again(modern: Talk, serving: Serve) -> None:
    """Each key in inputRequests must be unique over the lifetime of a task."""
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def many(ctx: Context) -> int:
        total = 0
        for _ in range(5):
            total += len((await ctx.elicit("More?", str)).data or "")
        return total

    client = modern(await serving(server))
    id = await client.start("many")
    for n in range(1, 6):
        await wait_for_request(server, id, f"elicitation-{n}")
        await client.request("tasks/update", {"taskId": id, "inputResponses": {f"elicitation-{n}": YES}})
    await wait_for_status(server, id, "completed")
    assert (await client.get(id))["result"]["structuredContent"] == {"result": 15}


async def test_body_may_ask_the_model_and_for_roots(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def look(ctx: Context) -> str:
        roots = await ctx.list_roots()
        result = await ctx.sample("Which?")
        return f"{roots[0].uri} {result.text}"

    client = modern(await serving(server))
    id = await client.start("look")
    await wait_for_request(server, id, "roots-1")
    assert (await client.get(id))["inputRequests"] == {"roots-1": {"method": "roots/list"}}
    await client.request(
        "tasks/update", {"taskId": id, "inputResponses": {"roots-1": {"roots": [{"uri": "file:///a"}]}}}
    )
    await wait_for_request(server, id, "sampling-1")
    assert (await client.get(id))["inputRequests"]["sampling-1"]["method"] == "sampling/createMessage"
    answer = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "this"}}
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"sampling-1": answer}})
    await wait_for_status(server, id, "completed")
    assert (await client.get(id))["result"]["content"][0]["text"] == "file:///a this"


async def test_task_fails_if_the_client_lacks_elicitation(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask", capabilities={"extensions": {EXTENSION: {}}})
    await wait_for_status(server, id, "failed")
    response = await client.get(id)
    assert response["error"]["code"] == -32021
    assert response["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}


# Cancelling


async def test_task_that_runs_is_cancelled_and_its_body_stops(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    id = await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    assert await client.request("tasks/cancel", {"taskId": id}) == {"resultType": "complete", **SIGNED}
    await gates.wait_for("x stopped")
    response = await client.get(id)
    assert set(response) == COMMON | {"statusMessage"}
    assert response["status"] == "cancelled"


async def test_task_that_has_not_begun_never_does(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    assert server.tasks is not None
    server.tasks.concurrency = 1
    client = modern(await serving(server))
    first = await client.start("running", {"name": "first"})
    await gates.wait_for("first begun")
    second = await client.start("running", {"name": "second"})
    await client.request("tasks/cancel", {"taskId": second})
    assert (await client.get(second))["status"] == "cancelled"
    gates["first"].set()
    await wait_for_status(server, first, "completed")
    third = await client.start("running", {"name": "third"})
    await gates.wait_for("third begun")
    gates["third"].set()
    await wait_for_status(server, third, "completed")
    assert not gates["second begun"].is_set()


async def test_task_that_asks_is_cancelled(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("ask")
    await wait_for_request(server, id, "elicitation-1")
    await client.request("tasks/cancel", {"taskId": id})
    response = await client.get(id)
    assert response["status"] == "cancelled"
    assert "inputRequests" not in response
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"elicitation-1": YES}})
    assert (await client.get(id))["status"] == "cancelled"


@pytest.mark.requirement("tasks.status")
@pytest.mark.parametrize(("tool", "status"), [("refuse", "completed"), ("err", "failed")])
async def test_task_that_is_over_stays_unchanged(modern: Talk, serving: Serve, tool: str, status: str) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    before = await client.end(tool)
    assert before["status"] == status
    assert await client.request("tasks/cancel", {"taskId": before["taskId"]}) == {"resultType": "complete", **SIGNED}
    assert await client.get(before["taskId"]) == before


async def test_cancelling_twice_is_no_error(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    client = modern(await serving(server))
    id = await client.start("running", {"name": "x"})
    for _ in range(2):
        await client.request("tasks/cancel", {"taskId": id})
        assert (await client.get(id))["status"] == "cancelled"


@pytest.mark.requirement("tasks.cancelled")
async def test_cancelled_task_cannot_complete(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    begun, ended = asyncio.Event(), asyncio.Event()

    @server.tool(task="required")
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
        return "done all the same"

    client = modern(await serving(server))
    id = await client.start("stubborn")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await begun.wait()
        await client.request("tasks/cancel", {"taskId": id})
        await ended.wait()
    response = await client.get(id)
    assert response["status"] == "cancelled"
    assert "result" not in response


# Telling how far it is


async def test_progress_is_reported_in_words(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    go = asyncio.Event()

    @server.tool(task="required")
    async def count(total: float | None, message: str | None, ctx: Context) -> str:
        ctx.report_progress(3, total, message)
        await go.wait()
        return "done"

    client = modern(await serving(server))
    for total, message, words in [
        (10, "counting", "3 of 10: counting"),
        (None, "counting", "3: counting"),
        (10, None, "3 of 10"),
        (None, None, "3"),
    ]:
        go.clear()
        id = await client.start("count", {"total": total, "message": message})
        await until_said(server, id)
        assert (await client.get(id))["statusMessage"] == words
        go.set()
        await wait_for_status(server, id, "completed")
        assert "statusMessage" not in await client.get(id)


async def until_said(server: Server, id: str) -> None:
    assert server.tasks is not None
    engine = await server.tasks.engine()
    with engine.watch(id) as news:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                news.clear()
                job = await engine.get(id, None)
                if job is not None and job.progress is not None:
                    return
                await news.wait()


async def test_endless_message_has_an_end(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    go = asyncio.Event()

    @server.tool(task="required")
    async def talk(ctx: Context) -> str:
        ctx.report_progress(1, None, "x" * 1_000_000)
        await go.wait()
        return "done"

    client = modern(await serving(server))
    id = await client.start("talk")
    await until_said(server, id)
    assert len((await client.get(id))["statusMessage"]) < 1000
    go.set()
    await wait_for_status(server, id, "completed")


async def test_logging_and_progress_in_a_task_are_not_sent(
    modern: Talk, serving: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """notifications/progress and notifications/message are not supported on tasks."""
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def talk(ctx: Context) -> str:
        await ctx.info("hello")
        await ctx.report_progress(1)
        return "done"

    client = modern(await serving(server))
    assert (await client.end("talk"))["status"] == "completed"
    assert all("method" not in message for message in client.wire.other_messages)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
