"""Acknowledged data survives any crash."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from portico.store.connection_pool import TransactionJob
from portico.store.database import Database
from portico.store.errors import CommitOutcomeUnknown
from portico.store.sqlite import SqliteEngine
from portico.store.transaction import Transaction
from support import postgres
from support.storm import times

ROUNDS = times(2, in_a_storm=20)
TABLES = "create table one (id bigint primary key, text text not null); create table other (id bigint primary key);"


async def test_commit_waits_for_the_disk(sqlite_url: str) -> None:
    """The power cannot be cut in a test; that SQLite was told what to do can be seen."""
    async with Database(sqlite_url) as db:
        response = await db.write(
            lambda tx: [
                tx.fetch_one(str, "pragma journal_mode"),
                *(tx.fetch_one(int, f"pragma {name}") for name in ("synchronous", "fullfsync", "foreign_keys")),
            ]
        )
    assert response == ["wal", 2, 1, 1]


async def test_new_store_has_large_pages_and_existing_is_unchanged(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "small.db")
    connection.executescript("pragma page_size = 4096; create table one (id integer); insert into one values (7);")
    connection.close()
    sizes = []
    for name in ("small.db", "large.db"):
        async with Database(tmp_path / name) as db:
            await db.write(lambda tx: tx.execute("create table if not exists one (id bigint)"))
            await db.write(lambda tx: tx.execute("insert into one (id) values (8)"))
            sizes.append(
                await db.read(
                    lambda tx: (tx.fetch_one(int, "pragma page_size"), tx.fetch_all(int, "select id from one"))
                )
            )
    assert sizes == [(4096, [7, 8]), (8192, [8])]


async def test_wal_checkpoint_runs_after_the_response(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writer = SqliteEngine(str(path), Mock(), timeout=1.0, max_connections=1)._new_writer()

    def perform(fn: Callable[[Transaction], Any]) -> Any:
        job = TransactionJob(fn, asyncio.get_running_loop().create_future(), is_write=True)
        writer.run_jobs([job], lambda: None)
        assert job.error is None
        return job.result

    perform(lambda tx: tx.execute("create table one (id bigint primary key, text text)"))
    writer.on_idle()
    perform(
        lambda tx: tx.execute_columns(
            "insert into one (id, text) values (?, ?)", (range(30_000), ["x" * 2000] * 30_000)
        )
    )
    answered = path.stat().st_size
    writer.on_idle()
    assert answered < 30_000 * 2000 < path.stat().st_size
    # From now on SQLite does it again by itself.
    assert perform(lambda tx: tx.fetch_one(int, "pragma wal_autocheckpoint")) > 0
    writer.close()


async def whole_pairs(db: Database) -> set[int]:
    """The ids that are there; each twice, or something was half written."""
    item, other = await db.read(
        lambda tx: (tx.fetch_all(int, "select id from one"), tx.fetch_all(int, "select id from other")),
    )
    assert sorted(item) == sorted(other)
    return set(item)


async def test_killed_process_loses_no_acknowledged_write(shared_url: str, spawn: Callable[..., Any]) -> None:
    async with Database(shared_url) as db:
        await db.write(lambda tx: tx.execute_script(TABLES))
    acknowledged: set[int] = set()
    for n in range(ROUNDS):
        child = await spawn("pairs", shared_url, str(n * 1_000_000))
        for _ in range(random.randrange(1, 200)):
            acknowledged.add(await child.says())
        acknowledged.update(await child.kill())
        assert child.process.returncode == -signal.SIGKILL
        async with Database(shared_url) as db:
            assert acknowledged <= await whole_pairs(db)
    assert len(acknowledged) >= ROUNDS


async def test_killed_process_does_not_disturb_its_neighbours(shared_url: str, spawn: Callable[..., Any]) -> None:
    async with Database(shared_url) as db:
        await db.write(lambda tx: tx.execute_script(TABLES))
        acknowledged: set[int] = set()
        for n in range(3):
            child = await spawn("pairs", shared_url, str(n * 1_000_000))
            acknowledged.add(await child.says())
            for id in range(20):
                await db.write(lambda tx, id=-n * 100 - id - 1: _pair(tx, id))
                acknowledged.add(-n * 100 - id - 1)
            acknowledged.update(await child.kill())
        assert acknowledged <= await whole_pairs(db)


def _pair(tx: Transaction, id: int) -> None:
    tx.execute("insert into one (id, text) values (?, 'x')", [id])
    tx.execute("insert into other (id) values (?)", [id])


async def test_file_that_was_being_written_is_sound(sqlite_url: str, tmp_path: Path, spawn: Callable[..., Any]) -> None:
    async with Database(sqlite_url) as db:
        await db.write(lambda tx: tx.execute_script(TABLES))
    for n in range(5):
        child = await spawn("pairs", sqlite_url, str(n * 1_000_000))
        for _ in range(50):
            await child.says()
        await child.kill()
    connection = sqlite3.connect(tmp_path / "store.db")
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    connection.close()


async def test_crashed_database_server_loses_no_acknowledged_write(lonely_server: postgres.Server) -> None:
    """And those who were writing go on when it is back, except one whose commit may or may not have happened."""
    acknowledged: set[int] = set()
    unknown: set[int] = set()
    enough = {most: asyncio.Event() for most in (300, 700)}

    async def writer(db: Database, first: int) -> None:
        for id in range(first, first + 150):
            try:
                await db.write(lambda tx, id=id: _pair(tx, id))
                acknowledged.add(id)
            except CommitOutcomeUnknown:
                unknown.add(id)
            if len(acknowledged) in enough:
                enough[len(acknowledged)].set()

    async with Database(lonely_server.create_database(), timeout=60) as db:
        await db.write(lambda tx: tx.execute_script(TABLES))
        writers = [asyncio.ensure_future(writer(db, n * 1000)) for n in range(8)]
        for event in enough.values():
            async with asyncio.timeout(60):
                await event.wait()
            await asyncio.to_thread(lonely_server.stop, signal.SIGQUIT)
            await asyncio.to_thread(lonely_server.start)
        await asyncio.gather(*writers)
        result = await whole_pairs(db)
    assert acknowledged <= result
    assert result - acknowledged <= unknown
    assert len(acknowledged) + len(unknown) == 8 * 150


async def test_processes_that_count_together_lose_nothing(shared_url: str, spawn: Callable[..., Any]) -> None:
    async with Database(shared_url) as db:
        await db.write(
            lambda tx: tx.execute_script("create table counter (n bigint); insert into counter (n) values (0);")
        )
        children = [await spawn("count", shared_url, "100") for _ in range(3)]
        for child in children:
            assert await child.says() == "done"
        assert await db.read(lambda tx: tx.fetch_one(int, "select n from counter")) == 300
