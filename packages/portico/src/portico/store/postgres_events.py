"""Event transport over PostgreSQL LISTEN and NOTIFY, on one channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncConnection

from portico.rpc.supervision import BackgroundTasks
from portico.store.connection_pool import TransactionJob, run_transaction
from portico.store.errors import ConnectionLost, StoreError
from portico.store.transaction import Transaction

log = logging.getLogger("portico")


class PostgresEventTransport:
    """EventTransport that sends after the commit, in separate transactions.

    PostgreSQL serializes commits that NOTIFY, each until it is on disk. These need no durability, so they use
    asynchronous commit, and the events of many transactions are sent together.
    """

    def __init__(self, options: dict[str, Any], submit: Callable[[TransactionJob], None]) -> None:
        self._options = options
        self._submit = submit
        self._outgoing: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None
        self._supervisor = BackgroundTasks()

    def send(self, packets: list[bytes]) -> None:
        self._outgoing += packets
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())

    async def flush(self) -> None:
        while self._sending is not None:
            await self._sending

    async def listen(self, on_packet: Callable[[bytes], None], on_gap: Callable[[], None]) -> None:
        try:
            connection = await self._connect()
        except psycopg.Error as failure:
            raise ConnectionLost(f"cannot reach the PostgreSQL server: {str(failure).strip()}") from failure
        connections: list[AsyncConnection] = [connection]

        async def follow() -> None:
            while True:
                await self._follow(connections.pop() if connections else await self._reconnect(), on_packet)
                connections.append(await self._reconnect())
                # Notifications sent while the connection was down are lost: subscribers have to read everything.
                on_gap()

        self._supervisor.run("store change listener", follow)

    async def close(self) -> None:
        await self._supervisor.close()

    async def _send(self) -> None:
        try:
            while self._outgoing:
                # Packets that arrive during a transaction go together into the next one.
                packets, self._outgoing = self._outgoing, []
                await run_transaction(
                    self._submit, partial(_notify, packets), is_write=True, isolation="read committed"
                )
        except StoreError as failure:
            log.warning("other processes were not notified of changes: %s", failure)
        finally:
            self._sending = None

    async def _follow(self, connection: AsyncConnection, on_packet: Callable[[bytes], None]) -> None:
        try:
            await _receive_until_lost(connection, on_packet)
        except psycopg.Error as failure:
            log.warning("changes of other processes are not received for now: %s", str(failure).strip())
        finally:
            await connection.close()

    async def _reconnect(self) -> AsyncConnection:
        pause_seconds = 0.05
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                return await self._connect()
            except psycopg.Error:
                # Bounded, so that changes arrive soon after the server is back.
                pause_seconds = min(pause_seconds * 2, 5.0)

    async def _connect(self) -> AsyncConnection:
        # A dedicated connection: LISTEN belongs to a session, and pooled ones run transactions.
        connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
        try:
            await connection.execute("listen portico")
        except BaseException:
            await connection.close()
            raise
        return connection


async def _receive_until_lost(connection: AsyncConnection, on_packet: Callable[[bytes], None]) -> None:
    """Receive notifications until the connection is lost. psycopg's own generator polls ten times per second."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()
    socket, pgconn = connection.fileno(), connection.pgconn

    def receive() -> None:
        try:
            pgconn.consume_input()
            while (notice := pgconn.notifies()) is not None:
                on_packet(notice.extra)
        except psycopg.Error as failure:
            loop.remove_reader(socket)
            if not lost.done():
                lost.set_exception(failure)

    loop.add_reader(socket, receive)
    try:
        receive()  # notifications that arrived with the response to `listen`
        await lost
    finally:
        loop.remove_reader(socket)


def _notify(packets: list[bytes], tx: Transaction) -> None:
    tx.execute("set local synchronous_commit = off")
    tx.execute_many("select pg_notify('portico', ?)", [[packet.decode()] for packet in packets])
