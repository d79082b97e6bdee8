"""Status queries on a shared store, for operators: workers and their sessions."""

from __future__ import annotations

import glob
import os
import tempfile

from msgspec import Struct

from portico.store.transaction import Transaction
from portico.transports.http_server.workers.session_queries import SessionRow
from portico.transports.http_server.workers.store import WorkerRow


class WorkerSessionCount(Struct, frozen=True):
    """Number of sessions of a worker. Without a worker, those that wait for their client's next request."""

    owner: str | None
    count: int


class RecentSession(Struct, frozen=True):
    """Session with the time of its last write."""

    row: SessionRow
    used_at: float


def list_workers(tx: Transaction) -> list[WorkerRow]:
    return tx.fetch_all(WorkerRow, "select * from portico_worker order by started_at, id")


def count_sessions_by_worker(tx: Transaction) -> list[WorkerSessionCount]:
    return tx.fetch_all(
        WorkerSessionCount, 'select owner, count(*) as "count" from portico_session group by owner order by owner'
    )


def list_recent_sessions(tx: Transaction, limit: int) -> list[RecentSession]:
    rows = tx.fetch_all(
        tuple[str, str | None, str, str, float],
        "select id, owner, path, memo, used_at from portico_session order by used_at desc, id limit :most",
        {"most": limit},
    )
    return [RecentSession(SessionRow(*row[:4]), row[4]) for row in rows]


def list_remote_sessions(server: str, worker: str, limit: int, tx: Transaction) -> tuple[int, list[RecentSession]]:
    """Return the number of sessions of the other workers of a server, and the most recently used ones."""
    theirs = "portico_session s join portico_worker w on w.id = s.owner where w.server = :server and w.id <> :worker"
    params = {"server": server, "worker": worker}
    rows = tx.fetch_all(
        tuple[str, str | None, str, str, float],
        f"select s.id, s.owner, s.path, s.memo, s.used_at from {theirs} order by s.used_at desc, s.id limit :most",
        {**params, "most": limit},
    )
    count = tx.fetch_one(int, f"select count(*) from {theirs}", params)
    return count, [RecentSession(SessionRow(*row[:4]), row[4]) for row in rows]


def find_local_stores() -> list[str]:
    """Return the databases of this user's local supervisors whose servers have no configured store."""
    result = glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), "portico-*", "fleet.db"))
    return sorted(path for path in result if os.stat(path).st_uid == os.getuid())
