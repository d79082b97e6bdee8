"""Hosts of a hub in this process: each is a connection to the hub's socket, as a bridge makes it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from portico_gateway.hub import location
from portico_gateway.hub.bridge import PROTOCOL
from portico_gateway.hub.daemon import Hub, bind
from support.paths import ROOT

TIMEOUT_SECONDS = 30.0
SERVER = (sys.executable, str(ROOT / "tests/support/programs/handshake_server.py"))
ALL_CAPABILITIES = {"roots": {"listChanged": True}, "elicitation": {}, "sampling": {}}


@contextlib.asynccontextmanager
async def running_hub() -> AsyncIterator[Hub]:
    """Run a hub in the directory that PORTICO_HUB names."""
    directory = location.open_directory()
    try:
        listener = bind(directory)
        hub = Hub(location.hub_directory())
        task = asyncio.ensure_future(hub.run(listener))
        try:
            yield hub
        finally:
            hub.stop()
            await asyncio.wait_for(task, TIMEOUT_SECONDS)
    finally:
        os.close(directory)


def greeting(
    names: tuple[str, ...] = ("server",),
    command: tuple[str, ...] | None = SERVER,
    cwd: Path | str = "/",
    environment: dict[str, str] | None = None,
    variables: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the first line of a bridge."""
    return {
        "protocol": PROTOCOL,
        "names": names,
        "variables": variables,
        "command": command,
        "cwd": str(cwd),
        "environment": {"PATH": os.environ["PATH"], **(environment or {})},
        "has_cwd": False,
        "pid": os.getpid(),
    }


async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the socket of the hub."""
    directory = location.open_directory()
    try:
        return await asyncio.open_unix_connection(location.socket_path(directory), limit=64 * 1024 * 1024)
    finally:
        os.close(directory)


class Host:
    """One session: it answers questions with its own name, and records everything it receives."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self.received: list[bytes] = []
        self.asked: list[dict[str, Any]] = []
        self._reader, self._writer = reader, writer
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self._task = asyncio.ensure_future(self._receive())
        self._answers: set[asyncio.Task[None]] = set()

    async def _receive(self) -> None:
        while line := await self._reader.readline():
            self.received.append(line)
            _, space, body = line.partition(b" ")
            if not space:
                continue
            message = json.loads(body)
            if isinstance(message, list):
                continue  # the response to a batch
            if "method" not in message:
                self._waiting.pop(message["id"]).set_result(message)
            elif "id" in message:
                self.asked.append(message)
                task = asyncio.ensure_future(self._answer(message))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)

    async def _answer(self, message: dict[str, Any]) -> None:
        await self.answering.wait()
        content = {"type": "text", "text": f"sampled by {self.name}"}
        result = {
            "roots/list": {"roots": [{"uri": f"file:///{self.name}"}]},
            "elicitation/create": {"action": "accept", "content": {"by": self.name}},
            "sampling/createMessage": {"role": "assistant", "content": content, "model": self.name},
            "ping": {},
        }[message["method"]]
        self.send({"id": message["id"], "result": result})

    def send(self, message: dict[str, Any]) -> None:
        self.send_line({"jsonrpc": "2.0", **message})

    def send_line(self, value: Any) -> None:
        self._writer.write(json.dumps(value).encode() + b"\n")

    def start(self, method: str, params: dict[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        self._last_id += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = future
        self.send({"id": self._last_id, "method": method, "params": params or {}})
        return future

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the response to a request."""
        return await asyncio.wait_for(self.start(method, params), TIMEOUT_SECONDS)

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Return the decoded text of a tool's result; a string that begins with `error` if it failed."""
        return parse(await self.request("tools/call", {"name": tool, "arguments": arguments}))

    def start_call(self, tool: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        return self.start("tools/call", {"name": tool, "arguments": arguments})

    async def close(self) -> None:
        self._writer.close()
        await asyncio.wait_for(self._task, TIMEOUT_SECONDS)


def parse(response: dict[str, Any]) -> Any:
    if "error" in response:
        return f"error {response['error']['message']}"
    text = response["result"]["content"][0]["text"]
    return f"error {text}" if response["result"].get("isError") else json.loads(text)


@contextlib.asynccontextmanager
async def attached_host(
    name: str = "host",
    capabilities: dict[str, Any] | None = None,
    version: str = "2025-06-18",
    **options: Any,
) -> AsyncIterator[Host]:
    """Attach a host and perform its handshake."""
    reader, writer = await connect()
    writer.write(json.dumps(greeting(**options)).encode() + b"\n")
    status = await asyncio.wait_for(reader.readline(), TIMEOUT_SECONDS)
    assert status == b"ok\n", status
    host = Host(name, reader, writer)
    try:
        response = await host.request(
            "initialize",
            {
                "protocolVersion": version,
                "capabilities": ALL_CAPABILITIES if capabilities is None else capabilities,
                "clientInfo": {"name": name, "version": "1"},
            },
        )
        assert "result" in response, response
        host.send({"method": "notifications/initialized"})
        yield host
    finally:
        await host.close()
