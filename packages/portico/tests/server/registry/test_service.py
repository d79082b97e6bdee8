"""Services are added and removed as a unit, with one change notification."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Context, ProtocolError, Server, Service, UsageError, completion, prompt, resource, tool
from portico.protocol.subscriptions import SubscriptionFilter
from portico.protocol.versions import HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.server.components.tools import Tool

EVERYTHING = SubscriptionFilter(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"


class Notes(Service):
    """A service as a class: its methods carry the decorators."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    @tool
    async def keep(self, text: str) -> str:
        """Keep a note."""
        self.kept.append(text)
        return f"{len(self.kept)} kept"

    @tool(name="forget_all", annotations={"destructiveHint": True})
    def forget(self) -> str:
        self.kept.clear()
        return "forgotten"

    @resource("notes://{number}")
    async def note(self, number: int) -> str | None:
        return self.kept[number] if number < len(self.kept) else None

    @resource("notes://all")
    async def all(self) -> list[str]:
        return self.kept

    @prompt
    async def summarize(self, style: str) -> str:
        return f"Summarize {len(self.kept)} notes in a {style} style."

    @completion("summarize", "style")
    async def styles(self, typed: str) -> list[str]:
        return [style for style in ("brief", "broad") if style.startswith(typed)]

    def not_a_tool(self) -> str:
        return "private"


async def names(server: Server) -> list[str]:
    async with Client(server) as client:
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_class_offers_its_decorated_methods(revision: str) -> None:
    server = Server("s")
    server.add(Notes())
    async with Client(server, protocol_version=revision) as client:
        assert [item.name for item in await client.list_tools()] == ["keep", "forget_all"]
        assert [item.uri for item in await client.list_resources()] == ["notes://all"]
        assert [item.uri_template for item in await client.list_resource_templates()] == ["notes://{number}"]
        assert [item.name for item in await client.list_prompts()] == ["summarize"]
        assert (await client.call_tool("keep", {"text": "milk"})).text == "1 kept"
        assert (await client.read_resource("notes://0"))[0].text == "milk"
        assert (await client.read_resource("notes://all"))[0].text == '["milk"]'
        response = await client.get_prompt("summarize", {"style": "brief"})
        assert response.messages[0].content.text == "Summarize 1 notes in a brief style."  # type: ignore[union-attr]
        result = await client.complete({"type": "ref/prompt", "name": "summarize"}, "style", "br")
        assert result.values == ["brief", "broad"]


async def test_service_instances_do_not_share_state() -> None:
    item, other = Server("one"), Server("other")
    item.add(Notes())
    other.add(Notes())
    async with Client(item) as client:
        await client.call_tool("keep", {"text": "milk"})
    async with Client(other) as client:
        assert (await client.call_tool("keep", {"text": "bread"})).text == "1 kept"


async def test_service_subclass_inherits_and_overrides_components() -> None:
    class More(Notes):
        name = "more"

        async def keep(self, text: str) -> str:
            return "an override without a decorator is not offered"

        @tool
        async def count(self) -> int:
            return len(self.kept)

    class Louder(Notes):
        @tool
        async def keep(self, text: str) -> str:
            """Keep it loudly."""
            return text.upper()

    server = Server("s")
    server.add(More())
    assert await names(server) == ["forget_all", "count"]
    server.remove("more")
    server.add(Louder())
    async with Client(server) as client:
        assert (await client.call_tool("keep", {"text": "milk"})).text == "MILK"


async def test_functions_may_be_registered_with_an_instance() -> None:
    notes = Service("notes")

    @notes.tool
    async def keep(text: str, ctx: Context) -> str:
        return f"{text} for {ctx.server.name}"

    @notes.tool(name="drop", title="Drop")
    async def forget() -> str:
        return "dropped"

    notes.prompt("p")(lambda: "prompt")
    notes.resource("notes://all")(lambda: "all")
    server = Server("s")
    server.add(notes)
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["keep", "drop"]
        assert (await client.call_tool("keep", {"text": "milk"})).text == "milk for s"
        assert (await client.read_resource("notes://all"))[0].text == "all"


async def test_any_object_with_marked_methods_is_a_service() -> None:
    class Plain:
        @tool
        async def greet(self) -> str:
            return "hello"

        @tool
        @prompt
        async def both(self) -> str:
            return "both"

    server = Server("s")
    server.add(Plain())
    async with Client(server) as client:
        assert (await client.call_tool("greet")).text == "hello"
        assert (await client.call_tool("both")).text == "both"
        assert (await client.get_prompt("both")).messages[0].content.text == "both"  # type: ignore[union-attr]
    server.remove("plain")
    assert await names(server) == []


