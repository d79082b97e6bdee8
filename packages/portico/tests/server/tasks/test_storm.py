"""A server killed repeatedly at any moment loses no task and repeats no completed step."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from portico.store.database import Database
from support.storm import times
from support.task_processes import Child
from support.task_servers import wait_until

KILLS = times(3, in_a_storm=50)
TASKS = 10 * KILLS
STEPS = 5
# A step takes so long at most, a server lives so long after it is ready, and some do not live until then.
PACE = 0.12
LONGEST_LIFE = 0.3
EARLY = 0.2


class Storm:
    """The servers, the client that makes tasks, and what is known to be on the disk."""

    def __init__(self, url: str, path: Path, pace: float) -> None:
        self.url = url
        self.path = path
        self.pace = pace
        self.kills = 0
        self.acknowledged: dict[str, int] = {}
        # What was recorded as done when somebody looked, and how long the file was then.
        self.looked: list[tuple[set[tuple[str, str]], int]] = []
        self._asked = 0
        self._killed = asyncio.Condition()
        self._errands: list[asyncio.Task[None]] = []

    async def start(self) -> Child:
        child = await Child.start(self.url, self.path, self.pace)
        self._errands.append(asyncio.ensure_future(self._create(child)))
        return child

    async def _create(self, child: Child) -> None:
        """With each kill some more, so that at every one of them there is something to lose."""
        try:
            while len(self.acknowledged) < TASKS:
                async with self._killed:
                    due = TASKS * (self.kills + 1) // KILLS
                    if len(self.acknowledged) >= due:
                        await self._killed.wait()
                        continue
                self._asked += 1
                n = self._asked
                self.acknowledged[await child.create("work", n=n)] = n
        except EOFError:
            pass  # it was killed; nobody knows about the last one

    async def kill(self, child: Child) -> None:
        if random.random() > EARLY:
            try:
                await child.ready()
            except EOFError:
                raise AssertionError("a server has ended by itself") from None
        await asyncio.sleep(random.uniform(0, LONGEST_LIFE))
        assert child.process.returncode is None
        await child.kill()
        self.kills += 1
        async with self._killed:
            self._killed.notify_all()
        if random.random() < 0.5:  # otherwise the next one is the first to open the file again
            await self.look()

    async def look(self) -> None:
        async with Database(self.url) as database:
            try:
                steps = await database.read(
                    lambda tx: tx.fetch_all(tuple[str, str], "select job, name from portico_job_step")
                )
            except Exception:
                if self.acknowledged:
                    raise
                return  # killed before there was a table
        self.looked.append((set(steps), self.path.stat().st_size if self.path.exists() else 0))

    async def end(self) -> None:
        await asyncio.gather(*self._errands)


async def rest(url: str) -> list[tuple[str, int]]:
    async with Database(url) as database:
        return await database.read(
            lambda tx: tx.fetch_all(tuple[str, int], "select status, count(*) from portico_job group by status")
        )


def verify_nothing_was_done_twice(storm: Storm) -> int:
    """How many steps were done more than once, which is only right when the end came before it was recorded."""
    text = storm.path.read_text()
    finished: set[tuple[str, str]] = set()
    done: dict[tuple[str, str], int] = {}
    looked = sorted(storm.looked, key=lambda item: item[1])
    recorded: set[tuple[str, str]] = set()
    place = 0
    for line in text.splitlines():
        while looked and looked[0][1] <= place:
            recorded |= looked.pop(0)[0]
        place += len(line) + 1
        kind, job, step, *_ = line.split(" ")
        if kind == "F":
            finished.add((job, step))
            continue
        assert (job, step) not in finished, f"{step} of {job} was done again after it had returned"
        assert (job, step) not in recorded, f"{step} of {job} was done again after it was on the disk"
        done[job, step] = done.get((job, step), 0) + 1
    return sum(times - 1 for times in done.values())


async def verify_every_task_is_finished(storm: Storm) -> None:
    tokens: dict[tuple[str, str], set[str]] = {}
    for line in storm.path.read_text().splitlines():
        kind, job, step, *token = line.split(" ")
        if kind == "E":
            tokens.setdefault((job, step), set()).update(token)
    async with Database(storm.url) as database:
        rows = await database.read(
            lambda tx: tx.fetch_all(tuple[str, str, str, str], "select id, status, arguments, outcome from portico_job")
        )
        steps = await database.read(
            lambda tx: tx.fetch_all(tuple[str, str, str], "select job, name, value from portico_job_step")
        )
    recorded = {(job, name): json.loads(value) for job, name, value in steps}
    results = {id: (status, json.loads(arguments), json.loads(outcome)) for id, status, arguments, outcome in rows}
    assert set(storm.acknowledged) <= set(results)
    assert len(recorded) == STEPS * len(results)
    for id, (status, arguments, outcome) in results.items():
        assert status == "completed"
        assert outcome["isError"] is False
        n, *given = outcome["structuredContent"]["result"]
        assert int(n) == arguments["n"] == storm.acknowledged.get(id, arguments["n"])
        assert given == [recorded[id, str(step)] for step in range(STEPS)]
        assert all(token in tokens[id, str(step)] for step, token in enumerate(given))


# With several servers the store decides more; one of each engine is enough otherwise.
@pytest.mark.parametrize(("engine", "servers"), [("sqlite", 2), ("postgresql", 3)])
async def test_server_that_is_killed_again_and_again_finishes_every_task_and_repeats_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, servers: int
) -> None:
    url: str = request.getfixturevalue(f"{'sqlite' if engine == 'sqlite' else 'postgres'}_url")
    storm = Storm(url, tmp_path / "done", PACE * servers)
    children: list[Child] = [await storm.start() for _ in range(servers)]
    try:
        for _ in range(KILLS):
            place = random.randrange(servers)
            await storm.kill(children[place])
            children[place] = await storm.start()
        left = dict(await rest(url))
        assert left.keys() - {"completed"}, "all was finished before the storm was over"
        await storm.end()
        await wait_until(lambda: is_all_done(url))
        deaths = await most_deaths(url)
    finally:
        for child in children:
            await child.kill()
        await storm.end()
    await storm.look()
    await verify_every_task_is_finished(storm)
    again = verify_nothing_was_done_twice(storm)
    print(f"\n{engine}, {servers}: {KILLS} kills, {len(storm.acknowledged)} acknowledged, {left} at the last one,")
    print(f"{again} steps done again because the end came before they were recorded, {deaths} deaths of one task")


async def is_all_done(url: str) -> bool:
    result: dict[str, Any] = dict(await rest(url))
    if set(result) == {"completed"}:
        return True
    await asyncio.sleep(0.2)
    return False


async def most_deaths(url: str) -> int:
    async with Database(url) as database:
        return await database.read(lambda tx: tx.fetch_one(int, "select max(deaths) from portico_job"))
