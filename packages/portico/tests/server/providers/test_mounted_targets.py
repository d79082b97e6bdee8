"""Mounted remote servers, commands and clients: results pass unchanged."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, SyncClient, ToolError, UsageError
from portico.protocol.errors import ComponentNotFound, ResourceNotFound
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS, ProtocolVersion
from portico.server.http import build_application
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener

TIMEOUT_SECONDS = 10.0


def weather() -> Server:
    server = Server("weather", version="2.0.0")

    @server.tool
    async def forecast(city: str) -> str:
        if city == "Nowhere":
            raise ToolError("There is no such place.")
        return f"sun in {city}"

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("How many?", int)).data)

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await ctx.warning("working")
        return "worked"

    @server.tool
    async def wait(ctx: Context) -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return ""

    @server.resource("data://{x}/more")
    async def more(x: str) -> str | None:
        return x if x != "nothing" else None

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    return server


started, stopped = asyncio.Event(), asyncio.Event()
# The command of the tests: this very file.
server = weather()
COMMAND = [sys.executable, "-c", "import runpy, sys; runpy.run_path(sys.argv[1])['server'].run()", __file__]


@asynccontextmanager
async def mounted(how: str, inner: Server, prefix: str | None = None) -> AsyncIterator[Server]:
    outer = Server("outer")
    if how == "url":
        listener = Listener(build_application(inner, HttpServerSettings()))
        [(host, port, *_)] = await listener.listen("127.0.0.1", 0)
        outer.mount(f"http://{host}:{port}/mcp", prefix)
        try:
            yield outer
        finally:
            await listener.stop(0)
        return
    target: Any = {
        "client": Client(inner),
        "session": Client(inner, protocol_version="2025-11-25"),
        "command": COMMAND,
    }[how]
    outer.mount(target, prefix)
    yield outer


HOW = ["url", "client", "session", "command"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("how", HOW)
async def test_server_elsewhere_answers_as_part_of_this_one(how: str, revision: ProtocolVersion) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        mounted(how, weather(), "w") as outer,
        Client(outer, protocol_version=revision) as client,
    ):
        assert {"w_forecast", "w_ask"} <= {tool.name for tool in await client.list_tools()}
        assert (await client.call_tool("w_forecast", {"city": "Rome"})).text == "sun in Rome"
        with pytest.raises(ToolError, match="no such place"):
            await client.call_tool("w_forecast", {"city": "Nowhere"})
        with pytest.raises(ComponentNotFound):
            await client.call_tool("w_nothing")
        [contents] = await client.read_resource("data://w/a/more")
        assert (contents.uri, contents.text) == ("data://w/a/more", "a")
        with pytest.raises(ResourceNotFound):
            await client.read_resource("data://w/nothing/more")
        response = await client.get_prompt("w_greet", {"name": "Ada"})
        assert response.messages[0].content.text == "Greet Ada."


async def test_handshake_server_results_are_translated_to_2026_07_28() -> None:
    """Without a prefix nothing in it has to change; what its revision does not say is said all the same."""
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        mounted("session", weather()) as outer,
        Client(outer, protocol_version="2026-07-28") as client,
    ):
        messages = [
            await client.request("tools/call", {"name": "forecast", "arguments": {"city": "Rome"}}),
            await client.request("resources/read", {"uri": "data://a/more"}),
            await client.request("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
        ]
    assert [json.loads(bytes(item))["resultType"] for item in messages] == ["complete"] * 3


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("how", ["url", "client", "command"])
async def test_questions_and_news_go_through(how: str, revision: ProtocolVersion) -> None:
    progress: list[Any] = []
    logs: list[Any] = []
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        mounted(how, weather()) as outer,
        Client(
            outer,
            protocol_version=revision,
            elicitation_handler=lambda request: {"value": 7},
            log_handler=logs.append,
            log_level="debug",
        ) as client,
    ):
        assert (await client.call_tool("ask")).text == "7"
        result = await client.call_tool("work", progress_handler=lambda *log: progress.append(log))
        assert result.text == "worked"
        assert progress == [(1.0, 2.0, None)]
        if how == "url" and revision == "2026-07-28":
            assert [log.data for log in logs] == ["working"]


async def test_cancelled_call_is_cancelled_there() -> None:
    started.clear()
    stopped.clear()
    async with asyncio.timeout(TIMEOUT_SECONDS), mounted("url", weather()) as outer, Client(outer) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await started.wait()
        call.cancel()
        await stopped.wait()


@pytest.mark.parametrize("how", ["url", "client", "session"])
async def test_changes_of_mounted_servers_are_notified(how: str) -> None:
    inner = weather()
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        mounted(how, inner) as outer,
        Client(outer) as client,
        client.listen(tools=True) as changes,
    ):
        seen = aiter(changes)
        # The relay begins to listen when the listener is on already.
        for number in range(1000):
            inner.tool(f"more_{number}")(lambda: "")
            try:
                async with asyncio.timeout(0.05):
                    change = await anext(seen)
                    break
            except TimeoutError:
                seen = aiter(changes)
        assert change.kind == "tools"


async def test_open_client_stays_open() -> None:
    async with Client(weather()) as inner:
        outer = Server("outer")
        outer.mount(inner)
        async with Client(outer) as client:
            assert (await client.call_tool("forecast", {"city": "Rome"})).text == "sun in Rome"
        assert (await inner.call_tool("forecast", {"city": "Rome"})).text == "sun in Rome"
        outer.unmount(inner)


def test_module_is_loaded(tmp_path: Path) -> None:
    outer = Server("outer")
    outer.mount(f"{__file__}:server")
    with SyncClient(outer) as client:
        assert client.call_tool("forecast", {"city": "Rome"}).text == "sun in Rome"


@pytest.mark.parametrize(
    "target", [SyncClient("http://a"), 3, None, Server, "", [], object()], ids=lambda one: type(one).__name__
)
def test_invalid_mount_targets_raise_usage_error(target: Any) -> None:
    with pytest.raises(UsageError):
        Server("outer").mount(target)