async def test_single_things_can_be_added_and_removed() -> None:
    server = Server("s")

    async def plain() -> str:
        return "plain"

    server.add(plain)
    server.add(Tool(plain, name="renamed"))
    server.prompt("p")(lambda: "")
    server.resource("a://b")(lambda: "")
    server.resource("a://{x}")(lambda x: x)
    assert await names(server) == ["plain", "renamed"]
    for name in ("plain", "renamed", "p", "a://b", "a://{x}"):
        server.remove(name)
    async with Client(server) as client:
        assert await client.list_tools() == []
        assert await client.list_prompts() == []
        assert await client.list_resources() == []
        assert await client.list_resource_templates() == []
        with pytest.raises(ProtocolError, match="Unknown tool: plain"):
            await client.call_tool("plain")
        with pytest.raises(ProtocolError, match="Resource not found: a://c"):
            await client.read_resource("a://c")


def test_invalid_additions_and_removals_raise_usage_error() -> None:
    server = Server("s")
    for thing in (5, "name", None, object()):
        with pytest.raises(UsageError, match="expected a service"):
            server.add(thing)
    with pytest.raises(UsageError, match="cannot remove 'x'"):
        server.remove("x")
    server.add(Notes())
    with pytest.raises(UsageError, match="service 'notes' is already registered"):
        server.add(Notes())


async def test_removed_service_can_come_back() -> None:
    server = Server("s")
    notes = Notes()
    server.add(notes)
    server.remove("notes")
    assert await names(server) == []
    server.add(notes)
    assert await names(server) == ["keep", "forget_all"]
    async with Client(server) as client:
        await client.call_tool("keep", {"text": "milk"})
        assert (await client.read_resource("notes://0"))[0].text == "milk"


async def test_removing_a_service_preserves_replacements() -> None:
    server = Server("s")
    server.add(Notes())
    server.remove("keep")
    server.tool("keep")(lambda: "mine")
    server.remove("notes")
    async with Client(server) as client:
        assert (await client.call_tool("keep")).text == "mine"


# All or nothing


def clashing(kind: str) -> Service:
    """A service whose last part clashes with what is there."""
    service = Service("clashing")
    service.tool("fresh")(lambda: "")
    service.prompt("fresh")(lambda: "")
    service.resource("fresh://a")(lambda: "")
    service.resource("fresh://{x}")(lambda x: x)
    if kind == "tool":
        service.tool("taken")(lambda: "")
    elif kind == "alias":
        service.tool(name="other", aliases=["taken"])(lambda: "")
    elif kind == "prompt":
        service.prompt("taken")(lambda: "")
    elif kind == "resource":
        service.resource("taken://a")(lambda: "")
    else:
        service.resource("taken://{x}")(lambda x: x)
    return service


def taken() -> Server:
    server = Server("s")
    server.tool("taken")(lambda: "the first")
    server.prompt("taken")(lambda: "the first")
    server.resource("taken://a")(lambda: "the first")
    server.resource("taken://{x}")(lambda x: "the first")
    return server


@pytest.mark.parametrize("kind", ["tool", "alias", "prompt", "resource", "template"])
async def test_service_is_added_atomically(kind: str) -> None:
    server = taken()
    with pytest.raises(UsageError, match="taken"):
        server.add(clashing(kind))
    async with Client(server) as client:
        assert [item.name for item in await client.list_tools()] == ["taken"]
        assert [item.name for item in await client.list_prompts()] == ["taken"]
        assert [item.uri for item in await client.list_resources()] == ["taken://a"]
        assert [item.uri_template for item in await client.list_resource_templates()] == ["taken://{x}"]
        assert (await client.call_tool("taken")).text == "the first"
        assert (await client.read_resource("taken://z"))[0].text == "the first"
    server.remove("taken")
    with pytest.raises(UsageError, match="it is not registered"):
        server.remove("clashing")


@pytest.mark.parametrize("kind", ["tool", "prompt", "resource"])
async def test_service_that_was_not_added_is_not_told_of(heard: Any, kind: str) -> None:
    """In the end nothing has changed, so there is nothing to tell."""
    server = taken()
    async with Client(server, message_handler=heard) as client, client.listen(EVERYTHING):
        with pytest.raises(UsageError):
            server.add(clashing(kind))
        async with Client(server) as other:
            await other.list_tools()
        server.tool("sentinel")(lambda: "")
        await heard.wait_for(TOOLS)
        server.prompt("sentinel")(lambda: "")
        await heard.wait_for(PROMPTS)
    assert [method for method in heard.methods if "list_changed" in method] == [TOOLS, PROMPTS]


