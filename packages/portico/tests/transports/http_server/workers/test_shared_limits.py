"""Limits shared by the workers of a server without a store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from portico.protocol.subscriptions import SubscriptionFilter
from support.worker_processes import SERVER, TIMEOUT_SECONDS, HttpConnection, SharedFleet

MORE = '''

@server.tool(task="optional")
async def work(path: str) -> int:
    while os.path.exists(path):
        await asyncio.sleep(0.01)
    return os.getpid()


@server.tool
async def together(path: str) -> int:
    while os.path.exists(path):
        await asyncio.sleep(0.01)
    return os.getpid()


@server.tool
def limited() -> int:
    return os.getpid()


@server.declare
def extra() -> int:
    """One that is not there from the beginning."""
    return os.getpid()


@server.tool
def grow() -> int:
    server.add(extra, replicate=True)
    return os.getpid()


@server.tool
def grow_here() -> int:
    server.tool("alone")(lambda: 1)
    server.remove("alone")
    return os.getpid()


@server.tool
def shrink() -> int:
    server.remove("extra", replicate=True)
    return os.getpid()
'''
LIMITS = """
[[limit]]
name = "few"
rate = "10/hour"
tool = "*.limited"
[[limit]]
name = "at once"
max_concurrency = 3
tool = "*.together"
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedFleet]:
    folder = tmp_path_factory.mktemp("shared")
    (folder / "server.py").write_text(SERVER + MORE)
    (folder / "access.toml").write_text(LIMITS)
    words = ["serve", "server.py", "--config", "access.toml", "--transport", "http", "--port", "0", "--workers", "2"]
    environment = {**os.environ, "PORTICO_DATA": str(folder)}
    command = [sys.executable, "-m", "portico", *words]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    ) as process:
        try:
            yield SharedFleet(process)
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture
async def both(standing: SharedFleet) -> Any:
    """A connection to each of the two."""
    lines = [await HttpConnection.to(standing.port) for _ in range(20)]
    by_pid = {(await line.call("pid")).value: line for line in lines}
    assert set(by_pid) == standing.workers()
    yield list(by_pid.values())
    for line in lines:
        await line.close()


async def test_answer_counts_once_in_all_workers(both: Any) -> None:
    first, second = both
    response = (await first.call("name")).json["result"]
    [key] = response["inputRequests"]
    answers = {key: {"action": "accept", "content": {"value": "Ada"}}}
    params = {"name": "name", "inputResponses": answers, "requestState": response["requestState"]}
    assert (await second.request_stateless("tools/call", params)).value.startswith("Ada ")
    for item in both:
        data = (await item.request_stateless("tools/call", params)).json
        assert "used before" in data["error"]["message"], data


async def test_limit_is_that_of_all_workers(both: Any) -> None:
    messages = [(await item.call("limited")).json for _ in range(8) for item in both]
    done = [item for item in messages if "result" in item and not item["result"].get("isError")]
    assert len(messages) == 16
    assert len(done) == 10


async def test_no_more_continue_at_once_than_all_workers_may(standing: SharedFleet, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    lines = [await HttpConnection.to(standing.port) for _ in range(20)]
    calls = [asyncio.ensure_future(item.call("together", path=str(flag))) for item in lines]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while sum(item.done() for item in calls) < 17:
            await asyncio.wait([item for item in calls if not item.done()], return_when=asyncio.FIRST_COMPLETED)
    refused = [item.result().json["result"] for item in calls if item.done()]
    assert all(item["_meta"]["portico/error"]["retryable"] for item in refused)
    flag.unlink()
    done = [answer for answer in await asyncio.gather(*calls) if not answer.json["result"].get("isError")]
    assert len(done) == 3
    for item in lines:
        await item.close()


async def test_task_is_followed_by_any_worker(both: Any, standing: SharedFleet, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(standing.url)) for _ in range(6)]
        task = await clients[0].start_task("work", {"path": str(flag)})
        waiting = [client.task(task.id, "work") for client in clients[1:]]
        for item in waiting:
            await item.refresh()
            assert item.status == "working"
        flag.unlink()
        assert {(await item.result()).data for item in waiting} <= standing.workers()


async def test_task_completion_is_notified_at_every_worker(standing: SharedFleet, tmp_path: Path) -> None:
    flag = tmp_path / "followed"
    flag.touch()
    heard: asyncio.Queue[int] = asyncio.Queue()

    def hearing(number: int) -> Any:
        def hear(method: str, params: Any) -> None:
            if method == "notifications/tasks" and b'"completed"' in bytes(params):
                heard.put_nowait(number)

        return hear

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(standing.url, message_handler=hearing(number)))
            for number in range(6)
        ]
        task = await clients[0].start_task("work", {"path": str(flag)})
        listening = [
            await stack.enter_async_context(client.listen(SubscriptionFilter(task_ids=[task.id]))) for client in clients
        ]
        assert all(client.accepted_filter.task_ids == [task.id] for client in listening)
        flag.unlink()
        async with asyncio.timeout(30):
            assert {await heard.get() for _ in clients} == set(range(6))


async def test_tools_come_and_go_in_all_workers(both: Any, standing: SharedFleet, heard: Any) -> None:
    first, second = both
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(standing.url, protocol_version="2025-11-25", message_handler=heard))
            for _ in range(6)
        ]

        async def listed() -> list[bool]:
            return ["extra" in {tool.name for tool in await client.list_tools(refresh=True)} for client in clients]

        assert not (await first.call("grow")).json["result"].get("isError")
        await heard.wait_for("notifications/tools/list_changed", len(clients))
        assert all(await listed())
        assert {(await client.call("extra")).value for client in both} == standing.workers()
        await second.call("shrink")
        await heard.wait_for("notifications/tools/list_changed", 2 * len(clients))
        assert not any(await listed())


async def test_later_worker_has_earlier_additions(serve: Any, server_file: Path) -> None:
    await asyncio.to_thread(server_file.write_text, SERVER + MORE)
    fleet = await serve("--workers", "2", env={"PORTICO_DATA": str(server_file.parent)})
    result = await HttpConnection.to(fleet.port)
    by = (await result.call("grow")).value
    assert not any("replicate=True" in text for text in fleet.log)
    assert (await result.call("grow_here")).value == by
    await fleet.wait_until(lambda: any("alone" in text and "replicate=True" in text for text in fleet.log))
    await result.close()
    [other] = fleet.workers() - {by}
    os.kill(other, signal.SIGKILL)
    await fleet.wait_until(lambda: other not in fleet.workers() and len(fleet.workers()) == 2)
    seen = set()
    while seen != fleet.workers():
        result = await HttpConnection.to(fleet.port)
        seen.add((await result.call("extra")).value)
        await result.close()


async def test_listener_at_one_worker_gets_changes_from_another(both: Any) -> None:
    first, second = both
    params = {"notifications": {"resourceSubscriptions": ["note://one"]}}
    await first.send("POST", **first.stand_alone("subscriptions/listen", params))
    assert (await first.head())[0] == 200
    await first.chunk()
    await second.call("touch")
    seen = ""
    while "notifications/resources/updated" not in seen:
        seen += (await first.chunk()).decode()
