"""Attempts to bypass access rules: other tool versions, views, caches, nested calls, other URIs."""

from __future__ import annotations

from typing import Any

import pytest

from portico import Client, Context, Server, ToolError, UsageError
from portico.auth.principal import Principal
from portico.auth.resource_server import ResourceServer
from portico.auth.verifiers.base import InvalidToken, RequestCredentials
from portico.extend import configure_access
from portico.protocol.errors import ComponentNotFound
from portico.protocol.tasks import EXTENSION
from portico.server.middleware import ResponseCachingMiddleware
from portico_gateway import Gateway
from portico_services.contracts import Contracts
from support.access_control import ANN, STRANGER, call, post


def several_versions() -> Server:
    server = Server("house")
    for version in ("1.0", "3.0", "2.0"):
        server.add_tool(_says(version), name="add", version=version, aliases=["plus"], tags=[version])
    return server


def _says(text: str) -> Any:
    def said() -> str:
        return text

    return said


NAMES = ("add", "plus", "add@1.0", "add@2.0", "add@3.0")


async def told(server: Server, name: str, principal: Any = None) -> str | None:
    """What a tool says; None if it is not there."""
    try:
        result = await server(call("tools/call", principal, name=name))
    except ComponentNotFound:
        return None
    return str(result.content[0].text)


async def test_removing_a_tool_removes_every_version() -> None:
    server = several_versions()
    assert [await told(server, name) for name in NAMES] == ["3.0", "3.0", "1.0", "2.0", "3.0"]
    server.disable(names=["add"])
    assert [await told(server, name) for name in NAMES] == [None] * 5
    server.enable(names=["add"])
    assert [await told(server, name) for name in NAMES] == ["3.0", "3.0", "1.0", "2.0", "3.0"]
    server.disable(tags=["3.0"])
    assert [await told(server, name) for name in NAMES] == ["2.0", "2.0", "1.0", "2.0", None]
    server.enable(tags=["3.0"])
    server.remove("add")
    assert [await told(server, name) for name in NAMES] == [None] * 5


async def test_version_cannot_use_the_name_of_another_tool() -> None:
    server = several_versions()
    server.add_tool(_says("other"), name="other")
    for more in ({"version": "4.0", "aliases": ["other"]}, {"version": "2.0"}):
        with pytest.raises(UsageError, match="already registered"):
            server.add_tool(_says("thief"), name="add", **more)
    assert await told(server, "other") == "other" and await told(server, "add@2.0") == "2.0"


async def test_rule_is_about_all_versions_of_a_tool() -> None:
    server = several_versions()
    configure_access(server, {"rule": [{"tool": "house.add", "deny": True}, {"tool": "*"}]})
    assert [await told(server, name, ANN) for name in NAMES] == [None] * 5


async def test_versions_require_their_own_headers() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server = Server("house")
    for version in ("1.0", "2.0"):
        server.tool("add", version=version, input_schema=schema)(lambda region="": region)
    assert set(server.header_params) == {"add", "add@1.0", "add@2.0"}
    server.remove("add")
    assert not server.header_params


async def test_view_is_as_small_in_a_batch() -> None:
    """What a service asks of the server on behalf of a client comes to what the client can ask for itself."""
    inner = Server("inner")
    inner.add_tool(_says("shown"), name="shown")
    inner.add_tool(_says("the secret"), name="secret")
    gateway = Gateway()
    gateway.add_upstream("a", inner)
    gateway.add(Contracts())
    view = gateway.add_view("part", upstreams=["a", "contracts"], exclude=["a.secret"])
    async with gateway.lifespan(), Client(view) as client:
        names = {tool.name for tool in await client.list_tools()}
        assert "a_shown" in names and "a_secret" not in names
        listed = await client.call_tool("spec_list")
        assert "a_shown" in listed.text and "secret" not in listed.text
        calls = [{"tool_name": name, "arguments": {}} for name in ("a_shown", "a_secret")]
        batch = await client.call_tool("tools_batch", {"calls": calls})
        assert "the secret" not in batch.text and "shown" in batch.text
        with pytest.raises(ToolError):
            await client.call_tool("tool_start", {"tool_name": "a_secret"})


async def test_cached_results_are_not_returned_without_the_scope() -> None:
    server = Server("house", middleware=[ResponseCachingMiddleware(["ask"])])
    made: list[int] = []

    @server.tool(scopes=["read"])
    def ask() -> str:
        """Ask."""
        made.append(1)
        return "the answer"

    strong, weak = Principal("ann", frozenset({"read"})), Principal("ann", frozenset())
    for _ in range(2):
        assert await told(server, "ask", strong) == "the answer"
    assert await server.call_tool("ask") and len(made) == 2
    for principal in (weak, None):
        with pytest.raises(Exception, match="scope"):
            await server(call("tools/call", principal, name="ask"))


async def test_response_cache_does_not_bypass_rules_and_limits() -> None:
    server = Server("house", middleware=[ResponseCachingMiddleware(["ask"])])
    server.add_tool(_says("the answer"), name="ask")
    configure_access(server, {"limit": [{"by": "principal", "tool": "house.ask", "rate": "2/hour"}]})
    for _ in range(2):
        assert await told(server, "ask", ANN) == "the answer"
    with pytest.raises(ToolError, match="Too many"):
        await told(server, "ask", ANN)


async def test_request_body_cannot_change_the_client_identity() -> None:
    server = Server("house")
    server.add_tool(_says("the secret"), name="secret")

    @server.tool(task="optional")
    async def run(ctx: Context, tool: str) -> str:
        """Call another tool, as code does that was written for FastMCP."""
        names = [one.name for one in await ctx.server.list_tools()]
        return str((await ctx.server.call_tool(tool)).content[0].text) + str(names)

    configure_access(server, {"rule": [{"principal": "local", "tool": "*"}, {"tool": "house.run"}]})
    assert "the secret" in (await server.call_tool("run", {"tool": "secret"})).content[0].text
    with pytest.raises(ComponentNotFound):
        await server(call("tools/call", ANN, name="run", arguments={"tool": "secret"}))
    async with Client(server, principal=ANN, extensions={EXTENSION: {}}) as client:
        task = await client.start_task("run", {"tool": "secret"})
        with pytest.raises(Exception, match="Unknown tool"):
            await task.result()


async def test_token_for_one_address_is_not_good_from_another() -> None:
    async def verify(shown: RequestCredentials) -> Principal:
        if shown.address != STRANGER:
            raise InvalidToken("it is for another address")
        return Principal("ann")

    server = Server("house", auth=ResourceServer(verify, public_url="http://127.0.0.1"))
    server.add_tool(_says("in"), name="ask")
    headers = {"authorization": "Bearer x", "accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with server.lifespan():
        app = server.http_app()
        results = [(await post(app, body, headers, address=address))[0] for address in (STRANGER, "10.9.9.9", STRANGER)]
    assert results[1] == 401 and results[0] == results[2] != 401


async def test_one_network_of_ipv6_is_one_address() -> None:
    server = Server("house")
    server.add_tool(_says("in"), name="ask")
    configure_access(server, {"limit": [{"by": "ip", "rate": "2/hour"}]})

    async def ask(address: str) -> Any:
        return await server(call("tools/call", ANN, address, name="ask"))

    await ask("2001:db8::1")
    await ask("2001:db8::2")
    with pytest.raises(ToolError, match="Too many"):
        await ask("2001:db8::ffff:3")
    await ask("2001:db8:0:1::1")
    for last in range(1, 4):
        await ask(f"::ffff:10.0.0.{last}")
