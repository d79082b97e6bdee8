"""Fixtures for all tests: raw connections to a handler in this process or to a server in a child process, PostgreSQL.

Every wait has a timeout, and nothing sleeps for a fixed time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest

from portico.protocol.meta import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
)
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.dispatcher import PeerInfo
from portico.rpc.handshake.session import HandshakeSession, LifecycleMode
from portico.store.database import Database
from portico.transports.watchdog import watchdog
from support import debian, forks as forking, frames, leftovers, postgres, recorder, selection

TIMEOUT_SECONDS = 10.0
MODERN = "2026-07-28"


# A shell makes background commands ignore SIGINT, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests that simulate several machines set a TMPDIR for each, which XDG_RUNTIME_DIR would override.
os.environ.pop("XDG_RUNTIME_DIR", None)


# Deadlines in wall-clock time would fail on a busy machine. STORM=1 tries ten times as many examples.
for name, examples in (("default", 50), ("storm", 1000)):
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=examples, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("storm" if os.environ.get("STORM") == "1" else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: selection.scheduling_rank(item.path))
    for item in items:
        if selection.is_integration(item):
            item.add_marker("integration")


# Otherwise the garbage collector scans all collected tests repeatedly, up to a third of the time of some tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# Every frame that our side sends in any test must match the schema of its protocol version.


CHECKS_FRAMES = frames.SCHEMAS.is_dir() and find_spec("jsonschema_rs") is not None
if CHECKS_FRAMES:
    recorder.install()


def pytest_report_header() -> str | None:
    return None if CHECKS_FRAMES else f"frames are not validated: {frames.ABSENT}, or jsonschema_rs is not installed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    _check_frames(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    _check_frames(item)


def _check_frames(item: pytest.Item) -> None:
    """Validate the recorded frames, or discard them where there are no schemas."""
    if CHECKS_FRAMES:
        recorder.check(item)
    else:
        recorder.forget()


@pytest.fixture(scope="session", autouse=True)
def check_leftovers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail if a process or a temporary file outlives the tests. Set up first, so torn down last."""
    tmp_path_factory.getbasetemp()  # pytest's own folder stays, for inspection
    leftovers.start()
    with leftovers.temporary_directory() as folder:
        yield
        watchdog.close()  # it watches this process, so it runs until the end
        running, files = leftovers.end(), leftovers.files(folder)
    assert not running, f"still running when the tests had ended: {running}"
    assert not files, f"still in the temporary directory when the tests had ended: {files}"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[forking.ForkServer]:
    made = forking.ForkServer()
    yield made
    made.close()


class _RawClient:
    """A client that sends and receives JSON messages without the SDK."""

    def __init__(self) -> None:
        self.other_messages: list[Any] = []
        self._last_id = 0

    def send(self, message: Any) -> None:
        raise NotImplementedError

    async def receive(self) -> Any:
        raise NotImplementedError

    async def request(self, method: str, params: Any = None, *, id: int | str | None = None) -> Any:
        """Send a request and return its response. Other messages that arrive first are stored in `aside`."""
        if id is None:
            self._last_id += 1
            id = self._last_id
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        self.send(message if params is None else message | {"params": params})
        return await self.response(id)

    async def response(self, id: int | str) -> Any:
        for other_message in self.other_messages:
            if _answers(other_message, id):
                self.other_messages.remove(other_message)
                return other_message
        while True:
            message = await self.receive()
            if _answers(message, id):
                return message
            self.other_messages.append(message)

    def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        self.send(message if params is None else message | {"params": params})

    async def initialize(self, revision: str, capabilities: Any = None, *, initialized: bool = True) -> Any:
        """Perform the handshake and return the result of `initialize`."""
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "a test", "version": "1"},
        }
        response = await self.request("initialize", params)
        if initialized:
            self.notify("notifications/initialized")
        return response["result"]

    async def request_stateless(
        self, method: str, params: Any = None, *, id: int | str | None = None, **envelope: Any
    ) -> Any:
        """Send a stateless request of 2026-07-28 and return its response."""
        return await self.request(method, {**(params or {}), "_meta": self.envelope(**envelope)}, id=id)

    async def request_as(self, revision: str, method: str, params: Any = None, **envelope: Any) -> Any:
        """Send a request in the form of this protocol version, on a connection that was initialized for it."""
        if revision == MODERN:
            return await self.request_stateless(method, params, **envelope)
        return await self.request(method, params)

    @staticmethod
    def envelope(
        capabilities: Any = None,
        *,
        version: str = MODERN,
        log_level: str | None = None,
        client: Any = None,
        **more: Any,
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_CAPABILITIES_META_KEY: capabilities or {},
            **more,
        }
        if log_level is not None:
            meta[LOG_LEVEL_META_KEY] = log_level
        if client is not None:
            meta[CLIENT_INFO_META_KEY] = client
        return meta


