"""Views: subsets of the same upstreams on separate paths, sharing connections."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, UsageError
from portico.cli.main import main
from portico.extend import serve_http
from portico.protocol.errors import ComponentNotFound, ResourceNotFound
from portico_gateway import Gateway
from support.paths import PROGRAMS

REVISIONS = ["2025-11-25", "2026-07-28"]


def upstream(name: str) -> Server:
    server = Server(name)

    @server.tool
    async def list_things() -> str:
        return name

    @server.tool
    async def delete_thing() -> str:
        return "gone"

    @server.resource(f"{name}://one")
    async def one() -> str:
        return name

    @server.prompt
    async def greet() -> str:
        return "hello"

    return server


def gateway() -> Gateway:
    result = Gateway(
        {"a": upstream("a"), "b": upstream("b")}, name="acme", instructions="all of it", max_result_tokens=0
    )

    @result.tool
    async def own() -> str:
        return "own"

    result.add_view("ops", upstreams=["a"], instructions="only a")
    result.add_view("readers", path="/read", include=["*.list_*", "acme.own"])
    return result


async def names(target: Any, **options: Any) -> set[str]:
    async with Client(target, **options) as client:
        return {tool.name for tool in await client.list_tools()}


async def test_view_lists_its_part() -> None:
    result = gateway()
    assert await names(result) == {"own", "a_list_things", "a_delete_thing", "b_list_things", "b_delete_thing"}
    assert await names(result.views["ops"]) == {"a_list_things", "a_delete_thing"}
    assert await names(result.views["readers"]) == {"own", "a_list_things", "b_list_things"}


async def test_components_outside_a_view_are_not_found() -> None:
    async with Client(gateway().views["ops"]) as client:
        assert (await client.call_tool("a_list_things")).text == "a"
        assert (await client.read_resource("a://one"))[0].text == "a"
        for tool in ("b_list_things", "own"):
            with pytest.raises(ComponentNotFound) as error:
                await client.call_tool(tool)
            assert not any(resource.startswith("b_") for resource in (error.value.data or {}).get("suggestions", []))
        with pytest.raises(ResourceNotFound):
            await client.read_resource("b://one")
        with pytest.raises(ComponentNotFound):
            await client.get_prompt("b_greet")
        assert {str(resource.uri) for resource in await client.list_resources()} == {"a://one"}
        assert client.instructions == "only a"


async def test_middleware_of_the_gateway_is_around_its_views() -> None:
    result, seen = gateway(), []

    def watch(inner: Any) -> Any:
        async def watched(call: Any) -> Any:
            seen.append((call.method, call.facet.settings.name))
            return await inner(call)

        return watched

    result.add_middleware(watch)
    async with Client(result.views["ops"]) as client:
        await client.call_tool("a_list_things")
    assert ("tools/call", "ops") in seen


@pytest.mark.parametrize("revision", REVISIONS)
async def test_each_view_has_its_path(revision: Any) -> None:
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(gateway(), port=0, on_ready=ready.set_result, stop=stop))
    try:
        url = await asyncio.wait_for(ready, 20)
        assert await names(f"{url}/ops", protocol_version=revision) == {"a_list_things", "a_delete_thing"}
        assert len(await names(url, protocol_version=revision)) == 5
        async with Client(url.replace("/mcp", "/read"), protocol_version=revision) as client:
            assert (await client.call_tool("own")).text == "own"
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize("revision", REVISIONS)
async def test_change_is_reported_where_it_is_seen(revision: Any) -> None:
    """One that listens to another part of the server hears nothing of it."""
    a, b = upstream("a"), upstream("b")
    result = Gateway({"a": a, "b": b}, max_result_tokens=0)
    result.add_view("ops", upstreams=["a"])
    async with (
        Client(result, protocol_version=revision) as everything,
        Client(result.views["ops"], protocol_version=revision) as ops,
        everything.listen(tools=True) as all_changes,
        ops.listen(tools=True) as ops_changes,
    ):
        await everything.list_tools()
        await ops.list_tools()
        heard = asyncio.ensure_future(anext(aiter(ops_changes)))

        @b.tool
        async def more() -> str:
            return "more"

        async with asyncio.timeout(20):
            await anext(aiter(all_changes))
            assert "b_more" in {tool.name for tool in await everything.list_tools(refresh=True)}
            assert not heard.done()

            @a.tool
            async def also() -> str:
                return "also"

            await heard
        assert "a_also" in {tool.name for tool in await ops.list_tools(refresh=True)}


FILE = """
[upstream.a]
command = ["{python}", "{server}"]

[view.ops]
upstreams = ["a"]
include = ["a.add"]
"""


def file(tmp_path: Path, more: str = "") -> Path:
    result = tmp_path / "gateway.toml"
    server = PROGRAMS / "elicitation_server.py"
    result.write_text(FILE.format(python=sys.executable, server=server) + more)
    return result


async def test_view_is_served_on_stdio(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "portico", "serve", str(file(tmp_path)), "--view", "ops"]
    async with Client([*command, "--data", str(tmp_path)]) as client:
        names: list[str] = []
        async with asyncio.timeout(30):
            # What takes longer than the first list is waited for comes later.
            while len(names) < 2:
                names = [tool.name for tool in await client.list_tools(refresh=True)]
        assert names == ["read_result", "a_add"]
        assert (await client.call_tool("a_add", {"a": 1, "b": 2})).text == "3"


async def test_face_of_a_view_is_served_on_stdio(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "portico", "serve", str(file(tmp_path)), "--view", "ops", "--tool-search"]
    async with asyncio.timeout(30), Client([*command, "--data", str(tmp_path)]) as client:
        assert [tool.name for tool in await client.list_tools()] == ["read_result", "find_tools", "call_tool"]
        result = ""
        while "a_add(" not in result:
            result = (await client.call_tool("find_tools", {"queries": "add numbers"})).text
        assert (await client.call_tool("call_tool", {"name": "a_add", "arguments": {"a": 1, "b": 2}})).text == "3"


def test_check_shows_the_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["gateway", "check", str(file(tmp_path))])
    assert ["ops", "/mcp/ops", "1", "0", "0"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "more, what",
    [
        ("[view.two]\npath = '/mcp/ops'", "have the same path /mcp/ops"),
        ("[view.two]\npath = 'ops'", "endpoint path must start with"),
        ("[view.two]\nincludes = ['x']", "did you mean 'include'"),
        ("[view.two]\ninclude = 'x'", "include: expected a list, got 'x'"),
    ],
)
def test_invalid_view_settings_raise_usage_error(tmp_path: Path, more: str, what: str) -> None:
    with pytest.raises(UsageError) as error:
        Gateway.load(file(tmp_path, more), max_result_tokens=0)
    assert what in str(error.value)


def test_missing_view_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", str(file(tmp_path)), "--view", "opps"])
    assert "unknown view 'opps'" in capsys.readouterr().err


async def test_task_sees_no_more_than_the_view_it_was_begun_through() -> None:
    result = gateway()
    seen: list[Any] = []

    @result.tool(task="required")
    async def look(ctx: Context) -> str:
        """Look at what there is for whom."""
        seen.append(ctx.caller_fields["facet"])
        return "looked"

    result.add_view("lookers", include=["acme.look", "a.list_*"])
    for target in (result.views["lookers"], result):
        async with Client(target) as client:
            assert (await client.call_tool("look")).text == "looked"
    assert seen == [result.views["lookers"], None]
    assert not seen[0].includes("a", "delete_thing")
