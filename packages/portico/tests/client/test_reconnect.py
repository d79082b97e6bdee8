"""A client survives its servers: crashes, restarts, lost sessions, changed versions."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.client.subscriptions import Change
from portico.protocol.errors import (
    ConnectError,
    ConnectionClosed,
    ProtocolError,
    RequestTimeout,
    SessionExpired,
    TransportError,
    UsageError,
)
from portico.server.http import build_application
from portico.transports import upstream as upstreams
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import Listener
from support.scripted import MODERN, NEWEST_HANDSHAKE, Endpoint, Peer, Request, text, wait_until

Serve = Callable[..., Any]
TIMEOUT_SECONDS = 15.0

# A server that writes down what happens to it. Its tools do what their names say.
CHILD = """
import json, os, sys
book, era = sys.argv[1], sys.argv[2]
def note(*words):
    with open(book, "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
def first(what):
    return open(book).read().split("\\n").count(what) < 2
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def die():
    print("I am dying", file=sys.stderr, flush=True)
    os._exit(3)
HINTS = {"reads": {"readOnlyHint": True}, "again": {"idempotentHint": True}, "once": {"destructiveHint": True}}
TOOLS = [{"name": n, "inputSchema": {"type": "object"}, "annotations": h} for n, h in HINTS.items()]
HAS = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
note("start", os.getpid())
if len(sys.argv) > 3:
    exec(sys.argv[3])
for line in sys.stdin:
    said = json.loads(line)
    method, params = said.get("method"), said.get("params", {})
    what = params.get("name") or params.get("uri") or params.get("level") or params.get("requestId") or ""
    note(f"{method} {what}".strip())
    if method == "initialize" and era == "handshake":
        result = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "child", "version": "1"},
                  "capabilities": {"logging": {}, **HAS}}
    elif method == "server/discover" and era == "modern":
        result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": HAS, "ttlMs": 0,
                  "cacheScope": "private"}
    elif method == "tools/list":
        result = {"resultType": "complete", "tools": TOOLS}
    elif method == "prompts/list":
        if first("prompts/list"):
            die()
        result = {"resultType": "complete", "prompts": []}
    elif method == "resources/list":
        die()
    elif method == "subscriptions/listen":
        meta = {"io.modelcontextprotocol/subscriptionId": said["id"]}
        say({"method": "notifications/subscriptions/acknowledged",
             "params": {"_meta": meta, "notifications": params["notifications"]}})
        continue
    elif method == "tools/call":
        if what == "wait" or what == "once":
            if what == "once":
                die()
            continue
        if what in ("reads", "again", "twice") and first(f"tools/call {what}"):
            die()
        result = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
    elif what != "a://bad" and method in ("resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping"):
        result = {}
    elif "id" in said:
        say({"id": said["id"], "error": {"code": -32601, "message": "no"}})
        continue
    else:
        continue
    say({"id": said["id"], "result": result})
"""


class Book:
    """What the child wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def command(self, era: str, more: str = "") -> list[str]:
        return [sys.executable, "-S", "-c", CHILD, str(self.path), era, *([more] if more else [])]

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    @property
    def starts(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith("start ")]

    def count(self, what: str) -> int:
        return self.lines.count(what)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


ERAS = pytest.mark.parametrize("era", ["modern", "handshake"])


# A child that dies