def _answers(message: Any, id: int | str) -> bool:
    return isinstance(message, dict) and "method" not in message and _same(message.get("id"), id)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


class Wire(_RawClient):
    """The Channel and Session that a transport uses, without the transport."""

    def __init__(self, handler: Handler, *, principal: Any = None, lifecycle: LifecycleMode = "auto") -> None:
        super().__init__()
        self.session = HandshakeSession(handler, lifecycle=lifecycle)
        self.channel = Channel(handler, self._hear, session=self.session, peer=PeerInfo(principal))
        self.session.stream = self.channel
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()

    def _hear(self, message: bytes) -> None:
        self._inbox.put_nowait(message)

    def send(self, message: Any) -> None:
        self.send_bytes(msgspec.json.encode(message))

    def send_bytes(self, data: bytes) -> None:
        reply = self.channel.receive(data)
        if reply is not None:
            self._hear(reply)

    async def receive_bytes(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._inbox.get()

    async def receive(self) -> Any:
        return msgspec.json.decode(await self.receive_bytes())

    @property
    def is_silent(self) -> bool:
        """Return whether all received messages have been read."""
        return self._inbox.empty()

    async def close(self) -> None:
        await self.channel.shutdown(0)
        self.session.close()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Wire]]:
    """Return a function that opens a Wire to a server: `connect(server)`."""
    wires: list[Wire] = []

    def make(handler: Handler, **options: Any) -> Wire:
        wires.append(Wire(handler, **options))
        return wires[-1]

    yield make
    for wire in wires:
        await wire.close()


class Child(_RawClient):
    """A `portico …` process, with one JSON message per line."""

    def __init__(self, process: forking.AsyncCommand) -> None:
        super().__init__()
        self.process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._recorded = recorder.LineRecorder()
        self._stderr = asyncio.ensure_future(process.stderr.read())

    def send(self, message: Any) -> None:
        self.send_bytes(msgspec.json.encode(message))

    def send_bytes(self, line: bytes) -> None:
        self._recorded.record_request(line)
        self._stdin.write(line + b"\n")

    async def receive(self) -> Any:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            line = await self._stdout.readline()
        if not line:
            raise EOFError(f"the child has exited: {await self.errors()}")
        self._recorded.record_response(line)
        return msgspec.json.decode(line)

    async def errors(self) -> str:
        """Return all of standard error, after it was closed."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return (await self._stderr).decode()

    async def end(self) -> tuple[int, str, str]:
        """Close its input. Return its exit code, the rest of standard output, and all of standard error."""
        self._stdin.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            rest = await self._stdout.read()
            code = await self.process.wait()
        return code, rest.decode(), await self.errors()

    async def close(self) -> None:
        self.process.kill()
        self._stdin.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._stdout.read()
            await self._stderr
            await self.process.wait()


@pytest.fixture
async def spawn(fork_server: forking.ForkServer) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that starts a child: `await spawn("serve", "file.py")`. `env` is added to our environment."""
    children: list[Child] = []

    async def start(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Child:
        process = fork_server.start(*arguments, cwd=cwd or ".", env={**os.environ, **(env or {})})
        children.append(Child(await forking.AsyncCommand.of(process)))
        return children[-1]

    yield start
    for child in children:
        await child.close()


class NotificationRecorder:
    """A `message_handler` for a Client that stores the notifications."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []
        self._news = asyncio.Event()

    def __call__(self, method: str, params: msgspec.Raw) -> None:
        self.messages.append((method, msgspec.json.decode(params) if bytes(params) else None))
        self._news.set()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.messages]

    async def wait_for(self, method: str, times: int = 1) -> None:
        """Wait until a notification was received this many times."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.methods.count(method) < times:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def heard() -> NotificationRecorder:
    return NotificationRecorder()


# A real PostgreSQL, one for each pytest process

# The signing key of processes that share a database.
SEALING_KEY = "a key for tests that is not in the database"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    try:
        with postgres.server() as server:
            yield server
    except debian.NotInstalled as why:
        debian.without(why)


@pytest.fixture
def sealing_key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the signing key of all processes that this test starts, and return it."""
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEYS", SEALING_KEY)
    return SEALING_KEY


@pytest.fixture
def postgres_url(postgres_server: postgres.Server, sealing_key: str) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.release(url)


@pytest.fixture
def migrated_postgres_url(postgres_server: postgres.Server, sealing_key: str) -> Iterator[Callable[[str, Any], str]]:
    """Return a function that returns the URL of a database with migrated, empty tables."""
    with ExitStack() as stack:

        def take(history: str, migrations: Any) -> str:
            async def migrate(url: str) -> None:
                async with Database(url) as database:
                    await database.migrate(history, migrations)

            # In a thread, because an event loop may be running in this one.
            with ThreadPoolExecutor(1) as thread:
                made = postgres_server.migrated(history, lambda url: thread.submit(asyncio.run, migrate(url)).result())
                return stack.enter_context(made)

        yield take
