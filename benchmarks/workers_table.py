"""The table of workers: what one and two of them answer, what a request at the wrong one costs, and memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers import Peer
from questions import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree

NAME = "workers"
CONNECTIONS = 32
QUESTIONS = (
    Question("rate", f"tools/call, 2026-07-28, {CONNECTIONS} connections", "per s", more_is_better=True),
    Question("cpu", "the same: CPU of all workers for one call", "µs"),
    Question("session", "tools/call in a session, on a connection of its worker: CPU", "µs"),
    Question("handed", "the same, on a connection that is handed over for it: CPU", "µs"),
    Question("private", "memory that a worker shares with no other process", "MB"),
)
KEYS = tuple(question.key for question in QUESTIONS)
LEGEND = (
    "The asker is one Python process on the same cores, so two workers get what it leaves them: read the CPU, and the"
    " rate as what is left of the machine. A connection is handed over when its request is for a session of another"
    " worker; here it is for most requests, because sessions take turns on it, which no client does.",
)
SERVER = """
from portico import Server

server = Server("measured", version="1")


@server.tool
async def add(a: int, b: int) -> int:
    return a + b
"""
_PREFIX = "io.modelcontextprotocol/"
_META = {f"{_PREFIX}protocolVersion": "2026-07-28", f"{_PREFIX}clientCapabilities": {}}
_CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}


def measure(size: Size) -> Table:
    answers = Answers()
    calls = 2_000 if size.quick else 20_000
    columns = [this_tree("one", "1 worker"), this_tree("two", "2 workers")]
    turns = [(peer, KEYS, lambda peer=peer: _ask(peer, calls)) for peer in columns]
    take_turns(answers, size.rounds, turns)
    return Table("workers", [Grid(QUESTIONS, columns)], answers, legend=LEGEND)


def _ask(peer: Peer, calls: int) -> dict[str, Any]:
    with _serving(1 if peer.key == "one" else 2) as (supervisor, port):
        return asyncio.run(_asked(_children(supervisor), port, calls))


async def _asked(workers: list[int], port: int, calls: int) -> dict[str, Any]:
    lines = [await _Line.to(port) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(one.modern(10) for one in lines))
    began, spent = time.perf_counter(), _cpu(workers)
    await asyncio.gather(*(one.modern(calls // CONNECTIONS) for one in lines))
    took, made = time.perf_counter() - began, calls // CONNECTIONS * CONNECTIONS
    found: dict[str, Any] = {"rate": made / took, "cpu": (_cpu(workers) - spent) / made * 1e6}
    sessions = [await lines[0].begin() for _ in range(12)]
    few = max(200, calls // 10)
    found["session"] = await _cpu_of(workers, few, lambda number: lines[0].in_session(sessions[0]))
    # With one worker nothing is handed over; with two, most of these are.
    found["handed"] = await _cpu_of(workers, few, lambda number: lines[0].in_session(sessions[number % 12]))
    found["private"] = sum(map(_private, workers)) / len(workers) / 1e6
    for one in lines:
        one.close()
    return found


async def _cpu_of(workers: list[int], times: int, ask: Callable[[int], Any]) -> float:
    for number in range(24):
        await ask(number)
    spent = _cpu(workers)
    for number in range(times):
        await ask(number)
    return (_cpu(workers) - spent) / times * 1e6


class _Line:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> _Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, message: dict[str, Any], fields: str) -> dict[str, str]:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        head = (
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n{fields}\r\n"
        )
        self._writer.write(head.encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        if status.split()[1] not in ("200", "202"):
            raise ValueError(status)
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await self._reader.readexactly(int(found.get("content-length", "0")))
        return found

    async def modern(self, times: int) -> None:
        fields = "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: add\r\n"
        for number in range(times):
            params = {**_CALL, "_meta": _META}
            await self.post({"id": number, "method": "tools/call", "params": params}, fields)

    async def begin(self) -> str:
        params = {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "asker", "version": "1"},
        }  # fmt: skip
        # On a connection of its own, so that the kernel chooses the worker.
        one = await _Line.to(self._writer.get_extra_info("peername")[1])
        id = (await one.post({"id": 1, "method": "initialize", "params": params}, ""))["mcp-session-id"]
        await one.post({"method": "notifications/initialized"}, f"mcp-session-id: {id}\r\n")
        one.close()
        return id

    async def in_session(self, id: str) -> None:
        await self.post({"id": 2, "method": "tools/call", "params": _CALL}, f"mcp-session-id: {id}\r\n")

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _serving(workers: int) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory(prefix="portico-workers-") as folder:
        path = Path(folder) / "measured.py"
        path.write_text(SERVER)
        words = ["serve", str(path), "--transport", "http", "--port", "0", "--workers", str(workers)]
        command = [sys.executable, "-m", "portico", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                said = process.stderr.readline()
                if not said.startswith("Serving on "):
                    raise ValueError(said)
                yield process.pid, int(said.rsplit(":", 1)[1].partition("/")[0])
            finally:
                process.send_signal(signal.SIGTERM)
                process.stderr.read()


def _children(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def _cpu(processes: list[int]) -> float:
    """Seconds that they have had so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields) / ticks


def _private(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
