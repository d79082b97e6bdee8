"""The rows that workers share: which of them are alive, and what is known of each session.

A session's row says who has it. When that worker is gone another one takes the row over, and goes on. Moments are by
the clock of the store: machines do not agree on the time.
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
from portico.transports.http_server.session_snapshot import SessionMemo
from portico.transports.http_server.workers import session_queries
from portico.transports.http_server.workers.batch_loader import Batches
from portico.transports.http_server.workers.session_queries import Held, Rows, SessionRow

T = TypeVar("T")
log = logging.getLogger("portico")

MIGRATIONS = Path(__file__).with_name("migrations")
LEASE_SECONDS = 15.0
# When a key is replaced, and how long until every worker has seen the new one.
ROTATE_SECONDS = 30 * 86400.0
SPREAD_SECONDS = 60.0
# There are two or three; a role that can write rows may add many.
MAX_KEYS = 8
# How long a store that is away is waited for.
PATIENCE_SECONDS = 3.0
# Then those whose clients wait do not ask again for so long.
AWAY_SECONDS = 2.0
# Changes that others are to hear of.
TOPIC = "portico changes"
MOST_AT_ONCE = 500
# Before what could not be written is tried again.
PAUSE_SECONDS = 1.0

_WORKERS, _CHANGES = b"rows of workers", b"rows of changes"


class WorkerRow(Struct, frozen=True):
    """Where a worker is reached by other machines, if it is, and until when it says that it lives.

    The rest is for people. Workers of an older release do not say it.
    """

    id: str
    address: str | None
    lease_until: float
    server: str | None = None
    machine: str | None = None
    pid: int | None = None
    version: str | None = None
    started_at: float | None = None
    # Of the id, the server and the address: requests are sent there, with what their clients have said.
    signature: str | None = None


class FoundWorker(Struct, frozen=True):
    """Where other machines reach a worker, if they do, and whether it has said lately that it lives."""

    address: str | None
    lives: bool
    lease_until: float = 0.0


class SigningKeyRow(Struct, frozen=True):
    """What a key is derived from, together with the store's own key. It is of no use to a role that can read it."""

    secret: str
    created_at: float


