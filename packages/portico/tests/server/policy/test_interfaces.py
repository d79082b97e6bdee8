"""Ownership of components, and policy on every path to them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Context, Server, Service
from portico.protocol.errors import ComponentNotFound, InvalidParams, ProtocolError, ResourceNotFound
from portico.rpc.call import Call
from portico.server.policy.interfaces import Decision, Kind, PolicyContext, QualifiedName, Visibility
from portico_gateway import Gateway


class Only:
    """Lets everybody have what is named, as `owner.name`, and nothing else."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = set(allowed)

    def visibility(self, call: Call) -> Visibility:
        return Visibility(frozenset(self.allowed), lambda kind, owned: ".".join(owned) in self.allowed)

    def decide(self, call: Call, kind: Kind, owned: QualifiedName, arguments: bytes | Raw) -> Decision:
        return Decision(".".join(owned) in self.allowed)

    def check_requirements(self, call: Call, kind: Kind, owned: QualifiedName, arguments: bytes | Raw) -> list[str]:
        return []


class Notes:
    def __init__(self) -> None:
        self.began: list[PolicyContext] = []
        self.ends: list[tuple[str, str, bool | None, str]] = []

    def on_request(self, passage: PolicyContext) -> None:
        self.began.append(passage)

    def on_rejected(self, status: int, reason: str, address: str | None) -> None:
        pass

    def on_response(self, passage: PolicyContext, result: Any, failure: BaseException | None) -> None:
        owner, name = passage.component or ("", "")
        allowed = passage.decision.allowed if passage.decision else None
        self.ends.append((owner, name, allowed, type(failure).__name__ if failure else "done"))


def a_server() -> Server:
    server = Server("house")

    @server.tool(aliases=["rm"])
    def remove(name: str) -> str:
        """Remove."""
        return f"removed {name}"

    @server.tool
    async def indirectly(ctx: Context, tool: str) -> str:
        """Call another tool."""
        return str((await ctx.call_tool(tool, {"name": "x"})).content[0].text)

    @server.prompt
    def greet(name: str) -> str:
        """Greet."""
        return f"Hello {name}"

    @server.resource("notes://{id}")
    def note(id: str) -> str:
        """A note."""
        return id

    @server.resource("notes://plan")
    def plan() -> str:
        """The plan."""
        return "plan"

    files = Service("files")

    @files.tool
    def write(name: str) -> str:
        """Write."""
        return name

    server.add(files)
    inner = Server("inner")

    @inner.tool(aliases=["add"])
    def plus(name: str) -> str:
        """Add."""
        return name

    server.mount(inner, "sums")
    return server


def test_everything_has_an_owner_and_one_name() -> None:
    server = a_server()
    assert server.qualified_name("tool", "remove") == ("house", "remove")
    assert server.qualified_name("tool", "rm") == ("house", "remove")
    assert server.qualified_name("tool", "write") == ("files", "write")
    assert server.qualified_name("tool", "sums_plus") == server.qualified_name("tool", "sums_add") == ("sums", "plus")
    assert server.qualified_name("prompt", "greet") == ("house", "greet")
    assert server.qualified_name("resource", "notes://7") == ("house", "notes://7")
    assert server.qualified_name("template", "notes://{id}") == ("house", "notes://{id}")
    assert server.qualified_name("tool", "nothing") == ("", "nothing")


async def test_in_a_gateway_the_owner_is_the_alias() -> None:
    gateway = Gateway({"sums": a_server()})
    async with Client(gateway) as client:
        await client.list_tools()
        assert gateway.qualified_name("tool", "sums_remove") == ("sums", "remove")
        assert gateway.qualified_name("resource", "notes://7") == ("sums", "notes://7")


async def test_denied_components_are_neither_listed_nor_callable() -> None:
    server = a_server()
    server.set_policy(access_policy=Only("files.write", "house.notes://plan", "house.indirectly", "sums.plus"))
    async with Client(server) as client:
        assert {item.name for item in await client.list_tools()} == {"write", "indirectly", "sums_plus"}
        assert not await client.list_prompts()
        assert [item.uri for item in await client.list_resources()] == ["notes://plan"]
        assert not await client.list_resource_templates()
        assert (await client.call_tool("write", {"name": "a"})).text == "a"
        assert (await client.call_tool("sums_add", {"name": "a"})).text == "a"
        for name in ("remove", "rm", "nothing"):
            with pytest.raises(ComponentNotFound) as refused:
                await client.call_tool(name, {"name": "a"})
            assert refused.value.message == f"Unknown tool: {name}"
            assert "remove" not in str(refused.value.data.get("suggestions"))
        with pytest.raises(ComponentNotFound):
            await client.get_prompt("greet", {"name": "a"})
        with pytest.raises(InvalidParams):
            await client.complete({"type": "ref/prompt", "name": "greet"}, "name", "a")
        with pytest.raises(ResourceNotFound):
            await client.read_resource("notes://7")
        with pytest.raises(ProtocolError):
            await client.call_tool("indirectly", {"tool": "rm"})


async def test_denied_mounted_name_is_missing() -> None:
    server = a_server()
    server.set_policy(access_policy=Only("files.write"))
    async with Client(server) as client:
        for name in ("sums_plus", "sums_add", "sums_none"):
            with pytest.raises(ComponentNotFound) as refused:
                await client.call_tool(name, {"name": "a"})
            assert refused.value.message == f"Unknown tool: {name}"


async def test_policy_applies_to_upstream_components() -> None:
    gateway = Gateway({"sums": a_server()})
    gateway.set_policy(access_policy=Only("sums.write", "sums.notes://plan"))
    async with Client(gateway) as client:
        assert [item.name for item in await client.list_tools()] == ["sums_write"]
        assert (await client.call_tool("sums_write", {"name": "a"})).text == "a"
        assert [item.uri for item in await client.list_resources()] == ["notes://plan"]
        with pytest.raises(ComponentNotFound) as refused:
            await client.call_tool("sums_remove", {"name": "a"})
        assert "sums_remove" not in str(refused.value.data.get("suggestions"))
        with pytest.raises(ResourceNotFound):
            await client.read_resource("notes://7")


async def test_audit_hook_receives_every_call_with_its_caller() -> None:
    server, notes = a_server(), Notes()
    server.set_policy(access_policy=Only("house.remove", "sums.plus"), audit_hook=notes)
    async with Client(server) as client:
        await client.call_tool("rm", {"name": "a"})
        await client.call_tool("sums_plus", {"name": "a"})
        with pytest.raises(ComponentNotFound):
            await client.call_tool("write", {"name": "a"})
    assert [end for end in notes.ends if end[0]] == [
        ("house", "remove", True, "done"),
        ("sums", "plus", True, "done"),
        ("files", "write", False, "ComponentNotFound"),
    ]
    assert len(notes.began) == len(notes.ends)
