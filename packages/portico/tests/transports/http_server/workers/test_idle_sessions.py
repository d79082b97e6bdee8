"""Many idle sessions with open streams through a deployment."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from portico.store.errors import StoreError
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import HttpRequest
from portico.transports.http_server.workers import reverse_proxy
from portico.transports.http_server.workers.batch_loader import BatchLoader
from support import storm
from support.paths import ROOT
from support.worker_processes import Fleet, HttpConnection, Session

SCRIPT = ROOT / "benchmarks" / "idle_sessions.py"


def test_rolling_restart_preserves_idle_sessions() -> None:
    count = storm.times(60, 10_000)
    command = [sys.executable, str(SCRIPT), "--sessions", str(count), "--idle", "0"]
    # What a session takes in memory, and the deploy in time, is judged where there are enough of them.
    done = subprocess.run(command, capture_output=True, text=True, timeout=storm.times(60, 600), check=False)
    assert f"{count} answered" in done.stdout.splitlines(), done.stdout + done.stderr
    assert done.returncode == 0 or count < 10_000, done.stdout


async def test_concurrent_loads_are_batched() -> None:
    requests: list[list[int]] = []

    async def ask(keys: list[int]) -> dict[int, int]:
        requests.append(keys)
        await asyncio.sleep(0)
        return {key: key * 10 for key in keys if key != 3}

    batches = BatchLoader(ask, max_batch_size=4)
    result = await asyncio.gather(*(batches.load(key) for key in (1, 2, 3, 4, 5, 1)))
    assert result == [10, 20, None, 40, 50, 10]
    assert requests == [[1, 2, 3, 4], [5]]


async def test_cancelled_forward_does_not_affect_others() -> None:
    going_on = asyncio.Event()

    async def ask(keys: list[int]) -> dict[int, int]:
        await going_on.wait()
        return dict.fromkeys(keys, 1)

    batches = BatchLoader(ask, max_batch_size=4)
    gone, stays = asyncio.ensure_future(batches.load(1)), asyncio.ensure_future(batches.load(1))
    await asyncio.sleep(0)
    gone.cancel()
    going_on.set()
    assert await stays == 1


async def test_store_error_fails_all_pending_loads_and_is_not_cached() -> None:
    away = True

    async def ask(keys: list[int]) -> dict[int, int]:
        if away:
            raise StoreError("away")
        return dict.fromkeys(keys, 1)

    batches = BatchLoader(ask, max_batch_size=4)
    result = await asyncio.gather(batches.load(1), batches.load(2), return_exceptions=True)
    assert [type(item) for item in result] == [StoreError, StoreError]
    away = False
    assert await batches.load(1) == 1
    with pytest.raises(asyncio.CancelledError):
        waiting = asyncio.ensure_future(batches.load(2))
        await asyncio.sleep(0)
        batches.close()
        await waiting


async def test_stopping_worker_ends_streams_while_a_call_continues(
    serve: Callable[..., Awaitable[Fleet]], line: Callable[[int], Awaitable[HttpConnection]], tmp_path: Path
) -> None:
    fleet = await serve("--workers", "1")
    waits = tmp_path / "waits"
    slow, listening, modern = [await line(fleet.port) for _ in range(3)]
    (old,) = fleet.workers()
    call = asyncio.ensure_future(slow.call("slowly", path=str(waits)))
    session = await Session(fleet.port).begin()
    await listening.send("GET", **session.fields)
    assert (await listening.head())[0] == 200
    await modern.send(
        "POST", **modern.stand_alone("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    )
    assert (await modern.head())[0] == 200
    await fleet.wait_until(waits.exists)
    fleet.process.send_signal(signal.SIGHUP)
    for item in (listening, modern):
        # Ended properly, and the connection with it: the next one is to another worker.
        while await item.chunk():
            pass
        assert await item.at_end()
    assert old in fleet.workers()
    assert not call.done()
    assert (await session.call("pid")).value != old
    waits.unlink()
    assert (await call).value == "done"


async def test_full_connection_is_retried(tmp_path: Path) -> None:
    """Linux lets nobody wait for a place in the line of a Unix socket."""
    path = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX) as door, ExitStack() as stack:
        door.bind(path)
        door.listen(0)
        door.setblocking(False)
        waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        for item in waiting:
            item.setblocking(False)
        assert any(item.connect_ex(path) == errno.EAGAIN for item in waiting)
        writer = Mock(buffered_bytes=lambda: 0)
        sent = asyncio.ensure_future(
            reverse_proxy.proxy_request(path, HttpRequest("GET", "/x", "", Headers()), writer, b"sealed")
        )
        async with asyncio.timeout(20):
            seen = b""
            while b"GET /x" not in seen:
                item, _ = await asyncio.get_running_loop().sock_accept(door)
                stack.enter_context(item).settimeout(1)
                with suppress(BlockingIOError, TimeoutError):
                    item.setblocking(False)
                    await asyncio.sleep(0.05)
                    seen = item.recv(4096)
            item.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            assert await sent == "answered"
    assert writer.respond.call_args.args[0].body == b"ok"
