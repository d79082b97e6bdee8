"""Several workers of other ASGI servers with a shared store."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from support.worker_processes import TIMEOUT_SECONDS, Fleet, HttpConnection, Session, application

RUNNING = re.compile(r"Uvicorn running on http://127\.0\.0\.1:(\d+)")


@pytest.fixture
async def uvicorn(start: Any, server_file: Path) -> Any:
    """`await uvicorn(store)` is a Fleet of two, and its port."""

    async def begin(
        *words: str, made: str = "server.http_app()", env: dict[str, str] | None = None
    ) -> tuple[Fleet, int]:
        folder = application(server_file, made)
        program = ("-m", "uvicorn", "served:app", "--port", "0", *words)
        fleet = await start(*program, cwd=folder, env={"PYTHONPATH": str(folder), **(env or {})}, ready=False)
        await fleet.wait_until(
            lambda: (
                sum("startup complete" in text for text in fleet.log) == (2 if words else 1)
                and any(map(RUNNING.search, fleet.log))
            )
        )
        match = next(filter(None, (RUNNING.search(text) for text in fleet.log)))
        return fleet, int(match[1])

    return begin


async def test_sessions_find_their_worker(uvicorn: Any, tmp_path: Path) -> None:
    fleet, port = await uvicorn("--workers", "2", env={"PORTICO_STORE": str(tmp_path / "store.db")})
    sessions: list[Session] = []
    seen: list[int] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        # Both accept from one socket, and the one that is awake may have all that come one after the other.
        while len(set(seen)) < 2:
            some = await asyncio.gather(*(Session(port).begin() for _ in range(10)))
            for session in some:
                answers = [await session.call("pid") for _ in range(3)]
                assert [answer.status for answer in answers] == [200] * 3
                [pid] = {answer.value for answer in answers}
                seen.append(pid)
            sessions += some
    os.kill(seen[0], signal.SIGKILL)
    await fleet.wait_until(lambda: sum("startup complete" in text for text in fleet.log) == 3)
    assert {(await session.call("pid")).status for session in sessions} == {200}
    assert await fleet.end() == 0


async def test_client_that_listens_does_not_keep_it_from_ending(uvicorn: Any) -> None:
    fleet, port = await uvicorn()
    session = await Session(port).begin()
    streams = [await HttpConnection.to(port) for _ in range(2)]
    await streams[0].send("GET", **session.fields)
    assert (await streams[0].head())[0] == 200
    params = {"notifications": {"toolsListChanged": True}}
    await streams[1].send("POST", **streams[1].stand_alone("subscriptions/listen", params))
    assert (await streams[1].head())[0] == 200
    # It sends itself the signal again, when everything has ended properly.
    assert await fleet.end() in (0, -signal.SIGTERM)
    for stream in streams:
        await stream.close()
    assert not any("Traceback" in text for text in fleet.log)


async def test_without_a_store_a_session_may_be_carried_by_its_client(uvicorn: Any) -> None:
    _, port = await uvicorn("--workers", "2", made="server.http_app(stateless=True)")
    session = await Session(port).begin(elicitation={})
    answers = [await session.call("pid") for _ in range(40)]
    assert [item.status for item in answers] == [200] * 40
    assert len({item.value for item in answers}) == 2
    response = (await session.call("name")).json["result"]
    assert response["isError"]
    item = await HttpConnection.to(port)
    await item.send("GET", **session.fields)
    assert (await item.head())[0] == 405
    await item.close()
    session.fields["mcp_session_id"] = "A" + session.fields["mcp_session_id"]
    assert (await session.call("pid")).status == 404
    async with Client(f"http://127.0.0.1:{port}/mcp", protocol_version="2025-11-25") as client:
        assert not client.server_capabilities.tools
        assert not (await client.call_tool("pid")).is_error


OTHERS = {
    "granian": "granian --interface asgi --workers 2 --host 127.0.0.1 --port {port} served:app",
    "hypercorn": "hypercorn --workers 2 --bind 127.0.0.1:{port} served:app",
    "gunicorn": "gunicorn --workers 2 --worker-class uvicorn_worker.UvicornWorker --bind 127.0.0.1:{port} served:app",
}


@pytest.mark.parametrize("server", OTHERS)
async def test_sessions_find_their_worker_in_other_servers(
    start: Any, server_file: Path, tmp_path: Path, server: str
) -> None:
    pytest.importorskip(server)
    folder = application(server_file)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"PYTHONPATH": str(folder), "PORTICO_STORE": str(tmp_path / "store.db"), "TMPDIR": str(tmp_path)}
    words = OTHERS[server].format(port=port).split()
    fleet = await start("-m", *words, cwd=folder, env=env, ready=False)
    answering: set[int] = set()

    async def both_answer() -> bool:
        try:
            item = await HttpConnection.to(port)
        except OSError:
            return False
        answering.add((await item.call("pid")).value)
        await item.close()
        return len(answering) == 2

    await fleet.wait_until(both_answer)
    sessions = [await Session(port).begin() for _ in range(6)]
    for session in sessions:
        answers = [await session.call("pid") for _ in range(6)]
        assert [item.status for item in answers] == [200] * 6
        assert len({item.value for item in answers}) == 1
    stream = await HttpConnection.to(port)
    await stream.send("GET", **sessions[0].fields)
    assert (await stream.head())[0] == 200
    assert await fleet.end() == 0
    await stream.close()


RECIPE = """None
from {module} import {name}

tools = server.http_app()
app = {name}(lifespan={lifespan})
app.mount("/tools", tools)
"""


@pytest.mark.parametrize(
    ("module", "name", "lifespan", "warned"),
    [
        ("fastapi", "FastAPI", "tools.lifespan", False),
        ("starlette.applications", "Starlette", "tools.lifespan", False),
        ("starlette.applications", "Starlette", "None", True),
    ],
)
async def test_mounted_app_warns_if_its_lifespan_is_not_started(
    uvicorn: Any, module: str, name: str, lifespan: str, warned: bool
) -> None:
    fleet, port = await uvicorn(made=RECIPE.format(module=module, name=name, lifespan=lifespan))
    result = await HttpConnection.to(port)
    assert (await result.get("/tools/health")).status == 200
    await result.close()
    async with Client(f"http://127.0.0.1:{port}/tools/mcp", protocol_version="2025-11-25") as client:
        assert not (await client.call_tool("pid")).is_error
    await fleet.end()
    assert any("does not start this server" in text for text in fleet.log) is warned
