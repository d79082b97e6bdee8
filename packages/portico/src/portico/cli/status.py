"""`portico status`: show the workers, sessions and leases recorded in a server's store."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.protocol.errors import UsageError
from portico.store.data_directory import named_store, resolve_data_directory
from portico.store.database import Database, parse_database_url
from portico.store.errors import InvalidStatement
from portico.store.transaction import Transaction
from portico.transports.http_server.workers import status
from portico.transports.http_server.workers.status import RecentSession, WorkerSessionCount
from portico.transports.http_server.workers.store import MIGRATIONS, WorkerRow

WORKER_HEADINGS = ("WORKER", "SERVER", "MACHINE", "PID", "ADDRESS", "VERSION", "UP", "SESSIONS", "LEASE")
LEASE_HEADINGS = ("LEASE", "WHAT", "HOLDER", "ENDS")
SESSION_HEADINGS = ("SESSION", "WORKER", "REVISION", "CLIENT", "PRINCIPAL", "WRITTEN")
# Only a prefix is shown: anyone with a complete session id can use the session.
SHORT_ID_CHARS = 8
MAX_LEASES = 1000

# Leases other than those of workers: an id, the holder, and the expiry in seconds.
LEASES = {
    "task": "select id, worker, lease / 1000.0 from portico_job where status in ('running', 'waiting') "
    "and lease is not null order by lease limit :most",
    "work item": "select id, worker, lease_until / 1000.0 from work_item where lease_until is not null "
    "order by lease_until limit :most",
    "limit": "select key, null, due_at from portico_quota where due_at > :now order by due_at desc limit :most",
}


class HeldLease(Struct, frozen=True):
    kind: str
    resource: str
    holder: str | None
    expires_at: float


class StoreStatus(Struct, frozen=True):
    """The recorded state of one store at the time `now`, by the store's own clock."""

    store: str
    now: float
    workers: list[WorkerRow]
    sessions: list[WorkerSessionCount]
    leases: list[HeldLease]
    recent_sessions: list[RecentSession] = []

    @property
    def is_empty(self) -> bool:
        """Return whether the store has no workers, sessions or leases."""
        return not (self.workers or self.sessions or self.leases)

    @property
    def is_served(self) -> bool:
        """Return whether a worker's lease is still valid."""
        # By the store's clock: the clocks of other machines, which write these leases, may differ from ours.
        return any(worker.lease_until > self.now for worker in self.workers)


def run(argv: list[str]) -> int:
    """Run `portico status`."""
    return asyncio.run(_run(parser_for("status").parse(argv)))


async def _run(arguments: argparse.Namespace) -> int:
    max_sessions = arguments.limit if arguments.sessions else 0
    stores = [await _read(url, max_sessions) for url in _stores(arguments)]
    if not (_store_option(arguments) or arguments.data):
        # Killed servers leave their stores behind, so only those with a live worker are shown.
        stores += [item for url in status.find_local_stores() if (item := await _read(url, max_sessions)).is_served]
    printer = Printer(arguments.format)
    if printer.is_json:
        printer.json_list(map(_to_json_object, stores))
    else:
        _print_status(printer, [item for item in stores if not item.is_empty])
    printer.flush()
    return 0


def _stores(arguments: argparse.Namespace) -> list[str]:
    """Return the named store, otherwise the stores of the data directory."""
    named = _store_option(arguments)
    if named:
        engine, address = parse_database_url(named)
        if engine == "sqlite" and not Path(address).exists():
            raise UsageError(f"store {address} not found")
        return [named]
    return [str(path) for path in sorted(resolve_data_directory(arguments.data).glob("*.db"))]


def _store_option(arguments: argparse.Namespace) -> str | None:
    return named_store(arguments.store)


async def _read(url: str, max_sessions: int) -> StoreStatus:
    async with Database(url) as database:
        # A store of the data directory may belong to a server without workers and lack the tables that are read below.
        await database.migrate("fleet", MIGRATIONS)
        leases = [lease for kind in LEASES for lease in await _leases(database, kind)]
        now, workers, sessions = await database.read(
            lambda tx: (tx.now(), status.list_workers(tx), status.count_sessions_by_worker(tx))
        )
        recent_sessions = (
            await database.read(lambda tx: status.list_recent_sessions(tx, max_sessions)) if max_sessions else []
        )
    return StoreStatus(_hide_password(url), now, workers, sessions, leases, recent_sessions)


