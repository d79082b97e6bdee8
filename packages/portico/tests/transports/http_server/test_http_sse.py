"""2024-11-05: HTTP with SSE, one endpoint for events and one for messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from portico import Server

R1 = "2024-11-05"
Serve = Callable[..., Any]
PING = {"jsonrpc": "2.0", "id": 9, "method": "ping"}


class Old:
    """A client of 2024-11-05: it posts to where the first event told it to, and hears everything on its stream."""

    def __init__(self, site: Any, stream: Any, address: str) -> None:
        self.site, self.stream, self.address = site, stream, address
        self.origin: dict[str, str] = {}

    async def post(self, message: Any) -> Any:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.site.request("POST", self.address, {"content-type": "application/json"}, body)

    async def request(self, method: str, params: Any = None, id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        response = await self.post(message if params is None else message | {"params": params})
        assert response.status == 202
        return await self.stream.message()

    async def call(self, tool: str, arguments: Any = None, id: Any = 1) -> Any:
        return await self.request("tools/call", {"name": tool, "arguments": arguments or {}}, id)


async def opened(site: Any, headers: Any = None, **options: Any) -> Old:
    stream = await site.open("GET", "/sse", {"accept": "text/event-stream", **(headers or {})})
    first = await stream.event()
    assert first.name == "endpoint"
    return Old(site, stream, first.data)


async def initialized(site: Any, capabilities: Any = None) -> Old:
    old = await opened(site)
    params = {"protocolVersion": R1, "capabilities": capabilities or {}, "clientInfo": {"name": "t", "version": "1"}}
    response = await old.request("initialize", params, id=0)
    assert response["result"]["protocolVersion"] == R1
    assert (await old.post({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202
    return old


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/sse"), ("POST", "/messages"), ("POST", "/messages?session_id=x")]
)
async def test_sse_is_off_by_default(serve: Serve, server: Server, method: str, path: str) -> None:
    """docs/how-to/choose-a-transport.md: only with `--sse`."""
    site = await serve(server)
    response = await site.request(
        method, path, {"content-type": "application/json"}, b"{}" if method == "POST" else None
    )
    assert response.status == 404


@pytest.mark.requirement("old-sse.endpoint")
async def test_first_event_says_where_to_post(serve: Serve, server: Server) -> None:
    """2024-11-05, basic/transports, HTTP with SSE: MUST send an `endpoint` event with a URI when a client connects."""
    site = await serve(server, sse=True)
    stream = await site.open("GET", "/sse", {"accept": "text/event-stream"})
    assert stream.head.status == 200
    assert stream.head["content-type"] == "text/event-stream"
    first = await stream.event()
    assert first.name == "endpoint"
    # Of the same origin, so that no client has to ask itself whether it may follow it.
    assert first.data.startswith("/messages?")


@pytest.mark.requirement("old-sse.messages")
async def test_responses_are_sent_on_the_sse_stream(serve: Serve, server: Server) -> None:
    """The same section: server messages are SSE `message` events; the POST itself is only accepted."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    accepted = await old.post(PING)
    assert accepted.status == 202
    event = await old.stream.event()
    assert event.name in (None, "message")
    assert event.json == {"jsonrpc": "2.0", "id": 9, "result": {}}
    assert (await old.call("later", {"text": "hi"}))["result"]["content"][0]["text"] == "hi"


async def test_revision_is_respected(serve: Serve, server: Server) -> None:
    """2024-11-05 knows neither structured content nor the members that came later."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    tools = (await old.request("tools/list"))["result"]["tools"]
    assert all("outputSchema" not in tool and "title" not in tool for tool in tools)


async def test_progress_and_server_requests_use_the_sse_stream(serve: Serve, server: Server) -> None:
    """The same section: every server message is on the one stream; the client's answers are POSTs."""
    site = await serve(server, sse=True)
    old = await initialized(site, {"sampling": {}})
    params = {"name": "talk", "arguments": {"count": 2}, "_meta": {"progressToken": 5}}
    messages = [await old.request("tools/call", params), await old.stream.message(), await old.stream.message()]
    assert [item.get("method") for item in messages] == ["notifications/progress", "notifications/progress", None]
    question = await old.call("sample", id=2)
    assert question["method"] == "sampling/createMessage"
    result = {"role": "assistant", "content": {"type": "text", "text": "sampled"}, "model": "m"}
    assert (await old.post({"jsonrpc": "2.0", "id": question["id"], "result": result})).status == 202
    assert (await old.stream.message())["result"]["content"][0]["text"] == "sampled"


