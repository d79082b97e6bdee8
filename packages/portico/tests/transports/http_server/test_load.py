"""Many clients and calls: bounded memory.

The server is a child, so that its memory is its own and its files are not ours.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.storm import times

SCRIPT = """
import resource

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

from portico import Context, Server

server = Server("loaded", version="1")


@server.tool(run_in_thread=False)
def echo(text: str) -> str:
    return text


@server.tool
async def later(text: str, ctx: Context) -> str:
    await ctx.report_progress(1)
    return text


@server.tool(run_in_thread=False)
def change() -> str:
    server.notify_resource_updated("note://a")
    return "changed"


server.run("http", port=0, max_concurrent_requests_per_client=100_000)
"""


@pytest.fixture
def files() -> Iterator[int]:
    """How many streams there may be: thousands, as the limit of open files allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 65_536
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    yield min(times(2_000, in_a_storm=10_000), most - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Child:
    """The server in a child, and what it costs."""

    def __init__(self, process: Any, site: Any) -> None:
        self.process, self.site = process, site

    @property
    def resident(self) -> int:
        """Bytes of memory that it really has."""
        status = Path(f"/proc/{self.process.process.pid}/status")
        if not status.exists():
            pytest.skip("This system has no /proc to read a process's memory from.")
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    async def metric(self, name: str) -> float:
        text = (await self.site.request("GET", "/metrics")).body.decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


@pytest.fixture
async def child(run: Any, at: Any, tmp_path: Path) -> Child:
    (tmp_path / "loaded.py").write_text(SCRIPT)
    process = await run(tmp_path / "loaded.py")
    url = (await process.read_until("Serving on ")).strip()
    return Child(process, at(int(url.rpartition(":")[2].partition("/")[0])))


class Streams:
    """Sockets by the thousand, without a Python object for each byte."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sockets: list[socket.socket] = []

    async def open(self, number: int, request: Callable[[int], bytes], mark: bytes) -> None:
        """So many more, each asking for its stream and waiting until it has begun."""
        loop = asyncio.get_running_loop()
        gate = asyncio.Semaphore(200)

        async def one(place: int) -> None:
            async with gate, asyncio.timeout(30):
                sock = socket.socket()
                sock.setblocking(False)
                self.sockets.append(sock)
                await loop.sock_connect(sock, ("127.0.0.1", self.port))
                await loop.sock_sendall(sock, request(place))
                message = b""
                while mark not in message:
                    more = await loop.sock_recv(sock, 4096)
                    assert more, message
                    message += more

        await asyncio.gather(*(one(place) for place in range(number)))

    def hear(self) -> set[int]:
        """Which have something to say, by their descriptors. One may say it in pieces."""
        heard = set()
        for sock in self.sockets:
            try:
                if sock.recv(4096):
                    heard.add(sock.fileno())
            except BlockingIOError:
                pass
        return heard

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def streams(child: Child) -> Iterator[Streams]:
    streams = Streams(child.site.port)
    yield streams
    streams.close()


async def test_thousands_of_listen_streams_are_no_trouble(child: Child, streams: Streams, files: int) -> None:
    """Thousands of idle streams; a bounded price for each; calls go on; all of them are told."""
    site = child.site
    expected = {"notifications": {"resourceSubscriptions": ["note://a"]}}
    data = site.modern_bytes("subscriptions/listen", expected)
    await streams.open(100, lambda _: data, b"acknowledged")
    before = child.resident
    await streams.open(files - 100, lambda _: data, b"acknowledged")
    each = (child.resident - before) / (files - 100)
    assert each < 32 * 1024, f"{each:.0f} bytes for each stream"
    assert await child.metric("mcp_server_streams") == files
    # The others do not notice.
    assert (await site.call("echo", {"text": "x"})).status == 200
    assert (await site.call("change")).status == 200
    heard: set[int] = set()
    async with asyncio.timeout(60):
        while len(heard) < files:
            heard |= streams.hear()
            await asyncio.sleep(0.02)


async def test_thousands_of_sessions_with_streams_are_no_trouble(child: Child, streams: Streams, files: int) -> None:
    """Thousands of idle sessions; a bounded price for each, streams included."""
    number = min(files, times(1_000, in_a_storm=3_000))
    site = child.site
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
    ready = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    kind = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    raw = await site.connect()
    sessions: list[str] = []

    async def begin(count: int) -> None:
        for _ in range(count):
            raw.send(site.bytes("POST", "/mcp", kind, hello))
            sessions.append((await raw.response())["mcp-session-id"])
            raw.send(site.bytes("POST", "/mcp", {**kind, "mcp-session-id": sessions[-1]}, ready))
            assert (await raw.response()).status == 202

    def stream(place: int) -> bytes:
        fields = {"accept": "text/event-stream", "mcp-session-id": sessions[len(sessions) - 1 - place]}
        data: bytes = site.bytes("GET", "/mcp", fields)
        return data

    await begin(100)
    await streams.open(100, stream, b"retry:")
    before = child.resident
    await begin(number - 100)
    await streams.open(number - 100, stream, b"retry:")
    each = (child.resident - before) / (number - 100)
    assert each < 64 * 1024, f"{each:.0f} bytes for each session"
    assert await child.metric("mcp_server_sessions") == number


async def test_tens_of_thousands_of_calls_leave_nothing_behind(child: Child) -> None:
    """A week of calls, no growth. Measured against itself: the last of them against the first."""
    site = child.site
    plain = site.modern_bytes("tools/call", {"name": "echo", "arguments": {"text": "x" * 50}})
    talking = site.modern_bytes(
        "tools/call", {"name": "later", "arguments": {"text": "x"}}, meta={"progressToken": "t"}
    )
    loop = asyncio.get_running_loop()

    async def client(rounds: int) -> None:
        """Requests in a row, so that the client costs little: a block is sent, and its answers are counted."""
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, ("127.0.0.1", site.port))
            block = plain * 48 + talking * 2
            for _ in range(rounds):
                await loop.sock_sendall(sock, block)
                ends = 0
                tail = b""
                async with asyncio.timeout(30):
                    while ends < 50:
                        data = await loop.sock_recv(sock, 262_144)
                        assert data
                        # Cut anywhere: what is left over is shorter than the mark.
                        text = tail + data
                        ends += text.count(b'"isError":false')
                        tail = text[-14:]
        finally:
            sock.close()

    async def calls(number: int) -> None:
        await asyncio.gather(*(client(number // 50 // 10) for _ in range(10)))

    await calls(5_000)
    before = child.resident
    # What a call could leave behind is larger than the 100 bytes for each that would go unnoticed.
    number = times(15_000, in_a_storm=200_000)
    await calls(number)
    growth = child.resident / before
    assert growth < 1.04, f"{growth:.2f} times the memory after {number} calls"


async def test_sessions_that_end_leave_nothing_behind(child: Child) -> None:
    """The same for handshakes: begun and deleted, with a stream of events each."""
    site = child.site
    raw = await site.connect()
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
    call = {"name": "later", "arguments": {"text": "x" * 1000}, "_meta": {"progressToken": 1}}
    result = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    kind = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

    async def sessions(number: int) -> None:
        for _ in range(number):
            raw.send(site.bytes("POST", "/mcp", kind, hello))
            own = {"mcp-session-id": (await raw.response())["mcp-session-id"]}
            raw.send(site.bytes("POST", "/mcp", {**kind, **own}, result))
            assert (await raw.response()).status == 200
            raw.send(site.bytes("DELETE", "/mcp", own))
            assert (await raw.response()).status == 204

    await sessions(500)
    before = child.resident
    number = times(1_000, in_a_storm=4_000)
    await sessions(number)
    growth = child.resident / before
    assert growth < 1.05, f"{growth:.2f} times the memory after {number} sessions"
    assert await child.metric("mcp_server_sessions") == 0
