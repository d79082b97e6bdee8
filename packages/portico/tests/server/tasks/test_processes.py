"""Tasks across worker processes: restarts, crashes and takeover, on both stores."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from portico import Client, Context, Server, TaskConfig
from portico.server.tasks import engine as engines, worker_ids
from portico.server.tasks.jobs import Job
from portico.store.database import Database
from support.task_processes import Child
from support.task_servers import ADA, TIMEOUT_SECONDS, YES, ModernTasksClient, wait_for_status, wait_until, with_tools

Start = Callable[[], Awaitable[Child]]


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """The file that children write into."""
    return tmp_path / "done"


@pytest.fixture
async def start(url: str, done: Path) -> AsyncIterator[Start]:
    children: list[Child] = []

    async def make() -> Child:
        children.append(await Child.start(url, done))
        await children[-1].ready()
        return children[-1]

    yield make
    for child in children:
        await child.kill()


def lines(done: Path, kind: str) -> list[str]:
    """Which steps, in order."""
    text = done.read_text() if done.exists() else ""
    return [line.split(" ")[2] for line in text.splitlines() if line.startswith(kind)]


async def row(url: str, id: str) -> Job:
    async with Database(url) as database:
        return await database.read(lambda tx: tx.fetch_one(Job, "select * from portico_job where id = :id", {"id": id}))


async def test_after_a_kill_the_next_process_continues_after_the_last_finished_step(
    url: str, done: Path, start: Start
) -> None:
    first = await start()
    id = await first.create("wait")
    await wait_until(lambda: lines(done, "F") == ["one"])
    await first.kill()
    result = await row(url, id)
    assert result.status == "running"
    (done.parent / "done.go").touch()
    second = await start()
    over = await second.wait_for_status(id, "completed")
    assert over["result"]["content"][0]["text"] == "done"
    assert lines(done, "E") == ["one", "two"]
    result = await row(url, id)
    assert (result.deaths, result.attempts, result.runs) == (1, 1, 2)


async def test_graceful_shutdown_releases_jobs(url: str, done: Path, start: Start) -> None:
    first = await start()
    id = await first.create("wait")
    await wait_until(lambda: lines(done, "F") == ["one"])
    await first.close()
    assert first.process.returncode == 0
    result = await row(url, id)
    assert (result.status, result.worker, result.deaths, result.attempts) == ("queued", None, 0, 0)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_releases_jobs(url: str, done: Path, start: Start, how: signal.Signals) -> None:
    first = await start()
    id = await first.create("wait")
    await wait_until(lambda: lines(done, "F") == ["one"])
    first.process.send_signal(how)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await first.process.wait()
    result = await row(url, id)
    assert (result.status, result.worker, result.deaths, result.attempts) == ("queued", None, 0, 0)


async def test_another_process_on_the_machine_notices_a_death_by_itself(url: str, done: Path, start: Start) -> None:
    """Long before the lease has run out, which here would take an hour."""
    first = await start()
    id = await first.create("wait")
    await wait_until(lambda: lines(done, "F") == ["one"])
    second = await start()
    async with Database(url) as database:
        await database.write(lambda tx: tx.execute("update portico_job set lease = lease + 3600000"))
    (done.parent / "done.go").touch()
    await first.kill()
    await second.wait_for_status(id, "completed")
    assert lines(done, "E") == ["one", "two"]


async def test_job_queued_by_one_process_is_taken_without_polling(
    url: str, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not look by itself: it is told. And so is the other one, of how it ends."""
    monkeypatch.setattr(engines, "POLL_SECONDS", 3600.0)
    server = Server("storm", store=url)
    ran: list[int] = []

    @server.tool(task="required")
    async def work(n: int) -> str:
        ran.append(n)
        return "here"

    child = await Child.start(url, done, room=0)
    try:
        async with server.lifespan():
            for n in range(3):
                id = await child.create("work", n=n)
                await wait_for_status(server, id, "completed")
                assert (await child.get(id))["result"]["content"][0]["text"] == "here"
    finally:
        await child.kill()
    assert ran == [0, 1, 2]


