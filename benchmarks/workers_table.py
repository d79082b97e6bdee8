"""The worker table: throughput of one and two workers, and the cost of coordination."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import worker_costs
import wrk
from goals import Goal, limit, multiple
from peers import NotInstalled, Peer
from scenarios import Answers, Question, take_turns
from services_table import Grid, Size, Table, this_tree
from worker_client import Serving, private, serving

NAME = "workers"
CONNECTIONS = 32
QUESTIONS = (
    Question("rate", f"tools/call, 2026-07-28, {CONNECTIONS} connections", "per s", more_is_better=True),
    Question("asking", "the same: CPU of wrk for one call", "µs"),
    Question("call", "the same: CPU of all workers for one call", "µs"),
    Question("capacity", "projected rate with one core per worker", "per s", more_is_better=True),
    Question("least", "the same: CPU share of the least loaded worker", "%", more_is_better=True),
    Question("work", f"calls of a tool that works, {CONNECTIONS} connections", "per s", more_is_better=True),
    Question("work_call", "the same: CPU of all workers for one call", "µs"),
    Question("work_share", "the same: what wrk takes of the cores", "%"),
    Question("work_least", "the same: CPU share of the least loaded worker", "%", more_is_better=True),
    Question("session", "tools/call in a session, on a connection of its worker: CPU", "µs"),
    Question("forwarded", "the same, forwarded by another worker of the machine: CPU of both", "µs"),
    Question("sent", "the same, sent on to another machine: CPU of both", "µs"),
    *(Question(f"event_{many}", f"an event to {many} listeners: CPU of all workers", "µs") for many in (1, 10, 100)),
    Question("adopting", "taking over a session, with the first call in it: CPU", "µs"),
    Question("private", "memory that a worker shares with no other process", "MB"),
)
SEVERAL = ("forwarded", "sent")
LOADED = ("rate", "asking", "call", "capacity", "least", "work", "work_call", "work_share", "work_least")
LEGEND = (
    "wrk runs on the same cores, so two workers get what it leaves them: with the empty tool the rate is limited "
    "by the machine, and the CPU figure is what more cores would give. A tool that works reads 30 kB of"
    " JSON and sums it up. An event is without the call that makes it; listeners are at all workers.",
)


def measure(size: Size) -> Table:
    answers = Answers()
    columns = [this_tree("one", "1 worker"), this_tree("two", "2 workers")]
    try:
        program, notes = wrk.find(), ()
    except NotInstalled as why:
        program, notes = "", (f"Calls a second were not measured: {why}",)
    turns = []
    for peer in columns:
        keys = tuple(question.key for question in QUESTIONS if peer.key == "two" or question.key not in SEVERAL)
        keys = keys if program else tuple(key for key in keys if key not in LOADED)
        turns.append((peer, keys, lambda peer=peer: _ask(peer, size.quick, program)))
    take_turns(answers, size.rounds, turns)
    return Table("workers", [Grid(QUESTIONS, columns)], answers, _judge(answers), notes, LEGEND)


def _ask(peer: Peer, quick: bool, program: str) -> dict[str, Any]:
    count = 1 if peer.key == "one" else 2
    with serving(count) as fleet:
        result = _loaded(fleet, program, 2 if quick else 5) if program else {}
        result |= asyncio.run(_costs(fleet, count, quick))
    if count == 2:
        result["sent"] = sum(asyncio.run(worker_costs.of_sending_on(200 if quick else 1_000))) * 1e6
    return result


def _loaded(fleet: Serving, program: str, seconds: int) -> dict[str, Any]:
    result = worker_costs.loaded(fleet, program, seconds, CONNECTIONS)
    works = worker_costs.loaded(fleet, program, seconds, CONNECTIONS, "best_customers", most=3)
    cores = len(os.sched_getaffinity(0))
    return {
        "rate": result.rate,
        "asking": result.asking * 1e6,
        "call": result.call * 1e6,
        "capacity": len(fleet.workers) / result.call,
        "least": result.least * 100,
        "work": works.rate,
        "work_call": works.call * 1e6,
        "work_share": works.asking * works.rate / cores * 100,
        "work_least": works.least * 100,
    }


async def _costs(fleet: Serving, count: int, quick: bool) -> dict[str, Any]:
    few = 200 if quick else 1_000
    results = {
        "session": await worker_costs.of_session(fleet, few) * 1e6,
        "private": private(fleet.workers) / count / 1e6,
    }
    if count > 1:
        results["forwarded"] = await worker_costs.of_forwarding(fleet, few) * 1e6
    for many in worker_costs.LISTENERS:
        results[f"event_{many}"] = await worker_costs.of_events(fleet, many, few // 5) * 1e6
    results["adopting"] = await worker_costs.of_adopting(fleet, few) * 1e6
    return results


def _judge(answers: Answers) -> list[Goal]:
    def both(key: str) -> tuple[float | None, float | None]:
        return answers.value(key, "two"), answers.value(key, "one")

    return [
        multiple("two workers, calls a second of a tool that works: 1.7 times one", *both("work"), 1.7),
        multiple("the same of calls that do nothing, beside wrk on two cores", *both("rate"), 1.7),
        multiple("the same by their CPU, without what wrk takes of it", *both("capacity"), 1.7),
        limit("private memory of a further worker: at most 30 MB", answers.value("private", "two"), 30, "MB"),
    ]