@pytest.mark.requirement("stdio.restart")
@ERAS
async def test_server_that_died_between_two_calls_is_started_again(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        for number in range(1, 4):
            assert (await client.call_tool("do")).text == "done"
            assert len(book.starts) == number
            os.kill(book.starts[-1], signal.SIGKILL)
            await wait_until(lambda: client._upstream.transport.closed)
    # Nobody asked anything after the third death.
    assert len(book.starts) == 3


@ERAS
async def test_question_that_does_no_harm_is_asked_again(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        assert await client.list_prompts() == []
    assert (len(book.starts), book.count("prompts/list")) == (2, 2)


@ERAS
async def test_tool_that_may_have_run_is_not_called_again(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        with pytest.raises(
            ConnectionClosed, match=r"exited with status 3; last lines on stderr:\nI am dying"
        ) as raised:
            await client.call_tool("once")
        assert "tools/call was not retried" in str(raised.value)
        await client.list_tools()
        # It says of itself that it does harm.
        with pytest.raises(ConnectionClosed, match="was not retried"):
            await client.call_tool("once")
        assert (await client.call_tool("do")).text == "done"
    assert book.count("tools/call once") == 2


@ERAS
@pytest.mark.parametrize("tool", ["reads", "again"])
async def test_trusted_annotations_allow_retries(book: Book, era: str, tool: str) -> None:
    """server/tools, Security: annotations are untrusted unless they come from trusted servers."""
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era), trust_annotations=True) as client:
        await client.list_tools()
        assert (await client.call_tool(tool)).text == "done"
    assert book.count(f"tools/call {tool}") == 2


@pytest.mark.requirement("tools.annotations-untrusted")
@ERAS
@pytest.mark.parametrize("tool", ["reads", "again"])
async def test_untrusted_annotations_do_not_allow_retries(book: Book, era: str, tool: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        await client.list_tools()
        with pytest.raises(ConnectionClosed, match="was not retried"):
            await client.call_tool(tool)
    assert book.count(f"tools/call {tool}") == 1


@pytest.mark.parametrize("tool, repeatable, runs", [("twice", True, 2), ("twice", None, 1), ("reads", False, 1)])
async def test_caller_decides_which_requests_may_be_repeated(
    book: Book, tool: str, repeatable: bool | None, runs: int
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern")) as client:
        await client.list_tools()
        if runs == 2:
            assert (await client.call_tool(tool, idempotent=repeatable)).text == "done"
        else:
            with pytest.raises(ConnectionClosed, match="was not retried"):
                await client.call_tool(tool, idempotent=repeatable)
    assert book.count(f"tools/call {tool}") == runs


@ERAS
async def test_concurrent_requests_start_the_upstream_once(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        os.kill(book.starts[0], signal.SIGKILL)
        await wait_until(lambda: client._upstream.transport.closed)
        result = await asyncio.gather(*(client.call_tool("do") for _ in range(50)))
        assert [item.text for item in result] == ["done"] * 50
    assert len(book.starts) == 2


async def test_server_that_dies_each_time_is_not_started_without_end(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 0.001)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern"), max_retries=2) as client:
        with pytest.raises(ConnectionClosed, match="exited with status 3"):
            await client.list_resources()
        assert book.count("resources/list") == 3
        assert (await client.call_tool("do")).text == "done"


async def test_server_that_does_not_come_back_is_reported_not_to(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 0.001)
    once = "if len(open(book).read().splitlines()) > 1: print('no more', file=sys.stderr); os._exit(4)"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern", once), max_retries=1) as client:
        await client.list_tools()
        os.kill(book.starts[0], signal.SIGKILL)
        await wait_until(lambda: client._upstream.transport.closed)
        for _ in range(2):
            # It exits before or after the request is written.
            closed = (ConnectError, ConnectionClosed)
            with pytest.raises(closed, match=r"exited with status 4; last lines on stderr:\nno more"):
                await client.list_tools()


async def test_trying_again_takes_no_longer_than_the_call_may(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(upstreams, "MAX_BACKOFF_SECONDS", 0.05)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern"), max_retries=10_000) as client:
        with pytest.raises((ConnectionClosed, RequestTimeout)):
            await client.request("resources/list", {}, timeout=0.3)


async def test_server_that_hangs_when_it_is_started_again_takes_no_longer_either(book: Book) -> None:
    hang = "if len(open(book).read().splitlines()) > 1: sys.stdin.read()"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern", hang)) as client:
        os.kill(book.starts[0], signal.SIGKILL)
        await wait_until(lambda: client._upstream.transport.closed)
        with pytest.raises(RequestTimeout, match="prompts/list"):
            await client.request("prompts/list", {}, timeout=0.5)


async def test_timed_out_reconnect_does_not_fail_other_calls(book: Book) -> None:
    """One starts it again, and others wait for that; when the one gives up, another one tries."""
    hang = "if open(book).read().count('start') == 2: sys.stdin.read()"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern", hang)) as client:
        os.kill(book.starts[0], signal.SIGKILL)
        await wait_until(lambda: client._upstream.transport.closed)
        first = asyncio.ensure_future(client.request("prompts/list", {}, timeout=0.5))
        await wait_until(lambda: len(book.starts) == 2)
        others = [asyncio.ensure_future(client.call_tool("do")) for _ in range(3)]
        with pytest.raises(RequestTimeout):
            await first
        assert [(await item).text for item in others] == ["done"] * 3
    assert len(book.starts) == 3


async def test_subscriptions_and_log_level_are_restored_after_a_restart(book: Book) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("handshake"), log_level="error") as client:
        await client.subscribe("a://b")
        await client.subscribe("a://c")
        await client.unsubscribe("a://c")
        await client.set_log_level("alert")
        before = len(book.lines)
        os.kill(book.starts[0], signal.SIGKILL)
        await wait_until(lambda: client._upstream.transport.closed)
        await client.ping()
        notification = book.lines[before:]
    assert "logging/setLevel alert" in notification
    assert "resources/subscribe a://b" in notification
    assert "resources/subscribe a://c" not in notification


@pytest.mark.requirement("subscriptions.renewed")
@ERAS
async def test_listeners_learn_that_they_may_have_missed_something(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        async with client.listen(tools=True, uris=["a://b"]) as changes:
            os.kill(book.starts[0], signal.SIGKILL)
            # Nobody asks for anything: whoever only listens is not forgotten.
            heard = aiter(changes)
            assert await anext(heard) == Change("tools", missed=True)
            assert await anext(heard) == Change("resource", "a://b", missed=True)
        what = "subscriptions/listen" if era == "modern" else "resources/subscribe a://b"
        assert book.count(what) == 2


async def test_leaving_a_listener_of_a_server_that_died_takes_no_time(book: Book) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("handshake")) as client:
        async with client.listen(uris=["a://b"]):
            os.kill(book.starts[0], signal.SIGKILL)
        assert client._subscribed == {}
    assert len(book.starts) <= 2


async def test_leaving_a_listener_is_informed(book: Book) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("handshake")) as client:
        async with client.listen(uris=["a://b"]), client.listen(uris=["a://b"]):
            pass
        assert (book.count("resources/subscribe a://b"), book.count("resources/unsubscribe a://b")) == (1, 1)
        # What was refused is not remembered.
        with pytest.raises(ProtocolError):
            await client.subscribe("a://bad")
        assert client._subscribed == {}


# Closing


@ERAS
@pytest.mark.parametrize("call", ["repeatable", "not repeatable"])
async def test_closing_the_client_fails_pending_calls_immediately(book: Book, era: str, call: str) -> None:
    client = Client(book.command(era))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await client.connect()
        ask = client.call_tool("wait", idempotent=call == "repeatable")
        waiting = asyncio.ensure_future(ask)
        await wait_until(lambda: book.count("tools/call wait"))
        await client.close()
        with pytest.raises(ConnectionClosed, match="the client was closed"):
            await waiting
        with pytest.raises(UsageError):
            await client.list_tools()
    assert len(book.starts) == 1


async def test_closing_the_client_interrupts_the_retry_backoff(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 60.0)
    monkeypatch.setattr(upstreams, "MAX_BACKOFF_SECONDS", 60.0)
    client = Client(book.command("modern"), timeout=None)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await client.connect()
        call = asyncio.ensure_future(client.list_resources())
        await wait_until(lambda: client._upstream.transport.closed)
        for _ in range(10):
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionClosed, match="the client was closed"):
            await call


@ERAS
async def test_closing_while_it_is_started_again_leaves_nothing(book: Book, era: str) -> None:
    """At every moment of the start."""
    async with asyncio.timeout(TIMEOUT_SECONDS * 3):
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 50, 100):
            client = Client(book.command(era))
            await client.connect()
            os.kill(book.starts[-1], signal.SIGKILL)
            await wait_until(lambda client=client: client._upstream._link.closed)  # type: ignore[misc]
            call = asyncio.ensure_future(client.list_tools())
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.close()
            await asyncio.wait({call})
            assert isinstance(call.exception(), ConnectionClosed | UsageError) or call.result()
    await wait_until(lambda: not any(is_running(pid) for pid in book.starts))


async def test_cancelled_opening_leaves_nothing(book: Book) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS * 3):
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 50):
            client = Client(book.command("modern"))
            opening = asyncio.ensure_future(client.connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait({opening})
            await client.close()
    await wait_until(lambda: not any(is_running(pid) for pid in book.starts))


async def test_open_client_is_not_opened_again(book: Book) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command("modern")) as client:
        with pytest.raises(UsageError, match="already open"):
            await client.connect()
        assert (await client.call_tool("do")).text == "done"


