"""Attempts to evade rules and limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico import Client, Context, Server, Skills
from portico.auth.principal import Principal
from portico.extend import configure_access, http_request
from portico.protocol.errors import ComponentNotFound, InsufficientScope, InvalidParams, ProtocolError, ResourceNotFound
from portico.protocol.tasks import EXTENSION
from portico.rpc.call import Call
from portico.server.http import serve_http
from portico.server.policy import settings as access_settings
from support.access_control import ANN, STRANGER, call, post


def house() -> Server:
    server = Server("house")

    @server.tool
    def secret() -> str:
        """Secret."""
        return "the secret"

    @server.tool(task="optional")
    async def work(ctx: Context, tool: str = "") -> str:
        """Work, and call another tool."""
        return str((await ctx.call_tool(tool)).content[0].text) if tool else "worked"

    return server


async def test_task_runs_with_the_permissions_of_its_caller() -> None:
    """Who is a stranger outside is one in a task as well."""
    server = house()
    configure_access(server, {"rule": [{"principal": "local", "tool": "*"}, {"tool": "house.work"}]})
    async with Client(server, extensions={EXTENSION: {}}) as mine:

        async def as_stranger(one: Call) -> Any:
            return await server(msgspec.structs.replace(one, address=STRANGER))

        async with Client(as_stranger, extensions={EXTENSION: {}}) as theirs, asyncio.timeout(20):
            assert (await (await mine.start_task("work", {"tool": "secret"})).result()).text == "the secret"
            with pytest.raises(ProtocolError, match="Unknown tool: secret"):
                await theirs.call_tool("secret")
            task = await theirs.start_task("work", {"tool": "secret"})
            with pytest.raises(ProtocolError, match="Unknown tool: secret"):
                await task.result()


async def test_task_that_waited_is_queried_again() -> None:
    server = house()
    async with server.lifespan():
        assert server.policy is None
        configure_access(server, {"rule": [{"tool": "house.work"}]})
        assert server.policy is not None
        owned = server.qualified_name("tool", "work")
        assert server.policy.is_still_allowed(call("tools/call"), owned, b"{}")
        configure_access(server, {"rule": [{"tool": "house.secret"}]})
        assert not server.policy.is_still_allowed(call("tools/call"), owned, b"{}")


async def test_skills_are_resources_to_a_rule(tmp_path: Path) -> None:
    for name in ("open", "closed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\nbody")
    server = Server("house")
    server.add(Skills(tmp_path))
    configure_access(server, {"rule": [{"resource": ["skills.skill://open/*", "skills.skill://open"]}]})
    listed = await server(call("skills/list"))
    assert [skill.uri for skill in listed.skills] == ["skill://open/SKILL.md"]
    for uri in ("skill://closed/SKILL.md", "skill://none/SKILL.md"):
        with pytest.raises((ResourceNotFound, InvalidParams)):
            await server(call("skills/get", uri=uri))
    with pytest.raises(ResourceNotFound):
        await server(call("resources/directory/read", uri="skill://closed"))
    with pytest.raises(ResourceNotFound):
        await server(call("resources/read", uri="skill://closed/SKILL.md"))


async def test_headers_of_hidden_tools_are_not_required() -> None:
    server = house()
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    }
    server.tool("hidden", input_schema=schema)(_region)
    server.tool("shown", input_schema=schema)(_region)
    configure_access(server, {"rule": [{"tool": "house.shown"}]})

    async def ask(name: str) -> Any:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": name, "arguments": {"region": "eu"}, "_meta": meta}
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return (await post(server.http_app(), body, headers))[2]["error"]

    async with server.lifespan():
        assert (await ask("shown"))["code"] == -32020
        hidden, missing = await ask("hidden"), await ask("absent")
        assert hidden["code"] == missing["code"] and hidden["message"] == "Unknown tool: hidden"


def _region(region: str = "") -> str:
    return region


async def test_hidden_inner_resources_are_not_notified_by_the_outer_server() -> None:
    inner = Server("inner")

    @inner.resource("notes://{id}")
    def note(id: str) -> str:
        """A note."""
        return id

    configure_access(inner, {"rule": [{"principal": "ann", "resource": "*"}, {"resource": "inner.notes://open"}]})
    outer = Server("outer")
    outer.mount(inner, "in")
    async with Client(outer, principal=Principal("bob")) as client:
        uris = ["notes://in/open", "notes://in/closed"]
        async with client.listen(uris=uris) as changes, asyncio.timeout(10):
            inner.notify_resource_updated("notes://closed")
            inner.notify_resource_updated("notes://open")
            async for change in changes:
                assert change.uri == "notes://in/open"
                break


async def test_scopes_of_a_rule_and_of_the_tool_are_named_together() -> None:
    server = Server("house")
    server.tool("write", scopes=["files:write"])(_region)
    configure_access(server, {"require": [{"tool": "*", "scopes": "house:use"}]})
    with pytest.raises(InsufficientScope) as refused:
        await server(call("tools/call", ANN, name="write"))
    assert refused.value.scopes == {"files:write", "house:use"}


async def test_session_hears_of_a_flood_as_a_429() -> None:
    server = house()
    configure_access(server, {"limit": [{"by": "ip", "rate": "3/hour"}]})
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop))
    async with asyncio.timeout(20):
        async with Client(await ready, protocol_version="2025-11-25") as client:
            with pytest.raises(ProtocolError) as refused:
                for _ in range(5):
                    await client.list_tools(refresh=True)
        stop.set()
        await serving
    assert (refused.value.http_status, refused.value.code) == (429, -32005) and refused.value.retry_after


def test_unknown_section_is_a_mistake() -> None:
    from portico import UsageError

    with pytest.raises(UsageError, match="did you mean 'rule'"):
        configure_access(Server("house"), {"rules": []})
    assert "rule" in access_settings.ACCESS_SECTIONS


async def test_unknown_names_use_up_a_limit_like_known_ones() -> None:
    server = house()
    configure_access(server, {"limit": [{"by": "principal", "rate": "2/hour"}], "rule": [{"tool": "house.work"}]})
    for name in ("nothing", "secret"):
        with pytest.raises(ComponentNotFound):
            await server(call("tools/call", ANN, name=name))
    from portico import ToolError

    with pytest.raises(ToolError, match="Too many calls"):
        await server(call("tools/call", ANN, name="secret"))


async def test_metrics_omit_hidden_names(tmp_path: Path) -> None:
    async def verify(credentials: Any) -> Principal:
        return Principal(credentials.token, frozenset({"operator"} if credentials.token == "op" else ()))

    server = Server("house", auth=verify)
    for name in ("open", "hidden"):
        server.tool(name=name, description="It is done.")(lambda: "done")
    rules = [{"principal": "op", "tool": "*.*"}, {"principal": "ann", "tool": "house.open"}]
    access_settings.apply(server, access_settings.read({"rule": rules}, tmp_path))
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop))
    url = await asyncio.wait_for(ready, 20)
    message = {}
    try:
        async with Client(url, auth="op") as client:
            for name in ("open", "hidden"):
                await client.call_tool(name)
        for who in ("op", "ann"):
            headers = [("Authorization", f"Bearer {who}")]
            place = url.removesuffix("/mcp") + "/metrics"
            answer = await http_request("GET", place, headers=headers, timeout=20, max_response_bytes=1 << 20)
            message[who] = answer.body.decode()
    finally:
        stop.set()
        await serving
    assert '"hidden"' in message["op"] and '"open"' in message["op"]
    assert '"hidden"' not in message["ann"] and '"open"' in message["ann"]
