"""Equal servers on the MCP SDK and on FastMCP: official.py and fast.py."""

from __future__ import annotations

import asyncio
import datetime
from base64 import b64decode
from dataclasses import dataclass

import pytest

from portico import ToolError
from portico.client.subscriptions import Change
from portico.protocol.client_features import ElicitResult
from portico.protocol.errors import ConnectionClosed, ProtocolError

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Both speak all of them. What is found is 2026-07-28 on stdio and HTTP; the transport of 2024-11-05 never heard of it.
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LEGS = [
    *(("official", "stdio", revision) for revision in ("", "2024-11-05", "2025-11-25")),
    *(("official", "http", revision) for revision in ("", *HANDSHAKE)),
    ("official", "sse", ""),
    *(("fast", "stdio", revision) for revision in ("", "2025-06-18")),
    *(("fast", "http", revision) for revision in ("", *HANDSHAKE)),
    ("fast", "sse", ""),
]


@dataclass
class Forecast:
    city: str
    day: datetime.date
    degrees: float


async def test_newest_revision_that_both_know_is_found(leg, client):
    result = "2025-11-25" if leg.transport == "sse" else "2026-07-28"
    assert client.protocol_version == (leg.revision or result)
    assert (client.server_info.name, client.server_info.version) == (leg.server, "1.2.3")
    assert client.instructions == "A server of others."
    assert client.server_capabilities.completions == {}
    await client.ping()


@pytest.mark.parametrize("server", ["official", "fast"])
async def test_pinned_version_is_used_or_rejected(server, running, talking):
    async with talking(running(server, "http"), "2026-07-28").client as client:
        assert client.protocol_version == "2026-07-28"
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
    with pytest.raises(ProtocolError, match="does not support the protocol version 2026-07-28"):
        await talking(running(server, "sse"), "2026-07-28").client.connect()


# Tools


async def test_tools_are_listed(client):
    tools = {tool.name: tool for tool in await client.list_tools()}
    assert {"add", "forecast", "count", "greet", "wait"} <= {*tools}
    assert tools["add"].annotations.read_only_hint is True
    assert tools["add"].input_schema["properties"]["a"]["type"] == "integer"
    assert tools["forecast"].output_schema["properties"]["day"]["format"] == "date"


async def test_value_is_decoded_by_the_schema_of_the_tool(leg, client):
    """FastMCP marks the objects that only wrap a value; the official SDK does not, so there they stay objects."""
    assert (await client.call_tool("add", {"a": 1, "b": 2})).data == ({"result": 3} if leg.server == "official" else 3)
    result = await client.call_tool("forecast", {"city": "Paris"})
    assert result.structured == {"city": "Paris", "day": "2026-07-28", "degrees": 21.5}
    assert result.data == {"city": "Paris", "day": datetime.date(2026, 7, 28), "degrees": 21.5}
    typed = await client.call_tool("forecast", {"city": "Paris"}, result_type=Forecast)
    assert typed.data == Forecast("Paris", datetime.date(2026, 7, 28), 21.5)


async def test_every_kind_of_content_is_read(client):
    text, image, sound, link, inside = (await client.call_tool("blocks")).content
    assert text.text == "text"
    assert (image.mime_type, b64decode(image.data)[1:4]) == ("image/png", b"PNG")
    assert (sound.mime_type, b64decode(sound.data)) == ("audio/wav", b"RIFF")
    assert (link.uri, link.name) == ("notes://today", "today")
    assert inside.resource["text"] == "Rain."


async def test_rejected_call_is_a_tool_error(client):
    with pytest.raises(ToolError, match="not today"):
        await client.call_tool("refuse")
    with pytest.raises(ToolError, match="crash"):
        await client.call_tool("crash")
    with pytest.raises(ToolError, match="valid integer"):
        await client.call_tool("add", {"a": "one", "b": 2})
    with pytest.raises(ToolError, match="Unknown tool"):
        await client.call_tool("nothing")
    assert (await client.call_tool("refuse", raise_on_error=False)).is_error


async def test_fifty_concurrent_calls_each_get_their_own_result(client):
    results = await asyncio.gather(*(client.call_tool("add", {"a": at, "b": 1}) for at in range(50)))
    assert [result.text for result in results] == [str(at + 1) for at in range(50)]


async def test_argument_is_mirrored_in_a_header(client):
    """The SDKs compare the two on 2026-07-28 over HTTP, and refuse what differs; the value is not ASCII."""
    await client.list_tools()
    assert (await client.call_tool("route", {"region": "Zürich, west"})).text == "Routed to Zürich, west."


@pytest.mark.legs(transport="http")
async def test_headers_are_found_out_when_the_tools_were_not_listed(talking, target, leg):
    async with talking(target(leg), leg.revision).client as client:
        assert (await client.call_tool("route", {"region": "west"})).text == "Routed to west."


async def test_progress_reaches_the_caller(client):
    heard: list[tuple[float, float | None, str | None]] = []
    await client.call_tool("count", {"to": 3}, progress_handler=lambda *message: heard.append(message))
    assert heard == [(1, 3, "1 of 3"), (2, 3, "2 of 3"), (3, 3, "3 of 3")]


async def test_logs_are_received(talk):
    """From the level that was asked for; before 2026-07-28, the official class takes no level, and sends them all."""
    client = talk.client
    filtered = talk.modern or client.server_capabilities.logging is not None
    if filtered:
        await client.set_log_level("info")
    await client.call_tool("chatter")
    await talk.wait_for(lambda: talk.logs and talk.logs[-1][0] == "error")
    levels = ["info", "warning", "error"]
    assert [level for level, _ in talk.logs] == (levels if filtered else ["debug", *levels])