@ERAS
async def test_opened_here_and_closed_there(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        client = Client(book.command(era))
        await asyncio.create_task(client.connect())
        assert (await asyncio.create_task(client.call_tool("do"))).text == "done"
        await asyncio.create_task(client.close())
    assert not is_running(book.starts[0])


@pytest.mark.requirement("cancellation.client-tells")
@ERAS
async def test_cancelled_call_sends_a_cancelled_notification(book: Book, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(book.command(era)) as client:
        call = asyncio.ensure_future(client.call_tool("wait"))
        await wait_until(lambda: book.count("tools/call wait"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await wait_until(lambda: any(line.startswith("notifications/cancelled ") for line in book.lines))


# Servers at a URL


def counting() -> tuple[Server, list[str]]:
    server = Server("counting")
    calls: list[str] = []

    @server.tool
    async def count(name: str) -> int:
        calls.append(name)
        return len(calls)

    @server.tool
    async def hold() -> str:
        calls.append("hold")
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("let go")
        return ""

    @server.resource("a://b")
    def b() -> str:
        return "b"

    return server, calls


@asynccontextmanager
async def listening(server: Server, port: int = 0, *, crash: bool = False) -> AsyncIterator[int]:
    """At the end it says goodbye, or it does not."""
    listener = Listener(build_application(server, HttpServerSettings()))
    [(_, port, *_)] = await listener.listen("127.0.0.1", port)
    try:
        yield port
    finally:
        for connection in list(listener._connections) if crash else ():
            connection._transport.abort()
        await listener.stop(0)


REVISIONS = pytest.mark.parametrize("revision", [MODERN, NEWEST_HANDSHAKE])


@REVISIONS
async def test_restarted_server_is_spoken_to_again(revision: str) -> None:
    server, calls = counting()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with listening(server) as port:
            client = Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision)
            await client.connect()
            assert (await client.call_tool("count", {"name": "a"})).data == 1
        async with listening(server, port):
            # The session is gone, but it was turned away for that, so nothing was done twice.
            assert (await client.call_tool("count", {"name": "b"})).data == 2
            assert (await client.call_tool("count", {"name": "c"})).data == 3
            await client.close()
    assert calls == ["a", "b", "c"]


@REVISIONS
@pytest.mark.parametrize("call", ["tools/call", "tools/list"])
async def test_server_that_is_down_is_waited_for(revision: str, call: str) -> None:
    """What could not be sent has not been heard, so anything may be sent again."""
    server, _ = counting()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with listening(server) as port:
            client = Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision, max_retries=100)
            await client.connect()
        result = client.call_tool("count", {"name": "a"}) if call == "tools/call" else client.list_tools()
        waiting = asyncio.ensure_future(result)
        failed = len(await asyncio.gather(*(_refused(port) for _ in range(3))))
        assert failed == 3
        assert not waiting.done()
        async with listening(server, port):
            await waiting
            await client.close()


async def _refused(port: int) -> None:
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


@REVISIONS
async def test_server_that_stays_down_is_reported_to(revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 0.001)
    server, _ = counting()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with listening(server) as port:
            client = Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision, max_retries=2)
            await client.connect()
        with pytest.raises(ConnectError, match=rf"cannot connect to 127\.0\.0\.1:{port}") as raised:
            await client.call_tool("count", {"name": "a"})
        assert "tools/call" in str(raised.value)
        await client.close()


@pytest.mark.requirement("sessions.client-leaves")
@REVISIONS
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_cancelled_or_closed_call_is_cancelled_on_the_server(revision: str, how: str) -> None:
    server, calls = counting()
    async with asyncio.timeout(TIMEOUT_SECONDS), listening(server) as port:
        client = Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision)
        await client.connect()
        call = asyncio.ensure_future(client.call_tool("hold"))
        await wait_until(lambda: "hold" in calls)
        if how == "cancel":
            call.cancel()
        else:
            await client.close()
        with pytest.raises((asyncio.CancelledError, ConnectionClosed)):
            await call
        await wait_until(lambda: "let go" in calls)
        await client.close()


