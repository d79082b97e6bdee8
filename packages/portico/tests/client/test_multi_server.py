"""A client of several servers: `Client("mcp.json")`, `Client({"mcpServers": {…}})`, and gateway files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Context, Server, SyncClient, ToolError, UsageError, plugins
from portico.client.multi_server import read_entries
from portico.protocol.client_features import CreateMessageParams, ElicitParams
from portico.protocol.errors import ComponentNotFound, ProtocolError, ResourceNotFound
from portico.protocol.versions import (
    FIRST_MODERN_VERSION,
    SUPPORTED_PROTOCOL_VERSIONS,
    V2025_06_18,
    V2025_11_25,
    ProtocolVersion,
)
from portico.server.http import build_application
from portico.transports import process
from portico.transports.http_server.application import HttpServerSettings as HttpSettings
from portico.transports.http_server.listener import Listener
from portico.transports.targets import CommandTarget, UrlTarget

# Far longer than the start of some processes takes on a busy machine.
TIMEOUT_SECONDS = 60.0
LONG = "a_tool_with_a_name_that_is_longer_than_the_names_that_models_accept"

SERVER = f"""
import asyncio, os, sys
from pathlib import Path
from portico import Context, Server, TaskConfig

server = Server(sys.argv[1], version="1", on_duplicate="replace")

@server.tool
def whoami() -> str:
    return sys.argv[1]

@server.tool
def environment(name: str) -> str:
    return os.environ.get(name, "")

@server.tool
async def ask(ctx: Context) -> str:
    return str((await ctx.elicit("How many?", int)).data)

@server.tool
async def sample(ctx: Context) -> str:
    return (await ctx.sample("Say something")).text

@server.tool
async def roots(ctx: Context) -> str:
    return " ".join(root.uri for root in await ctx.list_roots())

@server.tool
async def work(ctx: Context) -> str:
    await ctx.report_progress(1, 2)
    await ctx.warning("working")
    await ctx.debug("details")
    return "worked"

@server.tool
async def wait(path: str) -> str:
    Path(path).write_text("started")
    try:
        await asyncio.sleep(600)
    finally:
        Path(path).write_text("stopped")

@server.tool
async def change(ctx: Context) -> str:
    server.tool(name="added")(whoami_again)
    server.notify_resource_updated("note://hello")
    return "changed"

@server.tool(task=TaskConfig(mode="required"))
async def long_work(ctx: Context) -> str:
    return str((await ctx.elicit("How many?", int)).data)

def whoami_again() -> str:
    return sys.argv[1]

@server.tool
def leave() -> None:
    os._exit(1)

@server.tool(name="{LONG}")
def long() -> str:
    return "long"

@server.resource("note://hello")
def hello() -> str:
    return f"hello from {{sys.argv[1]}}"

@server.resource("note://of/{{name}}")
def of(name: str) -> str:
    return f"{{name}} of {{sys.argv[1]}}"

@server.resource("only://" + sys.argv[1])
def only() -> str:
    return sys.argv[1]

@server.prompt
def advise(topic: str) -> str:
    return f"{{sys.argv[1]}}: advise on {{topic}}."

@server.completion("advise", "topic")
def topics(value: str) -> list[str]:
    return [sys.argv[1]]

