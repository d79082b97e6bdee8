"""The recorder sees every frame on every transport and reports invalid ones; other tests rely on this."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from portico import Client, Context, Server
from portico.protocol.client_features import Root
from portico.protocol.errors import InvalidParams
from portico.protocol.lifecycle import DiscoverResult
from portico.protocol.meta import ServerCapabilities
from portico.protocol.versions import FIRST_MODERN_VERSION, HANDSHAKE_VERSIONS, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.transports.http_server.application import HttpApplication, HttpServerSettings
from portico.transports.http_server.listener import Listener
from support import frames, recorder

pytestmark = pytest.mark.skipif(not frames.SCHEMAS.is_dir(), reason=frames.ABSENT)


async def broken(call: Call) -> Any:
    """A server that finds no words for what it has, and speaks before that."""
    if call.method == "server/discover":
        return DiscoverResult(
            supported_versions=[FIRST_MODERN_VERSION],
            capabilities=ServerCapabilities(tools={}, prompts={}, resources={}),
            ttl_ms=0,
            cache_scope="private",
        )
    if call.method == "tools/call":
        call.reply.notify("notifications/tools/list_changed", {"_meta": "much"})
    return Raw(b'{"resultType":"complete","content":[{"type":"hologram"}],"isError":false}')


async def _call(target: Any, revision: str) -> None:
    async with Client(target, protocol_version=revision) as client:
        await client.request("tools/call", {"name": "x", "arguments": {}})


@pytest.mark.requirement("schema.frames")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_broken_result_and_a_broken_notice_are_found_in_memory(revision: str) -> None:
    await _call(broken, revision)
    result = "\n".join(recorder.iterate_invalid_frames())
    assert "in answer to tools/call" in result
    assert "hologram" in result
    assert '"_meta":"much"' in result


@pytest.mark.requirement("schema.frames")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS[1:])
async def test_broken_result_and_a_broken_notice_are_found_over_http(revision: str) -> None:
    listener = Listener(HttpApplication(broken, HttpServerSettings(), dict))
    ((_, port, *_),) = await listener.listen("127.0.0.1", 0)
    try:
        await _call(f"http://127.0.0.1:{port}/mcp", revision)
    finally:
        await listener.stop(0)
    result = "\n".join(recorder.iterate_invalid_frames())
    assert "hologram" in result
    assert '"_meta":"much"' in result
    assert f"({revision})" in result


@pytest.mark.requirement("schema.frames")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_broken_request_is_found(revision: str) -> None:
    async with Client(Server("sound"), protocol_version=revision) as client:
        with pytest.raises(InvalidParams):
            await client.request("tools/call", {"arguments": {}})
    (result,) = {
        iterate_invalid_frame.partition("\n")[0] for iterate_invalid_frame in recorder.iterate_invalid_frames()
    }
    assert result.startswith("CallToolRequest")


@pytest.mark.requirement("schema.frames")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
async def test_invalid_client_response_is_detected(revision: str) -> None:
    server = Server("curious")

    @server.tool
    async def look(ctx: Context) -> int:
        return len(await ctx.list_roots())

    nameless = Root(uri="file:///x", name=5)  # type: ignore[arg-type]
    async with Client(server, protocol_version=revision, roots=[nameless]) as client:
        with pytest.raises(InvalidParams):
            await client.call_tool("look", {})
    result = "\n".join(recorder.iterate_invalid_frames())
    assert "in answer to roots/list" in result


@pytest.mark.requirement("schema.frames")
async def test_test_that_sends_a_broken_frame_fails(request: pytest.FixtureRequest) -> None:
    frame = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": None}}
    recorder.record(json.dumps(frame).encode(), FIRST_MODERN_VERSION)
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)invalid frames for their protocol version.*ProgressNotification"
    ):
        recorder.check(request.node)
    # Not once for all: the next to send it fails as well.
    recorder.record(json.dumps(frame).encode(), FIRST_MODERN_VERSION)
    assert list(recorder.iterate_invalid_frames())


@pytest.mark.requirement("schema.frames")
@pytest.mark.broken_frames("to see that it may")
async def test_test_that_means_to_does_not_fail(request: pytest.FixtureRequest) -> None:
    recorder.record(b'{"jsonrpc":"2.0","id":1,"result":5}', FIRST_MODERN_VERSION)
    recorder.check(request.node)
    assert not list(recorder.iterate_invalid_frames())