@pytest.mark.requirement("subscriptions.renewed")
@REVISIONS
async def test_listeners_come_back_with_the_server(revision: str) -> None:
    server, _ = counting()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with listening(server, crash=True) as port:
            client = Client(f"http://127.0.0.1:{port}/mcp", protocol_version=revision)
            await client.connect()
            changes = client.listen(tools=True, uris=["a://b"])
            await changes.__aenter__()
            heard = aiter(changes)
            server.notify_resource_updated("a://b")
            assert await anext(heard) == Change("resource", "a://b")
        async with listening(server, port):
            assert {await anext(heard), await anext(heard)} == {
                Change("tools", missed=True),
                Change("resource", "a://b", missed=True),
            }
            server.tool("new")(lambda: "")
            assert await anext(heard) == Change("tools")
            server.notify_resource_updated("a://b")
            assert await anext(heard) == Change("resource", "a://b")
            await changes.__aexit__(None, None, None)
            await client.close()


async def test_gap_on_the_other_stream_is_reported(serve: Serve) -> None:
    """Without ids nothing can be resumed, so what was said meanwhile is lost."""
    there = await serve(Endpoint(modern=False))

    async def get(peer: Peer, request: Request) -> None:
        peer.stream()
        peer.chunk("retry: 0\n\n")
        if len(there.requests_for("GET")) == 1:
            await let_go.wait()
            peer.end()
        else:
            await peer.gone()

    let_go = asyncio.Event()
    there.rules["GET"] = get
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client, client.listen(tools=True) as changes:
        let_go.set()
        assert await anext(aiter(changes)) == Change("tools", missed=True)
    assert len(there.requests_for("initialize")) == 1


