"""SQL statements for session rows, each within one transaction."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from portico.store.keys import SigningKeys
from portico.store.transaction import Transaction
from portico.transports.http_server.session_snapshot import SessionSnapshot


class SessionRow(Struct, frozen=True):
    """Owner and snapshot of a session."""

    id: str
    owner: str | None
    path: str
    memo: str
    # Signature of the id, the path and the memo, which contains the principal.
    signature: str | None = None

    def decode_snapshot(self) -> SessionSnapshot:
        return msgspec.json.decode(self.memo, type=SessionSnapshot)

    def is_authentic(self, signing: SigningKeys) -> bool:
        """Return whether a worker of this cluster wrote the row, for this session."""
        return signing.is_row_signed(_PURPOSE, self.signature, self.id, self.path, self.memo)


_PURPOSE = b"rows of sessions"


SessionWrites = dict[str, tuple[str, SessionSnapshot] | None]
# A session id with its owner.
OwnedSession = tuple[str, str | None]


def upsert_sessions(
    signing: SigningKeys, worker: str, owner: str | None, writes: SessionWrites, stored_ids: set[str], tx: Transaction
) -> None:
    """Write the session rows of a worker and set their owner.

    A row that another worker has taken over is not changed. A row in `stored_ids` that is gone was ended by another
    worker, and is not inserted again.
    """
    now = tx.now()
    tx.execute_many(
        "delete from portico_session where id = ? and owner = ?",
        [(id, worker) for id, row in writes.items() if row is None],
    )
    written = [
        {
            "id": id,
            "owner": owner,
            "path": path,
            "memo": memo,
            "now": now,
            "us": worker,
            "signature": signing.sign_row(_PURPOSE, id, path, memo),
        }
        for id, path, memo in [
            (id, row[0], msgspec.json.encode(row[1]).decode()) for id, row in writes.items() if row is not None
        ]
    ]
    tx.execute_many(
        "update portico_session set owner = :owner, memo = :memo, signature = :signature, used_at = :now "
        "where id = :id and owner = :us",
        [item for item in written if item["id"] in stored_ids],
    )
    tx.execute_many(
        "insert into portico_session (id, owner, path, memo, signature, used_at) "
        "values (:id, :owner, :path, :memo, :signature, :now) "
        "on conflict (id) do update set owner = excluded.owner, path = excluded.path, memo = excluded.memo, "
        "signature = excluded.signature, used_at = excluded.used_at where portico_session.owner = :us",
        [item for item in written if item["id"] not in stored_ids],
    )


def select_sessions(ids: list[str], tx: Transaction) -> dict[str, SessionRow]:
    rows = tx.fetch_all(
        SessionRow, "select id, owner, path, memo, signature from portico_session where id in :ids", {"ids": ids}
    )
    return {row.id: row for row in rows}


def take_over_sessions(sessions: list[OwnedSession], worker: str, tx: Transaction) -> dict[OwnedSession, bool]:
    """Take over the sessions that still belong to the given owner. Return those that succeeded."""
    outcomes: dict[OwnedSession, bool] = {}
    # A fixed order prevents deadlocks between workers.
    for owner in sorted({owner for _, owner in sessions}, key=str):
        if owner not in (None, worker) and _has_lease(owner, tx):
            continue
        ids = [id for id, current_owner in sessions if current_owner == owner]
        owner_test = "owner is null" if owner is None else "owner = :owner"
        rows = tx.fetch_all(
            str,
            "update portico_session set owner = :worker, used_at = :now"
            f" where id in :ids and {owner_test} returning id",
            {"worker": worker, "now": tx.now(), "ids": ids} | ({} if owner is None else {"owner": owner}),
        )
        outcomes |= {(id, owner): True for id in rows}
    return outcomes


def release_session(id: str, worker: str, tx: Transaction) -> None:
    tx.execute("update portico_session set owner = null where id = ? and owner = ?", (id, worker))


def _has_lease(worker: str | None, tx: Transaction) -> bool:
    """Return whether a worker has a valid lease. The row lock delays a renewal until this transaction ends; the worker
    then checks which sessions it still owns.
    """
    optional = tx.fetch_optional(float, "select lease_until from portico_worker where id = ? for update", (worker,))
    return optional is not None and optional > tx.now()


def select_owners(ids: list[str], tx: Transaction) -> dict[str, str | None]:
    rows = tx.fetch_all(tuple[str, str | None], "select id, owner from portico_session where id in :ids", {"ids": ids})
    return dict(rows)
