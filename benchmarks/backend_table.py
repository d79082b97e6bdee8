"""Measure a tool that uses Redis and an HTTP API, with 50 concurrent clients and one or two workers.

It is modelled on the public TM Dev Lab comparison of MCP servers: the time goes to I/O in the tool, so this shows how
much of a framework's lead is left when tools do real work. Redis comes from the distribution (`apt-get install
redis-server`), the API is a small local server.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apt
import wrk
from goals import Goal, multiple
from http_driver import HttpDriver, free_port
from http_peers import ENVIRONMENTS, UVICORN, HttpPeer
from peers import SERVERS, NotInstalled, install_pinned, tree_environment, versions
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table

NAME = "backend"
CONNECTIONS = 50
TOOL = "add_with_backends"
BESIDE = (*UVICORN, "redis==8.1.0", "httpx==0.28.1")
QUESTIONS = (
    Question("rate", f"calls, {CONNECTIONS} connections", "per s", more_is_better=True),
    Question("p50", "latency, p50", "ms"),
    Question("p99", "latency, p99", "ms"),
    Question("cpu", "CPU of the server for one call", "µs"),
    Question("memory", "resident memory of the server, all processes", "MB"),
)
KEYS = tuple(question.key for question in QUESTIONS)
LEGEND = (
    "Each call writes and reads one key in Redis and sends one GET to a local HTTP API, with redis-py and httpx in"
    " every framework. The load generator, Redis and the API share the machine's cores with the server, and nothing is"
    " pinned to a core. The official SDK and FastMCP run on uvicorn with uvloop and httptools.",
)


def peers() -> list[HttpPeer]:
    """Return the columns: each framework with one and with two workers."""
    columns = []
    for workers in (1, 2):
        uvicorn = ("-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--workers", str(workers))
        uvicorn += ("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "critical")
        title = f"{workers} worker" + "s" * (workers > 1)
        columns += [
            HttpPeer(
                f"portico-{workers}",
                f"Portico, {title}",
                "portico",
                family="portico",
                serve=("portico_backend.py", "{port}", str(workers)),
                tool=TOOL,
            ),
            HttpPeer(
                f"mcp-{workers}",
                f"official SDK, {title}",
                "mcp",
                family="mcp",
                serve=(*uvicorn, "official_backend:app"),
                tool=TOOL,
            ),
            HttpPeer(
                f"fastmcp-{workers}",
                f"FastMCP, {title}",
                "fastmcp",
                family="fastmcp",
                serve=(*uvicorn, "fast_backend:app"),
                tool=TOOL,
                env=ENVIRONMENTS["fastmcp"],
            ),
        ]
    return columns


def prepare(peer: HttpPeer) -> HttpPeer:
    """Return the peer with its environment, or with the reason why it cannot be measured."""
    try:
        if peer.family == "portico":
            python = str(tree_environment("here-backend", *BESIDE))
            return replace(
                peer, python=python, program=(python,), version=versions(replace(peer, python=python))["portico"]
            )
        pinned = install_pinned(peer.package, *BESIDE)
        return replace(
            peer,
            python=pinned.python,
            program=(pinned.python,),
            version=pinned.version,
            note="; ".join(pinned.rejected),
        )
    except NotInstalled as why:
        return replace(peer, reason=str(why))


def measure(size: Size) -> Table:
    """Measure all columns in turns."""
    answers = Answers()
    columns = [prepare(peer) for peer in peers()]
    try:
        load, redis = wrk.find(), apt.program("redis-server", "redis-server")
    except NotInstalled as why:
        return Table(NAME, [Grid(QUESTIONS, columns)], answers, (), (f"Nothing was measured: {why}",), LEGEND)
    ours = next(peer for peer in columns if peer.family == "portico")
    with backends(redis, ours.python) as variables:
        turns = [
            (peer, KEYS, lambda peer=peer: ask(peer, load, variables, 2 if size.quick else 10))
            for peer in columns
            if not peer.reason
        ]
        take_turns(answers, size.rounds, turns)
    notes = (f"Redis {apt.version('redis-server')}; Go SDK: no framework-level package in the registries.",)
    return Table(NAME, [Grid(QUESTIONS, columns)], answers, judge(answers), notes, LEGEND)


@contextmanager
def backends(redis: str, python: str) -> Iterator[dict[str, str]]:
    """Run Redis and the API, and yield the environment variables that name them."""
    ports = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [redis, "--port", str(ports[0]), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            [python, str(SERVERS / "backend_api.py"), str(ports[1])],
        ]
        children = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=Path(folder))
            for command in commands
        ]
        try:
            for port in ports:
                wait_for(port)
            yield {"BACKEND_REDIS": f"redis://127.0.0.1:{ports[0]}", "BACKEND_API": f"http://127.0.0.1:{ports[1]}"}
        finally:
            for child in children:
                child.terminate()
                child.wait(10)


def wait_for(port: int) -> None:
    """Wait until something listens on a port."""
    until = time.monotonic() + 20
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        if time.monotonic() > until:
            raise NotInstalled(f"nothing listens on port {port}")
        time.sleep(0.05)


def ask(peer: HttpPeer, load: str, variables: dict[str, str], seconds: int) -> dict[str, Any]:
    """Measure one column once."""
    command = [*peer.program, *peer.serve]
    with HttpDriver(command, {**peer.env, **variables}, tool=TOOL, core=None) as server:
        server.open()
        wrk.ask(load, server.port, server.request, CONNECTIONS, 1, None)
        before = server.cpu_ns()
        response = wrk.ask(load, server.port, server.request, CONNECTIONS, seconds, None)
        spent = server.cpu_ns() - before
        return {
            "rate": response.per_second,
            "p50": response.p50_us / 1e3,
            "p99": response.p99_us / 1e3,
            "cpu": spent / response.requests / 1e3,
            "memory": server.rss_bytes() / 1e6,
        }


def judge(answers: Answers) -> list[Goal]:
    """Compare with the official SDK."""
    return [
        multiple(
            f"calls a second with {workers} worker(s): at least twice the official SDK's",
            answers.value("rate", f"portico-{workers}"),
            answers.value("rate", f"mcp-{workers}"),
            2,
        )
        for workers in (1, 2)
    ]
