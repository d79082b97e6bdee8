"""Kinds of task tools, and the features available in their bodies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from portico import Client, Context, Image, ProtocolError, Server, Service, TaskConfig, ToolError, tool
from portico.auth.principal import Principal
from portico.protocol.errors import UsageError
from support.task_servers import (
    ADA,
    CLIENT_CAPABILITIES,
    TIMEOUT_SECONDS,
    YES,
    LegacyTasksClient,
    ModernTasksClient,
    wait_for_status,
    with_tools,
)

Talk = Callable[..., ModernTasksClient]
TalkOld = Callable[..., Awaitable[LegacyTasksClient]]
Serve = Callable[[Server], Awaitable[Server]]

WITHOUT = {name: able for name, able in CLIENT_CAPABILITIES.items() if name != "extensions"}


class Report(msgspec.Struct):
    title: str
    pages: int


def text(found: Any) -> str:
    message: str = found["result"]["content"][0]["text"]
    return message


# What costs nothing


def test_server_without_tasks_does_not_import_them() -> None:
    program = """
import sys, asyncio
from portico import Client, Server
server = Server("plain")
@server.tool
def add(a: int, b: int) -> int:
    return a + b
async def main():
    async with Client(server) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
asyncio.run(main())
found = {"sqlite3", "psycopg", "portico.server.tasks.service", "portico.server.tasks.engine", "portico.store.database"}
print(sorted(found & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_sqlite_does_without_the_driver_of_the_other() -> None:
    program = """
import sys, asyncio
from portico import Client, Server
server = Server("tasks", store="sqlite://")
@server.tool(task="required")
def add(a: int, b: int) -> int:
    return a + b
async def main():
    async with Client(server) as client:
        task = await client.start_task("add", {"a": 1, "b": 2})
        assert (await task.result()).data == 3
asyncio.run(main())
print("psycopg" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


# Saying what a tool is


@pytest.mark.parametrize(
    "task",
    [
        "sometimes",
        TaskConfig(mode="always"),  # type: ignore[arg-type]
        TaskConfig(max_retries=-1),
        TaskConfig(retry_delay=-1),
        TaskConfig(max_concurrency=0),
        TaskConfig(ttl=0),
        TaskConfig(ttl=-5),
        TaskConfig(poll_interval=0),
    ],
)
def test_invalid_task_config_raises_usage_error(task: Any) -> None:
    with pytest.raises(UsageError, match=r"job|task: expected one of"):

        @Server("tasks").tool(task=task)
        def job() -> str:
            return ""


def test_never_is_never() -> None:
    server = Server("tasks")

    @server.tool(task="never")
    def one() -> str:
        return ""

    @server.tool(task=TaskConfig(mode="never"))
    def other() -> str:
        return ""

    assert server.tasks is None


async def test_service_tools_added_later_may_be_tasks(modern: Talk, serving: Serve) -> None:
    class Reports(Service):
        name = "reports"

        @tool(task="required")
        async def write(self) -> str:
            return "written"

    server = Server("tasks", store="sqlite://")
    client = modern(await serving(server))
    assert (await client.request_error("tasks/get", {"taskId": "x"}))["code"] == -32601
    server.add(Reports())
    assert text(await client.end("write")) == "written"


async def test_alias_is_the_same_tool(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required", aliases=["old_name"])
    async def new_name() -> str:
        return "done"

    assert text(await modern(await serving(server)).end("old_name")) == "done"


async def test_tasks_of_a_removed_tool_are_left_to_other_workers(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    assert server.tasks is not None
    server.tasks.concurrency = 1
    client = modern(await serving(server))
    await client.start("running", {"name": "x"})
    await gates.wait_for("x begun")
    id = await client.start("add", {"a": 1, "b": 2})
    server.remove("add")
    gates["x"].set()
    await client.end("refuse")
    assert (await client.get(id))["status"] == "working"


# Bodies


async def test_plain_function_runs_in_a_thread(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    def where(ctx: Context) -> str:
        ctx.report_progress(1, 1, "there")
        return threading.current_thread().name

    assert text(await modern(await serving(server)).end("where")).startswith("portico-")


async def test_quick_function_runs_where_it_is(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required", run_in_thread=False)
    def where() -> str:
        return threading.current_thread().name

    assert text(await modern(await serving(server)).end("where")) == threading.current_thread().name


async def test_thread_sees_that_it_was_cancelled(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    begun, seen = threading.Event(), threading.Event()

    @server.tool(task="required")
    def work(ctx: Context) -> str:
        begun.set()
        while not ctx.is_cancelled:
            threading.Event().wait(0.005)
        seen.set()
        ctx.report_progress(1)
        return "too late"

    client = modern(await serving(server))
    id = await client.start("work")
    assert await asyncio.to_thread(begun.wait, TIMEOUT_SECONDS)
    await client.request("tasks/cancel", {"taskId": id})
    assert await asyncio.to_thread(seen.wait, TIMEOUT_SECONDS)
    response = await client.get(id)
    assert response["status"] == "cancelled"
    assert "result" not in response


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_task_is_ended_at_its_timeout(modern: Talk, serving: Serve, kind: str) -> None:
    server = Server("tasks", store="sqlite://")
    began, over = threading.Event(), threading.Event()

    if kind == "async":

        @server.tool(name="slow", task="required", timeout=0.05)
        async def slowly() -> str:
            began.set()
            await asyncio.Event().wait()
            return "never"

    else:

        @server.tool(name="slow", task="required", timeout=0.05)
        def slow(ctx: Context) -> str:
            began.set()
            while not ctx.is_cancelled:
                threading.Event().wait(0.005)
            over.set()
            return "never"

    talk = modern(await serving(server))
    while not began.is_set():
        # A busy machine may not come to the body before its time is over, and then it is not run at all.
        result = await talk.end("slow")
        assert result["status"] == "completed"
        assert result["result"]["isError"] is True
        assert "did not finish within" in text(result)
    if kind == "thread":
        assert await asyncio.to_thread(over.wait, TIMEOUT_SECONDS)


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), BaseExceptionGroup("x", [SystemExit()])])
async def test_nothing_that_a_body_raises_ends_the_server(modern: Talk, serving: Serve, raised: BaseException) -> None:
    server, _ = with_tools()
    runs = []

    @server.tool(task="required")
    async def leave() -> str:
        runs.append(True)
        raise raised

    client = modern(await serving(server))
    result = await client.end("leave")
    assert result["result"]["isError"] is True
    assert "error id" in text(result)
    assert runs == [True]
    assert text(await client.end("add", {"a": 1, "b": 2})) == "3"


async def test_body_that_leaks_its_own_cancellation_fails(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")
    runs = []

    @server.tool(task="required")
    async def muddled() -> str:
        runs.append(True)
        child = asyncio.ensure_future(asyncio.Event().wait())
        child.cancel()
        await child
        return "never"

    result = await modern(await serving(server)).end("muddled")
    assert result["result"]["isError"] is True
    assert runs == [True]


@pytest.mark.parametrize("what", ["result", "error", "data"])
async def test_result_that_json_cannot_encode_is_a_tool_error(modern: Talk, serving: Serve, what: str) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def odd() -> str:
        if what == "error":
            raise ToolError("half a \ud800 pair")
        if what == "data":
            raise ProtocolError("no", {"it": object()})
        return "half a \ud800 pair"

    result = await modern(await serving(server)).end("odd")
    assert result["status"] == "completed"
    assert result["result"]["isError"] is True


async def test_results_of_every_kind_are_kept(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="optional")
    async def report() -> Report:
        return Report("Bees \u0000 \U0001f41d", 3)

    @server.tool(task="optional")
    async def picture() -> Image:
        return Image(data=b"\x89PNG\r\n\x1a\n" + bytes(1000), format="png")

    client = modern(await serving(server))
    for name in ("report", "picture"):
        result = (await client.end(name))["result"]
        called = await client.call(name, capabilities=WITHOUT)
        called.pop("_meta")
        assert result == called


async def test_task_has_the_principal_of_its_caller(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def who(ctx: Context) -> str:
        assert isinstance(ctx.principal, Principal)
        assert ctx.client_info is not None
        return f"{ctx.principal.id} {sorted(ctx.principal.scopes or ())} {ctx.client_info.name} {ctx.protocol_version}"

    await serving(server)
    client = modern(server, principal=Principal("ada", frozenset({"read"})))
    id = await client.start("who", client={"name": "a test", "version": "1"})
    await wait_for_status(server, id, "completed")
    assert text(await client.get(id)) == "ada ['read'] a test 2026-07-28"


async def test_task_has_the_protocol_version_of_its_caller(old: TalkOld, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def which(ctx: Context) -> str:
        return ctx.protocol_version

    client = await old(await serving(server))
    response = await client.request("tasks/result", {"taskId": await client.start("which")})
    assert response["content"][0]["text"] == "2025-11-25"


async def test_custom_principal_is_stored_by_name(modern: Talk, serving: Serve) -> None:
    server, _ = with_tools()
    await serving(server)
    for principal in ("somebody", ("a", 1)):
        client = modern(server, principal=principal)
        assert text(await client.end("add", {"a": 1, "b": 2})) == "3"


# Calling others


@pytest.mark.parametrize("inside", ["task", "call"])
async def test_tool_called_from_the_inside_answers_at_once(modern: Talk, serving: Serve, inside: str) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="optional")
    async def outer(ctx: Context) -> str:
        result = await ctx.call_tool("inner", {})
        return f"outer {result.content[0].text}"

    @server.tool(task="required")
    async def inner(ctx: Context) -> str:
        result = await ctx.elicit("Well?", str)
        return f"inner {result.data}"

    client = modern(await serving(server))
    if inside == "task":
        id = await client.start("outer")
        await wait_for_status(server, id, "waiting")
        assert set((await client.get(id))["inputRequests"]) == {"inner-1/elicitation-1"}
        await client.request("tasks/update", {"taskId": id, "inputResponses": {"inner-1/elicitation-1": YES}})
        await wait_for_status(server, id, "completed")
        assert text(await client.get(id)) == "outer inner yes"
    else:
        response = await client.call("outer", capabilities=WITHOUT)
        assert response["resultType"] == "input_required"
        again = {"name": "outer", "arguments": {}, "requestState": response["requestState"]}
        result = await client.request(
            "tools/call", {**again, "inputResponses": {"inner-1/elicitation-1": YES}}, capabilities=WITHOUT
        )
        assert result["content"][0]["text"] == "outer inner yes"


# Asking first, and then becoming a task


async def test_detached_task_does_not_repeat_elicitation(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    response = await client.call("later")
    assert response["resultType"] == "input_required"
    assert "taskId" not in response
    assert gates.done == []
    again = {"name": "later", "arguments": {}, "requestState": response["requestState"]}
    created = await client.request("tools/call", {**again, "inputResponses": {"elicitation-1": YES}})
    assert created["resultType"] == "task"
    assert not {"requestState", "inputRequests"} & set(created)
    await wait_for_status(server, created["taskId"], "completed")
    assert text(await client.get(created["taskId"])) == "hello yes"
    # The step was done before it became a task, and is not done again.
    assert gates.done == ["noted", "later"]


async def test_detached_body_of_2025_11_25_asks_in_the_call(old: TalkOld, serving: Serve) -> None:
    server, gates = with_tools()
    client = await old(await serving(server))
    client.wire.send({"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": {"name": "later", "task": {}}})
    message = await client.wire.receive()
    assert message["method"] == "elicitation/create"
    client.wire.send({"jsonrpc": "2.0", "id": message["id"], "result": YES})
    created = (await client.wire.response("call"))["result"]
    response = await client.request("tasks/result", {"taskId": created["task"]["taskId"]})
    assert response["content"][0]["text"] == "hello yes"
    assert gates.done == ["noted", "later"]
    assert not [
        other_message
        for other_message in client.wire.other_messages
        if other_message.get("method") == "elicitation/create"
    ]


async def test_without_the_extension_a_detached_body_just_continues(modern: Talk, serving: Serve) -> None:
    server, gates = with_tools()
    client = modern(await serving(server))
    response = await client.call("later", capabilities=WITHOUT)
    again = {"name": "later", "arguments": {}, "requestState": response["requestState"]}
    said = await client.request("tools/call", {**again, "inputResponses": {"elicitation-1": YES}}, capabilities=WITHOUT)
    assert said["resultType"] == "complete"
    assert said["content"][0]["text"] == "hello yes"
    assert gates.done == ["noted", "later"]


async def test_without_a_wish_a_detached_body_just_continues(old: TalkOld, serving: Serve) -> None:
    server, _ = with_tools()
    client = await old(await serving(server))
    client.wire.send({"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": {"name": "later"}})
    message = await client.wire.receive()
    client.wire.send({"jsonrpc": "2.0", "id": message["id"], "result": YES})
    said = (await client.wire.response("call"))["result"]
    assert said["content"][0]["text"] == "hello yes"


async def test_body_that_never_detaches_is_answered_at_once(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task=TaskConfig(detachable=True))
    async def perhaps(long: bool, ctx: Context) -> str:
        if long:
            await ctx.continue_as_task()
        return "done"

    client = modern(await serving(server))
    assert (await client.call("perhaps", {"long": False}))["resultType"] == "complete"
    assert text(await client.end("perhaps", {"long": True})) == "done"


async def test_detaching_twice_and_in_a_task_is_nothing(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task="required")
    async def already(ctx: Context) -> str:
        await ctx.continue_as_task()
        await ctx.continue_as_task()
        return "done"

    assert text(await modern(await serving(server)).end("already")) == "done"


async def test_detached_body_with_wrong_arguments_is_reported_at_the_call(modern: Talk, serving: Serve) -> None:
    server = Server("tasks", store="sqlite://")

    @server.tool(task=TaskConfig(detachable=True))
    async def count(n: int, ctx: Context) -> int:
        await ctx.continue_as_task()
        return n

    response = await modern(await serving(server)).call("count", {"n": "x"})
    assert response["resultType"] == "complete"
    assert response["isError"] is True


# With our own client


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_our_client_starts_waits_and_answers(revision: Any) -> None:
    server, _ = with_tools()
    async with Client(
        server,
        protocol_version=revision,
        principal=ADA,
        elicitation_handler=lambda request: {"value": "Ada"},
        timeout=TIMEOUT_SECONDS,
    ) as client:
        task = await client.start_task("ask")
        assert (await task.result(timeout=TIMEOUT_SECONDS)).text == "accept: Ada"
        task = await client.start_task("add", {"a": 1, "b": 2})
        assert (await task.result(timeout=TIMEOUT_SECONDS)).data == 3
        task = await client.start_task("refuse")
        with pytest.raises(ToolError, match="final"):
            await task.result(timeout=TIMEOUT_SECONDS)
