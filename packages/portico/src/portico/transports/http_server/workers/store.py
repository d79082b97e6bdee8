"""Rows that workers share: leases, sessions, signing keys and retained changes.

The row of a session names its owner. When that worker is gone, another one takes over the row and continues the
session. Times are on the store's clock, because the clocks of machines differ.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from portico import __version__
from portico.protocol.errors import UsageError
from portico.store.database import Database
from portico.store.errors import ConnectionLost, StoreError
from portico.store.event_bus import Subscription
from portico.store.keys import SigningKeys
from portico.store.transaction import Transaction
from portico.transports.http_server.session_snapshot import SessionSnapshot
from portico.transports.http_server.workers import session_queries
from portico.transports.http_server.workers.batch_loader import BatchLoader
from portico.transports.http_server.workers.session_queries import OwnedSession, SessionRow, SessionWrites

T = TypeVar("T")
log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).with_name("migrations")
LEASE_DURATION_SECONDS = 15.0
# Age at which a key is replaced, and the time until every worker has loaded the new one.
KEY_ROTATION_SECONDS = 30 * 86400.0
KEY_PROPAGATION_SECONDS = 60.0
# Normally two or three; the limit protects against a database role that adds rows.
MAX_KEYS = 8
# How long to wait for an unavailable store.
STORE_TIMEOUT_SECONDS = 3.0
# After that, requests of clients fail immediately for this long.
STORE_UNAVAILABLE_CACHE_SECONDS = 2.0
# Topic of change broadcasts.
CHANGE_TOPIC = "portico changes"
MAX_ROWS_PER_STATEMENT = 500
# Delay before failed writes are repeated.
WRITE_RETRY_SECONDS = 1.0

_WORKERS, _CHANGES = b"rows of workers", b"rows of changes"


class WorkerRow(Struct, frozen=True):
    """Address of a worker for other machines, if any, and the end of its lease.

    The other columns are informational, and absent for workers of older releases.
    """

    id: str
    address: str | None
    lease_until: float
    server: str | None = None
    machine: str | None = None
    pid: int | None = None
    version: str | None = None
    started_at: float | None = None
    # Signature of the id, the server and the address: requests, with their clients' data, are sent to that address.
    signature: str | None = None


class WorkerStatus(Struct, frozen=True):
    """Address of a worker for other machines, if any, and whether its lease is valid."""

    address: str | None
    lives: bool
    lease_until: float = 0.0


class SigningKeyRow(Struct, frozen=True):
    """Row from which a key is derived, together with the store's own key. Useless without that key."""

    secret: str
    created_at: float


