"""The exchanges of Subcog's protocol page, with `--profile subcog`."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

Serve = Callable[..., Awaitable[Any]]

TIMEOUT_SECONDS = 20.0
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2024-11-05",
        "capabilities": {"roots": {"listChanged": True}},
        "clientInfo": {"name": "claude-code", "version": "1.0.0"},
    },
}
OPENED = (
    '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{"listChanged":false},'
    '"resources":{"subscribe":false,"listChanged":false},"prompts":{"listChanged":false},"logging":{}},'
    '"serverInfo":{"name":"subcog","version":"0.1.0"}}}'
)
CAPTURE = {
    "jsonrpc": "2.0",
    "id": 3,
    "method": "tools/call",
    "params": {
        "name": "subcog_capture",
        "arguments": {"namespace": "decisions", "content": "Use PostgreSQL for storage"},
    },
}
# The example in Amazon's own documentation, with other letters.
AWS_KEY = "AKIAZQ3DRSTUVWXY2345"


@pytest.fixture
async def subcog(serve: Serve) -> Any:
    child = await serve("subcog")
    assert await child.exchange(json.dumps(INITIALIZE)) == OPENED
    return with_roots(child)


def with_roots(child: Any, *folders: Path) -> Any:
    """A client that has declared roots, and answers when it is asked for them."""
    receive = child.child.receive

    async def answering() -> Any:
        message = await receive()
        while message.get("method") == "roots/list":
            roots = [{"uri": folder.as_uri()} for folder in folders]
            child.child.send({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": roots}})
            message = await receive()
        return message

    child.child.receive = answering
    return child


async def captured(child: Any) -> Any:
    result = (await child.request(CAPTURE))["result"]
    # Nothing but content, as the sample has it.
    assert result.keys() == {"content"}
    (block,) = result["content"]
    return json.loads(block["text"])


async def refused(child: Any, tool: str, **arguments: Any) -> Any:
    return (await child.call(tool, **arguments))["error"]


# What is there


async def test_tools_have_the_names_of_subcog(subcog: Any) -> None:
    tools = await subcog.tools()
    assert all(name.startswith("subcog_") for name in tools)
    assert tools.keys() >= {"subcog_capture", "subcog_recall", "subcog_enrich", "subcog_consolidate", "subcog_sync"}
    schema = tools["subcog_capture"]["inputSchema"]
    kinds = {name: one["type"] for name, one in schema["properties"].items()}
    assert {"content": "string", "namespace": "string", "tags": "array", "source": "string"}.items() <= kinds.items()
    assert schema["properties"]["tags"]["items"] == {"type": "string"}
    assert {"decisions", "patterns"} <= set(schema["properties"]["namespace"]["enum"])
    assert set(schema["required"]) == {"content", "namespace"}
    assert not [name for name, one in tools.items() if "memory_" in one["description"]]


async def test_memory_is_captured_under_its_urn(subcog: Any) -> None:
    result = await captured(subcog)
    assert result["urn"] == f"subcog://project/decisions/{result['id']}"


@pytest.mark.parametrize("name", ["memory_capture", "memory.capture", "subcog.capture"])
async def test_other_names_can_still_be_called(subcog: Any, name: str) -> None:
    answer = await subcog.call(name, namespace="patterns", content="Ports and adapters, everywhere.")
    data = json.loads(answer["result"]["content"][0]["text"])
    assert data["urn"].startswith("subcog://project/patterns/")


async def test_resources_are_listed_and_read(subcog: Any) -> None:
    listed = {item["uri"]: item for item in (await subcog.result("resources/list"))["resources"]}
    assert all(uri.startswith("subcog://") for uri in listed)
    assert (listed["subcog://help"]["name"], listed["subcog://help"]["mimeType"]) == (
        "Help Documentation",
        "text/markdown",
    )
    project = listed["subcog://project"]
    assert (project["name"], project["description"], project["mimeType"]) == (
        "Project Memories",
        "List project-scoped memories",
        "application/json",
    )
    result = await captured(subcog)
    for scheme in ("subcog", "memory"):
        uri = f"{scheme}://project/decisions"
        (contents,) = (await subcog.result("resources/read", {"uri": uri}))["contents"]
        assert (contents["uri"], contents["mimeType"]) == (uri, "application/json")
        data = json.loads(contents["text"])
        assert (data["count"], [item["id"] for item in data["memories"]]) == (1, [result["id"]])


async def test_prompt_guides_a_capture(subcog: Any) -> None:
    prompts = {prompt["name"]: prompt for prompt in (await subcog.result("prompts/list"))["prompts"]}
    assert prompts["subcog_capture"] == {
        "name": "subcog_capture",
        "description": "Guided memory capture",
        "arguments": [{"name": "content", "description": "Content to capture", "required": True}],
    }
    result = await subcog.result(
        "prompts/get", {"name": "subcog_capture", "arguments": {"content": "Important decision"}}
    )
    assert result["description"] == "Guided memory capture"
    (message,) = result["messages"]
    assert message["role"] == "user"
    assert message["content"]["text"].startswith(
        "Capture this memory:\n\nContent: Important decision\n\nSuggested namespace: decisions"
    )


async def test_projects_are_distinguished_by_the_clients_roots(serve: Serve, tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name / "app").mkdir(parents=True)
        child = with_roots(await serve("subcog"), tmp_path / name / "app")
        await child.request(INITIALIZE)
        await captured(child)
        (contents,) = (await child.result("resources/read", {"uri": "subcog://project/decisions"}))["contents"]
        assert json.loads(contents["text"])["count"] == 1
        await child.end()


async def test_client_that_never_answers_roots_list_is_served(serve: Serve) -> None:
    child = await serve("subcog")
    await child.request(INITIALIZE)
    await captured(child)
    await captured(child)
    assert [other_message["method"] for other_message in child.child.other_messages].count("roots/list") == 1


# Error codes


async def test_unknown_namespace_is_an_invalid_argument(subcog: Any) -> None:
    error = await refused(subcog, "subcog_capture", namespace="unknown", content="Use PostgreSQL")
    assert (error["code"], error["message"]) == (-32602, "Invalid namespace: unknown")


async def test_missing_memory_is_32604(subcog: Any) -> None:
    error = await refused(subcog, "subcog_get", memory_id="000000000000")
    assert (error["code"], error["data"]["code"]) == (-32604, "memory_not_found")
    assert "memory_recall" not in error["message"]


async def test_secret_is_32605(subcog: Any) -> None:
    error = await refused(subcog, "subcog_capture", namespace="config", content=f"The key is {AWS_KEY}, keep it.")
    assert (error["code"], error["data"]["code"]) == (-32605, "content_blocked")
    assert AWS_KEY not in json.dumps(error)


@pytest.mark.parametrize(
    "text",
    [
        "Her SSN is 536-22-8726.",
        "Pay with card 4539 1488 0343 6467.",
        "Passport number X4RTBPFW4.",
        "Call +49 170 1234567",
        # What somebody takes who tries it.
        "SSN: 123-45-6789",
        "card 4111 1111 1111 1111",
        "ask ann@example.com",
        "AWS key AKIAIOSFODNN7EXAMPLE",
    ],
)
async def test_personal_data_is_32605(subcog: Any, text: str) -> None:
    error = await refused(subcog, "subcog_capture", namespace="context", content=text)
    assert (error["code"], error["data"]["code"]) == (-32605, "content_blocked")


@pytest.mark.parametrize("place", ["memory", "project/decisions", "summaries"])
async def test_missing_resource_error_has_the_number_in_its_data(subcog: Any, place: str) -> None:
    uri = f"subcog://{place}/000000000000"
    error = (await subcog.child.request("resources/read", {"uri": uri}))["error"]
    assert (error["code"], error["data"]["number"], error["data"]["uri"]) == (-32002, -32604, uri)


async def test_saved_prompt_is_there_for_the_next_message(subcog: Any) -> None:
    for _ in range(3):
        assert "result" in await subcog.call("subcog_prompts", action="save", name="greet", content="Hello")
        got = await subcog.result("prompts/get", {"name": "greet"})
        assert got["messages"][0]["content"]["text"] == "Hello"
        assert "greet" in {prompt["name"] for prompt in (await subcog.result("prompts/list"))["prompts"]}
        assert "result" in await subcog.call("subcog_prompts", action="delete", name="greet")
        assert (await subcog.child.request("prompts/get", {"name": "greet"}))["error"]["code"] == -32607
        assert "greet" not in {prompt["name"] for prompt in (await subcog.result("prompts/list"))["prompts"]}


async def test_clearer_text_without_any_model_is_32606(subcog: Any) -> None:
    id = (await captured(subcog))["id"]
    error = await refused(subcog, "subcog_enrich", memory_id=id, enrich_tags=False, enrich_structure=True)
    assert (error["code"], error["data"]["code"], error["data"]["retryable"]) == (-32606, "llm_error", False)


async def test_missing_prompt_is_32607(serve: Serve) -> None:
    for revision, code in (("2024-11-05", -32607), ("2025-03-26", -32602), ("2025-11-25", -32602)):
        child = await serve("subcog")
        await child.open(revision)
        error = (await child.child.request("prompts/get", {"name": "nobody-wrote-this"}))["error"]
        assert (error["code"], error["data"]["number"]) == (code, -32607)
        await child.end()


@pytest.mark.parametrize("prompt", ["subcog_review", "query_suggest"])
async def test_unknown_namespace_is_an_invalid_argument_of_a_prompt_too(subcog: Any, prompt: str) -> None:
    arguments = {"namespace": "nope", **({"query": "storage"} if prompt == "query_suggest" else {})}
    error = (await subcog.child.request("prompts/get", {"name": prompt, "arguments": arguments}))["error"]
    assert (error["code"], error["message"]) == (-32602, "Invalid namespace: nope")


async def test_model_that_is_needed_and_does_not_answer_is_32606(serve: Serve) -> None:
    child = await serve("subcog")
    await child.open("2024-11-05", {"sampling": {}})
    result = await captured(child)
    arguments = {"memory_id": result["id"], "enrich_tags": False, "enrich_structure": True}
    message = {"name": "subcog_enrich", "arguments": arguments}
    child.child.send({"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": message})
    question = await child.heard("sampling/createMessage")
    refusal = {"code": -32603, "message": "the model is out"}
    child.child.send({"jsonrpc": "2.0", "id": question["id"], "error": refusal})
    error = (await child.child.response(50))["error"]
    assert (error["code"], error["data"]["code"], error["data"]["retryable"]) == (-32606, "llm_error", True)


async def test_missing_saved_prompt_is_32607(subcog: Any) -> None:
    error = await refused(subcog, "subcog_prompts", action="get", name="nobody-saved-this")
    assert (error["code"], error["data"]["code"]) == (-32607, "prompt_not_found")


async def test_argument_that_cannot_be_meant_is_32608(subcog: Any) -> None:
    error = await refused(subcog, "subcog_recall", query="storage", filter="nonsense:yes since:whenever")
    assert (error["code"], error["data"]["code"]) == (-32608, "validation_error")


async def test_sync_without_a_remote_is_32610(subcog: Any) -> None:
    error = await refused(subcog, "subcog_sync", direction="push")
    assert (error["code"], error["data"]["code"]) == (-32610, "sync_error")


async def test_store_that_cannot_be_written_is_32609(serve: Serve, tmp_path: Path) -> None:
    child = await serve("subcog")
    await child.request(INITIALIZE)
    await captured(child)
    await child.end()
    # Whoever is root may write anything, so it is the file's own inside that refuses.
    store = tmp_path / "data" / "portico.db"
    with closing(sqlite3.connect(store)) as database:
        # Nothing may be left beside the file that would be read in place of its first page.
        assert database.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0
    with store.open("r+b") as file:
        file.seek(18)
        # The file format's write version: larger than any there is, so the database is for reading.
        file.write(b"\x09")
    child = await serve("subcog")
    await child.request(INITIALIZE)
    error = await refused(child, "subcog_capture", namespace="decisions", content="Another one, not to be kept.")
    assert (error["code"], error["data"]["code"]) == (-32609, "storage_error")
    assert str(tmp_path) not in json.dumps(error)
    heard = await child.heard("notifications/message")
    assert heard["params"]["level"] == "error" and str(tmp_path) not in json.dumps(heard)


async def test_store_that_fails_is_32609_for_resources_and_prompts(subcog: Any, tmp_path: Path) -> None:
    await captured(subcog)
    with closing(sqlite3.connect(tmp_path / "data" / "portico.db")) as database:
        database.execute("alter table memory rename to elsewhere")
    for method, params in (
        ("resources/read", {"uri": "subcog://project/decisions"}),
        ("prompts/get", {"name": "subcog_session_start"}),
    ):
        error = (await subcog.child.request(method, params))["error"]
        assert (error["code"], error["data"]["code"]) == (-32609, "storage_error")


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
async def test_later_versions_have_the_number_in_the_error_metadata(serve: Serve, revision: str) -> None:
    child = await serve("subcog")
    await child.open(revision)
    result = (await child.call("subcog_get", memory_id="000000000000"))["result"]
    assert result["isError"] is True
    assert result["_meta"]["portico/error"]["number"] == -32604


# Batches, logging, sampling, silence


async def test_several_requests_travel_in_one_message(subcog: Any) -> None:
    line = '[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":"b","method":"prompts/list"}]'
    answers = json.loads(await subcog.exchange(line))
    assert {answer["id"] for answer in answers} == {1, "b"}


async def test_log_messages_are_sent_on_request(subcog: Any) -> None:
    await subcog.result("logging/setLevel", {"level": "info"})
    result = await captured(subcog)
    assert await subcog.heard("notifications/message") == {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": "info", "logger": "subcog", "data": f"Captured memory {result['id']}"},
    }


async def test_every_log_level_has_messages(subcog: Any) -> None:
    await subcog.result("logging/setLevel", {"level": "debug"})
    result = await captured(subcog)
    await subcog.call("subcog_recall", query="storage")
    await subcog.call("subcog_get", memory_id=result["id"])
    await subcog.call("subcog_get", memory_id="000000000000")
    await subcog.call("subcog_capture", namespace="config", content=f"The key is {AWS_KEY}.")
    await subcog.call("subcog_sync")
    heard = [
        other_message["params"]
        for other_message in subcog.child.other_messages
        if other_message.get("method") == "notifications/message"
    ]
    assert {other_message["logger"] for other_message in heard} == {"subcog"}
    by_level = {
        level: [other_message["data"] for other_message in heard if other_message["level"] == level]
        for level in ("debug", "info")
    }
    assert "Found 1" in " ".join(by_level["debug"]) and "subcog_recall called with query" in by_level["debug"]
    assert f"Captured memory {result['id']}" in by_level["info"]
    assert {"warning", "error"} <= {other_message["level"] for other_message in heard}
    assert AWS_KEY not in json.dumps(heard) and "Use PostgreSQL" not in json.dumps(heard)


async def test_log_level_is_honoured(subcog: Any) -> None:
    await subcog.result("logging/setLevel", {"level": "error"})
    await captured(subcog)
    assert not [
        other_message
        for other_message in subcog.child.other_messages
        if other_message.get("method") == "notifications/message"
    ]


async def test_client_with_a_model_is_requested_tags(serve: Serve) -> None:
    child = await serve("subcog")
    await child.open("2024-11-05", {"sampling": {}})
    result = await captured(child)
    enrich = {"name": "subcog_enrich", "arguments": {"memory_id": result["id"]}}
    child.child.send({"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": enrich})
    question = await child.heard("sampling/createMessage")
    assert question["params"]["maxTokens"] > 0
    (message,) = question["params"]["messages"]
    assert message["role"] == "user"
    assert "Use PostgreSQL for storage" in message["content"]["text"]
    model = {"role": "assistant", "content": {"type": "text", "text": '{"tags": ["database"]}'}, "model": "m"}
    child.child.send({"jsonrpc": "2.0", "id": question["id"], "result": model})
    enriched = json.loads((await child.child.response(50))["result"]["content"][0]["text"])
    assert (enriched["by"], "database" in enriched["tags"]) == ("client", True)


async def test_client_model_classifies_the_intent_of_a_query(serve: Serve) -> None:
    child = await serve("subcog")
    await child.open("2024-11-05", {"sampling": {}})
    request = {
        "tools/call": {"name": "subcog_intent", "arguments": {"query": "The build"}},
        "prompts/get": {"name": "intent_search", "arguments": {"query": "The build"}},
    }
    for id, (method, params) in enumerate(request.items(), 50):
        child.child.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        question = await child.heard("sampling/createMessage")
        assert "The build" in question["params"]["messages"][0]["content"]["text"]
        model = {"role": "assistant", "content": {"type": "text", "text": "troubleshoot"}, "model": "m"}
        child.child.send({"jsonrpc": "2.0", "id": question["id"], "result": model})
        assert "troubleshoot" in json.dumps((await child.child.response(id))["result"])


async def test_additional_subcog_tools_are_offered(subcog: Any) -> None:
    tools = await subcog.tools()
    assert tools.keys() >= {"subcog_init", "subcog_groups", "subcog_webhooks", "subcog_gc"}
    await captured(subcog)
    for tool in ("subcog_init", "subcog_groups", "subcog_webhooks", "subcog_gc"):
        assert "error" not in await subcog.call(tool)


async def test_without_a_model_rules_do(subcog: Any) -> None:
    result = await captured(subcog)
    enriched = json.loads((await subcog.call("subcog_enrich", memory_id=result["id"]))["result"]["content"][0]["text"])
    assert enriched["by"] not in ("client", "provider")


async def test_lists_change_in_silence(subcog: Any) -> None:
    before = (await subcog.result("resources/list"))["resources"]
    await captured(subcog)
    listed: list[Any] = before
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(listed) == len(before):
            listed = (await subcog.result("resources/list"))["resources"]
    assert "subcog://project/decisions" in {other_message["uri"] for other_message in listed}
    _, rest, _ = await subcog.end()
    assert not [
        other_message
        for other_message in subcog.child.other_messages
        if "list_changed" in other_message.get("method", "")
    ]
    assert "list_changed" not in rest


async def test_configuration_can_enable_change_notifications(serve: Serve, tmp_path: Path) -> None:
    """What the profile says is only what is said when nobody says otherwise."""
    config = tmp_path / "portico.toml"
    config.write_text("[server.capabilities]\nresources = { listChanged = true }\n")
    child = await serve("subcog", "--config", config)
    opened = await child.open("2024-11-05")
    assert opened["capabilities"]["resources"] == {"subscribe": False, "listChanged": True}
    assert opened["capabilities"]["tools"] == {"listChanged": False}
    await captured(child)
    assert "params" not in await child.heard("notifications/resources/list_changed")


# HTTP


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "portico", "serve", "--profile", "subcog", "--transport", "http", "--port", "0"),
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PORTICO_DATA": str(tmp_path / "data"), "PORTICO_STORE": ""},
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield (await process.stderr.readline()).decode().removeprefix("Serving on ").strip()
    finally:
        process.terminate()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await process.communicate()


async def fetch(place: str, method: str, path: str, said: Any = None, session: str = "") -> tuple[int, str, Any]:
    """The status, the session and the answer, which may be the last event of a stream."""

    def ask() -> tuple[int, str, Any]:
        connection = HTTPConnection(urlsplit(place).netloc, timeout=TIMEOUT_SECONDS)
        try:
            headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            headers |= {"Mcp-Session-Id": session} if session else {}
            connection.request(method, path, None if said is None else json.dumps(said), headers)
            answer = connection.getresponse()
            body = answer.read().decode()
            if answer.getheader("content-type", "").startswith("text/event-stream"):
                body = [line for line in body.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
            return answer.status, answer.getheader("mcp-session-id", ""), json.loads(body)
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def test_endpoint_is_the_root_and_health_is_health(place: str) -> None:
    assert urlsplit(place).hostname == "127.0.0.1"
    status, _, health = await fetch(place, "GET", "/health")
    assert (status, health["status"], health["name"]) == (200, "ok", "subcog")
    status, session, opened = await fetch(place, "POST", "/", INITIALIZE)
    assert (status, opened) == (200, json.loads(OPENED))
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    status, _, listed = await fetch(place, "POST", "/", request, session)
    assert status == 200
    assert "subcog_capture" in {tool["name"] for tool in listed["result"]["tools"]}
    _, _, message = await fetch(place, "POST", "/", CAPTURE, session)
    assert json.loads(message["result"]["content"][0]["text"])["urn"].startswith("subcog://project/decisions/")
    missing = {**CAPTURE, "params": {"name": "subcog_get", "arguments": {"memory_id": "000000000000"}}}
    _, _, message = await fetch(place, "POST", "/", missing, session)
    assert message["error"]["code"] == -32604


async def test_http_errors_have_the_id_required_by_the_protocol_version(place: str) -> None:
    def post(path: str, body: bytes, **headers: str) -> tuple[int, Any]:
        connection = HTTPConnection(urlsplit(place).netloc, timeout=TIMEOUT_SECONDS)
        try:
            message = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
            connection.request("POST", path, body, message)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    request = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "no/such/method"}).encode()
    cases: list[tuple[bytes, dict[str, str], Any]] = [
        (b"{no JSON", {}, None),
        (b'{"jsonrpc": "2.0", "method": 1, "id": 7}', {}, 7),
        (request, {}, 7),
        (request, {"Content-Type": "text/plain"}, None),
        (request, {"Origin": "https://example.com"}, None),
    ]
    for body, headers, id in cases:
        _, message = await asyncio.to_thread(post, "/", body, **headers)
        assert message["jsonrpc"] == "2.0" and message["error"]["code"] < 0
        assert "id" in message and message["id"] in (id, None), (body, headers, message)
    assert (await asyncio.to_thread(post, "/", b"{no JSON"))[1]["error"]["code"] == -32700
    assert (await asyncio.to_thread(post, "/", request))[1]["error"]["code"] == -32601


async def test_request_needs_no_handshake_before_it(place: str) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    status, session, listed = await fetch(place, "POST", "/", request)
    assert (status, session) == (200, "")
    assert "subcog_capture" in {tool["name"] for tool in listed["result"]["tools"]}
    _, _, message = await fetch(place, "POST", "/", CAPTURE)
    assert "isError" not in message["result"]
    missing = {**CAPTURE, "params": {"name": "subcog_get", "arguments": {"memory_id": "000000000000"}}}
    _, _, message = await fetch(place, "POST", "/", missing)
    assert message["error"]["code"] == -32604
