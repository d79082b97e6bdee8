"""A corrupt file raises a clear error and is never replaced silently."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from portico.store.database import Database
from portico.store.errors import DatabaseCorrupt, StoreError
from portico_services.memory.errors import MemoryToolError
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore

PAGE = 8192


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 200)):
        data[chance.randrange(len(data))] = chance.randrange(256)


def beginning(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 5)):
        data[chance.randrange(100)] = chance.randrange(256)


def schema(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 50)):
        data[chance.randrange(100, PAGE)] = chance.choice([0, 0x80, 0xC3, 0xFF, chance.randrange(256)])


def zeroes(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) // PAGE) * PAGE
    data[at : at + PAGE] = bytes(PAGE)


def swapped(data: bytearray, chance: random.Random) -> None:
    item, other = (chance.randrange(1, len(data) // PAGE) * PAGE for _ in range(2))
    data[item : item + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[item : item + PAGE]


def halves(data: bytearray, chance: random.Random) -> None:
    """As a disk whose blocks are smaller than a page may mix them up."""
    half = PAGE // 2
    item, other = (chance.randrange(1, len(data) // half) * half for _ in range(2))
    data[item : item + half], data[other : other + half] = data[other : other + half], data[item : item + half]


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(1, len(data)) :]


def letters(data: bytearray, chance: random.Random) -> None:
    """Texts that are no UTF-8 any more."""
    at = 0
    while (at := data.find(b"about", at + 1)) >= 0:
        data[at] = chance.choice([0x80, 0xC3, 0xFF])


KINDS: list[Callable[[bytearray, random.Random], None]] = [
    flip,
    beginning,
    schema,
    zeroes,
    swapped,
    halves,
    cut,
    letters,
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "store.db"
    asyncio.run(fill(path))
    return path.read_bytes()


async def fill(path: Path) -> None:
    async with Database(path) as database:
        memories = MemoryStore(database)
        await memories.open()
        for number in range(60):
            draft = MemoryDraft(
                content=f"number {number} is about plums and pears", namespace="decisions", tags=["fruit"]
            )
            await memories.capture(draft, compare=False)
        await memories.close()


@pytest.mark.parametrize("damage", KINDS)
@pytest.mark.parametrize("seed", range(12))
async def test_damaged_database_raises_a_portico_error(
    whole: bytes, tmp_path: Path, damage: Callable[[bytearray, random.Random], None], seed: int
) -> None:
    data = bytearray(whole)
    damage(data, random.Random(seed))
    path = tmp_path / "store.db"
    path.write_bytes(data)
    try:
        async with Database(path, timeout=0.1) as database:
            memories = MemoryStore(database)
            try:
                await memories.open()
                await memories.recall("plums", memories.filter(""))
                await memories.recall("", memories.filter(""), limit=100)
                await memories.capture(MemoryDraft(content="one more about apples", namespace="decisions"))
                await memories.reindex()
            finally:
                await memories.close()
    except (StoreError, MemoryToolError):
        pass


async def test_memory_that_an_index_alone_has_is_damage(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma writable_schema = on")
        ids = dict(connection.execute("select name, rootpage from sqlite_master"))
        empty = ids["sqlite_autoindex_memory_gone_1"]
        connection.execute("update sqlite_master set rootpage = ? where name = 'sqlite_autoindex_memory_1'", [empty])
    async with Database(path) as database:
        memories = MemoryStore(database)
        with pytest.raises(MemoryToolError, match="damaged"):
            await memories.recall("", memories.filter(""))


async def test_texts_that_are_none_are_damage(whole: bytes, tmp_path: Path) -> None:
    data = bytearray(whole)
    letters(data, random.Random(1))
    (tmp_path / "store.db").write_bytes(data)
    async with Database(tmp_path / "store.db") as database:
        with pytest.raises(DatabaseCorrupt, match="Restore a backup"):
            await database.read(lambda tx: tx.fetch_all(str, "select content from memory"))


@pytest.mark.parametrize("damage", [beginning, schema, cut])
def test_at_the_shell_it_is_one_sentence(
    whole: bytes, tmp_path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    for seed in range(4):
        data = bytearray(whole)
        damage(data, random.Random(seed))
        path = tmp_path / f"{seed}.db"
        path.write_bytes(data)
        command = [sys.executable, "-m", "portico", "memory", "list", "--store", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or len(done.stderr.strip().splitlines()) == 1, done.stderr


async def test_file_of_no_bytes_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "portico"):
        async with Database(path) as database:
            await database.write(lambda tx: tx.execute("create table one (id bigint)"))
    assert [f"{path} is empty and becomes a new store" in record.getMessage() for record in caplog.records] == [True]


async def test_path_of_a_new_database_needs_no_scheme(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "portico"):
        for _ in range(2):
            async with Database(tmp_path / "store.db") as database:
                await database.write(lambda tx: tx.execute("create table if not exists one (id bigint)"))
    shutil.rmtree(tmp_path)
    assert caplog.records == []
