"""Measure the operations of workers in CPU time, which is the same on a busy machine."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import wrk
from worker_client import Line, Serving, cpu, modern_request, serving

PATIENCE = 60.0
NOTE = "note://one"
LISTENERS = (1, 10, 100)


class Loaded(NamedTuple):
    """Result of wrk with its cost: CPU seconds per call of the workers and of wrk, and the share of the least loaded
    worker.
    """

    rate: float
    calls: int
    seconds: float
    call: float
    asking: float
    least: float


def loaded(
    fleet: Serving, program: str, seconds: int, connections: int = 32, tool: str = "add", **arguments: Any
) -> Loaded:
    """Send as many calls of 2026-07-28 as possible. wrk may run on any core."""
    request = modern_request(wrk.NUMBER, tool, **arguments)
    wrk.ask(program, fleet.port, request, connections, 1, core=None, same=True)
    asked, before = of_ended(), [cpu([worker]) for worker in fleet.workers]
    response = wrk.ask(program, fleet.port, request, connections, seconds, core=None, same=True)
    asked = of_ended() - asked
    spent = [cpu([worker]) - first for worker, first in zip(fleet.workers, before, strict=True)]
    each = sum(spent) / response.requests
    return Loaded(
        response.per_second,
        response.requests,
        response.seconds,
        each,
        asked / response.requests,
        min(spent) / sum(spent),
    )


def of_ended() -> float:
    """Return the CPU seconds of child processes that have exited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def of_session(fleet: Serving, times: int) -> float:
    """Measure a call in a session on a connection of its worker."""
    line = await Line.to(fleet.port)
    id = await line.begin()
    result = await _each(fleet.workers, times, lambda _: line.in_session(id))
    line.close()
    return result


async def of_many_sessions(fleet: Serving, times: int, connections: int = 32) -> float:
    """Measure many concurrent calls in sessions: a busy worker wakes up less often per call."""
    lines = [await Line.to(fleet.port) for _ in range(connections)]
    ids = [await line.begin() for line in lines]

    async def ask(number: int) -> None:
        for _ in range(times // connections):
            await lines[number].in_session(ids[number])

    # A session is with the worker that its connection is with.
    await asyncio.gather(*(line.in_session(id) for line, id in zip(lines, ids, strict=True)))
    spent = cpu(fleet.workers)
    await asyncio.gather(*map(ask, range(connections)))
    spent = cpu(fleet.workers) - spent
    _close(lines)
    return spent / (times // connections * connections)


async def of_forwarding(fleet: Serving, times: int) -> float:
    """Measure a call on a connection of another worker, which forwards it."""
    lines: list[Line] = []
    by_worker: dict[int, tuple[Line, str]] = {}
    while len(by_worker) < 2:
        line = await Line.to(fleet.port)
        lines.append(line)
        id = await line.begin()
        by_worker[await line.in_session(id, "pid")] = (line, id)
    (line, _), (_, id) = by_worker.values()
    result = await _each(fleet.workers, times, lambda _: line.in_session(id))
    _close(lines)
    return result


async def of_sending_on(times: int) -> tuple[float, float]:
    """Measure forwarding between machines: the cost of the sender and of the session's worker."""
    with tempfile.TemporaryDirectory() as store:
        os.mkdir(f"{store}/one")
        os.mkdir(f"{store}/two")
        shared = f"{store}/store.db"
        with (
            serving(1, store=shared, folder=f"{store}/one") as first,
            serving(1, store=shared, folder=f"{store}/two") as second,
        ):
            home, away = await Line.to(second.port), await Line.to(first.port)
            id = await home.begin()
            await asyncio.wait_for(_each([], 24, lambda _: away.in_session(id)), PATIENCE)
            before = cpu(first.workers), cpu(second.workers)
            for _ in range(times):
                await away.in_session(id)
            passing, answering = cpu(first.workers) - before[0], cpu(second.workers) - before[1]
            _close([home, away])
    return passing / times, answering / times


async def of_events(fleet: Serving, listeners: int, times: int) -> float:
    """Measure a change and its delivery to listeners at all workers, without the call that causes it."""
    asker = await Line.to(fleet.port)
    lines = [await Line.to(fleet.port) for _ in range(listeners)]
    for line in lines:
        await line.listen(NOTE)

    async def change(_: int) -> None:
        await asker.call("touch")
        await asyncio.gather(*(line.told("resources/updated") for line in lines))

    whole = await asyncio.wait_for(_each(fleet.workers, times, change), PATIENCE)
    alone = await _each(fleet.workers, times, lambda _: asker.call(a=1, b=2))
    _close([asker, *lines])
    return whole - alone


async def of_hearing(fleet: Serving, times: int) -> tuple[float, float]:
    """Measure a change for its own worker and for another one, with one listener each."""
    lines = {await item.worker(): item for item in [await Line.to(fleet.port) for _ in range(32)]}
    (here, asker), (there, listener) = list(lines.items())[:2]
    await listener.listen(NOTE)

    async def change(_: int) -> None:
        await asker.call("touch")
        await listener.told("resources/updated")

    await asyncio.wait_for(_each([], 24, change), PATIENCE)
    before = cpu([here]), cpu([there])
    for number in range(times):
        await change(number)
    after = cpu([here]), cpu([there])
    alone = await _each([here], times, lambda _: asker.call(a=1, b=2))
    _close(list(lines.values()))
    return (after[0] - before[0]) / times - alone, (after[1] - before[1]) / times


async def of_adopting(fleet: Serving, sessions: int) -> float:
    """Measure the additional cost of the first call in a session after a deployment."""
    line = await Line.to(fleet.port)
    ids = [await line.begin() for _ in range(sessions)]
    line.close()
    await deploy(fleet)
    line = await Line.to(fleet.port)
    # One-time work of a new process is subtracted with the others.
    for _ in range(200):
        await line.call(a=1, b=2)
    costs = []
    for _ in range(2):
        spent = cpu(fleet.workers)
        for id in ids:
            await line.in_session(id)
        costs.append((cpu(fleet.workers) - spent) / sessions)
    line.close()
    return costs[0] - costs[1]


async def deploy(fleet: Serving) -> None:
    """Replace the workers, and wait until the old ones are gone."""
    old = set(fleet.workers)
    os.kill(fleet.supervisor, signal.SIGHUP)
    async with asyncio.timeout(PATIENCE):
        while old & set(fleet.workers):  # noqa: ASYNC110 - other processes tell us nothing
            await asyncio.sleep(0.02)


async def _each(workers: list[int], times: int, ask: Callable[[int], Awaitable[Any]]) -> float:
    for number in range(min(times, 24)):
        await ask(number)
    spent = cpu(workers)
    for number in range(times):
        await ask(number)
    return (cpu(workers) - spent) / times


def _close(lines: list[Line]) -> None:
    for line in lines:
        line.close()
