"""Two servers that share only PostgreSQL, behind an alternating proxy."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from support import debian, nginx
from support.worker_processes import HttpConnection, Session, certificate, free_port


@pytest.fixture
async def behind_nginx(serve: Any, postgres_url: str, tmp_path: Path) -> Any:
    """Two servers, which have no folder in common, and the port in front of both."""
    fleets = []
    for name in ("one", "two"):
        os.mkdir(tmp_path / name)
        env = {"PORTICO_STORE": postgres_url, "TMPDIR": str(tmp_path / name)}
        fleets.append(await serve(env=env))
    try:
        with nginx.in_front_of(fleets[0].port, fleets[1].port, pooled=4) as port:
            yield fleets, port
    except debian.NotInstalled as why:
        debian.without(why)


async def test_every_call_of_every_client_is_answered(behind_nginx: Any, tmp_path: Path) -> None:
    fleets, port = behind_nginx
    sessions = []
    for _ in range(10):
        sessions.append(await Session(port).begin())
        # The third request, so that the next session begins at the other one.
        await sessions[-1].call("pid")
    by_session = [{(await session.call("pid")).value for _ in range(4)} for session in sessions]
    assert all(len(one) == 1 for one in by_session)
    assert set().union(*by_session) == {fleet.process.pid for fleet in fleets}

    async def answer(*_: Any) -> dict[str, Any]:
        return {"value": "Ada"}

    for revision in ("2025-11-25", "2026-07-28"):
        async with Client(
            f"http://127.0.0.1:{port}/mcp", protocol_version=revision, elicitation_handler=answer
        ) as client:
            result = await client.call_tool("name")
            assert result.content[0].text.startswith("Ada ")

    # The one goes away, properly: what it had goes on in the other.
    first, second = fleets
    ending = asyncio.ensure_future(first.end(signal.SIGTERM))
    assert await ending == 0
    answers = [await session.call("pid") for session in sessions]
    assert [one.status for one in answers] == [200] * 10
    assert {one.value for one in answers} == {second.process.pid}


async def test_between_machines_requests_travel_by_tls(serve: Any, postgres_url: str, tmp_path: Path) -> None:
    both = certificate(tmp_path)
    context = ssl.create_default_context(cafile=both)
    fleets = []
    for name, authority in (("one", str(both)), ("two", str(both)), ("stranger", "")):
        os.mkdir(tmp_path / name)
        env = {"PORTICO_STORE": postgres_url, "TMPDIR": str(tmp_path / name), "PORTICO_ADDRESS_CA": authority}
        env |= {"PORTICO_ADVERTISED_ADDRESS": f"localhost:{free_port()}"} | (
            {} if authority else {"SSL_CERT_FILE": os.devnull}
        )
        fleets.append(await serve("--ssl-certfile", both, env={k: v for k, v in env.items() if v}))

    async def call(fleet: Any, session: Session) -> Any:
        item = await HttpConnection.to(fleet.port, ssl=context, server_hostname="localhost")
        try:
            return await session.call("pid", item)
        finally:
            await item.close()

    first = await HttpConnection.to(fleets[0].port, ssl=context, server_hostname="localhost")
    session = Session(fleets[0].port)
    await session.begin(line=first)
    await first.close()
    answers = [await call(fleet, session) for fleet in fleets[:2] for _ in range(2)]
    assert [item.value for item in answers] == [fleets[0].process.pid] * 4
    # Who does not know the authority does not send it there; and the session stays where it is.
    refused = await call(fleets[2], session)
    assert refused.status == 503
    assert any("is not trusted" in text for text in fleets[2].log)
    assert (await call(fleets[1], session)).value == fleets[0].process.pid
