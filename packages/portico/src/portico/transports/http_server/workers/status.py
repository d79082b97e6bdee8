"""What a store knows of the workers that share it, for people: who is there, and which sessions they have."""

from __future__ import annotations

import glob
import os
import tempfile

from msgspec import Struct

from portico.store.transaction import Transaction
from portico.transports.http_server.workers.session_queries import SessionRow
from portico.transports.http_server.workers.store import WorkerRow


class HeldSessions(Struct, frozen=True):
    """How many sessions a worker has; without a worker, those that wait for the next request of their clients."""

    owner: str | None
    count: int


class UsedSession(Struct, frozen=True):
    """A session, and when it was last written down."""

    row: SessionRow
    used_at: float


def workers(tx: Transaction) -> list[WorkerRow]:
    return tx.all(WorkerRow, "select * from portico_worker order by started_at, id")


def held_sessions(tx: Transaction) -> list[HeldSessions]:
    return tx.all(HeldSessions, 'select owner, count(*) as "count" from portico_session group by owner order by owner')


def recent_sessions(tx: Transaction, most: int) -> list[UsedSession]:
    rows = tx.all(
        tuple[str, str | None, str, str, float],
        "select id, owner, path, memo, used_at from portico_session order by used_at desc, id limit :most",
        {"most": most},
    )
    return [UsedSession(SessionRow(*row[:4]), row[4]) for row in rows]


def sessions_of_others(server: str, worker: str, most: int, tx: Transaction) -> tuple[int, list[UsedSession]]:
    """How many sessions the other workers of a server have, and those that were used last."""
    theirs = "portico_session s join portico_worker w on w.id = s.owner where w.server = :server and w.id <> :worker"
    given = {"server": server, "worker": worker}
    rows = tx.all(
        tuple[str, str | None, str, str, float],
        f"select s.id, s.owner, s.path, s.memo, s.used_at from {theirs} order by s.used_at desc, s.id limit :most",
        {**given, "most": most},
    )
    count = tx.one(int, f"select count(*) from {theirs}", given)
    return count, [UsedSession(SessionRow(*row[:4]), row[4]) for row in rows]


def own_stores() -> list[str]:
    """The databases of supervisors of this user on this machine whose servers have no store."""
    found = glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), "portico-*", "fleet.db"))
    return sorted(path for path in found if os.stat(path).st_uid == os.getuid())
