"""Background tasks that fail are logged, counted, restarted and reported."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from portico import Server, Service
from portico.extend import BackgroundTasks, http_request, run_in_thread, serve_http
from portico.rpc import supervision

NAME = "settings reader"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def state() -> supervision.SupervisedState:
    """Return the state of the task, or that of one which has not begun yet."""
    return next((one for one in supervision.states() if one.name == NAME), supervision.SupervisedState(NAME))


async def test_failed_turn_is_logged_with_traceback_counted_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, texts = tmp_path / "settings", list[str]()
    tasks = BackgroundTasks()
    tasks.repeat(NAME, lambda: texts.append(file.read_text()), 0.01)
    await until(lambda: state().restarts)
    assert (state().backing_off, state().failures) == (True, 1)
    assert state().error.startswith("FileNotFoundError")
    assert f"{NAME} failed" in caplog.text and "Traceback" in caplog.text
    assert f'portico_task_restarts_total{{task="{NAME}"}} 1' in supervision.metrics()
    assert f'portico_task_backing_off{{task="{NAME}"}} 1' in supervision.metrics()
    file.write_text("here")
    await until(lambda: texts)
    await until(lambda: not state().backing_off)
    assert (state().failures, state().restarts) == (0, 1)
    assert state().report()["state"] == "running"
    await tasks.close()
    assert NAME not in {one.name for one in supervision.states()}


async def test_long_running_task_is_restarted_and_may_end(tmp_path: Path) -> None:
    file, runs = tmp_path / "settings", list[int]()

    async def work() -> None:
        runs.append(1)
        file.read_text()

    task = BackgroundTasks().run(NAME, work)
    await until(lambda: runs)
    file.write_text("here")
    async with asyncio.timeout(20):
        await task
    assert len(runs) == 2


async def test_task_ends_with_an_error_that_is_expected() -> None:
    async def work() -> None:
        raise EOFError

    async with asyncio.timeout(20):
        await BackgroundTasks().run(NAME, work, until=(EOFError,))


async def test_thread_is_restarted_until_it_is_stopped(tmp_path: Path) -> None:
    stopping, file = threading.Event(), tmp_path / "settings"
    thread = run_in_thread(NAME, lambda: file.read_text() and stopping.wait(20), stopping)  # type: ignore[func-returns-value, arg-type, return-value]
    await until(lambda: state().restarts)
    file.write_text("here")
    await until(lambda: not state().backing_off)
    stopping.set()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()


def test_pause_grows_and_is_bounded() -> None:
    result = supervision.SupervisedState("x")
    pauses = [result.fail(ValueError("no")) for _ in range(12)]
    assert pauses == sorted(pauses) and pauses[0] < 1 and pauses[-1] == supervision.MAX_BACKOFF_SECONDS
    assert result.fail(ValueError("no"), supervision.STABLE_SECONDS) == pauses[0]


class Reader(Service):
    """Reads a file now and then, as services do that follow something."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def _read(self) -> None:
        self._file.read_text()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        tasks = BackgroundTasks()
        tasks.repeat(NAME, self._read, 0.01)
        try:
            yield
        finally:
            await tasks.close()


async def test_readyz_names_a_task_that_fails_repeatedly_until_it_recovers(tmp_path: Path) -> None:
    server = Server("a")
    server.add(Reader(tmp_path / "settings"))
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_http(server, port=0, on_ready=ready.set_result, stop=stop))
    url = (await asyncio.wait_for(ready, 20)).removesuffix("/mcp")

    async def probe() -> tuple[int, str]:
        answer = await http_request("GET", f"{url}/readyz", headers=[], timeout=20, max_response_bytes=1 << 20)
        return answer.status, answer.body.decode()

    async def becomes(status: int) -> str:
        end = time.monotonic() + 30
        while (found := await probe())[0] != status:
            assert time.monotonic() < end, found
            await asyncio.sleep(0.05)
        return found[1]

    try:
        assert (await probe())[0] == 200
        result = await becomes(503)
        assert result.startswith(f"not ready\n{NAME}: failing") and str(tmp_path) not in result
        metrics = await http_request("GET", f"{url}/metrics", headers=[], timeout=20, max_response_bytes=1 << 20)
        assert f'portico_task_backing_off{{task="{NAME}"}} 1' in metrics.body.decode()
        (tmp_path / "settings").write_text("here")
        assert await becomes(200) == "ok\n"
    finally:
        stop.set()
        await serving


async def test_started_tasks_are_held_until_they_are_done() -> None:
    tasks, gate = BackgroundTasks(), asyncio.Event()

    async def wait() -> int:
        await gate.wait()
        return 7

    task = tasks.start(wait(), "waits")
    assert len(tasks) == 1 and list(tasks) == [task] and task.get_name() == "waits"
    gate.set()
    await tasks.wait()
    assert task.result() == 7 and len(tasks) == 0
    await tasks.wait()


async def test_closing_cancels_started_and_added_tasks() -> None:
    tasks = BackgroundTasks()
    started = tasks.start(asyncio.Event().wait())
    added = asyncio.get_running_loop().create_task(asyncio.Event().wait())
    tasks.add(added)
    await tasks.wait(0.0)
    assert len(tasks) == 2
    async with asyncio.timeout(20):
        await tasks.close()
    assert started.cancelled() and added.cancelled() and not list(tasks)
