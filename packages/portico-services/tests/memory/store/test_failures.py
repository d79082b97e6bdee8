"""Storage failures, killed processes, and concurrent processes on the same memories."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server
from portico.protocol.errors import ProtocolError
from portico.store import errors
from portico.store.database import Database
from portico_services.memory.errors import MemoryToolError
from portico_services.memory.service import Memory
from portico_services.memory.store import records
from portico_services.memory.store.memory_store import MemoryStore
from support.memories import CAPTURE, call_failing_tool, call_tool, capture_memory, search_contents
from support.paths import PROGRAMS
from support.storm import times

Serving = Callable[..., Any]
TIMEOUT_SECONDS = 60.0


@asynccontextmanager
async def opened(url: str | os.PathLike[str]) -> AsyncIterator[MemoryStore]:
    async with Database(url) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        yield memories
        await memories.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Root may write to every file that is not immutable."""
    shut, opened = (["chmod", "400"], ["chmod", "600"]) if os.geteuid() else (["chattr", "+i"], ["chattr", "-i"])
    if shutil.which(shut[0]) is None or subprocess.run([*shut, path], check=False).returncode != 0:
        pytest.skip("this file system has no immutable files")
    try:
        yield
    finally:
        subprocess.run([*opened, path], check=True)


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
        raise failure("/secret/path/memory.db failed")

    monkeypatch.setattr(Database, "write", fail)
    text, error = await call_failing_tool(client, "memory_capture", **CAPTURE)
    assert "/secret" not in text
    assert (error["number"], error["code"], error["retryable"]) == (-32609, "storage_error", retryable)


