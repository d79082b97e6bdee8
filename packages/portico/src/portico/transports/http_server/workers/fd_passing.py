"""A connection that is handed to another worker of this machine, with the request that has been read from it.

The other worker answers it, and all that follow on it: nothing is passed through. The socket travels over a Unix socket
in the fleet's folder, which is for one user alone, so what is said there is believed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from portico.auth.principal import Principal
from portico.transports.http_server.bind_address import BACKLOG
from portico.transports.http_server.connection import Connection, Turn
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import Pairs, Request

log = logging.getLogger("portico")

# The name of this socket among those of a worker.
ENDING = "+"
LARGEST = 1024 * 1024
FIRST_PART = 32 * 1024
ANSWER_SECONDS = 5.0
_TAKEN, _ABSENT = b"+", b"-"
_LENGTH = 4


class HandedRequest(Struct, array_like=True):
    """A request as it was read, and how its answer has to look."""

    method: str
    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    repeated: tuple[bytes, ...]
    body: bytes
    peer: str
    cors: Pairs
    principal: Principal | None
    keep: bool
    chunks: bool
    bodiless: bool
    until: float | None = None

    @classmethod
    def of(cls, request: Request, turn: Turn) -> HandedRequest:
        headers = request.headers
        principal = request.principal if isinstance(request.principal, Principal) else None
        return cls(
            request.method, request.path, request.query, list(headers.items()), headers.repeated, request.body,
            request.peer, request.cors, principal, turn.keep, turn.chunks, turn.bodiless,
            request.until,
        )  # fmt: skip

    def request(self) -> Request:
        headers = Headers(self.headers)
        headers.repeated = self.repeated
        made = Request(self.method, self.path, self.query, headers, self.body, self.peer)
        made.cors, made.principal, made.until = self.cors, self.principal, self.until
        return made


class Handed(Struct, array_like=True):
    """What is said with a socket. Without a request the client has asked nothing yet."""

    session: str = ""
    request: HandedRequest | None = None
    # By a worker that leaves: the one that gets it looks for the session.
    seeks: bool = False


_decoder = msgspec.msgpack.Decoder(Handed)


async def hand(path: str, copy: socket.socket, handed: Handed) -> bool | None:
    """Give a socket to the worker that listens at a path. False: it has no such session; None: it is not there.

    Raises TimeoutError where it is not known whether it was taken.
    """
    data = msgspec.msgpack.encode(handed)
    message = len(data).to_bytes(_LENGTH, "big") + data
    loop = asyncio.get_running_loop()
    with copy, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.setblocking(False)
        try:
            await loop.sock_connect(line, path)
            sent = socket.send_fds(line, [message[:FIRST_PART]], [copy.fileno()])
            await loop.sock_sendall(line, message[sent:])
            async with asyncio.timeout(ANSWER_SECONDS):
                # It says so before it answers the client: who says nothing, and is gone, has not answered.
                said = await loop.sock_recv(line, 1)
        except OSError as failure:
            if isinstance(failure, TimeoutError):
                raise
            return None
    return said == _TAKEN if said else None


class HandedSockets:
    """Takes the connections that other workers hand over.

    `has` tells whether a session is here, or nothing (None); `take` goes on with a connection.
    """

    def __init__(
        self, path: str, has: Callable[[str], bool | None], take: Callable[[socket.socket, HandedRequest | None], Any]
    ) -> None:
        self._has = has
        self._take = take
        self._path = path
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.setblocking(False)
        self._listening.bind(path)
        self._listening.listen(BACKLOG)
        self._errands: set[asyncio.Task[None]] = set()
        # Those that have said that they take theirs: no other process answers it any more.
        self._taking: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        with suppress(OSError):
            line, _ = self._listening.accept()
            line.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._receive(line))
            self._errands.add(task)
            task.add_done_callback(self._errands.discard)

    async def _receive(self, line: socket.socket) -> None:
        with line:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    data, given = await _first(line)
            except (OSError, TimeoutError):
                return
            if given is None:
                return
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    handed = await _rest(line, data)
                here = handed is not None and (handed.request is None or handed.seeks or self._has(handed.session))
                if handed is None or not here:
                    if here is not None:
                        line.send(_ABSENT)
                    given.close()
                    return
                line.send(_TAKEN)
            except (OSError, TimeoutError, msgspec.DecodeError):
                given.close()
                return
        self._keep_on()
        given.setblocking(False)
        await self._take(given, handed.request)

    def _keep_on(self) -> None:
        """Let the task that calls this go on when no more are taken."""
        task = asyncio.current_task()
        assert task is not None
        self._errands.discard(task)
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listening.close()
        for task in self._errands:
            task.cancel()
        with suppress(OSError):
            os.unlink(self._path)


async def _first(line: socket.socket) -> tuple[bytes, socket.socket | None]:
    """The first part of a message, and the socket that comes with it."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(line, settle)
    try:
        await readable
    finally:
        loop.remove_reader(line)
    data, numbers, _, _ = socket.recv_fds(line, FIRST_PART, 1)
    return data, socket.socket(fileno=numbers[0]) if numbers else None


async def _rest(line: socket.socket, data: bytes) -> Handed | None:
    loop = asyncio.get_running_loop()
    while len(data) < _LENGTH or len(data) < _LENGTH + int.from_bytes(data[:_LENGTH], "big"):
        if len(data) > 2 * LARGEST or not (part := await loop.sock_recv(line, 256 * 1024)):
            return None
        data += part
    return _decoder.decode(data[_LENGTH:])


async def go_on(given: socket.socket, made: Callable[[], Connection], handed: HandedRequest | None) -> None:
    """Be the connection's other side from now on."""

    def begin() -> Connection:
        connection = made()
        if handed is not None:
            # Answered before anything else is read: what follows on the connection is answered after it.
            turn = connection.first = Turn(connection, handed.request())
            turn.keep, turn.chunks, turn.bodiless = handed.keep, handed.chunks, handed.bodiless
        return connection

    try:
        await asyncio.get_running_loop().connect_accepted_socket(begin, given)
    except OSError as failure:
        log.debug("a connection that was handed over is gone: %s", failure)
        given.close()


def is_there(path: str) -> bool:
    """Whether a worker takes connections at a path, or did."""
    return os.path.exists(path)
