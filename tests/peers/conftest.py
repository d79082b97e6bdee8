"""Clients of other projects, unmodified, over stdio and HTTP, with a server in a child process.

The tests speak to a Peer, which says the same things with either client. The official client speaks every revision:
it negotiates the two newest by itself, and its session takes the result of an older handshake. FastMCP's client
chooses between the two newest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from pathlib import Path
from typing import Any

import pytest

try:
    import fastmcp
    import mcp
    import mcp_types as types
    from fastmcp.client.elicitation import ElicitResult as FastElicitResult
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.subscriptions import listen

    ABSENT = ""
except ImportError as missing:
    ABSENT = f"The peers are not installed ({missing}); `make test-all` does it, in an environment of their own."

HERE = Path(__file__).parent
SERVERS = {
    "everything": f"{HERE.parent.parent / 'examples' / 'everything.py'}",
    "small": f"{HERE / 'server.py'}:server",
    "changing": f"{HERE / 'server.py'}:server",
    "paged": f"{HERE / 'server.py'}:paged",
    "bounded": f"{HERE / 'server.py'}:bounded",
}
# Whose state tests change, so that each test has one of its own.
CHANGING = ("changing",)
TIMEOUT_SECONDS = 10.0
# A server gives what is running ten seconds, and then ends all the same.
ENDING = 15.0

# Each transport, and the revision that brought it.
TRANSPORTS = {"stdio": "2024-11-05", "http": "2025-03-26"}
REVISIONS = {
    "official": ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"),
    "fastmcp": ("2025-11-25", "2026-07-28"),
}
# How each client is told which of the revisions it negotiates by itself.
MODES = {"2025-11-25": "legacy", "2026-07-28": "auto"}
MODERN = "2026-07-28"

# On 2026-07-28 the official client calls these by their deprecation, and FastMCP uses them too.
DEPRECATED = "ignore:.*(is deprecated|is removed) as of 2026-07-28:mcp.shared.exceptions.MCPDeprecationWarning"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "revisions(since, until, client, transport): where the protocol, or the client, has it"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "connect" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("revisions")
        result = _wanted(**(mark.kwargs if mark else {}))
        metafunc.parametrize("connect", result, indirect=True, ids="-".join)


def _wanted(since: str = "", until: str = "9", client: str = "", transport: str = "") -> list[tuple[str, str, str]]:
    return [
        (name, way, revision)
        for name, revisions in REVISIONS.items()
        for way, brought in TRANSPORTS.items()
        for revision in revisions
        if max(since, brought) <= revision <= until and client in ("", name) and transport in ("", way)
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not ABSENT:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.filterwarnings(DEPRECATED))


@pytest.fixture(autouse=True, scope="session")
def peers() -> None:
    if ABSENT and os.environ.get("CI"):
        pytest.fail(ABSENT, pytrace=False)
    if ABSENT:
        pytest.skip(ABSENT)


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if a client logged an unreadable message, which it otherwise ignores."""
    yield
    complaints = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.WARNING and record.name.split(".")[0] in ("client", "mcp", "fastmcp")
    ]
    assert complaints == []


