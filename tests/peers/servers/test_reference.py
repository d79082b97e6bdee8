"""`@modelcontextprotocol/server-memory` and `@modelcontextprotocol/server-filesystem`."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode

import pytest

from portico import Client, ToolError
from portico.client.subscriptions import Change
from portico.protocol.content import EmbeddedResource, ImageContent
from portico.protocol.errors import ConnectionClosed

REVISIONS = ["", "2024-11-05", "2025-03-26", "2025-06-18"]
GRAPH = "memory://knowledge-graph"
ADA = {"name": "Ada", "entityType": "person", "observations": ["likes engines"]}
BERT = {"name": "Bert", "entityType": "person", "observations": []}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_memory_is_filled_and_searched_and_outlives_its_server(revision, servers, talking, tmp_path):
    file = tmp_path / "memory.jsonl"
    relation = {"from": "Ada", "to": "Bert", "relationType": "knows"}
    async with talking(servers.command("memory"), revision, env={"MEMORY_FILE_PATH": str(file)}).client as client:
        assert client.protocol_version == (revision or "2025-11-25")
        assert client.server_capabilities.logging is None
        made = await client.call_tool("create_entities", {"entities": [ADA, BERT]})
        assert made.data == {"entities": [ADA, BERT]}
        assert json.loads(made.text) == [ADA, BERT]
        await client.call_tool("create_relations", {"relations": [relation]})
        result = await client.call_tool("search_nodes", {"query": "engines"})
        assert [entity["name"] for entity in result.data["entities"]] == ["Ada"]
        with pytest.raises(ToolError, match="Entity with name Carl not found"):
            expected = {"observations": [{"entityName": "Carl", "contents": ["sings"]}]}
            await client.call_tool("add_observations", expected)
    async with talking(servers.command("memory"), revision, env={"MEMORY_FILE_PATH": str(file)}).client as client:
        (contents,) = await client.read_resource(GRAPH)
        assert contents.mime_type == "application/json"
        assert json.loads(contents.text) == {"entities": [ADA, BERT], "relations": [relation]}


async def test_change_of_the_memory_is_received(servers, talking, tmp_path):
    talk = talking(servers.command("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    async with talk.client as client, client.listen(uris=[GRAPH]) as changes:
        await client.call_tool("create_entities", {"entities": [ADA]})
        async with asyncio.timeout(10):
            assert await anext(aiter(changes)) == Change("resource", GRAPH)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_files_are_written_found_and_read(revision, servers, tmp_path):
    (tmp_path / "dot.png").write_bytes(b"\x89PNG")
    (tmp_path / "data.bin").write_bytes(b"\x00\x01")
    file = str(tmp_path / "note.txt")
    async with Client([*servers.command("filesystem")[:2], str(tmp_path)], protocol_version=revision or None) as client:
        assert client.protocol_version == (revision or "2025-11-25")
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert tools["write_file"].annotations.destructive_hint is True
        await client.call_tool("write_file", {"path": file, "content": "one\ntwo ☂"})
        assert (await client.call_tool("read_text_file", {"path": file, "tail": 1})).data == {"content": "two ☂"}
        edits = {"path": file, "edits": [{"oldText": "one", "newText": "1"}]}
        assert "+1" in (await client.call_tool("edit_file", edits)).text
        result = await client.call_tool("search_files", {"path": str(tmp_path), "pattern": "**/*.txt"})
        assert result.text == file
        (image,) = (await client.call_tool("read_media_file", {"path": str(tmp_path / "dot.png")})).content
        assert isinstance(image, ImageContent)
        assert b64decode(image.data) == b"\x89PNG"
        (inside,) = (await client.call_tool("read_media_file", {"path": str(tmp_path / "data.bin")})).content
        assert isinstance(inside, EmbeddedResource)
        with pytest.raises(ToolError, match="Access denied - path outside allowed directories"):
            await client.call_tool("read_text_file", {"path": "/etc/passwd"})


async def test_client_roots_determine_the_allowed_directories(servers, talking, tmp_path, eventually):
    item, two = tmp_path / "one", tmp_path / "two"
    item.mkdir()
    two.mkdir()
    talk = talking(servers.command("filesystem")[:2])
    talk.client.input_handlers.roots = [item.as_uri()]

    async def allowed() -> str:
        return (await talk.client.call_tool("list_allowed_directories")).text

    async with talk.client as client:
        await eventually(allowed, f"Allowed directories:\n{item}")
        client.input_handlers.roots = [two.as_uri()]
        await client.notify("notifications/roots/list_changed")
        await eventually(allowed, f"Allowed directories:\n{two}")


async def test_server_that_fails_to_start_is_reported_with_its_stderr(servers, tmp_path):
    with pytest.raises(ConnectionClosed, match="None of the specified directories are accessible"):
        await Client([*servers.command("filesystem")[:2], str(tmp_path / "nothing")]).connect()


def test_lock_file_names_no_registry(servers):
    assert "resolved" not in servers.pins.read_text(encoding="utf-8")