# Sessions that are lost


def forgotten(peer: Peer, request: Request, status: int, code: int | None) -> None:
    if code is None:
        peer.answer(status, "gone" if status == 404 else "Bad Request: No valid session ID provided", "text/plain")
    else:
        body = {"code": code, "message": "Bad Request: No valid session ID provided"}
        peer.json({"jsonrpc": "2.0", "id": None, "error": body}, status)


@pytest.mark.requirement("sessions.client-lost")
@pytest.mark.parametrize(
    "status, code",
    [(404, None), (404, -32001), (404, -32600), (400, -32000), (400, -32600), (400, None)],
    ids=["404", "404 -32001", "404 -32600", "400 -32000", "400 -32600", "400"],
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
async def test_lost_session_is_begun_again(serve: Serve, status: int, code: int | None, method: str) -> None:
    there = await serve(Endpoint(modern=False))

    def rule(peer: Peer, request: Request) -> None:
        if request.headers["mcp-session-id"] == there.session:
            peer.result(request, {"tools": [], **text("done")})
        else:
            forgotten(peer, request, status, code)

    there.rules |= {"tools/list": rule, "tools/call": rule}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        await client.list_tools()
        there.session = "s-2"
        await (client.list_tools() if method == "tools/list" else client.call_tool("t"))
    assert len(there.requests_for("initialize")) == 2
    # The new session is begun without the old one's id.
    assert "mcp-session-id" not in there.requests_for("initialize")[1].headers
    assert there.requests_for("DELETE")[-1].headers["mcp-session-id"] == "s-2"


async def test_error_about_sessions_is_no_lost_session(serve: Serve) -> None:
    """A tool may have sessions of its own."""
    there = await serve(Endpoint(modern=False))
    there.rules["tools/call"] = lambda peer, request: peer.error(request, -32602, "no such session", 400)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        with pytest.raises(ProtocolError, match="no such session"):
            await client.call_tool("t")
    assert len(there.requests_for("initialize")) == 1


async def test_lost_session_each_time_is_not_begun_without_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 0.001)
    there = await serve(Endpoint(modern=False))
    there.rules["tools/list"] = lambda peer, request: peer.answer(404)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, max_retries=3) as client:
        with pytest.raises(SessionExpired, match="tools/list"):
            await client.list_tools()
    assert len(there.requests_for("initialize")) <= 5


