"""`portico worker` and `portico tasks`, with a store on disk and real processes."""

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
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from portico import SyncClient
from support.forks import ForkServer
from support.paths import ROOT

REPORTS = str(ROOT / "examples" / "reports.py")
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
    with SyncClient([*PORTICO, "serve", REPORTS, "--store", store, "--task-concurrency", "0"]) as client:
        yield client


@pytest.fixture
def jobs(fork_server: ForkServer) -> Jobs:
    return lambda store, *words: fork_server.run("tasks", *words, "--store", store)


@pytest.fixture
def shown(jobs: Jobs) -> Shown:
    def show(store: str, id: str) -> dict[str, object]:
        done = jobs(store, "show", id)
        assert done.returncode == 0, done.stderr
        data: dict[str, object] = json.loads(done.stdout)
        return data

    return show


def wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_task_stays_queued_until_a_worker_runs(jobs: Jobs, shown: Shown, client: SyncClient, store: str) -> None:
    task = client.start_task("make_report", {"topic": "bees", "chapters": 2})
    [line] = jobs(store, "list").stdout.splitlines()
    data = json.loads(line)
    assert (data["id"], data["tool"], data["status"]) == (task.id, "make_report", "queued")
    worker = subprocess.Popen([*PORTICO, "worker", REPORTS, "--store", store], stderr=subprocess.PIPE, text=True)
    try:
        assert task.result(timeout=20).text == "1. More about bees\n2. More about bees"
        assert shown(store, task.id[:12])["steps"] == {
            "chapter 1": "1. More about bees",
            "chapter 2": "2. More about bees",
        }
        assert "100%" in jobs(store, "list", "--format", "table").stdout
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(15) == 0
        assert worker.stderr is not None
        worker.stderr.close()


def test_stopped_worker_requeues_its_task(jobs: Jobs, shown: Shown, client: SyncClient, store: str) -> None:
    task = client.start_task("make_report", {"topic": "bees", "chapters": 50})
    for _ in range(2):
        worker = subprocess.Popen([*PORTICO, "worker", REPORTS, "--store", store], stderr=subprocess.DEVNULL)
        try:
            before = len(shown(store, task.id)["steps"])
            wait(lambda before=before: len(shown(store, task.id)["steps"]) > before)  # type: ignore[misc]
        finally:
            worker.terminate()
            assert worker.wait(15) == 0
        assert shown(store, task.id)["status"] == "queued"
        # Nobody works on it, and how far it came is still there.
        data = json.loads(jobs(store, "list").stdout)
        assert 0 < data["progress"] < data["total"] == 50
    assert task.refresh() == "working"


def test_tasks_are_cancelled_and_tried_again_from_a_shell(jobs: Jobs, client: SyncClient, store: str) -> None:
    task = client.start_task("make_report", {"topic": "bees"})
    assert jobs(store, "retry", task.id).returncode == 1
    assert jobs(store, "cancel", task.id).returncode == 0
    assert task.refresh() == "cancelled"
    done = jobs(store, "cancel", task.id, "--format", "table")
    assert (done.returncode, done.stdout) == (1, f"{task.id}: already ended\n")
    assert jobs(store, "retry", task.id).returncode == 0
    assert task.refresh() == "working"


def test_missing_tasks_and_stores_are_reported(fork_server: ForkServer, jobs: Jobs, store: str, tmp_path: Path) -> None:
    Path(store).parent.mkdir()
    with closing(sqlite3.connect(store)) as made, made:
        made.execute("create table other (one integer)")
    assert jobs(store, "list", "--format", "table").stderr == "no tasks\n"
    assert jobs(store, "show", "nothing").returncode == 2
    assert jobs(store, "cancel").returncode == 2
    done = fork_server.run(
        "tasks", "list", env={**os.environ, "PORTICO_DATA": str(tmp_path / "empty"), "PORTICO_STORE": ""}
    )
    assert done.returncode == 2
    assert "--store is required: the data directory contains none" in done.stderr


def test_server_without_tasks_gives_nothing_to_work_on(fork_server: ForkServer) -> None:
    done = fork_server.run("worker", Path(REPORTS).parent / "hello.py")
    assert done.returncode == 2
    assert "has no tools that can run as tasks" in done.stderr


def test_looking_at_a_store_that_is_not_there_does_not_make_it(jobs: Jobs, tmp_path: Path) -> None:
    done = jobs(str(tmp_path / "typo.db"), "list")
    assert (done.returncode, done.stderr) == (2, f"portico: store {tmp_path / 'typo.db'} not found\n")
    assert not list(tmp_path.iterdir())


