"""External failures: clear errors, no partial writes, and recovery."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from portico.store.database import Database
from portico.store.errors import (
    CommitOutcomeUnknown,
    ConnectionLost,
    DatabaseCorrupt,
    DatabaseOpenError,
    DiskFull,
    LockTimeout,
    ReadOnlyDatabase,
    SerializationConflict,
)
from portico.store.transaction import Transaction
from support import postgres

TIMEOUT_SECONDS = 60.0
TABLE = "create table one (id bigint primary key, text text)"


def insert(id: int, text: str = "x") -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("insert into one (id, text) values (?, ?)", [id, text])


def ids(tx: Transaction) -> list[int]:
    return tx.fetch_all(int, "select id from one order by id")


# A full disk


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


async def fill(db: Database, text: str = "x" * 20_000) -> tuple[set[int], int]:
    """Write until the disk is full, several at a time. Which were written, and how many were not."""
    written: set[int] = set()
    refused = 0
    for start in range(0, 10_000, 10):
        outcomes = await asyncio.gather(
            *(db.write(insert(id, text)) for id in range(start, start + 10)), return_exceptions=True
        )
        written.update(start + n for n, outcome in enumerate(outcomes) if outcome == 1)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        refused += len(failures)
        for failure in failures:
            assert isinstance(failure, DiskFull), failure
            assert "is full" in str(failure)
        if len(failures) == 10:
            return written, refused
    raise AssertionError("the disk is never full")


async def test_full_disk_is_a_clear_error_and_nothing_is_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with Database(disk / "store.db") as db:
            await db.write(lambda tx: tx.execute(TABLE))
            (disk / "ballast").write_bytes(b"x" * 500_000)
            written, refused = await fill(db)
            assert written and refused
            assert set(await db.read(ids)) == written
            (disk / "ballast").unlink()
            assert await db.write(insert(-1)) == 1
            assert set(await db.read(ids)) == written | {-1}
        connection = sqlite3.connect(disk / "store.db")
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        connection.close()


async def test_file_that_may_not_grow_is_the_same(sqlite_url: str) -> None:
    async with Database(sqlite_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(lambda tx: tx.fetch_all(int, "pragma max_page_count = 100"))
        written, _ = await fill(db)
        assert set(await db.read(ids)) == written
        await db.write(lambda tx: tx.fetch_all(int, "pragma max_page_count = 1000000"))
        assert await db.write(insert(-1)) == 1
        assert set(await db.read(ids)) == written | {-1}


async def test_limit_on_the_size_of_files_is_a_clear_error(sqlite_url: str, spawn: Callable[..., Any]) -> None:
    async with Database(sqlite_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
    child = await spawn("fill", sqlite_url, "300000")
    kind, written = await child.says()
    assert kind == "DiskError"
    assert written > 10
    assert await child.says() == written + 1


async def test_of_those_that_wait_together_the_small_ones_still_fit(sqlite_url: str) -> None:
    """A full disk undoes the whole commit; then each is tried alone."""
    async with Database(sqlite_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(lambda tx: tx.fetch_all(int, "pragma max_page_count = 50"))
        outcomes = await asyncio.gather(
            db.write(insert(1)), db.write(insert(2, "x" * 1_000_000)), db.write(insert(3)), return_exceptions=True
        )
        assert [outcomes[0], outcomes[2]] == [1, 1]
        assert isinstance(outcomes[1], DiskFull)
        assert await db.read(ids) == [1, 3]


async def test_savepoint_does_not_survive_a_full_disk(sqlite_url: str) -> None:
    async with Database(sqlite_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(lambda tx: tx.fetch_all(int, "pragma max_page_count = 50"))

        def stubborn(tx: Transaction) -> None:
            insert(1)(tx)
            with pytest.raises(DiskFull), tx.savepoint():
                insert(2, "x" * 1_000_000)(tx)
            tx.publish("one")

        with pytest.raises(Exception, match="is full"):
            await db.write(stubborn)
        assert await db.read(ids) == []


async def test_full_disk_error_is_reported(lonely_server: postgres.Server) -> None:
    with small_disk(lonely_server.folder / "disk") as disk:
        (disk / "ballast").write_bytes(b"x" * 500_000)
        (disk / "space").mkdir()
        os.chown(disk / "space", lonely_server.data.stat().st_uid, -1)
        lonely_server.sql(f"create tablespace small location '{disk}/space'")
        async with Database(lonely_server.create_database()) as db:
            await db.write(lambda tx: tx.execute(f"{TABLE} tablespace small"))
            await db.write(lambda tx: tx.execute("alter table one alter column text set storage external"))
            written, refused = await fill(db)
            assert written and refused
            assert set(await db.read(ids)) == written
            (disk / "ballast").unlink()
            assert await db.write(insert(-1)) == 1
            assert set(await db.read(ids)) == written | {-1}


# Locks


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    """A file that somebody else is writing to."""
    async with Database(tmp_path / "store.db") as db:
        await db.write(lambda tx: tx.execute(TABLE))
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    other.execute("insert into one (id) values (100)")
    yield other
    other.close()


async def test_file_that_stays_locked_is_a_clear_error(sqlite_url: str, held: sqlite3.Connection) -> None:
    async with Database(sqlite_url, timeout=0.1) as db:
        outcomes = await asyncio.gather(*(db.write(insert(id)) for id in range(20)), return_exceptions=True)
        assert all(isinstance(outcome, LockTimeout) for outcome in outcomes)
        assert "store.db" in str(outcomes[0])
        assert await db.read(ids) == []
        held.execute("rollback")
        assert await db.write(insert(1)) == 1


async def test_lock_is_waited_for(sqlite_url: str, held: sqlite3.Connection) -> None:
    async with Database(sqlite_url) as db:
        writing = asyncio.ensure_future(db.write(insert(1)))
        assert await db.read(ids) == []
        assert not writing.done()
        held.execute("commit")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await writing == 1
        assert await db.read(ids) == [1, 100]


async def test_rows_that_stay_locked_are_a_clear_error(postgres_url: str) -> None:
    async with Database(postgres_url, timeout=0.2) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(insert(1))
        with psycopg.connect(postgres_url) as other:
            other.execute("update one set text = 'held'")
            with pytest.raises(LockTimeout):
                await db.write(lambda tx: tx.execute("update one set text = 'ours'"))
            claim = "select id from one limit 1 for update skip locked"
            assert await db.write(lambda tx: tx.fetch_optional(int, claim), isolation="read committed") is None
        assert await db.write(lambda tx: tx.execute("update one set text = 'ours'")) == 1


async def test_deadlock_is_tried_again(postgres_url: str) -> None:
    async with Database(postgres_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(lambda tx: (insert(1)(tx), insert(2)(tx)))
        both = threading.Barrier(2)
        runs: list[str] = []

        def cross(first: int, second: int) -> Callable[[Transaction], None]:
            def work(tx: Transaction) -> None:
                tx.execute("update one set text = 'a' where id = ?", [first])
                runs.append("run")
                if len(runs) <= 2:
                    both.wait(TIMEOUT_SECONDS)
                tx.execute("update one set text = 'b' where id = ?", [second])

            return work

        writes = (db.write(cross(*order), isolation="read committed") for order in ((1, 2), (2, 1)))
        await asyncio.gather(*writes)
        assert len(runs) > 2


async def test_conflict_that_never_ends_is_given_up(postgres_url: str) -> None:
    async with Database(postgres_url, timeout=0.2) as db, Database(postgres_url) as other:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(insert(1, "0"))
        loop = asyncio.get_running_loop()

        def disturbed(tx: Transaction) -> None:
            text = tx.fetch_one(str, "select text from one")
            change = other.write(lambda tx: tx.execute("update one set text = text || '.'"))
            asyncio.run_coroutine_threadsafe(change, loop).result(TIMEOUT_SECONDS)
            tx.execute("update one set text = ?", [text])

        with pytest.raises(SerializationConflict):
            await db.write(disturbed)


# Files that are not what they should be


async def test_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "store.db", tmp_path):
        with pytest.raises(DatabaseOpenError, match=str(path)):
            await Database(path).open()


async def test_file_that_is_not_a_database_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"these are my notes, not a database\n" * 100)
    before = path.read_bytes()
    with pytest.raises(DatabaseCorrupt, match="is not an SQLite database"):
        await Database(path).open()
    assert path.read_bytes() == before


async def test_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with Database(path) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(
            lambda tx: tx.execute_many("insert into one (id, text) values (?, ?)", [(n, "x" * 500) for n in range(500)])
        )
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 20)
    async with Database(path) as db:
        with pytest.raises(DatabaseCorrupt, match="Restore a backup"):
            await db.read(lambda tx: tx.fetch_one(int, "select count(text) from one"))


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


async def test_file_that_is_not_to_be_written_to_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with Database(path) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(insert(1))
    with unwritable(path):
        async with Database(path) as db:
            with pytest.raises(ReadOnlyDatabase, match=r"store\.db is read-only"):
                await db.write(insert(2))
            assert await db.read(ids) == [1]
    async with Database(path) as db:
        assert await db.write(insert(2)) == 1


async def test_database_files_are_private(tmp_path: Path) -> None:
    async with Database(tmp_path / "store.db") as db:
        await db.write(lambda tx: tx.execute(TABLE))
        for name in ("store.db", "store.db-wal", "store.db-shm"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


async def test_file_that_is_moved_away_while_closed_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with Database(path) as db:
        await db.write(lambda tx: tx.execute(TABLE))
    assert os.listdir(tmp_path) == ["store.db"]
    path.rename(tmp_path / "kept.db")
    async with Database(path) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        assert await db.read(ids) == []


# A server that comes and goes


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://somebody:secret@127.0.0.1:9/nothing?connect_timeout=2",
        "postgresql://somebody:secret@/nothing?host=/nowhere",
        "postgresql://somebody:secret@host/nothing?no_such_option=1",
    ],
)
async def test_missing_server_is_a_clear_error_without_the_password(url: str) -> None:
    with pytest.raises(DatabaseOpenError) as failure:
        await Database(url).open()
    assert "PostgreSQL" in str(failure.value)
    assert "secret" not in str(failure.value)


async def test_missing_database_error_names_it(postgres_server: postgres.Server) -> None:
    with pytest.raises(DatabaseOpenError, match='database "nothing" does not exist'):
        await Database(postgres_server.url("nothing")).open()


def terminate(server: postgres.Server, url: str) -> None:
    name = url.split("@/")[1].split("?")[0]
    server.sql(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")


async def test_connections_that_were_lost_while_idle_are_made_again(
    postgres_server: postgres.Server, postgres_url: str
) -> None:
    async with Database(postgres_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        for id in range(3):
            terminate(postgres_server, postgres_url)
            assert await db.write(insert(id)) == 1
            terminate(postgres_server, postgres_url)
            assert len(await db.read(ids)) == id + 1


async def test_transaction_whose_connection_is_lost_before_the_commit_is_run_again(
    postgres_server: postgres.Server, postgres_url: str
) -> None:
    async with Database(postgres_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        runs: list[int] = []

        def work(tx: Transaction) -> None:
            insert(1)(tx)
            runs.append(1)
            if len(runs) == 1:
                terminate(postgres_server, postgres_url)
            insert(2)(tx)

        await db.write(work)
        assert len(runs) == 2
        assert await db.read(ids) == [1, 2]


@pytest.mark.parametrize("then", ["commits", "goes on"])
async def test_killed_process_releases_its_locks(postgres_url: str, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    monkeypatch.setattr("portico.store.postgres.IDLE_IN_TRANSACTION_TIMEOUT_SECONDS", 0.2)
    async with Database(postgres_url) as stopped, Database(postgres_url) as other:
        await other.write(lambda tx: tx.execute(TABLE))
        await other.write(insert(1))
        locked, goes_on = threading.Event(), threading.Event()
        runs: list[int] = []

        def hold(tx: Transaction) -> None:
            tx.execute("update one set id = id + 10")
            runs.append(1)
            if len(runs) == 1:
                locked.set()
                assert goes_on.wait(TIMEOUT_SECONDS)
            if then == "goes on":
                tx.execute("update one set id = id + 10")

        holding = asyncio.create_task(stopped.write(hold))
        try:
            assert await asyncio.to_thread(locked.wait, TIMEOUT_SECONDS)
            await other.write(lambda tx: tx.execute("update one set id = id + 1"))
        finally:
            goes_on.set()
        # It was not committed, and is run again.
        await holding
        assert len(runs) == 2
        assert await other.read(ids) == [12 if then == "commits" else 22]


async def test_server_may_say_how_long_one_may_be_silent(postgres_url: str) -> None:
    text = f"{postgres_url}&options=-c%20idle_in_transaction_session_timeout%3D7s"
    for url, lasting in ((postgres_url, "1min"), (text, "7s")):
        async with Database(url) as db:
            assert await db.read(lambda tx: tx.fetch_one(str, "show idle_in_transaction_session_timeout")) == lasting


async def test_interrupted_commit_has_an_unknown_outcome(postgres_url: str) -> None:
    async with Database(postgres_url) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        await db.write(
            lambda tx: tx.execute_script("""
            create function ends() returns trigger language plpgsql as
            $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
            create constraint trigger ends after insert on one deferrable initially deferred
            for each row execute function ends();
            """)
        )
        with pytest.raises(CommitOutcomeUnknown):
            await db.write(insert(1))
        assert await db.read(ids) == []


async def test_unreachable_database_raises_and_reconnects(
    lonely_server: postgres.Server,
) -> None:
    async with Database(lonely_server.create_database(), timeout=0.3) as db:
        await db.write(lambda tx: tx.execute(TABLE))
        lonely_server.stop()
        with pytest.raises(ConnectionLost, match="cannot reach the PostgreSQL server"):
            await db.write(insert(1))
        lonely_server.start()
        assert await db.write(insert(1)) == 1


async def test_no_process_is_left(postgres_server: postgres.Server) -> None:
    with postgres.server() as server:
        pid = int((server.data / "postmaster.pid").read_text().splitlines()[0])
        assert os.stat(f"/proc/{pid}").st_uid != 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert not server.folder.exists()
