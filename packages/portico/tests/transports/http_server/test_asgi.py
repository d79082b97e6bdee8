"""The endpoint as an ASGI application, on other servers, alone and mounted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, Service

R4 = "2025-11-25"

APPLICATION = """
import asyncio
import contextlib
import sys

from fastapi import FastAPI

from portico import Context, Server


@contextlib.asynccontextmanager
async def lifespan(server):
    print("the lifespan has begun", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("the lifespan has ended", file=sys.stderr, flush=True)


server = Server("small", version="1", lifespan=lifespan)
happened = []
release = asyncio.Event()


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def talk(ctx: Context, count: int = 1, hold: bool = False) -> str:
    for number in range(count):
        await ctx.report_progress(number + 1)
    if hold:
        await wait()
    return "said"


@server.tool
async def hold() -> str:
    await wait()
    return "released"


async def wait():
    happened.append("started")
    try:
        await release.wait()
    except asyncio.CancelledError:
        happened.append("cancelled")
        raise


@server.tool
async def history(clear: bool = False, free: bool = False) -> list[str]:
    if free:
        release.set()
        await asyncio.sleep(0)
        release.clear()
    told = list(happened)
    if clear:
        happened.clear()
    return told


@server.tool
async def ask(ctx: Context) -> str:
    return str((await ctx.elicit("What?", str)).data)


@server.tool(run_in_thread=False)
def grow(name: str) -> str:
    server.tool(name=name)(lambda: None)
    return name


bare = server.http_app(max_body_size=100_000)

api = FastAPI()


@api.get("/hello")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


api.mount("/mcp", server.http_app(max_body_size=100_000))
api.mount("/deep/er", server.http_app())
api.mount("/old", server.http_app(sse=True))
"""


class Served:
    """A child that serves one of the two applications."""

    def __init__(self, program: str, application: str, folder: Path) -> None:
        (folder / "application.py").write_text(APPLICATION)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        self.program, self.application = program, application
        self.log = folder / "log.txt"
        common = ["--host", "127.0.0.1", "--port", str(self.port)]
        arguments = {
            "uvicorn": ["-m", "uvicorn", f"application:{application}", *common, "--no-access-log"],
            "granian": ["-m", "granian", "--interface", "asgi", *common, f"application:{application}"],
        }[program]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": "."},
                start_new_session=True,
            )
        self._await_connection()

    def _await_connection(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)  # the child is starting; nothing else can be waited for
        raise AssertionError(self.said)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """With all its processes: granian has workers, which would go on without it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of them have ended
        self.process.wait(timeout=10)


@pytest.fixture(scope="module", params=["uvicorn", "granian"])
def program(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def bare(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(program, "bare", tmp_path_factory.mktemp(f"bare-{program}"))
    yield served
    served.kill()


@pytest.fixture(scope="module")
def mounted(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(program, "api", tmp_path_factory.mktemp(f"api-{program}"))
    yield served
    served.kill()


@pytest.fixture(params=["bare", "mounted"])
def served(request: pytest.FixtureRequest, bare: Served, mounted: Served) -> Served:
    """Both, one after the other."""
    return bare if request.param == "bare" else mounted


def path_of(served: Served) -> str:
    return "/mcp" if served.application == "bare" else "/mcp/"


class At:
    """The endpoint of a child."""

    def __init__(self, site: Any, path: str) -> None:
        self.site, self.path = site, path

    async def call(self, tool: str, arguments: Any = None, **options: Any) -> Any:
        return await self.site.call(tool, arguments, path=self.path, **options)

    async def open_call(self, tool: str, arguments: Any = None, **options: Any) -> Any:
        return await self.site.open_call(tool, arguments, path=self.path, **options)

    async def history(self, **options: bool) -> list[str]:
        response = await self.call("history", options)
        notification: list[str] = response.json["result"]["structuredContent"]["result"]
        return notification

    async def happened(self, what: str) -> None:
        async with asyncio.timeout(8):
            while what not in await self.history():
                pass


@pytest.fixture
async def endpoint(served: Served, at: Callable[..., Any]) -> At:
    endpoint = At(at(served.port), path_of(served))
    await endpoint.history(clear=True)
    return endpoint


async def test_call_is_answered(endpoint: At) -> None:
    """docs/how-to/choose-a-transport.md, ASGI: the same endpoint."""
    response = await endpoint.call("echo", {"text": "hi"})
    assert response.status == 200
    assert response.json["result"]["content"][0]["text"] == "hi"


async def test_ladder_is_the_same(endpoint: At) -> None:
    """What is refused, and with which status, does not depend on the door."""
    text = {"text": "x"}
    assert (await endpoint.call("echo", text, headers={"origin": "http://evil.example"})).status == 403
    assert (await endpoint.call("echo", text, headers={"host": "evil.example"})).status == 403
    assert (await endpoint.call("echo", text, headers={"content-type": "text/plain"})).status == 415
    assert (await endpoint.call("echo", text, headers={"mcp-name": "wrong"})).error == (400, -32020)
    assert (await endpoint.call("echo", text, meta={"protocolVersion": "v9"})).error == (400, -32022)
    assert (await endpoint.site.request_stateless("nonsense", path=endpoint.path)).error == (404, -32601)
    assert (await endpoint.call("ask")).error == (400, -32021)
    assert (await endpoint.site.request("PUT", endpoint.path)).status == 405
    twice = [("mcp-method", "tools/call"), ("mcp-method", "tools/call")]
    assert (await endpoint.call("echo", text, headers=twice)).status == 400


@pytest.mark.parametrize("origin", ["http://[::1", "http://[evil.example]", "http://[::1].evil.example"])
async def test_origin_that_cannot_be_read_is_403(endpoint: At, origin: str) -> None:
    """2025-11-25, basic/transports, Security Warning: 403, and not an exception in somebody else's log."""
    assert (await endpoint.call("echo", {"text": "x"}, headers={"origin": origin})).status == 403


async def test_notification_is_202(endpoint: At) -> None:
    """202 without a body."""
    message = {"jsonrpc": "2.0", "method": "notifications/unknown"}
    response = await endpoint.site.post(message, {"mcp-protocol-version": "2026-07-28"}, path=endpoint.path)
    assert (response.status, response.body) == (202, b"")


async def test_events_arrive_as_they_are_reported(endpoint: At) -> None:
    """docs/how-to/choose-a-transport.md: the answer becomes a stream at that moment, and is not collected first."""
    stream = await endpoint.open_call("talk", {"count": 2, "hold": True}, meta={"progressToken": 1})
    assert stream.head["content-type"] == "text/event-stream"
    for number in (1, 2):
        assert (await stream.message())["params"]["progress"] == number
    await endpoint.happened("started")
    await endpoint.history(free=True)
    assert (await stream.message())["result"]["content"][0]["text"] == "said"
    assert await stream.event() is None


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("tool", ["hold", "talk"])
async def test_client_that_goes_away_cancels(endpoint: At, tool: str, reset: bool) -> None:
    """2026-07-28, basic/patterns/cancellation: a disconnect is a cancellation, whoever tells us of it."""
    raw = await endpoint.site.connect()
    arguments = {"hold": True} if tool == "talk" else {}
    params = {"name": tool, "arguments": arguments}
    raw.send(endpoint.site.modern_bytes("tools/call", params, meta={"progressToken": 1}, path=endpoint.path))
    await endpoint.happened("started")
    if reset:
        raw.abort()
    else:
        await raw.close()
    await endpoint.happened("cancelled")


async def test_listen_stream_hears_of_changes(endpoint: At, served: Served) -> None:
    """2026-07-28, basic/patterns/subscriptions."""
    expected = {"notifications": {"toolsListChanged": True}}
    stream = await endpoint.site.open_modern("subscriptions/listen", expected, id=5, path=endpoint.path)
    assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
    await endpoint.call("grow", {"name": f"grown_{time.monotonic_ns()}"})
    assert (await stream.message())["method"] == "notifications/tools/list_changed"


async def test_sessions_work_too(endpoint: At) -> None:
    """2025-11-25 over the same door: handshake, question and answer, GET, DELETE."""
    site, path = endpoint.site, endpoint.path
    params = {"protocolVersion": R4, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "t", "version": "1"}}
    hello = await site.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, path=path)
    own = {"mcp-session-id": hello["mcp-session-id"], "mcp-protocol-version": R4}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await site.post(note, own, path=path)).status == 202
    aside = await site.open("GET", path, {**own, "accept": "text/event-stream"})
    assert (await aside.event()).id
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": {}}}
    kind = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    stream = await site.open("POST", path, {**own, **kind}, json.dumps(call).encode())
    question = await stream.message()
    answer = {"action": "accept", "content": {"value": "this"}}
    assert (await site.post({"jsonrpc": "2.0", "id": question["id"], "result": answer}, own, path=path)).status == 202
    assert (await stream.message())["result"]["content"][0]["text"] == "this"
    assert (await site.request("DELETE", path, own)).status == 204
    assert await aside.event() is None
    assert (await site.post(note, own, path=path)).status == 404


async def test_deleting_a_session_ends_pending_requests(endpoint: At) -> None:
    """2025-11-25: a POST whose answer had not begun is ended properly, on this door as on the other."""
    site, path = endpoint.site, endpoint.path
    params = {"protocolVersion": R4, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = await site.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, path=path)
    own = {"mcp-session-id": hello["mcp-session-id"], "mcp-protocol-version": R4}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hold", "arguments": {}}}
    raw = await site.connect()
    kind = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    raw.send(site.bytes("POST", path, {**own, **kind}, json.dumps(call).encode()))
    await endpoint.happened("started")
    assert (await site.request("DELETE", path, own)).status == 204
    async with asyncio.timeout(4):
        assert (await raw.response()).status in (200, 202, 404)


async def test_oversized_body_is_413(served: Served, endpoint: At) -> None:
    """docs/how-to/deploy.md, Limits: declared or streamed."""
    kind = {"content-type": "application/json"}
    declared = await endpoint.site.request("POST", endpoint.path, kind, b"x" * 100_001)
    assert declared.status == 413
    raw = await endpoint.site.connect()
    raw.send(endpoint.site.bytes("POST", endpoint.path, {**kind, "transfer-encoding": "chunked"}))
    for _ in range(11):
        raw.send(b"%x\r\n%b\r\n" % (10_000, b"x" * 10_000))
    raw.send(b"0\r\n\r\n")
    assert (await raw.response()).status == 413


async def test_concurrent_calls_get_their_responses(endpoint: At) -> None:
    """Each request is a task of the server's, and none gets another's answer."""
    responses = await asyncio.gather(*(endpoint.call("echo", {"text": str(n)}, id=n) for n in range(100)))
    assert [response.json["id"] for response in responses] == list(range(100))
    assert [response.json["result"]["content"][0]["text"] for response in responses] == [str(n) for n in range(100)]


# Alone


async def test_standalone_application_serves_every_path(bare: Served, at: Callable[..., Any]) -> None:
    """The paths: /mcp, /, /health, /healthz, /metrics."""
    site = at(bare.port)
    assert (await site.call("echo", {"text": "x"}, path="/")).status == 200
    for path in ("/health", "/healthz", "/metrics"):
        assert (await site.request("GET", path)).status == 200
    assert (await site.request("GET", "/nowhere")).status == 404


# Mounted


@pytest.mark.parametrize("path", ["/mcp/", "/deep/er/", "/mcp/mcp"])
async def test_it_is_mounted_in_one_line(mounted: Served, at: Callable[..., Any], path: str) -> None:
    """docs/how-to/choose-a-transport.md: whatever is left of the path is the endpoint. No lifespan was wired."""
    site = at(mounted.port)
    assert (await site.call("echo", {"text": "x"}, path=path)).status == 200
    assert "the lifespan has begun" in mounted.said
    assert (await site.request("GET", "/hello")).json == {"hello": "world"}


async def test_application_is_mounted_at_its_path(mounted: Served, at: Callable[..., Any]) -> None:
    """The same without the slash: answered, or sent on to where it is (which is the framework's choice)."""
    site = at(mounted.port)
    response = await site.call("echo", {"text": "x"}, path="/mcp")
    if response.status == 307:
        assert response["location"].endswith("/mcp/")
    else:
        assert response.status == 200


async def test_old_transport_can_be_mounted_too(mounted: Served, at: Callable[..., Any]) -> None:
    """2024-11-05: the address in the first event must lead to us, wherever we are mounted."""
    site = at(mounted.port)
    stream = await site.open("GET", "/old/sse", {"accept": "text/event-stream"})
    address = (await stream.event()).data
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    accepted = await site.request("POST", address, {"content-type": "application/json"}, ping)
    assert accepted.status == 202
    assert (await stream.message())["result"] == {}


# The end; these are the last ones, because they end the children.


async def test_nothing_was_left_in_the_log(bare: Served, mounted: Served) -> None:
    """Whatever the tests above did, it was no error of the application's."""
    for served in (bare, mounted):
        assert "Traceback" not in served.said, served.said


async def test_standalone_application_ends_with_its_server(bare: Served) -> None:
    """ASGI 3, Lifespan: it is told."""
    bare.end()
    assert "the lifespan has ended" in bare.said


async def test_mounted_it_ends_with_the_loop(mounted: Served) -> None:
    """docs/how-to/choose-a-transport.md: mounted, the end of the loop cancels running calls."""
    if mounted.program == "granian":
        pytest.skip("granian leaves its loop without cancelling what runs in it, so there is nothing to notice.")
    # On SIGTERM uvicorn kills itself by the same signal before the loop is closed.
    mounted.end(signal.SIGINT)
    assert "the lifespan has ended" in mounted.said


# The application by itself


class Door:
    """ASGI by hand."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.sent: list[dict[str, Any]] = []

    async def request(self, path: str, *, root: str = "", method: str = "GET", headers: Any = ()) -> int:
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("127.0.0.1", 1),
        }
        self.sent.clear()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            self.sent.append(message)

        async with asyncio.timeout(5):
            await self.app(scope, receive, send)
        status: int = self.sent[0]["status"]
        return status


async def test_lifespan_is_started_once_by_many_first_requests() -> None:
    """docs/how-to/choose-a-transport.md: the first request starts it; requests that come together start it once."""
    began: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        began.append("began")
        await asyncio.sleep(0)
        yield
        began.append("ended")

    app = Server("small", version="1", lifespan=lifespan).http_app()
    doors = [Door(app) for _ in range(20)]
    assert set(await asyncio.gather(*(door.request("/health") for door in doors))) == {200}
    assert began == ["began"]
    await app.stop()
    assert began == ["began", "ended"]


async def test_no_request_is_served_before_the_lifespan_has_begun() -> None:
    """The same: what a lifespan prepares is there for the first request and for those that come with it."""
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        order.append("began")
        yield

    app = Server("small", version="1", lifespan=lifespan).http_app()

    async def ask() -> None:
        await Door(app).request("/health")
        order.append("served")

    await asyncio.gather(ask(), ask(), ask())
    assert order == ["began", "served", "served", "served"]
    await app.stop()


async def test_failed_lifespan_sends_startup_failed() -> None:
    """ASGI 3, Lifespan: startup.failed."""

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    app = Server("small", version="1", lifespan=lifespan).http_app()
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    with pytest.raises(RuntimeError):
        await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.failed"]


async def test_other_kinds_of_connections_are_rejected() -> None:
    """ASGI 3: an application raises for a scope it does not know."""
    app = Server("small", version="1").http_app()

    async def nothing(*_: Any) -> Any:
        return {}

    with pytest.raises(TypeError):
        await app({"type": "websocket"}, nothing, nothing)


async def test_root_path_is_only_a_prefix_at_a_border() -> None:
    """ASGI 3, root_path: /mcp is no prefix of /mcpx."""
    door = Door(Server("small", version="1").http_app())
    assert await door.request("/mcp/health", root="/mcp") == 200
    assert await door.request("/mcphealth", root="/mcp") == 404
    await door.app.stop()


# What both doors go by


CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "admin", "arguments": {}, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }},
}  # fmt: skip


async def asked(app: Any, *, headers: Any = (), client: str = "127.0.0.1", trailers: Any = ()) -> tuple[int, Any]:
    """The status and the answer of a call of `admin`."""
    body = json.dumps(CALL).encode()
    usual = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"mcp-method", b"tools/call")]
    usual += [(b"mcp-name", b"admin"), (b"mcp-protocol-version", b"2026-07-28")]
    scope = {
        "type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": [*usual, *headers],
        "client": (client, 1),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        # As uvicorn has it: the list goes on when there are trailers.
        scope["headers"] += trailers  # type: ignore[operator]
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(5):
        await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def scoped() -> Server:
    server = Server("scoped", version="1")

    @server.tool(scopes=["admin"])
    async def admin() -> str:
        return "did it"

    return server


async def test_environment_has_a_token_for_both_doors(scoped: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/deploy.md: PORTICO_TOKEN is demanded by whatever serves."""
    monkeypatch.setenv("PORTICO_TOKEN", "right")
    app = scoped.http_app()
    assert (await asked(app))[0] == 401
    status, answer = await asked(app, headers=[(b"authorization", b"Bearer right")])
    assert (status, answer["result"]["content"][0]["text"]) == (200, "did it")
    await app.stop()


async def test_scopes_reject_anonymous_callers(scoped: Server) -> None:
    """docs/explanation/security.md: over HTTP without a principal there is no scope; in this process all are there."""
    app = scoped.http_app()
    result = (await asked(app))[1]["result"]
    assert result["isError"]
    assert "needs the scope admin" in result["content"][0]["text"]
    await app.stop()
    async with Client(scoped) as client:
        assert (await client.call_tool("admin")).text == "did it"


@pytest.mark.parametrize("proxies", [(), ("10.0.0.1",)])
async def test_service_for_this_machine_is_for_this_machine(scoped: Server, proxies: tuple[str, ...]) -> None:
    """docs/reference/live-python.md: whichever door it is behind, also when the head of a request is known already."""
    scoped.add(Alone())
    app = scoped.http_app(trusted_proxies=proxies)
    for _ in range(3):
        assert (await asked(app))[0] == 200
        assert (await asked(app, client="192.0.2.1"))[0] == 403
    # A header does not make a client local, whoever sends it.
    near = [(b"x-forwarded-for", b"127.0.0.1")]
    assert (await asked(app, headers=near, client="10.0.0.1"))[0] == 403
    await app.stop()


class Alone(Service):
    name = "alone"
    local_only = True


@pytest.mark.parametrize("name", [b"authorization", b"mcp-name", b"origin", b"host"])
async def test_trailers_are_not_treated_as_headers(scoped: Server, name: bytes) -> None:
    """RFC 9110, 6.5.1: what stands behind the body was not judged, so nothing is decided by it."""
    app = scoped.http_app(token="right")
    assert (await asked(app, trailers=[(b"authorization", b"Bearer right")]))[0] == 401
    right = [(b"authorization", b"Bearer right")]
    assert (await asked(app, headers=right, trailers=[(name, b"evil")]))[0] == 200
    await app.stop()
