"""Run a supervisor with its workers, minimal clients, and process statistics of Linux."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import compiled  # noqa: F401

SERVER = """
import json
import os
from collections import Counter

from portico import Server

server = Server("measured", version="1")
ORDERS = json.dumps([{"id": n, "customer": f"customer {n % 40}", "cents": n * 37 % 9000} for n in range(500)])


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def best_customers(most: int) -> list[str]:
    # Real work: some JSON is read and summed up.
    sums = Counter()
    for order in json.loads(ORDERS):
        sums[order["customer"]] += order["cents"]
    return [name for name, _ in sums.most_common(most)]


@server.tool
async def pid() -> int:
    return os.getpid()


@server.resource("note://one")
def note() -> str:
    return "one"


@server.tool
async def touch() -> int:
    server.notify_resource_updated("note://one")
    return 1
"""
MOST_SAID = 5
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
_PREFIX = "io.modelcontextprotocol/"
_META = {f"{_PREFIX}protocolVersion": MODERN, f"{_PREFIX}clientCapabilities": {}}
_ABOUT = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "asker", "version": "1"}}


@dataclass(frozen=True)
class Serving:
    """A running server: the supervisor's process and the port."""

    supervisor: int
    port: int

    @property
    def workers(self) -> list[int]:
        return children(self.supervisor)


@contextmanager
def serving(workers: int, *options: str, store: str | None = None, folder: str | None = None) -> Iterator[Serving]:
    """Run workers of the server above. A different folder simulates another machine."""
    with tempfile.TemporaryDirectory(prefix="portico-workers-") as own:
        path = Path(own) / "measured.py"
        path.write_text(SERVER)
        words = ["serve", str(path), "--transport", "http", "--port", "0", "--workers", str(workers), *options]
        command = [sys.executable, "-m", "portico", *words]
        values = {"PORTICO_STORE": store, "TMPDIR": folder}
        env = {**os.environ, **{name: value for name, value in values.items() if value}}
        # Its output goes to a file: a full pipe would block it.
        message = Path(own) / "log"
        with message.open("w") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=env)
        try:
            while not (text := re.search(r"^Serving on .*:(\d+)", message.read_text(), re.MULTILINE)):
                if process.poll() is not None:
                    raise ValueError(f"it does not serve: {message.read_text()}")
                time.sleep(0.01)
            yield Serving(process.pid, int(text[1]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            failures = Counter(re.findall(r"^(?:ERROR|WARNING) .*", message.read_text(), re.MULTILINE))
            for line, times in failures.most_common(MOST_SAID):
                print(f"it said {times} times: {line}", file=sys.stderr)


def modern_request(id: str, tool: str = "add", **arguments: Any) -> bytes:
    """Return a call of 2026-07-28 as bytes."""
    params = {"name": tool, "arguments": arguments or {"a": 1, "b": 2}, "_meta": _META}
    return _written("POST", {"id": int(id), "method": "tools/call", "params": params}, _fields("tools/call", tool))


def _fields(method: str, name: str = "") -> str:
    called = f"mcp-name: {name}\r\n" if name else ""
    return f"mcp-protocol-version: {MODERN}\r\nmcp-method: {method}\r\n{called}"


def _written(method: str, message: dict[str, Any] | None, fields: str) -> bytes:
    body = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
    head = (
        f"{method} /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n{fields}\r\n"
    )
    return head.encode() + body


class Line:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self.reader, self._writer, self._port = reader, writer, port
        # No two requests of a session that are worked on may have one id, on whatever connections they come.
        self._ids = count(id(self) << 20)

    @classmethod
    async def to(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port), port)

    def send(self, method: str, message: dict[str, Any] | None, fields: str) -> None:
        self._writer.write(_written(method, message, fields))

    async def head(self) -> dict[str, str]:
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        if status.split()[1] not in ("200", "202"):
            raise ValueError(status)
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    async def post(self, message: dict[str, Any], fields: str) -> tuple[dict[str, str], bytes]:
        self.send("POST", message, fields)
        result = await self.head()
        return result, await self.reader.readexactly(int(result.get("content-length", "0")))

    # 2026-07-28

    async def call(self, tool: str = "add", **arguments: Any) -> bytes:
        params = {"name": tool, "arguments": arguments, "_meta": _META}
        message = {"id": 1, "method": "tools/call", "params": params}
        _, body = await self.post(message, _fields("tools/call", tool))
        return body

    async def worker(self) -> int:
        """Return the process that has this connection."""
        return int(json.loads(await self.call("pid"))["result"]["structuredContent"]["result"])

    async def listen(self, uri: str) -> None:
        """Subscribe to a resource."""
        params = {"notifications": {"resourceSubscriptions": [uri]}, "_meta": _META}
        self.send(
            "POST", {"id": 1, "method": "subscriptions/listen", "params": params}, _fields("subscriptions/listen")
        )
        await self.head()
        await self.told("acknowledged")

    async def told(self, word: str) -> None:
        """Wait for an event that contains a word."""
        while word.encode() not in await self.reader.readuntil(b"\n"):
            pass

    # Sessions

    async def begin(self) -> str:
        """Start a session on a new connection, so that the kernel chooses the worker."""
        result = await Line.to(self._port)
        head, _ = await result.post({"id": 1, "method": "initialize", "params": _ABOUT}, "")
        id = head["mcp-session-id"]
        await result.post({"method": "notifications/initialized"}, f"mcp-session-id: {id}\r\n")
        result.close()
        return id

    async def in_session(self, id: str, tool: str = "add") -> Any:
        params = {"name": tool, "arguments": {"a": 1, "b": 2} if tool == "add" else {}}
        message = {"id": f"{next(self._ids)}", "method": "tools/call", "params": params}
        _, body = await self.post(message, f"mcp-session-id: {id}\r\n")
        return json.loads(body)["result"]["structuredContent"]["result"]

    def close(self) -> None:
        self._writer.close()


def children(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def cpu(processes: list[int]) -> float:
    """Return their CPU seconds with nanosecond resolution; ticks would be hundredths."""
    spent = 0
    for item in processes:
        for thread in Path(f"/proc/{item}/task").iterdir():
            spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def busy() -> float:
    """Return the seconds that the cores of this machine were busy."""
    fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def private(processes: list[int]) -> float:
    """Return the bytes that they share with no other process."""
    texts = [Path(f"/proc/{item}/smaps_rollup").read_text() for item in processes]
    lines = [line.split() for text in texts for line in text.splitlines()]
    return float(sum(int(words[1]) * 1024 for words in lines if words[0].startswith("Private_")))
