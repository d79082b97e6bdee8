"""Agent frameworks find and call a tool over stdio and HTTP.

Each is a script in an environment of its own, which has nothing of ours; the models are scripted: there is no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HELLO = [sys.executable, "-m", "portico", "serve", str(HERE.parent.parent.parent / "examples" / "hello.py")]
# Beside the environment of the peers, or in that of the other tests.
PLACES = [Path(sys.prefix).parent / "agents", Path(sys.prefix) / "agents"]
PYTHON = next((python for place in PLACES if (python := place / "bin" / "python").exists()), None)
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    child = subprocess.Popen([*HELLO, "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        yield child.stderr.readline().removeprefix("Serving on ").strip()
    finally:
        child.terminate()
        child.communicate(timeout=TIMEOUT_SECONDS)


@pytest.mark.skipif(PYTHON is None, reason="The agents are not installed; `make test-all` does it, in .venv/agents.")
@pytest.mark.parametrize("agent", ["langchain", "pydantic_ai", "openai", "google_adk"])
def test_agent_finds_a_tool_and_calls_it(agent: str, url: str, tmp_path: Path) -> None:
    # What they would like to send home has nowhere to go.
    env = {**os.environ, "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(
        [str(PYTHON), HERE / f"with_{agent}.py", url, *HELLO],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [["greet"], "Hello, Ibsen!"]
    assert json.loads(done.stdout.splitlines()[-1]) == {"stdio": expected, "http": expected}
