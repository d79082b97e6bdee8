"""Version discovery: server behaviours and the resulting protocol version."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client
from portico.protocol.errors import ConnectionClosed, HttpStatusError, PorticoError, ProtocolError, RequestTimeout
from portico.transports import version_discovery
from support.scripted import MODERN, NEWEST_HANDSHAKE, Endpoint, Peer, Request

Serve = Callable[..., Any]
TIMEOUT_SECONDS = 10.0
PAGE = "<html>no</html>"


def error(status: int, code: int, **data: Any) -> Callable[[Peer, Request], None]:
    return lambda peer, request: peer.error(request, code, "no", status, **({"data": data} if data else {}))


def page(status: int, body: str = "") -> Callable[[Peer, Request], None]:
    return lambda peer, request: peer.answer(status, body, "text/html")


def listing(*versions: str) -> Callable[[Peer, Request], None]:
    return lambda peer, request: peer.result(request, Endpoint().discovery(*versions))


# protocol pages: basic/lifecycle and basic/transports of 2026-07-28, Backward Compatibility.

HTTP: dict[str, tuple[Any, str]] = {
    "says so": (listing(MODERN), "modern"),
    "speaks both": (listing(NEWEST_HANDSHAKE, MODERN), "modern"),
    "speaks more": (listing("2099-01-01", MODERN), "modern"),
    "only the handshake": (listing(NEWEST_HANDSHAKE, "2025-06-18"), "handshake"),
    "nothing we know": (listing("2099-01-01"), "neither"),
    "nothing at all": (
        lambda peer, request: peer.result(request, {**Endpoint().discovery(), "supportedVersions": []}),
        "neither",
    ),
    # Recognised errors: it is a modern server, and the handshake is not tried.
    "400 -32020": (error(400, -32020), "neither"),
    "400 -32021": (error(400, -32021, requiredCapabilities={"elicitation": {}}), "neither"),
    "400 -32022": (error(400, -32022, supported=["2099-01-01"], requested=MODERN), "neither"),
    "400 -32022 without data": (error(400, -32022), "neither"),
    "400 -32022, older": (error(400, -32022, supported=[NEWEST_HANDSHAKE], requested=MODERN), "handshake"),
    # Everything else that refuses the question is from before it.
    "400 -32000": (error(400, -32000), "handshake"),
    "400 -32001": (error(400, -32001), "handshake"),
    "400 -32004": (error(400, -32004), "handshake"),
    "400 -32600": (error(400, -32600), "handshake"),
    "400 -32601": (error(400, -32601), "handshake"),
    "400 -32602": (error(400, -32602), "handshake"),
    "400 -32700": (error(400, -32700), "handshake"),
    "400 id unknown": (
        lambda peer, request: peer.json(
            {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "Missing session ID"}}, 400
        ),
        "handshake",
    ),
    "400 nothing": (page(400), "handshake"),
    "400 page": (page(400, PAGE), "handshake"),
    "400 other json": (lambda peer, request: peer.json({"error": "no"}, 400), "handshake"),
    # modern must implement it
    "404 -32601": (error(404, -32601), "handshake"),
    "404 -32001": (error(404, -32001), "handshake"),
    "404 nothing": (page(404), "handshake"),
    "405": (page(405), "handshake"),
    "406": (page(406), "handshake"),
    "415": (page(415), "handshake"),
    "422": (page(422, '{"detail": []}'), "handshake"),
    "200 -32601": (error(200, -32601), "handshake"),
    "200 -32602": (error(200, -32602), "handshake"),
    "200 -32603": (error(200, -32603), "handshake"),
    "200 page": (page(200, PAGE), "handshake"),
    "202": (page(202), "handshake"),
    # No evidence.
    "401": (page(401), "neither"),
    "403": (page(403), "neither"),
    "407": (page(407), "neither"),
    "408": (page(408), "neither"),
    "429": (page(429), "neither"),
    "500": (page(500), "neither"),
    "502": (page(502, PAGE), "neither"),
    "503": (page(503), "neither"),
    "silence": (lambda peer, request: peer.gone(), "neither"),
    "slams the door": (lambda peer, request: peer.abort(), "neither"),
}


@pytest.mark.requirement("discover.era")
@pytest.mark.parametrize("habit", HTTP)
async def test_over_http(serve: Serve, habit: str) -> None:
    rule, verdict = HTTP[habit]
    there = await serve(Endpoint(modern=False))
    there.rules["server/discover"] = rule
    timeout = 0.2 if habit == "silence" else TIMEOUT_SECONDS
    client = Client(there.url, timeout=timeout, max_retries=0)
    if verdict == "neither":
        with pytest.raises(PorticoError):
            await client.connect()
        assert there.requests_for("initialize") == []
        return
    async with client:
        assert client.protocol_version == (MODERN if verdict == "modern" else NEWEST_HANDSHAKE)
        assert bool(there.requests_for("initialize")) == (verdict == "handshake")
        # Nothing but the question itself is ever sent on a guess.
        assert there.seen[0].says == "server/discover"


# A server at the other end of a pipe. What it does with the question is its argument, in Python.
CHILD = """
import json, os, sys
MODERN, OLD = "2026-07-28", "2025-11-25"
HAS = {"tools": {}, "prompts": {}}
def say(message):
    print(json.dumps(message), flush=True)