async def within(awaited: Awaitable[Any]) -> Any:
    """Limit the duration of a test."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await awaited


class NotificationRecorder:
    """What the server says on the way. Clients deliver it when they find the time, so it is waited for."""

    def __init__(self) -> None:
        self.logs: list[tuple[str, Any]] = []
        self.notices: list[Any] = []
        self.faults: list[Exception] = []
        self._news = asyncio.Event()

    async def log(self, params: Any) -> None:
        self.logs.append((params.level, params.data))
        self._news.set()

    async def message(self, message: Any) -> None:
        (self.faults if isinstance(message, Exception) else self.notices).append(message)
        self._news.set()

    def of(self, method: str) -> list[Any]:
        return [notice for notice in self.notices if notice.method == f"notifications/{method}"]

    async def wait_for(self, enough: Callable[[], Any]) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not enough():
                self._news.clear()
                await self._news.wait()


class Person:
    """Who sits at the client: answers questions, and remembers them."""

    def __init__(self) -> None:
        self.action = "accept"
        self.content: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.refusal = ""

    def answer(self, params: Any) -> Any:
        self.asked.append(params)
        content = self.content if self.action == "accept" and hasattr(params, "requested_schema") else None
        return types.ElicitResult(action=self.action, content=content)

    async def elicit(self, context: Any, params: Any) -> Any:
        return self.answer(params)

    async def elicit_fast(self, message: str, kind: Any, params: Any, context: Any) -> Any:
        result = self.answer(params)
        return FastElicitResult(action=result.action, content=result.content)

    async def sample(self, context: Any, params: Any) -> Any:
        self.asked.append(params)
        if self.refusal:
            return types.ErrorData(code=-1, message=self.refusal)
        result = types.TextContent(type="text", text="Paris")
        return types.CreateMessageResult(role="assistant", content=result, model="a-model", stop_reason="endTurn")

    async def sample_fast(self, messages: Any, params: Any, context: Any) -> Any:
        self.asked.append(params)
        return "Paris"

    async def roots(self, context: Any) -> Any:
        return types.ListRootsResult(roots=[types.Root(uri="file:///project", name="project")])


class Peer:
    """One connection: what the tests say, whichever client says it."""

    def __init__(self, revision: str, heard: NotificationRecorder, person: Person) -> None:
        self.revision = revision
        self.heard = heard
        self.person = person

    session: Any

    @property
    def modern(self) -> bool:
        return self.revision >= MODERN

    async def ping(self) -> Any:
        return await self.session.send_ping()

    async def set_level(self, level: str) -> Any:
        return await self.session.set_logging_level(level)

    async def subscribe(self, uri: str) -> Any:
        return await self.session.subscribe_resource(uri)

    async def unsubscribe(self, uri: str) -> Any:
        return await self.session.unsubscribe_resource(uri)

    def listen(self, **wanted: Any) -> AbstractAsyncContextManager[Any]:
        return listen(self.session, **wanted)


class Official(Peer):
    """The official SDK: its Client, or for older handshakes the ClientSession below it, which has the same verbs."""

    def __init__(self, client: Any, session: Any, *rest: Any) -> None:
        super().__init__(*rest)
        self.client = client
        self.session = session

    async def _all(self, list_page: Any, member: str) -> list[Any]:
        results: list[Any] = []
        cursor = None
        while True:
            page = await list_page(**self._after(cursor))
            results += getattr(page, member)
            cursor = page.next_cursor
            if cursor is None:
                return results

    def _after(self, cursor: str | None) -> dict[str, Any]:
        if cursor is None:
            return {}
        if self.client is self.session:
            return {"params": types.PaginatedRequestParams(cursor=cursor)}
        return {"cursor": cursor}

    async def tools(self) -> list[Any]:
        return await self._all(self.client.list_tools, "tools")

    async def resources(self) -> list[Any]:
        return await self._all(self.client.list_resources, "resources")

    async def templates(self) -> list[Any]:
        return await self._all(self.client.list_resource_templates, "resource_templates")

    async def prompts(self) -> list[Any]:
        return await self._all(self.client.list_prompts, "prompts")

    async def call(self, name: str, arguments: dict[str, Any] | None = None, on_progress: Any = None) -> Any:
        return await self.client.call_tool(name, arguments, progress_callback=on_progress)

    async def read(self, uri: str) -> list[Any]:
        return (await self.client.read_resource(uri)).contents

    async def prompt(self, name: str, arguments: dict[str, str] | None = None) -> Any:
        return await self.client.get_prompt(name, arguments)

    async def complete(self, ref: Any, name: str, value: str) -> list[str]:
        return (await self.client.complete(ref, {"name": name, "value": value})).completion.values


class Fast(Peer):
    """FastMCP's Client, by its own verbs where it has them."""

    def __init__(self, client: Any, *rest: Any) -> None:
        super().__init__(*rest)
        self.client = client
        self.session = client.session
        self.tools = client.list_tools
        self.resources = client.list_resources
        self.templates = client.list_resource_templates
        self.prompts = client.list_prompts
        self.read = client.read_resource
        self.prompt = client.get_prompt
        self.ping = client.ping
        self.set_level = client.set_logging_level

    async def call(self, name: str, arguments: dict[str, Any] | None = None, on_progress: Any = None) -> Any:
        return await self.client.call_tool(name, arguments, progress_handler=on_progress, raise_on_error=False)

    async def complete(self, ref: Any, name: str, value: str) -> list[str]:
        return (await self.client.complete(ref, {"name": name, "value": value})).values


def command(server: str) -> list[str]:
    """Return the command that serves one of SERVERS on stdio."""
    return ["-m", "portico", "serve", SERVERS[server]]