class FleetRows:
    """What one worker reads and writes. Writes go together, in the order in which they were asked for."""

    def __init__(self, database: Database, worker: str, server: str, signing: SigningKeys) -> None:
        self._database = database
        self._worker = worker
        self._server = server
        self._signing = signing
        self._began = time.time()
        self._away_until = 0.0
        # What is to be written: a row, or None where it is to be removed.
        self._waiting: dict[str, tuple[str, SessionMemo] | None] = {}
        self._written: asyncio.Future[None] | None = None
        # Our sessions that may have a row; and whether they are known to have had one.
        self._kept: dict[str, bool] = {}
        self._writing: asyncio.Task[None] | None = None
        # After a deploy all clients come back at once.
        self._finding = Batches(self._find_all, MOST_AT_ONCE)
        self._taking = Batches(self._adopt_all, MOST_AT_ONCE)

    @property
    def is_local(self) -> bool:
        """Whether the store is a file, so that all who use it are on this machine."""
        return self._database.engine == "sqlite"

    # The sessions

    def may_have(self, id: str) -> bool:
        """Whether others may find a session of ours by its row."""
        return id in self._kept

    def save(self, id: str, path: str, memo: SessionMemo) -> asyncio.Future[None]:
        """Write a row soon. The future is done when it is written, or could not be."""
        self._waiting[id] = path, memo
        return self._soon()

    def remove(self, id: str) -> None:
        self._waiting[id] = None
        self._soon()

    def _soon(self) -> asyncio.Future[None]:
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return self._written

    async def _write(self) -> None:
        while self._waiting:
            some = dict(list(self._waiting.items())[:MOST_AT_ONCE])
            written, self._written = self._written, None
            for id in some:
                del self._waiting[id]
                self._kept.setdefault(id, False)
            try:
                await self._put(self._worker, some)
            except StoreError as failure:
                log.warning("sessions could not be written down: %s", failure)
                # What was asked for later counts more.
                self._waiting = {**some, **self._waiting}
                _done(written)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                for id in some.keys() & self._kept.keys():
                    self._settle(id, some[id] is not None)
                _done(written)

    async def _put(self, owner: str | None, rows: Rows) -> None:
        known = {id for id in rows if self._kept.get(id)}
        await self._database.write(
            partial(session_queries.put, self._signing, self._worker, owner, rows, known), isolation="read committed"
        )

    def _settle(self, id: str, ours: bool) -> None:
        if ours:
            self._kept[id] = True
        else:
            self._kept.pop(id, None)

    async def flush(self) -> None:
        """Wait until everything is written, or cannot be."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=PAUSE_SECONDS)

    async def find(self, id: str) -> SessionRow | None:
        return await self._asked(self._finding.find, id)

    async def _asked(self, ask: Callable[[str], Awaitable[T]], id: str) -> T:
        """What a client waits for. A store that is away is waited for once, and not by each of them."""
        if time.monotonic() < self._away_until:
            raise ConnectionLost("the store was away a moment ago")
        try:
            return await ask(id)
        except ConnectionLost:
            self._away_until = time.monotonic() + AWAY_SECONDS
            raise

    async def _find_all(self, ids: list[str]) -> dict[str, SessionRow]:
        return await self._database.read(partial(session_queries.find, ids))

    def is_authentic(self, row: SessionRow) -> bool:
        return row.is_authentic(self._signing)

    async def adopt(self, id: str, owner: str | None) -> bool:
        """Take a session over from a worker that is gone. Whether it was still that one's."""
        taken = await self._taking.find((id, owner)) is not None
        if taken:
            self._settle(id, True)
        return taken

    async def _adopt_all(self, sessions: list[Held]) -> dict[Held, bool]:
        return await self._database.write(
            partial(session_queries.adopt, sessions, self._worker), isolation="read committed"
        )

    async def release(self, id: str) -> None:
        """Leave one that we have taken over, and cannot go on with, to the others."""
        self._settle(id, False)
        await self._database.write(partial(session_queries.release, id, self._worker), isolation="read committed")

    async def not_ours(self, ids: list[str]) -> set[str]:
        """Those of our sessions that are another worker's by now, or any worker's, or had a row and have none."""
        lost = set[str]()
        for at in range(0, len(ids), MOST_AT_ONCE):
            some = [id for id in ids[at : at + MOST_AT_ONCE] if id in self._kept]
            owners = await self._database.read(partial(session_queries.owners, some)) if some else {}
            lost |= {id for id in some if (owners[id] != self._worker if id in owners else self._kept.get(id))}
        for id in lost:
            self._settle(id, False)
            self._waiting.pop(id, None)
        return lost

    async def look(self, look: Callable[[Transaction], T]) -> T:
        """For people, who may wait."""
        return await self._database.read(look)

    async def give_up(self, sessions: dict[str, tuple[str, SessionMemo]]) -> None:
        """Write what is known of sessions, and leave them to whichever worker is asked for them next."""
        for id in sessions:
            self._waiting.pop(id, None)
        await self._put(None, dict(sessions))
        for id in sessions:
            self._settle(id, False)

    # The keys

    async def keys(self, server: str) -> list[bytes]:
        """Return the keys that the workers of a server sign with, the one in use first.

        Each is derived from a row and from the store's own key, which is not in the store: a role that can read or
        write the row does not know the key. Raises UsageError where the store has no key.
        """
        roots = self._database.load_keys()
        if not roots:
            raise UsageError(
                "processes that share a PostgreSQL database need a key that is not in it: set PORTICO_SEALING_KEYS"
            )
        now, kept = await self._database.read(lambda tx: (tx.now(), _keys(server, tx)))
        if not kept or now - kept[0].created_at > ROTATE_SECONDS:
            kept = await self._database.write(partial(_add_key, server))
        # One that others may not know yet opens, and does not sign.
        known = [row for row in kept if now - row.created_at > SPREAD_SECONDS] or kept[-1:]
        ordered = (*known, *(row for row in kept if row not in known))
        return [_derived(root, server, row) for root in roots for row in ordered]

    # The workers

    async def renew(self, address: str | None) -> float:
        """Say that we live. Gives the time, by the clock of the store."""
        row = WorkerRow(
            self._worker, address, 0.0,
            self._server, socket.gethostname(), os.getpid(), __version__, self._began,
            self._signing.sign_row(_WORKERS, self._worker, self._server, address),
        )  # fmt: skip
        return await self._database.write(partial(_renew, row), isolation="read committed")

    async def worker(self, id: str) -> FoundWorker | None:
        return await self._asked(self._find_worker, id)

    async def _find_worker(self, id: str) -> FoundWorker | None:
        now, row = await self._database.read(partial(_worker, id))
        if row is None:
            return None
        address = row.address
        if not self._signing.is_row_signed(_WORKERS, row.signature, id, self._server, address):
            # Requests would be sent to a host that another role has chosen.
            address = None
        return FoundWorker(address, row.lease_until > now, row.lease_until)

    async def bury(self, id: str) -> None:
        """Remove the row of a worker that is known to be gone."""
        await self._database.write(partial(_leave, id), isolation="read committed")

    async def end_lease(self, id: str, lease_until: float) -> None:
        """End the lease of a worker that others say is gone, unless it was renewed meanwhile."""
        await self._database.write(partial(_end_lease, id, lease_until), isolation="read committed")

    async def leave(self) -> None:
        await self.flush()
        try:
            await self._database.write(partial(_leave, self._worker), isolation="read committed")
        except StoreError as failure:
            log.debug("the row of this worker stays: %s", failure)

    # What has changed

    async def tell(self, changes: list[str], lasting: Sequence[tuple[str, str]] = ()) -> None:
        """Tell the other workers; what is lasting also those that come later: a method, and a name."""

        def publish(tx: Transaction) -> None:
            for method, name in lasting:
                id = os.urandom(8).hex()
                signature = self._signing.sign_row(_CHANGES, id, self._server, method, name)
                tx.run(
                    "insert into portico_run_time_change (id, server, method, name, made_at, signature) "
                    "values (?, ?, ?, ?, ?, ?)",
                    (id, self._server, method, name, tx.now(), signature),
                )
            for one in changes:
                tx.publish(TOPIC, one)

        await self._database.write(publish, isolation="read committed")

    async def kept_changes(self) -> list[tuple[str, str]]:
        """What was told so, in order; forgotten when no other worker of this server is left that knows of it."""
        rows = await self._database.write(partial(_kept_changes, self._worker, self._server))
        return [
            (method, name)
            for id, method, name, signature in rows
            if self._signing.is_row_signed(_CHANGES, signature, id, self._server, method, name)
        ]

    def heard(self) -> Subscription:
        return self._database.subscribe(TOPIC)

    async def sweep(self, idle_seconds: float) -> None:
        """Remove what was left behind for too long; what we have is in use."""
        await self._database.write(partial(_sweep, self._worker, idle_seconds), isolation="read committed")

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._finding.close()
        self._taking.close()
        await self._database.close()


