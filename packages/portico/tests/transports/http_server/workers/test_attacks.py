"""Attacks on workers, and a worker that was paused."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from portico.store.database import Database
from portico.store.keys import SigningKeys
from portico.store.transaction import Transaction
from portico.transports.http_server.workers import store as rows
from portico.transports.http_server.workers.store import open_worker_store
from support.worker_processes import TIMEOUT_SECONDS, HttpConnection, Session

LEASE_DURATION_SECONDS, LIVENESS_CACHE_SECONDS = 4.0, 1.0
WORKERS = "portico.transports.http_server.workers"
SHORT_TIMES = {
    f"{WORKERS}.store.LEASE_DURATION_SECONDS": LEASE_DURATION_SECONDS,
    f"{WORKERS}.lease.RENEW_INTERVAL_SECONDS": 1.0,
    f"{WORKERS}.forwarding.LIVENESS_CACHE_SECONDS": LIVENESS_CACHE_SECONDS,
}


async def alter(url: str, sql: str, *values: Any) -> None:
    """Change rows by hand."""

    def change(tx: Transaction) -> int:
        return tx.execute(sql, values)

    async with Database(url, max_connections=1) as database:
        assert await database.write(change) >= 1


async def test_body_of_a_falsely_forwarded_request_is_not_read(standing: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", standing.port)
    claim = "portico-sent-on: e30=." + "0" * 64
    head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n{claim}\r\ncontent-length: 4000000\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(10):
        assert (await reader.readline()).split()[1] == b"403"
    writer.close()


async def test_event_stream_cannot_be_resumed_from_another_session(standing: Any, line: Any, tmp_path: Path) -> None:
    theirs, mine = [await Session(standing.port).begin() for _ in range(2)]
    flag = tmp_path / "flag"
    params = {"name": "slowly", "arguments": {"path": str(flag)}, "_meta": {"progressToken": "theirs"}}
    result = await line(standing.port)
    await result.send("POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, **theirs.fields)
    assert (await result.head())[0] == 200
    seen = ""
    while "theirs" not in seen:
        seen += (await result.chunk()).decode()
    stream = [text.removeprefix("id:").strip() for text in seen.splitlines() if text.startswith("id:")][-1]
    await asyncio.to_thread(_remove_when_there, flag)
    while await result.chunk():
        pass
    # The ids of events are small numbers, which are easy to guess, and good within a session alone.
    for session, heard in ((mine, False), (theirs, True)):
        again = await line(standing.port)
        await again.send("GET", last_event_id=f"{stream.rpartition('-')[0]}-0", **session.fields)
        assert (b"theirs" in (await again.answer()).body) is heard


def _remove_when_there(path: Path) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    path.unlink()


async def test_session_whose_row_cannot_be_read_has_ended(serve: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    fleet = await serve("--workers", "2", env={"PORTICO_STORE": store})
    for memo in ("{", "{}", '{"facts": 1}', "[" * 5000):
        session = await Session(fleet.port).begin()
        owner = (await session.call("pid")).value
        await alter(store, "update portico_session set memo = ? where id = ?", memo, session.fields["mcp_session_id"])
        os.kill(owner, signal.SIGKILL)
        await fleet.wait_until(lambda owner=owner: owner not in fleet.workers() and len(fleet.workers()) == 2)
        assert {(await session.call("pid")).status for _ in range(3)} == {404}
        # A new one is as good as any.
        assert (await (await Session(fleet.port).begin()).call("pid")).status == 200
    assert not [text for text in fleet.log if "Traceback" in text]


async def test_forged_event_id_is_ignored_after_takeover(serve: Any, line: Any) -> None:
    fleet = await serve("--workers", "2")
    session = await Session(fleet.port).begin()
    owner = (await session.call("pid")).value
    os.kill(owner, signal.SIGKILL)
    await fleet.wait_until(lambda: owner not in fleet.workers() and len(fleet.workers()) == 2)
    for name in ("1.i" + "f" * 64, "1.x" + "f" * 64, "1.xff0", "1.i0"):
        result = await line(fleet.port)
        await result.send("GET", last_event_id=f"{name}-1", **session.fields)
        assert (await result.head())[0] == 200


async def test_wrong_clock_does_not_affect_lease_checks(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = [
        await open_worker_store(postgres_url, worker * 16, "s", SigningKeys([b"k" * 32])) for worker in "ab"
    ]
    try:
        for wrong in (3600.0, -3600.0):
            await theirs.renew_lease("10.0.0.2:8000")
            here = time.time() + wrong
            with monkeypatch.context() as clock:
                clock.setattr(rows.time, "time", lambda here=here: here)
                match = await ours.find_worker("b" * 16)
                assert match is not None and (match.address, match.lives) == ("10.0.0.2:8000", True)
                await ours.renew_lease(None)
            match = await theirs.find_worker("a" * 16)
            assert match is not None and (match.address, match.lives) == (None, True)
        await alter(
            postgres_url, "update portico_worker set lease_until = lease_until - ?", rows.LEASE_DURATION_SECONDS
        )
        match = await ours.find_worker("b" * 16)
        assert match is not None and (match.address, match.lives) == ("10.0.0.2:8000", False)
    finally:
        await ours.close()
        await theirs.close()


async def test_suspended_worker_does_not_serve_taken_over_sessions(
    serve: Any, postgres_url: str, tmp_path: Path
) -> None:
    """On two machines: each has a folder of its own."""
    fleets = []
    for name in ("one", "two"):
        os.mkdir(tmp_path / name)
        env = {"PORTICO_STORE": postgres_url, "TMPDIR": str(tmp_path / name)}
        fleets.append(await serve(env=env, constants=SHORT_TIMES))
    first, second = fleets
    counted = tmp_path / "counted"
    session = await Session(first.port).begin()
    assert (await session.call("count", path=str(counted), word="before")).value == first.process.pid
    listening = await HttpConnection.to(first.port)
    await listening.send("GET", **session.fields)
    assert (await listening.head())[0] == 200

    first.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        # Requests sent now wait in its sockets; their clients disconnect.
        for number in range(2):
            waiting = await HttpConnection.to(first.port)
            params = {"name": "count", "arguments": {"path": str(counted), "word": f"late-{number}"}}
            await waiting.send(
                "POST", {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}, **session.fields
            )
            await waiting.close()
        await alter(postgres_url, "update portico_worker set lease_until = 0 where pid = ?", first.process.pid)
        session.port = second.port
        assert (await session.call("pid")).value == second.process.pid
        # The stopped process learns from its own clock that its lease has expired.
        await asyncio.sleep(LEASE_DURATION_SECONDS - (time.monotonic() - stopped))
    finally:
        first.process.send_signal(signal.SIGCONT)
    # Whichever is asked, the one that has taken it over answers; and what was listened to is heard of there.
    for number, port in enumerate((first.port, second.port, first.port)):
        session.port = port
        assert (await session.call("count", path=str(counted), word=f"after-{number}")).value == second.process.pid
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await listening.chunk():
            pass
    await listening.close()
    words = Counter((await asyncio.to_thread(counted.read_text)).split())
    assert {"before", "after-0", "after-1", "after-2"} <= set(words)
    assert max(words.values()) == 1
    assert any("taken over by other workers" in text for text in first.log)


async def test_worker_of_the_same_machine_that_was_stopped_is_not_waited_for(
    serve: Any, postgres_url: str, tmp_path: Path
) -> None:
    env = {"PORTICO_STORE": postgres_url, "TMPDIR": str(tmp_path)}
    first, second = [await serve(env=env, constants=SHORT_TIMES) for _ in range(2)]
    sessions = [await Session(first.port).begin() for _ in range(2)]
    for session in sessions:
        session.port = second.port
        assert (await session.call("pid")).value == first.process.pid
    first.process.send_signal(signal.SIGSTOP)
    try:
        # The other worker caches for a second that this one responds.
        await asyncio.sleep(LIVENESS_CACHE_SECONDS)
        await alter(postgres_url, "update portico_worker set lease_until = 0 where pid = ?", first.process.pid)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert [(await session.call("pid")).value for session in sessions] == [second.process.pid] * 2
    finally:
        first.process.send_signal(signal.SIGCONT)
    for session in sessions:
        assert (await session.call("pid")).value == second.process.pid
