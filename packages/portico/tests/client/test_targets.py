"""Targets of a client: accepted and rejected ones."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import Client, UsageError
from portico.auth.authorization_code import AuthorizationCode
from portico.protocol.errors import ConnectError
from portico.transports.targets import CommandTarget, InProcessTarget, UrlTarget, parse_target
from support.paths import ROOT
from support.scripted import Endpoint

Serve = Callable[..., Any]
TIMEOUT_SECONDS = 15.0
HELLO = ROOT / "examples" / "hello.py"

# A server whose tool says where it is and what it was given.
WHERE = """
import json, os, sys
for line in sys.stdin:
    said = json.loads(line)
    if said["method"] == "server/discover":
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "prompts": {}}}
    else:
        data = {"cwd": os.getcwd(), "argv": sys.argv[1:], "env": {n: v for n, v in os.environ.items() if "PROBE" in n}}
        result = {"content": [{"type": "text", "text": json.dumps(data)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": {"resultType": "complete", **result}}), flush=True)
"""


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "where.py"
    path.write_text(WHERE)
    return path


async def asked(target: Any, **options: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(target, **options) as client:
        return json.loads((await client.call_tool("where")).text)


# Commands


async def test_command_may_be_words_or_one_text(where: Path) -> None:
    words = [sys.executable, "-S", str(where), "two words", "$HOME", "a;b"]
    for target in (words, tuple(words), shlex.join(words)):
        # No shell has looked at them.
        assert (await asked(target))["argv"] == ["two words", "$HOME", "a;b"]


async def test_command_has_the_environment_and_the_place_it_is_given(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_OURS", "1")  # which is nobody's business but ours
    place = tmp_path / "place"
    place.mkdir()
    response = await asked([sys.executable, "-S", str(where)], env={"PROBE_GIVEN": "2"}, cwd=str(place))
    assert response["cwd"] == str(place)
    assert response["env"] == {"PROBE_GIVEN": "2"}


@pytest.mark.parametrize("cwd", ["/no/such/place"])
async def test_missing_place_is_said_not_to_be(where: Path, cwd: str) -> None:
    with pytest.raises(ConnectError, match="cannot start"):
        await asked([sys.executable, str(where)], cwd=cwd)


def test_command_that_cannot_be_read_is_rejected() -> None:
    with pytest.raises(UsageError, match="invalid command"):
        Client("server 'unfinished")


# Objects in modules


@pytest.mark.parametrize("target", [f"{HELLO}:server", str(HELLO), HELLO])
async def test_object_in_a_file_is_spoken_to_in_this_process(target: Any) -> None:
    async with Client(target) as client:
        assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
    assert isinstance(parse_target(target), InProcessTarget)


async def test_object_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed_module.py").write_text("from portico import Server\nmine = Server('mine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with Client("probed_module:mine") as client:
        assert client.server_info is not None
        assert client.server_info.name == "mine"


@pytest.mark.parametrize("target", ["no_such_module:server", f"{HELLO}:nothing", "json:dumps.nothing"])
def test_missing_object_is_said_not_to_be(target: str) -> None:
    with pytest.raises(UsageError):
        Client(target)


# mcp.json


def written(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "mcp.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
async def test_entry_of_a_configuration(where: Path, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_ONE", "one")
    monkeypatch.delenv("PROBE_TWO", raising=False)
    entry = {
        "command": sys.executable,
        "args": ["-S", str(where), "${PROBE_ONE}", "${PROBE_TWO:-two}", "${PROBE_TWO:-}", "$PROBE_ONE"],
        "env": {"PROBE_GIVEN": "<${PROBE_ONE}>"},
        "cwd": "${PROBE_PLACE}",
    }
    monkeypatch.setenv("PROBE_PLACE", str(tmp_path))
    path = written(tmp_path, {key: {"here": entry, "there": {"url": "http://h/mcp"}}})
    response = await asked(f"{path}:here")
    assert response["argv"] == ["one", "two", "", "$PROBE_ONE"]
    assert response["env"]["PROBE_GIVEN"] == "<one>"
    assert response["cwd"] == str(tmp_path)


def test_configuration_with_one_server_needs_no_name(tmp_path: Path) -> None:
    path = written(tmp_path, {"mcpServers": {"one": {"url": "http://h/mcp", "headers": {"X": "1"}}}})
    assert parse_target(path) == UrlTarget("http://h/mcp", {"X": "1"})
    assert parse_target(path, headers={"Y": "2", "X": "3"}) == UrlTarget("http://h/mcp", {"X": "3", "Y": "2"})


@pytest.mark.parametrize(
    "entry, expected",
    [
        ({"url": "http://h/sse", "type": "sse"}, UrlTarget("http://h/sse", {}, True)),
        ({"url": "http://h/sse", "transport": "sse"}, UrlTarget("http://h/sse", {}, True)),
        ({"url": "http://h/mcp", "type": "http"}, UrlTarget("http://h/mcp", {}, False)),
        ({"command": "x"}, CommandTarget(("x",))),
        ({"command": "x", "args": None, "env": None, "cwd": None}, CommandTarget(("x",))),
        ({"mcpServers": {"a": {"command": "x"}}}, CommandTarget(("x",))),
    ],
)
def test_entry_may_be_given_unchanged(entry: Any, expected: Any) -> None:
    assert parse_target(entry) == expected


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("{", "cannot read"),
        ("[]", "must contain a JSON object"),
        ("5", "must contain a JSON object"),
        ({"mcpServers": {}}, "has no servers"),
        ({"mcpServers": {"a": {}, "b": {}}}, "server .a. needs one of url, command and target"),
        ({"mcpServers": {"a": 5}}, "must be an object"),
        ({"mcpServers": {"a": {}}}, "a `command` or a `url`"),
        ({"mcpServers": {"a": {"command": ["x"]}}}, "a `command` or a `url`"),
        ({"mcpServers": {"a": {"command": "x", "args": "serve"}}}, "list of strings"),
        ({"mcpServers": {"a": {"command": "x", "args": [5]}}}, "list of strings"),
        ({"mcpServers": {"a": {"command": "x", "args": {"a": 1}}}}, "list of strings"),
        ({"mcpServers": {"a": {"command": "x", "env": ["A=1"]}}}, "object with string values"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}, "object with string values"),
        ({"mcpServers": {"a": {"command": "x", "cwd": 5}}}, "`cwd`"),
        ({"mcpServers": {"a": {"url": "http://h", "headers": {"A": 1}}}}, "object with string values"),
        ({"mcpServers": {"a": {"url": "${PROBE_NOT_SET}/mcp"}}}, "PROBE_NOT_SET is not set"),
        ({"mcpServers": 5}, "a `command` or a `url`"),
    ],
    ids=range(17),
)
def test_configuration_of_the_wrong_shape_is_rejected(tmp_path: Path, content: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Client(written(tmp_path, content))


def test_server_that_is_not_in_a_configuration_is_said_not_to_be(tmp_path: Path) -> None:
    path = written(tmp_path, {"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}})
    with pytest.raises(UsageError, match=r"has no server 'c' \(expected one of a, b\)"):
        Client(f"{path}:c")


# What goes with it, and what does not


@pytest.mark.parametrize(
    "target, options, complaint",
    [
        (["x"], {"headers": {"A": "b"}}, "headers can only be set for a server at a URL"),
        (["x"], {"auth": "token"}, "auth is supported for URL targets only"),
        ("http://h/", {"env": {"A": "b"}}, "env and cwd can only be set for a command"),
        ("http://h/", {"cwd": "/"}, "env and cwd can only be set for a command"),
        (str(HELLO), {"env": {"A": "b"}}, "env and cwd can only be set for a command"),
        ("http://h/", {"protocol_version": "2020-01-01"}, "unknown protocol version"),
        ("http://h/", {"auth": "two words"}, "invalid token"),
        ("http://h/", {"auth": "a\r\nb"}, "invalid token"),
        ("http://h/", {"auth": ""}, "invalid token"),
        ("http://h/", {"auth": "ö"}, "invalid token"),
    ],
    ids=range(10),
)
def test_incompatible_target_options_raise_usage_error(target: Any, options: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Client(target, **options)


@pytest.mark.parametrize(
    "name",
    [
        "Mcp-Session-Id",
        "MCP-Protocol-Version",
        "mcp-method",
        "Mcp-Name",
        "Mcp-Param-X",
        "Last-Event-ID",
        "Host",
        "Content-Length",
        "Accept",
        "Transfer-Encoding",
        "content-type",
        "Connection",
    ],
)
async def test_headers_that_are_the_protocols_own_are_rejected(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}.* is reserved for the protocol"):
        async with Client("http://127.0.0.1:1/mcp", headers={name: "x"}):
            pass


@pytest.mark.parametrize("headers", [{"X": "a\r\nEvil: 1"}, {"X\r\nEvil": "1"}, {"X": "ö"}])
async def test_headers_that_are_none_are_rejected(serve: Serve, headers: Any) -> None:
    there = await serve()
    with pytest.raises(UsageError, match="header"):
        async with Client(there.url, headers=headers):
            pass
    assert there.seen == []


# Who we are


async def test_token_goes_with_everything(serve: Serve) -> None:
    """2026-07-28, basic/authorization: MUST be in every request, also within a session."""
    there = await serve(Endpoint(modern=False))
    async with Client(there.url, auth="se.cr-et", protocol_version="2025-11-25") as client:
        await client.list_tools()
    assert {item.says for item in there.seen} >= {"initialize", "tools/list", "GET", "DELETE"}
    assert all(item.headers["authorization"] == "Bearer se.cr-et" for item in there.seen)


async def test_name_and_a_password_in_the_url_are_sent_as_such(serve: Serve) -> None:
    there = await serve()
    url = there.url.replace("http://", "http://me:se%3Acret@") + "?key=hidden"
    async with Client(url) as client:
        await client.list_tools()
        assert all(item.headers["authorization"] == "Basic bWU6c2U6Y3JldA==" for item in there.seen)
        assert all(item.target == "/mcp?key=hidden" for item in there.seen)
        there.rules["tools/list"] = lambda peer, request: peer.answer(500)
        with pytest.raises(Exception, match="500") as raised:
            await client.list_tools()
    # And they are not in what is said of it.
    assert "cret" not in str(raised.value)
    assert "hidden" not in str(raised.value)


async def test_authorization_of_ones_own_comes_first(serve: Serve) -> None:
    there = await serve()
    url = there.url.replace("http://", "http://me:secret@")
    async with Client(url, headers={"authorization": "Custom x"}):
        pass
    assert [value for item in there.seen for name, value in item.fields if name == "authorization"] == ["Custom x"]


async def test_grant_is_a_way_to_get_a_token(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nobody asks for one, none is got."""
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path))
    there = await serve()
    for auth in ("oauth", AuthorizationCode("http://127.0.0.1:8976/callback")):
        async with Client(there.url, auth=auth) as client:
            await client.list_tools()
    assert all("authorization" not in item.headers for item in there.seen)


# fastmcp.json

FASTMCP_SERVER = "from portico import Server\n\nmcp = Server('configured')\nother = Server('other')\n"


@pytest.mark.parametrize(
    "source, name",
    [
        ({"type": "filesystem", "path": "s.py", "entrypoint": "mcp"}, "configured"),
        ({"path": "s.py", "entrypoint": "other"}, "other"),
    ],
)
async def test_fastmcp_json_names_a_server(tmp_path: Path, source: Any, name: str) -> None:
    (tmp_path / "s.py").write_text(FASTMCP_SERVER)
    config = tmp_path / "fastmcp.json"
    config.write_text(json.dumps({"source": source, "environment": {"dependencies": ["httpx"]}}))
    async with Client(str(config)) as client:
        assert client.server_info is not None and client.server_info.name == name


@pytest.mark.parametrize(
    "source, says",
    [
        ({"type": "git", "path": "s.py"}, "unsupported source type 'git'"),
        ({"path": "gone.py"}, "must be a Python file, got 'gone.py'"),
        ({"entrypoint": "mcp"}, "must be an object with a `path`"),
        ({"path": "s.py", "entrypoint": 3}, "must be a string"),
    ],
)
def test_fastmcp_json_that_is_not_simple_is_rejected_with_a_reason(tmp_path: Path, source: Any, says: str) -> None:
    (tmp_path / "s.py").write_text(FASTMCP_SERVER)
    config = tmp_path / "fastmcp.json"
    config.write_text(json.dumps({"source": source}))
    with pytest.raises(UsageError, match=says):
        Client(str(config))


PROBE = """
import os, sys
from portico import Server
mcp = Server("probe")
@mcp.tool
def probe() -> list[str]:
    return [os.environ["GREETING"], os.path.basename(os.getcwd()), *sys.argv[1:]]
"""


async def test_fastmcp_json_deployment_is_applied_in_a_child_process(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(PROBE)
    (tmp_path / "inner").mkdir()
    config = tmp_path / "fastmcp.json"
    deployment = {"env": {"GREETING": "hello ${UNSET_NAME} ${HOME}"}, "cwd": "inner", "args": ["--x"]}
    # A client speaks to it on stdio, whatever it is deployed with.
    deployment |= {"transport": "http", "port": 1}
    config.write_text(json.dumps({"source": {"path": "s.py"}, "deployment": deployment}))
    before = os.getcwd()
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(str(config)) as client:
        result = await client.call_tool("probe")
    assert result.data == [f"hello ${{UNSET_NAME}} {os.environ['HOME']}", "inner", "--x"]
    assert os.getcwd() == before and "GREETING" not in os.environ


@pytest.mark.parametrize("deployment", [{"port": "x"}, {"transport": "carrier-pigeon"}, {"env": ["A"]}])
def test_deployment_that_is_not_valid_is_rejected(tmp_path: Path, deployment: dict[str, Any]) -> None:
    (tmp_path / "s.py").write_text(FASTMCP_SERVER)
    config = tmp_path / "fastmcp.json"
    config.write_text(json.dumps({"source": {"path": "s.py", "entrypoint": "mcp"}, "deployment": deployment}))
    with pytest.raises(UsageError, match="invalid `deployment`"):
        Client(str(config))
