"""A dead, hanging or misbehaving upstream does not affect others, and recovers."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, ToolError
from portico.protocol.errors import ComponentNotFound
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call
from portico.secret_references import SecretResolver
from portico_gateway import Gateway
from portico_gateway.gateway import connection, settings as config
from support.paths import PROGRAMS

SERVER = [sys.executable, str(PROGRAMS / "elicitation_server.py")]
# What may go wrong with a child process, each as a program.
BROKEN = {
    "no program": ["/there/is/no/such/program"],
    "ends at once": [sys.executable, "-c", ""],
    "ends with noise": [sys.executable, "-c", "print('hello'); raise SystemExit(3)"],
    "half a JSON": [sys.executable, "-c", "import sys; sys.stdin.readline(); print('{\"jsonrpc\":', flush=True)"],
    "hangs": [sys.executable, "-c", "import time; time.sleep(1000)"],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gateway, "first_list_seconds", 0.5)


def mortal(tmp_path: Path) -> Path:
    """A server that does not start while a file is there, the path of which it is given."""
    script = tmp_path / "mortal.py"
    script.write_text(
        "import os, sys\n"
        "if os.path.exists(sys.argv[1]):\n    raise SystemExit(1)\n"
        "from portico import Server\n"
        "server = Server('mortal')\n"
        "@server.tool\nasync def work() -> str:\n    return 'done'\n"
        "@server.tool\nasync def die() -> str:\n    os._exit(1)\n"
        "server.run()\n"
    )
    return script


async def listed(client: Client, name: str) -> None:
    async with asyncio.timeout(20):
        while name not in {tool.name for tool in await client.list_tools()}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("revision", [SUPPORTED_PROTOCOL_VERSIONS[-2], SUPPORTED_PROTOCOL_VERSIONS[-1]])
@pytest.mark.parametrize("how", BROKEN)
async def test_broken_one_harms_no_other(how: str, revision: Any) -> None:
    gateway = Gateway({"broken": BROKEN[how], "one": SERVER}, max_result_tokens=0)
    async with Client(gateway, protocol_version=revision) as client:
        await listed(client, "one_add")
        assert (await client.call_tool("one_add", {"a": 1, "b": 2})).text == "3"
    states = {status_item["alias"]: status_item for status_item in gateway.status()}
    assert states["one"]["up"]
    assert not states["broken"]["listed"]


async def test_call_to_a_dead_one_fails_at_once_and_says_why(tmp_path: Path) -> None:
    """Its tools are listed all the same."""
    flag = tmp_path / "dead"
    gateway = Gateway({"mortal": [sys.executable, str(mortal(tmp_path)), str(flag)]}, max_result_tokens=0)
    async with Client(gateway) as client:
        await gateway.wait_until_listed(20)
        assert {tool.name for tool in await client.list_tools()} == {"mortal_work", "mortal_die"}
        assert (await client.call_tool("mortal_work")).text == "done"
        flag.touch()
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_die")
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_work")
        # By now it is known to be away, and not asked.
        with pytest.raises(ToolError, match=r"mortal is unavailable since .*The next attempt is in \d+ s"):
            await client.call_tool("mortal_work")
        assert {tool.name for tool in await client.list_tools()} == {"mortal_work", "mortal_die"}
        flag.unlink()
        gateway._router.upstreams["mortal"].health.shared._until = 0.0
        assert (await client.call_tool("mortal_work")).text == "done"
        assert gateway.status()[0]["up"]


async def test_lists_are_there_before_the_upstream_is(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/gateway.db"
    flag = tmp_path / "dead"
    command = [sys.executable, str(mortal(tmp_path)), str(flag)]
    gateway = Gateway({"mortal": command}, store=store, max_result_tokens=0)
    async with Client(gateway) as client:
        await gateway.wait_until_listed(20)
        before = [tool.name for tool in await client.list_tools()]
    flag.touch()
    gateway = Gateway({"mortal": command}, store=store, max_result_tokens=0)
    async with Client(gateway) as client:
        assert [tool.name for tool in await client.list_tools()] == before == ["mortal_work", "mortal_die"]
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_work")


REFUSES = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if "id" in said:
        error = {"code": -32603, "message": "no licence"}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "error": error}), flush=True)
"""
ONE_LIST = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if "id" not in said:
        continue
    answer = {"error": {"code": -32603, "message": "boom"}}
    if said["method"] == "initialize":
        able = {"tools": {}, "prompts": {}, "resources": {}}
        about = {"name": "x", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": about}}
    elif said["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **answer}), flush=True)
"""


async def test_upstream_that_rejects_initialization_is_unavailable() -> None:
    gateway = Gateway({"a": [sys.executable, "-c", REFUSES]}, max_result_tokens=0)
    async with Client(gateway) as client:
        await client.list_tools()
        await gateway.wait_until_listed(20)
        (state,) = gateway.status()
        assert (state["up"], state["error"]) == (False, "no licence")


async def test_rejected_list_hides_no_other() -> None:
    gateway = Gateway({"a": [sys.executable, "-c", ONE_LIST]}, max_result_tokens=0)
    async with Client(gateway) as client:
        await listed(client, "a_work")


@pytest.mark.parametrize("below", [SUPPORTED_PROTOCOL_VERSIONS[-2], SUPPORTED_PROTOCOL_VERSIONS[-1]])
async def test_client_with_elicitation_also_gets_the_reason(tmp_path: Path, below: Any) -> None:
    flag = tmp_path / "dead"
    gateway = Gateway(max_result_tokens=0)
    gateway.add_upstream("mortal", [sys.executable, str(mortal(tmp_path)), str(flag)], protocol_version=below)
    async with Client(gateway, elicitation_handler=lambda params: None) as client:  # type: ignore[arg-type,return-value]
        await listed(client, "mortal_work")
        flag.touch()
        for _ in range(2):
            with pytest.raises(ToolError, match="mortal"):
                await client.call_tool("mortal_die")
        assert not gateway.status()[0]["up"]


async def test_many_calls_wait_for_one_attempt_to_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "dead"
    gateway = Gateway({"mortal": [sys.executable, str(mortal(tmp_path)), str(flag)]}, max_result_tokens=0)
    async with Client(gateway) as client:
        await listed(client, "mortal_work")
        flag.touch()
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_die")
        attempts = []
        start = connection.UpstreamConnection.open

        async def counted(self: connection.UpstreamConnection) -> None:
            attempts.append(self)
            await start(self)

        monkeypatch.setattr(connection.UpstreamConnection, "open", counted)
        result = await asyncio.gather(*(client.call_tool("mortal_work") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(item, ToolError) for item in result)
        assert len(attempts) == 1


async def test_first_list_waits_once_for_a_hanging_upstream() -> None:
    gateway = Gateway({"hangs": BROKEN["hangs"]}, max_result_tokens=0)
    async with Client(gateway) as client:
        await client.list_tools()
        assert gateway._router.upstreams["hangs"].remaining_list_timeout(gateway.first_list_seconds) == 0.0


async def test_child_stderr_is_logged_and_not_sent_to_clients(caplog: pytest.LogCaptureFixture) -> None:
    says = [sys.executable, "-c", "import sys; sys.exit('Traceback: my own')"]
    gateway = Gateway({"says": says}, max_result_tokens=0)
    async with Client(gateway) as client:
        await client.list_tools()
        await gateway.wait_until_listed(20)
        assert "my own" in gateway.status()[0]["error"] and "my own" in caplog.text
        assert "my own" not in str(gateway._router.upstreams["says"].health.shared.unavailable_error("says"))


async def test_upstream_can_be_removed_before_anything_runs() -> None:
    gateway = Gateway({"one": SERVER}, max_result_tokens=0)
    gateway.remove_upstream("one")
    async with Client(gateway) as client:
        assert await client.list_tools() == []


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_tool_of_unreachable_upstream_is_not_reported_unknown(revision: Any) -> None:
    """A client may know it from before; it is told who is away, and when to try again."""
    gateway = Gateway({"away": ["/nowhere/server"]}, max_result_tokens=0)
    gateway.add_upstream("plain", ["/nowhere/server"], prefix="", exclude=["secret"])
    hiding = gateway.add_view("hiding", exclude=["away.*"])
    async with Client(gateway, protocol_version=revision) as client:
        result = await client.call_tool("away_work", raise_on_error=False)
        assert result.is_error
        assert "away is unavailable since" in result.text
        assert "The next attempt is in" in result.text
        with pytest.raises(ComponentNotFound):
            await client.call_tool("away")
    async with Client(hiding, protocol_version=revision) as client:
        with pytest.raises(ComponentNotFound):
            await client.call_tool("away_work")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_addresses_of_upstreams_are_for_the_log(revision: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Clients get an error id, by which the operator finds the address, the command or the secret's file."""
    gateway = Gateway(
        {"web": "http://127.0.0.1:9/internal/mcp", "program": ["/srv/inner/program", "--inner-option"]},
        max_result_tokens=0,
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("INNER_VARIABLE", raising=False)
        settings = config.parse_settings(
            {"upstream": {"secret": {"url": "http://x/", "headers": {"a": "${file:/run/inner/secret}"}}}},
            SecretResolver(),
        )
    gateway._add_upstream(settings.upstreams["secret"])
    texts = []
    async with Client(gateway, protocol_version=revision) as client:
        for alias in ("web", "program"):
            for _ in range(2):
                result = await client.call_tool(f"{alias}_work", raise_on_error=False)
                texts.append(f"{result.text} {result.meta}")
        texts.append(str(await client.list_tools()))
        with pytest.raises(Exception) as refusal:
            await gateway._router.upstreams["secret"].connections.acquire(Call(method="tools/call", id=1))
        texts.append(str(refusal.value))
    for text in texts:
        assert not any(inner in text for inner in ("127.0.0.1", ":9", "inner", "internal", "/srv", "/run"))
    error = re.search(r"error id (\w+)", texts[0])
    assert error is not None
    assert any(error[1] in message and "127.0.0.1:9" in message for message in caplog.messages)


NO_COMPLETION = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if "id" not in said:
        continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if said["method"] == "initialize":
        about = {"name": "x", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"prompts": {}}, "serverInfo": about}}
    elif said["method"] == "prompts/list":
        answer = {"result": {"prompts": [{"name": "work"}]}}
    elif said["method"] == "prompts/get":
        answer = {"result": 7} if said["params"].get("arguments") else {}
    print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **answer}), flush=True)
"""


async def test_errors_of_the_protocol_name_the_alias_and_not_the_program(tmp_path: Path) -> None:
    program = tmp_path / "inner-program"
    program.write_text(f"#!{sys.executable}\n{NO_COMPLETION}")
    program.chmod(0o700)
    gateway = Gateway(max_result_tokens=0)
    gateway.add_upstream("a", [str(program)], protocol_version="2025-11-25", timeout=5)
    async with Client(gateway) as client:
        await gateway.wait_until_listed(20)
        for attempt in (
            client.complete({"type": "ref/prompt", "name": "a_work"}, "x", "y"),
            client.get_prompt("a_work", {"x": "y"}),
            client.get_prompt("a_work"),
        ):
            with pytest.raises(Exception) as refusal:
                await attempt
            assert "inner-program" not in str(refusal.value)


async def test_refresh_of_a_closed_upstream_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway({"asking": SERVER})
    upstream = gateway._router.upstreams["asking"]
    async with Client(gateway) as client:
        await client.list_tools()
    # A change was announced while the gateway closed.
    await upstream._try_refresh(("tools/list",))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
