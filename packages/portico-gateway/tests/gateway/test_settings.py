"""gateway.toml: settings, errors and reload."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico.cli.main import main
from portico.cli.serve import load_server
from portico.extend import configure_access
from portico.protocol.errors import ResourceNotFound
from portico.secret_references import SecretResolver
from portico.transports.targets import CommandTarget, UrlTarget
from portico_gateway import Gateway
from portico_gateway.gateway import gateway as gateways
from portico_gateway.gateway.settings import load_settings, parse_settings
from support.paths import PROGRAMS

SERVER = str(PROGRAMS / "elicitation_server.py")
ONE = {"command": sys.executable, "args": [SERVER]}


def test_mcp_json_is_a_gateway() -> None:
    message = {
        "mcpServers": {"a": {"command": "x", "args": ["y"], "alwaysAllow": []}, "b": {"url": "https://b.example/mcp"}}
    }
    result = parse_settings(message, SecretResolver()).upstreams
    assert result["a"].target == CommandTarget(("x", "y"))
    assert result["b"].target == UrlTarget("https://b.example/mcp", {})


def test_a_string_is_no_filter_of_operations(tmp_path: Path) -> None:
    """The keys of the filter are inherited from a module with other imports."""
    (tmp_path / "crm.json").write_text('{"openapi": "3.1.0", "info": {"title": "crm", "version": "1"}, "paths": {}}')
    tables = {"upstream": {"crm": {"openapi": {"path": "crm.json", "tags": "invoices"}, "url": "https://crm.example"}}}
    with pytest.raises(UsageError, match=r"openapi\] tags: expected a list, got 'invoices'"):
        parse_settings(tables, SecretResolver(), tmp_path)


def test_disabled_upstreams_are_omitted() -> None:
    message = {"servers": {"a": {"command": "x", "disabled": True}, "b": {"command": "y"}}}
    assert list(parse_settings(message, SecretResolver()).upstreams) == ["b"]


@pytest.mark.parametrize("servers", [{}, {"mcpServers": {}}, {"servers": {"a": {"command": "x", "disabled": True}}}])
def test_serve_rejects_an_mcp_json_without_servers(
    tmp_path: Path, servers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(servers))
    with pytest.raises(UsageError, match=r"mcp\.json has no enabled servers; `portico install json"):
        load_server(str(file))
    for words in (["gateway", "check"], ["pins", "list"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, str(file)])
        assert ended.value.code == 2 and "has no enabled servers" in capsys.readouterr().err
    # While it runs, the last server may be removed.
    assert load_settings(file, SecretResolver()).upstreams == {}


def test_toml_says_more(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        """
        [gateway]
        name = "acme"
        prefix = ""
        [upstream.files]
        command = ["npx", "files"]
        include = ["read_*"]
        exclude = ["read_all"]
        rename = { read_text = "read" }
        timeout = "2m"
        """
    )
    settings = load_settings(file, SecretResolver())
    files = settings.upstreams["files"]
    assert settings.about == {"name": "acme"}
    assert (files.timeout, files.prefix, files.target) == (120.0, "", CommandTarget(("npx", "files")))
    assert [files.includes(name) for name in ("read_x", "read_all", "write")] == [True, False, False]
    assert (files.exposed_name("read_text"), files.exposed_name("read_x")) == ("read", "read_x")


@pytest.mark.parametrize(
    "text, what",
    [
        ("[upstream.a]", "needs exactly one of url, command and target"),
        ("[upstream.a]\nurl = 'http://x/mcp'\ncommand = ['x']", "url and command"),
        ("[upstream.a]\ncommand = ['x']\ntimeout = 'soon'", "timeout must be a duration"),
        ("[upstream.a]\ncommand = ['x']\nincludes = ['x']", "did you mean 'include'"),
        ("[upstream.a]\ncommand = ['x']\ninclude = 'x'", "include: expected a list, got 'x'"),
        ("[upstream.a]\ncommand = ['x']\nmax_connections = 0", "max_connections must be at least 1, got 0"),
        ("[gateways]", "gateways: unknown key (did you mean 'gateway'?)"),
        ("[upstream.a_b]\ncommand = ['x']\n[upstream.a-b]\ncommand = ['x']", "have the same prefix"),
        ("[upstream", "invalid TOML"),
        ("upstream = 1", "upstream: expected a table, got 1"),
    ],
)
def test_invalid_settings_name_the_file_and_the_problem(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"gateway\.toml") as error:
        Gateway.load(file, max_result_tokens=0)
    assert what in str(error.value)


def test_secret_is_put_in_and_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_A", "hunter2hunter2")
    (tmp_path / "key").write_text("correct horse\n")
    secrets = SecretResolver()
    headers = {"authorization": "Bearer ${env:TOKEN_OF_A}", "x-key": "${file:%s}" % (tmp_path / "key")}
    result = parse_settings({"upstream": {"a": {"url": "https://a.example/mcp", "headers": headers}}}, secrets)
    target = result.upstreams["a"].target
    assert isinstance(target, UrlTarget)
    assert target.headers == {"authorization": "Bearer hunter2hunter2", "x-key": "correct horse"}
    assert secrets.mask("hunter2hunter2 and correct horse") == "*** and ***"


async def test_secret_is_masked_in_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKEN_OF_A", "hunter2hunter2")
    tell = [sys.executable, "-c", "import os, sys; sys.exit('the key is ' + os.environ['KEY'])"]
    entries = [
        {"command": tell[0], "args": tell[1:], "env": {"KEY": key}} for key in ("${env:TOKEN_OF_A}", "${TOKEN_OF_A}")
    ]
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": dict(zip("ab", entries, strict=True))}))
    gateway = Gateway.load(file, max_result_tokens=0)
    async with Client(gateway) as client:
        await client.list_tools()
        await gateway.wait_until_listed(20)
        assert ["the key is ***" in status_item["error"] for status_item in gateway.status()] == [True, True]
    assert "hunter2hunter2" not in caplog.text


async def test_missing_secret_is_the_trouble_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    gateway = Gateway(
        {"mcpServers": {"a": {"command": "x", "env": {"KEY": "${env:NOT_THERE}"}}, "one": ONE}}, max_result_tokens=0
    )
    async with Client(gateway) as client:
        assert "one_add" in {tool.name for tool in await client.list_tools()}
    assert "NOT_THERE is not set" in gateway.status()[0]["error"]


async def test_client_of_several_servers(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": ONE, "two": ONE}}))
    for target in (str(file), json.loads(file.read_text())):
        async with Client(target) as client:
            names = {tool.name for tool in await client.list_tools()}
            assert {"one_add", "two_add"} <= names
            assert (await client.call_tool("two_add", {"a": 1, "b": 2})).text == "3"


async def test_same_resource_of_two_has_two_addresses() -> None:
    gateway = Gateway({"mcpServers": {"one": ONE, "two": ONE}}, max_result_tokens=0)
    async with Client(gateway) as client:
        uris = {str(resource.uri) for resource in await client.list_resources()}
        assert uris == {"note://hello", "note://two/hello"}
        assert (await client.read_resource("note://two/hello"))[0].text == "hello"


async def test_excluded_resource_is_not_readable_by_any_uri() -> None:
    gateway = Gateway({"mcpServers": {"one": {**ONE, "portico": {"exclude": ["note://hello"]}}}}, max_result_tokens=0)
    async with Client(gateway) as client:
        assert await client.list_resources() == []
        for uri in ("note://hello", "note://one/hello"):
            with pytest.raises(ResourceNotFound):
                await client.read_resource(uri)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_changed_file_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "WATCH_SECONDS", 0.05)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": ONE}}))
    gateway = Gateway.load(file, max_result_tokens=0)
    async with Client(gateway) as client:

        async def has(name: str) -> bool:
            return name in {tool.name for tool in await client.list_tools()}

        assert await has("one_add")
        kept = gateway._router.upstreams["one"]
        file.write_text(json.dumps({"mcpServers": {"one": ONE, "two": ONE}}))
        await until(lambda: has("two_add"))
        # What makes no sense changes nothing.
        file.write_text("{")
        await asyncio.sleep(0.2)
        assert await has("two_add")
        file.write_text(json.dumps({"mcpServers": {"one": ONE}}))

        async def is_gone() -> bool:
            return not await has("two_add")

        await until(is_gone)
        assert gateway._router.upstreams == {"one": kept}


async def test_rules_that_change_in_the_file_hold_at_once(tmp_path: Path) -> None:
    server = Server("inner")
    server.tool("one")(_one)
    server.tool("two")(_one)
    path = tmp_path / "gateway.toml"
    path.write_text("[[rule]]\ntool = 'hub.one'\n")
    gateway = Gateway.load(path, max_result_tokens=0)
    gateway.add_upstream("hub", server)
    async with Client(gateway) as client:
        assert [tool.name for tool in await client.list_tools()] == ["hub_one"]
        path.write_text("[[rule]]\ntool = 'hub.*'\n")
        gateway._apply_settings(load_settings(path, SecretResolver()))
        assert {tool.name for tool in await client.list_tools(refresh=True)} == {"hub_one", "hub_two"}


def _one() -> str:
    return "1"


async def test_rules_without_effect_are_reported() -> None:
    server = Server("inner")
    server.tool("one")(_one)
    gateway = Gateway({"hub": server}, max_result_tokens=0)
    configure_access(
        gateway,
        {
            "rule": [{"tool": "hub.one"}, {"tool": "hub.tow"}, {"resource": "*"}],
            "require": [{"tool": "x.*", "scopes": "a"}],
        },
    )
    async with Client(gateway) as client:
        await client.list_tools()
        guard = gateway.policy.access_policy  # type: ignore[union-attr]
        assert guard.unused_rules(gateway.iter_components()) == ["rule 2", "rule 3", "require 1"]  # type: ignore[union-attr]


async def test_unchanged_target_is_reused_after_a_reload(tmp_path: Path) -> None:
    """And the calls of an upstream that has changed come to their ends."""
    (tmp_path / "slow.py").write_text(SLOW)
    file = tmp_path / "gateway.toml"
    target = f'target = "{tmp_path / "slow.py"}:server"'
    file.write_text(f"[upstream.same]\n{target}\n[upstream.other]\n{target}\nprefix = 'a_'\n")
    gateway = Gateway.load(file, max_result_tokens=0)
    async with Client(gateway) as client:
        await gateway.wait_until_listed(20)
        before = gateway._router.upstreams["same"]
        slow = asyncio.ensure_future(client.call_tool("a_slow"))
        async with asyncio.timeout(20):
            while not gateway._router.upstreams["other"]._is_busy:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        file.write_text(f"[upstream.same]\n{target}\n[upstream.other]\n{target}\nprefix = 'b_'\n")
        gateway._apply_settings(load_settings(file, gateway._secrets))
        assert gateway._router.upstreams["same"] is before
        assert (await client.call_tool("same_let_go")).text == "gone"
        assert (await slow).text == "slowly"
        assert "b_slow" in {tool.name for tool in await client.list_tools()}


SLOW = """
import asyncio

from portico import Server

server = Server("slow")
gate = asyncio.Event()


@server.tool
async def slow() -> str:
    await gate.wait()
    return "slowly"


@server.tool
async def let_go() -> str:
    gate.set()
    return "gone"
"""
