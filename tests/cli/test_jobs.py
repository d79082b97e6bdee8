"""`portico work` and `portico jobs`, with a store on the disk and real processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from forks import Forks
from portico import SyncClient

REPORTS = str(Path(__file__).parents[2] / "examples" / "reports.py")
PORTICO = [sys.executable, "-m", "portico"]
Jobs = Callable[..., "subprocess.CompletedProcess[str]"]
Shown = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "kept" / "reports.db")


@pytest.fixture
def client(store: str) -> Iterator[SyncClient]:
    """A server that only takes tasks, and runs none."""
    Path(store).parent.mkdir()
    with SyncClient([*PORTICO, "serve", REPORTS, "--store", store, "--concurrency", "0"]) as client:
        yield client


@pytest.fixture
def jobs(forks: Forks) -> Jobs:
    return lambda store, *words: forks.run("jobs", *words, "--store", store)


@pytest.fixture
def shown(jobs: Jobs) -> Shown:
    def show(store: str, id: str) -> dict[str, object]:
        done = jobs(store, "show", id)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    return show


def wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_task_waits_in_the_store_until_somebody_works(
    jobs: Jobs, shown: Shown, client: SyncClient, store: str
) -> None:
    task = client.start_task("make_report", {"topic": "bees", "chapters": 2})
    [line] = jobs(store, "list").stdout.splitlines()
    found = json.loads(line)
    assert (found["id"], found["tool"], found["status"]) == (task.id, "make_report", "queued")
    worker = subprocess.Popen([*PORTICO, "work", REPORTS, "--store", store], stderr=subprocess.PIPE, text=True)
    try:
        assert task.result(timeout=20).text == "1. More about bees\n2. More about bees"
        assert shown(store, task.id[:12])["steps"] == {
            "chapter 1": "1. More about bees",
            "chapter 2": "2. More about bees",
        }
        assert "100%" in jobs(store, "list", "--output", "table").stdout
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(15) == 0
        assert worker.stderr is not None
        worker.stderr.close()


def test_a_worker_that_is_told_to_stop_leaves_its_work_to_the_next(
    jobs: Jobs, shown: Shown, client: SyncClient, store: str
) -> None:
    task = client.start_task("make_report", {"topic": "bees", "chapters": 50})
    for _ in range(2):
        worker = subprocess.Popen([*PORTICO, "work", REPORTS, "--store", store], stderr=subprocess.DEVNULL)
        try:
            before = len(shown(store, task.id)["steps"])
            wait(lambda before=before: len(shown(store, task.id)["steps"]) > before)  # type: ignore[misc]
        finally:
            worker.terminate()
            assert worker.wait(15) == 0
        assert shown(store, task.id)["status"] == "queued"
        # Nobody works on it, and how far it came is still there.
        found = json.loads(jobs(store, "list").stdout)
        assert 0 < found["progress"] < found["total"] == 50
    assert task.refresh() == "working"


def test_tasks_are_cancelled_and_tried_again_from_a_shell(jobs: Jobs, client: SyncClient, store: str) -> None:
    task = client.start_task("make_report", {"topic": "bees"})
    assert jobs(store, "retry", task.id).returncode == 1
    assert jobs(store, "cancel", task.id).returncode == 0
    assert task.refresh() == "cancelled"
    done = jobs(store, "cancel", task.id, "--output", "text")
    assert (done.returncode, done.stdout) == (1, f"{task.id}: already ended\n")
    assert jobs(store, "retry", task.id).returncode == 0
    assert task.refresh() == "working"


def test_what_is_not_there_is_said(forks: Forks, jobs: Jobs, store: str, tmp_path: Path) -> None:
    Path(store).parent.mkdir()
    with closing(sqlite3.connect(store)) as made, made:
        made.execute("create table other (one integer)")
    assert jobs(store, "list", "--output", "table").stderr == "no tasks\n"
    assert jobs(store, "show", "nothing").returncode == 2
    assert jobs(store, "cancel").returncode == 2
    done = forks.run("jobs", "list", env={**os.environ, "PORTICO_DATA": str(tmp_path / "empty"), "PORTICO_STORE": ""})
    assert done.returncode == 2
    assert "--store is required; the data directory has none" in done.stderr


def test_a_server_without_tasks_gives_nothing_to_work_on(forks: Forks) -> None:
    done = forks.run("work", Path(REPORTS).parent / "hello.py")
    assert done.returncode == 2
    assert "no tool that may become a task" in done.stderr


def test_looking_at_a_store_that_is_not_there_does_not_make_it(jobs: Jobs, tmp_path: Path) -> None:
    done = jobs(str(tmp_path / "typo.db"), "list")
    assert (done.returncode, done.stderr) == (2, f"portico: there is no store {tmp_path / 'typo.db'}\n")
    assert not list(tmp_path.iterdir())
