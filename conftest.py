"""What many tests need: a raw connection to a handler in this process, and one to a server in a child process.

Every wait is bounded, and nothing sleeps.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
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

PATIENCE = 10.0
MODERN = "2026-07-28"


# A shell that starts something in the background has it ignore SIGINT, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests that stand for several machines have a TMPDIR for each.
os.environ.pop("XDG_RUNTIME_DIR", None)


# A first list of a gateway waits for its upstreams for as long as a busy machine needs to start them.
if find_spec("portico_gateway") is not None:
    import_module("portico_gateway").Gateway.first_list_seconds = 30.0


# A busy machine is no fault of an example's.
hypothesis.settings.register_profile(
    # By the clock on the wall a busy machine would be a slow test.
    "patient",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")


# Files that take long come first, so that at the end one process does not wait for the other.
LONG = {
    "test_client.py",
    "test_git_safety.py",
    "test_model_fallback.py",
    "test_listener.py",
    "test_load.py",
    "test_storm.py",
    "test_wasm.py",
    "test_trouble.py",
    "test_typing.py",
    "test_uri_template.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)
    for item in items:
        if selection.is_integration(item):
            item.add_marker("integration")


# Else the garbage collector looks at all these tests again and again, which is a third of what some of them take.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# Every frame that our side sends, in any test, fits the schema of its revision


CHECKS_FRAMES = frames.SCHEMAS.is_dir() and find_spec("jsonschema_rs") is not None
if CHECKS_FRAMES:
    recorder.install()


def pytest_report_header() -> str | None:
    return None if CHECKS_FRAMES else f"frames are not checked: {frames.ABSENT}, or jsonschema_rs is not installed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    _check_frames(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    _check_frames(item)


def _check_frames(item: pytest.Item) -> None:
    """What processes said is recorded in any case; without the schemas there is nothing to hold it against."""
    if CHECKS_FRAMES:
        recorder.check(item)
    else:
        recorder.forget()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The first fixture, so the last to end."""
    tmp_path_factory.getbasetemp()  # pytest's own is kept, to look at
    leftovers.mark()
    with leftovers.temporary_directory() as folder:
        yield
        watchdog.close()  # it watches over this process, so it ends with it
        running, files = leftovers.end(), leftovers.files(folder)
    assert not running, f"still running when the tests had ended: {running}"
    assert not files, f"still in the temporary directory when the tests had ended: {files}"


@pytest.fixture(scope="session")
def forks() -> Iterator[forking.Forks]:
    made = forking.Forks()
    yield made
    made.close()


class _Conversation:
    """A client by hand: what is said and what comes back, as JSON."""

    def __init__(self) -> None:
        self.aside: list[Any] = []
        self._last_id = 0

    def send(self, message: Any) -> None:
        raise NotImplementedError

    async def receive(self) -> Any:
        raise NotImplementedError

    async def request(self, method: str, params: Any = None, *, id: int | str | None = None) -> Any:
        """The response to one request. Whatever else arrives before it is put aside."""
        if id is None:
            self._last_id += 1
            id = self._last_id
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        self.send(message if params is None else message | {"params": params})
        return await self.response(id)

    async def response(self, id: int | str) -> Any:
        for one in self.aside:
            if _answers(one, id):
                self.aside.remove(one)
                return one
        while True:
            message = await self.receive()
            if _answers(message, id):
                return message
            self.aside.append(message)

    def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        self.send(message if params is None else message | {"params": params})

    async def initialize(self, revision: str, capabilities: Any = None, *, initialized: bool = True) -> Any:
        """The handshake. Gives the result of `initialize`."""
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "a test", "version": "1"},
        }
        said = await self.request("initialize", params)
        if initialized:
            self.notify("notifications/initialized")
        return said["result"]

    async def modern(self, method: str, params: Any = None, *, id: int | str | None = None, **envelope: Any) -> Any:
        """A request that stands alone, as 2026-07-28 has it."""
        return await self.request(method, {**(params or {}), "_meta": self.envelope(**envelope)}, id=id)

    async def ask(self, revision: str, method: str, params: Any = None, **envelope: Any) -> Any:
        """A request as this revision writes it, on a connection that has been opened for it."""
        if revision == MODERN:
            return await self.modern(method, params, **envelope)
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