def result(result):
    say({"jsonrpc": "2.0", "id": said["id"], "result": result})
def error(code, id=None, **data):
    body = {"code": code, "message": "?", "data": data}
    say({"jsonrpc": "2.0", "id": said["id"] if id is None else id, "error": body})
def discovery(*versions):
    hints = {"ttlMs": 0, "cacheScope": "private"}
    result({"resultType": "complete", "supportedVersions": versions, "capabilities": HAS, **hints})
for line in sys.stdin:
    said = json.loads(line)
    if said.get("method") == "server/discover":
        exec(sys.argv[1])
    elif said.get("method") == "initialize":
        result({"protocolVersion": OLD, "capabilities": HAS, "serverInfo": {"name": "child", "version": "1"}})
    elif said.get("method") == "tools/list":
        result({"resultType": "complete", "tools": []})
"""

STDIO: dict[str, str] = {
    "discovery(MODERN)": "modern",
    "discovery(OLD, MODERN)": "modern",
    "discovery(OLD)": "handshake",
    "discovery('2099-01-01')": "neither",
    "error(-32020)": "neither",
    "error(-32021)": "neither",
    "error(-32022, supported=['2099-01-01'])": "neither",
    "error(-32022, supported=[OLD])": "handshake",
    "error(-32601)": "handshake",
    "error(-32602)": "handshake",
    "error(-32600)": "handshake",
    "error(-32000)": "handshake",
    "error(-32001)": "handshake",
    "error(-32603)": "handshake",
    "error(1)": "handshake",
    "sys.exit(0)": "handshake",
    "sys.exit(1)": "handshake",
    "1 / 0": "handshake",
    "os.close(1)": "handshake",
    "pass": "handshake",
    # Who could not read the question does not know its id, and is not waited for.
    "say({'jsonrpc': '2.0', 'id': None, 'error': {'code': -32700, 'message': '?'}})": "handshake",
    "say({'jsonrpc': '2.0', 'error': {'code': -32700, 'message': '?'}})": "handshake",
    "error(-32601, id='1')": "handshake",
    "result({})": "handshake",
    "result({'supportedVersions': 5})": "handshake",
    # What a program prints is no message, and does no harm.
    "print('Starting up!'); print(); print('[1, 2'); discovery(MODERN)": "modern",
    'print(\'{"level": "info"}\'); error(-32601)': "handshake",
}


@pytest.mark.requirement("discover.era", "discover.not-one-code")
@pytest.mark.parametrize("habit", STDIO)
async def test_over_stdio(habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = STDIO[habit]
    if habit == "pass":
        monkeypatch.setattr(version_discovery, "DISCOVER_TIMEOUT_SECONDS", 0.3)
    client = Client([sys.executable, "-S", "-c", CHILD, habit], timeout=TIMEOUT_SECONDS)
    if verdict == "neither":
        with pytest.raises(ProtocolError):
            await client.connect()
        return
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        assert client.protocol_version == (MODERN if verdict == "modern" else NEWEST_HANDSHAKE)
        assert await client.list_tools() == []


# A program that takes long to start, and then keeps to the era of what it hears first. It lets the question wait until
# the handshake is there.
LATE = CHILD.replace(
    "for line in sys.stdin:",
    """waiting = sys.stdin.readline()
