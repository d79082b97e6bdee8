"""`portico status` while workers run and afterwards."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from portico.cli import status as cli_status
from portico.store.keys import SigningKeys
from portico.transports.http_server.workers.store import open_worker_store
from support.worker_processes import Session


def status(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "portico", "status", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={**os.environ, **env})


async def told(*words: str, **env: str) -> list[Any]:
    done = await asyncio.to_thread(status, *words, "--format", "jsonl", **env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_workers_and_their_sessions_are_shown_while_they_serve_and_after(serve: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    fleet = await serve("--workers", "2", env={"PORTICO_STORE": store, "TMPDIR": str(tmp_path)})
    sessions = [await Session(fleet.port).begin() for _ in range(6)]
    [said] = await told("--store", store, "--sessions")
    assert {worker["pid"] for worker in said["workers"]} == fleet.workers()
    assert all(worker["alive"] and worker["server"] == "many" for worker in said["workers"])
    assert sum(worker["sessions"] for worker in said["workers"]) == said["sessions"] == 6
    assert {recent_session["client"] for recent_session in said["recent_sessions"]} == {"a test 1"}
    whole = {session.fields["mcp_session_id"] for session in sessions}
    assert not any(id in json.dumps(said) for id in whole)
    text = (await asyncio.to_thread(status, "--store", store, "--format", "table")).stdout
    assert all(str(pid) in text for pid in fleet.workers())
    assert " left" in text
    assert await fleet.end() == 0
    [after] = await told("--store", store)
    assert after["workers"] == []
    assert after["sessions"] == after["sessions_without_worker"] == 6


async def test_workers_of_a_server_without_a_store_are_found(serve: Any, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "PORTICO_DATA": str(tmp_path / "data")}
    fleet = await serve("--workers", "1", env=env)
    [said] = await told(**env)
    assert {worker["pid"] for worker in said["workers"]} == fleet.workers()
    await fleet.end()
    assert await told(**env) == []
    assert "no workers" in (await asyncio.to_thread(status, "--format", "table", **env)).stderr


async def test_killed_server_is_not_listed_after_its_leases_expire(serve: Any, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "PORTICO_DATA": str(tmp_path / "data")}
    fleet = await serve("--workers", "1", env=env)
    # All at once, so that none can clear up after another.
    fleet.process.send_signal(signal.SIGSTOP)
    for worker in fleet.workers():
        os.kill(worker, signal.SIGKILL)
    await fleet.end(signal.SIGKILL)
    (left,) = glob.glob(f"{tmp_path}/portico-*/fleet.db")
    with closing(sqlite3.connect(left)) as database, database:
        assert database.execute("update portico_worker set lease_until = 1").rowcount == 1
    assert await told(**env) == []


def test_missing_store_is_not_created(tmp_path: Path) -> None:
    done = status("--store", str(tmp_path / "none.db"))
    assert done.returncode == 2
    assert "none.db not found" in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_worker_liveness_uses_the_clock_of_the_store(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def renewed() -> None:
        rows = await open_worker_store(postgres_url, "a" * 16, "many", SigningKeys([b"k" * 32]))
        await rows.renew_lease(None)
        await rows.close()

    asyncio.run(renewed())
    for wrong in (3600.0, -3600.0):
        with monkeypatch.context() as clock:
            here = time.time() + wrong
            clock.setattr(time, "time", lambda here=here: here)
            assert cli_status.run(["--store", postgres_url, "--format", "jsonl"]) == 0
            assert json.loads(capsys.readouterr().out)["workers"][0]["alive"]
            assert cli_status.run(["--store", postgres_url, "--format", "table"]) == 0
            assert re.search(r"\b\d+ s left", capsys.readouterr().out)
