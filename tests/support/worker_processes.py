"""A supervisor with its workers, and clients that do not use the SDK."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0
MODERN = "2026-07-28"

SERVER = """
import asyncio
import os

from portico import Context, Server

server = Server("many", version="1")


@server.tool
def pid() -> int:
    return os.getpid()


@server.tool
async def count(path: str, word: str) -> int:
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(opened, f"{word}\\n".encode())
    os.close(opened)
    await asyncio.sleep(0.01)
    return os.getpid()


@server.tool
async def name(ctx: Context) -> str:
    answer = await ctx.elicit("Your name?", str)
    return f"{answer.data} {os.getpid()}"


@server.resource("note://one")
def note() -> str:
    return "one"


@server.tool
def touch() -> int:
    server.notify_resource_updated("note://one")
    return os.getpid()


@server.tool
async def slowly(ctx: Context, path: str) -> str:
    await ctx.report_progress(1, 2)
    open(path, "w").close()
    while os.path.exists(path):
        await asyncio.sleep(0.01)
    await ctx.report_progress(2, 2)
    return "done"
"""

# A program that behaves as `python -m portico`; tests put other constants before it.
PORTICO_MAIN = """
import sys
from portico.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Fleet:
    """A server process with workers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.log: list[str] = []
        self._reading = asyncio.ensure_future(self._read())
        self._news = asyncio.Event()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            if text.startswith("Serving on "):
                self.url = text.removeprefix("Serving on ")
            self._news.set()

    async def ready(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not self.url and not self._reading.done():
                self._news.clear()
                waiting = asyncio.ensure_future(self._news.wait())
                await asyncio.wait({waiting, self._reading}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        assert self.url, self.log

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].partition("/")[0])

    def workers(self) -> set[int]:
        """Return the ids of its child processes, from /proc."""
        result: set[int] = set()
        with suppress(OSError):
            for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
                result |= set(map(int, children.read_text().split()))
        return result

    async def wait_until(self, condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
        """Poll until a condition is true: other processes send us no events."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                so = condition()
                if so is True or (so is not False and await so):
                    return
                await asyncio.sleep(0.02)

    async def end(self, number: int = signal.SIGTERM) -> int:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            status = await self.process.wait()
            await self._reading
        return status

    async def close(self) -> None:
        if self.process.returncode is None:
            # Not killed: its workers would keep running.
            self.process.terminate()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.process.wait()
            await self._reading