TROUBLE = """
from portico import Context, Server, TaskConfig, ToolError

server = Server("trouble", version="1.0.0")


@server.tool(task=TaskConfig(mode="required", max_retries=2, retry_delay=0.01))
async def crash() -> str:
    raise RuntimeError("boom")


@server.tool(task="required")
async def refuse() -> str:
    raise ToolError("not today")


@server.tool(task="required")
async def count(ctx: Context) -> str:
    for number in range(1, 13):
        await ctx.step(f"chapter {number}", lambda: number)
    return "done"
"""


@pytest.fixture
def trouble(tmp_path: Path, store: str) -> Iterator[SyncClient]:
    """A server that runs its tasks, of which most fail."""
    Path(store).parent.mkdir()
    file = tmp_path / "trouble.py"
    file.write_text(TROUBLE)
    with SyncClient([*PORTICO, "serve", str(file), "--store", store]) as client:
        yield client


def test_task_whose_tool_failed_is_listed_as_failed(jobs: Jobs, shown: Shown, trouble: SyncClient, store: str) -> None:
    started = {tool: trouble.start_task(tool, {}).id for tool in ("crash", "refuse", "count")}
    wait(lambda: all(shown(store, id)["status"] in ("completed", "failed") for id in started.values()))
    assert {tool: shown(store, id)["status"] for tool, id in started.items()} == {
        "crash": "failed",
        "refuse": "failed",
        "count": "completed",
    }

    def listed(*words: str) -> list[str]:
        return sorted(json.loads(line)["tool"] for line in jobs(store, "list", *words).stdout.splitlines())

    assert listed("--status", "failed") == ["crash", "refuse"]
    assert listed("--status", "completed") == ["count"]
    table = jobs(store, "list", "--format", "table").stdout
    assert table.count(" failed ") == 2
    assert "not today" in table


def test_shown_task_has_readable_times_and_steps_in_natural_order(
    jobs: Jobs, shown: Shown, trouble: SyncClient, store: str
) -> None:
    before = datetime.now().astimezone()
    task = trouble.start_task("count", {})
    assert task.result(timeout=20).text == "done"
    result = shown(store, task.id)
    assert list(result["steps"]) == [f"chapter {number}" for number in range(1, 13)]
    for name in ("created_at", "updated_at", "run_at", "expires_at"):
        moment = datetime.fromisoformat(result[name])
        assert moment.utcoffset() == before.utcoffset()
        assert moment > before - timedelta(seconds=1)
    row = jobs(store, "list", "--format", "table").stdout
    assert datetime.fromisoformat(result["created_at"]).strftime("%Y-%m-%d %H:%M:%S") in row


def test_task_that_runs_names_its_worker_in_short(jobs: Jobs, client: SyncClient, store: str) -> None:
    task = client.start_task("make_report", {"topic": "bees", "chapters": 50})
    with closing(sqlite3.connect(store)) as made, made:
        name = "vm:3fb8b4e9:pid:[4026531836]/27135.334130/b2a3f58e"
        made.execute("update portico_job set status = 'running', worker = ?, lease = ?", (name, 2**45))
    assert "vm/27135/b2a3f58e" in jobs(store, "show", task.id, "--format", "table").stdout
    assert json.loads(jobs(store, "show", task.id).stdout)["worker"] == name


def test_unknown_and_ambiguous_prefixes_have_separate_errors(jobs: Jobs, client: SyncClient, store: str) -> None:
    for _ in range(2):
        client.start_task("make_report", {"topic": "bees"})
    with closing(sqlite3.connect(store)) as made, made:
        made.execute("update portico_job set id = 'aa' || substr(id, 3)")
        [first, second] = sorted(id for (id,) in made.execute("select id from portico_job"))
    assert "no task ID begins with 'zzz'" in jobs(store, "show", "zzz").stderr
    many = jobs(store, "show", "aa")
    assert many.returncode == 2
    assert f"several task IDs begin with 'aa' ({first}, {second})" in many.stderr
    done = jobs(store, "cancel", "aa", "zzz", first, "--format", "table")
    assert done.returncode == 1
    assert [line.partition(":")[2][1:8] for line in done.stdout.splitlines()] == ["several", "no task", "cancell"]
    # Not every task there is, or the only one.
    assert "no task ID begins" in jobs(store, "show", "").stderr


def test_list_rejects_an_id(jobs: Jobs, client: SyncClient, store: str) -> None:
    done = jobs(store, "list", "3fb8")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use `portico tasks show 3fb8`" in done.stderr
