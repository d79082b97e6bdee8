"""Count the instructions of one tools/call over HTTP in the server process, without the socket: a measure for busy
machines.

    python benchmarks/http_instructions.py

Valgrind counts two runs that differ only in the number of requests. The kernel and the event loop are not included.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import compiled  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent / "servers"))

FEW, MANY, CONNECTIONS = 320, 1280, 32
# The server, the tool, and the header that never repeats.
KINDS = {
    "bare Protocol": ("bare", "add_async", ""),
    "inline": ("portico", "add_inline", ""),
    "async def": ("portico", "add_async", ""),
    "async def, a new X-Request-Id each": ("portico", "add_async", "x-request-id"),
    "async def, a new header of another name each": ("portico", "add_async", "x-tenant-{}"),
}


class Transport:
    """Discards and counts the written bytes."""

    written = 0

    def write(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200"), data
        self.written += 1

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50000) if name == "peername" else default


def requests(tool: str, fresh: str) -> list[bytes]:
    from driver import META, MODERN
    from http_driver import post

    made = []
    for number in range(1_000_000, 1_000_000 + MANY):
        params = {"name": tool, "arguments": {"a": number, "b": 1}, "_meta": META}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
        headers |= {fresh.format(number): str(number)} if fresh else {}
        made.append(post(8000, {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}, headers))
    return made


def connections(server: str) -> list[Any]:
    if server == "bare":
        from bare_protocol import Connection

        return [Connection() for _ in range(CONNECTIONS)]
    from portico_server import build

    from portico.server.http import build_application
    from portico.transports.http_server.application import HttpServerSettings
    from portico.transports.http_server.listener import Listener

    listener = Listener(build_application(build(), HttpServerSettings()))
    return [listener.create_connection() for _ in range(CONNECTIONS)]


async def answer(kind: str, number: int) -> None:
    server, tool, fresh = KINDS[kind]
    transport, made = Transport(), requests(tool, fresh)
    opened = connections(server)
    for item in opened:
        item.connection_made(transport)
    for start in range(0, number, CONNECTIONS):
        for item, request in zip(opened, made[start : start + CONNECTIONS], strict=True):
            item.data_received(request)
        # Tasks take one turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert transport.written == number


def count(kind: str, number: int) -> int:
    command = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
    run = subprocess.run(
        [*command, sys.executable, __file__, kind, str(number)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    output = re.search(r"I\s+refs:\s+([\d,]+)", run.stderr)
    assert output is not None, run.stderr
    return int(output[1].replace(",", ""))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        import uvloop

        uvloop.run(answer(sys.argv[1], int(sys.argv[2])))
    else:
        for kind in KINDS:
            # Once without counting: what is compiled and written then is not compiled again.
            subprocess.run([sys.executable, __file__, kind, str(FEW)], check=True)
            print(f"{kind}: {(count(kind, MANY) - count(kind, FEW)) // (MANY - FEW):,}", flush=True)