class SharedFleet:
    """A server process that several tests share without changing it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.process = process
        self.url = process.stderr.readline().removeprefix("Serving on ").strip()
        self.port = int(self.url.rsplit(":", 1)[1].partition("/")[0])

    def workers(self) -> set[int]:
        pid = self.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


# Clients


class HttpAnswer:
    def __init__(self, status: int, fields: dict[str, str], body: bytes) -> None:
        self.status, self.fields, self.body = status, fields, body

    @property
    def json(self) -> Any:
        if self.fields.get("content-type", "").startswith("text/event-stream"):
            events = [line[5:].strip() for line in self.body.decode().splitlines() if line.startswith("data:")]
            return json.loads([event for event in events if event][-1])
        return json.loads(self.body)

    @property
    def value(self) -> Any:
        result = self.json["result"]
        value = result["structuredContent"] if "structuredContent" in result else result["content"][0]["text"]
        return value["result"] if isinstance(value, dict) else value


class HttpConnection:
    """One connection, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int, **how: Any) -> HttpConnection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, **how))

    async def get(self, path: str) -> HttpAnswer:
        self._writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        return await self.answer()

    async def send(self, method: str, message: Any = None, **fields: str) -> None:
        body = b"" if message is None else json.dumps(message).encode()
        lines = {
            "host": "127.0.0.1",
            "content-length": str(len(body)),
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): value for name, value in fields.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._writer.write(f"{method} /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        await self._writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), fields

    async def chunk(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            size = int((await self._reader.readuntil(b"\r\n")).strip(), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def answer(self) -> HttpAnswer:
        status, fields = await self.head()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            if "content-length" in fields:
                return HttpAnswer(status, fields, await self._reader.readexactly(int(fields["content-length"])))
            body = b""
            while "transfer-encoding" in fields and (chunk := await self.chunk()):
                body += chunk
        return HttpAnswer(status, fields, body)

    async def post(self, message: Any, **fields: str) -> HttpAnswer:
        await self.send("POST", message, **fields)
        return await self.answer()

    @staticmethod
    def stand_alone(method: str, params: dict[str, Any] | None = None, id: int = 1) -> dict[str, Any]:
        """Return the message of a request of 2026-07-28, and its header fields."""
        prefix = "io.modelcontextprotocol/"
        meta = {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": {"elicitation": {"form": {}}}}
        fields = {"mcp_protocol_version": MODERN, "mcp_method": method}
        if params and "name" in params:
            fields["mcp_name"] = params["name"]
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": meta}}
        return {"message": message, **fields}

    async def request_stateless(self, method: str, params: dict[str, Any] | None = None, id: int = 1) -> HttpAnswer:
        return await self.post(**self.stand_alone(method, params, id))

    async def call(self, tool: str, **arguments: Any) -> HttpAnswer:
        return await self.request_stateless("tools/call", {"name": tool, "arguments": arguments})

    async def at_end(self) -> bool:
        """Return whether the server closes the connection without sending more."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._reader.read(1) == b""

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


HANDSHAKE_VERSION = "2025-11-25"


class Session:
    """A client with a session, whose requests may use different connections."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.fields: dict[str, str] = {"mcp_protocol_version": HANDSHAKE_VERSION}
        self._last = 0

    async def send(self, message: dict[str, Any], line: HttpConnection | None = None) -> Any:
        item = line or await HttpConnection.to(self.port)
        try:
            return await item.post({"jsonrpc": "2.0", **message}, **self.fields)
        finally:
            if line is None:
                await item.close()

    async def begin(self, line: HttpConnection | None = None, **capabilities: Any) -> Session:
        about = {"name": "a test", "version": "1"}
        params = {"protocolVersion": HANDSHAKE_VERSION, "capabilities": capabilities, "clientInfo": about}
        response = await self.send({"id": 0, "method": "initialize", "params": params}, line)
        self.fields["mcp_session_id"] = response.fields["mcp-session-id"]
        assert (await self.send({"method": "notifications/initialized"}, line)).status == 202
        return self

    async def call(self, tool: str, line: HttpConnection | None = None, **arguments: Any) -> Any:
        self._last += 1
        params = {"name": tool, "arguments": arguments}
        return await self.send({"id": self._last, "method": "tools/call", "params": params}, line)


# Files and /proc


def script(server: Path, run: str) -> Path:
    """Write a program that runs this server with these options, and return its path."""
    path = server.with_name("script.py")
    path.write_text(f'{server.read_text()}\n\nif __name__ == "__main__":\n    {run}\n')
    return path


def application(server: Path, made: str = "server.http_app()") -> Path:
    """Write a module `served` with the ASGI application `app` of this server, and return its folder."""
    server.with_name("served.py").write_text(f"{server.read_text()}\n\napp = {made}\n")
    return server.parent


def free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        return int(item.getsockname()[1])


def certificate(folder: Path) -> Path:
    """Write a certificate for localhost with its key into one file, and return its path."""
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    key, path = folder / "key.pem", folder / "certificate.pem"
    words = [*made.split(), *named.split(), "-keyout", key, "-out", path]
    subprocess.run(words, check=True, capture_output=True, timeout=30)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


def is_secret_hidden(secret: str, process: int) -> bool:
    """Return whether a secret is in neither the environment nor the command line of a process."""
    folder = Path(f"/proc/{process}")
    return not any(secret.encode() in (folder / name).read_bytes() for name in ("environ", "cmdline"))
