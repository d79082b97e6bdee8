"""Sessions of handshake versions on any worker."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from support.worker_processes import HttpConnection, Session, certificate


async def test_session_belongs_to_one_worker(standing: Any) -> None:
    fleet = standing
    session = await Session(fleet.port).begin()
    answers = [await session.call("pid") for _ in range(12)]
    assert [answer.status for answer in answers] == [200] * 12
    assert len({answer.value for answer in answers}) == 1
    others = {(await (await Session(fleet.port).begin()).call("pid")).value for _ in range(12)}
    assert others == fleet.workers()


async def test_forged_session_id_is_rejected(standing: Any) -> None:
    fleet = standing
    session = await Session(fleet.port).begin()
    real = session.fields["mcp_session_id"]
    for wrong in (real[:-1] + ("A" if real[-1] != "A" else "B"), "x", "A" * 48):
        session.fields["mcp_session_id"] = wrong
        assert {(await session.call("pid")).status for _ in range(4)} == {404}


async def test_request_that_claims_to_be_sent_on_is_rejected(standing: Any, line: Any) -> None:
    fleet = standing
    result = await line(fleet.port)
    # However often: what was let in to be looked at later is not known as let in.
    fields = {"portico_sent_on": "e30=.00", "host": "elsewhere.example", "origin": "http://elsewhere.example"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert [(await result.post(message, **fields)).status for _ in range(4)] == [403] * 4


async def test_session_survives_a_killed_worker(serve: Any) -> None:
    fleet = await serve("--workers", "2")
    session = await Session(fleet.port).begin()
    first = (await session.call("pid")).value
    os.kill(first, signal.SIGKILL)
    await fleet.wait_until(lambda: first not in fleet.workers())
    answers = [await session.call("pid") for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    [second] = {answer.value for answer in answers}
    assert second != first


async def test_sessions_outlive_a_deploy_and_no_call_is_made_twice(serve: Any, tmp_path: Path) -> None:
    fleet = await serve("--workers", "2")
    before, path, over = fleet.workers(), tmp_path / "counted", asyncio.Event()

    async def keep_calling(name: str) -> list[str]:
        made: list[str] = []
        session = await Session(fleet.port).begin()
        while not over.is_set():
            made.append(f"{name}-{len(made)}")
            answer = await session.call("count", path=str(path), word=made[-1])
            assert answer.status == 200
        return made

    calling = [asyncio.ensure_future(keep_calling(str(number))) for number in range(3)]
    await fleet.wait_until(path.exists)
    fleet.process.send_signal(signal.SIGHUP)
    await fleet.wait_until(lambda: len(fleet.workers()) == 2 and not fleet.workers() & before)
    over.set()
    made = [word for words in await asyncio.gather(*calling) for word in words]
    assert sorted(path.read_text().split()) == sorted(made)


async def test_deleted_session_is_gone_for_all(standing: Any) -> None:
    fleet = standing
    session = await Session(fleet.port).begin()
    for _ in range(4):
        result = await HttpConnection.to(fleet.port)
        await result.send("DELETE", **session.fields)
        status, _ = await result.head()
        await result.close()
        assert status in (204, 404)
    assert {(await session.call("pid")).status for _ in range(6)} == {404}


@pytest.mark.parametrize("revision", ["2025-11-25"])
async def test_progress_and_server_requests_are_forwarded(serve: Any, tmp_path: Path, revision: str) -> None:
    fleet = await serve("--workers", "2")
    heard: list[Any] = []

    async def answer(*_: Any) -> dict[str, Any]:
        return {"value": "Ada"}

    for number in range(4):
        async with Client(
            fleet.url,
            protocol_version=revision,
            elicitation_handler=answer,
            progress_handler=lambda *item: heard.append(item),
        ) as client:
            result = await client.call_tool("name")
            assert result.content[0].text.startswith("Ada ")
            flag = tmp_path / str(number)
            calling = asyncio.ensure_future(client.call_tool("slowly", {"path": str(flag)}))
            await fleet.wait_until(flag.exists)
            flag.unlink()
            assert (await calling).content[0].text == "done"
    assert len(heard) == 8


async def test_metrics_are_those_of_all_workers(serve: Any) -> None:
    fleet = await serve("--workers", "2")
    sessions = [await Session(fleet.port).begin() for _ in range(6)]
    assert {(await session.call("pid")).value for session in sessions} <= fleet.workers()
    for _ in range(4):
        result = await HttpConnection.to(fleet.port)
        text = (await result.get("/metrics")).body.decode()
        assert (await result.get("/readyz")).status == 200
        await result.close()
        numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert numbers["mcp_server_workers"] == "2"
        assert numbers["mcp_server_sessions"] == "6"
        calls = 'mcp_server_operation_duration_seconds_count{mcp_method_name="tools/call",gen_ai_tool_name="pid"}'
        assert numbers[calls] == "6"


async def test_changes_are_notified_to_clients_of_all_workers(standing: Any, heard: Any) -> None:
    fleet = standing
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(fleet.url, protocol_version=revision, message_handler=heard))
            for revision in ("2025-06-18", "2025-11-25") * 4
        ]
        for client in clients:
            await client.subscribe("note://one")
        workers = {(await client.call_tool("touch")).content[0].text for client in clients[:1]}
        assert len(workers) == 1
        await heard.wait_for("notifications/resources/updated", len(clients))


async def test_requests_on_a_connection_of_another_worker_are_forwarded(standing: Any) -> None:
    fleet = standing
    session = await Session(fleet.port).begin()
    owner = (await session.call("pid")).value
    lines = [await HttpConnection.to(fleet.port) for _ in range(8)]
    # Requests without a session are answered by the worker that has the connection.
    before = [(await line.call("pid")).value for line in lines]
    assert set(before) == fleet.workers()
    assert {(await session.call("pid", line)).value for line in lines} == {owner}
    assert [(await line.call("pid")).value for line in lines] == before
    for line in lines:
        await line.close()


async def test_deploy_closes_idle_connections(serve: Any) -> None:
    fleet = await serve("--workers", "1")
    before = fleet.workers()
    lines = [await HttpConnection.to(fleet.port) for _ in range(8)]
    assert {(await line.call("pid")).value for line in lines} <= before
    fleet.process.send_signal(signal.SIGHUP)
    await fleet.wait_until(lambda: len(fleet.workers()) == 1 and not fleet.workers() & before)
    for line in lines:
        assert await line.at_end()
        await line.close()


@pytest.mark.parametrize("place", ["tls", "unix"])
async def test_session_is_found_by_tls_and_by_a_path(serve: Any, tmp_path: Path, place: str) -> None:
    both = await asyncio.to_thread(certificate, tmp_path)
    how = ("--ssl-certfile", both) if place == "tls" else ("--unix-socket", tmp_path / "s")
    fleet = await serve("--workers", "2", *how, env={"TMPDIR": str(tmp_path)})
    context = ssl.create_default_context(cafile=both)

    async def connected() -> HttpConnection:
        if place == "unix":
            return HttpConnection(*await asyncio.open_unix_connection(tmp_path / "s"))
        return await HttpConnection.to(fleet.port, ssl=context, server_hostname="localhost")

    first = await connected()
    session = await Session(0).begin(line=first)
    owner = (await session.call("pid", first)).value
    lines = [await connected() for _ in range(10)]
    # Requests of no session say whose the connections are.
    assert len({(await line.call("pid")).value for line in lines}) == 2 or place == "unix"
    assert {(await session.call("pid", line)).value for line in lines} == {owner}
    for line in (first, *lines):
        await line.close()
    assert await fleet.end() == 0
