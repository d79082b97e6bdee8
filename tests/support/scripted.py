"""Servers whose every byte the test controls: sockets, and small MCP servers made of rules.

Every wait has a timeout.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_SECONDS = 10.0
MODERN = "2026-07-28"
NEWEST_HANDSHAKE = "2025-11-25"
PREFIX = "io.modelcontextprotocol/"


async def wait_until(condition: Callable[[], Any]) -> None:
    """Poll a condition that has no event."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class Request:
    """One received request."""

    method: str
    target: str
    fields: list[tuple[str, str]]
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.fields)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def says(self) -> str:
        """Return the method of its message, `answer` for a response, or the HTTP method."""
        if not self.body:
            return self.method
        return str(self.json.get("method", "answer")) if isinstance(self.json, dict) else "batch"


class Peer:
    """One connection, on the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> Request:
        """Return the next request. Raises EOFError at the end."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError from None
        line, *lines = head.rstrip("\r\n").split("\r\n")
        fields = [(name.lower(), value.strip()) for name, _, value in (one.partition(":") for one in lines)]
        method, target, _ = line.split(" ")
        length = int(dict(fields).get("content-length", 0))
        return Request(method, target, fields, await self.reader.readexactly(length))

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    def answer(self, status: int, body: bytes | str = b"", kind: str = "application/json", **headers: str) -> None:
        """Send a whole response."""
        message = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(message)}"]
        lines += [f"Content-Type: {kind}"] if message else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + message)

    def json(self, message: Any, status: int = 200, **headers: str) -> None:
        self.answer(status, json.dumps(message), **headers)

    def result(self, request: Request, result: Any, **headers: str) -> None:
        self.json({"jsonrpc": "2.0", "id": request.json["id"], "result": result}, **headers)

    def error(self, request: Request, code: int, message: str = "no", status: int = 200, **more: Any) -> None:
        body = {"code": code, "message": message, **more}
        self.json({"jsonrpc": "2.0", "id": request.json["id"], "error": body}, status)

    # Streams of events, in chunks

    def stream(self, **headers: str) -> None:
        lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines) + "\r\n\r\n")

    def chunk(self, data: bytes | str) -> None:
        message = data.encode() if isinstance(data, str) else data
        self.send(b"%x\r\n%b\r\n" % (len(message), message))

    def event(self, message: Any, id: str | None = None, name: str | None = None) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        lines = [f"id: {id}"] if id is not None else []
        lines += [f"event: {name}"] if name is not None else []
        self.chunk("\n".join([*lines, *(f"data: {line}" for line in text.split("\n"))]) + "\n\n")

    def end(self) -> None:
        """End a chunked body."""
        self.send("0\r\n\r\n")

    # Leaving

    async def drained(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has disconnected, and discard its data."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            with suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass

    @property
    def is_there(self) -> bool:
        """Return whether the client is still connected."""
        return not self.reader.at_eof() and not self.writer.transport.is_closing()

    def abort(self) -> None:
        """Close the connection with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


Script = Callable[[Peer], Awaitable[None]]


class Site:
    """A listening socket that runs a script for each connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.failures: list[BaseException] = []
        self.port = 0
        self.secure = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}/mcp"

    @property
    def open(self) -> int:
        """Return the number of open connections."""
        return len(self._tasks)

    async def start(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.secure = tls is not None
        self._server = await asyncio.start_server(self._serve, host, port, ssl=tls, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            await self.script(peer)
        except (EOFError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass  # the test has ended
        except BaseException as failure:
            self.failures.append(failure)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=TIMEOUT_SECONDS)
        for peer in self.peers:
            peer.writer.transport.abort()


Rule = Callable[[Peer, Request], Any]


@dataclass
class Endpoint:
    """A small MCP server at a URL. `rules` replace the regular responses."""

    modern: bool = True
    revision: str = NEWEST_HANDSHAKE
    session: str | None = "s-1"
    capabilities: dict[str, Any] = field(
        default_factory=lambda: {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
    )
    rules: dict[str, Rule] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        self.site = Site(self._converse)

    @property
    def url(self) -> str:
        return self.site.url

    def requests_for(self, says: str) -> list[Request]:
        return [item for item in self.seen if item.says == says]

    async def wait_for_request(self, says: str, times: int = 1) -> Request:
        await wait_until(lambda: len(self.requests_for(says)) >= times)
        return self.requests_for(says)[times - 1]

    async def _converse(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            self.seen.append(request)
            rule = self.rules.get(request.says, self._properly)
            result = rule(peer, request)
            if asyncio.iscoroutine(result):
                await result

    def _properly(self, peer: Peer, request: Request) -> None:
        says = request.says
        if says == "server/discover" and self.modern:
            peer.result(request, self.discovery())
        elif says == "initialize" and not self.modern:
            more = {"Mcp_Session_Id": self.session} if self.session is not None else {}
            peer.result(request, self.greeting(), **more)
        elif says == "tools/list":
            peer.result(request, self.complete({"tools": []}))
        elif says == "ping" and not self.modern:
            peer.result(request, {})
        elif says.startswith("notifications/") or says == "answer":
            peer.answer(202)
        elif says in ("GET", "DELETE"):
            peer.answer(405)
        elif says == "server/discover":
            peer.error(request, -32601, status=400)
        else:
            peer.error(request, -32601, status=404)

    def discovery(self, *versions: str) -> Any:
        return {
            "resultType": "complete",
            "supportedVersions": list(versions or (MODERN,)),
            "capabilities": self.capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {PREFIX + "serverInfo": {"name": "scripted", "version": "1"}},
        }

    def greeting(self) -> Any:
        return {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "serverInfo": {"name": "scripted", "version": "1"},
        }

    def complete(self, result: dict[str, Any]) -> dict[str, Any]:
        return {"resultType": "complete", **result} if self.modern else result


@asynccontextmanager
async def at_site(script: Script, **options: Any) -> AsyncIterator[Site]:
    site = Site(script)
    await site.start(**options)
    try:
        yield site
    finally:
        await site.stop()
    assert not site.failures, site.failures


def text(said: str) -> dict[str, Any]:
    """Return the result of a tool with this text."""
    return {"content": [{"type": "text", "text": said}], "isError": False}
