"""Scenarios of the client table: every client calls the same tool of the same Portico server.

The clients take turns, and each turn is a separate process.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from driver import DriverError
from http_driver import HttpDriver
from peers import SERVERS, Peer
from scenarios import Answers, Question, Turn, take_turns

CLIENTS = Path(__file__).resolve().parent / "clients"
PROGRAMS = {"portico": "portico_client.py", "mcp": "official_client.py", "fastmcp": "fast_client.py"}
TIMEOUT = 120

CLIENT_QUESTIONS = (
    Question("import_client", "import of the client class", "ms"),
    Question("stdio_cpu", "client CPU per tools/call, stdio, 2025-11-25", "µs"),
    Question("stdio_p50", "latency of a tools/call, stdio, p50", "µs"),
    Question("stdio_rate", "tools/call with 32 in flight, stdio", "per s", more_is_better=True),
    Question("http_cpu", "client CPU per tools/call, HTTP, 2026-07-28", "µs"),
    Question("http_p50", "latency of a tools/call, HTTP, p50", "µs"),
    Question("http_rate", "tools/call with 32 in flight, HTTP", "per s", more_is_better=True),
    Question("connections", "connections, each with one call, HTTP", "per s", more_is_better=True),
)
_OVER = {
    "stdio": ("import_client", "stdio_cpu", "stdio_p50", "stdio_rate"),
    "http": ("http_cpu", "http_p50", "http_rate", "connections"),
}


@dataclass(frozen=True)
class ClientSize:
    rounds: int
    seconds: float


CLIENT_FULL = ClientSize(rounds=5, seconds=1.0)
CLIENT_QUICK = ClientSize(rounds=1, seconds=0.3)


def ask_clients(answers: Answers, peers: list[Peer], size: ClientSize) -> None:
    ours = next((peer for peer in peers if peer.key == "portico"), None)
    if ours is None:
        return
    with ExitStack() as stack:
        command = (ours.python, str(SERVERS / "portico_http.py"), "{port}")
        driver = stack.enter_context(HttpDriver(command, ours.env, tool="add_async"))
        driver.open()
        targets = {"stdio": ours.command(), "http": [f"http://127.0.0.1:{driver.port}/mcp"]}

        def turn(peer: Peer, transport: str) -> Turn:
            return peer, _OVER[transport], lambda: ask(peer, transport, size.seconds, targets[transport])

        measured = [peer for peer in peers if peer.key in PROGRAMS]
        take_turns(answers, size.rounds, [turn(peer, transport) for transport in _OVER for peer in measured])


def ask(peer: Peer, transport: str, seconds: float, target: list[str]) -> dict[str, float]:
    program = [peer.python, str(CLIENTS / PROGRAMS[peer.key]), transport, str(seconds), *target]
    done = subprocess.run(program, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=_env(peer))
    if done.returncode != 0:
        raise DriverError(f"the client ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    data: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {key: data[key] for key in _OVER[transport]}


def _env(peer: Peer) -> dict[str, str]:
    return {**os.environ, **peer.env}