while '"initialize"' not in (line := sys.stdin.readline()): pass
said = json.loads(waiting); discovery(MODERN)
said = json.loads(line); error(-32600)
sys.argv.append("discovery(MODERN)")
for line in sys.stdin:""",
)


async def test_program_that_is_slow_to_start_may_be_of_the_newest_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_discovery, "DISCOVER_TIMEOUT_SECONDS", 0.2)
    client = Client([sys.executable, "-S", "-c", LATE], timeout=TIMEOUT_SECONDS)
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        assert client.protocol_version == MODERN
        assert await client.list_tools() == []


async def test_slow_program_that_knows_both_ways_is_spoken_to_in_the_newest_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(version_discovery, "DISCOVER_TIMEOUT_SECONDS", 0.2)
    server = "import time; time.sleep(1)\nfrom portico import Server\nServer('slow').run()"
    async with (
        asyncio.timeout(6 * TIMEOUT_SECONDS),
        Client([sys.executable, "-c", server], timeout=TIMEOUT_SECONDS * 6) as client,
    ):
        assert client.protocol_version == MODERN
        assert await client.list_tools() == []


# Remembering


@pytest.mark.requirement("discover.era")
async def test_older_server_is_asked_once(serve: Serve) -> None:
    """The verdict is the server's, so the next client knows it."""
    there = await serve(Endpoint(modern=False))
    for _ in range(3):
        async with Client(there.url) as client:
            assert client.protocol_version == NEWEST_HANDSHAKE
    assert len(there.requests_for("server/discover")) == 1
    assert len(there.requests_for("initialize")) == 3


async def test_version_cache_is_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_discovery._modern_by_target, "maxsize", 3)
    there = await serve(Endpoint(modern=False))
    for number in range(10):
        async with Client(f"{there.url}?{number}"):
            pass
    assert len(version_discovery._modern_by_target) <= 3


@pytest.mark.requirement("discover.era-changes")
@pytest.mark.parametrize(
    "refusal",
    [
        error(404, -32601),
        error(400, -32022, supported=[MODERN], requested="x"),
        error(400, -32602),
        page(404),
        page(405),
    ],
    ids=["404 -32601", "400 -32022", "400 -32602", "404", "405"],
)
async def test_older_server_that_became_newer_is_asked_again(serve: Serve, refusal: Any) -> None:
    there = await serve(Endpoint(modern=False))
    async with Client(there.url):
        pass
    there.modern = True
    there.rules["initialize"] = refusal
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        assert client.protocol_version == MODERN
        assert await client.list_tools() == []


@pytest.mark.requirement("discover.era-changes")
async def test_newer_server_that_became_older_is_found_out(serve: Serve) -> None:
    there = await serve()
    async with Client(there.url) as client:
        assert client.protocol_version == MODERN
    there.modern = False
    async with Client(there.url) as client:
        assert client.protocol_version == NEWEST_HANDSHAKE