async def _leases(database: Database, kind: str) -> list[HeldLease]:
    def read(tx: Transaction) -> list[tuple[str, str | None, float]]:
        values = {"most": MAX_LEASES} | ({"now": tx.now()} if ":now" in LEASES[kind] else {})
        return tx.fetch_all(tuple[str, str | None, float], LEASES[kind], values)

    try:
        return [HeldLease(kind, *row) for row in await database.read(read)]
    except InvalidStatement:
        # This store has no leases of that kind.
        return []


def _hide_password(url: str) -> str:
    """Return the URL without its password."""
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@", 1) if parts.password else url


# Table output


def _print_status(printer: Printer, stores: list[StoreStatus]) -> None:
    if not stores:
        printer.print_error("no workers, no sessions")
    for item in stores:
        printer.print_line(item.store)
        counts = {lease_count.owner: lease_count.count for lease_count in item.sessions}
        if item.workers:
            printer.print_table(
                WORKER_HEADINGS, [_worker_row(worker, counts.get(worker.id, 0), item.now) for worker in item.workers]
            )
        worker_ids = {worker.id for worker in item.workers}
        waiting = sum(count for owner, count in counts.items() if owner not in worker_ids)
        if waiting:
            printer.print_line(
                f"{waiting} sessions have no worker; the next worker that receives a request for one takes it over"
            )
        if item.leases:
            printer.print_table(LEASE_HEADINGS, [_lease_row(lease, item.now) for lease in item.leases])
        if item.recent_sessions:
            printer.print_table(SESSION_HEADINGS, [_session_row(session, item.now) for session in item.recent_sessions])


def _worker_row(worker: WorkerRow, sessions: int, now: float) -> tuple[str, ...]:
    format_optional: Callable[[Any], str] = lambda value: "" if value is None else str(value)  # noqa: E731
    up = "" if worker.started_at is None else _span(now - worker.started_at)
    return (
        worker.id[:SHORT_ID_CHARS],
        format_optional(worker.server),
        format_optional(worker.machine),
        format_optional(worker.pid),
        format_optional(worker.address),
        format_optional(worker.version),
        up,
        str(sessions),
        _format_remaining_time(worker.lease_until, now),
    )


def _lease_row(lease: HeldLease, now: float) -> tuple[str, ...]:
    return (
        lease.kind,
        lease.resource[:SHORT_ID_CHARS],
        lease.holder or "",
        _format_remaining_time(lease.expires_at, now),
    )


def _session_row(session: RecentSession, now: float) -> tuple[str, ...]:
    memo = session.row.decode_snapshot()
    client = memo.facts.client
    return (
        session.row.id[:SHORT_ID_CHARS],
        (session.row.owner or "")[:SHORT_ID_CHARS],
        memo.facts.protocol_version,
        "" if client is None else client.label,
        "" if memo.principal is None else str(getattr(memo.principal, "id", "") or ""),
        f"{_span(now - session.used_at)} ago",
    )


def _format_remaining_time(until: float, now: float) -> str:
    left = until - now
    return f"{_span(left)} left" if left >= 0 else f"ended {_span(-left)} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


# JSON output


def _to_json_object(item: StoreStatus) -> dict[str, Any]:
    counts = {lease_count.owner: lease_count.count for lease_count in item.sessions}
    worker_ids = {worker.id for worker in item.workers}
    recent_sessions = [_plain_session(session, item.now) for session in item.recent_sessions]
    return {
        "store": item.store,
        "workers": [
            {
                **msgspec.structs.asdict(worker),
                "alive": worker.lease_until >= item.now,
                "sessions": counts.get(worker.id, 0),
            }
            for worker in item.workers
        ],
        "sessions": sum(counts.values()),
        "sessions_without_worker": sum(count for owner, count in counts.items() if owner not in worker_ids),
        "leases": [msgspec.structs.asdict(lease) for lease in item.leases],
        **({"recent_sessions": recent_sessions} if recent_sessions else {}),
    }


def _plain_session(session: RecentSession, now: float) -> dict[str, Any]:
    id, _, protocol_version, client, principal, _ = _session_row(session, now)
    return {
        "session": id,
        "worker": session.row.owner,
        "protocol_version": protocol_version,
        "client": client,
        "principal": principal,
        "written_at": session.used_at,
    }
