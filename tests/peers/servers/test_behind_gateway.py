"""Servers of other projects behind a gateway, with every pair of protocol generations.

`make real-servers` does this with dozens of them; here are those that are installed anyway.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from portico import Client
from portico.protocol.client_features import CreateMessageResult, ElicitResult
from portico.protocol.content import TextContent
from portico_gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT_SECONDS = 30.0
ERAS = ("2025-11-25", "2026-07-28")


async def fill_in(params: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "Alice", "integer": 42})


async def say_paris(params: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text="Paris"), model="a-model")


def able(gateway: Gateway, revision: Any) -> Client:
    return Client(
        gateway,
        protocol_version=revision,
        elicitation_handler=fill_in,
        sampling_handler=say_paris,
        roots=["file:///project"],
    )


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("revision", ERAS)
async def test_requests_of_the_everything_server_reach_the_client(revision, transport, servers, running):
    where = servers.command("everything") if transport == "stdio" else running("everything", "http")
    async with able(Gateway({"all": where}), revision) as client:
        names = {tool.name for tool in await client.list_tools()}
        assert {"all_echo", "all_trigger-elicitation-request", "all_get-roots-list"} <= names
        assert (await client.call_tool("all_echo", {"message": "grüße ☂"})).text == "Echo: grüße ☂"
        result = await client.call_tool("all_trigger-elicitation-request")
        assert json.loads(result.content[-1].text.partition(":")[2])["action"] == "accept"
        result = await client.call_tool("all_trigger-sampling-request", {"prompt": "the capital of France"})
        assert '"text": "Paris"' in result.text
        assert "file:///project" in (await client.call_tool("all_get-roots-list")).text


@pytest.mark.parametrize("revision", ERAS)
async def test_several_servers_are_called_through_one_gateway(revision, servers, tmp_path):
    filesystem = [*servers.command("filesystem")[:-1], str(tmp_path)]
    behind = {"files": filesystem, "memory": servers.command("memory")[:-1], "python": servers.command("official")}
    gateway = Gateway(behind, max_result_tokens=0)
    async with Client(gateway, protocol_version=revision) as client:
        assert str(tmp_path) in (await client.call_tool("files_list_allowed_directories")).text
        assert "entities" in (await client.call_tool("memory_read_graph")).structured
        # The first list does not wait long for a server that starts slowly.
        await gateway.wait_until_listed(TIMEOUT_SECONDS)
        aliases = {tool.name.partition("_")[0] for tool in await client.list_tools()}
    assert aliases == {"files", "memory", "python"}
