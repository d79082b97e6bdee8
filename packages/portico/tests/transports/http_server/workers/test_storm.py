"""Two machines with three workers, under concurrent failures.

Usually it takes some seconds. With STORM=1 it is two minutes, in which a worker is killed every five seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from portico import Client
from portico.protocol.errors import PorticoError
from support.storm import times
from support.worker_processes import SERVER, TIMEOUT_SECONDS, Fleet, HttpAnswer, Session

WITH_TASKS = """

@server.tool(task="required")
async def task(ctx: Context, path: str, word: str) -> str:
    async def write() -> str:
        with open(path, "a") as file:
            file.write(f"{word}\\\\n")
        return word
    await asyncio.sleep(0.2)
    return await ctx.step("write", write)
"""
KILLS = times(3, 24)
SECONDS_BETWEEN = times(2, 5)
SECONDS_AWAY = times(3, 10)
SESSIONS = 6
# What a caller rests after a call, so that three workers are busy and the machine is not.
REST = times(20, 0) / 1000


class Machines:
    """Two of them, and which of their workers are left."""

    def __init__(self, fleets: list[Fleet]) -> None:
        self.fleets = fleets
        self.ports = [fleet.port for fleet in fleets]

    def workers(self) -> set[int]:
        return set().union(*(fleet.workers() for fleet in self.fleets))

    async def kill_one(self) -> None:
        victim = random.choice(sorted(self.workers()))
        os.kill(victim, signal.SIGKILL)
        await self.fleets[0].wait_until(lambda: victim not in self.workers() and len(self.workers()) >= 3)

    async def replace_all(self) -> None:
        before = self.workers()
        for fleet in self.fleets:
            fleet.process.send_signal(signal.SIGHUP)
        await self.fleets[0].wait_until(lambda: len(self.workers()) == 3 and not self.workers() & before)


class Caller:
    """A client that asks one machine and then the other, and knows what it has been told."""

    def __init__(self, session: Session, name: int, ports: list[int], path: Path) -> None:
        self.session, self.name, self.ports, self.path = session, name, ports, path
        self.answered: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []

    async def call(self, word: str) -> HttpAnswer | None:
        """None where the connection was lost before there was an answer."""
        self.session.port = random.choice(self.ports)
        try:
            answer: HttpAnswer = await self.session.call("count", path=str(self.path), word=word)
        except (OSError, EOFError):
            return None
        return answer

    async def keep_calling(self, over: asyncio.Event) -> None:
        number = 0
        while not over.is_set():
            number += 1
            word = f"{self.name}-{number}"
            answer = await self.call(word)
            if answer is None or answer.status == 502:
                self.unknown.append(word)
            elif answer.status == 503:
                # It was not made, and can be tried again: it says so.
                assert "retry-after" in answer.fields, answer.body
                self.refused.append(word)
                await asyncio.sleep(0.05)
            else:
                assert answer.status == 200, (answer.status, answer.body)
                error = "error" not in answer.json and not answer.json["result"].get("isError")
                (self.answered if error else self.refused).append(word)
                await asyncio.sleep(REST)


async def start_tasks(ports: list[int], path: Path, over: asyncio.Event) -> dict[str, str]:
    """The tasks that were taken, by their words."""
    item: dict[str, str] = {}
    number = 0
    while not over.is_set():
        number += 1
        try:
            async with Client(f"http://127.0.0.1:{random.choice(ports)}/mcp") as client:
                started = await client.start_task(
                    "task", {"path": str(path), "word": str(number)}, timeout=TIMEOUT_SECONDS
                )
                item[str(number)] = started.id
        except (PorticoError, OSError):
            # It was said that it was not taken, or not said that it was.
            pass
        await asyncio.sleep(0.2)
    return item


async def stop_the_store(postgres_server: Any) -> float:
    """For so many seconds."""
    began = time.monotonic()
    await asyncio.to_thread(postgres_server.stop)
    try:
        await asyncio.sleep(SECONDS_AWAY)
    finally:
        await asyncio.to_thread(postgres_server.start)
    return time.monotonic() - began


async def test_calls_are_executed_exactly_once_under_load(
    serve: Any, postgres_server: Any, postgres_url: str, server_file: Path, tmp_path: Path
) -> None:
    def prepare() -> None:
        server_file.write_text(SERVER + WITH_TASKS)
        (tmp_path / "access.toml").write_text("[audit]\n")
        for name in ("one", "two"):
            (tmp_path / name).mkdir()

    await asyncio.to_thread(prepare)
    env = {"PORTICO_STORE": postgres_url, "PORTICO_DATA": str(tmp_path / "data")}
    fleets = [
        await serve(
            "--workers", count, "--config", tmp_path / "access.toml", env={**env, "TMPDIR": str(tmp_path / name)}
        )
        for name, count in (("one", "2"), ("two", "1"))
    ]
    machines = Machines(fleets)
    over, counted = asyncio.Event(), tmp_path / "counted"
    callers = [
        Caller(await Session(machines.ports[number % 2]).begin(), number, machines.ports, counted)
        for number in range(SESSIONS)
    ]
    calling = [asyncio.ensure_future(caller.keep_calling(over)) for caller in callers]
    tasks = asyncio.ensure_future(start_tasks(machines.ports, tmp_path / "tasks", over))
    away: list[float] = []
    for kill in range(KILLS):
        await asyncio.sleep(SECONDS_BETWEEN)
        await machines.kill_one()
        if kill == KILLS // 3:
            away.append(await stop_the_store(postgres_server))
        if kill == KILLS // 2:
            await machines.replace_all()
    over.set()
    await asyncio.gather(*calling)
    item = await tasks

    # No session has ended: each of them is answered at either machine.
    for caller in callers:
        for port in machines.ports:
            caller.session.port = port
            assert (await caller.session.call("pid")).status == 200
    # No task that was taken is lost.
    assert item
    async with Client(fleets[0].url) as client:
        for word, id in item.items():
            assert (await client.task(id, "task").result(timeout=TIMEOUT_SECONDS)).data == word
    # No call was made twice, and none is lost without the client's being told.
    made = Counter(await asyncio.to_thread(lambda: counted.read_text().split()))
    assert max(made.values()) == 1
    answered = {word for caller in callers for word in caller.answered}
    refused = {word for caller in callers for word in caller.refused}
    unknown = {word for caller in callers for word in caller.unknown}
    assert answered <= set(made)
    assert not refused & set(made)
    assert set(made) <= answered | unknown
    print(f"{len(answered)} answered, {len(refused)} refused, {len(unknown)} unknown, {len(item)} tasks, {KILLS} kills")
    for fleet in fleets:
        assert await fleet.end() == 0
    verify = [sys.executable, "-m", "portico", "audit", "verify", "--store", postgres_url]
    done = await asyncio.to_thread(
        subprocess.run, verify, capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stdout + done.stderr