async def test_changes_are_reported(serve: Serve, server: Server) -> None:
    """2024-11-05, server/tools: list_changed comes unasked."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    messages = [await old.call("grow", {"name": "grown"}), await old.stream.message()]
    assert "notifications/tools/list_changed" in [item.get("method") for item in messages]


@pytest.mark.requirement("jsonrpc.parse-error")
async def test_parse_error_does_not_end_the_sse_session(serve: Serve, server: Server) -> None:
    """JSON-RPC 2.0, 5.1: a parse error has a response; it must not end the session."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    response = await old.post(b"{")
    if response.status == 202:
        assert (await old.stream.message())["error"]["code"] == -32700
    else:
        assert response.status == 400
    assert (await old.request("ping"))["result"] == {}


@pytest.mark.requirement("old-sse.messages")
async def test_session_ends_with_its_stream(serve: Serve, server: Server, held: Any, wait_until: Any) -> None:
    """The same section: the connection is the session. What it was doing is stopped, and its address is gone."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    message = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "hold", "arguments": {}}}
    await old.post(message)
    await held.has_started()
    assert await site.metric("mcp_server_sessions") == 1
    old.stream.abort()
    await held.was_cancelled()
    assert (await old.post(PING)).status == 404
    assert await site.metric("mcp_server_sessions") == 0


async def test_session_ends_with_a_stream_that_is_closed_politely(serve: Serve, server: Server, held: Any) -> None:
    """The same for a client that closes its socket instead of resetting it."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    message = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "hold", "arguments": {}}}
    await old.post(message)
    await held.has_started()
    await old.stream.close()
    await held.was_cancelled(within=4)


@pytest.mark.parametrize("query", ["", "?session_id=", "?session_id=nobody", "?sessionId=x", "?session_id=%00"])
async def test_missing_session_is_404(serve: Serve, server: Server, query: str) -> None:
    """As for the sessions of later revisions: it is how a client knows that it must connect again."""
    site = await serve(server, sse=True)
    fields = {"content-type": "application/json"}
    response = await site.request("POST", f"/messages{query}", fields, json.dumps(PING).encode())
    assert response.status in (400, 404)


async def test_sse_and_streamable_http_sessions_are_separate(serve: Serve, server: Server) -> None:
    """The two transports have nothing to do with each other."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    id = old.address.partition("session_id=")[2]
    assert (await site.post(PING, {"mcp-session-id": id})).status == 404
    new = await site.initialize("2025-11-25")
    fields = {"content-type": "application/json"}
    crossed = await site.request("POST", f"/messages?session_id={new.id}", fields, json.dumps(PING).encode())
    assert crossed.status == 404


async def test_session_ids_cannot_be_guessed(serve: Serve, server: Server) -> None:
    """2024-11-05 has no text about it; later revisions do, and the danger is the same."""
    site = await serve(server, sse=True)
    ids = {(await opened(site)).address.partition("session_id=")[2] for _ in range(10)}
    assert len(ids) == 10
    assert min(map(len, ids)) >= 22


@pytest.mark.requirement("http.origin")
async def test_both_addresses_are_behind_the_gate_and_the_token(serve: Serve, server: Server) -> None:
    """2024-11-05, basic/transports, Security Warning: Origin MUST be validated."""
    site = await serve(server, sse=True, token="right")
    old = await opened(site)
    foreign = {"origin": "http://evil.example"}
    assert (await site.request("GET", "/sse", foreign)).status == 403
    assert (await site.request("GET", "/sse", {"authorization": None})).status == 401
    body = json.dumps(PING).encode()
    kind = {"content-type": "application/json"}
    assert (await site.request("POST", old.address, kind | foreign, body)).status == 403
    assert (await site.request("POST", old.address, kind | {"authorization": None}, body)).status == 401
    assert (await site.request("POST", old.address, kind, body)).status == 202


async def test_stream_is_kept_alive(serve: Serve, server: Server) -> None:
    """docs/how-to/choose-a-transport.md: whatever is in between must not think that it is dead."""
    site = await serve(server, sse=True)
    old = await opened(site)
    site.exchange.send_keep_alives()
    assert await old.stream.until_comment()


async def test_draining_lets_calls_finish_and_ends_the_stream(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Stopping: running calls have their time, on this transport as on the others."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    message = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "hold", "arguments": {}}}
    await old.post(message)
    await held.has_started()
    stopping = asyncio.ensure_future(site.stop(timeout=5))
    await asyncio.sleep(0)
    held.release.set()
    event = await old.stream.event()
    assert event is not None, "the stream has ended without the answer"
    assert event.json["result"]["content"][0]["text"] == "released"
    await stopping
    assert await old.stream.event() is None


async def test_reader_that_is_far_behind_does_not_fill_the_memory(serve: Serve, server: Server, held: Any) -> None:
    """docs/how-to/deploy.md, Limits: 1 MiB unread, then log messages are dropped, then the connection."""
    site = await serve(server, sse=True)
    old = await initialized(site)
    # It never reads again: what it has not read is here, or in the buffers of the system.
    old.stream.writer.transport.pause_reading()
    params = {"name": "shout", "arguments": {"count": 600, "size": 50_000}}
    await old.post({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params})
    assert await site.most_unread(held.shouted) <= 4 * 1024 * 1024


async def test_sessions_have_a_cap(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: sessions."""
    site = await serve(server, sse=True, max_sessions=1)
    await opened(site)
    assert (await site.request("GET", "/sse", {"accept": "text/event-stream"})).status == 503


async def test_one_client_cannot_take_all_sessions(serve: Serve, server: Server) -> None:
    """docs/how-to/deploy.md, Limits: sessions of one client."""
    site = await serve(server, sse=True, max_sessions=10, max_sessions_per_client=2)
    first = await opened(site)
    await opened(site)
    assert (await site.request("GET", "/sse", {"accept": "text/event-stream"})).status == 503
    # A session that has ended makes room.
    first.stream.abort()
    async with asyncio.timeout(10):
        while await site.metric("mcp_server_sessions") > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await opened(site)