server.run()
"""
DEAD = {"command": "/there/is/no/such/program"}
HANGS = {"command": sys.executable, "args": ["-c", "import time; time.sleep(1000)"]}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("servers") / "server.py"
    path.write_text(SERVER)
    return path


def entry(script: Path, name: str, **table: Any) -> dict[str, Any]:
    results: dict[str, Any] = {"command": sys.executable, "args": [str(script), name]}
    return {**results, "portico": table} if table else results


def two(script: Path, inner: ProtocolVersion | None = None) -> dict[str, Any]:
    """Two servers, whose names tell them apart."""
    table = {} if inner is None else {"protocol_version": inner}
    return {name: entry(script, name, **table) for name in ("one", "two")}


def configuration(**servers: Any) -> dict[str, Any]:
    return {"mcpServers": servers}


# Calls, prompts and resources, whatever both sides speak


@pytest.mark.parametrize(
    "revision, inner",
    [
        *((revision, FIRST_MODERN_VERSION) for revision in SUPPORTED_PROTOCOL_VERSIONS),
        *((FIRST_MODERN_VERSION, inner) for inner in (V2025_06_18, "2024-11-05")),
        ("2024-11-05", "2024-11-05"),
    ],
)
async def test_names_and_uris_have_the_name_of_their_server(
    script: Path, revision: ProtocolVersion, inner: ProtocolVersion
) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(**two(script, inner)), protocol_version=revision) as client,
    ):
        assert client.protocol_version == revision and client.missing_servers == {}
        tools = {tool.name for tool in await client.list_tools()}
        assert {"one_whoami", "two_whoami"} <= tools
        assert (await client.call_tool("one_whoami")).data == "one"
        assert (await client.call_tool("two_whoami")).data == "two"
        assert {prompt.name for prompt in await client.list_prompts()} == {"one_advise", "two_advise"}
        [message] = (await client.get_prompt("two_advise", {"topic": "tea"})).messages
        assert message.content.text == "two: advise on tea."  # type: ignore[union-attr]
        uris = {resource.uri for resource in await client.list_resources()}
        assert uris == {"note://one/hello", "note://two/hello", "only://one/one", "only://two/two"}
        templates = {template.uri_template for template in await client.list_resource_templates()}
        assert templates == {"note://one/of/{name}", "note://two/of/{name}"}
        [content] = await client.read_resource("note://two/hello")
        assert (content.uri, content.text) == ("note://two/hello", "hello from two")  # type: ignore[union-attr]
        [content] = await client.read_resource("note://one/of/Ada")
        assert content.text == "Ada of one"  # type: ignore[union-attr]


async def test_resource_can_be_read_by_its_own_uri(script: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(configuration(**two(script), dead=DEAD)) as client:
        [content] = await client.read_resource("only://two")
        assert (content.uri, content.text) == ("only://two/two", "two")  # type: ignore[union-attr]
        with pytest.raises(ResourceNotFound, match="only://three"):
            await client.read_resource("only://three")


async def test_unknown_tool_suggests_the_names_of_the_client(script: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(configuration(**two(script), dead=DEAD)) as client:
        with pytest.raises(ComponentNotFound, match="Unknown tool: one_whoareyou") as raised:
            await client.call_tool("one_whoareyou")
        assert "one_whoami" in raised.value.data["suggestions"]
        with pytest.raises(ComponentNotFound, match="Unknown tool: neither"):
            await client.call_tool("neither")


@pytest.mark.parametrize("inner", [None, V2025_11_25])
async def test_completion_comes_from_the_server_of_the_prompt(script: Path, inner: ProtocolVersion | None) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(configuration(**two(script, inner))) as client:
        result = await client.complete({"type": "ref/prompt", "name": "two_advise"}, "topic", "t")
        assert result.values == ["two"]


async def test_tool_that_runs_as_a_task(script: Path) -> None:
    requests: list[str] = []

    def answer(params: ElicitParams) -> dict[str, Any]:
        requests.append(params.message)
        return {"value": 7}

    servers = configuration(**two(script), dead=DEAD)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(servers, elicitation_handler=answer) as client:
        assert (await client.call_tool("two_long_work")).data == "7"
        task = await client.start_task("two_long_work")
        assert task.id.startswith("two.")
        # Found again by its id.
        assert (await client.task(task.id, "two_long_work").result(timeout=TIMEOUT_SECONDS)).data == "7"
        assert set(requests) == {"[two] How many?"}
        with pytest.raises(ProtocolError):
            await client.task("two.none").refresh()


@pytest.mark.parametrize(
    "revision, inner",
    [(FIRST_MODERN_VERSION, V2025_11_25), (V2025_11_25, FIRST_MODERN_VERSION), (V2025_11_25, V2025_11_25)],
)
async def test_tool_that_runs_only_as_a_task_is_rejected_with_a_remedy(
    script: Path, revision: ProtocolVersion, inner: ProtocolVersion
) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(**two(script, inner)), protocol_version=revision) as client,
    ):
        with pytest.raises(ToolError, match=r"of one runs only as a task, which needs a gateway"):
            await client.call_tool("one_long_work")


async def test_long_names_are_shortened(script: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(configuration(**two(script))) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert max(map(len, names)) <= 64
        [name] = [name for name in names if name.startswith("two_a_tool")]
        assert (await client.call_tool(name)).data == "long"
        # By its full name as well.
        assert (await client.call_tool(f"one_{LONG}")).data == "long"


# Requests and notifications of the servers


@pytest.mark.parametrize("inner", [FIRST_MODERN_VERSION, V2025_11_25])
@pytest.mark.parametrize("revision", [one for one in SUPPORTED_PROTOCOL_VERSIONS if one >= V2025_06_18])
async def test_elicitation_names_the_server(script: Path, revision: ProtocolVersion, inner: ProtocolVersion) -> None:
    requests: list[str] = []

    def answer(params: ElicitParams) -> dict[str, Any]:
        requests.append(params.message)
        return {"value": 7}

    servers = configuration(**two(script, inner))
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(servers, protocol_version=revision, elicitation_handler=answer) as client,
    ):
        assert (await client.call_tool("two_ask")).data == "7"
        assert requests == ["[two] How many?"]


@pytest.mark.parametrize(
    "revision, inner",
    [
        (FIRST_MODERN_VERSION, FIRST_MODERN_VERSION),
        (FIRST_MODERN_VERSION, V2025_11_25),
        (V2025_11_25, FIRST_MODERN_VERSION),
        (V2025_11_25, "2024-11-05"),
        ("2024-11-05", V2025_11_25),
    ],
)
async def test_sampling_and_roots(
    script: Path, tmp_path: Path, revision: ProtocolVersion, inner: ProtocolVersion
) -> None:
    requests: list[str | None] = []

    def answer(params: CreateMessageParams) -> str:
        requests.append(params.system_prompt)
        return "words"

    servers = configuration(**two(script, inner))
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(servers, protocol_version=revision, sampling_handler=answer, roots=[tmp_path]) as client,
    ):
        assert (await client.call_tool("one_sample")).data == "words"
        assert requests == ["[one]"]
        assert (await client.call_tool("one_roots")).data == tmp_path.as_uri()


@pytest.mark.parametrize("inner", [FIRST_MODERN_VERSION, V2025_11_25])
@pytest.mark.parametrize("revision", [FIRST_MODERN_VERSION, V2025_11_25])
async def test_missing_handler_is_an_error_of_the_call(
    script: Path, revision: ProtocolVersion, inner: ProtocolVersion
) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(**two(script, inner)), protocol_version=revision) as client,
    ):
        with pytest.raises((ToolError, ProtocolError), match="elicitation"):
            await client.call_tool("one_ask")


@pytest.mark.parametrize("inner", [FIRST_MODERN_VERSION, V2025_11_25])
@pytest.mark.parametrize("revision", [FIRST_MODERN_VERSION, V2025_11_25])
async def test_progress_and_log_messages_arrive_once(
    script: Path, revision: ProtocolVersion, inner: ProtocolVersion
) -> None:
    progress: list[float] = []
    messages: list[tuple[str, Any]] = []
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(
            configuration(**two(script, inner)),
            protocol_version=revision,
            log_handler=lambda message: messages.append((message.level, message.data)),
            log_level="info",
        ) as client,
    ):
        await client.call_tool("two_work", progress_handler=lambda done, total, message: progress.append(done))
        assert progress == [1.0]
        assert [message for _, message in messages] == ["working"]
        await client.set_log_level("debug")
        await client.call_tool("two_work")
        assert [message for _, message in messages] == ["working", "working", "details"]


@pytest.mark.parametrize("inner", [FIRST_MODERN_VERSION, V2025_11_25])
async def test_cancelled_call_is_cancelled_at_its_server(script: Path, tmp_path: Path, inner: ProtocolVersion) -> None:
    state = tmp_path / "state"
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(configuration(**two(script, inner))) as client:
        call = asyncio.ensure_future(client.call_tool("one_wait", {"path": str(state)}))
        await _until(lambda: state.exists() and state.read_text() == "started")
        call.cancel()
        await _until(lambda: state.read_text() == "stopped")
        assert (await client.call_tool("one_whoami")).data == "one"


@pytest.mark.parametrize("inner", [FIRST_MODERN_VERSION, V2025_11_25])
@pytest.mark.parametrize("revision", [FIRST_MODERN_VERSION, V2025_11_25])
async def test_changes_are_reported_with_the_uris_of_the_client(
    script: Path, revision: ProtocolVersion, inner: ProtocolVersion
) -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(**two(script, inner)), protocol_version=revision) as client,
    ):
        async with client.listen(tools=True, uris=["note://two/hello"]) as changes:
            seen: set[Any] = set()

            async def hear() -> None:
                async for change in changes:
                    seen.add(change.uri or change.kind)

            hearing = asyncio.ensure_future(hear())
            # The server is subscribed to in the background, and changes before that are not reported.
            while len(seen) < 2:
                await client.call_tool("two_change")
                await asyncio.sleep(0.01)
            hearing.cancel()
        assert seen == {"tools", "note://two/hello"}
        assert "two_added" in {tool.name for tool in await client.list_tools(refresh=True)}


@pytest.mark.parametrize("inner", SUPPORTED_PROTOCOL_VERSIONS)
async def test_servers_at_urls(script: Path, inner: ProtocolVersion) -> None:
    remote = Server("remote")

    @remote.tool
    async def ask(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        return str((await ctx.elicit("How many?", int)).data)

    @remote.tool
    async def whoami() -> str:
        return "remote"

    listener = Listener(build_application(remote, HttpSettings()))
    [(host, port, *_)] = await listener.listen("127.0.0.1", 0)
    url = {"url": f"http://{host}:{port}/mcp", "portico": {"protocol_version": inner}}
    try:
        servers = configuration(remote=url, one=entry(script, "one"))
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            Client(servers, elicitation_handler=lambda params: {"value": 7}) as client,
        ):
            assert {"remote_ask", "one_ask"} <= {tool.name for tool in await client.list_tools()}
            assert (await client.call_tool("remote_whoami")).data == "remote"
            if inner >= V2025_06_18:
                assert (await client.call_tool("remote_ask")).data == "7"
    finally:
        await listener.stop(0)


# In this process, so that its start takes no time.
ASKING = """
import asyncio
from portico import Context, Server

