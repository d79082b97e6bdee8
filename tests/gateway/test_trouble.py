"""One upstream that is dead, hangs or misbehaves harms no other; and everything comes back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Gateway, ToolError
from portico.gateway import lane, routes
from portico.wire.errors import Unknown
from portico.wire.revisions import REVISIONS

SERVER = [sys.executable, str(Path(__file__).parent / "asking_server.py")]
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
    monkeypatch.setattr(routes, "FIRST_SECONDS", 0.5)


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


@pytest.mark.parametrize("revision", [REVISIONS[-2], REVISIONS[-1]])
@pytest.mark.parametrize("how", BROKEN)
async def test_a_broken_one_harms_no_other(how: str, revision: Any) -> None:
    gateway = Gateway({"broken": BROKEN[how], "one": SERVER})
    async with Client(gateway, revision=revision) as client:
        await listed(client, "one_add")
        assert (await client.call_tool("one_add", {"a": 1, "b": 2})).text == "3"
    states = {one["alias"]: one for one in gateway.status()}
    assert states["one"]["up"]
    assert not states["broken"]["listed"]


async def test_a_call_to_a_dead_one_fails_at_once_and_says_why(tmp_path: Path) -> None:
    """Its tools are listed all the same."""
    flag = tmp_path / "dead"
    gateway = Gateway({"mortal": [sys.executable, str(mortal(tmp_path)), str(flag)]})
    async with Client(gateway) as client:
        await gateway.settle(20)
        assert {tool.name for tool in await client.list_tools()} == {"mortal_work", "mortal_die"}
        assert (await client.call_tool("mortal_work")).text == "done"
        flag.touch()
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_die")
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_work")
        # By now it is known to be away, and not asked.
        with pytest.raises(ToolError, match=r"mortal does not answer since .*It is tried again in \d+ s"):
            await client.call_tool("mortal_work")
        assert {tool.name for tool in await client.list_tools()} == {"mortal_work", "mortal_die"}
        flag.unlink()
        gateway._routes.upstreams["mortal"].health.shared._until = 0.0
        assert (await client.call_tool("mortal_work")).text == "done"
        assert gateway.status()[0]["up"]


async def test_lists_are_there_before_the_upstream_is(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/gateway.db"
    flag = tmp_path / "dead"
    command = [sys.executable, str(mortal(tmp_path)), str(flag)]
    gateway = Gateway({"mortal": command}, store=store)
    async with Client(gateway) as client:
        await gateway.settle(20)
        before = [tool.name for tool in await client.list_tools()]
    flag.touch()
    gateway = Gateway({"mortal": command}, store=store)
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


async def test_one_that_refuses_to_begin_is_away() -> None:
    gateway = Gateway({"a": [sys.executable, "-c", REFUSES]})
    async with Client(gateway) as client:
        await client.list_tools()
        await gateway.settle(20)
        (state,) = gateway.status()
        assert (state["up"], state["error"]) == (False, "no licence")


async def test_a_list_that_is_refused_hides_no_other() -> None:
    gateway = Gateway({"a": [sys.executable, "-c", ONE_LIST]})
    async with Client(gateway) as client:
        await listed(client, "a_work")


@pytest.mark.parametrize("below", [REVISIONS[-2], REVISIONS[-1]])
async def test_a_client_that_can_be_asked_is_told_why_too(tmp_path: Path, below: Any) -> None:
    flag = tmp_path / "dead"
    gateway = Gateway()
    gateway.add("mortal", [sys.executable, str(mortal(tmp_path)), str(flag)], revision=below)
    async with Client(gateway, elicitation_handler=lambda params: None) as client:  # type: ignore[arg-type,return-value]
        await listed(client, "mortal_work")
        flag.touch()
        for _ in range(2):
            with pytest.raises(ToolError, match="mortal"):
                await client.call_tool("mortal_die")
        assert not gateway.status()[0]["up"]


async def test_many_calls_wait_for_one_attempt_to_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "dead"
    gateway = Gateway({"mortal": [sys.executable, str(mortal(tmp_path)), str(flag)]})
    async with Client(gateway) as client:
        await listed(client, "mortal_work")
        flag.touch()
        with pytest.raises(ToolError, match="mortal"):
            await client.call_tool("mortal_die")
        attempts = []
        start = lane.Lane.open

        async def counted(self: lane.Lane) -> None:
            attempts.append(self)
            await start(self)

        monkeypatch.setattr(lane.Lane, "open", counted)
        said = await asyncio.gather(*(client.call_tool("mortal_work") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(one, ToolError) for one in said)
        assert len(attempts) == 1


async def test_a_first_list_waits_once_for_one_that_hangs() -> None:
    gateway = Gateway({"hangs": BROKEN["hangs"]})
    async with Client(gateway) as client:
        await client.list_tools()
        assert gateway._routes.upstreams["hangs"].left_of(routes.FIRST_SECONDS) == 0.0


async def test_what_a_child_said_last_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    says = [sys.executable, "-c", "import sys; sys.exit('Traceback: my own')"]
    gateway = Gateway({"says": says})
    async with Client(gateway) as client:
        await client.list_tools()
        await gateway.settle(20)
        assert "my own" in gateway.status()[0]["error"] and "my own" in caplog.text
        assert "my own" not in str(gateway._routes.upstreams["says"].health.shared.refusal("says"))


async def test_an_upstream_can_be_removed_before_anything_runs() -> None:
    gateway = Gateway({"one": SERVER})
    gateway.remove("one")
    async with Client(gateway) as client:
        assert await client.list_tools() == []


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_tool_of_one_that_was_never_there_is_not_said_to_be_unknown(revision: Any) -> None:
    """A client may know it from before; it is told who is away, and when to try again."""
    gateway = Gateway({"away": ["/nowhere/server"]})
    gateway.add("plain", ["/nowhere/server"], prefix="", exclude=["secret"])
    hiding = gateway.add_view("hiding", exclude=["away.*"])
    async with Client(gateway, revision=revision) as client:
        said = await client.call_tool("away_work", raise_on_error=False)
        assert said.is_error
        assert "away does not answer since" in said.text
        assert "It is tried again in" in said.text
        with pytest.raises(Unknown):
            await client.call_tool("away")
    async with Client(hiding, revision=revision) as client:
        with pytest.raises(Unknown):
            await client.call_tool("away_work")
