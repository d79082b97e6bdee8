"""Clients of other projects, ten connections each, with several processes that share a PostgreSQL.

Behind nginx requests take turns between two servers that know of each other by their store alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from support import debian, mcp_sdk_v1, nginx, node
from support.node_scripts import Conversation

HERE = Path(__file__).resolve().parent
CONNECTIONS = 10
TIMEOUT_SECONDS = 30.0
SAID = re.compile(r"(?:Serving|Uvicorn running) on (http://127\.0\.0\.1:\d+)")
STEPS = [0, 50, 100]


@contextmanager
def running(*words: str, begins: int = 0, **env: str) -> Iterator[str]:
    """A program that serves; where. `begins`: how many of its processes have to say that they do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTICO_")}
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env={**environment, **env},
    )
    assert process.stderr is not None
    too_long = threading.Timer(TIMEOUT_SECONDS, process.kill)
    too_long.start()
    match = None
    for line in process.stderr:
        match = SAID.search(line) or match
        begins -= "startup complete" in line
        if match and begins <= 0:
            break
    too_long.cancel()
    listener = threading.Thread(target=process.stderr.read)
    listener.start()
    try:
        assert match is not None
        yield f"{match[1]}/mcp"
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        listener.join()
        process.stderr.close()


@pytest.fixture(scope="module", params=["workers", "uvicorn", "nginx"])
def fleet(request, postgres_server, tmp_path_factory) -> Iterator[str]:
    """The URL of a server that is several processes."""
    url = postgres_server.create_database()
    folders = [str(tmp_path_factory.mktemp(name)) for name in ("one", "two")]
    # Processes that share PostgreSQL need a key that is not stored there.
    shared = {"PORTICO_STORE": url, "PORTICO_ENCRYPTION_KEYS": "a key for these tests"}
    envs = [{**shared, "TMPDIR": folder} for folder in folders]
    serve = partial(running, "portico", "serve", "worker_server.py:server", "--transport", "http", "--port", "0")
    with ExitStack() as stack:
        if request.param == "workers":
            yield stack.enter_context(serve("--workers", "2", **envs[0]))
        elif request.param == "uvicorn":
            words = ("uvicorn", "worker_server:app", "--port", "0", "--workers", "2")
            yield stack.enter_context(running(*words, begins=2, **envs[0]))
        else:
            ports = [int(stack.enter_context(serve(**env)).split(":")[2].partition("/")[0]) for env in envs]
            try:
                port = stack.enter_context(nginx.in_front_of(*ports, pooled=4))
            except debian.NotInstalled as why:
                debian.without(why)
            yield f"http://127.0.0.1:{port}/mcp"


async def together(connected):
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await connected.wait()


def judge(said, revision):
    """What ten connections have seen."""
    assert len(said) == CONNECTIONS
    for number, one in enumerate(said):
        assert one["revision"] == revision
        assert one["call"] == "This is a simple text response for testing."
        assert f"user {number}" in one["elicitation"]
        assert "Paris" in one["sampling"]
        assert one["progress"] == ["Completed all steps.", STEPS]
        assert one["resumption"] == "Here it is, on another connection."
        if "tools" in one:
            assert "extra" in one["tools"]


@pytest.mark.parametrize(
    ("client", "revision"),
    [("official", "2025-11-25"), ("official", "2026-07-28"), ("fastmcp", "2025-11-25")],
)
async def test_python_clients_of_today(fleet, connect_at, client, revision):
    """The official SDK of the second generation, and FastMCP."""
    connected = asyncio.Barrier(CONNECTIONS)

    async def one(number):
        steps = []

        async def on_progress(progress, total, message):
            steps.append(progress)

        async with connect_at(fleet, client, revision) as peer:
            peer.person.content = {"username": f"user {number}", "email": "a@b.example"}

            async def text(tool, arguments=None, on_progress=None):
                return (await peer.call(tool, arguments or {}, on_progress)).content[0].text

            said = {
                "revision": peer.revision,
                "call": await text("test_simple_text"),
                "elicitation": await text("test_elicitation", {"message": "Who?"}),
                "sampling": await text("test_sampling", {"prompt": "The capital of France?"}),
                "progress": [await text("test_tool_with_progress", None, on_progress), steps],
                "resumption": await text("test_reconnection"),
            }
            await together(connected)
            if not peer.modern:
                if number == 0:
                    await text("grow")
                await peer.heard.wait_for(lambda: peer.heard.of("tools/list_changed"))
                said["tools"] = [tool.name for tool in await peer.tools()]
                await together(connected)
                if number == 0:
                    await text("shrink")
                # Who leaves before it is told complains of what it is told.
                await peer.heard.wait_for(lambda: len(peer.heard.of("tools/list_changed")) == 2)
            return said

    judge(await asyncio.gather(*(one(number) for number in range(CONNECTIONS))), revision)


def test_official_python_client_of_the_first_generation(fleet):
    try:
        python = mcp_sdk_v1.python()
    except node.NotInstalled as why:
        debian.without(why)
    done = subprocess.run(
        [python, HERE / "sdk_v1_client.py", fleet], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    judge(json.loads(done.stdout), "2025-11-25")


@pytest.mark.parametrize(("client", "revision"), [("v1", "2025-11-25"), ("v2", "2025-11-25"), ("v2", "2026-07-28")])
def test_typescript_clients(fleet, scripts, client, revision):
    judge(Conversation(scripts.run(f"{client}.mjs", revision, "ten", fleet))["ten"], revision)