server = Server("asking")

@server.tool
async def ask(ctx: Context) -> str:
    return str((await ctx.elicit("How many?", int)).data)

@server.tool
async def wait() -> None:
    await asyncio.sleep(600)
"""


@pytest.mark.parametrize("inner", [FIRST_MODERN_VERSION, V2025_11_25])
async def test_timeout_of_an_entry_does_not_count_the_time_of_the_user(tmp_path: Path, inner: ProtocolVersion) -> None:
    async def think(params: ElicitParams) -> dict[str, Any]:
        await asyncio.sleep(1.5)
        return {"value": 7}

    file = tmp_path / "asking.py"
    file.write_text(ASKING)
    target = {"target": f"{file}:server", "portico": {"timeout": 1.0, "protocol_version": inner}}
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(one=target, dead=DEAD), elicitation_handler=think) as client,
    ):
        assert (await client.call_tool("one_ask")).data == "7"
        with pytest.raises(ToolError, match=r"one does not answer: .*within 1 s"):
            await client.call_tool("one_wait")


# Servers that do not answer


async def test_missing_servers_do_not_hide_the_others(script: Path, caplog: pytest.LogCaptureFixture) -> None:
    servers = configuration(dead=DEAD, **two(script), hangs=HANGS)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(servers, timeout=10.0) as client:
        assert list(client.missing_servers) == ["dead", "hangs"]
        assert "cannot start '/there/is/no/such/program'" in client.missing_servers["dead"]
        assert client.missing_servers["hangs"] == "no answer within 10 s"
        assert (
            "dead is not available: cannot start" in caplog.text and "hangs is not available: no answer" in caplog.text
        )
        assert {"one_whoami", "two_whoami"} <= {tool.name for tool in await client.list_tools()}
        assert (await client.call_tool("two_whoami")).data == "two"
        for name, reason in (("dead_f", "dead does not answer: cannot start"), ("hangs_f", "hangs does not answer")):
            with pytest.raises(ToolError, match=reason):
                await client.call_tool(name)


async def test_only_the_servers_of_awaited_names_are_waited_for(script: Path) -> None:
    client = Client(configuration(hangs=HANGS, **two(script)), timeout=600.0)
    client.awaited = ["two_whoami"]
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        assert client.missing_servers == {}
        assert (await client.call_tool("two_whoami")).data == "two"
        # A call waits for its server, whatever was waited for when the client was opened.
        assert (await client.call_tool("one_whoami")).data == "one"


async def test_no_server_is_started_if_none_is_awaited(tmp_path: Path) -> None:
    started = tmp_path / "started"
    writes = {"command": sys.executable, "args": ["-c", f"open({str(started)!r}, 'w')"]}
    client = Client(configuration(one=writes, two=writes))
    client.awaited = ()
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        assert client.protocol_version == FIRST_MODERN_VERSION
    assert not started.exists()


async def test_process_that_ended_is_started_again(script: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(configuration(**two(script))) as client:
        with pytest.raises(ToolError, match="one does not answer"):
            await client.call_tool("one_leave")
        assert (await client.call_tool("two_whoami")).data == "two"
        assert (await client.call_tool("one_whoami")).data == "one"


async def test_call_connects_to_a_server_that_starts_later(script: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    servers = configuration(late=entry(late, "late"), one=entry(script, "one"))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(servers, timeout=4.0) as client:
        assert list(client.missing_servers) == ["late"]
        # Longer than an attempt may take.
        await asyncio.sleep(4.1)
        late.write_text(SERVER)
        assert (await client.call_tool("late_whoami")).data == "late"
        assert client.missing_servers == {}


async def test_servers_that_never_answered_are_ended_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_TIMEOUT_SECONDS", 10 * TIMEOUT_SECONDS)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(a=HANGS, b=HANGS, c=HANGS), timeout=0.5) as client,
    ):
        assert list(client.missing_servers) == ["a", "b", "c"]


async def test_server_that_starts_later_is_announced(script: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    servers = configuration(late=entry(late, "late"), **two(script))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(servers) as client:
        assert list(client.missing_servers) == ["late"]
        async with client.listen(tools=True) as changes:
            late.write_text(SERVER)
            async for _ in changes:
                if "late_whoami" in {tool.name for tool in await client.list_tools(refresh=True)}:
                    break
        assert client.missing_servers == {}


FAILS_TO_LIST = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": said["id"]}
    if said["method"] == "server/discover":
        about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        answer["result"] = {"resultType": "complete", **about}
    elif MODE == "silent":
        continue
    elif MODE == "error":
        answer["error"] = {"code": -32603, "message": "out of order"}
    else:
        answer["result"] = {"resultType": "complete", "tools": 5}
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("mode, reason", [("silent", "in time"), ("error", "out of order"), ("wrong", "array")])
async def test_server_that_fails_to_list_is_missing(script: Path, mode: str, reason: str) -> None:
    program = FAILS_TO_LIST.replace("MODE", repr(mode))
    broken = {"command": sys.executable, "args": ["-c", program]}
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(configuration(broken=broken, **two(script)), timeout=8.0) as client,
    ):
        assert client.missing_servers == {}
        assert {"one_whoami", "two_whoami"} <= {tool.name for tool in await client.list_tools()}
        assert reason in client.missing_servers["broken"]


async def test_client_can_be_opened_again(script: Path) -> None:
    client = Client(configuration(**two(script), dead=DEAD))
    for _ in range(2):
        async with asyncio.timeout(TIMEOUT_SECONDS), client:
            assert (await client.call_tool("one_whoami")).data == "one"
            assert list(client.missing_servers) == ["dead"]


async def test_client_of_several_servers_can_be_mounted(script: Path) -> None:
    server = Server("outer")
    server.mount(Client(configuration(**two(script))), "all")
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(server) as client:
        assert (await client.call_tool("all_two_whoami")).data == "two"


def test_sync_client(script: Path) -> None:
    with SyncClient(configuration(**two(script), dead=DEAD)) as client:
        assert client.call_tool("two_whoami").data == "two"
        assert list(client.missing_servers) == ["dead"]


# Configurations


async def test_file_with_options(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("PROBE", "from the environment")
    servers = {
        "my_server": {
            **entry(script, "one"),
            "env": {"A": "${PROBE}", "B": "${env:PROBE}", "C": f"${{file:{tmp_path}/secret}}", "D": "${GONE:-default}"},
            "alwaysAllow": ["a member of another program"],
        },
        "renamed": entry(script, "two", prefix="x_", protocol_version="2025-06-18", timeout="30s", cwd=str(tmp_path)),
        "bare": entry(script, "three", prefix=""),
        "off": {**DEAD, "disabled": True},
        "incomplete": {"url": "https://example.com/${GONE}"},
    }
    monkeypatch.delenv("GONE", raising=False)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(configuration(**servers)))
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(str(file)) as client:
        assert client.server_info is not None and client.server_info.name == "mcp"
        assert client.missing_servers == {"incomplete": "the environment variable GONE is not set"}
        values = [(await client.call_tool("my-server_environment", {"name": name})).data for name in "ABCD"]
        assert values == ["from the environment", "from the environment", "from a file", "default"]
        assert (await client.call_tool("x_whoami")).data == "two"
        assert (await client.call_tool("whoami")).data == "three"


def test_entries() -> None:
    headers = {"X": "1"}
    table = {"headers": headers, "protocol_version": "2025-11-25", "timeout": 5}
    item, two, three = read_entries(
        configuration(
            one={"url": "http://h/mcp", "portico": table},
            two={"command": ["run", "it"], "args": ["now"], "cwd": "/"},
            three={"target": "http://h/mcp"},
        )
    )
    assert (item.target, item.protocol_version, item.timeout) == (UrlTarget("http://h/mcp", headers), "2025-11-25", 5.0)
    assert two.target == CommandTarget(("run", "it", "now"), None, "/")
    assert three.target == UrlTarget("http://h/mcp", {})
    assert [item.prefix for item in (item, two, three)] == ["one_", "two_", "three_"]


@pytest.mark.parametrize(
    "servers, complaint",
    [
        ({"a": {**DEAD, "portico": {"include": ["x"]}}}, "'include' needs a gateway .portico-gateway.*timeout"),
        ({"a": {**DEAD, "portico": {"pins": "block"}}}, "server 'a': the option 'pins' needs a gateway"),
        ({"a": {"url": "http://h", "openapi": "api.json"}}, "'openapi' needs a gateway"),
        ({"a": {**DEAD, "portico": {"prefix": "a."}}}, "prefix must be empty or end with '_', got 'a.'"),
        ({"a": {**DEAD, "portico": 5}}, "portico must be an object, got int"),
        (
            {"a": {**DEAD, "portico": {"protocol_version": "2020-01-01"}}},
            "protocol_version must be one of 2024-11-05, .*, got '2020-01-01'",
        ),
        ({"a": {**DEAD, "portico": {"timeout": "soon"}}}, "timeout must be a duration such as .*, got 'soon'"),
        ({"a": {**DEAD, "url": "http://h"}}, "one of url, command and target, got url and command"),
        ({"a": {"command": []}}, "server 'a': command must not be empty"),
        ({"a": 5}, "the entry 'a' must be an object"),
        ({"a b": DEAD, "a.b": DEAD}, "'a b' and 'a.b' have the same prefix 'a-b_'"),
        ({"": DEAD}, "1 to 64 characters"),
    ],
)
def test_invalid_entry_is_rejected(servers: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(configuration(**servers, other=DEAD)))
    with pytest.raises(UsageError, match=complaint) as raised:
        Client(str(file))
    assert str(file) in str(raised.value)


# Gateway files


def gateway_file(tmp_path: Path, script: Path, name: str) -> Path:
    file = tmp_path / name
    words = [sys.executable, str(script), "one"]
    if name.endswith(".toml"):
        file.write_text(
            f"[upstream.one]\ncommand = {json.dumps(words)}\ninclude = ['who*']\n"
            f"[upstream.dead]\ncommand = ['{DEAD['command']}']\n"
        )
    else:
        upstreams = {"one": {"command": words, "include": ["who*"]}, "dead": {"command": [DEAD["command"]]}}
        file.write_text(json.dumps({"gateway": {"name": "office"}, "upstream": upstreams}))
    return file


@pytest.mark.parametrize("name", ["gateway.toml", "gateway.json"])
async def test_gateway_file_is_a_target(script: Path, tmp_path: Path, name: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(str(gateway_file(tmp_path, script, name))) as client:
        assert [tool.name for tool in await client.list_tools()] == ["read_result", "one_whoami"]
        assert (await client.call_tool("one_whoami")).data == "one"
        assert "cannot start" in client.missing_servers["dead"]


async def test_gateway_file_without_the_gateway_is_rejected(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gateway_file(tmp_path, script, "gateway.toml")
    monkeypatch.setattr(plugins, "find_plugin", lambda name: None)
    with pytest.raises(UsageError, match=r"a gateway file as target needs portico-gateway.*pip install"):
        Client(str(file))


def test_gateway_is_not_loaded_for_several_servers(script: Path) -> None:
    import subprocess

    program = (
        "import asyncio, sys; from portico import Client\n"
        f"async def main():\n  async with Client({configuration(**two(script))!r}) as client:\n"
        "    assert (await client.call_tool('one_whoami')).data == 'one'\n"
        "asyncio.run(main())\n"
        "assert not [name for name in sys.modules if name.startswith(('portico_gateway', 'portico_services'))]"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ}, check=True, timeout=TIMEOUT_SECONDS)


async def _until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