# Being told


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_change_is_reported_once_and_by_its_kind(heard: Any, revision: str) -> None:
    server = Server("s")
    async with Client(server, protocol_version=revision, message_handler=heard) as client:
        if revision in HANDSHAKE_VERSIONS:
            await client.ping()
            await steps(client, server, heard)
        else:
            async with client.listen(EVERYTHING):
                await steps(client, server, heard)
    assert [method for method in heard.methods if "list_changed" in method] == [
        *(TOOLS, PROMPTS, RESOURCES, RESOURCES),
        *(PROMPTS, RESOURCES, TOOLS),
        *(PROMPTS, RESOURCES, TOOLS),
        TOOLS,
    ]


async def steps(client: Client, server: Server, heard: Any) -> None:
    server.tool("t")(lambda: "")
    await heard.wait_for(TOOLS)
    server.prompt("p")(lambda: "")
    await heard.wait_for(PROMPTS)
    server.resource("a://b")(lambda: "")
    await heard.wait_for(RESOURCES)
    server.resource("a://{x}")(lambda x: x)
    await heard.wait_for(RESOURCES, times=2)
    server.add(Notes())
    await heard.wait_for(TOOLS, times=2)
    server.remove("notes")
    await heard.wait_for(TOOLS, times=3)
    # Nothing of this changes a list.
    server.completion("p", "x")(lambda typed: [])
    server.add_middleware(lambda handler: handler)
    server.notify_resource_updated("a://b")
    await client.list_tools()
    server.remove("t")
    await heard.wait_for(TOOLS, times=4)


async def test_list_has_changed_by_the_time_one_is_informed(heard: Any) -> None:
    server = Server("s")
    async with Client(server, message_handler=heard) as client, client.listen(EVERYTHING):
        assert await client.list_tools() == []
        server.add(Notes())
        await heard.wait_for(TOOLS)
        assert [tool.name for tool in await client.list_tools()] == ["keep", "forget_all"]


async def test_ended_subscription_gets_no_notifications(heard: Any) -> None:
    server = Server("s")
    async with Client(server, message_handler=heard) as client:
        async with client.listen(EVERYTHING):
            pass
        server.tool("t")(lambda: "")
        await client.list_tools()
        async with client.listen(SubscriptionFilter(prompts_list_changed=True)):
            server.prompt("p")(lambda: "")
            await heard.wait_for(PROMPTS)
    assert TOOLS not in heard.methods


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_server_without_list_changed_sends_no_notifications(heard: Any, revision: str) -> None:
    server = Server("s", capabilities={"tools": {}, "prompts": {"listChanged": True}})
    async with Client(server, protocol_version=revision, message_handler=heard) as client:
        assert client.server_capabilities.tools == {}
        if revision in HANDSHAKE_VERSIONS:
            await client.ping()
            await silently(server, heard)
        else:
            async with client.listen(EVERYTHING):
                await silently(server, heard)
    assert TOOLS not in heard.methods


async def silently(server: Server, heard: Any) -> None:
    server.tool("t")(lambda: "")
    server.prompt("p")(lambda: "")
    await heard.wait_for(PROMPTS)
    server.prompt("q")(lambda: "")
    await heard.wait_for(PROMPTS, times=2)


async def test_change_made_in_a_thread_is_reported(heard: Any) -> None:
    server = Server("s")

    @server.tool
    def learn() -> str:
        server.tool("learnt")(lambda: "")
        return "learnt"

    async with Client(server, message_handler=heard) as client, client.listen(EVERYTHING):
        await client.call_tool("learn")
        await heard.wait_for(TOOLS)


# Their time


async def test_service_lives_as_long_as_its_server() -> None:
    lived: list[str] = []

    class Living(Service):
        def __init__(self, name: str) -> None:
            super().__init__(name)

        @asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
            lived.append(f"{self.name} begins")
            yield
            lived.append(f"{self.name} ends")

    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[None]:
        lived.append(f"{server.name} begins")
        yield
        lived.append(f"{server.name} ends")

    server = Server("server", lifespan=life)
    server.add(Living("first"))
    server.add(Living("second"))
    async with Client(server):
        assert lived == ["server begins", "first begins", "second begins"]
    assert lived[3:] == ["second ends", "first ends", "server ends"]


async def test_removed_service_does_not_live() -> None:
    lived: list[str] = []

    class Living(Service):
        @asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
            lived.append(self.name)
            yield

    server = Server("s")
    server.add(Living())
    server.remove("living")
    async with Client(server):
        assert lived == []


async def test_service_that_cannot_begin_keeps_the_server_from_beginning() -> None:
    class Broken(Service):
        @asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
            raise OSError("no database")
            yield

    server = Server("s")
    server.add(Broken())
    with pytest.raises(OSError, match="no database"):
        async with Client(server):
            pass