async def test_session_may_be_lost_on_the_other_stream(serve: Serve) -> None:
    there = await serve(Endpoint(modern=False))
    streams: list[Peer] = []

    async def get(peer: Peer, request: Request) -> None:
        if request.headers["mcp-session-id"] != there.session:
            peer.answer(404)
            return
        peer.stream()
        peer.chunk("retry: 0\n\n")
        streams.append(peer)
        await peer.gone()

    there.rules["GET"] = get
    there.rules["tools/call"] = lambda peer, request: peer.result(request, text(request.headers["mcp-session-id"]))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        there.session = "s-2"
        streams[0].abort()
        await wait_until(lambda: client._upstream.transport.closed)
        assert (await client.call_tool("t")).text == "s-2"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_busy_server_is_asked_again_where_that_does_no_harm(
    serve: Serve, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "INITIAL_BACKOFF_SECONDS", 0.001)
    there = await serve()

    def rule(peer: Peer, request: Request) -> None:
        if len(there.requests_for(request.says)) < 3:
            peer.answer(status)
        else:
            peer.result(request, {"resultType": "complete", "tools": []})

    there.rules |= {"tools/list": rule, "tools/call": rule}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        assert await client.list_tools() == []
        with pytest.raises(TransportError, match=f"tools/call.*{status}"):
            await client.call_tool("t")
    assert (len(there.requests_for("tools/list")), len(there.requests_for("tools/call"))) == (3, 1)


def busy(times: int, *, as_error: bool, **headers: str) -> Callable[[Peer, Request], None]:
    """Answer 429 so many times: with a JSON-RPC error, as MCP servers do, or without, as proxies do."""
    rejected: list[str] = []

    def rule(peer: Peer, request: Request) -> None:
        if rejected.count(request.says) >= times:
            peer.result(request, {"resultType": "complete", "tools": []})
            return
        rejected.append(request.says)
        if as_error:
            error = {"code": -32005, "message": "Too many requests"}
            peer.json({"jsonrpc": "2.0", "id": request.json["id"], "error": error}, 429, **headers)
        else:
            peer.answer(429, **headers)

    return rule


