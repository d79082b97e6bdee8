"""Fixtures of the HTTP server tests: a listener, raw connections and a minimal client.

Every wait is bounded, and nothing sleeps. Unless a test says otherwise, nothing may be left in the log as an error,
and when everything is over nothing may be running any more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from portico import Context, Server, ToolError
from portico.server.http import build_application as exchange_for
from portico.transports.event_loop import new_event_loop
from portico.transports.http_server.application import HttpServerSettings
from portico.transports.http_server.listener import ConnectionTimeouts, Listener

TIMEOUT_SECONDS = 10.0
MODERN = "2026-07-28"
BOTH = "application/json, text/event-stream"
PREFIX = "io.modelcontextprotocol/"

Fields = Mapping[str, str | None] | list[tuple[str, str]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run all tests on uvloop, and socket tests on asyncio's loop as well."""
    if item.path.name == "test_listener.py":
        return {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}
    return {"uvloop": new_event_loop}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if an error was logged."""
    yield
    errors = [item for item in caplog.get_records("call") if item.levelno >= logging.ERROR]
    assert not errors, "\n".join(logging.Formatter().format(item) for item in errors[:3])


# What comes back


@dataclass
class Event:
    """One server-sent event."""

    data: str = ""
    id: str | None = None
    name: str | None = None
    retry: int | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Response:
    status: int
    version: str
    fields: list[tuple[str, str]]
    body: bytes = b""
    # Interim responses that came before it.
    interim: list[int] = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        results = [value for key, value in self.fields if key == name.lower()]
        assert len(results) == 1, f"{name}: {results}"
        return results[0]

    def __contains__(self, name: str) -> bool:
        return any(key == name.lower() for key, _ in self.fields)

    @property
    def json(self) -> Any:
        assert self["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def events(self) -> list[Event]:
        assert self["content-type"] == "text/event-stream", self
        return list(parsed(self.body.decode()))

    @property
    def messages(self) -> list[Any]:
        """Return all JSON-RPC messages of the response in either form."""
        if self["content-type"] == "application/json":
            return [self.json]
        return [event.json for event in self.events if event.data]

    @property
    def error(self) -> tuple[int, int]:
        """Return the status and the error code."""
        return self.status, self.json["error"]["code"]


def parsed(text: str) -> Iterator[Event]:
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            yield one_event(lines)


def one_event(lines: list[str]) -> Event:
    event = Event()
    data = []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "id":
            event.id = value
        elif name == "event":
            event.name = value
        elif name == "retry":
            event.retry = int(value)
    event.data = "\n".join(data)
    return event


# Raw connections


class Raw:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.head: Response | None = None
        self.comments: list[str] = []
        self._chunks = b""

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    async def line(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.readuntil(b"\r\n")

    async def exactly(self, count: int) -> bytes:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        """Read until the server closes or resets the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""

    async def is_over(self) -> bool:
        """Return whether the server has closed without further data."""
        return await self.rest() == b""

    async def read_head(self) -> Response:
        """Read the status line and the header fields."""
        interim = []
        while True:
            version, status, *_ = (await self.line()).decode("latin-1").split(" ", 2)
            fields = []
            while (line := await self.line()) != b"\r\n":
                name, _, value = line.decode("latin-1").strip().partition(":")
                fields.append((name.lower(), value.strip()))
            if int(status) >= 200:
                self.head = Response(int(status), version, fields, b"", interim)
                return self.head
            interim.append(int(status))

    async def response(self, method: str = "POST") -> Response:
        """Read a whole response, framed by the request's method and its own head."""
        head = await self.read_head()
        if method == "HEAD" or head.status in (204, 304):
            return head
        if "transfer-encoding" in head:
            assert head["transfer-encoding"] == "chunked"
            while (chunk := await self.chunk()) is not None:
                head.body += chunk
        elif "content-length" in head:
            head.body = await self.exactly(int(head["content-length"]))
        else:
            head.body = await self.rest()
        return head

    async def chunk(self) -> bytes | None:
        """Read the next chunk of a body; None after the last."""
        size = int((await self.line()).strip(), 16)
        data = await self.exactly(size)
        assert await self.exactly(2) == b"\r\n"
        return data if size else None

    async def event(self) -> Event | None:
        """Read the next event of a stream; None at its end. Comments are skipped."""
        while True:
            block, result, rest = self._chunks.partition(b"\n\n")
            if not result:
                more = await self.chunk()
                if more is None:
                    return None
                self._chunks += more
                continue
            self._chunks = rest
            lines = block.decode().split("\n")
            self.comments += [line[1:].strip() for line in lines if line.startswith(":")]
            lines = [line for line in lines if not line.startswith(":")]
            if lines:
                return one_event(lines)

    async def message(self) -> Any:
        """Read the next message of a stream; events without data are skipped."""
        while True:
            event = await self.event()
            assert event is not None, "the stream has ended"
            if event.data:
                return event.json

    async def until_comment(self) -> str:
        """Wait for a comment. The events that come before it are left to be read."""
        while not self.comments:
            chunk = await self.chunk()
            assert chunk is not None, "the stream has ended"
            if chunk.startswith(b":"):
                self.comments.append(chunk.decode()[1:].strip())
            else:
                self._chunks += chunk
        return self.comments[0]

    @property
    def has_events(self) -> bool:
        """Return whether unread events have arrived."""
        return b"\n\n" in self._chunks

    def half_close(self) -> None:
        self.writer.write_eof()

    def abort(self) -> None:
        """Reset the connection."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            with suppress(OSError, ssl.SSLError):
                await self.writer.wait_closed()


async def dial(
    port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, receive_buffer: int | None = None
) -> Raw:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    limit = receive_buffer or 2**26
    async with asyncio.timeout(TIMEOUT_SECONDS):
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException:
            sock.close()
            raise
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=tls, server_hostname="localhost" if tls else None, limit=limit
        )
    return Raw(reader, writer)


def written(method: str, path: str, fields: list[tuple[str, str]], body: bytes | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    if body is not None and not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in fields):
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def merged(defaults: dict[str, str], given: Fields | None) -> list[tuple[str, str]]:
    """Return the header fields with replacements: None removes a field, and a list repeats one."""
    if isinstance(given, list):
        names = {name.lower() for name, _ in given}
        return [*((name, value) for name, value in defaults.items() if name not in names), *given]
    fields: dict[str, str | None] = {**defaults}
    for name, value in (given or {}).items():
        fields.pop(name.lower(), None)
        fields[name] = value
    return [(name, value) for name, value in fields.items() if value is not None]


def modern_message(
    method: str,
    params: dict[str, Any] | None = None,
    *,
    id: Any = 1,
    meta: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a request of 2026-07-28. Members of `meta` that are None are omitted; short names get their prefix."""
    message: dict[str, Any] = {"protocolVersion": MODERN, "clientCapabilities": {}, **(meta or {})}
    keys = {name if "/" in name or name == "progressToken" else PREFIX + name: value for name, value in message.items()}
    envelope = {name: value for name, value in keys.items() if value is not None}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": envelope}}


