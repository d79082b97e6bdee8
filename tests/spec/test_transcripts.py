"""Sample exchanges of the systems that Portico can replace, reduced to checkable parts.

Each is a conversation that somebody's documentation shows. The tools here are small stand-ins: what is tested is how
the protocol is spoken, so what is about processes goes through a real child, and the rest through a Channel.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from portico import Client, Context, Server, Service
from portico.protocol.meta import SERVER_INFO_META_KEY
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS

Connect = Callable[..., Any]
Spawn = Callable[..., Any]

SAMPLE_SCHEMA = {
    "type": "object",
    "properties": {"description": {"type": "string", "description": "Task description"}},
    "required": ["description"],
    "additionalProperties": False,
}

TASKS = '''
import asyncio
import sys
from typing import Annotated

from portico import Context, Server, ToolError

server = Server("bossman", version="0.1.0")


@server.tool
def create_task(description: Annotated[str, "Task description"]) -> str:
    """Create a new task"""
    print("this goes to standard error")
    return '{"id":"task_1","description":"' + description + '","status":"pending"}'


@server.tool
def get_task(id: str) -> str:
    raise ToolError(f"error: task not found: {id}")


@server.tool
async def slow(ctx: Context) -> str:
    await ctx.info("slow has begun")
    await asyncio.Event().wait()
    return "never"


@server.tool
def breaks() -> str:
    raise RuntimeError("the secret of the house")
'''


def tasks() -> Server:
    """The same by hand, for what needs no process."""
    server = Server("bossman", version="0.1.0")

    @server.tool(run_in_thread=False)
    def create_task(description: Annotated[str, "Task description"]) -> str:
        """Create a new task"""
        return f'{{"id":"task_1","description":"{description}","status":"pending"}}'

    return server


@pytest.fixture
def tasks_file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.py"
    path.write_text(textwrap.dedent(TASKS))
    return path


# the handshake of 2025-03-26, and a closed schema


@pytest.mark.requirement("lifecycle.server-info", "tools.closed-schema")
async def test_handshake_and_the_list(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    opened = await child.initialize("2025-03-26")
    assert opened["protocolVersion"] == "2025-03-26"
    assert {"tools", "logging"} <= opened["capabilities"].keys()
    assert opened["serverInfo"] == {"name": "bossman", "version": "0.1.0"}
    tool = (await child.request("tools/list"))["result"]["tools"][0]
    assert tool == {"name": "create_task", "description": "Create a new task", "inputSchema": SAMPLE_SCHEMA}


@pytest.mark.requirement("tools.closed-schema")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_schema_is_closed_on_every_revision(revision: str) -> None:
    async with Client(tasks(), protocol_version=revision) as client:
        [tool] = await client.list_tools()
    assert tool.input_schema == SAMPLE_SCHEMA


# what may be said when


@pytest.mark.requirement("lifecycle.order")
async def test_nothing_but_a_ping_before_the_handshake(connect: Connect) -> None:
    wire = connect(tasks())
    assert (await wire.request("ping"))["result"] == {}
    refused = (await wire.request("tools/list"))["error"]
    assert refused["code"] == -32600
    assert "Not initialized" in refused["message"]


@pytest.mark.requirement("lifecycle.initialized")
@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_no_list_between_initialize_and_initialized(connect: Connect, revision: str) -> None:
    wire = connect(tasks())
    await wire.initialize(revision, initialized=False)
    refused = (await wire.request("tools/list"))["error"]
    assert refused["code"] == -32600
    assert "notifications/initialized" in refused["message"]
    assert (await wire.request("ping"))["result"] == {}
    wire.notify("notifications/initialized")
    assert "result" in await wire.request("tools/list")


@pytest.mark.requirement("lifecycle.once")
async def test_second_initialize_is_rejected_and_changes_nothing(connect: Connect) -> None:
    wire = connect(tasks())
    await wire.initialize("2025-03-26")
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    assert (await wire.request("initialize", params))["error"]["code"] == -32600
    assert wire.session.protocol_version == "2025-03-26"
    assert "result" in await wire.request("tools/list")


@pytest.mark.requirement("lifecycle.initialized")
@pytest.mark.parametrize("lifecycle, admitted", [("strict", False), ("lenient", True)])
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
async def test_operator_may_be_strict_or_lenient(
    connect: Connect, revision: str, lifecycle: str, admitted: bool
) -> None:
    wire = connect(tasks(), lifecycle=lifecycle)
    await wire.initialize(revision, initialized=False)
    assert ("result" in await wire.request("tools/list")) is admitted


# as far as the protocol goes: the two flavours of a result


@pytest.mark.requirement("tools.result")
async def test_tool_is_called(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-03-26")
    params = {"name": "create_task", "arguments": {"description": "Fix parser bug"}}
    result = (await child.request("tools/call", params))["result"]
    text = '{"id":"task_1","description":"Fix parser bug","status":"pending"}'
    assert result == {"content": [{"type": "text", "text": text}], "isError": False}


@pytest.mark.requirement("tools.failure")
async def test_tool_that_rejects_gives_a_failed_result(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-03-26")
    result = (await child.request("tools/call", {"name": "get_task", "arguments": {"id": "task_xyz"}}))["result"]
    assert result == {"content": [{"type": "text", "text": "error: task not found: task_xyz"}], "isError": True}


# a tool that does not exist


# batches and ids


@pytest.mark.requirement("batch.received")
async def test_batch_is_answered_by_an_array(connect: Connect) -> None:
    wire = connect(tasks())
    await wire.initialize("2025-03-26")
    wire.send([{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"jsonrpc": "2.0", "id": 2, "method": "ping"}])
    message = await wire.receive()
    assert {item["id"] for item in message} == {1, 2}
    assert all("result" in item for item in message)


@pytest.mark.requirement("batch.received")
async def test_batch_over_stdio(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-03-26")
    child.send([{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"jsonrpc": "2.0", "id": 2, "method": "ping"}])
    assert sorted(item["id"] for item in await child.receive()) == [1, 2]


@pytest.mark.requirement("jsonrpc.id-distinct-types")
async def test_same_number_as_text_is_another_id(connect: Connect) -> None:
    wire = connect(tasks())
    await wire.initialize("2025-03-26")
    wire.send([{"jsonrpc": "2.0", "id": id, "method": "ping"} for id in (1, "1")])
    message = await wire.receive()
    assert sorted(repr(item["id"]) for item in message) == ["'1'", "1"]


@pytest.mark.requirement("jsonrpc.id-distinct-types")
async def test_both_ids_may_be_in_flight_together(connect: Connect) -> None:
    server = tasks()

    @server.tool
    async def echo(said: str) -> str:
        return said

    wire = connect(server)
    await wire.initialize("2025-03-26")
    for id in (1, "1"):
        params = {"name": "echo", "arguments": {"said": repr(id)}}
        wire.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    for id in (1, "1"):
        assert (await wire.response(id))["result"]["content"][0]["text"] == repr(id)


@pytest.mark.requirement("jsonrpc.id-type")
async def test_null_id_is_an_invalid_request(connect: Connect) -> None:
    wire = connect(tasks())
    await wire.initialize("2025-03-26")
    wire.send({"jsonrpc": "2.0", "id": None, "method": "ping"})
    message = await wire.receive()
    assert (message["id"], message["error"]["code"]) == (None, -32600)


@pytest.mark.requirement("batch.members")
@pytest.mark.parametrize(
    "batch, expected",
    [
        ([], "error"),
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], [1]),
        ([1, {"jsonrpc": "2.0", "id": 1, "method": "ping"}], [None, 1]),
        ([{"jsonrpc": "2.0", "method": "notifications/made/up"}, {"jsonrpc": "2.0", "id": 1, "method": "ping"}], [1]),
        ([[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]], [None]),
    ],
    ids=["empty", "one", "an invalid member", "a notification", "nested"],
)
async def test_batches_at_their_edges(connect: Connect, batch: list[Any], expected: Any) -> None:
    wire = connect(tasks())
    await wire.initialize("2025-03-26")
    wire.send(batch)
    message = await wire.receive()
    if expected == "error":
        assert message["error"]["code"] == -32600
    else:
        assert sorted((item["id"] for item in message), key=str) == sorted(expected, key=str)


@pytest.mark.requirement("batch.notifications-only")
async def test_batch_of_notifications_is_not_answered(connect: Connect) -> None:
    wire = connect(tasks())
    await wire.initialize("2025-03-26")
    wire.send([{"jsonrpc": "2.0", "method": "notifications/made/up"}] * 2)
    assert (await wire.request("ping"))["result"] == {}
    assert wire.other_messages == []


@pytest.mark.requirement("batch.no-initialize")
async def test_initialize_is_never_part_of_a_batch(connect: Connect) -> None:
    wire = connect(tasks())
    params = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    wire.send([{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}])
    assert (await wire.receive())["error"]["code"] == -32600
    assert wire.session.state == "CREATED"
    await wire.initialize("2025-03-26")
    wire.send([{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}])
    [said] = await wire.receive()
    assert (said["id"], said["error"]["code"]) == (1, -32600)


@pytest.mark.requirement("batch.only-2025-03-26")
@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_later_revisions_have_no_batches(connect: Connect, revision: str) -> None:
    wire = connect(tasks())
    await wire.initialize(revision)
    wire.send([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
    assert (await wire.receive())["error"]["code"] == -32600


# cancellation


@pytest.mark.requirement("cancellation.no-response")
async def test_cancelled_call_is_never_answered(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-03-26")
    child.send({"jsonrpc": "2.0", "id": "123", "method": "tools/call", "params": {"name": "slow"}})
    assert (await child.receive())["method"] == "notifications/message"
    child.notify("notifications/cancelled", {"requestId": "123", "reason": "User requested cancellation"})
    assert (await child.request("ping"))["result"] == {}
    code, rest, _ = await child.end()
    assert (code, rest, child.other_messages) == (0, "", [])


@pytest.mark.requirement("cancellation.unknown")
async def test_cancelling_an_unknown_request_is_harmless(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-03-26")
    for requested in ("nobody", 999, 1):
        child.notify("notifications/cancelled", {"requestId": requested})
    assert (await child.request("ping"))["result"] == {}
    code, rest, errors = await child.end()
    assert (code, rest, child.other_messages) == (0, "", [])
    assert "Traceback" not in errors


@pytest.mark.requirement("cancellation.id-type")
async def test_text_of_a_number_cancels_nothing(connect: Connect) -> None:
    server = tasks()

    @server.tool
    async def wait(ctx: Context) -> str:
        await ctx.info("waiting")
        return "done"

    wire = connect(server)
    await wire.initialize("2025-03-26")
    wire.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "wait"}})
    wire.notify("notifications/cancelled", {"requestId": "7"})
    assert (await wire.response(7))["result"]["content"][0]["text"] == "done"


# the end


@pytest.mark.requirement("stdio.end-of-input")
async def test_end_of_input_is_the_end(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-03-26")
    await child.request("tools/call", {"name": "create_task", "arguments": {"description": "x"}})
    code, rest, errors = await child.end()
    assert (code, rest) == (0, "")
    assert "this goes to standard error" in errors


@pytest.mark.requirement("stdio.end-of-input")
@pytest.mark.parametrize("opened", [True, False], ids=["after the handshake", "before the handshake"])
async def test_end_of_input_ends_an_idle_server(spawn: Spawn, tasks_file: Path, opened: bool) -> None:
    child = await spawn("serve", tasks_file)
    if opened:
        await child.initialize("2025-03-26")
    code, rest, errors = await child.end()
    assert (code, rest, errors) == (0, "", "")


# what does not exist, and what is missing


def reviewing() -> Server:
    server = Server("pharo-mcp", version="0.1.0")

    @server.prompt(name="review-class")
    async def review(className: Annotated[str, "The class to review"]) -> str:
        """Review a class"""
        return f"Please review the class {className}."

    return server


@pytest.mark.requirement("jsonrpc.unknown-method")
async def test_unknown_method_is_named(connect: Connect) -> None:
    wire = connect(reviewing())
    await wire.initialize("2025-03-26")
    error = (await wire.request("unknown/method", {}, id="a"))["error"]
    assert (error["code"], error["message"]) == (-32601, "Method not found: unknown/method")


@pytest.mark.requirement("prompts.missing-argument")
async def test_prompt_without_its_argument(connect: Connect) -> None:
    wire = connect(reviewing())
    await wire.initialize("2025-03-26")
    error = (await wire.request("prompts/get", {"name": "review-class"}, id="the right one"))["error"]
    assert error["code"] == -32602
    assert "Missing argument 'className'" in error["message"]
    assert "The class to review" in error["message"]


@pytest.mark.requirement("prompts.get")
async def test_prompt_with_its_argument(connect: Connect) -> None:
    wire = connect(reviewing())
    await wire.initialize("2025-03-26")
    result = (await wire.request("prompts/get", {"name": "review-class", "arguments": {"className": "Set"}}))["result"]
    text = {"type": "text", "text": "Please review the class Set."}
    assert result["messages"] == [{"role": "user", "content": text}]


# changes are told


@pytest.mark.requirement("tools.list-changed")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_tool_that_is_registered_at_run_time_is_reported(connect: Connect, revision: str) -> None:
    server = tasks()

    @server.tool
    async def learn() -> str:
        server.add(forget)
        return "learnt"

    async def forget() -> str:
        return "forgotten"

    wire = connect(server)
    await wire.initialize(revision)
    assert (await wire.request("ping"))["result"] == {}
    await wire.request("tools/call", {"name": "learn"})
    [told] = wire.other_messages or [await wire.receive()]
    assert told == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    assert [tool["name"] for tool in (await wire.request("tools/list"))["result"]["tools"]][-1] == "forget"


@pytest.mark.requirement("resources.list-changed")
async def test_resource_that_is_registered_at_run_time_is_reported(connect: Connect) -> None:
    server = Server("subcog")

    @server.tool
    async def capture(namespace: str) -> str:
        server.resource(f"subcog://project/{namespace}")(namespaced)
        return "captured"

    async def namespaced() -> str:
        return "{}"

    wire = connect(server)
    await wire.initialize("2024-11-05")
    assert (await wire.request("ping"))["result"] == {}
    await wire.request("tools/call", {"name": "capture", "arguments": {"namespace": "decisions"}})
    [told] = wire.other_messages or [await wire.receive()]
    assert told == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


# logging


def capturing() -> Server:
    server = Server("subcog")

    @server.tool
    async def capture(ctx: Context) -> str:
        await ctx.debug("looking")
        await ctx.info("Captured memory dc58d23a")
        return "captured"

    return server


@pytest.mark.requirement("logging.level")
@pytest.mark.parametrize("level, heard", [("debug", ["debug", "info"]), ("info", ["info"]), ("error", [])])
async def test_log_level_determines_the_messages_sent(connect: Connect, level: str, heard: list[str]) -> None:
    wire = connect(capturing())
    await wire.initialize("2024-11-05")
    assert (await wire.request("logging/setLevel", {"level": level}))["result"] == {}
    await wire.request("tools/call", {"name": "capture"})
    assert [other_message["params"]["level"] for other_message in wire.other_messages] == heard
    if "info" in heard:
        expected = {"level": "info", "logger": "subcog", "data": "Captured memory dc58d23a"}
        assert wire.other_messages[-1] == {"jsonrpc": "2.0", "method": "notifications/message", "params": expected}


@pytest.mark.requirement("logging.level-invalid")
async def test_level_that_does_not_exist_is_rejected(connect: Connect) -> None:
    wire = connect(capturing())
    await wire.initialize("2025-11-25")
    error = (await wire.request("logging/setLevel", {"level": "loud"}))["error"]
    assert error["code"] == -32602
    assert "logging/setLevel" in error["message"]


# clients that say little


@pytest.mark.requirement("lifecycle.client-info")
async def test_client_may_leave_out_its_capabilities_and_the_version(connect: Connect) -> None:
    wire = connect(tasks())
    response = await wire.request("initialize", {"clientInfo": {"name": "Claude", "version": "1.0"}})
    assert response["result"]["protocolVersion"] == "2024-11-05"
    assert response["result"]["serverInfo"]["name"] == "bossman"


@pytest.mark.requirement("lifecycle.client-info")
@pytest.mark.parametrize(
    "params",
    [None, {}, {"protocolVersion": "2024-11-05"}, {"clientInfo": "Claude"}, {"clientInfo": {"version": "1"}}],
)
async def test_initialize_requires_client_info(connect: Connect, params: Any) -> None:
    wire = connect(tasks())
    error = (await wire.request("initialize", params))["error"]
    assert error["code"] == -32602
    assert "clientInfo" in error["message"]
    assert (await wire.initialize("2024-11-05"))["protocolVersion"] == "2024-11-05"


SYSTEM = ["eventlog_query", "eventlog_list_logs", "fs_search", "fs_stat", "reg_read", "reg_write"]


def system_service(name: str) -> Service:
    service = Service(name)
    for tool in SYSTEM:
        if tool.startswith(f"{name}_"):
            service.tool(name=tool)(lambda: "done")
    return service


def system() -> Server:
    server = Server("SysMCP", version="1.0.0")
    for name in ("eventlog", "fs", "reg"):
        server.add(system_service(name))
    return server


@pytest.mark.requirement("lifecycle.early-list")
async def test_tools_list_may_follow_initialize_immediately(connect: Connect) -> None:
    wire = connect(system())
    await wire.initialize("2024-11-05", initialized=False)
    assert [tool["name"] for tool in (await wire.request("tools/list"))["result"]["tools"]] == SYSTEM


@pytest.mark.requirement("tools.list-empty")
async def test_without_services_the_list_is_empty(connect: Connect) -> None:
    wire = connect(Server("SysMCP", version="1.0.0"))
    await wire.initialize("2024-11-05", initialized=False)
    assert (await wire.request("tools/list"))["result"] == {"tools": []}


# services come and go


@pytest.mark.requirement("tools.list-changed")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unregistered_service_removes_its_tools(connect: Connect, revision: str) -> None:
    server = system()
    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)

    async def names() -> list[str]:
        return [tool["name"] for tool in (await wire.request_as(revision, "tools/list"))["result"]["tools"]]

    assert await names() == SYSTEM
    server.remove("fs")
    assert await names() == ["eventlog_query", "eventlog_list_logs", "reg_read", "reg_write"]
    assert (await wire.request_as(revision, "tools/call", {"name": "fs_stat"}))["error"]["code"] == -32602
    server.add(system_service("fs"))
    assert sorted(await names()) == sorted(SYSTEM)
    assert "result" in await wire.request_as(revision, "tools/call", {"name": "fs_stat"})


# what an operator can see


@pytest.mark.requirement("stdio.stdout-is-protocol")
async def test_six_kinds_of_log_lines(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file, env={"PORTICO_LOG_LEVEL": "debug"})
    await child.initialize("2025-03-26")
    await child.request("tools/list")
    await child.request("tools/call", {"name": "create_task", "arguments": {"description": "x"}})
    await child.request("tools/call", {"name": "create_task", "arguments": {"description": 5}})
    code, rest, errors = await child.end()
    assert (code, rest, child.other_messages) == (0, "", [])
    kinds = ("incoming message", "handler invocation", "tool discovery", "execution result")
    for kind in (*kinds, "validation error", "performance"):
        assert f"DEBUG portico.trace: {kind}: " in errors


@pytest.mark.requirement("stdio.stdout-is-protocol")
@pytest.mark.parametrize("level", ["debug", "info", "warning", "ERROR"])
async def test_standard_output_is_the_protocols_at_every_level(spawn: Spawn, tasks_file: Path, level: str) -> None:
    child = await spawn("serve", tasks_file, env={"PORTICO_LOG_LEVEL": level})
    await child.initialize("2025-03-26")
    await child.request("tools/call", {"name": "create_task", "arguments": {"description": "x"}})
    code, rest, errors = await child.end()
    assert (code, rest, child.other_messages) == (0, "", [])
    assert ("portico.trace" in errors) is (level == "debug")


@pytest.mark.requirement("tools.failure")
async def test_error_id_finds_the_traceback(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    await child.initialize("2025-11-25")
    result = (await child.request("tools/call", {"name": "breaks"}))["result"]
    text = result["content"][0]["text"]
    assert result["isError"] is True
    assert "secret" not in text
    assert ".py" not in text
    error_id = text.rpartition("error id ")[2].rstrip(")")
    assert "result" in await child.request("ping")
    _, _, errors = await child.end()
    assert f"error {error_id} in tools/call" in errors
    assert "RuntimeError: the secret of the house" in errors


# the same without a handshake


@pytest.mark.requirement("modern.no-handshake")
async def test_same_task_without_a_handshake(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    params = {"name": "create_task", "arguments": {"description": "Fix parser bug"}}
    result = (await child.request_stateless("tools/call", params))["result"]
    assert result["resultType"] == "complete"
    assert result["content"][0]["text"] == '{"id":"task_1","description":"Fix parser bug","status":"pending"}'
    assert result["isError"] is False
    assert result["_meta"][SERVER_INFO_META_KEY] == {"name": "bossman", "version": "0.1.0"}


@pytest.mark.requirement("modern.era-before-method")
async def test_ping_is_absent_in_modern_requests(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    assert (await child.request_stateless("ping"))["error"]["code"] == -32601
    assert (await child.request("ping"))["result"] == {}


@pytest.mark.requirement("modern.both-eras")
async def test_both_eras_share_one_stream(spawn: Spawn, tasks_file: Path) -> None:
    child = await spawn("serve", tasks_file)
    assert "resultType" in (await child.request_stateless("tools/list"))["result"]
    await child.initialize("2025-03-26")
    assert "resultType" not in (await child.request("tools/list"))["result"]
    assert "resultType" in (await child.request_stateless("tools/list"))["result"]
