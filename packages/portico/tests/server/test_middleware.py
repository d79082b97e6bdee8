"""HandlerMiddleware wraps every request of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from portico import Client, ProtocolError, Server, ToolError
from portico.protocol.content import TextContent
from portico.protocol.errors import InvalidRequest
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call, Handler, HandlerMiddleware
from portico.server.options import ComponentDefaults

Connect = Callable[..., Any]


def noting(notes: list[str], name: str = "") -> HandlerMiddleware:
    """A middleware that notes what passes, on the way in and on the way out."""

    def wrap(handler: Handler) -> Handler:
        async def note(call: Call) -> Any:
            notes.append(f"{name}>{call.method}")
            try:
                return await handler(call)
            finally:
                notes.append(f"{name}<{call.method}")

        return note

    return wrap


def greeting(**options: Any) -> Server:
    server = Server("s", component_defaults=ComponentDefaults(structured_output=False), **options)

    @server.tool
    async def greet(name: str = "you") -> str:
        return f"hello {name}"

    @server.resource("a://b")
    async def b() -> str:
        return "b"

    return server


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_every_request_passes_through(revision: str) -> None:
    notes: list[str] = []
    async with Client(greeting(middleware=[noting(notes)]), protocol_version=revision) as client:
        notes.clear()
        await client.call_tool("greet")
        await client.list_tools()
        await client.read_resource("a://b")
        with pytest.raises(ProtocolError):
            await client.call_tool("nobody")
    assert [note for note in notes if "subscriptions" not in note] == [
        *(">tools/call", "<tools/call"),
        *(">tools/list", "<tools/list"),
        *(">resources/read", "<resources/read"),
        *(">tools/call", "<tools/call"),
    ]


async def test_last_one_is_the_outermost() -> None:
    notes: list[str] = []
    server = greeting(middleware=[noting(notes, "a"), noting(notes, "b")])
    server.add_middleware(noting(notes, "c"))
    async with Client(server) as client:
        notes.clear()
        await client.list_tools()
    assert notes == [f"{mark}tools/list" for mark in ("c>", "b>", "a>", "a<", "b<", "c<")]


async def test_middleware_can_be_added_to_a_running_server() -> None:
    notes: list[str] = []
    server = greeting()
    async with Client(server) as client:
        await client.call_tool("greet")
        server.add_middleware(noting(notes))
        await client.call_tool("greet")
    assert notes == [">tools/call", "<tools/call"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_middleware_context_has_caller_and_transport(revision: str) -> None:
    seen: list[Any] = []

    def look(handler: Handler) -> Handler:
        async def looking(call: Call) -> Any:
            if call.method == "tools/call":
                client = call.client
                assert client is not None
                seen.extend(
                    [call.protocol_version, client.name, call.principal, call.capabilities.roots, call.id is not None]
                )
            return await handler(call)

        return looking

    server = greeting(middleware=[look])
    async with Client(server, protocol_version=revision, client_name="probe", principal="ada", roots=[]) as client:
        await client.call_tool("greet")
    assert seen == [revision, "probe", "ada", {}, True]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_middleware_may_answer_by_itself(revision: str) -> None:
    def cached(handler: Handler) -> Handler:
        async def answer(call: Call) -> Any:
            if call.method == "tools/call":
                return CallToolResult(content=[TextContent(text="from the cache")], is_error=False)
            return await handler(call)

        return answer

    async with Client(greeting(middleware=[cached]), protocol_version=revision) as client:
        assert (await client.call_tool("greet")).text == "from the cache"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_middleware_may_change_request_and_response(revision: str) -> None:
    def shout(handler: Handler) -> Handler:
        async def shouting(call: Call) -> Any:
            if call.method != "tools/call":
                return await handler(call)
            params = msgspec.json.decode(call.params)
            params["arguments"] = {"name": "ada"}
            result = await handler(replace(call, params=msgspec.Raw(msgspec.json.encode(params))))
            return replace(result, content=[TextContent(text=result.content[0].text.upper())])

        return shouting

    async with Client(greeting(middleware=[shout]), protocol_version=revision) as client:
        assert (await client.call_tool("greet")).text == "HELLO ADA"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_middleware_may_refuse_a_tool_in_words_for_the_model(revision: str) -> None:
    def limit(handler: Handler) -> Handler:
        async def refuse(call: Call) -> Any:
            if call.method == "tools/call":
                raise ToolError("Too many calls; wait a minute.")
            return await handler(call)

        return refuse

    async with Client(greeting(middleware=[limit]), protocol_version=revision) as client:
        with pytest.raises(ToolError, match="wait a minute"):
            await client.call_tool("greet")


@pytest.mark.parametrize("method, params", [("tools/list", {}), ("resources/read", {"uri": "a://b"})])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_tool_error_outside_tools_call_is_a_protocol_error(
    connect: Connect, revision: str, method: str, params: dict[str, Any]
) -> None:
    """Only tools/call has a result that says no."""

    def closed(handler: Handler) -> Handler:
        async def refuse(call: Call) -> Any:
            if call.method == method:
                raise ToolError("Closed for today.")
            return await handler(call)

        return refuse

    wire = connect(greeting(middleware=[closed]))
    if revision != "2026-07-28":
        await wire.initialize(revision)
    response = await wire.request_as(revision, method, params)
    assert "Closed for today." in response["error"]["message"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_middleware_may_refuse_with_an_error_of_the_protocol(revision: str) -> None:
    def closed(handler: Handler) -> Handler:
        async def refuse(call: Call) -> Any:
            if call.method == "tools/list":
                raise InvalidRequest("Not for you", {"why": "no reason"})
            return await handler(call)

        return refuse

    async with Client(greeting(middleware=[closed]), protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.list_tools()
    assert (raised.value.code, raised.value.message, raised.value.data) == (-32600, "Not for you", {"why": "no reason"})


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_middleware_that_breaks_shows_an_id_and_nothing_else(revision: str) -> None:
    def broken(handler: Handler) -> Handler:
        async def fail(call: Call) -> Any:
            if call.method.startswith("tools/"):
                raise RuntimeError("hunter2")
            return await handler(call)

        return fail

    async with Client(greeting(middleware=[broken]), protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.list_tools()
        result = await client.call_tool("greet", raise_on_error=False)
    assert raised.value.message == f"Internal error (error id {raised.value.data['errorId']})"
    assert "error id" in result.text
    assert "hunter2" not in result.text + raised.value.message


async def test_middleware_wraps_mounted_servers() -> None:
    notes: list[str] = []
    server = Server("outer", middleware=[noting(notes, "out")])
    server.mount(greeting(middleware=[noting(notes, "in")]), namespace="x")
    async with Client(server) as client:
        notes.clear()
        await client.call_tool("x_greet")
    assert notes == ["out>tools/call", "in>tools/call", "in<tools/call", "out<tools/call"]


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_requests_answered_by_the_session_skip_middleware(revision: str) -> None:
    notes: list[str] = []
    async with Client(greeting(middleware=[noting(notes)]), protocol_version=revision) as client:
        notes.clear()
        await client.ping()
        await client.set_log_level("debug")
    assert [note for note in notes if "subscriptions" not in note] == []


async def test_server_without_middleware_has_no_chain() -> None:
    """Nothing runs that nobody asked for: one dict look-up, then the tool."""
    server = greeting()
    call = Call(method="tools/list", id=1, protocol_version="2026-07-28")
    coro = server(call)
    with pytest.raises(StopIteration):
        coro.send(None)


async def test_middleware_may_wait_where_a_tool_would_not() -> None:
    def patient(handler: Handler) -> Handler:
        async def wait(call: Call) -> Any:
            loop = asyncio.get_running_loop()
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned
            return await handler(call)

        return wait

    server = Server("s", middleware=[patient])
    server.tool(name="inline", run_in_thread=False)(lambda: "inline")
    async with Client(server) as client:
        assert (await client.call_tool("inline")).text == "inline"