async def test_cancellation_reaches_the_server(client, eventually):
    async def counts():
        result = (await client.call_tool("waited")).structured
        return result["begun"], result["cancelled"]

    begun, cancelled = await counts()
    task = asyncio.create_task(client.call_tool("wait"))
    await eventually(counts, (begun + 1, cancelled))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(counts, (begun + 1, cancelled + 1))


# Questions


@pytest.mark.legs(since="2025-06-18")
async def test_form_is_answered_with_defaults(talk):
    assert (await talk.client.call_tool("greet")).text == "accept: Alice, 42"
    (request,) = talk.asked
    assert (request.message, request.requested_schema["required"]) == ("Who are you?", ["name"])


@pytest.mark.legs(since="2025-06-18")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_form_is_not_answered(talk, action):
    talk.answer = ElicitResult(action)
    assert (await talk.client.call_tool("greet")).text == action


async def test_model_is_asked(talk):
    assert (await talk.client.call_tool("capital")).text == "handler says Paris"
    assert talk.asked[0].messages[0].content.text == "What is the capital of France?"
    assert talk.asked[0].max_tokens == 100


async def test_roots_are_given(client):
    assert (await client.call_tool("places")).text == "file:///project"


@pytest.mark.legs(server="official", since="2025-06-18")
async def test_three_elicitations_of_one_tool_are_answered(talk):
    """They come together on 2026-07-28, and one after the other before."""
    assert (await talk.client.call_tool("everything_asked")).text == "Paris, Alice, 1"
    assert len(talk.asked) == 2


# Resources, prompts, completion


async def test_resources_are_listed_and_read(client):
    assert [item.uri for item in await client.list_resources()] == ["notes://today", "notes://picture"]
    assert [item.uri_template for item in await client.list_resource_templates()] == ["notes://{day}/weather"]
    (contents,) = await client.read_resource("notes://today")
    assert (contents.mime_type, contents.text) == ("text/plain", "Rain.")
    (contents,) = await client.read_resource("notes://picture")
    assert b64decode(contents.blob)[1:4] == b"PNG"
    (contents,) = await client.read_resource("notes://friday/weather")
    assert contents.text == "Rain on friday."
    with pytest.raises(ProtocolError, match="notes://nothing") as raised:
        await client.read_resource("notes://nothing")
    assert raised.value.code == -32602


async def test_prompts_are_listed_and_got(client):
    (prompt,) = await client.list_prompts()
    assert (prompt.name, prompt.title) == ("greeting", "A greeting")
    assert [(argument.name, argument.required) for argument in prompt.arguments] == [("name", True), ("style", False)]
    (message,) = (await client.get_prompt("greeting", {"name": "Ada"})).messages
    assert (message.role, message.content.text) == ("user", "Greet Ada, plain.")
    for name in ("greeting", "nothing"):
        with pytest.raises(ProtocolError):
            await client.get_prompt(name)


@pytest.mark.legs(since="2025-06-18")
async def test_arguments_are_completed_in_their_context(client):
    prompt = {"type": "ref/prompt", "name": "greeting"}
    assert (await client.complete(prompt, "name", "an")).values == ["anna", "anton"]
    assert (await client.complete(prompt, "name", "Sir", {"style": "formal"})).values == ["Sir Anton", "Sir Arno"]
    assert (await client.complete(prompt, "style", "")).values == []


# Changes


async def test_change_of_the_tools_is_received(leg, talk):
    client = talk.client
    if leg.server == "fast" and talk.modern:
        with pytest.raises(ProtocolError, match="Method not found"):
            await client.listen(tools=True).__aenter__()
        return
    before = {tool.name for tool in await client.list_tools()}
    async with client.listen(tools=True) as changes:
        await client.call_tool("change")
        async with asyncio.timeout(10):
            assert await anext(aiter(changes)) == Change("tools")
    if leg.server == "official":
        assert before ^ {tool.name for tool in await client.list_tools()} == {"extra"}


@pytest.mark.legs(server="official")
async def test_resource_update_reaches_the_subscriber(talk):
    """FastMCP has no subscriptions to resources, and the official class has them on 2026-07-28 only."""
    listener = talk.client.listen(uris=["notes://today"])
    if not talk.modern:
        with pytest.raises(ProtocolError, match="Method not found"):
            await listener.__aenter__()
        return
    async with listener as changes:
        await talk.client.call_tool("change")
        async with asyncio.timeout(10):
            assert await anext(aiter(changes)) == Change("resource", "notes://today")


# When things break


@pytest.mark.legs(server="official", transport="http")
async def test_response_survives_a_closed_stream(talk):
    """Before 2026-07-28: the client comes back with the last id that it has heard."""
    assert (await talk.client.call_tool("let_go")).text == "Here it is."


async def test_server_that_has_died_is_started_again(servers, talking):
    """With its last words in the error. Before 2026-07-28 too, where it does not know logs: they are not asked for."""
    talk = talking(servers.command("official"), "2025-11-25", log_level="warning")
    async with talk.client as client:
        with pytest.raises(ConnectionClosed, match="may have executed it") as raised:
            await client.call_tool("die")
        assert "out of memory" in str(raised.value)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"


async def test_restarted_server_is_found_again(start, talking):
    """On 2026-07-28 nothing is lost with it; before, the session is, and a call that it turned away is made again."""
    with start("official", "http") as url:
        talks = [talking(url, revision) for revision in ("", "2025-11-25")]
        for talk in talks:
            await talk.client.connect()
    try:
        with start("official", "http", int(url.split(":")[2].split("/")[0])):
            for talk in talks:
                assert (await talk.client.call_tool("add", {"a": 2, "b": 2})).text == "4"
    finally:
        for talk in talks:
            await talk.client.close()