async def test_task_runs_in_another_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers on one store, as with several processes: neither looks by itself, both are told."""
    monkeypatch.setattr(engines, "POLL_SECONDS", 3600.0)
    here, _ = with_tools(url)
    there, gates = with_tools(url)
    async with here.lifespan(), there.lifespan():
        assert here.tasks is not None
        engine = await here.tasks.engine()
        monkeypatch.setattr(engine, "_tools", dict)
        for revision in ("2026-07-28", "2025-11-25"):
            async with Client(
                here,
                protocol_version=revision,
                elicitation_handler=lambda request: {"value": "Ada"},
                timeout=TIMEOUT_SECONDS,
            ) as client:
                task = await client.start_task("ask")
                assert (await task.result(timeout=TIMEOUT_SECONDS)).text == "accept: Ada"
                name = f"x {revision}"
                task = await client.start_task("running", {"name": name})
                await gates.wait_for(f"{name} begun")
                await task.cancel()
                await gates.wait_for(f"{name} stopped")


async def test_input_requests_survive_a_restart(url: str, modern: Callable[..., ModernTasksClient]) -> None:
    first, _ = with_tools(url)
    async with first.lifespan():
        client = modern(first, principal=ADA)
        id = await client.start("ask_two")
        await wait_for_status(first, id, "waiting")
        engine = await first.tasks.engine()  # type: ignore[union-attr]
        await wait_until(lambda: engine._running[id].waiting == 2)
        await client.request("tasks/update", {"taskId": id, "inputResponses": {"two": YES}})
    second, _ = with_tools(url)
    async with second.lifespan():
        client = modern(second, principal=ADA)
        await wait_for_status(second, id, "waiting")
        assert set((await client.get(id))["inputRequests"]) == {"one"}
        await client.request("tasks/update", {"taskId": id, "inputResponses": {"one": YES}})
        await wait_for_status(second, id, "completed")
        assert (await client.get(id))["result"]["structuredContent"] == {"result": ["yes", "yes"]}


async def test_task_belongs_to_its_creator_after_a_restart(url: str, modern: Callable[..., ModernTasksClient]) -> None:
    first, _ = with_tools(url)
    async with first.lifespan():
        id = (await modern(first, principal=ADA).end("add", {"a": 1, "b": 2}))["taskId"]
    second, _ = with_tools(url)
    async with second.lifespan():
        assert (await modern(second, principal=ADA).get(id))["result"]["structuredContent"] == {"result": 3}
        assert (await modern(second).request_error("tasks/get", {"taskId": id}))["code"] == -32602


async def test_tries_are_counted_over_restarts(url: str, modern: Callable[..., ModernTasksClient]) -> None:
    runs: list[int] = []

    def failing() -> Server:
        server = Server("tasks", store=url)

        @server.tool(task=TaskConfig(mode="required", max_retries=2, retry_delay=0))
        async def fail(ctx: Context) -> str:
            runs.append(1)
            if len(runs) == 2:
                await asyncio.Event().wait()
            raise RuntimeError("again")

        return server

    first = failing()
    async with first.lifespan():
        id = await modern(first).start("fail")
        await wait_until(lambda: len(runs) == 2)
    second = failing()
    async with second.lifespan():
        assert (await wait_for_status(second, id, "completed")).refused
    # Once here, once until the restart, which does not count, and twice after it.
    assert len(runs) == 4


# Who is dead


def test_this_process_is_alive() -> None:
    assert not worker_ids.is_worker_dead(worker_ids.new_worker_id())


def test_worker_ids_are_unique() -> None:
    assert worker_ids.new_worker_id() != worker_ids.new_worker_id()


def named_like(pid: int) -> str:
    """The name that a worker in this process of this machine has."""
    place = worker_ids.new_worker_id().partition("/")[0]
    return f"{place}/{pid}.{worker_ids._start_time(pid)}/x"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look into")
def test_ended_process_is_dead_before_it_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        worker = named_like(process.pid)
        assert not worker_ids.is_worker_dead(worker)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert worker_ids.is_worker_dead(worker)  # a zombie
    finally:
        process.communicate()
    assert worker_ids.is_worker_dead(worker)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look into")
def test_reused_pid_is_a_different_process() -> None:
    place, process, token = worker_ids.new_worker_id().split("/")
    pid, _, started = process.partition(".")
    assert worker_ids.is_worker_dead(f"{place}/{pid}.{int(started) - 1}/{token}")


@pytest.mark.parametrize(
    "worker", ["", "x", "other:machine:/1.5/x", "/1.5/x", "{place}/1/x", "{place}/1./x", "{place}/x.5/x"]
)
def test_invisible_processes_have_unknown_state(worker: str) -> None:
    place = worker_ids.new_worker_id().partition("/")[0]
    assert not worker_ids.is_worker_dead(worker.format(place=place))


def test_hidden_process_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = named_like(os.getpid())
    monkeypatch.setattr(worker_ids, "_read", lambda path: "" if path.endswith("/stat") else path)
    monkeypatch.setattr(worker_ids, "_host_identity", lambda: worker.partition("/")[0])
    assert not worker_ids.is_worker_dead(worker)