def modern_fields(message: dict[str, Any]) -> dict[str, str]:
    params = message.get("params", {})
    name = params.get("name") or params.get("uri")
    fields = {
        "content-type": "application/json",
        "accept": BOTH,
        "mcp-protocol-version": params.get("_meta", {}).get(PREFIX + "protocolVersion", MODERN),
        "mcp-method": message["method"],
    }
    return {**fields, "mcp-name": name} if isinstance(name, str) else fields


# What listens, and how it is spoken to


class Site:
    """A place where something listens."""

    def __init__(self, port: int, *, token: str | None = None, prefix: str = "") -> None:
        self.port = port
        self.token = token
        self.prefix = prefix
        self.tls: ssl.SSLContext | None = None
        self._open: list[Raw] = []

    async def connect(self, **options: Any) -> Raw:
        raw = await dial(self.port, tls=self.tls, **options)
        self._open.append(raw)
        return raw

    def _fields(self, defaults: dict[str, str], given: Fields | None) -> list[tuple[str, str]]:
        own = {"host": f"127.0.0.1:{self.port}"}
        if self.token is not None:
            own["authorization"] = f"Bearer {self.token}"
        return merged({**own, **defaults}, given)

    def bytes(
        self, method: str, path: str = "/mcp", headers: Fields | None = None, body: bytes | None = None, **defaults: str
    ) -> bytes:
        """Return a request as bytes."""
        named = {name.replace("_", "-"): value for name, value in defaults.items()}
        return written(method, self.prefix + path, self._fields(named, headers), body)

    async def request(
        self, method: str, path: str = "/mcp", headers: Fields | None = None, body: bytes | None = None, **more: str
    ) -> Response:
        """Send one request on a new connection."""
        raw = await self.connect()
        raw.send(self.bytes(method, path, headers, body, **more))
        response = await raw.response(method)
        await raw.close()
        return response

    async def open(
        self, method: str, path: str = "/mcp", headers: Fields | None = None, body: bytes | None = None, **more: str
    ) -> Raw:
        """One request whose response is read as it comes; its head has been read."""
        raw = await self.connect()
        raw.send(self.bytes(method, path, headers, body, **more))
        await raw.read_head()
        return raw

    # 2026-07-28

    def modern_bytes(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        id: Any = 1,
        meta: Mapping[str, Any] | None = None,
        headers: Fields | None = None,
        path: str = "/mcp",
    ) -> bytes:
        message = modern_message(method, params, id=id, meta=meta)
        return self.posted(message, headers, path)

    def posted(self, message: Any, headers: Fields | None = None, path: str = "/mcp") -> bytes:
        """Return a POST of 2026-07-28 with the headers of its message."""
        fields = self._fields(modern_fields(message), headers)
        return written("POST", self.prefix + path, fields, json.dumps(message, ensure_ascii=False).encode())

    async def request_stateless(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> Response:
        raw = await self.connect()
        raw.send(self.modern_bytes(method, params, **options))
        response = await raw.response()
        await raw.close()
        return response

    async def open_modern(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> Raw:
        """Open a stream and read its head."""
        raw = await self.connect()
        raw.send(self.modern_bytes(method, params, **options))
        await raw.read_head()
        return raw

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Response:
        return await self.request_stateless("tools/call", {"name": tool, "arguments": arguments or {}}, **options)

    async def open_call(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Raw:
        return await self.open_modern("tools/call", {"name": tool, "arguments": arguments or {}}, **options)

    async def listen(self, id: Any = 1, *, headers: Fields | None = None, **wanted: Any) -> Raw:
        """Open a listen stream without reading the acknowledgement."""
        return await self.open_modern("subscriptions/listen", {"notifications": wanted}, id=id, headers=headers)

    # The handshake revisions

    async def post(self, message: Any, headers: Fields | None = None, path: str = "/mcp") -> Response:
        """Send a message unchanged, with the headers of a handshake version."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        defaults = {"content-type": "application/json", "accept": BOTH}
        return await self.request("POST", path, merged(defaults, headers), body)

    async def initialize(
        self, revision: str, capabilities: dict[str, Any] | None = None, *, initialized: bool = True, **options: Any
    ) -> Session:
        response = await self.post(initialize(revision, capabilities), **options)
        assert response.status == 200, response
        session = Session(self, response, options.get("headers"))
        if initialized:
            accepted = await session.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
            assert accepted.status == 202, accepted
        return session

    async def close(self) -> None:
        for raw in self._open:
            await raw.close()


def initialize(revision: str, capabilities: dict[str, Any] | None = None, *, id: Any = 0) -> dict[str, Any]:
    client = {"name": "a test", "version": "1"}
    params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params}


class Session:
    """A session of 2025-03-26 to 2025-11-25, as its client has it."""

    def __init__(self, site: Site, response: Response, headers: Any = None) -> None:
        self.site = site
        self.response = response
        self.result = response.messages[-1]["result"]
        self.id = response["mcp-session-id"]
        self.revision: str = self.result["protocolVersion"]
        self._more = dict(headers or {})

    def fields(self, given: Fields | None = None, **more: str) -> list[tuple[str, str]]:
        own = {"mcp-session-id": self.id, **self._more, **more}
        if self.revision >= "2025-06-18":
            own["mcp-protocol-version"] = self.revision
        return merged(own, given)

    def _posted(self, message: Any, headers: Fields | None) -> tuple[list[tuple[str, str]], bytes]:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.fields(headers, **{"content-type": "application/json", "accept": BOTH}), body

    async def post(self, message: Any, headers: Fields | None = None) -> Response:
        fields, body = self._posted(message, headers)
        return await self.site.request("POST", "/mcp", fields, body)

    async def open(self, message: Any, headers: Fields | None = None) -> Raw:
        """A POST whose answer is read as it comes; its head has been read."""
        raw = await self.send(message, headers)
        await raw.read_head()
        return raw

    async def send(self, message: Any, headers: Fields | None = None) -> Raw:
        """Send a POST without reading the response."""
        fields, body = self._posted(message, headers)
        raw = await self.site.connect()
        raw.send(self.site.bytes("POST", "/mcp", fields, body))
        return raw

    async def request(self, method: str, params: Any = None, *, id: Any = 1, headers: Fields | None = None) -> Response:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        return await self.post(message if params is None else message | {"params": params}, headers)

    async def call(self, tool: str, arguments: Any = None, *, id: Any = 1, meta: Any = None) -> Response:
        return await self.post(call_message(tool, arguments, id=id, meta=meta))

    async def open_call(
        self, tool: str, arguments: Any = None, *, id: Any = 1, meta: Any = None, headers: Fields | None = None
    ) -> Raw:
        return await self.open(call_message(tool, arguments, id=id, meta=meta), headers)

    async def notify(self, method: str, params: Any = None) -> Response:
        message = {"jsonrpc": "2.0", "method": method}
        return await self.post(message if params is None else message | {"params": params})

    async def get(self, last: str | None = None, headers: Fields | None = None) -> Raw:
        """Open the stream of a GET and read its head."""
        more = {"accept": "text/event-stream"} | ({"last-event-id": last} if last is not None else {})
        return await self.site.open("GET", "/mcp", self.fields(headers, **more))

    async def delete(self) -> Response:
        return await self.site.request("DELETE", "/mcp", self.fields())


def call_message(tool: str, arguments: Any = None, *, id: Any = 1, meta: Any = None) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}}
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": params if meta is None else params | {"_meta": meta},
    }


class Here(Site):
    """A listener in this process, which can be looked at."""

    def __init__(self, server: Server, listener: Listener, port: int) -> None:
        super().__init__(port, token=listener.application.settings.token)
        self.server = server
        self.listener = listener
        self.exchange = listener.application
        self.stopped = False

    async def metric(self, name: str) -> float:
        """Return a value of /metrics; labels are part of the name."""
        text = (await self.request("GET", "/metrics")).body.decode()
        results = [line.rpartition(" ")[2] for line in text.splitlines() if line.rpartition(" ")[0] == name]
        return float(results[0]) if results else 0.0

    async def turn(self, times: int = 1) -> None:
        """Let it read what has been sent: whatever came before this request has been seen when it is answered."""
        for _ in range(times):
            assert (await self.request("GET", "/health")).status == 200

    @property
    def unread(self) -> int:
        """Return the bytes buffered in this process for clients that do not read."""
        return sum(connection.buffered_bytes() for connection in self.listener._connections)

    async def most_unread(self, event: asyncio.Event) -> int:
        """Return the maximum of buffered bytes until a condition holds."""
        most = 0

        def look() -> bool:
            nonlocal most
            most = max(most, self.unread)
            return event.is_set()

        await until(look)
        return most

    async def stop(self, timeout: float = 0.0) -> None:
        self.stopped = True
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.listener.stop(timeout)

    async def end(self) -> None:
        if not self.stopped:
            await self.stop()
        await self.close()
        await until(lambda: self.exchange.metrics.in_flight == 0)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something to become true. What is polled has no event of its own."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(server)` listens on a free port of this machine."""
    sites: list[Here] = []

    async def start(
        server: Server,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        deadlines: ConnectionTimeouts = ConnectionTimeouts(),
        max_connections: int = 20_000,
        max_connections_per_ip: int | None = None,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        **settings: Any,
    ) -> Here:
        exchange = exchange_for(server, HttpServerSettings(**settings))
        listener = Listener(
            exchange, timeouts=deadlines, max_connections=max_connections, max_connections_per_ip=max_connections_per_ip
        )
        addresses = await listener.listen(host, port, tls=tls, reuse_port=reuse_port)
        site = Here(server, listener, addresses[0][1])
        sites.append(site)
        return site

    yield start
    for site in sites:
        await site.end()


# A server with one of each


class Held:
    """A tool's body that waits until it is told to go on, and remembers what happened to it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        # That `shout` has said everything.
        self.shouted = asyncio.Event()
        self.runs = 0

    async def body(self) -> None:
        self.runs += 1
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def has_started(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.started.wait()

    async def was_cancelled(self, within: float = TIMEOUT_SECONDS) -> None:
        async with asyncio.timeout(within):
            await self.cancelled.wait()


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def server(held: Held) -> Server:
    """Create a server with one component of each kind."""
    server = Server("tested", version="1.2.3", list_page_size=1000)

    @server.tool(run_in_thread=False)
    def echo(text: str) -> str:
        return text

    @server.tool
    async def later(text: str) -> str:
        """Return the value after other tasks have run."""
        await asyncio.sleep(0)
        return text

    @server.tool
    async def hold() -> str:
        await held.body()
        return "released"

    @server.tool
    async def talk(count: int, ctx: Context, hold: bool = False, fail: bool = False, size: int = 0) -> str:
        """Say something on the way, and wait if that is wanted."""
        for number in range(count):
            await ctx.report_progress(number + 1, count, "x" * size or None)
        if hold:
            await held.body()
        if fail:
            raise ToolError("It failed.")
        return "said"

    @server.tool
    async def shout(count: int, size: int, ctx: Context) -> str:
        """Say a lot, and never wait for anybody to read it."""
        for _ in range(count):
            ctx.info("x" * size)
            await asyncio.sleep(0)
        held.shouted.set()
        return "shouted"

    @server.tool
    async def ask(ctx: Context, times: int = 1) -> str:
        answers = [await ctx.elicit(f"Question {number}", str) for number in range(times)]
        return ", ".join(str(answer.data) for answer in answers)

    @server.tool
    async def sample(ctx: Context) -> str:
        return (await ctx.sample("Say something.")).text

    @server.tool
    async def let_go(ctx: Context) -> str:
        """Let the client go while the work goes on."""
        await ctx.report_progress(1)
        ctx.close_stream()
        await held.body()
        return "done meanwhile"

    @server.tool(run_in_thread=False)
    def large(size: int) -> str:
        return "x" * size

    @server.tool(run_in_thread=False)
    def grow(name: str) -> str:
        """Change the list of tools."""
        server.tool(name=name)(lambda: None)
        return name

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return f"About {name}."

    @server.prompt
    def greet(who: str) -> str:
        return f"Hello, {who}"

    return server


# Children


class Process:
    """A child process that says on standard error when it is ready."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        self._stderr = process.stderr
        self._reading: asyncio.Task[None] | None = None

    async def read_until(self, mark: str) -> str:
        """Return the line with the marker. Other lines are stored."""
        async with asyncio.timeout(30):
            while True:
                line = (await self._stderr.readline()).decode()
                assert line, f"the child has ended: {self.said}"
                self.said += line
                if mark in line:
                    self._reading = asyncio.ensure_future(self._read_on())
                    return line

    async def _read_on(self) -> None:
        while line := await self._stderr.readline():
            self.said += line.decode()

    async def ended(self) -> int:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            code = await self.process.wait()
            if self._reading is not None:
                await self._reading
            else:
                self.said += (await self._stderr.read()).decode()
        return code

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()


@pytest.fixture
async def run() -> AsyncIterator[Callable[..., Any]]:
    """`await run("-m", "portico", …)` starts Python as a child."""
    children: list[Process] = []

    async def start(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *map(str, arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
        children.append(Process(process))
        return children[-1]

    yield start
    for child in children:
        await child.close()


@pytest.fixture
def free_port() -> int:
    """Return a port that was free a moment ago, for programs that cannot report theirs."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture
async def at() -> AsyncIterator[Callable[..., Site]]:
    """Return a client for a port."""
    sites: list[Site] = []

    def make(port: int, **options: Any) -> Site:
        sites.append(Site(port, **options))
        return sites[-1]

    yield make
    for site in sites:
        await site.close()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until
