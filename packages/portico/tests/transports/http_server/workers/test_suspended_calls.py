"""Suspended calls and tasks of a gateway continue on any worker."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from portico import Client
from support.worker_processes import HttpConnection

UPSTREAM = """
import os
import sys

from portico import Context, Server

server = Server("asking", version="1")


@server.tool
async def greet(ctx: Context, word: str) -> str:
    answer = await ctx.elicit("Who are you?", {"type": "object", "properties": {"name": {"type": "string"}}})
    opened = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(opened, f"{word}\\n".encode())
    os.close(opened)
    return f"Hello, {answer.data['name']}!"


server.run()
"""
CALLS = 8


@pytest.fixture
async def gateway(serve: Any, tmp_path: Path) -> Any:
    """Two workers in front of a server that asks in requests; and the file in which it counts."""
    (tmp_path / "asking.py").write_text(UPSTREAM)
    counted = tmp_path / "counted"
    command = [sys.executable, str(tmp_path / "asking.py"), str(counted)]
    (tmp_path / "gateway.toml").write_text(f'[upstream.one]\ncommand = {command}\nprotocol_version = "2025-11-25"\n')
    fleet = await serve("--workers", "2", "--no-auth", target=tmp_path / "gateway.toml", env={"TMPDIR": str(tmp_path)})
    return fleet, counted


async def ask(port: int, word: str) -> dict[str, Any]:
    """A call as far as its question: the params to go on with."""
    result = await HttpConnection.to(port)
    response = (await result.call("one_greet", word=word)).json["result"]
    await result.close()
    [key] = response["inputRequests"]
    answers = {key: {"action": "accept", "content": {"name": word}}}
    params = {"name": "one_greet", "arguments": {"word": word}}
    return {**params, "inputResponses": answers, "requestState": response["requestState"]}


async def go_on(port: int, params: dict[str, Any]) -> Any:
    result = await HttpConnection.to(port)
    try:
        return await result.request_stateless("tools/call", params)
    finally:
        await result.close()


async def test_response_reaches_the_waiting_worker(gateway: Any) -> None:
    fleet, counted = gateway
    requests = [await ask(fleet.port, str(number)) for number in range(CALLS)]
    messages = [await go_on(fleet.port, params) for params in requests]
    assert [item.value for item in messages] == [f"Hello, {number}!" for number in range(CALLS)]
    again = [await go_on(fleet.port, params) for params in requests]
    assert all("the call has ended" in item.json["error"]["message"] for item in again)
    assert Counter(counted.read_text().split()) == Counter(map(str, range(CALLS)))


async def test_parked_calls_of_a_killed_worker_are_reported_as_ended(gateway: Any) -> None:
    fleet, counted = gateway
    requests = [await ask(fleet.port, str(number)) for number in range(CALLS)]
    victim = min(fleet.workers())
    os.kill(victim, signal.SIGKILL)
    await fleet.wait_until(lambda: victim not in fleet.workers() and len(fleet.workers()) == 2)
    messages = [(await go_on(fleet.port, params)).json for params in requests]
    answered = [item for item in messages if "result" in item]
    assert all("the call has ended" in item["error"]["message"] for item in messages if "error" in item)
    assert len(answered) == (len(counted.read_text().split()) if counted.exists() else 0)
    # They can be made anew.
    assert (await go_on(fleet.port, await ask(fleet.port, "anew"))).value == "Hello, anew!"


async def test_task_of_the_gateway_is_found_by_every_worker(gateway: Any) -> None:
    fleet, counted = gateway
    clients = []
    async with AsyncExitStack() as stack:
        for number in range(6):
            answer = partial(say, f"client {number}")
            clients.append(await stack.enter_async_context(Client(fleet.url, elicitation_handler=answer)))
        task = await clients[0].start_task("one_greet", {"word": "task"})
        seen = [client.task(task.id, "one_greet") for client in clients]
        for item in seen:
            await item.refresh()
            assert item.status in ("working", "input_required")
        assert (await seen[-1].result()).text == "Hello, client 5!"
        assert {(await item.result()).text for item in seen} == {"Hello, client 5!"}
    assert counted.read_text().split() == ["task"]


async def say(name: str, *_: Any) -> dict[str, Any]:
    return {"name": name}
