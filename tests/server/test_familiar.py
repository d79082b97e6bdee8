"""The words of FastMCP and of the official SDK, as their users write them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from portico import (
    AcceptedElicitation,
    AssistantMessage,
    Client,
    Context,
    Depends,
    Elicit,
    ListRoots,
    ProtocolError,
    Resolve,
    Server,
    ToolError,
    ToolResult,
    TransportSecuritySettings,
    UsageError,
    UserMessage,
)
from portico.extend import ElicitResult, Root


class TextContent(BaseModel):
    """As `mcp.types` has it."""

    type: str = "text"
    text: str


class CallToolResult(BaseModel):
    content: list[TextContent]
    structuredContent: dict[str, Any] | None = None
    isError: bool = False


class ToolAnnotations(BaseModel):
    readOnlyHint: bool | None = None
    title: str | None = None


# Results


async def test_blocks_and_results_of_another_library_are_sent_as_what_they_are() -> None:
    server = Server()

    @server.tool
    async def block() -> TextContent:
        return TextContent(text="one")

    @server.tool
    async def blocks() -> list[TextContent]:
        return [TextContent(text="one"), TextContent(text="two")]

    @server.tool
    async def result() -> CallToolResult:
        return CallToolResult(content=[TextContent(text="said")], structuredContent={"n": 1})

    async with Client(server) as client:
        assert [one.output_schema for one in await client.list_tools()] == [None, None, None]
        assert [one.text for one in (await client.call_tool("block")).content] == ["one"]
        assert [one.text for one in (await client.call_tool("blocks")).content] == ["one", "two"]
        said = await client.call_tool("result")
        assert (said.content[0].text, said.structured) == ("said", {"n": 1})


async def test_a_tool_result_takes_structured_content() -> None:
    server = Server()

    @server.tool
    async def told() -> ToolResult:
        return ToolResult("for the model", structured_content={"n": 1}, meta={"k": "v"})

    async with Client(server) as client:
        said = await client.call_tool("told")
        assert (said.content[0].text, said.structured, said.meta["k"]) == ("for the model", {"n": 1}, "v")


async def test_structured_output_can_be_wanted_or_not() -> None:
    server = Server()

    @server.tool(structured_output=True)
    async def text() -> str:
        return "x"

    @server.tool(structured_output=False)
    async def number() -> int:
        return 1

    async with Client(server) as client:
        tools = {one.name: one for one in await client.list_tools()}
        assert tools["text"].output_schema is not None
        assert tools["number"].output_schema is None
        assert (await client.call_tool("text")).structured == "x"
        assert (await client.call_tool("number")).structured is None


async def test_annotations_tags_and_icons_of_another_library_are_read() -> None:
    server = Server(icons=[{"src": "https://example.com/a.png"}])

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True), tags={"b", "a"})
    async def one() -> None: ...

    async with Client(server) as client:
        tool = (await client.list_tools())[0]
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.meta is not None
        assert tool.meta["portico/tags"] == ["a", "b"]
    with pytest.raises(UsageError, match="is no icon"):
        Server(icons=[{"nothing": 1}])


async def test_prompts_are_made_of_messages() -> None:
    server = Server()

    @server.prompt
    def review() -> list[Any]:
        return [UserMessage("look"), AssistantMessage("I do")]

    async with Client(server) as client:
        said = await client.get_prompt("review")
        assert [(one.role, one.content.text) for one in said.messages] == [("user", "look"), ("assistant", "I do")]


# The Context


@dataclass
class App:
    name: str


async def test_what_the_lifespan_yields_is_at_hand() -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[App]:
        yield App("kept")

    server = Server(lifespan=lifespan)

    @server.tool
    async def name(ctx: Context[App]) -> str:
        assert ctx.lifespan_context is ctx.request_context.lifespan_context
        return str(ctx.lifespan_context.name)

    async with server.lifespan(), Client(server) as client:
        assert (await client.call_tool("name")).data == "kept"


async def test_state_belongs_to_one_conversation() -> None:
    server = Server()

    @server.tool
    async def swap(ctx: Context, value: str) -> dict[str, Any]:
        before = await ctx.get_state("k")
        await ctx.set_state("k", value)
        return {"before": before, "id": ctx.session_id}

    async with Client(server) as one, Client(server) as other:
        first = (await one.call_tool("swap", {"value": "a"})).data
        assert (await other.call_tool("swap", {"value": "b"})).data["before"] is None
        again = (await one.call_tool("swap", {"value": "c"})).data
        assert again == {"before": "a", "id": first["id"]}


async def test_what_cannot_be_kept_is_said() -> None:
    server = Server()

    @server.tool
    async def keep(ctx: Context) -> None:
        await ctx.set_state("k", object())

    async with Client(server) as client:
        with pytest.raises(ToolError, match="cannot be kept"):
            await client.call_tool("keep")


async def test_a_body_looks_around_in_its_server() -> None:
    server = Server(page_size=1)

    @server.tool
    async def names(ctx: Context) -> list[str]:
        return [one.name for one in await ctx.list_tools()]

    @server.tool
    async def other() -> None: ...

    async with Client(server) as client:
        assert (await client.call_tool("names")).data == ["names", "other"]
    assert [one.name for one in await server.list_tools()] == ["names", "other"]


async def test_an_answer_is_of_the_class_that_says_what_it_is() -> None:
    server = Server()

    @server.tool
    async def ask(ctx: Context) -> str:
        match await ctx.elicit("How many?", schema=int):
            case AcceptedElicitation(data=count):
                return f"{count}"
            case _:
                return "none"

    async with Client(server, elicitation_handler=lambda _: {"value": 3}) as client:
        assert (await client.call_tool("ask")).data == "3"
    async with Client(server, elicitation_handler=lambda _: ElicitResult("decline")) as client:
        assert (await client.call_tool("ask")).data == "none"


# Dependencies


SAID: list[str] = []


async def connection() -> AsyncIterator[str]:
    SAID.append("open")
    yield "db"
    SAID.append("closed")


def user(name: str, db: str = Depends(connection)) -> str:
    return f"{name} of {db}"


async def test_dependencies_are_made_once_for_a_call_and_ended_with_it() -> None:
    server = Server()
    SAID.clear()

    @server.tool
    async def greet(name: str, who: Annotated[str, Resolve(user)], db: str = Depends(connection)) -> str:
        return f"{who}, {db}, {len(SAID)}"

    async with Client(server) as client:
        schema = (await client.list_tools())[0].input_schema
        assert list(schema["properties"]) == ["name"]
        assert (await client.call_tool("greet", {"name": "ann"})).data == "ann of db, db, 1"
    assert SAID == ["open", "closed"]


async def test_dependencies_of_a_def_and_of_prompts_and_resources() -> None:
    server = Server()

    def number() -> Iterator[int]:
        yield 7

    @server.tool
    def tool(ctx: Context, n: int = Depends(number)) -> int:
        return n

    @server.prompt
    def prompt(n: int = Depends(number)) -> str:
        return f"{n}"

    @server.resource("a://b")
    def resource(n: int = Depends(number)) -> str:
        return f"{n}"

    async with Client(server) as client:
        assert (await client.call_tool("tool")).data == 7
        assert (await client.get_prompt("prompt")).messages[0].content.text == "7"
        assert (await client.read_resource("a://b"))[0].text == "7"


def confirm(title: str) -> Elicit[bool]:
    return Elicit(f"Order {title}?", bool)


def roots() -> ListRoots:
    return ListRoots()


async def test_a_dependency_asks() -> None:
    server = Server()

    @server.tool
    async def order(
        title: str, sure: Annotated[bool, Resolve(confirm)], folders: Annotated[list[Root], Resolve(roots)]
    ) -> dict[str, Any]:
        return {"title": title, "sure": sure, "folders": [one.uri for one in folders]}

    async with Client(server, elicitation_handler=lambda _: {"value": True}, roots=["file:///srv"]) as client:
        assert (await client.call_tool("order", {"title": "Dune"})).data["folders"] == ["file:///srv"]
    async with Client(server, elicitation_handler=lambda _: ElicitResult("decline"), roots=["file:///srv"]) as client:
        with pytest.raises(ToolError, match="did not agree"):
            await client.call_tool("order", {"title": "Dune"})


# The Server


async def test_one_function_completes_everything() -> None:
    server = Server()

    @server.prompt
    def review(language: str) -> str:
        return language

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> list[str]:
        return [f"{ref.name}.{argument.name}.{argument.value}"]

    async with Client(server) as client:
        found = await client.complete({"type": "ref/prompt", "name": "review"}, "language", "p")
        assert found.values == ["review.language.p"]


def test_options_by_their_names_there() -> None:
    server, part = Server(), Server("part")
    server.mount(server=part, namespace="p")
    server.add_tool(lambda: 1, name="one")
    server.remove_tool("one")
    hosts = TransportSecuritySettings(allowed_hosts=["example.com:*"])
    assert server.streamable_http_app(json_response=True, transport_security=hosts) is not None
    assert server.http_app(path="/x") is not None
    assert server.sse_app() is not None
    with pytest.raises(UsageError, match="no log level"):
        Server(log_level="loud")


async def test_what_has_a_tag_can_be_taken_away_and_brought_back() -> None:
    server = Server()
    server.add_tool(lambda: 1, name="one", tags={"beta"})
    server.add_tool(lambda: 2, name="two")
    async with Client(server) as client:
        server.disable(tags={"beta"})
        assert [one.name for one in await client.list_tools()] == ["two"]
        with pytest.raises(ProtocolError):
            await client.call_tool("one")
        server.enable(tags={"beta"})
        assert {one.name for one in await client.list_tools()} == {"one", "two"}


async def test_the_highest_version_of_a_tool_has_its_name() -> None:
    server = Server()
    server.add_tool(lambda: "nine", name="add", version="1.9")
    server.add_tool(lambda: "ten", name="add", version="1.10")
    server.add_tool(lambda: "two", name="add", version="1.2")
    async with Client(server) as client:
        assert [one.name for one in await client.list_tools()] == ["add"]
        assert (await client.call_tool("add")).data == "ten"
        assert (await client.call_tool("add@1.2")).data == "two"
    with pytest.raises(UsageError, match="already a tool"):
        server.add_tool(lambda: "again", name="add", version="1.10")
