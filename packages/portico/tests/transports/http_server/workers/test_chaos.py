"""Clients while workers are killed, deployments run, and the store is unavailable."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from support.storm import times
from support.worker_processes import HttpAnswer, HttpConnection, Session


async def call(session: Session, tool: str, **arguments: Any) -> HttpAnswer | None:
    """The answer; None where the connection was lost before there was one."""
    try:
        answer: HttpAnswer = await session.call(tool, **arguments)
    except (OSError, EOFError):
        return None
    return answer


async def test_no_call_is_made_twice_and_no_session_ends(serve: Any, tmp_path: Path) -> None:
    fleet = await serve("--workers", "3")
    path, over = tmp_path / "counted", asyncio.Event()
    answered: list[str] = []
    unknown: list[str] = []

    async def keep_calling(session: Session, name: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            word = f"{name}-{number}"
            answer = await call(session, "count", path=str(path), word=word)
            if answer is not None and answer.status == 200:
                answered.append(word)
            else:
                # It may have been made, and may not: the client knows that it does not know.
                assert answer is None or answer.status in (502, 503), fleet.log
                unknown.append(word)

    sessions = [await Session(fleet.port).begin() for _ in range(6)]
    calling = [asyncio.ensure_future(keep_calling(session, name)) for name, session in enumerate(sessions)]
    await fleet.wait_until(path.exists)
    kills = times(2, 24)
    for kill in range(kills):
        victim = random.choice(sorted(fleet.workers()))
        os.kill(victim, signal.SIGKILL)
        await fleet.wait_until(lambda victim=victim: victim not in fleet.workers() and len(fleet.workers()) >= 3)
        if kill == kills // 2:
            before = fleet.workers()
            fleet.process.send_signal(signal.SIGHUP)
            await fleet.wait_until(lambda before=before: len(fleet.workers()) == 3 and not fleet.workers() & before)
    over.set()
    await asyncio.gather(*calling)
    counted = Counter(path.read_text().split())
    assert max(counted.values()) == 1
    assert set(answered) <= set(counted) <= {*answered, *unknown}
    assert len(answered) > len(unknown)


async def test_call_whose_worker_was_killed_ends_with_an_error(serve: Any, line: Any, tmp_path: Path) -> None:
    fleet = await serve("--workers", "2")
    session = await Session(fleet.port).begin()
    owner = (await session.call("pid")).value
    result = await line(fleet.port)
    params = {"name": "slowly", "arguments": {"path": str(tmp_path / "flag")}, "_meta": {"progressToken": 1}}
    await result.send(
        "POST", {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": params}, **session.fields
    )
    assert (await result.head())[0] == 200
    seen = (await result.chunk()).decode()
    while "progress" not in seen:
        seen += (await result.chunk()).decode()
    last = [text.removeprefix("id:").strip() for text in seen.splitlines() if text.startswith("id:")][-1]
    os.kill(owner, signal.SIGKILL)
    await fleet.wait_until(lambda: owner not in fleet.workers())
    again = await line(fleet.port)
    await again.send("GET", last_event_id=last, **session.fields)
    data = (await again.answer()).json
    assert data["id"] == "mine"
    assert "has ended" in data["error"]["message"]


async def test_notifications_queued_before_a_deploy_are_delivered_after_it(serve: Any, line: Any) -> None:
    fleet = await serve("--workers", "1")
    session = await Session(fleet.port).begin()
    assert (
        await session.send({"id": 1, "method": "resources/subscribe", "params": {"uri": "note://one"}})
    ).status == 200
    # No stream is open: it is kept for the next one.
    assert (await session.call("touch")).status == 200
    before = fleet.workers()
    fleet.process.send_signal(signal.SIGHUP)
    await fleet.wait_until(lambda: len(fleet.workers()) == 1 and not fleet.workers() & before)
    result = await line(fleet.port)
    await result.send("GET", **session.fields)
    assert (await result.head())[0] == 200
    seen = ""
    while "note://one" not in seen:
        seen += (await result.chunk()).decode()


async def test_calls_that_need_no_store_continue_while_it_is_away(
    serve: Any, postgres_server: Any, postgres_url: str, tmp_path: Path
) -> None:
    fleet = await serve("--workers", "2", env={"PORTICO_STORE": postgres_url, "TMPDIR": str(tmp_path)})
    session = await Session(fleet.port).begin()
    assert (await session.call("pid")).status == 200
    await asyncio.to_thread(postgres_server.stop)
    try:
        assert [(await session.call("pid")).status for _ in range(6)] == [200] * 6
        result = await HttpConnection.to(fleet.port)
        assert [(await result.call("pid")).status for _ in range(3)] == [200] * 3
        await result.close()
        # What needs it says so, and does not keep its client waiting until it is back.
        owner = (await session.call("pid")).value
        os.kill(owner, signal.SIGKILL)
        await fleet.wait_until(lambda: owner not in fleet.workers())
        messages = [answer for answer in [await call(session, "pid") for _ in range(4)] if answer is not None]
        assert {answer.status for answer in messages} <= {502, 503}
        assert any(answer.status == 503 and "retry-after" in answer.fields for answer in messages)
        # There is no other worker before the store is back; no connection waits for that one.
        for _ in range(12):
            result = await HttpConnection.to(fleet.port)
            assert (await result.call("pid")).value in fleet.workers()
            await result.close()
    finally:
        await asyncio.to_thread(postgres_server.start)

    answers: list[Any] = []

    async def is_back() -> bool:
        # For every worker: each finds that out by itself.
        answers[:] = [await call(session, "pid") for _ in range(6)]
        return all(answer is not None and answer.status == 200 for answer in answers)

    await fleet.wait_until(is_back)
    assert owner not in [answer.value for answer in answers]
