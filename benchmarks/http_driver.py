"""Start a server of the HTTP table on its own core, and check its responses before measuring.

The bytes that are checked are the bytes that wrk sends.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import compiled  # noqa: F401
from driver import CLIENT, HANDSHAKE, META, MODERN, DriverError, cpu_ns, result_of, rss_bytes
from peers import SERVERS
from wrk import NUMBER, on_core

PATH = "/mcp"


class HttpDriver:
    """One server, possibly of several processes. Use it as a context manager: all are killed at the end."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        tool: str | None = None,
        session: bool = False,
        fresh: bool = False,
        core: int | None = 0,
        timeout: float = 30.0,
    ) -> None:
        self.port = free_port()
        self.command = [word.format(port=self.port) for word in command]
        self.env = {**os.environ, **(env or {})}
        self.tool = tool
        self.session = session
        self.fresh = fresh
        self.core = core
        self.timeout = timeout
        self.request = b""

    def __enter__(self) -> Self:
        self.output = tempfile.TemporaryFile()
        try:
            with on_core(self.core) if self.core is not None else nullcontext():
                # A separate session, so that a forking server can be stopped with its children.
                self.child = subprocess.Popen(
                    self.command,
                    env=self.env,
                    cwd=SERVERS,
                    stdin=subprocess.DEVNULL,
                    stdout=self.output,
                    stderr=self.output,
                    start_new_session=True,
                )
        except OSError:
            self.output.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        self.output.close()

    def open(self) -> None:
        """Wait until the server listens, start a session if needed, and check a response."""
        self.wait()
        self.request = self.compose(session_headers(self.greet()) if self.session else {})
        self.check(int(NUMBER))

    def wait(self) -> None:
        until = time.monotonic() + self.timeout
        while self.child.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > until:
                    raise self.failure(f"did not listen within {self.timeout:g} s") from None
            time.sleep(0.02)
        raise self.failure("ended")

    def failure(self, what: str) -> DriverError:
        self.output.seek(0)
        tail = self.output.read().decode(errors="replace").strip().splitlines()[-1:]
        return DriverError(f"the server {what}" + (f": {tail[0][:160]}" if tail else ""))

    def greet(self) -> str:
        params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        response, answer = self.exchange(post(self.port, message))
        if result_of(answer).get("protocolVersion") != HANDSHAKE:
            raise DriverError(f"asked for {HANDSHAKE}, got {answer['result'].get('protocolVersion')}")
        id = response.getheader("mcp-session-id")
        if not id:
            raise DriverError("initialize began no session")
        self.exchange(post(self.port, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session_headers(id)))
        return id

    def compose(self, headers: dict[str, str]) -> bytes:
        """Return the request, with NUMBER in place of its sequence number."""
        method, params = "ping", {}
        if self.tool:
            method, params = "tools/call", {"name": self.tool, "arguments": {"a": int(NUMBER), "b": 1}}
        if not self.session:
            params["_meta"] = META
            headers = {**headers, "mcp-protocol-version": MODERN, "mcp-method": method}
            if self.tool:
                headers["mcp-name"] = self.tool
        if self.fresh:
            headers = {**headers, "x-request-id": NUMBER}
        return post(self.port, {"jsonrpc": "2.0", "id": int(NUMBER), "method": method, "params": params}, headers)

    def check(self, number: int) -> None:
        """Send one request as wrk does and check the status, the id and the sum."""
        response, answer = self.exchange(self.request.replace(NUMBER.encode(), str(number).encode()))
        if response.status != 200:
            raise DriverError(f"status {response.status}: {str(answer)[:120]}")
        result = result_of(answer)
        if answer.get("id") != number:
            raise DriverError(f"asked as {number}, answered as {answer.get('id')}")
        if self.tool and (result.get("isError") or result["content"][0]["text"] != str(number + 1)):
            raise DriverError(f"{self.tool}({number}, 1) gave {str(result)[:120]}")

    def exchange(self, request: bytes) -> tuple[http.client.HTTPResponse, dict[str, Any]]:
        with socket.create_connection(("127.0.0.1", self.port), self.timeout) as connection:
            connection.sendall(request)
            response = http.client.HTTPResponse(connection)
            try:
                response.begin()
                body = response.read()
            except http.client.HTTPException as broken:
                raise DriverError(f"no HTTP came back: {broken!r}") from broken
        return response, read_message(body, response.getheader("content-type", ""))

    def cpu_ns(self) -> int:
        return sum(cpu_ns(pid) for pid in tree(self.child.pid))

    def rss_bytes(self) -> int:
        return sum(rss_bytes(pid) for pid in tree(self.child.pid))


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def session_headers(id: str) -> dict[str, str]:
    return {"mcp-session-id": id, "mcp-protocol-version": HANDSHAKE}


def post(port: int, message: dict[str, Any], headers: dict[str, str] | None = None) -> bytes:
    body = json.dumps(message, separators=(",", ":"))
    lines = {
        "host": f"127.0.0.1:{port}",
        "content-type": "application/json",
        # JSON first: a server that lets the client choose is asked for the cheaper of the two.
        "accept": "application/json, text/event-stream",
        **(headers or {}),
        "content-length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {PATH} HTTP/1.1\r\n{head}\r\n{body}".encode("ascii")


def read_message(body: bytes, kind: str) -> dict[str, Any]:
    """Return the JSON of a response or of an event stream; nothing from an empty one."""
    if kind.startswith("text/event-stream"):
        lines = [line[5:] for line in body.splitlines() if line.startswith(b"data:") and line[5:].strip()]
        body = lines[-1] if lines else b""
    if not body.strip():
        return {}
    try:
        return json.loads(body)
    except ValueError:
        return {"error": {"message": body[:120].decode(errors="replace")}}


def tree(pid: int) -> Iterator[int]:
    """Return a process and its descendants."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (thread / "children").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended after it was listed
        for child in children:
            yield from tree(int(child))