class WorkerStore:
    """Store access of one worker. Writes are batched, in the order of the calls."""

    def __init__(self, database: Database, worker: str, server: str, signing: SigningKeys) -> None:
        self._database = database
        self._worker = worker
        self._server = server
        self._signing = signing
        self._started_at = time.time()
        self._away_until = 0.0
        # Pending writes: a row, or None to delete it.
        self._pending_writes: dict[str, tuple[str, SessionSnapshot] | None] = {}
        self._written: asyncio.Future[None] | None = None
        # Local sessions that may have a row, and whether they are known to have had one.
        self._stored_sessions: dict[str, bool] = {}
        self._writing: asyncio.Task[None] | None = None
        # Batched because all clients reconnect at the same time after a deployment.
        self._finding = BatchLoader(self._load_sessions, MAX_ROWS_PER_STATEMENT)
        self._taking = BatchLoader(self._take_over_sessions, MAX_ROWS_PER_STATEMENT)

    @property
    def is_local(self) -> bool:
        """Return whether the store is a file, so that all its users are on this machine."""
        return self._database.engine == "sqlite"

    # Sessions

    def may_be_stored(self, id: str) -> bool:
        """Return whether other workers may find a local session through its row."""
        return id in self._stored_sessions

    def save_session(self, id: str, path: str, snapshot: SessionSnapshot) -> asyncio.Future[None]:
        """Schedule the write of a row. The future is done when it was written, or could not be."""
        self._pending_writes[id] = path, snapshot
        return self._schedule_write()

    def remove_session(self, id: str) -> None:
        self._pending_writes[id] = None
        self._schedule_write()

    def _schedule_write(self) -> asyncio.Future[None]:
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return self._written

    async def _write(self) -> None:
        while self._pending_writes:
            some = dict(list(self._pending_writes.items())[:MAX_ROWS_PER_STATEMENT])
            written, self._written = self._written, None
            for id in some:
                del self._pending_writes[id]
                self._stored_sessions.setdefault(id, False)
            try:
                await self._write_rows(self._worker, some)
            except StoreError as failure:
                log.warning("could not write sessions: %s", failure)
                # Later writes take precedence.
                self._pending_writes = {**some, **self._pending_writes}
                _resolve(written)
                await asyncio.sleep(WRITE_RETRY_SECONDS)
            else:
                for id in some.keys() & self._stored_sessions.keys():
                    self._set_stored(id, some[id] is not None)
                _resolve(written)

    async def _write_rows(self, owner: str | None, rows: SessionWrites) -> None:
        existing = {id for id in rows if self._stored_sessions.get(id)}
        await self._database.write(
            partial(session_queries.upsert_sessions, self._signing, self._worker, owner, rows, existing),
            isolation="read committed",
        )

    def _set_stored(self, id: str, ours: bool) -> None:
        if ours:
            self._stored_sessions[id] = True
        else:
            self._stored_sessions.pop(id, None)

    async def flush(self) -> None:
        """Wait until everything is written, or the retry delay has passed."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=WRITE_RETRY_SECONDS)

    async def find_session(self, id: str) -> SessionRow | None:
        return await self._query(self._finding.load, id)

    async def _query(self, ask: Callable[[str], Awaitable[T]], id: str) -> T:
        """Run a query that a client waits for. An unavailable store is waited for once, not by each request."""
        if time.monotonic() < self._away_until:
            raise ConnectionLost("the store was unavailable a moment ago")
        try:
            return await ask(id)
        except ConnectionLost:
            self._away_until = time.monotonic() + STORE_UNAVAILABLE_CACHE_SECONDS
            raise

    async def _load_sessions(self, ids: list[str]) -> dict[str, SessionRow]:
        return await self._database.read(partial(session_queries.select_sessions, ids))

    def is_authentic(self, row: SessionRow) -> bool:
        return row.is_authentic(self._signing)

    async def take_over_session(self, id: str, owner: str | None) -> bool:
        """Take over a session from a worker that is gone. Return whether it still belonged to it."""
        acquired = await self._taking.load((id, owner)) is not None
        if acquired:
            self._set_stored(id, True)
        return acquired

    async def _take_over_sessions(self, sessions: list[OwnedSession]) -> dict[OwnedSession, bool]:
        return await self._database.write(
            partial(session_queries.take_over_sessions, sessions, self._worker), isolation="read committed"
        )

    async def release_session(self, id: str) -> None:
        """Release a session that was taken over but cannot be continued."""
        self._set_stored(id, False)
        await self._database.write(
            partial(session_queries.release_session, id, self._worker), isolation="read committed"
        )

    async def find_lost_sessions(self, ids: list[str]) -> set[str]:
        """Return the local sessions that now belong to another worker or to none, or whose row was deleted."""
        lost = set[str]()
        for at in range(0, len(ids), MAX_ROWS_PER_STATEMENT):
            some = [id for id in ids[at : at + MAX_ROWS_PER_STATEMENT] if id in self._stored_sessions]
            owners = await self._database.read(partial(session_queries.select_owners, some)) if some else {}
            lost |= {
                id for id in some if (owners[id] != self._worker if id in owners else self._stored_sessions.get(id))
            }
        for id in lost:
            self._set_stored(id, False)
            self._pending_writes.pop(id, None)
        return lost

    async def read(self, query: Callable[[Transaction], T]) -> T:
        """Run a query for an operator, without the fail-fast behavior of client requests."""
        return await self._database.read(query)

    async def release_sessions(self, sessions: dict[str, tuple[str, SessionSnapshot]]) -> None:
        """Write the state of sessions, and release them to any worker."""
        for id in sessions:
            self._pending_writes.pop(id, None)
        await self._write_rows(None, dict(sessions))
        for id in sessions:
            self._set_stored(id, False)

    # Signing keys

    async def load_signing_keys(self, server: str) -> list[bytes]:
        """Return the signing keys of a server's workers, the active one first.

        Each key is derived from a row and from the store's own key, which is not in the store: a database role that can
        read or write the row does not know the key. Raises `UsageError` if the store has no key.
        """
        roots = self._database.load_keys()
        if not roots:
            raise UsageError(
                "processes that share a PostgreSQL database need a key outside of it: set PORTICO_ENCRYPTION_KEYS"
            )
        now, stored_keys = await self._database.read(lambda tx: (tx.now(), _select_keys(server, tx)))
        if not stored_keys or now - stored_keys[0].created_at > KEY_ROTATION_SECONDS:
            stored_keys = await self._database.write(partial(_add_key, server))
        # A key that other workers may not have loaded yet verifies, but does not sign.
        propagated = [row for row in stored_keys if now - row.created_at > KEY_PROPAGATION_SECONDS] or stored_keys[-1:]
        ordered = (*propagated, *(row for row in stored_keys if row not in propagated))
        return [_derive_key(root, server, row) for root in roots for row in ordered]

    # Workers

    async def renew_lease(self, address: str | None) -> float:
        """Renew the lease of this worker. Return the time on the store's clock."""
        row = WorkerRow(
            self._worker, address, 0.0,
            self._server, socket.gethostname(), os.getpid(), __version__, self._started_at,
            self._signing.sign_row(_WORKERS, self._worker, self._server, address),
        )  # fmt: skip
        return await self._database.write(partial(_renew, row), isolation="read committed")

    async def find_worker(self, id: str) -> WorkerStatus | None:
        return await self._query(self._find_worker, id)

    async def _find_worker(self, id: str) -> WorkerStatus | None:
        now, row = await self._database.read(partial(_select_worker, id))
        if row is None:
            return None
        address = row.address
        if not self._signing.is_row_signed(_WORKERS, row.signature, id, self._server, address):
            # An unsigned address may have been written by another database role, which would receive the requests.
            address = None
        return WorkerStatus(address, row.lease_until > now, row.lease_until)

    async def delete_worker(self, id: str) -> None:
        """Delete the row of a worker that is known to be gone."""
        await self._database.write(partial(_delete_worker, id), isolation="read committed")

    async def end_lease(self, id: str, lease_until: float) -> None:
        """End the lease of a worker that is reported gone, unless it was renewed since."""
        await self._database.write(partial(_end_lease, id, lease_until), isolation="read committed")

    async def delete_self(self) -> None:
        await self.flush()
        try:
            await self._database.write(partial(_delete_worker, self._worker), isolation="read committed")
        except StoreError as failure:
            log.debug("could not delete the row of this worker: %s", failure)

    # Changes

    async def publish_changes(self, changes: list[str], retained: Sequence[tuple[str, str]] = ()) -> None:
        """Broadcast changes to the other workers. `retained` changes, with method and name, are also stored for later
        workers.
        """

        def publish(tx: Transaction) -> None:
            for method, name in retained:
                id = os.urandom(8).hex()
                signature = self._signing.sign_row(_CHANGES, id, self._server, method, name)
                tx.execute(
                    "insert into portico_run_time_change (id, server, method, name, made_at, signature) "
                    "values (?, ?, ?, ?, ?, ?)",
                    (id, self._server, method, name, tx.now(), signature),
                )
            for change in changes:
                tx.publish(CHANGE_TOPIC, change)

        await self._database.write(publish, isolation="read committed")

    async def load_retained_changes(self) -> list[tuple[str, str]]:
        """Return the retained changes in order. They are deleted when no other worker of this server is running."""
        rows = await self._database.write(partial(_select_retained_changes, self._worker, self._server))
        return [
            (method, name)
            for id, method, name, signature in rows
            if self._signing.is_row_signed(_CHANGES, signature, id, self._server, method, name)
        ]

    def subscribe_changes(self) -> Subscription:
        return self._database.subscribe(CHANGE_TOPIC)

    async def delete_expired(self, idle_seconds: float) -> None:
        """Delete expired rows. The sessions of this worker are not affected."""
        await self._database.write(partial(_remove_stale_dirs, self._worker, idle_seconds), isolation="read committed")

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._finding.close()
        self._taking.close()
        await self._database.close()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def open_worker_store(
    url: str, worker: str, server: str, signing: SigningKeys, key: bytes | None = None
) -> WorkerStore:
    """Open the store of a cluster. `key` is a key that the processes already share, instead of the store's own key."""
    keys = None if key is None else [key]
    database = await Database(url, timeout=STORE_TIMEOUT_SECONDS, max_connections=2, keys=keys).open()
    try:
        await database.migrate("fleet", MIGRATIONS)
    except BaseException:
        await database.close()
        raise
    return WorkerStore(database, worker, server, signing)