def _done(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def opened(url: str, worker: str, server: str, signing: SigningKeys, key: bytes | None = None) -> FleetRows:
    """Open the rows of a fleet. `key`: what its processes share already, instead of the store's own key."""
    keys = None if key is None else [key]
    database = await Database(url, patience=PATIENCE_SECONDS, connections=2, keys=keys).open()
    try:
        await database.migrate("fleet", MIGRATIONS)
    except BaseException:
        await database.close()
        raise
    return FleetRows(database, worker, server, signing)


def _keys(server: str, tx: Transaction) -> list[SigningKeyRow]:
    return tx.all(
        SigningKeyRow,
        "select secret, created_at from portico_fleet_key where server = ? order by created_at desc, id limit ?",
        (server, MAX_KEYS),
    )


def _derived(root: bytes, server: str, row: SigningKeyRow) -> bytes:
    return SigningKeys([root]).sign(b"fleet key", f"{server}\0{row.secret}".encode())


def _add_key(server: str, tx: Transaction) -> list[SigningKeyRow]:
    """Another key, unless another process has just made one; those that nothing is signed with any more go."""
    tx.lock("portico fleet keys")
    now = tx.now()
    kept = _keys(server, tx)
    if not kept or now - kept[0].created_at > ROTATE_SECONDS:
        tx.run(
            "insert into portico_fleet_key (id, server, secret, created_at) values (?, ?, ?, ?)",
            (os.urandom(8).hex(), server, os.urandom(32).hex(), now),
        )
    tx.run("delete from portico_fleet_key where server = ? and created_at < ?", (server, now - 2 * ROTATE_SECONDS))
    return _keys(server, tx)


def _renew(row: WorkerRow, tx: Transaction) -> float:
    now, names = tx.now(), row.__struct_fields__
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
    tx.run(
        f"insert into portico_worker ({', '.join(names)}) values ({', '.join(f':{name}' for name in names)}) "
        f"on conflict (id) do update set {changed}",
        msgspec.structs.asdict(row) | {"lease_until": now + LEASE_SECONDS},
    )
    return now


def _worker(id: str, tx: Transaction) -> tuple[float, WorkerRow | None]:
    row = tx.maybe(WorkerRow, "select id, address, lease_until, signature from portico_worker where id = ?", (id,))
    return tx.now(), row


def _kept_changes(worker: str, server: str, tx: Transaction) -> list[tuple[str, str, str, str | None]]:
    alive = tx.one(
        int,
        "select count(*) from portico_worker where server = ? and id <> ? and lease_until > ?",
        (server, worker, tx.now()),
    )
    if not alive:
        tx.run("delete from portico_run_time_change where server = ?", (server,))
    return tx.all(
        tuple[str, str, str, str | None],
        "select id, method, name, signature from portico_run_time_change where server = ? order by made_at, id",
        (server,),
    )


def _leave(worker: str, tx: Transaction) -> None:
    tx.run("delete from portico_worker where id = ?", (worker,))


def _end_lease(worker: str, lease_until: float, tx: Transaction) -> None:
    ended = "update portico_worker set lease_until = ? where id = ? and lease_until = ?"
    tx.run(ended, (tx.now(), worker, lease_until))


def _sweep(worker: str, idle_seconds: float, tx: Transaction) -> None:
    now = tx.now()
    tx.run("update portico_session set used_at = ? where owner = ?", (now, worker))
    tx.run("delete from portico_session where used_at < ?", (now - idle_seconds,))
    tx.run("delete from portico_worker where lease_until < ?", (now - idle_seconds,))