@pytest.mark.parametrize("as_error", [True, False])
async def test_retry_after_is_honoured_for_safe_requests(serve: Serve, as_error: bool) -> None:
    there = await serve()
    rule = busy(1, as_error=as_error, Retry_After="1")
    there.rules |= {"tools/list": rule, "tools/call": rule}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        began = asyncio.get_running_loop().time()
        assert await client.list_tools() == []
        assert asyncio.get_running_loop().time() - began >= 1.0
        with pytest.raises((TransportError, ProtocolError)) as caught:
            await client.call_tool("t")
        assert caught.value.retry_after == 1.0  # type: ignore[union-attr]
    assert (len(there.requests_for("tools/list")), len(there.requests_for("tools/call"))) == (2, 1)


@pytest.mark.parametrize("as_error", [True, False])
@pytest.mark.parametrize("seconds, timeout", [("3600", None), ("999999999999", None), ("30", 20.0)])
async def test_retry_after_is_bounded(serve: Serve, as_error: bool, seconds: str, timeout: float | None) -> None:
    there = await serve()
    there.rules["tools/list"] = busy(9, as_error=as_error, Retry_After=seconds)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url, timeout=timeout) as client:
        with pytest.raises((TransportError, ProtocolError)):
            await client.list_tools()
    assert len(there.requests_for("tools/list")) == 1


@pytest.mark.parametrize("as_error", [True, False])
async def test_waiting_for_retry_after_can_be_cancelled(serve: Serve, as_error: bool) -> None:
    there = await serve()
    there.rules["tools/list"] = busy(9, as_error=as_error, Retry_After="50")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        client = Client(there.url)
        async with client:
            cancelled, closed = (asyncio.ensure_future(client.list_tools()) for _ in range(2))
            await wait_until(lambda: len(there.requests_for("tools/list")) == 2)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        with pytest.raises(ConnectionClosed):
            await closed


async def test_rejections_without_retry_after_are_final(serve: Serve) -> None:
    there = await serve()
    there.rules["tools/list"] = busy(9, as_error=True)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client:
        with pytest.raises(ProtocolError):
            await client.list_tools()
    assert len(there.requests_for("tools/list")) == 1


# Becoming something else, and back


async def test_listeners_follow_a_server_from_era_to_era(serve: Serve) -> None:
    """Modern, then handshake only, then modern only: the same loop hears all of it."""
    there = await serve()
    streams: dict[str, list[Peer]] = {"listen": [], "GET": []}
    ids: list[Any] = []

    async def listen(peer: Peer, request: Request) -> None:
        if not there.modern:
            peer.error(request, -32600, "Not initialized", 400)
            return
        ids.append(request.json["id"])
        peer.stream()
        meta = {"io.modelcontextprotocol/subscriptionId": ids[-1]}
        params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
        peer.event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
        streams["listen"].append(peer)
        await peer.gone()

    async def get(peer: Peer, request: Request) -> None:
        if there.modern:
            peer.answer(405)
            return
        peer.stream()
        streams["GET"].append(peer)
        await peer.gone()

    def tools(peer: Peer, request: Request) -> None:
        if there.modern != ("mcp-method" in request.headers):
            peer.error(request, -32600, "Not initialized", 400)
        else:
            peer.result(request, {"resultType": "complete", "tools": []})

    there.rules |= {"subscriptions/listen": listen, "GET": get, "tools/list": tools}
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(there.url) as client, client.listen(tools=True) as changes:
        heard = aiter(changes)
        there.modern = False
        streams["listen"][0].abort()
        assert await anext(heard) == Change("tools", missed=True)
        assert client.protocol_version == NEWEST_HANDSHAKE
        streams["GET"][0].event(changed)
        assert await anext(heard) == Change("tools")
        there.modern = True
        await client.list_tools()
        assert client.protocol_version == MODERN
        assert await anext(heard) == Change("tools", missed=True)
        meta = {"io.modelcontextprotocol/subscriptionId": ids[-1]}
        streams["listen"][-1].event({**changed, "params": {"_meta": meta}})
        assert await anext(heard) == Change("tools")
