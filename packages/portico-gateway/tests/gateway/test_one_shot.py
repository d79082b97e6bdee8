"""One-shot clients and commands wait for the configured servers and report missing ones."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from portico import Client, SyncClient, ToolError
from portico.cli.main import main
from portico.transports import process
from portico_gateway import Gateway

# Each server starts later than the short wait of a list.
SLOW = """
import time
time.sleep(0.3)
from portico import Server
server = Server("slow")
@server.tool
def f() -> str:
    return "done"
@server.prompt
def p() -> str:
    return "hello"
server.run()
"""
DEAD = "/there/is/no/such/program"
HANGS = [sys.executable, "-c", "import time; time.sleep(1000)"]
# Far longer than a start takes on a busy machine.
TIMEOUT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gateway, "first_list_seconds", 0.05)


def command(words: list[str]) -> dict[str, Any]:
    return {"command": words[0], "args": words[1:]}


@pytest.fixture
def slow(tmp_path: Path) -> list[str]:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    return [sys.executable, str(script)]


@pytest.fixture(params=["mcp.json", "gateway.toml"])
def configuration(request: pytest.FixtureRequest, tmp_path: Path, slow: list[str]) -> Path:
    """Two servers, of which one cannot be started."""
    file = tmp_path / str(request.param)
    if file.suffix == ".json":
        file.write_text(json.dumps({"mcpServers": {"slow": command(slow), "dead": {"command": DEAD}}}))
    else:
        file.write_text(f'[upstream.slow]\ncommand = {json.dumps(slow)}\n[upstream.dead]\ncommand = ["{DEAD}"]\n')
    return file


def run(*words: str | Path) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


async def test_client_waits_for_slow_servers(slow: list[str]) -> None:
    servers = {"mcpServers": {"one": command(slow), "two": command(slow)}}
    async with Client(servers, timeout=TIMEOUT_SECONDS) as client:
        assert {tool.name for tool in await client.list_tools()} == {"one_f", "two_f"}
        assert (await client.call_tool("two_f")).data == "done"
        assert client.missing_servers == {}


def test_sync_client_waits_for_slow_servers(slow: list[str]) -> None:
    with SyncClient({"mcpServers": {"one": command(slow), "two": command(slow)}}, timeout=TIMEOUT_SECONDS) as client:
        assert {tool.name for tool in client.list_tools()} == {"one_f", "two_f"}


async def test_client_names_missing_servers_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    servers = {"mcpServers": {"dead": {"command": DEAD}, "hangs": command(HANGS)}}
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(servers, timeout=1.0) as client:
        assert list(client.missing_servers) == ["dead", "hangs"]
        assert client.missing_servers["hangs"] == "no answer within 1 s"
        assert (
            f"dead is not available: cannot start '{DEAD}'" in caplog.text and "hangs is not available" in caplog.text
        )
        with pytest.raises(ToolError, match=f"dead .*cannot start '{DEAD}'"):
            await client.call_tool("dead_f")
        assert await client.list_tools() == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["list", "tools"], 3),
        (["list"], 3),
        (["inspect"], 3),
        (["call", "slow_f"], 0),
        (["prompt", "slow_p"], 0),
        (["call", "dead_f"], 3),
        (["call", "dead_f", "--arguments", "{}"], 3),
        (["call", "neither"], 3),
        (["prompt", "dead_p"], 3),
        (["read", "note://none"], 3),
    ],
)
def test_command_waits_and_reports_missing_servers(
    words: list[str], status: int, configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = 2 if words[:2] == ["list", "tools"] else 1
    assert run(*words[:at], configuration, *words[at:]) == status
    out, err = capsys.readouterr()
    if status:
        assert f"dead is not available: cannot start '{DEAD}'" in err
    else:
        # Servers to which the name does not belong are not reported.
        assert "dead" not in err
    if words[0] in ("list", "inspect"):
        assert "slow_f" in out


def test_doctor_reports_missing_servers(configuration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", configuration) == 1
    assert DEAD in capsys.readouterr().out


def test_call_waits_for_its_own_server_only(
    tmp_path: Path, slow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"slow": command(slow), "hangs": command(HANGS)}}))
    began = time.monotonic()
    assert run("call", file, "slow_f", "--timeout", "600") == 0
    assert time.monotonic() - began < 2 * TIMEOUT_SECONDS
    assert "hangs" not in capsys.readouterr().err


def test_command_reports_a_server_that_connects_and_fails_to_list(
    tmp_path: Path, slow: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    broken = [sys.executable, "-c", FAILS_TO_LIST]
    file.write_text(json.dumps({"mcpServers": {"slow": command(slow), "broken": command(broken)}}))
    assert run("list", "tools", file) == 3
    out, err = capsys.readouterr()
    assert "slow_f" in out and "broken is not available" in err and "out of order" in err


FAILS_TO_LIST = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": said["id"], "error": {"code": -32603, "message": "out of order"}}
    if said["method"] == "server/discover":
        about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        answer = {"jsonrpc": "2.0", "id": said["id"], "result": {"resultType": "complete", **about}}
    print(json.dumps(answer), flush=True)
"""


