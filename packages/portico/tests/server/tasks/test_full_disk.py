"""A full disk while tasks run: callers get an error, nothing is lost, and work resumes afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from portico import Context, Server
from portico.server.tasks import engine as engines, execution as running_jobs
from portico.store.database import Database
from support import postgres
from support.task_servers import ModernTasksClient, ToolEvents, wait_for_status, wait_until

BALLAST = 2_500_000


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Small:
    """A store with little room, and what takes up most of it."""

    def __init__(self, url: str, disk: Path) -> None:
        self.url = url
        self.disk = disk
        self.ballast = disk / "ballast"
        self.ballast.write_bytes(b"x" * BALLAST)


@pytest.fixture
def small_sqlite(tmp_path: Path) -> Iterator[Small]:
    with small_disk(tmp_path / "disk") as disk:
        small = Small(f"sqlite://{disk}/store.db", disk)
        yield small
        connection = sqlite3.connect(disk / "store.db")
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        connection.close()


@pytest.fixture
async def small_postgres(postgres_server: postgres.Server, postgres_url: str) -> AsyncIterator[Small]:
    with small_disk(postgres_server.folder / "disk") as disk:
        small = Small(postgres_url, disk)
        (disk / "space").mkdir()
        os.chown(disk / "space", postgres_server.data.stat().st_uid, -1)
        postgres_server.sql(f"create tablespace small location '{disk}/space'")
        async with Database(postgres_url) as database:
            await database.migrate("tasks", engines.MIGRATIONS)
            for table in ("portico_job", "portico_job_step"):
                await database.write(lambda tx, table=table: tx.execute(f"alter table {table} set tablespace small"))
            yield small
            for table in ("portico_job_step", "portico_job", "portico_migration"):
                await database.write(lambda tx, table=table: tx.execute(f"drop table {table}"))
        postgres_server.sql("drop tablespace small")


@pytest.fixture(params=["sqlite", "postgres"])
def small(request: pytest.FixtureRequest) -> Small:
    response: Small = request.getfixturevalue(f"small_{request.param}")
    return response


def keeping(store: str) -> tuple[Server, ToolEvents]:
    server, gates = Server("tasks", store=store), ToolEvents()

    @server.tool(task="required")
    async def keep(n: int, text: str, ctx: Context) -> str:
        """Something in steps, each large."""
        await gates["go"].wait()

        def act(step: int) -> str:
            gates.done.append(f"{n}.{step}")
            return secrets.token_hex(2000)

        for step in range(3):
            await ctx.step(str(step), partial(act, step))
        return f"{n} is done"

    return server, gates


async def fill(client: ModernTasksClient) -> tuple[dict[int, str], list[Any]]:
    """Start tasks until there is no room: which were acknowledged, and what was said to the others."""
    started: dict[int, str] = {}
    refused: list[Any] = []
    for n in range(1000):
        arguments = {"n": n, "text": secrets.token_hex(10_000)}
        response = await client.send_request("tools/call", {"name": "keep", "arguments": arguments})
        if "error" in response:
            refused.append(response["error"])
        else:
            started[n] = response["result"]["taskId"]
        if len(refused) == 5:
            return started, refused
    raise AssertionError("the disk is never full")


async def test_full_disk_is_reported_and_when_there_is_room_again_everything_is_finished(
    small: Small,
    modern: Callable[..., ModernTasksClient],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_jobs, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.2)
    server, gates = keeping(small.url)
    async with server.lifespan():
        client = modern(server)
        started, refused = await fill(client)
        assert len(started) > 5
        for error in refused:
            assert error["code"] == -32603
            assert error["message"].startswith(
                "Internal error: the task was not started, for the server's disk is full"
            )
            assert str(small.disk) not in str(error)
        # Those that were acknowledged are there, and run into the same wall.
        gates["go"].set()
        await wait_until(lambda: "is waiting for the store" in caplog.text)
        assert (await client.get(next(iter(started.values()))))["status"] in ("working", "completed")
        small.ballast.unlink()
        for n, id in started.items():
            await wait_for_status(server, id, "completed", "failed", "cancelled")
            response = await client.get(id)
            assert response["status"] == "completed"
            assert response["result"]["content"][0]["text"] == f"{n} is done"
        assert (await client.call("keep", {"n": -1, "text": ""}))["resultType"] == "task"
        # What was done and could not be written down at once was not done again.
        await wait_until(lambda: "-1.2" in gates.done)
        done = [record for record in gates.done if not record.startswith("-1.")]
        assert sorted(done) == sorted(f"{n}.{step}" for n in started for step in range(3))
    assert not [
        record for record in caplog.records if record.levelno >= logging.ERROR and "not started" in record.getMessage()
    ]


async def test_server_that_is_stopped_while_the_disk_is_full_loses_nothing(
    small_sqlite: Small, modern: Callable[..., ModernTasksClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_jobs, "RETRY_SECONDS", 0.05)
    server, gates = keeping(small_sqlite.url)
    server.tasks.lease = 0.5  # type: ignore[union-attr]
    async with asyncio.timeout(60), server.lifespan():
        started, _ = await fill(modern(server))
        gates["go"].set()
        await wait_until(lambda: len(server.tasks._engine._running) > 0)  # type: ignore[union-attr]
    small_sqlite.ballast.unlink()
    second, gates = keeping(small_sqlite.url)
    gates["go"].set()
    async with second.lifespan():
        client = modern(second)
        for id in started.values():
            await wait_for_status(second, id, "completed")
            assert (await client.get(id))["status"] == "completed"
