"""A worker that lost the store serves its sessions no longer than its lease."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from portico.rpc.handshake.session import SessionState
from portico.store.keys import SigningKeys
from portico.transports.http_server.session_snapshot import SessionSnapshot
from portico.transports.http_server.workers.store import open_worker_store
from support.overrides import override_constants
from support.worker_processes import PORTICO_MAIN, TIMEOUT_SECONDS, HttpConnection, Session, free_port

# The same server with leases that expire sooner.
HASTY = override_constants(
    {
        "portico.transports.http_server.workers.store.LEASE_DURATION_SECONDS": 4.0,
        "portico.transports.http_server.workers.store.STORE_TIMEOUT_SECONDS": 1.0,
        "portico.transports.http_server.workers.store.STORE_UNAVAILABLE_CACHE_SECONDS": 0.3,
        "portico.transports.http_server.workers.lease.RENEW_INTERVAL_SECONDS": 1.0,
        "portico.transports.http_server.workers.lease.RETRY_INTERVAL_SECONDS": 0.3,
    },
    PORTICO_MAIN,
)


class Way:
    """The way to PostgreSQL, which can be cut, and can fall silent."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._there = f"{parse_qs(address.query)['host'][0]}/.s.PGSQL.5432"
        self._name = f"{address.username}@127.0.0.1", address.path
        self._port = 0
        self._open = asyncio.Event()
        self._carrying: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{self._name[0]}:{self._port}{self._name[1]}"

    async def mend(self) -> None:
        self._open.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._take, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def silence(self) -> None:
        self._open.clear()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry_both(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_unix_connection(self._there)
        both = [asyncio.ensure_future(self._carry(reader, out)), asyncio.ensure_future(self._carry(there, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for item in (*both, writer, out):
                item.cancel() if isinstance(item, asyncio.Task) else item.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


@pytest.fixture
async def way(postgres_url: str) -> AsyncIterator[Way]:
    result = Way(postgres_url)
    await result.mend()
    yield result
    await result.cut()


@pytest.fixture
async def both(start: Any, server_file: Path, way: Way, postgres_url: str, tmp_path: Path) -> Any:
    """Two machines. The second cannot reach the first, nor has the first another way to the store."""
    fleets = []
    for name, store in (("one", way.url), ("two", postgres_url)):
        os.mkdir(tmp_path / name)
        env = {"PORTICO_STORE": store, "TMPDIR": str(tmp_path / name)}
        env |= {"PORTICO_ADVERTISED_ADDRESS": f"nowhere.invalid:{free_port()}"} if name == "one" else {}
        fleets.append(await start("-c", HASTY, "serve", server_file, "--transport", "http", "--port", "0", env=env))
    return fleets


async def pid_at(session: Session, fleet: Any) -> Any:
    """Who answers in the session there; or the status, where there is no answer."""
    session.port = fleet.port
    answer = await session.call("pid")
    return answer.value if answer.status == 200 else answer.status


async def who_at_last(session: Session, fleet: Any) -> Any:
    """The same, once it is no refusal any more."""
    messages: list[Any] = []

    async def is_settled() -> bool:
        messages.append(await pid_at(session, fleet))
        return messages[-1] != 503

    await fleet.wait_until(is_settled)
    return messages[-1]


@pytest.mark.parametrize("how", ["cut", "silence"])
async def test_partitioned_worker_stops_before_takeover(both: Any, way: Way, how: str) -> None:
    first, second = both
    session = await Session(first.port).begin()
    listening = await HttpConnection.to(first.port)
    await listening.send("GET", **session.fields)
    assert (await listening.head())[0] == 200
    await getattr(way, how)()
    assert await pid_at(session, first) == first.process.pid
    messages: list[tuple[Any, Any]] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not messages or messages[-1][1] != second.process.pid:
            messages.append((await pid_at(session, first), await pid_at(session, second)))
            await asyncio.sleep(0.05)
    assert set(messages[:-1]) <= {(first.process.pid, 503), (503, 503)}
    # The last time it was asked before the other one, which had not taken over yet.
    assert await pid_at(session, first) == 503
    # What was listened to has ended: its client comes back, and hears where it is heard.
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await listening.chunk():
            pass
    await listening.close()
    # Back again it begins anew: what another has is there.
    await way.mend()
    assert await who_at_last(session, first) == second.process.pid
    assert await pid_at(await Session(first.port).begin(), first) == first.process.pid


async def test_client_that_disconnects_is_removed_everywhere(both: Any, way: Way) -> None:
    first, second = both
    session = await Session(first.port).begin()
    assert await pid_at(session, first) == first.process.pid
    await way.cut()
    assert await who_at_last(session, second) == second.process.pid
    result = await HttpConnection.to(second.port)
    await result.send("DELETE", **session.fields)
    assert (await result.answer()).status == 204
    await result.close()
    await way.mend()
    assert await who_at_last(session, first) == 404
    assert await pid_at(session, second) == 404


async def test_with_the_store_away_for_all_sessions_wait_for_it_and_new_ones_do_not(both: Any, way: Way) -> None:
    first, _ = both
    session = await Session(first.port).begin()
    assert await pid_at(session, first) == first.process.pid
    await way.cut()

    async def is_refused() -> bool:
        return await pid_at(session, first) == 503

    await first.wait_until(is_refused)
    # No other worker can know of it, so none can take it.
    later = await Session(first.port).begin()
    assert await pid_at(later, first) == first.process.pid
    await way.mend()
    assert await who_at_last(session, first) == first.process.pid
    assert await pid_at(later, first) == first.process.pid


async def test_local_worker_confirms_takeover(
    start: Any, server_file: Path, way: Way, postgres_url: str, tmp_path: Path
) -> None:
    fleets = []
    for store in (way.url, postgres_url):
        env = {"PORTICO_STORE": store, "TMPDIR": str(tmp_path)}
        fleets.append(await start("-c", HASTY, "serve", server_file, "--transport", "http", "--port", "0", env=env))
    first, second = fleets
    session = await Session(first.port).begin()
    assert await pid_at(session, second) == first.process.pid
    await way.cut()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (result := await pid_at(session, second)) != second.process.pid:
            assert result in (first.process.pid, 503)
            await asyncio.sleep(0.05)
    assert await pid_at(session, first) == 503


async def test_session_of_a_worker_that_came_back_is_not_taken_over(postgres_url: str) -> None:
    """Between the look at its lease and the taking, it has come back."""
    ours, theirs = [
        await open_worker_store(postgres_url, worker * 16, "s", SigningKeys([b"k" * 32])) for worker in "ab"
    ]
    memo = SessionSnapshot(facts=SessionState(protocol_version="2025-11-25"))
    try:
        await theirs.renew_lease(None)
        await theirs.save_session("session", "/mcp", memo)
        assert not await ours.take_over_session("session", "b" * 16)
        await ours.delete_worker("b" * 16)
        assert await ours.take_over_session("session", "b" * 16)
    finally:
        await ours.close()
        await theirs.close()
