"""Measure the CPU time of the PostgreSQL that workers share, on a real server started for this."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import worker_costs
from worker_client import Line, cpu, serving

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import debian, postgres

WORKERS = 2
IDLE_SECONDS = 10
FEW, MANY = 2, 34


@dataclass(frozen=True)
class StoreCosts:
    """Seconds of the database's CPU."""

    session: float
    adopting: float
    event: float
    listener: float
    lease: float  # in a second, of a worker
    connections: float  # of a worker: how many


async def of_store(times: int) -> StoreCosts | None:
    """Return the costs, or None if PostgreSQL is not installed."""
    try:
        # Started and ended in a thread: it waits for its process.
        starting = postgres.server()
        server = await asyncio.to_thread(starting.__enter__)
    except debian.NotInstalled:
        return None
    try:
        return await _measured(server, times)
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


async def _measured(server: Any, times: int) -> StoreCosts:
    url = server.create_database()
    master = int((server.data / "postmaster.pid").read_text().split()[0])

    def spent() -> float:
        text = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        return cpu([master, *map(int, text)])

    with serving(WORKERS, store=url) as fleet:
        connections = int(server.sql("select count(*) from pg_stat_activity where datname like 'test%'")) / WORKERS
        before = spent()
        await asyncio.sleep(IDLE_SECONDS)
        lease = (spent() - before) / IDLE_SECONDS / WORKERS
        line = await Line.to(fleet.port)
        before = spent()
        ids = [await line.begin() for _ in range(times)]
        session = (spent() - before) / times
        before = spent()
        await worker_costs.of_events(fleet, 1, times)
        event = (spent() - before) / times
        await worker_costs.deploy(fleet)
        line = await Line.to(fleet.port)
        before = spent()
        for id in ids:
            await line.in_session(id)
        adopting = (spent() - before) / times
        line.close()
    few, many = [await asyncio.to_thread(_notified, url, listeners, times, spent) for listeners in (FEW, MANY)]
    listener = max(0.0, (many - few) / (MANY - FEW))
    return StoreCosts(session, adopting, max(0.0, event - WORKERS * listener), listener, lease, connections)


def _notified(url: str, listeners: int, times: int, spent: Any) -> float:
    """Return the CPU seconds of an event for a number of listening connections."""
    import psycopg

    connections = [psycopg.connect(url, autocommit=True) for _ in range(listeners)]
    try:
        for connection in connections:
            connection.execute("listen measured")
        with psycopg.connect(url, autocommit=True) as teller:
            teller.execute("set synchronous_commit = off")
            before = spent()
            for number in range(times):
                teller.execute("select pg_notify('measured', %s)", [str(number)])
            # Each has been woken when it has an answer after the last of them.
            for connection in connections:
                connection.execute("select 1")
            return float((spent() - before) / times)
    finally:
        for connection in connections:
            connection.close()
