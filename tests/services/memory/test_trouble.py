"""When the storage fails, a process is killed, or another one is at work on the same memories."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remembering import CAPTURE, found, refused, said

from portico.services.memory import memories as memories_module
from portico.services.memory import records
from portico.services.memory.errors import StorageFailed
from portico.services.memory.memories import Memories
from portico.store import errors
from portico.store.database import Database
from portico.wire.errors import ProtocolError

Serving = Callable[..., Any]
PATIENCE = 60.0
KILLS = 8


@pytest.mark.parametrize(
    ("failure", "retryable"),
    [(errors.ReadOnly, False), (errors.DiskFull, True), (errors.Locked, True), (errors.Damaged, False)],
)
async def test_a_failing_storage_is_explained_without_its_address(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, failure: type[Exception], retryable: bool
) -> None:
    client = await serving()

    async def fail(self: Database, fn: Any, **_: Any) -> Any:
        raise failure("/secret/path/memory.db failed")

    monkeypatch.setattr(Database, "write", fail)
    text, error = await refused(client, "memory_capture", **CAPTURE)
    assert "/secret" not in text
    assert (error["number"], error["code"], error["retryable"]) == (-32609, "storage_error", retryable)


async def test_a_failing_storage_has_its_code_where_a_setting_says_so(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await serving(revision="2024-11-05", codes="protocol")

    async def fail(self: Database, fn: Any, **_: Any) -> Any:
        raise errors.ReadOnly("no")

    monkeypatch.setattr(Database, "write", fail)
    with pytest.raises(ProtocolError) as refusal:
        await client.call_tool("memory_capture", CAPTURE)
    assert refusal.value.code == -32609


async def test_a_closed_storage_says_so(url: str) -> None:
    database = Database(url)
    async with database:
        memories = Memories(database)
        await memories.open()
    with pytest.raises(StorageFailed, match="closed"):
        await memories.get("abcd")


async def test_one_hears_of_what_another_captures(serving: Serving) -> None:
    """Two services on one store, as two processes have them."""
    first, second = await serving(naming="first"), await serving()
    async with first.listen(uris=["first://project"]) as changes:
        captured = await said(second, "memory_capture", **CAPTURE)
        async with asyncio.timeout(PATIENCE):
            change = await anext(aiter(changes))
    assert change.uri == f"first://project/decisions/{captured['id']}"
    assert (await said(first, "first_get", memory_id=captured["id"]))["content"] == CAPTURE["content"]


async def test_every_memory_that_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/memory.db"
    kept: dict[str, str] = {}
    for round in range(KILLS):
        arguments = [str(Path(__file__).parent / "child.py"), url, str(memories_module.MIGRATIONS), f"round{round}"]
        child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        async with asyncio.timeout(PATIENCE):
            for _ in range(round + 1):
                id, word = (await child.stdout.readline()).decode().split()
                kept[id] = f"round{round} {word}"
        child.kill()
        async with asyncio.timeout(PATIENCE):
            rest = await child.stdout.read()
            await child.wait()
        whole = [line.decode().split() for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
        kept |= {id: f"round{round} {word}" for id, word in whole}
    async with Database(url) as database:
        memories = Memories(database, project="here/project")
        await memories.open()
        there = await memories.read(lambda tx: records.fetch(tx, list(kept)))
        assert set(there) == set(kept)
        for words in list(kept.values())[:50]:
            assert any(words in one for one in await found(memories, f"{words} pomegranates")), words