@contextmanager
def serving(server: str, *options: str) -> Iterator[str]:
    """Run one of SERVERS over HTTP on a free port and yield its URL.

    `SERVE_OPTIONS="--workers 2"` has all of them served so.
    """
    # A token or a name that somebody has set for other servers is not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTICO_")}
    process = subprocess.Popen(
        [
            *(sys.executable, *command(server), "--transport", "http", "--port", "0", "--no-auth"),
            *(options or os.environ.get("SERVE_OPTIONS", "").split()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    # Whatever happens, it is over when this is over, and so is whoever waits for what it says.
    too_long = threading.Timer(3 * TIMEOUT_SECONDS, process.kill)
    too_long.start()
    messages = [process.stderr.readline()]
    too_long.cancel()
    listener = threading.Thread(target=messages.extend, args=(process.stderr,))
    listener.start()
    try:
        assert messages[0].startswith("Serving on "), process.wait(TIMEOUT_SECONDS)
        yield messages[0].removeprefix("Serving on ").strip()
        process.terminate()
        assert process.wait(ENDING) == 0
    except BaseException as failure:
        process.kill()
        process.wait()
        listener.join()
        failure.add_note(f"The server said: {''.join(messages)}")
        raise
    finally:
        listener.join()
        process.stderr.close()


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from support import node
    from support.node_scripts import PINS, Scripts

    try:
        return Scripts(node.install(PINS, "typescript"), tmp_path_factory.mktemp("typescript"))
    except node.NotInstalled as why:
        reason = f"The TypeScript clients are not installed and cannot be: {why}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def servers_by_name() -> dict[str, str]:
    """Return the targets of `portico serve` by the name that `serve` and `connect` use. A test may add to it."""
    return SERVERS


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[str], AbstractContextManager[str]]]:
    """Yield a URL: `with serve("changing") as url`. Servers that nothing changes are shared."""
    running: dict[str, str] = {}
    with ExitStack() as stack:

        def serve(server: str) -> AbstractContextManager[str]:
            if server in CHANGING:
                return serving(server)
            if server not in running:
                running[server] = stack.enter_context(serving(server))
            return nullcontext(running[server])

        yield serve


def _official_options(heard: NotificationRecorder, person: Person | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "logging_callback": heard.log,
        "message_handler": heard.message,
        "read_timeout_seconds": TIMEOUT_SECONDS,
        "log_level": "debug",
    }
    if person is not None:
        options |= {
            "elicitation_callback": person.elicit,
            "sampling_callback": person.sample,
            "list_roots_callback": person.roots,
        }
    return options


@asynccontextmanager
async def _official(
    server: str, url: str, revision: str, heard: NotificationRecorder, person: Person | None, mode: str
) -> AsyncIterator[Peer]:
    where = url or mcp.StdioServerParameters(command=sys.executable, args=command(server))
    options = _official_options(heard, person)
    async with AsyncExitStack() as stack:
        if mode:
            client = await within(stack.enter_async_context(mcp.Client(where, mode=mode, **options)))
            session = client.session
        else:
            opened = streamable_http_client(where) if url else stdio_client(where)
            streams = await stack.enter_async_context(opened)
            client = session = await stack.enter_async_context(mcp.ClientSession(*streams, **options))
            await within(_shake_hands(session, revision, able=person is not None))
        yield Official(client, session, session.protocol_version, heard, person)


async def _shake_hands(session: Any, revision: str, able: bool) -> None:
    """Run `session.initialize()` with a protocol version that it no longer offers."""
    capabilities = types.ClientCapabilities()
    if able:
        forms = types.ElicitationCapability(
            form=types.FormElicitationCapability(), url=types.UrlElicitationCapability()
        )
        capabilities = types.ClientCapabilities(
            roots=types.RootsCapability(list_changed=True), sampling=types.SamplingCapability(), elicitation=forms
        )
    params = types.InitializeRequestParams(
        protocol_version=revision,
        capabilities=capabilities,
        client_info=types.Implementation(name="mcp", version="2.3.0"),
    )
    response = await session.send_request(types.InitializeRequest(params=params), types.InitializeResult)
    session.adopt(response)
    await session.send_notification(types.InitializedNotification())


@asynccontextmanager
async def _fastmcp(
    server: str, url: str, revision: str, heard: NotificationRecorder, person: Person | None, mode: str
) -> AsyncIterator[Peer]:
    options: dict[str, Any] = {"log_handler": heard.log, "message_handler": heard.message}
    if person is not None:
        options |= {
            "elicitation_handler": person.elicit_fast,
            "sampling_handler": person.sample_fast,
            "roots": ["file:///project"],
        }
    stdio = StdioTransport(sys.executable, command(server), keep_alive=False)
    where = StreamableHttpTransport(url) if url else stdio
    client = fastmcp.Client(where, mode=mode, timeout=TIMEOUT_SECONDS, init_timeout=TIMEOUT_SECONDS, **options)
    async with client:
        yield Fast(client, client.protocol_version, heard, person)


@asynccontextmanager
async def _connect(
    serve: Callable[[str], AbstractContextManager[str]],
    client: str,
    transport: str,
    revision: str,
    server: str = "everything",
    *,
    able: bool = True,
    mode: str | None = None,
) -> AsyncIterator[Peer]:
    heard = NotificationRecorder()
    person = Person() if able else None
    mode = MODES.get(revision, "") if mode is None else mode
    opened = {"official": _official, "fastmcp": _fastmcp}[client]
    with serve(server) if transport == "http" else nullcontext("") as url:
        async with opened(server, url, revision, heard, person, mode) as peer:
            yield peer
    assert heard.faults == [], "the client could not read what the server sent"


@pytest.fixture
def connect_at() -> Any:
    """Connect one client to a running server: `async with connect_at(url, "official", "2025-11-25") as peer`."""
    return lambda url, client, revision: _connect(lambda _: nullcontext(url), client, "http", revision)


@pytest.fixture
def connect(request: pytest.FixtureRequest, serve: Any) -> Any:
    """Connect one client, on one transport, at one protocol version: `async with connect("small") as peer`."""
    return partial(_connect, serve, *request.param)