class Wire(_Conversation):
    """The same Channel and Session that a transport puts in front of a handler, without the transport."""

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
        async with asyncio.timeout(PATIENCE):
            return await self._inbox.get()

    async def receive(self) -> Any:
        return msgspec.json.decode(await self.receive_bytes())

    @property
    def is_silent(self) -> bool:
        """Whether everything that was said has been read."""
        return self._inbox.empty()

    async def close(self) -> None:
        await self.channel.shutdown(0)
        self.session.close()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Wire]]:
    """`connect(server)` gives a Wire to it."""
    wires: list[Wire] = []

    def make(handler: Handler, **options: Any) -> Wire:
        wires.append(Wire(handler, **options))
        return wires[-1]

    yield make
    for wire in wires:
        await wire.close()


class Child(_Conversation):
    """`portico …` in a process of its own, spoken to line by line."""

    def __init__(self, process: forking.Awaited) -> None:
        super().__init__()
        self.process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._recorded = recorder.Overheard()
        self._stderr = asyncio.ensure_future(process.stderr.read())

    def send(self, message: Any) -> None:
        self.send_bytes(msgspec.json.encode(message))

    def send_bytes(self, line: bytes) -> None:
        self._recorded.asked(line)
        self._stdin.write(line + b"\n")

    async def receive(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            line = await self._stdout.readline()
        if not line:
            raise EOFError(f"the child has ended: {await self.errors()}")
        self._recorded.said(line)
        return msgspec.json.decode(line)

    async def errors(self) -> str:
        """Everything on standard error, once there will be no more."""
        async with asyncio.timeout(PATIENCE):
            return (await self._stderr).decode()

    async def end(self) -> tuple[int, str, str]:
        """Close its input: its exit code, what was left on standard output, and all of standard error."""
        self._stdin.close()
        async with asyncio.timeout(PATIENCE):
            rest = await self._stdout.read()
            code = await self.process.wait()
        return code, rest.decode(), await self.errors()

    async def close(self) -> None:
        self.process.kill()
        self._stdin.close()
        async with asyncio.timeout(PATIENCE):
            await self._stdout.read()
            await self._stderr
            await self.process.wait()


@pytest.fixture
async def spawn(forks: forking.Forks) -> AsyncIterator[Callable[..., Any]]:
    """`await spawn("serve", "file.py")` starts a child. `cwd` and `env` as usual, `env` being added to ours."""
    children: list[Child] = []

    async def start(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Child:
        process = forks.start(*arguments, cwd=cwd or ".", env={**os.environ, **(env or {})})
        children.append(Child(await forking.Awaited.of(process)))
        return children[-1]

    yield start
    for child in children:
        await child.close()


class Heard:
    """A Client's `message_handler` that remembers."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []
        self._news = asyncio.Event()

    def __call__(self, method: str, params: msgspec.Raw) -> None:
        self.messages.append((method, msgspec.json.decode(params) if bytes(params) else None))
        self._news.set()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.messages]

    async def until(self, method: str, times: int = 1) -> None:
        """Wait until a notification has been heard so many times."""
        async with asyncio.timeout(PATIENCE):
            while self.methods.count(method) < times:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def heard() -> Heard:
    return Heard()


# A real PostgreSQL, one for each process that runs tests

# What processes that share it sign with; it is not in the database.
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
    """The key of all processes that this test starts."""
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEYS", SEALING_KEY)
    return SEALING_KEY


@pytest.fixture
def postgres_url(postgres_server: postgres.Server, sealing_key: str) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.release(url)


@pytest.fixture
def migrated_postgres_url(postgres_server: postgres.Server, sealing_key: str) -> Iterator[Callable[[str, Any], str]]:
    """`migrated_postgres_url(history, migrations)` is one that has these tables, and nothing in them."""
    with ExitStack() as stack:

        def take(history: str, migrations: Any) -> str:
            async def migrate(url: str) -> None:
                async with Database(url) as database:
                    await database.migrate(history, migrations)

            # In a thread, for it may be that a loop runs in this one.
            with ThreadPoolExecutor(1) as thread:
                made = postgres_server.migrated(history, lambda url: thread.submit(asyncio.run, migrate(url)).result())
                return stack.enter_context(made)

        yield take
