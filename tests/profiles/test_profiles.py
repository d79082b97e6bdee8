"""Profiles as files: contents, precedence, and no setting for one system only."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico import Context, Server, Service, ToolError, ToolResult
from portico.cli.completion import complete
from portico.protocol.errors import UsageError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.server.components.tools import Tool
from portico_services import assembly, settings
from portico_services.assembly import ServiceEnvironment
from portico_services.profiles import adapter, loader
from portico_services.profiles.envelope import ERROR_META_KEY
from portico_services.settings import CompatSection

Serve = Callable[..., Awaitable[Any]]
Connect = Callable[..., Any]

NAMES = ["bossman", "codomyrmex", "pharo", "subcog", "sysmcp"]


def portico(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "portico", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, input="", timeout=30, cwd=cwd)


@pytest.fixture
def place(tmp_path: Path) -> ServiceEnvironment:
    return ServiceEnvironment(data=tmp_path / "data", store=str(tmp_path / "store.db"))


# The command


def test_list_has_a_line_for_each() -> None:
    done = portico("profiles", "list")
    assert done.returncode == 0
    _, *rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows] == NAMES == loader.list_profiles()


@pytest.mark.parametrize("name", NAMES)
def test_show_prints_the_file_with_its_comments(name: str) -> None:
    done = portico("profiles", "show", name)
    assert done.returncode == 0
    assert done.stdout == (loader.PROFILES_DIR / f"{name}.toml").read_text()
    assert done.stdout.startswith("# ")
    assert tomllib.loads(done.stdout)["description"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["profiles", "show", "nobody"], "unknown profile 'nobody' (expected one of bossman, codomyrmex"),
        (["profiles", "show", "./nobody.toml"], "nobody.toml cannot be read: No such file or directory"),
        (["profiles", "show"], "`show` needs a name: bossman"),
        (["profiles", "list", "subcog"], "portico profiles show subcog"),
        (["serve", "--profile", "subcogg"], "unknown profile 'subcogg' (did you mean 'subcog'?)"),
        (
            ["serve", "--profile", "subcog", "examples/hello.py"],
            "a profile for the built-in services cannot be applied to another server",
        ),
    ],
)
def test_mistake_is_one_sentence(words: list[str], said: str) -> None:
    done = portico(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_tab_offers_profiles() -> None:
    assert complete(["serve", "--profile", ""]) == NAMES
    assert complete(["profiles", ""]) == ["list", "show"]
    assert complete(["profiles", "show", "s"]) == ["subcog", "sysmcp"]
    assert complete(["serve", "--profile", "./m"]) == [":files"]


# Who goes before whom


async def test_command_line_goes_before_the_configuration_and_that_before_the_profile(
    serve: Serve, tmp_path: Path
) -> None:
    config = tmp_path / "portico.toml"
    config.write_text('[server]\nname = "mine"\n[serve]\nservices = ["contracts"]\nlifecycle = "lenient"\n')
    child = await serve("bossman", "--config", config)
    opened = await child.child.initialize("2025-11-25", initialized=False)
    # The name is the configuration's, the version still the profile's.
    assert opened["serverInfo"] == {"name": "mine", "version": "0.1.0"}
    assert "spec_list" in await child.tools()
    child = await serve("bossman", "--config", config, "--services", "tasks", "--lifecycle", "strict")
    await child.child.initialize("2025-11-25", initialized=False)
    assert (await child.child.request("tools/list"))["error"]["code"] == -32600
    child.notify("notifications/initialized")
    assert "create_task" in await child.tools()


def test_how_much_of_a_service_is_offered_is_reported_on_the_command_line(place: ServiceEnvironment) -> None:
    result = settings.merge_settings({"services": {"memory": {"tools": "default"}}})
    names = [
        {tool.name for tool in assembly.build_server([item], result, place).tools} for item in ("memory", "memory:all")
    ]
    assert names[0] < names[1]


async def test_longer_message_can_be_allowed(serve: Serve) -> None:
    child = await serve("bossman", "--max-message-size", "2000000")
    long = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x" * 1_500_000}})
    assert await child.exchange(long) == '{"jsonrpc":"2.0","id":1,"result":{}}'


async def test_custom_profile_is_selected_by_path(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.toml").write_text(
        'description = "Mine"\n[server]\nname = "mine"\n[serve]\nservices = ["live"]\n'
        '[compat.live]\ntools = { evaluate = "run" }\nuri_schemes = { python = "mine" }\n'
    )
    child = await serve("./mine.toml")
    assert (await child.open("2025-11-25"))["serverInfo"]["name"] == "mine"
    assert list(await child.tools()) == ["run"]
    assert (await child.call("evaluate", expression="1"))["result"]["content"][0]["text"] == "1"
    for scheme in ("mine", "python", "pharo"):
        result = await child.result("resources/read", {"uri": f"{scheme}://system/version"})
        assert result["contents"][0]["text"].startswith("Python ")


# What a file may say


@pytest.mark.parametrize(
    "text, said",
    [
        ("[sever]\n", "sever: unknown key (did you mean 'server'?)"),
        ("[server]\nnam = 'x'\n", "[server] nam: unknown key (did you mean 'name'?)"),
        ("[server]\nname = ''\n", "[server] name: expected a string of length >= 1, got ''"),
        ("[server.capabilities]\ntoys = {}\n", "[server.capabilities] toys: unknown key (did you mean 'tools'?)"),
        ("[serve]\nlifecycle = 'loose'\n", "[serve] lifecycle: expected one of auto, strict, lenient, got 'loose'"),
        ("[serve]\nmax_message_size = 0\n", "[serve] max_message_size: expected an integer >= 1, got 0"),
        ("[services.nobody]\n", "[services] nobody: unknown key (expected one of memory, tasks, "),
        ("[compat.nobody]\n", "[compat] nobody: unknown key (expected one of memory, tasks, "),
        ("[compat.live]\nenvelop = true\n", "[compat.live] envelop: unknown key (did you mean 'envelope'?)"),
        ("[compat.live]\ninclude_is_error = 'never'\n", "expected one of always, on_failure, got 'never'"),
        ("= 1\n", "invalid TOML"),
    ],
)
def test_invalid_settings_are_rejected_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "portico.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as mistake:
        assembly.read_settings(None, str(path))
    assert str(path) in str(mistake.value)
    assert said in str(mistake.value)


def test_tables_are_put_together_and_all_else_is_replaced() -> None:
    below = {"server": {"capabilities": {"tools": {"listChanged": False}, "logging": {}}}, "serve": {"services": ["a"]}}
    above = {"server": {"capabilities": {"tools": {"x": 1}, "logging": False}}, "serve": {"services": ["b"]}}
    result = settings.merge_settings(below, above)
    assert result.server.capabilities == {"tools": {"listChanged": False, "x": 1}, "logging": False}
    assert result.serve.services == ["b"]


async def test_capability_can_be_taken_away(place: ServiceEnvironment, connect: Connect) -> None:
    result = settings.merge_settings(
        {"server": {"capabilities": {"tools": True, "prompts": False}, "instructions": ""}}
    )
    wire = connect(assembly.build_server([], result, place))
    opened = await wire.initialize("2025-11-25")
    assert opened["capabilities"] == {"tools": {}}
    assert "instructions" not in opened


def test_missing_tool_cannot_be_listed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(adapter.adapt_components([], CompatSection(tools=["nobody"]))) == []
    assert "compat: unknown tool 'nobody' in tools" in caplog.text


# Every profile


@pytest.mark.parametrize("name", NAMES)
def test_only_the_names_of_the_system_are_listed(name: str, place: ServiceEnvironment) -> None:
    server = assembly.build_server(None, assembly.read_settings(name, None), place)
    listed = [tool.name for tool in server.tools]
    assert listed
    for tool in server.tools:
        assert not set(listed) & set(tool.aliases)
        assert any("." in resource for resource in (tool.name, *tool.aliases))
        assert all(server.registry.tool(alias) is tool for alias in tool.aliases)
    if server.capabilities.resources is not None:
        assert len({resource.uri.partition("://")[0] for resource in server.resources}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_refer_only_to_existing_tools(name: str, place: ServiceEnvironment) -> None:
    result = assembly.read_settings(name, None)
    server = assembly.build_server(None, result, place)
    texts = [msgspec.json.encode(tool.definition).decode() for tool in server.tools]
    if server.capabilities.resources is not None:
        texts += [str(item.definition.description) for item in (*server.resources, *server.templates)]
    if server.capabilities.prompts is not None:
        texts += [str(item.definition.description) for item in server.prompts]
    ours = {tool.name for tool in assembly.build_server(result.serve.services, settings.merge_settings(), place).tools}
    ours -= {tool.name for tool in server.tools}
    mentioned = {item for item in ours for text in texts if re.search(rf"(?<![\w.]){item}\b", text)}
    assert not mentioned


@pytest.mark.parametrize("name", NAMES)
def test_profile_uses_every_setting_that_it_names(
    name: str, caplog: pytest.LogCaptureFixture, place: ServiceEnvironment
) -> None:
    with caplog.at_level(logging.WARNING):
        assembly.build_server(None, assembly.read_settings(name, None), place)
    assert not caplog.records


def test_code_does_not_depend_on_profile_names() -> None:
    """The names of systems stand in files of settings, and where a service understands other names besides its own."""
    for path in Path(assembly.__file__).parent.parent.rglob("*.py"):
        if path.parts[-2] in ("rpc", "server", "legacy", "wire", "transport") or path.parent.name == "services":
            text = path.read_text().lower()
            assert not [name for name in NAMES if name in text], path


# Without a profile


async def test_other_names_and_schemes_are_understood_and_not_listed(
    place: ServiceEnvironment, connect: Connect
) -> None:
    server = assembly.build_server(["memory", "live"], settings.merge_settings(), place)
    async with server.lifespan():
        wire = connect(server)
        await wire.initialize("2025-11-25")
        tools = {tool["name"] for tool in (await wire.request("tools/list"))["result"]["tools"]}
        assert {"memory_capture", "evaluate"} <= tools
        assert not [name for name in tools if "subcog" in name or "." in name]
        schemes = {
            resource["uri"].partition(":")[0]
            for resource in (await wire.request("resources/list"))["result"]["resources"]
        }
        assert schemes == {"memory", "python"}
        for uri in ("subcog://help", "pharo://system/version", "subcog://project/decisions"):
            (contents,) = (await wire.request("resources/read", {"uri": uri}))["result"]["contents"]
            assert contents["uri"] == uri
        missing = await wire.request("resources/read", {"uri": "pharo://nothing"})
        assert missing["error"]["data"]["uri"] == "pharo://nothing"
        for name in ("live.evaluate", "live_evaluate"):
            response = await wire.request("tools/call", {"name": name, "arguments": {"expression": "2 + 2"}})
            assert response["result"]["content"][0]["text"] == "4"
            assert response["result"]["isError"] is False


async def test_removing_a_service_removes_its_uri_schemes() -> None:
    server, service = Server("s"), Service("notes")
    service.scheme_aliases = {"memo": "notes"}

    @service.resource("notes://{name}")
    def note(name: str) -> str:
        return name

    server.add(service)
    assert server.registry.resource("memo://one")[1] == {"name": "one"}
    server.remove("notes")
    assert server.registry.resource("memo://one") == (None, {})
    server.registry.scheme_aliases = {"a": "b", "b": "a"}
    assert server.registry.resource("a://x") == (None, {})


# Shapes


class Odd(Service):
    name = "odd"

    def __init__(self) -> None:
        super().__init__()
        self.tool(self.works)
        self.tool(self.breaks)
        self.tool(self.refuses)
        self.tool(self.says_no)
        self.tool(self.counts)

    def works(self, number: int = 1, word: str | None = None, ctx: Context = None) -> dict[str, int]:  # type: ignore[assignment]
        """Ask breaks about it."""
        return {"number": number}

    def breaks(self) -> str:
        raise RuntimeError("a secret")

    def refuses(self) -> str:
        raise ToolError("Not now; ask works.")

    def says_no(self) -> Any:
        return ToolResult(
            content="Long words.", is_error=True, meta={ERROR_META_KEY: {"brief": "no", "error_type": "X"}}
        )

    def counts(self) -> list[int]:
        return [1, 2]


def odd(**shape: Any) -> Server:
    server = Server("odd", version="1")
    for offered in adapter.adapt_components(Odd().components(), CompatSection(**shape)):
        server.add(offered)
    return server


async def called(wire: Any, revision: str, tool: str, **arguments: Any) -> Any:
    answer = await wire.request_as(revision, "tools/call", {"name": tool, "arguments": arguments})
    return answer["result"]


async def opened(connect: Connect, server: Server, revision: str) -> Any:
    wire = connect(server)
    if revision != SUPPORTED_PROTOCOL_VERSIONS[-1]:
        await wire.initialize(revision)
    return wire


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_success_can_go_without_saying(connect: Connect, revision: str) -> None:
    wire = await opened(connect, odd(include_is_error="on_failure"), revision)
    result = await called(wire, revision, "works")
    assert "isError" not in result
    assert ("structuredContent" in result) is (revision >= "2025-06-18")
    if revision == SUPPORTED_PROTOCOL_VERSIONS[-1]:
        assert result["resultType"] == "complete"
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "odd"
    assert (await called(wire, revision, "refuses"))["isError"] is True


@pytest.mark.broken_frames("the profile wants members that no revision has")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_envelope_is_present_only_without_structured_content(connect: Connect, revision: str) -> None:
    wire = await opened(connect, odd(envelope=True), revision)
    result = await called(wire, revision, "works", number=3)
    if revision > "2025-03-26":
        assert "success" not in result
        return
    assert {name: result[name] for name in ("success", "status", "data", "explanation")} == {
        "success": True,
        "status": "success",
        "data": {"number": 3},
        "explanation": None,
    }
    assert (await called(wire, revision, "counts"))["data"] == {"result": [1, 2]}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS[2:])
async def test_envelope_can_be_requested_later_on(connect: Connect, revision: str) -> None:
    wire = await opened(connect, odd(envelope=True), revision)
    modern = revision == SUPPORTED_PROTOCOL_VERSIONS[-1]
    meta = {**(wire.envelope() if modern else {}), adapter.ENVELOPE_META_KEY: True}
    result = (await wire.request("tools/call", {"name": "works", "_meta": meta}))["result"]
    assert result["_meta"][adapter.ENVELOPE_META_KEY]["data"] == {"number": 1}
    assert ("io.modelcontextprotocol/serverInfo" in result["_meta"]) is modern
    failed = (await wire.request("tools/call", {"name": "refuses", "_meta": meta}))["result"]
    assert failed["_meta"][adapter.ENVELOPE_META_KEY]["error"]["message"] == "Not now; ask works."


@pytest.mark.broken_frames("the profile wants members that no revision has")
async def test_unexpected_failure_is_enveloped_without_its_message(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await opened(connect, odd(envelope=True, error_prefix="error: "), "2024-11-05")
    result = await called(wire, "2024-11-05", "breaks")
    assert (result["success"], result["data"], result["isError"]) == (False, None, True)
    assert result["error"]["code"] == "ToolExecutionError"
    assert "error id" in result["error"]["message"]
    assert "a secret" not in json.dumps(result)
    assert "a secret" in caplog.text


async def test_failures_are_worded_as_is_wanted(connect: Connect) -> None:
    wire = await opened(
        connect,
        odd(error_prefix="error: ", short_errors=True, tools={"works": "work", "refuses": "no", "says_no": "n"}),
        "2025-11-25",
    )
    assert (await called(wire, "2025-11-25", "no"))["content"][0]["text"] == "error: Not now; ask work."
    assert (await called(wire, "2025-11-25", "says_no"))["content"][0]["text"] == "error: no"
    listed = (await wire.request("tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["work", "no", "n"]


@pytest.mark.parametrize(
    "habit, revision, is_result",
    [
        ("result", "2024-11-05", True),
        ("protocol", "2025-11-25", False),
        (None, "2024-11-05", False),
        (None, "2025-11-25", True),
    ],
)
async def test_wrong_arguments_are_reported_as_is_wanted(
    connect: Connect, habit: Any, revision: str, is_result: bool
) -> None:
    wire = await opened(connect, odd(argument_errors=habit), revision)
    answer = await wire.request_as(revision, "tools/call", {"name": "works", "arguments": {"number": "many"}})
    assert ("result" in answer) is is_result


@pytest.mark.parametrize("strict", [True, False])
async def test_one_service_can_have_strict_arguments(connect: Connect, strict: bool) -> None:
    wire = await opened(connect, odd(strict_arguments=strict), "2025-11-25")
    assert (await called(wire, "2025-11-25", "works", number="2"))["isError"] is strict


def test_schemas_can_be_plain() -> None:
    plain = next(
        adapt_component
        for adapt_component in adapter.adapt_components(Odd().components(), CompatSection(simple_schemas=True))
        if isinstance(adapt_component, Tool)
    )
    assert plain.definition.input_schema["properties"] == {
        "number": {"type": "number", "default": 1, "multipleOf": 1},
        "word": {"type": "string"},
    }


async def test_plain_schema_takes_the_same_arguments(connect: Connect) -> None:
    wire = await opened(connect, odd(simple_schemas=True), "2025-11-25")
    for arguments in ({"number": 2}, {"number": 2.0}, {"number": 2, "word": None}, {"number": 2, "word": "x"}):
        assert (await called(wire, "2025-11-25", "works", **arguments))["structuredContent"] == {"number": 2}


# What is only read


@pytest.mark.parametrize("level, left", [("read-write", "read-only"), ("disabled", "disabled"), ("wrong", "disabled")])
def test_read_only_removes_tools_and_adds_none(place: ServiceEnvironment, level: str, left: str) -> None:
    service: Any = assembly.create_service(
        "system", {"access_levels": {"files": level}}, msgspec.structs.replace(place, read_only=True)
    )
    assert service.access_levels["files"] == left
