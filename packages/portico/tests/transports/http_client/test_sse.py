"""HTTP+SSE of 2024-11-05: a real server and hostile scripted ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Context, Server
from portico.protocol.errors import ConnectionClosed, HttpStatusError, ProtocolError, RequestTimeout
from portico.server.http import build_application
from portico.transports.http_client import sse
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from support.scripted import Endpoint, Peer, Request, text, wait_until

Serve = Callable[..., Any]
TIMEOUT_SECONDS = 10.0
R1 = "2024-11-05"


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[str]:
    """A server of ours with the two endpoints of 2024-11-05; gives the URL of the stream."""
    listener = Listener(build_application(server, HttpServerSettings(sse=True)))
    [(host, port, *_)] = await listener.listen("127.0.0.1", 0)
    try:
        yield f"http://{host}:{port}/sse"
    finally:
        await listener.stop(0)


def weather() -> Server:
    server = Server("weather")

    @server.tool
    async def forecast(city: str) -> str:
        return f"sun in {city}"

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("?")).text

    return server


# A server of ours


@pytest.mark.parametrize("how", ["found out", "said", "pinned"])
async def test_server_of_2024_11_05_is_spoken_to(how: str) -> None:
    async with served(weather()) as url:
        target = {"url": url, "type": "sse"} if how == "said" else url
        revision = R1 if how == "pinned" else None
        seen: list[str] = []
        options: Any = {
            "sampling_handler": lambda request: "yes",
            "on_message_bytes": lambda way, result: seen.append(way),
        }
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(target, protocol_version=revision, **options) as client:
            assert client.protocol_version == (R1 if how == "pinned" else client.protocol_version)
            assert (await client.call_tool("forecast", {"city": "Rome"})).text == "sun in Rome"
            assert (await client.call_tool("ask")).text == "yes"
            result = await asyncio.gather(*(client.call_tool("forecast", {"city": str(n)}) for n in range(30)))
        assert [item.text for item in result] == [f"sun in {n}" for n in range(30)]
        assert {"sent", "received"} <= set(seen)


async def test_changes_are_received(heard: Any) -> None:
    server = weather()
    async with (
        served(server) as url,
        Client(url, message_handler=heard) as client,
        client.listen(tools=True) as changes,
    ):
        server.tool("more")(lambda: "")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert (await anext(aiter(changes))).kind == "tools"


# Scripted ones


class Old(Endpoint):
    """A server that only has the two endpoints of 2024-11-05."""

    def __init__(self, endpoint: str = "/messages?s=1", **options: Any) -> None:
        super().__init__(modern=False, revision=R1, session=None, **options)
        self.endpoint = endpoint
        self.stream: Peer | None = None
        self.rules |= {"GET": self._open}

    async def _open(self, peer: Peer, request: Request) -> None:
        peer.stream()
        peer.event(self.endpoint, name="endpoint")
        self.stream = peer
        await peer.gone()

    def _properly(self, peer: Peer, request: Request) -> None:
        if request.target == "/mcp":
            peer.answer(405)
            return
        peer.answer(202, "Accepted", "text/plain")
        data = request.json
        if "id" in data:
            result: Any = self.greeting() if data["method"] == "initialize" else {"tools": [], **text("done")}
            self.say({"jsonrpc": "2.0", "id": data["id"], "result": result})

    def say(self, message: Any) -> None:
        assert self.stream is not None
        self.stream.event(message, name="message")


@pytest.mark.requirement("old-sse.fallback")
async def test_way_back_to_2024_11_05(serve: Serve) -> None:
    there = await serve(Old())
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, headers={"X-Own": "1"}) as client:
        assert client.protocol_version == R1
        for _ in range(5):
            assert (await client.call_tool("t")).text == "done"
    assert [item.says for item in there.seen[:4]] == ["server/discover", "initialize", "GET", "initialize"]
    posted = [item for item in there.seen if item.target == "/messages?s=1"]
    assert len(posted) == 7
    assert all(item.headers["x-own"] == "1" for item in there.seen)
    # Streamable HTTP's headers are not of this transport.
    assert not any(name.startswith("mcp-") for item in posted for name in item.headers)
    # The stream, and one connection for all that was posted, besides those of the first tries.
    assert len(there.site.peers) <= 4


@pytest.mark.requirement("old-sse.endpoint")
@pytest.mark.parametrize("where", ["http://127.0.0.1:1/x", "//evil.test/x", "https://127.0.0.1/x", "file:///x"])
async def test_endpoint_on_another_origin_is_rejected(serve: Serve, where: str) -> None:
    there = await serve(Old(where))
    with pytest.raises(ProtocolError, match=r"127\.0\.0\.1.* announced a message endpoint of another origin"):
        async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}, auth="secret"):
            pass
    assert [item.method for item in there.seen] == ["GET"]
    await wait_until(lambda: there.site.open == 0)


@pytest.mark.requirement("old-sse.fallback")
async def test_where_there_is_neither_the_first_rejection_is_reported(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))
    there.rules |= {
        says: lambda peer, request: peer.answer(404, "no such page", "text/plain")
        for says in ("server/discover", "initialize", "GET")
    }
    with pytest.raises(HttpStatusError, match="initialize with HTTP status 404: no such page"):
        async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url):
            pass
    assert [item.says for item in there.seen] == ["server/discover", "initialize", "GET"]


@pytest.mark.parametrize("habit", ["never answers", "never says where", "only comments"])
async def test_stream_that_does_not_begin_is_given_up(
    serve: Serve, habit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "ENDPOINT_EVENT_TIMEOUT_SECONDS", 0.1)
    there = await serve(Old())

    async def rule(peer: Peer, request: Request) -> None:
        if habit != "never answers":
            peer.stream()
        while habit == "only comments" and peer.is_there:
            peer.chunk(": hello\n\n")
            await asyncio.sleep(0.01)
        await peer.gone()

    there.rules["GET"] = rule
    with pytest.raises(RequestTimeout, match=r"did not announce its message endpoint within 0\.1 s"):
        async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}):
            pass
    await wait_until(lambda: there.site.open == 0)


async def test_stream_that_ends_at_once_is_reported_to(serve: Serve) -> None:
    there = await serve(Old())

    def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.end()

    there.rules["GET"] = rule
    with pytest.raises(ConnectionClosed, match="ended its stream without announcing a message endpoint"):
        async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}):
            pass


async def test_messages_on_the_heels_of_the_endpoint_are_received(serve: Serve, heard: Any) -> None:
    there = await serve(Old())

    async def rule(peer: Peer, request: Request) -> None:
        peer.stream()
        early = json.dumps({"jsonrpc": "2.0", "method": "notifications/early"})
        peer.chunk(f"event: endpoint\ndata: /messages\n\ndata: {early}\n\n")
        there.stream = peer
        await peer.gone()

    there.rules["GET"] = rule
    target = {"url": there.url, "type": "sse"}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(target, message_handler=heard):
        await heard.wait_for("notifications/early")


async def test_rejected_post_fails_the_call(serve: Serve) -> None:
    there = await serve(Old())
    there.rules["tools/call"] = lambda peer, request: peer.answer(413, "too much", "text/plain")
    async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}) as client:
        with pytest.raises(HttpStatusError, match="413: too much"):
            await client.call_tool("t")
        assert await client.list_tools() == []


@pytest.mark.parametrize(
    "answer, complaint",
    [
        ({"jsonrpc": "2.0", "id": "2", "result": {}}, "id '2'"),
        ({"jsonrpc": "2.0", "id": 2}, "cannot be decoded"),
        ('{"jsonrpc":"2.0","id":2,"result":', "cannot be decoded"),
        ([{"jsonrpc": "2.0", "id": 2, "result": {}}], "batch"),
    ],
)
async def test_invalid_response_error_names_the_server_and_method(serve: Serve, answer: Any, complaint: str) -> None:
    there = await serve(Old())

    def rule(peer: Peer, request: Request) -> None:
        peer.answer(202)
        there.say(answer)

    there.rules["tools/call"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}) as client:
        with pytest.raises(ProtocolError, match=rf"{there.site.port}/mcp, tools/call.*{complaint}"):
            await client.call_tool("t")
        assert await client.list_tools() == []


async def test_broken_stream_is_opened_again(serve: Serve) -> None:
    there = await serve(Old())
    async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}) as client:
        assert await client.list_tools() == []
        assert there.stream is not None
        there.stream.abort()
        await wait_until(lambda: client._upstream.transport.closed)
        assert await client.list_tools() == []
    assert len(there.requests_for("GET")) == 2


async def test_call_that_is_given_up_is_withdrawn(serve: Serve) -> None:
    there = await serve(Old())
    there.rules["tools/call"] = lambda peer, request: peer.answer(202)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}) as client:
        with pytest.raises(RequestTimeout, match=rf"{there.site.port}/mcp: tools/call was not answered within 0\.05 s"):
            await client.call_tool("t", timeout=0.05)
        response = await there.wait_for_request("notifications/cancelled")
    assert response.json["params"]["requestId"] == there.requests_for("tools/call")[0].json["id"]


async def test_nothing_is_left_open(serve: Serve) -> None:
    there = await serve(Old())
    async with asyncio.timeout(TIMEOUT_SECONDS), Client({"url": there.url, "type": "sse"}) as client:
        await client.list_tools()
    await wait_until(lambda: there.site.open == 0)
