"""The rows of sessions, as statements: what one transaction reads or writes of them."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from portico.store.keys import SigningKeys
from portico.store.transaction import Transaction
from portico.transports.http_server.session_snapshot import SessionMemo


class SessionRow(Struct, frozen=True):
    """Who has a session, and what is known of it."""

    id: str
    owner: str | None
    path: str
    memo: str
    # Of the id, the path and the memo, which has the principal.
    signature: str | None = None

    def read(self) -> SessionMemo:
        return msgspec.json.decode(self.memo, type=SessionMemo)

    def is_authentic(self, signing: SigningKeys) -> bool:
        """Whether a worker of this fleet has written it, for this session."""
        return signing.is_row_signed(_PURPOSE, self.signature, self.id, self.path, self.memo)


_PURPOSE = b"rows of sessions"


Rows = dict[str, tuple[str, SessionMemo] | None]
# A session, and whose it is.
Held = tuple[str, str | None]


def put(signing: SigningKeys, worker: str, owner: str | None, rows: Rows, known: set[str], tx: Transaction) -> None:
    """Write the rows of a worker, and whose they are then. One that another has taken meanwhile is that one's; one that
    is known to have been there, and is not, was ended by another."""
    now = tx.now()
    tx.many(
        "delete from portico_session where id = ? and owner = ?",
        [(id, worker) for id, row in rows.items() if row is None],
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
            (id, row[0], msgspec.json.encode(row[1]).decode()) for id, row in rows.items() if row is not None
        ]
    ]
    tx.many(
        "update portico_session set owner = :owner, memo = :memo, signature = :signature, used_at = :now "
        "where id = :id and owner = :us",
        [one for one in written if one["id"] in known],
    )
    tx.many(
        "insert into portico_session (id, owner, path, memo, signature, used_at) "
        "values (:id, :owner, :path, :memo, :signature, :now) "
        "on conflict (id) do update set owner = excluded.owner, path = excluded.path, memo = excluded.memo, "
        "signature = excluded.signature, used_at = excluded.used_at where portico_session.owner = :us",
        [one for one in written if one["id"] not in known],
    )


def find(ids: list[str], tx: Transaction) -> dict[str, SessionRow]:
    rows = tx.all(
        SessionRow, "select id, owner, path, memo, signature from portico_session where id in :ids", {"ids": ids}
    )
    return {row.id: row for row in rows}


def adopt(sessions: list[Held], worker: str, tx: Transaction) -> dict[Held, bool]:
    """Those that were still their owner's, and are the worker's now."""
    taken: dict[Held, bool] = {}
    # In one order for all, who would wait for each other otherwise.
    for owner in sorted({owner for _, owner in sessions}, key=str):
        if owner not in (None, worker) and _lives(owner, tx):
            continue
        ids = [id for id, held in sessions if held == owner]
        whose = "owner is null" if owner is None else "owner = :owner"
        found = tx.all(
            str,
            f"update portico_session set owner = :worker, used_at = :now where id in :ids and {whose} returning id",
            {"worker": worker, "now": tx.now(), "ids": ids} | ({} if owner is None else {"owner": owner}),
        )
        taken |= {(id, owner): True for id in found}
    return taken


def release(id: str, worker: str, tx: Transaction) -> None:
    tx.run("update portico_session set owner = null where id = ? and owner = ?", (id, worker))


def _lives(worker: str | None, tx: Transaction) -> bool:
    """Whether a worker has a lease. It cannot renew it before this transaction is over, and looks then for what is
    still its own."""
    found = tx.maybe(float, "select lease_until from portico_worker where id = ? for update", (worker,))
    return found is not None and found > tx.now()


def owners(ids: list[str], tx: Transaction) -> dict[str, str | None]:
    rows = tx.all(tuple[str, str | None], "select id, owner from portico_session where id in :ids", {"ids": ids})
    return dict(rows)
