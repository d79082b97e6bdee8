"""Prompts: text arguments, and messages in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest

from portico import Client, Context, Image, ProtocolError, Server, ToolError
from portico.protocol.content import AudioContent, ResourceLink, TextContent
from portico.protocol.meta import Icon
from portico.protocol.prompts import GetPromptResult, PromptMessage
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS

Connect = Callable[..., Any]


async def messages(server: Server, name: str, arguments: dict[str, str] | None = None, **options: Any) -> Any:
    async with Client(server, **options) as client:
        return (await client.get_prompt(name, arguments)).messages


async def test_prompt_is_listed_with_its_arguments() -> None:
    server = Server("s")

    @server.prompt(title="Review", icons=[Icon("https://example.com/i.png")], meta={"example.com/a": 1})
    async def review(code: Annotated[str, "What to review"], style: str = "kind") -> str:
        """Review some code."""
        return code + style

    async with Client(server) as client:
        [prompt] = await client.list_prompts()
    assert (prompt.name, prompt.title, prompt.description) == ("review", "Review", "Review some code.")
    assert prompt.arguments is not None
    assert [(argument.name, argument.description, argument.required) for argument in prompt.arguments] == [
        ("code", "What to review", True),
        ("style", None, False),
    ]


async def test_prompt_without_arguments_lists_none(connect: Connect) -> None:
    server = Server("s")
    server.prompt("bare")(lambda: "")
    assert (await connect(server).request_stateless("prompts/list"))["result"]["prompts"] == [{"name": "bare"}]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_older_client_does_not_receive_unknown_members(connect: Connect, revision: str) -> None:
    server = Server("s")
    server.prompt(name="p", title="T", icons=[Icon("https://example.com/i.png")], meta={"a": 1})(lambda: "")
    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    [prompt] = (await wire.request_as(revision, "prompts/list"))["result"]["prompts"]
    known_names = {"name"} | ({"title", "_meta"} if revision >= "2025-06-18" else set())
    assert prompt.keys() == known_names | ({"icons"} if revision >= "2025-11-25" else set())


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_text_is_converted_to_the_annotated_type(revision: str) -> None:
    seen: list[Any] = []
    server = Server("s")

    @server.prompt
    async def ask(count: int, ratio: float, deep: bool, tags: list[str], kind: Literal["a", "b"] = "a") -> str:
        seen.extend([count, ratio, deep, tags, kind])
        return "asked"

    arguments = {"count": "3", "ratio": "0.5", "deep": "true", "tags": '["x"]'}
    await messages(server, "ask", arguments, protocol_version=revision)
    assert seen == [3, 0.5, True, ["x"], "a"]


async def test_text_that_looks_like_a_number_stays_a_text() -> None:
    server = Server("s")
    server.prompt(echo)
    [message] = await messages(server, "echo", {"said": "42"})
    assert message.content.text == "'42'"


async def echo(said: str) -> str:
    return repr(said)


@pytest.mark.parametrize(
    "value, expected",
    [
        ("one", [("user", "one")]),
        (["one", "two"], [("user", "one"), ("user", "two")]),
        (("one",), [("user", "one")]),
        ({"role": "assistant", "content": "one"}, [("assistant", "one")]),
        ([PromptMessage("assistant", TextContent(text="a")), "b"], [("assistant", "a"), ("user", "b")]),
        (TextContent(text="block"), [("user", "block")]),
        ({"a": 1}, [("user", '{"a":1}')]),
        (5, [("user", "5")]),
        ([], []),
    ],
)
async def test_return_values_become_messages(value: Any, expected: list[tuple[str, str]]) -> None:
    server = Server("s")
    server.prompt("p")(lambda: value)
    assert [(message.role, message.content.text) for message in await messages(server, "p")] == expected


async def test_explicit_result_is_unchanged() -> None:
    server = Server("s")
    full = GetPromptResult(description="Code review for Set", messages=[PromptMessage("user", TextContent(text="x"))])
    server.prompt("p")(lambda: full)
    async with Client(server) as client:
        response = await client.get_prompt("p")
    assert (response.description, response.messages[0].content.text) == ("Code review for Set", "x")


@pytest.mark.requirement("content.base64")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_image_may_stand_in_a_message(revision: str) -> None:
    server = Server("s")
    server.prompt("p")(lambda: ["look", Image(data=b"\x00")])
    text, image = await messages(server, "p", protocol_version=revision)
    assert (text.content.text, image.content.data, image.content.mime_type) == ("look", "AA==", "image/png")


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_content_unknown_to_a_protocol_version_is_sent_as_text(revision: str) -> None:
    server = Server("s")
    link = ResourceLink(uri="a://b", name="b", title="The b")
    server.prompt("p")(lambda: [AudioContent(data="AAAA", mime_type="audio/wav"), link])
    audio, linked = await messages(server, "p", protocol_version=revision)
    assert type(audio.content) is (AudioContent if revision >= "2025-03-26" else TextContent)
    assert type(linked.content) is (ResourceLink if revision >= "2025-06-18" else TextContent)
    if revision < "2025-06-18":
        assert "a://b" in linked.content.text


async def test_context_is_not_an_argument() -> None:
    server = Server("s")

    @server.prompt
    async def who(ctx: Context) -> str:
        return ctx.protocol_version

    async with Client(server) as client:
        [prompt] = await client.list_prompts()
        assert prompt.arguments is None
    assert (await messages(server, "who", protocol_version="2025-06-18"))[0].content.text == "2025-06-18"


# What is said when it is wrong


@pytest.mark.requirement("prompts.validated")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, ["Missing argument 'count'", "an integer", "How many"]),
        ({"count": "many"}, ["'count'", "an integer", '"many"']),
        ({"count": "1", "colour": "red"}, ["Unknown argument 'colour'", "Accepted: 'count'"]),
    ],
)
async def test_wrong_arguments_are_named(revision: str, arguments: dict[str, str], words: list[str]) -> None:
    server = Server("s")
    server.prompt(counting)
    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.get_prompt("counting", arguments)
    assert raised.value.code == -32602
    for word in words:
        assert word in raised.value.message


async def counting(count: Annotated[int, "How many"]) -> str:
    return str(count)


@pytest.mark.requirement("prompts.unknown")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unknown_prompt_is_met_with_the_nearest_name(revision: str) -> None:
    server = Server("s")
    server.prompt(counting)
    async with Client(server, protocol_version=revision) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.get_prompt("countin")
    assert (raised.value.code, raised.value.message) == (-32602, "Unknown prompt: countin")
    assert raised.value.data["suggestions"] == ["counting"]


@pytest.mark.parametrize("arguments", [{"count": 5}, {"count": None}, [], "x"])
async def test_arguments_are_texts(connect: Connect, arguments: Any) -> None:
    server = Server("s")
    server.prompt(counting)
    error = (await connect(server).request_stateless("prompts/get", {"name": "counting", "arguments": arguments}))[
        "error"
    ]
    assert error["code"] == -32602
    assert "prompts/get" in error["message"]
    assert "arguments" in error["message"]


async def test_unexpected_exception_shows_an_id_and_nothing_else() -> None:
    server = Server("s")

    @server.prompt
    async def fail() -> str:
        raise RuntimeError("hunter2")

    async with Client(server) as client:
        with pytest.raises(ProtocolError) as raised:
            await client.get_prompt("fail")
    assert raised.value.code == -32603
    assert raised.value.message == f"Internal error (error id {raised.value.data['errorId']})"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_rejection_of_the_author_is_an_error_with_the_authors_words(connect: Connect, revision: str) -> None:
    """A prompt has no isError: a ToolError in its body must not come back as the result of a tool."""
    server = Server("s")

    @server.prompt
    async def refuse() -> str:
        raise ToolError("Not on Sundays.")

    wire = connect(server)
    if revision != "2026-07-28":
        await wire.initialize(revision)
    error = await wire.request_as(revision, "prompts/get", {"name": "refuse"})
    assert "Not on Sundays." in error["error"]["message"]


async def test_tool_and_a_prompt_may_share_a_name() -> None:
    server = Server("s")
    server.tool("capture")(lambda: "tool")
    server.prompt("capture")(lambda: "prompt")
    async with Client(server) as client:
        assert (await client.call_tool("capture")).text == "tool"
    assert (await messages(server, "capture"))[0].content.text == "prompt"
