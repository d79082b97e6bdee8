"""A client and its server process: start and end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from portico import Client
from portico.protocol.errors import ConnectError, ConnectionClosed, ProtocolError, RequestTimeout
from portico.protocol.versions import HANDSHAKE_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_PROTOCOL_VERSION
from portico.transports import version_discovery
from support.paths import ROOT

HELLO = [sys.executable, "-m", "portico", "serve", str(ROOT / "examples" / "hello.py")]

# A server of the handshake revisions, in a few lines: what it does with a question from before is told by its argument.
OLD = """
import json, sys
habit = sys.argv[1]
for line in sys.stdin:
    said = json.loads(line)
    if said.get("method") == "initialize":
        who = {"name": "old", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": who}
    elif said.get("method") == "tools/list":
        result = {"tools": []}
    elif "id" not in said:
        continue
    elif habit == "exits":
        sys.exit(1)
    elif habit == "is silent":
        continue
    else:
        error = {"code": int(habit), "message": "?"}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "error": error}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("revision", [None, LATEST_PROTOCOL_VERSION, *HANDSHAKE_VERSIONS])
async def test_command_is_started_and_spoken_to(revision: str | None) -> None:
    async with Client(HELLO, protocol_version=revision) as client:
        assert client.protocol_version == (revision or LATEST_PROTOCOL_VERSION)
        assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
        assert client.server_info is not None
        assert client.server_info.name == "hello"


@pytest.mark.requirement("lifecycle.client-newest", "discover.not-one-code")
@pytest.mark.parametrize("habit", ["-32601", "-32602", "-32000", "-32600", "exits", "is silent"])
async def test_older_server_is_detected_by_any_response(habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """basic/lifecycle, 2026-07-28: the way back to `initialize` must not hang on one code."""
    monkeypatch.setattr(version_discovery, "DISCOVER_TIMEOUT_SECONDS", 1.0)
    async with Client([sys.executable, "-c", OLD, habit]) as client:
        assert client.protocol_version == LATEST_HANDSHAKE_VERSION
        assert await client.list_tools() == []


@pytest.mark.requirement("discover.not-one-code")
async def test_modern_error_is_no_reason_to_try_the_old_way() -> None:
    with pytest.raises(ProtocolError) as raised:
        async with Client([sys.executable, "-c", OLD, "-32021"]):
            pass
    assert raised.value.code == -32021


async def test_missing_command_is_said_to_be_so() -> None:
    with pytest.raises(ConnectError, match="no-such-program"):
        async with Client(["no-such-program"]):
            pass


async def test_last_words_of_a_server_are_in_the_error() -> None:
    dying = "import sys; sys.stdin.readline(); print('out of cheese', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ConnectionClosed, match="out of cheese"):
        async with Client([sys.executable, "-c", dying], protocol_version=LATEST_PROTOCOL_VERSION):
            pass


async def test_answer_beyond_the_bound_is_an_error_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(HELLO) as client:
        client._upstream.transport._lines.max_line_bytes = 1000  # type: ignore[attr-defined]
        with pytest.raises(ProtocolError, match="more than 1000 bytes"):
            await client.call_tool("greet", {"name": "x" * 5000})
        assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"


@pytest.mark.requirement("lifecycle.client-shutdown")
async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A server that does not end by itself is ended, and its own children with it."""
    pids = tmp_path / "pids"
    stubborn = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(60)\n"
    )
    seconds = 1.0
    while not pids.exists():
        # A busy machine may not come to start it within the time; then there is nothing to be left behind.
        with pytest.raises(RequestTimeout):
            async with Client(
                [sys.executable, "-c", stubborn], protocol_version=LATEST_PROTOCOL_VERSION, timeout=seconds
            ):
                pass
        seconds *= 2
        assert seconds < 60
    # They were ended when the client was, and a busy machine may take a while to see to it.
    server, child = map(int, pids.read_text().split())
    async with asyncio.timeout(20):
        await until(lambda: not alive(server) and not alive(child))


async def test_killed_client_takes_its_servers_with_it(tmp_path: Path) -> None:
    """Also those that do not notice, and their own children: there is nobody left to end them but the watchdog."""
    pids = tmp_path / "pids"
    deaf = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(60)\n"
    )
    program = (
        "import asyncio\nfrom portico import Client\n"
        f"asyncio.run(Client([{sys.executable!r}, '-c', {deaf!r}], timeout=50).connect())\n"
    )
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    async with asyncio.timeout(50):
        await until(pids.exists)
        client.kill()
        await client.wait()
        server, grandchild = map(int, pids.read_text().split())
        await until(lambda: not alive(server) and not alive(grandchild))


async def until(true: Callable[[], bool]) -> None:
    """Other processes cannot be awaited, so they are looked at; whoever calls this sees that there is an end to it."""
    for _ in iter(true, True):
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.requirement("stdio.environment")
async def test_child_is_not_shown_the_secrets_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    server = (
        "import os\nfrom portico import Server\nserver = Server('environment', version='1')\n"
        "@server.tool\ndef names() -> list[str]:\n    return sorted(os.environ)\nserver.run()\n"
    )
    monkeypatch.setenv("SOME_API_KEY", "secret")
    async with Client([sys.executable, "-c", server], env={"ASKED": "for"}) as client:
        names = (await client.call_tool("names")).data
    assert "SOME_API_KEY" not in names
    assert {"PATH", "ASKED"} <= set(names)