def _select_keys(server: str, tx: Transaction) -> list[SigningKeyRow]:
    return tx.fetch_all(
        SigningKeyRow,
        "select secret, created_at from portico_fleet_key where server = ? order by created_at desc, id limit ?",
        (server, MAX_KEYS),
    )


def _derive_key(root: bytes, server: str, row: SigningKeyRow) -> bytes:
    return SigningKeys([root]).sign(b"fleet key", f"{server}\0{row.secret}".encode())


def _add_key(server: str, tx: Transaction) -> list[SigningKeyRow]:
    """Add a key unless another process just added one, and delete keys that no longer verify anything."""
    tx.advisory_lock("portico fleet keys")
    now = tx.now()
    stored_keys = _select_keys(server, tx)
    if not stored_keys or now - stored_keys[0].created_at > KEY_ROTATION_SECONDS:
        tx.execute(
            "insert into portico_fleet_key (id, server, secret, created_at) values (?, ?, ?, ?)",
            (os.urandom(8).hex(), server, os.urandom(32).hex(), now),
        )
    tx.execute(
        "delete from portico_fleet_key where server = ? and created_at < ?", (server, now - 2 * KEY_ROTATION_SECONDS)
    )
    return _select_keys(server, tx)


def _renew(row: WorkerRow, tx: Transaction) -> float:
    now, names = tx.now(), row.__struct_fields__
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
    tx.execute(
        f"insert into portico_worker ({', '.join(names)}) values ({', '.join(f':{name}' for name in names)}) "
        f"on conflict (id) do update set {changed}",
        msgspec.structs.asdict(row) | {"lease_until": now + LEASE_DURATION_SECONDS},
    )
    return now


