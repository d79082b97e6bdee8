"""Signing keys of workers, and one-time proofs across workers."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from portico.server.http import serve_http
from support.issuers import Issuer, Prover
from support.worker_processes import SERVER, HttpConnection, Session

AUDIENCE = "https://mcp.example/mcp"
GUARDED = """
from portico.auth.resource_server import ResourceServer

server.auth = ResourceServer({issuer!r}, audience={audience!r}, public_url="https://mcp.example")
"""


def keys(store: Path, *, age: float = 0.0) -> int:
    """How many there are; before that they become older by so many seconds."""
    with closing(sqlite3.connect(store, timeout=10)) as database, database:
        database.execute("update portico_fleet_key set created_at = created_at - ?", [age])
        return int(database.execute("select count(*) from portico_fleet_key").fetchone()[0])


async def test_new_key_accepts_values_of_the_old_key(serve: Any, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    fleet = await serve("--workers", "2", env={"PORTICO_STORE": str(store), "TMPDIR": str(tmp_path)})
    session = await Session(fleet.port).begin()
    line = await HttpConnection.to(fleet.port)
    response = (await line.call("name")).json["result"]
    assert await asyncio.to_thread(keys, store, age=31 * 86400) == 1
    # Both have looked: the one has made it, and then each has looked again.
    await fleet.wait_until(lambda: asyncio.to_thread(lambda: keys(store) == 2))
    assert {(await session.call("pid")).status for _ in range(8)} == {200}
    assert {(await (await Session(fleet.port).begin()).call("pid")).status for _ in range(8)} == {200}
    [key] = response["inputRequests"]
    answers = {key: {"action": "accept", "content": {"value": "Ada"}}}
    params = {"name": "name", "inputResponses": answers, "requestState": response["requestState"]}
    assert (await line.request_stateless("tools/call", params)).value.startswith("Ada ")
    await line.close()


@pytest.fixture
async def issuer() -> AsyncIterator[Any]:
    result = Issuer()
    urls: asyncio.Queue[str] = asyncio.Queue()
    stop = asyncio.Event()
    serving = asyncio.ensure_future(serve_http(result.pages(), port=0, on_ready=urls.put_nowait, stop=stop))
    result.url = (await urls.get()).removesuffix("/mcp")
    yield result
    stop.set()
    await serving


async def test_proof_is_valid_once_in_all_workers(serve: Any, server_file: Path, issuer: Any) -> None:
    guarded = GUARDED.format(issuer=issuer.url, audience=AUDIENCE)
    await asyncio.to_thread(server_file.write_text, SERVER + guarded)
    fleet = await serve("--workers", "2")
    prover = Prover()
    token = issuer.token(AUDIENCE, cnf={"jkt": prover.thumbprint}, exp=int(time.time()) + 600)

    async def show(line: HttpConnection, proof: str) -> Any:
        output = {"authorization": f"DPoP {token}", "dpop": proof}
        params = {"name": "pid", "arguments": {}}
        return await line.post(**{**line.stand_alone("tools/call", params), **output})

    lines = [await HttpConnection.to(fleet.port) for _ in range(16)]
    by_pid = {(await show(line, prover.proof(token, AUDIENCE))).value: line for line in lines}
    assert set(by_pid) == fleet.workers()
    first, second = by_pid.values()
    proof = prover.proof(token, AUDIENCE)
    assert (await show(first, proof)).status == 200
    assert (await show(second, proof)).status == 401
    assert (await show(second, prover.proof(token, AUDIENCE))).status == 200
    for line in lines:
        await line.close()
