"""`@modelcontextprotocol/server-everything` on the TypeScript SDK 1.x."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64decode
from dataclasses import dataclass

import pytest

from portico import Client, ToolError
from portico.client.subscriptions import Change
from portico.protocol.client_features import ElicitResult
from portico.protocol.content import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent
from portico.protocol.errors import ConnectionClosed, HttpStatusError, ProtocolError, RequestTimeout

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVER = "everything"
LEGS = [
    *((SERVER, "stdio", revision) for revision in ("", "2024-11-05", "2025-03-26", "2025-06-18")),
    *((SERVER, "http", revision) for revision in ("", "2025-03-26", "2025-06-18")),
    *((SERVER, "sse", revision) for revision in ("", "2024-11-05")),
]
TEXT = "demo://resource/dynamic/text/1"
ALWAYS = {"echo", "get-sum", "get-structured-content", "trigger-long-running-operation"}
WHEN_WE_CAN = {
    "get-roots-list": "2024-11-05",
    "trigger-sampling-request": "2024-11-05",
    "trigger-elicitation-request": "2025-06-18",
    "trigger-url-elicitation": "2025-11-25",
}


@dataclass
class Weather:
    temperature: int
    conditions: str
    humidity: int


# Who is there


async def test_newest_revision_that_both_know_is_found(leg, client):
    assert client.protocol_version == (leg.revision or "2025-11-25")
    assert (client.server_info.name, client.server_info.version) == ("mcp-servers/everything", "2.0.0")
    assert client.instructions.startswith("# Everything Server")
    assert client.server_capabilities.resources == {"subscribe": True, "listChanged": True}
    await client.ping()


@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_pinned_version_is_used_or_rejected(transport, revision, servers, running):
    where = servers.command(SERVER) if transport == "stdio" else running(SERVER, transport)
    client = Client(where, protocol_version=revision)
    if revision == "2025-11-25":
        async with client:
            assert client.protocol_version == revision
    else:
        with pytest.raises(ProtocolError, match="does not support the protocol version 2026-07-28"):
            await client.connect()


async def test_entry_of_an_mcp_json_is_a_target(servers, running):
    node, *words = servers.command(SERVER)
    entries = [{"command": node, "args": words}, {"type": "sse", "url": running(SERVER, "sse")}]
    for entry in entries:
        async with Client({"mcpServers": {"everything": entry}}) as client:
            assert (await client.call_tool("echo", {"message": "hello"})).data == "Echo: hello"


# Tools


async def test_tools_are_listed_with_those_that_need_client_capabilities(talk):
    tools = {tool.name: tool for tool in await talk.client.list_tools()}
    assert {*tools} >= ALWAYS
    assert {*tools} & {*WHEN_WE_CAN} == {
        name for name, since in WHEN_WE_CAN.items() if since <= talk.client.protocol_version
    }
    assert tools["echo"].annotations.read_only_hint is True
    assert tools["get-sum"].input_schema["required"] == ["a", "b"]
    assert [tool.name async for tool in talk.client.iter_tools()] == [*tools]


async def test_client_without_capabilities_is_not_offered_tools_that_need_them(servers):
    async with Client(servers.command(SERVER)) as client:
        names = {tool.name for tool in await client.list_tools()}
    assert names >= ALWAYS
    assert not names & {*WHEN_WE_CAN}


async def test_tool_is_called(client):
    assert (await client.call_tool("echo", {"message": "grüße ☂"})).data == "Echo: grüße ☂"
    assert (await client.call_tool("get-sum", {"a": 1, "b": 2.5})).text == "The sum of 1 and 2.5 is 3.5."


async def test_every_kind_of_content_is_read(client):
    _, image, _ = (await client.call_tool("get-tiny-image")).content
    assert isinstance(image, ImageContent)
    assert b64decode(image.data)[:4] == b"\x89PNG"
    noted, _ = (await client.call_tool("get-annotated-message", {"messageType": "error", "includeImage": True})).content
    assert isinstance(noted, TextContent)
    assert (noted.annotations.priority, noted.annotations.audience) == (1.0, ["user", "assistant"])
    _, *links = (await client.call_tool("get-resource-links", {"count": 2})).content
    assert [type(link) for link in links] == [ResourceLink, ResourceLink]
    expected = {"resourceType": "Blob", "resourceId": 2}
    _, inside, _ = (await client.call_tool("get-resource-reference", expected)).content
    assert isinstance(inside, EmbeddedResource)
    assert not any(isinstance(item, AudioContent) for item in (image, noted, inside))


async def test_structured_content_is_decoded_to_a_type(client):
    result = await client.call_tool("get-structured-content", {"location": "Chicago"})
    assert result.data == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    assert json.loads(result.text) == result.structured
    typed = await client.call_tool("get-structured-content", {"location": "Chicago"}, result_type=Weather)
    assert typed.data == Weather(36, "Light rain / drizzle", 82)


async def test_rejected_call_is_a_tool_error(client):
    with pytest.raises(ToolError, match="expected number, received string at a"):
        await client.call_tool("get-sum", {"a": "one", "b": 2})
    with pytest.raises(ToolError, match="Tool nothing not found"):
        await client.call_tool("nothing")
    result = await client.call_tool("get-sum", {}, raise_on_error=False)
    assert result.is_error
    assert result.text.startswith("MCP error -32602")


async def test_fifty_concurrent_calls_each_get_their_own_result(client):
    results = await asyncio.gather(*(client.call_tool("echo", {"message": f"{at}"}) for at in range(50)))
    assert [result.text for result in results] == [f"Echo: {at}" for at in range(50)]


async def test_progress_reaches_the_caller(client):
    heard: list[tuple[float, float | None, str | None]] = []
    await client.call_tool(
        "trigger-long-running-operation",
        {"duration": 0.03, "steps": 3},
        progress_handler=lambda *message: heard.append(message),
    )
    assert heard == [(1, 3, None), (2, 3, None), (3, 3, None)]


async def test_timed_out_call_is_cancelled_and_connection_stays_usable(talk):
    slow = talk.client.call_tool("trigger-long-running-operation", {"duration": 0.5, "steps": 1}, timeout=0.05)
    with pytest.raises(RequestTimeout, match=r"tools/call was not answered within 0\.05 s"):
        await slow
    assert (await talk.client.call_tool("echo", {"message": "still there"})).data == "Echo: still there"
    assert any(b"notifications/cancelled" in message for message in talk.sent)


# Questions


async def test_model_is_asked(talk):
    result = await talk.client.call_tool(
        "trigger-sampling-request", {"prompt": "the capital of France", "maxTokens": 7}
    )
    assert '"text": "Paris"' in result.text
    (request,) = talk.asked
    assert (request.max_tokens, request.system_prompt) == (7, "You are a helpful test server.")
    assert "the capital of France" in request.messages[0].content.text


@pytest.mark.legs(since="2025-11-25")
async def test_form_is_answered_with_defaults(talk):
    result = await talk.client.call_tool("trigger-elicitation-request")
    raw = json.loads(result.content[-1].text.partition(":")[2])
    assert raw["action"] == "accept"
    assert raw["content"] == {
        "name": "Alice",
        "firstLine": "It was a dark and stormy night.",
        "integer": 42,
        "number": 3.14,
        "untitledSingleSelectEnum": "Monica",
        "untitledMultipleSelectEnum": ["Guitar"],
        "titledSingleSelectEnum": "hero-1",
        "titledMultipleSelectEnum": ["fish-1"],
        "legacyTitledEnum": "pet-1",
    }


@pytest.mark.legs(since="2025-11-25")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_form_is_not_answered(talk, action):
    talk.answer = ElicitResult(action)
    result = await talk.client.call_tool("trigger-elicitation-request")
    assert json.loads(result.content[-1].text.partition(":")[2]) == {"action": action}


@pytest.mark.legs(server=SERVER, transport="stdio", revision="2025-06-18")
async def test_form_with_fields_of_a_later_revision_is_rejected(talk):
    with pytest.raises(ToolError, match="Invalid params for elicitation/create"):
        await talk.client.call_tool("trigger-elicitation-request")
    assert talk.asked == []


@pytest.mark.legs(since="2025-11-25")
async def test_page_is_shown_and_the_answer_has_no_content(talk):
    talk.answer = ElicitResult("accept")
    result = await talk.client.call_tool("trigger-url-elicitation", {"url": "https://example.com/x"})
    assert json.loads(result.content[-1].text.partition(":")[2]) == {"action": "accept"}
    assert (talk.asked[0].mode, talk.asked[0].url) == ("url", "https://example.com/x")


@pytest.mark.legs(since="2025-11-25")
async def test_page_that_has_to_be_seen_first_is_in_the_error(leg, talk):
    talk.answer = ElicitResult("accept")
    expected = {"url": f"https://example.com/{leg}", "errorPath": True}
    with pytest.raises(ProtocolError) as raised:
        await talk.client.call_tool("trigger-url-elicitation", expected)
    assert raised.value.code == -32042
    assert raised.value.data["elicitations"][0]["url"] == "https://modelcontextprotocol.io"
    assert "accept" in (await talk.client.call_tool("trigger-url-elicitation", expected)).text


async def test_roots_are_sent_and_updated(talk):
    client = talk.client
    assert "file:///project" in (await client.call_tool("get-roots-list")).text
    before, client.input_handlers.roots = client.input_handlers.roots, ["file:///one", "file:///two"]
    try:
        await client.notify("notifications/roots/list_changed")
        await talk.wait_for(lambda: ("info", "Roots updated: 2 root(s) received from client") in talk.logs)
    finally:
        client.input_handlers.roots = before
        await client.notify("notifications/roots/list_changed")
        await talk.wait_for(lambda: ("info", "Roots updated: 1 root(s) received from client") in talk.logs)


# Resources, prompts, completion


async def test_resources_are_listed_and_read(client):
    resources = await client.list_resources()
    architecture = next(item for item in resources if item.name == "architecture.md")
    (contents,) = await client.read_resource(architecture.uri)
    assert (contents.mime_type, contents.text[:12]) == ("text/markdown", "# Everything")
    assert [item.uri_template for item in await client.list_resource_templates()] == [
        "demo://resource/dynamic/text/{resourceId}",
        "demo://resource/dynamic/blob/{resourceId}",
    ]
    (contents,) = await client.read_resource(TEXT)
    assert contents.text.startswith("Resource 1: This is a plaintext resource")
    (contents,) = await client.read_resource("demo://resource/dynamic/blob/1")
    assert b64decode(contents.blob).startswith(b"Resource 1: This is a base64 blob")


async def test_resource_created_by_a_call_is_notified_and_read(leg, talk):
    name = f"{leg}.gz"
    async with talk.client.listen(resources=True) as changes:
        arguments = {"name": name, "data": "data:text/plain,hello", "outputType": "resourceLink"}
        (link,) = (await talk.client.call_tool("gzip-file-as-resource", arguments)).content
        async with asyncio.timeout(10):
            assert await anext(aiter(changes)) == Change("resources")
    (contents,) = await talk.client.read_resource(link.uri)
    assert gzip.decompress(b64decode(contents.blob)) == b"hello"


async def test_missing_resource_is_an_error(client):
    with pytest.raises(ProtocolError, match="Resource demo://nothing not found") as raised:
        await client.read_resource("demo://nothing")
    assert raised.value.code == -32602


async def test_prompts_are_listed_and_got(client):
    prompts = {prompt.name: prompt for prompt in await client.list_prompts()}
    assert {*prompts} == {"simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"}
    assert [(argument.name, argument.required) for argument in prompts["args-prompt"].arguments] == [
        ("city", True),
        ("state", False),
    ]
    (message,) = (await client.get_prompt("args-prompt", {"city": "Paris", "state": "Texas"})).messages
    assert (message.role, message.content.text) == ("user", "What's weather in Paris, Texas?")
    _, inside = (await client.get_prompt("resource-prompt", {"resourceType": "Text", "resourceId": "1"})).messages
    assert isinstance(inside.content, EmbeddedResource)
    with pytest.raises(ProtocolError, match="Invalid arguments for prompt args-prompt"):
        await client.get_prompt("args-prompt")
    with pytest.raises(ProtocolError, match="Prompt nothing not found"):
        await client.get_prompt("nothing")


@pytest.mark.legs(since="2025-06-18")
async def test_arguments_are_completed_in_their_context(client):
    prompt = {"type": "ref/prompt", "name": "completable-prompt"}
    assert (await client.complete(prompt, "department", "S")).values == ["Sales", "Support"]
    result = await client.complete(prompt, "name", "", {"department": "Sales"})
    assert (result.values, result.total, result.has_more) == (["David", "Eve", "Frank"], 3, False)
    resource = {"type": "ref/resource", "uri": "demo://resource/dynamic/text/{resourceId}"}
    assert (await client.complete(resource, "resourceId", "17")).values == ["17"]


# What is said unasked


async def test_resource_update_reaches_the_subscriber(talk):
    client = talk.client
    async with client.listen(uris=[TEXT]) as changes:
        await client.call_tool("toggle-subscriber-updates")
        async with asyncio.timeout(10):
            assert await anext(aiter(changes)) == Change("resource", TEXT)
        await client.call_tool("toggle-subscriber-updates")
    assert any(b"resources/unsubscribe" in message for message in talk.sent)


async def test_log_messages_start_at_the_requested_level(talk):
    client = talk.client
    await client.set_log_level("error")
    await client.subscribe(TEXT)
    await client.set_log_level("debug")
    await client.unsubscribe(TEXT)
    await talk.wait_for(lambda: talk.logs)
    assert [said.split(":")[0] for _, said in talk.logs] == ["Received Unsubscribe Resource request"]


# Tasks, as 2025-11-25 has them


async def test_task_is_awaited_and_its_elicitation_is_answered(servers, running, talking):
    """On both transports at a time, for it takes four seconds."""

    async def research(target):
        talk = talking(target)
        talk.answer = {"interpretation": "snake"}
        async with talk.client as client:
            task = await client.start_task("simulate-research-query", {"topic": "python", "ambiguous": True})
            assert await task.refresh() == "working"
            result = await task.result(timeout=10)
            assert result.text.startswith("# Research Report: python (snake)")
            assert await task.refresh() == "completed"
            assert len(talk.asked) == 1

    await asyncio.gather(research(servers.command(SERVER)), research(running(SERVER, "http")))


async def test_task_is_cancelled(running, talking):
    async with talking(running(SERVER, "http")).client as client:
        task = await client.start_task("simulate-research-query", {"topic": "python"})
        await task.cancel()
        assert task.status == "cancelled"


async def test_tool_that_has_to_be_a_task_is_called_as_one(running, talking):
    async with talking(running(SERVER, "http")).client as client:
        result = await client.call_tool("simulate-research-query", {"topic": "python"})
        assert result.text.startswith("# Research Report: python")


# When things break


async def test_restarted_server_gets_a_new_session(start, talking):
    """It says 400 where it should say 404, as many do."""
    with start(SERVER, "http") as url:
        talk = talking(url, log_level="debug")
        await talk.client.connect()
        await talk.client.subscribe(TEXT)
    try:
        with start(SERVER, "http", int(url.split(":")[2].split("/")[0])):
            talk.reset()
            assert (await talk.client.call_tool("echo", {"message": "again"})).data == "Echo: again"
            assert any(b"resources/subscribe" in message for message in talk.sent)
            async with talk.client.listen(uris=[TEXT]) as changes:
                await talk.client.call_tool("toggle-subscriber-updates")
                async with asyncio.timeout(10):
                    assert await anext(aiter(changes)) == Change("resource", TEXT)
    finally:
        await talk.client.close()


async def test_server_that_cannot_be_started_is_reported_with_its_stderr(servers):
    node, script, _ = servers.command(SERVER)
    with pytest.raises(ConnectionClosed, match="Unknown transport: carrier-pigeon"):
        await Client([node, script, "carrier-pigeon"]).connect()


async def test_url_without_a_server_is_an_http_status_error(running):
    url = running(SERVER, "http").replace("/mcp", "/nowhere")
    with pytest.raises(HttpStatusError, match="HTTP status 404"):
        await Client(url).connect()
