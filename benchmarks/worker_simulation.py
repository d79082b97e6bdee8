"""N workers on M machines: measured costs, a simulation with them, and its comparison with real workers.

    python benchmarks/worker_simulation.py [--quick] [--json FILE]

It measures what things cost (CPU time, on this machine, now), predicts what one, two and four workers answer here, lets
them answer, and prints both. Then it says where fleets that are not here would be full. PostgreSQL's own costs are
measured where its binaries are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import worker_costs
import wrk
from peers import NotInstalled
from table import aligned
from worker_client import Line, Serving, busy, cpu, modern_request, serving
from worker_simulator import Costs, Plan, answered, closed, saturation
from worker_store import StoreCosts, of_store

CONNECTIONS = 32
HERE = (1, 2, 4)
# Asks so many seconds long; gives how many calls were answered, in what time, and the asker's own CPU.
Load = Callable[[Serving, int], tuple[int, float, float]]
# A prediction that is as near as this is right: rounds of the same differ by as much.
NEAR = 0.2
QUIET = 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the numbers to FILE")
    options = parser.parse_args()
    try:
        program = wrk.find()
    except NotInstalled as why:
        print(why, file=sys.stderr)
        return 1
    costs, store = measured(program, options.quick)
    print(told(costs, store))
    rows = check(costs, program, 3 if options.quick else 8)
    print(beside(rows))
    plans = predicted(costs, 4_000 if options.quick else 8_000)
    print(full(plans))
    print(of_bus(costs))
    if options.json:
        results = {"costs": asdict(costs), "store": store and asdict(store), "check": rows, "plans": plans}
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    # Where others take most of the machine, nothing follows from a prediction that is not met.
    return int(any(not near(row) for row in rows if row["left"] > QUIET * (os.cpu_count() or 1)))


# What things cost


def measured(program: str, quick: bool) -> tuple[Costs, StoreCosts | None]:
    """Return the median of several rounds."""
    rounds = [_measured(program, 200 if quick else 1_000) for _ in range(1 if quick else 3)]
    costs = Costs(**{name: median(asdict(one)[name] for one in rounds) for name in asdict(rounds[0])})
    store = asyncio.run(of_store(100 if quick else 500))
    if store is not None:
        costs = replace(
            costs, database_event=store.event, database_listener=store.listener, database_session=store.session
        )
    return costs, store


def _measured(program: str, few: int) -> Costs:
    with serving(1) as fleet:
        call = worker_costs.loaded(fleet, program, 3, CONNECTIONS).call
    return asyncio.run(_of_several(call, few))


async def _of_several(call: float, few: int) -> Costs:
    with serving(2) as fleet:
        session = await worker_costs.of_many_sessions(fleet, 4 * few, CONNECTIONS)
        forwarded = await worker_costs.of_forwarding(fleet, few) - await worker_costs.of_session(fleet, few)
        publishing, hearing = await worker_costs.of_hearing(fleet, few)
        few_told = await worker_costs.of_events(fleet, 1, few // 5)
        many_told = await worker_costs.of_events(fleet, 100, few // 5)
    passing, answering = await worker_costs.of_sending_on(few)
    telling = max(0.0, (many_told - few_told) / 99)
    return Costs(
        call=call, session=session, forwarded=forwarded, passing=passing, answering=answering,
        publishing=max(0.0, publishing), hearing=max(0.0, hearing - telling), telling=telling,
    )  # fmt: skip


def told(costs: Costs, store: StoreCosts | None) -> str:
    rows = [["what", "CPU"]]
    for name, seconds in {
        "a stateless call (2026-07-28)": costs.call,
        "a call in a session, where it is": costs.session,
        "more, if another worker of the machine forwards it": costs.forwarded,
        "a call that is sent on: the worker that sends it": costs.passing,
        "a call that is sent on: the session's worker, in all": costs.answering,
        "a change: the worker where it happens": costs.publishing,
        "a change: each other worker": costs.hearing,
        "a change: each listener": costs.telling,
    }.items():
        rows.append([name, f"{seconds * 1e6:,.0f} µs"])
    if store is None:
        return "\n".join(aligned(rows)) + "\n\nPostgreSQL is not installed: its cost was not measured.\n"
    for name, seconds in {
        "PostgreSQL: a session that begins": store.session,
        "PostgreSQL: a session that is taken over": store.adopting,
        "PostgreSQL: a change on the bus": store.event,
        "PostgreSQL: the same, for each worker that hears it": store.listener,
        "PostgreSQL: a worker for a second (its lease)": store.lease,
    }.items():
        rows.append([name, f"{seconds * 1e6:,.0f} µs"])
    return "\n".join(aligned(rows)) + f"\n\nConnections to PostgreSQL of each worker: {store.connections:.0f}\n"


# Predicted and measured here


def check(costs: Costs, program: str, seconds: int) -> list[dict[str, Any]]:
    rows = []
    for workers in HERE:
        with serving(workers) as fleet:
            for what, load in (("calls", _by_wrk(program)), ("sessions", _in_sessions)):
                seen = _seen(fleet, load, seconds)
                # CPU left by other programs goes to any process, not to a fixed core.
                cores = max(1, round(seen["left"]))
                plan = Plan(workers=workers, cores=cores, speed=min(1.0, seen["left"] / cores))
                sessions = 2 * CONNECTIONS if what == "sessions" else 0
                result = replace(costs, asking=seen["asking"])
                rate = closed(plan, result, CONNECTIONS, 2.0, sessions)
                rows.append({"workers": workers, "load": what, "predicted": rate, **seen})
    return rows


def _seen(fleet: Serving, load: Load, seconds: int) -> dict[str, float]:
    """Return calls per second, the client's CPU per call, and the cores left by other processes."""
    load(fleet, 1)
    began, used, spent = time.perf_counter(), busy(), cpu(fleet.workers)
    calls, took, asking = load(fleet, seconds)
    elapsed = time.perf_counter() - began
    others = busy() - used - (cpu(fleet.workers) - spent) - asking
    left = (os.cpu_count() or 1) - max(0.0, others) / elapsed
    return {"seen": calls / took, "asking": asking / calls, "left": max(left, 0.05)}


