"""Every example runs as a file and with `portico serve`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from portico import Client
from portico_gateway import Gateway
from support.paths import ROOT

EXAMPLES = ROOT / "examples"
SERVERS = sorted(
    path
    for path in EXAMPLES.glob("*.py")
    # Not ToolSearchServer.
    if re.search(r"\bServer\(", path.read_text()) and "test_" not in path.name
)

ASKING = [
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
]


@pytest.mark.parametrize("way", ["file", "serve"])
@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.stem)
def test_example_serves_and_its_tools_are_described(path: Path, way: str) -> None:
    command = [str(path)] if way == "file" else ["-m", "portico", "serve", str(path)]
    done = subprocess.run(
        [sys.executable, *command],
        input="".join(json.dumps(message) + "\n" for message in ASKING),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hello, listed = map(json.loads, done.stdout.splitlines())
    assert hello["result"]["serverInfo"]["version"]
    assert listed["result"]["tools"]
    assert all(tool["description"] for tool in listed["result"]["tools"])


@pytest.mark.parametrize("target", [[], ["portico serve examples/weather.py"]], ids=["in this process", "a command"])
def test_agent_receives_responses(target: list[str]) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "agent.py"), *target],
        cwd=EXAMPLES.parent,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "['forecast']" in done.stdout
    assert "Forecast(city='Rome', summary='3 days of sun', unit='celsius')" in done.stdout
    assert "protocol error: Unknown tool: no_such_tool" in done.stdout


async def test_agent_example_works_without_asyncio_and_watches_notes() -> None:
    agent, notes = load("agent"), load("notes")
    assert await asyncio.to_thread(agent.without_asyncio, str(EXAMPLES / "weather.py")) == {
        "city": "Oslo",
        "summary": "3 days of sun",
        "unit": "celsius",
    }
    assert "connection failed" in await agent.call_safely("http://127.0.0.1:9/mcp", "any")
    watching = asyncio.create_task(agent.watch(notes.server, "milk"))
    async with asyncio.timeout(10), Client(notes.server) as client:
        await client.call_tool("write_note", {"note": {"title": "milk", "text": "two bottles"}})
        while not watching.done():
            notes.server.notify_resource_updated("notes://milk")
            await asyncio.sleep(0.01)
    assert "two bottles" in await watching


def test_every_authentication_example_creates_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_TOKEN", "t")
    monkeypatch.setenv("EXAMPLE_SECRET", "s")
    module = load("client_auth")
    for create_client in module.EXAMPLES:
        create_client()
    module.with_workload_identity("ey")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_tests_in_the_examples_pass() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            str(EXAMPLES.parent / "pyproject.toml"),
            "--confcutdir",
            str(EXAMPLES),
            str(EXAMPLES),
        ],
        cwd=EXAMPLES,
        env={"PYTHONPATH": str(EXAMPLES), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


async def test_office_is_as_it_was_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    gateway = Gateway.load("examples/office.toml", max_result_tokens=0)
    async with Client(gateway.views["readers"]) as client:
        tools = {tool.name: tool.description for tool in await client.list_tools()}
        assert tools.keys() == {"notes_find_notes", "weather_forecast"}
        assert tools["weather_forecast"] == "The weather where the office is."
        assert client.instructions == "Look, and change nothing."
    assert {pin.status for pin in gateway.list_pins()} == {"as pinned"}, "`portico pins approve examples/office.toml`"
