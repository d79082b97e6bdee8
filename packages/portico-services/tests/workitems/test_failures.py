"""Storage failures, killed processes, and a full disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from portico.store import errors
from portico.store.database import Database
from portico_services.workitems import records
from portico_services.workitems.errors import WorkItemError
from portico_services.workitems.item_store import WorkItemStore
from support.work_items import call_failing_tool, call_tool, check_counts, create_item

Serving = Callable[..., Any]
TIMEOUT_SECONDS = 60.0
KILLS = 6


@pytest.mark.parametrize(
    ("failure", "retryable"),
    [
        (errors.ReadOnlyDatabase, False),
        (errors.DiskFull, True),
        (errors.LockTimeout, True),
        (errors.DatabaseCorrupt, False),
    ],
)
async def test_failing_storage_is_explained_without_its_address(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, failure: type[Exception], retryable: bool
) -> None:
    client = await serving()

    async def fail(self: Database, fn: Any, **_: Any) -> Any:
        raise failure("/secret/path/tasks.db failed")

    monkeypatch.setattr(Database, "write", fail)
    text, error = await call_failing_tool(client, "create_task", description="x")
    assert "/secret" not in text
    assert (error["code"], error["retryable"]) == ("storage_error", retryable)


async def test_closed_storage_is_reported(url: str) -> None:
    database = Database(url)
    async with database:
        items = WorkItemStore(database)
        await items.open()
    with pytest.raises(WorkItemError, match="closed"):
        await items.get("task_0")


async def test_service_is_started_again_on_the_same_store(serving: Serving) -> None:
    first = await serving()
    made = await call_tool(first, "create_task", description="kept")
    second = await serving()
    assert (await call_tool(second, "get_task", id=made["id"]))["description"] == "kept"


async def test_every_task_that_was_acknowledged_survives_a_kill(url: str, spawn: Callable[..., Any]) -> None:
    kept: list[str] = []
    for round in range(KILLS):
        children = [await spawn("create", url, f"round {round}") for _ in range(2)]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            for child in children:
                for _ in range(round + 1):
                    kept.append((await child.stdout.readline()).decode().strip())
            for child in children:
                child.kill()
            for child in children:
                rest = await child.stdout.read()
                await child.wait()
                kept += [line.decode().strip() for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
    async with Database(url) as database:
        items = WorkItemStore(database)
        await items.open()
        there = await items.read(lambda tx: records.fetch(tx, kept))
        assert set(there) == set(kept)
        await check_counts(items)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_full_disk_is_reported_and_acknowledged_tasks_are_stored(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 800_000)
    async with Database(f"sqlite://{small_disk}/tasks.db") as database:
        items = WorkItemStore(database)
        await items.open()
        kept = []
        with pytest.raises(WorkItemError, match="the disk is full") as refusal:
            for _ in range(1000):
                kept.append(await create_item(items, context=os.urandom(5000).hex()))
        assert refusal.value.retryable
        assert str(small_disk) not in str(refusal.value)
        ballast.unlink()
        kept.append(await create_item(items, "there is room again"))
        assert set(await items.read(lambda tx: records.fetch(tx, kept))) == set(kept)
        await check_counts(items)


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Root is stopped by nothing but an immutable file."""
    shut, opened = (["chmod", "400"], ["chmod", "600"]) if os.geteuid() else (["chattr", "+i"], ["chattr", "-i"])
    if shutil.which(shut[0]) is None or subprocess.run([*shut, path], check=False).returncode != 0:
        pytest.skip("this file system has no immutable files")
    try:
        yield
    finally:
        subprocess.run([*opened, path], check=True)


async def test_read_only_database_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with Database(path) as database:
        items = WorkItemStore(database)
        await items.open()
        id = await create_item(items, "kept")
    with unwritable(path):
        async with Database(path) as database:
            items = WorkItemStore(database)
            await items.open()
            assert (await items.get(id)).description == "kept"
            with pytest.raises(WorkItemError, match="read-only"):
                await create_item(items)
