"""Event transport between processes that share a SQLite file: one datagram socket per process, in a folder next to it.

A subscriber binds a socket; a publisher sends to all of them. Nothing is polled. The socket of a killed process is
removed by the next process that cannot reach it.

The folder is private to one user, who can write to the database file as well, so packets need no signature. A folder
that belongs to another user, or is writable by others, is not used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import stat
from collections import deque
from collections.abc import Callable

log = logging.getLogger("portico")

_MAX_DATAGRAM_BYTES = 65536
_MAX_DATAGRAMS_PER_READ = 64
# The oldest are dropped for a process that does not read; it finds the changes when it polls.
_MAX_PENDING_PACKETS = 256
_SEND_TIMEOUT_SECONDS = 1.0
_SEND_RETRY_DELAY_SECONDS = 0.005


class SqliteEventTransport:
    """EventTransport over Unix sockets. Without them, other processes find changes when they poll."""

    def __init__(self, path: str) -> None:
        parent, name = os.path.split(os.path.abspath(path))
        self._folder = os.path.join(parent, f"{name}-bus")
        self._name = secrets.token_hex(8)
        self._socket: socket.socket | None = None
        # A socket without a name: it only sends.
        self._send_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._send_socket.setblocking(False)
        self._pending: dict[str, deque[bytes]] = {}
        # Socket addresses are limited to about a hundred characters; a path through a descriptor is always short.
        self._short_path = self._folder
        self._parent: int | None = None
        if os.path.isdir("/proc/self/fd"):
            self._parent = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
            self._short_path = f"/proc/self/fd/{self._parent}/{name}-bus"

    async def listen(self, on_packet: Callable[[bytes], None], on_gap: Callable[[], None]) -> None:
        try:
            self._bind()
        except OSError as failure:
            log.warning("changes of other processes are not received immediately: %s: %s", self._folder, failure)
            return
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._receive, self._socket, on_packet)

    def _bind(self) -> None:
        receive_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receive_socket.setblocking(False)
        try:
            # The last process to leave removes the folder, possibly at this moment.
            for is_last in (False, False, True):
                os.makedirs(self._folder, 0o700, exist_ok=True)
                if not _is_private(self._folder):
                    raise PermissionError("the folder must belong to this user and have mode 700")
                try:
                    receive_socket.bind(f"{self._short_path}/{self._name}")
                    break
                except FileNotFoundError:
                    if is_last:
                        raise
        except BaseException:
            receive_socket.close()
            raise
        self._socket = receive_socket

    def _receive(self, socket_: socket.socket, on_packet: Callable[[bytes], None]) -> None:
        # Bounded per call, so that a busy sender does not occupy the event loop.
        for _ in range(_MAX_DATAGRAMS_PER_READ):
            try:
                data = socket_.recv(_MAX_DATAGRAM_BYTES)
            except OSError:
                return
            on_packet(data)

    def send(self, packets: list[bytes]) -> None:
        try:
            others = os.listdir(self._folder)
            # Another user who could create this folder would read the events.
            if others and not _is_private(self._folder):
                return
        except OSError:
            return  # no process listens
        for other in others:
            if other in self._pending:
                self._pending[other].extend(packets)
            elif other != self._name:
                self._send_to(
                    other,
                    deque(packets, _MAX_PENDING_PACKETS),
                    asyncio.get_running_loop().time() + _SEND_TIMEOUT_SECONDS,
                )

    def _send_to(self, other: str, pending: deque[bytes], deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._pending[other] = pending
        try:
            while pending:
                self._send_socket.sendto(pending[0], f"{self._short_path}/{other}")
                pending.popleft()
        except BlockingIOError:  # its receive buffer is full
            if loop.time() < deadline:
                loop.call_later(_SEND_RETRY_DELAY_SECONDS, self._send_to, other, pending, deadline)
                return
        except ConnectionRefusedError:  # the process was killed
            _remove(f"{self._folder}/{other}")
        except OSError as failure:
            log.debug("%s: %s", other, failure)
        del self._pending[other]

    async def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            _remove(f"{self._folder}/{self._name}")
            try:
                os.rmdir(self._folder)
            except OSError:
                pass  # other processes still use it
        self._send_socket.close()
        if self._parent is not None:
            os.close(self._parent)


def _is_private(folder: str) -> bool:
    """Return whether only this user can access the folder. Symbolic links are refused: their target may change."""
    result = os.lstat(folder)
    return stat.S_ISDIR(result.st_mode) and result.st_uid == os.geteuid() and not result.st_mode & 0o077


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
