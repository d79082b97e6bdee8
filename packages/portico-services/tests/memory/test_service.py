"""The memory service through a client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico.protocol.errors import ProtocolError
from portico_services.memory.service import Memory
from support.memories import CAPTURE, KEY, call_failing_tool, call_tool, template

Serving = Callable[..., Any]


async def test_capture_answers_with_an_id_and_a_urn(serving: Serving) -> None:
    client = await serving()
    captured = await call_tool(client, "memory_capture", **CAPTURE, tags=["db"])
    assert captured["urn"] == f"memory://project/decisions/{captured['id']}"
    assert (captured["namespace"], captured["domain"], captured["tags"]) == ("decisions", "project", ["db"])
    assert (captured["stored"], captured["redacted"]) == (True, False)
    recalled = await call_tool(client, "memory_recall", query="which storage?")
    assert [memory["content"] for memory in recalled["memories"]] == ["Use PostgreSQL for storage"]
    assert (await call_tool(client, "memory_get", memory_id=captured["urn"]))["content"] == CAPTURE["content"]


async def test_fewer_than_twenty_tools_are_listed(serving: Serving) -> None:
    tools = await (await serving()).list_tools()
    assert len(tools) < 20
    for tool in tools:
        assert tool.name.startswith("memory_")
        assert tool.description and tool.output_schema, tool.name
        assert tool.input_schema["additionalProperties"] is False
        assert all(one.get("description") or name == "limit" for name, one in tool.input_schema["properties"].items())
    capture = next(one for one in tools if one.name == "memory_capture").input_schema
    assert capture["required"] == ["content", "namespace"]
    assert "decisions" in capture["properties"]["namespace"]["enum"]


async def test_other_names_are_understood_and_not_listed(serving: Serving) -> None:
    client = await serving()
    captured = await call_tool(client, "subcog_capture", **CAPTURE)
    assert (await call_tool(client, "memory.get", memory_id=captured["id"]))["id"] == captured["id"]
    assert (await call_tool(client, "subcog_list", filter="ns:decisions"))["count"] == 1


async def test_misspelt_argument_is_rejected(serving: Serving) -> None:
    client = await serving()
    result = await client.call_tool("memory_capture", {**CAPTURE, "tag": ["x"]}, raise_on_error=False)
    assert result.is_error and "tag" in result.content[0].text


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_unknown_namespace_is_invalid_params_on_older_revisions(serving: Serving, revision: str) -> None:
    client = await serving(revision=revision)
    with pytest.raises(ProtocolError) as refusal:
        await client.call_tool("memory_capture", {"content": "x", "namespace": "unknown"})
    assert (refusal.value.code, refusal.value.message) == (-32602, "Invalid namespace: unknown")
    assert "decisions" in refusal.value.data["valid"]


async def test_unknown_namespace_is_a_tool_error_in_newer_protocol_versions(serving: Serving) -> None:
    text, error = await call_failing_tool(await serving(), "memory_capture", content="x", namespace="unknown")
    assert text.startswith("Invalid namespace: unknown. Use one of decisions, ")
    assert error["number"] == -32608


async def test_missing_memory_error_has_its_number_in_the_metadata(serving: Serving) -> None:
    client = await serving()
    for tool in ("memory_get", "memory_update", "memory_delete", "memory_restore", "memory_history"):
        more = {"content": "x"} if tool == "memory_update" else {}
        text, error = await call_failing_tool(client, tool, memory_id="0123456789ab", **more)
        assert "0123456789ab" in text
        assert (error["number"], error["code"], error["retryable"]) == (-32604, "memory_not_found", False)


async def test_error_numbers_are_jsonrpc_codes_with_that_error_style(serving: Serving) -> None:
    client = await serving(revision="2024-11-05", error_style="jsonrpc", tool_prefix="subcog")
    with pytest.raises(ProtocolError) as missing:
        await client.call_tool("subcog_get", {"memory_id": "0123456789ab"})
    assert missing.value.code == -32604
    newer = await serving(revision="2025-06-18", error_style="jsonrpc", tool_prefix="other")
    assert (await call_failing_tool(newer, "other_get", memory_id="0123456789ab"))[1]["number"] == -32604


async def test_alternative_naming_lists_its_own_names(serving: Serving) -> None:
    client = await serving(revision="2024-11-05", tool_prefix="subcog")
    assert {item.name for item in await client.list_tools()} >= {"subcog_capture", "subcog_recall"}
    result = await client.call_tool("subcog_capture", CAPTURE)
    captured = json.loads(result.content[0].text)
    assert captured["urn"] == f"subcog://project/decisions/{captured['id']}"
    listed = {item.uri: item for item in await client.list_resources()}
    assert listed["subcog://help"].mime_type == "text/markdown"
    assert listed["subcog://project"].mime_type == "application/json"
    contents = await client.read_resource("subcog://project/decisions")
    assert contents[0].uri == "subcog://project/decisions"
    assert contents[0].mime_type == "application/json"
    data = json.loads(contents[0].text)
    assert data["count"] == 1 and data["memories"][0]["id"] == captured["id"]
    prompts = {item.name: item for item in await client.list_prompts()}
    assert prompts["subcog_capture"].description == "Guided memory capture"
    assert [(item.name, item.required) for item in prompts["subcog_capture"].arguments] == [("content", True)]
    got = await client.get_prompt("subcog_capture", {"content": "Important decision"})
    text = got.messages[0].content.text
    assert text.startswith("Capture this memory:\n\nContent: Important decision\n\nSuggested namespace: decisions\n")
    assert "(other namespaces: patterns, learnings," in text


async def test_detail_level_determines_the_shown_fields(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", content="word " * 500, namespace="context", author="ann")
    output = {
        detail: (await call_tool(client, "memory_recall", detail=detail))["memories"][0]
        for detail in ("light", "medium", "everything")
    }
    assert len(output["light"]["content"]) < len(output["medium"]["content"]) < len(output["everything"]["content"])
    assert output["light"]["cut"] and output["medium"]["cut"] and "cut" not in output["everything"]
    assert "author" not in output["light"] and output["medium"]["author"] == "ann"


async def test_cursor_returns_the_next_page(serving: Serving) -> None:
    client = await serving()
    for number in range(5):
        await call_tool(client, "memory_capture", content=f"thing {number}", namespace="context", on_duplicate="keep")
    first = await call_tool(client, "memory_recall", limit=3)
    rest = await call_tool(client, "memory_recall", limit=3, cursor=first["nextCursor"])
    assert "nextCursor" not in rest
    assert len({item["id"] for item in first["memories"] + rest["memories"]}) == 5
    assert "cursor" in (await call_failing_tool(client, "memory_recall", cursor="not ours"))[0]


async def test_update_delete_restore_and_history(serving: Serving) -> None:
    client = await serving()
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    changed = await call_tool(client, "memory_update", memory_id=id, content="Use SQLite", expected_version=1)
    assert (changed["version"], changed["content"]) == (2, "Use SQLite")
    text, error = await call_failing_tool(client, "memory_update", memory_id=id, content="x", expected_version=1)
    assert error["code"] == "version_conflict" and "got 2" in text
    assert (await call_tool(client, "memory_delete", memory_id=id))["hard"] is False
    assert (await call_tool(client, "memory_recall", query="SQLite"))["count"] == 0
    assert (await call_tool(client, "memory_restore", memory_id=id))["status"] == "active"
    changes = (await call_tool(client, "memory_history", memory_id=id))["changes"]
    assert [change["change"] for change in changes] == ["restored", "deleted", "updated", "captured"]
    assert changes[2]["content"] == CAPTURE["content"]


async def test_delete_all_needs_two_calls(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", **CAPTURE)
    assert (await call_tool(client, "memory_delete_all", filter="ns:decisions"))["count"] == 1
    assert (await call_tool(client, "memory_status"))["total"] == 1
    await call_tool(client, "memory_delete_all", filter="ns:decisions", dry_run=False)
    assert (await call_tool(client, "memory_status"))["total"] == 0


async def test_status_and_namespaces_count(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", **CAPTURE, tags=["db"])
    status = await call_tool(client, "memory_status")
    assert (status["total"], status["by_namespace"], status["tags"]) == (1, {"decisions": 1}, {"db": 1})
    assert (status["project"], status["secrets"]) == ("here/project", "block")
    names = {namespace["name"]: namespace for namespace in (await call_tool(client, "memory_namespaces"))["namespaces"]}
    assert len(names) == 14
    assert names["decisions"]["count"] == 1 and names["help"]["writable"] is False


async def test_resources_show_help_listings_memories_searches_and_topics(serving: Serving) -> None:
    client = await serving()
    id = (await call_tool(client, "memory_capture", **CAPTURE, tags=["db"]))["id"]
    await call_tool(client, "memory_capture", content="Mine alone", namespace="context", domain="user")

    async def read(uri: str) -> Any:
        content = (await client.read_resource(uri))[0]
        return json.loads(content.text) if content.mime_type == "application/json" else content.text

    assert "memory_recall" in await read("memory://help")
    assert "ns:decisions" in await read("memory://help/search")
    assert (await read("memory://project"))["count"] == 1
    assert (await read("memory://_"))["count"] == 2
    assert (await read("memory://_/decisions"))["memories"][0]["id"] == id
    assert (await read("memory://user/_"))["count"] == 1
    assert (await read(f"memory://project/decisions/{id}"))["content"] == CAPTURE["content"]
    assert (await read(f"memory://memory/{id}"))["id"] == id
    assert (await read("memory://search/storage%20of%20PostgreSQL"))["memories"][0]["id"] == id
    assert await read("memory://topics") == {"db": 1}
    assert (await read("memory://topics/db"))["count"] == 1
    assert "decisions" in await read("memory://namespaces")
    for missing in ("memory://project/nonsense", "memory://memory/ffffffff", f"memory://user/decisions/{id}"):
        with pytest.raises(ProtocolError) as refusal:
            await client.read_resource(missing)
        assert refusal.value.data["uri"] == missing


async def test_namespace_subscription_reports_captured_memories(serving: Serving) -> None:
    client = await serving()
    async with client.listen(uris=["memory://project/decisions"]) as changes:
        captured = await call_tool(client, "memory_capture", **CAPTURE)
        change = await anext(aiter(changes))
    assert change.uri == captured["urn"]


async def test_first_memory_of_a_namespace_changes_the_list_of_resources(serving: Serving) -> None:
    client = await serving()
    assert "memory://project/decisions" not in {resource.uri for resource in await client.list_resources()}
    async with client.listen(resources=True) as changes:
        await call_tool(client, "memory_capture", **CAPTURE)
        await anext(aiter(changes))
    assert "memory://project/decisions" in {resource.uri for resource in await client.list_resources()}


async def test_capture_is_logged_to_a_client_that_wants_to_know(serving: Serving) -> None:
    heard: list[Any] = []
    client = await serving(revision="2025-06-18", client={"log_handler": heard.append, "log_level": "debug"})
    captured = await call_tool(client, "memory_capture", **CAPTURE)
    notifications = [(item.level, item.logger, item.data) for item in heard]
    assert notifications[1] == ("info", "memory", f"Captured memory {captured['id']}")
    assert notifications[0] == ("debug", "memory", "memory_capture called with content, namespace")


async def test_global_is_the_user_everywhere(serving: Serving) -> None:
    client = await serving()
    assert (await call_tool(client, "memory_capture", **CAPTURE | {"domain": "global"}))["domain"] == "user"
    saved = await call_tool(client, "memory_prompts", action="save", name="one", content="As always.", domain="global")
    assert saved["prompts"][0]["domain"] == "user"
    assert CAPTURE["content"] in (await client.read_resource("memory://global/decisions"))[0].text


async def test_log_names_tools_as_they_are_listed(serving: Serving) -> None:
    heard: list[Any] = []
    client = await serving(revision="2025-06-18", client={"log_handler": heard.append}, tool_prefix="subcog")
    await call_failing_tool(client, "subcog_get", memory_id="nowhere")
    assert [item.data for item in heard] == [
        "subcog_get rejected: Memory 'nowhere' not found. Use subcog_recall to search by content."
    ]


async def test_completion_knows_namespaces_and_topics(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", **CAPTURE, tags=["database"])
    assert (await client.complete(template("memory://{domain}/{namespace}"), "namespace", "dec")).values == [
        "decisions"
    ]
    assert (await client.complete(template("memory://topics/{topic}"), "topic", "da")).values == ["database"]
    assert (await client.complete({"type": "ref/prompt", "name": "memory_review"}, "namespace", "te")).values == [
        "tech-debt",
        "testing",
    ]


async def test_read_only_memory_can_be_searched(serving: Serving) -> None:
    await call_tool(await serving(tool_prefix="first"), "first_capture", **CAPTURE)
    client = await serving(read_only=True)
    assert (await call_tool(client, "memory_recall", query="storage"))["count"] == 1
    for tool, arguments in (("capture", CAPTURE), ("delete", {"memory_id": "abcd"})):
        assert "read-only" in (await call_failing_tool(client, f"memory_{tool}", **arguments))[0]


async def test_prompts_start_with_stored_memories(serving: Serving) -> None:
    client = await serving()
    await call_tool(client, "memory_capture", **CAPTURE)
    for name, arguments in {
        "memory_session_start": {},
        "memory_recall": {"query": "storage"},
        "memory_review": {"namespace": "decisions", "action": "cleanup"},
        "memory_browse": {"top": "5"},
        "memory_list": {},
        "memory_tutorial": {"focus": "search"},
        "generate_decision": {"decision": "Use X"},
        "generate_tutorial": {"topic": "storage", "format": "steps"},
        "intent_search": {"query": "storage"},
        "query_suggest": {"query": "storage"},
        "context_capture": {"conversation": "A: hi"},
        "discover": {"topic": "storage"},
    }.items():
        assert (await client.get_prompt(name, arguments)).messages
    text = (await client.get_prompt("memory_session_start", {})).messages[0].content.text
    assert "Use PostgreSQL for storage" in text


@pytest.mark.parametrize("name", ["generate_tutorial", "discover"])
async def test_invalid_prompt_arguments_are_reported(serving: Serving, name: str) -> None:
    client = await serving()
    with pytest.raises(ProtocolError, match="Invalid date") as refusal:
        await client.get_prompt(name, {"topic": "storage since:x"})
    assert refusal.value.code == -32602


def test_settings_that_mean_nothing_are_rejected() -> None:
    for options in ({"tools": "some"}, {"secrets": "maybe"}, {"error_style": "none"}):
        with pytest.raises(UsageError):
            Memory(**options)  # type: ignore[arg-type]


async def test_it_can_be_added_while_the_server_runs(tmp_path: Any) -> None:
    server = Server("late", version="1")
    async with server.lifespan(), Client(server) as client:
        memory = Memory(tmp_path / "memory.db", project="here/project")
        server.add(memory)
        assert (await call_tool(client, "memory_capture", **CAPTURE))["stored"]


async def test_secret_is_blocked_and_not_repeated(serving: Serving) -> None:
    client = await serving()
    text, error = await call_failing_tool(client, "memory_capture", content=f"The key is {KEY}", namespace="config")
    assert error["number"] == -32605 and error["code"] == "content_blocked"
    assert KEY not in text and KEY not in json.dumps(error)
    id = (await call_tool(client, "memory_capture", **CAPTURE))["id"]
    await call_failing_tool(client, "memory_update", memory_id=id, content=f"The key is {KEY}")
    await call_failing_tool(client, "memory_capture", content="x", namespace="config", source=f"aws {KEY}")
    await call_failing_tool(client, "memory_capture", content="x", namespace="config", tags=[KEY])
    assert (await call_tool(client, "memory_status"))["total"] == 1


async def test_secret_is_redacted_by_setting(serving: Serving) -> None:
    client = await serving(secrets="redact")
    captured = await call_tool(client, "memory_capture", content=f"The key is {KEY}, for S3", namespace="config")
    assert captured["redacted"] and captured["notes"]
    content = (await call_tool(client, "memory_get", memory_id=captured["id"]))["content"]
    assert KEY not in content and content.endswith(", for S3")


async def test_blocked_secret_error_code_depends_on_version(serving: Serving) -> None:
    client = await serving(revision="2024-11-05", error_style="jsonrpc")
    with pytest.raises(ProtocolError) as refusal:
        await client.call_tool("memory_capture", {"content": f"The key is {KEY}", "namespace": "config"})
    assert refusal.value.code == -32605
