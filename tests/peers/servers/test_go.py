"""A server on the Go SDK: `kubernetes-mcp-server`, without a cluster."""

from __future__ import annotations

import asyncio

import pytest

from portico import ToolError
from portico.client.subscriptions import Change
from portico.protocol.errors import ProtocolError

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Over HTTP it speaks 2026-07-28 when it keeps no sessions, and the others when it does.
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LEGS = [
    *(("go", "stdio", revision) for revision in ("", *HANDSHAKE)),
    *(("go", "http", revision) for revision in ("", *HANDSHAKE[1:-1])),
    *(("go", "http+stateless", revision) for revision in ("", "2025-11-25")),
]


async def test_newest_revision_that_both_know_is_found(leg, client):
    result = "2025-11-25" if leg.transport == "http" else "2026-07-28"
    assert client.protocol_version == (leg.revision or result)
    assert client.server_info.name == "kubernetes-mcp-server"
    assert client.server_info.website_url == "https://github.com/containers/kubernetes-mcp-server"
    await client.ping()


async def test_everything_is_listed(client):
    tools = {tool.name: tool for tool in await client.list_tools()}
    assert {"configuration_view", "pods_list", "pods_delete"} <= {*tools}
    assert tools["pods_delete"].annotations.destructive_hint is True
    assert await client.list_resources() == await client.list_resource_templates() == []
    assert [prompt.name for prompt in await client.list_prompts()] == ["cluster-health-check"]


async def test_tool_is_called(client):
    result = await client.call_tool("configuration_view", {"minified": True})
    assert "current-context: first" in result.text
    assert "http://127.0.0.1:1" in result.data


async def test_rejected_call_is_a_tool_error(client):
    with pytest.raises(ToolError, match="connection refused"):
        await client.call_tool("pods_list")
    with pytest.raises(ToolError, match="name parameter must be a string"):
        await client.call_tool("pods_get", {"name": 3})


async def test_missing_components_and_methods_are_protocol_errors(client):
    for ask in (client.call_tool("nothing"), client.get_prompt("nothing"), client.read_resource("file:///nothing")):
        with pytest.raises(ProtocolError) as raised:
            await ask
        assert raised.value.code in (-32602, -32002)
    with pytest.raises(ProtocolError, match="method not found") as raised:
        await client.complete({"type": "ref/prompt", "name": "cluster-health-check"}, "namespace", "d")
    assert raised.value.code == -32601


async def test_prompt_is_got(client):
    first, *_ = (await client.get_prompt("cluster-health-check", {"check_events": "false"})).messages
    assert first.role == "user"
    assert first.content.text.startswith("# Cluster Health Check Diagnostic Data")


async def test_fifty_concurrent_calls_each_get_their_own_result(client):
    calls = (client.call_tool("pods_get", {"name": at}, raise_on_error=False) for at in range(50))
    assert all(result.is_error for result in await asyncio.gather(*calls))


@pytest.mark.parametrize("revision", ["", "2025-06-18"])
async def test_change_of_the_tools_is_received(revision, servers, talking, tmp_path):
    """It watches its configuration, and has one tool more when there are two clusters to choose from."""
    servers = type(servers)(tmp_path)
    talk = talking(servers.command("go"), revision)
    async with talk.client as client:
        before = {tool.name for tool in await client.list_tools()}
        async with client.listen(tools=True) as changes:
            servers.kubeconfig("first", "second")
            async with asyncio.timeout(10):
                assert await anext(aiter(changes)) == Change("tools")
        assert {tool.name for tool in await client.list_tools()} - before == {"configuration_contexts_list"}
