"""Each example runs alone: as a file, and through `portico serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SERVERS = sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))

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
def test_an_example_serves_and_its_tools_are_described(path: Path, way: str) -> None:
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


def test_the_tests_in_the_examples_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(EXAMPLES.parent / "pyproject.toml"), str(EXAMPLES)],
        cwd=EXAMPLES,
        env={"PYTHONPATH": str(EXAMPLES), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