async def test_call_by_prefix_waits_for_a_slow_upstream(slow: list[str]) -> None:
    gateway = Gateway({"slow": slow, "hangs": HANGS}, max_result_tokens=0)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(gateway) as client:
        assert (await client.call_tool("slow_f")).data == "done"


async def test_timeout_error_names_the_upstream() -> None:
    gateway = Gateway(max_result_tokens=0)
    gateway.add_upstream("hangs", HANGS, timeout=0.5)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(gateway) as client:
        with pytest.raises(ToolError, match=r"hangs (has not responded|is unavailable)"):
            await client.call_tool("hangs_f")


async def test_upstream_that_never_answered_delays_no_further_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/gateway.db"
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(Gateway({"hangs": HANGS}, store=store, max_result_tokens=0)) as client,
    ):
        await client.list_tools()
    monkeypatch.setattr(Gateway, "first_list_seconds", 10 * TIMEOUT_SECONDS)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        Client(Gateway({"hangs": HANGS}, store=store, max_result_tokens=0), timeout=None) as client,
    ):
        assert await client.list_tools() == []


async def test_process_that_never_answered_is_ended_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_TIMEOUT_SECONDS", 10 * TIMEOUT_SECONDS)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(Gateway({"hangs": HANGS}, max_result_tokens=0)) as client:
        await client.list_tools()


async def test_applied_configuration_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "portico.gateway.configuration")
    file = tmp_path / "gateway.toml"
    rule = '[[rule]]\ntool = "{}"\n'
    file.write_text(f'[upstream.a]\ncommand = ["{DEAD}"]\n[upstream.b]\ncommand = ["{DEAD}"]\n{rule.format("*")}')
    gateway = Gateway.load(file, max_result_tokens=0)
    async with gateway.lifespan(), asyncio.timeout(TIMEOUT_SECONDS):
        file.write_text(f'[upstream.a]\ncommand = ["{DEAD}"]\n{rule.format("a.*")}')
        while "configuration applied" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "configuration applied: 1 rule changed, upstream b removed" in caplog.text


def test_check_writes_nothing_to_the_audit(tmp_path: Path) -> None:
    file, audit = tmp_path / "gateway.toml", tmp_path / "audit.db"
    file.write_text(f'[upstream.a]\ncommand = ["{DEAD}"]\n[audit]\nstore = "{audit}"\ndata_dir = "{tmp_path}/keys"\n')
    assert run("gateway", "check", file) == 1
    assert not audit.exists()


ASKS_FOR_ROOTS = """
import json, sys
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    if said.get("method") == "initialize":
        about = {"name": "x", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
        send(id=said["id"], result=result)
    elif said.get("method") == "notifications/initialized":
        send(id="roots", method="roots/list")
    elif said.get("id") == "roots":
        open(sys.argv[1], "w").write(json.dumps(said))
        send(method="notifications/tools/list_changed")
    elif said.get("method") == "tools/list":
        send(id=said["id"], result={"tools": []})
    elif "id" in said and "method" in said:
        send(id=said["id"], error={"code": -32601, "message": "unknown"})
"""


async def test_roots_are_empty_outside_of_calls(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    gateway = Gateway({"asks": [sys.executable, "-c", ASKS_FOR_ROOTS, str(answer)]}, max_result_tokens=0)
    async with asyncio.timeout(TIMEOUT_SECONDS), Client(gateway):
        await gateway.wait_until_listed(TIMEOUT_SECONDS)
        while not answer.exists() or not answer.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert json.loads(answer.read_text()).get("result") == {"roots": []}


@pytest.mark.parametrize("action", ["lock", "render", "codegen", "lint"])
def test_contracts_of_an_incomplete_configuration_are_rejected(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"dead": {"command": DEAD}, "gone": {"command": DEAD}}}))
    assert run("contracts", action, file) == 3
    printed = capsys.readouterr()
    assert printed.out == "" and "not every server of" in printed.err
    assert not (tmp_path / "contracts.lock").exists()
