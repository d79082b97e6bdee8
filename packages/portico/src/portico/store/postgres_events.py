"""The bus between processes that share a PostgreSQL database: LISTEN and NOTIFY, on one channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncConnection

from portico.rpc.supervision import BackgroundTasks
from portico.store.connection_pool import TransactionJob, perform
from portico.store.errors import ConnectionLost, StoreError
from portico.store.transaction import Transaction

log = logging.getLogger("portico")


class PostgresBus:
    """A Route. It sends after the commit, in transactions of its own.

    Commits that NOTIFY stand in one line on the whole server, each until it is on the disk. Ours need not be on the
    disk, so they are quick, and those of many transactions go together.
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

    async def listen(self, hear: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        try:
            connection = await self._connect()
        except psycopg.Error as failure:
            raise ConnectionLost(f"The PostgreSQL server cannot be reached: {str(failure).strip()}") from failure
        waiting: list[AsyncConnection] = [connection]

        async def follow() -> None:
            while True:
                await self._follow(waiting.pop() if waiting else await self._reconnect(), hear)
                waiting.append(await self._reconnect())
                missed()

        self._supervisor.run("store change listener", follow)

    async def close(self) -> None:
        await self._supervisor.close()

    async def _send(self) -> None:
        try:
            while self._outgoing:
                packets, self._outgoing = self._outgoing, []
                await perform(self._submit, partial(_notify, packets), writes=True, isolation="read committed")
        except StoreError as failure:
            log.warning("other processes were not told of changes: %s", failure)
        finally:
            self._sending = None

    async def _follow(self, connection: AsyncConnection, hear: Callable[[bytes], None]) -> None:
        try:
            await _receive_until_lost(connection, hear)
        except psycopg.Error as failure:
            log.warning("changes by other processes are not heard for now: %s", str(failure).strip())
        finally:
            await connection.close()

    async def _reconnect(self) -> AsyncConnection:
        pause_seconds = 0.05
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                return await self._connect()
            except psycopg.Error:
                pause_seconds = min(pause_seconds * 2, 5.0)

    async def _connect(self) -> AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
        try:
            await connection.execute("listen portico")
        except BaseException:
            await connection.close()
            raise
        return connection


async def _receive_until_lost(connection: AsyncConnection, hear: Callable[[bytes], None]) -> None:
    """Receive notifications until the connection is lost. psycopg's own generator polls ten times a second."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()
    socket, wire = connection.fileno(), connection.pgconn

    def receive() -> None:
        try:
            wire.consume_input()
            while (notice := wire.notifies()) is not None:
                hear(notice.extra)
        except psycopg.Error as failure:
            loop.remove_reader(socket)
            if not lost.done():
                lost.set_exception(failure)

    loop.add_reader(socket, receive)
    try:
        receive()  # what came with the answer to `listen`
        await lost
    finally:
        loop.remove_reader(socket)


def _notify(packets: list[bytes], tx: Transaction) -> None:
    tx.run("set local synchronous_commit = off")
    tx.many("select pg_notify('portico', ?)", [[packet.decode()] for packet in packets])
