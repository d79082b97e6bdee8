"""`portico status`: the processes that are one server, by the store that they share."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.protocol.errors import UsageError
from portico.store.data_directory import data_directory
from portico.store.database import Database, parse
from portico.store.errors import BadStatement
from portico.store.transaction import Transaction
from portico.transports.http_server.workers import status
from portico.transports.http_server.workers.status import HeldSessions, UsedSession
from portico.transports.http_server.workers.store import MIGRATIONS, WorkerRow

WORKER_HEADINGS = ("WORKER", "SERVER", "MACHINE", "PID", "ADDRESS", "VERSION", "UP", "SESSIONS", "LEASE")
LEASE_HEADINGS = ("LEASE", "WHAT", "HOLDER", "ENDS")
SESSION_HEADINGS = ("SESSION", "WORKER", "REVISION", "CLIENT", "PRINCIPAL", "WRITTEN")
# Of an id: who has the whole of one may speak in its session.
SHOWN = 8
MOST_LEASES = 1000

# What is held for a time, besides the workers themselves: a name of it, who has it, and until when in seconds.
LEASES = {
    "task": "select id, worker, lease / 1000.0 from portico_job where status in ('running', 'waiting') "
    "and lease is not null order by lease limit :most",
    "work item": "select id, worker, lease_until / 1000.0 from work_item where lease_until is not null "
    "order by lease_until limit :most",
    "limit": "select key, null, due_at from portico_quota where due_at > :now order by due_at desc limit :most",
}


class HeldLease(Struct, frozen=True):
    kind: str
    what: str
    holder: str | None
    until: float


class StoreStatus(Struct, frozen=True):
    """What one store knows, and when, by its own clock: that of this machine may be another."""

    store: str
    now: float
    workers: list[WorkerRow]
    sessions: list[HeldSessions]
    leases: list[HeldLease]
    recent: list[UsedSession] = []

    @property
    def is_empty(self) -> bool:
        return not (self.workers or self.sessions or self.leases)

    @property
    def is_served(self) -> bool:
        return any(worker.lease_until > self.now for worker in self.workers)


def run(words: list[str]) -> int:
    return asyncio.run(_run(parser_for("status").read(words)))


async def _run(arguments: argparse.Namespace) -> int:
    most = arguments.limit if arguments.sessions else 0
    found = [await _read(url, most) for url in _stores(arguments)]
    if not (_named(arguments) or arguments.data):
        # What was killed has left its own behind.
        found += [one for url in status.own_stores() if (one := await _read(url, most)).is_served]
    printer = Printer(arguments.output)
    if printer.form == "json":
        for one in found:
            printer.json(_plain(one))
    else:
        _tell(printer, [one for one in found if not one.is_empty])
    printer.flush()
    return 0


def _stores(arguments: argparse.Namespace) -> list[str]:
    """The store that is named; otherwise those of the data directory."""
    named = _named(arguments)
    if named:
        named = os.path.expanduser(named)
        engine, address = parse(named)
        if engine == "sqlite" and not Path(address).exists():
            raise UsageError(f"there is no store at {address}")
        return [named]
    return [str(path) for path in sorted(data_directory(arguments.data).glob("*.db"))]


def _named(arguments: argparse.Namespace) -> str | None:
    return arguments.store or os.environ.get("PORTICO_STORE")


async def _read(url: str, most_sessions: int) -> StoreStatus:
    async with Database(url) as database:
        await database.migrate("fleet", MIGRATIONS)
        leases = [one for kind in LEASES for one in await _leases(database, kind)]
        now, workers, sessions = await database.read(
            lambda tx: (tx.now(), status.workers(tx), status.held_sessions(tx))
        )
        recent = await database.read(lambda tx: status.recent_sessions(tx, most_sessions)) if most_sessions else []
    return StoreStatus(_shown(url), now, workers, sessions, leases, recent)


async def _leases(database: Database, kind: str) -> list[HeldLease]:
    def read(tx: Transaction) -> list[tuple[str, str | None, float]]:
        values = {"most": MOST_LEASES} | ({"now": tx.now()} if ":now" in LEASES[kind] else {})
        return tx.all(tuple[str, str | None, float], LEASES[kind], values)

    try:
        return [HeldLease(kind, *row) for row in await database.read(read)]
    except BadStatement:
        # This store has none of that kind.
        return []


def _shown(url: str) -> str:
    """Without its password."""
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@", 1) if parts.password else url


# For people


def _tell(printer: Printer, found: list[StoreStatus]) -> None:
    if not found:
        printer.aside("no workers, no sessions")
    for one in found:
        printer.line(one.store)
        counts = {held.owner: held.count for held in one.sessions}
        if one.workers:
            printer.table(
                WORKER_HEADINGS, [_worker_row(worker, counts.get(worker.id, 0), one.now) for worker in one.workers]
            )
        known = {worker.id for worker in one.workers}
        waiting = sum(count for owner, count in counts.items() if owner not in known)
        if waiting:
            printer.line(f"{waiting} sessions have no worker: the next one that is asked for them takes them over")
        if one.leases:
            printer.table(LEASE_HEADINGS, [_lease_row(lease, one.now) for lease in one.leases])
        if one.recent:
            printer.table(SESSION_HEADINGS, [_session_row(session, one.now) for session in one.recent])


def _worker_row(worker: WorkerRow, sessions: int, now: float) -> tuple[str, ...]:
    known: Callable[[Any], str] = lambda value: "" if value is None else str(value)  # noqa: E731
    up = "" if worker.started_at is None else _span(now - worker.started_at)
    return (
        worker.id[:SHOWN], known(worker.server), known(worker.machine), known(worker.pid), known(worker.address),
        known(worker.version), up, str(sessions), _end(worker.lease_until, now),
    )  # fmt: skip


def _lease_row(lease: HeldLease, now: float) -> tuple[str, ...]:
    return lease.kind, lease.what[:SHOWN], lease.holder or "", _end(lease.until, now)


def _session_row(session: UsedSession, now: float) -> tuple[str, ...]:
    memo = session.row.read()
    client = memo.facts.client
    return (
        session.row.id[:SHOWN],
        (session.row.owner or "")[:SHOWN],
        memo.facts.revision,
        "" if client is None else f"{client.name} {client.version}",
        "" if memo.principal is None else str(getattr(memo.principal, "id", "") or ""),
        f"{_span(now - session.used_at)} ago",
    )


def _end(until: float, now: float) -> str:
    left = until - now
    return f"{_span(left)} left" if left >= 0 else f"ended {_span(-left)} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


# For programs


def _plain(one: StoreStatus) -> dict[str, Any]:
    counts = {held.owner: held.count for held in one.sessions}
    known = {worker.id for worker in one.workers}
    return {
        "store": one.store,
        "workers": [
            {
                **msgspec.structs.asdict(worker),
                "alive": worker.lease_until >= one.now,
                "sessions": counts.get(worker.id, 0),
            }
            for worker in one.workers
        ],
        "sessions": sum(counts.values()),
        "sessions_without_worker": sum(count for owner, count in counts.items() if owner not in known),
        "leases": [msgspec.structs.asdict(lease) for lease in one.leases],
        **({"recent_sessions": [_plain_session(session, one.now) for session in one.recent]} if one.recent else {}),
    }


def _plain_session(session: UsedSession, now: float) -> dict[str, Any]:
    id, _, revision, client, principal, _ = _session_row(session, now)
    return {
        "session": id,
        "worker": session.row.owner,
        "revision": revision,
        "client": client,
        "principal": principal,
        "written_at": session.used_at,
    }