def _select_worker(id: str, tx: Transaction) -> tuple[float, WorkerRow | None]:
    row = tx.fetch_optional(
        WorkerRow, "select id, address, lease_until, signature from portico_worker where id = ?", (id,)
    )
    return tx.now(), row


def _select_retained_changes(worker: str, server: str, tx: Transaction) -> list[tuple[str, str, str, str | None]]:
    alive = tx.fetch_one(
        int,
        "select count(*) from portico_worker where server = ? and id <> ? and lease_until > ?",
        (server, worker, tx.now()),
    )
    if not alive:
        tx.execute("delete from portico_run_time_change where server = ?", (server,))
    return tx.fetch_all(
        tuple[str, str, str, str | None],
        "select id, method, name, signature from portico_run_time_change where server = ? order by made_at, id",
        (server,),
    )


def _delete_worker(worker: str, tx: Transaction) -> None:
    tx.execute("delete from portico_worker where id = ?", (worker,))


def _end_lease(worker: str, lease_until: float, tx: Transaction) -> None:
    ended = "update portico_worker set lease_until = ? where id = ? and lease_until = ?"
    tx.execute(ended, (tx.now(), worker, lease_until))


def _remove_stale_dirs(worker: str, idle_seconds: float, tx: Transaction) -> None:
    now = tx.now()
    tx.execute("update portico_session set used_at = ? where owner = ?", (now, worker))
    tx.execute("delete from portico_session where used_at < ?", (now - idle_seconds,))
    tx.execute("delete from portico_worker where lease_until < ?", (now - idle_seconds,))
