"""Our client with servers of other projects, in child processes and over HTTP.

A leg is one server, on one transport, at one revision, or at the one that the two sides find by themselves. All tests
of a leg share one connection, because to start a server of others takes a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from msgspec import Raw

from portico import Client
from support import node

HERE = Path(__file__).resolve().parent
# The first request over stdio includes the start of the server, which takes 15 s on a machine with a load of 15.
TIMEOUT_SECONDS = 60.0
STARTING = 90.0
MODERN = "2026-07-28"
PYTHON = ("official", "fast", "lowlevel")
# The program in Go wants a cluster to talk to; this one refuses at once.
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
contexts: [CONTEXTS]
current-context: first
"""
# What the servers say when they can be reached.
READY = re.compile(r"listening on port|[Rr]unning on|HTTP server starting")


class Leg(NamedTuple):
    """`revision` is empty where it is to be found out."""

    server: str
    transport: str
    revision: str = ""

    def __str__(self) -> str:
        return "-".join((self.server, self.transport, self.revision or "found"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "legs(server, transport, since): where there is something to test, and the first revision"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "leg" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("legs")
        expected = dict(mark.kwargs) if mark else {}
        since = expected.pop("since", "")
        legs = [Leg(*one) for one in metafunc.module.LEGS]
        legs = [leg for leg in legs if all(getattr(leg, name) == value for name, value in expected.items())]
        legs = [leg for leg in legs if not leg.revision or leg.revision >= since]
        metafunc.parametrize("leg", legs, scope="module", ids=str)


@pytest.fixture(autouse=True)
def nothing_odd(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if our client logged a warning about these servers."""
    yield
    odd = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.WARNING and record.name.split(".")[0] in ("portico", "asyncio")
    ]
    assert odd == []


# The servers


class Servers:
    """How each server is started."""

    pins = HERE / "package-lock.json"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packages: node.Packages | None = None

    @property
    def packages(self) -> node.Packages:
        if self._packages is None:
            self._packages = _packages()
        return self._packages

    def command(self, server: str, transport: str = "stdio", port: int = 0) -> list[str]:
        if server in PYTHON:
            return [sys.executable, "-W", "ignore", str(HERE / f"{server}.py"), transport, str(port)]
        if server == "go":
            return self._go(transport, port)
        script = self.packages.modules / f"@modelcontextprotocol/server-{server}/dist/index.js"
        return [str(self.packages.node), str(script), {"http": "streamableHttp"}.get(transport, transport)]

    def _go(self, transport: str, port: int) -> list[str]:
        name = "kubernetes-mcp-server-linux-amd64"
        binary = self.packages.modules / name / "bin" / name
        if not binary.exists():
            ours = sys.platform == "linux" and platform.machine() == "x86_64"
            absent = pytest.fail if ours and os.environ.get("CI") else pytest.skip
            absent("The program in Go is packaged for Linux on x86-64 only, and is not here.")
        where = ["--port", str(port), "--bind-address", "127.0.0.1"] if port else []
        more = ["--stateless"] if transport == "http+stateless" else []
        return [str(binary), "--kubeconfig", str(self.kubeconfig("first")), *where, *more]

    def kubeconfig(self, *contexts: str) -> Path:
        """Write the configuration of the Go server, which watches it and has one more tool with two contexts."""
        file = self.folder / "kubeconfig.yaml"
        result = ", ".join(f"{{name: {name}, context: {{cluster: none, user: none}}}}" for name in contexts)
        file.write_text(KUBECONFIG.replace("CONTEXTS", result), encoding="utf-8")
        return file


# Node takes more from its environment than we want, FastMCP looks for a newer version of itself and draws tracebacks.
ENVIRONMENT = {
    "NODE_OPTIONS": "",
    "NODE_PATH": "",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    "FASTMCP_LOG_ENABLED": "false",
}


def _packages() -> node.Packages:
    try:
        return node.install(HERE, "servers")
    except node.NotInstalled as why:
        reason = f"The servers from npm are not installed and cannot be: {why}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    return Servers(tmp_path_factory.mktemp("servers"))


def free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        return int(item.getsockname()[1])


@contextmanager
def serving(servers: Servers, server: str, transport: str, port: int = 0) -> Iterator[str]:
    """Run a server over HTTP and yield its URL. Some cannot choose a free port or report it."""
    port = port or free_port()
    process = subprocess.Popen(
        servers.command(server, transport, port),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **ENVIRONMENT, "PORT": str(port)},
    )
    assert process.stdout is not None
    too_long = threading.Timer(STARTING, process.kill)
    too_long.start()
    messages: list[str] = []
    for line in process.stdout:
        messages.append(line)
        if READY.search(line):
            break
    too_long.cancel()
    listener = threading.Thread(target=messages.extend, args=(process.stdout,))
    listener.start()
    try:
        assert messages and READY.search(messages[-1]), "it did not start"
        _reach(port)
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"
    except BaseException as failure:
        failure.add_note(f"{server} said: {''.join(messages[-50:])}")
        raise
    finally:
        end(process)
        listener.join()
        process.stdout.close()


def _reach(port: int) -> None:
    """Wait until the server responds: some report readiness too early."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


Start = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def start(servers: Servers) -> Start:
    """Start a separate server: `with start("everything", "http") as url`."""
    return lambda server, transport, port=0: serving(servers, server, transport, port)


@pytest.fixture(scope="session")
def running(servers: Servers) -> Iterator[Callable[[str, str], str]]:
    """Return the URL of the shared server: `running("everything", "http")`."""
    urls: dict[tuple[str, str], str] = {}
    with ExitStack() as stack:

        def running(server: str, transport: str) -> str:
            if (server, transport) not in urls:
                urls[server, transport] = stack.enter_context(serving(servers, server, transport))
            return urls[server, transport]

        yield running


@pytest.fixture(scope="session")
def target(servers: Servers, running: Callable[[str, str], str]) -> Callable[[Leg], str | list[str]]:
    def target(leg: Leg) -> str | list[str]:
        return servers.command(leg.server) if leg.transport == "stdio" else running(leg.server, leg.transport)

    return target


# The client, and who sits at it


class Talk:
    """A client, what it has heard, and the person and the model that answer what is asked of it."""

    def __init__(self, target: Any, revision: str = "", **options: Any) -> None:
        self.sent: list[bytes] = []
        self.reset()
        self.client = Client(
            target,
            protocol_version=revision or None,
            sampling_handler=self._sample,
            elicitation_handler=self._elicit,
            elicitation_modes=("form", "url"),
            # Some of them declare less than they have, and what they say to the rest is theirs to say.
            ignore_capabilities=True,
            roots=["file:///project"],
            log_handler=self._log,
            message_handler=self._message,
            on_message_bytes=self._trace,
            timeout=TIMEOUT_SECONDS,
            env=None if isinstance(target, str) else ENVIRONMENT | options.pop("env", {}),
            **options,
        )
        self._news = asyncio.Event()

    def reset(self) -> None:
        self.answer: Any = {"name": "Alice"}
        self.asked: list[Any] = []
        self.logs: list[tuple[str, Any]] = []
        self.notices: list[str] = []
        self.sent.clear()

    @property
    def modern(self) -> bool:
        return self.client.protocol_version >= MODERN

    async def _sample(self, params: Any) -> str:
        self.asked.append(params)
        return "Paris"

    def _elicit(self, params: Any) -> Any:
        self.asked.append(params)
        return self.answer

    def _log(self, params: Any) -> None:
        self.logs.append((params.level, params.data))
        self._news.set()

    def _message(self, method: str, params: Raw) -> None:
        self.notices.append(method.removeprefix("notifications/"))
        self._news.set()

    def _trace(self, direction: str, message: bytes) -> None:
        if direction == "sent":
            self.sent.append(bytes(message))

    async def wait_for(self, enough: Callable[[], Any]) -> None:
        """Wait for a notification."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not enough():
                self._news.clear()
                await self._news.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(leg: Leg, target: Callable[[Leg], str | list[str]]) -> AsyncIterator[Talk]:
    """Open a connection in one task and close it in another."""
    talk = Talk(target(leg), leg.revision)
    async with asyncio.timeout(STARTING):
        await talk.client.connect()
    yield talk
    async with asyncio.timeout(STARTING):
        await talk.client.close()


@pytest.fixture
def talk(connection: Talk) -> Talk:
    connection.reset()
    return connection


@pytest.fixture
def client(talk: Talk) -> Client:
    return talk.client


@pytest.fixture(scope="session")
def talking() -> Callable[..., Talk]:
    """Return a separate connection: `talk = talking(target)`, `async with talk.client`."""
    return Talk


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Awaitable[Any]]:
    """Ask until the answer is the expected one, for servers that do not say when they are done."""

    async def eventually(ask: Callable[[], Awaitable[Any]], expected: Any) -> None:
        response = None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while response != expected:
                    response = await ask()
        except TimeoutError:
            assert response == expected

    return eventually
