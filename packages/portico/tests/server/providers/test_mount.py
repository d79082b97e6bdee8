"""Mounted servers: prefixed names, otherwise as one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Context, ProtocolError, Server, ToolError, UsageError
from portico.protocol.client_features import ElicitParams
from portico.protocol.content import ResourceLink, TextResourceContents
from portico.protocol.errors import MethodNotFound
from portico.protocol.meta import SERVER_INFO_META_KEY
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.server.providers import mount
from portico.server.registry.catalog import Catalog

Connect = Callable[..., Any]

EVERYTHING = SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)


def inner(name: str = "inner") -> Server:
    server = Server(name, version="2.0.0")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def refuse() -> str:
        raise ToolError("Not today.")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("How many?", int)).data)

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await ctx.warning("working")
        return "worked"

    @server.resource("data://one")
    async def one() -> str:
        return "one"

    @server.resource("data://{x}/more")
    async def more(x: str) -> str | None:
        return x if x != "nothing" else None

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    @server.completion("greet", "name")
    async def people(typed: str) -> list[str]:
        return ["Ada"]

    @server.completion("data://{x}/more", "x")
    async def places(typed: str) -> list[str]:
        return ["here"]

    return server


def outer(prefix: str | None = "x") -> Server:
    server = Server("outer", version="1.0.0")
    server.tool("own")(lambda: "own")
    server.resource("data://own")(lambda: "own")
    server.prompt("own")(lambda: "own")
    server.mount(inner(), namespace=prefix)
    return server


# Names


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_mounted_components_are_listed_after_own_ones(revision: str) -> None:
    async with Client(outer(), protocol_version=revision) as client:
        tools = [item.name for item in await client.list_tools()]
        resources = [item.uri for item in await client.list_resources()]
        templates = [item.uri_template for item in await client.list_resource_templates()]
        prompts = [item.name for item in await client.list_prompts()]
    assert tools == ["own", "x_add", "x_refuse", "x_ask", "x_work"]
    assert resources == ["data://own", "data://x/one"]
    assert templates == ["data://x/{x}/more"]
    assert prompts == ["own", "x_greet"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_mounted_components_can_be_used(revision: str) -> None:
    async with Client(outer(), protocol_version=revision) as client:
        assert (await client.call_tool("x_add", {"a": 1, "b": 2})).text == "3"
        assert (await client.read_resource("data://x/one"))[0].text == "one"
        assert (await client.read_resource("data://x/z/more"))[0].text == "z"
        response = await client.get_prompt("x_greet", {"name": "Ada"})
        assert response.messages[0].content.text == "Greet Ada."  # type: ignore[union-attr]
        assert (await client.call_tool("own")).text == "own"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_contents_have_exposed_uris(revision: str) -> None:
    async with Client(outer(), protocol_version=revision) as client:
        assert [item.uri for item in await client.read_resource("data://x/one")] == ["data://x/one"]


async def test_explicit_contents_are_unchanged() -> None:
    kept = TextResourceContents(uri="data://kept", text="kept")
    server, mounted = Server("outer"), Server("inner")
    mounted.resource("data://kept")(lambda: kept)
    server.mount(mounted, namespace="x")
    async with Client(server) as client:
        for _ in range(2):
            assert [item.uri for item in await client.read_resource("data://x/kept")] == ["data://x/kept"]
    assert kept.uri == "data://kept"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_arguments_are_completed_under_the_outward_name(revision: str) -> None:
    async with Client(outer(), protocol_version=revision) as client:
        result = await client.complete({"type": "ref/prompt", "name": "x_greet"}, "name", "")
        assert result.values == ["Ada"]
        result = await client.complete({"type": "ref/resource", "uri": "data://x/{x}/more"}, "x", "")
        assert result.values == ["here"]


async def test_inward_name_is_unknown_outside() -> None:
    async with Client(outer()) as client:
        with pytest.raises(ProtocolError, match="Unknown tool: add"):
            await client.call_tool("add", {"a": 1, "b": 2})
        with pytest.raises(ProtocolError, match="Unknown prompt: greet"):
            await client.get_prompt("greet", {"name": "Ada"})
        with pytest.raises(ProtocolError, match="Resource not found: data://one"):
            await client.read_resource("data://one")


async def test_unknown_mounted_name_error_has_the_exposed_name() -> None:
    async with Client(outer()) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.call_tool("x_ad")
        assert raised.value.message == "Unknown tool: x_ad"
        assert raised.value.data["suggestions"][0] == "x_add"
        with pytest.raises(ProtocolError) as raised:
            await client.get_prompt("x_gret")
    assert raised.value.message == "Unknown prompt: x_gret"


async def test_missing_mounted_resource_error_has_the_exposed_uri() -> None:
    async with Client(outer()) as client:
        for uri in ("data://x/nothing/more", "data://x/nowhere"):
            with pytest.raises(ProtocolError) as raised:
                await client.read_resource(uri)
            assert raised.value.data == {"uri": uri}
            assert raised.value.message == f"Resource not found: {uri}"


async def test_without_a_prefix_names_stay_unchanged() -> None:
    async with Client(outer(prefix=None)) as client:
        assert [tool.name for tool in await client.list_tools()][:2] == ["own", "add"]
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
        assert (await client.read_resource("data://one"))[0].text == "one"


async def test_our_own_names_come_first() -> None:
    server = Server("outer")
    server.tool("add")(lambda: "own")
    server.mount(inner())
    async with Client(server) as client:
        assert (await client.call_tool("add")).text == "own"


async def test_hidden_name_is_not_listed_twice() -> None:
    """A list with the same name twice has one that nobody can call; names are unique in a server."""
    server = Server("outer")
    server.tool("add")(lambda: "own")
    server.mount(inner())
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()].count("add") == 1


@pytest.mark.parametrize("prefixes", [(None, None), ("a", "a"), ("a", "a_b"), ("a_b", "a")])
async def test_every_tool_that_is_listed_can_be_called(prefixes: tuple[str | None, str | None]) -> None:
    """Also when one prefix begins like another, or there is none: who has the tool answers."""
    server = Server("outer")
    for prefix, name in zip(prefixes, ("first", "second"), strict=True):
        mounted = Server(name)
        mounted.tool(name)(lambda name=name: name)
        mounted.prompt(name)(lambda name=name: name)
        mounted.resource(f"data://{name}")(lambda name=name: name)
        server.mount(mounted, namespace=prefix)
    async with Client(server) as client:
        for tool in await client.list_tools():
            assert tool.name.endswith((await client.call_tool(tool.name)).text)
        for resource in await client.list_resources():
            assert (await client.read_resource(resource.uri))[0].text == resource.uri.rpartition("/")[2]
        for prompt in await client.list_prompts():
            response = await client.get_prompt(prompt.name)
            assert prompt.name.endswith(response.messages[0].content.text)  # type: ignore[union-attr]


async def test_link_that_a_mounted_tool_gives_can_be_followed() -> None:
    server, mounted = Server("outer"), Server("inner")
    mounted.resource("data://one")(lambda: "one")
    mounted.tool("point")(lambda: ResourceLink(uri="data://one", name="one"))
    server.mount(mounted, namespace="x")
    async with Client(server) as client:
        [link] = (await client.call_tool("x_point")).content
        assert (await client.read_resource(link.uri))[0].text == "one"


async def test_mounts_nest() -> None:
    server = Server("outermost")
    server.mount(outer("x"), namespace="y")
    async with Client(server) as client:
        assert "y_x_add" in [tool.name for tool in await client.list_tools()]
        assert (await client.call_tool("y_x_add", {"a": 1, "b": 2})).data == 3
        assert (await client.read_resource("data://y/x/one"))[0].uri == "data://y/x/one"


def test_server_is_not_mounted_in_itself() -> None:
    server = Server("s")
    with pytest.raises(UsageError, match="itself"):
        server.mount(server)


# Behaviour


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_rejection_passes_through(revision: str) -> None:
    async with Client(outer(), protocol_version=revision) as client:
        with pytest.raises(ToolError, match=r"Not today\."):
            await client.call_tool("x_refuse")


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_question_passes_through(revision: str) -> None:
    def answer(asked: ElicitParams) -> dict[str, Any]:
        return {"value": 3}

    async with Client(outer(), protocol_version=revision, elicitation_handler=answer) as client:
        assert (await client.call_tool("x_ask")).text == "3"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_progress_and_log_messages_pass_through(revision: str) -> None:
    seen: list[Any] = []
    async with Client(
        outer(), protocol_version=revision, log_level="debug", log_handler=lambda message: seen.append(message.data)
    ) as client:
        await client.call_tool("x_work", progress_handler=lambda *message: seen.append(message[:2]))
    assert seen == [(1.0, 2.0), "working"]


async def test_wrong_arguments_are_named_as_ever() -> None:
    async with Client(outer()) as client:
        result = await client.call_tool("x_add", {"a": 1, "c": 2}, raise_on_error=False)
    assert "Unknown argument 'c'" in result.text
    assert "Missing argument 'b'" in result.text


@pytest.mark.parametrize(
    "method, params", [("tools/list", {}), ("tools/call", {"name": "x_add", "arguments": {"a": 1, "b": 2}})]
)
async def test_result_carries_the_name_of_the_server_that_was_asked(
    connect: Connect, method: str, params: dict[str, Any]
) -> None:
    result = (await connect(outer()).request_stateless(method, params))["result"]
    assert result["_meta"][SERVER_INFO_META_KEY] == {"name": "outer", "version": "1.0.0"}


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_older_client_gets_older_results(connect: Connect, revision: str) -> None:
    wire = connect(outer())
    await wire.initialize(revision)
    for method, params in (
        ("tools/list", {}),
        ("tools/call", {"name": "x_add", "arguments": {"a": 1, "b": 2}}),
        ("resources/read", {"uri": "data://x/one"}),
        ("prompts/get", {"name": "x_greet", "arguments": {"name": "Ada"}}),
    ):
        result = (await wire.request(method, params))["result"]
        assert not result.keys() & {"resultType", "ttlMs", "cacheScope", "_meta"}


async def test_long_lists_have_pages_across_mounts() -> None:
    server = Server("outer", list_page_size=3)
    server.tool("own")(lambda: "")
    for prefix in ("x", "y"):
        server.mount(inner(), namespace=prefix)
    async with Client(server) as client:
        names = [tool.name for tool in await client.list_tools()]
    assert names == ["own", *(f"{prefix}_{name}" for prefix in "xy" for name in ("add", "refuse", "ask", "work"))]


# Changes


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_change_inside_is_reported_outside(heard: Any, revision: str) -> None:
    server, mounted = Server("outer"), Server("inner")
    server.mount(mounted, namespace="x")
    async with Client(server, protocol_version=revision, message_handler=heard) as client:
        if revision in HANDSHAKE_VERSIONS:
            await client.ping()
            mounted.tool("t")(lambda: "")
            await heard.wait_for("notifications/tools/list_changed")
        else:
            async with client.listen(EVERYTHING):
                mounted.tool("t")(lambda: "")
                await heard.wait_for("notifications/tools/list_changed")
        assert [tool.name for tool in await client.list_tools()] == ["x_t"]


async def test_update_inside_is_reported_with_the_outward_uri(heard: Any) -> None:
    server, mounted = Server("outer"), Server("inner")
    mounted.resource("data://one")(lambda: "")
    server.mount(mounted, namespace="x")
    async with (
        Client(server, message_handler=heard) as client,
        client.listen(SubscriptionFilter(resource_subscriptions=["data://x/one"])),
    ):
        mounted.notify_resource_updated("data://one")
        await heard.wait_for("notifications/resources/updated")
    [said] = [params for method, params in heard.messages if method.endswith("updated")]
    assert said["uri"] == "data://x/one"


async def test_mounting_and_unmounting_is_a_change(heard: Any) -> None:
    server, mounted = Server("outer"), inner()
    async with Client(server, message_handler=heard) as client, client.listen(EVERYTHING):
        server.mount(mounted, namespace="x")
        await heard.wait_for("notifications/tools/list_changed")
        assert (await client.call_tool("x_add", {"a": 1, "b": 2})).data == 3
        server.unmount(mounted)
        await heard.wait_for("notifications/tools/list_changed", times=2)
        assert await client.list_tools() == []
        with pytest.raises(ProtocolError, match="Unknown tool: x_add"):
            await client.call_tool("x_add")


async def test_mounting_notifies_existing_subscribers(heard: Any) -> None:
    server, mounted = Server("outer"), Server("inner")
    async with Client(server, message_handler=heard) as client, client.listen(EVERYTHING):
        server.mount(mounted, namespace="x")
        await heard.wait_for("notifications/tools/list_changed")
        mounted.tool("t")(lambda: "")
        await heard.wait_for("notifications/tools/list_changed", times=2)


async def test_mounted_server_lives_as_long_as_ours() -> None:
    lived: list[str] = []

    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[None]:
        lived.append("begins")
        yield
        lived.append("ends")

    server = Server("outer")
    server.mount(Server("inner", lifespan=life))
    async with Client(server):
        assert lived == ["begins"]
    assert lived == ["begins", "ends"]


# Any Handler


async def test_handler_that_knows_only_tools_can_be_mounted() -> None:
    mounted = inner()

    async def only_tools(call: Call) -> Any:
        if not call.method.startswith("tools/"):
            raise MethodNotFound(f"Method not found: {call.method}")
        return await mounted(call)

    server = Server("outer")
    server.mount(only_tools, namespace="x")
    async with Client(server) as client:
        assert len(await client.list_tools()) == 4
        assert await client.list_prompts() == []
        assert await client.list_resources() == []
        assert (await client.call_tool("x_add", {"a": 1, "b": 2})).data == 3


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_mounted_handler_that_fails_fails_the_list_and_nothing_else(revision: str) -> None:
    """A list that silently lacks a part would be believed; what is left can still be called."""

    async def broken(call: Call) -> Any:
        raise OSError("unreachable at 10.0.0.1")

    server = outer()
    server.mount(broken, namespace="broken")
    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.list_tools()
        assert (await client.call_tool("x_add", {"a": 1, "b": 2})).text == "3"
    assert raised.value.code == -32603
    assert raised.value.message == f"Internal error (error id {raised.value.data['errorId']})"


# What many mounts cost


def many(count: int, tools: int) -> tuple[Server, list[Server]]:
    server, mounted = Server("outer"), []
    for number in range(count):
        inside = Server(f"inner{number}")
        for tool in range(tools):
            inside.tool(f"t{tool}")(lambda: "")
        inside.resource("data://one")(lambda: "")
        server.mount(inside, namespace=f"m{number}")
        mounted.append(inside)
    return server, mounted


async def tools_of(server: Server, revision: str = "2026-07-28") -> Any:
    return await server(Call(method="tools/list", id=1, protocol_version=revision))


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_merged_list_is_cached_until_a_mount_changes(revision: str) -> None:
    server, mounted = many(5, 2)
    before = await tools_of(server, revision)
    assert await tools_of(server, revision) is before
    mounted[3].tool("new")(lambda: "")
    after = await tools_of(server, revision)
    assert b'"m3_new"' in bytes(after)
    assert await tools_of(server, revision) is after
    server.unmount(mounted[3])
    assert b'"m3_' not in bytes(await tools_of(server, revision))


async def test_list_over_mounts_looks_at_each_entry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server, mounted = many(40, 5)
    looked_at: list[Any] = []
    name_of = Catalog.name_of
    monkeypatch.setattr(Catalog, "name_of", staticmethod(lambda item: (looked_at.append(item), name_of(item))[1]))
    await tools_of(server)
    assert len(looked_at) == 200
    await tools_of(server)
    assert len(looked_at) == 200
    renamed: list[Any] = []
    outward = mount._outward_entry
    monkeypatch.setattr(mount, "_outward_entry", lambda *value: (renamed.append(value), outward(*value))[1])
    mounted[0].tool("new")(lambda: "")
    await tools_of(server)
    assert len(renamed) == 6  # those of the one that changed


async def test_caller_dependent_list_is_queried_each_time() -> None:
    server, mounted = many(2, 1)
    principals: list[Any] = []

    def look(handler: Any) -> Any:
        async def looked(call: Call) -> Any:
            principals.append(call.principal)
            return await handler(call)

        return looked

    mounted[1].add_middleware(look)
    for who in ("ada", "bob"):
        await server(Call(method="tools/list", id=1, protocol_version="2026-07-28", principal=who))
    assert principals == ["ada", "bob"]


async def test_sessions_do_not_pay_for_each_mount(connect: Connect) -> None:
    """However many listen, a mounted server is listened to once; and when the last has gone, no more."""
    server, mounted = many(20, 1)
    wires = [connect(server) for _ in range(15)]
    for wire in wires:
        await wire.initialize("2025-11-25")
        await wire.request("resources/subscribe", {"uri": "data://m7/one"})
    listeners = [len(item.subscriptions._listeners) for item in mounted]
    assert listeners == [2 if number == 7 else 1 for number in range(20)]
    assert len(server.provider._relays) == 2
    mounted[7].notify_resource_updated("data://one")
    for wire in wires:
        assert (await wire.receive())["params"] == {"uri": "data://m7/one"}
    for wire in wires:
        await wire.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not server.provider._relays
    assert [len(one.subscriptions._listeners) for one in mounted] == [0] * 20