async def test_storage_failure_has_a_jsonrpc_code_with_that_error_style(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serving(revision="2024-11-05", error_style="jsonrpc")

    async def fail(self: Database, fn: Any, **_: Any) -> Any:
        raise errors.ReadOnlyDatabase("no")

    monkeypatch.setattr(Database, "write", fail)
    with pytest.raises(ProtocolError) as refusal:
        await client.call_tool("memory_capture", CAPTURE)
    assert refusal.value.code == -32609


async def test_closed_storage_is_reported(url: str) -> None:
    database = Database(url)
    async with database:
        memories = MemoryStore(database)
        await memories.open()
    with pytest.raises(MemoryToolError, match="closed"):
        await memories.get("abcd")


async def test_captures_of_another_process_are_notified(serving: Serving) -> None:
    """Two services on one store, as two processes have them."""
    first, second = await serving(tool_prefix="first"), await serving()
    async with first.listen(uris=["first://project"]) as changes:
        captured = await call_tool(second, "memory_capture", **CAPTURE)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            change = await anext(aiter(changes))
    assert change.uri == f"first://project/decisions/{captured['id']}"
    assert (await call_tool(first, "first_get", memory_id=captured["id"]))["content"] == CAPTURE["content"]


async def captured_until(client: Any, refused_by: str) -> tuple[list[str], dict[str, Any]]:
    """Capture until it is refused; the ids of what was kept, and the refusal."""
    kept: list[str] = []
    for number in range(5_000):
        text = f"n{number} " + " ".join(f"w{number}x{at}" for at in range(2_000))
        arguments = {"content": text, "namespace": "learnings", "on_duplicate": "keep"}
        result = await client.call_tool("memory_capture", arguments, raise_on_error=False)
        if result.is_error:
            assert refused_by in result.content[0].text, result.content
            return kept, (result.meta or {})["portico/error"]
        kept.append(result.structured["id"])
    raise AssertionError("it is never refused")


async def test_full_disk_is_reported_and_no_stored_memory_is_lost(serving: Serving, small_disk: Path) -> None:
    client = await serving(store=small_disk / "memory.db")
    await call_tool(client, "memory_capture", **CAPTURE)
    (small_disk / "ballast").write_bytes(b"x" * 500_000)
    kept, error = await captured_until(client, "the disk is full")
    assert kept and (error["number"], error["retryable"]) == (-32609, True)
    for id in kept:
        assert (await call_tool(client, "memory_get", memory_id=id))["content"].startswith("n")
    assert (await call_tool(client, "memory_recall", query="PostgreSQL"))["count"] >= 1
    (small_disk / "ballast").unlink()
    later = await call_tool(client, "memory_capture", content="There is room again", namespace="progress")
    assert (await call_tool(client, "memory_recall", query="room again"))["memories"][0]["id"] == later["id"]


async def test_file_that_is_not_to_be_written_to_can_be_searched(serving: Serving, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    async with opened(path) as memories:
        await capture_memory(memories, "Use PostgreSQL for storage")
    with unwritable(path):
        client = await serving(store=path)
        assert (await call_tool(client, "memory_recall", query="storage"))["count"] == 1
        text, error = await call_failing_tool(client, "memory_capture", content="more", namespace="context")
    assert (error["number"], error["retryable"]) == (-32609, False)
    assert "read-only" in text and str(tmp_path) not in text


async def test_damaged_file_is_reported_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(b"these are my notes, not a database\n" * 100)
    before = path.read_bytes()
    server = Server("late", version="1")
    async with server.lifespan(), Client(server) as client:
        server.add(Memory(path, project="here/project"))
        text, error = await call_failing_tool(client, "memory_recall", query="x")
        with pytest.raises(ProtocolError) as unread:
            await client.read_resource("memory://status")
    assert (error["number"], error["retryable"]) == (-32609, False)
    assert "damaged" in text and str(tmp_path) not in text + str(unread.value) + str(unread.value.data)
    assert path.read_bytes() == before


async def test_damaged_pages_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with opened(path) as memories:
        for number in range(300):
            await capture_memory(memories, f"number {number} {'filler ' * 100}", on_duplicate="keep")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * (size // 4))
    async with Database(path) as database:
        memories = MemoryStore(database, project="here/project")
        with pytest.raises((MemoryToolError, errors.DatabaseCorrupt)) as failure:
            await memories.open()
            await memories.recall("", memories.filter(""), limit=1000)
        await memories.close()
    assert "damaged" in str(failure.value)


async def test_two_processes_capture_into_one_file(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/memory.db"
    script = str(PROGRAMS / "memory_kills.py")
    both = [
        await asyncio.create_subprocess_exec(sys.executable, script, url, "15", seed, stdout=asyncio.subprocess.PIPE)
        for seed in ("1", "2")
    ]
    kept: set[str] = set()
    for child in both:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            out, _ = await child.communicate()
        assert child.returncode == 0
        kept |= {line.split()[0] for line in out.decode().splitlines()}
    assert kept
    async with opened(url) as memories:
        assert set(await memories.read(lambda tx: records.fetch(tx, list(kept)))) == kept


async def test_another_process_that_holds_the_file_is_reported_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with Database(path, timeout=0.1) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open(read_only=True)
        kept = await capture_memory(memories, "before")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("begin immediate")
        with pytest.raises(MemoryToolError, match="another process has held") as failure:
            await capture_memory(memories, "while it is held")
        assert failure.value.retryable
        assert await search_contents(memories) == ["before"]
        other.execute("rollback")
        other.close()
        assert (await memories.update(kept.id, content="after")).version == 2
        await memories.close()


@pytest.mark.parametrize(
    ("engine", "kills"), [("sqlite", times(15, in_a_storm=1000)), ("postgresql", times(4, in_a_storm=60))]
)
async def test_acknowledged_memories_survive_a_kill(
    engine: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite://{tmp_path}/memory.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    script = str(PROGRAMS / "memory_kills.py")
    child = await asyncio.create_subprocess_exec(
        sys.executable, script, url, str(kills), "7", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(10 * TIMEOUT_SECONDS):
        out, _ = await child.communicate()
    assert child.returncode == 0
    kept = dict(line.split() for line in out.decode().splitlines())
    assert len(kept) > kills
    async with opened(url) as memories:
        there = await memories.read(lambda tx: records.fetch(tx, list(kept)))
        assert set(there) == set(kept)
        for id, word in kept.items():
            page = await memories.recall(word, memories.filter(""), limit=3)
            assert id in {hit.record.id for hit in page.hits}, word
        if engine == "sqlite":
            assert await memories.read(lambda tx: tx.fetch_all(str, "pragma integrity_check")) == ["ok"]


async def test_lost_index_is_built_again(memories: MemoryStore) -> None:
    kept = [
        await capture_memory(memories, f"{word} grows in the garden", "learnings")
        for word in ("fennel", "sorrel", "lovage")
    ]
    await memories.write(lambda tx: tx.execute("delete from memory_posting"))
    assert await memories.reindex() == 3
    assert await search_contents(memories, "sorrel") == [kept[1].content]