@pytest.mark.parametrize(
    "refusal",
    [error(400, -32600), error(400, -32000), page(400), page(404), page(406), page(405)],
    ids=["-32600", "-32000", "400", "404", "406", "405"],
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
async def test_server_may_become_older_under_our_hands(serve: Serve, refusal: Any, method: str) -> None:
    """It refused, so nothing was done: also a call is made again."""
    there = await serve()

    def rule(peer: Peer, request: Request) -> None:
        if "mcp-session-id" not in request.headers:
            refusal(peer, request)
        else:
            peer.result(request, {"tools": [], "content": []})

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        assert await client.list_tools() == []
        there.modern = False
        there.rules[method] = rule
        await (client.list_tools() if method == "tools/list" else client.call_tool("t"))
        assert client.protocol_version == NEWEST_HANDSHAKE
        await client.list_tools()


@pytest.mark.parametrize("session", ["s-1", None])
@pytest.mark.parametrize(
    "refusal",
    [error(400, -32602), error(400, -32020), error(400, -32022, supported=[MODERN]), error(404, -32601)],
    ids=["-32602", "-32020", "-32022", "404"],
)
async def test_server_may_become_newer_under_our_hands(serve: Serve, refusal: Any, session: str | None) -> None:
    there = await serve(Endpoint(modern=False, session=session))

    def rule(peer: Peer, request: Request) -> None:
        if "mcp-method" not in request.headers:
            refusal(peer, request)
        else:
            peer.result(request, {"resultType": "complete", "content": [], "tools": []})

    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        await client.list_tools()
        there.modern = True
        there.rules |= {"initialize": refusal, "tools/call": rule, "tools/list": rule}
        await client.call_tool("t")
        assert client.protocol_version == MODERN


async def test_page_in_the_way_is_no_reason_to_leave_the_others_alone(serve: Serve) -> None:
    """A gate that dislikes one request says nothing about the server, and the other calls go on."""
    there = await serve()
    go_on = asyncio.Event()

    async def rule(peer: Peer, request: Request) -> None:
        if request.json["params"]["name"] == "disliked":
            peer.answer(406, PAGE, "text/html")
        else:
            await go_on.wait()
            peer.result(request, {"resultType": "complete", "content": []})

    there.rules["tools/call"] = rule
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        other = asyncio.ensure_future(client.call_tool("liked"))
        await there.wait_for_request("tools/call")
        with pytest.raises(HttpStatusError):
            await client.call_tool("disliked")
        go_on.set()
        assert (await other).content == []
    assert there.requests_for("initialize") == []


@pytest.mark.requirement("discover.pinned")
async def test_pinned_revision_is_spoken_or_none_is(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))
    with pytest.raises(ProtocolError, match=f"does not support the protocol version {MODERN}"):
        async with Client(there.url, protocol_version=MODERN):
            pass
    assert there.requests_for("initialize") == []
    modern = await serve()
    with pytest.raises((ProtocolError, HttpStatusError)):
        async with Client(modern.url, protocol_version=NEWEST_HANDSHAKE):
            pass
    assert modern.requests_for("server/discover") == []
    # 404 with -32601 is a modern server's answer, so it is of no transport before.
    assert modern.requests_for("GET") == []


@pytest.mark.requirement("lifecycle.client-refuses")
@pytest.mark.parametrize("revision", ["2026-07-28", "2099-01-01", "", "x" * 10_000])
async def test_handshake_about_something_else_is_rejected(serve: Serve, revision: str) -> None:
    there = await serve(Endpoint(modern=False, revision=revision))
    with pytest.raises(ProtocolError, match="unknown protocol version") as raised:
        async with Client(there.url):
            pass
    assert len(str(raised.value)) < 500


@pytest.mark.requirement("discover.not-evidence")
@pytest.mark.parametrize("failure", [ConnectionClosed, RequestTimeout])
async def test_server_that_is_only_slow_or_gone_is_not_judged(serve: Serve, failure: Any) -> None:
    there = await serve()
    there.rules["server/discover"] = lambda peer, request: peer.gone() if failure is RequestTimeout else peer.abort()
    with pytest.raises(failure, match="server/discover"):
        async with Client(there.url, timeout=0.1):
            pass
    assert version_discovery._modern_by_target == {}