def _by_wrk(program: str) -> Load:
    def load(fleet: Serving, seconds: int) -> tuple[int, float, float]:
        before = worker_costs.of_ended()
        response = wrk.ask(program, fleet.port, modern_request(wrk.NUMBER), CONNECTIONS, seconds, core=1, same=True)
        return response.requests, response.seconds, worker_costs.of_ended() - before

    return load


def _in_sessions(fleet: Serving, seconds: int) -> tuple[int, float, float]:
    """Assign session requests at random, so that half of them are forwarded with two workers."""
    spent = time.process_time()
    calls, took = asyncio.run(_ask_in_sessions(fleet.port, seconds))
    return calls, took, time.process_time() - spent


async def _ask_in_sessions(port: int, seconds: int) -> tuple[int, float]:
    lines = [await Line.to(port) for _ in range(CONNECTIONS)]
    ids = [await lines[0].begin() for _ in range(2 * CONNECTIONS)]
    chance = Random(1)
    calls = 0
    began = time.perf_counter()

    async def ask(line: Line) -> None:
        nonlocal calls
        while time.perf_counter() < began + seconds:
            await line.in_session(chance.choice(ids))
            calls += 1

    await asyncio.gather(*map(ask, lines))
    took = time.perf_counter() - began
    for one in lines:
        one.close()
    return calls, took


def near(row: dict[str, Any]) -> bool:
    return abs(row["seen"] / row["predicted"] - 1) <= NEAR


def beside(rows: list[dict[str, Any]]) -> str:
    table = [["workers", "load", "others left", "predicted per s", "seen per s", "seen / predicted"]]
    for row in rows:
        table.append([
            str(row["workers"]), row["load"], f"{row['left']:.2f} cores", f"{row['predicted']:,.0f}",
            f"{row['seen']:,.0f}", f"{row['seen'] / row['predicted']:.2f}" + ("" if near(row) else " !"),
        ])  # fmt: skip
    return "\n".join(aligned(table)) + "\n"


# Predicted for other topologies

PLANS = {
    "1 machine, 1 worker": Plan(workers=1, cores=8),
    "1 machine, 8 workers": Plan(workers=8, cores=8),
    "3 machines, 8 workers": Plan(machines=3, workers=8, cores=8),
    "10 machines, 8 workers": Plan(machines=10, workers=8, cores=8),
}
LOADS: dict[str, dict[str, Any]] = {
    "2026-07-28": {},
    "sessions, connections kept": {"sessions": 1.0, "kept": 1.0},
    "sessions, any worker": {"sessions": 1.0},
    "2026-07-28, 500 changes a second": {"events": 500.0, "listeners": 10},
}


def predicted(costs: Costs, calls: int) -> list[dict[str, Any]]:
    results = []
    for name, plan in PLANS.items():
        for load, more in LOADS.items():
            result = replace(plan, **more)
            rate = saturation(result, costs, calls)
            half = answered(result, costs, max(rate / 2, 1.0), calls)
            results.append({"plan": name, "load": load, "full": rate, "p99_at_half": half.seconds})
    return results


def full(plans: list[dict[str, Any]]) -> str:
    table = [["fleet", "load", "full at, per s", "99 of 100 at half of it"]]
    for row in plans:
        table.append([row["plan"], row["load"], f"{row['full']:,.0f}", f"{row['p99_at_half'] * 1e3:.1f} ms"])
    return "\n".join(aligned(table)) + "\n"


def of_bus(costs: Costs) -> str:
    """Compute where the event bus saturates the workers or the database: each worker receives every event, unless the
    bus is partitioned.
    """
    cores = Plan().database_cores
    table = [["workers", "parts of the bus", "full at, changes per s: each worker", f"PostgreSQL on {cores} cores"]]
    for workers in (8, 80):
        for shards in (1, 16):
            worker = costs.publishing / workers + costs.hearing / shards
            database = (costs.database_event + costs.database_listener * max(1, workers / shards)) / cores
            # One at a time, however many cores there are.
            database = max(database, costs.database_event)
            table.append([str(workers), str(shards), f"{1 / worker:,.0f}", f"{1 / database:,.0f}" if database else "-"])
    return "\n".join(aligned(table))


if __name__ == "__main__":
    sys.exit(main())
